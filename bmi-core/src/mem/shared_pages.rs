//! Pages that can be shared with another process: a sealed `memfd` and its mapping.
//!
//! **Why.** Memory that two processes of one host have both mapped needs one copy without the
//! kernel, or no transfer at all. A backend needs only the descriptor, and passes it to the other
//! process in its own way.
//!
//! **Invariants**
//! 1. The file is as long as the mapping for its whole life: it is sealed against shrinking and
//!    growing before anybody else can have it. So no access to the mapping, in any process, ends in
//!    `SIGBUS`.
//! 2. The mapping lives as long as this value. Backends keep a [`std::sync::Weak`] if they only
//!    want to know whether it still does.
//! 3. The descriptor of published pages ([`super::PublishedPages`]) is open for reading only.
//! 4. The descriptor lives as long as the mapping, or, for pages that are for one process only,
//!    until that process has them. An endpoint has such pages for each connection.
//!
//! **Limits.** Only Linux has files that are sealed. On other systems no value of this type can be
//! made; [`Memory::shareable`](super::Memory::shareable) then returns ordinary memory.

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::mm::Advice;
use rustix::mm::{MapFlags, ProtFlags};

/// A sealed `memfd`, all of which is mapped readable and writable here.
pub struct SharedPages {
    ptr: NonNull<u8>,
    len: usize,
    fd: Mutex<Option<Arc<OwnedFd>>>,
    for_one: bool,
}

// SAFETY: an address range and a descriptor are valid on every thread. The bytes are accessed by
// the rules of `Memory`.
unsafe impl Send for SharedPages {}
// SAFETY: as above.
unsafe impl Sync for SharedPages {}

impl SharedPages {
    /// Creates pages for `len` zero bytes, for any number of other processes or for one.
    pub(super) fn new(len: usize, for_one: bool) -> io::Result<SharedPages> {
        if len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        SharedPages::map(sealed_file(len)?, len, for_one)
    }

    /// Creates pages for `len` zero bytes that any other process can only read. Its descriptor is
    /// open for reading only.
    pub(super) fn published(len: usize) -> io::Result<SharedPages> {
        if len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fd = sealed_file(len)?;
        let readable = readable_file(&fd)?;
        let pages = SharedPages::map(fd, len, false)?;
        *pages.fd.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(readable));
        Ok(pages)
    }

    fn map(fd: OwnedFd, len: usize, for_one: bool) -> io::Result<SharedPages> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let ptr = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)?
        };
        let ptr = NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedPages { ptr, len, fd: Mutex::new(Some(Arc::new(fd))), for_one })
    }

    /// Gives pages back to the system, also if others have them mapped. They are zeros then.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(super) fn give_back(&self, at: usize, len: usize) -> bool {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: the range was just checked to lie in the mapping. The bytes become zeros, as they
        // would by a write of another process.
        let done = unsafe { rustix::mm::madvise(self.ptr.as_ptr().add(at).cast(), len, Advice::LinuxRemove) };
        if let Err(error) = done {
            tracing::warn!(%error, "pages cannot be given back");
        }
        done.is_ok()
    }

    /// Does nothing: this system has no such pages.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(super) fn give_back(&self, _at: usize, _len: usize) -> bool {
        false
    }

    /// Returns the bytes of memory that the pages take now, 0 if that is not known.
    pub(super) fn resident(&self) -> u64 {
        let blocks = self.descriptor().and_then(|fd| rustix::fs::fstat(fd).ok()).map_or(0, |stat| stat.st_blocks);
        u64::try_from(blocks).unwrap_or(0) * 512
    }

    pub(super) fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Returns the length of the file and of the mapping in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the descriptor of the file, to pass to another process. Returns `None` if the pages
    /// are for one process only and it has them, or if their owner has given them up.
    pub fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.fd.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that another process has mapped the pages. Returns whether they were for that process
    /// only. Their descriptor is then closed, and they cannot be passed again.
    pub fn was_mapped(&self) -> bool {
        if self.for_one {
            self.close();
        }
        self.for_one
    }

    /// Closes the descriptor: the pages cannot be passed any more.
    pub(super) fn close(&self) {
        let fd = self.fd.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(fd);
    }

    /// Returns false, because there are no empty shared pages.
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// Creates a file of `len` zero bytes that has no name and whose length cannot change.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn sealed_file(len: usize) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};

    let fd = rustix::fs::memfd_create("bmi-memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Opens such a file again, for reading only, and closes it to all other users.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn readable_file(fd: &OwnedFd) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsRawFd;

    rustix::fs::fchmod(fd, Mode::RUSR)?;
    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Fails, as [`sealed_file`] does.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn readable_file(_fd: &OwnedFd) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails: this system cannot seal a file, so invariant 1 could not be kept.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn sealed_file(_len: usize) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping with this length, and the last handle is gone
        // (invariant 2).
        if let Err(error) = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast::<c_void>(), self.len) } {
            tracing::error!(%error, "cannot unmap shared memory");
        }
    }
}

impl fmt::Debug for SharedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedPages[{}]", self.len)
    }
}

#[cfg(test)]
mod tests {
    use crate::mem::Memory;

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn shared_pages_cannot_be_cut_and_hold_what_the_memory_holds() {
        let mut memory = Memory::shareable(5000).unwrap();
        memory.get_mut().unwrap()[4999] = 7;
        let pages = memory.shared_pages().unwrap();
        assert_eq!(pages.len(), 5000);
        let file = pages.descriptor().unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err(), "sealed");
        assert!(rustix::fs::ftruncate(&file, 9000).is_err(), "sealed");
        let mut byte = [0];
        assert_eq!(rustix::io::pread(&file, &mut byte, 4999).unwrap(), 1);
        assert_eq!(byte, [7]);
        assert!(!pages.was_mapped() && pages.descriptor().is_some(), "other processes may get them");
        let weak = std::sync::Arc::downgrade(pages);
        drop(memory);
        assert_eq!(weak.strong_count(), 0);
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn pages_for_one_process_give_up_their_descriptor_when_it_has_them() {
        let mut memory = Memory::shareable_with_one(5000).unwrap();
        let pages = memory.shared_pages().unwrap();
        let descriptor = std::sync::Arc::downgrade(&pages.descriptor().unwrap());
        assert!(descriptor.upgrade().is_some() && pages.was_mapped());
        assert!(descriptor.upgrade().is_none() && pages.descriptor().is_none() && pages.was_mapped());
        memory.get_mut().unwrap()[4999] = 7;
        assert_eq!(memory.to_vec()[4998..], [0, 7], "the pages stay mapped");
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    #[test]
    fn shareable_memory_is_ordinary_memory_where_no_file_can_be_sealed() {
        let memory = Memory::shareable(5000).unwrap();
        assert!(memory.shared_pages().is_none());
        assert_eq!(memory.len(), 5000);
    }

    #[test]
    fn nothing_is_plain_memory() {
        assert!(Memory::shareable(0).unwrap().shared_pages().is_none());
    }
}
