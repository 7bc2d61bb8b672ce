//! Requests of several clients that are carried out as one: what they write goes into one buffer,
//! and from there to the disk; what they read is read from the disk once for all.
//!
//! **Protocol.** See [`Joined`]. A *unit* is a range of a datafile in one operation of a group.
//!
//! ```text
//!   write   client 1  [  fetch  ][ scatter           ]              ──> reply
//!           client 2       [  fetch  ][ scatter ][ write ]          ──> reply
//!                                  [ write ahead ]
//!   read    client 1  [    read    ]
//!                         [ gather  ][  store  ]                    ──> reply
//!           client 2        [ gather  ][  store  ]                  ──> reply
//! ```
//!
//! The server copies while it waits for the disk: what is complete at the front of a unit is
//! written when it is at least [`STEP`] bytes, and what is read can be handed out from the front
//! on. The last client of a unit writes the rest. If one does not come, the first that has waited
//! for [`PATIENCE`] writes what is there. The group's next units have less patience then, so a
//! client that is gone does not delay the others at each unit. Whoever comes later writes its part
//! alone.
//!
//! **Invariants**
//! 1. A byte that no client of the unit has written is not written.
//! 2. A client has its answer only when its bytes are in the store. An error is told to all clients
//!    of the unit.
//! 3. *Bounded memory.* There are at most [`MOST_BUFFERS`] buffers. If none is free, requests go
//!    alone, and none of them waits for a buffer. A request gives its own staging buffer back
//!    before it waits for others.
//! 4. *No deadlock.* A request that waits for others waits for a time that is bounded, for a disk
//!    that works for another one, or for neither. It holds no turn meanwhile.
//! 5. The locks are held for copies of some hundred pieces at most, and nothing is waited for or
//!    locked meanwhile.
//!
//! | file | contents |
//! |---|---|
//! | this | what a request does |
//! | `units` | the units, their buffers, and what comes next in each |
//!
//! **Source.** [ECIO-IB §4.1].

mod units;

use std::any::Any;
use std::pin::pin;

use bmi::hooks::{mutated, mutated_each, steps};
use bmi::memory::zone::Lease;
use bmi::paths::Direction;
use bmi::{Incoming, MemList, Memory, Options};
use bmi_cache::yield_now;
use fs_proto::{DatafileHandle, FsError, IodReply, Joined, Region, Reply, ViewPart};
use futures_util::future::join;

pub(super) use self::units::Joins;
use self::units::{Ahead, AheadWork, Next, Part, Unit, Waiting, Work};
use super::order::turns::Turn;
use super::places::Places;
use super::transfer::is_small;
use super::{Client, Iod, check_data};
use crate::service::{Answer, Context, Handler, ReadData};
use crate::store::{DataStore, Lends, StoreHandle};

/// Ranges that are written at once.
const RANGES: usize = 4096;
/// The least bytes of a unit that are written ahead, and those that are read at once.
const STEP: u64 = 256 << 10;

impl<S: StoreHandle> Iod<S> {
    /// Writes a part of a view.
    pub(super) async fn write_view(
        &self,
        context: &Context,
        call: &Incoming,
        datafile: DatafileHandle,
        (part, joined): (&ViewPart, Option<Joined>),
    ) -> Result<(), FsError> {
        match joined {
            None => self.write(context, call, datafile, Places::Seen(part)).await,
            Some(joined) => Box::pin(self.write_joined(context, call, datafile, (part, joined))).await,
        }
    }

    /// Reads a part of a view.
    pub(super) async fn read_view(
        &self,
        context: &Context,
        call: &Incoming,
        datafile: DatafileHandle,
        (part, joined): (&ViewPart, Option<Joined>),
    ) -> Result<Answer, FsError> {
        match joined {
            None => self.read(context, call, datafile, Places::Seen(part)).await,
            Some(joined) => Box::pin(self.read_joined(context, call, datafile, (part, joined))).await,
        }
    }

    /// Writes a part of a view together with those of other clients, if it can.
    async fn write_joined(
        &self,
        context: &Context,
        call: &Incoming,
        datafile: DatafileHandle,
        (part, joined): (&ViewPart, Joined),
    ) -> Result<(), FsError> {
        check_data(call, Direction::Write, part.total())?;
        let of_part = |error: FsError| error.with_ranges(vec![part.hull()]);
        let place = self.joins.unit(datafile, joined, Direction::Write, self.endpoint.now()).map_err(of_part)?;
        let alone = || self.write(context, call, datafile, Places::Seen(part));
        let Some(mut place) = place else { return alone().await };
        let unit = place.unit.clone();
        if unit.is_late() {
            drop(place);
            return alone().await;
        }
        let contribute = async {
            let contributed = self.contribute(context, call, part, &place).await;
            place.contributed();
            contributed
        };
        let (contributed, ()) = join(contribute, self.flush_ahead(context, datafile, &place)).await;
        if !contributed.map_err(of_part)? {
            drop(place);
            return alone().await;
        }
        place.comes_at(self.endpoint.now());
        if mutated("iod/join-answers-before-it-is-written") {
            return Ok(());
        }
        self.settle(context, datafile, &place).await.map_err(of_part)
    }

    /// Copies what a client writes into the unit. Returns false if it is too late.
    async fn contribute(
        &self,
        context: &Context,
        call: &Incoming,
        part: &ViewPart,
        place: &Part<'_>,
    ) -> Result<bool, FsError> {
        let (mut pieces, total, mut at) = (part.pieces(), part.total(), 0);
        let go_on = || context.check(self.endpoint.now());
        if mutated_each(5, "iod/join-forgets-a-client") {
            return Ok(true);
        }
        if let Some(data) = call.data() {
            return place.copy(&self.endpoint, &mut pieces, data, true, go_on).await;
        }
        let small = is_small(&self.zones, total);
        while at < total {
            go_on()?;
            // The pages of a client on this host, or a copy of what it has.
            let (from, _lease) = match call.pages(at, total - at) {
                Some(pages) => (pages, None),
                None => {
                    let lease = self.lease(context, total, total - at).await?;
                    let slice = lease.slice(lease.len().min((total - at) as usize));
                    let options = Options::by(context.deadline).class(self.class(total));
                    self.at_network(context, small, || call.fetch(at, &slice, options)).await?;
                    (MemList::from(slice), Some(lease))
                }
            };
            for piece in from.pieces() {
                if !place.copy(&self.endpoint, &mut pieces, piece, true, go_on).await? {
                    return Ok(false);
                }
            }
            at += from.len() as u64;
        }
        Ok(true)
    }

    /// Reads a part of a view, from a unit that is read once for several clients if it can.
    async fn read_joined(
        &self,
        context: &Context,
        call: &Incoming,
        datafile: DatafileHandle,
        (part, joined): (&ViewPart, Joined),
    ) -> Result<Answer, FsError> {
        check_data(call, Direction::Read, part.total())?;
        let of_part = |error: FsError| error.with_ranges(vec![part.hull()]);
        let place = self.joins.unit(datafile, joined, Direction::Read, self.endpoint.now()).map_err(of_part)?;
        let alone = || self.read(context, call, datafile, Places::Seen(part));
        let Some(mut place) = place else { return alone().await };
        let (unit, now) = (place.unit.clone(), self.endpoint.now());
        let _waiting = Waiting::new(&unit);
        let load = async {
            if let Next::Work = unit.next(false, now) {
                let working = Work(&unit);
                let turn = self.turn_of(context).await;
                let result = self.load(datafile, &unit).await;
                drop(turn);
                working.end(result);
            }
        };
        let ((), data) = join(load, self.hand_out(context, call, part, &place)).await;
        let Some(data) = data.map_err(of_part)? else { return alone().await };
        place.comes_at(self.endpoint.now());
        let reply = IodReply::Read { len: part.total(), size: self.store.size(datafile).await? };
        Ok(Answer::Reply(Reply { result: Ok(reply.into()) }, data))
    }

    /// Copies what a client reads out of the unit, into its memory or for the reply. Returns none
    /// if the unit was given up meanwhile.
    async fn hand_out(
        &self,
        context: &Context,
        call: &Incoming,
        part: &ViewPart,
        place: &Part<'_>,
    ) -> Result<Option<Option<ReadData>>, FsError> {
        let (mut pieces, total, mut at) = (part.pieces(), part.total(), 0);
        let go_on = || context.check(self.endpoint.now());
        let small = is_small(&self.zones, total);
        if call.replies_with_data() {
            let (slice, keep) = match small && total > 0 {
                true => {
                    let lease = self.lease(context, total, total).await?;
                    (lease.slice(total as usize), Some(Box::new(lease) as Box<dyn Any>))
                }
                false => (Memory::zeroed(total as usize)?.all(), None),
            };
            let copied = place.copy(&self.endpoint, &mut pieces, &slice, false, go_on).await?;
            return Ok(copied.then(|| Some(ReadData { list: MemList::from(slice), keep })));
        }
        while at < total {
            go_on()?;
            let (into, lease) = match call.pages(at, total - at) {
                Some(pages) => (pages, None),
                None => {
                    let lease = self.lease(context, total, total - at).await?;
                    (MemList::from(lease.slice(lease.len().min((total - at) as usize))), Some(lease))
                }
            };
            for piece in into.pieces() {
                if !place.copy(&self.endpoint, &mut pieces, piece, false, go_on).await? {
                    return Ok(None);
                }
            }
            let len = into.len() as u64;
            if lease.is_some() {
                let options = Options::by(context.deadline).class(self.class(total));
                self.at_network(context, small, || call.store(at, into, options)).await?;
            }
            at += len;
        }
        Ok(Some(None))
    }

    /// Returns a staging buffer for `len` of `total` bytes of a request, or for fewer.
    async fn lease(&self, context: &Context, total: u64, len: u64) -> Result<Lease<Client>, FsError> {
        let (client, class) = (self.client(context.peer), self.class(total));
        let most = (self.zones.unit(client, total, self.settings.unit) as u64).min(len);
        Ok(self.zones.take(&self.buffers, client, class, most as usize, self.endpoint.now()).await?)
    }

    /// Returns a turn at the disk. A store with a cache takes turns itself.
    async fn turn_of(&self, context: &Context) -> Option<Turn<Client>> {
        match self.store.lends() {
            Lends::Cache => None,
            _ => Some(self.stages.disk.take(self.client(context.peer)).await),
        }
    }

    /// Writes what is complete at the front of a unit, as long as this client copies.
    async fn flush_ahead(&self, context: &Context, datafile: DatafileHandle, place: &Part<'_>) {
        loop {
            let mut changed = pin!(place.unit.changed.notified());
            changed.as_mut().enable();
            match place.ahead() {
                Ahead::End => return,
                Ahead::Wait => changed.await,
                Ahead::Write { memory, runs, end } => {
                    let working = AheadWork(&place.unit);
                    let turn = self.turn_of(context).await;
                    let written = self.write_runs(datafile, place.unit.joined.unit(), &memory, &runs).await;
                    drop(turn);
                    // What it has not written is written in the end, which tells the error.
                    working.end(written.ok().map(|()| end));
                }
            }
        }
    }

    /// Waits until a unit is written. Writes it if nobody else does.
    async fn settle(&self, context: &Context, datafile: DatafileHandle, place: &Part<'_>) -> Result<(), FsError> {
        let unit = &place.unit;
        let _waiting = Waiting::new(unit);
        loop {
            let mut changed = pin!(unit.changed.notified());
            changed.as_mut().enable();
            match unit.next(true, self.endpoint.now()) {
                Next::End(result) => return result,
                Next::Work => {
                    let working = Work(unit);
                    if !unit.all_came() {
                        self.joins.hurry(unit);
                    }
                    // Others wait for this, so it is done whether this client is still there or
                    // not.
                    let turn = self.turn_of(context).await;
                    let result = self.flush(datafile, place).await;
                    drop(turn);
                    working.end(result.clone());
                    return result;
                }
                Next::Wait(Some(due)) => {
                    tokio::select! {
                        () = changed => {}
                        () = self.endpoint.sleep_until(due) => {}
                    }
                }
                Next::Wait(None) => changed.await,
            }
        }
    }

    /// Writes what has come of a unit and is not written.
    async fn flush(&self, datafile: DatafileHandle, place: &Part<'_>) -> Result<(), FsError> {
        let range = place.unit.joined.unit();
        let (memory, mut coverage, from) = place.unit.take()?;
        if mutated("iod/join-writes-holes") {
            coverage.mark(0, range.len);
        }
        let (mut runs, mut result) = (coverage.runs_from(from).peekable(), Ok(()));
        while runs.peek().is_some() && result.is_ok() {
            let some: Vec<Region> = runs.by_ref().take(RANGES).collect();
            result = self.write_runs(datafile, range, &memory, &some).await;
            if runs.peek().is_some() {
                yield_now().await;
            }
        }
        place.written(memory);
        result
    }

    /// Writes some bytes of a unit.
    async fn write_runs(
        &self,
        datafile: DatafileHandle,
        unit: Region,
        memory: &Memory,
        runs: &[Region],
    ) -> Result<(), FsError> {
        steps(runs.len());
        let list: MemList = runs.iter().map(|run| memory.slice(run.offset as usize, run.len as usize)).collect();
        let ranges: Vec<Region> = runs.iter().map(|run| Region::new(unit.offset + run.offset, run.len)).collect();
        self.store.write(datafile, &ranges, &list).await
    }

    /// Reads a unit from its front on.
    async fn load(&self, datafile: DatafileHandle, unit: &Unit) -> Result<(), FsError> {
        let (memory, range) = (unit.memory()?, unit.joined.unit());
        let mut at = 0;
        while at < range.len {
            let part = range.part(at, STEP);
            let into = memory.slice(at as usize, part.len as usize);
            self.store.read(datafile, &[part], &MemList::from(into)).await?;
            at += part.len;
            unit.loaded(at);
        }
        Ok(())
    }
}
