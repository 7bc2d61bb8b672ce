//! What a power failure, a failed sync and a full disk leave of datafiles, on a disk in memory.

use std::io;

use bmi::Memory;
use futures_util::FutureExt;

use super::*;

#[test]
fn datafiles_that_are_synced_together_are_all_durable() {
    let disk = MemDisk::default();
    let store = FileStore::in_memory(&disk);
    run(async {
        let two = DatafileHandle(FILE.0 + 1);
        store.create(FILE, 2).await.unwrap();
        for datafile in [FILE, two] {
            store.write(datafile, &[region(0, 10)], &vec![1; 10].into()).await.unwrap();
        }
        store.sync(&[FILE, DatafileHandle(1), two]).await.unwrap_err();
        let store = FileStore::in_memory(&disk.crash());
        assert_eq!((store.size(FILE).await, store.size(two).await), (Ok(10), Ok(10)));
    });
}

#[test]
fn a_discard_that_failed_is_durable_when_it_succeeds() {
    for failing in 1..10 {
        let disk = MemDisk::default();
        let store = FileStore::in_memory(&disk);
        run(async {
            store.create(FILE, 3).await.unwrap();
            disk.fail_at(Some((disk.changes() + failing, 1, io::ErrorKind::Other)));
            let failed = store.discard(FILE, 3).await;
            disk.fail_at(None);
            let again = FileStore::in_memory(&disk);
            let store = if store.failure().now_or_never().is_some() { &again } else { &store };
            store.discard(FILE, 3).await.unwrap();
            let store = FileStore::in_memory(&disk.crash());
            assert_eq!(store.list(None, 10).await, Ok((Vec::new(), false)), "change {failing}: {failed:?}");
        });
    }
}

#[test]
fn a_full_store_takes_what_fits_and_names_the_rest() {
    let store = with_file(&MemDisk::new(128 << 10));
    run(async {
        let regions = [region(0, 100_000), region(1 << 20, 50_000)];
        let error = store.write(FILE, &regions, &vec![1; 150_000].into()).await.unwrap_err();
        assert_eq!((error.code, &error.ranges[..]), (ErrorCode::NoSpace, &[region(1 << 20, 50_000)][..]));
        assert_eq!(read(&store, &[region(0, 100_000)]).await.unwrap(), vec![1; 100_000]);
        store.truncate(FILE, 10).await.unwrap();
        assert_eq!(store.stat().await.unwrap().free, 64 << 10);
        store.write(FILE, &[region(1 << 20, 10)], &vec![1; 10].into()).await.unwrap();
    });
}

#[test]
fn a_power_failure_takes_what_was_not_synced_and_nothing_else() {
    let write = async |store: &FileStore, at: u64, value: u8| {
        store.write(FILE, &[region(at, 1000)], &vec![value; 1000].into()).await.unwrap();
    };
    let disk = MemDisk::default();
    let store = with_file(&disk);
    run(async {
        write(&store, 0, 1).await;
        store.sync(&[FILE]).await.unwrap();
        write(&store, 0, 2).await;
        write(&store, 3000, 3).await;
        let store = FileStore::in_memory(&disk.crash());
        assert_eq!(store.size(FILE).await.unwrap(), 1000);
        let left = read(&store, &[region(0, 4000)]).await.unwrap();
        assert_eq!((&left[..1000], &left[1000..]), (&[1; 1000][..], &[0; 3000][..]));

        write(&store, 0, 4).await;
        disk.power_fails(&mut Tears);
        assert_eq!(write_refused(&store).await, ErrorCode::Io, "a program that has lost its power changes nothing");
        let store = FileStore::in_memory(&disk);
        let left = read(&store, &[region(0, 1000)]).await.unwrap();
        assert_eq!((&left[..100], &left[100..512]), (&[4; 100][..], &[1; 412][..]), "the first sector");
        assert_eq!((&left[512..612], &left[612..]), (&[4; 100][..], &[1; 388][..]), "the second");

        store.truncate(FILE, 10).await.unwrap();
        store.sync(&[FILE]).await.unwrap();
        let store = FileStore::in_memory(&disk.crash());
        assert_eq!(store.size(FILE).await.unwrap(), 10);
        let new = DatafileHandle(7);
        store.create(new, 1).await.unwrap();
        store.write(new, &[region(0, 5)], &vec![1; 5].into()).await.unwrap();
        let store = FileStore::in_memory(&disk.crash());
        assert_eq!(store.size(new).await, Ok(0), "what was never synced is not there, but the datafile is");
    });
}

async fn write_refused(store: &FileStore) -> ErrorCode {
    store.write(FILE, &[region(0, 1)], &vec![9].into()).await.unwrap_err().code
}

/// Replays a bug: a datafile counted as removed for good before the disk had confirmed it.
#[test]
fn a_removal_that_was_not_synced_may_be_lost() {
    let disk = MemDisk::default();
    let store = with_file(&disk);
    run(async {
        store.write(FILE, &[region(0, 4)], &MemList::from(Memory::from(vec![1; 4]))).await.unwrap();
        disk.power_fails(&mut AllKept);
        let store = FileStore::in_memory(&disk);
        disk.fail_syncs(true);
        store.remove(&[FILE]).await.unwrap_err();
        disk.fail_syncs(false);
        let store = FileStore::in_memory(&disk.crash());
        assert_eq!(read(&store, &[region(0, 4)]).await.unwrap(), [1; 4]);
    });
}

/// A power failure after which all writes are on the disk.
struct AllKept;

impl Fates for AllKept {
    fn keeps(&mut self) -> bool {
        true
    }

    fn sector(&mut self, _old: &[u8], _now: &mut [u8]) {}
}
