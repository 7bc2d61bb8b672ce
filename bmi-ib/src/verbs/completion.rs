//! Completion queues, and the channel that reports when one of them has a completion.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::context::set_nonblocking;
use super::{Context, check_destroyed, loaded, sys};

/// A completion channel. It becomes readable when an armed queue gets a completion.
#[derive(Debug)]
pub struct Channel {
    raw: NonNull<sys::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// Creates a channel that does not block.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Channel>> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (loaded().ibv_create_comp_channel)(context.raw()) });
        let raw = raw.ok_or_else(io::Error::last_os_error)?;
        let channel = Channel { raw, context: Arc::clone(context) };
        set_nonblocking(channel.as_raw_fd())?;
        Ok(Arc::new(channel))
    }

    /// Takes and acknowledges the pending events. Returns how many there were.
    pub fn drain(&self) -> usize {
        let mut count = 0;
        loop {
            let (mut queue, mut user) = (null_mut(), null_mut());
            // SAFETY: the channel exists, and both places are valid.
            if unsafe { (loaded().ibv_get_cq_event)(self.raw.as_ptr(), &mut queue, &mut user) } != 0 {
                return count;
            }
            // SAFETY: one event of this queue was taken just now. A queue is destroyed only by its
            // owner, which also drains, and destroying waits for acknowledgements.
            unsafe { (loaded().ibv_ack_cq_events)(queue, 1) };
            count += 1;
        }
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel exists.
        unsafe { self.raw.as_ref() }.fd
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let _context = &self.context;
        // SAFETY: made here, and destroyed once, after the queues on it, which hold it.
        check_destroyed("completion channel", unsafe { (loaded().ibv_destroy_comp_channel)(self.raw.as_ptr()) });
    }
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Ok,
    /// The queue pair failed, or was put into the error state, before.
    Flushed,
    /// This side's receive was too short for the message, or this side's request was invalid.
    Length,
    /// This side's request was invalid in another way; on Soft-RoCE also a receive that is too
    /// short.
    LocalOperation,
    /// This side's key or bounds were wrong.
    LocalProtection,
    /// The peer refused key, bounds or rights.
    RemoteAccess,
    /// The peer could not handle the request: it is too long for its receive.
    RemoteInvalid,
    /// The peer failed to execute the request; on Soft-RoCE also a receive that is too short.
    RemoteOperation,
    /// The peer's adapter did not answer, after all retries.
    NoAnswer,
    /// The peer had no receive, after all retries.
    NotReady,
    /// Any other status.
    Other(u32),
}

/// The completion of a work request.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct WorkEnd(sys::ibv_wc);

impl WorkEnd {
    /// Returns an entry for [`CompletionQueue::poll`] to fill.
    pub fn empty() -> WorkEnd {
        // SAFETY: all fields are integers.
        WorkEnd(unsafe { MaybeUninit::zeroed().assume_init() })
    }

    /// Returns the id of the request.
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Returns the number of bytes received, for a receive that succeeded.
    pub fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    /// Returns the immediate data, for a receive that was consumed by a write with immediate data.
    pub fn immediate(&self) -> Option<u32> {
        let there = self.0.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM;
        // SAFETY: the opcode tells which field of the union is valid, and any bytes are an integer.
        there.then(|| u32::from_be(unsafe { self.0.__bindgen_anon_1.imm_data }))
    }

    /// Returns how the request ended.
    pub fn outcome(&self) -> Outcome {
        match self.0.status {
            sys::IBV_WC_SUCCESS => Outcome::Ok,
            sys::IBV_WC_WR_FLUSH_ERR => Outcome::Flushed,
            sys::IBV_WC_LOC_LEN_ERR => Outcome::Length,
            sys::IBV_WC_LOC_QP_OP_ERR => Outcome::LocalOperation,
            sys::IBV_WC_LOC_PROT_ERR => Outcome::LocalProtection,
            sys::IBV_WC_REM_ACCESS_ERR => Outcome::RemoteAccess,
            sys::IBV_WC_REM_INV_REQ_ERR => Outcome::RemoteInvalid,
            sys::IBV_WC_REM_OP_ERR => Outcome::RemoteOperation,
            sys::IBV_WC_RETRY_EXC_ERR | sys::IBV_WC_RESP_TIMEOUT_ERR => Outcome::NoAnswer,
            sys::IBV_WC_RNR_RETRY_EXC_ERR => Outcome::NotReady,
            other => Outcome::Other(other),
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    raw: NonNull<sys::ibv_cq>,
    channel: Arc<Channel>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue of at least `entries` entries, whose events go to `channel`.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(channel: &Arc<Channel>, entries: usize) -> io::Result<Arc<CompletionQueue>> {
        let entries = i32::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the context is open, and the channel exists.
        let raw =
            unsafe { (loaded().ibv_create_cq)(channel.context.raw(), entries, null_mut(), channel.raw.as_ptr(), 0) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(CompletionQueue { raw, channel: Arc::clone(channel) }))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.channel.context
    }

    /// Takes as many completions as there are and as fit into `ends`. Returns how many.
    ///
    /// # Errors
    /// The queue is broken.
    pub fn poll(&self, ends: &mut [WorkEnd]) -> io::Result<usize> {
        // SAFETY: the queue exists, and so does its context, whose table of calls is complete.
        let call = unsafe { (*(*self.raw()).context).ops.poll_cq }.expect("every driver has poll_cq");
        let room = i32::try_from(ends.len()).unwrap_or(i32::MAX);
        // SAFETY: there is room for that many, and `WorkEnd` has the layout of `ibv_wc`.
        let count = unsafe { call(self.raw(), room, ends.as_mut_ptr().cast()) };
        usize::try_from(count).map_err(|_| io::Error::other("the completion queue cannot be polled"))
    }

    /// Makes the next completion turn the channel readable, once. A completion that is already
    /// there does not.
    ///
    /// # Errors
    /// The driver's error.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: as in `poll`.
        let call = unsafe { (*(*self.raw()).context).ops.req_notify_cq }.expect("every driver has req_notify_cq");
        // SAFETY: the queue exists.
        super::context::check(unsafe { call(self.raw(), 0) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // Events that were not taken would make the destruction wait forever.
        self.channel.drain();
        // SAFETY: made here, and destroyed once, after the queue pairs on it, which hold it.
        check_destroyed("completion queue", unsafe { (loaded().ibv_destroy_cq)(self.raw()) });
    }
}
