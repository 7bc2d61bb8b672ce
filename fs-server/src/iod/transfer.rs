//! A bulk transfer: cut into units, several of them in progress at the same time, each in its own
//! buffer.
//!
//! **Protocol.** See the [module above](super) for the drawing. A unit first gets a reservation for
//! a buffer from the zones. Then it takes a turn at the network or the disk, in which it takes the
//! buffer, and then a turn at the other one. Finally it returns the buffer. The length of the next
//! unit is decided when the unit before has its reservation. It depends on the total length of the
//! transfer, and on what the zones have for this client at that time.
//!
//! **Small transfers** fit into the smallest buffer and are one unit. They have their own buffers
//! and wait for no turn. So at the disk, at most the units in progress are ahead of them. See
//! [`Stages`] for the number of places.
//!
//! **Invariants**
//! 1. An error names the ranges that were not written or read. All others were.
//! 2. Once a unit has failed, no further one is begun. Those in progress end.
//! 3. A request holds at most [`super::IodSettings::depth`] buffers, whatever its length.

use std::any::Any;
use std::cell::{Cell, OnceCell};
use std::time::Duration;

use async_trait::async_trait;
use bmi::backend::OneSided;
use bmi::config::ServiceClass;
use bmi::hooks::steps;
use bmi::memory::zone::{Lease, Reservation, ZoneAdapter, ZonePool};
use bmi::paths::Path;
use bmi::{Incoming, MemSlice, Memory, PeerId};
use fs_proto::{ErrorCode, FsError, Region};
use futures_util::stream::{self, StreamExt};

use super::order::turns::Turns;
use super::places::{Listed, Places};
use super::{Client, Iod};
use crate::service::Context;
use crate::store::{DataStore, DiskTurn, Lends, StoreHandle};

/// How long a unit may take over the network before the next one may begin anyway. A unit of 512
/// KiB takes this long at some 50 MB/s. A client that is slower, or has stalled, does not fill the
/// adapter.
pub(super) const PATIENCE: Duration = Duration::from_millis(10);

/// Least and most units on the network at the same time, for an adapter in hardware. Two overlap
/// with each other. With more than 64, turns make no difference.
const NATIVE_PLACES: std::ops::RangeInclusive<usize> = 2..=64;
/// The same where software moves the data. The kernel has a queue for each connection, and several
/// processors may work on them.
const EMULATED_PLACES: usize = 16;

/// The turns at a server's two stages. A clone is another handle to the same turns.
#[derive(Clone)]
pub(super) struct Stages {
    pub(super) network: Turns<Client>,
    pub(super) disk: Turns<Client>,
}

impl Stages {
    /// Creates the stages. If the adapter moves the data in hardware, the number of units of `unit`
    /// bytes on the network is as large as the endpoint's limit (`in_flight`,
    /// [`bmi::Config::in_flight_bytes`]) allows. With fewer, servers whose requests arrive at
    /// the same time served the same few clients at the same time, and the other clients' links
    /// were idle. Small messages do not wait for these units, because their service level lets them
    /// pass.
    pub(super) fn new(one_sided: OneSided, in_flight: u64, unit: usize, disk_places: usize) -> Stages {
        let native = usize::try_from(in_flight / unit.max(1) as u64).unwrap_or(usize::MAX);
        let native = native.clamp(*NATIVE_PLACES.start(), *NATIVE_PLACES.end());
        let places = if one_sided == OneSided::Native { native } else { EMULATED_PLACES };
        Stages { network: Turns::new(places), disk: Turns::new(disk_places) }
    }
}

/// A part of a transfer, with a reservation for a buffer. It is the part of the request's bytes
/// that begins `at` bytes into it.
pub(super) struct Unit<'a> {
    regions: Vec<Region>,
    pub(super) at: u64,
    pub(super) len: u64,
    /// True if this unit is a whole small transfer. It then waits for no turn.
    pub(super) small: bool,
    /// True for a part of a view.
    pub(super) seen: bool,
    adapter: &'a ZoneAdapter,
    reserved: Cell<Option<Reservation<Client>>>,
    lease: OnceCell<Lease<Client>>,
}

impl Unit<'_> {
    /// Returns memory for the bytes of the unit from `done` on: for all of them, unless only a
    /// smaller buffer is available. Call it only when the memory is needed, because buffers are
    /// created in turn.
    pub(super) fn memory(&self, done: u64) -> Result<MemSlice, FsError> {
        let lease = match (self.lease.get(), self.reserved.take()) {
            (Some(lease), _) => lease,
            (None, Some(reserved)) => {
                let lease = reserved.open(self.adapter)?;
                self.lease.get_or_init(|| lease)
            }
            (None, None) => return Err(FsError::new(ErrorCode::Busy, "the buffer could not be had before")),
        };
        Ok(lease.slice(lease.len().min((self.len - done) as usize)))
    }

    /// Returns the regions of the datafile for `len` bytes of the unit from `done` on.
    pub(super) fn ranges(&self, done: u64, len: usize) -> Vec<Region> {
        let mut rest = Listed::of(&self.regions);
        rest.take(done);
        rest.take(len as u64)
    }

    /// Returns the service class for the network.
    pub(super) fn class(&self) -> ServiceClass {
        if self.small { ServiceClass::Message } else { ServiceClass::Bulk }
    }
}

impl<S: StoreHandle> Iod<S> {
    pub(super) fn client(&self, peer: PeerId) -> Client {
        (self.adapter, peer)
    }

    /// Carries out a transfer unit by unit, several at the same time. After a failure, the units
    /// that were not begun are not visited one by one. A client can announce a transfer of any
    /// length without having the memory for it.
    pub(super) async fn in_units(
        &self,
        context: &Context,
        places: Places<'_>,
        step: impl AsyncFn(&Unit<'_>) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let (total, client) = (places.total(), self.client(context.peer));
        let small = is_small(&self.zones, total);
        let class = if small { ServiceClass::Message } else { ServiceClass::Bulk };
        let (failed, begun, step, adapter) = (&Cell::new(false), &Cell::new(0), &step, &self.buffers);
        let one = async move |at: u64, regions: Vec<Region>, reserved: Result<Reservation<Client>, FsError>| {
            let len = regions.iter().map(|region| region.len).sum();
            let (reserved, error) =
                reserved.map_or_else(|error| (None, Some(error)), |reserved| (Some(reserved), None));
            let (seen, reserved) = (places.are_seen(), Cell::new(reserved));
            let unit = Unit { regions, at, len, small, seen, adapter, reserved, lease: OnceCell::new() };
            let result = match error {
                None => step(&unit).await,
                Some(error) => Err(error),
            };
            failed.set(failed.get() || result.is_err());
            result.map_err(|error| if error.ranges.is_empty() { error.with_ranges(unit.regions) } else { error })
        };
        let cut = stream::unfold((0, places.rest()), async |(at, mut rest)| {
            if at == total || failed.get() {
                return None;
            }
            let len = (self.zones.unit(client, total, self.settings.unit) as u64).min(total - at);
            let reserved = self.zones.reserve(client, class, len as usize, self.endpoint.now()).await;
            let reserved = reserved.map_err(FsError::from).and_then(|reserved| {
                context.check(self.endpoint.now())?;
                Ok(reserved)
            });
            // There may be room for less than was requested.
            let len = reserved.as_ref().map_or(len, |reserved| reserved.len() as u64);
            let taken = rest.take(len, || context.check(self.endpoint.now())).await;
            let (regions, reserved) = match taken {
                Ok(regions) => (regions, reserved),
                Err(error) => (Vec::new(), Err(error)),
            };
            let len: u64 = regions.iter().map(|region| region.len).sum();
            begun.set(at + len);
            failed.set(failed.get() || reserved.is_err());
            Some((one(at, regions, reserved), (at + len, rest)))
        });
        let depth = self.zones.depth(client, self.zones.unit(client, total, self.settings.unit), self.settings.depth);
        let mut units = std::pin::pin!(cut.buffer_unordered(depth));
        let mut failures = Failures::default();
        while let Some(result) = units.next().await {
            if let Err(error) = result {
                failures.note(error);
            }
        }
        failures.ranges.extend(places.after(begun.get()));
        failures.into_result()
    }

    /// Runs `work` at the network when it is this client's turn, or at once if it is small.
    pub(super) async fn at_network<F: Future>(
        &self,
        context: &Context,
        small: bool,
        work: impl FnOnce() -> F,
    ) -> F::Output {
        if small {
            return work().await;
        }
        let patience = async || self.endpoint.sleep(PATIENCE).await;
        self.stages.network.during(self.client(context.peer), work, patience).await
    }

    /// Runs `work` at the disk when it is this client's turn, or at once if it is small, unless the
    /// request's time limit has passed by then. There is no patience here: a slow disk delays every
    /// client anyway.
    pub(super) async fn at_disk<R, F: Future<Output = Result<R, FsError>>>(
        &self,
        context: &Context,
        small: bool,
        work: impl FnOnce() -> F,
    ) -> Result<R, FsError> {
        // A store with a cache takes turns itself, if it needs the disk.
        let at_once = small || self.store.lends() == Lends::Cache;
        let _turn = if at_once { None } else { Some(self.stages.disk.take(self.client(context.peer)).await) };
        context.check(self.endpoint.now())?;
        work().await
    }

    /// Returns what a store with a cache does before it uses the disk.
    pub(super) fn disk_turn<'a>(&'a self, context: &'a Context, small: bool) -> OwnTurn<'a, S> {
        OwnTurn { iod: self, context, small }
    }

    /// Returns true if the store's own memory may be used for the data of a call. It is not on
    /// paths where the client's adapter reaches into the server's memory: a chunk of a cache has
    /// bytes of many files.
    pub(super) fn lends_to(&self, call: &Incoming) -> bool {
        self.store.lends() != Lends::Nothing && call.path() == Some(Path::ServerBased)
    }

    /// Registers the memory that the store lends most with this endpoint's adapter.
    pub(super) fn register_ready(&self) {
        let register = &mut |memory: &Memory| self.endpoint.with(|engine| engine.register(memory));
        self.store.register(&mut self.ready.borrow_mut(), register);
    }
}

/// A turn of a client at the disk. Small transfers need none.
pub(super) struct OwnTurn<'a, S> {
    iod: &'a Iod<S>,
    context: &'a Context,
    small: bool,
}

#[async_trait(?Send)]
impl<S: StoreHandle> DiskTurn for OwnTurn<'_, S> {
    async fn take(&self) -> Result<Box<dyn Any>, FsError> {
        let client = (self.iod.adapter, self.context.peer);
        let turn = if self.small { None } else { Some(self.iod.stages.disk.take(client).await) };
        self.context.check(self.iod.endpoint.now())?;
        Ok(Box::new(turn))
    }
}

/// Returns true if a transfer of `total` bytes is a small one.
pub(super) fn is_small(zones: &ZonePool<Client>, total: u64) -> bool {
    total <= zones.smallest() as u64
}

/// Collects the failures of a transfer's units.
#[derive(Default)]
pub(super) struct Failures {
    first: Option<FsError>,
    ranges: Vec<Region>,
}

impl Failures {
    pub(super) fn note(&mut self, error: FsError) {
        steps(error.ranges.len());
        self.ranges.extend_from_slice(&error.ranges);
        self.first.get_or_insert(error);
    }

    pub(super) fn into_result(mut self) -> Result<(), FsError> {
        match self.first {
            None => Ok(()),
            Some(error) => {
                self.ranges.sort_by_key(|range| range.offset);
                let mut joined: Vec<Region> = Vec::new();
                for range in self.ranges {
                    match joined.last_mut() {
                        Some(last) if last.offset + last.len >= range.offset => *last = last.hull(range),
                        _ => joined.push(range),
                    }
                }
                Err(error.with_ranges(joined))
            }
        }
    }
}
