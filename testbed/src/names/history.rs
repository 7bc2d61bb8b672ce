//! The model of a name that several workers use: when each version was written, and by which
//! operation.
//!
//! **Rule.** A version can be read if the operation that wrote it began before the read ended, and
//! no other write certainly replaced it before the read began. Such a write was acknowledged, began
//! after the operation ended, and ended before the read began. To remove the file is to write
//! *absent*. An operation that failed has written or has not, at some time between its begin and
//! its end.

use std::collections::BTreeSet;

use super::content::{Content, state_name};

/// An operation that writes the name. Times are in microseconds of one clock.
#[derive(Clone, Copy, Debug)]
struct Write {
    /// `None` if it removes the file.
    state: Option<Content>,
    begin_us: u64,
    /// `u64::MAX` while the operation runs.
    end_us: u64,
    acknowledged: bool,
}

/// All writes of one name.
#[derive(Debug)]
pub struct History(Vec<Write>);

impl History {
    /// Returns the history of a name that does not exist.
    pub fn absent() -> History {
        History(vec![Write { state: None, begin_us: 0, end_us: 0, acknowledged: true }])
    }

    /// Records the begin of a write. Returns its number.
    pub fn begin(&mut self, state: Option<Content>, begin_us: u64) -> usize {
        self.0.push(Write { state, begin_us, end_us: u64::MAX, acknowledged: false });
        self.0.len() - 1
    }

    /// Records the end of a write.
    pub fn end(&mut self, number: usize, end_us: u64, acknowledged: bool) {
        let write = &mut self.0[number];
        (write.end_us, write.acknowledged) = (end_us, acknowledged);
    }

    /// Returns the states that a read between two times can have seen.
    pub fn states(&self, begin_us: u64, end_us: u64) -> BTreeSet<Option<Content>> {
        let replaced = |write: &Write| {
            let later = |other: &Write| other.begin_us > write.end_us && other.end_us < begin_us;
            self.0.iter().any(|other| other.acknowledged && later(other))
        };
        let possible = self.0.iter().filter(|write| write.begin_us <= end_us && !replaced(write));
        possible.map(|write| write.state).collect()
    }

    /// Describes the last writes, oldest first.
    pub fn lines(&self, count: usize) -> Vec<String> {
        let line = |write: &Write| {
            let begin = write.begin_us as f64 / 1e6;
            let end = match (write.end_us, write.acknowledged) {
                (u64::MAX, _) => "runs".to_owned(),
                (end, true) => format!("acknowledged at {:.3} s", end as f64 / 1e6),
                (end, false) => format!("failed at {:.3} s", end as f64 / 1e6),
            };
            format!("written from {begin:.3} s, {end}: {}", state_name(write.state))
        };
        self.0.iter().skip(self.0.len().saturating_sub(count)).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(version: u64) -> Option<Content> {
        Some(Content::new("/shared", version, 10))
    }

    fn history(writes: &[(Option<Content>, u64, u64, bool)]) -> History {
        let mut history = History::absent();
        for (state, begin_us, end_us, acknowledged) in writes {
            let number = history.begin(*state, *begin_us);
            history.end(number, *end_us, *acknowledged);
        }
        history
    }

    #[test]
    fn only_an_acknowledged_write_in_between_replaces() {
        let of = |acknowledged| history(&[(version(1), 10, 20, true), (version(2), 30, 40, acknowledged)]);
        assert_eq!(of(true).states(50, 60), BTreeSet::from([version(2)]));
        assert_eq!(of(false).states(50, 60), BTreeSet::from([version(1), version(2)]));
        assert_eq!(
            of(true).states(35, 60),
            BTreeSet::from([version(1), version(2)]),
            "the read began during the write"
        );
        assert_eq!(of(true).states(22, 25), BTreeSet::from([version(1)]), "the write began after the read");
    }

    #[test]
    fn writes_at_the_same_time_replace_each_other_in_any_order() {
        let history = history(&[(version(1), 10, 30, true), (version(2), 20, 40, true)]);
        assert_eq!(history.states(50, 60), BTreeSet::from([version(1), version(2)]));
        assert_eq!(history.states(5, 9), BTreeSet::from([None]));
    }

    #[test]
    fn a_write_that_runs_or_failed_can_be_seen_but_replaces_nothing() {
        let mut history = history(&[(version(1), 10, 20, true), (None, 30, 40, false)]);
        history.begin(version(3), 45);
        assert_eq!(history.states(50, 60), BTreeSet::from([None, version(1), version(3)]));
        let number = history.begin(None, 70);
        history.end(number, 80, true);
        assert_eq!(history.states(90, 95), BTreeSet::from([None, version(3)]), "version 3 is still being written");
        assert_eq!(
            history.lines(2),
            [
                "written from 0.000 s, runs: version 3 (10 bytes)",
                "written from 0.000 s, acknowledged at 0.000 s: absent"
            ]
        );
    }
}
