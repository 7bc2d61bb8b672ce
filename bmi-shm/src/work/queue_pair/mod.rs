//! The queues of a connection: sends and writes (`requests`), reads and replies to the peer's reads
//! (`reads`), receives. Here are their limits, and the end of all work.
//!
//! **Invariants**
//! 1. A request stays in its queue, and its segments in the segment queue beside it, until its last
//!    byte was copied. Then its regions are held until a poll reports it (see
//!    [`super::completions`]). Nothing refers to the memory later: this backend copies and never
//!    lends.
//! 2. A queue is never longer than the capabilities say. Its memory, and that of the segment
//!    queues, grows to the most that was ever posted and is kept.
//! 3. The bytes at the front of the staging buffer belong to the oldest request that has not gone.
//! 4. Requests in `gone` wait for the peer to copy an in-place message. The oldest of them is such
//!    a message. Those behind it wait because completions come in order.

mod reads;
mod requests;

use std::collections::VecDeque;

use bmi_backend::software::Blame;
use bmi_core::Segment;
use bmi_core::transport::{ConnId, Event, PostError, WorkCompletion, WorkId, WorkKind, WorkOptions, WorkStatus};

use super::completions::{Completions, Pending};
use super::request::{Gone, Read, Reply, Request};
use super::segments::{Receives, SegmentQueue};
use crate::config::{MAX_HEAD, MAX_INLINE, MAX_READS, ShmConfig, Tuning, WORK_LIMITS};
use crate::error::Refusal;

/// All work posted on a connection.
pub(crate) struct QueuePair {
    conn: ConnId,
    send_depth: usize,
    recv_depth: usize,
    staging: VecDeque<u8>,
    staging_limit: usize,
    requests: VecDeque<Request>,
    /// Requests older than those in `requests` that have gone. They wait for the peer to copy one
    /// of them.
    gone: VecDeque<Gone>,
    /// The segments of `requests` and `gone`.
    request_segments: SegmentQueue,
    pub(crate) reads: VecDeque<Read>,
    /// The number of reads at the front that were asked for through the ring.
    pub(crate) issued: usize,
    next_read_id: u32,
    pub(super) read_segments: SegmentQueue,
    pub(crate) replies: VecDeque<Reply>,
    pub(crate) receives: Receives,
    /// The number of requests that ended since the last poll.
    fresh: usize,
    /// Set if a post was refused for lack of room.
    refused: bool,
}

impl QueuePair {
    pub(crate) fn new(conn: ConnId, config: &ShmConfig) -> QueuePair {
        let Tuning { send_queue_depth, recv_queue_depth, .. } = config.tuning;
        // Room for a full queue of requests, each with the largest head.
        let staging_limit = (send_queue_depth * MAX_HEAD).max(4 * MAX_INLINE);
        QueuePair {
            conn,
            send_depth: send_queue_depth,
            recv_depth: recv_queue_depth,
            staging: VecDeque::new(),
            staging_limit,
            requests: VecDeque::new(),
            gone: VecDeque::new(),
            request_segments: SegmentQueue::default(),
            reads: VecDeque::new(),
            issued: 0,
            next_read_id: 0,
            read_segments: SegmentQueue::default(),
            replies: VecDeque::new(),
            receives: Receives::default(),
            fresh: 0,
            refused: false,
        }
    }

    #[inline]
    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    #[inline]
    pub(crate) fn post_recv(&mut self, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        WORK_LIMITS.check_recv(segments)?;
        if self.receives.len() >= self.recv_depth {
            return Err(PostError::QueueFull);
        }
        self.receives.push(work, segments);
        Ok(())
    }

    #[inline]
    fn check_depth(&mut self) -> Result<(), PostError> {
        if self.requests.len() + self.gone.len() + self.reads.len() + self.fresh >= self.send_depth {
            self.refused = true;
            return Err(PostError::QueueFull);
        }
        Ok(())
    }

    /// Counts a request that was done while it was posted, so that it takes a place in the queue
    /// until the next poll. Reports its completion if it is signalled.
    #[inline]
    pub(crate) fn complete_immediately(
        &mut self,
        work: WorkId,
        kind: WorkKind,
        len: u64,
        options: WorkOptions,
        pending: &mut Pending,
    ) {
        self.fresh += 1;
        if options.signalled {
            pending.report(self.event(work, kind, WorkStatus::Ok, len, None));
        }
    }

    /// Begins a poll, which reports everything that was done before it.
    pub(crate) fn begin_poll(&mut self) {
        self.fresh = 0;
    }

    /// Returns whether the next poll has something to do for the posted work, even if nothing
    /// arrives and the peer has copied nothing.
    #[inline]
    pub(crate) fn needs_polls(&self) -> bool {
        self.fresh > 0 || self.refused || self.has_outgoing()
    }

    /// Returns whether the next poll makes room for a post that was refused, even if nothing
    /// arrives. It does if there is room once finished requests no longer take any.
    pub(crate) fn makes_room(&self) -> bool {
        self.refused
            && self.requests.len() + self.gone.len() + self.reads.len() < self.send_depth
            && self.staging.len() + MAX_INLINE <= self.staging_limit
    }

    /// Returns whether there is room again for a post that was refused.
    pub(crate) fn has_made_room(&mut self) -> bool {
        let room = self.makes_room();
        self.refused &= !room;
        room
    }

    /// Returns whether anything waits to be sent.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.requests.is_empty() || !self.replies.is_empty() || self.issued < self.reads.len().min(MAX_READS)
    }

    /// Ends the oldest receive. Returns whether there was one.
    #[inline]
    pub(crate) fn complete_recv(
        &mut self,
        status: WorkStatus,
        len: u64,
        immediate: Option<u32>,
        events: &mut Vec<Event>,
    ) -> bool {
        let Some(work) = self.receives.pop() else { return false };
        // `extend` builds the event in place; `push` would build it elsewhere and copy it.
        events.extend(std::iter::once_with(|| self.event(work, WorkKind::Recv, status, len, immediate)));
        true
    }

    /// Ends the work that waits for the peer: reads and receives. The read that the peer refused
    /// gets the status of the refusal.
    pub(crate) fn flush_waiting(&mut self, culprit: Option<Refusal>, mut report: impl FnMut(Event)) {
        self.issued = 0;
        let blame = Blame::new(culprit);
        while let Some(read) = self.reads.pop_front() {
            self.read_segments.pop(read.segments, drop);
            report(self.event(read.work, WorkKind::Read, blame.status_of_read(read.id), read.len, None));
        }
        while let Some(work) = self.receives.pop() {
            report(self.event(work, WorkKind::Recv, WorkStatus::Flushed, 0, None));
        }
    }

    /// Ends all work. The request that the peer refused, as far as this side can know it, gets the
    /// status of the refusal.
    pub(crate) fn flush_all(&mut self, culprit: Option<Refusal>, mut report: impl FnMut(Event)) {
        let mut blame = Blame::new(culprit);
        while let Some(gone) = self.gone.pop_front() {
            report(self.event(gone.work, gone.kind, blame.status(gone.kind), gone.len, None));
        }
        while let Some(request) = self.requests.pop_front() {
            report(self.event(request.work, request.kind, blame.status(request.kind), request.len, None));
        }
        self.flush_waiting(culprit, report);
    }

    #[inline]
    fn event(&self, work: WorkId, kind: WorkKind, status: WorkStatus, len: u64, immediate: Option<u32>) -> Event {
        Event::Work(WorkCompletion { conn: self.conn, work, kind, status, len, immediate })
    }
}
