//! A transport that is open: its engine, the operations of the program, and its addresses. Behind a
//! lock; driven by the calls of the program.
//!
//! **Sends.** A send that ends at its post has left this process when the call returns 1: the
//! engine is polled for it. Sends that follow before the next test are handed over together with
//! that test, and end there (the call returns 0). So a burst of small messages takes few system
//! calls. After a burst, the first send waits for the test, too.
//!
//! **Invariants**
//! 1. An operation is in the table from its post until the program has been told of its end.
//! 2. An operation that fails ends only when nothing can access its buffers any more. A process of
//!    this host that is stopped in the middle of an access can still do so (`held`). There is one
//!    exception: such a process may still read an eager message in its sender's memory. When it
//!    goes on, it finds that the connection is gone, and drops what it has read.
//! 3. `queues` has every operation that has ended and that was not told yet. It may have numbers of
//!    others, which are skipped.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::task::Waker;
use std::time::Duration;

use bmi::backend::Armed;
use bmi::driver::MonotonicClock;
use bmi::polled::{Completion, Engine, OpId, Posted, Unexpected};
use bmi::{Clock, Config, Error, ErrorKind, MemList, OpenOptions, Options, PeerEvent, Scheme, Time};

use crate::address::Addresses;
use crate::handle::{CONTEXTS, Key, Table};
use crate::memory::Allocations;
use crate::number::{Number, Outcome};
use crate::turn::Turn;

/// Polls between two looks at the clock, which take as long as a poll that finds nothing. A
/// deadline may be noticed this many polls late.
const CLOCK_EVERY: u32 = 16;

/// Polls of a test over shared memory, where one makes no system call and takes less time than the
/// test around it.
const CHEAP_LOOKS: u32 = 4;

/// Time between two looks at buffers that may still be accessed.
const HELD: Duration = Duration::from_millis(10);

/// The least limit of eager messages that a peer may have. Only the process that posts accesses the
/// buffer of a message up to this length.
const EAGER: usize = 256;

/// What is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Unexpected,
    Receive,
}

/// An operation of the program.
struct Operation {
    context: usize,
    user: usize,
    address: Key,
    kind: Kind,
    state: State,
}

enum State {
    /// With the program's buffers, if another process may access them.
    Posted(OpId, Option<MemList>),
    Ended(Result<(), ErrorKind>, u64),
}

/// What the program is told of an operation.
pub(crate) struct Ended {
    pub(crate) status: Result<(), ErrorKind>,
    /// Its bytes.
    pub(crate) len: u64,
    pub(crate) user: usize,
}

/// The operations of a context that have ended, in order.
#[derive(Default)]
struct Queue {
    keys: VecDeque<Key>,
    /// Those that are still to be told.
    live: usize,
}

pub(crate) struct Port {
    pub(crate) engine: Engine,
    ops: Table<Operation>,
    pub(crate) addresses: Addresses,
    pub(crate) inbox: VecDeque<Unexpected>,
    pub(crate) allocations: Allocations,
    clock: MonotonicClock,
    now: Time,
    polls: u32,
    /// Polls of a test that finds nothing.
    looks: u32,
    queues: [Queue; CONTEXTS],
    completions: Vec<Completion>,
    /// Operations that have failed, and whose buffers may still be accessed.
    held: Vec<(Key, ErrorKind)>,
    /// Something was posted since the last poll.
    has_posted: bool,
    /// Sends since the last test.
    sends: u32,
    /// There were several between two tests, the last time that there were any.
    has_bursts: bool,
    /// Until when the thread that sleeps will, or did, unless the transport has something to do.
    sleeps: Option<Time>,
}

impl Port {
    pub(crate) fn open(scheme: Scheme, options: &OpenOptions, clock: MonotonicClock) -> Result<Port, Error> {
        let engine = Engine::new(bmi::backend::open(scheme, options)?, Config::named("libbmi"), clock.now())?;
        Ok(Port {
            engine,
            ops: Table::new(),
            addresses: Addresses::new(),
            inbox: VecDeque::new(),
            allocations: Allocations::new(),
            clock,
            now: clock.now(),
            polls: 0,
            looks: if scheme == Scheme::Shm { CHEAP_LOOKS } else { 1 },
            queues: std::array::from_fn(|_| Queue::default()),
            completions: Vec::new(),
            held: Vec::new(),
            has_posted: false,
            sends: 0,
            has_bursts: false,
            sleeps: None,
        })
    }

    /// Makes progress for a test.
    #[inline]
    pub(crate) fn test(&mut self, turn: &Turn) {
        if self.sends > 0 {
            (self.has_bursts, self.sends) = (self.sends > 1, 0);
        }
        self.progress(turn, self.looks);
    }

    /// Polls up to `looks` times, until there was something to do.
    fn progress(&mut self, turn: &Turn, looks: u32) {
        if self.polls.is_multiple_of(CLOCK_EVERY) {
            self.now = self.clock.now();
        }
        self.polls = self.polls.wrapping_add(1);
        let worked = (0..looks).any(|_| self.engine.poll(self.now));
        self.has_posted = false;
        let mut news = self.engine.poll_all(&mut self.completions) > 0;
        if news {
            let mut completions = std::mem::take(&mut self.completions);
            for completion in completions.drain(..) {
                self.end(Key(completion.user), completion.status, completion.len);
            }
            self.completions = completions;
        }
        if !self.held.is_empty() {
            let held = std::mem::take(&mut self.held);
            let before = held.len();
            held.into_iter().for_each(|(key, error)| self.end(key, Err(error), 0));
            news |= self.held.len() < before;
        }
        if worked || news {
            while let Some(event) = self.engine.poll_event() {
                if let PeerEvent::Lost { peer, .. } = event {
                    self.addresses.lose(peer);
                }
            }
            while let Some(message) = self.engine.poll_unexpected() {
                self.inbox.push_back(message);
                news = true;
            }
        }
        if news && turn.is_awaited() {
            turn.announce();
        }
        // The poll has taken what would have woken the thread that sleeps.
        if turn.is_asleep()
            && let Some(until) = self.sleeps
            && self.arm(&turn.waker, until).is_none_or(|(_, wake_at)| wake_at < until)
        {
            turn.ring();
        }
    }

    /// Notes the end of an operation. The operations of connections have no entry.
    fn end(&mut self, key: Key, status: Result<(), ErrorKind>, len: u64) {
        let Some(operation) = self.ops.get_mut(key) else { return };
        if let (State::Posted(_, Some(list)), Err(error)) = (&operation.state, status)
            && list.pieces().iter().any(|piece| piece.memory().is_retired())
        {
            return self.held.push((key, error));
        }
        operation.state = State::Ended(status, len);
        if operation.kind == Kind::Receive && status.is_ok() {
            self.addresses.note(operation.address, false);
        }
        let context = operation.context;
        self.tell(key, context);
    }

    /// Puts an operation that has ended into the queue of its context.
    #[inline]
    fn tell(&mut self, key: Key, context: usize) {
        let queue = &mut self.queues[context];
        queue.live += 1;
        queue.keys.push_back(key);
        if queue.keys.len() > 2 * queue.live + 16 {
            queue.keys.retain(|key| self.ops.get(*key).is_some());
        }
    }

    /// Takes an operation that has ended. `None` if it has not.
    ///
    /// # Errors
    /// `EINVAL` if the context has no such operation.
    pub(crate) fn take(&mut self, key: Key, context: usize) -> Outcome<Option<Ended>> {
        self.check(key, context)?;
        let Some(ended) = self.remove_ended(key) else { return Ok(None) };
        let queue = &mut self.queues[context];
        queue.live -= 1;
        if queue.keys.front() == Some(&key) {
            queue.keys.pop_front();
        }
        Ok(Some(ended))
    }

    /// Takes the next operation of a context that has ended.
    #[inline]
    pub(crate) fn take_next(&mut self, context: usize) -> Option<(Key, Ended)> {
        while let Some(key) = self.queues[context].keys.pop_front() {
            if let Some(ended) = self.remove_ended(key) {
                self.queues[context].live -= 1;
                return Some((key, ended));
            }
        }
        None
    }

    #[inline]
    fn remove_ended(&mut self, key: Key) -> Option<Ended> {
        let Operation { state: State::Ended(status, len), user, .. } = *self.ops.get(key)? else { return None };
        self.ops.remove(key);
        Some(Ended { status, len, user })
    }

    /// Posts an operation to an address. Returns the operation to test, or the bytes of one that
    /// has ended.
    #[inline]
    pub(crate) fn post(
        &mut self,
        turn: &Turn,
        kind: Kind,
        (address, tag): (Key, u64),
        list: MemList,
        (context, user): (usize, usize),
    ) -> Outcome<Result<Key, u64>> {
        let peer = self.addresses.connected(address, &mut self.engine)?;
        let key = self.ops.next();
        let options = Options { user: key.0, ..Options::default() };
        let shared = (list.len() > EAGER).then(|| list.clone());
        let posted = match kind {
            Kind::Send => self.engine.post_send(peer, tag, list, options),
            Kind::Unexpected => self.engine.post_send_unexpected(peer, tag, list, options),
            Kind::Receive => self.engine.post_recv(peer, tag, list, options),
        }?;
        self.has_posted = true;
        let sends = kind != Kind::Receive;
        let mut leaves = false;
        if sends {
            self.addresses.note(address, true);
            leaves = self.sends == 0 && !self.has_bursts || turn.is_asleep();
            self.sends += 1;
        }
        let operation = |state| Operation { context, user, address, kind, state };
        let result = match posted {
            Posted::Pending(op) => {
                self.ops.insert(operation(State::Posted(op, shared)));
                Ok(key)
            }
            // One that has failed is told of later.
            Posted::Done(done) if sends && !leaves || done.status.is_err() => {
                self.ops.insert(operation(State::Ended(done.status, done.len)));
                self.tell(key, context);
                Ok(key)
            }
            Posted::Done(done) => Err(done.len),
        };
        if leaves {
            self.progress(turn, 1);
        }
        Ok(result)
    }

    /// Gets ready for the sleep of the thread that waits. Returns the descriptor to sleep on, and
    /// when to wake. `None` if there is something to do.
    pub(crate) fn arm(&mut self, waker: &Waker, until: Time) -> Option<(RawFd, Time)> {
        if self.has_posted || self.engine.arm(waker) == Armed::Busy {
            return None;
        }
        let until = self.engine.next_deadline().map_or(until, |at| at.min(until));
        // Nobody tells when buffers are free.
        let until = if self.held.is_empty() { until } else { until.min(self.now + HELD) };
        // The poll after the sleep has the time.
        self.polls = 0;
        self.sleeps = Some(until);
        Some((self.engine.event_fd()?.as_raw_fd(), until))
    }

    /// Returns an error unless a context has such an operation.
    fn check(&self, key: Key, context: usize) -> Outcome<&Operation> {
        self.ops.get(key).filter(|operation| operation.context == context).ok_or(Number::EINVAL)
    }

    /// Returns whether a context has such an operation.
    pub(crate) fn has(&self, key: Key, context: usize) -> bool {
        self.check(key, context).is_ok()
    }

    /// Asks an operation to end. It is told of like others.
    pub(crate) fn cancel(&mut self, turn: &Turn, key: Key, context: usize) -> Outcome<()> {
        if let State::Posted(op, _) = &self.check(key, context)?.state {
            self.engine.cancel(*op);
            self.progress(turn, 1);
        }
        Ok(())
    }

    /// Ends all operations of a context, and forgets those that have ended. Returns true if there
    /// are others.
    pub(crate) fn end_context(&mut self, turn: &Turn, context: usize) -> bool {
        let posted = self.ops.iter().filter(|(_, operation)| operation.context == context);
        let posted: Vec<_> = posted
            .filter_map(|(key, operation)| match operation.state {
                State::Posted(op, _) => Some((key, op)),
                State::Ended(..) => None,
            })
            .collect();
        posted.iter().for_each(|(_, op)| self.engine.cancel(*op));
        self.test(turn);
        while self.take_next(context).is_some() {}
        posted.iter().any(|(key, _)| self.ops.get(*key).is_some())
    }

    /// Takes the next unexpected message of a class, and the address of its peer.
    pub(crate) fn take_unexpected(&mut self, class: u8, counts: bool) -> Option<(Key, Unexpected)> {
        let at = self.inbox.iter().position(|message| message.tag() >> 32 == u64::from(class))?;
        let message = self.inbox.remove(at)?;
        Some((self.addresses.of_peer(message.peer(), &self.engine, counts), message))
    }

    /// Forgets an address and cuts its connection.
    pub(crate) fn drop_address(&mut self, key: Key) -> Outcome<()> {
        if let Some(peer) = self.addresses.remove(key)? {
            self.engine.cut(peer, Error::new(ErrorKind::Cancelled, "the program dropped the address"));
        }
        Ok(())
    }

    /// Returns the length of the longest unexpected message to an address.
    pub(crate) fn unexpected_size(&self, key: Key) -> Outcome<usize> {
        let limits = self.addresses.get(key)?.peer.and_then(|peer| self.engine.limits(peer));
        let credits = &self.engine.config().credits;
        let (eager, fast) =
            limits.map_or((credits.eager_limit, credits.fast_slot_bytes), |limits| (limits.eager, limits.fast));
        Ok(eager.max(fast))
    }
}
