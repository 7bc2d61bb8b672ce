//! The plan of an endpoint, for people to read: the path for each size, and the reason.

use std::fmt;

use super::path::{Direction, Miss, Path};
use super::policy::{Crossovers, Facts, LONGEST_AHEAD, Policy};
use crate::transport::BulkWay;

/// One line of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The direction of the data.
    pub direction: Direction,
    /// True if the memory is registered.
    pub registered: bool,
    /// Smallest number of data bytes.
    pub from: u64,
    /// Largest number of data bytes, inclusive; `None` if unlimited.
    pub to: Option<u64>,
    /// The path.
    pub path: Path,
    /// The reason.
    pub why: String,
}

/// How messages of some sizes leave for a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRule {
    /// Which messages: `message`, `unexpected message`.
    pub kind: &'static str,
    /// Smallest number of bytes.
    pub from: u64,
    /// Largest number of bytes, inclusive; `None` if unlimited.
    pub to: Option<u64>,
    /// The path: `eager`, `rendezvous read`.
    pub path: &'static str,
    /// The reason.
    pub why: String,
}

/// The paths that an endpoint takes for data of each size, if all slots and credits are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The lines, sorted by direction, registration and size.
    pub rules: Vec<Rule>,
    /// The origin of the thresholds.
    pub thresholds: &'static str,
    /// How bytes get to and from the peer's memory, by kind of memory. Empty if there is one way
    /// for all.
    pub ways: Vec<BulkWay>,
}

impl Plan {
    /// Returns the plan of `policy`. `best` holds the facts when all resources are free; its
    /// direction, length and registration are ignored. With `registration_is_free`, memory always
    /// counts as registered.
    pub(crate) fn new(policy: &Policy, best: &Facts, registration_is_free: bool) -> Plan {
        let mut rules: Vec<Rule> = Vec::new();
        for direction in Direction::ALL {
            for registered in [false, true] {
                if registration_is_free && !registered {
                    continue;
                }
                let facts = |len| Facts { direction, registered, len, ..*best };
                let mut from = 0;
                for edge in edges(policy, &facts(0)) {
                    let choice = policy.choose(&facts(edge.unwrap_or(u64::MAX)));
                    let why = reason(policy, &facts(edge.unwrap_or(u64::MAX)), choice.path, choice.missed);
                    match rules.last_mut().filter(|last| (last.direction, last.registered) == (direction, registered)) {
                        Some(last) if last.path == choice.path && last.why == why => last.to = edge,
                        _ => rules.push(Rule { direction, registered, from, to: edge, path: choice.path, why }),
                    }
                    from = edge.map_or(u64::MAX, |edge| edge + 1);
                }
            }
        }
        let thresholds = match (policy.forced, policy.measured) {
            (Some(_), _) => "forced",
            (None, true) => "measured on this adapter",
            (None, false) => "of the paper, not measured here",
        };
        Plan { rules, thresholds, ways: Vec::new() }
    }
}

/// Returns the sizes at which the choice may change, in order, and then `None`.
fn edges(policy: &Policy, facts: &Facts) -> Vec<Option<u64>> {
    let Crossovers { inline, fast } = policy.thresholds.of(facts.direction, facts.registered);
    let mut edges: Vec<u64> =
        [inline, fast, facts.inline_room, facts.fast_room.unwrap_or(0)].iter().map(|edge| *edge as u64).collect();
    edges.extend((facts.direction == Direction::Read && facts.registered).then_some(LONGEST_AHEAD));
    edges.retain(|edge| *edge > 0);
    edges.sort_unstable();
    edges.dedup();
    edges.into_iter().map(Some).chain([None]).collect()
}

fn reason(policy: &Policy, facts: &Facts, path: Path, missed: Option<Miss>) -> String {
    if let Some(miss) = missed {
        return match (miss, path) {
            (Miss::NoRoom, _) => "longer than a message, or a slot, has room for".to_owned(),
            (miss, _) => miss.to_string(),
        };
    }
    if policy.forced.is_some() {
        return "forced".to_owned();
    }
    match (path, facts.direction, facts.registered) {
        (Path::Inline, ..) => "a copy costs less than another message".to_owned(),
        (Path::FastRdma, Direction::Write, true) => "one write from the user's memory into a slot".to_owned(),
        (Path::FastRdma, Direction::Write, false) => {
            "a copy costs less than registering; one write into a slot".to_owned()
        }
        (Path::FastRdma, Direction::Read, true) => "written to the user's memory ahead of the reply".to_owned(),
        (Path::FastRdma, Direction::Read, false) => {
            "a copy costs less than registering; reply and data in a slot".to_owned()
        }
        (Path::ServerBased, Direction::Write, _) => "read by the server when it has room: no copy".to_owned(),
        (Path::ServerBased, Direction::Read, _) => "written by the server: no copy".to_owned(),
        (Path::ClientBased | Path::Hybrid, ..) => "moved by the client, as the server grants".to_owned(),
    }
}

/// Displays `4096` as `4 KiB`.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => f.pad(&format!("{} MiB", bytes >> 20)),
            bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => f.pad(&format!("{} KiB", bytes >> 10)),
            bytes => f.pad(&format!("{bytes} B")),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<9}  {:<10}  {:>10}  {:<12}  why", "direction", "registered", "up to", "path")?;
        for rule in &self.rules {
            let registered = if rule.registered { "yes" } else { "no" };
            let to = rule.to.map_or_else(|| "any".to_owned(), |to| Bytes(to).to_string());
            writeln!(f, "{:<9}  {registered:<10}  {to:>10}  {:<12}  {}", rule.direction, rule.path, rule.why)?;
        }
        for BulkWay { memory, way, why } in &self.ways {
            writeln!(f, "bulk of {memory:<16}  {way}: {why}")?;
        }
        writeln!(f, "thresholds: {}", self.thresholds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best() -> Facts {
        Facts {
            direction: Direction::Read,
            len: 0,
            registered: false,
            inline_room: 7 << 10,
            fast_room: Some(66 << 10),
            slot_free: true,
            credit: true,
            rdma_read: true,
            immediate: true,
        }
    }

    /// Every line gives the policy's choice at both its ends, and the lines cover all sizes.
    #[test]
    fn lines_agree_with_the_policy() {
        let forced = [None, Some(Path::Inline), Some(Path::Hybrid), Some(Path::ClientBased)];
        for forced in forced {
            let policy = Policy { forced, ..Policy::default() };
            let plan = Plan::new(&policy, &best(), false);
            let mut next = 0;
            for rule in &plan.rules {
                assert!(rule.from == next || rule.from == 0, "{rule:?}");
                next = rule.to.map_or(0, |to| to + 1);
                for len in [rule.from, rule.to.unwrap_or(1 << 40)] {
                    let facts = Facts { direction: rule.direction, registered: rule.registered, len, ..best() };
                    assert_eq!(policy.choose(&facts).path, rule.path, "{rule:?} at {len}");
                }
            }
            assert_eq!(plan.rules.iter().filter(|rule| rule.to.is_none()).count(), 4);
        }
    }

    #[test]
    fn it_reads_as_a_table() {
        let text = Plan::new(&Policy::default(), &best(), true).to_string();
        assert!(text.contains("write      yes              4 KiB  inline"), "{text}");
        assert!(text.contains("64 KiB  fast-rdma"), "{text}");
        assert!(text.contains("any  server-based"), "{text}");
        assert!(text.ends_with("thresholds: of the paper, not measured here\n"), "{text}");
    }
}
