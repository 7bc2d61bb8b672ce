//! A new file that has no name yet.
//!
//! **Why.** What is written under its final name is visible in part, and what was there before is
//! gone. If the client then fails, the name leads to a plausible, corrupt file. A draft has no name
//! until it is complete.
//!
//! **Invariants**
//! 1. Before a draft is published, nobody else sees it, and a file of that name is as before.
//! 2. Publishing is one step: the name leads to the old file or to the complete new one.
//! 3. Nothing of an abandoned draft is left. If the client cannot abandon it, the manager does.

use bmi::hooks::mutated;
use bmi::threading::{OneThread, Threading};
use fs_proto::{ManagerRequest, Replace};

use crate::error::Error;
use crate::file::File;
use crate::path::FsPath;

/// A file without a name. It is written through [`Draft::file`]. If it is dropped without being
/// published or abandoned, the manager removes it some minutes after the client has gone.
pub struct Draft<S: Threading = OneThread> {
    file: File<S>,
}

/// How a draft gets its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Publish {
    /// If true and a file is replaced, the new one takes over its mode, owner and group.
    pub inherit: bool,
    /// Permission bits to set in any case.
    pub mode: Option<u32>,
    /// The last change of the content, in nanoseconds since 1970. `None` for now.
    pub mtime_ns: Option<u64>,
    /// The size of the complete file in bytes. It is recorded as by [`File::record_size`]. `None`
    /// if it is not known.
    pub size: Option<u64>,
    /// What must be at the place, at that moment.
    pub replace: Replace,
}

impl<S: Threading> Draft<S> {
    pub(crate) fn new(file: File<S>) -> Draft<S> {
        Draft { file }
    }

    /// Returns the file.
    pub fn file(&self) -> &File<S> {
        &self.file
    }

    /// Gives the file the name that it was created for. It replaces a file of that name, if
    /// [`Publish::replace`] allows that. The bytes that must survive a crash are synced before
    /// ([`File::sync`]).
    ///
    /// # Errors
    /// `IsDirectory`, `NotFound` for the parent directory; `Exists` or `NotFound` if something else
    /// is there than `how` requires; `Stale` if the manager has removed the
    /// draft; `Invalid` as for [`File::record_size`]; those of every request. The name is then
    /// unchanged, unless the manager did not answer.
    pub async fn publish(&self, how: Publish) -> Result<(), Error> {
        let (client, handle) = (self.file.client(), self.file.handle());
        let Publish { inherit, mode, mtime_ns, mut size, replace } = how;
        let during = |error: Error| error.during(format!("publish {}", self.path()));
        if let Some(size) = size {
            self.file.latest().check_complete(size).await.map_err(during)?;
        }
        let place = self.file.path().place();
        size = size.filter(|size| client.inner().files.note_size(handle, *size));
        let request = ManagerRequest::Publish { file: handle, place, inherit, mode, mtime_ns, size, replace };
        if mutated("client/draft-abandoned-when-it-is-published") {
            return client.ask_done(ManagerRequest::Abandon { file: handle }).await;
        }
        let published = client.ask_entry(request).await;
        published.map(drop).map_err(during)
    }

    /// Removes the file.
    ///
    /// # Errors
    /// Those of every request. The manager then removes the file later.
    pub async fn abandon(self) -> Result<(), Error> {
        let request = ManagerRequest::Abandon { file: self.file.handle() };
        let abandoned = self.file.client().ask_done(request).await;
        abandoned.map_err(|error| error.during(format!("abandon {}", self.path())))
    }

    fn path(&self) -> &FsPath {
        self.file.path()
    }
}
