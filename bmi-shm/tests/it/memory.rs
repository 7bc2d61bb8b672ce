//! The memory that connections over shared memory cost.

use bmi_conformance::alone::alone;
use bmi_conformance::idle_memory::{self, Bounds};
use bmi_core::Addr;
use bmi_shm::{ShmConfig, ShmTransport};

/// The rings of both directions are resident at both ends, and the slots that the peer may write
/// into. Receive slots are not.
const BOUNDS: Bounds = Bounds { busy: 900_000, chatted: 2 << 20, idle: 600 << 10, left: 16 << 10 };

#[test]
fn idle_connections_cost_little_and_leave_nothing() {
    if !alone(|| ()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let addr = Addr::shm(folder.path().join("own/server").to_str().expect("a name"));
    let transport = || ShmTransport::new(ShmConfig::default()).expect("transport");
    idle_memory::idle_connections_cost_little_and_leave_nothing(transport, &addr, 100, BOUNDS);
}
