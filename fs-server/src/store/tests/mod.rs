//! Tests the guarantees of every store, on a file system and on a disk in memory, and the
//! properties that only files have.

mod crash_images;
mod every_step;
mod every_store;
mod failures;
mod files;
pub(super) mod modes;
mod power_failures;
mod stalls;
mod sums;

use self::modes::{Mode, disk_dir, placed};
use super::*;

pub(super) const FILE: DatafileHandle = DatafileHandle(0xab_00cd);

/// Runs a future that waits only for worker threads.
pub(super) fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn region(offset: u64, len: u64) -> Region {
    Region::new(offset, len)
}

async fn read(store: &dyn DataStore, regions: &[Region]) -> Result<Vec<u8>, FsError> {
    let len = regions.iter().map(|region| region.len as usize).sum();
    // Initialised with other bytes than zeros, so that bytes that are not read are noticed.
    let list = placed(0, &vec![0xee; len]);
    store.read(FILE, regions, &list).await.map(|()| list.to_vec())
}

/// Opens a store on a disk in memory, and creates the datafile of the tests.
fn with_file(disk: &MemDisk) -> FileStore {
    let store = FileStore::in_memory(disk);
    run(store.create(FILE, 1)).unwrap();
    store
}

/// A power failure that tears writes. It keeps the last change of names and lengths, and the first
/// hundred bytes of every sector.
pub(super) struct Tears;

impl Fates for Tears {
    fn keeps(&mut self) -> bool {
        true
    }

    fn sector(&mut self, old: &[u8], now: &mut [u8]) {
        now[100..].copy_from_slice(&old[100..]);
    }
}
