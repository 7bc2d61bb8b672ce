//! The shared conformance suite over verbs: with the defaults, with little of everything, and behind adapters that make trouble.
//! Needs an RDMA device; `cargo xtask rxe` has one.

use std::time::Duration;

use bmi_conformance::{Backend, FaultyBackend, Plan};
use bmi_core::driver::MonotonicClock;
use bmi_core::{Addr, Capabilities, OneSided, Registration, Time};
use bmi_ib::{IbConfig, IbTransport};

/// Adapters of this process on the first device, with side channels on one of its loopback addresses.
struct Ib {
    name: &'static str,
    host: &'static str,
    config: IbConfig,
    expected: Capabilities,
    clock: MonotonicClock,
}

/// What the backend can do on Soft-RoCE, by hand.
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

impl Ib {
    /// The defaults, side channels over IPv4.
    fn plain() -> Ib {
        let config = IbConfig::default();
        Ib { name: "ib", host: "127.0.0.1", config, expected: pinned(), clock: MonotonicClock::new() }
    }

    /// Side channels over IPv6, short queues, one read at a time, nothing inline, a small ring.
    fn scarce() -> Ib {
        let mut config = IbConfig::default();
        config.send_queue_depth = 16;
        config.recv_queue_depth = 128;
        config.max_outstanding_reads = 1;
        config.adapter_inline = 0;
        config.staging = 32 << 10;
        let mut expected = pinned();
        (expected.send_queue_depth, expected.recv_queue_depth, expected.max_outstanding_reads) = (16, 128, 1);
        Ib { name: "ib, scarce", host: "::1", config, expected, clock: MonotonicClock::new() }
    }
}

impl Backend for Ib {
    type Transport = IbTransport;
    type Clock = MonotonicClock;

    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn expected_capabilities(&self) -> Capabilities {
        self.expected.clone()
    }

    fn transport(&self, _node: &str) -> IbTransport {
        IbTransport::new(self.config.clone()).expect("this machine has an RDMA device")
    }

    fn listen_addr(&self, _node: &str) -> Addr {
        Addr::ib(None, self.host, 0)
    }

    fn vacant_addr(&self, _node: &str) -> Addr {
        // Reserved, and below the ports that anybody without privileges listens at.
        Addr::ib(None, self.host, 1)
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
        4
    }
}

mod plain {
    use super::*;
    bmi_conformance::conformance_suite!(Ib::plain());
}

mod scarce {
    use super::*;
    bmi_conformance::conformance_suite!(Ib::scarce());
}

mod troubled {
    use super::*;
    bmi_conformance::conformance_suite!(FaultyBackend::new(Ib::plain(), Plan::mild(4)));
}
