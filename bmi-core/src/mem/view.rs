//! Views: pages of one process that others of the same host read where they are.
//!
//! **Why.** A server that has the bytes in memory can let a client on the same host read them
//! there, and nothing is copied. Such a loan must not depend on what the client does. So the owner
//! never waits for a reader: it changes or takes away the pages whenever it wants to, and first
//! changes a word beside them. A reader looks at that word before and after it reads.
//!
//! ```text
//!   owner                                     reader
//!     store bytes                               v = word, fence
//!     word = v               (publish)          read bytes
//!       …                                       fence, is word still v?   no: what was read is void
//!     word = 0, fence        (withdraw)
//!     change or give back the pages
//! ```
//!
//! **Invariants**
//! 1. [`PublishedPages`] leave this process only by a descriptor that is open for reading. Another
//!    process cannot map it writable. One of the same user could open the file again, and could
//!    reach this process's memory anyway.
//! 2. The file cannot shrink. A page that was given back reads as zeros, and no access faults.
//! 3. A [`RemoteView`] gives out no reference to the bytes and never writes them. They stay mapped
//!    until its last clone is dropped, whatever the peer does.
//!
//! **Why the descriptor and not a seal.** The seal against future writes also forbids the owner to
//! punch holes: memory could then not be taken back while a reader has it mapped.
//!
//! **Limits.** A reader that touches a page that was given back makes the system allocate a page of
//! zeros. So an owner gives back all pages again when it drops them.
//!
//! **Tests** are below, in `bmi-shm/tests/it/views.rs`, and in
//! `fs-client/tests/it/transports/views.rs`.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{MemSlice, Memory, SharedPages};

/// Pages of this process that others may read. They are zeros in the beginning, and take memory as
/// far as they are touched.
pub struct PublishedPages {
    memory: Memory,
    pages: Arc<SharedPages>,
}

impl PublishedPages {
    /// Creates pages for `len` bytes.
    ///
    /// # Errors
    /// The system's: no memory, no descriptor. `Unsupported` where files cannot be sealed.
    pub fn new(len: usize) -> io::Result<PublishedPages> {
        let pages = Arc::new(SharedPages::published(len)?);
        Ok(PublishedPages { memory: Memory::passable(&pages), pages })
    }

    /// Returns the memory, to be exposed for reading.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.memory.len(), "a word at {at} of {:?}", self.memory);
        // SAFETY: the word is aligned, because the mapping is, and lies in it. The memory keeps the
        // mapping. Others only read it, or write it atomically.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(at).cast()) }
    }

    /// Sets the word at a multiple of 8. What was stored before is visible to whoever reads this
    /// value.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn publish(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    /// Sets words to zero. A reader that sees anything that happens afterwards, also to the pages,
    /// sees the zeros too.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn withdraw(&self, words: impl IntoIterator<Item = usize>) {
        words.into_iter().for_each(|at| self.word(at).store(0, Ordering::Relaxed));
        fence(Ordering::SeqCst);
    }

    /// Gives the pages of `len` bytes back to the system, whoever has them mapped. They are zeros
    /// then. The range must consist of whole pages. Returns false if the system refuses.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn give_back(&self, at: usize, len: usize) -> bool {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.memory.len()), "{len} bytes at {at}");
        self.pages.give_back(at, len)
    }

    /// Returns the bytes of memory that the pages take now.
    pub fn resident(&self) -> u64 {
        self.pages.resident()
    }
}

impl Drop for PublishedPages {
    /// Readers that keep the pages mapped keep no bytes, except those that they touch again. Nobody
    /// gets the pages any more, although an exposure may still hold them.
    fn drop(&mut self) {
        self.give_back(0, self.memory.len());
        self.pages.close();
    }
}

impl fmt::Debug for PublishedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublishedPages[{}]", self.memory.len())
    }
}

/// The process that owns viewed pages.
pub trait Lender: Send + Sync {
    /// Returns false if the process is dead: nobody changes its words any more.
    fn is_alive(&self) -> bool;
}

/// A piece of a peer's memory that is mapped in this process, for reading only
/// ([`Transport::view_remote`](crate::Transport::view_remote)). Cheap to clone; may be sent to
/// another thread.
#[derive(Clone)]
pub struct RemoteView {
    slice: MemSlice,
    lender: Arc<dyn Lender>,
}

impl RemoteView {
    /// Wraps a mapped piece. For backends.
    pub fn new(slice: MemSlice, lender: Arc<dyn Lender>) -> RemoteView {
        RemoteView { slice, lender }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.slice.is_empty()
    }

    /// Returns the address of the bytes, which is valid as long as a clone of this value lives. The
    /// peer may change them at any moment, so a reference to them would be unsound.
    pub fn as_ptr(&self) -> *const u8 {
        self.slice.as_ptr()
    }

    /// Returns the word at `at`, or `None` if the view has no such word or it is not aligned.
    /// Nothing that is read afterwards is older than the word.
    pub fn word(&self, at: usize) -> Option<u64> {
        let end = at.checked_add(8).filter(|end| *end <= self.len())?;
        let ptr = self.as_ptr().wrapping_add(end - 8).cast::<u64>().cast_mut();
        if !ptr.is_aligned() {
            return None;
        }
        // SAFETY: the word is aligned and lies in the view, which stays mapped (invariant 3). It is
        // only loaded, relaxed, which read-only memory allows.
        let word = unsafe { AtomicU64::from_ptr(ptr) }.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        Some(word)
    }

    /// Copies the bytes at `at` to `to`. They may be a mixture of old and new ones.
    ///
    /// # Panics
    /// If the range is not within the view.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) {
        assert!(at.checked_add(to.len()).is_some_and(|end| end <= self.len()), "{} bytes at {at}", to.len());
        self.slice.memory().copy_to(self.slice.offset() + at, to);
    }

    /// Makes sure that everything was read that the caller has read before. Call it before the
    /// words are looked at again.
    pub fn end_read(&self) {
        fence(Ordering::Acquire);
    }

    /// Returns false if the peer's process is dead. Costs a system call.
    pub fn is_alive(&self) -> bool {
        self.lender.is_alive()
    }
}

impl fmt::Debug for RemoteView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteView[{}]", self.len())
    }
}

#[cfg(all(test, any(target_os = "linux", target_os = "android"), not(miri)))]
mod tests {
    use rustix::fs::OFlags;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    const PAGE: usize = 4096;

    struct Here;

    impl Lender for Here {
        fn is_alive(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_descriptor_of_published_pages_cannot_be_mapped_writable_or_cut() {
        let published = PublishedPages::new(4 * PAGE).unwrap();
        published.memory().copy_from(PAGE, b"bytes");
        let fd = published.memory().shared_pages().unwrap().descriptor().unwrap();
        let flags = rustix::fs::fcntl_getfl(&fd).unwrap();
        assert_eq!(flags & OFlags::ACCMODE, OFlags::RDONLY);
        let map = |access| {
            // SAFETY: a new mapping at an address of the kernel's choice touches nothing.
            unsafe { mmap(std::ptr::null_mut(), PAGE, access, MapFlags::SHARED, &fd, PAGE as u64) }
        };
        assert!(map(ProtFlags::READ | ProtFlags::WRITE).is_err() && map(ProtFlags::WRITE).is_err());
        let mapped = map(ProtFlags::READ).unwrap();
        // SAFETY: the mapping has a page, and is unmapped below.
        assert_eq!(unsafe { mapped.cast::<u8>().read_volatile() }, b'b');
        // SAFETY: as above; nothing points into it.
        unsafe { munmap(mapped, PAGE) }.unwrap();
        assert!(rustix::fs::ftruncate(&fd, 0).is_err() && rustix::io::pwrite(&fd, b"x", 0).is_err());
        let mode = rustix::fs::fstat(&fd).unwrap().st_mode & 0o777;
        assert_eq!(mode, 0o400, "no other user may open it");
    }

    #[test]
    fn pages_go_back_although_others_have_them_mapped() {
        let published = PublishedPages::new(16 * PAGE).unwrap();
        assert_eq!(published.resident(), 0);
        published.memory().copy_from(0, &[7; 16 * PAGE]);
        assert_eq!(published.resident(), 16 * PAGE as u64);
        let view = RemoteView::new(published.memory().all(), Arc::new(Here));
        assert!(published.give_back(4 * PAGE, 8 * PAGE));
        assert_eq!(published.resident(), 8 * PAGE as u64);
        let mut bytes = [1; 2];
        view.copy_to(4 * PAGE - 1, &mut bytes);
        assert_eq!(bytes, [7, 0]);
        let pages = published.memory().shared_pages().unwrap().clone();
        let file = pages.descriptor().unwrap();
        drop(published);
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0, "the view keeps the mapping, and nothing in it");
        assert!(pages.descriptor().is_none(), "and nobody else gets it");
        view.copy_to(0, &mut bytes);
        assert_eq!(bytes, [0, 0]);
    }

    #[test]
    fn words_are_within_the_view_and_aligned() {
        let published = PublishedPages::new(PAGE).unwrap();
        published.publish(8, 5);
        published.publish(PAGE - 8, 6);
        let view = RemoteView::new(published.memory().slice(0, PAGE), Arc::new(Here));
        assert_eq!([view.word(8), view.word(PAGE - 8), view.word(0)], [Some(5), Some(6), Some(0)]);
        assert_eq!([view.word(4), view.word(PAGE - 7), view.word(usize::MAX)], [None; 3]);
        published.withdraw([8]);
        assert_eq!([view.word(8), view.word(PAGE - 8)], [Some(0), Some(6)]);
        let odd = RemoteView::new(published.memory().slice(1, 64), Arc::new(Here));
        assert_eq!((odd.word(0), odd.word(7)), (None, Some(0)));
    }
}
