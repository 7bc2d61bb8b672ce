//! Reliable connected queue pairs: making them, connecting them, posting to them.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::context::check;
use super::{CompletionQueue, Domain, Region, Window, check_destroyed, loaded, sys};

/// What a queue pair has room for.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairLimits {
    /// Requests in the send queue.
    pub sends: u32,
    /// Receives.
    pub receives: u32,
    /// Entries of a request.
    pub segments: u32,
    /// Bytes that travel inside a request.
    pub inline: u32,
}

/// The way to the peer, and how patient to be on it.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// This side's port.
    pub port: u8,
    /// As verbs number it, 1 to 5.
    pub mtu: u8,
    /// The peer's queue pair, 24 bits.
    pub peer: u32,
    /// First packet number of the peer, 24 bits.
    pub peer_psn: u32,
    /// First packet number of this side, 24 bits.
    pub psn: u32,
    /// The peer's LID, on InfiniBand.
    pub lid: u16,
    /// The peer's address, and where this side's stands in its table: a global route header is
    /// used.
    pub global: Option<([u8; 16], u8)>,
    /// Service level on InfiniBand.
    pub service_level: u8,
    /// Traffic class of the global route header: on RoCE that of the IP packets.
    pub traffic_class: u8,
    /// Reads of the peer that are answered at a time.
    pub reads_answered: u8,
    /// Reads of this side that may be outstanding.
    pub reads_begun: u8,
    /// Time that the peer's adapter may take to answer: 4.096 µs times two to the power of this.
    pub timeout: u8,
    /// How often a request is sent again; at most 6, since 7 is for ever on Soft-RoCE.
    pub retries: u8,
    /// How often a request is sent again that found no receive; at most 6, since 7 is for ever.
    pub not_ready_retries: u8,
}

/// How long a peer whose message found no receive is asked to wait: 12 stands for 0.64 ms.
const NOT_READY_TIMER: u8 = 12;
/// Routers that a packet may pass.
const HOPS: u8 = 64;

/// An entry of a scatter/gather list.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Sge(sys::ibv_sge);

impl Sge {
    /// `len` bytes at `addr`, in the region of this local key.
    pub fn new(addr: u64, len: u32, key: u32) -> Sge {
        Sge(sys::ibv_sge { addr, length: len, lkey: key })
    }
}

/// What a request does.
#[derive(Clone, Copy)]
pub enum Opcode<'a> {
    /// Into the peer's next receive.
    Send,
    /// To the peer's memory: address and key.
    Write(u64, u32),
    /// The same with immediate data, which consumes a receive.
    WriteWithImmediate(u64, u32, u32),
    /// From the peer's memory: address and key.
    Read(u64, u32),
    /// Binds a window to `len` bytes of a region that begin at an address, for remote reads and
    /// writes, under this key.
    Bind(&'a Window, &'a Region, u64, u64, u32),
}

/// A request to send.
#[derive(Clone, Copy)]
pub struct SendWork<'a> {
    /// Its name.
    pub id: u64,
    /// What it does.
    pub opcode: Opcode<'a>,
    /// Where the bytes are, or for a read where they go.
    pub segments: &'a [Sge],
    /// Its success is told too.
    pub signalled: bool,
    /// The bytes are copied while posting.
    pub inline: bool,
}

/// Requests that are posted together, with room that is used again.
pub struct Chain {
    requests: Box<[sys::ibv_send_wr]>,
    segments: Box<[sys::ibv_sge]>,
    per_request: usize,
    len: usize,
}

// SAFETY: the pointers in it are set anew for each post, and point into it.
unsafe impl Send for Chain {}

impl Chain {
    /// For `requests` requests of at most `segments` entries each.
    pub fn new(requests: usize, segments: usize) -> Chain {
        // SAFETY: integers and pointers, for which zero is a value.
        let request: sys::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
        let empty = sys::ibv_sge { addr: 0, length: 0, lkey: 0 };
        Chain {
            requests: vec![request; requests].into(),
            segments: vec![empty; requests * segments].into(),
            per_request: segments,
            len: 0,
        }
    }

    /// Requests in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it has room for no more.
    pub fn is_full(&self) -> bool {
        self.len == self.requests.len()
    }

    /// Forgets all requests.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a request.
    ///
    /// # Panics
    /// If there is no room for it.
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
            Opcode::Bind(window, region, addr, length, rkey) => {
                request.opcode = sys::IBV_WR_BIND_MW;
                let access = sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_WRITE;
                let bind_info = sys::ibv_mw_bind_info { mr: region.raw(), addr, length, mw_access_flags: access };
                request.__bindgen_anon_2.bind_mw =
                    sys::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw: window.raw(), rkey, bind_info };
            }
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
    /// A new one, whose completions of both kinds go to `queue`.
    ///
    /// # Errors
    /// What the driver says.
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
        // SAFETY: domain and queue are there, the attributes complete.
        let raw = NonNull::new(unsafe { loaded().ibv_create_qp(domain.raw(), &mut init) });
        let raw = raw.ok_or_else(io::Error::last_os_error)?;
        let limits = QueuePairLimits { inline: init.cap.max_inline_data, ..limits };
        Ok(QueuePair { raw, domain: Arc::clone(domain), queue: Arc::clone(queue), limits })
    }

    /// What it has room for; inline perhaps more than was asked for.
    pub fn limits(&self) -> QueuePairLimits {
        self.limits
    }

    /// Where its completions go.
    pub fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is there.
        unsafe { self.raw.as_ref() }.qp_num
    }

    fn modify(&self, change: impl FnOnce(&mut sys::ibv_qp_attr), mask: u32) -> io::Result<()> {
        // SAFETY: integers and enumerations that are integers.
        let mut attr: sys::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        change(&mut attr);
        // SAFETY: the queue pair is there, the attributes are those that the mask names.
        check(unsafe { loaded().ibv_modify_qp(self.raw.as_ptr(), &mut attr, mask as i32) })
    }

    /// To the state in which receives may be posted.
    ///
    /// # Errors
    /// What the driver says.
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

    /// Ready to receive, then ready to send.
    ///
    /// # Errors
    /// What the driver says.
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

    /// Into the state in which everything outstanding is flushed and nothing begins.
    ///
    /// # Errors
    /// What the driver says.
    pub fn fail(&self) -> io::Result<()> {
        self.modify(|attr| attr.qp_state = sys::IBV_QPS_ERR, sys::IBV_QP_STATE)
    }

    /// Posts the requests of `chain` together, and empties it. On failure the number says how many
    /// of them were taken.
    ///
    /// # Safety
    /// Until a request has ended, or this queue pair is dropped, the memory that it names must stay
    /// valid; for inline requests until the call returns, and their addresses are those of this
    /// process.
    ///
    /// # Errors
    /// What the driver says; `ENOMEM` for a full queue.
    pub unsafe fn post_send(&self, chain: &mut Chain) -> Result<(), (usize, io::Error)> {
        if chain.is_empty() {
            return Ok(());
        }
        // SAFETY: the queue pair and its context are there, the table of calls complete.
        let call = unsafe { (*self.raw.as_ref().context).ops.post_send }.expect("every driver has post_send");
        let (first, mut bad) = (chain.link(), null_mut());
        // SAFETY: the requests are linked and stay in place during the call; the caller vouches for
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
    /// As for [`QueuePair::post_send`].
    ///
    /// # Errors
    /// What the driver says; `ENOMEM` for a full queue.
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
        // SAFETY: `Sge` is laid out as `ibv_sge`, which the call only reads; the caller vouches for
        // the memory.
        check(unsafe { call(self.raw.as_ptr(), &mut request, &mut bad) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let _domain = &self.domain;
        // SAFETY: made here, destroyed once. When the call returns the adapter touches nothing on
        // its behalf any more.
        check_destroyed("queue pair", unsafe { loaded().ibv_destroy_qp(self.raw.as_ptr()) });
    }
}
