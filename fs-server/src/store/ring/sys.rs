//! A ring of the kernel (io_uring): calls that it makes on its own, and their results. The memory
//! that is shared with the kernel, and the system calls, are only here.
//!
//! **Layout.** Two queues are in memory that the kernel and this process share, and a table of
//! requests. A queue has a head, where its consumer is, and a tail, where its producer is. Both
//! only grow, and are taken modulo the number of entries.
//!
//! ```text
//!   requests      │ slot 0 │ slot 1 │ …          one request for each entry of the first queue
//!   submissions   head ── kernel takes ── tail   this process appends
//!   completions   head ── this process takes ── tail   the kernel appends: slot, result
//! ```
//!
//! **Invariants**
//! 1. *Memory outlives its call.* A slot owns the file and handles of all memory of its call, from
//!    before the kernel sees the request until its completion was taken. If the ring is dropped
//!    before that, the slots are leaked.
//! 2. A slot has one request at most that was not completed. There are as many entries as slots at
//!    least, and twice as many for completions, so neither queue is ever full.
//! 3. One thread at a time uses the ring, because its methods take `&mut self`. So heads and tails
//!    of this side change nowhere else.
//! 4. Indices come from the kernel masked, and slots are checked.
//!
//! **Source.** io_uring(7), io_uring_setup(2), io_uring_enter(2), `linux/io_uring.h`.
//!
//! **Tests.** `ring/tests.rs`.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use bmi_core::MemSlice;

use crate::store::sys::{count, vectors};

const OP_READV: u8 = 1;
const OP_WRITEV: u8 = 2;
/// The kernel makes the call on a thread of its own, which may wait.
const FLAG_ASYNC: u8 = 1 << 4;
/// The queues are one mapping (Linux 5.4).
const FEATURE_ONE_MAPPING: u32 = 1 << 0;
/// No completion is lost (5.5).
const FEATURE_NO_DROP: u32 = 1 << 1;
/// A request is read when it is submitted, and not later (5.5).
const FEATURE_STABLE: u32 = 1 << 2;
/// Calls that wait are made by threads of this process (5.12). Before that, some ended with errors
/// that a plain call has not.
const FEATURE_OWN_THREADS: u32 = 1 << 9;
const FEATURES: u32 = FEATURE_ONE_MAPPING | FEATURE_NO_DROP | FEATURE_STABLE | FEATURE_OWN_THREADS;
/// Waits for completions.
const ENTER_WAIT: u32 = 1 << 0;
const QUEUES_AT: libc::off_t = 0;
const REQUESTS_AT: libc::off_t = 0x1000_0000;

/// Offsets of the submission queue in its mapping.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SubmissionOffsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    address: u64,
}

/// Offsets of the completion queue in its mapping.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    overflow: u32,
    completions: u32,
    flags: u32,
    reserved: u32,
    address: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Parameters {
    submissions: u32,
    completions: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    workers: u32,
    reserved: [u32; 3],
    submission: SubmissionOffsets,
    completion: CompletionOffsets,
}

/// `struct io_uring_sqe`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    code: u8,
    flags: u8,
    priority: u16,
    descriptor: i32,
    offset: u64,
    address: u64,
    len: u32,
    call_flags: u32,
    user_data: u64,
    buffer: u16,
    personality: u16,
    file_index: u32,
    reserved: [u64; 2],
}

/// `struct io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

const _: () = assert!(size_of::<Parameters>() == 120 && size_of::<Request>() == 64 && size_of::<Completion>() == 16);

/// Memory that is shared with the kernel.
struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

impl Mapping {
    fn new(ring: &OwnedFd, at: libc::off_t, len: usize) -> io::Result<Mapping> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping is made, which replaces none.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, ring.as_raw_fd(), at) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { address, len })
    }

    /// Returns the address of `count` values at an offset.
    ///
    /// # Panics
    /// If they are not within the mapping, or not aligned.
    fn at<T>(&self, offset: u32, count: u32) -> NonNull<T> {
        let (offset, len) = (offset as usize, size_of::<T>() * count as usize);
        assert!(offset + len <= self.len && offset.is_multiple_of(align_of::<T>()), "the kernel's offsets are wrong");
        // SAFETY: the offset is within the mapping, which begins at a page.
        unsafe { self.address.add(offset).cast() }
    }

    /// Returns a number that both sides use.
    fn number(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the number is within the mapping and aligned, and lives as long as `self`. Both
        // sides access it only by atomic operations.
        unsafe { AtomicU32::from_ptr(self.at::<u32>(offset, 1).as_ptr()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new`. Pointers to it are used only while it lives.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.len) };
    }
}

/// A call for the kernel.
pub(super) struct Call<'a> {
    pub(super) file: &'a File,
    pub(super) writes: bool,
    pub(super) offset: libc::off_t,
    /// The memory, in at most as many pieces as a call takes.
    pub(super) pieces: Vec<MemSlice>,
    /// The call may wait for what it needs before it begins.
    pub(super) may_wait: bool,
}

/// A request that was not completed. Only here for its handles.
struct Flight<W> {
    /// Owns the file.
    work: W,
    _pieces: Vec<MemSlice>,
    _vectors: Vec<libc::iovec>,
}

/// A ring. Each call belongs to some work `W`, which owns the file of the call.
pub(super) struct RawRing<W> {
    // The slots come first: they are leaked before anything else is closed.
    slots: Slots<W>,
    queues: Mapping,
    requests: Mapping,
    ring: OwnedFd,
    parameters: Parameters,
    /// The next place in the submission queue.
    tail: u32,
}

/// The slots, of which those in flight outlive the ring.
struct Slots<W> {
    all: Vec<Option<Flight<W>>>,
    free: Vec<usize>,
}

impl<W> Drop for Slots<W> {
    fn drop(&mut self) {
        // The kernel may be at their memory.
        self.all.drain(..).flatten().for_each(std::mem::forget);
    }
}

// SAFETY: the pointers are to mappings that only this value uses, and to the vectors that it owns.
// None of that belongs to a thread.
unsafe impl<W: Send> Send for RawRing<W> {}

fn checked(result: libc::c_long) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| io::Error::last_os_error())
}

impl<W> RawRing<W> {
    /// Makes a ring with `slots` slots.
    ///
    /// # Errors
    /// `PermissionDenied` or `Unsupported` if the kernel has no rings for this process, and others.
    pub(super) fn new(slots: usize) -> io::Result<RawRing<W>> {
        let mut parameters = Parameters::default();
        let entries = u32::try_from(slots).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel reads and writes the parameters, which have its layout.
        let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, &raw mut parameters) };
        // SAFETY: the descriptor was just made, and nothing else has it.
        let ring = unsafe { OwnedFd::from_raw_fd(checked(made)? as libc::c_int) };
        if parameters.features & FEATURES != FEATURES {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring lacks what is needed"));
        }
        let Parameters { submissions, completions, submission, completion, .. } = parameters;
        let end = |offset: u32, count: u32, size: usize| offset as usize + count as usize * size;
        let len = end(submission.array, submissions, size_of::<u32>()).max(end(
            completion.completions,
            completions,
            size_of::<Completion>(),
        ));
        let queues = Mapping::new(&ring, QUEUES_AT, len)?;
        let requests = Mapping::new(&ring, REQUESTS_AT, submissions as usize * size_of::<Request>())?;
        assert!((submissions as usize) >= slots && completions >= submissions, "the kernel makes queues as large");
        let array = queues.at::<u32>(submission.array, submissions);
        for entry in 0..submissions {
            // SAFETY: the array has as many entries, and the kernel reads them only in `enter`.
            unsafe { array.add(entry as usize).write(entry) };
        }
        let tail = queues.number(submission.tail).load(Ordering::Relaxed);
        let slots = Slots { all: (0..slots).map(|_| None).collect(), free: (0..slots).rev().collect() };
        Ok(RawRing { slots, queues, requests, ring, parameters, tail })
    }

    /// Returns true if no call is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.slots.free.len() == self.slots.all.len()
    }

    /// Appends a call of some work. [`RawRing::enter`] hands it to the kernel.
    ///
    /// # Panics
    /// If all slots are in use.
    pub(super) fn begin(&mut self, work: W, call: impl FnOnce(&W) -> Call<'_>) {
        let Call { file, writes, offset, pieces, may_wait } = call(&work);
        let vectors = vectors(&pieces);
        let slot = self.slots.free.pop().expect("there are as many slots as the users may need");
        let request = Request {
            code: if writes { OP_WRITEV } else { OP_READV },
            flags: if may_wait { FLAG_ASYNC } else { 0 },
            descriptor: file.as_raw_fd(),
            offset: offset.cast_unsigned(),
            address: vectors.as_ptr().addr() as u64,
            len: count(&vectors) as u32,
            user_data: slot as u64,
            ..Request::default()
        };
        // Moving the vectors does not move what they have on the heap.
        self.slots.all[slot] = Some(Flight { work, _pieces: pieces, _vectors: vectors });
        let entry = self.tail & (self.parameters.submissions - 1);
        let requests = self.requests.at::<Request>(0, self.parameters.submissions);
        // SAFETY: the entry is one of the table. The kernel does not read it: the queue has an
        // entry for each slot, so this one was taken by the kernel before (invariant 2). The
        // request refers to memory that the slot keeps (invariant 1).
        unsafe { requests.add(entry as usize).write(request) };
        self.tail = self.tail.wrapping_add(1);
        self.queues.number(self.parameters.submission.tail).store(self.tail, Ordering::Release);
    }

    /// Hands to the kernel what was appended, and waits until a call is completed.
    ///
    /// # Errors
    /// Those of io_uring_enter(2). What was not handed over is handed over next time.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        let head = self.queues.number(self.parameters.submission.head).load(Ordering::Acquire);
        let (new, ring, none) = (self.tail.wrapping_sub(head), self.ring.as_raw_fd(), std::ptr::null::<u8>());
        // SAFETY: the requests that the kernel takes refer to memory that their slots keep
        // (invariant 1). The call itself has no pointers.
        let entered = unsafe { libc::syscall(libc::SYS_io_uring_enter, ring, new, 1u32, ENTER_WAIT, none, 0usize) };
        checked(entered).map(drop)
    }

    /// Takes the next completion: the work and the number of bytes.
    pub(super) fn completed(&mut self) -> Option<(W, io::Result<usize>)> {
        let CompletionOffsets { head, tail, completions, .. } = self.parameters.completion;
        let (head, entries) = (self.queues.number(head), self.parameters.completions);
        let at = head.load(Ordering::Relaxed);
        if at == self.queues.number(tail).load(Ordering::Acquire) {
            return None;
        }
        let entry = self.queues.at::<Completion>(completions, entries);
        // SAFETY: the entry is one of the queue. The kernel wrote it before it moved the tail, and
        // does not touch it until the head is moved.
        let completion = unsafe { entry.add((at & (entries - 1)) as usize).read() };
        head.store(at.wrapping_add(1), Ordering::Release);
        let slot = completion.user_data as usize;
        let flight = self.slots.all.get_mut(slot).and_then(Option::take).expect("a completion is that of a slot");
        self.slots.free.push(slot);
        let result = usize::try_from(completion.result).map_err(|_| io::Error::from_raw_os_error(-completion.result));
        Some((flight.work, result))
    }
}
