//! Copies into, out of and between shared memory, without a data race in the language's sense.
//!
//! **Why.** The other side of a shared byte may be written at any moment: by a peer through an emulated adapter, by another
//! thread with a handle to the same [`super::Memory`]. A plain `memcpy` would then be undefined behaviour. Two ways are not: relaxed atomics of a machine
//! word, a plain load or store each; and the processor's string move in an assembler block, which the compiler sees as it sees a system
//! call: bytes that change by other means than the program's. What is read under a race is some mixture of old and new bytes,
//! never anything worse.
//!
//! **Layout.** Short copies walk the shared side in aligned words of eight bytes, its ragged ends in single bytes; the private side is
//! read and written unaligned. Copies of `STRING_MOVE` bytes and more go by `rep movsb` where the processor has it.
//!
//! Public for backends that move bytes by themselves.
//!
//! **Tests.** Every alignment and the lengths around the limits, below; both ways are compared with a plain copy.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();

/// From this length on the string move wins over words: it costs some 30 cycles to begin, and then moves 32 bytes or more a cycle.
const STRING_MOVE: usize = 256;

/// Whether [`string_move`] is there. Miri runs no assembler, and checks the words.
const HAS_STRING_MOVE: bool = cfg!(all(target_arch = "x86_64", not(miri)));

/// Moves `len` bytes by the processor's string instruction.
///
/// # Safety
/// `dst` must be valid for writes and `src` for reads of `len` bytes. Where they overlap, bytes are moved in ascending order.
unsafe fn string_move(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller vouches for the ranges. The direction flag is clear, as the calling convention demands; no flags and no stack are touched.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    unreachable!("asked for {len} bytes from {src:p} to {dst:p} without a string move");
}

/// Bytes before `ptr` reaches a word boundary, at most `len`.
fn ragged_head(ptr: *const u8, len: usize) -> usize {
    ptr.align_offset(WORD).min(len)
}

/// Copies `src` to shared memory at `dst`.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes for the whole call, and all concurrent accesses to them made by this module or by the
/// kernel.
pub unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
    if HAS_STRING_MOVE && src.len() >= STRING_MOVE {
        // SAFETY: the caller vouches for `dst`; a reference to private memory does not overlap it.
        return unsafe { string_move(dst, src.as_ptr(), src.len()) };
    }
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
/// `src` must be valid for reads and writes of `dst.len()` bytes for the whole call, and all concurrent accesses to them made by this
/// module or by the kernel.
pub unsafe fn copy_out(dst: &mut [u8], src: *mut u8) {
    if HAS_STRING_MOVE && dst.len() >= STRING_MOVE {
        // SAFETY: as in `copy_in`.
        return unsafe { string_move(dst.as_mut_ptr(), src, dst.len()) };
    }
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

/// Copies `len` bytes between two pieces of shared memory. If they overlap, which bytes of the overlap end where is not defined.
///
/// # Safety
/// Both ranges must be valid for reads and writes for the whole call, and all concurrent accesses to them made by this module or by the
/// kernel.
pub unsafe fn copy_between(dst: *mut u8, src: *mut u8, len: usize) {
    if HAS_STRING_MOVE && len >= STRING_MOVE {
        // SAFETY: the caller vouches for both ranges. Where they overlap, the instruction moves bytes in ascending order, which is defined for
        // the processor, and no reference to either exists.
        return unsafe { string_move(dst, src, len) };
    }
    // Through a small private buffer, so that relative misalignment needs no case of its own.
    let mut private = [0u8; STRING_MOVE];
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
