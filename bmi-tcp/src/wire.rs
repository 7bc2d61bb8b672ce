//! The outgoing bytes of a connection, in order: staged bytes, frame headers and the user's memory.
//!
//! **Why.** One system call should carry many small messages, and the bulk data between them. Small
//! payloads are copied into a ring when they are posted. Large ones are only referred to. Both
//! kinds of runs are in one queue and leave in one gather.
//!
//! **Layout**
//!
//! ```text
//!   runs   | Staged 240 | Memory 64 Ki | Header 16 | Memory 256 Ki | Staged 80 | …
//!               |                                                       |
//!   ring   [####|#######################################################|……………]   consumed in the same order
//!
//!   sent <------------------------- backlog -----------------------> committed     (positions in the byte stream)
//! ```
//!
//! **Invariants**
//! 1. The code that commits a [`Piece`] of memory keeps it alive until `sent` has passed the
//!    position that `committed` had after it.
//! 2. Bytes of the ring are committed in the order in which they were staged.

use std::collections::VecDeque;

use bmi_core::MemSlice;
use bmi_core::mem::Pages;

use crate::frame::{Frame, LONG_HEADER};
use crate::vectored_io::{MAX_PIECES, Piece};

enum Run {
    Staged(usize),
    Header { bytes: [u8; LONG_HEADER], at: u8, end: u8 },
    Memory(Piece),
}

/// Returns a buffer.
///
/// # Panics
/// If there is no memory.
pub(crate) fn pages(len: usize) -> Pages {
    Pages::new(len).expect("memory for a connection")
}

/// The outgoing bytes of a connection.
pub(crate) struct Wire {
    ring: Pages,
    /// Position of the oldest staged byte.
    head: usize,
    /// Number of staged bytes, committed or not.
    staged: usize,
    runs: VecDeque<Run>,
    committed: u64,
    sent: u64,
}

impl Wire {
    /// Creates a wire with a ring of `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Wire {
        let runs = VecDeque::with_capacity(64);
        Wire { ring: pages(capacity), head: 0, staged: 0, runs, committed: 0, sent: 0 }
    }

    /// Returns the number of staged bytes, committed or not.
    pub(crate) fn staged(&self) -> usize {
        self.staged
    }

    pub(crate) fn room(&self) -> usize {
        self.ring.len() - self.staged
    }

    /// Gives back the pages of the ring if it is empty.
    pub(crate) fn release(&mut self) {
        if self.staged == 0 {
            self.ring.discard();
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.ring.len()
    }

    pub(crate) fn committed(&self) -> u64 {
        self.committed
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn backlog(&self) -> u64 {
        self.committed - self.sent
    }

    /// Copies `bytes` into the ring. There must be room.
    #[inline]
    pub(crate) fn stage(&mut self, bytes: &[u8]) {
        let (tail, first) = self.tail(bytes.len());
        self.ring[tail..tail + first].copy_from_slice(&bytes[..first]);
        if first < bytes.len() {
            self.ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
        }
        self.staged += bytes.len();
    }

    /// Copies shared memory into the ring. There must be room.
    pub(crate) fn stage_memory(&mut self, slice: &MemSlice) {
        let (tail, first) = self.tail(slice.len());
        let (memory, offset, rest) = (slice.memory(), slice.offset(), slice.len() - first);
        memory.copy_to(offset, &mut self.ring[tail..tail + first]);
        if rest > 0 {
            memory.copy_to(offset + first, &mut self.ring[..rest]);
        }
        self.staged += slice.len();
    }

    /// Returns the position of the next `len` staged bytes, and how many of them fit before the
    /// ring wraps.
    #[inline]
    fn tail(&mut self, len: usize) -> (usize, usize) {
        assert!(len <= self.room(), "the caller looked for room");
        if self.staged == 0 {
            self.head = 0; // stay in the bytes that are in the processor's cache
        }
        let tail = wrap(self.head + self.staged, self.ring.len());
        (tail, len.min(self.ring.len() - tail))
    }

    /// Returns all staged bytes, of which none are committed, in one or two pieces.
    #[inline]
    pub(crate) fn uncommitted(&self) -> [Piece; 2] {
        debug_assert!(self.runs.is_empty());
        let first = self.staged.min(self.ring.len() - self.head);
        [Piece::of(&self.ring[self.head..self.head + first]), Piece::of(&self.ring[..self.staged - first])]
    }

    /// Records that the kernel took all staged bytes, of which none were committed.
    #[inline]
    pub(crate) fn sent_uncommitted(&mut self) {
        self.committed += self.staged as u64;
        (self.sent, self.staged) = (self.committed, 0);
    }

    /// Commits the next `len` staged bytes for sending.
    pub(crate) fn commit_staged(&mut self, len: usize) {
        self.committed += len as u64;
        match self.runs.back_mut() {
            Some(Run::Staged(run)) => *run += len,
            _ => self.runs.push_back(Run::Staged(len)),
        }
    }

    pub(crate) fn commit_header(&mut self, frame: &Frame) {
        let (bytes, len) = frame.encode();
        self.committed += len as u64;
        self.runs.push_back(Run::Header { bytes, at: 0, end: len as u8 });
    }

    pub(crate) fn commit_memory(&mut self, piece: Piece) {
        self.committed += piece.len() as u64;
        self.runs.push_back(Run::Memory(piece));
    }

    /// Lists the next bytes to send, as many as one system call takes. The pieces are valid until
    /// the wire is modified.
    pub(crate) fn gather(&self, pieces: &mut Vec<Piece>) {
        pieces.clear();
        let mut head = self.head;
        for run in &self.runs {
            if pieces.len() + 2 > MAX_PIECES {
                break;
            }
            match run {
                Run::Staged(len) => {
                    let first = (*len).min(self.ring.len() - head);
                    pieces.push(Piece::of(&self.ring[head..head + first]));
                    if first < *len {
                        pieces.push(Piece::of(&self.ring[..len - first]));
                    }
                    head = wrap(head + len, self.ring.len());
                }
                Run::Header { bytes, at, end } => pieces.push(Piece::of(&bytes[usize::from(*at)..usize::from(*end)])),
                Run::Memory(piece) => pieces.push(*piece),
            }
        }
    }

    /// Records that the kernel took the next `n` bytes.
    pub(crate) fn advance(&mut self, mut n: usize) {
        self.sent += n as u64;
        while n > 0 {
            let Some(run) = self.runs.front_mut() else { unreachable!("more bytes left than were committed") };
            let len = match run {
                Run::Staged(len) => *len,
                Run::Header { at, end, .. } => usize::from(*end - *at),
                Run::Memory(piece) => piece.len(),
            };
            let step = n.min(len);
            n -= step;
            if let Run::Staged(_) = run {
                self.head = wrap(self.head + step, self.ring.len());
                self.staged -= step;
            }
            if step == len {
                self.runs.pop_front();
                continue;
            }
            match run {
                Run::Staged(len) => *len -= step,
                Run::Header { at, .. } => *at += step as u8,
                Run::Memory(piece) => *piece = piece.skip(step),
            }
        }
    }
}

/// Returns a position in a ring of `len` bytes for one that may be beyond its end, by less than
/// `len`.
#[inline]
fn wrap(at: usize, len: usize) -> usize {
    if at >= len { at - len } else { at }
}

#[cfg(test)]
mod tests {
    use bmi_core::Memory;
    use proptest::prelude::*;

    use super::*;

    /// Takes `n` bytes from the wire.
    fn take(wire: &mut Wire, n: usize) -> Vec<u8> {
        let mut pieces = Vec::new();
        wire.gather(&mut pieces);
        let mut bytes = Vec::new();
        for piece in pieces {
            // A copy through the kernel, as a socket would make it: through a pipe.
            let (mut reader, writer) = std::io::pipe().unwrap();
            let len = piece.len().min(n - bytes.len());
            let piece = [libc::iovec { iov_base: piece.ptr().cast(), iov_len: len }];
            // SAFETY: the wire and the memory of the test outlive the call.
            let written = unsafe { libc::writev(std::os::fd::AsRawFd::as_raw_fd(&writer), piece.as_ptr(), 1) };
            drop(writer);
            let before = bytes.len();
            std::io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
            assert_eq!((bytes.len() - before) as isize, written);
        }
        wire.advance(bytes.len());
        bytes
    }

    proptest! {
        #[test]
        fn bytes_leave_in_the_order_of_commitment(
            steps in proptest::collection::vec((0u8..4, 1usize..40, 0usize..60), 1..60)
        ) {
            let memory = Memory::from((0..=255u8).collect::<Vec<_>>());
            let mut wire = Wire::new(100);
            let (mut expected, mut got) = (Vec::new(), Vec::new());
            for (at, (kind, len, out)) in steps.into_iter().enumerate() {
                match kind {
                    0 if wire.room() >= len => {
                        let bytes: Vec<u8> = (0..len).map(|i| (at * 7 + i) as u8).collect();
                        wire.stage(&bytes);
                        wire.commit_staged(len);
                        expected.extend(bytes);
                    }
                    1 if wire.room() >= len => {
                        wire.stage_memory(&memory.slice(at, len));
                        wire.commit_staged(len);
                        expected.extend(memory.slice(at, len).to_vec());
                    }
                    2 => {
                        let slice = memory.slice(at, len);
                        wire.commit_memory(Piece::new(slice.as_ptr(), len));
                        expected.extend(slice.to_vec());
                    }
                    _ => {
                        let frame = Frame::Data { here: len as u32 };
                        wire.commit_header(&frame);
                        let (bytes, len) = frame.encode();
                        expected.extend(&bytes[..len]);
                    }
                }
                got.extend(take(&mut wire, out));
            }
            got.extend(take(&mut wire, usize::MAX));
            prop_assert_eq!(got, expected);
            prop_assert_eq!(wire.backlog(), 0);
            prop_assert_eq!(wire.room(), 100);
        }
    }
}
