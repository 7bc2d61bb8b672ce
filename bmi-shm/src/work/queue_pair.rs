//! The queues of a connection: requests to send, reads, replies to the peer's reads, receives.
//!
//! **Why.** A message that fits into the ring at once never enters a queue
//! ([`QueuePair::post_send`] with `Ring`): it is copied while it is posted. A message that does not
//! fit waits here. Its head and inline bytes are copied to a staging buffer, and its segments are
//! held.
//!
//! **Invariants**
//! 1. A request stays in its queue, and its segments in the segment queue beside it, until its last
//!    byte was copied. Then its regions are held until a poll reports it (see `completions`).
//!    Nothing refers to the memory later: this backend copies and never lends.
//! 2. A queue is never longer than the capabilities say. Its memory, and that of the segment
//!    queues, grows to the most that was ever posted and is kept.
//! 3. The bytes at the front of the staging buffer belong to the oldest request that has not gone.
//! 4. Requests in `gone` wait for the peer to copy an in-place message. The oldest of them is such
//!    a message. Those behind it wait because completions come in order.

use std::collections::VecDeque;

use bmi_backend::software::Blame;
use bmi_backend::total_len;
use bmi_core::transport::{
    ConnId, Event, Payload, PostError, WorkCompletion, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget,
};
use bmi_core::{RemoteSlice, Segment};

use super::completions::{Completions, Pending};
use super::pen::Shortcut;
use super::request::{Gone, Pages, Read, Reply, Request};
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

    // ---- posting --------------------------------------------------------------------------------

    #[inline]
    pub(crate) fn post_recv(&mut self, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        WORK_LIMITS.check_recv(segments)?;
        if self.receives.len() >= self.recv_depth {
            return Err(PostError::QueueFull);
        }
        self.receives.push(work, segments);
        Ok(())
    }

    /// Queues an in-place message.
    pub(crate) fn leave_send(
        &mut self,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        number: u32,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let len = WORK_LIMITS.check_send(head, Payload::Gather(segments))?;
        self.check_depth()?;
        self.enqueue(WorkKind::Send, work, len, head, segments, None, options)?;
        if let (Some(request), Some(segment)) = (self.requests.back_mut(), segments.first()) {
            request.pages = Some(Pages { number, base: segment.region().memory().as_ptr() as usize });
        }
        Ok(())
    }

    /// Sends a message at once if nothing is queued and `shortcut` takes it. Otherwise queues the
    /// message.
    pub(crate) fn post_send(
        &mut self,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
        mut shortcut: impl Shortcut,
        pending: &mut Pending,
    ) -> Result<(), PostError> {
        let len = WORK_LIMITS.check_send(head, payload)?;
        self.check_depth()?;
        // An unsignalled message that is done need not wait for the requests that have gone.
        if self.requests.is_empty()
            && (self.gone.is_empty() || !options.signalled)
            && shortcut.send(len as usize, |pen| {
                pen.write(head);
                match payload {
                    Payload::Inline(slices) => slices.iter().for_each(|slice| {
                        // SAFETY: a slice lies in its memory, which it holds.
                        unsafe { pen.write_shared(slice.as_ptr(), slice.len()) }
                    }),
                    Payload::Gather(segments) => {
                        segments.iter().for_each(|segment| pen.write_segment(segment, 0, segment.len()))
                    }
                }
            })
        {
            self.complete_immediately(work, WorkKind::Send, len, options, pending);
            if let Payload::Gather(segments) = payload {
                pending.hold(segments);
            }
            return Ok(());
        }
        let segments = if let Payload::Gather(segments) = payload { segments } else { &[] };
        self.enqueue(WorkKind::Send, work, len, head, segments, None, options)?;
        if let Payload::Inline(slices) = payload {
            let mut staged = 0;
            for slice in slices {
                let old = self.staging.len();
                self.staging.resize(old + slice.len(), 0);
                let (front, back) = self.staging.as_mut_slices();
                let (mut done, mut at) = (0, old);
                while done < slice.len() {
                    let room = if at < front.len() { &mut front[at..] } else { &mut back[at - front.len()..] };
                    let step = room.len().min(slice.len() - done);
                    slice.slice(done, step).copy_to(&mut room[..step]);
                    (done, at) = (done + step, at + step);
                }
                staged += slice.len();
            }
            if let Some(request) = self.requests.back_mut() {
                request.staged += staged;
            }
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

    /// Checks whether a write can be posted. Returns its length.
    #[inline]
    pub(crate) fn check_write(
        &mut self,
        head: &[u8],
        segments: &[Segment],
        target: &WriteTarget,
    ) -> Result<u64, PostError> {
        let len = WORK_LIMITS.check_write(head, segments, target)?;
        self.check_depth()?;
        Ok(len)
    }

    /// Queues a write that was checked.
    pub(crate) fn add_write(
        &mut self,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        target: WriteTarget,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let len = head.len() as u64 + total_len(segments);
        self.enqueue(WorkKind::Write, work, len, head, segments, Some(target), options)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a work request")]
    fn enqueue(
        &mut self,
        kind: WorkKind,
        work: WorkId,
        len: u64,
        head: &[u8],
        segments: &[Segment],
        target: Option<WriteTarget>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let inline = len - total_len(segments);
        if self.staging.len() as u64 + inline > self.staging_limit as u64 {
            self.refused = true;
            return Err(PostError::QueueFull);
        }
        let cursor = self.request_segments.end();
        self.staging.extend(head);
        self.request_segments.push(segments);
        self.requests.push_back(Request {
            work,
            kind,
            signalled: options.signalled,
            len,
            staged: head.len(),
            segments: segments.len() as u32,
            cursor,
            remaining: len,
            target,
            in_ring: false,
            pages: None,
        });
        Ok(())
    }

    /// Checks whether a read can be posted. Returns its length.
    #[inline]
    pub(crate) fn check_read(&mut self, segments: &[Segment], remote: &RemoteSlice) -> Result<u64, PostError> {
        let len = WORK_LIMITS.check_read(segments, remote)?;
        self.check_depth()?;
        Ok(len)
    }

    /// Queues a read that was checked.
    pub(crate) fn add_read(&mut self, work: WorkId, segments: &[Segment], remote: RemoteSlice, options: WorkOptions) {
        let len = total_len(segments);
        let cursor = self.read_segments.end();
        self.read_segments.push(segments);
        let id = self.next_read_id;
        self.next_read_id = id.wrapping_add(1);
        let segments = segments.len() as u32;
        self.reads.push_back(Read {
            work,
            signalled: options.signalled,
            remote,
            id,
            segments,
            cursor,
            len,
            remaining: len,
        });
    }

    #[inline]
    fn check_depth(&mut self) -> Result<(), PostError> {
        if self.requests.len() + self.gone.len() + self.reads.len() + self.fresh >= self.send_depth {
            self.refused = true;
            return Err(PostError::QueueFull);
        }
        Ok(())
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

    /// Returns whether there are requests that have gone and wait for the peer.
    #[inline]
    pub(crate) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Returns whether there are requests, gone or not.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty() || self.has_gone()
    }

    // ---- requests -------------------------------------------------------------------------------

    pub(crate) fn request(&mut self) -> Option<&mut Request> {
        self.requests.front_mut()
    }

    /// Returns the parts of the oldest request if it is an in-place message: its pages, the length
    /// of its head, and the number of pieces behind the head.
    pub(crate) fn left_parts(&self) -> Option<(Pages, usize, usize)> {
        let request = self.requests.front()?;
        Some((request.pages?, request.staged, request.segments as usize))
    }

    /// Calls `each` with each of these pieces. There are as many as segments, and some may be
    /// empty.
    pub(crate) fn each_left_piece(&self, each: impl FnMut(*mut u8, usize)) {
        if let Some(request) = self.requests.front() {
            self.request_segments.each(request.cursor, request.segments as usize, each);
        }
    }

    /// Calls `each` with the pieces of the next `len` bytes of the oldest request.
    pub(crate) fn gather(&self, len: usize, mut each: impl FnMut(*mut u8, usize)) {
        let Some(request) = self.requests.front() else { return };
        let (front, back) = self.staging.as_slices();
        let staged = len.min(request.staged);
        let here = staged.min(front.len());
        for bytes in [&front[..here], &back[..staged - here]] {
            if !bytes.is_empty() {
                each(bytes.as_ptr().cast_mut(), bytes.len());
            }
        }
        let mut cursor = request.cursor;
        self.request_segments.walk(&mut cursor, len - staged, each);
    }

    /// Notes that the next `len` bytes of the oldest request have gone.
    pub(crate) fn advance(&mut self, len: usize) {
        let Some(request) = self.requests.front_mut() else { return };
        let staged = len.min(request.staged);
        self.staging.drain(..staged);
        request.staged -= staged;
        request.remaining -= len as u64;
        self.request_segments.walk(&mut request.cursor, len - staged, |_, _| {});
    }

    /// Moves the oldest request to `gone`. It ends when the peer has copied `until` in-place
    /// messages.
    pub(crate) fn finish_request(&mut self, until: u64) {
        if let Some(Request { work, kind, signalled, len, segments, .. }) = self.requests.pop_front() {
            self.gone.push_back(Gone { work, kind, signalled, len, segments, until });
        }
    }

    /// Returns whether a message may be sent in place while it is posted: nothing is queued before
    /// it, and there is room in the queue.
    #[inline]
    pub(crate) fn may_leave(&self) -> bool {
        self.requests.is_empty() && self.gone.len() + self.reads.len() + self.fresh < self.send_depth
    }

    /// Adds an in-place message of `len` bytes that was sent while it was posted. It ends when the
    /// peer has copied `until` in-place messages.
    #[inline]
    pub(crate) fn leave_in_place(&mut self, work: WorkId, segments: &[Segment], len: u64, signalled: bool, until: u64) {
        self.request_segments.push(segments);
        let segments = segments.len() as u32;
        self.gone.push_back(Gone { work, kind: WorkKind::Send, signalled, len, segments, until });
    }

    /// Ends the requests that have gone, in order, up to the first that waits for more than `taken`
    /// copied in-place messages. Returns whether any ended.
    pub(crate) fn complete_gone<C: Completions>(&mut self, taken: u64, done: &mut C) -> bool {
        let before = self.gone.len();
        while self.gone.front().is_some_and(|gone| gone.until <= taken)
            && let Some(gone) = self.gone.pop_front()
        {
            self.fresh += usize::from(C::LATER);
            if gone.signalled {
                done.report(self.event(gone.work, gone.kind, WorkStatus::Ok, gone.len, None));
            }
            self.request_segments.pop(gone.segments, |region| done.release(region));
        }
        self.gone.len() < before
    }

    // ---- reads and replies ----------------------------------------------------------------------

    /// Calls `each` with the places for the next `len` bytes of the oldest read.
    pub(crate) fn scatter(&self, len: usize, each: impl FnMut(*mut u8, usize)) {
        let Some(read) = self.reads.front() else { return };
        let mut cursor = read.cursor;
        self.read_segments.walk(&mut cursor, len, each);
    }

    /// Notes that the next `len` bytes of the oldest read have arrived.
    pub(crate) fn advance_read(&mut self, len: usize) {
        let Some(read) = self.reads.front_mut() else { return };
        read.remaining -= len as u64;
        self.read_segments.walk(&mut read.cursor, len, |_, _| {});
    }

    /// Ends the oldest read. Reports its completion if it is signalled.
    pub(crate) fn complete_read<C: Completions>(&mut self, done: &mut C) {
        let Some(read) = self.reads.pop_front() else { return };
        self.issued = self.issued.saturating_sub(1);
        self.fresh += usize::from(C::LATER);
        if read.signalled {
            done.report(self.event(read.work, WorkKind::Read, WorkStatus::Ok, read.len, None));
        }
        self.read_segments.pop(read.segments, |region| done.release(region));
    }

    /// Queues the reply to a read of the peer. Returns false if the peer has too many reads
    /// outstanding.
    pub(crate) fn add_reply(&mut self, id: u32, key: u64, segment: Segment) -> bool {
        if self.replies.len() >= MAX_READS {
            return false;
        }
        self.replies.push_back(Reply { id, key, segment, sent: 0 });
        true
    }

    /// Returns whether a queued reply reads from this exposure.
    pub(crate) fn replies_with(&self, key: u64) -> bool {
        self.replies.iter().any(|reply| reply.key == key)
    }

    // ---- receives -------------------------------------------------------------------------------

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

    // ---- the end --------------------------------------------------------------------------------

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
