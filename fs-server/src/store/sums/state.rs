//! Whether the sums of a datafile hold, and which of its blocks were changed since they did.
//!
//! ```text
//!              a change begins: the header says so, durably            nothing was changed meanwhile
//!   settled ───────────────────────────────────────────────▶ unsettled ──────────────▶ closing ──▶ settled
//!                                                              ▲    │ more changes
//!                                                              └────┘
//! ```
//!
//! A change of a datafile that is settled, or *closing*, goes through a worker, which holds
//! `noting`. Whoever settles holds it as well, from the last look at the changes to the header that
//! says settled. So no change begins in between. *Closing* is also a datafile of which nobody knows
//! what its header says: nothing is checked, and a change first writes the header.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bmi::hooks::mutated;
use fs_proto::{DatafileHandle, Region};

use super::record::{BLOCK, CHUNK};
use crate::lock::lock;

/// Most chunks of which single changed blocks are known. Beyond that, all of the datafile counts as
/// changed.
const MOST_CHUNKS: usize = 4096;
/// A datafile is settled when so many looks have found it unchanged.
const QUIET: u32 = 3;

/// The sums of a datafile that hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settled {
    /// A number that no other sums have, also not those of the datafile at another time.
    pub(super) number: u64,
    /// The length of the datafile.
    pub(super) len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Unsettled,
    Closing,
    Settled(Settled),
}

/// What was changed since the sums held.
#[derive(Clone, Debug)]
pub(super) struct Changed {
    /// Everything, or it is not known.
    pub(super) all: bool,
    /// The least length that the datafile had. What is behind it was zeros.
    pub(super) least: u64,
    /// The changed blocks of chunks, a bit for each.
    pub(super) chunks: BTreeMap<u64, [u64; 16]>,
}

impl Changed {
    fn nothing() -> Changed {
        Changed { all: false, least: u64::MAX, chunks: BTreeMap::new() }
    }

    fn everything() -> Changed {
        Changed { all: true, ..Changed::nothing() }
    }

    fn add(&mut self, region: Region) {
        let end = region.offset.saturating_add(region.len);
        let mut at = region.offset;
        while at < end && !self.all {
            bmi::hooks::step();
            let (chunk, stop) = (at / CHUNK, end.min((at / CHUNK + 1).saturating_mul(CHUNK)));
            let blocks = at % CHUNK / BLOCK..(stop - chunk * CHUNK).div_ceil(BLOCK);
            let bits = self.chunks.entry(chunk).or_default();
            blocks.for_each(|block| bits[block as usize / 64] |= 1 << (block % 64));
            if self.chunks.len() > MOST_CHUNKS {
                *self = Changed::everything();
            }
            at = stop;
        }
    }

    fn cut(&mut self, size: u64) {
        self.least = self.least.min(size);
        // The rest of its chunk. Later chunks have no sums from then on.
        self.add(Region::new(size, CHUNK - size % CHUNK));
    }
}

/// A kind of change.
pub(in crate::store) enum What<'a> {
    /// Bytes of these regions.
    Bytes(&'a [Region]),
    /// The length, which becomes this one.
    Length(u64),
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Changes in progress.
    changing: u32,
    /// Changes so far.
    changes: u64,
    changed: Changed,
    /// It should be settled.
    wanted: bool,
    /// The changes at the last look, and how many looks have found as many.
    seen: (u64, u32),
}

/// What is known of the sums of a datafile. There is one for each datafile that is open or
/// unsettled.
#[derive(Debug)]
pub(in crate::store) struct FileSums {
    pub(super) datafile: DatafileHandle,
    state: Mutex<State>,
    /// Held while the header is changed. Only worker threads take it.
    pub(super) noting: Mutex<()>,
}

/// A change in progress, until it is dropped.
pub(in crate::store) struct Change(Arc<FileSums>);

impl Drop for Change {
    fn drop(&mut self) {
        lock(&self.0.state).changing -= 1;
    }
}

/// An attempt to settle a datafile.
#[derive(Clone, Debug)]
pub(in crate::store) struct Attempt {
    /// The number of changes. If there are more in the end, the attempt is void.
    changes: u64,
    pub(super) changed: Changed,
}

impl FileSums {
    /// Begins with what the header says. `Err` if it cannot be read: then it may say anything.
    pub(super) fn new(datafile: DatafileHandle, settled: Result<Option<Settled>, ()>, wanted: bool) -> FileSums {
        let (phase, changed) = match settled {
            Ok(Some(settled)) => (Phase::Settled(settled), Changed::nothing()),
            Ok(None) => (Phase::Unsettled, Changed::everything()),
            Err(()) => (Phase::Closing, Changed::everything()),
        };
        let state = State { phase, changing: 0, changes: 0, changed, wanted, seen: (0, 0) };
        FileSums { datafile, state: Mutex::new(state), noting: Mutex::default() }
    }

    pub(in crate::store) fn datafile(&self) -> DatafileHandle {
        self.datafile
    }

    /// Returns the sums that hold.
    pub(super) fn settled(&self) -> Option<Settled> {
        match lock(&self.state).phase {
            Phase::Settled(settled) => Some(settled),
            _ => None,
        }
    }

    /// Begins a change. `None` if the header must first say that the sums do not hold.
    pub(in crate::store) fn change(self: &Arc<Self>, what: &What<'_>) -> Option<Change> {
        let state = &mut *lock(&self.state);
        if state.phase != Phase::Unsettled && !mutated("store/write-leaves-settled") {
            return None;
        }
        state.changing += 1;
        state.changes += 1;
        state.wanted = true;
        match what {
            What::Bytes(regions) => regions.iter().for_each(|region| state.changed.add(*region)),
            What::Length(size) => state.changed.cut(*size),
        }
        Some(Change(self.clone()))
    }

    /// The header says that the sums do not hold, durably.
    pub(super) fn unsettle(&self) {
        lock(&self.state).phase = Phase::Unsettled;
    }

    /// The sums are gone, and nothing is known of the datafile.
    pub(super) fn forget(&self) {
        let state = &mut *lock(&self.state);
        (state.phase, state.changed, state.wanted) = (Phase::Unsettled, Changed::everything(), false);
        state.changes += 1;
    }

    /// Asks for sums that were never made.
    pub(in crate::store) fn want(&self) {
        lock(&self.state).wanted = true;
    }

    /// Asks for no sums before the next change: an attempt has failed.
    pub(in crate::store) fn give_up(&self, attempt: &Attempt) {
        let state = &mut *lock(&self.state);
        state.wanted &= state.changes != attempt.changes;
    }

    /// Returns whether the datafile should be settled now: at once if `now` is set.
    pub(super) fn is_due(&self, now: bool) -> bool {
        let state = &mut *lock(&self.state);
        let looks = if state.seen.0 == state.changes { state.seen.1 + 1 } else { 0 };
        state.seen = (state.changes, looks);
        state.is_wanted() && (now || looks >= QUIET)
    }

    /// Returns true if it is not settled, and should be.
    pub(super) fn is_wanted(&self) -> bool {
        lock(&self.state).is_wanted()
    }

    /// Begins to settle the datafile, unless it is being changed. Call it before the datafile is
    /// synced, so that the sync covers all changes.
    pub(in crate::store) fn attempt(&self) -> Option<Attempt> {
        let state = lock(&self.state);
        let is_quiet = state.phase == Phase::Unsettled && state.changing == 0;
        is_quiet.then(|| Attempt { changes: state.changes, changed: state.changed.clone() })
    }

    /// Returns false if the attempt is void.
    pub(super) fn holds(&self, attempt: &Attempt) -> bool {
        let state = lock(&self.state);
        (state.changes, state.changing) == (attempt.changes, 0)
    }

    /// Lets no change begin without `noting`, which the caller holds. Returns false if the attempt
    /// is void.
    pub(super) fn close(&self, attempt: &Attempt) -> bool {
        let state = &mut *lock(&self.state);
        let holds = (state.changes, state.changing) == (attempt.changes, 0);
        if holds {
            state.phase = Phase::Closing;
        }
        holds
    }

    /// The header says that the sums hold.
    pub(super) fn settle(&self, settled: Settled) {
        let state = &mut *lock(&self.state);
        (state.phase, state.changed, state.wanted) = (Phase::Settled(settled), Changed::nothing(), false);
    }
}

impl State {
    fn is_wanted(&self) -> bool {
        self.wanted && self.phase == Phase::Unsettled
    }
}
