//! The memory that connections over TCP cost.

use bmi_conformance::idle_memory::{self, Bounds};
use bmi_conformance::world::alone;
use bmi_core::Addr;
use bmi_tcp::{TcpConfig, TcpTransport};

/// A GiB is enough for 10,000 idle connections. They leave 32 MiB behind.
const BOUNDS: Bounds =
    Bounds { busy: 200_000, chatted: (1 << 30) / 10_000, idle: (1 << 30) / 10_000, left: (32 << 20) / 10_000 };

#[test]
fn idle_connections_cost_little_and_leave_nothing() {
    if !alone(|| ()) {
        return;
    }
    let transport = || TcpTransport::new(TcpConfig::default()).expect("transport");
    idle_memory::idle_connections_cost_little_and_leave_nothing(transport, &Addr::tcp("127.0.0.1", 0), 400, BOUNDS);
}
