//! Tests the guarantees of every store, on a file system and on a disk in memory, and the
//! properties that only files have.

mod crash_images;
mod every_step;
mod failures;
mod stalls;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bmi::Memory;
use futures_util::FutureExt;
use proptest::prelude::*;

use redb::StorageBackend as _;

use super::files::modes::{MODES, Mode, disk_dir, placed};
use super::label::durable_dir_by;
use super::*;

const FILE: DatafileHandle = DatafileHandle(0xab_00cd);

/// Runs a future that waits only for worker threads.
fn run<F: Future>(future: F) -> F::Output {
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

/// Runs a test with a store of files whose large transfers go to other threads than the small ones,
/// with one whose large ones do not, with those that move bytes past the page cache, and with one
/// in memory.
fn each(test: impl AsyncFn(&dyn DataStore)) {
    let with_a_file = async |store: &dyn DataStore| {
        store.create(FILE, 1).await.unwrap();
        test(store).await;
    };
    for (mode, offload) in MODES.into_iter().flat_map(|mode| [(mode, 0), (mode, u64::MAX)]) {
        let dir = disk_dir();
        run(with_a_file(&mode.open(dir.path(), offload)));
    }
    run(with_a_file(&FileStore::in_memory(&MemDisk::default())));
}

/// Runs a test with a new directory for each way of moving bytes.
fn each_mode(test: impl AsyncFn(Mode, &Path)) {
    for mode in MODES {
        let dir = disk_dir();
        run(test(mode, dir.path()));
    }
}

/// Opens a store on a disk in memory, and creates the datafile of the tests.
fn with_file(disk: &MemDisk) -> FileStore {
    let store = FileStore::in_memory(disk);
    run(store.create(FILE, 1)).unwrap();
    store
}

#[test]
fn regions_are_written_and_read_in_order() {
    each(async |store| {
        let memory = Memory::from((0..200u8).collect::<Vec<_>>());
        let list: MemList = [memory.slice(50, 30), memory.slice(0, 20)].into_iter().collect();
        store.write(FILE, &[region(1000, 10), region(70_000, 40)], &list).await.unwrap();
        let bytes = read(store, &[region(70_000, 40), region(1000, 10)]).await.unwrap();
        let expected: Vec<u8> = (60..80).chain(0..20).chain(50..60).collect();
        assert_eq!(bytes, expected);
        assert_eq!(store.size(FILE).await, Ok(70_040));
        store.sync(&[FILE]).await.unwrap();
        assert_eq!(store.stat().await.unwrap().datafiles, 1);
    });
}

#[test]
fn truncation_cuts_and_extends() {
    each(async |store| {
        store.write(FILE, &[region(0, 100_000)], &placed(0, &[1; 100_000])).await.unwrap();
        store.truncate(FILE, 70_000).await.unwrap();
        store.truncate(FILE, 80_000).await.unwrap();
        assert_eq!(store.size(FILE).await, Ok(80_000));
        let bytes = read(store, &[region(69_000, 2_000)]).await.unwrap();
        assert_eq!((&bytes[..1000], &bytes[1000..]), (&[1; 1000][..], &[0; 1000][..]));
    });
}

#[test]
fn a_datafile_exists_from_its_creation_to_its_removal() {
    each(async |store| {
        store.write(FILE, &[region(0, 10)], &vec![1; 10].into()).await.unwrap();
        store.create(FILE, 1).await.unwrap();
        assert_eq!(store.size(FILE).await, Ok(10), "one that exists is left as it is");
        store.create(DatafileHandle(FILE.0 + 1), 2).await.unwrap();
        assert_eq!(store.stat().await.unwrap().datafiles, 3);
        store.remove(&[FILE]).await.unwrap();
        store.remove(&[FILE, FILE]).await.unwrap();
        let late = store.write(FILE, &[region(3, 10)], &vec![1; 10].into()).await.unwrap_err();
        assert_eq!((late.code, &late.ranges[..]), (ErrorCode::Lost, &[region(3, 10)][..]));
        let read = read(store, &[region(0, 1)]).await.unwrap_err();
        assert_eq!((read.code, &read.ranges[..]), (ErrorCode::Lost, &[region(0, 1)][..]));
        assert_eq!(store.truncate(FILE, 5).await.unwrap_err().code, ErrorCode::Lost);
        assert_eq!(store.sync(&[FILE]).await.unwrap_err().code, ErrorCode::Lost);
        assert_eq!(store.held(FILE).await.unwrap_err().code, ErrorCode::Lost);
        assert_eq!(store.stat().await.unwrap().datafiles, 2);
    });
}

#[test]
fn only_datafiles_that_were_never_written_are_discarded() {
    each(async |store| {
        store.create(DatafileHandle(FILE.0 + 1), 599).await.unwrap();
        store.write(FILE, &[region(0, 1)], &vec![1].into()).await.unwrap();
        store.discard(FILE, 500).await.unwrap();
        store.discard(FILE, 500).await.unwrap();
        assert_eq!(read(store, &[region(0, 1)]).await, Ok(vec![1]));
        assert_eq!(store.stat().await.unwrap().datafiles, 101);
        let one = DatafileHandle(FILE.0 + 1);
        assert_eq!(store.held(one).await.unwrap_err().code, ErrorCode::Lost);
    });
}

#[test]
fn all_datafiles_are_listed_once() {
    each(async |store| {
        store.create(DatafileHandle(FILE.0 + 1), 699).await.unwrap();
        for handle in [FILE.0, FILE.0 + 3, FILE.0 + 300] {
            store.write(DatafileHandle(handle), &[region(0, 1)], &vec![1].into()).await.unwrap();
        }
        assert_eq!(store.stat().await.unwrap().datafiles, 700);
        for max in [1, 7, 256, 700, 1000] {
            let (mut all, mut after) = (Vec::<DatafileHandle>::new(), None);
            loop {
                let (page, more) = store.list(after, max).await.unwrap();
                assert!(page.len() <= max && (page.len() == max || !more));
                all.extend(&page);
                after = page.last().copied();
                if !more {
                    break;
                }
            }
            all.sort();
            assert_eq!(all, (FILE.0..FILE.0 + 700).map(DatafileHandle).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_label_is_replaced() {
    each(async |store| {
        assert_eq!(store.label(), None);
        let label = Label::new(fs_proto::ClusterId(1), fs_proto::Role::Iod(2), fs_proto::StoreId(3));
        store.relabel(&label).await.unwrap();
        let newer = Label { epoch: 1, highest: FILE, ..label };
        store.relabel(&newer).await.unwrap();
        assert_eq!(store.label(), Some(newer));
    });
}

/// Runs an operation on a datafile, of those that must fail while a truncation is prepared.
async fn outcomes(store: &dyn DataStore) -> [Option<ErrorCode>; 4] {
    let code = |error: FsError| error.code;
    [
        read(store, &[region(0, 1)]).await.err().map(code),
        store.write(FILE, &[region(0, 1)], &vec![9].into()).await.err().map(code),
        store.sync(&[FILE]).await.err().map(code),
        store.held(FILE).await.err().map(code),
    ]
}

#[test]
fn a_prepared_datafile_waits_for_its_truncation() {
    each(async |store| {
        let busy = [Some(ErrorCode::Busy); 4];
        store.write(FILE, &[region(0, 100)], &vec![1; 100].into()).await.unwrap();
        store.cancel_truncates(&[]).await.unwrap();
        store.prepare_truncate(FILE, 10).await.unwrap();
        assert_eq!(outcomes(store).await, busy);
        store.prepare_truncate(FILE, 20).await.unwrap();
        store.cancel_truncates(&[]).await.unwrap();
        assert_eq!((store.size(FILE).await, outcomes(store).await), (Ok(100), [None; 4]));
        store.prepare_truncate(FILE, 20).await.unwrap();
        assert_eq!(store.truncate(FILE, 20).await.unwrap_err().code, ErrorCode::Busy);
        store.cancel_truncates(&[FILE]).await.unwrap();
        store.commit_truncate(FILE, 20, 20).await.unwrap();
        assert_eq!((store.size(FILE).await, outcomes(store).await), (Ok(20), [None; 4]));
        store.write(FILE, &[region(0, 100)], &vec![1; 100].into()).await.unwrap();
        store.commit_truncate(FILE, 20, 20).await.unwrap();
        assert_eq!(store.size(FILE).await, Ok(100), "it was carried out before");
        store.prepare_truncate(FILE, 30).await.unwrap();
        store.discard(FILE, 1).await.unwrap();
        assert_eq!(outcomes(store).await, busy, "it is in use");
        store.remove(&[FILE]).await.unwrap();
        assert_eq!(outcomes(store).await, [Some(ErrorCode::Lost); 4]);
        store.cancel_truncates(&[]).await.unwrap();
        assert_eq!(store.prepare_truncate(FILE, 1).await.unwrap_err().code, ErrorCode::Lost);
    });
}

#[test]
fn a_preparation_outlives_a_crash_until_its_truncation_is_durable() {
    each_mode(async |mode, dir| {
        let open = || mode.open(dir, 1000);
        let store = open();
        store.create(FILE, 2).await.unwrap();
        store.prepare_truncate(FILE, 3).await.unwrap();
        let store = open();
        assert_eq!(outcomes(&store).await, [Some(ErrorCode::Busy); 4]);
        store.commit_truncate(FILE, 3, 3).await.unwrap();
        let store = open();
        assert_eq!((store.size(FILE).await, outcomes(&store).await), (Ok(3), [None; 4]));
    });
    let disk = MemDisk::default();
    let store = with_file(&disk);
    run(async {
        store.write(FILE, &[region(0, 100)], &vec![1; 100].into()).await.unwrap();
        store.prepare_truncate(FILE, 10).await.unwrap();
        let store = FileStore::in_memory(&disk.crash());
        assert_eq!(outcomes(&store).await, [Some(ErrorCode::Busy); 4]);
        store.commit_truncate(FILE, 10, 10).await.unwrap();
        let store = FileStore::in_memory(&disk.crash());
        assert_eq!((store.size(FILE).await, outcomes(&store).await), (Ok(10), [None; 4]));
    });
}

#[test]
fn many_datafiles_are_synced_and_the_first_error_is_told() {
    each(async |store| {
        let absent = DatafileHandle(FILE.0 + 500);
        store.create(DatafileHandle(FILE.0 + 1), 399).await.unwrap();
        let mut all: Vec<DatafileHandle> = (FILE.0..FILE.0 + 400).map(DatafileHandle).collect();
        for datafile in &all[..390] {
            store.write(*datafile, &[region(0, 1)], &vec![1].into()).await.unwrap();
        }
        store.sync(&all).await.unwrap();
        store.sync(&[]).await.unwrap();
        store.prepare_truncate(all[7], 5).await.unwrap();
        (all[2], all[200]) = (absent, DatafileHandle(absent.0 + 1));
        let error = store.sync(&all).await.unwrap_err();
        assert!(error.code == ErrorCode::Lost && error.detail.contains(&absent.to_string()), "{error}");
        assert_eq!(store.sync(&all[3..100]).await.unwrap_err().code, ErrorCode::Busy);
    });
}

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

/// Replays a bug: a datafile that was missing or cut off read as zeros.
#[test]
fn a_datafile_that_was_cut_off_is_not_read_as_zeros() {
    each_mode(async |mode, dir| {
        let path = dir.join("00/0000000000ab00cd");
        let open = || mode.open(dir, 1000);
        let store = open();
        store.create(FILE, 1).await.unwrap();
        store.write(FILE, &[region(0, 100)], &vec![1; 100].into()).await.unwrap();
        store.sync(&[FILE]).await.unwrap();
        drop(store);
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(99).unwrap();
        let store = open();
        let error = read(&store, &[region(0, 10)]).await.unwrap_err();
        assert!(error.code == ErrorCode::Lost && error.detail.contains("had 100"), "{error}");
        assert_eq!(store.held(FILE).await.unwrap_err().code, ErrorCode::Lost);
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
        // A truncation that was asked for is none that is missed.
        store.truncate(FILE, 10).await.unwrap();
        drop(store);
        let store = open();
        assert_eq!(store.size(FILE).await, Ok(10));
        drop(store);
        fs::remove_file(&path).unwrap();
        let store = open();
        assert_eq!(read(&store, &[region(0, 10)]).await.unwrap_err().code, ErrorCode::Lost);
        let write = store.write(FILE, &[region(0, 1)], &vec![1].into()).await;
        assert_eq!(write.unwrap_err().code, ErrorCode::Lost, "nor made again");
    });
}

/// A running server keeps to its directory, whatever is put in its place.
#[test]
fn a_directory_that_is_moved_away_stays_the_servers() {
    each_mode(async |mode, dir| {
        let (path, moved) = (dir.join("iod"), dir.join("moved"));
        let store = mode.open(&path, 1000);
        store.create(FILE, 2).await.unwrap();
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        store.write(FILE, &[region(0, 3)], &vec![1, 2, 3].into()).await.unwrap();
        assert_eq!(read(&store, &[region(0, 3)]).await, Ok(vec![1, 2, 3]));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        assert!(moved.join("00/0000000000ab00cd").is_file());
    });
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

/// Opens the files again, in a server without any state of the previous one.
#[test]
fn what_was_written_is_there_for_the_next_server() {
    each_mode(async |mode, dir| {
        let store = mode.open(dir, 1000);
        store.create(FILE, 1).await.unwrap();
        store.write(FILE, &[region(500, 3)], &vec![1, 2, 3].into()).await.unwrap();
        store.sync(&[FILE]).await.unwrap();
        drop(store);
        let store = mode.open(dir, 1000);
        assert_eq!(read(&store, &[region(499, 5)]).await.unwrap(), [0, 1, 2, 3, 0]);
        assert!(dir.join("00/0000000000ab00cd").is_file());
    });
}

#[test]
fn more_files_than_can_be_open() {
    each_mode(async |mode, dir| {
        let store = mode.open(dir, 1000);
        store.create(DatafileHandle(0), 600).await.unwrap();
        for round in 0..2u8 {
            for raw in 0..600u64 {
                let at = region(u64::from(round), 1);
                store.write(DatafileHandle(raw), &[at], &vec![raw as u8].into()).await.unwrap();
                let page = placed(0, &[raw as u8; 4096]);
                store.write(DatafileHandle(raw), &[region(8192, 4096)], &page).await.unwrap();
            }
        }
        for raw in 0..600u64 {
            let list = MemList::from(vec![0; 2]);
            store.read(DatafileHandle(raw), &[region(0, 2)], &list).await.unwrap();
            assert_eq!(list.to_vec(), [raw as u8; 2]);
            let page = placed(0, &[0xee; 4096]);
            store.read(DatafileHandle(raw), &[region(8192, 4096)], &page).await.unwrap();
            assert_eq!(page.to_vec(), [raw as u8; 4096]);
        }
        assert_eq!(store.stat().await.unwrap().datafiles, 600);
    });
}

#[test]
fn trouble_with_files_is_named() {
    each_mode(async |mode, dir| {
        let file = dir.join("file");
        fs::write(&file, "not a directory").unwrap();
        let error = FileStore::open(file.join("below"), 0).err().unwrap();
        assert!(error.to_string().contains("below"), "{error}");
        let store = mode.open(&dir.join("data"), 0);
        // Put a directory where the datafile belongs.
        fs::create_dir(dir.join("data/00/0000000000ab00cd")).unwrap();
        store.create(DatafileHandle(1), 1).await.unwrap();
        let error = store.write(FILE, &[region(7, 1)], &vec![1].into()).await.unwrap_err();
        assert_eq!((error.code, &error.ranges[..]), (ErrorCode::Io, &[region(7, 1)][..]));
        // An offset beyond the largest offset of a file.
        let far = region(1 << 63, 5);
        let error = store.write(DatafileHandle(1), &[region(0, 5), far], &vec![1; 10].into()).await.unwrap_err();
        assert_eq!((error.code, &error.ranges[..]), (ErrorCode::TooLarge, &[far][..]));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// After any sequence of writes and truncations, all stores have the same contents as a plain
    /// vector.
    #[test]
    fn stores_agree_with_a_vector(steps in prop::collection::vec((0..200_000u64, 0..70_000usize, any::<u8>(), any::<bool>()), 1..12)) {
        let dir = tempfile::tempdir().unwrap();
        let past = disk_dir();
        let stores: [&dyn DataStore; 3] = [
            &FileStore::open(dir.path(), 4096).unwrap(),
            &Mode::Ring.open(past.path(), 4096),
            &FileStore::in_memory(&MemDisk::default()),
        ];
        let mut model: Vec<u8> = Vec::new();
        run(async {
            for store in stores {
                store.create(FILE, 1).await.unwrap();
            }
            for (offset, len, value, truncate) in steps {
                if truncate {
                    model.resize(offset as usize, 0);
                } else if len > 0 {
                    let end = offset as usize + len;
                    model.resize(model.len().max(end), 0);
                    model[offset as usize..end].fill(value);
                }
                for store in stores {
                    if truncate {
                        store.truncate(FILE, offset).await.unwrap();
                    } else {
                        store.write(FILE, &[region(offset, len as u64)], &placed(offset as usize % 4096, &vec![value; len])).await.unwrap();
                    }
                    prop_assert_eq!(store.size(FILE).await, Ok(model.len() as u64));
                    let bytes = read(store, &[region(0, model.len() as u64 + 10)]).await.unwrap();
                    prop_assert_eq!(&bytes[..model.len()], &model[..]);
                    prop_assert_eq!(&bytes[model.len()..], &[0; 10][..]);
                }
            }
            Ok(())
        })?;
    }
}

/// Counts the datafiles one by one.
async fn walk(store: &dyn DataStore) -> u64 {
    let (mut count, mut after) = (0, None);
    loop {
        let (page, more) = store.list(after, 7).await.unwrap();
        count += page.len() as u64;
        after = page.last().copied();
        if !more {
            return count;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// After any sequence of operations, the store's count of datafiles is that of a walk, also
    /// after it was opened again.
    #[test]
    fn the_count_of_datafiles_is_that_of_a_walk(steps in prop::collection::vec((0..9u8, 0..40u64, 1..5u64), 1..60)) {
        let dir = disk_dir();
        let mode = MODES[steps.len() % MODES.len()];
        let memory = FileStore::in_memory(&MemDisk::default());
        let mut files = mode.open(dir.path(), 4096).keeping_open(4);
        // The handles are in two subdirectories.
        let base = 0x1f0;
        let (mut last, mut next) = ((DatafileHandle(base), 1), base);
        run(async {
            for (operation, at, count) in steps {
                if operation == 0 {
                    last = (DatafileHandle(next), count as u32);
                    next += count;
                }
                if operation == 8 {
                    drop(files);
                    files = mode.open(dir.path(), 4096).keeping_open(4);
                }
                let one = DatafileHandle(base + at);
                let some: Vec<DatafileHandle> = (0..count).map(|more| DatafileHandle(one.0 + 2 * more)).collect();
                for store in [&files as &dyn DataStore, &memory] {
                    // A datafile that does not exist is an error, and changes no count.
                    let _ = match operation {
                        0 | 1 if next > base => store.create(last.0, last.1).await,
                        2 => store.write(one, &[region(at, 10)], &vec![1; 10].into()).await,
                        3 => store.sync(&some).await,
                        4 => store.truncate(one, at % 3).await,
                        5 => store.prepare_truncate(one, at % 3).await,
                        6 => store.remove(&some).await,
                        7 => store.discard(one, count as u32).await,
                        _ => store.commit_truncate(one, at % 3, at % 3).await,
                    };
                    prop_assert_eq!(store.stat().await.unwrap().datafiles, walk(store).await);
                }
            }
            Ok(())
        })?;
    }
}

#[test]
fn asking_for_the_count_looks_at_no_datafile() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let store = FileStore::open(dir.path(), 4096).unwrap();
        store.create(FILE, 5).await.unwrap();
        // A walk would find it.
        fs::write(dir.path().join("00/0000000000ab0001"), "").unwrap();
        assert_eq!((store.stat().await.unwrap().datafiles, walk(&store).await), (5, 6));
        drop(store);
        assert_eq!(FileStore::open(dir.path(), 4096).unwrap().stat().await.unwrap().datafiles, 6);
    });
}

/// A power failure that tears writes. It keeps the last change of names and lengths, and the first
/// hundred bytes of every sector.
struct Tears;

impl Fates for Tears {
    fn keeps(&mut self) -> bool {
        true
    }

    fn sector(&mut self, old: &[u8], now: &mut [u8]) {
        now[100..].copy_from_slice(&old[100..]);
    }
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

/// Data that is synced in a directory is lost if the directory's name never reached the disk.
#[test]
fn a_new_directory_is_durable_by_its_name_up_to_what_was_there() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().canonicalize().unwrap();
    let synced = |dir: &str| {
        let mut synced = Vec::new();
        durable_dir_by(&root.join(dir), |above| {
            synced.push(above.strip_prefix(&root).unwrap().to_owned());
            Ok(())
        })
        .unwrap();
        synced
    };
    assert_eq!(synced("a/b/c"), ["a/b", "a", ""].map(std::path::PathBuf::from));
    assert_eq!(synced("a/b/d"), ["a/b"].map(std::path::PathBuf::from));
    assert_eq!(synced("a/b/d"), ["a/b"].map(std::path::PathBuf::from), "whoever made it may not have come so far");
    let full = durable_dir_by(&root.join("x"), |_| Err(std::io::ErrorKind::StorageFull.into()));
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
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

/// Event loops use the same datafiles, of which few are open at a time. Each datafile is open once,
/// every write is there, and a datafile that was removed is gone for all of them.
#[test]
fn loops_share_a_store() {
    MODES.into_iter().for_each(loops_share_a_store_of);
}

fn loops_share_a_store_of(mode: Mode) {
    const LOOPS: u64 = 3;
    const FILES: u64 = 12;
    const ROUNDS: u64 = 40;
    let dir = disk_dir();
    let store = Arc::new(mode.open(dir.path(), 128 << 10).keeping_open(4));
    let first = DatafileHandle(0x0100);
    run(store.create(first, FILES as u32 + 1)).unwrap();
    let last = DatafileHandle(first.0 + FILES);
    run(store.write(last, &[region(0, 100)], &MemList::from(vec![1; 100]))).unwrap();
    let work = async |own: u64| {
        // Another thread may have removed it, and nobody reads it after that.
        let mut gone = false;
        for round in 0..ROUNDS {
            for file in 0..FILES {
                let datafile = DatafileHandle(first.0 + (file + own) % FILES);
                let at = [region(own * 4096 + round * 10, 10)];
                let bytes = vec![(own * 50 + round) as u8; 10];
                store.write(datafile, &at, &MemList::from(bytes.clone())).await.unwrap();
                let memory = Memory::zeroed(10).unwrap();
                store.read(datafile, &at, &MemList::from(&memory)).await.unwrap();
                assert_eq!(memory.to_vec(), bytes);
                // A page of each loop's own, past the page cache if that is possible.
                let page = [region((1 << 20) + own * 4096, 4096)];
                store.write(datafile, &page, &placed(0, &[round as u8; 4096])).await.unwrap();
                let into = placed(0, &[0xee; 4096]);
                store.read(datafile, &page, &into).await.unwrap();
                assert_eq!(into.to_vec(), [round as u8; 4096]);
            }
            if own == 0 && round == ROUNDS / 2 {
                store.remove(&[last]).await.unwrap();
                gone = true;
            }
            match store.size(last).await {
                Ok(size) => assert!(size == 100 && !gone, "{size} bytes of a datafile that is gone"),
                Err(error) => {
                    assert!(error.code == ErrorCode::Lost && (gone || own > 0), "{error}");
                    gone = true;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for own in 0..LOOPS {
            let work = &work;
            scope.spawn(move || run(work(own)));
        }
    });
    assert_eq!(run(store.size(last)).unwrap_err().code, ErrorCode::Lost);
    for datafile in (0..FILES).map(|file| DatafileHandle(first.0 + file)) {
        for own in 0..LOOPS {
            let memory = Memory::zeroed(10 * ROUNDS as usize).unwrap();
            run(store.read(datafile, &[region(own * 4096, 10 * ROUNDS)], &MemList::from(&memory))).unwrap();
            let expected = (0..ROUNDS).flat_map(|round| vec![(own * 50 + round) as u8; 10]);
            assert!(memory.to_vec().into_iter().eq(expected), "{datafile} lacks a write of loop {own}");
        }
    }
    run(store.sync(&[first])).unwrap();
}
