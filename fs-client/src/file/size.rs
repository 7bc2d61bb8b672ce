//! The size of a file and of its datafiles: asking for it, recording it, changing it. Its space on
//! the disks: reserving it, giving it back, looking for holes.
//!
//! A range of the file is one range of each datafile, because the strips of a server follow each
//! other there. So each server is asked once for the space of a window of the file.

use std::ops::Range;

use bmi::paths::Direction;
use bmi::threading::Threading;
use fs_proto::limits::{MAX_ALLOCATION, MAX_OFFSET};
use fs_proto::{
    Allocation, DatafileHandle, ErrorCode, IodReply, IodRequest, Location, PendingTruncate, Region, ReplyBody, Sought,
};
use futures_util::future::join_all;

use super::handle::File;
use crate::client::Datafile;
use crate::error::Error;
use crate::net::{Resend, unexpected};

impl<S: Threading> File<S> {
    /// Returns the file's size in bytes, computed from the sizes of its datafiles.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn size(&self) -> Result<u64, Error> {
        let during = |error: Error| error.during(format!("size of {}", self.path()));
        if let Some(recorded) = self.client.confirm_size(self.handle()).await.map_err(during)? {
            return Ok(recorded);
        }
        let file = self.seen().await.map_err(during)?;
        let none = vec![None; file.striping.servers.len()];
        let size = match file.size_with(&none).await {
            Ok(size) => size,
            Err(error) => return Err(during(self.explain(error).await)),
        };
        match file.limit() {
            // It has grown meanwhile, or was seen as it was when it was opened.
            Some(limit) if size > limit => Box::pin(file.size_grown()).await.map_err(during),
            _ => Ok(size),
        }
    }

    async fn size_grown(&self) -> Result<u64, Error> {
        let file = self.look().await?;
        match file.limit() {
            None => file.size().await,
            Some(_) => Err(file.too_long()),
        }
    }

    /// Returns a handle that knows whether a small file has grown, as far as this one must.
    async fn seen(&self) -> Result<File<S>, Error> {
        let latest = self.latest();
        match latest.limit() {
            Some(_) if !self.is_close_to_open() => latest.look().await,
            _ => Ok(latest),
        }
    }

    /// Records the size of the file at the manager: it is complete. From then on its size is known
    /// without its I/O servers, and a datafile that was cut off is noticed. A later write withdraws
    /// it. Nothing is recorded if another client may write to the file, too.
    ///
    /// # Errors
    /// `Invalid` if a datafile is shorter than the size requires: the file has a hole there. Those
    /// of every request.
    pub async fn record_size(&self, size: u64) -> Result<(), Error> {
        let during = |error: Error| error.during(format!("record the size of {}", self.path()));
        self.latest().check_complete(size).await.map_err(during)?;
        self.client.record_size(self.handle(), size).await.map_err(during)
    }

    /// Checks that no datafile is shorter than a size requires. Asks only the servers to which this
    /// handle did not write enough.
    pub(crate) async fn check_complete(&self, size: u64) -> Result<(), Error> {
        let must = |index: usize| self.striping.distribution.datafile_size(index, size);
        let written = self.inner.written_sizes.with(|written| written.clone());
        if (0..self.striping.servers.len()).all(|index| written[index] >= must(index)) {
            return Ok(());
        }
        let ask = |index: usize, datafile| (written[index] < must(index)).then_some(IodRequest::Getsize { datafile });
        let sizes = self.ask_all(Resend::Repeat, ask, held).await?;
        let is_short = |(index, held): (usize, &Option<(u64, u64)>)| held.is_some_and(|(size, _)| size < must(index));
        if sizes.iter().enumerate().any(is_short) {
            return Err(Error::new(ErrorCode::Invalid, "the file has a hole at the end of a datafile"));
        }
        Ok(())
    }

    /// Returns the file's datafiles with their sizes, in the order of the distribution.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn datafiles(&self) -> Result<Vec<Datafile>, Error> {
        self.latest().datafiles_with(&[]).await
    }

    /// As [`File::datafiles`], without asking the servers that have not carried out a change of
    /// size. Their datafiles have the sizes that they are to get.
    pub(crate) async fn datafiles_with(&self, unfinished: &[PendingTruncate]) -> Result<Vec<Datafile>, Error> {
        let known = |datafile: DatafileHandle| unfinished.iter().find(|one| one.datafile == datafile);
        let ask = |_, datafile| known(datafile).is_none().then_some(IodRequest::Getsize { datafile });
        let held = match self.ask_all(Resend::Repeat, ask, held).await {
            Ok(held) => held,
            Err(error) => return Err(self.explain(error).await),
        };
        let handles = self.striping.layout.datafiles().iter().map(|(_, handle)| *handle);
        let servers = self.striping.servers.iter().cloned();
        let datafiles = servers.zip(handles).zip(held).map(|((server, handle), held)| {
            let (size, mtime_ns) = held.unwrap_or_else(|| (known(handle).map_or(0, |one| one.size), 0));
            Datafile { server, handle, size, mtime_ns }
        });
        Ok(datafiles.collect())
    }

    /// Returns the file's size. Asks only the servers whose datafile size is not in `known`.
    pub(super) async fn size_with(&self, known: &[Option<u64>]) -> Result<u64, Error> {
        let ask = |index: usize, datafile| known[index].is_none().then_some(IodRequest::Getsize { datafile });
        let asked = self.ask_all(Resend::Repeat, ask, held).await?;
        let asked = asked.iter().map(|held| held.map(|(size, _)| size));
        let sizes: Vec<u64> = known.iter().zip(asked).map(|(known, asked)| known.or(asked).unwrap_or(0)).collect();
        Ok(self.striping.distribution.file_size(&sizes))
    }

    /// Sets the file's length to `size` bytes, durably: cuts it off or extends it with a hole. It
    /// happens at all of the file's servers or at none.
    ///
    /// # Errors
    /// `TooLarge`, and those of every request. Nothing was changed, unless a server did not answer.
    /// `Unfinished`: it is decided, and the servers that are named have not carried it out yet.
    /// They do so before they serve their parts of the file again. If a server cannot, another
    /// change of length replaces this one.
    pub async fn set_len(&self, size: u64) -> Result<(), Error> {
        let during = |error: Error| error.during(format!("truncate {}", self.path()));
        if size > MAX_OFFSET {
            return Err(during(Error::new(ErrorCode::TooLarge, format!("{size} bytes"))));
        }
        self.inner.written_sizes.with(|written| written.fill(0));
        let mut file = self.latest();
        if file.limit().is_some_and(|limit| size > limit) {
            file = self.grown().await.map_err(during)?;
        }
        if file.striping.layout.most_servers() > 1 {
            return self.client.truncate_all(self.handle(), size).await.map_err(during);
        }
        let writing = self.client.begin_write(self.handle()).await.map_err(during)?;
        let truncate = |_, datafile| Some(IodRequest::Truncate { datafile, size });
        let truncated = self.ask_all(Resend::Never, truncate, written).await;
        writing.end(&truncated);
        match truncated {
            Ok(_) => Ok(()),
            Err(error) => Err(during(self.explain(error).await)),
        }
    }

    /// Gives a range of the file space on the disks of its servers, or takes it away, as
    /// `fallocate` does. It is durable after a [`File::sync`].
    ///
    /// # Errors
    /// `NoSpace`, `TooLarge`; `Unsupported` if the file system of a server cannot do it; those of
    /// every request. Any part of the range may be done then.
    pub async fn allocate(&self, range: Region, how: Allocation) -> Result<(), Error> {
        let during = |error: Error| error.during(format!("allocate in {}", self.path()));
        let Some(end) = range.end() else {
            let text = format!("bytes {range} reach beyond the largest offset, {MAX_OFFSET}");
            return Err(during(Error::new(ErrorCode::TooLarge, text)));
        };
        let range = range.offset..end;
        let allocate = self.allocate_range(range.clone(), how);
        match self.is_atomic() {
            false => allocate.await.map_err(during),
            true => Box::pin(self.excluding(Direction::Write, range, allocate)).await.map_err(during),
        }
    }

    async fn allocate_range(&self, mut range: Range<u64>, how: Allocation) -> Result<(), Error> {
        let is_beyond = self.limit().is_some_and(|limit| range.end > limit);
        if how == Allocation::Hole && (is_beyond || range.end - range.start > MAX_ALLOCATION) {
            // There may be much behind the end, and all of it is a hole.
            range.end = range.end.min(self.size().await?);
        }
        let file = match self.latest().limit() {
            Some(limit) if range.end > limit => self.grown().await?,
            _ => self.latest(),
        };
        while range.start < range.end {
            let end = range.end.min(range.start + MAX_ALLOCATION);
            file.allocate_window(range.start..end, how).await?;
            range.start = end;
        }
        Ok(())
    }

    /// Changes the space of a range that is short enough for a request.
    async fn allocate_window(&self, window: Range<u64>, how: Allocation) -> Result<(), Error> {
        let before = |index: usize, offset: u64| self.striping.distribution.datafile_size(index, offset);
        let request = |index: usize, datafile| {
            let (first, end) = (before(index, window.start), before(index, window.end));
            let range = Region::new(first, end - first);
            (!range.is_empty()).then_some(IodRequest::Allocate { datafile, range, how })
        };
        let taken = |reply: &IodReply| match reply {
            IodReply::Written { size, start, .. } => Some((*size, *start)),
            _ => None,
        };
        let writing = self.client().begin_write(self.handle()).await?;
        let done = self.ask_all(Resend::Never, request, taken).await;
        writing.end(&done);
        match done {
            Ok(done) => {
                let done = done.into_iter().enumerate().filter_map(|(index, done)| Some((index, done?)));
                done.for_each(|(index, (size, start))| self.note_written(index, size, start));
                Ok(())
            }
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// Returns the offset of the first byte of data, or of a hole, from `offset` on. `None` if
    /// `offset` is not before the end, or if there is no more data. There is a hole at the end.
    /// Servers know holes of whole blocks. Bytes that were never written may count as data.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn seek(&self, offset: u64, what: Sought) -> Result<Option<u64>, Error> {
        let during = |error: Error| error.during(format!("seek in {}", self.path()));
        let file = self.seen().await.map_err(during)?;
        let (found, size) = file.seek_striped(offset, what).await.map_err(during)?;
        match file.limit() {
            Some(limit) if size > limit => match file.look().await.map_err(during)? {
                grown if grown.limit().is_none() => Ok(grown.seek_striped(offset, what).await.map_err(during)?.0),
                file => Err(during(file.too_long())),
            },
            _ => Ok(found),
        }
    }

    /// Looks in the datafiles that the file has. Also returns the size of the file.
    async fn seek_striped(&self, offset: u64, what: Sought) -> Result<(Option<u64>, u64), Error> {
        let first = |index: usize| self.striping.distribution.datafile_size(index, offset);
        let request = |index: usize, datafile| Some(IodRequest::Seek { datafile, offset: first(index), what });
        let sought = |reply: &IodReply| match reply {
            IodReply::Sought { at, size } => Some((*at, *size)),
            _ => None,
        };
        let found = match self.ask_all(Resend::Repeat, request, sought).await {
            Ok(found) => found,
            Err(error) => return Err(self.explain(error).await),
        };
        let sizes: Vec<u64> = found.iter().map(|found| found.map_or(0, |(_, size)| size)).collect();
        let size = self.striping.distribution.file_size(&sizes);
        let places = found.iter().enumerate().filter_map(|(server, found)| {
            let physical = found.and_then(|(at, _)| at)?;
            self.striping.distribution.logical(Location { server, physical })
        });
        let nearest = match what {
            Sought::Data => places.min(),
            Sought::Hole => Some(places.min().unwrap_or(size).min(size)),
        };
        Ok((nearest.filter(|_| offset < size), size))
    }

    /// Sends each server the request that `request` returns for it, if any. Returns what `take`
    /// extracts from the replies.
    async fn ask_all<R>(
        &self,
        resend: Resend,
        request: impl Fn(usize, DatafileHandle) -> Option<IodRequest>,
        take: fn(&IodReply) -> Option<R>,
    ) -> Result<Vec<Option<R>>, Error> {
        let inner = self.client.inner();
        let deadline = inner.deadline();
        let asked = self.striping.layout.datafiles().iter().enumerate().map(|(index, (_, datafile))| {
            let (request, server) = (request(index, *datafile), &self.striping.servers[index]);
            async move {
                let Some(request) = request else { return Ok(None) };
                let reply = self.ask(server, deadline, resend, request).await?;
                let found = if let ReplyBody::Iod(reply) = &reply { take(reply) } else { None };
                found.map(Some).ok_or_else(|| unexpected(server, &reply))
            }
        });
        Error::unless_all(join_all(asked).await)
    }
}

/// Returns the start of the server under which the datafile was changed.
fn written(reply: &IodReply) -> Option<u64> {
    if let IodReply::Written { start, .. } = reply { Some(*start) } else { None }
}

/// Returns the size of a datafile and the time of its last change.
fn held(reply: &IodReply) -> Option<(u64, u64)> {
    if let IodReply::Held { size, mtime_ns } = reply { Some((*size, *mtime_ns)) } else { None }
}
