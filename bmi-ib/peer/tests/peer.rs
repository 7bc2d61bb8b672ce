//! Tests against an independent implementation of verbs: the `ibverbs` crate, with its own bindings
//! and library. It is the other end of a connection of this backend, and its structure layouts are
//! compared with this backend's. Needs an RDMA device.

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::time::Duration;

use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{Event, Payload, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Addr, Clock, Memory, Transport};
use bmi_ib::{IbConfig, IbTransport};
use ibverbs::{QueuePairEndpoint, ibv_qp_type, ibv_wc};
use ibverbs_sys as ffi;

/// Sizes and offsets of the structures passed to C equal those that `ibverbs-sys` found in its own
/// copy of the header.
#[test]
fn structures_are_laid_out_as_theirs() {
    use std::mem::{offset_of, size_of};
    macro_rules! theirs {
        ($($name:ident { $($field:ident),* })*) => {
            &[$((stringify!($name), size_of::<ffi::$name>()), $((concat!(stringify!($name), ".", stringify!($field)), offset_of!(ffi::$name, $field)),)*)*]
        };
    }
    let theirs: &[(&str, usize)] = theirs! {
        ibv_sge { addr, length, lkey }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr }
        ibv_wc { qp_num, wc_flags }
        ibv_qp_attr { qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry }
        ibv_ah_attr { grh, dlid, sl, is_global, port_num }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_port_attr { state, max_mtu, active_mtu, max_msg_sz, lid, link_layer, flags }
        ibv_async_event { element, event_type }
        ibv_context { device, ops, cmd_fd, async_fd }
    };
    let (hidden, ours): (Vec<(&str, usize)>, Vec<(&str, usize)>) =
        bmi_ib::verbs::layout().iter().copied().partition(|(name, _)| HIDDEN.contains(name));
    assert_eq!(ours.len(), theirs.len());
    for ((name, ours), (_, theirs)) in ours.iter().zip(theirs) {
        // Their header is of a later version, in which this structure has one more field at its
        // end.
        let same = if *name == GROWN { ours <= theirs } else { ours == theirs };
        assert!(same, "{name}: {ours} bytes here, {theirs} bytes there");
    }
    // These fields are only accessible through calls of theirs.
    assert_eq!(hidden.len(), HIDDEN.len());
    for (name, offset) in hidden {
        assert_eq!(field_of_completion(name, offset), Some(PATTERN), "{name} is not at {offset}");
    }
}

const GROWN: &str = "ibv_port_attr";
const HIDDEN: &[&str] = &["ibv_wc.wr_id", "ibv_wc.status", "ibv_wc.opcode", "ibv_wc.vendor_err", "ibv_wc.byte_len"];
/// A value that is a status, an opcode and a number at once.
const PATTERN: u32 = 3;

/// Returns what their call reads in a completion that is all zeros except for [`PATTERN`] at
/// `offset`.
fn field_of_completion(name: &str, offset: usize) -> Option<u32> {
    let mut end = MaybeUninit::<ibv_wc>::zeroed();
    // SAFETY: the field has at least four bytes and lies within the structure. All fields are
    // integers, for which any of these values is valid.
    let end = unsafe {
        end.as_mut_ptr().cast::<u8>().add(offset).cast::<u32>().write_unaligned(PATTERN);
        if name == "ibv_wc.vendor_err" {
            // They report it only for a completion whose status is not success.
            let (_, status) = bmi_ib::verbs::layout().iter().find(|(name, _)| *name == "ibv_wc.status")?;
            end.as_mut_ptr().cast::<u8>().add(*status).cast::<u32>().write_unaligned(PATTERN);
        }
        end.assume_init()
    };
    match name {
        "ibv_wc.wr_id" => u32::try_from(end.wr_id()).ok(),
        "ibv_wc.status" => end.error().map(|(status, _)| status),
        "ibv_wc.opcode" => Some(end.opcode()),
        "ibv_wc.vendor_err" => end.error().map(|(_, vendor)| vendor),
        "ibv_wc.byte_len" => u32::try_from(end.len()).ok(),
        _ => None,
    }
}

const LEN: usize = 5000;

/// Their queue pair against this transport, which dials: messages go both ways. The test plays the
/// side channel by hand, byte for byte, as its module describes it.
#[test]
fn messages_go_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let clock = MonotonicClock::new();
    let mut ours = IbTransport::new(IbConfig::default()).unwrap();
    let addr = Addr::ib(None, "127.0.0.1", listener.local_addr().unwrap().port());
    let conn = ours.connect(&addr, b"hello", clock.now() + Duration::from_secs(20)).unwrap();
    let landing = Memory::zeroed(LEN).unwrap();
    let region = ours.register(&landing).unwrap();
    ours.post_recv(conn, WorkId(1), &[region.segment(0, LEN)]).unwrap();

    // Dialing and the greeting take a poll or two.
    let mut events = Vec::new();
    let (mut side, _) = loop {
        ours.poll(clock.now(), &mut events);
        listener.set_nonblocking(true).unwrap();
        if let Ok(accepted) = listener.accept() {
            break accepted;
        }
    };
    side.set_nonblocking(true).unwrap();
    let mut greeting = vec![0u8; 64 + 5];
    let mut filled = 0;
    while filled < greeting.len() {
        ours.poll(clock.now(), &mut events);
        filled += side.read(&mut greeting[filled..]).unwrap_or(0);
    }
    assert_eq!((&greeting[..8], &greeting[64..]), (&b"bmi-ib\r\n"[..], &b"hello"[..]));
    let word = |at: usize| u32::from_le_bytes(greeting[at..at + 4].try_into().unwrap());
    let remote = QueuePairEndpoint {
        num: word(16),
        lid: 0,
        gid: Some(ffi::ibv_gid { raw: greeting[32..48].try_into().unwrap() }.into()),
    };

    let devices = ibverbs::devices().unwrap();
    let context = devices.get(0).unwrap().open().unwrap();
    let queue = context.create_cq(64, 0).unwrap();
    let domain = context.alloc_pd().unwrap();
    // The IPv4 address: a mapped one has no prefix.
    let gid = context.gid_table().iter().find(|entry| entry.gid.subnet_prefix() == 0).unwrap().gid_index;
    let mut builder = domain.create_qp(&queue, &queue, ibv_qp_type::IBV_QPT_RC);
    builder.set_gid_index(gid).set_rq_psn(word(20)).set_path_mtu(u32::from(greeting[26])).allow_remote_rw();
    let prepared = builder.build().unwrap();
    let own = prepared.endpoint();
    let mut queue_pair = prepared.handshake(remote).unwrap();
    let mut buffer = domain.allocate::<u8>(2 * LEN).unwrap();
    // SAFETY: the buffer is not accessed before the receive's completion has been polled below.
    unsafe { queue_pair.post_receive(&mut buffer, LEN.., 7) }.unwrap();

    // ACCEPT: their queue pair, packets from 0, and their address.
    let mut accept = [0u8; 64];
    accept[..8].copy_from_slice(b"bmi-ib\r\n");
    (accept[8], accept[10]) = (1, 2);
    accept[16..20].copy_from_slice(&own.num.to_le_bytes());
    (accept[26], accept[27], accept[28], accept[29]) = (greeting[26], 1, 1, 1);
    let raw = own.gid.unwrap();
    accept[32..40].copy_from_slice(&raw.subnet_prefix().to_be_bytes());
    accept[40..48].copy_from_slice(&raw.interface_id().to_be_bytes());
    side.write_all(&accept).unwrap();
    let mut next = |ours: &mut IbTransport, what: &str| {
        let give_up = clock.now() + Duration::from_secs(20);
        loop {
            if !events.is_empty() {
                return events.remove(0);
            }
            assert!(clock.now() < give_up, "waited in vain for: {what}");
            ours.poll(clock.now(), &mut events);
        }
    };
    assert!(matches!(next(&mut ours, "established"), Event::Established { .. }));

    // From this side to theirs: a head and two pieces.
    let text: Vec<u8> = (0..LEN as u32 - 10).map(|at| (at * 7) as u8).collect();
    let source = Memory::from(text.clone());
    let from = ours.register(&source).unwrap();
    let list = [from.segment(0, 1000), from.segment(1000, text.len() - 1000)];
    ours.post_send(conn, WorkId(2), b"0123456789", Payload::Gather(&list), WorkOptions::SIGNALLED).unwrap();
    let Event::Work(sent) = next(&mut ours, "our send") else { panic!("an end") };
    assert_eq!((sent.work, sent.kind, sent.status), (WorkId(2), WorkKind::Send, WorkStatus::Ok));
    let mut ends = [ibv_wc::default(); 4];
    let arrived = loop {
        if let Some(end) = queue.poll(&mut ends).unwrap().first() {
            break *end;
        }
    };
    assert!(arrived.is_valid(), "{:?}", arrived.error());
    assert_eq!((arrived.wr_id(), arrived.len()), (7, LEN));
    assert_eq!((&buffer[LEN..LEN + 10], &buffer[LEN + 10..]), (&b"0123456789"[..], &text[..]));

    // From their side to this one.
    let (out, back) = buffer.split_at_mut(LEN);
    out.copy_from_slice(back);
    // SAFETY: the buffer is not accessed before its bytes have arrived at this side, which the code
    // below waits for.
    unsafe { queue_pair.post_send(&mut buffer, ..LEN, 8) }.unwrap();
    let Event::Work(got) = next(&mut ours, "their send") else { panic!("an end") };
    assert_eq!((got.work, got.kind, got.status, got.len), (WorkId(1), WorkKind::Recv, WorkStatus::Ok, LEN as u64));
    assert_eq!(&landing.to_vec()[10..], &text[..]);
    let sent = loop {
        if let Some(end) = queue.poll(&mut ends).unwrap().first() {
            break *end;
        }
    };
    assert!(sent.is_valid(), "{:?}", sent.error());
    drop(side);
    let Event::Disconnected { .. } = next(&mut ours, "the end") else { panic!("not an end") };
}
