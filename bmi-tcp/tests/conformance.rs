//! The shared conformance suite over TCP on loopback: with the defaults, over IPv6 with small
//! limits, and with adapters that inject faults.

use std::process::ExitCode;

use bmi_conformance::{FaultyBackend, Local, Plan, Suite};
use bmi_core::{Addr, Capabilities, OneSided, Registration};
use bmi_tcp::{TcpConfig, TcpTransport};

/// The backend's capabilities, written by hand.
fn pinned() -> Capabilities {
    let mut expected = Capabilities::minimal();
    expected.one_sided = OneSided::Emulated;
    expected.rdma_read = true;
    expected.write_with_immediate = true;
    expected.registration = Registration::Free;
    expected.max_segments = 1024;
    expected.max_head = 256;
    expected.max_inline = (8 << 10) + 256;
    expected.max_work_len = 1 << 40;
    expected.send_queue_depth = 1024;
    expected.recv_queue_depth = 4096;
    expected.max_outstanding_reads = 64;
    expected.service_levels = 1;
    expected.event_fd = true;
    expected
}

/// Adapters on one of this machine's loopback addresses.
fn tcp(name: &'static str, host: &'static str, config: TcpConfig, expected: Capabilities) -> Local {
    let shared = config.clone();
    let make = move || TcpTransport::new(config.clone()).expect("the system has a descriptor");
    let shards = move |count| TcpTransport::shards(shared.clone(), count).expect("the system has descriptors");
    // A reserved port, which unprivileged programs cannot listen at.
    let vacant = Addr::tcp(host, 1);
    Local::new(name, expected, make, move |_| Addr::tcp(host, 0), vacant).with_shards(shards)
}

/// The defaults, over IPv4.
fn ordinary() -> Local {
    tcp("tcp", "127.0.0.1", TcpConfig::default(), pinned())
}

/// Over IPv6, with very small socket buffers and short queues, so that every frame arrives in
/// pieces.
fn little() -> Local {
    let mut expected = pinned();
    (expected.send_queue_depth, expected.recv_queue_depth) = (32, 128);
    tcp("tcp, scarce", "::1", TcpConfig::scarce(), expected)
}

fn main() -> ExitCode {
    Suite::new("tcp")
        .over("plain", ordinary)
        .over("scarce", little)
        .over("troubled", || FaultyBackend::new(Box::new(ordinary()), Plan::mild(4)))
        .run()
}
