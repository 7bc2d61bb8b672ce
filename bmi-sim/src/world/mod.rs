//! The world: nodes, connections, time, and the loop that advances them.
//!
//! **Why one structure.** All state of the simulation is in [`Core`], behind one `RefCell`. The
//! tasks are in the executor beside it. An event is executed with the core borrowed, and wakes
//! tasks only afterwards. A task runs with nothing borrowed. So no call from a task can see a
//! half-done event.
//!
//! | file | contents; each uses those below it |
//! |---|---|
//! | this | the loop |
//! | `tasks` | which task may run |
//! | `faults` | applies a plan of faults |
//! | `power`, `endpoints` | a node's programs, its death; its transports and endpoints |
//! | `driver` | drives an endpoint |
//! | `host` | what the code of a program finds at its node |
//! | `node`, `disk` | what a node is and does |
//! | `sim`, `time`, `join` | the handle for tasks: nodes and timeline, time, tasks |
//!
//! **Invariants**
//! 1. Time moves only when no task is ready.
//! 2. Equal settings and equal programs give equal digests: order comes from the event queue and
//!    the ready queue alone, and all maps are ordered.
//!
//! Tested by `tests/it/simulator/determinism.rs`.

mod disk;
mod driver;
mod endpoints;
mod faults;
mod host;
mod join;
mod node;
mod power;
mod sim;
mod tasks;
mod time;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bmi_core::Time;
use bmi_core::runtime::{Host, enter};

pub use self::disk::SimDisk;
pub use self::driver::{drive, drive_with};
pub use self::join::{JoinHandle, Killed};
pub use self::sim::Trace;
pub use self::time::{SimClock, Sleep};
use crate::config::SimConfig;
use crate::engine::{Executor, ROOT, TaskWaker};
use crate::error::{StallKind, Stalled};
use crate::model::{Core, Shared, Sim};

/// A simulated world, and the loop that runs it. Dropping it drops its tasks. See the
/// [crate](crate) for an example.
pub struct World {
    sim: Sim,
    /// Finds the node of the task that is running, for the program's code.
    finder: Rc<dyn Fn() -> Option<Arc<dyn Host>>>,
}

impl std::ops::Deref for World {
    type Target = Sim;

    fn deref(&self) -> &Sim {
        &self.sim
    }
}

impl World {
    /// Creates a world with default settings and a seed.
    pub fn new(seed: u64) -> World {
        World::with(SimConfig::seeded(seed))
    }

    /// Creates a world with these settings.
    pub fn with(config: SimConfig) -> World {
        let executor = Executor::default();
        let core = RefCell::new(Core::new(config, executor.ready.clone()));
        let shared = Rc::new(Shared { core, executor, at: Cell::default() });
        World { finder: host::finder(&shared), sim: Sim(shared) }
    }

    /// Returns a handle for tasks.
    pub fn sim(&self) -> Sim {
        self.sim.clone()
    }

    /// Runs the world until `future` is ready. Call it again to go on.
    ///
    /// # Panics
    /// If the world stalls before. The message lists what was waiting.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self.try_block_on(future) {
            Ok(output) => output,
            Err(stalled) => panic!("{stalled}"),
        }
    }

    /// Runs the world until `future` is ready.
    ///
    /// # Errors
    /// [`Stalled`] if no event is left, if tasks spin, or if the time or event limit is reached.
    pub fn try_block_on<F: Future>(&self, future: F) -> Result<F::Output, Stalled> {
        let _entered = enter(&self.finder);
        let mut future = pin!(future);
        let key = self.0.executor.fresh_key(ROOT);
        let notify = TaskWaker::new(key, self.0.executor.ready.clone());
        let waker = Waker::from(notify.clone());
        waker.wake_by_ref();
        let limit = (Time::ZERO + self.0.core.borrow().config.time_limit).as_nanos();
        let event_limit = self.0.core.borrow().config.event_limit;
        let mut output = None;
        loop {
            let mut root = || {
                notify.taken();
                match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(ready) => {
                        output = Some(ready);
                        true
                    }
                    Poll::Pending => false,
                }
            };
            let done = self.run_ready(key, &mut root).map_err(|kind| self.stalled(kind))?;
            if done && let Some(output) = output.take() {
                return Ok(output);
            }
            if self.events() >= event_limit {
                return Err(self.stalled(StallKind::EventLimit));
            }
            if !self.execute(limit) {
                let waiting = self.0.with(|core| core.next_time().is_some());
                return Err(self.stalled(if waiting { StallKind::TimeLimit } else { StallKind::Deadlock }));
            }
        }
    }

    /// Runs until virtual time is `time`. All events up to that time have then been executed.
    ///
    /// # Panics
    /// If tasks spin without time passing, or if [`SimConfig::event_limit`] is exceeded.
    pub fn run_until(&self, time: Time) {
        if let Err(stalled) = self.try_run_until(time) {
            panic!("{stalled}");
        }
    }

    pub(crate) fn try_run_until(&self, time: Time) -> Result<(), Stalled> {
        self.run_events(time.as_nanos())?;
        self.0.with(|core| core.queue.now = core.queue.now.max(time.as_nanos()));
        Ok(())
    }

    /// Runs for `duration`; see [`World::run_until`].
    ///
    /// # Panics
    /// If tasks spin without time passing.
    pub fn run_for(&self, duration: Duration) {
        self.run_until(self.now() + duration);
    }

    /// Runs until no event is left or the time limit is reached. Returns the virtual time.
    ///
    /// # Panics
    /// If tasks spin without time passing.
    pub fn run(&self) -> Time {
        let limit = Time::ZERO + self.0.core.borrow().config.time_limit;
        if let Err(stalled) = self.run_events(limit.as_nanos()) {
            panic!("{stalled}");
        }
        self.now()
    }

    /// Runs the ready tasks, then executes one event, if one happens by `limit`. Returns whether
    /// one did. For callers that drive transports themselves.
    ///
    /// # Panics
    /// If tasks spin without time passing.
    pub fn step(&self, limit: Time) -> bool {
        match self.try_step(limit.as_nanos()) {
            Ok(any) => any,
            Err(stalled) => panic!("{stalled}"),
        }
    }

    fn try_step(&self, limit: u64) -> Result<bool, Stalled> {
        let _entered = enter(&self.finder);
        let nobody = self.0.executor.fresh_key(ROOT);
        self.run_ready(nobody, &mut || false).map_err(|kind| self.stalled(kind))?;
        Ok(self.execute(limit))
    }

    fn run_events(&self, limit: u64) -> Result<(), Stalled> {
        let most = self.0.core.borrow().config.event_limit;
        while self.try_step(limit)? {
            if self.events() >= most {
                return Err(self.stalled(StallKind::EventLimit));
            }
        }
        Ok(())
    }
}

impl Drop for World {
    /// Drops the tasks first. They hold handles to the world, so the two would keep each other
    /// alive.
    fn drop(&mut self) {
        while !self.0.executor.is_empty() {
            self.0.executor.drop_tasks(|_| true);
        }
        let (actions, kept) = self.0.with(|core| {
            core.queue.clear();
            core.observers.clear();
            let kept = core
                .nodes
                .iter_mut()
                .map(|node| (std::mem::take(&mut node.programs), std::mem::take(&mut node.disk_users)));
            (std::mem::take(&mut core.actions), kept.collect::<Vec<_>>())
        });
        drop((actions, kept));
    }
}
