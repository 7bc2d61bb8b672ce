//! The places that are not tokio: nodes of a simulated world.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use crate::addr::Addr;
use crate::config::Config;
use crate::error::Error;
use crate::handle::Handle;
use crate::time::Time;

/// A place that runs a program: a node of a simulated world.
///
/// It is `Send` and `Sync` because a program may keep it in a type that is. A world uses it on one
/// thread only, and may panic on another.
pub trait Host: Send + Sync {
    /// Starts a task.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);

    /// Returns the time.
    fn now(&self) -> Time;

    /// Waits until `at`.
    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Returns the next random number of the place.
    fn random(&self) -> u64;

    /// Opens an endpoint, and drives it until the handle is closed. Its clock is [`Host::now`].
    ///
    /// # Errors
    /// Those of the transport.
    fn open(&self, config: &Config) -> Result<Handle, Error>;

    /// Returns the address here for one of the real world: a host name is a node's name, and a path
    /// is a port of this node.
    ///
    /// # Errors
    /// `Refused` if there is no such node. `Invalid` for an address without a node.
    fn locate(&self, addr: &Addr) -> Result<Addr, Error>;
}

/// Finds the place of the task that is running, if one is.
type Finder = Rc<dyn Fn() -> Option<Arc<dyn Host>>>;

thread_local! {
    static WORLD: RefCell<Option<Finder>> = const { RefCell::new(None) };
}

/// The thread runs a world while this lives.
#[must_use = "the thread leaves the world when this is dropped"]
pub struct Entered(Option<Finder>);

impl Drop for Entered {
    fn drop(&mut self) {
        let _ = WORLD.try_with(|world| world.replace(self.0.take()));
    }
}

/// Enters a world on this thread, until the value that is returned is dropped. `finder` returns the
/// place of the task that is running.
///
/// # Panics
/// In a tokio runtime: there, tokio's timers and tasks would work, in real time and unseen by the
/// world.
pub fn enter(finder: &Finder) -> Entered {
    #[cfg(feature = "tokio")]
    assert!(
        tokio::runtime::Handle::try_current().is_err(),
        "a simulated world does not run inside of a tokio runtime, because tokio's timers and tasks would not be \
         simulated: use a plain #[test] instead of #[tokio::test]"
    );
    Entered(WORLD.with(|world| world.replace(Some(Rc::clone(finder)))))
}

/// Returns the place in a simulated world that this is called at, if it is one.
pub fn host() -> Option<Arc<dyn Host>> {
    let finder = WORLD.with(|world| world.borrow().clone())?;
    finder()
}
