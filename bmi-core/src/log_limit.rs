//! A limit on the log lines that peers can cause.
//!
//! **Why.** A line about a peer that breaks the rules helps. A hundred thousand such lines fill the
//! disk, hide all others, and cost more than the peer's connections. So of each kind and address,
//! the first few lines of an interval are written. At its end, one line reports how many were left
//! out.
//!
//! **Invariants**
//! 1. The time comes from the caller, so lines are the same in each run of the simulator.
//! 2. The memory is bounded, however many addresses there are. Addresses beyond the bound share one
//!    allowance for each kind.
//! 3. Nothing is left out silently. The limit has a deadline while something is to be reported, and
//!    no deadline otherwise.

use std::time::Duration;

use crate::time::Time;

/// The length of an interval. It begins with the first line of a kind and address.
const INTERVAL: Duration = Duration::from_secs(10);
/// Lines of one kind and address that are written in an interval.
const WRITTEN: u64 = 5;
/// Most kinds and addresses with an allowance of their own.
const ENTRIES: usize = 32;
/// The address of those that share an allowance.
const OTHERS: &str = "other addresses";

/// A limit on log lines, by kind and address: five of each in ten seconds.
///
/// ```
/// use bmi_core::{LogLimit, Time};
///
/// let (mut limit, now) = (LogLimit::default(), Time::ZERO);
/// let written = (0..1000).filter(|_| limit.admits("malformed request", "10.0.0.1", now)).count();
/// assert_eq!(written, 5);
/// assert!(limit.next_deadline().is_some(), "it will report that 995 were left out");
/// ```
#[derive(Debug, Default)]
pub struct LogLimit {
    entries: Vec<Entry>,
    due: Option<Time>,
}

/// The lines of one kind and address in the current interval.
#[derive(Debug)]
struct Entry {
    kind: &'static str,
    from: Box<str>,
    began: Time,
    lines: u64,
}

impl LogLimit {
    /// Returns whether the caller should write a line of this kind about `from`: a host, without
    /// the port. A line that is not written is counted.
    pub fn admits(&mut self, kind: &'static str, from: &str, now: Time) -> bool {
        self.end_intervals(|entry| entry.began + INTERVAL <= now);
        let place =
            |entries: &[Entry], from: &str| entries.iter().position(|entry| entry.kind == kind && *entry.from == *from);
        let at = place(&self.entries, from).unwrap_or_else(|| {
            let from = if self.entries.len() < ENTRIES { from } else { OTHERS };
            place(&self.entries, from).unwrap_or_else(|| {
                self.entries.push(Entry { kind, from: from.into(), began: now, lines: 0 });
                self.entries.len() - 1
            })
        });
        let entry = &mut self.entries[at];
        entry.lines += 1;
        if entry.lines == WRITTEN + 1 {
            self.due = self.due.into_iter().chain([entry.began + INTERVAL]).min();
        }
        entry.lines <= WRITTEN
    }

    /// Returns when [`LogLimit::poll`] has something to report, if it has.
    #[inline]
    pub fn next_deadline(&self) -> Option<Time> {
        self.due
    }

    /// Reports the lines that were left out in the intervals that have ended.
    #[inline]
    pub fn poll(&mut self, now: Time) {
        if self.due.is_some_and(|due| due <= now) {
            self.end_intervals(|entry| entry.began + INTERVAL <= now);
        }
    }

    fn end_intervals(&mut self, has_ended: impl Fn(&Entry) -> bool) {
        self.entries.retain(|entry| {
            let ended = has_ended(entry);
            if ended {
                entry.report();
            }
            !ended
        });
        let left_out = self.entries.iter().filter(|entry| entry.lines > WRITTEN);
        self.due = left_out.map(|entry| entry.began + INTERVAL).min();
    }
}

impl Drop for LogLimit {
    fn drop(&mut self) {
        self.end_intervals(|_| true);
    }
}

impl Entry {
    fn report(&self) {
        let left_out = self.lines.saturating_sub(WRITTEN);
        if left_out > 0 {
            let (kind, from) = (self.kind, &*self.from);
            tracing::warn!(kind, from, left_out, "more lines of this kind were left out");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn written(limit: &mut LogLimit, kind: &'static str, from: &str, now: Time) -> usize {
        (0..100).filter(|_| limit.admits(kind, from, now)).count()
    }

    #[test]
    fn each_kind_and_address_has_its_own_allowance_in_each_interval() {
        let mut limit = LogLimit::default();
        assert!(limit.admits("closed", "a", at(0)) && limit.next_deadline().is_none());
        assert_eq!(written(&mut limit, "closed", "a", at(1)), 4);
        assert_eq!(limit.next_deadline(), Some(at(10)), "the interval began with the first line");
        assert_eq!(written(&mut limit, "closed", "b", at(2)), 5);
        assert_eq!(written(&mut limit, "cut", "a", at(2)), 5);
        limit.poll(at(10));
        assert_eq!(limit.next_deadline(), Some(at(12)));
        assert_eq!(written(&mut limit, "closed", "a", at(11)), 5);
        limit.poll(at(12));
        assert_eq!(limit.next_deadline(), Some(at(21)));
        limit.poll(at(21));
        assert!(limit.next_deadline().is_none() && limit.entries.is_empty());
    }

    #[test]
    fn many_addresses_share_an_allowance() {
        let mut limit = LogLimit::default();
        let lines: usize = (0..1000).map(|host| written(&mut limit, "closed", &host.to_string(), at(0))).sum();
        assert_eq!(lines, 5 * (ENTRIES + 1));
        assert_eq!(limit.entries.len(), ENTRIES + 1);
    }
}
