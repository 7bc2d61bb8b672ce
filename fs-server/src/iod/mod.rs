//! The I/O server: reads and writes datafiles by lists of regions.
//!
//! **Protocol.** The client chooses how data is transferred ([`bmi::paths`]). The server's
//! steps are the same for all paths. Data that arrives with the request is written to the store
//! from where it arrived. Data that goes with the reply is read from the store into a registered
//! buffer and sent from there. Longer data is *fetched* for a write and *stored* for a read, when
//! buffers and disk allow. The server pulls and pushes it, or the client moves it as granted. Such
//! a transfer is cut into units. Several units of a request are in progress at the same time, each
//! in its own buffer, so that the network moves one while the disk moves another:
//!
//! ```text
//!   write   unit 1  [buffer][  fetch   ][ disk  ]
//!           unit 2          [buffer][  fetch   ][ disk  ]
//!   read    unit 1  [buffer][ disk  ][  store   ]
//!           unit 2          [buffer][ disk  ][  store   ]
//! ```
//!
//! The buffers come from zones ([`bmi::memory::zone`]), shared fairly by the clients. Units of
//! concurrent requests take turns between *clients*, at the network and at the disk
//! (`iod/order/turns.rs`). Small requests wait for neither: only the units in progress are ahead of
//! them.
//!
//! **Invariants**
//! 1. An error names the ranges that were not written or read. All others were.
//! 2. Every step ends in time, or because its client is gone.
//! 3. *A failed sync is told to everybody.* The system may have discarded data that it could not
//!    write, and reports this once. So the store marks the datafile, and every later operation on
//!    it fails; or the server stops, and its next start has another number ([`Iod::started_as`]).
//! 4. *No deadlock.* A unit takes its buffer first, then one turn at a time. It never asks for a
//!    second buffer or a second turn while it has one. During a turn it waits only for network or
//!    disk, which end by their deadlines. So turns and buffers are always returned.
//! 5. *A stalled client keeps nothing that others wait for.* Its turns at the network pass on after
//!    10 ms (`iod/transfer.rs`). Its buffers come back when its connection is cut, as soon as
//!    another client waits for one (`stall.rs`).
//! 6. *A disk that does not answer stops only what waits for it.* The store waits elsewhere, and
//!    what needs no disk is answered although all places for requests are taken
//!    ([`Handler::never_waits`]).
//!
//! **Several loops.** A server may have several event loops, each a thread with its own endpoints.
//! They share what [`IodParts`] holds: the store, the buffers, the turns, and the order of changes
//! of the label, of creations and of truncations. A request lives on the loop of its connection
//! from its arrival to its reply. docs/filesystem.md has the order of the locks, and why nothing
//! deadlocks.
//!
//! **Source.** [PVFS-IB §3.2.3] (server-based RDMA, Figure 3), [PVFS-IB §3.3.2] (server buffers),
//! [PVFS-IB §4.1.1] (inline), [PVFS-IB §4.2] (pipelined bulk transfer).

mod caches;
mod gate;
mod join;
mod membership;
mod order;
mod places;
mod read;
mod scrub;
mod shared;
mod transfer;
mod write;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bmi::config::ServiceClass;
use bmi::hooks::{mutated, mutated_each, step};
use bmi::memory::zone::{ZoneAdapter, ZonePool, ZoneSettings};
use bmi::paths::Direction;
use bmi::{Endpoint, Incoming, PeerId};
use bmi_cache::{ReadyRegions, yield_now};
use fs_proto::limits::{MAX_ALLOCATION, MAX_DATAFILES, MAX_DETAIL, MAX_OFFSET, REPLY_ROOM};
use fs_proto::{
    DatafileHandle, ErrorCode, Extent, FsError, IodReply, IodRequest, IodStat, Region, Request, RequestBody, Role,
    Sender, Ticket,
};
use futures_util::stream::{self, StreamExt};

use crate::metrics::{Values, keep_sampling, of_buffers, of_cache, of_store, of_sums};
use crate::service::{Answer, Context, Handler, audit};
use crate::store::{DataStore, Held, StoreHandle};
pub use gate::Gate;
use gate::Refusal;
use join::Joins;
pub use membership::{LabelLock, Membership};
use order::locks::Locks;
use order::truncates::Truncates;
use places::{Places, Scratch};
use shared::ExposedViews;
use tokio::sync::Mutex;
use transfer::Stages;

/// How long a request for the size and use of the store waits for the disk.
const STAT_PATIENCE: Duration = Duration::from_millis(100);

/// Memory settings of an I/O server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IodSettings {
    /// Size of the longest transfer unit, in bytes. Units are shorter for short requests, and when
    /// many clients share the buffers.
    pub unit: usize,
    /// Number of buffers of this size that the memory has room for.
    pub buffers: usize,
    /// Most units of one request in progress at the same time. Two overlap network and disk, one
    /// does not.
    pub depth: usize,
}

impl Default for IodSettings {
    /// Returns 64 buffers of 512 KiB, three for each request. Of 256 KiB, 512 KiB and 1 MiB, units
    /// of 512 KiB gave the highest throughput with four servers on one machine with two cores.
    /// [PVFS-IB, Figure 12] finds complete overlap below some 2 MB.
    fn default() -> IodSettings {
        IodSettings { unit: 512 << 10, buffers: 64, depth: 3 }
    }
}

impl IodSettings {
    /// Returns the zones for these settings. They range from 64 KiB, or less if there is little
    /// memory, to 2 MiB or the unit, as far as the memory allows.
    ///
    /// # Errors
    /// `Invalid` for settings without room for a single unit.
    pub fn zones(&self) -> Result<ZoneSettings, FsError> {
        let IodSettings { unit, buffers, depth } = *self;
        let total = unit.checked_mul(buffers).filter(|total| *total >= 4 && depth > 0);
        let Some(total) = total else {
            let text = format!("{buffers} buffers of {unit} bytes, {depth} for each request; none may be zero");
            return Err(FsError::new(ErrorCode::Invalid, text));
        };
        let smallest = ZoneSettings::SMALLEST.min(unit).min(total / 4);
        // One client's share of the bulk budget is less than half of the total.
        let largest = ZoneSettings::LARGEST.max(unit).min(total / 4).max(smallest);
        Ok(ZoneSettings::doubling(smallest, largest, total))
    }
}

/// Longest encoded size and time of a datafile, in bytes.
const SIZE_ROOM: usize = 21;
/// Datafiles of one request that are looked at at the same time: some may have to be opened.
const SIZES_AT_ONCE: usize = 8;
/// Most bytes of the result for a datafile in a reply: the error, the handle, lengths.
const MAX_RESULT: usize = MAX_DETAIL + 16;

/// Regions beyond which others run before and after a request.
const LONG: usize = 1024;

/// A client, as identified by the buffers and the turns: the number of its adapter, and its peer id
/// there.
type Client = (u32, PeerId);

/// What all endpoints of an I/O server share. A clone is another handle to the same, for another
/// endpoint on this thread or on another one.
#[derive(Clone)]
pub struct IodParts<S> {
    store: S,
    zones: ZonePool<Client>,
    stages: Stages,
    settings: IodSettings,
    start: u64,
    labels: Arc<LabelLock>,
    /// One creation or discarding at a time. `labels` is taken while it is held.
    creating: Arc<Mutex<()>>,
    truncates: Arc<Truncates>,
    joins: Arc<Joins>,
    locks: Arc<Locks>,
    gate: Arc<Gate>,
}

/// An I/O server at one endpoint. Pass it to [`crate::service::serve`].
pub struct Iod<S> {
    endpoint: Endpoint,
    adapter: u32,
    /// Registers buffers with the endpoint's adapter.
    buffers: ZoneAdapter,
    /// The memory of the store that is registered with the endpoint's adapter.
    ready: RefCell<ReadyRegions>,
    /// The view segments that the endpoint's peers may read.
    views: ExposedViews,
    scratch: Scratch,
    parts: IodParts<S>,
}

impl<S> Deref for Iod<S> {
    type Target = IodParts<S>;

    fn deref(&self) -> &IodParts<S> {
        &self.parts
    }
}

impl<S> IodParts<S> {
    /// Returns the same server for one more endpoint, which belongs to this thread. `index`
    /// distinguishes the endpoints; the first one's is 0.
    pub fn at(self, endpoint: Endpoint, index: u32) -> Iod<S> {
        let own = endpoint.clone();
        let buffers = self.zones.add_adapter(move |memory| own.with(|engine| engine.register(memory)));
        let views = ExposedViews::default();
        let (ready, scratch) = (RefCell::default(), Scratch::default());
        Iod { endpoint, adapter: index, buffers, ready, views, scratch, parts: self }
    }
}

impl<S: StoreHandle> Iod<S> {
    /// Creates an I/O server over `store`.
    ///
    /// # Errors
    /// `Invalid` for settings without room for a single unit.
    pub fn new(endpoint: Endpoint, store: S, settings: IodSettings) -> Result<Iod<S>, FsError> {
        let zones = ZonePool::new(&settings.zones()?)?;
        let (one_sided, in_flight) = endpoint
            .with(|endpoint| (endpoint.transport().capabilities().one_sided, endpoint.config().tuning.in_flight_bytes));
        let stages = Stages::new(one_sided, in_flight, settings.unit, store.places());
        let (labels, creating) = (Arc::default(), Arc::default());
        let (truncates, joins, locks) = (Arc::default(), Arc::default(), Arc::default());
        let (start, gate) = (0, Arc::default());
        let parts = IodParts { store, zones, stages, settings, start, labels, creating, truncates, joins, locks, gate };
        Ok(parts.at(endpoint, 0))
    }

    /// Sets a number that no other start of this server has. If a client sees another number, it
    /// knows that its unsynced data may be lost.
    #[must_use]
    pub fn started_as(mut self, start: u64) -> Iod<S> {
        self.parts.start = start;
        self
    }

    /// Uses this lock for changes of the store's label.
    #[must_use]
    pub fn with_labels(mut self, labels: Arc<LabelLock>) -> Iod<S> {
        self.parts.labels = labels;
        self
    }

    /// Checks tickets at this gate, which learns of them from the manager.
    #[must_use]
    pub fn guarded_by(mut self, gate: Arc<Gate>) -> Iod<S> {
        self.parts.gate = gate;
        self
    }

    /// Returns what all endpoints of the server share.
    pub fn parts(&self) -> IodParts<S> {
        self.parts.clone()
    }

    /// Returns the same server for one more endpoint. They share the store, the buffers and the
    /// queue of clients. `index` distinguishes the endpoints; the first one's is 0.
    pub fn beside(&self, endpoint: Endpoint, index: u32) -> Iod<S> {
        self.parts().at(endpoint, index)
    }

    /// Returns the staging buffers, for access to their counters.
    pub fn zones(&self) -> &ZonePool<(u32, PeerId)> {
        &self.zones
    }

    /// Checks that a request came from the manager that has confirmed this server's store.
    fn check_manager(&self, context: &Context, request: &IodRequest) -> Result<(), FsError> {
        let sender = context.hello().map(|hello| hello.sender);
        let known = self.store.label().and_then(|label| label.manager);
        match sender {
            Some(Sender::Server(Role::Manager, start)) if Some(start) == known => Ok(()),
            _ => {
                let text =
                    format!("{} is a request of the manager, which has not confirmed this store", request.name());
                Err(FsError::new(ErrorCode::Permission, text))
            }
        }
    }

    /// Checks that the sender of a request may make it.
    fn admit(
        &self,
        context: &Context,
        request: &IodRequest,
        shown: Option<&Ticket>,
        call: &Incoming,
    ) -> Result<(), FsError> {
        if !self.gate.is_shut() {
            return Ok(());
        }
        let Some(party) = context.party().filter(|party| !party.is_trusted) else { return Ok(()) };
        if self.gate.has_revoked(&party.name) {
            return Err(FsError::new(ErrorCode::Permission, format!("{} was shut out", party.name)));
        }
        let Some(needed) = request.needs() else { return Ok(()) };
        let rights = &context.session().rights;
        self.gate.check(rights, &party.digest, needed, shown, self.endpoint.now()).map_err(|refusal| {
            let error = refusal.about(needed.0);
            if refusal == Refusal::False {
                audit(call.peer(), "false ticket", request.name(), Some(&error));
            }
            error
        })
    }

    /// Creates datafiles. Their handles must be higher than all before. Only the last request may
    /// come again.
    async fn create(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        let last = first.0.checked_add(u64::from(count)).and_then(|end| end.checked_sub(1)).map(DatafileHandle);
        let Some(last) = last.filter(|_| (1..=MAX_DATAFILES as u32).contains(&count)) else {
            return Err(FsError::new(ErrorCode::Invalid, format!("{count} datafiles from {first} on")));
        };
        let _one = self.creating.lock().await;
        let label = self.labels.change(&*self.store, |label| {
            if first > label.highest {
                label.highest = last;
            }
        });
        let highest = label.await?.highest;
        if highest != last {
            let text = format!("datafiles from {first} on; handles up to {highest} were used");
            return Err(FsError::new(ErrorCode::Invalid, text));
        }
        self.store.create(first, count).await
    }

    /// Discards datafiles. Waits for a request to create them that is in flight.
    async fn discard(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        let _one = self.creating.lock().await;
        self.store.discard(first, count).await
    }

    /// Carries out prepared changes of size, each by itself, as far as a reply of `room` bytes has
    /// room for the results.
    async fn commit_truncates(
        &self,
        before: u64,
        datafiles: &[(DatafileHandle, u64, u64)],
        room: usize,
    ) -> Vec<(DatafileHandle, Option<FsError>)> {
        let mut left = room.saturating_sub(REPLY_ROOM);
        let mut results = Vec::new();
        for change in datafiles {
            if left < MAX_RESULT && !results.is_empty() {
                break;
            }
            let result = self.truncates.commit(&*self.store, *change, before).await;
            // A handle has at most ten bytes.
            left = left.saturating_sub(12 + result.as_ref().map_or_else(|error| error.detail.len() + 4, |()| 0));
            results.push((change.0, result.err().map(|error| FsError { ranges: Vec::new(), ..error })));
        }
        results
    }

    /// Carries out a request of the client with this number.
    async fn execute(
        &self,
        context: &Context,
        client: u128,
        request: IodRequest,
        call: &Incoming,
    ) -> Result<IodReply, FsError> {
        if request.is_the_managers() {
            self.check_manager(context, &request)?;
        }
        match request {
            IodRequest::Ping => Ok(IodReply::Done),
            IodRequest::Write { datafile, regions, sync } => {
                self.write(context, call, datafile, Places::Listed(&regions)).await?;
                if sync {
                    self.store.sync(&[datafile]).await?;
                }
                self.written(datafile, regions.total()).await
            }
            IodRequest::WriteView { datafile, part, joined } => {
                self.write_view(context, call, datafile, (&part, joined)).await?;
                self.written(datafile, part.total()).await
            }
            IodRequest::Truncate { datafile, size } => {
                if size > MAX_OFFSET {
                    return Err(FsError::new(ErrorCode::TooLarge, format!("a datafile of {size} bytes")));
                }
                if !mutated_each(3, "iod/truncate-forgotten") {
                    self.store.truncate(datafile, size).await?;
                    self.store.sync(&[datafile]).await?;
                }
                self.written(datafile, 0).await
            }
            IodRequest::Create { first, count } => {
                self.create(first, count).await?;
                Ok(IodReply::Done)
            }
            IodRequest::Discard { first, count } => {
                self.discard(first, count.min(MAX_DATAFILES as u32)).await?;
                Ok(IodReply::Done)
            }
            IodRequest::Remove { datafiles } => {
                if !mutated("iod/removed-datafile-kept") {
                    self.store.remove(&datafiles).await?;
                }
                Ok(IodReply::Done)
            }
            IodRequest::List { after } => {
                // A handle has at most ten bytes.
                let max = (context.room.saturating_sub(REPLY_ROOM) / 10).clamp(1, MAX_DATAFILES);
                let (handles, more) = self.store.list(after, max).await?;
                Ok(IodReply::Datafiles { handles, more })
            }
            IodRequest::Sync { datafiles } => {
                if !mutated("iod/answers-before-it-is-synced") {
                    self.store.sync(&datafiles).await?;
                }
                Ok(IodReply::Synced { start: self.start() })
            }
            IodRequest::PrepareTruncate { datafile, size, number } => {
                self.truncates.prepare(&*self.store, datafile, size, number).await?;
                Ok(IodReply::Done)
            }
            IodRequest::CommitTruncates { before, datafiles } => {
                Ok(IodReply::Committed(self.commit_truncates(before, &datafiles, context.room).await))
            }
            IodRequest::CancelTruncates { before, except } => {
                self.truncates.cancel(&*self.store, before, except).await?;
                Ok(IodReply::Done)
            }
            IodRequest::Getsize { datafile } => {
                let Held { size, mtime_ns } = self.store.held(datafile).await?;
                Ok(IodReply::Held { size, mtime_ns })
            }
            IodRequest::Getsizes { datafiles } => Ok(IodReply::Sizes(self.sizes(&datafiles, context.room).await)),
            IodRequest::Statfs => Ok(IodReply::Stat(self.stat().await?)),
            IodRequest::Advise { datafile, hints } => {
                self.store.advise(datafile, hints);
                Ok(IodReply::Done)
            }
            IodRequest::Lock { datafile, range, exclusive, number, held } => {
                let (owner, now) = ((client, number), self.endpoint.now());
                let ahead = self.locks.ask(datafile, owner, (range, exclusive), held, now)?;
                Ok(IodReply::Locked { ahead })
            }
            IodRequest::Unlock { datafile, number } => {
                self.locks.give_back(datafile, (client, number))?;
                Ok(IodReply::Done)
            }
            IodRequest::Allocate { datafile, range, how } => {
                if range.end().is_none() || range.len > MAX_ALLOCATION {
                    return Err(FsError::new(ErrorCode::TooLarge, format!("the space of bytes {range}")));
                }
                self.store.allocate(datafile, range, how).await?;
                self.written(datafile, 0).await
            }
            IodRequest::Seek { datafile, offset, what } => {
                let at = self.store.seek(datafile, offset.min(MAX_OFFSET), what).await?;
                Ok(IodReply::Sought { at, size: self.store.size(datafile).await? })
            }
            IodRequest::Scrub { datafiles, offset } => self.scrub(&datafiles, offset, context.room).await,
            IodRequest::CacheState { after, files } => self.cache_state(context, after, files),
            IodRequest::CacheCoverage { datafile, offset, len } => {
                Ok(self.cache_coverage(datafile, Region::new(offset, len)))
            }
            IodRequest::ReadShared { datafile, offset, len } => self.read_shared(context, datafile, offset, len).await,
            IodRequest::Read { .. } | IodRequest::ReadView { .. } => {
                unreachable!("reads are taken out before, because their answer may carry data")
            }
        }
    }

    /// Returns the sizes of datafiles, of as many as a reply of `room` bytes has room for.
    async fn sizes(&self, datafiles: &[DatafileHandle], room: usize) -> Vec<Option<Extent>> {
        let fit = (room.saturating_sub(REPLY_ROOM) / SIZE_ROOM).max(1);
        let one = async |datafile: &DatafileHandle| {
            step();
            let Held { size, mtime_ns } = self.store.held(*datafile).await.ok()?;
            Some(Extent { size, written_ns: mtime_ns })
        };
        stream::iter(datafiles).take(fit).map(one).buffered(SIZES_AT_ONCE).collect().await
    }

    async fn written(&self, datafile: DatafileHandle, len: u64) -> Result<IodReply, FsError> {
        Ok(IodReply::Written { len, size: self.store.size(datafile).await?, start: self.start() })
    }

    /// Returns the size and use of the store, as it was last known if the disk does not answer
    /// soon.
    async fn stat(&self) -> Result<IodStat, FsError> {
        let Some(known) = self.store.known_stat() else { return self.store.stat().await };
        tokio::select! {
            biased;
            stat = self.store.stat() => stat,
            () = self.endpoint.sleep(STAT_PATIENCE) => Ok(known),
        }
    }

    /// Returns what is sampled of the server.
    async fn values(&self) -> Values {
        let store = self.stat().await.map_or_else(|_| Vec::new(), |stat| of_store(&stat));
        let cache = self.store.cache_stat().map_or_else(Vec::new, |stat| of_cache(&stat));
        let sums = self.store.sums_stat().map_or_else(Vec::new, |stat| of_sums(&stat));
        [store, sums, of_buffers(&self.zones.counters()), cache].concat()
    }

    /// Returns the number of this start, for replies.
    fn start(&self) -> u64 {
        if mutated("iod/restart-not-told") { 0 } else { self.start }
    }
}

/// Checks that a call has `total` bytes of data, in the right direction.
fn check_data(call: &Incoming, direction: Direction, total: u64) -> Result<(), FsError> {
    let right = call.is_empty() || call.direction() == Some(direction);
    if right && call.len() == total {
        return Ok(());
    }
    let text = format!("a {} of {total} bytes with data of {}", direction.as_str(), call.len());
    Err(FsError::new(ErrorCode::Invalid, text))
}

#[async_trait(?Send)]
impl<S: StoreHandle> Handler for Iod<S> {
    async fn handle(&self, context: &Context, request: Request, call: &Incoming) -> Answer {
        let client = request.id.client;
        let RequestBody::Iod(body) = request.body else {
            return Answer::error(FsError::new(ErrorCode::Invalid, "this is an I/O server, not the manager"));
        };
        let name = body.name();
        if let Err(error) = self.admit(context, &body, request.ticket.as_ref(), call) {
            return Answer::error(error);
        }
        let is_long = is_long(&body) && !mutated("iod/long-lists-without-a-break");
        if is_long {
            yield_now().await;
        }
        let answer = match body {
            IodRequest::Read { datafile, regions } => {
                self.read(context, call, datafile, Places::Listed(&regions)).await.unwrap_or_else(Answer::error)
            }
            IodRequest::ReadView { datafile, part, joined } => {
                self.read_view(context, call, datafile, (&part, joined)).await.unwrap_or_else(Answer::error)
            }
            other => Answer::from(self.execute(context, client, other, call).await.map(Into::into)),
        };
        if is_long {
            yield_now().await;
        }
        if let Answer::Reply(fs_proto::Reply { result: Err(error) }, _) = &answer {
            tracing::debug!(peer = ?context.peer, request = name, %error, "failed");
        }
        answer
    }

    fn class(&self, data: u64) -> ServiceClass {
        if transfer::is_small(&self.zones, data) { ServiceClass::Message } else { ServiceClass::Bulk }
    }

    fn never_waits(&self, request: &RequestBody) -> bool {
        let RequestBody::Iod(request) = request else { return false };
        let quick = matches!(request, IodRequest::Ping | IodRequest::Statfs | IodRequest::Advise { .. });
        quick || matches!(request, IodRequest::CacheState { .. } | IodRequest::CacheCoverage { .. })
    }

    fn is_awaited(&self, stalled: &BTreeSet<PeerId>) -> bool {
        self.zones.is_awaited_by(|(adapter, peer)| adapter != self.adapter || !stalled.contains(&peer))
            || self.store.any_waits()
    }

    fn departed(&self, peer: PeerId) {
        self.zones.depart(self.client(peer));
        self.views.depart(peer);
    }

    /// Returns buffers that are seldom used to the system, and lets the store do its own work.
    async fn background(&self) {
        let trim = async {
            loop {
                let at = self.zones.next_trim().await;
                self.endpoint.sleep_until(at).await;
                self.zones.trim(self.endpoint.now());
            }
        };
        let sleep = |time| -> Pin<Box<dyn Future<Output = ()>>> {
            let endpoint = self.endpoint.clone();
            Box::pin(async move { endpoint.sleep(time).await })
        };
        let sample = keep_sampling(&self.endpoint, async || self.values().await);
        futures_util::future::join3(trim, self.store.tend(&sleep), sample).await;
    }
}

/// Returns whether a request has very many regions. Many such requests may go on at once, and a
/// poll of all requests ends after two that yield.
fn is_long(request: &IodRequest) -> bool {
    match request {
        IodRequest::Read { regions, .. } | IodRequest::Write { regions, .. } => regions.len() > LONG,
        IodRequest::ReadView { .. } | IodRequest::WriteView { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
