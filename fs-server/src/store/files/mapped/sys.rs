//! A part of a file that is mapped, and the handler that keeps the process alive if a page of it
//! goes away. The system calls and all `unsafe` of mapped files are here.
//!
//! **The guard.** An access to a page that its file does not have any more, or that the disk cannot
//! deliver, raises `SIGBUS` in the thread that made the access. The handler looks for the address
//! among the windows. If it is in one, the handler marks the window, and maps a private page of
//! zeros in place. The access is then made again, and finds zeros. If the address is in no window,
//! the signal is somebody else's: the handler that was there before is put back, and gets it.
//!
//! The windows are in a table of words that the handler can read at any moment, without a lock. A
//! word has the address of a window in its upper bits, and its number of pages in those below.
//!
//! **Invariants**
//! 1. A window is in the table exactly as long as it may be accessed: it is put there before
//!    anybody has it, and taken out when nobody has it any more, before it is unmapped.
//! 2. The handler calls nothing but `mmap` and `sigaction`, and touches nothing but the table and
//!    the state that was stored before it was installed. The system calls are made directly, so
//!    they may be made in a handler.
//! 3. The bytes of a window are read by the kernel, by adapters, and by atomic accesses of
//!    [`Memory`]. No reference to them exists, and nothing writes through the mapping.
//!
//! **Limits.** A program that replaces the handler later takes the guard away.
//!
//! **Source.** mmap(2), madvise(2), mincore(2), sigaction(2).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bmi::{Error, ErrorKind, Memory};

use super::WINDOW;
use crate::workers::Workers;

/// Most windows of a process.
const MOST: usize = 2048;
/// Pages are at least this large, so an address of one has this many values to spare.
const LEAST_PAGE: usize = 4096;

/// The windows of the process, for the handler. 0 for a free place.
static WINDOWS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
/// Which of them are broken.
static BROKEN: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];

/// What the handler needs.
struct Before {
    page: usize,
    action: libc::sigaction,
}

static BEFORE: OnceLock<Option<Before>> = OnceLock::new();

// A window has at most this many pages, which fits below the address of a page.
const _: () = assert!((WINDOW as usize) / LEAST_PAGE < LEAST_PAGE);

/// Installs the handler, once.
///
/// # Errors
/// `Unsupported` if the system refuses it.
pub(super) fn guard() -> Result<(), Error> {
    let before = BEFORE.get_or_init(|| {
        // SAFETY: all zeros is a valid value of the structure.
        let (mut action, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        // SAFETY: both structures live until the calls have ended. Without a new action the call
        // only reports the old one.
        let known = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut old) };
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the set is part of a structure of this function.
        unsafe { libc::sigemptyset(&raw mut action.sa_mask) };
        let page = rustix::param::page_size();
        (known == 0 && page >= LEAST_PAGE).then_some((action, Before { page, action: old })).and_then(
            |(action, before)| {
                // SAFETY: the handler keeps to invariant 2. It is told about windows only when
                // this has ended, and passes on what comes before.
                let result = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
                (result == 0).then_some(before)
            },
        )
    });
    match before {
        Some(_) => Ok(()),
        None => Err(Error::new(ErrorKind::Unsupported, "no handler for SIGBUS can be installed")),
    }
}

/// Puts a page of zeros where a page of a window went away.
extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let before = BEFORE.get().and_then(Option::as_ref);
    // SAFETY: the kernel passes a valid structure to a handler with `SA_SIGINFO`.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some(before) = before {
        let page = address & !(before.page - 1);
        for (word, broken) in WINDOWS.iter().zip(&BROKEN) {
            let word = word.load(Ordering::Acquire);
            let (begin, pages) = (word & !(LEAST_PAGE - 1), word & (LEAST_PAGE - 1));
            if word == 0 || page < begin || page >= begin + pages * LEAST_PAGE {
                continue;
            }
            broken.store(true, Ordering::Release);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: the page is in a window, which nobody unmaps while it is accessed
            // (invariant 1). Nothing writes to a window, so nothing is lost.
            let zeros = unsafe { libc::mmap(page as *mut libc::c_void, before.page, libc::PROT_READ, flags, -1, 0) };
            if zeros != libc::MAP_FAILED {
                return;
            }
        }
        // SAFETY: this is the action that was there before. The access is made again, and the
        // signal goes there.
        unsafe { libc::sigaction(signal, &raw const before.action, std::ptr::null_mut()) };
        return;
    }
    // SAFETY: as above, for the action that the system has by itself.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// An address range, with its place in the table of the handler.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    place: usize,
    /// Unmaps it.
    closer: Weak<Workers>,
}

// SAFETY: a mapping is valid on every thread. It is only read, by the rules of invariant 3.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// A mapped part of a file.
pub(in crate::store::files) struct Window {
    memory: Memory,
    mapping: Arc<Mapping>,
}

impl Window {
    /// Maps `len` bytes of a file, at most [`WINDOW`] and at least one. `closer` unmaps them.
    ///
    /// # Errors
    /// That of the system; `OutOfMemory` if the process has too many windows.
    pub(in crate::store::files) fn map(
        file: &File,
        offset: u64,
        len: usize,
        closer: &Weak<Workers>,
    ) -> io::Result<Window> {
        assert!(len > 0 && len as u64 <= WINDOW, "a window of {len} bytes");
        let offset = crate::store::sys::position(offset)?;
        let flags = libc::MAP_SHARED;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, flags, file.as_raw_fd(), offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let word = base as usize | len.div_ceil(LEAST_PAGE);
        let is_free =
            |place: &usize| WINDOWS[*place].compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let (base, place) = (NonNull::new(base.cast::<u8>()), (0..MOST).find(is_free));
        let (Some(base), Some(place)) = (base, place) else {
            // SAFETY: the mapping was made above, and nobody has it.
            unsafe { libc::munmap(base.map_or(std::ptr::null_mut(), NonNull::as_ptr).cast(), len) };
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        BROKEN[place].store(false, Ordering::Release);
        let mapping = Arc::new(Mapping { base, len, place, closer: closer.clone() });
        // SAFETY: the bytes are mapped for reading as long as the mapping lives, which the memory
        // keeps. Invariant 3 has the rest.
        let memory = unsafe { Memory::from_raw_parts_read_only(base, len, Box::new(mapping.clone())) };
        Ok(Window { memory, mapping })
    }

    /// Returns the bytes.
    pub(in crate::store::files) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns their number.
    pub(in crate::store::files) fn len(&self) -> usize {
        self.mapping.len
    }

    /// Returns true if a page has gone away.
    pub(in crate::store::files) fn is_broken(&self) -> bool {
        BROKEN[self.mapping.place].load(Ordering::Acquire)
    }

    /// Returns the address and the length of the pages of a piece.
    fn pages(&self, at: usize, len: usize) -> (*mut libc::c_void, usize) {
        let page = rustix::param::page_size();
        let begin = at / page * page;
        assert!(at + len <= self.mapping.len, "{len} bytes at {at} of {}", self.mapping.len);
        // SAFETY: the address is in the mapping, as was just checked.
        let address = unsafe { self.mapping.base.as_ptr().add(begin) };
        (address.cast(), at + len - begin)
    }

    /// Returns true if the system has a piece in memory.
    pub(in crate::store::files) fn is_resident(&self, at: usize, len: usize) -> bool {
        let mut pages = [0u8; WINDOW as usize / LEAST_PAGE];
        let (address, len) = self.pages(at, len);
        let count = len.div_ceil(rustix::param::page_size());
        // SAFETY: the range is mapped, and there is a byte for each of its pages: a window has at
        // most as many.
        let result = unsafe { libc::mincore(address, len, pages.as_mut_ptr()) };
        result == 0 && pages[..count].iter().all(|page| page & 1 != 0)
    }

    /// Brings a piece into memory. May wait for the disk.
    pub(in crate::store::files) fn populate(&self, at: usize, len: usize) -> io::Result<()> {
        let (address, len) = self.pages(at, len);
        // SAFETY: the range is mapped. The call changes no byte of it.
        match unsafe { libc::madvise(address, len, libc::MADV_POPULATE_READ) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        WINDOWS[self.place].store(0, Ordering::Release);
        let (base, len) = (self.base.as_ptr() as usize, self.len);
        let unmap = move || {
            // SAFETY: `Window::map` made the mapping with this length, and nobody has it any more.
            if unsafe { libc::munmap(base as *mut libc::c_void, len) } != 0 {
                tracing::error!(error = %io::Error::last_os_error(), "cannot unmap a part of a file");
            }
        };
        // The last handle of a removed file gives its space back, which may wait for the disk.
        match self.closer.upgrade() {
            Some(workers) => workers.start(unmap),
            None => unmap(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Takes a window out of the table of the handler.
    pub(in super::super) fn take_out(window: &Window) {
        WINDOWS[window.mapping.place].store(0, Ordering::Release);
    }
}
