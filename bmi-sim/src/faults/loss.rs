//! What a disk's cache loses when the power fails.
//!
//! **Model.** A disk writes whole sectors, in any order, whenever it likes; only a sync that has
//! ended says that what came before is there. So after a power failure each sector that was written
//! and not synced is the old one, the new one, or torn: its front new, its rest old. A run is
//! usually of one temper (all lost, all kept, mixed), because a mixture alone would hide bugs that
//! need much lost at once.

use crate::disk::DiskFault;
use crate::rng::Rng;

/// Bytes that a disk writes at once.
pub const SECTOR: usize = 512;

/// A store on a node's disk, which has to know when its power fails or it begins to refuse. See
/// [`crate::SimDisk::attach`].
pub trait DiskUser {
    /// The power fails: what was not synced is gone, as `loss` says. Called before the node's tasks
    /// are dropped; what those do to the store while they are dropped must change nothing.
    fn power_fails(&self, loss: &mut Loss);

    /// The power is about to fail in the middle of what the store writes: when it comes to the
    /// `writes`th write or sync from now, it and everything after it fails and changes nothing, and
    /// [`DiskUser::is_cut_off`] says so. `None`: it is not going to fail after all. Stores that
    /// write whenever they are asked, one thing at a time, need not care.
    fn cuts_off(&self, writes: Option<u32>) {
        let _ = writes;
    }

    /// Whether it has come to that: the node's power fails then, before anybody can learn of it.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// What the disk answers from now on. Stores that ask the disk itself each time need not look.
    fn behaves(&self, fault: DiskFault) {
        let _ = fault;
    }
}

/// What becomes of a sector, or of something else that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is as it was at the last sync.
    Old,
    /// It was written after all.
    New,
    /// Its first bytes were written, so many, fewer than [`SECTOR`].
    Torn(usize),
}

/// One power failure.
#[derive(Clone, Debug)]
pub struct Loss {
    rng: Rng,
    /// Of a hundred sectors: how many are old, and how many torn.
    old: u64,
    torn: u64,
}

impl Loss {
    /// Everything that was not synced is lost.
    pub fn everything() -> Loss {
        Loss { rng: Rng::new(0), old: 100, torn: 0 }
    }

    /// A failure of the temper that the salt says.
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

    /// What becomes of the next sector that was not synced.
    pub fn sector(&mut self) -> Fate {
        match self.rng.below(100) {
            draw if draw < self.old => Fate::Old,
            draw if draw < self.old + self.torn => Fate::Torn(self.rng.below(SECTOR as u64) as usize),
            _ => Fate::New,
        }
    }

    /// What becomes of something that cannot be torn, a length or a name: whether it was written.
    pub fn keeps(&mut self) -> bool {
        self.sector() == Fate::New
    }

    /// Applies a fate to the bytes of a sector, or of the part of one that there is.
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
