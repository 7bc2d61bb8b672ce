//! The memory of the cache: frames for the bytes of files, and a header for each unit. The header
//! says which of the unit's bytes are dirty, that is, acknowledged and not on disk.
//!
//! **Why.** A write is acknowledged while its bytes are only in the cache. So the bytes must
//! survive the death of the server, as they would in the page cache of the system. They are in a
//! named file in memory, which the next server maps and takes over. And the bytes are where
//! adapters place and fetch them, so they are [`Memory`] that is registered once and stays where it
//! is.
//!
//! **Units.** A *frame* has 4 KiB. A *unit* is a piece of a file: 1, 2, 4, 8 or 16 frames. The
//! number of its first frame is a multiple of that, so it is within a *block* of 64 KiB. A *chunk*
//! is a number of blocks that are allocated at once. Each is a [`Memory`], which is what is
//! registered with an adapter.
//!
//! **Layout** of the file. Anonymous frames have the same one.
//!
//! ```text
//!        0  superblock  magic, version, units that may be recorded, id of the store (2 words), bytes of a chunk,
//!                       most chunks, chunks that exist, number of the frames (2 words); 8 bytes each
//!     4096  headers     64 bytes for each frame; that of a unit is at its first frame
//!        …  chunks      from the next multiple of 64 KiB on
//!
//!   header  | slot: sequence, file, position, dirty ranges | slot |     written alternately, see `header`
//! ```
//!
//! The file has its whole length from the beginning. Pages exist for the superblock and for the
//! chunks that exist with their headers. So a cache costs the memory that it has used once.
//!
//! **Protocol.** The cache has an [`Arena`] over [`Frames`], under its lock.
//! 1. [`Arena::adopt`] returns what is dirty. All other frames are free, whatever bytes they have.
//! 2. To acknowledge a write, the cache first has its bytes in the frames, and then calls
//!    [`Arena::record`] with all dirty ranges of the unit.
//! 3. When bytes are on disk, it records the ranges that are left, or `None`.
//! 4. Before frames are used for another unit, or for the same one with another length, it records
//!    `None`. So no record ever speaks of bytes that are not there.
//! 5. A byte of a file is in one recorded unit at most.
//!
//! **Invariants**
//! 1. *Acknowledged bytes survive a kill at any moment.* Each step above is a sequence of stores,
//!    and a kill keeps a prefix of it. `header` shows that a record is replaced as a whole.
//! 2. *Nothing that was not acknowledged comes back,* and no stale record: `header`, invariant 2.
//!    The other half of that argument is here. [`Arena::record`] refuses a unit that shares a frame
//!    with another recorded one, and a record of another unit in place of one that was not erased.
//!    A chunk that is added has empty headers, and headers of chunks that do not exist are not
//!    read.
//! 3. *What is adopted is sane,* whatever the file holds. Units are aligned and within the chunks
//!    that exist. Their ranges are within them. No two have a frame or a byte of a file in common.
//!    Whatever contradicts that is dropped, counted ([`Arena::dropped`]), reported in the log, and
//!    erased. A kill cannot cause it.
//! 4. *A full file system is an error, never a signal.* Pages are allocated before a chunk exists.
//!
//! **Source.** [Unifier-PVFS §4.4, §5]: one owner of all buffers, units of 4 to 64 KiB, memory that
//! is registered once. The paper's cache is lost with its server. The named file and the headers
//! are additions.
//!
//! **Tests.** `tests.rs` compares random steps with a model, and cuts every step after each of its
//! stores. `tests/` kills a process at work, fills a file system, and damages files.

mod file;
mod frames;
mod header;
mod layout;
mod mapping;
mod ranges;
#[cfg(test)]
pub(crate) mod tests;

use bmi_core::{Error, MemSlice, Memory};

pub use self::frames::{ArenaSettings, Frames, Owner};
use self::header::Found;
use self::layout::UNITS_AT;
pub use self::ranges::Ranges;

/// Bytes of a frame.
pub const FRAME: usize = 4096;
/// Bytes of a block: the largest unit. A unit does not cross the boundary of a block.
pub const BLOCK: usize = 64 << 10;

/// Frames of a block.
const FRAMES_OF_BLOCK: usize = BLOCK / FRAME;
/// Frames of the largest unit.
const MAX_FRAMES_OF_UNIT: u8 = FRAMES_OF_BLOCK as u8;

/// Where a unit is in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The first frame, counted from the beginning of the arena. A multiple of `frames`.
    pub frame: u32,
    /// How many frames: 1, 2, 4, 8 or 16.
    pub frames: u8,
}

impl Place {
    /// Returns how many bytes the unit has.
    pub fn bytes(&self) -> usize {
        usize::from(self.frames) * FRAME
    }

    /// Returns true for an aligned unit of a possible length.
    fn is_sane(&self) -> bool {
        self.frames.is_power_of_two()
            && self.frames <= MAX_FRAMES_OF_UNIT
            && self.frame.is_multiple_of(u32::from(self.frames))
    }

    /// Returns the number after that of the last frame.
    fn end(&self) -> usize {
        self.frame as usize + usize::from(self.frames)
    }
}

/// What is dirty in a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The file that the unit belongs to.
    pub file: u64,
    /// Offset of the unit in the file, in bytes: a multiple of the unit's length.
    pub at: u64,
    /// The bytes of the unit that are acknowledged and not on disk.
    pub dirty: Ranges,
}

impl Record {
    /// Returns true if a unit of `frames` frames, a power of two, can have this record.
    fn fits(&self, frames: u8) -> bool {
        let len = u64::from(frames) * FRAME as u64;
        let is_within = u64::from(self.dirty.span().end) <= len;
        self.at.is_multiple_of(len) && self.at.checked_add(len).is_some() && is_within && !self.dirty.is_empty()
    }
}

/// A dirty unit that an earlier user of the frames left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Where its bytes are. They stay there.
    pub place: Place,
    /// What the arena has recorded of it. It stays in force until it is replaced.
    pub record: Record,
}

/// The only user of [`Frames`]: gives out their bytes, and records what is dirty.
///
/// An arena ends when another one adopts the same frames. What is called after that has no effect,
/// as if its process had been killed. Only anonymous frames, and tests, have a second arena.
pub struct Arena {
    frames: Frames,
    user: u64,
    chunks: Vec<Memory>,
    /// For each frame, how many frames the recorded unit has that begins there, or 0.
    recorded: Vec<u8>,
    /// How many units are recorded.
    units: u64,
    dropped: u64,
}

impl Arena {
    /// Takes the frames over, and returns all dirty units that earlier users left, in order of
    /// their places. Reads all headers: 16 MiB of them for each GiB of frames.
    pub fn adopt(frames: Frames) -> (Arena, Vec<Recovered>) {
        let user = frames.enter();
        let chunks: Vec<Memory> = frames.chunks().clone();
        let count = chunks.len() * frames.layout().frames_of_chunk();
        let mut arena = Arena { frames, user, chunks, recorded: vec![0; count], units: 0, dropped: 0 };
        let recovered = arena.recover();
        for unit in &recovered {
            arena.recorded[unit.place.frame as usize] = unit.place.frames;
        }
        arena.count(recovered.len() as u64);
        (arena, recovered)
    }

    /// Returns how many records were dropped on adoption, because the file was damaged.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns how many blocks there can be.
    pub fn max_blocks(&self) -> u32 {
        let layout = self.frames.layout();
        (layout.bound * layout.frames_of_chunk() / FRAMES_OF_BLOCK) as u32
    }

    /// Returns how many blocks exist now.
    pub fn blocks(&self) -> u32 {
        (self.recorded.len() / FRAMES_OF_BLOCK) as u32
    }

    /// Makes one chunk more. Returns false at the bound.
    ///
    /// # Errors
    /// `Exhausted` if the file system of the file is full. Nothing has changed then.
    pub fn grow(&mut self) -> Result<bool, Error> {
        if !self.frames.is_used_by(self.user) {
            return Ok(false);
        }
        let Some(chunk) = self.frames.grow()? else { return Ok(false) };
        self.chunks.push(chunk);
        self.recorded.resize(self.chunks.len() * self.frames.layout().frames_of_chunk(), 0);
        Ok(true)
    }

    /// Returns the bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.frames.settings().chunk
    }

    /// Returns the number of the chunk that a unit is in.
    pub fn chunk_of(&self, place: Place) -> usize {
        place.frame as usize / self.frames.layout().frames_of_chunk()
    }

    /// Returns a chunk.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn chunk(&self, index: usize) -> &Memory {
        &self.chunks[index]
    }

    /// Returns `len` bytes of a unit from byte `at` on.
    ///
    /// # Panics
    /// If the unit does not exist, or has fewer bytes.
    pub fn slice(&self, place: Place, at: u32, len: u32) -> MemSlice {
        self.check(place);
        let (at, len) = (at as usize, len as usize);
        assert!(at + len <= place.bytes(), "{len} bytes at {at} are not within {place:?}");
        let first = place.frame as usize % self.frames.layout().frames_of_chunk();
        self.chunk(self.chunk_of(place)).slice(first * FRAME + at, len)
    }

    /// Records what is dirty in a unit: `None`, or no bytes, if nothing is. The bytes must be in
    /// place by now. When the call returns, the record survives the process. If the process is
    /// killed in it, the old record or the new one is in force.
    ///
    /// # Panics
    /// If the unit does not exist, or the record does not fit it. If it shares frames with another
    /// recorded unit. If the record in force at its place is of another unit: that one must be
    /// erased first (see the protocol of the arena).
    pub fn record(&mut self, place: Place, record: Option<&Record>) {
        self.check(place);
        if !self.frames.is_used_by(self.user) {
            return;
        }
        let known = self.recorded[place.frame as usize] > 0;
        assert!(self.is_alone(place), "{place:?} shares frames with a recorded unit");
        let header = self.frames.layout().header_at(place.frame);
        match record.filter(|record| !record.dirty.is_empty()) {
            Some(record) => {
                assert!(record.fits(place.frames), "{record:?} does not fit {place:?}");
                if !known {
                    // The superblock never counts too few.
                    self.count(self.units + 1);
                }
                header::write(self.frames.mapping(), header, place.frames, record);
                self.recorded[place.frame as usize] = place.frames;
            }
            None if known => {
                header::erase(self.frames.mapping(), header);
                self.recorded[place.frame as usize] = 0;
                self.count(self.units - 1);
            }
            None => {}
        }
    }

    fn check(&self, place: Place) {
        assert!(place.is_sane() && place.end() <= self.recorded.len(), "there is no unit at {place:?}");
    }

    /// Returns true if the unit shares no frame with a recorded one, except for itself.
    fn is_alone(&self, place: Place) -> bool {
        let frame = place.frame as usize;
        if self.recorded[frame] == place.frames {
            return true;
        }
        let block = frame / FRAMES_OF_BLOCK * FRAMES_OF_BLOCK;
        let mut units = self.recorded[block..block + FRAMES_OF_BLOCK].iter().zip(block..);
        units.all(|(frames, first)| *frames == 0 || first >= place.end() || first + usize::from(*frames) <= frame)
    }

    fn count(&mut self, units: u64) {
        self.units = units;
        self.frames.mapping().store(UNITS_AT, units);
    }

    /// Reads all headers. Erases those that are damaged, or that contradict each other.
    fn recover(&mut self) -> Vec<Recovered> {
        let (mut units, mut damaged) = (Vec::new(), Vec::new());
        for frame in 0..self.recorded.len() as u32 {
            match header::read(self.frames.mapping(), self.frames.layout().header_at(frame)) {
                Found::Empty => {}
                Found::Unit(frames, record) if (Place { frame, frames }).is_sane() => {
                    units.push(Recovered { place: Place { frame, frames }, record });
                }
                Found::Unit(..) | Found::Damaged => damaged.push(frame),
            }
        }
        let (units, contradicting) = without_contradictions(units);
        for unit in &contradicting {
            tracing::error!(?unit, "the cache's memory is damaged: this record contradicts another one");
        }
        damaged.extend(contradicting.iter().map(|unit| unit.place.frame));
        self.dropped = damaged.len() as u64;
        if self.dropped > 0 {
            let dropped = self.dropped;
            tracing::error!(dropped, kept = units.len(), "acknowledged data is lost: the cache's memory was damaged");
        }
        for frame in damaged {
            header::erase(self.frames.mapping(), self.frames.layout().header_at(frame));
        }
        units
    }
}

/// Returns the units that share no frame and no byte of a file with another one, and the others.
fn without_contradictions(units: Vec<Recovered>) -> (Vec<Recovered>, Vec<Recovered>) {
    let frames = units.iter().map(|unit| (0, u64::from(unit.place.frame), unit.place.end() as u64));
    let bytes = units.iter().map(|unit| (unit.record.file, unit.record.at, unit.record.at + unit.place.bytes() as u64));
    let clashes: Vec<bool> =
        clashing(frames.collect()).into_iter().zip(clashing(bytes.collect())).map(|(one, two)| one || two).collect();
    let (bad, good): (Vec<_>, Vec<_>) = units.into_iter().zip(clashes).partition(|(_, clashes)| *clashes);
    let units = |list: Vec<(Recovered, bool)>| list.into_iter().map(|(unit, _)| unit).collect();
    (units(good), units(bad))
}

/// Returns for each range, of a space and from its start to its end, whether another range of the
/// same space overlaps with it.
fn clashing(ranges: Vec<(u64, u64, u64)>) -> Vec<bool> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_unstable_by_key(|index| ranges[*index]);
    let mut clashes = vec![false; ranges.len()];
    // Of the ranges so far, the one that ends last. Whoever overlaps with one of them overlaps with
    // this one.
    let mut last: Option<usize> = None;
    for index in order {
        let (space, start, end) = ranges[index];
        let reach = last.filter(|last| ranges[*last].0 == space && start < ranges[*last].2);
        if let Some(other) = reach {
            (clashes[other], clashes[index]) = (true, true);
        }
        if reach.is_none_or(|other| ranges[other].2 < end) {
            last = Some(index);
        }
    }
    clashes
}
