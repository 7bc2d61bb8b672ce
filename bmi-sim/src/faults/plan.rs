//! A plan of faults: what goes wrong, to whom, and when. Data, so that it can be drawn, printed,
//! shrunk, edited by hand and run again.
//!
//! **Text.** JSON in one line, so that it fits an environment variable:
//!
//! ```text
//! {"events":[{"at_us":1200,"cut":{"a":"n0","b":"n1"}},{"at_us":1500,"crash":{"node":"n1","for_us":3000,"salt":7}}]}
//! ```
//!
//! Times are in microseconds of virtual time, nodes are named. A fault that lasts says for how long
//! and ends by itself, so every plan has an [end](Plan::end_us), after which the world is whole
//! again. What a fault needs of chance it draws from its own `salt`: leaving out one event of a
//! plan changes no other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One thing that goes wrong. See the [module above](super) for what each does to a connection.
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
    /// The link between two nodes is down: nothing is delivered; after the detection time their
    /// connections end.
    Partition {
        /// One node.
        a: String,
        /// The other.
        b: String,
        /// For how long.
        for_us: u64,
    },
    /// Each packet between two nodes is late by up to `by_us`, drawn. Connections stay in order,
    /// each by itself; queue pairs overtake each other.
    Delay {
        /// One node.
        a: String,
        /// The other.
        b: String,
        /// The longest delay.
        by_us: u64,
        /// For how long.
        for_us: u64,
        /// Feeds the draw.
        salt: u32,
    },
    /// Each packet between two nodes is lost or damaged with this probability. The adapters send it
    /// again, after a time-out that doubles; a packet that was lost too often ends its connection:
    /// at the side that waits for it at once, at the other after the detection time. A duplicate is
    /// dropped by its number and shows nowhere.
    Lossy {
        /// One node.
        a: String,
        /// The other.
        b: String,
        /// How many packets of a hundred.
        percent: u8,
        /// For how long.
        for_us: u64,
        /// Feeds the draw.
        salt: u32,
    },
    /// The next message or read between two nodes arrives damaged on a wire whose adapters do not
    /// send again: the receiver's check fails, and the connection ends.
    Corrupt {
        /// One node.
        a: String,
        /// The other.
        b: String,
    },
    /// The next message between two nodes finds its receiver not ready (C9), whatever was posted:
    /// the connection ends. Writes without immediate data, and reads, take no receive and pass.
    NotReady {
        /// One node.
        a: String,
        /// The other.
        b: String,
    },
    /// The next message from `a` to `b` arrives, and of what `b` sends back on its connection the
    /// first message arrives damaged: the connection ends, so whatever was asked for has been done,
    /// and nobody was told.
    Unanswered {
        /// Who asks.
        a: String,
        /// Who does it.
        b: String,
    },
    /// The completion queue of a node overruns: all its connections end; its peers notice after the
    /// detection time.
    Overrun {
        /// The node.
        node: String,
    },
    /// A node's program stands still, as if stopped by a signal; its adapter works on.
    Pause {
        /// The node.
        node: String,
        /// For how long.
        for_us: u64,
    },
    /// The power of a node fails. Its memory is lost, what its disk had synced is kept, and what
    /// was not synced is lost, kept or torn, sector by sector. When the power is back, the node's
    /// programs ([`crate::Node::boot`]) start anew.
    Crash {
        /// The node.
        node: String,
        /// How long the power is off.
        for_us: u64,
        /// Feeds the draw of what the disk loses.
        salt: u32,
    },
    /// The power of a node fails while a store is writing to its disk, in the middle of what it
    /// writes at once: within the next [`Fault::MOST_WRITES`] writes, drawn from the salt; after
    /// [`Fault::PATIENCE_US`] whether there was a write or not. Else as [`Fault::Crash`].
    CrashWriting {
        /// The node.
        node: String,
        /// How long the power is off.
        for_us: u64,
        /// Feeds the draws of the write, and of what the disk loses.
        salt: u32,
    },
    /// Writes to a node's disk fail, `Exhausted`.
    DiskFull {
        /// The node.
        node: String,
        /// For how long.
        for_us: u64,
    },
    /// Everything that is asked of a node's disk fails, `Io`.
    DiskBroken {
        /// The node.
        node: String,
        /// For how long.
        for_us: u64,
    },
    /// The next registrations of a node's adapters fail, `Exhausted`.
    Registrations {
        /// The node.
        node: String,
        /// How many of each adapter.
        count: u32,
    },
    /// A node's clock on the wall ([`crate::Node::wall_ns`]) is set, forwards or back. The clock
    /// that endpoints go by never steps, since deadlines are on the monotonic clock of a real
    /// system: a program that stood still is [`Fault::Pause`].
    ClockStep {
        /// The node.
        node: String,
        /// By how much; negative is back.
        by_us: i64,
    },
}

impl Fault {
    /// For how long it lasts, in µs; 0 if it is over at once. One that waits for its victim does so
    /// for [`Fault::PATIENCE_US`], if the plan ends with it.
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

    /// A power failure that comes in the middle of writing comes within so many writes.
    pub const MOST_WRITES: u32 = 32;

    /// How long a plan goes on for the sake of a fault that hits the *next* message or
    /// registration, in µs.
    pub const PATIENCE_US: u64 = 10_000;

    /// Its duration, for those that have one.
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

/// What goes wrong in one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The events, in any order.
    pub events: Vec<At>,
}

/// Why a text is no plan.
#[derive(Debug, thiserror::Error)]
#[error("not a plan of faults: {0}")]
pub struct BadPlan(#[from] serde_json::Error);

impl Plan {
    /// A plan in which nothing happens.
    pub const NONE: Plan = Plan { events: Vec::new() };

    /// This plan and one event more.
    #[must_use]
    pub fn with(mut self, at_us: u64, fault: Fault) -> Plan {
        self.events.push(At { at_us, fault });
        self
    }

    /// When the last fault is over, in µs; 0 for an empty plan.
    pub fn end_us(&self) -> u64 {
        self.events.iter().map(|event| event.at_us.saturating_add(event.fault.for_us())).max().unwrap_or(0)
    }

    /// The plan as a text in one line, as [`Plan::from_str`] reads it.
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
    /// For people: one event in a line, in order of time.
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
