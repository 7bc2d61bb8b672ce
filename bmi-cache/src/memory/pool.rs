//! Which frames of the arena are in use, and by units of which size.
//!
//! A block of 64 KiB is cut into units of one size, or free. Units of one size are taken from
//! blocks that are cut for it, the lowest first, so that the others become free again.
//!
//! **Invariants**
//! 1. Every frame that exists is in one unit, or free.
//! 2. A block is cut for one size at a time.

use std::collections::BTreeSet;

use super::arena::{BLOCK, FRAME, Place};

/// Frames of a block.
const FRAMES: u32 = (BLOCK / FRAME) as u32;

/// Number of sizes of units: 1, 2, 4, 8 and 16 frames.
const SIZES: usize = 5;

/// The frames that exist.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    blocks: Vec<BlockUse>,
    /// Blocks without units.
    free: BTreeSet<u32>,
    /// By size of unit: blocks that are cut for it, and have room.
    room: [BTreeSet<u32>; SIZES],
}

/// How a block is used.
#[derive(Clone, Copy, Debug, Default)]
struct BlockUse {
    /// Frames of each of its units, 0 if there are none.
    frames: u8,
    /// One bit for each unit.
    used: u16,
}

impl BlockUse {
    fn units(self) -> u32 {
        FRAMES / u32::from(self.frames)
    }

    fn is_full(self) -> bool {
        self.used.count_ones() == self.units()
    }
}

fn size(frames: u8) -> usize {
    debug_assert!(frames.is_power_of_two() && u32::from(frames) <= FRAMES);
    frames.trailing_zeros() as usize
}

impl Pool {
    /// The arena has this many blocks now.
    pub(crate) fn extend_to(&mut self, blocks: u32) {
        let known = self.blocks.len() as u32;
        self.blocks.resize(blocks as usize, BlockUse::default());
        self.free.extend(known..blocks);
    }

    /// Takes a unit of `frames` frames.
    pub(crate) fn take(&mut self, frames: u8) -> Option<Place> {
        let block = match self.room[size(frames)].first() {
            Some(block) => *block,
            None => {
                let block = self.free.pop_first()?;
                self.blocks[block as usize] = BlockUse { frames, used: 0 };
                self.room[size(frames)].insert(block);
                block
            }
        };
        let own = &mut self.blocks[block as usize];
        let unit = own.used.trailing_ones();
        own.used |= 1 << unit;
        if own.is_full() {
            self.room[size(frames)].remove(&block);
        }
        Some(Place { frame: block * FRAMES + unit * u32::from(frames), frames })
    }

    /// Takes a unit at a known place, of an earlier user of the arena. Returns false if that is not
    /// possible beside the others.
    pub(crate) fn take_at(&mut self, place: Place) -> bool {
        let (block, unit) = Self::position(place);
        let Some(own) = self.blocks.get_mut(block as usize) else { return false };
        if own.frames == 0 {
            own.frames = place.frames;
            self.free.remove(&block);
            self.room[size(place.frames)].insert(block);
        }
        if own.frames != place.frames || own.used & (1 << unit) != 0 {
            return false;
        }
        own.used |= 1 << unit;
        if own.is_full() {
            self.room[size(place.frames)].remove(&block);
        }
        true
    }

    /// Gives a unit back.
    pub(crate) fn give(&mut self, place: Place) {
        let (block, unit) = Self::position(place);
        let own = &mut self.blocks[block as usize];
        debug_assert!(own.frames == place.frames && own.used & (1 << unit) != 0, "it is in use");
        own.used &= !(1 << unit);
        if own.used == 0 {
            *own = BlockUse::default();
            self.room[size(place.frames)].remove(&block);
            self.free.insert(block);
        } else {
            self.room[size(place.frames)].insert(block);
        }
    }

    fn position(place: Place) -> (u32, u32) {
        (place.frame / FRAMES, place.frame % FRAMES / u32::from(place.frames))
    }

    /// Returns the block of a place.
    pub(crate) fn block_of(place: Place) -> u32 {
        place.frame / FRAMES
    }

    /// Returns the number of bytes that no unit has.
    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> u64 {
        let free = |own: &BlockUse| {
            if own.frames == 0 { FRAMES } else { (own.units() - own.used.count_ones()) * u32::from(own.frames) }
        };
        self.blocks.iter().map(|own| u64::from(free(own)) * FRAME as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn units_never_overlap_and_frames_come_back(steps in prop::collection::vec((0u32..5, 0usize..20), 1..200)) {
            let mut pool = Pool::default();
            pool.extend_to(4);
            let mut taken: Vec<Place> = Vec::new();
            for (power, give) in steps {
                match pool.take(1 << power) {
                    Some(place) => {
                        let frames = |place: &Place| place.frame..place.frame + u32::from(place.frames);
                        prop_assert!(place.frame.is_multiple_of(u32::from(place.frames)) && frames(&place).end <= 64);
                        prop_assert!(taken.iter().all(|other| frames(other).end <= place.frame || frames(&place).end <= other.frame));
                        taken.push(place);
                    }
                    None => prop_assert!(!taken.is_empty()),
                }
                if give < taken.len() {
                    pool.give(taken.swap_remove(give));
                }
                let used: u64 = taken.iter().map(|place| u64::from(place.frames) * FRAME as u64).sum();
                prop_assert_eq!(pool.free_bytes() + used, 4 * BLOCK as u64);
            }
            taken.into_iter().for_each(|place| pool.give(place));
            prop_assert_eq!((0..4).filter_map(|_| pool.take(16)).count(), 4, "all blocks are whole again");
        }
    }

    #[test]
    fn a_place_of_an_earlier_user_is_taken_once() {
        let mut pool = Pool::default();
        pool.extend_to(1);
        assert!(pool.take_at(Place { frame: 4, frames: 4 }));
        assert!(!pool.take_at(Place { frame: 4, frames: 4 }) && !pool.take_at(Place { frame: 0, frames: 1 }));
        assert!(!pool.take_at(Place { frame: 16, frames: 16 }), "there is no such block");
        assert_eq!(
            [4, 4, 4, 4].map(|frames| pool.take(frames).map(|place| place.frame)),
            [Some(0), Some(8), Some(12), None]
        );
    }
}
