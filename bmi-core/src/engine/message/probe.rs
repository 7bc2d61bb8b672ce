//! Probes: small questions that the peer's endpoint answers. With them an adapter can be measured
//! over a live connection without the help of the peer's program (see
//! [`crate::comm::calibrate()`]).
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

use super::decide::Outgoing;
use super::{eager, fast_rdma};
use crate::engine::Engine;
use crate::engine::adapter::{AdapterSide, Attempt, Message, Work, unsignalled};
use crate::engine::books::{Effect, Notice, Op, Operations, Peer, Peers, Record, Repost, SlotMessage, State};
use crate::engine::ending::{name_of, op_of};
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, Memory, RemoteSlice};
use crate::op::{OpId, OpKind, Options, PeerId};
use crate::transport::{ConnId, Payload, ServiceClass, Transport};
use crate::wire::header::Kind;
use crate::wire::{BulkDescriptor, Violation, credit};

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

impl Engine {
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
        let Self { adapter, ops, peers, .. } = self;
        let asked = peers.probed_mut(peer)?;
        let id = ops.post(OpKind::Probe, Some(peer), 0, None, options, State::Waiting);
        let name = name_of(id);
        // A send of its own, which is never collected. The question may be sent from registered
        // memory.
        let options = Options::default();
        let sending = ops.post(OpKind::Send, Some(peer), name, Some(list.clone()), options, State::Posted);
        let Some(op) = ops.get_mut(sending) else { return Ok(id) };
        op.abandoned = true;
        let message = Outgoing { kind: Kind::Probe, tag: name, list: &list, slot: false, class: options.class };
        let record = Some(Record { id: sending, op });
        let attempt = match path {
            ProbePath::Eager => eager::send(eager::path_of(adapter, asked, message), adapter, asked, message, record),
            ProbePath::Fast => fast_rdma::send(adapter, asked, message, record),
        };
        if let Attempt::Posted = attempt {
            asked.busy += 1;
            return Ok(id);
        }
        self.handle(peer, |_, _, _| Ok(Effect::ends(sending, Ok(()), 0)));
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
    /// As [`Engine::post_echo`].
    pub(crate) fn post_open(&mut self, peer: PeerId, options: Options) -> Result<OpId, Error> {
        let Self { adapter, ops, peers, .. } = self;
        let asked = peers.probed_mut(peer)?;
        if !asked.spend_message() {
            return Err(Error::new(ErrorKind::Exhausted, "no credit for a probe now"));
        }
        let id = ops.post(OpKind::Probe, Some(peer), 0, None, options, State::Waiting);
        let message = Message { kind: Kind::Probe, tag: name_of(id), len: 0, op: OPEN };
        if let Err(error) = adapter.transmit_control(asked, message) {
            asked.unspend(0);
            adapter.refused(asked, error);
            ops.forget(id);
            return Err(Error::new(ErrorKind::Exhausted, "no room for a probe now: the adapter is busy"));
        }
        Ok(id)
    }

    /// Returns the area of a peer, once the peer has described it.
    pub(crate) fn probe_area(&self, peer: PeerId) -> Option<BulkDescriptor> {
        let area = self.peers.get(peer)?.areas.theirs?;
        BulkDescriptor::try_from(vec![area]).ok()
    }
}

impl Peers {
    /// Returns the record of a peer that answers probes.
    fn probed_mut(&mut self, id: PeerId) -> Result<&mut Peer, Error> {
        if !self.get(id).is_some_and(Peer::is_up) {
            return Err(self.lost_error(id));
        }
        match self.get_mut(id) {
            Some(peer) if peer.areas.understood => Ok(peer),
            Some(peer) => Err(Error::new(ErrorKind::Unsupported, "the peer answers no probes").with_peer(&peer.addr)),
            None => Err(Error::new(ErrorKind::PeerLost, "not connected")),
        }
    }
}

// ---- answering ----------------------------------------------------------------------------------

/// Handles a probe in a receive slot.
pub(in crate::engine) fn on_probe(
    adapter: &mut AdapterSide,
    ops: &Operations,
    peer: &mut Peer,
    SlotMessage { slot, header, len }: SlotMessage<'_>,
) -> Result<Effect, Violation> {
    // Only questions spend bytes for their payload.
    let cost = if header.op == ECHO { credit::cost(len) } else { 0 };
    peer.account.arrived(cost)?;
    peer.account.unparked(cost);
    // SAFETY: the completion just gave the slot back. It is posted again only below.
    let payload = unsafe { peer.payload(slot, len) };
    let area = payload.first_chunk().filter(|_| header.op == ANSWER).map(RemoteSlice::from_wire);
    adapter.repost(peer, slot, Repost::Message);
    match header.op {
        ECHO => {
            peer.answer(adapter.most_answers(), Notice::Answer { name: header.tag, area: None })?;
            Ok(Effect::None)
        }
        OPEN if len == 0 => {
            let area = open_area(adapter, peer);
            peer.answer(adapter.most_answers(), Notice::Answer { name: header.tag, area })?;
            Ok(Effect::None)
        }
        ANSWER if len == 0 || area.is_some() && len == RemoteSlice::WIRE_LEN => {
            peer.areas.theirs = area.or(peer.areas.theirs);
            Ok(answered(ops, peer, header.tag))
        }
        _ => Err("a probe of unknown purpose"),
    }
}

/// Ends the operation that asked, if it still waits.
fn answered(ops: &Operations, peer: &Peer, name: u64) -> Effect {
    let id = op_of(name);
    let asked = |op: &Op| op.kind == OpKind::Probe && op.peer == Some(peer.id) && matches!(op.state(), State::Waiting);
    if ops.get(id).is_some_and(asked) { Effect::ends(id, Ok(()), 0) } else { Effect::None }
}

/// Sends an answer. Returns true if the notice is off the queue.
pub(super) fn send_answer(adapter: &mut AdapterSide, peer: &mut Peer, name: u64, area: Option<RemoteSlice>) -> bool {
    if !peer.spend_message() {
        return false;
    }
    let wire = area.map(|area| area.to_wire());
    let more = wire.as_ref().map_or(&[][..], |wire| &wire[..]);
    let message = Message { kind: Kind::Probe, tag: name, len: more.len() as u64, op: ANSWER };
    let options = unsignalled(ServiceClass::Control);
    if let Err(error) = adapter.transmit(peer, message, more, Payload::EMPTY, Work::Silent, options) {
        peer.unspend(0);
        adapter.refused(peer, error);
        return false;
    }
    peer.drop_notice();
    peer.answers -= 1;
    true
}

/// Exposes the area to the peer. Returns `None` if memory or registration cannot be had.
fn open_area(adapter: &mut AdapterSide, peer: &mut Peer) -> Option<RemoteSlice> {
    if let Some(known) = peer.areas.ours {
        return Some(known);
    }
    let area = make_area(adapter, peer.conn).inspect_err(|error| tracing::debug!(%error, "no probe area")).ok()?;
    peer.areas.ours = Some(area);
    Some(area)
}

/// Makes an area. Its exposure holds it until the connection ends.
fn make_area(adapter: &mut AdapterSide, conn: ConnId) -> Result<RemoteSlice, Error> {
    let memory = Memory::sparse(AREA)?;
    let region = adapter.registry.register_own(|| adapter.transport.register(&memory))?;
    adapter.transport.expose(conn, &region.segment(0, AREA), Access::READ_WRITE)
}
