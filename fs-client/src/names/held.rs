//! Files that the manager keeps although their last name is gone, as long as this client has them
//! open.
//!
//! What is released, and what the manager may have forgotten with its start, is said by
//! [`Client::keep_held`]. So the end of a hold waits for nobody.

use std::pin::pin;
use std::time::Duration;

use bmi::threading::{OneThread, Threading};
use fs_proto::{Entry, ErrorCode, FileHandle, ManagerRequest, Start};
use futures_util::future::{Either, select};

use crate::client::Client;
use crate::error::Error;
use crate::path::FsPath;

/// How often a client looks whether the manager was restarted: several times in the minute that it
/// has to say again what it holds.
const LOOKED_AFTER: Duration = Duration::from_secs(10);
/// How long releases wait for others, to be sent with them.
const GATHERED: Duration = Duration::from_millis(100);

/// A file that is held, until this is dropped.
pub struct Held<S: Threading = OneThread> {
    client: Client<S>,
    file: FileHandle,
}

impl<S: Threading> Drop for Held<S> {
    fn drop(&mut self) {
        self.client.inner().holds.end(self.file);
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
    /// `Stale` or `NotFound`; `IsDirectory` or `Invalid` for what is no file; `Busy` for more than
    /// 65,536 files; those of every request.
    pub async fn hold(&self, path: &FsPath) -> Result<(Held<S>, Entry), Error> {
        let during = |error: Error| error.during(format!("open {path}"));
        let handle = self.handle_of(path).await.map_err(during)?;
        let Some(file) = handle.file() else {
            let code = if handle.dir().is_some() { ErrorCode::IsDirectory } else { ErrorCode::Invalid };
            return Err(during(Error::new(code, format!("{path} is {handle}"))));
        };
        let held = loop {
            let released = self.inner().holds.released.notified();
            if self.inner().holds.begin(file) {
                break Held { client: self.clone(), file };
            }
            released.await;
        };
        let entry = self.ask_entry(ManagerRequest::Hold { file }).await.map_err(during)?;
        Ok((held, entry))
    }

    /// Says to the manager what is not held any more, and after its restart what is. Never returns.
    pub async fn keep_held(&self) {
        let (holds, mut said) = (&self.inner().holds, None);
        loop {
            let due = pin!(holds.due.notified());
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

    /// Says to the manager what is not held any more. [`Client::keep_held`] does so from time to
    /// time.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn release_held(&self) -> Result<(), Error> {
        loop {
            let mut releasing = self.inner().holds.release();
            let files = releasing.files.clone();
            if files.is_empty() {
                return Ok(());
            }
            self.ask_done(ManagerRequest::Release { files }).await?;
            releasing.is_done = true;
        }
    }

    async fn say_holds(&self, said: &mut Option<Start>) -> Result<(), Error> {
        self.release_held().await?;
        self.ask_done(ManagerRequest::Ping).await?;
        let start = self.inner().connections.start_of(self.manager());
        if *said != start {
            for file in self.inner().holds.all() {
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
