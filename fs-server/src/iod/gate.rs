//! Who may use which datafile: tickets, as an I/O server checks them.
//!
//! **Why.** An I/O server knows no modes. It lets a connection use a datafile that has shown a
//! ticket of the manager for it, and remembers that. So a ticket is checked once for each
//! connection and datafile, and nobody is asked.
//!
//! **Invariants**
//! 1. A server that was told to check tickets checks them until it ends.
//! 2. What was accepted is good on its connection alone, as long as one of the two keys of that
//!    time is, and as long as the manager was heard of within [`Gate::PATIENCE`].
//! 3. What is remembered of a connection is bounded. A client whose right was forgotten shows its
//!    ticket again.
//! 4. A lock is held for a look or a change, never across an await.
//!
//! **Tests.** Here, and `tests/sim/peers/tickets.rs` with clients.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bmi::Time;
use bmi::hooks::{mutated, step};
use fs_proto::{Access, DatafileHandle, ErrorCode, FsError, HolderDigest, Ticket, TicketKey, TicketNews};

use crate::lock::lock;
use crate::service::Rights;

/// Most datafiles of which it is remembered what a connection may do.
const MOST: usize = 16_384;

/// What one I/O server knows of tickets, on all its event loops.
#[derive(Debug)]
pub struct Gate {
    /// Tickets are needed.
    is_shut: AtomicBool,
    /// The oldest epoch of which a key is good.
    oldest: AtomicU64,
    /// Some holders were shut out.
    any_revoked: AtomicBool,
    /// Until when accepted tickets are good without news of the manager, in nanoseconds.
    until: AtomicU64,
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The keys that are good: two at most.
    keys: BTreeMap<u64, TicketKey>,
    floor: u64,
    revoked: BTreeSet<String>,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate::new(false, Gate::PATIENCE)
    }
}

impl Gate {
    /// For how long files that are open can be used without the manager.
    pub const PATIENCE: Duration = Duration::from_secs(600);

    /// Creates a gate: one that needs tickets from the beginning, or as soon as the manager tells
    /// of them. Files that are open can be used for `patience` without the manager.
    pub fn new(is_shut: bool, patience: Duration) -> Gate {
        Gate {
            is_shut: AtomicBool::new(is_shut),
            oldest: AtomicU64::new(0),
            any_revoked: AtomicBool::new(false),
            until: AtomicU64::new(0),
            patience,
            state: Mutex::default(),
        }
    }

    /// Learns what the manager tells with a registration.
    pub(super) fn learn(&self, news: TicketNews, now: Time) {
        let TicketNews { key, earlier, floor, revoked } = news;
        let mut state = lock(&self.state);
        let epoch = key.epoch;
        state.keys.extend(earlier.into_iter().chain([key]).map(|key| (key.epoch, key)));
        // A manager that was restarted has not told the key of its last start, which is the earlier
        // one here.
        while state.keys.len() > 2 {
            state.keys.pop_first();
        }
        state.floor = floor;
        self.any_revoked.store(!revoked.is_empty(), Ordering::Release);
        state.revoked = revoked.into_iter().map(|name| name.0).collect();
        let oldest = state.keys.keys().next().copied().unwrap_or(epoch);
        self.oldest.store(oldest, Ordering::Release);
        self.until.store((now + self.patience).as_nanos(), Ordering::Release);
        self.is_shut.store(true, Ordering::Release);
    }

    /// Returns true if tickets are needed.
    pub(super) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Acquire) && !mutated("iod/tickets-not-asked-for")
    }

    /// Returns true if this holder was shut out.
    pub(super) fn has_revoked(&self, holder: &str) -> bool {
        self.any_revoked.load(Ordering::Acquire) && lock(&self.state).revoked.contains(holder)
    }

    /// Checks that a connection may do what is `needed` with a datafile: it has shown a ticket for
    /// that, or shows one now.
    ///
    /// # Errors
    /// Why it may not.
    pub(super) fn check(
        &self,
        rights: &Rights,
        holder: &HolderDigest,
        (datafile, needed): (DatafileHandle, Access),
        shown: Option<&Ticket>,
        now: Time,
    ) -> Result<(), Refusal> {
        if now.as_nanos() > self.until.load(Ordering::Acquire) {
            return Err(Refusal::Unheard(self.patience));
        }
        let mut known = rights.lock();
        let oldest = self.oldest.load(Ordering::Acquire);
        let is_good = |epoch: u64| epoch >= oldest || mutated("iod/epoch-of-a-ticket-ignored");
        // Of `BOTH`, one is enough.
        let allows = |access: Access| match needed {
            Access::BOTH => access.has_any(needed),
            needed => access.has(needed),
        };
        if let Some((epoch, access)) = known.get(&datafile)
            && is_good(*epoch)
            && allows(*access)
        {
            return Ok(());
        }
        let ticket = shown.ok_or(Refusal::Missing)?;
        self.judge(ticket, datafile, holder)?;
        if !allows(ticket.access) {
            return Err(Refusal::OtherRight);
        }
        if known.len() >= MOST {
            known.clear();
        }
        let right = known.entry(datafile).or_default();
        // Rights of an epoch that is over do not come back with those of another.
        let before = if is_good(right.0) { right.1 } else { Access::NONE };
        *right = (ticket.epoch, before.and(ticket.access));
        Ok(())
    }

    /// Checks that a ticket may be shown for the first time now.
    fn judge(&self, ticket: &Ticket, datafile: DatafileHandle, holder: &HolderDigest) -> Result<(), Refusal> {
        let state = lock(&self.state);
        step();
        let is_newer = state.keys.keys().next_back().is_some_and(|last| *last < ticket.epoch);
        let key = state.keys.get(&ticket.epoch).ok_or(if is_newer { Refusal::Early } else { Refusal::Old })?;
        if !key.made(ticket, datafile, holder) {
            return Err(Refusal::False);
        }
        // Another start of the manager has counted from 1, and ended before this one began.
        let is_of_this_start = state.keys.keys().next_back().is_some_and(|last| last >> 32 == ticket.epoch >> 32);
        let is_old = if is_of_this_start { ticket.number < state.floor } else { state.floor > 0 };
        if is_old { Err(Refusal::Old) } else { Ok(()) }
    }
}

/// Why a request for a datafile is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("no ticket for it was shown over this connection")]
    Missing,
    #[error("the ticket is too old to be shown for the first time")]
    Old,
    #[error("the manager has not told the key of the ticket yet")]
    Early,
    #[error("the ticket was not made for this file and this client")]
    False,
    #[error("the file was opened without the right to do that")]
    OtherRight,
    #[error("nothing was heard of the manager for {0:?}, so nobody's rights are known")]
    Unheard(Duration),
}

impl Refusal {
    /// Returns the error that a client is told. With `NoTicket`, another ticket may help.
    pub(super) fn about(self, datafile: DatafileHandle) -> FsError {
        let code = match self {
            Refusal::Missing | Refusal::Old | Refusal::False => ErrorCode::NoTicket,
            Refusal::OtherRight => ErrorCode::Permission,
            Refusal::Unheard(_) | Refusal::Early => ErrorCode::Busy,
        };
        FsError::new(code, format!("{datafile}: {self}"))
    }
}

#[cfg(test)]
mod tests {
    use fs_proto::{Distribution, Layout};

    use super::*;

    const DATA: DatafileHandle = DatafileHandle(9);

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn news(epoch: u64, earlier: Option<u64>, floor: u64) -> TicketNews {
        let key = |epoch| TicketKey::of(&[7; 32], epoch);
        TicketNews { key: key(epoch), earlier: earlier.map(key), floor, revoked: Vec::new() }
    }

    fn ticket(epoch: u64, number: u64, access: Access) -> Ticket {
        let layout = Layout::new(Distribution::simple_stripe(4096, 1).unwrap(), vec![(0, DATA)]).unwrap();
        let grant = TicketKey::of(&[7; 32], epoch).grant(number, access, &layout, &HolderDigest::of("x"));
        grant.tickets(&layout)[0].1
    }

    fn check(gate: &Gate, rights: &Rights, needed: Access, shown: Option<Ticket>, now: u64) -> Result<(), Refusal> {
        gate.check(rights, &HolderDigest::of("x"), (DATA, needed), shown.as_ref(), at(now))
    }

    #[test]
    fn a_gate_that_is_shut_lets_nobody_in_before_it_knows_a_key() {
        let gate = Gate::new(true, Gate::PATIENCE);
        assert!(gate.is_shut() && !Gate::default().is_shut());
        let shown = Some(ticket(1, 1, Access::BOTH));
        assert_eq!(check(&gate, &Rights::default(), Access::READ, shown, 1), Err(Refusal::Unheard(Gate::PATIENCE)));
    }

    #[test]
    fn rights_add_up_and_end_with_their_epochs() {
        let (gate, rights) = (Gate::default(), Rights::default());
        gate.learn(news(1, None, 0), at(0));
        assert_eq!(check(&gate, &rights, Access::READ, Some(ticket(1, 1, Access::READ)), 1), Ok(()));
        assert_eq!(check(&gate, &rights, Access::WRITE, None, 1), Err(Refusal::Missing));
        assert_eq!(check(&gate, &rights, Access::WRITE, Some(ticket(1, 2, Access::WRITE)), 1), Ok(()));
        assert_eq!(
            (check(&gate, &rights, Access::READ, None, 1), check(&gate, &rights, Access::BOTH, None, 1)),
            (Ok(()), Ok(()))
        );
        gate.learn(news(2, Some(1), 0), at(2));
        assert_eq!(check(&gate, &rights, Access::WRITE, None, 2), Ok(()));
        gate.learn(news(3, Some(2), 0), at(3));
        assert_eq!(check(&gate, &rights, Access::WRITE, None, 3), Err(Refusal::Missing));
        assert_eq!(check(&gate, &rights, Access::READ, Some(ticket(1, 1, Access::READ)), 3), Err(Refusal::Old));
        assert_eq!(check(&gate, &rights, Access::READ, Some(ticket(3, 3, Access::READ)), 3), Ok(()));
        assert_eq!(
            check(&gate, &rights, Access::WRITE, None, 3),
            Err(Refusal::Missing),
            "that right was of another epoch"
        );
    }

    #[test]
    fn tickets_below_the_floor_and_those_of_an_earlier_start_are_too_old() {
        let (gate, start) = (Gate::default(), 1 << 32);
        let shows = |ticket| check(&gate, &Rights::default(), Access::READ, Some(ticket), 1);
        gate.learn(news(2, None, 9), at(0));
        assert_eq!((shows(ticket(2, 8, Access::READ)), shows(ticket(2, 9, Access::READ))), (Err(Refusal::Old), Ok(())));
        assert_eq!(shows(ticket(start, 1, Access::READ)), Err(Refusal::Early));
        gate.learn(news(start, None, 0), at(0));
        assert_eq!(shows(ticket(2, 9, Access::READ)), Ok(()), "the manager was started in the last minute");
        gate.learn(news(start, None, 1), at(0));
        assert_eq!(shows(ticket(2, 9, Access::READ)), Err(Refusal::Old));
        assert_eq!(shows(ticket(start, 1, Access::READ)), Ok(()));
    }
}
