//! How long a hybrid side polls before it sleeps.
//!
//! **The rule.** A wait polls for at most two wake-ups, that of the peer and its own, and then
//! sleeps. Whenever something comes, polling has so cost at most what sleeping would have. After
//! [`MOST_VAIN`] waits in a row that polled in vain, waits sleep at once, and only each [`RARE`]th
//! tries again. What a wake-up costs is measured: see [`wake_up`].
//!
//! **Source.** Karlin and others, Empirical studies of competitive spinning (1991).

use std::io::{Read, Result, Write, pipe};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::measured::now;

/// Waits in a row that polled in vain, after which polling is rare.
const MOST_VAIN: u32 = 8;
/// One in so many waits polls then.
const RARE: u32 = 16;
/// Round trips by which a wake-up is measured.
const TRIPS: usize = 101;

/// What a side knows of its waits.
#[derive(Default)]
pub(super) struct Spin {
    /// When the wait began that goes on.
    since: Option<Instant>,
    /// The waits so far that slept, or were about to, after they had polled, in a row.
    vain: u32,
    waits: u32,
    /// Whether this wait has ended its polling.
    is_over: bool,
}

impl Spin {
    /// Returns true if the side should look again, and false if it should sleep. `moved` says
    /// whether something has come or gone since the last call.
    pub(super) fn goes_on(&mut self, moved: bool, now: Instant) -> bool {
        self.goes_on_for(moved, now, 2 * wake_up())
    }

    fn goes_on_for(&mut self, moved: bool, now: Instant, patience: Duration) -> bool {
        if moved {
            if self.since.is_some() && !self.is_over {
                self.vain = 0;
            }
            self.since = None;
        }
        let since = *self.since.get_or_insert_with(|| {
            (self.waits, self.is_over) = (self.waits.wrapping_add(1), false);
            now
        });
        let is_rare = self.vain >= MOST_VAIN && !self.waits.is_multiple_of(RARE);
        if !self.is_over && (is_rare || now - since > patience) {
            self.is_over = true;
            self.vain += u32::from(!is_rare);
        }
        !self.is_over
    }
}

/// Returns the time from a write to the return of the read that another thread sleeps in: the
/// median, of this process, measured once. Where that cannot be measured, nothing polls.
fn wake_up() -> Duration {
    static MEASURED: OnceLock<Duration> = OnceLock::new();
    *MEASURED.get_or_init(|| measure().unwrap_or_default())
}

fn measure() -> Result<Duration> {
    let ((mut from_peer, mut to_me), (mut from_me, mut to_peer)) = (pipe()?, pipe()?);
    let peer = std::thread::Builder::new().spawn(move || -> Result<()> {
        let mut byte = [0];
        // It ends when the pipe is closed.
        while from_me.read(&mut byte)? > 0 {
            to_me.write_all(&byte)?;
        }
        Ok(())
    })?;
    let mut trips = [Duration::ZERO; TRIPS];
    for trip in &mut trips {
        let begin = now();
        to_peer.write_all(&[1])?;
        from_peer.read_exact(&mut [0])?;
        *trip = now() - begin;
    }
    drop(to_peer);
    // A thread that panicked has closed its pipe, which was seen.
    let _ = peer.join();
    trips.sort_unstable();
    Ok(trips[TRIPS / 2] / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_polls_for_two_wake_ups_and_seldom_if_that_was_in_vain() {
        let (begin, patience) = (now(), Duration::from_micros(20));
        let mut spin = Spin::default();
        let mut at = |moved, micros| spin.goes_on_for(moved, begin + Duration::from_micros(micros), patience);
        assert!(at(true, 0) && at(false, 20) && !at(false, 21) && !at(false, 22), "polls, then sleeps");
        assert!(at(true, 100), "the next wait polls again");
        let mut polled = 0;
        for wait in 1..=200 {
            polled += u32::from(at(true, 1000 * wait));
            assert!(!at(false, 1000 * wait + 900), "nothing has come");
        }
        assert!(polled < MOST_VAIN + 200 / RARE + 2, "{polled} of 200 waits polled");
        let mut time = 300_000;
        while !at(true, time) {
            time += 1000;
        }
        for wait in 1..=50 {
            assert!(at(true, time + 10 * wait), "one that polled and was answered in time makes all poll");
        }
    }

    #[test]
    fn a_wake_up_takes_some_time() {
        assert!(!measure().unwrap().is_zero());
    }
}
