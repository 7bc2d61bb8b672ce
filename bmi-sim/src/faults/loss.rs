//! What a disk's cache loses when the power fails.
//!
//! **Model.** A disk writes whole sectors, in any order and at any time. Only a completed sync
//! guarantees that earlier writes are durable. So after a power failure, each sector that was
//! written and not synced is old, new, or torn: its front is new, its rest old. A failure usually
//! has one temper: all lost, all kept, or mixed. A mixture alone would hide bugs that need much
//! lost at once.

use crate::rng::Rng;

/// How the disk responds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskFault {
    /// The disk works.
    #[default]
    None,
    /// Writes fail with `Exhausted`.
    Full,
    /// Everything fails with `Io`.
    Broken,
}

/// Number of bytes that a disk writes at once.
pub const SECTOR: usize = 512;

/// A store on a node's disk. It is told when the power fails and when the disk begins to refuse
/// requests. See [`crate::SimDisk::attach`].
pub trait DiskUser {
    /// Handles a power failure: discards the bytes that were not synced, as `loss` says. It is
    /// called before the node's tasks are dropped. While these tasks are dropped, their calls to
    /// the store must change nothing.
    fn power_fails(&self, loss: &mut Loss);

    /// Announces a power failure in the middle of the store's writes. The `writes`th write or sync
    /// from now, and everything after it, fails and changes nothing; then [`DiskUser::is_cut_off`]
    /// returns true. `None` cancels the announcement. A store that writes one thing at a time,
    /// whenever it is asked, can ignore this.
    fn cuts_off(&self, writes: Option<u32>) {
        let _ = writes;
    }

    /// Returns whether the announced write was reached. Then the node's power fails, before any
    /// task can learn of it.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Sets how the disk responds from now on. A store that asks the disk each time can ignore
    /// this.
    fn behaves(&self, fault: DiskFault) {
        let _ = fault;
    }
}

/// The fate of a sector, or of another item that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is as it was at the last sync.
    Old,
    /// It was written after all.
    New,
    /// Its first bytes were written: this many, fewer than [`SECTOR`].
    Torn(usize),
}

/// One power failure.
#[derive(Clone, Debug)]
pub struct Loss {
    rng: Rng,
    /// Percentages of sectors: how many are old, and how many torn.
    old: u64,
    torn: u64,
}

impl Loss {
    /// Returns a failure that loses everything that was not synced.
    pub fn everything() -> Loss {
        Loss { rng: Rng::new(0), old: 100, torn: 0 }
    }

    /// Returns a failure of the temper that the salt selects.
    pub fn drawn(salt: u64) -> Loss {
        let mut rng = Rng::new(salt ^ 0x70_6f77_6572);
        let (old, torn) = match rng.below(4) {
            0 => (100, 0),
            1 => (0, 0),
            2 => (50, 0),
            _ => (rng.below(80), 20),
        };
        Loss { rng, old, torn }
    }

    /// Draws the fate of the next sector that was not synced.
    pub fn sector(&mut self) -> Fate {
        match self.rng.below(100) {
            draw if draw < self.old => Fate::Old,
            draw if draw < self.old + self.torn => Fate::Torn(self.rng.below(SECTOR as u64) as usize),
            _ => Fate::New,
        }
    }

    /// Draws whether an item that cannot be torn, such as a length or a name, was written.
    pub fn keeps(&mut self) -> bool {
        self.sector() == Fate::New
    }

    /// Applies a fate to the bytes of a sector, or of the existing part of one.
    pub fn apply(&mut self, old: &[u8], now: &mut [u8]) {
        let from = match self.sector() {
            Fate::New => now.len(),
            Fate::Old => 0,
            Fate::Torn(at) => at.min(now.len()),
        };
        for (at, byte) in now.iter_mut().enumerate().skip(from) {
            *byte = old.get(at).copied().unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_tempers() {
        let mut seen = [0; 3];
        for salt in 0..40 {
            let mut loss = Loss::drawn(salt);
            let fates: Vec<Fate> = (0..100).map(|_| loss.sector()).collect();
            seen[0] += usize::from(fates.iter().all(|fate| *fate == Fate::Old));
            seen[1] += usize::from(fates.iter().all(|fate| *fate == Fate::New));
            seen[2] += usize::from(fates.iter().any(|fate| matches!(fate, Fate::Torn(_))));
        }
        assert!(seen.iter().all(|count| *count > 3), "{seen:?}");
        let mut now = [1; SECTOR];
        Loss::everything().apply(&[7; 100], &mut now);
        assert!(now[..100].iter().all(|byte| *byte == 7) && now[100..].iter().all(|byte| *byte == 0));
    }
}
