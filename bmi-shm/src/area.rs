//! What one side of a connection writes and the other reads: its ring, its position, its
//! announcements, its exposures.
//!
//! **Why one area each.** A side's area is mapped writable by that side alone (the seal
//! `F_SEAL_FUTURE_WRITE`), so nothing that this side has written can be changed by the peer. What
//! is left to distrust is what the peer writes in *its* area: words that are copied, then checked.
//!
//! **Layout**, in bytes. Words that different moments touch stand in different cache lines.
//!
//! ```text
//!     0  consumed      how far this side has read the peer's ring
//!    64  sleep         0 awake, else (nap's number << 1 | waits for room in its ring)
//!   128  claims        32 words: the key under which this side reaches the peer's memory at this moment, or 0
//!   384  taken         how many messages that the peer left in its own memory this side has copied
//!   448  gone          1 once this side has ended the connection: what its records name may serve something else by now
//!   512  exposures     64 bytes each: key, access and kind, where, offset, length, three unused words
//!     …  ring          on a page of its own: what this side sends
//! ```
//!
//! **Exposures and claims.** The table tells the peer where memory stands that it may reach, so
//! that it can move the bytes by itself. It is advice: what is not in it is asked for through the
//! ring, and the owner checks and answers or refuses there. To reach memory by it the peer first
//! writes the key to one of its claims, passes a full fence, and then reads the entry; the owner
//! that revokes first wipes the entry, passes a full fence, and then reads the claims. So either
//! the peer finds no entry, or the owner finds the claim.
//!
//! **The end.** A message that was left in its sender's memory is the sender's again when that has
//! ended the connection, copied or not. So a side first says that it is `gone`, and then gives
//! memory back; and the peer copies first and looks then, so that no byte of what came later is
//! taken for the message.
//!
//! **Invariants**
//! 1. An entry's key is stored last and wiped first, each with a release store; a reader that sees
//!    the same key before and behind has the fields that belong to it (if the owner is honest; else
//!    any, and they are checked).
//! 2. An area's length follows from two numbers, both bounded ([`Geometry::is_sane`]).

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use bmi_core::Access;

use crate::ring::{self, LINE};
use crate::sys::Mapping;

const CONSUMED: usize = 0;
const SLEEP: usize = 64;
const CLAIMS: usize = 128;
const TAKEN: usize = 384;
const GONE: usize = 448;
const TABLE: usize = 512;
const ENTRY: usize = 64;
const PAGE: usize = 4096;
/// Claims that a side can have at a time: one for its own copies, the others for pages that it was
/// lent.
pub(crate) const MAX_CLAIMS: usize = 32;

/// The two numbers that an area is made by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of the ring: a power of two.
    pub(crate) ring_len: usize,
    /// Entries of the table of exposures.
    pub(crate) exposures: usize,
}

impl Geometry {
    /// Smallest and largest ring in bytes. The largest inline message must fit a quarter of it.
    pub(crate) const RING: std::ops::RangeInclusive<usize> = 64 << 10..=64 << 20;
    /// Most entries.
    pub(crate) const MAX_EXPOSURES: usize = 1 << 20;

    pub(crate) fn is_sane(&self) -> bool {
        Self::RING.contains(&self.ring_len) && self.ring_len.is_power_of_two() && self.exposures <= Self::MAX_EXPOSURES
    }

    fn ring_at(&self) -> usize {
        (TABLE + self.exposures * ENTRY).next_multiple_of(PAGE)
    }

    /// Length of the whole area in bytes.
    pub(crate) fn len(&self) -> usize {
        self.ring_at() + self.ring_len
    }
}

/// Where exposed memory stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In pages that were passed under this number, from this byte of them on.
    Pages { id: u32, offset: u64 },
    /// At this address of the owner's process.
    Address(u64),
}

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) place: Place,
    pub(crate) access: Access,
    pub(crate) len: u64,
}

/// One side's area, mapped. Of the own area everything may be written, of the peer's nothing.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    mapping: Arc<Mapping>,
    geometry: Geometry,
}

impl Area {
    /// The mapping must be as long as the geometry says.
    pub(crate) fn new(mapping: Mapping, geometry: Geometry) -> Area {
        assert_eq!(mapping.len(), geometry.len(), "the caller mapped what the geometry says");
        Area { mapping: Arc::new(mapping), geometry }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.mapping.len());
        // SAFETY: within the mapping, which `self` keeps, and aligned; only ever accessed
        // atomically. The peer's area is only loaded from, relaxed.
        unsafe { AtomicU64::from_ptr(self.mapping.ptr().as_ptr().add(at).cast()) }
    }

    pub(crate) fn consumed(&self) -> &AtomicU64 {
        self.word(CONSUMED)
    }

    pub(crate) fn sleep(&self) -> &AtomicU64 {
        self.word(SLEEP)
    }

    pub(crate) fn taken(&self) -> &AtomicU64 {
        self.word(TAKEN)
    }

    /// Says that this side is at its end, before any memory that it sent from is used for something
    /// else.
    pub(crate) fn leave(&self) {
        self.word(GONE).store(1, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Whether that side was at its end before the last byte was read that this side has read of
    /// its memory.
    pub(crate) fn is_gone(&self) -> bool {
        fence(Ordering::Acquire);
        self.word(GONE).load(Ordering::Relaxed) != 0
    }

    pub(crate) fn ring(&self) -> RingSpace {
        // SAFETY: within the mapping.
        let base = unsafe { self.mapping.ptr().add(self.geometry.ring_at()) };
        RingSpace { base, len: self.geometry.ring_len, _mapping: self.mapping.clone() }
    }

    #[cfg(test)]
    pub(crate) fn raw(&self, at: usize) -> &AtomicU64 {
        self.word(at)
    }

    #[cfg(test)]
    pub(crate) fn ring_at(&self) -> usize {
        self.geometry.ring_at()
    }

    // ---- exposures ------------------------------------------------------------------------------

    fn entry(&self, slot: usize) -> Option<[&AtomicU64; 5]> {
        let at = (slot < self.geometry.exposures).then(|| TABLE + slot * ENTRY)?;
        Some([0, 8, 16, 24, 32].map(|field| self.word(at + field)))
    }

    /// Writes an entry; ignored beyond the table's end: then the peer asks.
    pub(crate) fn advertise(&self, slot: usize, key: u64, advice: Advice) {
        let Some([key_word, kind, place, offset, len]) = self.entry(slot) else { return };
        let rights = u64::from(advice.access.remote_read) | u64::from(advice.access.remote_write) << 1;
        let (how, at, from) = match advice.place {
            Place::Pages { id, offset } => (0, u64::from(id), offset),
            Place::Address(address) => (1, address, 0),
        };
        kind.store(rights | how << 2, Ordering::Relaxed);
        place.store(at, Ordering::Relaxed);
        offset.store(from, Ordering::Relaxed);
        len.store(advice.len, Ordering::Relaxed);
        key_word.store(key, Ordering::Release);
    }

    /// Wipes an entry. Behind this call [`Area::claims`] of the peer tells whether it was in use.
    pub(crate) fn withdraw(&self, slot: usize) {
        if let Some([key, ..]) = self.entry(slot) {
            key.store(0, Ordering::Release);
            full_fence();
        }
    }

    /// The entry of a key. Nothing in it can be relied on but that it was read whole.
    pub(crate) fn advice(&self, slot: usize, key: u64) -> Option<Advice> {
        let [key_word, kind, place, offset, len] = self.entry(slot)?;
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        if load(key_word) != key || key == 0 {
            return None;
        }
        fence(Ordering::Acquire);
        let (kind, place, offset, len) = (load(kind), load(place), load(offset), load(len));
        fence(Ordering::Acquire);
        if load(key_word) != key {
            return None;
        }
        let access = Access { remote_read: kind & 1 != 0, remote_write: kind & 2 != 0 };
        let place = match kind >> 2 {
            0 => Place::Pages { id: u32::try_from(place).ok()?, offset },
            1 => Place::Address(place),
            _ => return None,
        };
        Some(Advice { place, access, len })
    }

    // ---- claims ---------------------------------------------------------------------------------

    /// Says that memory is being reached by this key.
    pub(crate) fn claim(&self, number: usize, key: u64) {
        self.word(CLAIMS + number * 8).store(key, Ordering::Relaxed);
        full_fence();
    }

    /// Says that it is over.
    pub(crate) fn unclaim(&self, number: usize) {
        self.word(CLAIMS + number * 8).store(0, Ordering::Release);
    }

    /// Whether any claim is one of `key`, or of any key if that is 0.
    pub(crate) fn claims(&self, key: u64) -> bool {
        let found = (0..MAX_CLAIMS).any(|number| {
            let claim = self.word(CLAIMS + number * 8).load(Ordering::Relaxed);
            claim != 0 && (key == 0 || claim == key)
        });
        fence(Ordering::Acquire);
        found
    }
}

/// The ring of an area.
#[derive(Debug)]
pub(crate) struct RingSpace {
    base: NonNull<u8>,
    len: usize,
    _mapping: Arc<Mapping>,
}

// SAFETY: it keeps its mapping; see `Mapping`.
unsafe impl Send for RingSpace {}

impl RingSpace {
    /// Where byte `at` stands, which lies in the ring.
    pub(crate) fn ptr(&self, at: usize) -> *mut u8 {
        debug_assert!(at <= self.len);
        self.base.as_ptr().wrapping_add(at)
    }
}

impl ring::Word for AtomicU64 {
    #[inline]
    fn load_relaxed(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn store_relaxed(&self, value: u64) {
        self.store(value, Ordering::Relaxed);
    }

    #[inline]
    fn store_release(&self, value: u64) {
        self.store(value, Ordering::Release);
    }
}

impl ring::Space for RingSpace {
    type Word = AtomicU64;

    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(LINE) && at < self.len, "a ring's words stand in its lines");
        let at = at & (self.len - LINE);
        // SAFETY: the length is a power of two, so what is left is within the ring, aligned;
        // accessed atomically only (a body is never copied over a word: bodies begin behind it).
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    #[inline]
    fn fence(order: Ordering) {
        if order == Ordering::SeqCst { full_fence() } else { fence(order) }
    }
}

/// `fence(SeqCst)`.
#[cfg(any(not(target_arch = "x86_64"), miri))]
#[inline]
fn full_fence() {
    fence(Ordering::SeqCst);
}

/// `fence(SeqCst)`, by the cheapest instruction that is one: any with a lock orders what stands
/// before and behind it, as `mfence` does, which takes three times as long.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn full_fence() {
    // SAFETY: it adds nothing to the word at the top of the stack. Memory is not said to be left
    // alone, so the compiler moves no access across.
    unsafe { std::arch::asm!("lock or dword ptr [rsp], 0") };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_tells_what_was_advertised_and_nothing_after_withdrawal() {
        let geometry = Geometry { ring_len: 64 << 10, exposures: 10 };
        let (fd, mapping) = crate::sys::new_area(geometry.len()).unwrap();
        let own = Area::new(mapping, geometry);
        let peer = Area::new(crate::sys::map_peer(&fd, geometry.len() as u64, false).unwrap().unwrap(), geometry);
        let advice = Advice { place: Place::Pages { id: 3, offset: 77 }, access: Access::WRITE, len: 5 };
        own.advertise(9, 42, advice);
        own.advertise(10, 43, advice);
        assert_eq!(peer.advice(9, 42), Some(advice));
        assert_eq!(peer.advice(9, 41), None);
        assert_eq!((peer.advice(8, 0), peer.advice(10, 43)), (None, None));
        own.withdraw(9);
        assert_eq!(peer.advice(9, 42), None);
        assert!(!peer.claims(0));
        own.claim(31, 42);
        assert!(peer.claims(42) && peer.claims(0) && !peer.claims(41));
        own.unclaim(31);
        assert!(!peer.claims(42));
    }

    #[test]
    fn nobody_else_can_write_an_area() {
        let (fd, _mapping) = crate::sys::new_area(4096).unwrap();
        assert!(crate::sys::map_peer(&fd, 4096, true).unwrap().is_err());
        assert!(rustix::io::pwrite(&fd, b"x", 0).is_err());
    }
}
