//! The queues of a connection: posted requests that wait (`posts`), requests that the adapter has
//! (`doorbell`), receives. Here are registrations and completions.
//!
//! **Protocol** of a request on its way out:
//!
//! ```text
//!   post ──> waiting ──flush──┬─ send, write ──────────────────────> adapter's send queue ──completion──> event
//!                             └─ read ──> reads, beyond the limit ──────^
//! ```
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

mod doorbell;
mod ids;
mod posts;

use std::collections::VecDeque;
use std::sync::Arc;

use bmi_backend::EventQueue;
use bmi_core::transport::{ConnId, Event, WorkCompletion, WorkId, WorkKind, WorkStatus};
use bmi_core::{MemoryRegion, Segment};

pub(crate) use doorbell::Flushed;
pub(crate) use ids::{parse_name, tag};

use crate::config::IbConfig;
use crate::memory::{Exposures, Keys};
use crate::staging::{Place, Staging};
use crate::verbs::{self, Domain, Sge};

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

    /// Returns whether the adapter has no work left.
    pub(crate) fn is_drained(&self) -> bool {
        self.requests.is_empty() && self.recvs.is_empty()
    }

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
