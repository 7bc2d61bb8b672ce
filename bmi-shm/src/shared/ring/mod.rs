//! A lock-free ring of records from one writer to one reader, and the rule by which one side wakes
//! the other.
//!
//! **Why.** A small message between two processes should cost no more than handing a cache line
//! from one core to the other. So the word that says *there is a record* is in the record's own
//! first line. A waiting reader looks at one line, and when that line changes, the message is in
//! it. Positions are exchanged separately, and rarely.
//!
//! **Layout** of the ring, whose length in bytes is a power of two, and of a record. Every record
//! begins on a cache line.
//!
//! ```text
//!   line 0        line 1        line 2                     last line
//!  ┌────┬────────┬─────────────┬────┬────────┬──── … ─────┬────┬────────┐
//!  │word│ body (56 bytes, and whole lines on)│word│ body … │word│ pad    │ word: 8 bytes; 0: nothing yet
//!  └────┴────────┴─────────────┴────┴────────┴──── … ─────┴────┴────────┘     else kind (8) << 32 | len (32)
//!    ^ record                    ^ record                   ^ a record that does not fit here begins at line 0;
//!                                                             PAD is where it would have begun
//! ```
//!
//! **Protocol**
//!
//! ```text
//!   writer                                             reader
//!   body of record n                                   word n: relaxed load; 0 → nothing yet
//!   first words of the lines ahead := 0   (relaxed)    acquire fence
//!   word n   := kind, length      (release)  ────────> body of record n, in place; word n+1 is 0 or newer
//!   …                                                  consumed := position       (release), now and then
//!   room = length - (position - consumed) (acquire) <──┘
//! ```
//!
//! Lines are zeroed many at a time, after a record was published and before they run out. Storing a
//! zero with each record would transfer a second line per record. The reader waits at that line, so
//! it takes the line back between the body and the word.
//!
//! Waking is the usual store-load protocol. A side that is about to sleep announces it, passes a
//! full fence, and looks once more. A side that has published a record passes a full fence and
//! looks whether the other side announced. One of the two fences comes first in their total order.
//! So either the sleeper sees the record, or the publisher sees the announcement.
//!
//! **Invariants**
//! 1. The word behind the newest record is 0 before that record becomes visible. So a reader never
//!    takes old bytes for a record.
//! 2. At least the word behind the newest record is free, so a full ring and an empty one differ.
//! 3. The reader copies a word, then checks it. The writer checks a position before using it.
//!    Whatever the values are, nothing outside of the ring is accessed.
//!
//! **Source.** The flag in the record's own line is that of FastForward (Giacomoni, Moseley,
//! Vachharajani, PPoPP 2008). Zeroing ahead allows records of any length.
//!
//! **Tests** in `ring_tests`: under loom, over all interleavings and all values that a weak memory
//! model allows; with plain memory, also under Miri (`cargo xtask test --only miri`); and a
//! property test whose writer scribbles into the ring.

use std::sync::atomic::Ordering;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;
/// Bytes of the word in front of a body.
pub(crate) const WORD: usize = 8;
/// The kind of a record that only says that the next record begins at line 0.
pub(crate) const PAD: u8 = 0xff;
/// The number of lines whose first words are zeroed together, and the number of zeroed lines left
/// at which the next ones are zeroed.
const AHEAD: usize = 16;
const LOW: usize = 4;

/// A word that two processes share.
pub(crate) trait Word {
    fn load_relaxed(&self) -> u64;
    fn store_relaxed(&self, value: u64);
    fn store_release(&self, value: u64);
}

/// The memory of a ring, and its fences.
pub(crate) trait Space {
    type Word: Word;
    /// Returns the length in bytes: a power of two and a multiple of [`LINE`].
    fn len(&self) -> usize;
    /// Returns the word at `at`, a multiple of [`LINE`] below `len`.
    fn word(&self, at: usize) -> &Self::Word;
    fn fence(order: Ordering);
}

/// The contents of a record's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: u8,
    /// The offset of its body in the ring, and the body's length in bytes.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// The ring or a position holds a value that no honest peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// Returns how many bytes of the ring a record with a body of this length takes.
#[inline]
const fn size_of_record(body: usize) -> usize {
    (WORD + body + LINE - 1) & !(LINE - 1)
}

/// The writing end of a ring.
pub(crate) struct Writer<S> {
    space: S,
    /// Bytes written so far, over the ring's lifetime.
    position: u64,
    /// The reader's position, as last read.
    consumed: u64,
    /// From `position` up to here, the first word of each line is 0. Never more than one ring
    /// length ahead of `consumed`.
    zeroed: u64,
}

/// A record that is being written.
#[derive(Debug)]
#[must_use = "nobody sees it until it is published"]
pub(crate) struct Reservation {
    /// The offset of its body in the ring.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl<S: Space> Writer<S> {
    pub(crate) fn new(space: S) -> Writer<S> {
        // New memory is zero.
        let zeroed = space.len() as u64;
        Writer { space, position: 0, consumed: 0, zeroed }
    }

    pub(crate) fn space(&self) -> &S {
        &self.space
    }

    /// Returns the number of bytes published so far, over the ring's lifetime.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the last known position of the reader.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Returns the longest body that a ring of `len` bytes always has room for once it is empty: a
    /// quarter, so that a padded end and a record always fit.
    pub(crate) const fn max_body(len: usize) -> usize {
        len / 4 - WORD
    }

    /// Updates the known position of the reader from the word that the reader writes.
    pub(crate) fn refresh(&mut self, consumed: &S::Word) -> Result<(), Corrupt> {
        let said = consumed.load_relaxed();
        S::fence(Ordering::Acquire);
        if said < self.consumed || said > self.position {
            return Err(Corrupt);
        }
        self.consumed = said;
        Ok(())
    }

    #[inline]
    fn free(&self) -> usize {
        self.space.len() - (self.position - self.consumed) as usize
    }

    #[inline]
    fn offset(&self, position: u64) -> usize {
        position as usize & (self.space.len() - 1)
    }

    /// Reserves room for a record with a body of `len` bytes, at most [`Writer::max_body`]. Returns
    /// `None` if the reader must consume something first.
    #[inline]
    pub(crate) fn reserve(&mut self, len: usize) -> Option<Reservation> {
        let size = size_of_record(len);
        let here = self.offset(self.position);
        if here + size > self.space.len() {
            return self.reserve_behind_end(len);
        }
        (size + LINE <= self.free()).then_some(Reservation { at: here + WORD, len })
    }

    /// Reserves room for a record that does not fit before the ring's end.
    #[cold]
    fn reserve_behind_end(&mut self, len: usize) -> Option<Reservation> {
        let to_end = self.space.len() - self.offset(self.position);
        if to_end + size_of_record(len) + LINE > self.free() {
            return None;
        }
        self.finish(to_end, PAD, 0);
        Some(Reservation { at: WORD, len })
    }

    /// Makes a record visible to the reader. Its body must be in place.
    #[inline]
    pub(crate) fn publish(&mut self, reservation: Reservation, kind: u8) {
        self.finish(size_of_record(reservation.len), kind, reservation.len);
    }

    #[inline]
    fn finish(&mut self, size: usize, kind: u8, len: usize) {
        let here = self.offset(self.position);
        self.position += size as u64;
        if self.zeroed <= self.position {
            self.zero_ahead(); // a long record
        }
        self.space.word(here).store_release(u64::from(kind) << 32 | len as u64);
        // The record is visible now. The next lines are zeroed while the reader takes it.
        if self.zeroed - self.position <= (LOW * LINE) as u64 {
            self.zero_ahead();
        }
    }

    /// Zeroes the first words of the lines behind `position`. It zeroes at least one line if a
    /// record was reserved, and no line that the reader may not have consumed.
    #[inline(never)]
    fn zero_ahead(&mut self) {
        let end = (self.position + (AHEAD * LINE) as u64).min(self.consumed + self.space.len() as u64);
        let mut at = self.zeroed.max(self.position);
        while at < end {
            self.space.word(self.offset(at)).store_relaxed(0);
            at += LINE as u64;
        }
        self.zeroed = self.zeroed.max(end);
    }
}

/// The reading end of a ring.
pub(crate) struct Reader<S> {
    space: S,
    position: u64,
    /// The position that the writer was last told.
    told: u64,
}

impl<S: Space> Reader<S> {
    pub(crate) fn new(space: S) -> Reader<S> {
        Reader { space, position: 0, told: 0 }
    }

    pub(crate) fn space(&self) -> &S {
        &self.space
    }

    #[inline]
    fn offset(&self) -> usize {
        self.position as usize & (self.space.len() - 1)
    }

    /// Returns whether there is a record at the reader's position.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.space.word(self.offset()).load_relaxed() != 0
    }

    /// Returns the next record, if there is one. It stays until [`Reader::consume`].
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Record>, Corrupt> {
        let word = self.space.word(self.offset()).load_relaxed();
        if word == 0 {
            return Ok(None);
        }
        S::fence(Ordering::Acquire);
        if word == u64::from(PAD) << 32 {
            return self.next_behind_end();
        }
        self.check(word).map(Some)
    }

    #[cold]
    fn next_behind_end(&mut self) -> Result<Option<Record>, Corrupt> {
        let to_end = self.space.len() - self.offset();
        if self.offset() == 0 {
            return Err(Corrupt);
        }
        self.position += to_end as u64;
        let word = self.space.word(0).load_relaxed();
        if word == 0 {
            return Ok(None);
        }
        S::fence(Ordering::Acquire);
        self.check(word).map(Some)
    }

    #[inline]
    fn check(&self, word: u64) -> Result<Record, Corrupt> {
        let len = word as u32 as usize;
        let kind = u8::try_from(word >> 32).map_err(|_| Corrupt)?;
        let at = self.offset() + WORD;
        if kind == PAD || kind == 0 || len > Writer::<S>::max_body(self.space.len()) || at + len > self.space.len() {
            return Err(Corrupt);
        }
        Ok(Record { kind, at, len })
    }

    /// Gives the record's room back.
    #[inline]
    pub(crate) fn consume(&mut self, record: Record) {
        self.position += size_of_record(record.len) as u64;
    }

    /// Returns the number of bytes consumed so far, over the ring's lifetime.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Returns how many of them the writer was told of.
    #[inline]
    pub(crate) fn told(&self) -> u64 {
        self.told
    }

    /// Returns the number of bytes consumed that the writer has not been told of.
    #[inline]
    pub(crate) fn untold(&self) -> u64 {
        self.position - self.told
    }

    /// Stores the reader's position where the writer looks for it.
    pub(crate) fn tell(&mut self, consumed: &S::Word) {
        consumed.store_release(self.position);
        self.told = self.position;
    }
}

/// Announces that this side is about to sleep. The caller must look for work again afterwards.
pub(crate) fn announce_sleep<S: Space>(sleep: &S::Word, how: u64) {
    sleep.store_relaxed(how);
    S::fence(Ordering::SeqCst);
}

/// Returns what the other side announced. This read comes after everything that this side has
/// published.
pub(crate) fn announced<S: Space>(sleep: &S::Word) -> u64 {
    S::fence(Ordering::SeqCst);
    sleep.load_relaxed()
}

#[cfg(test)]
mod tests;
