//! Calls, as [`crate::comm`] makes them of messages: opening one, posting its parts, and closing
//! it.
//!
//! [`super::call_ids`] draws the ids and tells which messages are late.
//!
//! **A call that is dropped early** ([`Endpoint::drop_call`]). The server may be moving data into
//! or out of the memory that was exposed to it. If the exposure were revoked, the adapters would
//! end the connection, and with it what others do there. The same happens to a message that is with
//! the adapter, or a receive that the server was offered, if the server does not answer within the
//! grace period. So these operations go on until they end: by the reply, by their deadline, or with
//! the connection. The exposure is kept until the receive has ended
//! ([`Operations::keep_until_the_end`](super::operations::Operations::keep_until_the_end)).
//!
//! ```text
//!  dropped when                      request      receive, exposure
//!  the request is queued             taken back   ended
//!  the request was sent              goes on      kept, if the server may use them; ended otherwise
//!  the reply has arrived             -            ended
//! ```
//!
//! What is kept counts as one operation, and is bounded as the operations are. The id is closed at
//! once: a receive finds its message by the id, whether or not that is open.

use super::Endpoint;
use super::call_ids::{ACCEPTOR, CALL, reserved_tag};
use super::early_end::can_end_at_once;
use super::effect::Effect;
use super::op::{Op, State};
use super::operations::Kept;
use crate::bulk::Exposure;
use crate::error::{Error, ErrorKind};
use crate::mem::{MemList, Retirement};
use crate::mutated;
use crate::op::{OpId, Options, PeerId, Posted, Tag};
use crate::proto::header::Kind;
use crate::time::Time;
use crate::transport::Transport;

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

/// A call that was dropped before its end.
#[derive(Debug)]
pub(crate) struct DroppedCall {
    pub(crate) peer: PeerId,
    pub(crate) id: Tag,
    /// The request, if its completion was not collected.
    pub(crate) send: Option<OpId>,
    /// The receive for the next message, if its completion was not collected.
    pub(crate) recv: Option<OpId>,
    pub(crate) exposure: Option<Exposure>,
    /// The memory of its data.
    pub(crate) retired: Vec<Retirement>,
}

impl<T: Transport> Endpoint<T> {
    /// Draws the id of a new call to `peer`. It is in use until [`Endpoint::close_call`].
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

    /// Ends a call that is dropped before its reply. The server keeps its access to the memory
    /// until it has replied, at the latest until the deadline of the call.
    pub(crate) fn drop_call(&mut self, call: DroppedCall, now: Time) {
        let DroppedCall { peer, id, send, recv, exposure, retired } = call;
        let is = |op: Option<OpId>, what: fn(&Op) -> bool| op.and_then(|op| self.ops.get(op)).is_some_and(what);
        let unsent = is(send, |op| matches!(op.state(), State::Queued));
        let waits = is(recv, |op| !op.is_done());
        let in_use = exposure.is_some() || is(recv, |op| !can_end_at_once(op));
        let keeps = !unsent && waits && in_use;
        if let Some(send) = send {
            if unsent { self.abandon(send) } else { self.leave(send, now) }
        }
        match recv {
            Some(recv) if keeps => {
                self.leave(recv, now);
                self.ops.keep_until_the_end(recv, Kept { _exposure: exposure, _retired: retired });
            }
            recv => {
                recv.into_iter().for_each(|recv| self.abandon(recv));
                drop(exposure);
            }
        }
        self.close_call(peer, id);
    }

    /// Lets an operation of a dropped call go on, until its deadline at the latest.
    fn leave(&mut self, op: OpId, now: Time) {
        self.detach(op);
        let unbounded = |op: &Op| !op.is_done() && op.timer.is_none() && op.ending.is_none();
        if self.ops.get(op).is_some_and(unbounded) {
            self.ops.set_timer(op, now + self.adapter.config.timeouts.dropped_call);
        }
    }

    /// Ends the use of an id. What has arrived for it is dropped, as is what arrives later.
    pub(crate) fn close_call(&mut self, peer: PeerId, id: Tag) {
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
    /// As [`Endpoint::post_send_unexpected`].
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
    pub(super) fn check_answer(&self, peer: PeerId, id: Tag) -> Result<(), Error> {
        if self.is_call_of(peer, id) { Ok(()) } else { Err(reserved_tag(id).during("send")) }
    }

    /// Returns true if `peer` makes a call with this id.
    pub(crate) fn is_call_of(&self, peer: PeerId, id: Tag) -> bool {
        self.peers.get(peer).is_some_and(|peer| peer.is_theirs(id))
    }
}
