//! The queues of a connection: posted requests that wait, requests that the adapter has, receives.
//!
//! **Protocol** of a request on its way out:
//!
//! ```text
//!   post ──> waiting ──flush──┬─ send, write ──────────────────────> adapter's send queue ──completion──> event
//!                             └─ read ──> reads, beyond the limit ──────^
//! ```
//!
//! **Doorbells.** The first request after a poll is handed over at once, so a single message never
//! waits. Requests that are posted after it, before the next poll, are collected. The next poll
//! hands them over as one linked list: one doorbell, on Soft-RoCE one system call. The backend asks
//! the adapter to signal one of the unsignalled requests per quarter of the queue or of the staging
//! ring. So it learns that there is room again.
//!
//! **Zero-length accesses.** Adapters do not check the key of an access of no bytes (InfiniBand
//! specification, C9-88), but the contract requires it (C7). So the peer's program is asked over
//! the side channel before such a request. It is also asked before a request with a key that no
//! adapter can have. Requests posted later wait for the answer. Such requests are rare, so their
//! low speed does not matter.
//!
//! **Invariants**
//! 1. A request's segments stay in the segment queue beside its record until it has ended. So the
//!    memory that the adapter accesses is held (C5).
//! 2. The requests, the waiting ones and the reads together are never more than the depth. The
//!    adapter's queue has room for one more, the marker.
//! 3. Completions come in the order of the adapter's queue, so one completion means that all
//!    requests before it are done.
//!
//! **Tests**: the conformance suite.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bmi_backend::{EventQueue, total_len};
use bmi_core::transport::{
    ConnId, Event, Payload, PostError, WorkCompletion, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget,
};
use bmi_core::{MemoryRegion, RemoteSlice, Segment};

use crate::config::{IbConfig, MAX_SEGMENTS, MAX_WORK_LEN};
use crate::greeting::Message;
use crate::memory::{Exposures, Keys};
use crate::staging::{Place, Staging};
use crate::verbs::{self, Chain, Domain, Opcode, SendWork, Sge};

/// Set in the id of a receive.
const RECV: u64 = 1 << 63;

/// Returns the part of a work request's id that names the connection. The rest is the request's
/// number.
pub(crate) fn tag(conn: ConnId) -> u64 {
    (u64::from(conn.slot) & 0xf_ffff) << 43 | (u64::from(conn.generation) & 0x7ff) << 32
}

/// Splits an id into the slot, the tag, whether it is a receive, and the number.
pub(crate) fn parse_name(id: u64) -> (u32, u64, bool, u32) {
    (((id >> 43) & 0xf_ffff) as u32, id & !RECV & !0xffff_ffff, id & RECV != 0, id as u32)
}

/// A request that the adapter does not have yet.
struct Planned {
    work: WorkId,
    kind: WorkKind,
    signalled: bool,
    len: u64,
    place: Place,
    segments: u32,
    /// Address and key.
    remote: Option<(u64, u64)>,
    immediate: Option<u32>,
    /// Set if the peer must be asked first.
    unchecked: bool,
}

/// A request that the adapter has.
struct Request {
    work: WorkId,
    /// `None` for the marker.
    kind: Option<WorkKind>,
    signalled: bool,
    len: u64,
    taken: usize,
    segments: u32,
}

struct Recv {
    work: WorkId,
    segments: u32,
}

/// All work posted on a connection.
pub(crate) struct QueuePair {
    conn: ConnId,
    // Dropped in this order: the queue pair first, so that the adapter accesses nothing any more;
    // the domain last. While the queue pair is being connected, a helper thread holds it too.
    pub(crate) verbs: Arc<verbs::QueuePair>,
    keys: Keys,
    pub(crate) exposures: Exposures,
    staging: Staging,
    domain: Arc<Domain>,
    depth: usize,
    recv_depth: usize,
    /// Most reads that may be outstanding.
    pub(crate) max_reads: usize,
    requests: VecDeque<Request>,
    request_segments: VecDeque<Segment>,
    waiting: VecDeque<Planned>,
    waiting_segments: VecDeque<Segment>,
    reads: VecDeque<Planned>,
    read_segments: VecDeque<Segment>,
    reads_out: usize,
    recvs: VecDeque<Recv>,
    recv_segments: VecDeque<Segment>,
    next_send: u32,
    next_recv: u32,
    /// Requests, and bytes staged for them, since the last request that the adapter was asked to
    /// signal.
    silent: usize,
    silent_bytes: usize,
    /// Set if something was handed over since the last poll.
    rang: bool,
    /// Set while the peer has been asked about the first waiting request.
    asked: bool,
    marked: bool,
}

/// The result of a flush.
pub(crate) enum Flushed {
    /// All requests that may go have been handed over.
    Done,
    /// The peer must be asked this before more requests may go.
    Ask(Message),
}

/// Returns how many of the `len` bytes of a receive's next segment are passed to the adapter. No
/// message is longer than `max_work_len`, so bytes of a receive beyond that are never written.
/// Also, an entry's length has 32 bits.
fn take_room(room: &mut u64, len: usize) -> u32 {
    let len = (*room).min(len as u64);
    *room -= len;
    len as u32 // at most `MAX_WORK_LEN`
}

impl QueuePair {
    pub(crate) fn new(
        conn: ConnId,
        verbs: verbs::QueuePair,
        domain: Arc<Domain>,
        config: &IbConfig,
    ) -> Result<QueuePair, bmi_core::Error> {
        let staging = Staging::new(&domain, config.tuning.staging.max(32 << 10))?;
        let depth = config.tuning.send_queue_depth;
        Ok(QueuePair {
            conn,
            verbs: Arc::new(verbs),
            keys: Keys::default(),
            exposures: Exposures::default(),
            staging,
            domain,
            depth,
            recv_depth: config.tuning.recv_queue_depth,
            max_reads: usize::from(config.tuning.max_outstanding_reads),
            requests: VecDeque::with_capacity(depth + 2),
            request_segments: VecDeque::with_capacity(depth),
            waiting: VecDeque::with_capacity(depth),
            waiting_segments: VecDeque::with_capacity(depth),
            reads: VecDeque::with_capacity(depth),
            read_segments: VecDeque::with_capacity(depth),
            reads_out: 0,
            recvs: VecDeque::with_capacity(config.tuning.recv_queue_depth),
            recv_segments: VecDeque::with_capacity(config.tuning.recv_queue_depth),
            next_send: 0,
            next_recv: 0,
            silent: 0,
            silent_bytes: 0,
            rang: false,
            asked: false,
            marked: false,
        })
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    // ---- registrations --------------------------------------------------------------------------

    /// Returns the first region among those of `segments` that this connection has not registered
    /// yet.
    pub(crate) fn unregistered<'s>(&self, segments: &'s [Segment]) -> Option<&'s MemoryRegion> {
        let missing = segments.iter().find(|s| !s.is_empty() && self.keys.local(s.region()).is_none());
        missing.map(Segment::region)
    }

    pub(crate) fn register(&mut self, region: &MemoryRegion) -> Result<(), bmi_core::Error> {
        self.keys.add(&self.domain, region)
    }

    pub(crate) fn forget(&mut self, region: usize) {
        self.keys.forget(region);
    }

    /// Returns an entry for the first `len` bytes of a segment.
    fn entry(&self, segment: &Segment, len: u32) -> Sge {
        // The region was registered when the segment was posted, and has been held since.
        let key = self.keys.local(segment.region()).unwrap_or(0);
        Sge::new(segment.as_ptr() as u64, len, key)
    }

    // ---- posting --------------------------------------------------------------------------------

    pub(crate) fn post_recv(&mut self, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        if self.recvs.len() >= self.recv_depth {
            return Err(PostError::QueueFull);
        }
        let mut entries = [Sge::new(0, 0, 0); MAX_SEGMENTS];
        let mut count = 0;
        let mut room = MAX_WORK_LEN;
        for segment in segments.iter().filter(|segment| !segment.is_empty()) {
            let len = take_room(&mut room, segment.len());
            if len > 0 {
                entries[count] = self.entry(segment, len);
                count += 1;
            }
        }
        let id = RECV | tag(self.conn) | u64::from(self.next_recv);
        // SAFETY: the segments are held until the receive has ended (invariant 1), or until the
        // queue pair is gone.
        match unsafe { self.verbs.post_receive(id, &entries[..count]) } {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => return Err(PostError::QueueFull),
            Err(_) => return Err(PostError::NotConnected),
        }
        self.next_recv = self.next_recv.wrapping_add(1);
        self.recv_segments.extend(segments.iter().cloned());
        self.recvs.push_back(Recv { work, segments: segments.len() as u32 });
        Ok(())
    }

    pub(crate) fn post_send(
        &mut self,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let (slices, segments) = match payload {
            Payload::Inline(slices) => (slices, &[][..]),
            Payload::Gather(segments) => (&[][..], segments),
        };
        let staged = head.len() + slices.iter().map(|slice| slice.len()).sum::<usize>();
        let planned = self.plan(WorkKind::Send, work, staged, segments, options, None)?;
        self.staging.fill(planned.place, head, slices);
        self.enqueue(planned, segments);
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
        let remote = Some(target.remote);
        let mut planned = self.plan(WorkKind::Write, work, head.len(), segments, options, remote)?;
        planned.immediate = target.immediate;
        self.staging.fill(planned.place, head, &[]);
        self.enqueue(planned, segments);
        Ok(())
    }

    pub(crate) fn post_read(
        &mut self,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let planned = self.plan(WorkKind::Read, work, 0, segments, options, Some(remote))?;
        self.enqueue(planned, segments);
        Ok(())
    }

    fn plan(
        &mut self,
        kind: WorkKind,
        work: WorkId,
        staged: usize,
        segments: &[Segment],
        options: WorkOptions,
        remote: Option<RemoteSlice>,
    ) -> Result<Planned, PostError> {
        if self.requests.len() + self.waiting.len() + self.reads.len() >= self.depth {
            return Err(PostError::QueueFull);
        }
        let place = self.staging.take(staged).ok_or(PostError::QueueFull)?;
        let len = staged as u64 + total_len(segments);
        let unchecked = remote.is_some_and(|remote| len == 0 || remote.key.0 > u64::from(u32::MAX));
        let remote = remote.map(|remote| (remote.addr, remote.key.0));
        let (signalled, segments) = (options.signalled, segments.len() as u32);
        Ok(Planned { work, kind, signalled, len, place, segments, remote, immediate: None, unchecked })
    }

    fn enqueue(&mut self, planned: Planned, segments: &[Segment]) {
        self.waiting_segments.extend(segments.iter().cloned());
        self.waiting.push_back(planned);
    }

    /// Returns whether the request that was just posted should be handed over at once.
    pub(crate) fn rings_at_once(&self) -> bool {
        !self.rang && self.waiting.len() == 1
    }

    // ---- what goes out --------------------------------------------------------------------------

    /// Returns whether a flush would find something that may go.
    pub(crate) fn has_waiting(&self) -> bool {
        (!self.waiting.is_empty() && !self.asked) || self.may_read()
    }

    fn may_read(&self) -> bool {
        !self.reads.is_empty() && self.reads_out < self.max_reads
    }

    /// Notes that a poll has begun.
    pub(crate) fn begin_poll(&mut self) {
        self.rang = false;
    }

    /// Lets the first waiting request go, because the peer allows it. Returns false if the peer was
    /// not asked.
    pub(crate) fn allow(&mut self) -> bool {
        let asked = std::mem::take(&mut self.asked);
        if let (true, Some(first)) = (asked, self.waiting.front_mut()) {
            first.unchecked = false;
        }
        asked
    }

    /// Hands over the requests that may go.
    pub(crate) fn flush(&mut self, chain: &mut Chain) -> io::Result<Flushed> {
        let mut outcome = Flushed::Done;
        while !self.asked
            && let Some(first) = self.waiting.front()
        {
            if first.unchecked {
                let (addr, key) = first.remote.unwrap_or_default();
                self.asked = true;
                outcome = Flushed::Ask(Message::Check { key, addr, write: first.kind == WorkKind::Write });
                break;
            }
            let planned = self.waiting.pop_front().expect("looked at above");
            let count = planned.segments as usize;
            if planned.kind == WorkKind::Read && (!self.reads.is_empty() || self.reads_out >= self.max_reads) {
                self.read_segments.extend(self.waiting_segments.drain(..count));
                self.reads.push_back(planned);
                continue;
            }
            self.request_segments.extend(self.waiting_segments.drain(..count));
            self.issue(planned, chain)?;
        }
        while self.may_read() {
            let planned = self.reads.pop_front().expect("there is one");
            self.request_segments.extend(self.read_segments.drain(..planned.segments as usize));
            self.issue(planned, chain)?;
        }
        self.ring(chain)?;
        Ok(outcome)
    }

    /// Adds a request to the chain. Its segments must be the last of `request_segments`.
    fn issue(&mut self, planned: Planned, chain: &mut Chain) -> io::Result<()> {
        let Planned { work, kind, signalled, len, place, segments, remote, immediate, .. } = planned;
        if kind == WorkKind::Read {
            self.reads_out += 1;
        }
        (self.silent, self.silent_bytes) = (self.silent + 1, self.silent_bytes + place.taken);
        let due = self.silent * 4 >= self.depth || self.silent_bytes * 4 >= self.staging.len();
        let told = signalled || kind == WorkKind::Read || due;
        if told {
            (self.silent, self.silent_bytes) = (0, 0);
        }
        let mut entries = [Sge::new(0, 0, 0); MAX_SEGMENTS + 1];
        let mut count = 0;
        if place.len > 0 {
            entries[0] = self.staging.entry(place);
            count = 1;
        }
        let first = self.request_segments.len() - segments as usize;
        for segment in self.request_segments.range(first..).filter(|segment| !segment.is_empty()) {
            // Not truncated: it is no longer than `max_work_len`.
            entries[count] = self.entry(segment, segment.len() as u32);
            count += 1;
        }
        // Not truncated: a key that no adapter has was asked for and refused before.
        let (addr, key) = remote.map_or((0, 0), |(addr, key)| (addr, key as u32));
        let opcode = match (kind, immediate) {
            (WorkKind::Read, _) => Opcode::Read(addr, key),
            (WorkKind::Write, Some(immediate)) => Opcode::WriteWithImmediate(addr, key, immediate),
            (WorkKind::Write, None) => Opcode::Write(addr, key),
            _ => Opcode::Send,
        };
        let inline = kind != WorkKind::Read && len <= u64::from(self.verbs.limits().inline);
        let id = tag(self.conn) | u64::from(self.next_send);
        self.next_send = self.next_send.wrapping_add(1);
        self.requests.push_back(Request { work, kind: Some(kind), signalled, len, taken: place.taken, segments });
        chain.push(&SendWork { id, opcode, segments: &entries[..count], signalled: told, inline });
        if chain.is_full() { self.ring(chain) } else { Ok(()) }
    }

    fn ring(&mut self, chain: &mut Chain) -> io::Result<()> {
        if chain.is_empty() {
            return Ok(());
        }
        self.rang = true;
        // SAFETY: segments and staged bytes are held until their request has ended (invariant 1),
        // or until the queue pair is gone.
        unsafe { self.verbs.post_send(chain) }.map_err(|(_, error)| error)
    }

    /// Returns whether all posted requests have left and ended.
    pub(crate) fn all_sent(&self) -> bool {
        self.requests.is_empty() && self.waiting.is_empty()
    }

    /// Posts a signalled request without effect behind all others, unless it was already posted.
    /// When it has ended, all others have.
    pub(crate) fn mark(&mut self, chain: &mut Chain) -> io::Result<()> {
        if std::mem::replace(&mut self.marked, true) || self.requests.is_empty() {
            return Ok(());
        }
        let id = tag(self.conn) | u64::from(self.next_send);
        self.next_send = self.next_send.wrapping_add(1);
        let marker = WorkId(0);
        self.requests.push_back(Request { work: marker, kind: None, signalled: false, len: 0, taken: 0, segments: 0 });
        chain.push(&SendWork { id, opcode: Opcode::Write(0, 0), segments: &[], signalled: true, inline: false });
        self.ring(chain)
    }

    /// Puts the queue pair into the error state, so that all requests of the adapter are flushed.
    pub(crate) fn fail(&mut self, chain: &mut Chain) -> io::Result<()> {
        self.verbs.fail()?;
        self.marked = false;
        self.mark(chain)
    }

    /// Returns whether the adapter has no work left.
    pub(crate) fn is_drained(&self) -> bool {
        self.requests.is_empty() && self.recvs.is_empty()
    }

    // ---- completions ----------------------------------------------------------------------------

    /// Ends the oldest receive. Returns false if there is none.
    pub(crate) fn complete_recv(
        &mut self,
        status: WorkStatus,
        len: u64,
        immediate: Option<u32>,
        events: &mut Vec<Event>,
    ) -> bool {
        let Some(recv) = self.recvs.pop_front() else { return false };
        self.recv_segments.drain(..recv.segments as usize);
        events.push(self.event(recv.work, WorkKind::Recv, status, len, immediate));
        true
    }

    /// Ends the request of this number, and, with success, all before it. Returns its kind, or
    /// `None` for the marker and for a number that is not outstanding.
    pub(crate) fn complete_send(
        &mut self,
        number: u32,
        status: impl FnOnce(WorkKind) -> WorkStatus,
        events: &mut Vec<Event>,
    ) -> Option<WorkKind> {
        let oldest = self.next_send.wrapping_sub(self.requests.len() as u32);
        let before = number.wrapping_sub(oldest) as usize;
        if before >= self.requests.len() {
            return None; // not a request that is outstanding here
        }
        for _ in 0..before {
            self.end_oldest(WorkStatus::Ok, events);
        }
        let kind = self.requests.front().and_then(|request| request.kind);
        self.end_oldest(kind.map_or(WorkStatus::Ok, status), events);
        kind
    }

    fn end_oldest(&mut self, status: WorkStatus, events: &mut Vec<Event>) {
        let Some(request) = self.requests.pop_front() else { return };
        self.request_segments.drain(..request.segments as usize);
        self.staging.give_back(request.taken);
        if request.kind == Some(WorkKind::Read) {
            self.reads_out -= 1;
        }
        if let Some(kind) = request.kind.filter(|_| request.signalled || status != WorkStatus::Ok) {
            events.push(self.event(request.work, kind, status, request.len, None));
        }
    }

    /// Destroys the queue pair, then ends all work that has not ended.
    pub(crate) fn end(self, events: &mut EventQueue) {
        let QueuePair { conn, verbs, requests, waiting, reads, recvs, .. } = self;
        // From here on the adapter accesses nothing. The segments are released when this returns.
        drop(verbs);
        let asked = requests.into_iter().filter_map(|request| Some((request.work, request.kind?, request.len)));
        let planned = waiting.into_iter().chain(reads).map(|planned| (planned.work, planned.kind, planned.len));
        let receives = recvs.into_iter().map(|recv| (recv.work, WorkKind::Recv, 0));
        events.extend(asked.chain(planned).chain(receives).map(|(work, kind, len)| {
            let status = WorkStatus::Flushed;
            Event::Work(WorkCompletion { conn, work, kind, status, len, immediate: None })
        }));
    }

    fn event(&self, work: WorkId, kind: WorkKind, status: WorkStatus, len: u64, immediate: Option<u32>) -> Event {
        Event::Work(WorkCompletion { conn: self.conn, work, kind, status, len, immediate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A regression test. The length of a receive's segment was truncated to 32 bits. A segment of
    /// 4 GiB had no room at all, and the first message for it ended the connection.
    #[test]
    fn receives_of_gigabytes_have_room_for_any_message() {
        let given = |lens: &[usize]| {
            let mut room = MAX_WORK_LEN;
            lens.iter().map(|len| u64::from(take_room(&mut room, *len))).collect::<Vec<_>>()
        };
        assert_eq!(given(&[4 << 30]), [MAX_WORK_LEN]);
        assert_eq!(given(&[10, 5 << 30, 7]), [10, MAX_WORK_LEN - 10, 0]);
        assert_eq!(given(&[1 << 20; 3]), [1 << 20; 3]);
    }

    #[test]
    fn names_are_parsed_back() {
        for (slot, generation) in [(0, 0), (5, 2047), (0xf_ffff, 1)] {
            let conn = ConnId { slot, generation };
            for number in [0, 7, u32::MAX] {
                let id = tag(conn) | u64::from(number);
                assert_eq!(parse_name(id), (slot, tag(conn), false, number));
                assert_eq!(parse_name(id | RECV), (slot, tag(conn), true, number));
            }
        }
    }
}
