//! Draws plans: a swarm.
//!
//! **Why a swarm.** If every run has a little of every fault, no run has much of one fault, and
//! faults hide each other: a connection that is cut all the time never fills a queue. So each seed
//! turns on a subset of the kinds. Each of these gets its own rate, from one event in a run to
//! many. One run in sixteen has no faults at all.
//!
//! **Source.** Groce, Zhang, Eide, Chen, Regehr: Swarm Testing (ISSTA 2012).

use std::time::Duration;

use super::plan::{Fault, Plan};
use crate::rng::Rng;

/// A kind of fault, as a swarm turns it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// [`Fault::Cut`]
    Cut,
    /// [`Fault::Partition`]
    Partition,
    /// [`Fault::Delay`]
    Delay,
    /// [`Fault::Lossy`]
    Lossy,
    /// [`Fault::Corrupt`]
    Corrupt,
    /// [`Fault::NotReady`]
    NotReady,
    /// [`Fault::Overrun`]
    Overrun,
    /// [`Fault::Pause`]
    Pause,
    /// [`Fault::Crash`] and, one in three, [`Fault::CrashWriting`]
    Crash,
    /// [`Fault::DiskFull`]
    DiskFull,
    /// [`Fault::DiskBroken`]
    DiskBroken,
    /// [`Fault::Registrations`]
    Registrations,
    /// [`Fault::ClockStep`]
    ClockStep,
    /// [`Fault::Unanswered`]
    Unanswered,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 14] = [
        Kind::Cut,
        Kind::Partition,
        Kind::Delay,
        Kind::Lossy,
        Kind::Corrupt,
        Kind::NotReady,
        Kind::Overrun,
        Kind::Pause,
        Kind::Crash,
        Kind::DiskFull,
        Kind::DiskBroken,
        Kind::Registrations,
        Kind::ClockStep,
        Kind::Unanswered,
    ];
}

/// The plans that can be drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swarm {
    kinds: Vec<Kind>,
    within: Duration,
    longest: Duration,
    most: u64,
    spared: Vec<(Kind, String)>,
}

impl Default for Swarm {
    /// Returns [`Swarm::all`].
    fn default() -> Swarm {
        Swarm::all()
    }
}

impl Swarm {
    /// Returns all kinds of faults, at most twenty of each, within the first 100 ms. A fault that
    /// lasts does so for up to 30 ms.
    pub fn all() -> Swarm {
        Swarm::of(&Kind::ALL)
    }

    /// Returns a swarm without faults.
    pub fn none() -> Swarm {
        Swarm::of(&[])
    }

    /// Returns these kinds of faults; otherwise as [`Swarm::all`].
    pub fn of(kinds: &[Kind]) -> Swarm {
        let (within, longest) = (Duration::from_millis(100), Duration::from_millis(30));
        Swarm { kinds: kinds.to_vec(), within, longest, most: 20, spared: Vec::new() }
    }

    /// Removes a kind.
    #[must_use]
    pub fn without(mut self, kind: Kind) -> Swarm {
        self.kinds.retain(|other| *other != kind);
        self
    }

    /// Makes faults begin within this time.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Swarm {
        self.within = within;
        self
    }

    /// Limits the duration of faults that last.
    #[must_use]
    pub fn lasting(mut self, longest: Duration) -> Swarm {
        self.longest = longest;
        self
    }

    /// Limits the number of faults of each kind in a run.
    #[must_use]
    pub fn at_most(mut self, most: u64) -> Swarm {
        self.most = most.max(1);
        self
    }

    /// Spares the node called `node` from faults of `kind`: a node, for instance, whose program is
    /// the test itself.
    #[must_use]
    pub fn sparing(mut self, kind: Kind, node: &str) -> Swarm {
        self.spared.push((kind, node.to_owned()));
        self
    }

    fn hits(&self, kind: Kind, node: &str) -> bool {
        !self.spared.iter().any(|(spared, name)| *spared == kind && name == node)
    }
}

impl Plan {
    /// Draws the plan of `seed` for a world of these nodes. Equal arguments give equal plans.
    pub fn draw(seed: u64, swarm: &Swarm, nodes: &[String]) -> Plan {
        // Not the world's own stream, so that a plan does not depend on keys and jitter.
        let mut rng = Rng::new(seed ^ 0x6661_756c_7473);
        let mut plan = Plan::NONE;
        if rng.below(16) == 0 {
            return plan;
        }
        for kind in &swarm.kinds {
            // Half of the kinds are off. Both numbers are drawn for each kind, on or off, so that a
            // kind added to or removed from the list changes little.
            let (on, mut own) = (rng.below(2) == 0, Rng::new(rng.next_u64()));
            let victims: Vec<&String> = nodes.iter().filter(|node| swarm.hits(*kind, node)).collect();
            if !on || victims.is_empty() {
                continue;
            }
            // Few are as likely as many: 1, 2, 4 …
            let doublings = u64::from(swarm.most.ilog2()) + 1;
            let count = (1u64 << own.below(doublings)).min(swarm.most);
            for _ in 0..count {
                let at_us = own.below(swarm.within.as_micros() as u64 + 1);
                plan.events
                    .extend(event(*kind, swarm, &victims, nodes, &mut own).map(|fault| super::At { at_us, fault }));
            }
        }
        plan.events.sort_by_key(|event| event.at_us);
        plan
    }
}

/// Draws a number from 1 to `most`. Each order of magnitude is equally likely.
fn magnitude(rng: &mut Rng, most: u64) -> u64 {
    let doublings = 1 + rng.below(u64::from(most.ilog2()) + 1);
    (1 + rng.below(1 << doublings)).min(most)
}

/// Draws one fault of a kind. Returns `None` if there are too few nodes for it.
fn event(kind: Kind, swarm: &Swarm, victims: &[&String], nodes: &[String], rng: &mut Rng) -> Option<Fault> {
    let node = victims[rng.below(victims.len() as u64) as usize].clone();
    let others: Vec<&String> = nodes.iter().filter(|other| **other != node && swarm.hits(kind, other)).collect();
    let (a, b) = (node.clone(), others.get(rng.below(others.len() as u64) as usize).map(|other| (*other).clone()));
    let longest = (swarm.longest.as_micros() as u64).max(2);
    let for_us = magnitude(rng, longest);
    let salt = rng.next_u64() as u32;
    Some(match kind {
        Kind::Cut => Fault::Cut { a, b: b? },
        Kind::Partition => Fault::Partition { a, b: b?, for_us },
        Kind::Delay => Fault::Delay { a, b: b?, by_us: magnitude(rng, 4096), for_us, salt },
        Kind::Lossy => Fault::Lossy { a, b: b?, percent: 1 + rng.below(50) as u8, for_us, salt },
        Kind::Corrupt => Fault::Corrupt { a, b: b? },
        Kind::NotReady => Fault::NotReady { a, b: b? },
        Kind::Unanswered => Fault::Unanswered { a, b: b? },
        Kind::Overrun => Fault::Overrun { node },
        Kind::Pause => Fault::Pause { node, for_us },
        Kind::Crash if rng.below(3) == 0 => Fault::CrashWriting { node, for_us, salt },
        Kind::Crash => Fault::Crash { node, for_us, salt },
        Kind::DiskFull => Fault::DiskFull { node, for_us },
        Kind::DiskBroken => Fault::DiskBroken { node, for_us },
        Kind::Registrations => Fault::Registrations { node, count: 1 + rng.below(20) as u32 },
        Kind::ClockStep => Fault::ClockStep { node, by_us: rng.below(20_000_000) as i64 - 10_000_000 },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::mem::discriminant;

    use super::*;

    fn nodes(count: usize) -> Vec<String> {
        (0..count).map(|index| format!("n{index}")).collect()
    }

    #[test]
    fn each_seed_has_its_own_subset_and_together_they_have_all() {
        let swarm = Swarm::all();
        let kinds = |seed| {
            let plan = Plan::draw(seed, &swarm, &nodes(3));
            let mut kinds = Vec::new();
            for event in &plan.events {
                if !kinds.contains(&discriminant(&event.fault)) {
                    kinds.push(discriminant(&event.fault));
                }
            }
            kinds.len()
        };
        let counts: BTreeSet<usize> = (0..200).map(kinds).collect();
        assert!(counts.contains(&0) && counts.len() > 6, "{counts:?}");
        assert_eq!(Plan::draw(5, &swarm, &nodes(3)), Plan::draw(5, &swarm, &nodes(3)));
        let mut all = Vec::new();
        for event in (0..200).flat_map(|seed| Plan::draw(seed, &swarm, &nodes(3)).events) {
            if !all.contains(&discriminant(&event.fault)) {
                all.push(discriminant(&event.fault));
            }
        }
        // A power failure is one of two faults.
        assert_eq!(Kind::ALL.len() + 1, all.len());
    }

    #[test]
    fn a_node_that_is_spared_is_spared_and_one_node_has_no_links() {
        let swarm = Swarm::of(&[Kind::Crash, Kind::Cut]).sparing(Kind::Crash, "n0");
        for seed in 0..50 {
            for event in Plan::draw(seed, &swarm, &nodes(2)).events {
                assert!(!matches!(&event.fault, Fault::Crash { node, .. } if node == "n0"), "{event:?}");
                let longest = 30_000 + Fault::PATIENCE_US;
                assert!(event.at_us <= 100_000 && event.fault.for_us() <= longest, "{event:?}");
            }
            assert!(Plan::draw(seed, &swarm, &nodes(1)).events.is_empty());
        }
    }

    /// A link has two ends. A spared node was once drawn as the second one.
    #[test]
    fn a_node_that_is_spared_is_neither_end_of_a_link_that_fails() {
        let swarm = Swarm::of(&[Kind::Cut, Kind::Partition]).sparing(Kind::Cut, "n1");
        let plans = (0..100).map(|seed| Plan::draw(seed, &swarm, &nodes(3)));
        let (mut cuts, mut others) = (0, 0);
        for event in plans.flat_map(|plan| plan.events) {
            match &event.fault {
                Fault::Cut { a, b } => {
                    assert!(a != "n1" && b != "n1", "{event:?}");
                    cuts += 1;
                }
                fault => others += usize::from(fault.to_string().contains("n1")),
            }
        }
        assert!(cuts > 100 && others > 100, "{cuts} cuts, {others} partitions of n1");
    }
}
