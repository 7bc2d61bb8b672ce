//! Sends and writes: from the post until the peer has copied them.
//!
//! **Why.** A message that fits into the ring at once never enters a queue
//! ([`QueuePair::post_send`]): a [`Shortcut`] copies it while it is posted. A message that does not
//! fit waits here. Its head and inline bytes are copied to a staging buffer, and its segments are
//! held.

use bmi_backend::total_len;
use bmi_core::Segment;
use bmi_core::transport::{Payload, PostError, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget};

use super::QueuePair;
use crate::config::WORK_LIMITS;
use crate::work::completions::{Completions, Pending};
use crate::work::pen::Shortcut;
use crate::work::request::{Gone, Pages, Request};

impl QueuePair {
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

    /// Returns whether there are requests that have gone and wait for the peer.
    #[inline]
    pub(crate) fn has_gone(&self) -> bool {
        !self.gone.is_empty()
    }

    /// Returns whether there are requests, gone or not.
    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty() || self.has_gone()
    }

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
}
