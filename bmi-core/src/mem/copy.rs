//! Copies into, out of and between shared memory, without a data race in the language's sense.
//!
//! **Why.** The other side of a shared byte may be written at any moment: by a peer through an
//! emulated adapter, by another thread with a handle to the same [`super::Memory`]. A plain
//! `memcpy` would then be undefined behaviour. Two ways are not: relaxed atomics of a machine word,
//! a plain load or store each; and moves in an assembler block, which the compiler sees as it sees
//! a system call: bytes that change by other means than the program's. What is read under a race is
//! some mixture of old and new bytes, never anything worse.
//!
//! **Layout.** On x86-64 short copies go through registers, 16 bytes at a time; the last 16 may
//! overlap those before, so that a ragged end needs no case of its own. From `WIDE_MOVE` bytes on
//! they are of 32 bytes where the processor has them (AVX), and copies of `STRING_MOVE` bytes and
//! more go by `rep movsb`, from a line boundary of the target on: elsewhere it is slow. Without AVX
//! it begins at `SHORT_STRING_MOVE`. Elsewhere, and under Miri, copies walk the shared side in
//! aligned words of eight bytes, its ragged ends in single bytes; the private side is read and
//! written unaligned.
//!
//! What is longer than the caches goes past them where it can ([`copy_past_caches`]): a target that
//! is stored by whole lines need not be read first. The string move does so by itself, but only for
//! tens of megabytes in one go, which is too long for one step of a backend. Measured on Zen 5, 32
//! MiB in steps of 256 KiB: 22 GB/s by string moves, 26 GB/s past the caches; the C library's
//! `memcpy`, all in one, 20 GB/s.
//!
//! Public for backends that move bytes by themselves.
//!
//! **Tests.** Every alignment and the lengths around the limits, in `memory`; all ways are compared
//! with a plain copy.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

const WORD: usize = size_of::<u64>();

/// From this length on the string move wins over wide registers: it costs some 30 cycles to begin,
/// and then moves 32 bytes or more a cycle. Measured on Zen 5, alone: 4 KiB in 30 ns by the string
/// move, in 25 ns by registers; 60 KiB in 490 and 660 ns.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING_MOVE: usize = 8 << 10;
/// And over registers of 16 bytes.
const SHORT_STRING_MOVE: usize = 256;
/// From this length on wide registers are used.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const WIDE_MOVE: usize = 64;

/// From this length on there is something to gain past the caches, and alignment costs nothing.
#[cfg(any(test, all(target_arch = "x86_64", not(miri))))]
const PAST_CACHES: usize = 4 << 10;

/// Whether [`moves::copy`] is there. Miri runs no assembler, and checks the words.
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
            unsafe fn $name(dst: *mut u8, src: *const u8) {
                // SAFETY: the caller vouches for the bytes. No flags and no stack are touched.
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

    /// Moves `len` bytes. Where the ranges overlap, which bytes end where is not defined.
    ///
    /// # Safety
    /// `dst` must be valid for writes and `src` for reads of `len` bytes.
    #[inline]
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: every move lies within `len` bytes: from `at` on where that many are left, or the
        // last ones of all.
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

    /// Moves 64 bytes at a time; the last 64 are read first and written last, and may overlap those
    /// before.
    ///
    /// # Safety
    /// As [`copy`]; `len` must be 64 at least, and the processor have AVX.
    unsafe fn wide(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: `at` stays below `last`, and `last + 64` is `len`; the caller vouches for the
        // ranges and for AVX. The upper halves of all vector registers are lost, and said to be.
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

    /// Moves past the caches where it can. What is stored behind it in the program is stored behind
    /// it.
    ///
    /// # Safety
    /// As [`copy`].
    pub(super) unsafe fn past_caches(dst: *mut u8, src: *const u8, len: usize) {
        if len < super::PAST_CACHES || !is_x86_feature_detected!("avx") {
            // SAFETY: the caller's promise is handed on.
            return unsafe { copy(dst, src, len) };
        }
        let head = dst.align_offset(64);
        let body = (len - head) & !127;
        // SAFETY: `head` is below 64, and `head + body` at most `len`; the caller vouches for the
        // ranges. A prefetch reaches for nothing. Stores past the caches are ordered with no others
        // but by the fence. The upper halves of all vector registers are lost, and said to be.
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

    /// # Safety
    /// As [`copy`]; `len` must be 64 at least.
    unsafe fn string(dst: *mut u8, src: *const u8, len: usize) {
        let head = dst.align_offset(64);
        // SAFETY: the caller vouches for the ranges; `head` is below 64. The direction flag is
        // clear, as the calling convention demands; no flags and no stack are touched.
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
    /// # Safety
    /// None: it is not called where there is no such copy.
    pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        unreachable!("asked for {len} bytes from {src:p} to {dst:p} by the processor's own moves");
    }

    /// # Safety
    /// None, as above.
    pub(super) unsafe fn past_caches(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: nothing is asked for.
        unsafe { copy(dst, src, len) }
    }
}

/// Bytes before `ptr` reaches a word boundary, at most `len`.
fn ragged_head(ptr: *const u8, len: usize) -> usize {
    ptr.align_offset(WORD).min(len)
}

/// Copies `src` to shared memory at `dst`.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes for the whole call, and all concurrent
/// accesses to them made by this module or by the kernel.
#[inline]
pub unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
    if BY_PROCESSOR {
        // SAFETY: the caller vouches for `dst`; a reference to private memory does not overlap it.
        unsafe { moves::copy(dst, src.as_ptr(), src.len()) }
    } else {
        // SAFETY: the caller's promise is handed on.
        unsafe { words_in(dst, src) }
    }
}

/// Copies shared memory at `src` to `dst`.
///
/// # Safety
/// `src` must be valid for reads and writes of `dst.len()` bytes for the whole call, and all
/// concurrent accesses to them made by this module or by the kernel.
#[inline]
pub unsafe fn copy_out(dst: &mut [u8], src: *mut u8) {
    if BY_PROCESSOR {
        // SAFETY: as in `copy_in`.
        unsafe { moves::copy(dst.as_mut_ptr(), src, dst.len()) }
    } else {
        // SAFETY: the caller's promise is handed on.
        unsafe { words_out(dst, src) }
    }
}

/// Copies `len` bytes between two pieces of shared memory. If they overlap, which bytes of the
/// overlap end where is not defined.
///
/// # Safety
/// Both ranges must be valid for reads and writes for the whole call, and all concurrent accesses
/// to them made by this module or by the kernel.
#[inline]
pub unsafe fn copy_between(dst: *mut u8, src: *mut u8, len: usize) {
    if BY_PROCESSOR {
        // SAFETY: the caller vouches for both ranges. Where they overlap, the bytes that come out
        // are some that were there, and no reference to either exists.
        return unsafe { moves::copy(dst, src, len) };
    }
    // Through a small private buffer, so that relative misalignment needs no case of its own.
    let mut private = [0u8; SHORT_STRING_MOVE];
    let mut done = 0;
    while done < len {
        let piece = private.len().min(len - done);
        // SAFETY: `done + piece <= len`; the caller vouches for both ranges.
        unsafe {
            words_out(&mut private[..piece], src.add(done));
            words_in(dst.add(done), &private[..piece]);
        }
        done += piece;
    }
}

/// [`copy_between`], past the caches where the processor can: for a part of something that they
/// have no room for.
///
/// # Safety
/// As [`copy_between`].
pub unsafe fn copy_past_caches(dst: *mut u8, src: *mut u8, len: usize) {
    if BY_PROCESSOR {
        // SAFETY: as in `copy_between`.
        unsafe { moves::past_caches(dst, src, len) }
    } else {
        // SAFETY: the caller's promise is handed on.
        unsafe { copy_between(dst, src, len) }
    }
}

/// [`copy_in`] by atomic words.
///
/// # Safety
/// As there.
unsafe fn words_in(dst: *mut u8, src: &[u8]) {
    let head = ragged_head(dst, src.len());
    let words = (src.len() - head) / WORD;
    let body_end = head + words * WORD;
    for (index, byte) in src[..head].iter().enumerate() {
        // SAFETY: `index < len`; the caller vouches for the range.
        unsafe { AtomicU8::from_ptr(dst.add(index)) }.store(*byte, Relaxed);
    }
    for (index, word) in src[head..body_end].chunks_exact(WORD).enumerate() {
        let word = u64::from_ne_bytes(word.try_into().expect("chunks of a word"));
        // SAFETY: within the caller's range, and aligned, because `head` bytes lead to a word
        // boundary.
        unsafe { AtomicU64::from_ptr(dst.add(head + index * WORD).cast()) }.store(word, Relaxed);
    }
    for (index, byte) in src[body_end..].iter().enumerate() {
        // SAFETY: `body_end + index < len`.
        unsafe { AtomicU8::from_ptr(dst.add(body_end + index)) }.store(*byte, Relaxed);
    }
}

/// [`copy_out`] by atomic words.
///
/// # Safety
/// As there.
unsafe fn words_out(dst: &mut [u8], src: *mut u8) {
    let head = ragged_head(src, dst.len());
    let words = (dst.len() - head) / WORD;
    let body_end = head + words * WORD;
    for (index, byte) in dst[..head].iter_mut().enumerate() {
        // SAFETY: `index < len`; the caller vouches for the range.
        *byte = unsafe { AtomicU8::from_ptr(src.add(index)) }.load(Relaxed);
    }
    for (index, word) in dst[head..body_end].chunks_exact_mut(WORD).enumerate() {
        // SAFETY: within the caller's range, and aligned, because `head` bytes lead to a word
        // boundary.
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

    /// The words are what other processors and Miri use; here nothing else would try them.
    #[test]
    fn words_and_moves_copy_the_same() {
        const LEN: usize = 8400;
        let pattern: Vec<u8> = (0..LEN as u32).map(|at| (at * 7) as u8).collect();
        for offset in (0..9).chain([63]) {
            for len in (0..40).chain(60..70).chain(120..130).chain(250..260).chain(8185..8195).chain([8300]) {
                let mut shared = [[0u8; LEN]; 2];
                let mut private = [[0u8; LEN]; 2];
                // SAFETY: the arrays are this test's alone and long enough.
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

    /// Whatever the alignments, each byte comes, and none beside it.
    #[test]
    fn nothing_is_lost_past_the_caches() {
        const LEN: usize = 3 * PAST_CACHES;
        let pattern: Vec<u8> = (0..LEN as u32).map(|at| (at * 7 + at / 251) as u8).collect();
        for (to, from) in [(0, 0), (1, 0), (0, 1), (63, 2), (32, 64), (17, 40)] {
            let around = [0, 1, 63, 64, 127, 128, 129, 1000].map(|more| PAST_CACHES + more);
            for len in around.into_iter().chain([0, 1, PAST_CACHES - 1, 2 * PAST_CACHES + 77]) {
                let (mut source, mut target) = (pattern.clone(), vec![0xa5; LEN]);
                // SAFETY: the vectors are this test's alone and long enough.
                unsafe { copy_past_caches(target.as_mut_ptr().add(to), source.as_mut_ptr().add(from), len) };
                assert_eq!(target[to..to + len], pattern[from..from + len], "{len} bytes from {from} to {to}");
                let beside = target[..to].iter().chain(&target[to + len..]);
                assert!(beside.copied().all(|byte| byte == 0xa5), "{len} bytes from {from} to {to}: beside them");
            }
        }
    }
}
