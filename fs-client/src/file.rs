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
//!
//! **Source.** [PVFS-IB §2.1, §3.2.3] (server-based transfer), [PVFS-IB §4.1] (inline), [PVFS-IB
//! §5] (list I/O).

use std::sync::Arc;

use bmi::hooks::mutated;
use bmi::paths::Direction;
use bmi::threading::{AnyThread, OneThread, Threading};
use bmi::{Body, Endpoint, MemList};
use fs_proto::limits::{MAX_OFFSET, MAX_REGIONS};
use fs_proto::{
    CacheHints, DatafileHandle, Distribution, ErrorCode, FileHandle, IodReply, IodRequest, Layout, PendingTruncate,
    Region, Regions, ReplyBody,
};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};

use crate::cache::Advice;
use crate::client::Client;
use crate::connection::{Outgoing, Resend, unexpected};
use crate::error::{Error, Failure, ServerName};
use crate::locked::Locked;
use crate::path::FsPath;
use crate::plan::{Plan, PlanLimits, ServerPaths, Transfer, file_ranges};
use crate::shared_read::ViewCache;
use crate::sync::Unsynced;

/// Size of a request without its lists, in bytes: version, ids, time limit, kind, handle and
/// lengths, each at its longest.
pub(crate) const REQUEST_ROOM: usize = 128;
/// Requests of one operation in progress at the same time, per server.
const WINDOW: usize = 4;

/// One server's share of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datafile {
    /// The server.
    pub server: ServerName,
    /// The server's handle for the share.
    pub handle: DatafileHandle,
    /// Its size in bytes.
    pub size: u64,
    /// Time of the last write or change of size, in nanoseconds since 1970 by the server's clock. 0
    /// if there was none.
    pub mtime_ns: u64,
}

/// An open file. A clone is another handle to it. A file need not be closed.
pub struct File<S: Threading = OneThread> {
    client: Client<S>,
    inner: Arc<OpenFile<S>>,
}

/// An open file that any thread can use, if the transport is `Send`.
pub type SharedFile = File<AnyThread>;

struct OpenFile<S: Threading> {
    client: Client<S>,
    path: FsPath,
    handle: FileHandle,
    layout: Layout,
    servers: Vec<ServerName>,
    /// By datafile: what was written and not synced since.
    unsynced: Unsynced,
    /// By datafile: its size after the last write through this handle.
    written_sizes: Locked<Vec<u64>>,
    advice: Advice,
    views: ViewCache,
}

impl<S: Threading> Drop for OpenFile<S> {
    fn drop(&mut self) {
        self.client.closed(self.handle);
    }
}

impl<S: Threading> Clone for File<S> {
    fn clone(&self) -> File<S> {
        File { client: self.client.clone(), inner: self.inner.clone() }
    }
}

impl<S: Threading> File<S> {
    /// Creates a file. `servers` are those of the layout, in its order.
    pub(crate) fn new(
        client: Client<S>,
        path: FsPath,
        handle: FileHandle,
        layout: Layout,
        servers: Vec<ServerName>,
        recorded_size: Option<u64>,
    ) -> File<S> {
        let unsynced = Unsynced::new(servers.len());
        let written_sizes = Locked::new(vec![0; servers.len()]);
        client.opened(handle, recorded_size);
        let advice = Advice::new(servers.len());
        let views = ViewCache::default();
        let own = client.clone();
        let inner = OpenFile { client: own, path, handle, layout, servers, unsynced, written_sizes, advice, views };
        File { client, inner: Arc::new(inner) }
    }

    /// Gives hints, which the servers are told with the first access to each.
    pub(crate) fn hinting(self, hints: CacheHints) -> File<S> {
        if hints != CacheHints::default() {
            self.inner.advice.set(hints);
        }
        self
    }

    pub(crate) fn client(&self) -> &Client<S> {
        &self.client
    }

    pub(crate) fn advice(&self) -> &Advice {
        &self.inner.advice
    }

    pub(crate) fn views(&self) -> &ViewCache {
        &self.inner.views
    }

    // ---- getters --------------------------------------------------------------------------------

    /// Returns the path that the file was opened by.
    pub fn path(&self) -> &FsPath {
        &self.inner.path
    }

    /// Returns the file's handle.
    pub fn handle(&self) -> FileHandle {
        self.inner.handle
    }

    /// Returns the distribution of the file.
    pub fn distribution(&self) -> &Distribution {
        self.inner.layout.distribution()
    }

    /// Returns the servers that the file is striped over, in the order of the distribution.
    pub fn servers(&self) -> &[ServerName] {
        &self.inner.servers
    }

    /// Returns how a read or write of `regions` would be carried out: the requests, and the path of
    /// their data if slots and credits are not short.
    ///
    /// # Errors
    /// `Invalid` if `memory` and `regions` differ in length. `TooLarge` if a region ends beyond the
    /// largest offset of a file.
    pub fn plan(&self, direction: Direction, regions: &[Region], memory: &MemList) -> Result<Plan, Error> {
        Ok(self.cut(direction, regions, memory)?.with_paths(self.paths(memory)))
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
        Ok(Plan::new(direction, *self.distribution(), self.limits(), regions, memory))
    }

    fn limits(&self) -> PlanLimits {
        let inner = self.client.inner();
        let rooms = self.inner.servers.iter().filter_map(|server| inner.connections.room(&server.addr));
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
        self.inner.servers.iter().map(one).collect()
    }

    // ---- data -----------------------------------------------------------------------------------

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
        let plan = self.ready(Direction::Read, regions, memory.into()).await.map_err(during)?;
        let sizes = match self.run(&plan).await {
            Ok(sizes) => sizes,
            Err(error) => return Err(during(self.explain(error).await)),
        };
        self.check_lengths(&sizes).await.map_err(during)?;
        let end = |region: &Region| region.offset + region.len;
        let last = regions.iter().filter(|region| !region.is_empty()).map(end).max().unwrap_or(0);
        let size = self.end_of(&sizes, last).await.map_err(during)?;
        let size = if mutated("client/short-read-reported-as-full") { last } else { size };
        Ok(regions.iter().map(|region| size.saturating_sub(region.offset).min(region.len)).sum())
    }

    /// Returns the size of the file, or any larger number if that is not less than `last`. `sizes`
    /// are those of the datafiles that were just accessed.
    pub(crate) async fn end_of(&self, sizes: &[Option<u64>], last: u64) -> Result<u64, Error> {
        let known: Vec<u64> = sizes.iter().map(|size| size.unwrap_or(0)).collect();
        let size = self.distribution().file_size(&known);
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
        self.client.withdraw_size(self.handle()).await.map_err(during)?;
        let plan = self.ready(Direction::Write, regions, memory.into()).await.map_err(during)?;
        match self.run(&plan).await {
            Ok(_) => Ok(()),
            Err(error) => Err(during(self.explain(error).await)),
        }
    }

    /// A datafile that does not exist was lost, or the whole file was removed. Asks the manager
    /// which of the two it is.
    pub(crate) async fn explain(&self, error: Error) -> Error {
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
            let must = |index: usize| self.distribution().datafile_size(index, recorded);
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
        let (_, datafile) = self.inner.layout.datafiles()[index];
        let must = self.distribution().datafile_size(index, recorded);
        let text = format!("{datafile} has {} bytes; it must have {must}: it was cut off", sizes[index].unwrap_or(0));
        Err(Failure::at(self.inner.servers[index].clone(), ErrorCode::Lost, text).into())
    }

    /// Connects the servers involved, then splits the access into requests. The limits of a server
    /// are known only after it is connected. If a server cannot be reached, its requests fail later
    /// and the error names their ranges.
    async fn ready(&self, direction: Direction, regions: &[Region], memory: MemList) -> Result<Plan, Error> {
        let connections = &self.client.inner().connections;
        let missing = |server: &&ServerName| connections.room(&server.addr).is_none();
        if self.inner.servers.iter().any(|server| missing(&server)) {
            let mut concerned = vec![false; self.inner.servers.len()];
            let stripe = self.distribution().strip_size() * self.inner.servers.len() as u64;
            for region in regions {
                let strips = self.distribution().strips(region.part(0, stripe));
                strips.for_each(|strip| concerned[strip.at.server] = true);
            }
            let concerned = self.inner.servers.iter().zip(concerned).filter_map(|(server, is)| is.then_some(server));
            let deadline = self.client.inner().deadline();
            join_all(concerned.filter(missing).map(|server| connections.peer(server, deadline))).await;
        }
        self.cut(direction, regions, &memory)
    }

    /// Carries out a plan. Returns the sizes of the datafiles that it accessed.
    async fn run(&self, plan: &Plan) -> Result<Vec<Option<u64>>, Error> {
        let one = async |transfer: &Transfer| (transfer.datafile, self.transfer(plan, transfer).await);
        let window = WINDOW * self.inner.servers.len();
        let mut results = stream::iter(&plan.transfers).map(one).buffer_unordered(window);
        let mut sizes = vec![None; self.inner.servers.len()];
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
        let inner = self.client.inner();
        let server = &self.inner.servers[transfer.datafile];
        let (_, datafile) = self.inner.layout.datafiles()[transfer.datafile];
        let regions = Regions::try_from(transfer.regions.clone())
            .map_err(|error| Failure::at(server.clone(), error.code, error.detail))?;
        let memory = transfer.memory.clone();
        let (body, data, resend) = match plan.direction {
            Direction::Read => (IodRequest::Read { datafile, regions }, Body::In(memory), Resend::Repeat),
            Direction::Write => {
                (IodRequest::Write { datafile, regions, sync: false }, Body::Out(memory), Resend::Never)
            }
        };
        let outgoing = Outgoing { body: body.into(), data, path: inner.options.path, lists: plan.lists };
        let answer = if self.inner.advice.is_untold(transfer.datafile) {
            // In a box of its own, so that other requests have a small future.
            Box::pin(self.tell_and_call(transfer.datafile, resend, &outgoing)).await
        } else {
            inner.connections.call(server, inner.deadline(), resend, &outgoing).await
        };
        let result = answer.and_then(|answer| match (plan.direction, answer.body) {
            (Direction::Write, ReplyBody::Iod(IodReply::Written { len, size, start })) if len == transfer.len => {
                self.inner.unsynced.note(transfer.datafile, start);
                self.inner.written_sizes.with(|written| {
                    written[transfer.datafile] = size.max(written[transfer.datafile]);
                });
                Ok(size)
            }
            (Direction::Read, ReplyBody::Iod(IodReply::Read { len, size }))
                if len == transfer.len && answer.data == len =>
            {
                Ok(size)
            }
            (_, other) => Err(unexpected(server, &other)),
        });
        result.map_err(|failure| self.with_ranges(plan, transfer, failure))
    }

    /// Returns the record of what was written and not synced.
    pub(crate) fn unsynced(&self) -> &Unsynced {
        &self.inner.unsynced
    }

    /// Returns the handles of the datafiles, in the order of the distribution.
    pub(crate) fn datafile_handles(&self) -> impl Iterator<Item = DatafileHandle> {
        self.inner.layout.datafiles().iter().map(|(_, handle)| *handle)
    }

    /// Returns the handle of a datafile, by its place in the distribution.
    pub(crate) fn datafile_handle(&self, datafile: usize) -> DatafileHandle {
        self.inner.layout.datafiles()[datafile].1
    }

    /// Adds the affected ranges of the file: the server's ranges, translated, or all of the
    /// transfer if the server named none.
    fn with_ranges(&self, plan: &Plan, transfer: &Transfer, failure: Failure) -> Failure {
        let ranges = match failure.physical.as_slice() {
            [] => plan.file_ranges(transfer),
            physical => file_ranges(self.distribution(), transfer.datafile, physical),
        };
        failure.of_ranges(ranges)
    }

    // ---- the whole file -------------------------------------------------------------------------

    /// Returns the file's size in bytes, computed from the sizes of its datafiles.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn size(&self) -> Result<u64, Error> {
        let during = |error: Error| error.during(format!("size of {}", self.path()));
        if let Some(recorded) = self.client.confirm_size(self.handle()).await.map_err(during)? {
            return Ok(recorded);
        }
        let none = vec![None; self.inner.servers.len()];
        match self.size_with(&none).await {
            Ok(size) => Ok(size),
            Err(error) => Err(during(self.explain(error).await)),
        }
    }

    /// Records the size of the file at the manager: it is complete. From then on its size is known
    /// without its I/O servers, and a datafile that was cut off is noticed. A later write withdraws
    /// it. Only the client that created the file can record its size, before any other client has
    /// looked the file up; otherwise nothing is recorded.
    ///
    /// # Errors
    /// `Invalid` if a datafile is shorter than the size requires: the file has a hole there. Those
    /// of every request.
    pub async fn record_size(&self, size: u64) -> Result<(), Error> {
        let during = |error: Error| error.during(format!("record the size of {}", self.path()));
        self.check_complete(size).await.map_err(during)?;
        self.client.record_size(self.handle(), size).await.map_err(during)
    }

    /// Checks that no datafile is shorter than a size requires. Asks only the servers to which this
    /// handle did not write enough.
    pub(crate) async fn check_complete(&self, size: u64) -> Result<(), Error> {
        let must = |index: usize| self.distribution().datafile_size(index, size);
        let written = self.inner.written_sizes.with(|written| written.clone());
        if (0..written.len()).all(|index| written[index] >= must(index)) {
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
        self.datafiles_with(&[]).await
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
        let handles = self.inner.layout.datafiles().iter().map(|(_, handle)| *handle);
        let servers = self.inner.servers.iter().cloned();
        let datafiles = servers.zip(handles).zip(held).map(|((server, handle), held)| {
            let (size, mtime_ns) = held.unwrap_or_else(|| (known(handle).map_or(0, |one| one.size), 0));
            Datafile { server, handle, size, mtime_ns }
        });
        Ok(datafiles.collect())
    }

    /// Returns the file's size. Asks only the servers whose datafile size is not in `known`.
    async fn size_with(&self, known: &[Option<u64>]) -> Result<u64, Error> {
        let ask = |index: usize, datafile| known[index].is_none().then_some(IodRequest::Getsize { datafile });
        let asked = self.ask_all(Resend::Repeat, ask, held).await?;
        let asked = asked.iter().map(|held| held.map(|(size, _)| size));
        let sizes: Vec<u64> = known.iter().zip(asked).map(|(known, asked)| known.or(asked).unwrap_or(0)).collect();
        Ok(self.distribution().file_size(&sizes))
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
        if self.inner.servers.len() > 1 {
            return self.client.truncate_all(self.handle(), size).await.map_err(during);
        }
        self.client.withdraw_size(self.handle()).await.map_err(during)?;
        let truncate = |_, datafile| Some(IodRequest::Truncate { datafile, size });
        match self.ask_all(Resend::Never, truncate, written).await {
            Ok(_) => Ok(()),
            Err(error) => Err(during(self.explain(error).await)),
        }
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
        let asked = self.inner.layout.datafiles().iter().enumerate().map(|(index, (_, datafile))| {
            let (request, server) = (request(index, *datafile), &self.inner.servers[index]);
            async move {
                let Some(request) = request else { return Ok(None) };
                let reply = inner.ask(server, deadline, resend, request).await?;
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

/// Adds a failure. Joins it with an earlier one of the same server with the same code.
fn add_failure(failures: &mut Vec<Failure>, failure: Failure) {
    let same = |other: &&mut Failure| other.server == failure.server && other.code == failure.code;
    match failures.iter_mut().find(same) {
        Some(other) => {
            let ranges = std::mem::take(&mut other.ranges);
            *other = other.clone().of_ranges(ranges.into_iter().chain(failure.ranges));
        }
        None => failures.push(failure),
    }
}
