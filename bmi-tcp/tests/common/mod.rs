//! Two TCP adapters in one process.
#![allow(dead_code, clippy::unwrap_used, reason = "test code; each binary uses its part")]

use bmi_core::Addr;
use bmi_tcp::{TcpConfig, TcpTransport};

pub(crate) type World = bmi_conformance::world::World<TcpTransport>;

/// Returns a world with the default configuration.
pub(crate) fn world() -> World {
    world_with(&TcpConfig::default())
}

pub(crate) fn world_with(config: &TcpConfig) -> World {
    let transport = || TcpTransport::new(config.clone()).unwrap();
    World::new(transport(), transport(), || Addr::tcp("127.0.0.1", 0))
}
