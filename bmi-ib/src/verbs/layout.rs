//! The layout of the structures that are passed to C, for comparison with other bindings.

use std::mem::{offset_of, size_of};

use super::sys;

macro_rules! layout_of {
    ($($name:ident { $($field:ident),* })*) => {
        &[$((stringify!($name), size_of::<sys::$name>()), $((concat!(stringify!($name), ".", stringify!($field)), offset_of!(sys::$name, $field)),)*)*]
    };
}

/// Returns the sizes of the structures and the offsets of their fields in bytes, by their names in
/// C.
pub fn layout() -> &'static [(&'static str, usize)] {
    layout_of! {
        ibv_sge { addr, length, lkey }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr }
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, wc_flags }
        ibv_qp_attr {
            qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr, max_rd_atomic, max_dest_rd_atomic,
            min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry
        }
        ibv_ah_attr { grh, dlid, sl, is_global, port_num }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_port_attr { state, max_mtu, active_mtu, max_msg_sz, lid, link_layer, flags }
        ibv_async_event { element, event_type }
        ibv_context { device, ops, cmd_fd, async_fd }
    }
}
