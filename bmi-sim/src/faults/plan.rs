//! A plan of faults: which fault hits which node or link, and when. It is data, so that it can be
//! drawn, printed, shrunk, edited by hand and run again.
//!
//! **Text.** JSON in one line, so that it fits an environment variable:
//!
//! ```text
//! {"events":[{"at_us":1200,"cut":{"a":"n0","b":"n1"}},{"at_us":1500,"crash":{"node":"n1","for_us":3000,"salt":7}}]}
//! ```
//!
//! Times are in microseconds of virtual time, and nodes are named. A fault that lasts has a
//! duration, so every plan has an [end](Plan::end_us), after which the world is whole again. A
//! fault that needs random numbers draws them from its own `salt`. Leaving out one event of a plan
//! changes no other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A fault. The [parent module](super) describes its effect on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// Every connection between two nodes ends, at once and on both sides.
    Cut {
        /// One node.
        a: String,
        /// The other.
        b: String,
    },
    /// The link between two nodes is down and delivers nothing. After the detection time their
    /// connections end.
    Partition {
        /// One node.
        a: String,
        /// The other.
        b: String,
        /// For how long.
        for_us: u64,
    },
    /// Each packet between two nodes is delayed by up to `by_us`, drawn. Each connection stays in
    /// order, but queue pairs overtake each other.
    Delay {
        /// One node.
        a: String,
        /// The other.
        b: String,
        /// The longest delay.
        by_us: u64,
        /// For how long.
        for_us: u64,
        /// The seed of the draw.
        salt: u32,
    },
    /// Each packet between two nodes is lost or damaged with this probability. The adapters send it
    /// again, after a time-out that doubles. A packet that was lost too often ends its connection:
    /// at once at the side that waits for it, after the detection time at the other. A duplicate is
    /// dropped by its number and has no effect.
    Lossy {
        /// One node.
        a: String,
        /// The other.
        b: String,
        /// Percentage of the packets.
        percent: u8,
        /// For how long.
        for_us: u64,
        /// The seed of the draw.
        salt: u32,
    },
    /// The next message or read between two nodes arrives damaged, on a wire whose adapters do not
    /// send again. The receiver's check fails, and the connection ends.
    Corrupt {
        /// One node.
        a: String,
        /// The other.
        b: String,
    },
    /// The next message between two nodes finds its receiver not ready (C9), even if a receive is
    /// posted, and the connection ends. Writes without immediate data and reads take no receive and
    /// are not affected.
    NotReady {
        /// One node.
        a: String,
        /// The other.
        b: String,
    },
    /// The next message from `a` to `b` arrives, but the first message that `b` then sends back on
    /// its connection arrives damaged. The connection ends: the request has been carried out, and
    /// `a` does not learn it.
    Unanswered {
        /// The node that requests.
        a: String,
        /// The node that carries the request out.
        b: String,
    },
    /// The completion queue of a node overruns. All its connections end, and its peers notice after
    /// the detection time.
    Overrun {
        /// The node.
        node: String,
    },
    /// A node's program stops, as if by a signal. Its adapter works on.
    Pause {
        /// The node.
        node: String,
        /// For how long.
        for_us: u64,
    },
    /// The power of a node fails. Its memory is lost, and the synced data of its disk is kept. Data
    /// that was not synced is lost, kept or torn, sector by sector. When the power is back, the
    /// node's programs ([`crate::Node::boot`]) start again.
    Crash {
        /// The node.
        node: String,
        /// How long the power is off.
        for_us: u64,
        /// The seed of the draw of what the disk loses.
        salt: u32,
    },
    /// The power of a node fails while a store is writing to its disk, in the middle of the writes
    /// that it makes at once. It fails within the next [`Fault::MOST_WRITES`] writes, drawn from
    /// the salt, or after [`Fault::PATIENCE_US`] if there is no such write. Otherwise as
    /// [`Fault::Crash`].
    CrashWriting {
        /// The node.
        node: String,
        /// How long the power is off.
        for_us: u64,
        /// The seed of the draws of the write, and of what the disk loses.
        salt: u32,
    },
    /// Writes to a node's disk fail with `Exhausted`.
    DiskFull {
        /// The node.
        node: String,
        /// For how long.
        for_us: u64,
    },
    /// All requests to a node's disk fail with `Io`.
    DiskBroken {
        /// The node.
        node: String,
        /// For how long.
        for_us: u64,
    },
    /// The next registrations of a node's adapters fail with `Exhausted`.
    Registrations {
        /// The node.
        node: String,
        /// Number of registrations of each adapter.
        count: u32,
    },
    /// A node's wall clock ([`crate::Node::wall_ns`]) is set, forwards or back. The endpoints'
    /// clock never steps, because deadlines use the monotonic clock of a real system. For a program
    /// that stopped for a while, use [`Fault::Pause`].
    ClockStep {
        /// The node.
        node: String,
        /// The change in µs; negative is back.
        by_us: i64,
    },
}

impl Fault {
    /// Returns how long it lasts, in µs; 0 if it is over at once. A fault that waits for its victim
    /// lasts at least [`Fault::PATIENCE_US`].
    pub fn for_us(&self) -> u64 {
        let mut copy = self.clone();
        let waits = matches!(
            self,
            Fault::Corrupt { .. } | Fault::NotReady { .. } | Fault::Unanswered { .. } | Fault::Registrations { .. }
        );
        let least = if waits { Fault::PATIENCE_US } else { 0 };
        let waiting = if matches!(self, Fault::CrashWriting { .. }) { Fault::PATIENCE_US } else { 0 };
        copy.duration().map_or(least, |duration| duration.saturating_add(waiting))
    }

    /// A [`Fault::CrashWriting`] happens within this many writes.
    pub const MOST_WRITES: u32 = 32;

    /// How long a plan waits for a fault that hits the *next* message or registration, in µs.
    pub const PATIENCE_US: u64 = 10_000;

    /// Returns its duration, if it has one.
    pub(crate) fn duration(&mut self) -> Option<&mut u64> {
        match self {
            Fault::Partition { for_us, .. }
            | Fault::Delay { for_us, .. }
            | Fault::Lossy { for_us, .. }
            | Fault::Pause { for_us, .. }
            | Fault::Crash { for_us, .. }
            | Fault::CrashWriting { for_us, .. }
            | Fault::DiskFull { for_us, .. }
            | Fault::DiskBroken { for_us, .. } => Some(for_us),
            _ => None,
        }
    }
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    /// When it begins, in µs of virtual time.
    pub at_us: u64,
    /// What happens.
    #[serde(flatten)]
    pub fault: Fault,
}

/// The faults of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The events, in any order.
    pub events: Vec<At>,
}

/// The error of a text that is not a plan.
#[derive(Debug, thiserror::Error)]
#[error("not a plan of faults: {0}")]
pub struct BadPlan(#[from] serde_json::Error);

impl Plan {
    /// A plan without events.
    pub const NONE: Plan = Plan { events: Vec::new() };

    /// Returns this plan with one more event.
    #[must_use]
    pub fn with(mut self, at_us: u64, fault: Fault) -> Plan {
        self.events.push(At { at_us, fault });
        self
    }

    /// Returns when the last fault is over, in µs; 0 for an empty plan.
    pub fn end_us(&self) -> u64 {
        self.events.iter().map(|event| event.at_us.saturating_add(event.fault.for_us())).max().unwrap_or(0)
    }

    /// Returns the plan as a text in one line, which [`Plan::from_str`] reads.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("names and numbers can always be written")
    }
}

impl FromStr for Plan {
    type Err = BadPlan;

    fn from_str(text: &str) -> Result<Plan, BadPlan> {
        Ok(serde_json::from_str(text)?)
    }
}

impl fmt::Display for Plan {
    /// Formats the plan for people: one event per line, in order of time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut events: Vec<&At> = self.events.iter().collect();
        events.sort_by_key(|event| event.at_us);
        if events.is_empty() {
            return writeln!(f, "  no faults");
        }
        events.iter().try_for_each(|event| writeln!(f, "  {:>9} µs  {}", event.at_us, event.fault))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Cut { a, b } => write!(f, "the connections between {a} and {b} are cut"),
            Fault::Partition { a, b, for_us } => write!(f, "the link between {a} and {b} is down for {for_us} µs"),
            Fault::Delay { a, b, by_us, for_us, .. } => {
                write!(f, "packets between {a} and {b} are up to {by_us} µs late, for {for_us} µs")
            }
            Fault::Lossy { a, b, percent, for_us, .. } => {
                write!(f, "{percent} % of the packets between {a} and {b} are lost, for {for_us} µs")
            }
            Fault::Corrupt { a, b } => write!(f, "the next message between {a} and {b} is damaged"),
            Fault::NotReady { a, b } => write!(f, "the next message between {a} and {b} finds no receive"),
            Fault::Unanswered { a, b } => write!(f, "the answer to the next message from {a} to {b} is damaged"),
            Fault::Overrun { node } => write!(f, "the completion queue of {node} overruns"),
            Fault::Pause { node, for_us } => write!(f, "{node} stands still for {for_us} µs"),
            Fault::Crash { node, for_us, .. } => write!(f, "the power of {node} fails for {for_us} µs"),
            Fault::CrashWriting { node, for_us, .. } => {
                write!(f, "the power of {node} fails for {for_us} µs, in the middle of a write")
            }
            Fault::DiskFull { node, for_us } => write!(f, "the disk of {node} is full for {for_us} µs"),
            Fault::DiskBroken { node, for_us } => write!(f, "the disk of {node} fails for {for_us} µs"),
            Fault::Registrations { node, count } => write!(f, "the next {count} registrations of {node} fail"),
            Fault::ClockStep { node, by_us } => write!(f, "the clock on {node}'s wall steps by {by_us} µs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_line_of_text_and_back() {
        let (a, b, node) = ("n0".to_owned(), "n1".to_owned(), "n2".to_owned());
        let plan = Plan::NONE
            .with(1200, Fault::Cut { a: a.clone(), b: b.clone() })
            .with(7, Fault::Crash { node: node.clone(), for_us: 3000, salt: 7 })
            .with(9, Fault::ClockStep { node, by_us: -5 })
            .with(2, Fault::Lossy { a, b, percent: 20, for_us: 100, salt: 1 });
        let text = plan.to_text();
        assert!(text.starts_with(r#"{"events":[{"at_us":1200,"cut":{"a":"n0","b":"n1"}},"#), "{text}");
        assert!(!text.contains('\n'));
        assert_eq!(text.parse::<Plan>().unwrap(), plan);
        assert_eq!(plan.end_us(), 3007);
        assert!(plan.to_string().starts_with("          2 µs  20 % of the packets"), "{plan}");
    }

    #[test]
    fn what_is_no_plan_is_said() {
        let error = r#"{"events":[{"at_us":1,"cut":{"a":"n0"}}]}"#.parse::<Plan>().unwrap_err();
        assert!(error.to_string().contains("missing field `b`"), "{error}");
        assert!("nonsense".parse::<Plan>().is_err());
    }
}
