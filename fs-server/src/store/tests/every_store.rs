//! What every store guarantees ([`DataStore`]): each test runs over files, with and without direct
//! I/O, and over a disk in memory.

use bmi::Memory;
use bmi_cache::{ArenaSettings, Frames, Settings};
use fs_proto::{Allocation, Sought};
use proptest::prelude::*;

use super::modes::{MODES, each_mode};
use super::*;

/// Bytes of a cache: a few units.
const CACHE: u64 = 256 << 10;

/// Runs a test with a store of files whose large transfers go to other threads than the small ones,
/// with one whose large ones do not, with those that use direct I/O, and with one in memory.
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// After any sequence of writes, truncations and changes of space, all stores have the same
    /// contents as a plain vector, and no data in a hole.
    #[test]
    fn stores_agree_with_a_vector(steps in prop::collection::vec((0..200_000u64, 0..70_000usize, any::<u8>(), 0..7u8), 1..16)) {
        let dir = tempfile::tempdir().unwrap();
        let past = disk_dir();
        let summed = disk_dir();
        let behind = std::rc::Rc::new(FileStore::in_memory(&MemDisk::default()).checksums(true).unwrap());
        let with_sums = [
            FileStore::open(summed.path().join("1"), 4096).unwrap().checksums(true).unwrap(),
            Mode::Ring.open(&summed.path().join("2"), 4096).checksums(true).unwrap(),
        ];
        let frames = Frames::anonymous(ArenaSettings::new(CACHE)).unwrap();
        let stores: [&dyn DataStore; 6] = [
            &with_sums[0],
            &with_sums[1],
            &FileStore::open(dir.path(), 4096).unwrap(),
            &Mode::Ring.open(past.path(), 4096),
            &FileStore::in_memory(&MemDisk::default()),
            &UnifiedStore::new(behind.clone(), frames, Settings::for_bytes(CACHE), || 0),
        ];
        let mut model: Vec<u8> = Vec::new();
        run(async {
            for store in stores {
                store.create(FILE, 1).await.unwrap();
            }
            for (offset, len, value, step) in steps {
                let how = match step {
                    2 | 3 => Some(Allocation::Hole),
                    4 => Some(Allocation::Zeros { grows: true }),
                    5 => Some(Allocation::Zeros { grows: false }),
                    6 => Some(Allocation::Reserve { grows: true }),
                    _ => None,
                };
                let end = offset as usize + len;
                if step == 0 {
                    model.resize(offset as usize, 0);
                } else if len > 0 {
                    if matches!(step, 1 | 4 | 6) {
                        model.resize(model.len().max(end), 0);
                    }
                    let changed = (offset as usize).min(model.len())..end.min(model.len());
                    match step {
                        1 => model[changed].fill(value),
                        6 => {}
                        _ => model[changed].fill(0),
                    }
                }
                if value % 4 != 0 {
                    for store in with_sums.iter().chain([&*behind]) {
                        store.settle_all().await;
                    }
                }
                for store in stores {
                    match how {
                        Some(how) => store.allocate(FILE, region(offset, len as u64), how).await.unwrap(),
                        None if step == 0 => store.truncate(FILE, offset).await.unwrap(),
                        None => store.write(FILE, &[region(offset, len as u64)], &placed(offset as usize % 4096, &vec![value; len])).await.unwrap(),
                    }
                    prop_assert_eq!(store.size(FILE).await, Ok(model.len() as u64));
                    let data = store.seek(FILE, offset, Sought::Data).await.unwrap();
                    let hole = store.seek(FILE, offset, Sought::Hole).await.unwrap().unwrap() as usize;
                    let zeros = (offset as usize).min(model.len())..data.map_or(model.len(), |data| data as usize);
                    prop_assert!(model[zeros].iter().all(|byte| *byte == 0));
                    prop_assert!(hole >= offset as usize && model.get(hole).is_none_or(|byte| *byte == 0));
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
pub(super) async fn walk(store: &dyn DataStore) -> u64 {
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
