//! Inline receives: messages that are handled in the adapter's own buffer.
//!
//! **Why.** Normally a short message is written into a receive, reported by a completion, matched,
//! and copied to the program's memory. Then its receive is posted again. The bytes are available
//! before all that if the adapter is software, or if it puts short messages into the completion
//! itself (verbs call this an inline receive). A protocol that knows at once where the bytes belong
//! copies them there. This saves a copy, a completion and the posting of a receive (C16 of
//! [`crate::transport`]).
//!
//! **Invariants**
//! 1. The message is valid while the value lives. The peer may be able to change it at any time. So
//!    it is copied, never referred to, and the copy is checked.
//! 2. A receiver that returns false has changed nothing.
//!
//! **Source.** Inline receives of Mellanox adapters ("scatter to CQE"). Reading in place:
//! [pNFS-Lustre §3.3].

use std::fmt;
use std::marker::PhantomData;

use crate::mem::{MemSlice, copy};
use crate::transport::ConnId;

/// A message in the adapter's own buffer.
pub struct InlineMessage<'a> {
    at: *mut u8,
    len: usize,
    _adapter: PhantomData<&'a mut [u8]>,
}

impl InlineMessage<'_> {
    /// Wraps the `len` bytes at `at`.
    ///
    /// # Safety
    /// `len` bytes at `at` must be valid for reads and writes while the value lives. Others may
    /// write them only through [`copy`](mod@copy), through the kernel, or from another process.
    #[inline(always)]
    pub unsafe fn new<'a>(at: *mut u8, len: usize) -> InlineMessage<'a> {
        InlineMessage { at, len, _adapter: PhantomData }
    }

    /// Wraps a message in memory that nothing else accesses meanwhile. For an adapter that has the
    /// message in a buffer of its own.
    #[inline]
    pub fn of(bytes: &mut [u8]) -> InlineMessage<'_> {
        InlineMessage { at: bytes.as_mut_ptr(), len: bytes.len(), _adapter: PhantomData }
    }

    /// Returns the length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the message has no bytes.
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

    /// Copies bytes from `offset` on until `to` is full.
    ///
    /// # Panics
    /// If the message has too few bytes.
    #[inline(always)]
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) {
        let from = self.range(offset, to.len());
        // SAFETY: within the range that the caller of `new` vouched for (invariant 1).
        unsafe { copy::copy_out(to, from) };
    }

    /// Copies `len` bytes from `offset` on to the beginning of `to`.
    ///
    /// # Panics
    /// If the message has fewer bytes, or `to` is shorter.
    #[inline(always)]
    pub fn copy_to_slice(&self, offset: usize, len: usize, to: &MemSlice) {
        to.memory().check_writable();
        if len > to.len() {
            beyond(0, len, to.len());
        }
        let from = self.range(offset, len);
        // SAFETY: the source is within the range that the caller of `new` vouched for. The target
        // is within its memory, and `to` holds that memory.
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

/// Takes messages in the adapter's own buffer.
pub trait InlineReceiver {
    /// Offers a message of `conn` that has not been received yet. Returns true if the message was
    /// taken, which means that everything needed from it was copied. Returns false if nothing has
    /// happened. The message then goes the usual way, into the next posted receive.
    ///
    /// Messages are offered in order. The implementation must not block, and cannot reach the
    /// transport.
    fn take(&mut self, conn: ConnId, message: InlineMessage<'_>) -> bool;
}

/// The receiver of a poll that was given none.
#[derive(Clone, Copy, Debug)]
pub struct ReceivesNothing;

impl InlineReceiver for ReceivesNothing {
    fn take(&mut self, _: ConnId, _: InlineMessage<'_>) -> bool {
        false
    }
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
