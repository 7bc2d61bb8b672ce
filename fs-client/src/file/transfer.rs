//! The data of a file: reads and writes, contiguous or lists on both sides, striped over servers.
//!
//! **Invariants**
//! 1. All servers involved work in parallel. A failure of one does not stop the others. The error
//!    names each server that failed, with its ranges.
//! 2. A read is short only at the end of the file. Bytes that were never written are zeros.
//! 3. A server can access memory only while a request to it is in progress.
//! 4. A datafile that is missing or shorter than it must be is an error. How long it must be is
//!    known if the file's size was recorded when it was complete ([`File::record_size`]).
//! 5. A recorded size is withdrawn before the first write, and confirmed before it is used.
//! 6. Of a small file, nothing is accessed behind its limit. It grows before a write reaches there.
//!    A read that reaches its end is one of a file that has not grown when it began.
//!
//! **Source.** [PVFS-IB §2.1, §3.2.3] (server-based transfer), [PVFS-IB §4.1] (inline), [PVFS-IB
//! §5] (list I/O).

use std::ops::Range;

use bmi::config::Lists;
use bmi::hooks::mutated;
use bmi::paths::Direction;
use bmi::threading::Threading;
use bmi::{Body, Endpoint, MemList};
use fs_proto::limits::{MAX_OFFSET, MAX_REGIONS};
use fs_proto::{ErrorCode, IodReply, IodRequest, Region, Regions, ReplyBody};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};

use super::handle::{File, REQUEST_ROOM};
use crate::error::{Error, Failure, ServerName};
use crate::net::{Outgoing, Resend, unexpected};
use crate::split::{Plan, PlanLimits, ServerPaths, Transfer, file_ranges};

/// Requests of one operation in progress at the same time, per server.
const WINDOW: usize = 4;

/// Returns true if the first datafile of a small file is longer than its limit: the file has grown.
pub(super) fn is_over(sizes: &[Option<u64>], limit: u64) -> bool {
    sizes[0].is_some_and(|size| size > limit)
}

/// Returns the range of the file that contains all regions.
fn hull(regions: &[Region]) -> Range<u64> {
    let filled = regions.iter().copied().filter(|region| !region.is_empty());
    let hull = filled.reduce(Region::hull).unwrap_or(Region::new(0, 0));
    hull.offset..hull.offset.saturating_add(hull.len)
}

impl<S: Threading> File<S> {
    /// Returns how a read or write of `regions` would be carried out: the requests, and the path of
    /// their data if slots and credits are not short.
    ///
    /// # Errors
    /// `Invalid` if `memory` and `regions` differ in length. `TooLarge` if a region ends beyond the
    /// largest offset of a file.
    pub fn plan(&self, direction: Direction, regions: &[Region], memory: &MemList) -> Result<Plan, Error> {
        let file = self.latest();
        Ok(file.cut(direction, regions, memory)?.with_paths(file.paths(memory)))
    }

    /// Splits a read or write into requests.
    fn cut(&self, direction: Direction, regions: &[Region], memory: &MemList) -> Result<Plan, Error> {
        let mut total = 0u64;
        for region in regions {
            let end = region.end().and_then(|_| total.checked_add(region.len));
            let text = || format!("bytes {region} reach beyond the largest offset, {MAX_OFFSET}");
            total = end.ok_or_else(|| Error::new(ErrorCode::TooLarge, text()))?;
        }
        if total != memory.len() as u64 {
            let text = format!("{total} bytes of the file and {} bytes of memory", memory.len());
            return Err(Error::new(ErrorCode::Invalid, text));
        }
        Ok(Plan::new(direction, self.striping.distribution, self.limits(), regions, memory))
    }

    pub(super) fn limits(&self) -> PlanLimits {
        let inner = self.client.inner();
        let rooms = self.striping.servers.iter().filter_map(|server| inner.connections.room(&server.addr));
        let room = rooms.min();
        inner.connections.endpoint().with(|engine| PlanLimits {
            request: room.unwrap_or(engine.config().credits.eager_limit).saturating_sub(REQUEST_ROOM),
            regions: MAX_REGIONS,
            // One more goes with a message.
            pieces: engine.config().tuning.max_pieces - 1,
            transfer: inner.options.largest_transfer.max(1),
            lists: inner.options.lists.or(engine.config().memory.lists),
        })
    }

    /// Returns, for each server, which path data of each size takes and whether this memory counts
    /// as registered there.
    fn paths(&self, memory: &MemList) -> Vec<ServerPaths> {
        let connections = &self.client.inner().connections;
        let paths = |endpoint: &Endpoint<S>, peer| {
            endpoint.with(|engine| {
                let registered = memory.pieces().iter().all(|piece| engine.is_registered(piece.memory()));
                ServerPaths { plan: engine.plan(peer), registered }
            })
        };
        let one = |server: &ServerName| match connections.connected(&server.addr) {
            Some(peer) => paths(peer.endpoint(), Some(peer.id())),
            None => paths(connections.endpoint(), None),
        };
        self.striping.servers.iter().map(one).collect()
    }

    /// Reads from `offset` into `memory` and returns the number of bytes read. It is less than the
    /// length of `memory` only at the end of the file. The rest of the memory is then set to zero.
    ///
    /// # Errors
    /// An error that names each server that failed and the ranges that were not read; those of
    /// every request.
    pub async fn read_at(&self, offset: u64, memory: impl Into<MemList>) -> Result<u64, Error> {
        let memory = memory.into();
        let regions = [Region::new(offset, memory.len() as u64)];
        self.read_list(&regions, memory).await
    }

    /// Reads `regions` of the file, in order, into `memory`, in order. The two lists need not have
    /// the same shape. Returns how many of the bytes are before the end of the file. The others are
    /// zero.
    ///
    /// # Errors
    /// As [`File::read_at`]; `Invalid` if the lists differ in length.
    pub async fn read_list(&self, regions: &[Region], memory: impl Into<MemList>) -> Result<u64, Error> {
        let during = |error: Error| error.during(format!("read of {}", self.path()));
        let read = self.read_regions(regions, memory.into());
        match self.is_atomic() {
            false => read.await.map_err(during),
            true => Box::pin(self.excluding(Direction::Read, hull(regions), read)).await.map_err(during),
        }
    }

    async fn read_regions(&self, regions: &[Region], memory: MemList) -> Result<u64, Error> {
        match self.limit() {
            None => Ok(self.read_striped(regions, memory).await?.0),
            Some(_) => Box::pin(self.read_small(regions, memory)).await,
        }
    }

    /// Reads from a small file. Others may let it grow meanwhile.
    async fn read_small(&self, regions: &[Region], memory: MemList) -> Result<u64, Error> {
        let last = hull(regions).end;
        let mut file = self.latest();
        loop {
            let Some(limit) = file.limit() else { return Ok(file.read_striped(regions, memory).await?.0) };
            let is_beyond = last > limit && !self.is_close_to_open();
            if is_beyond {
                file = file.look().await?;
                if file.limit().is_none() {
                    continue;
                }
            }
            let (read, sizes) = file.read_striped(regions, memory.clone()).await?;
            let is_seen = is_beyond || self.is_close_to_open();
            if !is_over(&sizes, limit) && (is_seen || read == memory.len() as u64) {
                return Ok(read);
            }
            // What is behind the limit of the first datafile is in another place of the file.
            file = file.look().await?;
            match (file.limit(), is_over(&sizes, limit)) {
                (Some(_), false) => return Ok(read),
                (Some(_), true) => return Err(file.too_long()),
                (None, _) => {}
            }
        }
    }

    /// A small file has a datafile that is longer than its limit.
    pub(super) fn too_long(&self) -> Error {
        let text = format!("{} is longer than a small file may be", self.datafile_handle(0));
        Failure::at(self.striping.servers[0].clone(), ErrorCode::Io, text).into()
    }

    /// Reads from the datafiles that the file has. Also returns the sizes of those that were
    /// accessed.
    async fn read_striped(&self, regions: &[Region], memory: MemList) -> Result<(u64, Vec<Option<u64>>), Error> {
        self.check_readable()?;
        let plan = self.ready(Direction::Read, regions, memory).await?;
        let sizes = match self.run(&plan).await {
            Ok(sizes) => sizes,
            Err(error) => return Err(self.explain(error).await),
        };
        self.check_lengths(&sizes).await?;
        let end = |region: &Region| region.offset + region.len;
        let last = regions.iter().filter(|region| !region.is_empty()).map(end).max().unwrap_or(0);
        let size = self.end_of(&sizes, last).await?;
        let size = if mutated("client/short-read-reported-as-full") { last } else { size };
        let read = regions.iter().map(|region| size.saturating_sub(region.offset).min(region.len)).sum();
        Ok((read, sizes))
    }

    /// Returns the size of the file, or any larger number if that is not less than `last`. `sizes`
    /// are those of the datafiles that were just accessed.
    pub(super) async fn end_of(&self, sizes: &[Option<u64>], last: u64) -> Result<u64, Error> {
        let known: Vec<u64> = sizes.iter().map(|size| size.unwrap_or(0)).collect();
        let size = self.striping.distribution.file_size(&known);
        if size >= last || !sizes.contains(&None) || mutated("client/size-of-those-that-were-read") {
            return Ok(size);
        }
        // The datafiles that were read end before the requested range does. The others may hold
        // later bytes.
        match self.client.confirm_size(self.handle()).await? {
            Some(recorded) => Ok(recorded),
            None => self.size_with(sizes).await,
        }
    }

    /// Writes `memory` at `offset`. The bytes reach the disk with [`File::sync`].
    ///
    /// # Errors
    /// An error that names each server that failed and the ranges that may not have been written;
    /// all other bytes were written. Those of every request.
    pub async fn write_at(&self, offset: u64, memory: impl Into<MemList>) -> Result<(), Error> {
        let memory = memory.into();
        let regions = [Region::new(offset, memory.len() as u64)];
        self.write_list(&regions, memory).await
    }

    /// Writes `memory`, in order, to `regions` of the file, in order. The two lists need not have
    /// the same shape. Where regions overlap, it is undefined which bytes remain.
    ///
    /// # Errors
    /// As [`File::write_at`]; `Invalid` if the lists differ in length.
    pub async fn write_list(&self, regions: &[Region], memory: impl Into<MemList>) -> Result<(), Error> {
        let during = |error: Error| error.during(format!("write of {}", self.path()));
        let write = self.write_regions(regions, memory.into());
        match self.is_atomic() {
            false => write.await.map_err(during),
            true => Box::pin(self.excluding(Direction::Write, hull(regions), write)).await.map_err(during),
        }
    }

    /// Writes `memory` behind the end of the file, and returns at which offset. Of two appends, by
    /// whichever clients, one comes behind the other, whole. Writes at an offset do not wait for
    /// it.
    ///
    /// This costs two requests to the server of the file's first bytes, and the question for the
    /// size, beside the write.
    ///
    /// # Errors
    /// As [`File::write_at`], and those of [`File::atomic`]. It is then not known whether the bytes
    /// were appended.
    pub async fn append(&self, memory: impl Into<MemList>) -> Result<u64, Error> {
        let during = |error: Error| error.during(format!("append to {}", self.path()));
        let memory = memory.into();
        // Others may have appended since it was opened.
        let exact = self.strict();
        let append = async {
            let offset = exact.size().await?;
            self.write_regions(&[Region::new(offset, memory.len() as u64)], memory).await?;
            Ok(offset)
        };
        Box::pin(self.excluding(Direction::Write, 0..MAX_OFFSET, append)).await.map_err(during)
    }

    async fn write_regions(&self, regions: &[Region], memory: MemList) -> Result<(), Error> {
        if self.limit().is_some_and(|limit| hull(regions).end > limit) {
            return Box::pin(async { self.grown().await?.write_striped(regions, memory).await }).await;
        }
        self.write_striped(regions, memory).await
    }

    /// Writes to the datafiles that the file has.
    async fn write_striped(&self, regions: &[Region], memory: MemList) -> Result<(), Error> {
        let writing = self.client.begin_write(self.handle()).await?;
        let written = match self.ready(Direction::Write, regions, memory).await {
            Ok(plan) => self.run(&plan).await,
            Err(error) => Err(error),
        };
        writing.end(&written);
        match written {
            Ok(_) => Ok(()),
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// A datafile that does not exist was lost, or the whole file was removed. Asks the manager
    /// which of the two it is.
    pub(super) async fn explain(&self, error: Error) -> Error {
        if !error.failures().iter().any(|failure| failure.code == ErrorCode::Lost) {
            return error;
        }
        match self.client.look_again(self.handle()).await {
            Err(gone) if matches!(gone.code(), ErrorCode::Stale | ErrorCode::NotFound) => {
                Error::new(ErrorCode::Stale, "the file was removed or replaced")
            }
            _ => error,
        }
    }

    /// Checks that the datafiles that were read are as long as the file's recorded size requires.
    pub(crate) async fn check_lengths(&self, sizes: &[Option<u64>]) -> Result<(), Error> {
        let short = |recorded: u64| {
            // With more bytes than a small file may have, it has grown since this handle was told.
            let has_grown = self.limit().is_some_and(|limit| recorded > limit);
            let must = |index: usize| match has_grown {
                true => 0,
                false => self.striping.distribution.datafile_size(index, recorded),
            };
            let is_short = |(index, size): (usize, &Option<u64>)| size.is_some_and(|size| size < must(index));
            sizes.iter().enumerate().position(|(index, size)| is_short((index, size)))
        };
        let known = self.client.recorded_size(self.handle());
        if known.and_then(short).is_none() {
            return Ok(());
        }
        // The file may have been written since it was opened.
        let Some(recorded) = self.client.confirm_size(self.handle()).await? else { return Ok(()) };
        let Some(index) = short(recorded) else { return Ok(()) };
        let (_, datafile) = self.striping.layout.datafiles()[index];
        let must = self.striping.distribution.datafile_size(index, recorded);
        let text = format!("{datafile} has {} bytes; it must have {must}: it was cut off", sizes[index].unwrap_or(0));
        Err(Failure::at(self.striping.servers[index].clone(), ErrorCode::Lost, text).into())
    }

    /// Connects the servers involved, then splits the access into requests. The limits of a server
    /// are known only after it is connected. If a server cannot be reached, its requests fail later
    /// and the error names their ranges.
    async fn ready(&self, direction: Direction, regions: &[Region], memory: MemList) -> Result<Plan, Error> {
        let mut concerned = vec![false; self.striping.servers.len()];
        let stripe = self.striping.distribution.strip_size() * self.striping.servers.len() as u64;
        for region in regions {
            let strips = self.striping.distribution.strips(region.part(0, stripe));
            strips.for_each(|strip| concerned[strip.at.server] = true);
        }
        self.connect(|index| concerned[index]).await;
        self.cut(direction, regions, &memory)
    }

    /// Connects the servers that are `concerned`, as far as they can be reached.
    pub(super) async fn connect(&self, concerned: impl Fn(usize) -> bool) {
        let connections = &self.client.inner().connections;
        let missing = |server: &ServerName| connections.room(&server.addr).is_none();
        let servers = self.striping.servers.iter().enumerate();
        let servers = servers.filter(|(index, server)| missing(server) && concerned(*index));
        let deadline = self.client.inner().deadline();
        join_all(servers.map(|(_, server)| connections.peer(server, deadline))).await;
    }

    /// Carries out a plan. Returns the sizes of the datafiles that it accessed.
    async fn run(&self, plan: &Plan) -> Result<Vec<Option<u64>>, Error> {
        let one = async |transfer: &Transfer| (transfer.datafile, self.transfer(plan, transfer).await);
        let window = WINDOW * self.striping.servers.len();
        let mut results = stream::iter(&plan.transfers).map(one).buffer_unordered(window);
        let mut sizes = vec![None; self.striping.servers.len()];
        let mut failures: Vec<Failure> = Vec::new();
        while let Some((datafile, result)) = results.next().await {
            match result {
                Ok(size) => sizes[datafile] = sizes[datafile].max(Some(size)),
                Err(failure) => add_failure(&mut failures, failure),
            }
        }
        if failures.is_empty() { Ok(sizes) } else { Err(Error::combined(failures)) }
    }

    /// Carries out one transfer. Returns the datafile's size.
    async fn transfer(&self, plan: &Plan, transfer: &Transfer) -> Result<u64, Failure> {
        let server = &self.striping.servers[transfer.datafile];
        let (_, datafile) = self.striping.layout.datafiles()[transfer.datafile];
        let regions = Regions::try_from(transfer.regions.clone())
            .map_err(|error| Failure::at(server.clone(), error.code, error.detail))?;
        let (body, data) = match plan.direction {
            Direction::Read => (IodRequest::Read { datafile, regions }, Body::In(transfer.memory.clone())),
            Direction::Write => {
                (IodRequest::Write { datafile, regions, sync: false }, Body::Out(transfer.memory.clone()))
            }
        };
        let result = self.request(plan.direction, transfer.datafile, body, data, plan.lists).await;
        result.map_err(|failure| self.with_ranges(plan, transfer, failure))
    }

    /// Sends a read or write of a datafile. Returns the datafile's size.
    pub(super) async fn request(
        &self,
        direction: Direction,
        index: usize,
        body: IodRequest,
        data: Body,
        lists: Lists,
    ) -> Result<u64, Failure> {
        let inner = self.client.inner();
        let server = &self.striping.servers[index];
        let all = match &data {
            Body::In(memory) | Body::Out(memory) => memory.len() as u64,
            _ => 0,
        };
        let resend = if direction == Direction::Read { Resend::Repeat } else { Resend::Never };
        let outgoing = Outgoing { data, path: inner.options.path, lists, ..self.outgoing(body) };
        let answer = if self.inner.advice.is_untold(index) {
            // In a box of its own, so that other requests have a small future.
            Box::pin(self.tell_and_call(index, resend, &outgoing)).await
        } else {
            inner.connections.call(server, inner.deadline(), resend, &outgoing).await
        }?;
        match (direction, answer.body) {
            (Direction::Write, ReplyBody::Iod(IodReply::Written { len, size, start })) if len == all => {
                self.note_written(index, size, start);
                Ok(size)
            }
            (Direction::Read, ReplyBody::Iod(IodReply::Read { len, size })) if len == all && answer.data == len => {
                Ok(size)
            }
            (_, other) => Err(unexpected(server, &other)),
        }
    }

    /// Notes that a start of a server has changed its datafile, which then had `size` bytes.
    pub(super) fn note_written(&self, index: usize, size: u64, start: u64) {
        self.inner.unsynced.note(index, start);
        self.inner.written_sizes.with(|written| written[index] = size.max(written[index]));
    }

    /// Adds the affected ranges of the file: the server's ranges, translated, or all of the
    /// transfer if the server named none.
    fn with_ranges(&self, plan: &Plan, transfer: &Transfer, failure: Failure) -> Failure {
        let ranges = match failure.physical.as_slice() {
            [] => plan.file_ranges(transfer),
            physical => file_ranges(&self.striping.distribution, transfer.datafile, physical),
        };
        failure.of_ranges(ranges)
    }
}

/// Adds a failure. Joins it with an earlier one of the same server with the same code.
pub(super) fn add_failure(failures: &mut Vec<Failure>, failure: Failure) {
    let same = |other: &&mut Failure| other.server == failure.server && other.code == failure.code;
    match failures.iter_mut().find(same) {
        Some(other) => {
            let ranges = std::mem::take(&mut other.ranges);
            *other = other.clone().of_ranges(ranges.into_iter().chain(failure.ranges));
        }
        None => failures.push(failure),
    }
}
