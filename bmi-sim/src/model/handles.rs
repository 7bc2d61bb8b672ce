//! The core with its tasks, and the handles to it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bmi_core::Time;

use crate::engine::Executor;
use crate::model::Core;

/// A program that a node runs whenever it is up.
pub(crate) type Program = Rc<dyn Fn(Node)>;

pub(crate) type Action = Box<dyn FnOnce(&Sim)>;

/// The state that all handles of a world share.
pub(crate) struct Shared {
    pub(crate) core: RefCell<Core>,
    pub(crate) executor: Executor,
    /// The node whose task is being polled, if it has one.
    pub(crate) at: Cell<Option<u32>>,
}

impl Shared {
    /// Runs `f` on the core, then wakes the tasks that it affected.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let (result, mut wakes) = {
            let mut core = self.core.borrow_mut();
            let result = f(&mut core);
            if core.wakes.is_empty() {
                return result;
            }
            (result, std::mem::take(&mut core.wakes))
        };
        for waker in wakes.drain(..) {
            waker.wake();
        }
        let mut core = self.core.borrow_mut();
        if core.wakes.is_empty() {
            core.wakes = wakes; // keeps its capacity
        }
        result
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(self.core.borrow().queue.now)
    }

    /// Returns the time of a node's clock: when its processor has done its work so far.
    pub(crate) fn now_at(&self, node: u32) -> Time {
        let core = self.core.borrow();
        Time::from_nanos(core.nodes[node as usize].cpu.free_at(core.queue.now))
    }
}

/// A handle to a world, for tasks. It is cheap to clone and does not keep the tasks of a dropped
/// [`World`](crate::World) alive.
#[derive(Clone)]
pub struct Sim(pub(crate) Rc<Shared>);

/// A handle to a node.
#[derive(Clone)]
pub struct Node {
    pub(crate) sim: Sim,
    pub(crate) id: u32,
}
