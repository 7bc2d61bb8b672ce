//! The shared conformance suite over TCP on loopback: with the defaults, over IPv6 with small
//! limits, over several streams, and with adapters that inject faults.

use std::process::ExitCode;

use bmi_conformance::{FaultyBackend, Local, Plan, Suite, software_capabilities};
use bmi_core::{Addr, Capabilities};
use bmi_tcp::{TcpConfig, TcpTransport};

/// Adapters on one of this machine's loopback addresses.
fn tcp(name: &'static str, host: &'static str, config: TcpConfig, expected: Capabilities) -> Local {
    let shared = config.clone();
    let make = move || TcpTransport::new(config.clone()).expect("the system has a descriptor");
    let shards = move |count| TcpTransport::shards(shared.clone(), count).expect("the system has descriptors");
    // A reserved port, which unprivileged programs cannot listen at.
    let vacant = Addr::tcp(host, 1);
    Local::new(name, expected, make, move |_| Addr::tcp(host, 0), vacant).with_shards(shards).with_inline_receives()
}

/// The defaults, over IPv4.
fn ordinary() -> Local {
    tcp("tcp", "127.0.0.1", TcpConfig::default(), software_capabilities())
}

/// Over IPv6, with very small socket buffers and short queues, so that every frame arrives in
/// pieces.
fn little() -> Local {
    let mut expected = software_capabilities();
    (expected.send_queue_depth, expected.recv_queue_depth) = (32, 128);
    tcp("tcp, scarce", "::1", TcpConfig::scarce(), expected)
}

/// Several streams for each connection.
fn several() -> Local {
    let mut config = TcpConfig::default();
    config.streams = 4;
    tcp("tcp, streams", "127.0.0.1", config, software_capabilities())
}

fn main() -> ExitCode {
    Suite::new("tcp")
        .over("plain", ordinary)
        .over("scarce", little)
        .over("streams", several)
        .over("troubled", || FaultyBackend::new(Box::new(ordinary()), Plan::mild(4)))
        .run()
}
