//! Parked messages: those that arrived before their receive.
//!
//! A parked message keeps its slot and its credits, so its sender can send no more than was
//! granted, whether or not the program receives.

use super::adapter_side::AdapterSide;
use super::peer::{Notice, Peer, Repost};
use crate::mem::RemoteSlice;
use crate::op::Tag;
use crate::proto::Violation;
use crate::proto::one_or_many::OneOrMany;
use crate::transport::Transport;

/// A message that has no receive yet.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) cost: u32,
    pub(super) content: Content,
}

impl Parked {
    /// Returns the number of bytes that the message keeps: its credits, or those in its fast-RDMA
    /// slot.
    fn bytes(&self) -> u64 {
        match self.content {
            Content::Fast(_, len) => len as u64,
            _ => self.cost.into(),
        }
    }
}

#[derive(Debug)]
pub(super) enum Content {
    /// An eager message that is still in its receive slot: slot and payload length.
    Slot(usize, usize),
    /// An eager message that was copied out of its slot.
    Copied(Box<[u8]>),
    /// A message in a fast-RDMA slot: slot and payload length.
    Fast(u8, usize),
    /// A rendezvous: the sender's operation, and the length and pieces of the message.
    Announced { op: u64, len: u64, remote: OneOrMany<RemoteSlice> },
}

impl Content {
    /// Returns the length of the message in bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Content::Slot(_, len) | Content::Fast(_, len) => *len as u64,
            Content::Copied(bytes) => bytes.len() as u64,
            Content::Announced { len, .. } => *len,
        }
    }
}

impl Peer {
    /// Takes the oldest parked message with this tag.
    pub(super) fn unpark(&mut self, tag: Tag) -> Option<Parked> {
        let parked = self.parked.pop(tag)?;
        self.unparked(&parked);
        Some(parked)
    }

    /// Parks a message. If the parked messages leave the peer no credit for one more of full
    /// length, warns the program, once until all were taken.
    pub(super) fn park(&mut self, tag: Tag, parked: Parked) {
        self.parked_bytes += parked.bytes();
        self.parked.push(tag, parked);
        if !self.warned_of_parked && self.account.is_used_up_by(self.parked_bytes) {
            self.warned_of_parked = true;
            let (addr, messages, bytes) = (&self.addr, self.parked.len(), self.parked_bytes);
            tracing::warn!(%addr, messages, bytes, tag, "messages without a receive use up the credits of the peer: receive or discard them");
        }
    }

    /// Takes back the bytes of a message that is no longer parked.
    pub(super) fn unparked(&mut self, parked: &Parked) {
        self.parked_bytes -= parked.bytes();
        self.warned_of_parked &= !self.parked.is_empty();
    }
}

/// Drops a message that was parked: its space and its credits go back to the peer.
pub(super) fn drop_parked<T: Transport>(
    adapter: &mut AdapterSide<T>,
    peer: &mut Peer,
    Parked { cost, content }: Parked,
) -> Result<(), Violation> {
    adapter.counters.discarded += 1;
    peer.account.unparked(cost);
    match content {
        Content::Slot(slot, _) => {
            peer.held -= 1;
            adapter.repost(peer, slot, Repost::Message);
        }
        Content::Copied(_) => {}
        Content::Fast(slot, _) => peer.account.slot_freed(slot),
        Content::Announced { op, .. } => peer.answer(adapter.most_answers(), Notice::Cancelled { op })?,
    }
    Ok(())
}
