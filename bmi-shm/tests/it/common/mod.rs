//! Two shared-memory adapters in this process.
#![allow(dead_code, clippy::unwrap_used, reason = "test code; each binary uses its part")]

use std::sync::atomic::{AtomicU32, Ordering};

use bmi_conformance::Local;
use bmi_core::{Addr, Capabilities, PeerIdentity};
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

/// Returns a backend of adapters with names in a directory of their own.
pub(crate) fn local(name: &'static str, config: ShmConfig, expected: Capabilities) -> Local {
    let folder = tempfile::tempdir().expect("a temporary directory");
    // The transport creates this inner directory, closed to others.
    let names = folder.path().join("names");
    let addr = move |name: &str| Addr::shm(names.join(name).to_str().expect("a path in text"));
    let shared = config.clone();
    let shards = move |count| ShmTransport::shards(shared.clone(), count).expect("the system has descriptors");
    let make = move || ShmTransport::new(config.clone()).expect("the system has a descriptor");
    let (vacant, listeners) = (addr("vacant"), AtomicU32::new(0));
    let listen = move |node: &str| {
        let _until_the_end = &folder;
        addr(&format!("{node}-{}", listeners.fetch_add(1, Ordering::Relaxed)))
    };
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let this = PeerIdentity::Process { process: std::process::id(), user, group };
    Local::new(name, expected, make, listen, vacant).with_shards(shards).with_inline_receives().with_identity(this)
}
