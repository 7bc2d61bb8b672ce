//! The memory that connections over verbs cost: all slots are pinned as long as the connection
//! lasts. Needs an RDMA device.

use bmi_conformance::idle_memory::{self, Bounds};
use bmi_conformance::world::alone;
use bmi_core::Addr;
use bmi_ib::{IbConfig, IbTransport};

/// The slots are 1.29 MiB. The rest is for queues, staging buffers and records.
const MOST: usize = 2400 << 10;
/// More is left than over other adapters: 44 MB of 400 ends were seen. The cause is not known.
const BOUNDS: Bounds = Bounds { busy: 1_300_000, chatted: MOST, idle: MOST, left: 400 << 10 };

#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn connections_cost_what_they_pin() {
    if !alone(|| ()) {
        return;
    }
    let transport = || IbTransport::new(IbConfig::default()).expect("this machine has an RDMA device");
    let addr = Addr::ib(None, "127.0.0.1", 0);
    idle_memory::idle_connections_cost_little_and_leave_nothing(transport, &addr, 200, BOUNDS);
}
