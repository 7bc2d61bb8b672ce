//! Tickets, as the manager makes them: one [`Grant`] for each file that somebody opens.
//!
//! **Why.** See [`fs_proto::TicketKey`]. Every event loop of the manager makes tickets, so what
//! they share is a key and a count.
//!
//! **Invariants**
//! 1. A key is used for [`EPOCH`] at most. I/O servers have the last two, so a ticket lives as long
//!    as that at least, and twice as long at most.
//! 2. The floor is the count of [`FRESH`] ago: a ticket is first shown within that time, or never.
//!    Only a manager that is there moves it, so that files which are open go on without one.
//! 3. The secret of a start is in no message, no file and no line of a log.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bmi::Time;
use fs_proto::{Access, Grant, HolderDigest, Layout, ManagerReply, Name, TicketKey, TicketNews};

use crate::lock::lock;
use crate::service::Party;

/// How long a key is used.
const EPOCH: Duration = Duration::from_secs(3600);
/// For how long a ticket can be shown for the first time.
const FRESH: Duration = Duration::from_secs(60);
/// How exactly that is known.
const PRECISION: Duration = Duration::from_secs(1);

/// Makes tickets, on every event loop.
pub(in crate::manager) struct Mint {
    secret: [u8; 32],
    /// Number of tickets that were made.
    count: AtomicU64,
    state: Mutex<State>,
}

struct State {
    key: TicketKey,
    earlier: Option<TicketKey>,
    /// When the key was drawn.
    since: Time,
    /// The count at some moments, from the last one on that was long ago.
    counts: VecDeque<(Time, u64)>,
}

impl Mint {
    /// Begins with the first epoch of a start of the manager.
    pub(in crate::manager) fn new(secret: [u8; 32], start: u64, now: Time) -> Mint {
        // A start has 2^32 epochs.
        let key = TicketKey::of(&secret, start << 32);
        let state = State { key, earlier: None, since: now, counts: VecDeque::new() };
        Mint { secret, count: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Makes the tickets of a file for somebody.
    fn grant(&self, access: Access, layout: &Layout, holder: &HolderDigest) -> Grant {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let key = lock(&self.state).key.clone();
        key.grant(number, access, layout, holder)
    }

    /// Adds the tickets to an answer that opens a file.
    pub(in crate::manager) fn complete(&self, party: Option<&Party>, reply: ManagerReply) -> ManagerReply {
        match (reply, party) {
            (ManagerReply::Opened { entry, access, .. }, Some(party)) if !party.is_trusted => {
                let layout = entry.layout.as_ref().filter(|_| access.has_any(Access::BOTH));
                let grant = layout.map(|layout| self.grant(access, layout, &party.digest));
                ManagerReply::Opened { entry, access, grant }
            }
            (reply, _) => reply,
        }
    }

    /// Returns what an I/O server is told now.
    pub(in crate::manager) fn news(&self, now: Time, revoked: Vec<Name>) -> TicketNews {
        let count = self.count.load(Ordering::Relaxed);
        let mut state = lock(&self.state);
        if state.since + EPOCH <= now {
            let next = TicketKey::of(&self.secret, state.key.epoch + 1);
            state.earlier = Some(std::mem::replace(&mut state.key, next));
            state.since = now;
        }
        let counts = &mut state.counts;
        if counts.back().is_none_or(|(at, _)| *at + PRECISION <= now) {
            counts.push_back((now, count));
        }
        while counts.get(1).is_some_and(|(at, _)| *at + FRESH <= now) {
            counts.pop_front();
        }
        let old = counts.front().filter(|(at, _)| *at + FRESH <= now);
        let floor = old.map_or(0, |(_, count)| count + 1);
        TicketNews { key: state.key.clone(), earlier: state.earlier.clone(), floor, revoked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_change_and_old_tickets_are_below_the_floor() {
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        let mint = Mint::new([7; 32], 3, at(0));
        let layout = Layout::new(
            fs_proto::Distribution::simple_stripe(4096, 1).unwrap(),
            vec![(0, fs_proto::DatafileHandle(5))],
        )
        .unwrap();
        let (holder, news) = (HolderDigest::of("x"), |seconds| mint.news(at(seconds), Vec::new()));
        let ticket = || mint.grant(Access::READ, &layout, &holder).tickets(&layout)[0].1;
        assert_eq!((news(0).floor, news(0).key.epoch), (0, 3 << 32));
        let first = ticket();
        news(1);
        let second = ticket();
        assert_eq!((first.number, second.number, news(59).floor), (1, 2, 0));
        assert_eq!(news(60).floor, 1, "none was made before");
        assert_eq!((news(61).floor, news(119).floor, news(180).floor), (2, 3, 3));
        assert!(news(3599).earlier.is_none());
        let later = news(3600);
        assert_eq!((later.key.epoch, later.earlier.map(|key| key.epoch)), ((3 << 32) + 1, Some(3 << 32)));
        assert_eq!(ticket().epoch, (3 << 32) + 1);
    }
}
