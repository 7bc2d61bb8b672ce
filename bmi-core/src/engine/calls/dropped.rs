//! Calls that are dropped before their reply.
//!
//! **Why.** The server may be moving data into or out of the memory that was exposed to it. If the
//! exposure were revoked, the adapters would end the connection, and with it what others do there.
//! The same would happen to a message that is with the adapter, or to a receive that the server was
//! offered, if the server did not answer within the grace period. So these operations go on until
//! they end: by the reply, by their deadline, or with the connection. The exposure is kept until
//! the receive has ended ([`crate::engine::books::operations::Operations::keep_until_the_end`]).
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
//!
//! **Tests.** `bmi-sim/tests/it/calls/dropped.rs`; `bmi-conformance/src/handle/drops.rs` on real
//! systems.

use crate::engine::Engine;
use crate::engine::books::{Exposure, Kept, Op, State};
use crate::engine::ending::can_end_at_once;
use crate::mem::Retirement;
use crate::op::{OpId, PeerId, Tag};
use crate::time::Time;

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

impl Engine {
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
}
