//! A handle that any thread can use, over one endpoint or several.
//!
//! **Why.** Most programs that embed a transport have several threads: an executor's workers, or
//! threads of their own. A [`Handle`] is `Clone + Send + Sync`, as are the peers that it connects
//! to ([`SharedPeer`](crate::SharedPeer)). Their futures are `Send` and may be dropped at any time.
//! Memory crosses as it is: an operation takes a [`Memory`](crate::mem::Memory), which is counted,
//! and nothing is copied.
//!
//! **How it is driven.** Each endpoint has a driver: a task of the tokio runtime that the handle
//! was opened in, if that has several threads, or else a thread. It polls the endpoint, or sleeps
//! until there is something to do. If the runtime ends first, a thread goes on. A thread that posts
//! an operation or drops a message, and finds the driver asleep, sends itself what is to be sent,
//! so it wakes nobody. [`Handle::block_on`] polls too, as long as [`Waiting`] allows. A driver that
//! polls stands by meanwhile. See [`threading`](crate::AnyThread) for the alternatives.
//!
//! **Several endpoints.** Each has its own lock, driver and peers. A peer belongs to the endpoint
//! that it was connected by, and its id says which ([`PeerId::endpoint`]). Connections of this side
//! go to the endpoints in turn. Those of peers are spread by the transports, if these are members
//! of one group. The endpoints share nothing, so threads that use different peers do not wait for
//! each other.
//!
//! **Bounds.** An operation is posted when the method is called. Messages, bulk transfers, grants,
//! calls, connecting and sleeping are refused with [`Exhausted`](crate::ErrorKind::Exhausted) while
//! [`HandleConfig::max_operations`] are in flight in the endpoint.
//! [`Endpoint::room`](crate::Endpoint::room) waits until one ends. A call that was dropped counts
//! until the server can no longer access its memory. As many ranges of memory may be exposed to one
//! peer. Disconnecting is not refused, and there is one for each connection. What calls in flight
//! need besides, and what serving a call needs, is not refused either: who starts and takes calls
//! bounds it. Messages that nobody takes stay in their slots, and their senders run out of credits.
//!
//! **The end.** When the last handle is dropped, or at [`Handle::close`], connections end in order:
//! what was posted is sent, within [`TimeoutConfig::fence_grace`](crate::TimeoutConfig). Every
//! operation ends, and its memory is the program's again. Then the drivers end. Futures, calls and
//! messages may live longer than the handle. They end with an error.
//!
//! **Panics.** A task that panics drops its futures, as if it had been cancelled. Wakers run
//! outside of the lock. If one panics, its driver goes on; for a task, a thread does.
//!
//! **Tests.** `bmi-conformance/src/handle`, over every backend on a real system. In the
//! simulator the endpoints are driven by tasks of one thread ([`Handle::undriven`]).

mod drivers;
mod operations;
mod wait;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::addr::Addr;
use crate::driver::{Waiter, Waiting};
use crate::endpoint::{Dropped, SharedEndpoint};
use crate::engine::{Counters, Engine, ResourceUsage};
use crate::error::{Error, ErrorKind};
use crate::op::Options;
use crate::time::{Clock, Time};

/// Largest number of endpoints behind a handle.
pub const MAX_ENDPOINTS: usize = 256;

/// The settings of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandleConfig {
    /// How drivers and [`Handle::block_on`] wait when there is nothing to do. The default is
    /// [`Waiting::Adaptive`]. A driver that is a thread sleeps then: only tasks and
    /// [`Handle::block_on`] poll.
    pub waiting: Waiting,
    /// Largest number of operations that are in flight in an endpoint, or have ended without being
    /// awaited. The default is 16,384.
    pub max_operations: usize,
}

impl Default for HandleConfig {
    fn default() -> HandleConfig {
        HandleConfig { waiting: Waiting::default(), max_operations: 16_384 }
    }
}

impl HandleConfig {
    /// Sets how the drivers wait.
    #[must_use]
    pub fn waiting(mut self, waiting: Waiting) -> HandleConfig {
        self.waiting = waiting;
        self
    }

    /// Sets the largest number of operations in an endpoint.
    #[must_use]
    pub fn max_operations(mut self, most: usize) -> HandleConfig {
        self.max_operations = most;
        self
    }
}

/// A handle to one endpoint or several, for any thread. A clone is another handle to the same ones.
pub struct Handle {
    shared: Arc<Endpoints>,
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Handle { shared: Arc::clone(&self.shared) }
    }
}

struct Endpoints {
    /// In the order of their numbers. There is at least one.
    endpoints: Box<[SharedEndpoint]>,
    /// Counts connections and searches, to spread them over the endpoints.
    turn: AtomicUsize,
    /// The experience of the threads that wait ([`Handle::block_on`]).
    waiter: Mutex<Waiter>,
}

impl Drop for Endpoints {
    /// The last handle is gone. The drivers do the rest. It may have been dropped by code that an
    /// endpoint runs, so this does not wait for the endpoint.
    fn drop(&mut self) {
        self.endpoints.iter().for_each(|endpoint| endpoint.settle(Dropped::Handle));
    }
}

impl Handle {
    /// Creates a handle, and for each endpoint a driver until the handle is closed: a task, or a
    /// thread. `clock` gives the time for all of them.
    ///
    /// # Errors
    /// `Invalid` without endpoints, or with more than [`MAX_ENDPOINTS`]; `Io` if the system starts
    /// no more threads, or cannot wait on the event fd of a transport.
    pub fn start(
        endpoints: Vec<Engine>,
        clock: impl Clock + Clone + Send + Sync + 'static,
        config: HandleConfig,
    ) -> Result<Handle, Error> {
        let (handle, endpoints) = Handle::undriven(endpoints, clock, config)?;
        for (number, endpoint) in endpoints.into_iter().enumerate() {
            if config.waiting == Waiting::Busy {
                endpoint.let_futures_poll();
            }
            drivers::start(number, endpoint, config.waiting)?;
        }
        Ok(handle)
    }

    /// Creates a handle, and returns the endpoints for the program to drive, each until it is
    /// [closed](SharedEndpoint::closed). For executors with drivers of their own, such as the
    /// simulator's.
    ///
    /// # Errors
    /// `Invalid`, as [`Handle::start`].
    pub fn undriven(
        endpoints: Vec<Engine>,
        clock: impl Clock + Clone + Send + Sync + 'static,
        config: HandleConfig,
    ) -> Result<(Handle, Vec<SharedEndpoint>), Error> {
        if endpoints.is_empty() || endpoints.len() > MAX_ENDPOINTS {
            let text = format!("a handle over {} endpoints: it takes 1 to {MAX_ENDPOINTS}", endpoints.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let share = |(number, endpoint): (u8, Engine)| {
            let endpoint = SharedEndpoint::shared(endpoint.numbered(number), clock.clone());
            endpoint.set_max_operations(config.max_operations.max(1));
            endpoint
        };
        let endpoints: Vec<_> = (0..=u8::MAX).zip(endpoints).map(share).collect();
        let waiter = Mutex::new(Waiter::new(config.waiting));
        let shared = Endpoints { endpoints: endpoints.clone().into(), turn: AtomicUsize::new(0), waiter };
        Ok((Handle { shared: Arc::new(shared) }, endpoints))
    }

    // ---- getters --------------------------------------------------------------------------------

    /// Returns the endpoints, in the order of their numbers.
    pub fn endpoints(&self) -> impl ExactSizeIterator<Item = &SharedEndpoint> {
        self.shared.endpoints.iter()
    }

    /// Returns the time of the clock.
    pub fn now(&self) -> Time {
        self.first().now()
    }

    /// Returns options whose deadline is `timeout` from now.
    pub fn within(&self, timeout: std::time::Duration) -> Options {
        self.first().within(timeout)
    }

    /// Returns [`Engine::counters`] of each endpoint.
    pub fn counters(&self) -> Vec<Counters> {
        self.endpoints().map(SharedEndpoint::counters).collect()
    }

    /// Returns [`Engine::resource_usage`] of each endpoint.
    pub fn resource_usage(&self) -> Vec<ResourceUsage> {
        self.endpoints().map(SharedEndpoint::resource_usage).collect()
    }

    fn first(&self) -> &SharedEndpoint {
        &self.shared.endpoints[0]
    }

    /// Returns a number that goes around all endpoints.
    fn next_turn(&self) -> usize {
        match self.shared.endpoints.len() {
            1 => 0,
            count => self.shared.turn.fetch_add(1, Ordering::Relaxed) % count,
        }
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Closes all endpoints, for all handles. Connections end after what was posted on them, and
    /// operations that cannot end otherwise are cancelled. Returns when all have ended.
    pub async fn close(&self) {
        self.endpoints().for_each(SharedEndpoint::close);
        for endpoint in self.endpoints() {
            endpoint.closed().await;
        }
    }
}

/// A handle, and all its futures, may go to any thread.
const _: fn() = || {
    fn is_shared<V: Send + Sync>() {}
    fn can_be_sent<V: Send>(_: V) {}
    is_shared::<Handle>();
    let _ = |handle: Handle, addr: Addr, options: Options| {
        can_be_sent(handle.connect(&addr, options));
        can_be_sent(handle.next_unexpected());
        can_be_sent(handle.next_call());
        can_be_sent(handle.next_event());
        can_be_sent(handle.sleep(std::time::Duration::ZERO));
        can_be_sent(handle.close());
    };
};

/// A shared endpoint, what is made of it, and all futures may go to any thread.
const _: fn() = || {
    use std::time::Duration;

    use crate::comm::{Body, Call, Incoming};
    use crate::endpoint::threading::AnyThread;
    use crate::endpoint::{Message, Operation, SharedPeer};
    use crate::mem::MemList;

    fn is_shared<V: Send + Sync>() {}
    fn can_be_sent<V: Send>(_: V) {}
    can_be_sent::<Option<Engine>>(None);
    is_shared::<SharedEndpoint>();
    is_shared::<SharedPeer>();
    is_shared::<Operation<AnyThread>>();
    can_be_sent::<Option<(Message<AnyThread>, Call<AnyThread>)>>(None);
    is_shared::<Incoming<AnyThread>>();
    let _ = |endpoint: SharedEndpoint, addr: Addr, peer: SharedPeer, list: MemList, options: Options| {
        can_be_sent(endpoint.connect(&addr, options));
        can_be_sent(endpoint.next_unexpected());
        can_be_sent(endpoint.next_event());
        can_be_sent(endpoint.sleep(Duration::ZERO));
        can_be_sent(endpoint.room());
        can_be_sent(peer.disconnect(options));
        can_be_sent(peer.call(b"", Body::In(list.clone()), options).map(Call::reply));
    };
    let _ = |call: Incoming<AnyThread>, list: MemList, options: Options| {
        can_be_sent(call.fetch(0, list.clone(), options));
        can_be_sent(call.store(0, list.clone(), options));
        can_be_sent(call.reply(b"", Some(list), options));
    };
};
