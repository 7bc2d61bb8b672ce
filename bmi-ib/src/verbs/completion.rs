//! Completion queues, and the channel that says when one has something.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::context::set_nonblocking;
use super::{Context, check_destroyed, loaded, sys};

/// Becomes readable when a queue that was armed gets a completion.
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
    /// A channel that does not block.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Channel>> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { loaded().ibv_create_comp_channel(context.raw()) });
        let raw = raw.ok_or_else(io::Error::last_os_error)?;
        let channel = Channel { raw, context: Arc::clone(context) };
        set_nonblocking(channel.as_raw_fd())?;
        Ok(Arc::new(channel))
    }

    /// Takes and acknowledges the events that have added up; returns how many there were.
    pub fn drain(&self) -> usize {
        let mut count = 0;
        loop {
            let (mut queue, mut user) = (null_mut(), null_mut());
            // SAFETY: the channel is there, and both places are valid.
            if unsafe { loaded().ibv_get_cq_event(self.raw.as_ptr(), &mut queue, &mut user) } != 0 {
                return count;
            }
            // SAFETY: one event of this queue was taken just now. A queue is destroyed only by its
            // owner, who also drains, and destroying waits for acknowledgements.
            unsafe { loaded().ibv_ack_cq_events(queue, 1) };
            count += 1;
        }
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: the channel is there.
        unsafe { self.raw.as_ref() }.fd
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let _context = &self.context;
        // SAFETY: made here, destroyed once, after the queues on it, which hold it.
        check_destroyed("completion channel", unsafe { loaded().ibv_destroy_comp_channel(self.raw.as_ptr()) });
    }
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done.
    Ok,
    /// The queue pair failed, or was made to fail, first.
    Flushed,
    /// This side's receive was too short for the message, or this side's request was wrong.
    Length,
    /// This side's request was wrong in another way; on Soft-RoCE also a receive that is too short.
    LocalOperation,
    /// This side's key or bounds were wrong.
    LocalProtection,
    /// The peer refused key, bounds or rights.
    RemoteAccess,
    /// The peer could not take the request: too long for its receive.
    RemoteInvalid,
    /// The peer failed with the request; on Soft-RoCE also a receive that is too short.
    RemoteOperation,
    /// No answer, however often it was tried.
    NoAnswer,
    /// The peer had no receive, however often it was tried.
    NotReady,
    /// Something else.
    Other(u32),
}

/// The end of a work request.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct WorkEnd(sys::ibv_wc);

impl WorkEnd {
    /// To be filled.
    pub fn empty() -> WorkEnd {
        // SAFETY: all fields are integers.
        WorkEnd(unsafe { MaybeUninit::zeroed().assume_init() })
    }

    /// What the request was called.
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// The queue pair's number.
    pub fn queue_pair(&self) -> u32 {
        self.0.qp_num
    }

    /// Bytes received, if it was a receive and succeeded.
    pub fn len(&self) -> u32 {
        self.0.byte_len
    }

    /// Whether no bytes were received.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The immediate data, if it was a receive and the peer's write carried some.
    pub fn immediate(&self) -> Option<u32> {
        let there = self.0.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM;
        // SAFETY: the opcode says which field of the union is meant; any bytes are an integer.
        there.then(|| u32::from_be(unsafe { self.0.__bindgen_anon_1.imm_data }))
    }

    /// How it ended.
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
    /// A queue of at least `entries`, whose events go to `channel`.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(channel: &Arc<Channel>, entries: usize) -> io::Result<Arc<CompletionQueue>> {
        let entries = i32::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the context is open, the channel there.
        let raw =
            unsafe { loaded().ibv_create_cq(channel.context.raw(), entries, null_mut(), channel.raw.as_ptr(), 0) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(CompletionQueue { raw, channel: Arc::clone(channel) }))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.channel.context
    }

    /// Takes completions, as many as there are and have room; returns how many.
    ///
    /// # Errors
    /// The queue is broken.
    pub fn poll(&self, ends: &mut [WorkEnd]) -> io::Result<usize> {
        // SAFETY: the queue is there, and so is its context, whose table of calls is complete.
        let call = unsafe { (*(*self.raw()).context).ops.poll_cq }.expect("every driver has poll_cq");
        let room = i32::try_from(ends.len()).unwrap_or(i32::MAX);
        // SAFETY: there is room for that many; `WorkEnd` is laid out as `ibv_wc`.
        let count = unsafe { call(self.raw(), room, ends.as_mut_ptr().cast()) };
        usize::try_from(count).map_err(|_| io::Error::other("the completion queue cannot be polled"))
    }

    /// The next completion makes the channel readable, once. One that is there already does not.
    ///
    /// # Errors
    /// What the driver says.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: as in `poll`.
        let call = unsafe { (*(*self.raw()).context).ops.req_notify_cq }.expect("every driver has req_notify_cq");
        // SAFETY: the queue is there.
        super::context::check(unsafe { call(self.raw(), 0) })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // Events that were not taken would make destroying wait for ever.
        self.channel.drain();
        // SAFETY: made here, destroyed once, after the queue pairs on it, which hold it.
        check_destroyed("completion queue", unsafe { loaded().ibv_destroy_cq(self.raw()) });
    }
}
