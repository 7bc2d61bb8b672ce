//! The shared conformance suite over TCP on loopback: with the defaults, over IPv6 with small
//! limits, over several streams, over TLS, and with adapters that inject faults.

use std::process::ExitCode;

use bmi_conformance::certificates::{Authority, Says};
use bmi_conformance::{FaultyBackend, Local, Plan, Suite, software_capabilities};
use bmi_core::{Addr, Capabilities, PeerIdentity};
use bmi_tcp::{Security, TcpConfig, TcpTransport};

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

/// TLS.
fn secure() -> Local {
    secured("tcp, secure", "127.0.0.1", TcpConfig::default(), software_capabilities())
}

/// TLS over several streams, with very small socket buffers, short queues, and keys that change
/// all the time.
fn little_and_secure() -> Local {
    let mut config = TcpConfig::scarce();
    config.streams = 3;
    let mut expected = software_capabilities();
    (expected.send_queue_depth, expected.recv_queue_depth) = (32, 128);
    secured("tcp, scarce and secure", "::1", config, expected)
}

fn secured(name: &'static str, host: &'static str, config: TcpConfig, expected: Capabilities) -> Local {
    let authority = Authority::new("conformance");
    let says = Says::names(&["pvfs:user/anna"]);
    let issued = authority.issue("anna", &says);
    let security = Security::mutual(issued.certificate, issued.key, authority.certificate()).expect("good files");
    let security = if config.streams > 1 { security.with_records_of_key(40).expect("good files") } else { security };
    tcp(name, host, config.secure(security), expected).with_identity(PeerIdentity::named(says.names))
}

fn main() -> ExitCode {
    Suite::new("tcp")
        .over("plain", ordinary)
        .over("scarce", little)
        .over("streams", several)
        .over("secure", secure)
        .over("secure_streams", little_and_secure)
        .over("troubled", || FaultyBackend::new(Box::new(ordinary()), Plan::mild(4)))
        .run()
}
