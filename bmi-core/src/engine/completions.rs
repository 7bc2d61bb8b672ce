//! What a driver does with an endpoint: it polls, takes completions, and sleeps.

use std::os::fd::BorrowedFd;
use std::task::Waker;

use super::Engine;
use crate::engine::books::{PeerEvent, Unexpected, record};
use crate::error::Error;
use crate::mutated;
use crate::op::{Completion, OpId};
use crate::time::Time;
use crate::transport::bed::DescriptorBed;
use crate::transport::{Armed, Bed, Transport};

impl Engine {
    // ---- progress and completions ---------------------------------------------------------------

    /// Makes progress at the time `now`, which must not go back. Returns whether there was anything
    /// to do.
    #[inline]
    pub fn poll(&mut self, now: Time) -> bool {
        self.progress(now)
    }

    /// Returns the completion of `op` if it has ended. Its id is free then.
    pub fn poll_op(&mut self, op: OpId) -> Option<Completion> {
        self.ops.collect(op)
    }

    /// Adds an operation, and its peer, to an error.
    pub(crate) fn during(&self, op: OpId, error: Error) -> Error {
        let Some(record) = self.ops.get(op) else { return error };
        let error = error.during(record.kind.as_str());
        match record.peer.and_then(|peer| self.peer_addr(peer)) {
            Some(addr) => error.with_peer(addr),
            None => error,
        }
    }

    /// Returns whether there is such an operation: in flight, or ended and not yet collected.
    pub fn is_known(&self, op: OpId) -> bool {
        self.ops.get(op).is_some()
    }

    /// Appends the completions of those of `ops` that have ended. Returns how many there were.
    pub fn poll_some(&mut self, ops: &[OpId], into: &mut Vec<Completion>) -> usize {
        let before = into.len();
        into.extend(ops.iter().filter_map(|op| self.poll_op(*op)));
        into.len() - before
    }

    /// Appends all completions, in the order in which the operations ended. Returns how many there
    /// were.
    #[inline]
    pub fn poll_all(&mut self, into: &mut Vec<Completion>) -> usize {
        self.ops.collect_all(into)
    }

    /// Returns the next unexpected message.
    pub fn poll_unexpected(&mut self) -> Option<Unexpected> {
        let message = self.inbox.pop()?;
        record::taken(&self.adapter.recorder, &message);
        Some(message)
    }

    /// Returns the next event about a peer. If the program does not take them, the oldest events
    /// beyond 1024 are lost.
    pub fn poll_event(&mut self) -> Option<PeerEvent> {
        self.peers.next_event()
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// Returns the time at which to poll though nothing arrives.
    pub fn next_deadline(&self) -> Option<Time> {
        let fences = (!self.ops.fences.is_empty()).then_some(self.adapter.now);
        let all = [
            fences,
            self.ops.next_timer().filter(|_| !mutated("wait/forgets-deadlines")),
            self.adapter.turns.next_check(),
            self.adapter.registry.next_deadline(),
            self.adapter.log.next_deadline(),
            self.sweeps.next(),
            self.adapter.transport.next_deadline(),
        ];
        let mut earliest = None;
        for deadline in all {
            if deadline.is_some() && (earliest.is_none() || deadline < earliest) {
                earliest = deadline;
            }
        }
        earliest
    }

    /// Gets ready to sleep (see [`Transport::arm`]). `waker` is also woken when an unexpected
    /// message or an exposure is dropped, whether or not there is an event fd.
    #[inline]
    pub fn arm(&mut self, waker: &Waker) -> Armed {
        self.arm_with(waker, waker)
    }

    /// Works as [`Engine::arm`], but a message or an exposure that is dropped wakes `returns`.
    #[inline]
    pub(crate) fn arm_with(&mut self, waker: &Waker, returns: &Waker) -> Armed {
        // Transfers and peers that wait for the adapter are resumed by its progress, which wakes
        // the waiter.
        if self.peers.has_dirty() || !self.ops.fences.is_empty() || self.has_returns() {
            return Armed::Busy;
        }
        let armed = self.adapter.transport.arm(waker);
        let quiet = armed == Armed::Waiting
            && (mutated("wait/dropped-messages-wake-nobody") || self.inbox.released.wake_at_next(returns))
            && self.exposures.revoked.wake_at_next(returns)
            && self.adapter.registry.arm(waker);
        if quiet { Armed::Waiting } else { Armed::Busy }
    }

    /// Returns the transport's descriptor to sleep on, if it has one.
    pub fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.adapter.transport.event_fd()
    }

    /// Returns a place to sleep for a thread, unless the transport wakes only wakers.
    ///
    /// # Errors
    /// `Io` if the system has no descriptor for it.
    pub(crate) fn new_bed(&self) -> Result<Option<Box<dyn Bed>>, Error> {
        if let Some(bed) = self.adapter.transport.bed()? {
            return Ok(Some(bed));
        }
        let Some(fd) = self.event_fd() else { return Ok(None) };
        Ok(Some(Box::new(DescriptorBed::new(fd.try_clone_to_owned()?)?)))
    }

    /// Returns the bed of [`Engine::wait_until`].
    ///
    /// # Errors
    /// As [`Engine::new_bed`].
    pub(crate) fn own_bed(&mut self) -> Result<Option<&mut Box<dyn Bed>>, Error> {
        if self.bed.is_none() {
            self.bed = self.new_bed()?;
        }
        Ok(self.bed.as_mut())
    }

    // ---- for the async interface ----------------------------------------------------------------

    /// Does the part of a poll that a caller does for a driver that sleeps, and gets ready for the
    /// rest of its sleep. If `sends`, it sends what was posted; it is set to false once it has.
    /// `waker` and `returns` are as for [`Engine::arm_with`].
    pub(crate) fn relieve(
        &mut self,
        now: impl Fn() -> Time,
        sends: &mut bool,
        waker: &Waker,
        returns: &Waker,
    ) -> Armed {
        if self.arm_with(waker, returns) == Armed::Waiting {
            return Armed::Waiting;
        }
        self.settle_returns(now());
        let armed = self.arm_with(waker, returns);
        if armed == Armed::Waiting || !std::mem::take(sends) {
            return armed;
        }
        self.send_posted(now());
        self.arm_with(waker, returns)
    }

    /// Returns the number of operations that are in flight, or have ended and are not collected.
    #[inline]
    pub(crate) fn operations(&self) -> usize {
        self.ops.len()
    }

    /// Returns the completion of `op`, or `None` after arranging to wake `waker` when there is one.
    /// `Some(None)` means that there is no such operation.
    pub(crate) fn poll_op_or_wake(&mut self, op: OpId, waker: &Waker) -> Option<Option<Completion>> {
        let Some(record) = self.ops.get_mut(op) else { return Some(None) };
        if record.is_done() {
            return Some(self.ops.collect(op));
        }
        if record.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return None;
        }
        // The old waker is dropped where wakers are woken, and not here within the caller's borrow.
        let old = record.waker.replace(waker.clone());
        old.into_iter().for_each(|old| self.ops.keep_waker(old));
        None
    }

    /// Returns true if an operation has ended, or is not known.
    pub(crate) fn has_ended(&self, op: OpId) -> bool {
        self.ops.get(op).is_none_or(|record| record.is_done())
    }

    /// Wakes the task of one operation that is in flight, if there is one.
    pub(crate) fn wake_a_waiter(&mut self) {
        self.ops.wake_a_waiter();
    }

    /// Returns true if there are wakers to take.
    pub(crate) fn has_wakers(&self) -> bool {
        self.ops.has_wakers()
    }

    /// Keeps wakers with those of the operations that ended.
    pub(crate) fn keep_wakers(&mut self, wakers: &mut Vec<Waker>) {
        self.ops.keep_wakers(wakers);
    }

    /// Takes the oldest waker of the operations that ended, and of those that were kept with them.
    #[inline]
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.ops.take_waker()
    }

    pub(crate) fn has_unexpected(&self) -> bool {
        !self.inbox.is_empty()
    }

    pub(crate) fn has_events(&self) -> bool {
        self.peers.has_events()
    }
}
