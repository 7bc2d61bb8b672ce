//! When a host counts as dead.
//!
//! **Why.** `TCP_USER_TIMEOUT` would decide this in the kernel, but Linux counts it also while the
//! peer's host answers: a program that does not read for that long would lose its connection. So
//! the transport asks the kernel now and then what was sent without an answer. Silence alone says
//! nothing. While the peer's buffers are full, the system sends probes at growing intervals, and
//! between two of them there is nothing to answer. What counts is that something was sent, again
//! and again, and no answer came.
//!
//! Sockets with nothing in flight are not looked at: there the keep-alive of the system does it.

use std::time::Duration;

use bmi_core::Time;

/// What the system knows of what a socket has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Bytes wait for the peer: sent and not acknowledged, or not sent for lack of room there.
    pub(crate) waiting: bool,
    /// Number of retransmissions or probes that were sent since the last answer to one.
    pub(crate) unanswered: u8,
    /// The time since the peer's host acknowledged anything.
    pub(crate) quiet: Duration,
}

/// A connection's silence, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// The first check that saw something unanswered. No answer has come since.
    since: Option<Time>,
    /// The last check.
    checked: Time,
}

impl Silence {
    /// Notes what a check has found. Returns true if the host counts as dead: nothing was answered
    /// for `timeout`, from one check to another.
    ///
    /// A check that comes late begins anew. If the whole machine was halted, nothing was sent in
    /// the meantime either. If only the program was, the peer's last bytes may be unread. One
    /// unanswered packet is not enough, however old: packets get lost.
    pub(crate) fn lasts(&mut self, sample: Sample, now: Time, timeout: Duration) -> bool {
        let late = now - self.checked > timeout / 2;
        self.checked = now;
        let goes_on = |since: &Time| sample.unanswered > 0 && !late && sample.quiet >= now - *since;
        let Some(since) = self.since.filter(goes_on) else {
            self.since = (sample.unanswered > 0).then_some(now);
            return false;
        };
        sample.unanswered > 1 && now - since >= timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Checks every 2.5 s. `sample` returns the number of unanswered packets at a time, and the
    /// time of the last answer. Returns when the host counted as dead.
    fn dead_at(checks: impl IntoIterator<Item = f64>, sample: impl Fn(f64) -> (u8, f64)) -> Option<f64> {
        let mut silence = Silence::default();
        checks.into_iter().find(|at| {
            let (unanswered, answered) = sample(*at);
            let quiet = Duration::from_secs_f64((at - answered).max(0.0));
            let now = Time::ZERO + Duration::from_secs_f64(*at);
            silence.lasts(Sample { waiting: true, unanswered, quiet }, now, TIMEOUT)
        })
    }

    fn regular(count: u32) -> impl Iterator<Item = f64> {
        (1..=count).map(|check| f64::from(check) * 2.5)
    }

    #[test]
    fn a_host_that_answers_nothing_is_dead_in_time() {
        // Sent at 4 s, then retransmitted at doubling intervals, or every 2.5 s.
        assert_eq!(dead_at(regular(20), |at| if at < 4.0 { (0, 3.9) } else { (3, 3.9) }), Some(15.0));
        let probed = |at: f64| (((at - 4.0) / 2.5).max(0.0) as u8, 3.9);
        assert_eq!(dead_at(regular(20), probed), Some(17.5));
    }

    #[test]
    fn answered_probes_may_be_minutes_apart() {
        let last_probe = |at: f64| (0..8).map(|nth| f64::from((1 << nth) - 1)).rfind(|sent| *sent <= at).unwrap();
        // Answered between two checks.
        assert_eq!(dead_at(regular(100), |at| (0, last_probe(at))), None);
        // Each check falls between a probe and its answer, which comes 50 ms later.
        assert_eq!(dead_at(regular(100), |at| (1, at - 2.45)), None);
    }

    #[test]
    fn a_lost_packet_is_not_death() {
        // One of the rare probes was lost. The next one is answered two minutes later.
        let lost = |at: f64| if (60.0..180.0).contains(&at) { (1, 0.0) } else { (0, at.min(180.0)) };
        assert_eq!(dead_at(regular(100), lost), None);
        // Retransmissions that were answered at last, just in time.
        assert_eq!(dead_at(regular(100), |at| if at < 12.0 { (5, 0.0) } else { (0, 12.0) }), None);
        // The peer acknowledges old bytes again and again: it is alive.
        assert_eq!(dead_at(regular(100), |at| (7, at - 1.0)), None);
    }

    #[test]
    fn a_late_check_only_begins_to_count() {
        let silent = |_| (9, 0.0);
        let paused = [2.5, 5.0].into_iter().chain((0..20).map(|nth| 3600.0 + 2.5 * f64::from(nth)));
        assert_eq!(dead_at(paused, silent), Some(3610.0));
        // A program that polls every minute learns it from the system, which gives up by itself.
        assert_eq!(dead_at((0..100).map(|nth| 60.0 * f64::from(nth)), silent), None);
    }
}
