//! Learns from the kernel when foreign memory is unmapped. It uses `userfaultfd`, and is for
//! programs that cannot call [`Foreign::forget`] themselves.
//!
//! **Why.** A library between the program and this one sees buffers appear, but not disappear. With
//! reports from the kernel, the table forgets unmapped memory before anything else can be mapped
//! there. `munmap` is not patched.
//!
//! **How.** Ranges are registered with a userfaultfd, in a mode that never faults. When a range is
//! unmapped, moved or discarded (`munmap`, `mremap`, `madvise`), the kernel **blocks the caller**
//! until the event has been read. So a thread of the program does nothing but call [`Watch::wait`]
//! in a loop. If it stops, every thread that unmaps a watched range blocks, until the `Watch` is
//! dropped.
//!
//! **Invariants**
//! 1. The waiting thread takes no lock, and it neither allocates nor frees. Either could unmap a
//!    watched range, or wait for a thread that does. It writes to a ring of fixed size, and
//!    [`Foreign`] reads the ring before every lookup. If the ring is full, all ranges are
//!    forgotten.
//! 2. After an unmapping has returned, a lookup does not find the range. The kernel releases the
//!    caller only when the event has been read. `pending` is set before that read, until the event
//!    is in the ring, and lookups wait while it is set.
//!
//! **Limits.** Linux, with anonymous and shared memory. Without privilege the kernel allows it only
//! if `vm.unprivileged_userfaultfd` is set or the user can open `/dev/userfaultfd`. Otherwise
//! [`Watch::new`] returns `Unsupported`. A child of `fork` is not watched.
//!
//! **Source.** `userfaultfd(2)`, `ioctl_userfaultfd(2)`.
//!
//! **Tests** are below. They need the permission, and check for the documented error without it.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{Extent, Foreign};
use crate::error::{Error, ErrorKind};

/// Number of events that can wait for the next lookup.
const RING: usize = 256;

// From linux/userfaultfd.h.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const MODE_WRITE_PROTECT: u64 = 1 << 1;
const FEATURE_REMAP: u64 = 1 << 2;
const FEATURE_REMOVE: u64 = 1 << 3;
const FEATURE_UNMAP: u64 = 1 << 6;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// `struct uffd_msg`: the event and, from byte 8 on, its three words.
#[repr(C)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    words: [u64; 3],
}

/// Ranges that were unmapped. The waiting thread is the only writer. There is one reader at a time,
/// under the table's lock.
pub(super) struct Ring {
    ranges: [(AtomicUsize, AtomicUsize); RING],
    written: AtomicUsize,
    read: AtomicUsize,
    /// More events came than fit.
    overrun: AtomicBool,
    /// An event may have been read that is not in the ring yet.
    pending: AtomicBool,
}

impl Ring {
    fn new() -> Ring {
        Ring {
            ranges: std::array::from_fn(|_| Default::default()),
            written: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
            overrun: AtomicBool::new(false),
            pending: AtomicBool::new(false),
        }
    }

    fn push(&self, start: usize, end: usize) {
        let at = self.written.load(Ordering::Relaxed);
        if at - self.read.load(Ordering::Acquire) == RING {
            self.overrun.store(true, Ordering::SeqCst);
            return;
        }
        let (low, high) = &self.ranges[at % RING];
        low.store(start, Ordering::Relaxed);
        high.store(end, Ordering::Relaxed);
        self.written.store(at + 1, Ordering::Release);
    }

    /// Reports each range unmapped since the last call; `None` stands for all memory.
    pub(super) fn drain(&self, mut forget: impl FnMut(Option<(usize, usize)>)) {
        // Lasts as long as one `read` of the other thread.
        while self.pending.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        if self.overrun.swap(false, Ordering::SeqCst) {
            forget(None);
        }
        let mut at = self.read.load(Ordering::Relaxed);
        while at != self.written.load(Ordering::Acquire) {
            let (low, high) = &self.ranges[at % RING];
            forget(Some((low.load(Ordering::Relaxed), high.load(Ordering::Relaxed))));
            at += 1;
            self.read.store(at, Ordering::Release);
        }
    }
}

/// Watches address ranges, and makes a [`Foreign`] forget those that are unmapped.
///
/// ```no_run
/// # use bmi_core::mem::{Extent, Foreign, Watch};
/// # fn example(foreign: Foreign, buffer: Extent) -> Result<(), bmi_core::Error> {
/// let watch = Watch::new(&foreign)?;
/// watch.cover(buffer)?;
/// std::thread::Builder::new().spawn(move || while watch.wait().is_ok() {}).expect("a thread");
/// # Ok(())
/// # }
/// ```
pub struct Watch {
    fd: OwnedFd,
    ring: Arc<Ring>,
}

impl Watch {
    /// Returns a watch that reports to `foreign`. A table can have only one in its lifetime.
    ///
    /// # Errors
    /// `Unsupported` if the kernel has no userfaultfd or does not allow it, or if `foreign` is
    /// watched already.
    pub fn new(foreign: &Foreign) -> Result<Watch, Error> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(|| refused("userfaultfd"))?;
        // SAFETY: the call just created it, and no other code has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut api = [UFFD_API, FEATURE_UNMAP | FEATURE_REMOVE | FEATURE_REMAP, 0u64];
        // SAFETY: `struct uffdio_api` is three words of 64 bits.
        if unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) } != 0 {
            return Err(refused("UFFDIO_API"));
        }
        let ring = Arc::new(Ring::new());
        foreign.watched_by(&ring)?;
        Ok(Watch { fd, ring })
    }

    /// Watches the pages that contain `extent`.
    ///
    /// # Errors
    /// `Unsupported` for memory that the kernel cannot watch, such as file mappings. `Invalid` for
    /// a range that wraps around the address space.
    pub fn cover(&self, extent: Extent) -> Result<(), Error> {
        let (start, end) = extent.bounds()?;
        // The kernel takes whole pages of its own size, which is not 4096 on every processor.
        let page = rustix::param::page_size();
        let start = start - start % page;
        let len = (end - start).next_multiple_of(page);
        let mut register = [start as u64, len as u64, MODE_WRITE_PROTECT, 0u64];
        // SAFETY: `struct uffdio_register` is four words of 64 bits. The mode has no effect until
        // something is write-protected, and nothing is.
        if unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) } != 0 {
            return Err(refused("UFFDIO_REGISTER"));
        }
        Ok(())
    }

    /// Waits for the next event and records it. Call it from a dedicated thread that does nothing
    /// else, and from one thread at a time.
    ///
    /// # Errors
    /// Those of `poll(2)` and `read(2)`. After an error no unmapping is recorded any more, and the
    /// watch must be dropped.
    pub fn wait(&self) -> io::Result<()> {
        let mut polled = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives until the call returns.
        if unsafe { libc::poll(&mut polled, 1, -1) } < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        self.ring.pending.store(true, Ordering::SeqCst);
        let read = self.read_one();
        self.ring.pending.store(false, Ordering::SeqCst);
        read
    }

    fn read_one(&self) -> io::Result<()> {
        let mut message = Message { event: 0, reserved: [0; 7], words: [0; 3] };
        let into = std::ptr::from_mut(&mut message).cast();
        // SAFETY: the buffer is one message long, and any bytes are a valid message.
        let len = unsafe { libc::read(self.fd.as_raw_fd(), into, size_of::<Message>()) };
        if len < 0 {
            let error = io::Error::last_os_error();
            let again = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if again { Ok(()) } else { Err(error) };
        }
        // Addresses of this process fit a `usize`.
        let [first, second, third] = message.words.map(|word| usize::try_from(word).unwrap_or(usize::MAX));
        match message.event {
            EVENT_UNMAP | EVENT_REMOVE => self.ring.push(first, second),
            EVENT_REMAP => self.ring.push(first, first.saturating_add(third)),
            _ => debug_assert!(false, "event {:#x}, which nobody asked for ({second:#x})", message.event),
        }
        Ok(())
    }
}

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{what}: {}", io::Error::last_os_error()))
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({})", self.fd.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::*;

    #[test]
    fn a_ring_keeps_what_fits_and_says_when_it_did_not() {
        let ring = Ring::new();
        let drain = || {
            let mut ranges = Vec::new();
            ring.drain(|range| ranges.push(range));
            ranges
        };
        for round in 0..RING + 3 {
            ring.push(round, round + 1);
        }
        let ranges = drain();
        assert_eq!((ranges.len(), ranges[0], ranges[1]), (RING + 1, None, Some((0, 1))));
        ring.push(7, 9);
        assert_eq!(drain(), [Some((7, 9))]);
        assert!(drain().is_empty());
    }

    #[test]
    fn unmapped_memory_is_forgotten_by_itself() {
        const LEN: usize = 1 << 20;
        let foreign = Foreign::new();
        let watch = match Watch::new(&foreign) {
            Ok(watch) => watch,
            Err(error) => {
                // Without the permission, the kernel's refusal is the documented behaviour.
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                return;
            }
        };
        let map = || {
            let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping at an address that the kernel chooses.
            NonNull::new(unsafe { libc::mmap(std::ptr::null_mut(), LEN, rights, flags, -1, 0) }).unwrap().cast::<u8>()
        };
        let watch = Arc::new(watch);
        let first = map();
        watch.cover(Extent::new(first, LEN)).unwrap();
        // SAFETY: mapped, and not touched otherwise. No slices are left of what is unmapped below.
        let id = |at, parent| unsafe { foreign.slice(Extent::new(at, 100), parent) }.unwrap().memory().id();
        let before = id(first, Some(Extent::new(first, LEN)));
        let last = first.map_addr(|addr| addr.saturating_add(LEN - 100));
        assert_eq!(id(last, None), before);
        assert_eq!(Watch::new(&foreign).unwrap_err().kind(), ErrorKind::Unsupported, "one watch only");
        let waiting = Arc::clone(&watch);
        let thread = std::thread::Builder::new().spawn(move || waiting.wait()).unwrap();
        // SAFETY: the mapping above. The call blocks until the thread has read the event.
        assert_eq!(unsafe { libc::munmap(first.as_ptr().cast(), LEN / 2) }, 0);
        assert_ne!(id(last, None), before, "the range went with its first half");
        thread.join().unwrap().unwrap();
        // The other half is still watched. It is released with the watch.
        drop(watch);
        // SAFETY: the rest of the mapping.
        assert_eq!(unsafe { libc::munmap(first.as_ptr().wrapping_add(LEN / 2).cast(), LEN / 2) }, 0);
    }
}
