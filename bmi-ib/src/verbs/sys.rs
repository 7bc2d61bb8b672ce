//! The declarations of libibverbs that this backend uses, loaded at run time. Generated; nothing
//! here is written by hand, and nothing outside `verbs` sees it.
//!
//! Made once, from `infiniband/verbs.h` of Debian's libibverbs-dev 44.0 (rdma-core 44), by bindgen
//! 0.73.2:
//!
//! ```text
//! bindgen verbs.h --dynamic-loading Ibverbs --dynamic-link-require-all --use-core
//!   --rust-target 1.85 --rust-edition 2024
//!   --default-enum-style consts --no-prepend-enum-name --no-doc-comments
//!   --allowlist-function F --allowlist-type T --allowlist-var 'IBV_LINK_LAYER_.*|IBV_QPF_.*'
//!   --blocklist-type '(__)?pthread.*|__atomic.*'
//!   --opaque-type 'ibv_flow.*|ibv_dm|ibv_xrcd|ibv_counters|ibv_modify_wq.*|_compat_ibv_port_attr'
//! ```
//!
//! where F is the list of functions in `library!` below, and T is
//! `ibv_port_attr|ibv_gid_entry|ibv_send_wr|ibv_recv_wr|ibv_wc|ibv_access_flags|ibv_send_flags|
//! ibv_qp_attr_mask|ibv_device_cap_flags|ibv_gid_type|ibv_qp_attr`.
//!
//! This was done twice, for x86-64 and for aarch64. For aarch64, `-- --target=aarch64-linux-gnu`
//! was added, with the headers of Debian's libc6-dev-arm64-cross 2.36. The declarations are the
//! same, because the mutex and the condition variable have the types of the crate `libc`. The
//! assertions differ for the structures that contain a mutex: in the GNU C library it has 40 bytes
//! on x86-64 and 48 bytes on aarch64. Both versions of these are here, each for its target. On
//! other targets these structures are not asserted.
//!
//! A C header declares much that is not used here, and bindgen repeats itself. `sys.awk` removed
//! both:
//!
//! ```text
//! awk -f sys.awk completion.rs context.rs layout.rs mod.rs queue_pair.rs region.rs bindings.rs
//! ```
//!
//! where the last one is bindgen's output. With this file in its place, it removes what is not used
//! any more. What is needed again must come from bindgen.
//!
//! The assertions of sizes and offsets are bindgen's; `bmi-ib/peer` compares them with those of
//! `ibverbs-sys`.

use libc::{pthread_cond_t, pthread_mutex_t};

pub type __u32 = ::core::ffi::c_uint;
pub type __u64 = ::core::ffi::c_ulonglong;
pub type __be32 = __u32;
pub type __be64 = __u64;
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_gid {
    pub raw: [u8; 16usize],
    pub global: ibv_gid__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_gid__bindgen_ty_1 {
    pub subnet_prefix: __be64,
    pub interface_id: __be64,
}
layout!(ibv_gid__bindgen_ty_1, 16, 8);
layout!(ibv_gid, 16, 8; raw 0, global 0);
pub const IBV_GID_TYPE_ROCE_V2: ibv_gid_type = 2;
pub type ibv_gid_type = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
layout!(ibv_gid_entry, 32, 8; gid 0, gid_index 16, port_num 20, gid_type 24, ndev_ifindex 28);
pub const IBV_FORK_UNNEEDED: ibv_fork_status = 2;
pub type ibv_fork_status = ::core::ffi::c_uint;
pub type ibv_atomic_cap = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device_attr {
    pub fw_ver: [::core::ffi::c_char; 64usize],
    pub node_guid: __be64,
    pub sys_image_guid: __be64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: ::core::ffi::c_int,
    pub max_qp_wr: ::core::ffi::c_int,
    pub device_cap_flags: ::core::ffi::c_uint,
    pub max_sge: ::core::ffi::c_int,
    pub max_sge_rd: ::core::ffi::c_int,
    pub max_cq: ::core::ffi::c_int,
    pub max_cqe: ::core::ffi::c_int,
    pub max_mr: ::core::ffi::c_int,
    pub max_pd: ::core::ffi::c_int,
    pub max_qp_rd_atom: ::core::ffi::c_int,
    pub max_ee_rd_atom: ::core::ffi::c_int,
    pub max_res_rd_atom: ::core::ffi::c_int,
    pub max_qp_init_rd_atom: ::core::ffi::c_int,
    pub max_ee_init_rd_atom: ::core::ffi::c_int,
    pub atomic_cap: ibv_atomic_cap,
    pub max_ee: ::core::ffi::c_int,
    pub max_rdd: ::core::ffi::c_int,
    pub max_mw: ::core::ffi::c_int,
    pub max_raw_ipv6_qp: ::core::ffi::c_int,
    pub max_raw_ethy_qp: ::core::ffi::c_int,
    pub max_mcast_grp: ::core::ffi::c_int,
    pub max_mcast_qp_attach: ::core::ffi::c_int,
    pub max_total_mcast_qp_attach: ::core::ffi::c_int,
    pub max_ah: ::core::ffi::c_int,
    pub max_fmr: ::core::ffi::c_int,
    pub max_map_per_fmr: ::core::ffi::c_int,
    pub max_srq: ::core::ffi::c_int,
    pub max_srq_wr: ::core::ffi::c_int,
    pub max_srq_sge: ::core::ffi::c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
layout!(ibv_device_attr, 232, 8; max_qp_wr 112, max_sge 120, max_cqe 132, max_qp_rd_atom 144,
    max_qp_init_rd_atom 156, phys_port_cnt 227);
pub type ibv_mtu = ::core::ffi::c_uint;
pub const IBV_PORT_ACTIVE: ibv_port_state = 4;
pub type ibv_port_state = ::core::ffi::c_uint;
pub const IBV_LINK_LAYER_ETHERNET: _bindgen_ty_13 = 2;
pub type _bindgen_ty_13 = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: ::core::ffi::c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}
layout!(ibv_port_attr, 52, 4; state 0, max_mtu 4, active_mtu 8, max_msg_sz 20, lid 34,
    link_layer 46, flags 47);
pub const IBV_EVENT_CQ_ERR: ibv_event_type = 0;
pub const IBV_EVENT_QP_FATAL: ibv_event_type = 1;
pub const IBV_EVENT_QP_REQ_ERR: ibv_event_type = 2;
pub const IBV_EVENT_QP_ACCESS_ERR: ibv_event_type = 3;
pub const IBV_EVENT_DEVICE_FATAL: ibv_event_type = 8;
pub const IBV_EVENT_PORT_ACTIVE: ibv_event_type = 9;
pub const IBV_EVENT_PORT_ERR: ibv_event_type = 10;
pub const IBV_EVENT_LID_CHANGE: ibv_event_type = 11;
pub const IBV_EVENT_GID_CHANGE: ibv_event_type = 18;
pub type ibv_event_type = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_async_event {
    pub element: ibv_async_event__bindgen_ty_1,
    pub event_type: ibv_event_type,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_async_event__bindgen_ty_1 {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut ibv_wq,
    pub port_num: ::core::ffi::c_int,
}
layout!(ibv_async_event__bindgen_ty_1, 8, 8; qp 0, srq 0, port_num 0);
layout!(ibv_async_event, 16, 8; element 0, event_type 8);
pub const IBV_WC_SUCCESS: ibv_wc_status = 0;
pub const IBV_WC_LOC_LEN_ERR: ibv_wc_status = 1;
pub const IBV_WC_LOC_QP_OP_ERR: ibv_wc_status = 2;
pub const IBV_WC_LOC_PROT_ERR: ibv_wc_status = 4;
pub const IBV_WC_WR_FLUSH_ERR: ibv_wc_status = 5;
pub const IBV_WC_REM_INV_REQ_ERR: ibv_wc_status = 9;
pub const IBV_WC_REM_ACCESS_ERR: ibv_wc_status = 10;
pub const IBV_WC_REM_OP_ERR: ibv_wc_status = 11;
pub const IBV_WC_RETRY_EXC_ERR: ibv_wc_status = 12;
pub const IBV_WC_RNR_RETRY_EXC_ERR: ibv_wc_status = 13;
pub const IBV_WC_RESP_TIMEOUT_ERR: ibv_wc_status = 20;
pub type ibv_wc_status = ::core::ffi::c_uint;
pub const IBV_WC_RECV_RDMA_WITH_IMM: ibv_wc_opcode = 129;
pub type ibv_wc_opcode = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: ibv_wc_status,
    pub opcode: ibv_wc_opcode,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub __bindgen_anon_1: ibv_wc__bindgen_ty_1,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: ::core::ffi::c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_wc__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidated_rkey: u32,
}
layout!(ibv_wc__bindgen_ty_1, 4, 4; imm_data 0);
layout!(ibv_wc, 48, 8; wr_id 0, status 8, opcode 12, vendor_err 16, byte_len 20, qp_num 28,
    wc_flags 36, sl 44);
pub const IBV_ACCESS_LOCAL_WRITE: ibv_access_flags = 1;
pub const IBV_ACCESS_REMOTE_WRITE: ibv_access_flags = 2;
pub const IBV_ACCESS_REMOTE_READ: ibv_access_flags = 4;
pub type ibv_access_flags = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: ::core::ffi::c_uint,
}
layout!(ibv_mw_bind_info, 32, 8; addr 8, length 16);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_pd {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut ::core::ffi::c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}
layout!(ibv_mr, 48, 8; context 0, pd 8, addr 16, length 24, handle 32, lkey 36, rkey 40);
pub type ibv_mw_type = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub type_: ibv_mw_type,
}
layout!(ibv_mw, 32, 8; context 0, pd 8, rkey 16, handle 20);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
layout!(ibv_global_route, 24, 8; dgid 0, flow_label 16, sgid_index 20, hop_limit 21,
    traffic_class 22);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
layout!(ibv_ah_attr, 32, 8; grh 0, dlid 24, sl 26, is_global 29, port_num 30);
pub const IBV_QPT_RC: ibv_qp_type = 2;
pub type ibv_qp_type = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}
layout!(ibv_qp_cap, 20, 4; max_send_wr 0, max_recv_wr 4, max_send_sge 8, max_recv_sge 12,
    max_inline_data 16);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut ::core::ffi::c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: ::core::ffi::c_int,
}
layout!(ibv_qp_init_attr, 64, 8; qp_context 0, send_cq 8, recv_cq 16, srq 24, cap 32, qp_type 52,
    sq_sig_all 56);
pub const IBV_QP_STATE: ibv_qp_attr_mask = 1;
pub const IBV_QP_ACCESS_FLAGS: ibv_qp_attr_mask = 8;
pub const IBV_QP_PKEY_INDEX: ibv_qp_attr_mask = 16;
pub const IBV_QP_PORT: ibv_qp_attr_mask = 32;
pub const IBV_QP_AV: ibv_qp_attr_mask = 128;
pub const IBV_QP_PATH_MTU: ibv_qp_attr_mask = 256;
pub const IBV_QP_TIMEOUT: ibv_qp_attr_mask = 512;
pub const IBV_QP_RETRY_CNT: ibv_qp_attr_mask = 1024;
pub const IBV_QP_RNR_RETRY: ibv_qp_attr_mask = 2048;
pub const IBV_QP_RQ_PSN: ibv_qp_attr_mask = 4096;
pub const IBV_QP_MAX_QP_RD_ATOMIC: ibv_qp_attr_mask = 8192;
pub const IBV_QP_MIN_RNR_TIMER: ibv_qp_attr_mask = 32768;
pub const IBV_QP_SQ_PSN: ibv_qp_attr_mask = 65536;
pub const IBV_QP_MAX_DEST_RD_ATOMIC: ibv_qp_attr_mask = 131072;
pub const IBV_QP_DEST_QPN: ibv_qp_attr_mask = 1048576;
pub type ibv_qp_attr_mask = ::core::ffi::c_uint;
pub const IBV_QPS_INIT: ibv_qp_state = 1;
pub const IBV_QPS_RTR: ibv_qp_state = 2;
pub const IBV_QPS_RTS: ibv_qp_state = 3;
pub const IBV_QPS_ERR: ibv_qp_state = 6;
pub type ibv_qp_state = ::core::ffi::c_uint;
pub type ibv_mig_state = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state,
    pub cur_qp_state: ibv_qp_state,
    pub path_mtu: ibv_mtu,
    pub path_mig_state: ibv_mig_state,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: ::core::ffi::c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}
layout!(ibv_qp_attr, 144, 8; qp_state 0, path_mtu 8, rq_psn 20, sq_psn 24, dest_qp_num 28,
    qp_access_flags 32, cap 36, ah_attr 56, max_rd_atomic 126, max_dest_rd_atomic 127,
    min_rnr_timer 128, port_num 129, timeout 130, retry_cnt 131, rnr_retry 132);
pub const IBV_WR_RDMA_WRITE: ibv_wr_opcode = 0;
pub const IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_opcode = 1;
pub const IBV_WR_SEND: ibv_wr_opcode = 2;
pub const IBV_WR_RDMA_READ: ibv_wr_opcode = 4;
pub type ibv_wr_opcode = ::core::ffi::c_uint;
pub const IBV_SEND_SIGNALED: ibv_send_flags = 2;
pub const IBV_SEND_INLINE: ibv_send_flags = 8;
pub type ibv_send_flags = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}
layout!(ibv_sge, 16, 8; addr 0, length 8, lkey 12);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: ::core::ffi::c_int,
    pub opcode: ibv_wr_opcode,
    pub send_flags: ::core::ffi::c_uint,
    pub __bindgen_anon_1: ibv_send_wr__bindgen_ty_1,
    pub wr: ibv_send_wr__bindgen_ty_2,
    pub qp_type: ibv_send_wr__bindgen_ty_3,
    pub __bindgen_anon_2: ibv_send_wr__bindgen_ty_4,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_1 {
    pub imm_data: __be32,
    pub invalidate_rkey: u32,
}
layout!(ibv_send_wr__bindgen_ty_1, 4, 4; imm_data 0);
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_2 {
    pub rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1,
    pub atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2,
    pub ud: ibv_send_wr__bindgen_ty_2__bindgen_ty_3,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    pub remote_addr: u64,
    pub rkey: u32,
}
layout!(ibv_send_wr__bindgen_ty_2__bindgen_ty_1, 16, 8; remote_addr 0, rkey 8);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}
layout!(ibv_send_wr__bindgen_ty_2__bindgen_ty_2, 32, 8; remote_addr 0, rkey 24);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}
layout!(ibv_send_wr__bindgen_ty_2__bindgen_ty_3, 16, 8);
layout!(ibv_send_wr__bindgen_ty_2, 32, 8; rdma 0);
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_3 {
    pub xrc: ibv_send_wr__bindgen_ty_3__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_3__bindgen_ty_1 {
    pub remote_srqn: u32,
}
layout!(ibv_send_wr__bindgen_ty_3__bindgen_ty_1, 4, 4);
layout!(ibv_send_wr__bindgen_ty_3, 4, 4);
#[repr(C)]
#[derive(Copy, Clone)]
pub union ibv_send_wr__bindgen_ty_4 {
    pub bind_mw: ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
    pub tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
layout!(ibv_send_wr__bindgen_ty_4__bindgen_ty_1, 48, 8; rkey 8);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
    pub hdr: *mut ::core::ffi::c_void,
    pub hdr_sz: u16,
    pub mss: u16,
}
layout!(ibv_send_wr__bindgen_ty_4__bindgen_ty_2, 16, 8);
layout!(ibv_send_wr__bindgen_ty_4, 48, 8);
layout!(ibv_send_wr, 128, 8; wr_id 0, next 8, sg_list 16, num_sge 24, opcode 28, send_flags 32,
    wr 40, qp_type 72);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: ::core::ffi::c_int,
}
layout!(ibv_recv_wr, 32, 8; wr_id 0, next 8, sg_list 16, num_sge 24);
#[repr(C)]
pub struct ibv_srq {
    _unused: [u8; 0],
}
#[repr(C)]
pub struct ibv_wq {
    _unused: [u8; 0],
}
#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut ::core::ffi::c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: ibv_qp_state,
    pub qp_type: ibv_qp_type,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: u32,
}
#[cfg(target_arch = "x86_64")]
layout!(ibv_qp, 160, 8; context 0, qp_context 8, pd 16, send_cq 24, recv_cq 32, srq 40, handle 48,
    qp_num 52, state 56, qp_type 60);
#[cfg(all(target_arch = "aarch64", target_env = "gnu"))]
layout!(ibv_qp, 168, 8; context 0, qp_context 8, pd 16, send_cq 24, recv_cq 32, srq 40, handle 48,
    qp_num 52, state 56, qp_type 60);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: ::core::ffi::c_int,
    pub refcnt: ::core::ffi::c_int,
}
layout!(ibv_comp_channel, 16, 8; context 0, fd 8);
#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut ::core::ffi::c_void,
    pub handle: u32,
    pub cqe: ::core::ffi::c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
#[cfg(target_arch = "x86_64")]
layout!(ibv_cq, 128, 8; context 0, channel 8, handle 24);
#[cfg(all(target_arch = "aarch64", target_env = "gnu"))]
layout!(ibv_cq, 136, 8; context 0, channel 8, handle 24);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_ah {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_device {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct _compat_ibv_port_attr {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ibv_context_ops {
    pub _compat_query_device: *mut ::core::ffi::c_void,
    pub _compat_query_port: *mut ::core::ffi::c_void,
    pub _compat_alloc_pd: *mut ::core::ffi::c_void,
    pub _compat_dealloc_pd: *mut ::core::ffi::c_void,
    pub _compat_reg_mr: *mut ::core::ffi::c_void,
    pub _compat_rereg_mr: *mut ::core::ffi::c_void,
    pub _compat_dereg_mr: *mut ::core::ffi::c_void,
    pub alloc_mw: *mut ::core::ffi::c_void,
    pub bind_mw: *mut ::core::ffi::c_void,
    pub dealloc_mw: *mut ::core::ffi::c_void,
    pub _compat_create_cq: *mut ::core::ffi::c_void,
    pub poll_cq: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut ibv_cq,
            num_entries: ::core::ffi::c_int,
            wc: *mut ibv_wc,
        ) -> ::core::ffi::c_int,
    >,
    pub req_notify_cq: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut ibv_cq,
            solicited_only: ::core::ffi::c_int,
        ) -> ::core::ffi::c_int,
    >,
    pub _compat_cq_event: *mut ::core::ffi::c_void,
    pub _compat_resize_cq: *mut ::core::ffi::c_void,
    pub _compat_destroy_cq: *mut ::core::ffi::c_void,
    pub _compat_create_srq: *mut ::core::ffi::c_void,
    pub _compat_modify_srq: *mut ::core::ffi::c_void,
    pub _compat_query_srq: *mut ::core::ffi::c_void,
    pub _compat_destroy_srq: *mut ::core::ffi::c_void,
    pub post_srq_recv: *mut ::core::ffi::c_void,
    pub _compat_create_qp: *mut ::core::ffi::c_void,
    pub _compat_query_qp: *mut ::core::ffi::c_void,
    pub _compat_modify_qp: *mut ::core::ffi::c_void,
    pub _compat_destroy_qp: *mut ::core::ffi::c_void,
    pub post_send: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_send_wr,
            bad_wr: *mut *mut ibv_send_wr,
        ) -> ::core::ffi::c_int,
    >,
    pub post_recv: ::core::option::Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp,
            wr: *mut ibv_recv_wr,
            bad_wr: *mut *mut ibv_recv_wr,
        ) -> ::core::ffi::c_int,
    >,
    pub _compat_create_ah: *mut ::core::ffi::c_void,
    pub _compat_destroy_ah: *mut ::core::ffi::c_void,
    pub _compat_attach_mcast: *mut ::core::ffi::c_void,
    pub _compat_detach_mcast: *mut ::core::ffi::c_void,
    pub _compat_async_event: *mut ::core::ffi::c_void,
}
layout!(ibv_context_ops, 256, 8; poll_cq 88, req_notify_cq 96, post_send 200, post_recv 208);
#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: ::core::ffi::c_int,
    pub async_fd: ::core::ffi::c_int,
    pub num_comp_vectors: ::core::ffi::c_int,
    pub mutex: pthread_mutex_t,
    pub abi_compat: *mut ::core::ffi::c_void,
}
#[cfg(target_arch = "x86_64")]
layout!(ibv_context, 328, 8; device 0, ops 8, cmd_fd 264, async_fd 268);
#[cfg(all(target_arch = "aarch64", target_env = "gnu"))]
layout!(ibv_context, 336, 8; device 0, ops 8, cmd_fd 264, async_fd 268);
library! {
    ibv_get_device_list:
        unsafe extern "C" fn(num_devices: *mut ::core::ffi::c_int) -> *mut *mut ibv_device,
    ibv_free_device_list: unsafe extern "C" fn(list: *mut *mut ibv_device),
    ibv_get_device_name:
        unsafe extern "C" fn(device: *mut ibv_device) -> *const ::core::ffi::c_char,
    ibv_open_device: unsafe extern "C" fn(device: *mut ibv_device) -> *mut ibv_context,
    ibv_close_device: unsafe extern "C" fn(context: *mut ibv_context) -> ::core::ffi::c_int,
    ibv_get_async_event: unsafe extern "C" fn(
        context: *mut ibv_context,
        event: *mut ibv_async_event,
    ) -> ::core::ffi::c_int,
    ibv_ack_async_event: unsafe extern "C" fn(event: *mut ibv_async_event),
    ibv_query_device: unsafe extern "C" fn(
        context: *mut ibv_context,
        device_attr: *mut ibv_device_attr,
    ) -> ::core::ffi::c_int,
    ibv_query_port: unsafe extern "C" fn(
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut _compat_ibv_port_attr,
    ) -> ::core::ffi::c_int,
    _ibv_query_gid_table: unsafe extern "C" fn(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize,
    ibv_alloc_pd: unsafe extern "C" fn(context: *mut ibv_context) -> *mut ibv_pd,
    ibv_dealloc_pd: unsafe extern "C" fn(pd: *mut ibv_pd) -> ::core::ffi::c_int,
    ibv_reg_mr_iova: unsafe extern "C" fn(
        pd: *mut ibv_pd,
        addr: *mut ::core::ffi::c_void,
        length: usize,
        iova: u64,
        access: ::core::ffi::c_int,
    ) -> *mut ibv_mr,
    ibv_dereg_mr: unsafe extern "C" fn(mr: *mut ibv_mr) -> ::core::ffi::c_int,
    ibv_create_comp_channel:
        unsafe extern "C" fn(context: *mut ibv_context) -> *mut ibv_comp_channel,
    ibv_destroy_comp_channel:
        unsafe extern "C" fn(channel: *mut ibv_comp_channel) -> ::core::ffi::c_int,
    ibv_create_cq: unsafe extern "C" fn(
        context: *mut ibv_context,
        cqe: ::core::ffi::c_int,
        cq_context: *mut ::core::ffi::c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: ::core::ffi::c_int,
    ) -> *mut ibv_cq,
    ibv_destroy_cq: unsafe extern "C" fn(cq: *mut ibv_cq) -> ::core::ffi::c_int,
    ibv_get_cq_event: unsafe extern "C" fn(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int,
    ibv_ack_cq_events: unsafe extern "C" fn(cq: *mut ibv_cq, nevents: ::core::ffi::c_uint),
    ibv_create_qp:
        unsafe extern "C" fn(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp,
    ibv_modify_qp: unsafe extern "C" fn(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        attr_mask: ::core::ffi::c_int,
    ) -> ::core::ffi::c_int,
    ibv_destroy_qp: unsafe extern "C" fn(qp: *mut ibv_qp) -> ::core::ffi::c_int,
    ibv_fork_init: unsafe extern "C" fn() -> ::core::ffi::c_int,
    ibv_is_fork_initialized: unsafe extern "C" fn() -> ibv_fork_status,
}
