//! Zones of equal buffers that a server stages data in: registered once, shared fairly and by need
//! among its clients.
//!
//! **Why.** Bulk data needs memory that the adapters know, between the network and the disk, for as
//! long as one unit takes. Registering it for each transfer costs more than moving a small one; one
//! buffer for a whole request would let a single client take all there is; and pieces of any size
//! cut out of one arena leave holes. So there are zones, each with buffers of one size, each size
//! twice the one before.
//!
//! **Invariants**
//! 1. *Bounded.* All buffers together, leased or free, have at most [`ZoneSettings::total`] bytes.
//!    What is leased is in one [`Lease`]; dropping it gives the buffer back. Whoever has a lease
//!    drops it only when no operation is at its memory any more.
//! 2. *Two budgets.* Small transfers (those that fit the smallest buffer and are not of class
//!    `Bulk`) have an eighth of the bytes to themselves, bulk has the rest. Neither ever waits for
//!    the other.
//! 3. *Nobody holds all.* With `n` clients that hold or wait, one gets another buffer only if it
//!    then holds at most `1/(n + 1)` of a budget; if that is less than the smallest buffer, one of
//!    those. So a client alone has half, and what it leaves is there at once for whoever comes
//!    next. The share shrinks as clients come and grows as they go. No more is taken back than
//!    comes back by itself.
//! 4. *In turn.* Waiting clients are served in a row, one buffer each, then they go to its end. The
//!    requests of one client are served in the order in which they asked.
//! 5. *No fragmentation.* A buffer that the budgets admit can be had, whatever sizes were used
//!    before.
//!
//! **Which buffer.** For a request of some size, in this order: a free one of the zone with just
//! enough room; a new one, if the total allows; a free one of a larger zone, within the client's
//! share; a new one in place of free ones that are stale; a smaller one, and the transfer is cut;
//! at last a new one in place of free ones that are not stale. Stale is what was of no use in its
//! own size for a number of takes or for some time. Stale buffers go back to the system, all but
//! [`ZoneSettings::keep`] bytes: so zones grow and shrink with the working set.
//!
//! **No deadlock, no starvation.** *A lease comes back:* its holder must not ask for anything more
//! while it has it, except for time of network and disk, which end by their deadlines. A step of a
//! request may wait for a lease while other steps of the same request hold some: they go on without
//! it. *So a waiting client gets its turn:* one that waits and holds nothing is passed over only
//! while less than the smallest buffer is left in its budget (invariant 5: bytes are all that
//! counts). Then something is leased, comes back, and the row is gone through from its front. Those
//! before it in the row get one buffer each and go to the end, behind it; those behind it find the
//! budget as empty as it does. So it sees at most one grant for each other client. *A waiting
//! client that holds something* waits for its own leases to come back, after which it holds
//! nothing. *A client that has come to a halt* keeps what it holds until its deadlines, `1/(n + 1)`
//! at most when it took it; to leave others without a buffer, as many clients must halt as fill the
//! budget.
//!
//! **Source.** [PVFS-IB §3.3.2] (zones of 64 KiB to 2 MiB, the larger zone as fall-back,
//! cutting as the last resort, seldom used buffers deregistered). Budgets, shares and turns are
//! ours; there is no rule for fairness in the paper.
//!
//! **Tests.** `zone/ledger/tests.rs` checks the invariants against a model under any sequence of
//! takes, drops, cancels, departures and failures.

mod ledger;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use self::ledger::{BufferGrant, Lane, Ledger, Turn};
use super::{MemSlice, Memory, MemoryRegion};
use crate::error::{Error, ErrorKind};
use crate::time::Time;
use crate::transport::ServiceClass;

/// How much memory zones have, in what sizes, and when they give it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneSettings {
    /// Sizes of the buffers in bytes, ascending; one zone for each.
    pub sizes: Vec<usize>,
    /// Bytes of all buffers together.
    pub total: usize,
    /// Bytes that are kept though nobody uses them, once they were made.
    pub keep: usize,
    /// A free buffer that was not used for this long is stale.
    pub idle: Duration,
    /// And so is one that was not used for this many takes.
    pub idle_takes: u64,
}

impl ZoneSettings {
    /// Smallest and largest buffers of the paper's zones, in bytes: 64 KiB and 2 MiB.
    pub const SMALLEST: usize = 64 << 10;
    /// See [`ZoneSettings::SMALLEST`].
    pub const LARGEST: usize = 2 << 20;

    /// Zones of `smallest`, twice that, and so on up to `largest`, which ends the row whether it is
    /// a power of two of it or not.
    pub fn doubling(smallest: usize, largest: usize, total: usize) -> ZoneSettings {
        let mut sizes: Vec<usize> = std::iter::successors(Some(smallest.max(1)), |size| size.checked_mul(2))
            .take_while(|size| *size < largest)
            .collect();
        sizes.push(largest);
        ZoneSettings { sizes, total, keep: total / 8, idle: Duration::from_secs(10), idle_takes: 1024 }
    }

    /// Checks that there are sizes, ascending, and that the total has room for two of the smallest
    /// for each of the budgets.
    ///
    /// # Errors
    /// `Invalid`, saying what is wrong.
    pub fn validate(&self) -> Result<(), Error> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let Some(smallest) = self.sizes.first().copied().filter(|size| *size > 0) else {
            return invalid(format!(
                "zones of {:?} bytes; there must be at least one, and of no buffer without bytes",
                self.sizes
            ));
        };
        if !self.sizes.is_sorted_by(|one, next| one < next) {
            return invalid(format!("zones of {:?} bytes are not in ascending order", self.sizes));
        }
        if smallest > self.total / 4 {
            return invalid(format!(
                "{} bytes for zones whose smallest buffers have {smallest}; four must fit",
                self.total
            ));
        }
        Ok(())
    }

    /// The budget of small transfers.
    fn small(&self) -> usize {
        (self.total / 8).max(self.sizes[0])
    }
}

impl Default for ZoneSettings {
    /// Zones of 64 KiB to 2 MiB ([PVFS-IB §3.3.2]) with 32 MiB in all. What was not used
    /// for 10 seconds or 1024 takes is stale; 4 MiB are kept.
    fn default() -> ZoneSettings {
        ZoneSettings::doubling(ZoneSettings::SMALLEST, ZoneSettings::LARGEST, 32 << 20)
    }
}

/// What zones did so far, and what they hold. Sizes are those of the buffers, whether a transfer
/// needed all of them or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneCounters {
    /// Buffers asked for.
    pub takes: u64,
    /// Of these, how many had to wait.
    pub waits: u64,
    /// How many got a free buffer of the right zone.
    pub exact: u64,
    /// How many got a larger one in its place.
    pub larger: u64,
    /// How many got a smaller one, so that the transfer was cut.
    pub cut: u64,
    /// Buffers made, and registered.
    pub made: u64,
    /// Buffers given back to the system.
    pub retired: u64,
    /// Buffers that could not be made or registered.
    pub failed: u64,
    /// Bytes leased now.
    pub leased: u64,
    /// Most bytes that were leased at a time.
    pub most_leased: u64,
    /// Bytes of all buffers there are now.
    pub bytes: u64,
}

/// A buffer's memory, registered with every adapter.
#[derive(Debug)]
struct Buffer {
    memory: Memory,
    regions: Vec<MemoryRegion>,
}

/// Registers memory with one adapter.
type Register = Rc<dyn Fn(&Memory) -> Result<MemoryRegion, Error>>;

struct Shared<C> {
    ledger: RefCell<Ledger<C, Buffer>>,
    adapters: RefCell<Vec<Register>>,
    /// Waits for something to trim.
    tender: Cell<Option<Waker>>,
}

/// Zones of buffers, shared by the clients `C` (see the [module](self)). A clone is another handle
/// to the same zones.
pub struct ZonePool<C: Copy + Ord> {
    shared: Rc<Shared<C>>,
}

impl<C: Copy + Ord> Clone for ZonePool<C> {
    fn clone(&self) -> Self {
        ZonePool { shared: Rc::clone(&self.shared) }
    }
}

impl<C: Copy + Ord> Shared<C> {
    /// Wakes and drops what the ledger wants woken and dropped, outside of its borrow: wakers and
    /// owners may do as they like.
    fn settle(&self) {
        let (mut wakes, mut retired) = {
            let mut ledger = self.ledger.borrow_mut();
            (std::mem::take(&mut ledger.wakes), std::mem::take(&mut ledger.retired))
        };
        wakes.drain(..).for_each(Waker::wake);
        retired.clear();
        let mut ledger = self.ledger.borrow_mut();
        if ledger.wakes.is_empty() {
            ledger.wakes = wakes;
        }
        if ledger.retired.is_empty() {
            ledger.retired = retired;
        }
        if ledger.next_trim().is_some() {
            drop(ledger);
            self.tender.take().into_iter().for_each(Waker::wake);
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Ledger<C, Buffer>) -> R) -> R {
        let result = f(&mut self.ledger.borrow_mut());
        self.settle();
        result
    }

    /// Registers a buffer with the adapters that do not know it yet.
    fn register(&self, buffer: &mut Buffer) -> Result<(), Error> {
        loop {
            let Some(register) = self.adapters.borrow().get(buffer.regions.len()).cloned() else { return Ok(()) };
            buffer.regions.push(register(&buffer.memory)?);
        }
    }

    fn make(&self, size: usize) -> Result<Buffer, Error> {
        let mut buffer = Buffer { memory: Memory::zeroed(size)?, regions: Vec::new() };
        self.register(&mut buffer)?;
        Ok(buffer)
    }

    /// Puts a buffer behind a grant: the one that was free, registered with adapters that came
    /// since; a new one; or a smaller one that is free.
    fn back(&self, grant: BufferGrant<C, Buffer>) -> Result<BufferGrant<C, Buffer>, Error> {
        let mut grant = grant;
        loop {
            let result = match &mut grant.buffer {
                Some(buffer) => self.register(buffer).map(|()| None),
                None => self.make(grant.size).map(Some),
            };
            match result {
                Ok(None) => return Ok(grant),
                Ok(made) => grant.buffer = made,
                Err(error) => {
                    // A buffer that an adapter does not take is of no use to anybody.
                    drop(grant.buffer.take());
                    match self.with(|ledger| ledger.failed(grant)) {
                        Some(other) => grant = other,
                        None => return Err(error),
                    }
                }
            }
        }
    }
}

impl<C: Copy + Ord> ZonePool<C> {
    /// Zones without any buffer yet; they are made as they are needed.
    ///
    /// # Errors
    /// `Invalid`; see [`ZoneSettings::validate`].
    pub fn new(settings: &ZoneSettings) -> Result<ZonePool<C>, Error> {
        settings.validate()?;
        let shared = Shared {
            ledger: RefCell::new(Ledger::new(settings)),
            adapters: RefCell::default(),
            tender: Cell::default(),
        };
        Ok(ZonePool { shared: Rc::new(shared) })
    }

    /// Has every buffer registered with one more adapter, before it is leased the next time. A
    /// server calls this once for each of its endpoints.
    pub fn add_adapter(&self, register: impl Fn(&Memory) -> Result<MemoryRegion, Error> + 'static) {
        self.shared.adapters.borrow_mut().push(Rc::new(register));
    }

    // ---- getters --------------------------------------------------------------------------------

    /// What it did, and what it holds.
    pub fn counters(&self) -> ZoneCounters {
        let ledger = self.shared.ledger.borrow();
        ZoneCounters { bytes: ledger.made() as u64, ..ledger.counters }
    }

    /// Bytes of the smallest buffers.
    pub fn smallest(&self) -> usize {
        self.shared.ledger.borrow().sizes().next().expect("there is a zone")
    }

    /// Bytes of bulk buffers that `client` holds.
    pub fn held(&self, client: C) -> usize {
        self.shared.ledger.borrow().held(client, Lane::Bulk)
    }

    /// The size of unit that a bulk transfer of `total` bytes by `client` is best moved in now, at
    /// most `longest`: the largest buffer of which two fit the transfer, so that network and disk
    /// overlap ([PVFS-IB §4.2]), and two fit the client's share. Never less than the
    /// smallest buffer, unless the transfer is.
    pub fn unit(&self, client: C, total: u64, longest: usize) -> usize {
        let ledger = self.shared.ledger.borrow();
        let total = usize::try_from(total).unwrap_or(usize::MAX);
        let room = (ledger.share(client, Lane::Bulk) / 2).min(total / 2).min(longest);
        let best = ledger.sizes().rev().find(|size| *size <= room);
        best.or(ledger.sizes().next()).unwrap_or(room).min(total).min(longest.max(1))
    }

    /// How many units of this size a transfer of `client` should have under way: two overlap, up to
    /// `most` if its share has room for them; one, and no overlap, if `most` says so.
    pub fn depth(&self, client: C, unit: usize, most: usize) -> usize {
        let share = self.shared.ledger.borrow().share(client, Lane::Bulk);
        (share / unit.max(1)).clamp(most.clamp(1, 2), most.max(1))
    }

    // ---- mutators -------------------------------------------------------------------------------

    /// A buffer for `len` bytes of `client`, when it is its turn: [`ZonePool::reserve`] and
    /// [`Reservation::open`] in one.
    ///
    /// # Errors
    /// Those of the two.
    pub async fn take(&self, client: C, class: ServiceClass, len: usize, now: Time) -> Result<Lease<C>, Error> {
        self.reserve(client, class, len, now).await?.open()
    }

    /// Leave to have a buffer for `len` bytes of `client`, when it is its turn. It may have room
    /// for fewer: then the transfer is to be cut. Transfers of class `Bulk` have one budget, all
    /// others another, meant for those that fit the smallest buffer. Dropping the future leaves the
    /// row.
    ///
    /// # Errors
    /// `PeerLost` after [`ZonePool::depart`].
    pub async fn reserve(
        &self,
        client: C,
        class: ServiceClass,
        len: usize,
        now: Time,
    ) -> Result<Reservation<C>, Error> {
        let asked = self.shared.with(|ledger| ledger.ask(client, class.into(), len, now));
        let grant = match asked {
            Ok(grant) => grant,
            Err(ticket) => Queued { shared: &self.shared, ticket: Some(ticket) }.await?,
        };
        Ok(Reservation { len: grant.size.min(len), grant: Some(grant), shared: Rc::clone(&self.shared) })
    }

    /// `client` is gone: what waits for it ends, `PeerLost`. Its leases come back when they are
    /// dropped.
    pub fn depart(&self, client: C) {
        self.shared.with(|ledger| ledger.depart(client));
    }

    /// Gives back to the system what was not used for long.
    pub fn trim(&self, now: Time) {
        self.shared.with(|ledger| ledger.trim(now));
    }

    /// When to call [`ZonePool::trim`]; waits until there is something that it may have to give
    /// back. One task at a time.
    pub async fn next_trim(&self) -> Time {
        poll_fn(|cx| match self.shared.ledger.borrow().next_trim() {
            Some(at) => Poll::Ready(at),
            None => {
                self.shared.tender.set(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

/// A place in the row.
struct Queued<'a, C: Copy + Ord> {
    shared: &'a Shared<C>,
    ticket: Option<usize>,
}

impl<C: Copy + Ord> Future for Queued<'_, C> {
    type Output = Result<BufferGrant<C, Buffer>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = self.ticket.expect("polled after its turn had come");
        let turn = self.shared.ledger.borrow_mut().collect(ticket, cx.waker());
        if let Turn::Wait = turn {
            return Poll::Pending;
        }
        self.ticket = None;
        Poll::Ready(match turn {
            Turn::Granted(grant) => Ok(grant),
            _ => Err(Error::new(ErrorKind::PeerLost, "the client is gone")),
        })
    }
}

impl<C: Copy + Ord> Drop for Queued<'_, C> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.shared.with(|ledger| ledger.cancel(ticket));
        }
    }
}

/// Leave to have a buffer. Dropping it gives it back.
///
/// **Why.** Making and registering a buffer keeps the processor busy for as long as several
/// messages take. When a hundred clients begin at once, those who wait for their turn elsewhere
/// need not have their buffers made all at the same moment, before anybody's small request is
/// looked at.
pub struct Reservation<C: Copy + Ord> {
    shared: Rc<Shared<C>>,
    grant: Option<BufferGrant<C, Buffer>>,
    len: usize,
}

impl<C: Copy + Ord> Reservation<C> {
    /// Bytes that the transfer may have: as many as were asked for, or fewer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The buffer: the one that was free, or a new one. If that cannot be made, a smaller one that
    /// is free.
    ///
    /// # Errors
    /// `Exhausted`, or what else kept a buffer from being made when no other is free.
    pub fn open(mut self) -> Result<Lease<C>, Error> {
        let grant = self.grant.take().expect("a reservation is opened once");
        let grant = self.shared.back(grant)?;
        Ok(Lease { len: grant.size.min(self.len), grant: Some(grant), shared: Rc::clone(&self.shared) })
    }
}

impl<C: Copy + Ord> Drop for Reservation<C> {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.shared.with(|ledger| ledger.give_back(grant));
        }
    }
}

/// A buffer in use. Dropping it gives the buffer back.
pub struct Lease<C: Copy + Ord> {
    shared: Rc<Shared<C>>,
    grant: Option<BufferGrant<C, Buffer>>,
    len: usize,
}

impl<C: Copy + Ord> Lease<C> {
    fn buffer(&self) -> &Buffer {
        self.grant.as_ref().and_then(|grant| grant.buffer.as_ref()).expect("a lease has its buffer until it is dropped")
    }

    /// Bytes of it that the transfer may use: as many as were asked for, or fewer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the buffer has.
    pub fn capacity(&self) -> usize {
        self.buffer().memory.len()
    }

    /// Its first `len` bytes.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn slice(&self, len: usize) -> MemSlice {
        self.buffer().memory.slice(0, len)
    }

    /// Its registrations, in the order in which the adapters were added.
    pub fn regions(&self) -> &[MemoryRegion] {
        &self.buffer().regions
    }
}

impl<C: Copy + Ord> Drop for Lease<C> {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.shared.with(|ledger| ledger.give_back(grant));
        }
    }
}

#[cfg(test)]
mod tests;
