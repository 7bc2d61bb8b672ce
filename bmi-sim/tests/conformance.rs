//! The shared conformance suite over the simulator: unchanged, with tiny queues and jitter, without
//! RDMA read, with inline receives, and behind adapters that inject faults.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use bmi_conformance::{Backend, FaultyBackend, Plan, Suite};
use bmi_core::{Addr, AnyTransport, Capabilities, Clock, OneSided, PeerIdentity, Registration, Time};
use bmi_sim::{SimConfig, World};

/// A world as a backend of the suite.
struct Sim {
    name: &'static str,
    world: World,
    expected: Capabilities,
    /// Its adapters have inline receives.
    shows: bool,
}

/// The capabilities of the simulator, written by hand.
fn pinned() -> Capabilities {
    let mut expected = Capabilities::minimal();
    expected.one_sided = OneSided::Native;
    expected.rdma_read = true;
    expected.write_with_immediate = true;
    expected.registration =
        Registration::Pins { per_region: Duration::from_micros(1), per_page: Duration::from_nanos(50) };
    expected.max_segments = 32;
    expected.max_head = 128;
    expected.max_inline = 256;
    expected.max_work_len = 1 << 30;
    expected.send_queue_depth = 256;
    expected.recv_queue_depth = 4096;
    expected.max_outstanding_reads = 16;
    expected.service_levels = 3;
    expected.event_fd = false;
    expected
}

impl Sim {
    /// The default world.
    fn plain() -> Sim {
        Sim { name: "sim", world: World::new(1), expected: pinned(), shows: false }
    }

    /// A world in which every message is late and the capabilities are minimal.
    fn scarce() -> Sim {
        let mut expected = Capabilities::minimal();
        expected.max_outstanding_reads = 1;
        let config =
            SimConfig { capabilities_override: Some(expected.clone()), jitter_ns: 20_000, ..SimConfig::seeded(2) };
        Sim { name: "sim, scarce", world: World::with(config), expected, shows: false }
    }
}

impl Sim {
    /// A world whose adapters can write but not read.
    fn writes_only() -> Sim {
        let mut expected = pinned();
        expected.rdma_read = false;
        let config = SimConfig { capabilities_override: Some(expected.clone()), ..SimConfig::seeded(3) };
        Sim { name: "sim, writes only", world: World::with(config), expected, shows: false }
    }
}

impl Sim {
    /// A world whose adapters show messages that are not too long.
    fn with_inline_receives() -> Sim {
        let config = SimConfig { inline_receive_bytes: 2000, ..SimConfig::seeded(4) };
        Sim { name: "sim, inline receives", world: World::with(config), expected: pinned(), shows: true }
    }
}

impl Backend for Sim {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn expected_capabilities(&self) -> Capabilities {
        self.expected.clone()
    }

    fn has_inline_receives(&self) -> bool {
        self.shows
    }

    fn identity(&self, node: &str) -> PeerIdentity {
        PeerIdentity::named([format!("node:{node}")])
    }

    fn has_shards(&self) -> bool {
        true
    }

    fn transport(&self, node: &str) -> AnyTransport {
        let identity = self.identity(node);
        let node = self.world.node(node);
        node.identify(identity);
        Box::new(node.transport().expect("the node lives"))
    }

    fn shards(&self, node: &str, count: usize) -> Vec<AnyTransport> {
        let boxed = |transport| -> AnyTransport { Box::new(transport) };
        self.world.node(node).transports(count).expect("the node lives").into_iter().map(boxed).collect()
    }

    fn listen_addr(&self, node: &str) -> Addr {
        Addr::sim(node, 0)
    }

    fn vacant_addr(&self, node: &str) -> Addr {
        Addr::sim(node, 1)
    }

    fn clock(&self) -> Rc<dyn Clock> {
        Rc::new(self.world.clock())
    }

    fn pass(&self, until: Option<Time>) {
        // A wrapper may hold back events that the world has already reported, so time never moves
        // far ahead.
        let (now, step) = (self.clock().now(), Duration::from_millis(1));
        let limit = until.map_or(now + step, |until| until.clamp(now + Duration::from_nanos(1), now + step));
        if !self.world.step(limit) {
            self.world.run_until(limit);
        }
    }
}

fn main() -> ExitCode {
    Suite::new("sim")
        .over("plain", Sim::plain)
        .over("scarce", Sim::scarce)
        .over("writes_only", Sim::writes_only)
        .over("inline_receives", Sim::with_inline_receives)
        .over("troubled", || FaultyBackend::new(Box::new(Sim::plain()), Plan::mild(3)))
        // Messages are shown by the adapter itself, by the wrapper, by both or by neither.
        .over("troubled_inline_receives", || FaultyBackend::new(Box::new(Sim::with_inline_receives()), Plan::mild(5)))
        .run()
}
