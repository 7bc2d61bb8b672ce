//! The limits that no library can exceed: the transfer of a cache line from one processor to the
//! other, and `memcpy`.

use std::fs::File;
use std::io::Result;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bmi_report::stats::quantile;
use rustix::mm::{MapFlags, ProtFlags};

use crate::{Row, Test};

const LINE: usize = 64;
const ROUNDS: u64 = 200_000;
/// A size in bytes that is larger than the caches of this machine together.
const OUT_OF_CACHE: usize = 256 << 20;

/// Two cache lines that both processes have mapped.
pub(crate) struct Line(*mut u8);

impl Line {
    pub(crate) fn create(folder: &str) -> Result<Line> {
        let path = Path::new(folder).join("line");
        File::create(&path)?.set_len(4096)?;
        Line::open(folder)
    }

    pub(crate) fn open(folder: &str) -> Result<Line> {
        let file = File::options().read(true).write(true).open(Path::new(folder).join("line"))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses. It stays until the process
        // ends.
        let ptr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, access, MapFlags::SHARED, &file, 0)? };
        Ok(Line(ptr.cast()))
    }

    fn word(&self, number: usize) -> &AtomicU64 {
        // SAFETY: within the page that `open` mapped and that is never unmapped, aligned, and
        // accessed only atomically.
        unsafe { AtomicU64::from_ptr(self.0.add(number * LINE).cast()) }
    }
}

/// Returns the time of one transfer of a cache line between two processors, in seconds. It is the
/// best of several batches, on the near side.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
pub(crate) fn hand_over(line: &mut Line, near: bool) -> f64 {
    let (to, from) = if near { (line.word(0), line.word(1)) } else { (line.word(1), line.word(0)) };
    let mut samples = Vec::new();
    let mut number = 0;
    for _ in 0..100 {
        let begin = Instant::now();
        for _ in 0..ROUNDS / 100 {
            number += 1;
            if near {
                to.store(number, Ordering::Release);
            }
            while from.load(Ordering::Acquire) != number {
                std::hint::spin_loop();
            }
            if !near {
                to.store(number, Ordering::Release);
            }
        }
        samples.push(begin.elapsed().as_secs_f64() / (ROUNDS / 100) as f64 / 2.0);
    }
    quantile(&mut samples, 0.1)
}

/// The limits of this machine.
pub(crate) struct Limits {
    /// The time of one transfer of a cache line.
    pub(crate) line: f64,
}

impl Limits {
    /// Returns the limit of a row with one copy: the cache line for a message that fits into it,
    /// `memcpy` for a longer one.
    pub(crate) fn of(&self, row: &Row) -> Option<f64> {
        match row.test {
            Test::Latency | Test::WriteLatency | Test::Immediate if row.size <= LINE => Some(self.line),
            Test::Latency | Test::WriteLatency | Test::Immediate => {
                Some(self.line + row.size as f64 / memcpy(row.size, true, true))
            }
            Test::Rate => None,
            // Nothing tells the owner of memory that it was read, so it is not written again.
            _ => Some(memcpy(row.size, row.size < 8 << 20, row.test != Test::Read)),
        }
    }
}

/// Writes one byte of each cache line of a payload that is about to be sent. Without that, the
/// lines stay in the receiver's cache from the message before, and no data moves between the
/// processors.
///
/// # Safety
/// `len` bytes must be valid there. Others may read them meanwhile only through `bmi_core`, which
/// copies as if another device wrote, or from another process.
#[inline]
pub(crate) unsafe fn write_lines(payload: *mut u8, len: usize, value: u8) {
    for at in (0..len).step_by(LINE) {
        // SAFETY: the caller guarantees it.
        unsafe { payload.wrapping_add(at).write_volatile(value) };
    }
}

/// Returns the bytes per second of the C library's `memcpy` in pieces of `size`: between the same
/// two buffers, or over more memory than fits into the cache. With `writes`, each line of a piece
/// is written before it is copied, as the payload of a message is.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn memcpy(size: usize, in_cache: bool, writes: bool) -> f64 {
    let room = if in_cache { size } else { OUT_OF_CACHE.max(size) };
    let (mut source, mut target) = (vec![1u8; room], vec![2u8; room]);
    let total = (64 << 20) / size * size;
    let mut samples = Vec::new();
    for _ in 0..40 {
        let begin = Instant::now();
        let mut at = 0;
        for number in 0..total / size {
            at = if at + size > room { 0 } else { at };
            if writes {
                // SAFETY: the piece lies in the buffer, which nobody else uses.
                unsafe { write_lines(source[at..at + size].as_mut_ptr(), size, number as u8) };
            }
            target[at..at + size].copy_from_slice(std::hint::black_box(&source[at..at + size]));
            std::hint::black_box(&mut target);
            at += size;
        }
        samples.push(total as f64 / begin.elapsed().as_secs_f64());
    }
    quantile(&mut samples, 0.9)
}
