//! Processes that broke the rules lately: what they say over new connections is heard later.
//!
//! **Why.** A connection costs a server more than its peer: areas, mappings, receive slots. A
//! process that connects, breaks the rules and connects again kept a server at work with that
//! alone, and honest clients waited for the processor. So each violation of a process delays what
//! comes next from it. It is one process, so no other is delayed.
//!
//! **Invariants**
//! 1. A process that goes on gets [`DELAY`] for each violation: in the long run it breaks the rules
//!    once in that time, whatever the number of its connections.
//! 2. No connection waits longer than [`LONGEST`], so an honest part of such a process comes in.
//! 3. At most [`MOST`] processes are remembered. The one that is free first is forgotten first.

use std::collections::BTreeMap;
use std::time::Duration;

use bmi_core::Time;

/// What a violation adds to the delay of its process.
const DELAY: Duration = Duration::from_millis(5);
/// The longest delay: a tenth of `handshake_timeout`.
const LONGEST: Duration = Duration::from_millis(500);
/// The most processes that are remembered.
const MOST: usize = 64;

/// When each process is heard again, by its number.
#[derive(Debug, Default)]
pub(crate) struct Offenders(BTreeMap<i32, Time>);

impl Offenders {
    /// Notes a violation of a process. One that cannot be told from others has the number 0 and is
    /// not noted.
    pub(super) fn note(&mut self, process: i32, now: Time) {
        if process == 0 {
            return;
        }
        self.0.retain(|_, until| *until > now);
        let until = self.0.get(&process).map_or(now, |until| *until) + DELAY;
        self.0.insert(process, until.min(now + LONGEST));
        if self.0.len() > MOST
            && let Some((first, _)) = self.0.iter().min_by_key(|(_, until)| **until).map(|(first, at)| (*first, *at))
        {
            self.0.remove(&first);
        }
    }

    /// Returns when a process that has just connected is heard, if that is later than `now`.
    pub(super) fn heard_at(&self, process: i32, now: Time) -> Option<Time> {
        self.0.get(&process).copied().filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_violation_delays_its_process_alone_and_not_for_ever() {
        let mut offenders = Offenders::default();
        let now = Time::ZERO + Duration::from_secs(1);
        offenders.note(0, now);
        (0..3).for_each(|_| offenders.note(7, now));
        assert_eq!([0, 7, 8].map(|process| offenders.heard_at(process, now)), [None, Some(now + DELAY * 3), None]);
        assert_eq!(offenders.heard_at(7, now + DELAY * 3), None);
        (0..1000).for_each(|_| offenders.note(7, now));
        assert_eq!(offenders.heard_at(7, now), Some(now + LONGEST));
        (100..1000).for_each(|process| offenders.note(process, now));
        assert_eq!((offenders.0.len(), offenders.heard_at(7, now)), (MOST, Some(now + LONGEST)));
        offenders.note(8, now + LONGEST);
        assert_eq!(offenders.0.len(), 1, "the others are free");
    }
}
