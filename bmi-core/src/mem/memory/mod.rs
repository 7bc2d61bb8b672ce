//! The owner of bytes that an adapter may touch. The bytes are allocated here, or taken over from a
//! `Vec`, from [`Bytes`] or from a mapping.

mod lend;
mod strided;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::{Bytes, BytesMut};

use super::{MemSlice, Pages, RemotePages, SharedPages, copy};
use crate::error::{Error, ErrorKind};
use crate::sync::Returns;
pub use strided::Strided;

/// Size of a page, in bytes. Allocations are aligned to it, because adapters register pages and
/// direct I/O requires the alignment.
const PAGE: usize = 4096;
/// Length in bytes from which on an allocator asks the system for separate pages, at least until
/// such a piece was freed for the first time. It is `M_MMAP_THRESHOLD` of the GNU C library.
const FRESH: usize = 128 << 10;

/// Identifies a [`Memory`] as long as the process runs. No id is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryId(u64);

/// A counted handle to bytes that an adapter may touch. The [module](super) has the rules.
#[derive(Clone)]
pub struct Memory(Arc<Inner>);

struct Inner {
    id: MemoryId,
    ptr: NonNull<u8>,
    len: usize,
    backing: Backing,
    /// The pin-down caches that have, or had, a registration of this memory. They are notified when
    /// the last handle is gone. One entry for each endpoint.
    watchers: Mutex<Vec<Weak<Returns<MemoryId>>>>,
    /// The number of its retirements.
    retired: AtomicUsize,
}

/// Keeps a memory retired (see [`Memory::is_retired`]), and holds it.
#[derive(Debug)]
pub struct Retirement(Memory);

impl Retirement {
    /// Returns the memory.
    pub fn memory(&self) -> &Memory {
        &self.0
    }
}

impl Drop for Retirement {
    fn drop(&mut self) {
        self.0.0.retired.fetch_sub(1, Ordering::Relaxed);
    }
}

enum Backing {
    /// Part of an allocation of `alloc_zeroed` with this layout, which begins at `base`.
    Pages { base: NonNull<u8>, layout: Layout },
    /// Pages of their own.
    Mapped(Pages),
    /// The parts of a `Vec<u8>`: its pointer and length are `ptr` and `len`.
    Vec { capacity: usize },
    /// Pages that can be shared with another process.
    Passable(Arc<SharedPages>),
    /// Bytes of another owner, kept alive by this value.
    Foreign { keep: Option<Box<dyn Any + Send + Sync>>, read_only: bool },
    /// Bytes that other memories may refer to too (see [`super::Foreign`]).
    Shared,
    /// Bytes of a buffer whose other handles may read them at any time. They are read-only.
    Shareable(Bytes),
    /// Bytes that nothing else can reach.
    Exclusive { _keep: BytesMut },
    /// Bytes of a peer, mapped as long as this value lives.
    Lent { _pages: RemotePages },
}

// SAFETY: the bytes are reached only through `copy` (atomic accesses), through the kernel, or
// through `get_mut`, which needs the only handle. The pointer itself never changes.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Memory {
    fn new(ptr: NonNull<u8>, len: usize, backing: Backing) -> Memory {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = MemoryId(NEXT.fetch_add(1, Ordering::Relaxed));
        Memory(Arc::new(Inner { id, ptr, len, backing, watchers: Mutex::default(), retired: AtomicUsize::new(0) }))
    }

    /// Makes memory of bytes that have another owner, and that other memories may refer to too.
    ///
    /// # Safety
    /// As [`Memory::from_raw_parts`], until the last handle is gone.
    pub(super) unsafe fn shared(ptr: NonNull<u8>, len: usize) -> Memory {
        Memory::new(ptr, len, Backing::Shared)
    }

    /// Makes memory of a peer's bytes, which the peer may change at any time. The pages are
    /// returned with the last handle. They are never given out as `&mut`.
    pub(super) fn lent(pages: RemotePages) -> Memory {
        let ptr = NonNull::new(pages.as_ptr()).expect("pages are mapped somewhere");
        Memory::new(ptr, pages.len(), Backing::Lent { _pages: pages })
    }

    /// Makes the memory notify `watcher` when the last handle is gone.
    pub(crate) fn watch(&self, watcher: &Arc<Returns<MemoryId>>) {
        let mut watchers = self.0.watchers.lock().unwrap_or_else(PoisonError::into_inner);
        if !watchers.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(watcher))) {
            // Remove the watchers of endpoints that are gone.
            watchers.retain(|known| known.strong_count() > 0);
            watchers.push(Arc::downgrade(watcher));
        }
    }

    /// Allocates `len` zero bytes, page-aligned.
    ///
    /// # Errors
    /// `Exhausted` if the allocator has no more memory.
    pub fn zeroed(len: usize) -> Result<Memory, Error> {
        if len == 0 {
            return Ok(Memory::from(Vec::new()));
        }
        let exhausted = || Error::new(ErrorKind::Exhausted, format!("no memory for a buffer of {len} bytes"));
        // If the alignment is larger than usual, the allocator zeroes memory by writing every page.
        // A long piece with the usual alignment comes fresh from the system. It is zero, and its
        // pages become resident when they are first touched. An idle endpoint touches few pages.
        let (size, align) = if len < FRESH { (len, PAGE) } else { (len.checked_add(PAGE).ok_or_else(exhausted)?, 16) };
        let layout = Layout::from_size_align(size, align).map_err(|_| exhausted())?;
        // SAFETY: the layout is not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(exhausted)?;
        let skip = base.addr().get().next_multiple_of(PAGE) - base.addr().get();
        assert!(skip.checked_add(len).is_some_and(|end| end <= size), "a page was added to align the beginning");
        // SAFETY: `skip` and the `len` bytes behind it were just checked to be in the allocation.
        let ptr = unsafe { base.add(skip) };
        Ok(Memory::new(ptr, len, Backing::Pages { base, layout }))
    }

    /// Maps `len` zero bytes in pages of their own ([`Pages`]). They become resident when they are
    /// first touched, and go back to the system with the last handle. Costs two system calls, and
    /// one at the end. It is meant for long memory of which few bytes are used.
    ///
    /// # Errors
    /// As [`Memory::zeroed`].
    pub fn sparse(len: usize) -> Result<Memory, Error> {
        let pages = Pages::new(len)?;
        Ok(Memory::new(pages.as_ptr(), len, Backing::Mapped(pages)))
    }

    /// Gives the pages of [`Memory::sparse`] back to the system, and returns true. The bytes are
    /// zeros then. Returns false, and does nothing, for other memory.
    pub(crate) fn discard(&self) -> bool {
        match &self.0.backing {
            Backing::Mapped(pages) => {
                pages.discard_shared();
                true
            }
            _ => false,
        }
    }

    /// `len` zero bytes in pages that another process of this host can be given
    /// ([`Memory::shared_pages`]), so that a transport between processes moves them without help of
    /// the kernel, or not at all. Every other transport takes them as it takes any memory. Costs
    /// three system calls and a descriptor for as long as the memory lives. It is plain memory
    /// where the system has no more descriptors, and on other systems than Linux.
    ///
    /// A peer to which part of such memory was exposed can reach **all of it**, as long as it keeps
    /// the pages mapped. Do not put secrets beside exposed bytes.
    ///
    /// # Errors
    /// As [`Memory::zeroed`].
    pub fn shareable(len: usize) -> Result<Memory, Error> {
        Memory::in_shared_pages(len, false)
    }

    /// The same as [`Memory::shareable`], for memory that is exposed to a single peer. The
    /// descriptor is closed as soon as that peer has the pages. Other peers reach the memory as
    /// they reach plain memory, and so does that one if it unmaps the pages.
    ///
    /// # Errors
    /// As [`Memory::zeroed`].
    pub fn shareable_with_one(len: usize) -> Result<Memory, Error> {
        Memory::in_shared_pages(len, true)
    }

    fn in_shared_pages(len: usize, for_one: bool) -> Result<Memory, Error> {
        match SharedPages::new(len, for_one) {
            Ok(pages) => Ok(Memory::passable(&Arc::new(pages))),
            Err(_) => Memory::zeroed(len),
        }
    }

    /// Makes memory of pages that can be shared with other processes.
    pub(super) fn passable(pages: &Arc<SharedPages>) -> Memory {
        Memory::new(pages.as_ptr(), pages.len(), Backing::Passable(pages.clone()))
    }

    /// Returns the pages that contain the memory, if they can be shared with another process.
    pub fn shared_pages(&self) -> Option<&Arc<SharedPages>> {
        match &self.0.backing {
            Backing::Passable(pages) => Some(pages),
            _ => None,
        }
    }

    /// Takes over bytes of another owner, such as a shared mapping. `keep` is dropped with the last
    /// handle. That may be inside of an endpoint, when an operation ends. So `keep` must not use
    /// the endpoint, and a panic of its destructor is logged and goes no further.
    ///
    /// # Safety
    /// Until `keep` is dropped, `ptr` must stay valid for reads and writes of `len` bytes. No
    /// reference to the bytes may exist. All other accesses to them must be atomic, or through the
    /// kernel.
    pub unsafe fn from_raw_parts(ptr: NonNull<u8>, len: usize, keep: Box<dyn Any + Send + Sync>) -> Memory {
        Memory::new(ptr, len, Backing::Foreign { keep: Some(keep), read_only: false })
    }

    /// Takes over bytes of another owner that must not be written ([`Memory::is_read_only`]), such
    /// as those of a mapped file. `keep` is that of [`Memory::from_raw_parts`].
    ///
    /// # Safety
    /// Until `keep` is dropped, `ptr` must stay valid for reads of `len` bytes. No reference to the
    /// bytes may exist. They may change at any time, by atomic accesses or through the kernel.
    pub unsafe fn from_raw_parts_read_only(ptr: NonNull<u8>, len: usize, keep: Box<dyn Any + Send + Sync>) -> Memory {
        Memory::new(ptr, len, Backing::Foreign { keep: Some(keep), read_only: true })
    }

    /// Returns the id.
    #[inline]
    pub fn id(&self) -> MemoryId {
        self.0.id
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Returns true if the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Returns the address of the bytes, for the kernel and for adapters. A reference made from it
    /// would break invariant 2.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.ptr.as_ptr()
    }

    /// Returns the bytes, if this is the only handle: there is no outstanding operation, no
    /// exposure, no [`super::MemoryRegion`] and no clone. A registration that the pin-down cache
    /// keeps after use is not a handle. Returns `None` for memory of [`super::Foreign`], for memory
    /// of a peer, and for read-only memory.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_read_only() {
            return None;
        }
        let inner = Arc::get_mut(&mut self.0)
            .filter(|inner| !matches!(inner.backing, Backing::Shared | Backing::Lent { .. }))?;
        // SAFETY: the only handle is borrowed exclusively. So nothing else can reach the bytes
        // while the reference lives: work requests and exposures hold handles, and posting a new
        // one needs a handle. Bytes that other memories may refer to, bytes of a peer and read-only
        // bytes were excluded above.
        Some(unsafe { std::slice::from_raw_parts_mut(inner.ptr.as_ptr(), inner.len) })
    }

    /// Returns the bytes as a `Vec`. They are not copied if they came from a `Vec` and this is the
    /// only handle.
    pub fn into_vec(mut self) -> Vec<u8> {
        if let Some(inner) = Arc::get_mut(&mut self.0)
            && let Backing::Vec { capacity } = inner.backing
        {
            // SAFETY: pointer, length and capacity are those of the vector that was taken apart in
            // `from`. They are replaced by those of an empty vector, so the drop below does
            // nothing.
            let vec = unsafe { Vec::from_raw_parts(inner.ptr.as_ptr(), inner.len, capacity) };
            (inner.ptr, inner.len, inner.backing) = (NonNull::dangling(), 0, Backing::Vec { capacity: 0 });
            return vec;
        }
        self.to_vec()
    }

    /// Returns true if the bytes must not be written: the memory was made of [`Bytes`], or by
    /// [`Memory::from_raw_parts_read_only`]. It can be sent, pushed and exposed for reading.
    /// Operations that would write to it are refused as `Invalid`.
    #[inline]
    pub fn is_read_only(&self) -> bool {
        matches!(self.0.backing, Backing::Shareable(_) | Backing::Foreign { read_only: true, .. })
    }

    /// Marks the memory as retired as long as the returned value lives. For backends.
    pub fn retire(&self) -> Retirement {
        self.0.retired.fetch_add(1, Ordering::Relaxed);
        Retirement(self.clone())
    }

    /// Returns true if an operation on the memory has ended while its peer may still access the
    /// bytes ([`Transport::retired_memory`](crate::Transport::retired_memory)), if a call was
    /// dropped whose server may ([`comm::Call`](crate::comm::Call)), or as long as a client may
    /// write a grant ([`Engine::post_grant`](crate::Engine::post_grant)). A pool must not use
    /// such memory again. Dropping it is safe, because the backend or the endpoint holds it.
    pub fn is_retired(&self) -> bool {
        self.0.retired.load(Ordering::Relaxed) > 0
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(0, &mut bytes);
        bytes
    }

    /// Copies `from` to the bytes at `offset`.
    ///
    /// # Panics
    /// If the range is not within the memory, or the memory is read-only.
    #[inline]
    pub fn copy_from(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        self.check_writable();
        // SAFETY: the range was checked. Invariant 1 keeps it valid. Invariant 2 makes all other
        // accesses atomic.
        unsafe { copy::copy_in(self.as_ptr().add(offset), from) }
    }

    /// Copies the bytes at `offset` to `to`.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: as in `copy_from`.
        unsafe { copy::copy_out(to, self.as_ptr().add(offset)) }
    }

    /// Copies `len` bytes at `at` of another memory to the bytes at `offset`.
    ///
    /// # Panics
    /// If a range is not within its memory, or this memory is read-only.
    #[inline]
    pub fn copy_from_memory(&self, offset: usize, from: &Memory, at: usize, len: usize) {
        self.check(offset, len);
        from.check(at, len);
        self.check_writable();
        // SAFETY: as in `copy_from`, for both.
        unsafe { copy::copy_between(self.as_ptr().add(offset), from.as_ptr().add(at), len) };
    }

    /// Returns the `len` bytes at `offset`.
    ///
    /// # Panics
    /// If the range is not within the memory.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> MemSlice {
        self.check(offset, len);
        MemSlice::new(self.clone(), offset, len)
    }

    /// Returns all bytes.
    pub fn all(&self) -> MemSlice {
        self.slice(0, self.len())
    }

    /// Checks that the memory may be written.
    ///
    /// # Panics
    /// If it is read-only.
    #[inline]
    pub(crate) fn check_writable(&self) {
        assert!(!self.is_read_only(), "{self:?} is read-only");
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len()),
            "{len} bytes at {offset} lie outside a memory of {} bytes",
            self.len()
        );
    }
}

impl From<Vec<u8>> for Memory {
    /// Takes over the vector without a copy.
    fn from(mut vec: Vec<u8>) -> Memory {
        let (ptr, len, capacity) = (vec.as_mut_ptr(), vec.len(), vec.capacity());
        std::mem::forget(vec);
        let ptr = NonNull::new(ptr).expect("a vector's pointer is never null");
        Memory::new(ptr, len, Backing::Vec { capacity })
    }
}

impl From<Bytes> for Memory {
    /// Makes read-only memory of the bytes ([`Memory::is_read_only`]), without a copy.
    fn from(bytes: Bytes) -> Memory {
        let ptr = NonNull::new(bytes.as_ptr().cast_mut()).expect("a slice is never null");
        Memory::new(ptr, bytes.len(), Backing::Shareable(bytes))
    }
}

impl From<BytesMut> for Memory {
    /// Takes over the bytes without a copy. They can be written.
    fn from(mut bytes: BytesMut) -> Memory {
        let ptr = NonNull::new(bytes.as_mut_ptr()).expect("a slice is never null");
        Memory::new(ptr, bytes.len(), Backing::Exclusive { _keep: bytes })
    }
}

impl From<Memory> for Bytes {
    /// Calls [`Memory::into_bytes`].
    fn from(memory: Memory) -> Bytes {
        memory.into_bytes()
    }
}

/// Drops a value of the program. The endpoint may do so in the middle of its work, which a panic
/// would leave half done: operations of others would not end.
fn drop_of_program<V>(value: V) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        tracing::error!("the owner of memory panicked when it was dropped");
        // The destructor of the panic's value may panic too.
        std::mem::forget(panic);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match &mut self.backing {
            // SAFETY: `zeroed` allocated it with this layout, and the last handle is gone.
            Backing::Pages { base, layout } => unsafe { dealloc(base.as_ptr(), *layout) },
            // SAFETY: these are the parts of the vector that was taken apart in `from`.
            Backing::Vec { capacity } => drop(unsafe { Vec::from_raw_parts(self.ptr.as_ptr(), self.len, *capacity) }),
            Backing::Foreign { keep, .. } => drop_of_program(keep.take()),
            // Bytes may be of an owner of the program.
            Backing::Shareable(bytes) => drop_of_program(std::mem::take(bytes)),
            // The last handle of the pages unmaps them. Only this memory gives out such handles.
            Backing::Mapped(_)
            | Backing::Passable(_)
            | Backing::Shared
            | Backing::Exclusive { .. }
            | Backing::Lent { .. } => {}
        }
        for watcher in self.watchers.get_mut().unwrap_or_else(PoisonError::into_inner) {
            if let Some(watcher) = watcher.upgrade() {
                watcher.push(self.id);
            }
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory#{}[{}]", self.0.id.0, self.len())
    }
}

#[cfg(test)]
mod tests;
