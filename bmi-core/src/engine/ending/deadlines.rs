//! Deadlines of operations, and the fences of those that were asked to end.
//!
//! **Invariant.** An operation has at most one valid timer. At first this is its deadline. Once the
//! operation was asked to end, it is the fence: the time at which the connection is cut because the
//! peer has not released the memory.

use super::early::end_early;
use super::settlement::finish;
use crate::engine::Engine;
use crate::engine::books::{Effect, End, State};
use crate::error::{Error, ErrorKind};
use crate::mutated;
use crate::op::{OpId, OpKind};

impl Engine {
    /// Handles the timers that are due.
    pub(in crate::engine) fn expire(&mut self) {
        while let Some(id) = self.ops.pop_due(self.adapter.now) {
            let Some(op) = self.ops.get(id) else { continue };
            match (op.kind, op.ending, op.peer) {
                (OpKind::Timer, ..) => {
                    finish(&mut self.adapter, &mut self.ops, None, End { op: id, status: Ok(()), len: 0 });
                }
                (_, None, _) if mutated("deadline/ignored") => {}
                (_, None, _) => self.end_operation(id, ErrorKind::TimedOut),
                (kind, Some(_), Some(peer)) => {
                    let text = format!("it did not let go of the memory of a {} that was ended", kind.as_str());
                    if let Some(peer) = self.peers.get_mut(peer) {
                        self.adapter.cut(peer, Error::new(ErrorKind::TimedOut, text));
                    }
                }
                (_, Some(_), None) => {}
            }
        }
        self.ops.tidy_timers();
    }

    /// Ends an operation early with the status `kind`, or begins to.
    pub(in crate::engine) fn end_operation(&mut self, id: OpId, kind: ErrorKind) {
        let Some(op) = self.ops.get(id) else { return };
        match op.peer.filter(|peer| self.peers.get(*peer).is_some()) {
            Some(peer) => {
                self.handle(peer, |adapter, ops, peer| Ok(end_early(adapter, ops, Some(peer), id, kind)));
            }
            None => {
                if let Effect::Finish(end) = end_early(&mut self.adapter, &mut self.ops, None, id, kind) {
                    finish(&mut self.adapter, &mut self.ops, None, end);
                }
            }
        }
    }

    /// Sets the fences of the operations that were asked to end since the last call. Each is the
    /// grace period from now. Memory that was left to a peer has its own period.
    #[inline]
    pub(in crate::engine) fn set_fences(&mut self) {
        if !self.ops.fences.is_empty() {
            self.set_each_fence();
        }
    }

    #[cold]
    #[inline(never)]
    fn set_each_fence(&mut self) {
        while let Some(id) = self.ops.fences.pop() {
            let (now, timeouts) = (self.adapter.now, &self.adapter.config.timeouts);
            match self.ops.get(id).map(|op| op.state()) {
                None | Some(State::Done { .. }) => {}
                Some(State::Left(_)) => {
                    self.ops.set_timer(id, now + timeouts.dropped_call);
                    self.count_left(id);
                }
                Some(_) => self.ops.set_timer(id, now + timeouts.fence_grace),
            }
        }
    }
}
