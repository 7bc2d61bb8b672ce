//! One side of a connection, and the work requests that are posted to it.

use std::collections::VecDeque;

use bmi_core::transport::{Event as Report, WorkId, WorkKind, WorkStatus, WriteTarget};
use bmi_core::{RemoteSlice, Segment, ServiceClass};

use super::memory::Exposures;
use crate::engine::ConnRef;
use crate::model::network::InOrder;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Connecting,
    Requested,
    Accepting,
    Open,
    Closing,
}

/// A send or a write.
#[derive(Debug)]
pub(crate) struct SendWork {
    pub(crate) work: WorkId,
    pub(crate) signalled: bool,
    pub(crate) class: ServiceClass,
    pub(crate) len: u64,
    /// The target of a write; `None` for a send.
    pub(crate) target: Option<WriteTarget>,
    pub(crate) bytes: Bytes,
}

impl SendWork {
    pub(super) fn kind(&self) -> WorkKind {
        if self.target.is_some() { WorkKind::Write } else { WorkKind::Send }
    }
}

/// The contents of a send or write: bytes captured when it was posted, then pieces of memory. The
/// vectors come from a pool and go back to it.
#[derive(Debug, Default)]
pub(crate) struct Bytes {
    pub(crate) captured: Vec<u8>,
    pub(crate) segments: Vec<Segment>,
}

#[derive(Debug)]
pub(crate) struct ReadWork {
    pub(crate) work: WorkId,
    pub(crate) signalled: bool,
    pub(crate) class: ServiceClass,
    pub(crate) len: u64,
    pub(crate) remote: RemoteSlice,
    pub(crate) segments: Vec<Segment>,
}

#[derive(Debug)]
pub(crate) struct RecvWork {
    pub(crate) work: WorkId,
    pub(crate) len: u64,
    pub(crate) segments: Vec<Segment>,
}

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) state: State,
    /// The other side, once it exists.
    pub(crate) peer: Option<ConnRef>,
    /// The node of the peer.
    pub(crate) peer_node: Option<u32>,
    /// The address of the peer, for errors.
    pub(crate) peer_name: String,
    pub(crate) sends: VecDeque<SendWork>,
    /// Number of the first entry of `sends`.
    pub(crate) sends_base: u64,
    /// Number of the first send or write that is not yet at the peer's adapter.
    pub(crate) arrived: u64,
    pub(crate) reads: VecDeque<ReadWork>,
    pub(crate) reads_base: u64,
    /// How many of `reads`, from the front, are outstanding.
    pub(crate) reads_issued: usize,
    pub(crate) receives: VecDeque<RecvWork>,
    /// Number of places taken in the send queue and in the receive queue.
    pub(crate) send_places: usize,
    pub(crate) recv_places: usize,
    pub(crate) exposures: Exposures,
    pub(crate) order: InOrder,
    /// Set by a plan of faults: the next message that arrives is damaged.
    pub(crate) deaf: bool,
    /// When the handshake, or the disconnect, is given up.
    pub(crate) deadline: u64,
}

impl Conn {
    pub(crate) fn new(state: State, peer: Option<ConnRef>, peer_node: Option<u32>, peer_name: String) -> Conn {
        Conn {
            state,
            peer,
            peer_node,
            peer_name,
            sends: VecDeque::new(),
            sends_base: 0,
            arrived: 0,
            reads: VecDeque::new(),
            reads_base: 0,
            reads_issued: 0,
            receives: VecDeque::new(),
            send_places: 0,
            recv_places: 0,
            exposures: Exposures::default(),
            order: InOrder::default(),
            deaf: false,
            deadline: u64::MAX,
        }
    }

    pub(super) fn send_mut(&mut self, number: u64) -> Option<&mut SendWork> {
        let index = number.checked_sub(self.sends_base)?;
        self.sends.get_mut(usize::try_from(index).ok()?)
    }
}

/// Vectors that are reused, so that posting allocates nothing in the steady state.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    captured: Vec<Vec<u8>>,
    segments: Vec<Vec<Segment>>,
}

impl Pool {
    /// Maximum number of vectors kept of each kind: several full send queues.
    const KEEP: usize = 4096;

    pub(crate) fn captured(&mut self) -> Vec<u8> {
        self.captured.pop().unwrap_or_default()
    }

    pub(crate) fn segments(&mut self, of: &[Segment]) -> Vec<Segment> {
        let mut segments = self.segments.pop().unwrap_or_default();
        segments.extend_from_slice(of);
        segments
    }

    fn keep_captured(&mut self, mut captured: Vec<u8>) {
        captured.clear();
        if self.captured.len() < Pool::KEEP {
            self.captured.push(captured);
        }
    }

    pub(crate) fn keep_segments(&mut self, mut segments: Vec<Segment>) {
        segments.clear();
        if self.segments.len() < Pool::KEEP {
            self.segments.push(segments);
        }
    }

    pub(crate) fn keep(&mut self, bytes: Bytes) {
        self.keep_captured(bytes.captured);
        self.keep_segments(bytes.segments);
    }
}

/// A place for a connection.
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) conn: Option<Box<Conn>>,
}

/// Returns whether the report is a message that has arrived in a receive.
pub(crate) fn is_message(report: &Report) -> bool {
    let message = (WorkKind::Recv, WorkStatus::Ok, None);
    matches!(report, Report::Work(done) if (done.kind, done.status, done.immediate) == message)
}
