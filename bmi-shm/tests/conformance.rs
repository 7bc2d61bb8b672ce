//! The shared conformance suite over shared memory: by mapped pages, by the kernel, by the ring alone with little of everything, and behind adapters
//! that make trouble.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bmi_conformance::{Backend, FaultyBackend, Plan};
use bmi_core::driver::MonotonicClock;
use bmi_core::{Addr, Capabilities, OneSided, Registration, Time};
use bmi_shm::{ShmConfig, ShmTransport};
use tempfile::TempDir;

/// Adapters of this process, in a directory of their own.
struct Shm {
    name: &'static str,
    config: ShmConfig,
    expected: Capabilities,
    folder: Arc<TempDir>,
    names: AtomicU32,
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
    expected.shares_pages = true;
    expected.event_fd = true;
    expected
}

/// Without page sharing.
fn pinned_without_pages() -> Capabilities {
    let mut expected = pinned();
    expected.shares_pages = false;
    expected
}

impl Shm {
    fn new(name: &'static str, config: ShmConfig, expected: Capabilities) -> Shm {
        let folder = Arc::new(tempfile::tempdir().expect("a temporary directory"));
        Shm { name, config, expected, folder, names: AtomicU32::new(0), clock: MonotonicClock::new() }
    }

    /// The defaults: memory of the suite is mapped by the peer.
    fn plain() -> Shm {
        Shm::new("shm", ShmConfig::default(), pinned())
    }

    /// No pages are passed: the kernel copies between the processes.
    fn by_kernel() -> Shm {
        let mut config = ShmConfig::default();
        config.share_pages = false;
        Shm::new("shm, by the kernel", config, pinned_without_pages())
    }

    /// Everything goes through the smallest ring, and the queues are short.
    fn scarce() -> Shm {
        let mut config = ShmConfig::default();
        config.share_pages = false;
        config.cross_memory = false;
        config.ring_len = 64 << 10;
        config.send_queue_depth = 32;
        config.recv_queue_depth = 128;
        let mut expected = pinned_without_pages();
        (expected.send_queue_depth, expected.recv_queue_depth) = (32, 128);
        Shm::new("shm, scarce", config, expected)
    }

    /// A table with room for two exposures, and one mapped piece at a time: all ways at once, changing.
    fn changing() -> Shm {
        let mut config = ShmConfig::default();
        config.advertised_exposures = 2;
        config.max_mapped = (1, 1 << 30);
        Shm::new("shm, changing", config, pinned())
    }

    fn addr(&self, name: String) -> Addr {
        // A folder of its own inside, which the transport makes, closed to others.
        Addr::shm(self.folder.path().join("names").join(name).to_str().expect("a path in text"))
    }
}

impl Backend for Shm {
    type Transport = ShmTransport;
    type Clock = MonotonicClock;

    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn expected_capabilities(&self) -> Capabilities {
        self.expected.clone()
    }

    fn transport(&self, _node: &str) -> ShmTransport {
        ShmTransport::new(self.config.clone()).expect("the system has a descriptor")
    }

    fn listen_addr(&self, node: &str) -> Addr {
        self.addr(format!("{node}-{}", self.names.fetch_add(1, Ordering::Relaxed)))
    }

    fn vacant_addr(&self, _node: &str) -> Addr {
        self.addr("vacant".to_owned())
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
    bmi_conformance::conformance_suite!(Shm::plain());
}

mod by_kernel {
    use super::*;
    bmi_conformance::conformance_suite!(Shm::by_kernel());
}

mod scarce {
    use super::*;
    bmi_conformance::conformance_suite!(Shm::scarce());
}

mod changing {
    use super::*;
    bmi_conformance::conformance_suite!(Shm::changing());
}

mod troubled {
    use super::*;
    bmi_conformance::conformance_suite!(FaultyBackend::new(Shm::plain(), Plan::mild(4)));
}
