//! The queues of a connection: requests to send, reads, replies to the peer's reads, receives.
//!
//! **Why three outgoing queues.** Sends and writes are ordered among themselves (C3). Reads are not
//! ordered. The replies to the peer's reads must neither wait for this side's requests nor delay
//! them. So each has its own queue, and [`QueuePair::commit`] takes turns:
//!
//! ```text
//!   reads, up to 64 outstanding ── all, 40 bytes each ──────┐
//!   requests (sends, writes) ───── frames, up to 256 KiB ───┼─> wire, a round at a time
//!   replies ────────────────────── one piece, 256 KiB ──────┘
//! ```
//!
//! The next round is put on the wire when the last one has left, so urgent work waits for one round
//! at most. Larger rounds do not pay. With 256 KiB in a system call, the receiver copies out of the
//! cache the bytes that the sender has just copied into it.
//!
//! **Invariants**
//! 1. A request is in its queue, and its segments are in the segment queue beside it, until the
//!    wire has sent its last byte (`end`). The same holds for replies. So the wire's references to
//!    memory stay valid.
//! 2. Queues are bounded by the capabilities. They grow to the largest size ever posted, and keep
//!    it, so that a connection of which little is asked costs little. An empty queue of requests
//!    begins at its front again, so it stays in the bytes that it has touched.
//! 3. `next_*` counts the entries at the front of a queue that are fully committed.

mod outgoing;
mod segments;
mod spread;

use std::collections::VecDeque;

use bmi_backend::software::{BadRequest, Blame, Refusal};
use bmi_backend::{Violation, total_len};
use bmi_core::transport::{
    ConnId, Event, Payload, PostError, WorkCompletion, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget,
};
use bmi_core::{RemoteSlice, Segment};

pub(crate) use self::segments::Cursor;
use self::segments::SegmentQueue;
pub(crate) use self::spread::{Part, PartTarget};
use self::spread::{Parts, SPREAD_FROM, Spread};
use crate::config::{MAX_HEAD, MAX_INLINE, MAX_READS, TcpConfig, Tuning, WORK_LIMITS};
use crate::frame::{Frame, LONG_HEADER, PIECE};
use crate::wire::Wire;

/// Gathered payload up to this many bytes is copied after its header. This is cheaper than an entry
/// of its own in the system call.
const COPY_LIMIT: usize = 2048;
/// A send or a write.
struct Request {
    work: WorkId,
    kind: WorkKind,
    signalled: bool,
    /// Length in bytes, head included.
    len: u64,
    /// Number of its bytes in the wire's ring, header included.
    staged: u32,
    /// Number of its entries in the segment queue.
    segments: u32,
    cursor: Cursor,
    /// Payload bytes that are not committed yet.
    left: u64,
    /// The wire's position after its last byte, once that is committed.
    end: u64,
    /// Its number among the long writes, if its bytes are spread over the streams.
    bulk: Option<u32>,
    /// Number of its parts that further streams have not sent.
    pending: u32,
}

/// A read of the peer's memory.
pub(crate) struct Read {
    work: WorkId,
    signalled: bool,
    remote: RemoteSlice,
    id: u32,
    segments: u32,
    /// Length in bytes.
    pub(crate) len: u64,
    /// Bytes that have not arrived yet.
    pub(crate) left: u64,
    /// What has not arrived yet on a connection of several streams.
    parts: Parts,
    /// The position of its first segment.
    first: Cursor,
}

/// A reply to a read of the peer.
struct Reply {
    id: u32,
    key: u64,
    segment: Segment,
    committed: usize,
    end: u64,
    /// As in a request.
    pending: u32,
}

/// A posted receive.
pub(crate) struct Recv {
    work: WorkId,
    segments: u32,
    /// Number of bytes that it can hold.
    pub(crate) room: u64,
}

/// All work posted on a connection.
pub(crate) struct QueuePair {
    conn: ConnId,
    pub(crate) wire: Wire,
    send_depth: usize,
    recv_depth: usize,
    requests: VecDeque<Request>,
    next_request: usize,
    request_segments: SegmentQueue,
    reads: VecDeque<Read>,
    issued: usize,
    next_read_id: u32,
    pub(crate) read_segments: SegmentQueue,
    replies: VecDeque<Reply>,
    next_reply: usize,
    recvs: VecDeque<Recv>,
    pub(crate) recv_segments: SegmentQueue,
    /// Bytes after which a round of work is long enough ([`QueuePair::adapt`]).
    round: u64,
    /// Present if the connection has several streams.
    spread: Option<Box<Spread>>,
}

impl QueuePair {
    pub(crate) fn new(conn: ConnId, config: &TcpConfig) -> QueuePair {
        let Tuning { send_queue_depth, recv_queue_depth, .. } = config.tuning;
        QueuePair {
            conn,
            // Has room for a full queue of requests, each with a header and the largest head.
            wire: Wire::new((send_queue_depth * (LONG_HEADER + MAX_HEAD)).max(4 * MAX_INLINE)),
            send_depth: send_queue_depth,
            recv_depth: recv_queue_depth,
            requests: VecDeque::new(),
            next_request: 0,
            request_segments: SegmentQueue::default(),
            reads: VecDeque::new(),
            issued: 0,
            next_read_id: 0,
            read_segments: SegmentQueue::default(),
            replies: VecDeque::new(),
            next_reply: 0,
            recvs: VecDeque::new(),
            recv_segments: SegmentQueue::default(),
            round: PIECE,
            spread: None,
        }
    }

    /// Returns the name of the connection.
    #[inline]
    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    // ---- incoming -------------------------------------------------------------------------------

    /// Returns the receive for the next message.
    pub(crate) fn next_recv(&self) -> Option<&Recv> {
        self.recvs.front()
    }

    /// Completes the oldest receive.
    pub(crate) fn complete_recv(&mut self, status: WorkStatus, len: u64, immediate: Option<u32>) -> Option<Event> {
        let recv = self.recvs.pop_front()?;
        self.recv_segments.pop(recv.segments);
        Some(self.event(recv.work, WorkKind::Recv, status, len, immediate))
    }

    /// Returns the read that the next reply answers, if it has this `id`.
    pub(crate) fn reply_to(&mut self, id: u32) -> Option<&mut Read> {
        self.reads.front_mut().filter(|read| self.issued > 0 && read.id == id)
    }

    /// Returns the read that is being answered.
    pub(crate) fn current_read(&mut self) -> Option<&mut Read> {
        self.reads.front_mut()
    }

    /// Completes the oldest read. Returns no event for a successful read that is not signalled.
    pub(crate) fn complete_read(&mut self, status: WorkStatus) -> Option<Event> {
        let read = self.reads.pop_front()?;
        self.read_segments.pop(read.segments);
        self.issued = self.issued.saturating_sub(1);
        let told = read.signalled || status != WorkStatus::Ok;
        told.then(|| self.event(read.work, WorkKind::Read, status, read.len, None))
    }

    /// Queues the reply to a read of the peer, unless the peer has too many outstanding reads. The
    /// numbers are in order where they tell replies apart.
    pub(crate) fn add_reply(&mut self, id: u32, key: u64, segment: Segment) -> Result<(), Violation> {
        if self.replies.len() >= MAX_READS {
            return Err(BadRequest::TooManyReads.into());
        }
        if self.spread.is_some() && self.replies.back().is_some_and(|last| id != last.id.wrapping_add(1)) {
            return Err(Violation::Order);
        }
        self.replies.push_back(Reply { id, key, segment, committed: 0, end: u64::MAX, pending: 0 });
        Ok(())
    }

    /// Returns true if a reply to the peer uses this exposure.
    pub(crate) fn replies_with(&self, key: u64) -> bool {
        self.replies.iter().any(|reply| reply.key == key)
    }

    /// Stops replying to reads of the peer. The part of a reply that is on the wire stays there.
    pub(crate) fn abandon_replies(&mut self) {
        if let Some(reply) = self.replies.get_mut(self.next_reply)
            && reply.committed > 0
        {
            reply.end = self.wire.committed();
            self.next_reply += 1;
        }
        self.replies.truncate(self.next_reply);
    }

    // ---- posting --------------------------------------------------------------------------------

    pub(crate) fn post_recv(&mut self, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        WORK_LIMITS.check_recv(segments)?;
        if self.recvs.len() >= self.recv_depth {
            return Err(PostError::QueueFull);
        }
        self.recv_segments.push(segments);
        self.recvs.push_back(Recv { work, segments: segments.len() as u32, room: total_len(segments) });
        Ok(())
    }

    /// Posts a receive that is the next to be used, except that a message may be `filling` the one
    /// at the front.
    pub(crate) fn post_recv_ahead(
        &mut self,
        work: WorkId,
        segments: &[Segment],
        filling: bool,
    ) -> Result<(), PostError> {
        WORK_LIMITS.check_recv(segments)?;
        if self.recvs.len() >= self.recv_depth {
            return Err(PostError::QueueFull);
        }
        let recv = Recv { work, segments: segments.len() as u32, room: total_len(segments) };
        match self.recvs.front().filter(|_| filling) {
            Some(front) => {
                self.recv_segments.insert(front.segments as usize, segments);
                self.recvs.insert(1, recv);
            }
            None => {
                self.recv_segments.insert(0, segments);
                self.recvs.push_front(recv);
            }
        }
        Ok(())
    }

    pub(crate) fn post_send(
        &mut self,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let len = WORK_LIMITS.check_send(head, payload)?;
        let segments = match payload {
            Payload::Inline(_) if len as usize + LONG_HEADER > self.wire.room() => return Err(PostError::QueueFull),
            Payload::Inline(_) => &[],
            Payload::Gather(segments) => segments,
        };
        let frame = Frame::Send { len };
        let request = self.stage(WorkKind::Send, work, &frame, len, head, segments, options)?;
        if let Payload::Inline(slices) = payload {
            for slice in slices {
                self.wire.stage_memory(slice);
            }
            let request = &mut self.requests[request];
            (request.staged, request.left) = (request.staged + request.left as u32, 0);
        }
        Ok(())
    }

    pub(crate) fn post_write(
        &mut self,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        target: WriteTarget,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let len = WORK_LIMITS.check_write(head, segments, &target)?;
        let (key, addr) = (target.remote.key.0, target.remote.addr);
        let frame = Frame::Write { len, key, addr, immediate: target.immediate };
        if self.spread.is_none() || len < SPREAD_FROM || !head.is_empty() {
            return self.stage(WorkKind::Write, work, &frame, len, head, segments, options).map(|_| ());
        }
        // Immediate data follows the bytes, in a write of none.
        let last = Frame::Write { len: 0, key, addr, immediate: target.immediate }.encode();
        let last = if target.immediate.is_some() { &last.0[..last.1] } else { &[] };
        let announcement = Frame::Bulk { len, key, addr };
        let request = self.stage(WorkKind::Write, work, &announcement, len, last, segments, options)?;
        let (Some(spread), request) = (&mut self.spread, &mut self.requests[request]) else { return Ok(()) };
        (request.left, request.bulk) = (len, Some(spread.next_write));
        spread.next_write = spread.next_write.wrapping_add(1);
        Ok(())
    }

    /// Queues a request that was checked and copies small payload. Returns the request's index in
    /// the queue.
    #[expect(clippy::too_many_arguments, reason = "the parts of a work request")]
    fn stage(
        &mut self,
        kind: WorkKind,
        work: WorkId,
        frame: &Frame,
        len: u64,
        head: &[u8],
        segments: &[Segment],
        options: WorkOptions,
    ) -> Result<usize, PostError> {
        let (header, header_len) = frame.encode();
        if self.requests.len() + self.reads.len() >= self.send_depth || header_len + head.len() > self.wire.room() {
            return Err(PostError::QueueFull);
        }
        self.wire.stage(&header[..header_len]);
        self.wire.stage(head);
        let mut request = Request {
            work,
            kind,
            signalled: options.signalled,
            len,
            staged: (header_len + head.len()) as u32,
            segments: 0,
            cursor: self.request_segments.end(),
            left: len - head.len() as u64,
            end: u64::MAX,
            bulk: None,
            pending: 0,
        };
        // Half of the ring is reserved for headers, so that a queue of full depth fits.
        let copy = total_len(segments) <= COPY_LIMIT as u64 && self.wire.room() > self.wire.capacity() / 2;
        if copy {
            for segment in segments {
                self.wire.stage_memory(&segment.to_slice());
                request.staged += segment.len() as u32;
                request.left -= segment.len() as u64;
            }
        } else {
            self.request_segments.push(segments);
            request.segments = segments.len() as u32;
        }
        self.requests.push_back(request);
        Ok(self.requests.len() - 1)
    }

    pub(crate) fn post_read(
        &mut self,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let len = WORK_LIMITS.check_read(segments, &remote)?;
        if self.requests.len() + self.reads.len() >= self.send_depth {
            return Err(PostError::QueueFull);
        }
        let first = self.read_segments.end();
        self.read_segments.push(segments);
        let id = self.next_read_id;
        self.next_read_id = id.wrapping_add(1);
        self.reads.push_back(Read {
            work,
            signalled: options.signalled,
            remote,
            id,
            segments: segments.len() as u32,
            len,
            left: len,
            parts: Parts::of(len),
            first,
        });
        Ok(())
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Flushes the work that waits for the peer: reads and receives.
    pub(crate) fn flush_waiting(&mut self, culprit: Option<Refusal>, mut report: impl FnMut(Event)) {
        let blame = Blame::new(culprit);
        while let Some(read) = self.reads.front() {
            let status = blame.status_of_read(read.id);
            self.complete_read(status).map(&mut report);
        }
        while let Some(event) = self.complete_recv(WorkStatus::Flushed, 0, None) {
            report(event);
        }
    }

    /// Flushes everything. The request that the peer refused gets the refusal's status, as far as
    /// this side can identify it.
    pub(crate) fn flush_all(&mut self, culprit: Option<Refusal>, mut report: impl FnMut(Event)) {
        let mut blame = Blame::new(culprit);
        while let Some(request) = self.requests.pop_front() {
            let status = blame.status(request.kind);
            report(self.event(request.work, request.kind, status, request.len, None));
        }
        self.flush_waiting(culprit, report);
    }

    fn event(&self, work: WorkId, kind: WorkKind, status: WorkStatus, len: u64, immediate: Option<u32>) -> Event {
        Event::Work(WorkCompletion { conn: self.conn, work, kind, status, len, immediate })
    }
}
