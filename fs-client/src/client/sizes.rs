//! The sizes of files: what the manager knows of them ([`Content`](fs_proto::Content)), and what
//! the I/O servers do.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use bmi::hooks::mutated;
use bmi::threading::Threading;
use fs_proto::limits::MAX_DATAFILES;
use fs_proto::{
    DatafileHandle, Entry, ErrorCode, Extent, FileHandle, Handle, IodReply, IodRequest, Layout, ManagerReply,
    ManagerRequest, PendingTruncate, ReplyBody,
};
use futures_util::future::{Either, join_all, select};

use super::files::{Beginning, Right};
use super::handle::Client;
use crate::error::{Error, Failure};
use crate::net::{Resend, unexpected};

/// Room in a request for everything beside its list of datafiles, and for each of these, in bytes.
const REQUEST_ROOM: usize = 128;
const HANDLE_ROOM: usize = 10;

/// A write that has begun. If it is dropped, it may still be under way.
pub(crate) struct Writing<'a, S: Threading> {
    client: &'a Client<S>,
    file: FileHandle,
}

impl<S: Threading> Writing<'_, S> {
    /// The servers have answered, or were not asked.
    pub(crate) fn ended(self) {
        self.client.inner().files.write_ended(self.file);
    }

    /// Ends like this, unless a server may still be at it.
    pub(crate) fn end<T>(self, result: &Result<T, Error>) {
        if result.as_ref().err().is_none_or(Error::is_over) {
            self.ended();
        }
    }
}

impl<S: Threading> Client<S> {
    /// Asks the manager for a file. What it knows about the content is then right at this moment.
    pub(crate) async fn look_again(&self, file: FileHandle) -> Result<Entry, Error> {
        self.ask_entry(ManagerRequest::Getattr { handle: Handle::File(file), open: false }).await
    }

    /// Returns the size of an open file that was recorded, as far as this client knows. The size
    /// may have been withdrawn since.
    pub(crate) fn recorded_size(&self, file: FileHandle) -> Option<u64> {
        self.inner().files.recorded_size(file).0
    }

    /// Returns the recorded size of an open file if it is still recorded. Asks the manager, unless
    /// it is known that none is recorded.
    pub(crate) async fn confirm_size(&self, file: FileHandle) -> Result<Option<u64>, Error> {
        match self.recorded_size(file) {
            Some(_) => Ok(self.confirm(file).await?.recorded_size()),
            None => Ok(None),
        }
    }

    /// Asks the manager for an open file. If its size was recorded, as far as this client knows, it
    /// learns whether it still is.
    pub(crate) async fn confirm(&self, file: FileHandle) -> Result<Entry, Error> {
        let (known, noted) = self.inner().files.recorded_size(file);
        let entry = self.look_again(file).await?;
        if known.is_some() {
            self.inner().files.learn(file, noted, entry.recorded_size(), None);
        }
        Ok(entry)
    }

    /// Begins a write to an open file. The first one is said to the manager.
    pub(crate) async fn begin_write(&self, file: FileHandle) -> Result<Writing<'_, S>, Error> {
        self.begin(file, false).await
    }

    /// Begins a write to an open file, of which the manager learns by itself if `says_it`.
    async fn begin(&self, file: FileHandle, says_it: bool) -> Result<Writing<'_, S>, Error> {
        let files = &self.inner().files;
        if let Beginning::Begun = files.begin_write(file, says_it) {
            return Ok(Writing { client: self, file });
        }
        loop {
            let said = files.said.notified();
            match files.begin_write(file, says_it) {
                Beginning::Begun => return Ok(Writing { client: self, file }),
                Beginning::Ending => said.await,
                Beginning::Denied => {
                    let text = format!("{} may not write to {file}", self.caller());
                    return Err(Error::new(ErrorCode::Permission, text));
                }
                Beginning::Unsaid => {
                    let (_, noted) = files.recorded_size(file);
                    if !mutated("client/recorded-size-not-withdrawn") {
                        self.ask_done(ManagerRequest::BeginWrite { file }).await?;
                    }
                    files.learn(file, noted, None, Some(Right::Said));
                }
            }
        }
    }

    /// Sets the length of a file of several servers. For the manager, this client writes then.
    pub(crate) async fn truncate_all(&self, file: FileHandle, size: u64) -> Result<(), Error> {
        let writing = self.begin(file, true).await?;
        let (_, noted) = self.inner().files.recorded_size(file);
        let reply = match self.ask_manager(ManagerRequest::Truncate { file, size }).await {
            Ok(reply) => reply,
            Err(error) => {
                if error.is_over() {
                    writing.ended();
                }
                return Err(error);
            }
        };
        self.inner().files.learn(file, noted, None, Some(Right::Said));
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
        if !failures.is_empty() {
            return Err(Error::combined(failures));
        }
        writing.ended();
        Ok(())
    }

    /// Returns the changes of a file's size that servers have not carried out.
    pub(crate) async fn pending_truncates(&self, file: FileHandle) -> Result<Vec<PendingTruncate>, Error> {
        match self.ask_manager(ManagerRequest::Truncation { file }).await? {
            ManagerReply::Truncation(pending) => Ok(pending),
            other => Err(self.odd(other.into())),
        }
    }

    /// Records the size of a complete file that only this client writes, and has open.
    pub(crate) async fn record_size(&self, file: FileHandle, size: u64) -> Result<(), Error> {
        match self.inner().files.note_size(file, size) {
            true => self.ask_done(ManagerRequest::RecordSize { file, size }).await,
            false => Ok(()),
        }
    }

    /// Asks the I/O servers for the extents of files, with one request for each server as far as
    /// the datafiles fit into it. `None` for a file of which a server has not answered `within` a
    /// time, or has answered with an error.
    pub(crate) async fn extents(&self, layouts: &[&Layout], within: Option<Duration>) -> Vec<Option<Extent>> {
        let mut servers: BTreeMap<u32, Vec<(usize, usize, DatafileHandle)>> = BTreeMap::new();
        for (file, layout) in layouts.iter().enumerate() {
            for (index, (iod, datafile)) in layout.datafiles().iter().enumerate() {
                servers.entry(*iod).or_default().push((file, index, *datafile));
            }
        }
        let mut found: Vec<Vec<Option<Extent>>> =
            layouts.iter().map(|layout| vec![None; layout.datafiles().len()]).collect();
        let asked = servers.into_iter().map(async |(iod, items)| {
            let datafiles: Vec<DatafileHandle> = items.iter().map(|(.., datafile)| *datafile).collect();
            let sizes = pin!(self.sizes_at(iod, &datafiles));
            let sizes = match within {
                None => sizes.await.0,
                Some(within) => match select(sizes, pin!(self.endpoint().sleep(within))).await {
                    Either::Left(((sizes, _), _)) => sizes,
                    Either::Right(_) => Vec::new(),
                },
            };
            (items, sizes)
        });
        for (items, sizes) in join_all(asked).await {
            for ((file, index, _), size) in items.into_iter().zip(sizes) {
                found[file][index] = size;
            }
        }
        let extent = |(layout, found): (&&Layout, Vec<Option<Extent>>)| {
            let found: Vec<Extent> = found.into_iter().collect::<Option<_>>()?;
            let sizes: Vec<u64> = found.iter().map(|extent| extent.size).collect();
            let written_ns = found.iter().map(|extent| extent.written_ns).max().unwrap_or(0);
            Some(Extent { size: layout.distribution().file_size(&sizes), written_ns })
        };
        layouts.iter().zip(found).map(extent).collect()
    }

    /// Asks an I/O server for the sizes of datafiles. Returns those of the first ones, up to an
    /// error, and the error.
    pub(crate) async fn sizes_at(
        &self,
        iod: u32,
        datafiles: &[DatafileHandle],
    ) -> (Vec<Option<Extent>>, Option<Failure>) {
        let inner = self.inner();
        let mut sizes = Vec::with_capacity(datafiles.len());
        let Some(server) = inner.connections.iods().get(iod as usize).cloned() else {
            return (sizes, Some(Failure::here(ErrorCode::Invalid, format!("there is no I/O server {iod}"))));
        };
        while sizes.len() < datafiles.len() {
            let rest = &datafiles[sizes.len()..];
            let room = inner.connections.room(&server.addr).unwrap_or(REQUEST_ROOM + HANDLE_ROOM);
            let most = (room.saturating_sub(REQUEST_ROOM) / HANDLE_ROOM).clamp(1, MAX_DATAFILES);
            let request = IodRequest::Getsizes { datafiles: rest[..rest.len().min(most)].to_vec() };
            match inner.ask(&server, inner.deadline(), Resend::Repeat, request).await {
                Ok(ReplyBody::Iod(IodReply::Sizes(some))) if !some.is_empty() && some.len() <= rest.len() => {
                    sizes.extend(some);
                }
                Ok(other) => return (sizes, Some(unexpected(&server, &other))),
                Err(failure) => return (sizes, Some(failure)),
            }
        }
        (sizes, None)
    }
}
