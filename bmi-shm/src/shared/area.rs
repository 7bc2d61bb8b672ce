//! The memory that one side of a connection writes and the other reads: its ring, its position, its
//! announcements, its exposures.
//!
//! **Why one area each.** Only the owner of an area can map it writable (the seal
//! `F_SEAL_FUTURE_WRITE`), so the peer cannot change anything that this side has written. The only
//! words to distrust are those that the peer writes in *its* area. They are copied, then checked.
//!
//! **Layout**, in bytes. Words that are used at different times are in different cache lines.
//!
//! ```text
//!     0  consumed      how far this side has read the peer's ring
//!    64  sleep         0 awake, else (nap's number << 1 | waits for room in its ring)
//!   128  claims        32 words: the key under which this side reaches the peer's memory now, or 0
//!   384  taken         how many in-place messages of the peer this side has copied
//!   448  gone          1 once this side has ended the connection: the memory of its records may be reused by now
//!   512  exposures     64 bytes each: key, access and kind, place, offset, length, three unused
//!     …  ring          on a page of its own: what this side sends
//! ```
//!
//! **Exposures and claims.** The table tells the peer where exposed memory is, so that the peer can
//! move the bytes without help. It is only advice. The peer asks through the ring for an exposure
//! that is not in the table; the owner then checks the request and answers or refuses it. To reach
//! memory through the table, the peer first writes the key to one of its claims, passes a full
//! fence, and then reads the entry. To revoke an exposure, the owner first wipes the entry, passes
//! a full fence, and then reads the claims. So either the peer finds no entry, or the owner finds
//! the claim.
//!
//! **The end.** When the sender of an in-place message ends the connection, the message's memory
//! belongs to the sender again, copied or not. So a side first announces that it is `gone`, and
//! then gives the memory back. The peer first copies, and then checks `gone`. So it never takes
//! bytes that were written later for the message.
//!
//! **Invariants**
//! 1. An entry's key is stored last and wiped first, each time with a release store. A reader that
//!    sees the same key before and after reading has the fields that belong to it if the owner is
//!    honest. If the owner is not, the fields may hold anything, and they are checked.
//! 2. An area's length follows from two numbers, both bounded ([`Geometry::is_sane`]).

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use bmi_core::Access;

use super::ring::{self, LINE};
use crate::os::sys::Mapping;

const CONSUMED: usize = 0;
const SLEEP: usize = 64;
const CLAIMS: usize = 128;
const TAKEN: usize = 384;
const GONE: usize = 448;
const TABLE: usize = 512;
const ENTRY: usize = 64;
const PAGE: usize = 4096;
/// Most claims that a side can have at a time: one for its own copies, the others for pages handed
/// out by [`crate::records::Link::map_remote`].
pub(crate) const MAX_CLAIMS: usize = 32;

/// The two numbers that determine an area's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of the ring: a power of two.
    pub(crate) ring_len: usize,
    /// Entries in the table of exposures.
    pub(crate) exposures: usize,
}

impl Geometry {
    /// Smallest and largest ring in bytes. The largest inline message must fit into a quarter of
    /// it.
    pub(crate) const RING: std::ops::RangeInclusive<usize> = 64 << 10..=64 << 20;
    /// Most entries in the table of exposures.
    pub(crate) const MAX_EXPOSURES: usize = 1 << 20;

    pub(crate) fn is_sane(&self) -> bool {
        Self::RING.contains(&self.ring_len) && self.ring_len.is_power_of_two() && self.exposures <= Self::MAX_EXPOSURES
    }

    fn ring_at(&self) -> usize {
        (TABLE + self.exposures * ENTRY).next_multiple_of(PAGE)
    }

    /// Returns the length of the whole area in bytes.
    pub(crate) fn len(&self) -> usize {
        self.ring_at() + self.ring_len
    }
}

/// The location of exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the pages that were passed under this number, from this byte on.
    Pages { id: u32, offset: u64 },
    /// At this address in the owner's process.
    Address(u64),
}

/// An entry of the table of exposures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    pub(crate) place: Place,
    pub(crate) access: Access,
    pub(crate) len: u64,
}

/// One side's area, mapped. This side may write all of its own area and nothing of the peer's.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    mapping: Arc<Mapping>,
    geometry: Geometry,
}

impl Area {
    /// Wraps a mapping, which must have the length that the geometry gives.
    pub(crate) fn new(mapping: Mapping, geometry: Geometry) -> Area {
        assert_eq!(mapping.len(), geometry.len(), "the caller mapped what the geometry says");
        Area { mapping: Arc::new(mapping), geometry }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.mapping.len());
        // SAFETY: the word is aligned and within the mapping, which `self` keeps. It is only
        // accessed atomically. The peer's area is only loaded from, relaxed.
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

    /// Announces that this side has ended. Call it before any memory that this side sent from is
    /// reused.
    pub(crate) fn leave(&self) {
        self.word(GONE).store(1, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Returns true if that side may have ended before this side read the last byte of its memory.
    pub(crate) fn is_gone(&self) -> bool {
        fence(Ordering::Acquire);
        self.word(GONE).load(Ordering::Relaxed) != 0
    }

    pub(crate) fn ring(&self) -> RingSpace {
        // SAFETY: within the mapping.
        let base = unsafe { self.mapping.ptr().add(self.geometry.ring_at()) };
        RingSpace { base, len: self.geometry.ring_len, _mapping: self.mapping.clone() }
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn raw(&self, at: usize) -> &AtomicU64 {
        self.word(at)
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) fn ring_at(&self) -> usize {
        self.geometry.ring_at()
    }

    // ---- exposures ------------------------------------------------------------------------------

    fn entry(&self, slot: usize) -> Option<[&AtomicU64; 5]> {
        let at = (slot < self.geometry.exposures).then(|| TABLE + slot * ENTRY)?;
        Some([0, 8, 16, 24, 32].map(|field| self.word(at + field)))
    }

    /// Writes an entry. Does nothing beyond the table's end: the peer asks for such an exposure
    /// instead.
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

    /// Wipes an entry. After this call, [`Area::claims`] on the peer's area tells whether the peer
    /// is using it.
    pub(crate) fn withdraw(&self, slot: usize) {
        if let Some([key, ..]) = self.entry(slot) {
            key.store(0, Ordering::Release);
            full_fence();
        }
    }

    /// Returns the entry of a key. It was read consistently, but its contents must not be trusted.
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

    /// Claims the memory of this key: announces that this side is reaching it.
    pub(crate) fn claim(&self, number: usize, key: u64) {
        self.word(CLAIMS + number * 8).store(key, Ordering::Relaxed);
        full_fence();
    }

    /// Gives the claim up.
    pub(crate) fn unclaim(&self, number: usize) {
        self.word(CLAIMS + number * 8).store(0, Ordering::Release);
    }

    /// Returns whether a claim has this key.
    pub(crate) fn is_claimed(&self, key: u64) -> bool {
        let found = (0..MAX_CLAIMS).any(|number| self.word(CLAIMS + number * 8).load(Ordering::Relaxed) == key);
        fence(Ordering::Acquire);
        found
    }

    /// Returns all claims: keys, and 0 for a claim that is free. Accesses under claims that are not
    /// among them any more are done.
    pub(crate) fn claims(&self) -> [u64; MAX_CLAIMS] {
        let claims = std::array::from_fn(|number| self.word(CLAIMS + number * 8).load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        claims
    }
}

/// The ring of an area.
#[derive(Debug)]
pub(crate) struct RingSpace {
    base: NonNull<u8>,
    len: usize,
    _mapping: Arc<Mapping>,
}

// SAFETY: the ring keeps its mapping alive; see `Mapping`.
unsafe impl Send for RingSpace {}

impl RingSpace {
    /// Returns the address of byte `at`, which must lie in the ring.
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
        // SAFETY: the length is a power of two, so the masked offset is aligned and within the
        // ring. The word is only accessed atomically: a body is never copied over it, because
        // bodies begin behind it.
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

/// `fence(SeqCst)`, by the cheapest instruction. Any locked instruction orders the accesses before
/// and after it. So does `mfence`, which takes three times as long.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn full_fence() {
    // SAFETY: it does not change the word at the top of the stack. The block is not marked `nomem`,
    // so the compiler moves no access across it.
    unsafe { std::arch::asm!("lock or dword ptr [rsp], 0") };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_tells_what_was_advertised_and_nothing_after_withdrawal() {
        let geometry = Geometry { ring_len: 64 << 10, exposures: 10 };
        let (fd, mapping) = crate::os::sys::new_area(geometry.len()).unwrap();
        let own = Area::new(mapping, geometry);
        let peer = Area::new(crate::os::sys::map_peer(&fd, geometry.len() as u64, false).unwrap().unwrap(), geometry);
        let advice = Advice { place: Place::Pages { id: 3, offset: 77 }, access: Access::WRITE, len: 5 };
        own.advertise(9, 42, advice);
        own.advertise(10, 43, advice);
        assert_eq!(peer.advice(9, 42), Some(advice));
        assert_eq!(peer.advice(9, 41), None);
        assert_eq!((peer.advice(8, 0), peer.advice(10, 43)), (None, None));
        own.withdraw(9);
        assert_eq!(peer.advice(9, 42), None);
        assert_eq!(peer.claims(), [0; MAX_CLAIMS]);
        own.claim(31, 42);
        assert_eq!((peer.claims()[30], peer.claims()[31]), (0, 42));
        assert!(peer.is_claimed(42) && !peer.is_claimed(41));
        own.unclaim(31);
        assert_eq!(peer.claims(), [0; MAX_CLAIMS]);
    }

    #[test]
    fn nobody_else_can_write_an_area() {
        let (fd, _mapping) = crate::os::sys::new_area(4096).unwrap();
        assert!(crate::os::sys::map_peer(&fd, 4096, true).unwrap().is_err());
        assert!(rustix::io::pwrite(&fd, b"x", 0).is_err());
    }
}
