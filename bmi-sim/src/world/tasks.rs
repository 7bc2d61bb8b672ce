//! Decides which task runs: a ready task runs when its node is not paused and its processor has a
//! core for it.

use crate::engine::{Event, ROOT, TaskKey};
use crate::error::{StallKind, Stalled};
use crate::model::{Core, Node, Sim};

/// Maximum number of task polls at one point in time. More count as spinning.
const LIVELOCK_POLLS: u64 = 20_000_000;

/// Whether a ready task runs now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Admission {
    Now,
    /// Its node is paused, or its node's processor is busy.
    Later,
}

impl Core {
    /// Decides about a ready task of `node` that may run from `not_before` on, on the core that it
    /// is bound to, or on any.
    fn admit(&mut self, node: u32, key: TaskKey, not_before: u64, bound: Option<usize>) -> Admission {
        let now = self.queue.now;
        let state = &mut self.nodes[node as usize];
        if state.paused {
            state.asleep.push(key);
            return Admission::Later;
        }
        match state.cpu.enter(now, key, not_before, bound) {
            Ok(()) => {
                self.running = state.cpu.is_parallel().then_some(node);
                Admission::Now
            }
            Err(release_at) => {
                self.release_later(node, release_at);
                Admission::Later
            }
        }
    }

    /// Returns the first task that a node's processor was too busy for, if it may run now.
    fn release_task(&mut self, node: u32) -> Option<TaskKey> {
        let now = self.queue.now;
        let state = &mut self.nodes[node as usize];
        let key = state.cpu.release(now);
        match key {
            Some(key) if state.paused => {
                state.asleep.push(key);
                self.left(node);
                None
            }
            Some(key) => {
                self.running = state.cpu.is_parallel().then_some(node);
                Some(key)
            }
            None => {
                self.schedule_release(node);
                None
            }
        }
    }

    /// Ends the turn of a task of `node`. The next task may run when the work of this one is done.
    /// If that work must hold other tasks back, returns when it ends.
    fn left(&mut self, node: u32) -> Option<u64> {
        let cpu = &mut self.nodes[node as usize].cpu;
        self.running = None;
        let end = cpu.left();
        let end = cpu.is_parallel().then_some(end);
        self.schedule_release(node);
        end
    }

    fn schedule_release(&mut self, node: u32) {
        let at = self.nodes[node as usize].cpu.next_release();
        self.release_later(node, at);
    }

    /// Schedules the release of a held task of `node` at `at`, if that is not scheduled already. No
    /// event is needed if no time has to pass.
    fn release_later(&mut self, node: u32, at: Option<u64>) {
        match at {
            Some(at) if at > self.queue.now => self.queue.schedule(at, Event::CpuFree { node }),
            Some(_) => self.released.push_back(node),
            None => {}
        }
    }
}

impl Sim {
    /// Polls every ready task, and the tasks that become ready by that. `root` is polled for the
    /// key `root_key`; the loop stops when it returns true.
    pub(super) fn run_ready(&self, root_key: TaskKey, root: &mut dyn FnMut() -> bool) -> Result<bool, StallKind> {
        let executor = &self.0.executor;
        for _ in 0..LIVELOCK_POLLS {
            let released = self.0.core.borrow_mut().released.pop_front();
            if let Some(node) = released {
                let key = self.0.core.borrow_mut().release_task(node);
                key.into_iter().for_each(|key| self.run_on(node, key));
                continue;
            }
            let Some((key, stamp)) = executor.ready.pop() else { return Ok(false) };
            if key == root_key {
                if root() {
                    return Ok(true);
                }
            } else if key.index != ROOT
                && let Some(place) = executor.place_of(key)
            {
                match place.node {
                    // Tasks of the world itself have a processor each.
                    None => executor.run(key),
                    Some(node) => {
                        let (node, not_before) = (node as u32, place.not_before.max(stamp));
                        let admission = self.0.core.borrow_mut().admit(node, key, not_before, place.core);
                        if admission == Admission::Now {
                            self.run_on(node, key);
                        }
                    }
                }
            }
        }
        Err(StallKind::Livelock)
    }

    /// Runs a task that has a core of its node's processor.
    fn run_on(&self, node: u32, key: TaskKey) {
        #[cfg(feature = "mutants")]
        let before = bmi_core::steps_taken();
        let outer = self.0.at.replace(Some(node));
        self.0.executor.run(key);
        self.0.at.set(outer);
        let (end, armed) = {
            let mut core = self.0.core.borrow_mut();
            #[cfg(feature = "mutants")]
            {
                let longest = &mut core.nodes[node as usize].longest_piece;
                *longest = (*longest).max(bmi_core::steps_taken() - before);
            }
            (core.left(node), core.nodes[node as usize].lasting.armed.is_some())
        };
        if armed {
            Node { sim: self.clone(), id: node }.may_blow();
        }
        if let Some(end) = end {
            // Its own next turn comes after its work is done.
            self.0.executor.not_before(key, end);
            self.0.executor.ready.stamp(0);
        }
    }

    /// Executes the next event if it happens by `limit`.
    pub(super) fn execute(&self, limit: u64) -> bool {
        let action = self.0.with(|core| match core.next_time() {
            Some(time) if time <= limit => Some(core.execute_next()),
            _ => None,
        });
        match action {
            Some(Some(action)) => action(self),
            Some(None) => {}
            None => return false,
        }
        true
    }

    pub(super) fn stalled(&self, kind: StallKind) -> Stalled {
        let pending = self.0.core.borrow().describe(&self.0.executor);
        Stalled { kind, now: self.now(), pending }
    }
}
