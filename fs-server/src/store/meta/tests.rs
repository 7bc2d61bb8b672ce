//! Tests of the manager's database: power failures, a full disk, one opening at a time.

use std::fs;

use redb::StorageBackend as _;

use super::*;
use crate::store::tests::Tears;
use crate::store::{AllLost, MemDisk};

/// Replays a bug: bytes that a database had cut off without syncing came back as zeros.
#[test]
fn what_was_cut_off_and_not_synced_is_as_it_was() {
    let disk = MemDisk::default();
    let file = disk.database();
    file.set_len(3000).unwrap();
    file.write(0, &[7; 3000]).unwrap();
    file.sync_data().unwrap();
    file.set_len(1000).unwrap();
    let mut bytes = [0; 3000];
    disk.crash().database().read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 3000]);
}

/// The power fails during the writes of a commit. From then on nothing reaches the disk. The
/// database can be opened from what is left.
#[test]
fn a_database_survives_a_power_failure_in_the_middle_of_a_commit() {
    const TABLE: redb::TableDefinition<'_, u64, u64> = redb::TableDefinition::new("numbers");
    let mut cut = 0;
    for writes in 1..40 {
        let disk = MemDisk::default();
        let put = |store: &MetaStore, key: u64| {
            let transaction = store.write()?;
            transaction.open_table(TABLE)?.insert(key, key)?;
            transaction.commit()?;
            Ok::<(), redb::Error>(())
        };
        let store = MetaStore::on(disk.database()).unwrap();
        put(&store, 1).unwrap();
        disk.cut_off(Some(writes));
        let committed = put(&store, 2).is_ok();
        assert!(committed != disk.is_cut_off() || committed, "it failed without a failure");
        cut += u32::from(!committed);
        disk.power_fails(&mut Tears);
        drop(store);
        let store = MetaStore::on(disk.reopen().database()).unwrap();
        let table = store.read().unwrap().open_table(TABLE).unwrap();
        assert_eq!(table.get(1).unwrap().unwrap().value(), 1, "after {writes} writes");
        assert!(!committed || table.get(2).unwrap().is_some(), "after {writes} writes: it was committed");
    }
    assert!(cut > 2, "{cut}");
}

#[test]
fn what_a_database_writes_after_the_power_failed_does_not_reach_the_disk() {
    let disk = MemDisk::default();
    let file = disk.database();
    let store = MetaStore::on(file.clone()).unwrap();
    let before = file.len().unwrap();
    disk.power_fails(&mut AllLost);
    // Closing a database writes to it.
    drop(store);
    assert!(file.len().is_err(), "the old handle is dead");
    let after = disk.reopen();
    assert_eq!(after.database().len().unwrap(), before);
    drop(MetaStore::on(after.database()).unwrap());
    after.refuse(Some((std::io::ErrorKind::StorageFull, false)));
    assert!(
        MetaStore::on(after.reopen().database()).is_ok_and(|store| store.write().is_err())
            || MetaStore::on(after.reopen().database()).is_err()
    );
}

/// Replays a bug: on a full disk nothing could be removed any more. The database had room in its
/// file, but the file had holes.
#[test]
fn the_metadata_has_its_blocks_before_it_needs_them() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metadata.redb");
    let store = MetaStore::open(&path).unwrap();
    let solid = || {
        let file = fs::metadata(&path).unwrap();
        (file.blocks() * 512 >= file.len(), file.len())
    };
    let (full, begun) = solid();
    assert!(full);
    const BYTES: redb::TableDefinition<'static, u64, &'static [u8]> = redb::TableDefinition::new("bytes");
    for number in 0..3 {
        let transaction = store.write().unwrap();
        transaction.open_table(BYTES).unwrap().insert(number, vec![7; 2 << 20].as_slice()).unwrap();
        transaction.commit().unwrap();
    }
    drop(store.write().unwrap());
    let (full, grown) = solid();
    assert!(full && grown > begun, "{begun} bytes, then {grown}");
}

#[test]
fn a_database_in_a_file_is_opened_once_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metadata.redb");
    let store = MetaStore::open(&path).unwrap();
    let error = MetaStore::open(&path).err().unwrap();
    assert!(error.code == ErrorCode::Busy && error.detail.contains("metadata.redb"), "{error}");
    store.close_failed();
    drop(store.write().unwrap());
    assert_eq!(MetaStore::open(&path).err().unwrap().code, ErrorCode::Busy, "it was opened again");
    drop(store);
    MetaStore::open(&path).unwrap();
}
