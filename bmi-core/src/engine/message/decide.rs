//! The decision how a message leaves: one function of facts ([`decide`]). It is asked when a send
//! is posted, and again each time that a queued one is tried.
//!
//! ```text
//!  unexpected                                   expected
//!  ──────────                                   ────────
//!                                               longer than the peer takes  -> TooLong
//!  eager             -> CopiedAtPost, Gathered or Bounced, or wait for credit <- eager
//!  longer than slots -> TooLong                 its receive is offered, and it fits  -> Offered
//!                    -> Slot, or wait for one   the peer can copy it where it is     -> Announced
//!                                               a slot is free                       -> Slot
//!                                               -> Announced, or wait for credit
//! ```
//!
//! A message is eager if it is short enough, unless its sender prefers a slot and one is free. An
//! unexpected message has no receive that it could be written into or read for, so it waits for a
//! slot. An expected one never waits for a slot, because it can be announced.
//!
//! **Invariant.** What is decided can be done by the facts: there is the credit, the slot or the
//! offer. A property test checks it. What the facts do not tell can still prevent it: a queue of
//! the adapter that is full, or memory that cannot be registered.
//!
//! **Source.** [PVFS-IB §3.2.3, §4.1.1]: eager messages, fast RDMA and rendezvous. Offered receives
//! are an addition.

use crate::engine::adapter::AdapterSide;
use crate::engine::books::Peer;
use crate::mem::{MemList, RemoteSlice};
use crate::op::Tag;
use crate::transport::{ServiceClass, Transport};
use crate::wire::credit;
use crate::wire::header::{HEADER_LEN, Kind};

/// How a message leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum SendPath {
    /// Eagerly, copied by the adapter while it is posted
    /// ([`Payload::Inline`](crate::transport::Payload::Inline)). Complete at once. Verbs' inline
    /// data is one way to copy: `bmi-ib` stages a longer message.
    CopiedAtPost,
    /// Eagerly, gathered from the program's memory.
    Gathered,
    /// Eagerly, copied by the engine to a bounce buffer. Complete at once.
    Bounced,
    /// Written into the receive that the peer has offered for it.
    Offered,
    /// Written into a fast-RDMA slot of the peer.
    Slot,
    /// Announced. The peer reads it, or says where to write it.
    Announced,
}

/// What a message lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Credit,
    Slot,
}

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Send(SendPath),
    Wait(Lack),
    /// No peer with these limits takes it.
    TooLong,
}

impl Decision {
    /// Returns the path, if the message can leave now.
    pub(in crate::engine) fn path(self) -> Option<SendPath> {
        match self {
            Decision::Send(path) => Some(path),
            Decision::Wait(_) | Decision::TooLong => None,
        }
    }
}

/// The longest messages that a peer takes, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Longest {
    pub(in crate::engine) eager: usize,
    pub(in crate::engine) slot: usize,
    pub(in crate::engine) message: u64,
}

/// What the decision depends on. A fact is asked for only if it matters.
pub(super) trait SendFacts {
    fn is_unexpected(&self) -> bool;
    fn len(&self) -> usize;
    fn longest(&self) -> Longest;
    /// The program prefers a slot to an eager message.
    fn prefers_slot(&self) -> bool;
    /// A slot that is long enough is free, and there is a credit for the message in it.
    fn has_slot(&self) -> bool;
    /// There is credit for a message with a payload of so many bytes.
    fn has_credit(&self, payload: usize) -> bool;
    /// The adapter copies the message while it is posted.
    fn fits_inline(&self) -> bool;
    /// The adapter can gather the message from where it is, without a registration that costs time.
    fn is_gatherable(&self) -> bool;
    /// The receive that the message will match is offered, and one write can fill it.
    fn fits_offer(&self) -> bool;
    /// The peer's processor can copy the message where it is.
    fn is_within_reach(&self) -> bool;
    /// The number of bytes of its announcement.
    fn announcement(&self) -> usize;
}

/// Decides how a message leaves.
pub(super) fn decide(facts: &impl SendFacts) -> Decision {
    let (len, longest) = (facts.len(), facts.longest());
    if !facts.is_unexpected() && len as u64 > longest.message {
        return Decision::TooLong;
    }
    if len <= longest.eager && !(facts.prefers_slot() && facts.has_slot()) {
        return if facts.has_credit(len) { Decision::Send(eager_path(facts)) } else { Decision::Wait(Lack::Credit) };
    }
    if facts.is_unexpected() {
        return match len <= longest.slot {
            true if facts.has_slot() => Decision::Send(SendPath::Slot),
            true => Decision::Wait(Lack::Slot),
            false => Decision::TooLong,
        };
    }
    if facts.fits_offer() {
        return Decision::Send(SendPath::Offered);
    }
    // A slot would be a second copy for a peer that can copy the message where it is. The trip that
    // a slot saves costs next to nothing on one host.
    if !facts.is_within_reach() && facts.has_slot() {
        return Decision::Send(SendPath::Slot);
    }
    match facts.has_credit(facts.announcement()) {
        true => Decision::Send(SendPath::Announced),
        false => Decision::Wait(Lack::Credit),
    }
}

/// Decides how an eager message leaves: in the cheapest way that is possible.
pub(super) fn eager_path(facts: &impl SendFacts) -> SendPath {
    match facts.fits_inline() {
        true => SendPath::CopiedAtPost,
        false if facts.is_gatherable() => SendPath::Gathered,
        false => SendPath::Bounced,
    }
}

/// A message that is to be sent.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Outgoing<'a> {
    pub(in crate::engine) kind: Kind,
    pub(in crate::engine) tag: Tag,
    pub(in crate::engine) list: &'a MemList,
    /// [`Options::slot`](crate::Options::slot).
    pub(in crate::engine) slot: bool,
    pub(in crate::engine) class: ServiceClass,
}

/// A message, and what the adapter side and its peer know about it.
pub(super) struct Known<'a> {
    pub(in crate::engine) adapter: &'a AdapterSide,
    pub(in crate::engine) peer: &'a Peer,
    pub(in crate::engine) message: Outgoing<'a>,
}

impl SendFacts for Known<'_> {
    fn is_unexpected(&self) -> bool {
        self.message.kind == Kind::Unexpected
    }

    fn len(&self) -> usize {
        self.message.list.len()
    }

    fn longest(&self) -> Longest {
        let limits = &self.peer.limits;
        Longest { eager: self.adapter.eager_limit(self.peer), slot: limits.fast, message: limits.message }
    }

    fn prefers_slot(&self) -> bool {
        self.message.slot
    }

    fn has_slot(&self) -> bool {
        self.peer.has_fast_slot(self.message.list.len())
    }

    fn has_credit(&self, payload: usize) -> bool {
        self.peer.can_spend(credit::cost(payload))
    }

    fn fits_inline(&self) -> bool {
        HEADER_LEN + self.message.list.len() <= self.adapter.max_inline
    }

    fn is_gatherable(&self) -> bool {
        let list = self.message.list;
        list.pieces().len() <= self.adapter.transport.capabilities().max_segments
            && self.adapter.is_registered_or_free(list)
    }

    fn fits_offer(&self) -> bool {
        let (capabilities, message) = (self.adapter.transport.capabilities(), &self.message);
        let len = message.list.len() as u64;
        self.peer.ready.first(message.tag).is_some_and(|ready| len <= ready.memory.len)
            && message.list.pieces().len() <= capabilities.max_segments
            && len <= capabilities.max_work_len
    }

    fn is_within_reach(&self) -> bool {
        // Nothing is copied of an empty message, so it is not worth an announcement.
        self.adapter.transport.capabilities().shares_pages
            && !self.message.list.is_empty()
            && self.message.list.pieces().iter().all(|piece| piece.memory().shared_pages().is_some())
    }

    fn announcement(&self) -> usize {
        let pieces = self.message.list.pieces().len();
        // A copy in one piece takes the place of a list that cannot be described.
        let described = if pieces <= self.adapter.describable_pieces(self.peer) { pieces } else { 1 };
        described * RemoteSlice::WIRE_LEN
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All facts. Credit and slots are what is left of them.
    #[derive(Clone, Debug)]
    struct Facts {
        unexpected: bool,
        len: usize,
        longest: (usize, usize, u64),
        prefers_slot: bool,
        slot_free: bool,
        credit: usize,
        inline: usize,
        gatherable: bool,
        offer: Option<usize>,
        within_reach: bool,
        announcement: usize,
    }

    impl SendFacts for Facts {
        fn is_unexpected(&self) -> bool {
            self.unexpected
        }

        fn len(&self) -> usize {
            self.len
        }

        fn longest(&self) -> Longest {
            Longest { eager: self.longest.0, slot: self.longest.1, message: self.longest.2 }
        }

        fn prefers_slot(&self) -> bool {
            self.prefers_slot
        }

        fn has_slot(&self) -> bool {
            self.slot_free && self.len <= self.longest.1
        }

        fn has_credit(&self, payload: usize) -> bool {
            payload <= self.credit
        }

        fn fits_inline(&self) -> bool {
            self.len <= self.inline
        }

        fn is_gatherable(&self) -> bool {
            self.gatherable
        }

        fn fits_offer(&self) -> bool {
            self.offer.is_some_and(|room| self.len <= room)
        }

        fn is_within_reach(&self) -> bool {
            self.within_reach
        }

        fn announcement(&self) -> usize {
            self.announcement
        }
    }

    fn known() -> impl Strategy<Value = Facts> {
        let sizes = (0..200usize, (0..100usize, 0..150usize, 0..200u64), 0..200usize, 0..100usize, 0..60usize);
        let offer = prop::option::of(0..200usize);
        (any::<[bool; 5]>(), sizes, offer).prop_map(|(flags, sizes, offer)| {
            let [unexpected, prefers_slot, slot_free, gatherable, within_reach] = flags;
            let (len, longest, credit, inline, announcement) = sizes;
            Facts {
                unexpected,
                len,
                longest,
                prefers_slot,
                slot_free,
                credit,
                inline,
                gatherable,
                offer,
                within_reach,
                announcement,
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn what_is_decided_can_be_done(known in known()) {
            let eager = known.len <= known.longest.0 && known.has_credit(known.len);
            let expected = !known.unexpected && known.len as u64 <= known.longest.2;
            let done = match decide(&known) {
                Decision::Send(SendPath::CopiedAtPost) => eager && known.fits_inline(),
                Decision::Send(SendPath::Gathered) => eager && known.gatherable && !known.fits_inline(),
                Decision::Send(SendPath::Bounced) => eager && !known.gatherable && !known.fits_inline(),
                Decision::Send(SendPath::Offered) => expected && known.fits_offer(),
                Decision::Send(SendPath::Slot) => known.has_slot() && (known.unexpected || expected),
                Decision::Send(SendPath::Announced) => expected && known.has_credit(known.announcement),
                // It waits for something that is not there, and that it needs.
                Decision::Wait(Lack::Slot) => known.unexpected && !known.has_slot() && known.len <= known.longest.1,
                Decision::Wait(Lack::Credit) => !known.has_credit(known.len) || !known.has_credit(known.announcement),
                Decision::TooLong if known.unexpected => known.len > known.longest.0.max(known.longest.1),
                Decision::TooLong => !expected,
            };
            prop_assert!(done, "{:?}", decide(&known));
        }

        /// Credit, slots and offers that come while a message waits let it go in the end.
        #[test]
        fn nothing_that_fits_waits_for_ever(known in known()) {
            let rich = Facts { credit: 1000, slot_free: true, ..known.clone() };
            match (decide(&known), decide(&rich)) {
                (Decision::TooLong, rich) => prop_assert_eq!(rich, Decision::TooLong),
                (_, rich) => prop_assert!(matches!(rich, Decision::Send(_)), "{rich:?}"),
            }
        }
    }
}
