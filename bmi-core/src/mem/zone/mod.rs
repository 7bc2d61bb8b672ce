//! Zones: pools of server buffers of one size, in which a server stages data. The buffers are
//! registered once, and shared among clients fairly and by need.
//!
//! **Why.** Bulk data needs registered memory between the network and the disk, for as long as one
//! transfer unit takes. Three simpler schemes fail. Registering memory for each transfer costs more
//! than moving a small one. With one buffer for a whole request, a single client could take all
//! memory. And cutting pieces of any size from one arena leaves holes. So there are zones, each
//! with buffers of one size, and each size is twice the one before.
//!
//! **Invariants**
//! 1. *Bounded.* All buffers together, leased or free, have at most [`ZoneSettings::total`] bytes.
//!    A leased buffer is in one [`Lease`]. Dropping the lease returns the buffer. The holder of a
//!    lease drops it only when no operation uses its memory any more. If a client may still write
//!    to the memory then, it is retired ([`Memory::is_retired`]). Such a buffer is given up: it is
//!    not leased again and counts no longer. The backend has a bound of its own for it. A buffer
//!    that a panic drops is given up too, because the other threads of a server may go on.
//! 2. *Two budgets.* Small transfers (those that fit the smallest buffer and are not of class
//!    `Bulk`) have an eighth of the bytes to themselves. Bulk transfers have the rest. Neither ever
//!    waits for the other.
//! 3. *No client holds everything.* Let `n` clients hold or wait. A client gets another buffer only
//!    if it then holds at most `1/(n + 1)` of a budget, or one smallest buffer if that share is
//!    smaller. So a single client has half, and the rest is free for the next client. The share
//!    shrinks as clients come and grows as they leave. Buffers are never revoked. They are returned
//!    by their holders.
//! 4. *In turn.* Waiting clients are served in a queue. Each gets one buffer and then goes to the
//!    end. The requests of one client are served in the order in which they were made.
//! 5. *No fragmentation.* A buffer that the budgets admit can always be provided, whatever sizes
//!    were used before.
//!
//! **Which buffer.** For a request of some size, in this order:
//! 1. a free buffer of the zone with just enough room;
//! 2. a new one, if the total allows it;
//! 3. a free one of a larger zone, within the client's share;
//! 4. a new one in place of stale free ones;
//! 5. a smaller one, and the transfer is cut;
//! 6. a new one in place of free ones that are not stale.
//!
//! A buffer is stale if it was not used for its own size for a number of takes or for some time.
//! Stale buffers are returned to the system, except [`ZoneSettings::keep`] bytes. So zones grow and
//! shrink with the working set.
//!
//! **No deadlock, no starvation.**
//! - *A lease comes back.* While its holder has it, it must not ask for anything more, except for
//!   time of network and disk. Those end by their deadlines. A step of a request may wait for a
//!   lease while other steps of the same request hold leases, because they continue without it.
//! - *So a waiting client gets its turn.* A client that waits and holds nothing is passed over only
//!   while less than the smallest buffer is left in its budget (by invariant 5 only bytes count).
//!   Then something is leased, comes back, and the queue is scanned from its front. The clients
//!   before it get one buffer each and go to the end, behind it. Those behind it find the budget as
//!   empty as it does. So it sees at most one grant for each other client.
//! - *A waiting client that holds something* waits for its own leases to come back. After that it
//!   holds nothing.
//! - *A client that has stopped* keeps what it holds until its holder gives up. That was at most
//!   `1/(n + 1)` when it took it. To leave others without a buffer, enough clients to fill the
//!   budget must stop. So a holder must not wait long for a client that has stopped
//!   ([`ZonePool::is_awaited_by`] tells when others wait).
//!
//! **Threads.** The event loops of a server share its zones. A buffer is registered with the
//! adapter that is about to use it, on the thread of that adapter, when a lease of it is opened
//! ([`ZoneAdapter`]). The registration is kept for the next lease that this adapter has of the
//! buffer. So no thread calls an adapter of another one. There is one lock. It is held for a step
//! of the state machine, and never while memory is allocated or registered, a task is woken or a
//! buffer is dropped.
//!
//! **Source.** [PVFS-IB §3.3.2] (zones of 64 KiB to 2 MiB, the larger zone as fallback, cutting as
//! the last resort, rarely used buffers deregistered). Budgets, shares and turns are additions: the
//! paper has no rule for fairness.
//!
//! **Tests.** `zone/ledger/tests.rs` checks the invariants against a model, with any sequence of
//! takes, drops, cancels, departures and failures.

mod ledger;
mod settings;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use self::ledger::{BufferGrant, Lane, Ledger, Turn};
pub use self::settings::{ZoneCounters, ZoneSettings};
use super::{MemSlice, Memory, MemoryRegion};
use crate::class::ServiceClass;
use crate::error::{Error, ErrorKind};
use crate::time::Time;

/// The memory of a buffer, with its registrations.
#[derive(Debug)]
struct Buffer {
    memory: Memory,
    /// Those with the adapters that have used it, by the adapters' numbers.
    regions: Vec<(u32, MemoryRegion)>,
}

/// Registers memory with one adapter.
type Register = Box<dyn Fn(&Memory) -> Result<MemoryRegion, Error>>;

/// An adapter that uses the buffers of zones. It belongs to one thread.
pub struct ZoneAdapter {
    number: u32,
    register: Register,
}

impl ZoneAdapter {
    /// Registers a buffer, unless it is registered already.
    fn register(&self, buffer: &mut Buffer) -> Result<(), Error> {
        if !buffer.regions.iter().any(|(number, _)| *number == self.number) {
            buffer.regions.push((self.number, (self.register)(&buffer.memory)?));
        }
        Ok(())
    }

    fn make(&self, size: usize) -> Result<Buffer, Error> {
        let mut buffer = Buffer { memory: Memory::zeroed(size)?, regions: Vec::new() };
        self.register(&mut buffer)?;
        Ok(buffer)
    }
}

struct State<C> {
    ledger: Ledger<C, Buffer>,
    /// The task that waits for something to trim.
    tender: Option<Waker>,
}

struct Shared<C> {
    state: Mutex<State<C>>,
    /// Number of adapters.
    adapters: AtomicU32,
}

/// Zones of buffers, shared by the clients `C` and by threads (see the [module](self)). A clone is
/// another handle to the same zones.
pub struct ZonePool<C: Copy + Ord> {
    shared: Arc<Shared<C>>,
}

impl<C: Copy + Ord> Clone for ZonePool<C> {
    fn clone(&self) -> Self {
        ZonePool { shared: Arc::clone(&self.shared) }
    }
}

impl<C: Copy + Ord> Shared<C> {
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        // A thread that panics holds the lock in no step that leaves the state half changed, except
        // for a bug of the ledger. Its server stops.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a step of the ledger. Then wakes its wakers and drops its retired buffers, outside of
    /// the lock, because both may run any code.
    fn with<R>(&self, step: impl FnOnce(&mut Ledger<C, Buffer>) -> R) -> R {
        let mut state = self.lock();
        let State { ledger, tender } = &mut *state;
        let result = step(ledger);
        let tender = tender.take_if(|_| ledger.next_trim().is_some());
        if ledger.wakes.is_empty() && ledger.retired.is_empty() && tender.is_none() {
            return result;
        }
        let (mut wakes, mut retired) = (std::mem::take(&mut ledger.wakes), std::mem::take(&mut ledger.retired));
        drop(state);
        wakes.drain(..).chain(tender).for_each(Waker::wake);
        retired.clear();
        let ledger = &mut self.lock().ledger;
        if ledger.wakes.is_empty() {
            ledger.wakes = wakes;
        }
        if ledger.retired.is_empty() {
            ledger.retired = retired;
        }
        result
    }

    /// Provides the buffer of a grant, registered with `adapter`. This is the free one, or a new
    /// one, or a smaller free one.
    fn back(&self, adapter: &ZoneAdapter, grant: BufferGrant<C, Buffer>) -> Result<BufferGrant<C, Buffer>, Error> {
        let mut grant = grant;
        loop {
            let result = match &mut grant.buffer {
                Some(buffer) => adapter.register(buffer).map(|()| None),
                None => adapter.make(grant.size).map(Some),
            };
            match result {
                Ok(None) => return Ok(grant),
                Ok(made) => grant.buffer = made,
                Err(error) => {
                    // A buffer that an adapter refuses is useless.
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
    /// Returns zones without any buffer. Buffers are allocated as needed.
    ///
    /// # Errors
    /// `Invalid`; see [`ZoneSettings::validate`].
    pub fn new(settings: &ZoneSettings) -> Result<ZonePool<C>, Error> {
        settings.validate()?;
        let state = Mutex::new(State { ledger: Ledger::new(settings), tender: None });
        Ok(ZonePool { shared: Arc::new(Shared { state, adapters: AtomicU32::new(0) }) })
    }

    /// Adds an adapter, which registers memory with `register`. A server calls this once for each
    /// of its endpoints, on the thread of the endpoint. A buffer is registered with an adapter when
    /// its first lease for this adapter is opened.
    pub fn add_adapter(&self, register: impl Fn(&Memory) -> Result<MemoryRegion, Error> + 'static) -> ZoneAdapter {
        let number = self.shared.adapters.fetch_add(1, Ordering::Relaxed);
        ZoneAdapter { number, register: Box::new(register) }
    }

    // ---- getters --------------------------------------------------------------------------------

    /// Returns the counters and the current usage.
    pub fn counters(&self) -> ZoneCounters {
        let ledger = &self.shared.lock().ledger;
        ZoneCounters { bytes: ledger.made() as u64, ..ledger.counters }
    }

    /// Returns the size of the smallest buffers, in bytes.
    pub fn smallest(&self) -> usize {
        self.shared.lock().ledger.sizes().next().expect("there is a zone")
    }

    /// Returns the bytes of bulk buffers that `client` holds.
    pub fn held(&self, client: C) -> usize {
        self.shared.lock().ledger.held(client, Lane::Bulk)
    }

    /// Returns true if a client for which `who` returns true waits for a buffer.
    pub fn is_awaited_by(&self, who: impl Fn(C) -> bool) -> bool {
        self.shared.lock().ledger.waiting().any(who)
    }

    /// Returns the best transfer unit for a bulk transfer of `total` bytes by `client` now, at most
    /// `longest`. It is the size of the largest buffer of which two fit both the transfer and the
    /// client's share. Two buffers let network and disk overlap ([PVFS-IB §4.2]). The result is
    /// never less than the smallest buffer, unless the transfer or `longest` is.
    pub fn unit(&self, client: C, total: u64, longest: usize) -> usize {
        let ledger = &self.shared.lock().ledger;
        let total = usize::try_from(total).unwrap_or(usize::MAX);
        let room = (ledger.share(client, Lane::Bulk) / 2).min(total / 2).min(longest);
        let best = ledger.sizes().rev().find(|size| *size <= room);
        best.or(ledger.sizes().next()).unwrap_or(room).min(total).min(longest.max(1))
    }

    /// Returns the number of units of this size that a transfer of `client` should have in flight.
    /// At least two, so that they overlap, and up to `most` if the client's share has room. One if
    /// `most` is one.
    pub fn depth(&self, client: C, unit: usize, most: usize) -> usize {
        let share = self.shared.lock().ledger.share(client, Lane::Bulk);
        (share / unit.max(1)).clamp(most.clamp(1, 2), most.max(1))
    }

    // ---- mutators -------------------------------------------------------------------------------

    /// Waits for a buffer for `len` bytes of `client`, to be used with `adapter`. Combines
    /// [`ZonePool::reserve`] and [`Reservation::open`].
    ///
    /// # Errors
    /// Those of the two functions.
    pub async fn take(
        &self,
        adapter: &ZoneAdapter,
        client: C,
        class: ServiceClass,
        len: usize,
        now: Time,
    ) -> Result<Lease<C>, Error> {
        self.reserve(client, class, len, now).await?.open(adapter)
    }

    /// Waits for the right to a buffer for `len` bytes of `client`. It may have room for fewer
    /// bytes; the transfer must then be cut. Transfers of class `Bulk` have one budget. All others
    /// have another budget, which is meant for transfers that fit the smallest buffer. Dropping the
    /// future leaves the queue.
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
        Ok(Reservation { len: grant.size.min(len), grant: Some(grant), shared: Arc::clone(&self.shared) })
    }

    /// Removes `client`. Its waiting requests end with `PeerLost`. Its leases are returned when
    /// they are dropped.
    pub fn depart(&self, client: C) {
        self.shared.with(|ledger| ledger.depart(client));
    }

    /// Gives buffers back to the system that were not used for long.
    pub fn trim(&self, now: Time) {
        self.shared.with(|ledger| ledger.trim(now));
    }

    /// Returns when to call [`ZonePool::trim`]. Waits until there is something to trim. Only one
    /// task may wait at a time.
    pub async fn next_trim(&self) -> Time {
        poll_fn(|cx| {
            let State { ledger, tender } = &mut *self.shared.lock();
            match ledger.next_trim() {
                Some(at) => Poll::Ready(at),
                None => {
                    *tender = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// A place in the queue.
struct Queued<'a, C: Copy + Ord> {
    shared: &'a Shared<C>,
    ticket: Option<usize>,
}

impl<C: Copy + Ord> Future for Queued<'_, C> {
    type Output = Result<BufferGrant<C, Buffer>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = self.ticket.expect("polled after its turn had come");
        let turn = self.shared.lock().ledger.collect(ticket, cx.waker());
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

/// The right to a buffer. Dropping it gives the right back.
///
/// **Why.** Allocating and registering a buffer keeps the processor busy for as long as several
/// messages take. Suppose a hundred clients start at once. With a reservation, requests that next
/// have to wait for something else do not all get their buffers created at the same moment, before
/// any small request is handled.
pub struct Reservation<C: Copy + Ord> {
    shared: Arc<Shared<C>>,
    grant: Option<BufferGrant<C, Buffer>>,
    len: usize,
}

impl<C: Copy + Ord> Reservation<C> {
    /// Returns the number of bytes that the transfer may use: as many as requested, or fewer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no bytes were requested.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the buffer, registered with `adapter`: the one that was free, or a new one. If a new
    /// one cannot be created, returns a smaller free one. Call it on the adapter's thread.
    ///
    /// # Errors
    /// `Exhausted`, or the error that prevented a buffer from being created, if no other is free.
    pub fn open(mut self, adapter: &ZoneAdapter) -> Result<Lease<C>, Error> {
        let grant = self.grant.take().expect("a reservation is opened once");
        let grant = self.shared.back(adapter, grant)?;
        Ok(Lease { len: grant.size.min(self.len), grant: Some(grant), shared: Arc::clone(&self.shared) })
    }
}

impl<C: Copy + Ord> Drop for Reservation<C> {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            self.shared.with(|ledger| ledger.give_back(grant));
        }
    }
}

/// A buffer in use. Dropping it returns the buffer.
pub struct Lease<C: Copy + Ord> {
    shared: Arc<Shared<C>>,
    grant: Option<BufferGrant<C, Buffer>>,
    len: usize,
}

impl<C: Copy + Ord> Lease<C> {
    fn buffer(&self) -> &Buffer {
        self.grant.as_ref().and_then(|grant| grant.buffer.as_ref()).expect("a lease has its buffer until it is dropped")
    }

    /// Returns the number of bytes that the transfer may use: as many as requested, or fewer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no bytes were requested.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the size of the buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.buffer().memory.len()
    }

    /// Returns the first `len` bytes of the buffer.
    ///
    /// # Panics
    /// If the buffer has fewer bytes.
    pub fn slice(&self, len: usize) -> MemSlice {
        self.buffer().memory.slice(0, len)
    }

    /// Returns the registrations of the buffer, in the order in which the adapters first used it.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = &MemoryRegion> {
        self.buffer().regions.iter().map(|(_, region)| region)
    }
}

impl<C: Copy + Ord> Drop for Lease<C> {
    fn drop(&mut self) {
        if let Some(mut grant) = self.grant.take() {
            let is_written = grant.buffer.as_ref().is_some_and(|buffer| buffer.memory.is_retired());
            if is_written || thread::panicking() {
                // A client may still write to it, or what a thread has left behind that panicked.
                grant.buffer = None;
            }
            self.shared.with(|ledger| ledger.give_back(grant));
        }
    }
}

#[cfg(test)]
mod tests;
