//! Copies into, out of and between shared memory, without a data race as the language defines it.
//!
//! **Why.** A shared byte may be written at any moment: by a peer through an emulated adapter, or
//! by another thread with a handle to the same [`super::Memory`]. A plain `memcpy` would then be
//! undefined behaviour. There are two sound ways. One is relaxed atomics of a machine word, each a
//! plain load or store. The other is moves in an assembler block, which the compiler treats like a
//! system call: the bytes are changed by something outside of the program. A read that races with a
//! write returns a mixture of old and new bytes, and nothing worse.
//!
//! **Layout.** On x86-64 short copies go through registers, 16 bytes at a time. The last 16 bytes
//! may overlap the ones before, so that a ragged end needs no special case. From `WIDE_MOVE` bytes
//! on the moves are 32 bytes wide if the processor has AVX. Copies of `STRING_MOVE` bytes and more
//! use `rep movsb`, starting at a cache line boundary of the target, because it is slow otherwise.
//! Without AVX the limit is `SHORT_STRING_MOVE`. On other processors, and under Miri, copies access
//! the shared side in aligned words of eight bytes and its ragged ends in single bytes. The private
//! side is accessed unaligned.
//!
//! Copies larger than the caches bypass them where possible ([`copy_past_caches`]). A target that
//! is stored in whole lines need not be read first. The string move also does this, but only for
//! tens of megabytes in one go, which is too long for one step of a backend. Measured on Zen 5, 32
//! MiB in steps of 256 KiB: 22 GB/s by string moves, 26 GB/s past the caches. The C library's
//! `memcpy`, all in one call, reaches 20 GB/s.
//!
//! This module is public for backends that copy bytes in software.
//!
//! **Tests.** Every alignment and the lengths around the limits, in `memory`. All ways are compared
//! with a plain copy.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();

/// From this length on the string move beats wide registers. It takes about 30 cycles to start, and
/// then moves 32 bytes or more in each cycle. Measured on Zen 5, in isolation: 4 KiB take 30 ns by
/// the string move and 25 ns by registers; 60 KiB take 490 and 660 ns.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING_MOVE: usize = 8 << 10;
/// From this length on the string move beats registers of 16 bytes.
const SHORT_STRING_MOVE: usize = 256;
/// From this length on wide registers are used.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const WIDE_MOVE: usize = 64;

/// From this length on bypassing the caches can pay, and the alignment costs nothing.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
const PAST_CACHES: usize = 4 << 10;

/// True if [`moves::copy`] is available. Miri runs no assembler, so it checks the word copies.
const BY_PROCESSOR: bool = cfg!(all(target_arch = "x86_64", not(miri)));

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod moves {
    use std::arch::asm;

    /// Defines a move of a fixed number of bytes through a register.
    macro_rules! register_move {
        ($name:ident, $class:ident, $load:literal, $store:literal) => {
            /// # Safety
            /// `dst` must be valid for writes and `src` for reads of as many bytes as the register
            /// has.
            #[inline(always)]
            pub(super) unsafe fn $name(dst: *mut u8, src: *const u8) {
                // SAFETY: the caller vouches for the bytes. The flags and the stack are not
                // touched.
                unsafe {
                    asm!($load, $store, value = out($class) _, dst = in(reg) dst, src = in(reg) src,
                        options(nostack, preserves_flags));
                }
            }
        };
    }

    register_move!(move_16, xmm_reg, "movups {value}, [{src}]", "movups [{dst}], {value}");
    register_move!(move_8, reg, "mov {value}, [{src}]", "mov [{dst}], {value}");
    register_move!(move_4, reg, "mov {value:e}, [{src}]", "mov [{dst}], {value:e}");
    register_move!(move_1, reg_byte, "mov {value}, [{src}]", "mov [{dst}], {value}");

    /// Moves `len` bytes. If the ranges overlap, the result in the overlap is unspecified.
    ///
    /// # Safety
    /// `dst` must be valid for writes and `src` for reads of `len` bytes.
    #[inline]
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: every move lies within `len` bytes. It starts at `at`, where enough bytes are
        // left, or covers the last bytes of the range.
        unsafe {
            if (super::WIDE_MOVE..super::STRING_MOVE).contains(&len) && is_x86_feature_detected!("avx") {
                wide(dst, src, len);
            } else if len >= super::SHORT_STRING_MOVE {
                string(dst, src, len);
            } else if len >= 16 {
                let mut at = 0;
                while at + 16 < len {
                    move_16(dst.add(at), src.add(at));
                    at += 16;
                }
                move_16(dst.add(len - 16), src.add(len - 16));
            } else if len >= 8 {
                move_8(dst, src);
                move_8(dst.add(len - 8), src.add(len - 8));
            } else if len >= 4 {
                move_4(dst, src);
                move_4(dst.add(len - 4), src.add(len - 4));
            } else {
                (0..len).for_each(|at| move_1(dst.add(at), src.add(at)));
            }
        }
    }

    /// Moves 64 bytes at a time. The last 64 bytes are read first and written last, and may overlap
    /// the ones before.
    ///
    /// # Safety
    /// As [`copy`]. `len` must be at least 64, and the processor must have AVX.
    unsafe fn wide(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: `at` stays below `last`, and `last + 64` is `len`. The caller vouches for the
        // ranges and for AVX. The upper halves of all vector registers are lost, and declared as
        // outputs.
        unsafe {
            asm!(
                "vmovdqu ymm2, [{src} + {last}]",
                "vmovdqu ymm3, [{src} + {last} + 32]",
                "xor {at:e}, {at:e}",
                "test {last}, {last}",
                "jz 3f",
                "2:",
                "vmovdqu ymm0, [{src} + {at}]",
                "vmovdqu ymm1, [{src} + {at} + 32]",
                "vmovdqu [{dst} + {at}], ymm0",
                "vmovdqu [{dst} + {at} + 32], ymm1",
                "add {at}, 64",
                "cmp {at}, {last}",
                "jb 2b",
                "3:",
                "vmovdqu [{dst} + {last}], ymm2",
                "vmovdqu [{dst} + {last} + 32], ymm3",
                "vzeroupper",
                src = in(reg) src, dst = in(reg) dst, last = in(reg) len - 64, at = out(reg) _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _, out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            );
        }
    }

    /// Moves bytes past the caches where possible. Stores that follow in program order become
    /// visible after the moved bytes.
    ///
    /// # Safety
    /// As [`copy`].
    pub(super) unsafe fn past_caches(dst: *mut u8, src: *const u8, len: usize) {
        if len < super::PAST_CACHES || !is_x86_feature_detected!("avx") {
            // SAFETY: the caller makes the same promise.
            return unsafe { copy(dst, src, len) };
        }
        let head = dst.align_offset(64);
        let body = (len - head) & !127;
        // SAFETY: `head` is below 64, and `head + body` is at most `len`. The caller vouches for
        // the ranges. A prefetch accesses no memory. Only the fence orders stores past the caches
        // with other stores. The upper halves of all vector registers are lost, and declared as
        // outputs.
        unsafe {
            copy(dst, src, head);
            asm!(
                "2:",
                "prefetcht0 [{src} + {at} + 1024]",
                "prefetcht0 [{src} + {at} + 1088]",
                "vmovdqu ymm0, [{src} + {at}]",
                "vmovdqu ymm1, [{src} + {at} + 32]",
                "vmovdqu ymm2, [{src} + {at} + 64]",
                "vmovdqu ymm3, [{src} + {at} + 96]",
                "vmovntdq [{dst} + {at}], ymm0",
                "vmovntdq [{dst} + {at} + 32], ymm1",
                "vmovntdq [{dst} + {at} + 64], ymm2",
                "vmovntdq [{dst} + {at} + 96], ymm3",
                "add {at}, 128",
                "cmp {at}, {end}",
                "jb 2b",
                "sfence",
                "vzeroupper",
                src = in(reg) src, dst = in(reg) dst, end = in(reg) head + body, at = inout(reg) head => _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _, out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            );
            copy(dst.add(head + body), src.add(head + body), len - head - body);
        }
    }

    /// Moves `len` bytes with `rep movsb`, from an aligned target address on.
    ///
    /// # Safety
    /// As [`copy`]. `len` must be at least 64.
    unsafe fn string(dst: *mut u8, src: *const u8, len: usize) {
        let head = dst.align_offset(64);
        // SAFETY: the caller vouches for the ranges, and `head` is below 64. The calling convention
        // guarantees that the direction flag is clear. The flags and the stack are not touched.
        unsafe {
            if head > 0 {
                (0..64).step_by(16).for_each(|at| move_16(dst.add(at), src.add(at)));
            }
            let (dst, src, len) = (dst.add(head), src.add(head), len - head);
            asm!("rep movsb", inout("rcx") len => _, inout("rdi") dst => _, inout("rsi") src => _,
                options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod moves {
    /// Panics, as [`copy`].
    ///
    /// # Safety
    /// None, as there.
    pub(super) unsafe fn move_4(dst: *mut u8, src: *const u8) {
        unreachable!("asked for 4 bytes from {src:p} to {dst:p} by the processor's own moves");
    }

    /// Panics, as [`copy`].
    ///
    /// # Safety
    /// None, as there.
    pub(super) unsafe fn move_8(dst: *mut u8, src: *const u8) {
        unreachable!("asked for 8 bytes from {src:p} to {dst:p} by the processor's own moves");
    }

    /// Panics. It exists so that the callers compile.
    ///
    /// # Safety
    /// None. It is never called on these targets.
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        unreachable!("asked for {len} bytes from {src:p} to {dst:p} by the processor's own moves");
    }

    /// Panics, like [`copy`].
    ///
    /// # Safety
    /// None, as above.
    pub(super) unsafe fn past_caches(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: `copy` has no requirements here.
        unsafe { copy(dst, src, len) }
    }
}

/// Returns the number of bytes before `ptr` reaches a word boundary, at most `len`.
fn ragged_head(ptr: *const u8, len: usize) -> usize {
    ptr.align_offset(WORD).min(len)
}

/// Copies `src` to shared memory at `dst`.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes for the whole call. All concurrent accesses
/// to these bytes must be made by this module or by the kernel.
#[inline]
pub unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
    if BY_PROCESSOR {
        // SAFETY: the caller vouches for `dst`. A reference to private memory does not overlap it.
        unsafe { moves::copy(dst, src.as_ptr(), src.len()) }
    } else {
        // SAFETY: the caller makes the same promise.
        unsafe { words_in(dst, src) }
    }
}

/// Copies shared memory at `src` to `dst`.
///
/// # Safety
/// `src` must be valid for reads and writes of `dst.len()` bytes for the whole call. All concurrent
/// accesses to these bytes must be made by this module or by the kernel.
#[inline]
pub unsafe fn copy_out(dst: &mut [u8], src: *mut u8) {
    if BY_PROCESSOR {
        // SAFETY: as in `copy_in`.
        unsafe { moves::copy(dst.as_mut_ptr(), src, dst.len()) }
    } else {
        // SAFETY: the caller makes the same promise.
        unsafe { words_out(dst, src) }
    }
}

/// Copies `len` bytes between two pieces of shared memory. If they overlap, the result in the
/// overlap is unspecified.
///
/// # Safety
/// Both ranges must be valid for reads and writes for the whole call. All concurrent accesses to
/// them must be made by this module or by the kernel.
#[inline]
pub unsafe fn copy_between(dst: *mut u8, src: *mut u8, len: usize) {
    if BY_PROCESSOR {
        // SAFETY: the caller vouches for both ranges. Where they overlap, the resulting bytes are
        // some that were there before, and no reference to either range exists.
        return unsafe { moves::copy(dst, src, len) };
    }
    // Copies through a small private buffer, so that relative misalignment needs no special case.
    let mut private = [0u8; SHORT_STRING_MOVE];
    let mut done = 0;
    while done < len {
        let piece = private.len().min(len - done);
        // SAFETY: `done + piece <= len`, and the caller vouches for both ranges.
        unsafe {
            words_out(&mut private[..piece], src.add(done));
            words_in(dst.add(done), &private[..piece]);
        }
        done += piece;
    }
}

/// Copies `count` pieces of `len` bytes like [`copy_between`]. From one piece to the next, each
/// side goes on by a number of bytes. Pieces of four or eight bytes are one move each.
///
/// # Safety
/// As [`copy_between`], for each piece.
#[inline]
pub(crate) unsafe fn copy_strided(
    (dst, dst_every): (*mut u8, usize),
    (src, src_every): (*mut u8, usize),
    len: usize,
    count: usize,
) {
    /// Calls `copy` with the places of each piece.
    ///
    /// # Safety
    /// All places are within what the pointers are valid for.
    #[inline(always)]
    unsafe fn each(
        (dst, dst_every): (*mut u8, usize),
        (src, src_every): (*mut u8, usize),
        count: usize,
        copy: impl Fn(*mut u8, *mut u8),
    ) {
        // SAFETY: the caller vouches for it.
        (0..count).for_each(|at| unsafe { copy(dst.add(at * dst_every), src.add(at * src_every)) });
    }
    let (dst, src) = ((dst, dst_every), (src, src_every));
    // SAFETY: the caller vouches for all pieces.
    unsafe {
        match len {
            4 if BY_PROCESSOR => each(dst, src, count, |dst, src| moves::move_4(dst, src)),
            8 if BY_PROCESSOR => each(dst, src, count, |dst, src| moves::move_8(dst, src)),
            _ => each(dst, src, count, |dst, src| copy_between(dst, src, len)),
        }
    }
}

/// Copies like [`copy_between`], past the caches where the processor can. For parts of data that is
/// too large for the caches.
///
/// # Safety
/// As [`copy_between`].
pub unsafe fn copy_past_caches(dst: *mut u8, src: *mut u8, len: usize) {
    if BY_PROCESSOR {
        // SAFETY: as in `copy_between`.
        unsafe { moves::past_caches(dst, src, len) }
    } else {
        // SAFETY: the caller makes the same promise.
        unsafe { copy_between(dst, src, len) }
    }
}

/// Copies like [`copy_in`], with atomic words.
///
/// # Safety
/// As [`copy_in`].
unsafe fn words_in(dst: *mut u8, src: &[u8]) {
    let head = ragged_head(dst, src.len());
    let words = (src.len() - head) / WORD;
    let body_end = head + words * WORD;
    for (index, byte) in src[..head].iter().enumerate() {
        // SAFETY: `index < len`, and the caller vouches for the range.
        unsafe { AtomicU8::from_ptr(dst.add(index)) }.store(*byte, Relaxed);
    }
    for (index, word) in src[head..body_end].chunks_exact(WORD).enumerate() {
        let word = u64::from_ne_bytes(word.try_into().expect("chunks of a word"));
        // SAFETY: within the caller's range, and aligned, because the first `head` bytes end at a
        // word boundary.
        unsafe { AtomicU64::from_ptr(dst.add(head + index * WORD).cast()) }.store(word, Relaxed);
    }
    for (index, byte) in src[body_end..].iter().enumerate() {
        // SAFETY: `body_end + index < len`.
        unsafe { AtomicU8::from_ptr(dst.add(body_end + index)) }.store(*byte, Relaxed);
    }
}

/// Copies like [`copy_out`], with atomic words.
///
/// # Safety
/// As [`copy_out`].
unsafe fn words_out(dst: &mut [u8], src: *mut u8) {
    let head = ragged_head(src, dst.len());
    let words = (dst.len() - head) / WORD;
    let body_end = head + words * WORD;
    for (index, byte) in dst[..head].iter_mut().enumerate() {
        // SAFETY: `index < len`, and the caller vouches for the range.
        *byte = unsafe { AtomicU8::from_ptr(src.add(index)) }.load(Relaxed);
    }
    for (index, word) in dst[head..body_end].chunks_exact_mut(WORD).enumerate() {
        // SAFETY: within the caller's range, and aligned, because the first `head` bytes end at a
        // word boundary.
        let value = unsafe { AtomicU64::from_ptr(src.add(head + index * WORD).cast()) }.load(Relaxed);
        word.copy_from_slice(&value.to_ne_bytes());
    }
    for (index, byte) in dst[body_end..].iter_mut().enumerate() {
        // SAFETY: `body_end + index < len`.
        *byte = unsafe { AtomicU8::from_ptr(src.add(body_end + index)) }.load(Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other processors and Miri use the word copies. On this target only this test runs them.
    #[test]
    fn words_and_moves_copy_the_same() {
        const LEN: usize = 8400;
        let pattern: Vec<u8> = (0..LEN as u32).map(|at| (at * 7) as u8).collect();
        for offset in (0..9).chain([63]) {
            for len in (0..40).chain(60..70).chain(120..130).chain(250..260).chain(8185..8195).chain([8300]) {
                let mut shared = [[0u8; LEN]; 2];
                let mut private = [[0u8; LEN]; 2];
                // SAFETY: only this test uses the arrays, and they are long enough.
                unsafe {
                    words_in(shared[0].as_mut_ptr().add(offset), &pattern[..len]);
                    copy_in(shared[1].as_mut_ptr().add(offset), &pattern[..len]);
                    words_out(&mut private[0][..len], shared[1].as_mut_ptr().add(offset));
                    copy_out(&mut private[1][..len], shared[0].as_mut_ptr().add(offset));
                }
                assert_eq!(shared[0], shared[1], "in, {len} bytes at {offset}");
                assert_eq!(shared[0][offset..offset + len], pattern[..len]);
                assert_eq!((&private[0][..len], &private[1][..len]), (&pattern[..len], &pattern[..len]));
            }
        }
    }

    /// Whatever the alignments, every byte of the range arrives and no byte beside it changes.
    #[test]
    fn nothing_is_lost_past_the_caches() {
        const LEN: usize = 3 * PAST_CACHES;
        let pattern: Vec<u8> = (0..LEN as u32).map(|at| (at * 7 + at / 251) as u8).collect();
        for (to, from) in [(0, 0), (1, 0), (0, 1), (63, 2), (32, 64), (17, 40)] {
            let around = [0, 1, 63, 64, 127, 128, 129, 1000].map(|more| PAST_CACHES + more);
            for len in around.into_iter().chain([0, 1, PAST_CACHES - 1, 2 * PAST_CACHES + 77]) {
                let (mut source, mut target) = (pattern.clone(), vec![0xa5; LEN]);
                // SAFETY: only this test uses the vectors, and they are long enough.
                unsafe { copy_past_caches(target.as_mut_ptr().add(to), source.as_mut_ptr().add(from), len) };
                assert_eq!(target[to..to + len], pattern[from..from + len], "{len} bytes from {from} to {to}");
                let beside = target[..to].iter().chain(&target[to + len..]);
                assert!(beside.copied().all(|byte| byte == 0xa5), "{len} bytes from {from} to {to}: beside them");
            }
        }
    }
}
