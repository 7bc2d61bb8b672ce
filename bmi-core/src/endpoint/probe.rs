//! Probes: small questions that the peer's endpoint answers by itself, so that an adapter can be
//! measured over a live connection without the help of the peer's program (see
//! [`crate::comm::calibrate`]).
//!
//! **Protocol**
//!
//! ```text
//!   Probe Echo, any payload, as an eager message or into a slot  ──>  thrown away
//!                                                      <──  Probe Answer
//!   Probe Open                                         ──>  the probe area, registered once, is exposed to this connection
//!                                                      <──  Probe Answer, 24 bytes: the area
//!   RDMA reads and writes of the area, as many as wanted
//! ```
//!
//! **Invariants**
//! 1. What a peer can make this side hold by probes is one exposure for each connection and one
//!    area of [`AREA`] bytes for the endpoint. The area holds what the peers' calibrations wrote
//!    there, which is nothing of anybody's.
//! 2. Answers are owed within the limit of all answers; they spend message credits and no bytes.
//! 3. An answer to a question that is no longer asked is ignored.
//!
//! **Source.** Not in the paper, whose thresholds were found by hand (section 6.5).

use super::Endpoint;
use super::op::{Op, State};
use super::peer::{Notice, Repost};
use super::receive::Violation;
use super::send::{Attempt, Message};
use super::timing;
use super::work::Work;
use crate::bulk::BulkDescriptor;
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, Memory, MemoryRegion, RemoteSlice};
use crate::op::{OpId, OpKind, Options, PeerId};
use crate::proto::credit;
use crate::proto::header::{HEADER_LEN, Header, Kind};
use crate::transport::{Payload, ServiceClass, Transport, WorkOptions};

/// Bytes of the area that peers may read and write: as much as a fast-RDMA slot moves.
pub(crate) const AREA: usize = 64 << 10;

/// What a probe is, as its header's `op` says.
const ECHO: u64 = 0;
const ANSWER: u64 = 1;
const OPEN: u64 = 2;

/// How a question with a payload travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbePath {
    /// As an eager message.
    Eager,
    /// By a write with immediate data into a slot of the peer.
    Fast,
}

/// What an endpoint and its peers know of each other's areas.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Areas {
    /// The peer answers probes.
    pub(super) understood: bool,
    /// Ours, as the peer names it.
    ours: Option<RemoteSlice>,
    /// The peer's.
    theirs: Option<RemoteSlice>,
}

impl<T: Transport> Endpoint<T> {
    // ---- who asks -------------------------------------------------------------------------------

    /// Asks `peer` to answer a message of this payload; the operation ends with the answer.
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
        // A send of its own, which nobody collects: the question may leave from registered memory.
        let (options, state) = (Options::default(), State::Posted);
        let sending = self.insert_op(OpKind::Send, Some(peer), name, Some(list.clone()), options, state);
        if let Some(op) = self.ops.get_mut(sending.0) {
            op.abandoned = true;
        }
        let class = ServiceClass::Message;
        let attempt = match path {
            ProbePath::Eager => self.send_eager(peer, Kind::Probe, name, &list, class, Some(sending)),
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

    /// Asks `peer` for its area; known when the operation has ended.
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

    /// The area of a peer, once it has told.
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

    // ---- who answers ----------------------------------------------------------------------------

    /// A probe came in a receive slot.
    pub(super) fn on_probe(
        &mut self,
        peer_id: PeerId,
        slot: usize,
        header: &Header,
        len: usize,
    ) -> Result<(), Violation> {
        let peer = self.peers.get_mut(peer_id.0).expect("the caller has it");
        // Only questions have a payload that was paid for.
        let cost = if header.op == ECHO { credit::cost(len) } else { 0 };
        peer.grant.arrived(cost)?;
        peer.grant.unparked(cost);
        // SAFETY: the completion just gave the slot back; it is posted again only below.
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

    /// A question came in a fast-RDMA slot.
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

    /// Sends an answer; says whether it is off the list.
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

    /// The area, exposed to the peer; `None` if there is no memory or no registration to be had.
    fn open_area(&mut self, peer_id: PeerId) -> Option<RemoteSlice> {
        let peer = self.peers.get(peer_id.0)?;
        if let Some(known) = peer.areas.ours {
            return Some(known);
        }
        let conn = peer.conn;
        let region = match &self.probe_region {
            Some(region) => region.clone(),
            None => self.make_area().inspect_err(|error| tracing::debug!(%error, "no probe area")).ok()?,
        };
        let area = self.transport.expose(conn, &region.segment(0, AREA), Access::READ_WRITE).ok()?;
        self.peers.get_mut(peer_id.0)?.areas.ours = Some(area);
        Some(area)
    }

    fn make_area(&mut self) -> Result<MemoryRegion, Error> {
        let region = self.transport.register(&Memory::zeroed(AREA)?)?;
        self.probe_region = Some(region.clone());
        Ok(region)
    }
}
