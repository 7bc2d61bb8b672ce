//! The executor: runs `!Send` tasks one at a time, in the order in which they were woken.
//!
//! **Why a separate executor.** The order must depend on the seed alone. All tasks of a node must
//! be droppable at once (its death), and must be able to pause. An empty ready queue is the sign
//! that virtual time may move.
//!
//! **Invariants**
//! 1. A task is in the ready queue at most once (`queued`).
//! 2. No borrow of the executor or of the world is held while a future is polled or dropped.
//!
//! The ready queue is behind an `Arc<Mutex>`, because Rust allows a [`Waker`] to be sent to another
//! thread. Within a world the lock is never contended. A wake from another thread works, but is not
//! repeatable.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use slab::Slab;

/// Names a task. The generation distinguishes a late wake from one for the slot's next task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskKey {
    pub(crate) index: usize,
    pub(crate) generation: u64,
}

/// The index of the future that `block_on` itself polls.
pub(crate) const ROOT: usize = usize::MAX;

/// Tasks to poll, in order, each with the time before which it may not run.
#[derive(Default)]
pub(crate) struct ReadyQueue {
    tasks: Mutex<VecDeque<(TaskKey, u64)>>,
    /// The end of the work that the running task has caused on its processor. It is 0 if other
    /// tasks of its node may run meanwhile without getting ahead of it.
    stamp: AtomicU64,
}

impl ReadyQueue {
    fn tasks(&self) -> MutexGuard<'_, VecDeque<(TaskKey, u64)>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, key: TaskKey) {
        let stamp = self.stamp.load(Ordering::Relaxed);
        self.tasks().push_back((key, stamp));
    }

    pub(crate) fn pop(&self) -> Option<(TaskKey, u64)> {
        self.tasks().pop_front()
    }

    /// Sets the time before which tasks that are woken from now on do not run.
    pub(crate) fn stamp(&self, time: u64) {
        self.stamp.store(time, Ordering::Relaxed);
    }
}

pub(crate) struct TaskWaker {
    key: TaskKey,
    queued: AtomicBool,
    ready: Arc<ReadyQueue>,
}

impl TaskWaker {
    pub(crate) fn new(key: TaskKey, ready: Arc<ReadyQueue>) -> Arc<TaskWaker> {
        Arc::new(TaskWaker { key, queued: AtomicBool::new(false), ready })
    }

    /// Marks the task as about to be polled, so that the next wake counts again.
    pub(crate) fn taken(&self) {
        self.queued.store(false, Ordering::Release);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.push(self.key);
        }
    }
}

type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    /// The future with its waker. `None` while it is being polled.
    future: Option<(LocalFuture, Waker)>,
    node: Option<usize>,
    /// The core of its node that it is bound to, if any.
    core: Option<usize>,
    /// The task does not run before this time, because its own work is not done.
    not_before: u64,
    generation: u64,
    notify: Arc<TaskWaker>,
}

/// Where a task runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) node: Option<usize>,
    /// The core that it is bound to, if any.
    pub(crate) core: Option<usize>,
    /// The time before which it may not run.
    pub(crate) not_before: u64,
}

/// All tasks of a world.
#[derive(Default)]
pub(crate) struct Executor {
    tasks: RefCell<Slab<Task>>,
    pub(crate) ready: Arc<ReadyQueue>,
    next_generation: std::cell::Cell<u64>,
}

impl Executor {
    pub(crate) fn fresh_key(&self, index: usize) -> TaskKey {
        let generation = self.next_generation.get();
        self.next_generation.set(generation + 1);
        TaskKey { index, generation }
    }

    pub(crate) fn spawn(&self, node: Option<usize>, core: Option<usize>, future: LocalFuture) -> TaskKey {
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        let key = self.fresh_key(entry.key());
        let notify = TaskWaker::new(key, self.ready.clone());
        let waker = Waker::from(notify.clone());
        waker.wake_by_ref();
        let (future, generation) = (Some((future, waker)), key.generation);
        entry.insert(Task { future, node, core, not_before: 0, generation, notify });
        key
    }

    /// Returns where a task runs, and from when on. Returns `None` if the task is gone.
    pub(crate) fn place_of(&self, key: TaskKey) -> Option<Place> {
        let tasks = self.tasks.borrow();
        let task = tasks.get(key.index).filter(|task| task.generation == key.generation)?;
        Some(Place { node: task.node, core: task.core, not_before: task.not_before })
    }

    /// Keeps a task from running before `time`.
    pub(crate) fn not_before(&self, key: TaskKey, time: u64) {
        let mut tasks = self.tasks.borrow_mut();
        if let Some(task) = tasks.get_mut(key.index).filter(|task| task.generation == key.generation) {
            task.not_before = task.not_before.max(time);
        }
    }

    /// Polls a task once, if it still exists.
    pub(crate) fn run(&self, key: TaskKey) {
        let (mut future, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(task) = tasks.get_mut(key.index).filter(|task| task.generation == key.generation) else {
                return;
            };
            task.notify.taken();
            let Some(taken) = task.future.take() else { return };
            taken
        };
        let done = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let mut tasks = self.tasks.borrow_mut();
        // The task may have been removed while it ran, because it killed its own node. Then the
        // future ends here.
        if let Some(task) = tasks.get_mut(key.index).filter(|task| task.generation == key.generation) {
            if done {
                tasks.remove(key.index);
            } else {
                task.future = Some((future, waker));
                return;
            }
        }
        drop(tasks);
        drop(future);
    }

    /// Drops the tasks for which `of` returns true.
    pub(crate) fn drop_tasks(&self, of: impl Fn(Option<usize>) -> bool) {
        let doomed: Vec<usize> =
            self.tasks.borrow().iter().filter(|(_, task)| of(task.node)).map(|(index, _)| index).collect();
        for index in doomed {
            // Dropping a future may drop other tasks.
            let task = self.tasks.borrow_mut().try_remove(index);
            drop(task);
        }
    }

    pub(crate) fn abort(&self, key: TaskKey) {
        if self.place_of(key).is_some() {
            let task = self.tasks.borrow_mut().try_remove(key.index);
            drop(task);
        }
    }

    /// Returns how many tasks run on the node, or on none.
    pub(crate) fn count(&self, node: Option<usize>) -> usize {
        self.tasks.borrow().iter().filter(|(_, task)| task.node == node).count()
    }

    /// Returns the node of the task that has panicked, if any. Its future was taken out to be
    /// polled and never put back.
    pub(crate) fn panicked_on(&self) -> Option<usize> {
        self.tasks.borrow().iter().find(|(_, task)| task.future.is_none()).and_then(|(_, task)| task.node)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.borrow().is_empty()
    }
}
