//! Copies into, out of and between shared memory, without a data race in the language's sense.
//!
//! **Why.** The other side of a shared byte may be written at any moment: by a peer through an emulated adapter, by another
//! thread with a handle to the same [`super::Memory`]. A plain `memcpy` would then be undefined behaviour; relaxed atomics of a
//! machine word are not, and cost a plain load or store each. What is read under a race is some mixture of old and new bytes,
//! never anything worse.
//!
//! **Layout.** The shared side is walked in aligned words of eight bytes, its ragged ends in single bytes; the private side is read and
//! written unaligned.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();

/// Bytes before `ptr` reaches a word boundary, at most `len`.
fn ragged_head(ptr: *const u8, len: usize) -> usize {
    ptr.align_offset(WORD).min(len)
}

/// Copies `src` to shared memory at `dst`.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes for the whole call, and all concurrent accesses to them atomic or made by the kernel.
pub(crate) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
    let head = ragged_head(dst, src.len());
    let words = (src.len() - head) / WORD;
    let body_end = head + words * WORD;
    for (index, byte) in src[..head].iter().enumerate() {
        // SAFETY: `index < len`; the caller vouches for the range.
        unsafe { AtomicU8::from_ptr(dst.add(index)) }.store(*byte, Relaxed);
    }
    for (index, word) in src[head..body_end].chunks_exact(WORD).enumerate() {
        let word = u64::from_ne_bytes(word.try_into().expect("chunks of a word"));
        // SAFETY: within the caller's range, and aligned, because `head` bytes lead to a word boundary.
        unsafe { AtomicU64::from_ptr(dst.add(head + index * WORD).cast()) }.store(word, Relaxed);
    }
    for (index, byte) in src[body_end..].iter().enumerate() {
        // SAFETY: `body_end + index < len`.
        unsafe { AtomicU8::from_ptr(dst.add(body_end + index)) }.store(*byte, Relaxed);
    }
}

/// Copies shared memory at `src` to `dst`.
///
/// # Safety
/// `src` must be valid for reads and writes of `dst.len()` bytes for the whole call, and all concurrent accesses to them atomic or
/// made by the kernel.
pub(crate) unsafe fn copy_out(dst: &mut [u8], src: *mut u8) {
    let head = ragged_head(src, dst.len());
    let words = (dst.len() - head) / WORD;
    let body_end = head + words * WORD;
    for (index, byte) in dst[..head].iter_mut().enumerate() {
        // SAFETY: `index < len`; the caller vouches for the range.
        *byte = unsafe { AtomicU8::from_ptr(src.add(index)) }.load(Relaxed);
    }
    for (index, word) in dst[head..body_end].chunks_exact_mut(WORD).enumerate() {
        // SAFETY: within the caller's range, and aligned, because `head` bytes lead to a word boundary.
        let value = unsafe { AtomicU64::from_ptr(src.add(head + index * WORD).cast()) }.load(Relaxed);
        word.copy_from_slice(&value.to_ne_bytes());
    }
    for (index, byte) in dst[body_end..].iter_mut().enumerate() {
        // SAFETY: `body_end + index < len`.
        *byte = unsafe { AtomicU8::from_ptr(src.add(body_end + index)) }.load(Relaxed);
    }
}

/// Copies `len` bytes between two pieces of shared memory, through a small private buffer, so that overlap and relative misalignment
/// need no case of their own.
///
/// # Safety
/// Both ranges must be valid for reads and writes for the whole call, and all concurrent accesses to them atomic or made by the
/// kernel.
pub(crate) unsafe fn copy_between(dst: *mut u8, src: *mut u8, len: usize) {
    let mut private = [0u8; 1024];
    let mut done = 0;
    while done < len {
        let piece = private.len().min(len - done);
        // SAFETY: `done + piece <= len`; the caller vouches for both ranges.
        unsafe {
            copy_out(&mut private[..piece], src.add(done));
            copy_in(dst.add(done), &private[..piece]);
        }
        done += piece;
    }
}
