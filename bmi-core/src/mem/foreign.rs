//! Foreign memory: memory that the program owns and names by address. A table records which address
//! ranges are known, and as which [`Memory`].
//!
//! **Why.** A [`Memory`] owns its bytes, which makes a cached registration safe. A program with
//! buffers of its own, behind an MPI library or a C interface, has only addresses. Its pieces are
//! often parts of one allocation, such as rows of a tile in an array. Registered one by one, they
//! cost a registration each. Registered as a part of the allocation, they cost one in total (group
//! registration, [PVFS-IB §5]: 768 rows, 1 registration). Only the program knows its allocations.
//! So each piece may come with the *parent* that it lies in.
//!
//! **How.** A table maps address ranges to memories. A piece is looked up by the range that it
//! needs: its parent's range, or else its own. If a known range contains that range, the piece is a
//! slice of the same `Memory`, and its registration is found in the pin-down cache. If not, the
//! range becomes a new memory, merged with the known ranges that it overlaps.
//!
//! ```text
//!   known ──────[ array: Memory#7                                     ]────────[ Memory#9 ]──
//!   pieces            [row 0]      [row 1]      [row 2]   …                        ^ no parent: a range of its own
//!                     Memory#7[..] Memory#7[..] Memory#7[..]  -> 1 registration
//! ```
//!
//! **Never stale.** This library does not learn that foreign memory is freed or unmapped, so the
//! program has to report it with [`Foreign::forget`]. After that call no new piece finds the old
//! memory. The registration ends with the last operation that uses it. Memory mapped later at the
//! same address gets another [`super::MemoryId`], so it never uses the old registration.
//!
//! **Invariants**
//! 1. Known ranges do not overlap. Each has one memory, which covers it exactly.
//! 2. The number of known ranges is at most the limit. The least recently used ranges are dropped
//!    first. A dropped range is registered again when it is needed.
//! 3. No `&mut` to the bytes is ever created ([`Memory::get_mut`] returns `None`), because old and
//!    new memories may refer to the same bytes for a while.
//!
//! **Source.** The extended list I/O interface of [PVFS-IB §5]: `mem_offsets`, `mem_lengths`,
//! `allocation_offsets`, `allocation_lengths`. The interface of the paper trusts the hint. This one
//! checks that a piece lies within its parent.
//!
//! **Tests.** Below, against a model. `bmi-sim/tests/it/endpoints/pin_cache.rs` counts the
//! registrations.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{MemList, MemSlice, Memory};
use crate::error::{Error, ErrorKind};

/// Default limit of known ranges: twice the pieces of the longest list, so that one list without
/// parents does not evict everything else.
const DEFAULT_LIMIT: usize = 8192;

/// A range of addresses: a piece, its parent, or a range to forget. Creating one is safe, using it
/// is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its first byte.
    pub ptr: NonNull<u8>,
    /// Its length in bytes.
    pub len: usize,
}

impl Extent {
    /// Returns the range of `len` bytes from `ptr` on.
    pub fn new(ptr: NonNull<u8>, len: usize) -> Extent {
        Extent { ptr, len }
    }

    /// Returns the first address and the address after the last byte.
    pub(super) fn bounds(self) -> Result<(usize, usize), Error> {
        // The provenance is exposed, because a range that became known through one pointer serves
        // pieces that come with other pointers.
        let start = self.ptr.as_ptr().expose_provenance();
        let end = start.checked_add(self.len).filter(|_| isize::try_from(self.len).is_ok());
        end.map(|end| (start, end)).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, format!("{} bytes at {start:#x} wrap around the address space", self.len))
        })
    }
}

/// The table of foreign memory. It is a handle: clones share the table. Any thread may use it.
///
/// ```
/// use std::ptr::NonNull;
/// use bmi_core::mem::{Extent, Foreign};
///
/// // The upper left 1024 x 768 tile of a 2048 x 1536 array of 64-byte elements: 768 rows.
/// let mut array = vec![0u8; 2048 * 1536 * 64];
/// let base = NonNull::new(array.as_mut_ptr()).expect("not null");
/// let parent = Extent::new(base, (2048 * 767 + 1024) * 64);
/// let rows = (0..768).map(|row| {
///     // SAFETY: within the array.
///     let first = unsafe { base.add(row * 2048 * 64) };
///     (Extent::new(first, 1024 * 64), Some(parent))
/// });
/// let foreign = Foreign::new();
/// // SAFETY: `array` lives, and is not touched, until all that came from the list is gone and the range is forgotten.
/// let list = unsafe { foreign.list(rows) }?;
/// assert_eq!((list.pieces().len(), foreign.len()), (768, 1));
/// // … post operations with `list`, wait until they have ended …
/// drop(list);
/// foreign.forget(parent);
/// drop(array);
/// # Ok::<(), bmi_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Foreign(Arc<Mutex<Table>>);

struct Table {
    limit: usize,
    /// Keyed by first address.
    known: BTreeMap<usize, Known>,
    /// Counts lookups. Gives the age of a range.
    clock: u64,
    /// Memories that are no longer known. They are dropped outside the lock, because dropping wakes
    /// endpoints.
    stale: Vec<Memory>,
}

struct Known {
    memory: Memory,
    used: u64,
}

impl Known {
    fn end(&self, start: usize) -> usize {
        start + self.memory.len()
    }
}

impl Default for Foreign {
    fn default() -> Foreign {
        Foreign::new()
    }
}

impl Foreign {
    /// Returns an empty table for up to 8192 ranges.
    pub fn new() -> Foreign {
        Foreign::with_limit(DEFAULT_LIMIT)
    }

    /// Returns an empty table for up to `limit` ranges, at least one.
    pub fn with_limit(limit: usize) -> Foreign {
        let table = Table { limit: limit.max(1), known: BTreeMap::new(), clock: 0, stale: Vec::new() };
        Foreign(Arc::new(Mutex::new(table)))
    }

    /// Returns the number of known ranges.
    pub fn len(&self) -> usize {
        self.lock().known.len()
    }

    /// Returns true if no range is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a piece of foreign memory, for the lists that operations take. `parent` is the range
    /// to register for it: the allocation that it lies in, or the part of the allocation that is
    /// worth registering. Without a parent, the piece is registered alone, unless a known range
    /// already contains it.
    ///
    /// # Errors
    /// `Invalid` if the piece does not lie within its parent, or if either wraps around the address
    /// space.
    ///
    /// # Safety
    /// All bytes of `piece` and `parent` must stay mapped, readable and writable until
    /// - the slice, its clones, every operation and every exposure that was given one, and every
    ///   [`Memory`] and [`super::MemoryRegion`] taken from them are gone, **and**
    /// - [`Foreign::forget`] has been called for them, or the table and its clones were dropped.
    ///
    /// While a slice exists, or an operation or exposure with one, the program must not hold a
    /// reference to the bytes of `piece`. It may access them only atomically or through the kernel.
    /// The bytes of `parent` outside the pieces are not touched, unless a peer is allowed to reach
    /// them ([`Config::expose_groups`](crate::Config::expose_groups)) and does so.
    pub unsafe fn slice(&self, piece: Extent, parent: Option<Extent>) -> Result<MemSlice, Error> {
        let (start, end) = piece.bounds()?;
        let (low, high) = parent.unwrap_or(piece).bounds()?;
        if start < low || end > high {
            let text = format!("a piece at {start:#x}..{end:#x} outside its parent at {low:#x}..{high:#x}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if piece.len == 0 {
            return Ok(Memory::from(Vec::new()).all());
        }
        let mut table = self.lock();
        // SAFETY: the caller vouches for the bytes of the piece and its parent. Earlier callers
        // vouched for the known ranges, and that promise holds until the ranges are forgotten.
        let (memory, at) = unsafe { table.find(low, high) };
        let stale = std::mem::take(&mut table.stale);
        drop(table);
        drop(stale);
        Ok(memory.slice(start - at, piece.len))
    }

    /// Returns a list of pieces, each with an optional parent. The arguments correspond to
    /// `mem_offsets`, `mem_lengths`, `allocation_offsets` and `allocation_lengths` in the paper's
    /// interface.
    ///
    /// # Errors
    /// As [`Foreign::slice`].
    ///
    /// # Safety
    /// As [`Foreign::slice`], for every piece.
    pub unsafe fn list(&self, pieces: impl IntoIterator<Item = (Extent, Option<Extent>)>) -> Result<MemList, Error> {
        let slices = pieces.into_iter().map(|(piece, parent)| {
            // SAFETY: the caller vouches for every piece.
            unsafe { self.slice(piece, parent) }
        });
        slices.collect()
    }

    /// Forgets every known range that overlaps `extent`, and returns how many there were. Call it
    /// before the memory is freed or unmapped, and after the operations that use it have ended. The
    /// endpoints that registered the memory release the registrations at their next poll or a
    /// moment later.
    pub fn forget(&self, extent: Extent) -> usize {
        let Ok((start, end)) = extent.bounds() else { return 0 };
        let forgotten = self.lock().take_overlapping(start, end);
        forgotten.len()
    }

    /// Forgets all ranges, and returns how many there were.
    pub fn forget_all(&self) -> usize {
        let forgotten = std::mem::take(&mut self.lock().known);
        forgotten.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Returns the memory that contains `low..high`, and the address of its first byte. Creates the
    /// memory if there is none.
    ///
    /// # Safety
    /// The bytes `low..high` must satisfy the requirements of [`Foreign::slice`].
    unsafe fn find(&mut self, low: usize, high: usize) -> (Memory, usize) {
        self.clock += 1;
        if let Some((start, known)) = self.known.range_mut(..=low).next_back()
            && known.end(*start) >= high
        {
            known.used = self.clock;
            return (known.memory.clone(), *start);
        }
        let (mut start, mut end) = (low, high);
        for (at, memory) in self.take_overlapping(low, high) {
            (start, end) = (start.min(at), end.max(at + memory.len()));
            self.stale.push(memory);
        }
        self.drop_oldest();
        let ptr = NonNull::new(std::ptr::with_exposed_provenance_mut(start)).expect("an extent's pointer is not null");
        // SAFETY: some caller vouched for every byte in one of the ranges, and overlapping ranges
        // leave no gap.
        let memory = unsafe { Memory::shared(ptr, end - start) };
        self.known.insert(start, Known { memory: memory.clone(), used: self.clock });
        (memory, start)
    }

    fn take_overlapping(&mut self, start: usize, end: usize) -> Vec<(usize, Memory)> {
        let mut taken = Vec::new();
        while let Some((at, known)) = self.known.range(..end).next_back() {
            let at = *at;
            if known.end(at) <= start {
                break;
            }
            taken.extend(self.known.remove(&at).map(|known| (at, known.memory)));
        }
        taken
    }

    /// Makes room for one more range. Drops a quarter of the ranges at a time, so that the search
    /// for the oldest is rarely needed.
    fn drop_oldest(&mut self) {
        if self.known.len() < self.limit {
            return;
        }
        let mut ages: Vec<u64> = self.known.values().map(|known| known.used).collect();
        let (_, youngest, _) = ages.select_nth_unstable(self.limit / 4);
        let youngest = *youngest;
        let stale = &mut self.stale;
        self.known.retain(|_, known| {
            let old = known.used <= youngest;
            if old {
                stale.push(known.memory.clone());
            }
            !old
        });
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Foreign({} ranges)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(bytes: &mut [u8]) -> NonNull<u8> {
        NonNull::new(bytes.as_mut_ptr()).unwrap()
    }

    /// # Safety
    /// As [`Foreign::slice`].
    unsafe fn piece(foreign: &Foreign, base: NonNull<u8>, from: usize, len: usize) -> MemSlice {
        // SAFETY: the caller makes the same promise.
        unsafe { foreign.slice(Extent::new(base.add(from), len), None) }.unwrap()
    }

    #[test]
    fn pieces_of_one_parent_are_pieces_of_one_memory() {
        let mut bytes = vec![7u8; 1000];
        let base = at(&mut bytes);
        let foreign = Foreign::new();
        let parent = Some(Extent::new(base, 1000));
        // SAFETY: the vector lives until the end of the test, and is not touched while slices
        // exist.
        unsafe {
            let first = foreign.slice(Extent::new(base.add(10), 5), parent).unwrap();
            let second = foreign.slice(Extent::new(base.add(900), 100), parent).unwrap();
            assert_eq!(first.memory().id(), second.memory().id());
            assert_eq!((first.offset(), second.offset(), foreign.len()), (10, 900, 1));
            let third = piece(&foreign, base, 500, 10);
            assert_eq!(
                third.memory().id(),
                first.memory().id(),
                "a known range that contains it is found without the hint"
            );
            assert!(third.memory().clone().get_mut().is_none(), "foreign bytes are never exclusive");
            third.copy_from(&[1, 2, 3]);
            assert_eq!(foreign.slice(Extent::new(base, 1001), parent).unwrap_err().kind(), ErrorKind::Invalid);
            assert_eq!(foreign.slice(Extent::new(base, usize::MAX), None).unwrap_err().kind(), ErrorKind::Invalid);
            assert!(foreign.slice(Extent::new(base, 0), None).unwrap().is_empty());
            assert_eq!(foreign.forget(Extent::new(base.add(999), 1)), 1);
            let again = foreign.slice(Extent::new(base.add(10), 5), parent).unwrap();
            assert_ne!(again.memory().id(), first.memory().id(), "what was forgotten is never found again");
        }
        drop(foreign);
        assert_eq!(bytes[499..504], [7, 1, 2, 3, 7]);
    }

    #[test]
    fn the_least_recently_used_ranges_go_first() {
        let mut bytes = vec![0u8; 100];
        let base = at(&mut bytes);
        let foreign = Foreign::with_limit(8);
        // SAFETY: as above.
        let id = |at: usize| unsafe { piece(&foreign, base, at * 10, 5) }.memory().id();
        let ids: Vec<_> = (0..8).map(id).collect();
        assert_eq!(id(0), ids[0]);
        id(8);
        assert_eq!(foreign.len(), 6, "a quarter and one went, and one came");
        assert_eq!((id(0), id(7)), (ids[0], ids[7]));
        assert_ne!(id(1), ids[1]);
        let known = foreign.len();
        assert_eq!((foreign.clone().forget_all(), foreign.len()), (known, 0));
    }

    proptest! {
        /// Tests any sequence of pieces, parents and forgetting: every slice refers to its bytes,
        /// known ranges are disjoint, and pieces within one known range share it.
        #[test]
        fn any_sequence_finds_the_right_bytes(
            steps in proptest::collection::vec((0u8..8, 0usize..200, 1usize..40, 0usize..30, 0usize..30), 1..100),
        ) {
            let mut bytes = vec![0u8; 256];
            let base = at(&mut bytes);
            let foreign = Foreign::with_limit(10);
            for (kind, from, len, before, behind) in steps {
                let extent = Extent::new(base.map_addr(|addr| addr.saturating_add(from)), len);
                if kind == 0 {
                    foreign.forget(extent);
                    continue;
                }
                let low = from.saturating_sub(before);
                let high = (from + len + behind).min(256);
                let parent = (kind > 3).then(|| Extent::new(base.map_addr(|addr| addr.saturating_add(low)), high - low));
                // SAFETY: within the vector, which lives until the end and is not touched
                // otherwise.
                let slice = unsafe { foreign.slice(extent, parent) }.unwrap();
                prop_assert_eq!(slice.as_ptr(), extent.ptr.as_ptr());
                prop_assert_eq!(slice.len(), len);
                let table = foreign.lock();
                let mut end = 0;
                for (start, known) in &table.known {
                    prop_assert!(*start >= end, "known ranges overlap");
                    prop_assert_eq!(known.memory.as_ptr().addr(), *start);
                    end = known.end(*start);
                }
                prop_assert!(table.known.len() <= 10);
            }
        }
    }
}
