//! Handles for any thread, over shared memory.

use std::sync::atomic::{AtomicU32, Ordering};

use bmi_conformance::handle::{Adapter, Backend};
use bmi_core::Addr;
use bmi_shm::{ShmConfig, ShmTransport};
use tempfile::TempDir;

fn open(count: usize) -> Vec<Adapter> {
    let transports = ShmTransport::shards(ShmConfig::default(), count).expect("the system has descriptors");
    transports.into_iter().map(|transport| Box::new(transport) as Adapter).collect()
}

thread_local! {
    /// The directory of the names of a test, which has a thread of its own: it is removed with
    /// that. A static one would stay.
    static FOLDER: TempDir = tempfile::tempdir().expect("a temporary directory");
}

/// Returns a name in the directory of this test.
fn addr() -> Addr {
    static NAMES: AtomicU32 = AtomicU32::new(0);
    let name = NAMES.fetch_add(1, Ordering::Relaxed);
    FOLDER.with(|folder| Addr::shm(folder.path().join(format!("names/{name}")).to_str().expect("a path in text")))
}

bmi_conformance::handle_suite!(Backend { open, addr });
