//! Starts tasks, and waits for them.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::engine::TaskKey;
use crate::model::{Node, Sim};

/// The task ended without a result: its node was killed, or it was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task was dropped before its end: its node was killed, or it was aborted")]
pub struct Killed;

struct JoinState<T> {
    result: Option<Result<T, Killed>>,
    waiter: Option<Waker>,
}

impl<T> JoinState<T> {
    fn finish(state: &RefCell<JoinState<T>>, result: Result<T, Killed>) {
        let waiter = {
            let mut state = state.borrow_mut();
            state.result = Some(result);
            state.waiter.take()
        };
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

/// Reports `Killed` unless the task reported a result before.
struct JoinGuard<T>(Option<Rc<RefCell<JoinState<T>>>>);

impl<T> Drop for JoinGuard<T> {
    fn drop(&mut self) {
        if let Some(state) = self.0.take() {
            JoinState::finish(&state, Err(Killed));
        }
    }
}

/// Waits for a task. Dropping the handle does not stop the task.
pub struct JoinHandle<T> {
    state: Rc<RefCell<JoinState<T>>>,
    task: Option<(Sim, TaskKey)>,
}

impl<T: 'static> JoinHandle<T> {
    /// Starts a task on a node, bound to one of its cores if `core` is given, or on no node.
    pub(crate) fn spawn(
        sim: &Sim,
        node: Option<usize>,
        core: Option<usize>,
        future: impl Future<Output = T> + 'static,
    ) -> JoinHandle<T> {
        let state = Rc::new(RefCell::new(JoinState { result: None, waiter: None }));
        let mut guard = JoinGuard(Some(state.clone()));
        let task = async move {
            let result = future.await;
            if let Some(state) = guard.0.take() {
                JoinState::finish(&state, Ok(result));
            }
        };
        let key = sim.0.executor.spawn(node, core, Box::pin(task));
        JoinHandle { state, task: Some((sim.clone(), key)) }
    }

    pub(crate) fn killed() -> JoinHandle<T> {
        let state = Rc::new(RefCell::new(JoinState { result: Some(Err(Killed)), waiter: None }));
        JoinHandle { state, task: None }
    }

    /// Returns whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.state.borrow().result.is_some()
    }

    /// Drops the task. The handle then returns [`Killed`], unless the task had ended.
    pub fn abort(&self) {
        if let Some((sim, key)) = &self.task {
            sim.0.executor.abort(*key);
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Killed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.state.borrow_mut();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waiter = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Sim {
    /// Starts a task that belongs to no node: a script of faults, or an observer. Dropping the
    /// handle does not stop the task.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        JoinHandle::spawn(self, None, None, future)
    }
}

impl Node {
    /// Starts a task on the node. On a killed node the handle ends at once. Dropping the handle
    /// does not stop the task.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        if !self.is_alive() {
            return JoinHandle::killed();
        }
        JoinHandle::spawn(&self.sim, Some(self.id as usize), None, future)
    }

    /// Starts a task that runs only on core `core` of the node's processor, counted from 0: a
    /// thread that is bound to a core. If tasks have fewer cores ([`Node::limit_cores`]), it runs
    /// on the last of them. Otherwise as [`Node::spawn`].
    pub fn spawn_on<T: 'static>(&self, core: usize, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        if !self.is_alive() {
            return JoinHandle::killed();
        }
        JoinHandle::spawn(&self.sim, Some(self.id as usize), Some(core), future)
    }
}
