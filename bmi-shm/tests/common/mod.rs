//! Two shared-memory adapters in this process.
#![allow(dead_code, clippy::unwrap_used, reason = "test code; each binary uses its part")]

use bmi_core::Addr;
use bmi_shm::{ShmConfig, ShmTransport};

pub(crate) type World = bmi_conformance::world::World<ShmTransport>;

/// Creates two adapters with the default settings.
pub(crate) fn world() -> World {
    world_with(&ShmConfig::default())
}

/// Creates two adapters with these settings and names in a directory of their own.
pub(crate) fn world_with(config: &ShmConfig) -> World {
    let transport = || ShmTransport::new(config.clone()).unwrap();
    let (folder, mut names) = (tempfile::tempdir().unwrap(), 0);
    World::new(transport(), transport(), move || {
        names += 1;
        Addr::shm(folder.path().join(format!("names/{names}")).to_str().unwrap())
    })
}
