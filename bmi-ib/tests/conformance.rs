//! The shared conformance suite over verbs: with the defaults, with small limits and TLS, and
//! behind adapters that inject faults. Needs an RDMA device; `cargo xtask rxe` has one.

use std::process::ExitCode;
use std::time::Duration;

use bmi_conformance::certificates::{Authority, Says};
use bmi_conformance::{FaultyBackend, Local, Plan, Suite};
use bmi_core::{Addr, Capabilities, OneSided, PeerIdentity, Registration};
use bmi_ib::{IbConfig, IbTransport, Security};

/// The backend's capabilities on Soft-RoCE, written out by hand.
fn pinned() -> Capabilities {
    let mut expected = Capabilities::minimal();
    expected.one_sided = OneSided::Native;
    expected.rdma_read = true;
    expected.write_with_immediate = true;
    expected.registration =
        Registration::Pins { per_region: Duration::from_micros(28), per_page: Duration::from_nanos(300) };
    expected.max_segments = 16;
    expected.max_head = 256;
    expected.max_inline = (8 << 10) + 256;
    expected.max_work_len = 8 << 20;
    expected.send_queue_depth = 128;
    expected.recv_queue_depth = 256;
    expected.max_outstanding_reads = 16;
    expected.service_levels = 1;
    expected.event_fd = true;
    expected
}

/// Adapters on the first device, with side channels on one of this machine's loopback addresses.
fn ib(name: &'static str, host: &'static str, config: IbConfig, expected: Capabilities) -> Local {
    let shared = config.clone();
    let shards = move |count| IbTransport::shards(shared.clone(), count).expect("this machine has an RDMA device");
    let make = move || IbTransport::new(config.clone()).expect("this machine has an RDMA device");
    // A reserved port. It is below the ports at which unprivileged processes can listen.
    let vacant = Addr::ib(None, host, 1);
    Local::new(name, expected, make, move |_| Addr::ib(None, host, 0), vacant).with_shards(shards).with_cases(4)
}

/// The defaults, side channels over IPv4.
fn ordinary() -> Local {
    ib("ib", "127.0.0.1", IbConfig::default(), pinned())
}

/// Side channels over IPv6 and TLS, short queues, one read at a time, nothing inline, a small ring.
fn little() -> Local {
    let mut expected = pinned();
    (expected.send_queue_depth, expected.recv_queue_depth, expected.max_outstanding_reads) = (16, 128, 1);
    let (authority, says) = (Authority::new("conformance"), Says::names(&["pvfs:user/anna"]));
    let issued = authority.issue("anna", &says);
    let security = Security::mutual(issued.certificate, issued.key, authority.certificate());
    let mut config = IbConfig::scarce();
    config.security = Some(security.expect("good files"));
    ib("ib, scarce", "::1", config, expected).with_identity(PeerIdentity::named(says.names))
}

fn main() -> ExitCode {
    Suite::new("ib")
        .ignored()
        .over("plain", ordinary)
        .over("scarce", little)
        .over("troubled", || FaultyBackend::new(Box::new(ordinary()), Plan::mild(4)))
        .run()
}
