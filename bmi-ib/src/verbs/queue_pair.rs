//! Reliable connected queue pairs: creating them, connecting them, posting to them.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::context::check;
use super::{CompletionQueue, Domain, check_destroyed, loaded, sys};

/// The limits of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairLimits {
    /// Requests in the send queue.
    pub sends: u32,
    /// Requests in the receive queue.
    pub receives: u32,
    /// Scatter/gather entries of a request.
    pub segments: u32,
    /// Bytes that travel inside a request.
    pub inline: u32,
}

/// The path to the peer, with its time limits and retries.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// This side's port.
    pub port: u8,
    /// The MTU in the numbering of verbs, 1 to 5.
    pub mtu: u8,
    /// The peer's queue pair, 24 bits.
    pub peer: u32,
    /// First packet number of the peer, 24 bits.
    pub peer_psn: u32,
    /// First packet number of this side, 24 bits.
    pub psn: u32,
    /// The peer's LID, on InfiniBand.
    pub lid: u16,
    /// The peer's address, and the index of this side's address in its table. With it, a global
    /// route header is used.
    pub global: Option<([u8; 16], u8)>,
    /// Service level on InfiniBand.
    pub service_level: u8,
    /// Traffic class of the global route header. On RoCE it is that of the IP packets.
    pub traffic_class: u8,
    /// Most reads of the peer that are answered at a time.
    pub reads_answered: u8,
    /// Most reads of this side that may be outstanding.
    pub reads_begun: u8,
    /// The peer's adapter must answer within 4.096 µs times two to the power of this.
    pub timeout: u8,
    /// How often a request is retried: at most 6, because 7 means forever on Soft-RoCE.
    pub retries: u8,
    /// How often a request that found no receive is retried: at most 6, because 7 means forever.
    pub not_ready_retries: u8,
}

/// How long a peer waits before it retries a message that found no receive: 12 means 0.64 ms.
const NOT_READY_TIMER: u8 = 12;
/// Most routers that a packet may pass.
const HOPS: u8 = 64;

/// An entry of a scatter/gather list.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Sge(sys::ibv_sge);

impl Sge {
    /// Returns an entry for `len` bytes at `addr`, in the region with this local key.
    pub fn new(addr: u64, len: u32, key: u32) -> Sge {
        Sge(sys::ibv_sge { addr, length: len, lkey: key })
    }
}

/// The operation of a request.
#[derive(Clone, Copy)]
pub enum Opcode {
    /// Sends to the peer's next receive.
    Send,
    /// Writes to the peer's memory: address and key.
    Write(u64, u32),
    /// Does the same with immediate data, which consumes a receive.
    WriteWithImmediate(u64, u32, u32),
    /// Reads from the peer's memory: address and key.
    Read(u64, u32),
}

/// A request to send.
#[derive(Clone, Copy)]
pub struct SendWork<'a> {
    /// Its id, which its completion reports.
    pub id: u64,
    /// Its operation.
    pub opcode: Opcode,
    /// The bytes to send, or the memory into which a read goes.
    pub segments: &'a [Sge],
    /// Set if its success is reported too.
    pub signalled: bool,
    /// Set if the bytes are copied while posting.
    pub inline: bool,
}

/// Requests that are posted together. The room is reused.
pub struct Chain {
    requests: Box<[sys::ibv_send_wr]>,
    segments: Box<[sys::ibv_sge]>,
    per_request: usize,
    len: usize,
}

// SAFETY: its pointers are set again for each post, and point into the chain itself.
unsafe impl Send for Chain {}

impl Chain {
    /// Creates a chain for `requests` requests of at most `segments` entries each.
    pub fn new(requests: usize, segments: usize) -> Chain {
        // SAFETY: the fields are integers and pointers, for which zero is a valid value.
        let request: sys::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        let empty = sys::ibv_sge { addr: 0, length: 0, lkey: 0 };
        Chain {
            requests: vec![request; requests].into(),
            segments: vec![empty; requests * segments].into(),
            per_request: segments,
            len: 0,
        }
    }

    /// Returns whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether there is room for no more requests.
    pub fn is_full(&self) -> bool {
        self.len == self.requests.len()
    }

    /// Removes all requests.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a request.
    ///
    /// # Panics
    /// Panics if there is no room for it.
    pub fn push(&mut self, work: &SendWork<'_>) {
        let begin = self.len * self.per_request;
        let own = &mut self.segments[begin..begin + self.per_request];
        for (own, given) in own[..work.segments.len()].iter_mut().zip(work.segments) {
            *own = given.0;
        }
        let request = &mut self.requests[self.len];
        request.wr_id = work.id;
        request.next = null_mut();
        request.sg_list = null_mut();
        request.num_sge = work.segments.len() as i32;
        request.send_flags = if work.signalled { sys::IBV_SEND_SIGNALED } else { 0 }
            | if work.inline { sys::IBV_SEND_INLINE } else { 0 };
        match work.opcode {
            Opcode::Send => request.opcode = sys::IBV_WR_SEND,
            Opcode::Write(addr, key) => to_remote(request, sys::IBV_WR_RDMA_WRITE, addr, key),
            Opcode::WriteWithImmediate(addr, key, immediate) => {
                to_remote(request, sys::IBV_WR_RDMA_WRITE_WITH_IMM, addr, key);
                request.__bindgen_anon_1.imm_data = immediate.to_be();
            }
            Opcode::Read(addr, key) => to_remote(request, sys::IBV_WR_RDMA_READ, addr, key),
        }
        self.len += 1;
    }

    /// Links the requests to each other and to their entries.
    fn link(&mut self) -> *mut sys::ibv_send_wr {
        let requests = self.requests.as_mut_ptr();
        for at in 0..self.len {
            let next = if at + 1 < self.len { requests.wrapping_add(at + 1) } else { null_mut() };
            let segments = self.segments.as_mut_ptr().wrapping_add(at * self.per_request);
            // SAFETY: `at` is within the requests.
            let request = unsafe { &mut *requests.add(at) };
            (request.next, request.sg_list) = (next, segments);
        }
        requests
    }
}

fn to_remote(request: &mut sys::ibv_send_wr, opcode: u32, remote_addr: u64, rkey: u32) {
    request.opcode = opcode;
    request.wr.rdma = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
}

/// A reliable connected queue pair.
#[derive(Debug)]
pub struct QueuePair {
    raw: NonNull<sys::ibv_qp>,
    domain: Arc<Domain>,
    queue: Arc<CompletionQueue>,
    limits: QueuePairLimits,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a queue pair. The completions of both its queues go to `queue`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(domain: &Arc<Domain>, queue: &Arc<CompletionQueue>, limits: QueuePairLimits) -> io::Result<QueuePair> {
        debug_assert!(Arc::ptr_eq(domain.context(), queue.context()), "one device for both");
        let mut init = sys::ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            srq: null_mut(),
            cap: sys::ibv_qp_cap {
                max_send_wr: limits.sends,
                max_recv_wr: limits.receives,
                max_send_sge: limits.segments,
                max_recv_sge: limits.segments,
                max_inline_data: limits.inline,
            },
            qp_type: sys::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queue exist, and the attributes are complete.
        let raw = NonNull::new(unsafe { (loaded().ibv_create_qp)(domain.raw(), &mut init) });
        let raw = raw.ok_or_else(io::Error::last_os_error)?;
        let limits = QueuePairLimits { inline: init.cap.max_inline_data, ..limits };
        Ok(QueuePair { raw, domain: Arc::clone(domain), queue: Arc::clone(queue), limits })
    }

    /// Returns its limits. The inline limit may be higher than was asked for.
    pub fn limits(&self) -> QueuePairLimits {
        self.limits
    }

    /// Returns the queue for its completions.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// Returns its number.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair exists.
        unsafe { self.raw.as_ref() }.qp_num
    }

    fn modify(&self, change: impl FnOnce(&mut sys::ibv_qp_attr), mask: u32) -> io::Result<()> {
        // SAFETY: the fields are integers, and enumerations that are integers.
        let mut attr: sys::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        change(&mut attr);
        // SAFETY: the queue pair exists, and the attributes are those that the mask names.
        check(unsafe { (loaded().ibv_modify_qp)(self.raw.as_ptr(), &mut attr, mask as i32) })
    }

    /// Moves it to the state in which receives may be posted.
    ///
    /// # Errors
    /// The driver's error.
    pub fn init(&self, port: u8) -> io::Result<()> {
        self.modify(
            |attr| {
                attr.qp_state = sys::IBV_QPS_INIT;
                attr.port_num = port;
                attr.qp_access_flags = sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_WRITE;
            },
            sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS,
        )
    }

    /// Connects it: makes it ready to receive, then ready to send.
    ///
    /// # Errors
    /// The driver's error.
    pub fn connect(&self, path: &Path) -> io::Result<()> {
        self.modify(
            |attr| {
                attr.qp_state = sys::IBV_QPS_RTR;
                attr.path_mtu = path.mtu.into();
                attr.dest_qp_num = path.peer;
                attr.rq_psn = path.peer_psn;
                attr.max_dest_rd_atomic = path.reads_answered;
                attr.min_rnr_timer = NOT_READY_TIMER;
                attr.ah_attr.port_num = path.port;
                attr.ah_attr.sl = path.service_level;
                attr.ah_attr.dlid = path.lid;
                if let Some((raw, index)) = path.global {
                    attr.ah_attr.is_global = 1;
                    attr.ah_attr.grh.dgid = sys::ibv_gid { raw };
                    attr.ah_attr.grh.sgid_index = index;
                    attr.ah_attr.grh.hop_limit = HOPS;
                    attr.ah_attr.grh.traffic_class = path.traffic_class;
                }
            },
            sys::IBV_QP_STATE
                | sys::IBV_QP_AV
                | sys::IBV_QP_PATH_MTU
                | sys::IBV_QP_DEST_QPN
                | sys::IBV_QP_RQ_PSN
                | sys::IBV_QP_MAX_DEST_RD_ATOMIC
                | sys::IBV_QP_MIN_RNR_TIMER,
        )?;
        self.modify(
            |attr| {
                attr.qp_state = sys::IBV_QPS_RTS;
                attr.timeout = path.timeout;
                attr.retry_cnt = path.retries;
                attr.rnr_retry = path.not_ready_retries;
                attr.sq_psn = path.psn;
                attr.max_rd_atomic = path.reads_begun;
            },
            sys::IBV_QP_STATE
                | sys::IBV_QP_TIMEOUT
                | sys::IBV_QP_RETRY_CNT
                | sys::IBV_QP_RNR_RETRY
                | sys::IBV_QP_SQ_PSN
                | sys::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Moves it to the error state: outstanding requests are flushed, and no new ones start.
    ///
    /// # Errors
    /// The driver's error.
    pub fn fail(&self) -> io::Result<()> {
        self.modify(|attr| attr.qp_state = sys::IBV_QPS_ERR, sys::IBV_QP_STATE)
    }

    /// Posts the requests of `chain` together, and empties it. On failure the number tells how many
    /// of them were taken.
    ///
    /// # Safety
    /// The memory that a request names must stay valid until the request has ended or this queue
    /// pair is dropped. For an inline request it must stay valid until the call returns, and its
    /// addresses are addresses of this process.
    ///
    /// # Errors
    /// The driver's error; `ENOMEM` for a full queue.
    pub unsafe fn post_send(&self, chain: &mut Chain) -> Result<(), (usize, io::Error)> {
        if chain.is_empty() {
            return Ok(());
        }
        // SAFETY: the queue pair and its context exist, and the table of calls is complete.
        let call = unsafe { (*self.raw.as_ref().context).ops.post_send }.expect("every driver has post_send");
        let (first, mut bad) = (chain.link(), null_mut());
        // SAFETY: the requests are linked and do not move during the call. The caller guarantees
        // their memory.
        let result = check(unsafe { call(self.raw.as_ptr(), first, &mut bad) });
        let len = std::mem::take(&mut chain.len);
        result.map_err(|error| {
            let taken = (bad as usize).saturating_sub(first as usize) / size_of::<sys::ibv_send_wr>();
            (taken.min(len), error)
        })
    }

    /// Posts a receive.
    ///
    /// # Safety
    /// The same as for [`QueuePair::post_send`].
    ///
    /// # Errors
    /// The driver's error; `ENOMEM` for a full queue.
    pub unsafe fn post_receive(&self, id: u64, segments: &[Sge]) -> io::Result<()> {
        // SAFETY: as in `post_send`.
        let call = unsafe { (*self.raw.as_ref().context).ops.post_recv }.expect("every driver has post_recv");
        let mut request = sys::ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: segments.as_ptr().cast_mut().cast(),
            num_sge: segments.len() as i32,
        };
        let mut bad = null_mut();
        // SAFETY: `Sge` has the layout of `ibv_sge`, which the call only reads. The caller
        // guarantees the memory.
        check(unsafe { call(self.raw.as_ptr(), &mut request, &mut bad) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let _domain = &self.domain;
        // SAFETY: made here, and destroyed once. When the call returns, the adapter no longer
        // accesses anything for this queue pair.
        check_destroyed("queue pair", unsafe { (loaded().ibv_destroy_qp)(self.raw.as_ptr()) });
    }
}
