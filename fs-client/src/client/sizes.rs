//! The recorded sizes of open files: a size is known without the I/O servers if it was recorded
//! when the file was complete, and nobody has withdrawn it since.

use bmi::hooks::mutated;
use bmi::threading::Threading;
use fs_proto::{Entry, ErrorCode, FileHandle, Handle, ManagerReply, ManagerRequest, PendingTruncate};

use super::handle::Client;
use super::open_state::OpenState;
use crate::error::{Error, Failure};

impl<S: Threading> Client<S> {
    /// Asks the manager for a file. `recorded_size` is then right at this moment.
    pub(crate) async fn look_again(&self, file: FileHandle) -> Result<Entry, Error> {
        self.ask_entry(ManagerRequest::Getattr { handle: Handle::File(file) }).await
    }

    /// A file was opened. `recorded_size` is that of its entry.
    pub(crate) fn opened(&self, file: FileHandle, recorded_size: Option<u64>) {
        self.inner().files.with(|files| {
            let state = files.entry(file).or_default();
            state.open += 1;
            recorded_size.into_iter().for_each(|size| state.note(size));
        });
    }

    /// Returns what this client knows about a file that is open.
    fn state(&self, file: FileHandle) -> OpenState {
        self.inner().files.with(|files| files.get(&file).copied().unwrap_or_default())
    }

    /// Returns the size of an open file that was recorded, as far as this client knows. The size
    /// may have been withdrawn since.
    pub(crate) fn recorded_size(&self, file: FileHandle) -> Option<u64> {
        self.state(file).recorded_size
    }

    /// Notes a size before it is recorded, so that a write from now on withdraws it.
    pub(crate) fn note_size(&self, file: FileHandle, size: u64) {
        self.inner().files.with(|files| files.get_mut(&file).into_iter().for_each(|state| state.note(size)));
    }

    /// Takes what the manager has answered to a question or a change that began when `noted` sizes
    /// had been noted.
    fn learn_size(&self, file: FileHandle, noted: u64, size: Option<u64>) {
        self.inner().files.with(|files| {
            let state = files.get_mut(&file).filter(|state| state.noted == noted);
            state.into_iter().for_each(|state| state.recorded_size = size);
        });
    }

    /// Returns the recorded size of an open file if it is still recorded. Asks the manager, unless
    /// it is known that none is recorded.
    pub(crate) async fn confirm_size(&self, file: FileHandle) -> Result<Option<u64>, Error> {
        let OpenState { recorded_size: Some(_), noted, .. } = self.state(file) else { return Ok(None) };
        let size = self.look_again(file).await?.recorded_size;
        self.learn_size(file, noted, size);
        Ok(size)
    }

    /// Withdraws the recorded size of an open file before this client writes to it.
    pub(crate) async fn withdraw_size(&self, file: FileHandle) -> Result<(), Error> {
        let OpenState { recorded_size: Some(_), noted, .. } = self.state(file) else { return Ok(()) };
        if !mutated("client/recorded-size-not-withdrawn") {
            self.ask_done(ManagerRequest::RecordSize { file, size: None }).await?;
        }
        self.learn_size(file, noted, None);
        Ok(())
    }

    /// Sets the length of a file of several servers. The manager then withdraws the recorded size.
    pub(crate) async fn truncate_all(&self, file: FileHandle, size: u64) -> Result<(), Error> {
        let noted = self.state(file).noted;
        let reply = self.ask_manager(ManagerRequest::Truncate { file, size }).await?;
        self.learn_size(file, noted, None);
        let ManagerReply::Truncation(pending) = reply else { return Err(self.odd(reply.into())) };
        let failures = pending.into_iter().map(|PendingTruncate { iod, error, .. }| {
            let text = match error {
                Some(error) => format!(
                    "it is decided, but this server fails to carry it out ({error}), and goes on trying; another size may \
                     be set, or the file removed"
                ),
                None => "it is decided, and this server will carry it out before it serves the file again".to_owned(),
            };
            let server = self.inner().connections.iods().get(iod as usize).cloned();
            Failure::at(server.unwrap_or_else(|| self.manager().clone()), ErrorCode::Unfinished, text)
        });
        let failures: Vec<Failure> = failures.collect();
        if failures.is_empty() { Ok(()) } else { Err(Error::combined(failures)) }
    }

    /// Returns the changes of a file's size that servers have not carried out.
    pub(crate) async fn pending_truncates(&self, file: FileHandle) -> Result<Vec<PendingTruncate>, Error> {
        match self.ask_manager(ManagerRequest::Truncation { file }).await? {
            ManagerReply::Truncation(pending) => Ok(pending),
            other => Err(self.odd(other.into())),
        }
    }

    /// Records the size of a complete file that this client has created and has open.
    pub(crate) async fn record_size(&self, file: FileHandle, size: u64) -> Result<(), Error> {
        self.note_size(file, size);
        self.ask_done(ManagerRequest::RecordSize { file, size: Some(size) }).await
    }

    /// A file that was opened is no longer used.
    pub(crate) fn closed(&self, file: FileHandle) {
        self.inner().files.with(|files| {
            if let Some(state) = files.get_mut(&file) {
                state.open -= 1;
                if state.open == 0 {
                    files.remove(&file);
                }
            }
        });
    }
}
