//! Calls, as [`crate::comm`] makes them of messages: opening one, posting its parts, and closing
//! it.
//!
//! [`crate::engine::books::peer::call_ids`] draws the ids and tells which messages are late.
//! [`super::dropped`] ends those that are dropped before their reply.

use crate::engine::Engine;
use crate::engine::books::{ACCEPTOR, CALL, Effect, record, reserved_tag};
use crate::error::{Error, ErrorKind};
use crate::mem::MemList;
use crate::mutated;
use crate::op::{OpId, Options, PeerId, Posted, Tag};
use crate::time::Time;
use crate::wire::call::{ReplyHeader, ReplyKind};
use crate::wire::header::Kind;

/// A message of a call, as the side sees it that posts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallPart {
    /// Sends the request.
    Request,
    /// Sends any other message.
    Send,
    /// Receives a message.
    Receive,
}

impl Engine {
    /// Draws the id of a new call to `peer`. It is in use until [`Engine::close_call`].
    ///
    /// # Errors
    /// `PeerLost`; `Exhausted` beyond 2^20 open calls.
    pub(crate) fn open_call(&mut self, peer: PeerId) -> Result<Tag, Error> {
        let peer = self.peers.open_mut(peer).map_err(|error| error.during("call"))?;
        let drawer = if peer.outgoing { 0 } else { ACCEPTOR };
        let id = peer.calls.open().ok_or_else(|| Error::new(ErrorKind::Exhausted, "too many calls are open"))?;
        Ok(CALL | drawer | id)
    }

    /// Posts a part of a call.
    pub(crate) fn post_in_call(
        &mut self,
        part: CallPart,
        peer: PeerId,
        id: Tag,
        list: MemList,
        options: Options,
    ) -> Result<Posted, Error> {
        match part {
            CallPart::Request => self.start_send(peer, Kind::Unexpected, id, list, options),
            CallPart::Send => self.start_send(peer, Kind::Eager, id, list, options),
            CallPart::Receive => self.start_recv(peer, id, list, options),
        }
    }

    /// Lets an operation end by itself, and drops its completion.
    pub(crate) fn detach(&mut self, op: OpId) {
        match self.ops.get_mut(op) {
            Some(record) if !record.is_done() => {
                record.abandoned = true;
                let waker = record.waker.take();
                waker.into_iter().for_each(|waker| self.ops.keep_waker(waker));
            }
            _ => drop(self.ops.collect(op)),
        }
    }

    /// Ends the use of an id. What has arrived for it is dropped, as is what arrives later.
    pub(crate) fn close_call(&mut self, peer: PeerId, id: Tag) {
        record::call_ended(&self.adapter.recorder, peer, id);
        if mutated("call/never-over") {
            return;
        }
        self.handle(peer, |adapter, _, peer| {
            peer.calls.close(id);
            while let Some(parked) = peer.unpark(id) {
                adapter.drop_parked(peer, parked)?;
            }
            Ok(Effect::None)
        });
    }

    /// Sends any bytes as the request of a call, and returns its id. For tests of servers whose
    /// clients break the protocol. The id stays in use.
    ///
    /// # Errors
    /// As [`Engine::post_send_unexpected`].
    #[doc(hidden)]
    pub fn forge_request(&mut self, peer: PeerId, request: MemList, options: Options) -> Result<(Tag, Posted), Error> {
        let id = self.open_call(peer)?;
        Ok((id, self.post_in_call(CallPart::Request, peer, id, request, options)?))
    }

    /// Checks that a message with this id may be sent to `peer`.
    ///
    /// # Errors
    /// `Invalid` if the peer makes no such call.
    #[inline(never)]
    pub(in crate::engine) fn check_answer(&self, peer: PeerId, id: Tag) -> Result<(), Error> {
        if self.is_call_of(peer, id) { Ok(()) } else { Err(reserved_tag(id).during("send")) }
    }

    /// Returns true if `peer` makes a call with this id.
    pub(crate) fn is_call_of(&self, peer: PeerId, id: Tag) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.is_theirs(id))
    }
}

/// Tells a caller that there will be no reply.
pub(crate) fn leave_unanswered(endpoint: &mut Engine, peer: PeerId, id: Tag, now: Time) {
    let message = ReplyHeader { kind: ReplyKind::Unanswered, bytes: 0, at: 0 }.encode().to_vec();
    let options = Options::within(now, endpoint.config().timeouts.fence_grace);
    // Without a connection there is nobody to tell.
    if let Ok(Posted::Pending(op)) = endpoint.post_in_call(CallPart::Send, peer, id, message.into(), options) {
        endpoint.detach(op);
    }
}
