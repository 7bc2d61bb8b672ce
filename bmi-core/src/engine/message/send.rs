//! Sends: posting them, the queue of a peer, and carrying out the decision how a message leaves.
//!
//! **Protocol.** [`decide`] names the path, and [`send_by`] takes it: eagerly ([`super::eager`]),
//! into an offered receive ([`super::offered_receive`]), into a fast-RDMA slot
//! ([`super::fast_rdma`]), or by rendezvous ([`super::rendezvous`]). A message that lacks a credit,
//! a slot or room in a queue waits in the queue of its peer. A turn of the peer tries it again
//! ([`pump`]).
//!
//! **Notices** are the small messages of the protocol itself. They are queued at their peer, and a
//! turn sends them ahead of all messages of the program. Each costs a message credit. One that
//! describes memory makes it at the last moment: offers, fast-RDMA slots, a ClearToWrite.
//!
//! **The short path.** [`send_inline`] duplicates [`decide`], [`send_by`] and [`super::eager`] for
//! [`SendPath::CopiedAtPost`]: one look at the peer, one post, no record.
//! `bmi-sim/tests/it/endpoints/short_paths` holds both to the same behaviour. Debug builds also
//! compare it with the decision.

use super::decide::{Decision, Known, Outgoing, SendPath, decide};
use super::{eager, fast_rdma, offered_receive, probe, rendezvous, write_rendezvous};
use crate::engine::Engine;
use crate::engine::adapter::{AdapterSide, Attempt, Message, Work, unsignalled};
use crate::engine::books::{End, Link, Notice, Operations, Peer, Record, State, record};
use crate::engine::ending::finish;
use crate::error::{Error, ErrorKind};
use crate::hooks::step;
use crate::mem::MemList;
use crate::mutated;
use crate::op::{Completion, OpId, OpKind, Options, PeerId, Posted, Tag};
use crate::transport::{Payload, Transport};
use crate::wire::credit;
use crate::wire::header::{FinishStatus, HEADER_LEN, Header, Kind};

// ---- posting ------------------------------------------------------------------------------------

impl Engine {
    /// Posts a send.
    #[inline]
    pub(in crate::engine) fn start_send(
        &mut self,
        id: PeerId,
        kind: Kind,
        tag: Tag,
        list: MemList,
        options: Options,
    ) -> Result<Posted, Error> {
        let message = Outgoing { kind, tag, list: &list, slot: options.slot, class: options.class };
        if let Some(peer) = self.peers.get_mut(id) {
            let decision = cfg!(debug_assertions).then(|| decide_on(&self.adapter, peer, message));
            if send_inline(&mut self.adapter, peer, message) {
                debug_assert_eq!(decision, Some(Decision::Send(SendPath::CopiedAtPost)), "the short path differs");
                return Ok(Posted::Done(message.sent_at_once(id, options.user)));
            }
        }
        self.start_long_send(id, kind, tag, list, options)
    }

    /// Posts a send of any kind.
    fn start_long_send(
        &mut self,
        id: PeerId,
        kind: Kind,
        tag: Tag,
        list: MemList,
        options: Options,
    ) -> Result<Posted, Error> {
        let op_kind = kind_of(kind);
        let Self { adapter, ops, peers, .. } = self;
        adapter.recorder.begin();
        let peer = peers.open_mut(id).map_err(|error| error.during(op_kind.as_str()))?;
        check(adapter, peer, op_kind, &list).map_err(|error| error.during(op_kind.as_str()))?;
        let len = list.len() as u64;
        let message = Outgoing { kind, tag, list: &list, slot: options.slot, class: options.class };
        // A message to an idle connection need not wait, and a small one needs no record.
        let path = peer.is_idle_for_sends().then(|| decide_on(adapter, peer, message)).and_then(Decision::path);
        if let Some(path @ (SendPath::CopiedAtPost | SendPath::Bounced | SendPath::Slot)) = path
            && let Attempt::Sent = send_by(path, adapter, peer, message, None)
        {
            return Ok(Posted::Done(message.sent_at_once(id, options.user)));
        }
        let op = ops.post(op_kind, Some(id), tag, Some(list), options, State::Queued);
        let sent = path.is_some_and(|path| send_queued(adapter, ops, peer, op, Some(path)));
        if !sent {
            peer.queue.push_back(op);
        }
        if sent || path.is_none() {
            pump(adapter, ops, peer);
        }
        if ops.get(op).is_some_and(|op| matches!(op.state(), State::Queued)) {
            adapter.counters.credit_waits += 1;
            record::queued(&adapter.recorder, id, kind, tag, len);
        }
        Ok(ops.posted(op))
    }
}

/// Checks the length and the pieces of a message.
fn check(adapter: &AdapterSide, peer: &Peer, kind: OpKind, list: &MemList) -> Result<(), Error> {
    adapter.check_list(peer, list)?;
    let limit = match (kind, peer.is_up()) {
        (OpKind::SendUnexpected, true) => adapter.eager_limit(peer).max(peer.limits.fast) as u64,
        (OpKind::SendUnexpected, false) => adapter.config.credits.eager_limit as u64,
        (_, true) => peer.limits.message,
        (_, false) => adapter.config.limits.max_message,
    };
    if list.len() as u64 > limit {
        let text = format!("{} bytes; at most {limit} are allowed", list.len());
        return Err(Error::new(ErrorKind::TooLarge, text).with_peer(&peer.addr));
    }
    Ok(())
}

impl Outgoing<'_> {
    /// Returns the completion of a message that needed no record.
    #[inline]
    fn sent_at_once(&self, peer: PeerId, user: u64) -> Completion {
        let (kind, len) = (kind_of(self.kind), self.list.len() as u64);
        Completion { op: OpId::NONE, kind, peer: Some(peer), tag: self.tag, len, status: Ok(()), user }
    }
}

/// Returns the kind of a message's operation.
fn kind_of(kind: Kind) -> OpKind {
    if kind == Kind::Unexpected { OpKind::SendUnexpected } else { OpKind::Send }
}

// ---- the short path -----------------------------------------------------------------------------

/// Sends a short message to an idle connection. If anything is in the way, returns false and has
/// changed nothing. Then the general path finds the reason. This duplicates [`decide`], [`send_by`]
/// and [`eager::send`] for [`SendPath::CopiedAtPost`], and `bmi-sim/tests/it/endpoints/short_paths`
/// compares both.
#[inline]
fn send_inline(adapter: &mut AdapterSide, peer: &mut Peer, message: Outgoing<'_>) -> bool {
    let Outgoing { kind, tag, list, slot, class } = message;
    let len = list.len();
    let is_taken = kind == Kind::Unexpected || len as u64 <= peer.limits.message;
    let short = is_taken && len <= peer.limits.eager && HEADER_LEN + len <= adapter.short_paths.inline;
    let idle = matches!(peer.link, Link::Up) && peer.queue.is_empty() && peer.notices.is_empty();
    if !short || !idle || slot || list.pieces().len() >= adapter.short_paths.pieces {
        return false;
    }
    let cost = credit::cost(len);
    let Some(credit) = peer.credit.as_mut().filter(|credit| credit.can_spend(cost)) else { return false };
    credit.spend(cost);
    let returned = peer.account.return_to_peer();
    let header = Header { kind, returned, tag, len: len as u64, op: 0 }.encode();
    let (payload, options) = (Payload::Inline(list.pieces()), unsignalled(class));
    if adapter.transport.post_send(peer.conn, Work::Silent.to_id(), &header, payload, options).is_err() {
        peer.account.unreturn(returned);
        credit.unspend(cost);
        return false;
    }
    (adapter.transmitted, peer.used) = (adapter.transmitted + 1, adapter.now);
    adapter.counters.bytes_sent += len as u64;
    adapter.short_paths.took_send();
    if kind == Kind::Eager {
        adapter.counters.eager += 1;
        peer.sent_expected(tag);
    } else {
        adapter.counters.unexpected += 1;
        peer.sent_unexpected += 1;
    }
    true
}

// ---- the general path ---------------------------------------------------------------------------

/// Decides how a message leaves now.
fn decide_on(adapter: &AdapterSide, peer: &Peer, message: Outgoing<'_>) -> Decision {
    decide(&Known { adapter, peer, message })
}

/// Carries out a decision. Without a record, only what completes at once is sent.
fn send_by(
    path: SendPath,
    adapter: &mut AdapterSide,
    peer: &mut Peer,
    message: Outgoing<'_>,
    record: Option<Record<'_>>,
) -> Attempt {
    match (path, record) {
        (SendPath::CopiedAtPost | SendPath::Bounced, record) => eager::send(path, adapter, peer, message, record),
        (SendPath::Gathered, Some(record)) => eager::send(path, adapter, peer, message, Some(record)),
        (SendPath::Slot, None) => fast_rdma::send(adapter, peer, message, None),
        (SendPath::Slot, Some(Record { id, op })) => {
            match fast_rdma::send(adapter, peer, message, Some(Record { id, op })) {
                // No staging buffer can be had.
                Attempt::Failed(_) if message.kind == Kind::Eager => {
                    rendezvous::announce(adapter, peer, message, Record { id, op })
                }
                attempt => attempt,
            }
        }
        (SendPath::Offered, Some(record)) => offered_receive::send(adapter, peer, message, record),
        (SendPath::Announced, Some(record)) => rendezvous::announce(adapter, peer, message, record),
        (SendPath::Gathered | SendPath::Offered | SendPath::Announced, None) => Attempt::Blocked,
    }
}

/// Sends the message of a queued operation, by `path` if that was decided already. Returns false if
/// it must wait.
fn send_queued(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    id: OpId,
    path: Option<SendPath>,
) -> bool {
    let Some(op) = ops.get_mut(id) else { return true };
    let Some(list) = op.list.clone() else { return true };
    let kind = if op.kind == OpKind::SendUnexpected { Kind::Unexpected } else { Kind::Eager };
    let Options { slot, class, .. } = op.options;
    let message = Outgoing { kind, tag: op.tag, list: &list, slot, class };
    if path.is_none() {
        adapter.recorder.begin();
    }
    let decision = path.map_or_else(|| decide_on(adapter, peer, message), Decision::Send);
    let attempt = match decision {
        Decision::Send(path) => send_by(path, adapter, peer, message, Some(Record { id, op: &mut *op })),
        Decision::Wait(_) => Attempt::Blocked,
        Decision::TooLong => Attempt::Failed(ErrorKind::TooLarge),
    };
    let status = match attempt {
        Attempt::Blocked => return false,
        Attempt::Posted => {
            op.enter(State::Posted);
            peer.busy += 1;
            return true;
        }
        Attempt::Announced(remote) => {
            op.enter(State::Announced(remote));
            peer.busy += 1;
            return true;
        }
        Attempt::Sent => Ok(()),
        Attempt::Failed(kind) => Err(kind),
    };
    finish(adapter, ops, Some(peer), End { op: id, status, len: list.len() as u64 });
    true
}

// ---- the turn of a peer -------------------------------------------------------------------------

/// Sends what is queued for a peer, as far as credits and the adapter allow: first the notices,
/// then the messages of the program.
pub(in crate::engine) fn pump(adapter: &mut AdapterSide, ops: &mut Operations, peer: &mut Peer) {
    if !peer.is_up() {
        return;
    }
    loop {
        step();
        if let Some(notice) = peer.notices.front().copied() {
            if !send_notice(adapter, ops, peer, notice) {
                return;
            }
            continue;
        }
        let Some(id) = peer.queue.front().copied() else { break };
        if !send_queued(adapter, ops, peer, id, None) {
            return;
        }
        peer.queue.pop_front();
    }
    close_if_drained(adapter, ops, peer);
}

/// Ends a closing connection once everything has been sent.
fn close_if_drained(adapter: &mut AdapterSide, ops: &Operations, peer: &Peer) {
    if let Link::Closing(op) = peer.link
        && (peer.is_drained() || mutated("disconnect/before-all-is-sent"))
    {
        let deadline = ops.get(op).and_then(|op| op.options.deadline).unwrap_or(adapter.now);
        adapter.transport.disconnect(peer.conn, deadline);
    }
}

/// Sends the notice at the head of the queue. Returns true if it is off the queue.
fn send_notice(adapter: &mut AdapterSide, ops: &mut Operations, peer: &mut Peer, notice: Notice) -> bool {
    let message = match notice {
        Notice::Ready { op } => return offered_receive::send_ready(adapter, ops, peer, op),
        Notice::FastSlots => return fast_rdma::send_slots(adapter, peer),
        Notice::ClearToWrite { op } => return write_rendezvous::send_clear_to_write(adapter, ops, peer, op),
        Notice::Answer { name, area } => return probe::send_answer(adapter, peer, name, area),
        Notice::Written { op, len } => Message { kind: Kind::Written, tag: 0, len, op },
        Notice::Withdraw { op } => Message { kind: Kind::Withdraw, tag: 0, len: 0, op },
        Notice::Withdrawn { op } => Message { kind: Kind::Withdrawn, tag: 0, len: 0, op },
        Notice::Finish { op, status, len } => Message { kind: Kind::Finish, tag: status as u64, len, op },
        Notice::Cancelled { op } => Message { kind: Kind::Finish, tag: FinishStatus::Cancelled as u64, len: 0, op },
        Notice::Cancel { op } => Message { kind: Kind::Cancel, tag: 0, len: 0, op },
    };
    if !peer.spend_message() {
        return false;
    }
    if let Err(error) = adapter.transmit_control(peer, message) {
        peer.unspend(0);
        adapter.refused(peer, error);
        return false;
    }
    peer.drop_notice();
    peer.answers -= usize::from(matches!(notice, Notice::Cancelled { .. } | Notice::Withdrawn { .. }));
    true
}

/// Returns credits in a message of their own, if they must go back.
pub(in crate::engine) fn return_credits(adapter: &mut AdapterSide, peer: &mut Peer) {
    if !peer.is_up() || !peer.account.is_pressing() {
        return;
    }
    let returns_control = peer.account.returns_control();
    if !peer.credit.as_mut().is_some_and(|credit| credit.spend_control(returns_control)) {
        return;
    }
    match adapter.transmit_control(peer, Message { kind: Kind::Credit, tag: 0, len: 0, op: 0 }) {
        Ok(()) => adapter.counters.credit_messages += 1,
        Err(error) => {
            if let Some(credit) = peer.credit.as_mut() {
                credit.unspend_control();
            }
            adapter.refused(peer, error);
        }
    }
}
