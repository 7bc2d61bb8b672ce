//! Where a program runs: in a tokio runtime, or on a node of a simulated world.
//!
//! **Why.** A program needs more than messages: tasks, the time, and timers. In production tokio
//! has them, in a test the world does. A program that uses the functions of this module runs in
//! both without a change. They find out for themselves where they were called.
//!
//! | function | in a tokio runtime | in a world |
//! |---|---|---|
//! | [`spawn`] | a task of the runtime | a task of the node, which ends when the node is killed |
//! | [`sleep`], [`timeout`] | a timer of tokio's | virtual time |
//! | [`Instant::now`] | the monotonic clock | the node's clock |
//! | [`random`] | random | follows from the seed |
//!
//! A simulator implements [`Host`] for its nodes, and [enters](enter) before it polls their tasks.
//!
//! **Tests.** `bmi/tests/it/runtime.rs`, outside and inside.

mod host;
mod task;
mod time;

use std::cell::Cell;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

pub use host::{Entered, Host, enter, host};
pub use task::{Task, TaskAbort};
pub use time::{Instant, MonotonicTime, sleep, sleep_until, timeout};

use crate::error::{Error, ErrorKind};

/// What runs the tasks of a program. Keep it to start tasks later, from any thread.
#[derive(Clone)]
pub struct Runtime(Kind);

#[derive(Clone)]
enum Kind {
    #[cfg(feature = "tokio")]
    Tokio(tokio::runtime::Handle),
    Host(Arc<dyn Host>),
}

impl Runtime {
    /// Returns the runtime that this is called in.
    ///
    /// # Errors
    /// `Invalid` outside of any.
    pub fn current() -> Result<Runtime, Error> {
        if let Some(host) = host() {
            return Ok(Runtime(Kind::Host(host)));
        }
        #[cfg(feature = "tokio")]
        if let Ok(handle) = tokio::runtime::Handle::try_current() {
            return Ok(Runtime(Kind::Tokio(handle)));
        }
        let text =
            "outside of a runtime: call it in a tokio runtime (#[tokio::main]) or on a node of a simulated world";
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Starts a task. It goes on when the [`Task`] is dropped.
    pub fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        match &self.0 {
            #[cfg(feature = "tokio")]
            Kind::Tokio(handle) => Task::of_tokio(handle.spawn(future)),
            Kind::Host(host) => Task::start(&**host, future),
        }
    }
}

/// Starts a task where this is called, as [`Runtime::spawn`].
///
/// # Panics
/// Outside of a tokio runtime and of a world.
pub fn spawn<F>(future: F) -> Task<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match Runtime::current() {
        Ok(runtime) => runtime.spawn(future),
        Err(error) => panic!("spawn {}", error.detail()),
    }
}

/// Lets other tasks run, if this one has run for long.
pub async fn give_way() {
    #[cfg(feature = "tokio")]
    tokio::task::coop::consume_budget().await;
}

/// Returns a random number. In a world it follows from the seed. Elsewhere each thread has a random
/// row of them, which is good enough to spread retries and to name things, and for no secret.
pub fn random() -> u64 {
    if let Some(host) = host() {
        return host.random();
    }
    #[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "outside of a world")]
    fn seed() -> u64 {
        std::hash::RandomState::new().build_hasher().finish()
    }
    thread_local! {
        static STATE: Cell<u64> = Cell::new(seed());
    }
    // SplitMix64 (Steele, Lea, Flood 2014).
    let mut bits = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    STATE.set(bits);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
