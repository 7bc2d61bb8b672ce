//! The processor of a node: what the transport makes it do, and when it is free again.
//!
//! **Model.** One core for each node. Posting, taking completions and registering occupy it; work that is posted waits until it is free. Tasks
//! themselves cost nothing unless they say so ([`crate::Node::compute`]).

/// A node's processor.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    free: u64,
    busy: u64,
}

impl Cpu {
    /// Works for `cost` ns from `now` on, or from when it is free; returns when it has done.
    pub(crate) fn charge(&mut self, now: u64, cost: u64) -> u64 {
        self.free = self.free.max(now).saturating_add(cost);
        self.busy = self.busy.saturating_add(cost);
        self.free
    }

    /// Forgets the work that is still to be done.
    pub(crate) fn reset(&mut self) {
        self.free = 0;
    }

    /// How long it has worked, in ns.
    pub(crate) fn busy(&self) -> u64 {
        self.busy
    }
}
