//! Probes: small questions that the peer's endpoint answers. With them an adapter can be measured
//! over a live connection without the help of the peer's program (see [`crate::comm::calibrate`]).
//!
//! **Protocol**
//!
//! ```text
//!   Probe Echo, any payload, as an eager message or into a slot  ──>  payload is dropped
//!                                                      <──  Probe Answer
//!   Probe Open                                         ──>  a probe area is made and exposed to the peer
//!                                                      <──  Probe Answer, 24 bytes: the area
//!   any number of RDMA reads and writes of the area
//! ```
//!
//! **Invariants**
//! 1. With probes a peer can make this side hold one exposure and one area of [`AREA`] bytes for
//!    each connection, until the connection ends. An area is zero at first and is never given to
//!    another peer. So a peer reads there only what it has written itself.
//! 2. Answers count towards the limit of all answers. They spend message credits and no bytes.
//! 3. An answer to a question that has ended is ignored.
//!
//! **Source.** Ours. The thresholds of the paper were found by hand ([PVFS-IB §6.5]).

use super::Endpoint;
use super::op::{Op, State};
use super::peer::{Notice, Repost};
use super::receive::Violation;
use super::send::{Attempt, Message};
use super::timing;
use super::work::Work;
use crate::bulk::BulkDescriptor;
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, Memory, RemoteSlice};
use crate::op::{OpId, OpKind, Options, PeerId};
use crate::proto::credit;
use crate::proto::header::{HEADER_LEN, Header, Kind};
use crate::transport::{ConnId, Payload, ServiceClass, Transport, WorkOptions};

/// Size of the area that a peer may read and write, in bytes: as much as a fast-RDMA slot moves.
pub(crate) const AREA: usize = 64 << 10;

/// The purpose of a probe, in the `op` of its header.
const ECHO: u64 = 0;
const ANSWER: u64 = 1;
const OPEN: u64 = 2;

/// The path of a question with a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbePath {
    /// As an eager message.
    Eager,
    /// By a write with immediate data into a slot of the peer.
    Fast,
}

/// The probe areas that an endpoint and a peer know of each other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Areas {
    /// The peer answers probes.
    pub(super) understood: bool,
    /// Our area, as the peer names it.
    ours: Option<RemoteSlice>,
    /// The peer's area.
    theirs: Option<RemoteSlice>,
}

impl<T: Transport> Endpoint<T> {
    // ---- asking ---------------------------------------------------------------------------------

    /// Asks `peer` to answer a message with this payload. The operation ends with the answer.
    ///
    /// # Errors
    /// `Unsupported` if the peer does not answer probes, `Exhausted` if the message cannot leave at
    /// once, `PeerLost`.
    pub(crate) fn post_echo(
        &mut self,
        peer: PeerId,
        path: ProbePath,
        list: MemList,
        options: Options,
    ) -> Result<OpId, Error> {
        self.check_probe(peer)?;
        let id = self.insert_op(OpKind::Probe, Some(peer), 0, None, options, State::Waiting);
        let name = timing::name_of(id);
        // A send of its own, which is never collected. The question may be sent from registered
        // memory.
        let (options, state) = (Options::default(), State::Posted);
        let sending = self.insert_op(OpKind::Send, Some(peer), name, Some(list.clone()), options, state);
        if let Some(op) = self.ops.get_mut(sending.0) {
            op.abandoned = true;
        }
        let class = ServiceClass::Message;
        let attempt = match path {
            ProbePath::Eager => {
                let path = self.eager_path(peer, &list);
                self.send_eager(path, peer, Kind::Probe, name, &list, class, Some(sending))
            }
            ProbePath::Fast => self.send_fast(peer, Kind::Probe, name, &list, class, Some(sending)),
        };
        if let Attempt::Posted = attempt {
            self.peers.get_mut(peer.0).expect("checked").busy += 1;
            return Ok(id);
        }
        self.finish(sending, Ok(()), 0);
        match attempt {
            Attempt::Sent => Ok(id),
            _ => {
                self.ops.forget(id);
                Err(Error::new(ErrorKind::Exhausted, "no room for a probe now: the connection is busy"))
            }
        }
    }

    /// Asks `peer` for its area, which is known when the operation has ended.
    ///
    /// # Errors
    /// As [`Endpoint::post_echo`].
    pub(crate) fn post_open(&mut self, peer: PeerId, options: Options) -> Result<OpId, Error> {
        self.check_probe(peer)?;
        let credit = self.peers.get_mut(peer.0).and_then(|peer| peer.credit.as_mut());
        if !credit.is_some_and(|credit| credit.spend_message()) {
            return Err(Error::new(ErrorKind::Exhausted, "no credit for a probe now"));
        }
        let id = self.insert_op(OpKind::Probe, Some(peer), 0, None, options, State::Waiting);
        let message = Message { kind: Kind::Probe, tag: timing::name_of(id), len: 0, op: OPEN };
        if let Err(error) = self.transmit_control(peer, message) {
            self.unspend(peer, 0);
            self.refused(peer, error);
            self.ops.forget(id);
            return Err(Error::new(ErrorKind::Exhausted, "no room for a probe now: the adapter is busy"));
        }
        Ok(id)
    }

    /// Returns the area of a peer, once the peer has described it.
    pub(crate) fn probe_area(&self, peer: PeerId) -> Option<BulkDescriptor> {
        let area = self.peers.get(peer.0)?.areas.theirs?;
        BulkDescriptor::try_from(vec![area]).ok()
    }

    fn check_probe(&self, peer: PeerId) -> Result<(), Error> {
        let record = self.peers.get(peer.0).filter(|peer| peer.is_up()).ok_or_else(|| self.lost_error(peer))?;
        if record.areas.understood {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unsupported, "the peer answers no probes").with_peer(&record.addr))
    }

    // ---- answering ------------------------------------------------------------------------------

    /// Handles a probe in a receive slot.
    pub(super) fn on_probe(
        &mut self,
        peer_id: PeerId,
        slot: usize,
        header: &Header,
        len: usize,
    ) -> Result<(), Violation> {
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        // Only questions spend bytes for their payload.
        let cost = if header.op == ECHO { credit::cost(len) } else { 0 };
        peer.grant.arrived(cost)?;
        peer.grant.unparked(cost);
        // SAFETY: the completion just gave the slot back, and it is posted again only below.
        let payload = &unsafe { peer.slots.bytes(slot, HEADER_LEN + len) }[HEADER_LEN..];
        let area = payload.first_chunk().filter(|_| header.op == ANSWER).map(RemoteSlice::from_wire);
        self.repost(peer_id, slot, Repost::Message);
        match header.op {
            ECHO => self.answer(peer_id, Notice::Answer { name: header.tag, area: None }),
            OPEN if len == 0 => {
                let area = self.open_area(peer_id);
                self.answer(peer_id, Notice::Answer { name: header.tag, area })
            }
            ANSWER if len == 0 || area.is_some() && len == RemoteSlice::WIRE_LEN => {
                if let (Some(area), Some(peer)) = (area, self.peers.get_mut(peer_id.0)) {
                    peer.areas.theirs = Some(area);
                }
                self.answered(peer_id, header.tag);
                Ok(())
            }
            _ => Err("a probe of unknown purpose"),
        }
    }

    /// Handles a question in a fast-RDMA slot.
    pub(super) fn on_fast_probe(&mut self, peer: PeerId, slot: u8, header: &Header) -> Result<(), Violation> {
        self.free_fast(peer, slot);
        self.answer(peer, Notice::Answer { name: header.tag, area: None })
    }

    fn answered(&mut self, peer: PeerId, name: u64) {
        let id = timing::op_of(name);
        let asked = |op: &Op| op.kind == OpKind::Probe && op.peer == Some(peer) && matches!(op.state, State::Waiting);
        if self.ops.get(id.0).is_some_and(asked) {
            self.finish(id, Ok(()), 0);
        }
    }

    /// Sends an answer. Returns true if the notice is off the list.
    pub(super) fn send_answer(&mut self, peer_id: PeerId, name: u64, area: Option<RemoteSlice>) -> bool {
        let credit = self.peers.get_mut(peer_id.0).and_then(|peer| peer.credit.as_mut());
        if !credit.is_some_and(|credit| credit.spend_message()) {
            return false;
        }
        let wire = area.map(|area| area.to_wire());
        let more = wire.as_ref().map_or(&[][..], |wire| &wire[..]);
        let message = Message { kind: Kind::Probe, tag: name, len: more.len() as u64, op: ANSWER };
        let options = WorkOptions { signalled: false, class: ServiceClass::Control };
        if let Err(error) = self.transmit(peer_id, message, more, Payload::EMPTY, Work::Silent, options) {
            self.unspend(peer_id, 0);
            self.refused(peer_id, error);
            return false;
        }
        if let Some(peer) = self.peers.get_mut(peer_id.0) {
            peer.notices.pop_front();
            peer.answers -= 1;
        }
        true
    }

    /// Exposes the area to the peer. Returns `None` if memory or registration cannot be had.
    fn open_area(&mut self, peer_id: PeerId) -> Option<RemoteSlice> {
        let peer = self.peers.get(peer_id.0)?;
        if let Some(known) = peer.areas.ours {
            return Some(known);
        }
        let conn = peer.conn;
        let area = self.make_area(conn).inspect_err(|error| tracing::debug!(%error, "no probe area")).ok()?;
        self.peers.get_mut(peer_id.0)?.areas.ours = Some(area);
        Some(area)
    }

    /// Makes an area. Its exposure holds it until the connection ends.
    fn make_area(&mut self, conn: ConnId) -> Result<RemoteSlice, Error> {
        let memory = Memory::sparse(AREA)?;
        let region = self.registry.register_own(|| self.transport.register(&memory))?;
        self.transport.expose(conn, &region.segment(0, AREA), Access::READ_WRITE)
    }
}
