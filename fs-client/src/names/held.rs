//! Files that the manager keeps although their last name is gone, as long as this client has them
//! open; and files that it has written.
//!
//! What is released, and what the manager may have forgotten with its start, is said by
//! [`Client::keep_held`]. So the end of a hold waits for nobody.

use std::pin::pin;
use std::time::Duration;

use bmi::threading::{OneThread, Threading};
use fs_proto::{Entry, ErrorCode, Extent, FileHandle, Layout, ManagerRequest, Start};
use futures_util::future::{Either, select};

use crate::client::Client;
use crate::error::Error;
use crate::path::FsPath;

/// How often a client looks whether the manager was restarted: several times in the minute that it
/// has to say again what it holds.
const LOOKED_AFTER: Duration = Duration::from_secs(10);
/// How long servers may take to tell the sizes of files that were written. Meanwhile these cannot
/// be opened.
const ANSWERED: Duration = Duration::from_millis(500);
/// How long releases wait for others, to be sent with them.
const GATHERED: Duration = Duration::from_millis(250);

/// A file that is held, until this is dropped.
pub struct Held<S: Threading = OneThread> {
    client: Client<S>,
    file: FileHandle,
}

impl<S: Threading> Drop for Held<S> {
    fn drop(&mut self) {
        self.client.inner().files.hold_ended(self.file);
    }
}

impl<S: Threading> Held<S> {
    /// Returns a hold that was counted.
    pub(super) fn of(client: &Client<S>, file: FileHandle) -> Held<S> {
        Held { client: client.clone(), file }
    }
}

impl<S: Threading> Client<S> {
    /// Says to the manager that this client has a file open, and returns the file as it is now.
    /// While it is held, its bytes stay although its last name may go. A client that holds files
    /// runs [`Client::keep_held`] beside.
    ///
    /// Without it, a file that somebody removes is gone: accesses fail with `Lost` or `Stale`.
    ///
    /// # Errors
    /// `Stale` or `NotFound`; `IsDirectory` or `Invalid` for what is no file; `Permission` if the
    /// caller may do nothing with it; `Busy` for more than 65,536 files; those of every request.
    pub async fn hold(&self, path: &FsPath) -> Result<(Held<S>, Entry), Error> {
        let during = |error: Error| error.during(format!("open {path}"));
        let handle = self.handle_of(path).await.map_err(during)?;
        let Some(file) = handle.file() else {
            let code = if handle.dir().is_some() { ErrorCode::IsDirectory } else { ErrorCode::Invalid };
            return Err(during(Error::new(code, format!("{path} is {handle}"))));
        };
        let held = loop {
            let said = self.inner().files.said.notified();
            if self.inner().files.hold(file) {
                break Held::of(self, file);
            }
            said.await;
        };
        let (entry, _) = self.ask_opened(ManagerRequest::Hold { file }).await.map_err(during)?;
        Ok((held, entry))
    }

    /// Says to the manager what is not held and not written any more, and after its restart what is
    /// held. Never returns.
    pub async fn keep_held(&self) {
        let (files, mut said) = (&self.inner().files, None);
        files.keep();
        loop {
            let due = pin!(files.due.notified());
            if let Either::Left(_) = select(due, pin!(self.endpoint().sleep(LOOKED_AFTER))).await {
                self.endpoint().sleep(GATHERED).await;
            }
            if let Err(error) = self.say_holds(&mut said).await {
                tracing::debug!(%error, "the manager does not answer");
                // What is due then is tried again.
                self.endpoint().sleep(LOOKED_AFTER).await;
            }
        }
    }

    /// Says to the manager what is not held and not written any more. [`Client::keep_held`] does so
    /// from time to time.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn release_held(&self) -> Result<(), Error> {
        loop {
            let mut ending = self.inner().files.ending();
            if ending.ended.is_empty() {
                return Ok(());
            }
            let written = ending.ended.iter().filter_map(|ended| Some((ended.file, ended.written.as_ref()?)));
            let (files, layouts): (Vec<FileHandle>, Vec<&Layout>) = written.unzip();
            // Who wants to know the others asks the servers.
            let extents = self.extents(&layouts, Some(ANSWERED)).await;
            let files: Vec<(FileHandle, Extent)> =
                files.into_iter().zip(extents).filter_map(|(file, extent)| Some((file, extent?))).collect();
            if !files.is_empty() {
                self.ask_done(ManagerRequest::Close { files }).await?;
            }
            let files: Vec<FileHandle> =
                ending.ended.iter().filter(|ended| ended.is_held).map(|ended| ended.file).collect();
            if !files.is_empty() {
                self.ask_done(ManagerRequest::Release { files }).await?;
            }
            ending.is_done = true;
        }
    }

    async fn say_holds(&self, said: &mut Option<Start>) -> Result<(), Error> {
        self.release_held().await?;
        self.ask_done(ManagerRequest::Ping).await?;
        let start = self.inner().connections.start_of(self.manager());
        if *said != start {
            for file in self.inner().files.held() {
                match self.hold(&FsPath::of(file)).await {
                    Ok(_) => {}
                    Err(error) if error.is_retryable() => return Err(error),
                    Err(error) => tracing::warn!(%error, %file, "a file that is open is gone"),
                }
            }
            *said = start;
        }
        Ok(())
    }
}
