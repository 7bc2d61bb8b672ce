//! A ring of the kernel (io_uring): calls that it makes on its own, and their results. Everything
//! that could give the kernel memory for too short a time is only here.
//!
//! **Invariants**
//! 1. *Memory outlives its call.* A slot owns the file and handles of all memory of its call, from
//!    before the kernel sees the request until its completion was taken. If the ring is dropped
//!    before that, the slots are leaked.
//! 2. A slot has one request at most that was not completed. There are as many entries as slots at
//!    least, and twice as many for completions, so neither queue is ever full.
//!
//! **Source.** io_uring(7), io_uring_enter(2).
//!
//! **Tests.** `ring/tests.rs`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use bmi::MemSlice;
use io_uring::{IoUring, opcode, squeue, types};

use crate::store::sys::{count, vectors};

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
    ring: IoUring,
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

// SAFETY: the pointers of the slots are to memory and vectors that they own. None of that belongs
// to a thread.
unsafe impl<W: Send> Send for RawRing<W> {}

impl<W> RawRing<W> {
    /// Makes a ring with `slots` slots.
    ///
    /// # Errors
    /// `PermissionDenied` or `Unsupported` if the kernel has no rings for this process, and others.
    pub(super) fn new(slots: usize) -> io::Result<RawRing<W>> {
        let entries = u32::try_from(slots).map_err(|_| io::ErrorKind::InvalidInput)?;
        let ring = IoUring::new(entries)?;
        let known = ring.params();
        // No completion is lost, and a request is read when it is submitted (Linux 5.5). Calls that
        // wait are made by threads of this process (5.12): before that, some ended with errors that
        // a plain call has not.
        if !(known.is_feature_nodrop() && known.is_feature_submit_stable() && known.is_feature_native_workers()) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel's io_uring lacks what is needed"));
        }
        let slots = Slots { all: (0..slots).map(|_| None).collect(), free: (0..slots).rev().collect() };
        Ok(RawRing { slots, ring })
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
        let (file, offset) = (types::Fd(file.as_raw_fd()), offset.cast_unsigned());
        let (memory, len) = (vectors.as_ptr(), count(&vectors).cast_unsigned());
        let request = match writes {
            true => opcode::Writev::new(file, memory, len).offset(offset).build(),
            false => opcode::Readv::new(file, memory, len).offset(offset).build(),
        };
        // The kernel makes the call on a thread of its own, which may wait.
        let flags = if may_wait { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let request = request.flags(flags).user_data(slot as u64);
        // Moving the vectors does not move what they have on the heap.
        self.slots.all[slot] = Some(Flight { work, _pieces: pieces, _vectors: vectors });
        // SAFETY: the request refers to the file, memory and vectors that the slot keeps
        // (invariant 1).
        let appended = unsafe { self.ring.submission().push(&request) };
        appended.expect("there is an entry for each slot");
    }

    /// Hands to the kernel what was appended, and waits until a call is completed.
    ///
    /// # Errors
    /// Those of io_uring_enter(2). What was not handed over is handed over next time.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        self.ring.submit_and_wait(1).map(drop)
    }

    /// Takes the next completion: the work and the number of bytes.
    pub(super) fn completed(&mut self) -> Option<(W, io::Result<usize>)> {
        let completion = self.ring.completion().next()?;
        let slot = completion.user_data() as usize;
        let flight = self.slots.all.get_mut(slot).and_then(Option::take).expect("a completion is that of a slot");
        self.slots.free.push(slot);
        let failed = |_| io::Error::from_raw_os_error(-completion.result());
        Some((flight.work, usize::try_from(completion.result()).map_err(failed)))
    }
}
