//! The plan for messages: how a message of each size leaves, and the reason. It is for people to
//! read.
//!
//! **How.** [`decide`] is asked at each limit of the peer and of the adapter, with facts by which
//! credit and slots are free. So a plan cannot differ from what is done then.

use super::decide::{Decision, Longest, SendFacts, SendPath, decide};
use crate::engine::Engine;
use crate::mem::RemoteSlice;
use crate::op::PeerId;
use crate::paths::{Bytes, MessageRule};
use crate::transport::Transport;
use crate::wire::header::HEADER_LEN;

/// The kinds of messages whose plans differ: whether one is unexpected, whether the receive for it
/// is offered before it is sent, and whether it is in pages that the peer can map.
const KINDS: [(&str, bool, bool, bool); 4] = [
    ("message", false, false, false),
    ("message, receive offered", false, true, false),
    ("message, in shared pages", false, false, true),
    ("unexpected message", true, false, false),
];

impl Engine {
    /// Returns how messages of each size leave for a peer if credit and slots are free, and the
    /// reason. The rules of one kind of messages are next to each other, in the order of sizes.
    /// Without a connection there are none.
    pub fn message_plan(&self, peer: PeerId) -> Vec<MessageRule> {
        let Some(peer) = self.peers.get(peer).filter(|peer| peer.is_up()) else { return Vec::new() };
        let capabilities = self.adapter.transport.capabilities();
        let limits = Limits {
            inline: self.adapter.max_inline.checked_sub(HEADER_LEN),
            eager: self.adapter.eager_limit(peer),
            slot: peer.limits.fast,
            message: peer.limits.message,
            rdma_read: capabilities.rdma_read,
        };
        let kinds = KINDS.iter().filter(|(.., within_reach)| !within_reach || capabilities.shares_pages);
        kinds.flat_map(|kind| limits.rules(*kind)).collect()
    }
}

/// What the plan for a peer depends on, in bytes.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// `None` if the adapter copies no message while it is posted.
    inline: Option<usize>,
    eager: usize,
    /// 0 if the peer has no slots.
    slot: usize,
    message: u64,
    rdma_read: bool,
}

impl Limits {
    fn rules(&self, (kind, unexpected, offered, within_reach): (&'static str, bool, bool, bool)) -> Vec<MessageRule> {
        let mut edges: Vec<u64> = self
            .inline
            .iter()
            .chain([&self.eager, &self.slot])
            .map(|edge| *edge as u64)
            .chain([self.message])
            .collect();
        edges.retain(|edge| *edge > 0);
        edges.sort_unstable();
        edges.dedup();
        let mut rules: Vec<MessageRule> = Vec::new();
        let mut from = 0;
        for to in edges.into_iter().map(Some).chain([None]) {
            let len = to.unwrap_or(u64::MAX) as usize;
            let facts = Free { limits: self, len, unexpected, offered, within_reach };
            let (path, why) = facts.words(decide(&facts));
            match rules.last_mut() {
                Some(last) if (last.path, &last.why) == (path, &why) => last.to = to,
                _ => rules.push(MessageRule { kind, from, to, path, why }),
            }
            from = to.map_or(u64::MAX, |to| to.saturating_add(1));
        }
        rules
    }
}

/// The facts of a message for which there is credit and a slot.
struct Free<'a> {
    limits: &'a Limits,
    len: usize,
    unexpected: bool,
    offered: bool,
    within_reach: bool,
}

impl Free<'_> {
    /// Returns the name of a path, and why the message takes it.
    fn words(&self, decision: Decision) -> (&'static str, String) {
        let Limits { inline, eager, slot, message, rdma_read } = *self.limits;
        let bytes = |bytes: usize| Bytes(bytes as u64);
        let path = match decision {
            Decision::Send(path) => path,
            Decision::Wait(_) | Decision::TooLong => {
                let why = match self.unexpected {
                    true => format!("no receive waits that it could be read for (limit {})", bytes(eager.max(slot))),
                    false => format!("longer than the setting max_message (limit {})", Bytes(message)),
                };
                return ("refused", why);
            }
        };
        match path {
            SendPath::CopiedAtPost => {
                let most = inline.unwrap_or(0).min(eager);
                ("inline", format!("eager, and copied by the adapter as it is posted (limit {})", bytes(most)))
            }
            SendPath::Gathered | SendPath::Bounced => {
                ("eager", format!("fits in a posted receive of the peer (limit {})", bytes(eager)))
            }
            SendPath::Offered => ("offered receive", "one write into the memory of the receive: no copy".to_owned()),
            SendPath::Slot => ("fast-rdma", format!("one write into a slot of the peer (limit {})", bytes(slot))),
            SendPath::Announced if self.within_reach => {
                ("rendezvous read", "the receiver copies it once; a slot would be a second copy".to_owned())
            }
            SendPath::Announced => {
                let than = if slot > eager { "a slot" } else { "an eager message" };
                let (path, how) = match rdma_read {
                    true => ("rendezvous read", "the receiver reads it"),
                    false => ("rendezvous write", "the sender writes it where the receiver says"),
                };
                (path, format!("longer than {than} (limit {}): {how}, no copy", bytes(slot.max(eager))))
            }
        }
    }
}

impl SendFacts for Free<'_> {
    fn is_unexpected(&self) -> bool {
        self.unexpected
    }

    fn len(&self) -> usize {
        self.len
    }

    fn longest(&self) -> Longest {
        Longest { eager: self.limits.eager, slot: self.limits.slot, message: self.limits.message }
    }

    fn prefers_slot(&self) -> bool {
        false
    }

    fn has_slot(&self) -> bool {
        self.limits.slot > 0 && self.len <= self.limits.slot
    }

    fn has_credit(&self, _payload: usize) -> bool {
        true
    }

    fn fits_inline(&self) -> bool {
        self.limits.inline.is_some_and(|most| self.len <= most)
    }

    fn is_gatherable(&self) -> bool {
        true
    }

    fn fits_offer(&self) -> bool {
        self.offered
    }

    fn is_within_reach(&self) -> bool {
        self.within_reach && self.len > 0
    }

    fn announcement(&self) -> usize {
        RemoteSlice::WIRE_LEN
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the decision that a rule's words name.
    fn named(rule: &MessageRule) -> fn(Decision) -> bool {
        match rule.path {
            "inline" => |made| made == Decision::Send(SendPath::CopiedAtPost),
            "eager" => |made| matches!(made, Decision::Send(SendPath::Gathered | SendPath::Bounced)),
            "offered receive" => |made| made == Decision::Send(SendPath::Offered),
            "fast-rdma" => |made| made == Decision::Send(SendPath::Slot),
            "rendezvous read" | "rendezvous write" => |made| made == Decision::Send(SendPath::Announced),
            "refused" => |made| made == Decision::TooLong,
            other => panic!("no path: {other}"),
        }
    }

    proptest! {
        /// The rules of each kind cover all sizes, and agree with the decision at each.
        #[test]
        fn rules_agree_with_the_decision(
            inline in prop::option::of(0usize..300), eager in 1usize..400, slot in 0usize..800, message in 1u64..2000,
            rdma_read in any::<bool>(), lens in prop::collection::vec(0usize..2200, 20),
        ) {
            let limits = Limits { inline, eager, slot, message, rdma_read };
            for kind in KINDS {
                let rules = limits.rules(kind);
                prop_assert_eq!((rules[0].from, rules[rules.len() - 1].to), (0, None));
                prop_assert!(rules.windows(2).all(|pair| pair[0].to.map(|to| to + 1) == Some(pair[1].from)));
                let edges = rules.iter().flat_map(|rule| [rule.from, rule.to.unwrap_or(1 << 40)]);
                for len in edges.chain(lens.iter().map(|len| *len as u64)).filter(|len| *len > 0) {
                    let rule = rules.iter().find(|rule| rule.from <= len && rule.to.is_none_or(|to| len <= to)).unwrap();
                    let (_, unexpected, offered, within_reach) = kind;
                    let free = Free { limits: &limits, len: len as usize, unexpected, offered, within_reach };
                    prop_assert!(named(rule)(decide(&free)), "{len}: {rule:?}");
                }
            }
        }
    }

    #[test]
    fn each_reason_has_its_limit() {
        let limits = Limits { inline: Some(192), eager: 8 << 10, slot: 68 << 10, message: 1 << 20, rdma_read: true };
        let rules = limits.rules(KINDS[0]);
        let lines: Vec<String> =
            rules.iter().map(|rule| format!("{} {:?} {}: {}", rule.from, rule.to, rule.path, rule.why)).collect();
        assert_eq!(
            lines,
            [
                "0 Some(192) inline: eager, and copied by the adapter as it is posted (limit 192 B)",
                "193 Some(8192) eager: fits in a posted receive of the peer (limit 8 KiB)",
                "8193 Some(69632) fast-rdma: one write into a slot of the peer (limit 68 KiB)",
                "69633 Some(1048576) rendezvous read: longer than a slot (limit 68 KiB): the receiver reads it, no copy",
                "1048577 None refused: longer than the setting max_message (limit 1 MiB)",
            ]
        );
        let no_slots = Limits { slot: 0, rdma_read: false, ..limits }.rules(KINDS[0]);
        assert!(no_slots[2].why.starts_with("longer than an eager message (limit 8 KiB): the sender writes"));
    }
}
