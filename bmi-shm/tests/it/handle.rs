//! Handles for any thread, over shared memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use bmi_conformance::handle::{Adapter, Backend};
use bmi_core::Addr;
use bmi_shm::{ShmConfig, ShmTransport};
use tempfile::TempDir;

fn open(count: usize) -> Vec<Adapter> {
    let transports = ShmTransport::shards(ShmConfig::default(), count).expect("the system has descriptors");
    transports.into_iter().map(|transport| Box::new(transport) as Adapter).collect()
}

/// Returns a name in the directory of this process.
fn addr() -> Addr {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    static NAMES: AtomicU32 = AtomicU32::new(0);
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a temporary directory"));
    let name = NAMES.fetch_add(1, Ordering::Relaxed);
    Addr::shm(folder.path().join(format!("names/{name}")).to_str().expect("a path in text"))
}

bmi_conformance::handle_suite!(Backend { open, addr });
