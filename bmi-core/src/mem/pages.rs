//! Zeroed bytes in pages of their own, which go back to the system when they are dropped.
//!
//! **Why.** A connection has about 1.7 MiB of slots and buffers, and most connections use a few
//! pages of it. An allocator is no help: after it has freed one such piece, it serves the next one
//! from memory that it kept, and zeroes it by writing every page. So every page is resident, and
//! stays so when the connection is gone. A mapping costs a few system calls for each connection,
//! its pages become resident when they are first touched, and unmapping returns them.
//!
//! **Invariants**
//! 1. The bytes are mapped, readable and writable as long as the value lives, and nothing else has
//!    their address.
//! 2. Huge pages are turned off. One touched byte must not make 2 MiB resident.
//! 3. A page that was [discarded](Pages::discard) is zero, and not resident until it is touched.
//!
//! **Limits.** A process has some 65,000 mappings (`vm.max_map_count`). The kernel joins
//! neighbours, so a connection usually counts as one or fewer. The bytes come from the allocator if
//! there is no mapping left, if there are few of them, on other systems than Linux, and under Miri.
//! Then nothing is discarded.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::error::{Error, ErrorKind};

/// Size of a page, in bytes: the alignment of the bytes.
const PAGE: usize = 4096;
/// Shortest length in bytes that gets pages of its own.
const LEAST: usize = 16 << 10;

/// Zeroed bytes in pages of their own.
pub struct Pages {
    ptr: NonNull<u8>,
    len: usize,
    /// False if the bytes come from the allocator.
    mapped: bool,
}

// SAFETY: an address range is valid on every thread, and only this value has it (invariant 1).
unsafe impl Send for Pages {}
// SAFETY: as above; a shared reference gives out shared references only.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps `len` zero bytes.
    ///
    /// # Errors
    /// `Exhausted` if there is no memory.
    pub fn new(len: usize) -> Result<Pages, Error> {
        if len == 0 {
            return Ok(Pages::default());
        }
        if len >= LEAST
            && let Some(ptr) = system::map(len)
        {
            return Ok(Pages { ptr, len, mapped: true });
        }
        let layout = Layout::from_size_align(len, PAGE).ok();
        // SAFETY: the layout is not empty.
        let ptr = layout.and_then(|layout| NonNull::new(unsafe { alloc_zeroed(layout) }));
        let exhausted = || Error::new(ErrorKind::Exhausted, format!("no memory for a buffer of {len} bytes"));
        Ok(Pages { ptr: ptr.ok_or_else(exhausted)?, len, mapped: false })
    }

    /// Returns the address. The bytes may be accessed by it as long as the value lives and no
    /// reference to them is used meanwhile.
    pub(super) fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Gives all pages back to the system. The bytes are zeros then. One system call.
    pub fn discard(&mut self) {
        self.discard_shared();
    }

    /// As [`Pages::discard`], for bytes that are accessed by their address.
    pub(super) fn discard_shared(&self) {
        if self.mapped {
            system::discard(self.ptr, self.len);
        }
    }
}

/// Returns the pages that the allocator has free to the system, if it is the GNU C library's. It
/// keeps them otherwise, if a single byte behind them is in use. Takes milliseconds after thousands
/// of connections.
pub(crate) fn trim_allocator() {
    system::trim();
}

impl Default for Pages {
    /// Returns no pages.
    fn default() -> Pages {
        Pages { ptr: NonNull::dangling(), len: 0, mapped: false }
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: invariant 1. The kernel changes the bytes only during calls that borrow the value
        // exclusively.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: invariant 1, and the value is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.mapped {
            system::unmap(self.ptr, self.len);
        } else if self.len > 0 {
            let layout = Layout::from_size_align(self.len, PAGE).expect("it was allocated with this layout");
            // SAFETY: `new` allocated it with this layout, and nothing refers to it any more.
            unsafe { dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages[{}]", self.len)
    }
}

#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
mod system {
    use std::ptr::{NonNull, null_mut};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    pub(super) fn map(len: usize) -> Option<NonNull<u8>> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let ptr = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        let ptr = ptr.ok()?;
        // SAFETY: the range was just mapped. A kernel without huge pages refuses, which is no loss.
        let _ = unsafe { madvise(ptr, len, Advice::LinuxNoHugepage) };
        NonNull::new(ptr.cast())
    }

    pub(super) fn discard(ptr: NonNull<u8>, len: usize) {
        // SAFETY: the caller has mapped the range. Private pages are zeros afterwards. The bytes
        // are accessed by address, or through a reference that the caller holds exclusively. So no
        // reference sees them change.
        if let Err(error) = unsafe { madvise(ptr.as_ptr().cast(), len, Advice::LinuxDontNeed) } {
            tracing::debug!(%error, "pages stay resident");
        }
    }

    #[cfg(target_env = "gnu")]
    pub(super) fn trim() {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> i32;
        }
        // SAFETY: the function may be called at any time, on any thread.
        unsafe { malloc_trim(0) };
    }

    #[cfg(not(target_env = "gnu"))]
    pub(super) fn trim() {}

    pub(super) fn unmap(ptr: NonNull<u8>, len: usize) {
        // SAFETY: the caller has mapped the range, and nothing refers to it any more.
        if let Err(error) = unsafe { munmap(ptr.as_ptr().cast(), len) } {
            // A hole in a joined mapping may be one mapping too many. The address space is lost.
            tracing::error!(%error, "cannot unmap memory");
            discard(ptr, len);
        }
    }
}

#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
mod system {
    use std::ptr::NonNull;

    pub(super) fn map(_: usize) -> Option<NonNull<u8>> {
        None
    }

    pub(super) fn discard(_: NonNull<u8>, _: usize) {}

    pub(super) fn unmap(_: NonNull<u8>, _: usize) {}

    pub(super) fn trim() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_hold_what_is_written_until_they_are_discarded() {
        for len in [1, LEAST - 1, LEAST, 3 * LEAST + 1] {
            let mut pages = Pages::new(len).unwrap();
            assert!(pages.as_ptr().addr().get().is_multiple_of(PAGE) && pages.iter().all(|byte| *byte == 0));
            pages[len - 1] = 7;
            assert_eq!((pages.len(), pages[len - 1]), (len, 7));
            pages.discard();
            let kept = if cfg!(all(target_os = "linux", not(miri))) && len >= LEAST { 0 } else { 7 };
            assert_eq!(pages[len - 1], kept);
            pages[0] = 1;
            assert_eq!(pages[0], 1);
        }
    }

    #[test]
    fn no_pages_are_no_bytes() {
        let mut none = Pages::new(0).unwrap();
        none.discard();
        assert!(none.is_empty() && std::mem::take(&mut none).is_empty());
        assert_eq!(Pages::new(usize::MAX).unwrap_err().kind(), ErrorKind::Exhausted);
    }

    /// A regression test. Buffers came from the allocator, which kept what was freed and zeroed it
    /// by writing every page when it was used again. So each connection after the first cost all
    /// of its slots, and nothing came back.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn pages_are_resident_as_far_as_they_are_touched_and_go_back() {
        const LEN: usize = 1 << 20;
        let resident = || -> usize {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * rustix::param::page_size()
        };
        let before = resident();
        for _ in 0..2 {
            let mut all: Vec<Pages> = (0..128).map(|_| Pages::new(LEN).unwrap()).collect();
            all.iter_mut().for_each(|pages| pages[LEN / 2] = 1);
            assert!(resident() < before + (32 << 20), "{before} and then {}", resident());
            all.iter_mut().for_each(|pages| pages.fill(1));
            all.iter_mut().skip(64).for_each(Pages::discard);
            assert!(resident() < before + (96 << 20), "{before} and then {}", resident());
            drop(all);
            assert!(resident() < before + (32 << 20), "{before} and then {}", resident());
        }
    }
}
