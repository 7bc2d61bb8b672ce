//! Unexpected messages: those that the program has not taken, and those that it has dropped.
//!
//! A message keeps its slot and its credits as long as the program has it. The program may drop it
//! on any thread. The next poll takes back what it kept.

use std::collections::VecDeque;
use std::sync::Arc;

use super::side::AdapterSide;
use crate::engine::Engine;
use crate::engine::books::{Peer, Place, Release, ReleasedSlot, Repost, Unexpected};
use crate::hooks::steps;
use crate::op::{PeerId, Tag};
use crate::sync::Returns;
use crate::{mutated, mutated_each};

/// The unexpected messages of an endpoint.
#[derive(Default)]
pub(in crate::engine) struct Inbox {
    messages: VecDeque<Unexpected>,
    pub(in crate::engine) released: Arc<Returns<Release>>,
    /// Scratch, kept for its capacity.
    notes: Vec<Release>,
}

impl Inbox {
    pub(in crate::engine) fn push(&mut self, peer: PeerId, tag: Tag, bytes: Place, cost: u32) {
        let released = Arc::clone(&self.released);
        self.messages.push_back(Unexpected { peer, tag, bytes, cost, released });
    }

    pub(in crate::engine) fn pop(&mut self) -> Option<Unexpected> {
        self.messages.pop_front()
    }

    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Drops the messages of a lost peer that the program has not taken.
    pub(in crate::engine) fn drop_all_of(&mut self, peer: PeerId) {
        steps(self.messages.len());
        self.messages.retain(|message| message.peer != peer || mutated("lost/messages-kept"));
    }
}

impl Engine {
    /// Takes back what the messages kept that were dropped since the last call.
    pub(in crate::engine) fn take_released(&mut self) {
        let Self { adapter, peers, inbox, .. } = self;
        inbox.released.drain(&mut inbox.notes);
        for release in inbox.notes.drain(..) {
            if let Some((peer, dirty)) = peers.get_with_dirty(release.peer) {
                on_release(adapter, peer, release);
                dirty.mark(peer);
            }
        }
    }
}

/// Handles an unexpected message that the program dropped.
fn on_release(adapter: &mut AdapterSide, peer: &mut Peer, release: Release) {
    peer.used = adapter.now;
    peer.account.unparked(release.cost);
    if mutated_each(10, "unexpected/credit-returned-twice") {
        peer.account.unparked(release.cost);
    }
    match release.slot {
        Some(ReleasedSlot::Receive(slot)) => {
            peer.held -= 1;
            adapter.repost(peer, slot as usize, Repost::Message);
        }
        Some(ReleasedSlot::Fast(slot)) => peer.account.slot_freed(slot),
        None => {}
    }
}
