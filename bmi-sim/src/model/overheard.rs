//! What goes over the wire between nodes, for those who listen: see [`crate::adversary`].
//!
//! **Invariants**
//! 1. Listening changes nothing of a run: it schedules no event, draws no random number and charges
//!    no processor. Without a listener, each hook costs one branch.
//! 2. Memory is bounded: beyond [`MOST`] bytes the oldest records go.

use std::collections::VecDeque;

use bmi_core::transport::WriteTarget;
use bmi_core::{RemoteSlice, Time};

use crate::engine::ConnRef;
use crate::model::Core;

/// Bytes of messages that are kept.
const MOST: usize = 64 << 20;
/// What a record counts beside its bytes.
const RECORD: usize = 256;

/// What an adapter was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// To connect. The bytes are the private data: the hello.
    Connect,
    /// To accept a connection. The bytes are the private data: the hello of the other side.
    Accept,
    /// To reject a connection. The bytes are the private data: the refusal.
    Reject,
    /// To send a message.
    Send,
    /// To write into memory of the other side.
    Write(WriteTarget),
    /// To read memory of the other side. The bytes are those that were read.
    Read(RemoteSlice),
}

/// Something that one node sent to another, as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// When it arrived.
    pub time: Time,
    /// The name of the node that sent it. For a read, the one that asked.
    pub from: String,
    /// The name of the node that it arrived at.
    pub to: String,
    /// What it is.
    pub verb: Verb,
    /// All its bytes, with the header of the protocol.
    pub bytes: Vec<u8>,
    /// Where in the bytes of a message keys of its sender's memory are, and up to which address
    /// each is good.
    pub(crate) keys: Vec<(usize, usize)>,
}

impl Heard {
    /// Returns the kind of a message, as its header says: 2 is an unexpected message, so the
    /// request of a call. Also of one that was written into a fast-RDMA slot. What has no header
    /// that fits has no kind.
    pub fn kind(&self) -> Option<u8> {
        let is_message = match self.verb {
            Verb::Send => true,
            Verb::Write(target) => {
                let len = self.bytes.get(16..24).and_then(|len| Some(u64::from_le_bytes(len.try_into().ok()?)));
                target.immediate.is_some()
                    && len.is_some_and(|len| len.checked_add(32) == Some(self.bytes.len() as u64))
            }
            _ => false,
        };
        self.bytes.first().filter(|_| is_message && self.bytes.len() >= 32).map(|first| first & 15)
    }

    /// Returns true for the request of a call, or another message that nobody had to expect.
    pub fn is_request(&self) -> bool {
        self.kind() == Some(2)
    }
}

/// The listener of a world.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    pub(crate) heard: VecDeque<Heard>,
    size: usize,
}

impl Core {
    /// Records what has arrived at `to`, a node.
    pub(crate) fn overhear(&mut self, from: ConnRef, to: u32, verb: Verb, bytes: &[u8]) {
        let node = self.adapters[from.adapter as usize].node;
        // What a node sends to itself is on no wire.
        if self.tap.is_none() || node == to {
            return;
        }
        let name = |node: u32| self.nodes[node as usize].name.clone();
        let time = Time::from_nanos(self.queue.now);
        let mut heard = Heard { time, from: name(node), to: name(to), verb, bytes: bytes.to_vec(), keys: Vec::new() };
        if heard.kind().is_some() {
            heard.keys = self.conn(from).map(|conn| conn.exposures.keys_in(bytes)).unwrap_or_default();
        }
        let Some(tap) = &mut self.tap else { return };
        tap.size += RECORD + bytes.len();
        tap.heard.push_back(heard);
        while tap.size > MOST
            && let Some(oldest) = tap.heard.pop_front()
        {
            tap.size -= RECORD + oldest.bytes.len();
        }
    }
}
