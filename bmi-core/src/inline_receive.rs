//! Messages that are looked at where the adapter has them: inline receives.
//!
//! **Why.** A short message is written into a receive, reported by a completion, matched, copied to
//! the program's memory, and its receive posted again. Where the adapter is software, or puts short
//! messages into the completion itself (verbs call that an inline receive), the bytes are at hand
//! before all that. A protocol that knows at once where they belong copies them there, and a copy,
//! a completion and a receive posted are saved (C16 of [`crate::transport`]).
//!
//! **Invariants**
//! 1. What has arrived is valid while the value lives. It may be the peer's to change at any time:
//!    so it is copied, never referred to, and what was copied is checked.
//! 2. A receiver that says no has changed nothing.
//!
//! **Source.** Inline receives of adapters by Mellanox ("scatter to CQE"); reading in place,
//! [pNFS-Lustre §4.3].

use std::fmt;
use std::marker::PhantomData;

use crate::mem::{MemSlice, copy};
use crate::transport::ConnId;

/// A message where the adapter has it.
pub struct InlineMessage<'a> {
    at: *mut u8,
    len: usize,
    _adapter: PhantomData<&'a mut [u8]>,
}

impl InlineMessage<'_> {
    /// # Safety
    /// `len` bytes at `at` must be valid for reads and writes while the value lives, and written by
    /// others only through [`copy`](mod@copy), by the kernel, or by another process.
    #[inline(always)]
    pub unsafe fn new<'a>(at: *mut u8, len: usize) -> InlineMessage<'a> {
        InlineMessage { at, len, _adapter: PhantomData }
    }

    /// A message in memory that is nobody else's meanwhile: an adapter that has it in a buffer of
    /// its own.
    #[inline]
    pub fn of(bytes: &mut [u8]) -> InlineMessage<'_> {
        InlineMessage { at: bytes.as_mut_ptr(), len: bytes.len(), _adapter: PhantomData }
    }

    /// Its length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn range(&self, offset: usize, len: usize) -> *mut u8 {
        if offset > self.len || len > self.len - offset {
            beyond(offset, len, self.len);
        }
        self.at.wrapping_add(offset)
    }

    /// Copies the bytes from `offset` on, as many as `to` holds; panics if there are fewer.
    #[inline(always)]
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) {
        let from = self.range(offset, to.len());
        // SAFETY: within what the maker vouched for (invariant 1).
        unsafe { copy::copy_out(to, from) };
    }

    /// Copies `len` bytes from `offset` on to the beginning of `to`; panics if there are fewer, or
    /// `to` is shorter.
    #[inline(always)]
    pub fn copy_to_slice(&self, offset: usize, len: usize, to: &MemSlice) {
        to.memory().check_writable();
        if len > to.len() {
            beyond(0, len, to.len());
        }
        let from = self.range(offset, len);
        // SAFETY: the source is within what the maker vouched for, the target within its memory,
        // which it holds.
        unsafe { copy::copy_between(to.as_ptr(), from, len) };
    }
}

#[cold]
fn beyond(offset: usize, len: usize, room: usize) -> ! {
    panic!("{len} bytes at {offset} of {room}")
}

impl fmt::Debug for InlineMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InlineMessage({} bytes)", self.len)
    }
}

/// Who may take messages where they stand.
pub trait InlineReceiver {
    /// A message of `conn` that nobody has received yet. `true`: it was taken, all that is needed
    /// of it was copied. `false`: nothing has happened, and it goes the usual way, into the receive
    /// that is its turn. Called with messages in their order; must not block, and cannot reach the
    /// transport.
    fn take(&mut self, conn: ConnId, message: InlineMessage<'_>) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Memory;

    #[test]
    fn parts_of_a_message_are_copied() {
        let mut bytes: Vec<u8> = (0..10).collect();
        let message = InlineMessage::of(&mut bytes);
        let (mut head, body) = ([0; 3], Memory::zeroed(4).unwrap());
        message.copy_to(1, &mut head);
        message.copy_to_slice(7, 3, &body.all());
        assert_eq!((message.len(), message.is_empty(), head, body.to_vec()), (10, false, [1, 2, 3], vec![7, 8, 9, 0]));
    }

    #[test]
    #[should_panic(expected = "4 bytes at 7 of 10")]
    fn more_than_there_is_panics() {
        InlineMessage::of(&mut [0; 10]).copy_to(7, &mut [0; 4]);
    }
}
