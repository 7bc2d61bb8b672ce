//! The address range of an arena: a file that is mapped, or private pages. This is the only module
//! of the arena with `unsafe`.
//!
//! **Why.** Headers are words that a kill must find in one of two states, so each word is stored
//! alone and in order. The bytes of the chunks are for adapters, and are given out as
//! [`Memory`]. Both are parts of one range, so that one mapping, and one lock of the file,
//! lasts as long as anybody uses it.
//!
//! **Invariants**
//! 1. The range stays mapped, readable and writable as long as the value lives. Each [`Memory`] of
//!    it keeps the value.
//! 2. The first `words` bytes are accessed as atomic words only. No reference to plain bytes of
//!    them exists.
//! 3. The bytes behind them are lent once each ([`Mapping::lend`]), so that no two `Memory` have a
//!    byte in common, and never accessed here.
//!
//! **Limits.** Touching a page that the file does not have, or for which its file system has no
//! room, raises `SIGBUS` and ends the process. The callers allocate the pages first
//! (`file::allocate`). Another process that writes to the file can make words wrong, but no access
//! unsound. Every word that is read back is checked.
//!
//! **Tests**: those of the [arena](super). They cut the sequence of stores at any place
//! (`stores_left`).

use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bmi_core::{Error, Memory};
use rustix::mm::{MapFlags, ProtFlags};

/// An address range of words, and behind them bytes to lend.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Length in bytes of the part that is accessed as words.
    words: usize,
    /// Where the bytes begin that were not lent yet.
    rest: Mutex<usize>,
    backing: Backing,
    /// How many stores are carried out. Those after them have no effect, as if the process had been
    /// killed before them.
    #[cfg(test)]
    pub(super) stores_left: AtomicU64,
}

enum Backing {
    /// A mapping of a file.
    File,
    /// Memory whose only handle this is.
    Private { _memory: Memory },
}

// SAFETY: an address range is valid on every thread. Words are accessed atomically, and the other
// bytes by the rules of `Memory`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes a range of `len` zero bytes, of which the first `words` are words.
    ///
    /// # Errors
    /// `Exhausted` if there is no memory.
    pub(super) fn private(len: usize, words: usize) -> Result<Mapping, Error> {
        let memory = Memory::sparse(len)?;
        let base = NonNull::new(memory.as_ptr()).expect("memory is somewhere");
        Ok(Mapping::new(base, len, words, Backing::Private { _memory: memory }))
    }

    /// Maps the first `len` bytes of a file, of which the first `words` are words.
    pub(super) fn of_file(file: &File, len: usize, words: usize) -> io::Result<Mapping> {
        let (flags, rights) = (MapFlags::SHARED, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, rights, flags, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping::new(base, len, words, Backing::File))
    }

    fn new(base: NonNull<u8>, len: usize, words: usize, backing: Backing) -> Mapping {
        assert!(words <= len && words.is_multiple_of(8), "{words} bytes of words in a range of {len}");
        Mapping {
            base,
            len,
            words,
            rest: Mutex::new(words),
            backing,
            #[cfg(test)]
            stores_left: AtomicU64::new(u64::MAX),
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.words, "there is no word at {at}");
        // SAFETY: the word is aligned, because the range begins at a page, and within the part that
        // is only accessed as atomic words (invariant 2): both were just checked. Invariant 1 keeps
        // it mapped as long as `self` is borrowed.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// Returns the word at an offset.
    pub(super) fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    /// Stores the word at an offset. It becomes visible after everything that was stored before, to
    /// other threads and to a process that takes over after a kill.
    pub(super) fn store(&self, at: usize, value: u64) {
        #[cfg(test)]
        if self.is_cut() {
            return;
        }
        self.word(at).store(value, Ordering::Release);
    }

    #[cfg(test)]
    fn is_cut(&self) -> bool {
        let left = self.stores_left.load(Ordering::Relaxed);
        self.stores_left.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// Returns the next `len` bytes that nobody has had yet. The first ones are behind the words.
    ///
    /// # Panics
    /// If the range has no such bytes.
    pub(super) fn lend(self: &Arc<Mapping>, len: usize) -> Memory {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let at = *rest;
        assert!(len <= self.len - at, "{len} bytes at {at} in a range of {}", self.len);
        *rest += len;
        // SAFETY: the bytes are within the range, as was just checked. They stay valid as long as
        // the mapping, which the memory keeps (invariant 1). Nothing else accesses them
        // (invariant 3), except for adapters and the kernel by the address of this memory.
        unsafe { Memory::from_raw_parts(self.base.add(at), len, Box::new(self.clone())) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Backing::File = self.backing {
            // SAFETY: `of_file` made the mapping with this length. All `Memory` of it are gone,
            // because each keeps the value.
            if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) } {
                tracing::error!(%error, "cannot unmap the memory of the cache");
            }
        }
    }
}
