//! A ring of records from one writer to one reader, without locks, and the rule by which one wakes
//! the other.
//!
//! **Why.** A small message between two processes should cost what it costs to hand a cache line
//! from one core to the other, and nothing else. So the word that says *there is a record* stands
//! in the record's own first line: a reader that waits looks at one line, and when it changes the
//! message is in it. Positions travel separately and rarely.
//!
//! **Layout** of the ring, a power of two in bytes, and of a record. Every record begins on a cache
//! line.
//!
//! ```text
//!   line 0        line 1        line 2                     last line
//!  ┌────┬────────┬─────────────┬────┬────────┬──── … ─────┬────┬────────┐
//!  │word│ body (56 bytes, and whole lines on)│word│ body … │word│ pad    │   word: 8 bytes, 0 = nothing here yet
//!  └────┴────────┴─────────────┴────┴────────┴──── … ─────┴────┴────────┘         else  kind (8) << 32 | body's length (32)
//!    ^ record                    ^ record                   ^ a record that does not fit before the end begins at line 0;
//!                                                             PAD stands where it would have begun
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
//! Lines are zeroed many at a time, behind a record that was published and before they run out. A
//! zero that is stored with each record costs a second line handed over: the reader, which waits at
//! this line, takes it back between the body and the word.
//!
//! Waking is the usual store-load protocol. Who is about to sleep announces it, passes a full
//! fence, and looks once more. Who has published passes a full fence and looks whether the other
//! announced. In the total order of the two fences one comes first; so either the sleeper sees the
//! record, or the publisher sees the sleeper.
//!
//! **Invariants**
//! 1. The word behind the newest record is 0 before that record can be seen: a reader never takes
//!    old bytes for a record.
//! 2. At least the word behind the newest record is free, so a full ring and an empty one differ.
//! 3. The reader copies a word, then checks it; the writer checks a position before it uses it.
//!    Whatever stands there, nothing is reached outside of the ring.
//!
//! **Source.** The flag in the record's own line is that of FastForward (Giacomoni, Moseley,
//! Vachharajani, PPoPP 2008); zeroing ahead allows records of any length. **Tests** in
//! `ring_tests`: under loom, over all interleavings and all values that a weak memory may show;
//! with plain memory, under Miri too (`cargo xtask test --only miri`); and a property test whose
//! writer scribbles.

use std::sync::atomic::Ordering;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;
/// Bytes of the word before a body.
pub(crate) const WORD: usize = 8;
/// The kind of a record that only says that the next one begins at line 0.
pub(crate) const PAD: u8 = 0xff;
/// Lines whose first words are zeroed together, and how many are left when it is time for more.
const AHEAD: usize = 16;
const LOW: usize = 4;

/// A word that two processes share.
pub(crate) trait Word {
    fn load_relaxed(&self) -> u64;
    fn store_relaxed(&self, value: u64);
    fn store_release(&self, value: u64);
}

/// The memory that a ring stands in, and its fences.
pub(crate) trait Space {
    type Word: Word;
    /// Bytes, a power of two, a multiple of [`LINE`].
    fn len(&self) -> usize;
    /// The word at `at`, a multiple of [`LINE`] below `len`.
    fn word(&self, at: usize) -> &Self::Word;
    fn fence(order: Ordering);
}

/// What the first word of a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: u8,
    /// Where its body begins in the ring, and its length in bytes.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// What no honest writer, or reader, would have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// Bytes in the ring of a record with a body of this length.
#[inline]
const fn size_of_record(body: usize) -> usize {
    (WORD + body + LINE - 1) & !(LINE - 1)
}

/// The writing end.
pub(crate) struct Writer<S> {
    space: S,
    /// Bytes written since the beginning of time.
    position: u64,
    /// What the reader said last that it has consumed.
    consumed: u64,
    /// From `position` to here the first word of each line is 0. Never more than a ring ahead of
    /// `consumed`.
    zeroed: u64,
}

/// A record that is being written.
#[derive(Debug)]
#[must_use = "nobody sees it until it is published"]
pub(crate) struct Reservation {
    /// Where its body goes.
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

    /// Bytes published since the beginning of time.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// What is known of the reader's position.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Longest body that a ring of `len` bytes takes in every case: a quarter, so that a padded end
    /// and a record always fit.
    pub(crate) const fn max_body(len: usize) -> usize {
        len / 4 - WORD
    }

    /// Takes note of the reader's position, read from where the reader writes it.
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

    /// Room for a record with a body of `len` bytes, at most [`Writer::max_body`]; `None` if the
    /// reader must consume something first.
    #[inline]
    pub(crate) fn reserve(&mut self, len: usize) -> Option<Reservation> {
        let size = size_of_record(len);
        let here = self.offset(self.position);
        if here + size > self.space.len() {
            return self.reserve_behind_end(len);
        }
        (size + LINE <= self.free()).then_some(Reservation { at: here + WORD, len })
    }

    /// Room for a record that does not fit before the end.
    #[cold]
    fn reserve_behind_end(&mut self, len: usize) -> Option<Reservation> {
        let to_end = self.space.len() - self.offset(self.position);
        if to_end + size_of_record(len) + LINE > self.free() {
            return None;
        }
        self.finish(to_end, PAD, 0);
        Some(Reservation { at: WORD, len })
    }

    /// Lets the reader see a record whose body is in place.
    #[inline]
    pub(crate) fn publish(&mut self, reservation: Reservation, kind: u8) {
        self.finish(size_of_record(reservation.len), kind, reservation.len);
    }

    #[inline]
    fn finish(&mut self, size: usize, kind: u8, len: usize) {
        let here = self.offset(self.position);
        self.position += size as u64;
        if self.zeroed <= self.position {
            self.zero_ahead(); // a long one
        }
        self.space.word(here).store_release(u64::from(kind) << 32 | len as u64);
        // The record is under way; this is done while the reader takes it.
        if self.zeroed - self.position <= (LOW * LINE) as u64 {
            self.zero_ahead();
        }
    }

    /// Zeroes the first words of the lines behind `position`: one at least where a record was
    /// reserved, and none that the reader may not have consumed.
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

/// The reading end.
pub(crate) struct Reader<S> {
    space: S,
    position: u64,
    /// What the writer was told.
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

    /// Whether something stands at the reader's position.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        self.space.word(self.offset()).load_relaxed() != 0
    }

    /// The next record, if there is one. It stays until [`Reader::consume`].
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

    /// Gives the record's place back.
    #[inline]
    pub(crate) fn consume(&mut self, record: Record) {
        self.position += size_of_record(record.len) as u64;
    }

    /// Bytes consumed that the writer does not know of.
    #[inline]
    pub(crate) fn untold(&self) -> u64 {
        self.position - self.told
    }

    /// Tells the writer, where it looks for it.
    pub(crate) fn tell(&mut self, consumed: &S::Word) {
        consumed.store_release(self.position);
        self.told = self.position;
    }
}

/// Announces that this side is about to sleep. Only what is looked at behind it counts.
pub(crate) fn announce_sleep<S: Space>(sleep: &S::Word, how: u64) {
    sleep.store_relaxed(how);
    S::fence(Ordering::SeqCst);
}

/// What the other side announced, after everything that this side has published.
pub(crate) fn announced<S: Space>(sleep: &S::Word) -> u64 {
    S::fence(Ordering::SeqCst);
    sleep.load_relaxed()
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
