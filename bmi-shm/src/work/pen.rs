//! Writing to memory that the peer may read.

use bmi_core::Segment;

/// Writes bytes one after the other to memory that the peer may read.
pub(crate) struct Pen {
    at: *mut u8,
    remaining: usize,
}

impl Pen {
    /// # Safety
    /// `len` bytes at `at` must be writable while the pen is used, and accessed by others only
    /// through `mem::copy` or the kernel.
    pub(crate) unsafe fn new(at: *mut u8, len: usize) -> Pen {
        Pen { at, remaining: len }
    }

    #[inline]
    fn advance(&mut self, len: usize) -> *mut u8 {
        assert!(len <= self.remaining, "more is written than was reserved");
        let here = self.at;
        (self.at, self.remaining) = (here.wrapping_add(len), self.remaining - len);
        here
    }

    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let to = self.advance(bytes.len());
        // SAFETY: within the memory that the creator of the pen guarantees.
        unsafe { bmi_core::mem::copy::copy_in(to, bytes) };
    }

    /// # Safety
    /// `len` bytes at `from` must be readable, and written by others only through `mem::copy` or
    /// the kernel.
    #[inline]
    pub(crate) unsafe fn write_shared(&mut self, from: *mut u8, len: usize) {
        let to = self.advance(len);
        // SAFETY: the caller guarantees the source, and the creator of the pen the target.
        unsafe { bmi_core::mem::copy::copy_between(to, from, len) };
    }

    pub(crate) fn write_segment(&mut self, segment: &Segment, offset: usize, len: usize) {
        // SAFETY: a segment lies in its memory, which its region holds.
        unsafe { self.write_shared(segment.as_ptr().wrapping_add(offset), len) };
    }
}

/// Sends messages that can be copied while they are posted.
pub(crate) trait Shortcut {
    /// Sends a message of `len` bytes, which `fill` writes, if there is room now. Returns whether
    /// it did.
    fn send(&mut self, len: usize, fill: impl FnOnce(&mut Pen)) -> bool;
}
