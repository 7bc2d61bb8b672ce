//! Inline receives: an expected message is copied from where it arrives straight into the receive
//! that waits for it (C16 of [`crate::transport`]).
//!
//! **Why.** A short message usually goes into a receive slot, completes, is matched and copied out
//! of the slot, and the slot is posted again. If the adapter shows a message before the first of
//! these steps, all but the matching and one copy can be left out. Only the plain case is taken: an
//! Eager message whose receive waits and has room. Anything else is declined, and handled in the
//! usual way.
//!
//! **A short path.** It duplicates [`crate::engine::poll::events`] and [`super::eager`] for an
//! expected message whose receive waits. `bmi-sim/tests/it/endpoints/short_paths` holds both to the
//! same behaviour.
//!
//! **Invariants**
//! 1. A message is checked as in [`crate::engine::poll::events`]. A message that is not in order is
//!    not taken. The usual way finds it again and responds.
//! 2. A message that is taken costs and returns the same credits as one whose slot was posted
//!    again, because its slot stays posted.
//! 3. No message overtakes another. A message is shown only while nothing of its connection waits
//!    to be handled (C16). While a receive waits, no message of its tag does.
//!
//! **Source.** [pNFS-Lustre §3.3]: small messages on one host deserve a single fast copy.
//!
//! **Tests.** The message level of `bmi_conformance` over adapters that show messages, and over
//! `Faulty`, which shows them at random. Also the sweeps of `bmi-sim`, where adapters show messages
//! in half of the worlds.

use crate::engine::books::{
    Counters, Link, Offer, Operations, Peers,
    record::{self, Taken},
};
use crate::mem::MemSlice;
use crate::op::OpId;
use crate::time::Time;
use crate::transport::{ConnId, InlineMessage, InlineReceiver};
use crate::wire::credit;
use crate::wire::header::{HEADER_LEN, Header};
use crate::{mutated, mutated_each};

/// The parts of an endpoint that take messages while its adapter polls.
pub(in crate::engine) struct InlineReceives<'a> {
    pub(in crate::engine) peers: &'a mut Peers,
    pub(in crate::engine) ops: &'a mut Operations,
    pub(in crate::engine) counters: &'a mut Counters,
    /// The time of the poll.
    pub(in crate::engine) now: Time,
    /// Bytes copied, and the number of pieces they were copied to. The processor is charged for
    /// them.
    pub(in crate::engine) copied: (u64, u64),
}

impl InlineReceives<'_> {
    /// Takes a message as [`InlineReceiver::take`] does. Returns `None` if it declines.
    #[inline(always)]
    fn try_take(&mut self, conn: ConnId, message: &InlineMessage<'_>) -> Option<Taken> {
        let (peer, dirty) = self.peers.get_with_dirty(self.peers.of_conn(conn)?)?;
        let len = message.len().checked_sub(HEADER_LEN)?;
        if !matches!(peer.link, Link::Up) {
            return None;
        }
        let mut wire = [0; HEADER_LEN];
        message.copy_to(0, &mut wire);
        let (tag, returned) = Header::decode_eager(&wire, len)?;
        let cost = credit::cost(len);
        let refilled = match returned {
            Some(returned) => Some(peer.credit.as_ref()?.with(returned).ok()?),
            None => None,
        };
        if !peer.account.admits(cost) {
            return None;
        }
        let needed = len - usize::from(mutated("inline/short-receive-overrun")).min(len);
        let ops = &*self.ops;
        let fits = |id: &OpId| {
            let plain = ops.get(*id).filter(|op| op.offer == Offer::None);
            plain.and_then(|op| op.list.as_ref()).is_some_and(|list| needed <= list.len())
        };
        let id = peer.posted.pop_if(tag, fits)?;
        let list = self.ops.get(id).and_then(|op| op.list.as_ref())?;
        // The message is taken from here on.
        if let (Some(sum), Some(credit)) = (refilled, peer.credit.as_mut()) {
            credit.set(sum);
        }
        let pieces = match list.pieces() {
            [piece] => {
                message.copy_to_slice(HEADER_LEN, len, piece);
                u64::from(len > 0)
            }
            pieces => scatter(message, len, pieces),
        };
        self.copied = (self.copied.0 + len as u64, self.copied.1 + pieces);
        peer.account.taken(if mutated_each(20, "inline/credit-not-returned") { 0 } else { cost });
        let taken = Taken { peer: peer.id, tag, number: peer.seen, len };
        (peer.seen, peer.used) = (peer.seen + 1, self.now);
        self.counters.bytes_received += len as u64;
        self.ops.end(id, Ok(()), len as u64);
        dirty.mark(peer);
        Some(taken)
    }

    /// As [`InlineReceives::try_take`], and records it. It is apart, so that the short path has no
    /// call more.
    #[cold]
    #[inline(never)]
    fn try_take_recorded(&mut self, conn: ConnId, message: &InlineMessage<'_>) -> Option<Taken> {
        let begun = self.ops.recorder.now();
        let taken = self.try_take(conn, message)?;
        record::taken_inline(&self.ops.recorder, begun, taken);
        Some(taken)
    }
}

/// Copies a payload of `len` bytes to as many of the pieces as it fills. Returns their number.
fn scatter(message: &InlineMessage<'_>, len: usize, pieces: &[MemSlice]) -> u64 {
    let (mut done, mut filled) = (0, 0);
    for piece in pieces {
        let here = piece.len().min(len - done);
        message.copy_to_slice(HEADER_LEN + done, here, piece);
        (done, filled) = (done + here, filled + u64::from(here > 0));
    }
    filled
}

impl InlineReceiver for InlineReceives<'_> {
    fn take(&mut self, conn: ConnId, message: InlineMessage<'_>) -> bool {
        if self.ops.recorder.is_on() {
            return self.try_take_recorded(conn, &message).is_some();
        }
        self.try_take(conn, &message).is_some()
    }
}
