//! The processor of a node: what the transport makes it do, and when it is free again.
//!
//! **Model.** One core for each node. Posting, taking completions, copying, registering and [`crate::Node::compute`] occupy it. While it is occupied none of the
//! node's tasks runs: they are held, in the order in which they were woken, and each runs when what the one before it caused is done. So what a task
//! sees, polls and posts comes after the work that it waited for. A task that makes the processor work goes on at once; the time at its node's clock has
//! passed ([`crate::Node::now`]), that of the world follows. Tasks themselves cost nothing unless they say so.
//!
//! Waiting for the adapter is counted apart: time spent polling for nothing ([`crate::Node::cpu_spinning`]) keeps nobody from working.

use std::collections::VecDeque;

use crate::executor::TaskKey;

/// A node's processor.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    free: u64,
    busy: u64,
    spinning: u64,
    /// Tasks that were woken while it worked.
    held: VecDeque<TaskKey>,
    /// An event will release the first of them.
    releasing: bool,
}

impl Cpu {
    /// Works for `cost` ns from `now` on, or from when it is free; returns when it has done.
    pub(crate) fn charge(&mut self, now: u64, cost: u64) -> u64 {
        self.free = self.free.max(now).saturating_add(cost);
        self.busy = self.busy.saturating_add(cost);
        self.free
    }

    /// When it is free.
    pub(crate) fn free_at(&self, now: u64) -> u64 {
        self.free.max(now)
    }

    /// Polls for nothing, for `ns`.
    pub(crate) fn spin(&mut self, ns: u64) {
        self.spinning = self.spinning.saturating_add(ns);
    }

    /// Whether a task has to wait at `now`; then it is held. Also when to release it, if nothing will yet.
    pub(crate) fn hold(&mut self, now: u64, task: TaskKey) -> (bool, Option<u64>) {
        if self.free <= now && self.held.is_empty() {
            return (false, None);
        }
        self.held.push_back(task);
        (true, self.next_release())
    }

    /// When to release the next held task, if nothing will yet.
    pub(crate) fn next_release(&mut self) -> Option<u64> {
        if self.held.is_empty() || self.releasing {
            return None;
        }
        self.releasing = true;
        Some(self.free)
    }

    /// The first held task, if it may run now.
    pub(crate) fn release(&mut self, now: u64) -> Option<TaskKey> {
        self.releasing = false;
        if self.free > now { None } else { self.held.pop_front() }
    }

    /// Forgets the work that is still to be done, and who waits.
    pub(crate) fn reset(&mut self) {
        self.free = 0;
        self.held.clear();
        self.releasing = false;
    }

    /// How long it has worked, in ns.
    pub(crate) fn busy(&self) -> u64 {
        self.busy
    }

    /// How long it has polled for nothing, in ns.
    pub(crate) fn spinning(&self) -> u64 {
        self.spinning
    }
}
