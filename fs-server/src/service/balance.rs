//! Which event loops of a server take part: a loop joins when those that take part are full.
//!
//! **Why.** Two loops that share the work of one are woken twice as often, and each finds half as
//! much at a time. Where one loop is enough, or clients have the other processors, that made a
//! server slower. So the first loops serve all connections, and a loop that does not take part
//! sleeps.
//!
//! **Who decides, and by what.** Each loop measures itself, for [`WINDOW`] after [`WINDOW`] in
//! which requests come. It is *full* if it used a processor for [`FULL`] of that time and found
//! requests in heaps: a loop that polls in vain also uses a processor. If it is full again in the
//! next window, and the machine left [`FREE`] of a processor idle meanwhile, as many loops join as
//! processors were idle, but no more than take part already. If all loops together had little to do
//! for [`CALM`] windows, the last one leaves. While no request comes nothing is measured, so an
//! idle server has no timer for it.
//!
//! **Connections.** New ones go to the loops that take part ([`bmi::polled::Engine`], `spread`). A
//! connection does not change its loop. A full loop with more than its share, and one that has
//! left, *dismiss* clients: each one's requests in progress are answered, what comes after them is
//! not looked at, and the client, which knows that, sends it again over its next connection
//! ([`Engine::dismiss`](bmi::polled::Engine::dismiss)). Clients whose connection has state stay,
//! and so do servers.
//!
//! **A wrong decision** costs each client that moves one connection setup. A loop that has joined
//! in vain has little to do, or the first ones have, and it leaves.
//!
//! **Invariants**
//! 1. At least one loop takes part, and those that do are the first ones.
//! 2. A loop that is full has joined others at most once in each window.
//! 3. It reads no clock but through [`Meter`] and its callers.
//!
//! **Tests** here, and `tests/sim/iod/loops.rs`: one loop serves few clients, and all serve many.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bmi::Time;

/// For how long a loop measures itself. Some hundreds of requests come in it if a loop is full.
const WINDOW: Duration = Duration::from_millis(50);
/// The part of a processor that a full loop uses. It is away from it now and then.
const FULL: f64 = 0.8;
/// Requests that a full loop finds at a time.
const HEAP: usize = 2;
/// The part of a processor that must be free for another loop.
const FREE: f64 = 0.5;
/// Loops together have little to do if one fewer would be used for this part.
const ENOUGH: f64 = 0.6;
/// Number of windows with little to do after which a loop leaves: two seconds of work.
const CALM: u32 = 40;
/// What a loop has measured counts for so many windows.
const RECENT: u32 = 4;

/// What the processors of a loop have done.
pub(crate) trait Meter {
    /// Returns the processor time that this loop has used so far.
    fn used(&self) -> Duration;

    /// Returns how long the processors that the server may use have had nothing to do so far, all
    /// together.
    fn idle(&self) -> Duration;
}

/// The event loops of a server.
#[derive(Debug)]
pub(crate) struct Balance {
    loops: Vec<Loop>,
    /// Number of loops, from the first on, that take part.
    taking: AtomicUsize,
    /// Windows since there was more than little to do.
    calm: AtomicU32,
}

#[derive(Debug, Default)]
struct Loop {
    /// Number of its connections that others have made.
    connections: AtomicUsize,
    /// Processor time in the last window, in parts of a million, and the end of that window.
    busy: AtomicU64,
    measured_ns: AtomicU64,
}

impl Balance {
    /// Creates the balance of `loops` loops, of which the first takes part.
    pub(crate) fn new(loops: usize) -> Arc<Balance> {
        let loops = (0..loops.max(1)).map(|_| Loop::default()).collect();
        Arc::new(Balance { loops, taking: AtomicUsize::new(1), calm: AtomicU32::new(0) })
    }

    fn taking(&self) -> usize {
        self.taking.load(Ordering::Relaxed)
    }

    /// Decides at the end of a loop's window which loops take part. `free` is the number of
    /// processors that were free. Returns how many connections the loop should have fewer.
    fn decide(&self, number: usize, is_full: bool, busy: f64, free: f64, now: Time) -> usize {
        let own = &self.loops[number];
        own.busy.store((busy * 1e6) as u64, Ordering::Relaxed);
        own.measured_ns.store(now.as_nanos(), Ordering::Relaxed);
        let before = self.taking();
        let mut taking = before;
        if is_full {
            self.calm.store(0, Ordering::Relaxed);
            if free >= FREE && number < before {
                taking = (before + before.min((free as usize).max(1))).min(self.loops.len());
            }
        } else if before > 1 && self.busy_at(now) < ENOUGH * (before - 1) as f64 {
            if self.calm.fetch_add(1, Ordering::Relaxed) + 1 >= CALM {
                taking = before - 1;
            }
        } else {
            self.calm.store(0, Ordering::Relaxed);
        }
        if taking != before
            && self.taking.compare_exchange(before, taking, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.calm.store(0, Ordering::Relaxed);
            tracing::debug!(before, taking, busy, free, "event loops that take part");
        }
        let (taking, own) = (self.taking(), own.connections.load(Ordering::Relaxed));
        let all: usize = self.loops.iter().map(|one| one.connections.load(Ordering::Relaxed)).sum();
        match is_full || number >= taking {
            true if number >= taking => own,
            true => own.saturating_sub(all.div_ceil(taking)),
            false => 0,
        }
    }

    /// Returns how many processors the loops have used lately.
    fn busy_at(&self, now: Time) -> f64 {
        let oldest = now.as_nanos().saturating_sub((WINDOW * RECENT).as_nanos() as u64);
        let recent = self.loops.iter().filter(|one| one.measured_ns.load(Ordering::Relaxed) >= oldest);
        recent.map(|one| one.busy.load(Ordering::Relaxed) as f64 / 1e6).sum()
    }
}

/// What a loop measures at this time.
#[derive(Clone, Copy, Default)]
struct Window {
    since: Time,
    used: Duration,
    /// Set if the window before was full.
    idle: Option<Duration>,
    turns: usize,
    requests: usize,
}

/// One event loop's part of the balance, for all its endpoints.
pub(crate) struct Seat {
    balance: Arc<Balance>,
    number: usize,
    meter: Box<dyn Meter>,
    window: Cell<Window>,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("number", &self.number).field("balance", &self.balance).finish()
    }
}

impl Seat {
    /// Creates the seat of loop `number`, counted from 0. Called on the loop's thread.
    pub(crate) fn new(balance: Arc<Balance>, number: usize, meter: impl Meter + 'static) -> Seat {
        Seat { balance, number, meter: Box::new(meter), window: Cell::default() }
    }

    /// Returns the number of loops that take part.
    pub(super) fn taking(&self) -> usize {
        self.balance.taking()
    }

    /// Counts the connections of one of the loop's endpoints: there are `now`, and `counted` of
    /// them were counted before.
    pub(super) fn count(&self, counted: &mut usize, now: usize) {
        let connections = &self.balance.loops[self.number].connections;
        connections.fetch_add(now.wrapping_sub(*counted), Ordering::Relaxed);
        *counted = now;
    }

    /// Notes that `requests` were found together. If a window ends with that, returns how many
    /// connections the loop should have fewer: mostly none.
    pub(super) fn found(&self, requests: usize, now: Time) -> Option<usize> {
        let mut window = self.window.get();
        (window.turns, window.requests) = (window.turns + 1, window.requests + requests);
        let time = now.since(window.since);
        if time < WINDOW {
            self.window.set(window);
            return None;
        }
        let used = self.meter.used();
        let part = |of: Duration| of.as_secs_f64() / time.as_secs_f64();
        let busy = part(used.saturating_sub(window.used));
        let is_full = busy >= FULL && window.requests >= HEAP * window.turns;
        let idle = is_full.then(|| self.meter.idle());
        let free = window.idle.zip(idle).map_or(0.0, |(before, after)| part(after.saturating_sub(before)));
        self.window.set(Window { since: now, used, idle, turns: 0, requests: 0 });
        Some(self.balance.decide(self.number, is_full, busy, free, now))
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    /// A loop's processor time, and that of nobody.
    #[derive(Clone, Default)]
    struct Told(Rc<Cell<(Duration, Duration)>>);

    impl Meter for Told {
        fn used(&self) -> Duration {
            self.0.get().0
        }

        fn idle(&self) -> Duration {
            self.0.get().1
        }
    }

    /// A loop, what its meter says, and the time.
    struct Measured(Seat, Told, Time);

    impl Measured {
        fn all(loops: usize) -> (Arc<Balance>, Vec<Measured>) {
            let balance = Balance::new(loops);
            let seat = |number| {
                let told = Told::default();
                Measured(Seat::new(balance.clone(), number, told.clone()), told, Time::ZERO)
            };
            (balance.clone(), (0..loops).map(seat).collect())
        }

        /// Lets a window pass in which a part of a processor was used, others were free, and
        /// requests came in heaps. Returns the connections to give away.
        fn window(&mut self, part: f64, free: f64, heap: usize) -> usize {
            let Measured(seat, told, now) = self;
            let (used, idle) = told.0.get();
            told.0.set((used + WINDOW.mul_f64(part), idle + WINDOW.mul_f64(free)));
            *now = *now + WINDOW;
            seat.found(heap, *now).expect("a window has passed")
        }
    }

    #[test]
    fn loops_join_when_the_first_is_full_and_processors_are_free() {
        let (balance, mut loops) = Measured::all(8);
        let mut counted = [0, 0];
        loops[0].0.count(&mut counted[0], 64);
        let first = &mut loops[0];
        // Not busy, polling in vain, full but no processor is free.
        for (part, free, heap) in [(0.5, 7.0, 4), (1.0, 7.0, 1), (1.0, 0.3, 4), (1.0, 0.3, 4)] {
            assert_eq!((first.window(part, free, heap), balance.taking()), (0, 1), "{part} {free} {heap}");
        }
        // It is full for the second time.
        assert_eq!((first.window(1.0, 7.0, 4), balance.taking()), (32, 2));
        assert_eq!((first.window(1.0, 7.0, 4), balance.taking()), (48, 4));
        assert_eq!((first.window(1.0, 1.0, 4), balance.taking()), (51, 5), "one was free");
        assert_eq!((first.window(1.0, 4.0, 4), balance.taking()), (56, 8));
        assert_eq!((first.window(1.0, 4.0, 4), balance.taking()), (56, 8), "there are no more");
        first.0.count(&mut counted[0], 4);
        loops[1].0.count(&mut counted[1], 60);
        assert_eq!((loops[0].window(1.0, 4.0, 4), loops[1].window(1.0, 4.0, 4)), (0, 52));
    }

    #[test]
    fn the_last_loop_leaves_when_there_is_little_to_do() {
        let (balance, mut loops) = Measured::all(3);
        loops[0].window(1.0, 3.0, 4);
        loops[0].window(1.0, 3.0, 4);
        loops[0].window(1.0, 3.0, 4);
        assert_eq!(balance.taking(), 3);
        loops[2].0.count(&mut 0, 5);
        loops.iter_mut().for_each(|one| one.2 = Time::ZERO + WINDOW * 3);
        for _ in 0..CALM {
            assert_eq!((loops[2].window(0.7, 2.0, 4), balance.taking()), (0, 3));
            loops[0].window(0.7, 2.0, 4);
        }
        for _ in 0..CALM - 1 {
            assert_eq!((loops[2].window(0.2, 2.0, 4), balance.taking()), (0, 3));
        }
        assert_eq!((loops[2].window(0.2, 2.0, 4), balance.taking()), (5, 2), "all its connections go");
        for _ in 0..2 * CALM {
            loops[0].window(0.1, 2.0, 4);
        }
        assert_eq!((loops[0].window(0.1, 2.0, 4), balance.taking()), (0, 1), "one is always left");
    }

    #[test]
    fn a_client_alone_stays_where_it_is() {
        let (balance, mut loops) = Measured::all(2);
        loops[0].0.count(&mut 0, 1);
        for _ in 0..5 {
            assert_eq!(loops[0].window(1.0, 1.0, 8), 0);
        }
        assert_eq!(balance.taking(), 2, "another client gets the second loop");
    }
}
