//! The pool: memory, registrations, futures.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;
use std::thread;

use super::*;
use crate::mem::{LocalKey, RegionOwner, ReleaseQueue};

const UNIT: usize = 4096;

fn pool() -> ZonePool<u8> {
    ZonePool::new(&ZoneSettings::doubling(UNIT, 4 * UNIT, 64 * UNIT)).unwrap()
}

/// Counts registrations, and fails on request.
#[derive(Default)]
struct Counts {
    made: Cell<u64>,
    failing: Cell<bool>,
    owner: Arc<ReleaseQueue>,
}

struct Adapter {
    counts: Rc<Counts>,
    adapter: ZoneAdapter,
}

impl Adapter {
    fn join(pool: &ZonePool<u8>) -> Adapter {
        let counts = Rc::new(Counts::default());
        let register = counts.clone();
        let adapter = pool.add_adapter(move |memory| {
            if register.failing.get() {
                return Err(Error::new(ErrorKind::Exhausted, "no more registrations"));
            }
            register.made.set(register.made.get() + 1);
            let owner: Arc<dyn RegionOwner> = register.owner.clone();
            Ok(MemoryRegion::new(memory.clone(), LocalKey(register.made.get()), owner))
        });
        Adapter { counts, adapter }
    }

    fn fail(&self, failing: bool) {
        self.counts.failing.set(failing);
    }

    fn take(&self, pool: &ZonePool<u8>, client: u8, len: usize) -> Lease<u8> {
        now(pool.take(&self.adapter, client, ServiceClass::Bulk, len, Time::ZERO)).expect("at once").unwrap()
    }

    fn live(&self) -> u64 {
        let mut released = Vec::new();
        self.counts.owner.drain(&mut released);
        let live = self.counts.made.get() - released.len() as u64;
        self.counts.made.set(live);
        live
    }
}

fn now<R>(future: impl Future<Output = R>) -> Option<R> {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

fn take(pool: &ZonePool<u8>, client: u8, len: usize) -> Lease<u8> {
    Adapter::join(pool).take(pool, client, len)
}

#[test]
fn a_buffer_is_registered_once_with_every_adapter_that_uses_it() {
    let pool = pool();
    let (first, second) = (Adapter::join(&pool), Adapter::join(&pool));
    let lease = first.take(&pool, 1, UNIT + 1);
    assert_eq!((lease.len(), lease.capacity(), lease.regions().len()), (UNIT + 1, 2 * UNIT, 1));
    let memory = lease.slice(1).memory().id();
    assert!(lease.regions().all(|region| region.memory().id() == memory));
    drop(lease);
    assert_eq!((first.live(), second.live()), (1, 0));
    let lease = second.take(&pool, 2, 2 * UNIT);
    assert_eq!((lease.slice(1).memory().id(), lease.regions().len()), (memory, 2), "the same, and both know it");
    drop(lease);
    drop((first.take(&pool, 2, 2 * UNIT), second.take(&pool, 2, UNIT)));
    drop(second.take(&pool, 2, 2 * UNIT));
    assert_eq!((first.live(), second.live()), (1, 2));
    drop(pool);
    assert_eq!((first.live(), second.live()), (0, 0), "registrations end with the pool");
}

#[test]
fn what_was_not_used_for_long_goes_back_to_the_system() {
    let pool = pool();
    let adapter = Adapter::join(&pool);
    let leases: Vec<_> = (0..6).map(|client| adapter.take(&pool, client, 4 * UNIT)).collect();
    assert_eq!(now(pool.next_trim()), None, "all are in use");
    drop(leases);
    let at = now(pool.next_trim()).unwrap();
    pool.trim(Time::from_nanos(at.as_nanos() - 1));
    assert_eq!(pool.counters().bytes, 24 * UNIT as u64);
    pool.trim(at);
    assert_eq!((pool.counters().bytes, pool.counters().retired), (8 * UNIT as u64, 4), "an eighth is kept");
    assert_eq!(adapter.live(), 2);
    assert_eq!(now(pool.next_trim()), None);
}

/// A client that has stopped may still write to a buffer whose transfer has ended. The buffer is
/// leased to no one again, and takes no room.
#[test]
fn a_retired_buffer_is_not_leased_again() {
    let pool = pool();
    let lease = take(&pool, 1, UNIT);
    let memory = lease.slice(1).memory().clone();
    let retirement = memory.retire();
    drop(lease);
    assert_eq!(pool.counters().bytes, 0);
    drop(retirement);
    assert!(!memory.is_retired());
    let lease = take(&pool, 2, UNIT);
    assert_ne!(lease.slice(1).memory().id(), memory.id());
    assert_eq!(pool.counters().bytes, UNIT as u64);
}

/// A disk or an adapter may still be at work on it. The other threads of a server go on for a
/// while.
#[test]
fn a_buffer_of_a_thread_that_panics_is_not_leased_again() {
    let pool = pool();
    let lease = take(&pool, 1, UNIT);
    let memory = lease.slice(1).memory().id();
    let panics = std::panic::AssertUnwindSafe(|| {
        let _lease = lease;
        panic!("a test");
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    assert_eq!((pool.counters().bytes, pool.counters().leased), (0, 0));
    assert_ne!(take(&pool, 2, UNIT).slice(1).memory().id(), memory);
}

#[test]
fn who_cannot_have_a_new_buffer_gets_a_smaller_one_that_is_free_or_an_error() {
    let pool = pool();
    let adapter = Adapter::join(&pool);
    drop(adapter.take(&pool, 1, UNIT));
    adapter.fail(true);
    let small = adapter.take(&pool, 1, 4 * UNIT);
    assert_eq!(small.len(), UNIT, "the transfer is cut");
    let error = now(pool.take(&adapter.adapter, 2, ServiceClass::Bulk, UNIT, Time::ZERO)).unwrap().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert_eq!(pool.counters().leased, UNIT as u64, "nothing is lost by it");
    adapter.fail(false);
    drop(adapter.take(&pool, 2, UNIT));
    assert_eq!((pool.counters().failed, adapter.live()), (2, 2));
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn who_waits_is_woken_by_a_buffer_or_by_the_end_of_its_client() {
    let pool = pool();
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    let mut cx = Context::from_waker(&waker);
    let Adapter { adapter, .. } = &Adapter::join(&pool);
    let mut held: Vec<_> = (0..7).map(|_| take(&pool, 1, 4 * UNIT)).collect();
    let mut first = Box::pin(pool.take(adapter, 1, ServiceClass::Bulk, 4 * UNIT, Time::ZERO));
    let mut second = Box::pin(pool.take(adapter, 1, ServiceClass::Bulk, 4 * UNIT, Time::ZERO));
    let mut third = Box::pin(pool.take(adapter, 1, ServiceClass::Bulk, 4 * UNIT, Time::ZERO));
    assert!(first.as_mut().poll(&mut cx).is_pending() && second.as_mut().poll(&mut cx).is_pending());
    assert!(third.as_mut().poll(&mut cx).is_pending());
    held.pop();
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    // Dropped after its turn had come, so the next one gets the buffer.
    drop(first);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 2);
    let Poll::Ready(Ok(lease)) = second.as_mut().poll(&mut cx) else { panic!("it is its turn") };
    pool.depart(1);
    let Poll::Ready(Err(error)) = third.as_mut().poll(&mut cx) else { panic!("it waits for nobody") };
    assert_eq!(error.kind(), ErrorKind::PeerLost);
    drop((held, lease));
    assert_eq!(pool.counters().leased, 0);
}

#[test]
fn units_overlap_and_fit_the_share() {
    let pool: ZonePool<u8> = ZonePool::new(&ZoneSettings::default()).unwrap();
    let unit = |total| pool.unit(1, total, 512 << 10);
    let sizes = [0, 1000, 64 << 10, 100 << 10, 256 << 10, 1 << 20, 100 << 20].map(unit);
    assert_eq!(sizes, [0, 1000, 64 << 10, 64 << 10, 128 << 10, 512 << 10, 512 << 10]);
    assert_eq!(pool.depth(1, 512 << 10, 3), 3);
    // With many clients the share is smaller, and so is the unit. Still, two are in flight.
    let leases: Vec<_> = (2..102).map(|client| take(&pool, client, 64 << 10)).collect();
    assert_eq!((unit(100 << 20), pool.depth(1, 128 << 10, 3)), (128 << 10, 2));
    drop(leases);
    assert_eq!(unit(100 << 20), 512 << 10);
}

#[test]
fn settings_are_checked() {
    let bad = |settings: ZoneSettings| settings.validate().unwrap_err().kind();
    let good = ZoneSettings::default();
    assert_eq!(good.validate().map_err(|error| error.kind()), Ok(()));
    assert_eq!(good.sizes, [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20]);
    assert_eq!(ZoneSettings::doubling(100, 350, 1000).sizes, [100, 200, 350]);
    assert_eq!(bad(ZoneSettings { sizes: vec![], ..good.clone() }), ErrorKind::Invalid);
    assert_eq!(bad(ZoneSettings { sizes: vec![2, 2], ..good.clone() }), ErrorKind::Invalid);
    assert_eq!(bad(ZoneSettings { total: 200 << 10, ..good }), ErrorKind::Invalid);
}

/// Blocks this thread until the future has ended.
fn wait_for<R>(future: impl Future<Output = R>) -> R {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => thread::park(),
        }
    }
}

/// Several threads take, use and return buffers. Each has its own adapter. The bytes in use never
/// exceed the budget, nobody else has a buffer meanwhile, no thread waits for ever, and everything
/// comes back.
#[test]
fn threads_share_the_buffers() {
    const THREADS: u8 = 6;
    const ROUNDS: usize = 2000;
    let total = 8 * UNIT;
    let pool: ZonePool<u8> = ZonePool::new(&ZoneSettings::doubling(UNIT, 4 * UNIT, total)).unwrap();
    let in_use = AtomicUsize::new(0);
    // All wait at the beginning, whatever the scheduler does.
    let held: Vec<_> = (0..7).map(|number| take(&pool, 100 + number, UNIT)).collect();
    thread::scope(|scope| {
        for client in 0..THREADS {
            let (pool, in_use) = (&pool, &in_use);
            scope.spawn(move || {
                let adapter = Adapter::join(pool);
                for round in 0..ROUNDS {
                    let len = UNIT << ((round + usize::from(client)) % 3);
                    let reserve = pool.reserve(client, ServiceClass::Bulk, len, Time::ZERO);
                    if round % 7 == 3 {
                        // The right is given back without a buffer, or the queue is left.
                        drop(now(reserve));
                        continue;
                    }
                    let lease = wait_for(reserve).unwrap().open(&adapter.adapter).unwrap();
                    let used = in_use.fetch_add(lease.capacity(), Ordering::SeqCst) + lease.capacity();
                    assert!(used <= total - total / 8, "{used} bytes are in use");
                    let slice = lease.slice(lease.len());
                    slice.copy_from(&vec![client; slice.len()]);
                    thread::yield_now();
                    assert!(slice.to_vec().iter().all(|byte| *byte == client), "another thread has the buffer");
                    in_use.fetch_sub(lease.capacity(), Ordering::SeqCst);
                }
                pool.depart(client);
            });
        }
        while pool.counters().waits < THREADS.into() {
            thread::yield_now();
        }
        drop(held);
    });
    let counters = pool.counters();
    assert!(counters.leased == 0 && counters.bytes <= total as u64, "{counters:?}");
    // Whoever comes now gets its share of everything.
    assert_eq!(take(&pool, 0, 2 * UNIT).capacity(), 2 * UNIT);
}
