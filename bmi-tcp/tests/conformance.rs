//! The shared conformance suite over TCP on loopback: with the defaults, over IPv6 with little of everything, and behind adapters that make trouble.

use std::time::Duration;

use bmi_conformance::{Backend, FaultyBackend, Plan};
use bmi_core::driver::MonotonicClock;
use bmi_core::{Addr, Capabilities, OneSided, Registration, Time};
use bmi_tcp::{TcpConfig, TcpTransport};

/// Adapters of this process, on one of its loopback addresses.
struct Tcp {
    name: &'static str,
    host: &'static str,
    config: TcpConfig,
    expected: Capabilities,
    clock: MonotonicClock,
}

/// What the backend can do, by hand.
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

impl Tcp {
    /// The defaults, over IPv4.
    fn plain() -> Tcp {
        let config = TcpConfig::default();
        Tcp { name: "tcp", host: "127.0.0.1", config, expected: pinned(), clock: MonotonicClock::new() }
    }

    /// Over IPv6, with socket buffers that hold next to nothing and short queues: every frame comes in pieces.
    fn scarce() -> Tcp {
        let mut config = TcpConfig::default();
        config.send_buffer = Some(4 << 10);
        config.recv_buffer = Some(4 << 10);
        config.read_ahead = 4 << 10;
        config.send_queue_depth = 32;
        config.recv_queue_depth = 128;
        let expected = {
            let mut expected = pinned();
            (expected.send_queue_depth, expected.recv_queue_depth) = (32, 128);
            expected
        };
        Tcp { name: "tcp, scarce", host: "::1", config, expected, clock: MonotonicClock::new() }
    }
}

impl Backend for Tcp {
    type Transport = TcpTransport;
    type Clock = MonotonicClock;

    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn expected_capabilities(&self) -> Capabilities {
        self.expected.clone()
    }

    fn transport(&self, _node: &str) -> TcpTransport {
        TcpTransport::new(self.config.clone()).expect("the system has a descriptor")
    }

    fn listen_addr(&self, _node: &str) -> Addr {
        Addr::tcp(self.host, 0)
    }

    fn vacant_addr(&self, _node: &str) -> Addr {
        // Reserved, and below the ports that anybody without privileges listens at.
        Addr::tcp(self.host, 1)
    }

    fn clock(&self) -> MonotonicClock {
        self.clock
    }

    fn pass(&self, _until: Option<Time>) {
        std::thread::yield_now();
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }

    fn property_cases(&self) -> u32 {
        8
    }
}

mod plain {
    use super::*;
    bmi_conformance::conformance_suite!(Tcp::plain());
}

mod scarce {
    use super::*;
    bmi_conformance::conformance_suite!(Tcp::scarce());
}

mod troubled {
    use super::*;
    bmi_conformance::conformance_suite!(FaultyBackend::new(Tcp::plain(), Plan::mild(4)));
}
