//! Parked messages: those that arrived before their receive.
//!
//! A parked message keeps its slot and its credits, so its sender can send no more than was
//! granted, whether or not the program receives.

use crate::mem::{OneOrMany, RemoteSlice};
use crate::wire::named::Named;

/// A message that has no receive yet.
#[derive(Debug)]
pub(in crate::engine) struct Parked {
    pub(in crate::engine) cost: u32,
    pub(in crate::engine) content: Content,
}

impl Parked {
    /// Returns the number of bytes that the message keeps: its credits, or those in its fast-RDMA
    /// slot.
    pub(in crate::engine) fn bytes(&self) -> u64 {
        match self.content {
            Content::Fast(_, len) => len as u64,
            _ => self.cost.into(),
        }
    }
}

impl Named for Parked {
    /// Returns the sender's name for its operation, by which it may cancel an announcement.
    #[inline]
    fn name(&self) -> Option<u64> {
        match self.content {
            Content::Announced { op, .. } => Some(op),
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(in crate::engine) enum Content {
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
    pub(in crate::engine) fn len(&self) -> u64 {
        match self {
            Content::Slot(_, len) | Content::Fast(_, len) => *len as u64,
            Content::Copied(bytes) => bytes.len() as u64,
            Content::Announced { len, .. } => *len,
        }
    }
}
