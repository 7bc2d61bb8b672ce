//! Tests of direct I/O. They use the file system of the sources, which permits it on a disk.
//! [`Mode::open`] checks that a store does what this file system permits.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use bmi::{MemList, Memory};
use fs_proto::{ErrorCode, Region};
use futures_util::FutureExt;
use futures_util::future::join_all;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::store::disk::steps::injected::{self, Failing};
use crate::store::tests::modes::{DIRECT, Mode, disk_dir, permits, placed};
use crate::store::tests::{FILE, run};
use crate::store::{DataStore, sys};

const PATH: &str = "00/0000000000ab00cd";
const PAGE: u64 = 4096;

async fn write(store: &dyn DataStore, offset: u64, at: usize, bytes: &[u8]) -> Result<(), FsError> {
    store.write(FILE, &[Region::new(offset, bytes.len() as u64)], &placed(at, bytes)).await
}

async fn read(store: &dyn DataStore, offset: u64, at: usize, len: usize) -> Result<Vec<u8>, FsError> {
    // Other bytes than zeros, so that those that are not read are noticed.
    let list = placed(at, &vec![0xee; len]);
    store.read(FILE, &[Region::new(offset, len as u64)], &list).await.map(|()| list.to_vec())
}

/// Bytes that differ from their neighbours.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| ((at + seed) % 251) as u8).collect()
}

/// Returns the number of pages of the datafile that are in the page cache.
fn cached_pages(dir: &TempDir) -> u64 {
    let file = File::open(dir.path().join(PATH)).unwrap();
    let len = file.metadata().unwrap().len();
    sys::resident(&file, len).unwrap()
}

/// Runs a test with a store in each direct mode, and says whether it uses direct I/O.
fn each(test: impl AsyncFn(&TempDir, FileStore, bool)) {
    for mode in DIRECT {
        for offload in [0, u64::MAX] {
            let dir = disk_dir();
            run(async {
                let store = mode.open(dir.path(), offload);
                store.create(FILE, 1).await.unwrap();
                let is_direct = store.moves_directly();
                test(&dir, store, is_direct).await;
            });
        }
    }
}

#[test]
fn aligned_bytes_are_not_in_the_page_cache() {
    let bytes = pattern(64 << 10, 1);
    each(async |dir, store, is_direct| {
        write(&store, 0, 0, &bytes).await.unwrap();
        assert_eq!(cached_pages(dir), if is_direct { 0 } else { 16 });
        assert_eq!(read(&store, 0, 0, bytes.len()).await.unwrap(), bytes);
        assert_eq!(cached_pages(dir), if is_direct { 0 } else { 16 });
        // The head and the tail are in one page each.
        write(&store, 100, 100, &bytes[100..60_000]).await.unwrap();
        assert_eq!(cached_pages(dir), if is_direct { 2 } else { 16 });
        assert_eq!(read(&store, 0, 0, bytes.len()).await.unwrap(), bytes);
        store.sync(&[FILE]).await.unwrap();
    });
    // The control.
    let dir = disk_dir();
    run(async {
        let store = Mode::Cached.open(dir.path(), 0);
        store.create(FILE, 1).await.unwrap();
        write(&store, 0, 0, &bytes).await.unwrap();
        assert_eq!(cached_pages(&dir), 16);
    });
}

/// Each way sees what the other one wrote before.
#[test]
fn the_two_ways_are_coherent() {
    each(async |dir, store, is_direct| {
        for round in 0..20 {
            let (first, second) = (pattern(40_000, round), pattern(32 << 10, round + 100));
            // In memory at another position than in the file: through the page cache.
            write(&store, 0, 3, &first).await.unwrap();
            assert!(cached_pages(dir) >= 9);
            assert_eq!(read(&store, 0, 0, 32 << 10).await.unwrap(), first[..32 << 10]);
            write(&store, 4096, 0, &second[..16 << 10]).await.unwrap();
            assert_eq!(read(&store, 4096, 3, 16 << 10).await.unwrap(), second[..16 << 10]);
            assert_eq!(read(&store, 0, 3, 4096).await.unwrap(), first[..4096]);
            assert_eq!(read(&store, 20 << 10, 5, 19_000).await.unwrap(), first[20 << 10..(20 << 10) + 19_000]);
            store.truncate(FILE, 10_000).await.unwrap();
            let mut cut = second[..10_000 - 4096].to_vec();
            cut.resize(8192, 0);
            assert_eq!(read(&store, 4096, if is_direct { 0 } else { 1 }, 8192).await.unwrap(), cut);
        }
        store.sync(&[FILE]).await.unwrap();
    });
}

#[test]
fn a_read_at_the_end_gives_zeros() {
    each(async |_, store, _| {
        for len in [4096, 5000, 8191, 8192, 511] {
            store.truncate(FILE, 0).await.unwrap();
            let bytes = pattern(len, 5);
            write(&store, 0, 0, &bytes).await.unwrap();
            assert_eq!(store.size(FILE).await, Ok(len as u64));
            let mut expected = bytes.clone();
            expected.resize(64 << 10, 0);
            assert_eq!(read(&store, 0, 0, 64 << 10).await.unwrap(), expected, "{len}");
            assert_eq!(read(&store, 1 << 20, 0, 8192).await.unwrap(), [0; 8192], "{len}");
            // Far behind the end, and a hole before it.
            write(&store, 1 << 20, 0, &bytes[..len.min(4096)]).await.unwrap();
            assert_eq!(read(&store, 512 << 10, 0, 8192).await.unwrap(), [0; 8192], "{len}");
        }
    });
}

/// Neighbours are written at the same time, with heads, tails and whole pages that take both ways.
/// No byte is lost, and the sync finds no page that could not be dropped.
#[test]
fn neighbours_do_not_disturb_each_other() {
    const LEN: usize = 13_000;
    const COUNT: usize = 40;
    each(async |_, store, _| {
        let store = &store;
        for round in 0..10 {
            let bytes = pattern(LEN * COUNT, round);
            let bytes = &bytes;
            join_all((0..COUNT).map(async |number| {
                let at = number * LEN;
                write(store, at as u64, at % 4096, &bytes[at..at + LEN]).await.unwrap();
                assert_eq!(read(store, at as u64, (at + number) % 4096, LEN).await.unwrap(), bytes[at..at + LEN]);
            }))
            .await;
            assert_eq!(read(store, 0, 0, bytes.len()).await.unwrap(), *bytes);
            assert_eq!(read(store, 0, 7, bytes.len()).await.unwrap(), *bytes);
            store.sync(&[FILE]).await.unwrap();
        }
    });
}

#[test]
fn many_pieces_are_moved_together() {
    each(async |dir, store, is_direct| {
        let (count, bytes) = (2500, pattern(2500 * 4096, 3));
        let memory = Memory::from(bytes.clone());
        let aligned = Memory::zeroed(bytes.len()).unwrap();
        aligned.copy_from(0, &bytes);
        // Backwards in memory, so that no two pieces are one.
        for (memory, pages) in [(&aligned, 0), (&memory, 2500)] {
            let pieces =
                |memory: &Memory| -> MemList { (0..count).rev().map(|page| memory.slice(page * 4096, 4096)).collect() };
            store.truncate(FILE, 0).await.unwrap();
            let all = [Region::new(0, bytes.len() as u64)];
            store.write(FILE, &all, &pieces(memory)).await.unwrap();
            if is_direct {
                assert_eq!(cached_pages(dir), pages);
            }
            let into = Memory::zeroed(bytes.len()).unwrap();
            store.read(FILE, &all, &pieces(&into)).await.unwrap();
            assert!(into.to_vec() == bytes);
            assert_eq!(read(&store, 0, 0, 4096).await.unwrap(), bytes[bytes.len() - 4096..]);
        }
    });
}

#[test]
fn a_transfer_needs_no_worker_where_there_is_a_ring() {
    let dir = disk_dir();
    run(async {
        let store = Mode::Ring.open(dir.path(), 0);
        store.create(FILE, 1).await.unwrap();
        let bytes = pattern(20_000, 1);
        write(&store, 0, 0, &bytes).await.unwrap();
        let (latch, stalled) = std::sync::mpsc::channel::<()>();
        let stalled = Arc::new(std::sync::Mutex::new(stalled));
        for _ in 0..100 {
            for workers in [&*store.core.short, &store.core.long, &store.core.bulk] {
                let stalled = stalled.clone();
                workers.leave(move || {
                    let _ = stalled.lock().unwrap().recv();
                });
            }
        }
        if store.has_ring() {
            assert_eq!(read(&store, 0, 0, 20_000).await.unwrap(), bytes);
            write(&store, 4096, 1, &bytes).await.unwrap();
            assert_eq!(read(&store, 4096, 0, 20_000).await.unwrap(), bytes);
        }
        drop(latch);
        assert!(store.wait_until_idle(Duration::from_secs(60)));
    });
}

/// The number of descriptors of this process that refer to files of a directory.
fn descriptors(dir: &TempDir) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.starts_with(dir.path().join("00"))).count()
}

#[test]
fn second_descriptors_count() {
    each(async |dir, store, is_direct| {
        let store = store.keeping_open(8);
        store.create(DatafileHandle(FILE.0 + 1), 30).await.unwrap();
        let mut most = 0;
        for number in 1..31 {
            let datafile = DatafileHandle(FILE.0 + number);
            store.write(datafile, &[Region::new(0, PAGE)], &placed(0, &pattern(4096, number))).await.unwrap();
            // Files that are about to be closed are, before the next is opened.
            most = most.max(descriptors(dir));
        }
        assert!(most <= 8 && (most == 8 || !is_direct), "{most}");
        drop(store);
    });
}

/// Runs `work` while the steps from the `first` one on fail. Without a runtime they are all made on
/// this thread.
fn failing<R>(first: u64, count: u64, error: i32, work: impl Future<Output = R>) -> R {
    injected::fail(Some(Failing { first, count, error }));
    let result = work.now_or_never().expect("it waits for nothing");
    injected::fail(None);
    result
}

fn with_store(test: impl FnOnce(&TempDir, &FileStore)) {
    let dir = disk_dir();
    let store = Mode::Ring.open(dir.path(), 0);
    store.create(FILE, 1).now_or_never().unwrap().unwrap();
    test(&dir, &store);
}

/// Runs a test with such a store, where the file system permits direct I/O.
fn with_direct_io(test: impl FnOnce(&TempDir, &FileStore)) {
    with_store(|dir, store| match store.moves_directly() {
        true => test(dir, store),
        false => assert!(!permits(dir.path())),
    });
}

/// The steps of a first write are: to look for the file, to make it, to open it once more, and the
/// calls.
const OPENS: u64 = 3;

#[test]
fn a_file_system_that_refuses_to_open_is_asked_once() {
    with_store(|_, store| {
        let (bytes, is_direct) = (pattern(9000, 1), store.moves_directly());
        failing(OPENS, 1, libc::EINVAL, write(store, 0, 0, &bytes)).unwrap_or_else(|_| assert!(!is_direct));
        assert!(!store.moves_directly());
        injected::fail(None);
        write(store, 0, 0, &bytes).now_or_never().unwrap().unwrap();
        assert_eq!(injected::count(), 1, "one call, through the page cache");
        assert_eq!(read(store, 0, 0, 9000).now_or_never().unwrap().unwrap(), bytes);
    });
}

#[test]
fn a_file_system_that_refuses_to_move_is_asked_once() {
    with_direct_io(|dir, store| {
        let bytes = pattern(9000, 1);
        failing(OPENS + 1, 1, libc::EINVAL, write(store, 0, 0, &bytes)).unwrap();
        assert!(!store.moves_directly(), "the same bytes were moved through the page cache");
        assert_eq!(read(store, 0, 0, 9000).now_or_never().unwrap().unwrap(), bytes);
        assert_eq!(cached_pages(dir), 3);
    });
}

/// A request that is impossible either way changes nothing for others.
#[test]
fn a_request_that_is_refused_both_ways_is_at_fault_itself() {
    with_direct_io(|_, store| {
        let bytes = pattern(9000, 1);
        let error = failing(OPENS + 1, 2, libc::EINVAL, write(store, 0, 0, &bytes)).unwrap_err();
        assert_eq!((error.code, &error.ranges[..]), (ErrorCode::Io, &[Region::new(0, 9000)][..]));
        assert!(store.moves_directly());
        // The largest offset of a file lies in its last unit.
        let far = [Region::new(0, 8192), Region::new((1 << 63) - 4096, 4096)];
        let error = store.write(FILE, &far, &placed(0, &pattern(12288, 1))).now_or_never().unwrap().unwrap_err();
        assert_eq!(&error.ranges[..], &far[1..], "{error}");
        assert!(store.moves_directly());
    });
}

#[test]
fn an_error_names_what_was_not_moved() {
    with_direct_io(|_, store| {
        // A head, units and a tail, and then a region that needs one call.
        let regions = [Region::new(100, 20_000), Region::new(1 << 20, 8192)];
        let memory = Memory::zeroed(40_000).unwrap();
        memory.copy_from(0, &pattern(40_000, 9));
        let list: MemList = [memory.slice(100, 20_000), memory.slice(24 << 10, 8192)].into_iter().collect();
        let cases = [(0, 0), (1, 3996), (2, 3996 + 12288), (3, 20_000)];
        for (calls, moved) in cases {
            let error = failing(OPENS + 1 + calls, 1, libc::EIO, store.write(FILE, &regions, &list)).unwrap_err();
            let left: u64 = error.ranges.iter().map(|range| range.len).sum();
            assert_eq!((error.code, left), (ErrorCode::Io, 28_192 - moved), "{calls} calls: {error}");
            store.remove(&[FILE]).now_or_never().unwrap().unwrap();
            store.create(FILE, 1).now_or_never().unwrap().unwrap();
        }
        assert!(store.moves_directly());
    });
}

#[test]
fn without_a_descriptor_bytes_take_the_other_way() {
    for error in [libc::EMFILE, libc::ENFILE] {
        with_direct_io(|dir, store| {
            let bytes = pattern(8192, 1);
            failing(OPENS, 1000, error, async {
                // The calls themselves are steps too.
                let written = write(store, 0, 0, &bytes).await;
                assert!(written.unwrap_err().detail.contains("no file descriptor is free"));
            });
            // No file can be closed: the only one is in use.
            failing(1, 1, error, write(store, 0, 0, &bytes)).unwrap();
            assert!(store.moves_directly() && cached_pages(dir) == 2);
            write(store, 0, 0, &bytes).now_or_never().unwrap().unwrap();
            assert_eq!(cached_pages(dir), 0, "the next transfer has a descriptor");
        });
    }
}

/// The name of a file in use may lead nowhere, or to another file.
#[test]
fn a_file_is_not_opened_by_a_name_that_it_lost() {
    for is_replaced in [false, true] {
        each(async |dir, store, _| {
            let path = dir.path().join(PATH);
            write(&store, 0, 0, &[1]).await.unwrap();
            fs::remove_file(&path).unwrap();
            if is_replaced {
                fs::write(&path, [7; 8192]).unwrap();
            }
            let bytes = pattern(8192, 2);
            write(&store, 0, 0, &bytes).await.unwrap();
            assert_eq!(read(&store, 0, 0, 8192).await.unwrap(), bytes);
            assert_eq!(fs::read(&path).ok(), is_replaced.then(|| vec![7; 8192]));
        });
    }
}

/// There is no disk, so there is no direct I/O.
#[test]
fn a_file_system_in_memory_moves_nothing_directly() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return assert!(!Path::new("/dev/shm").is_dir());
    };
    run(async {
        let store = FileStore::open(dir.path(), 0).unwrap().direct_io(true);
        let is_in_memory = store.at_once.in_memory();
        assert_eq!((store.moves_directly(), store.moves_directly()), (!is_in_memory, permits(dir.path())));
        store.create(FILE, 1).await.unwrap();
        let bytes = pattern(9000, 1);
        write(&store, 10, 10, &bytes).await.unwrap();
        assert_eq!(read(&store, 10, 0, 9000).await.unwrap(), bytes);
    });
}

#[test]
fn the_mode_is_off_unless_it_is_asked_for() {
    let dir = disk_dir();
    let store = FileStore::open(dir.path(), 0).unwrap();
    assert!(!store.moves_directly() && !store.has_ring());
    let store = store.direct_io(true).direct_io(false);
    assert!(!store.moves_directly() && !store.has_ring());
}

/// One step of the property test.
#[derive(Clone, Debug)]
enum Step {
    /// Offset, and positions in memory with lengths.
    Write(Vec<(u64, Vec<(usize, usize)>)>, u64),
    Read(Vec<(u64, Vec<(usize, usize)>)>),
    Truncate(u64),
    Sync,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let regions = || {
        // Most are aligned in one way or another.
        let grain = || prop::sample::select(vec![1u64, 512, 4096, 4096]);
        let piece = (grain(), 0..30_000usize, 1..20_000usize).prop_map(|(grain, at, len)| {
            let grain = grain as usize;
            (at / grain * grain, (len / grain * grain).max(1))
        });
        let region = (grain(), 0..150_000u64, prop::collection::vec(piece, 1..4));
        prop::collection::vec(region.prop_map(|(grain, offset, pieces)| (offset / grain * grain, pieces)), 1..4)
    };
    let step = prop_oneof![
        6 => (regions(), 0..1000u64).prop_map(|(regions, seed)| Step::Write(regions, seed)),
        6 => regions().prop_map(Step::Read),
        1 => (0..180_000u64).prop_map(Step::Truncate),
        1 => Just(Step::Sync),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..25)
}

/// The regions of a step, and its memory. Pieces may overlap in memory when they are written from.
fn laid_out(layout: &[(u64, Vec<(usize, usize)>)], seed: u64, apart: bool) -> (Vec<Region>, MemList) {
    let (mut regions, mut slices) = (Vec::new(), Vec::new());
    let memory = Memory::zeroed(50_000).unwrap();
    memory.copy_from(0, &pattern(50_000, seed));
    for (offset, pieces) in layout {
        regions.push(Region::new(*offset, pieces.iter().map(|(_, len)| *len as u64).sum()));
        for (at, len) in pieces {
            slices.push(match apart {
                true => Memory::zeroed(50_000).unwrap().slice(*at, *len),
                false => memory.slice(*at, *len),
            });
        }
    }
    (regions, slices.into_iter().collect())
}

async fn play(mode: Mode, steps: &[Step]) -> Result<(), TestCaseError> {
    let dir = disk_dir();
    let mut store = mode.open(dir.path(), 30_000);
    store.create(FILE, 1).await.unwrap();
    let mut model: Vec<u8> = Vec::new();
    for step in steps {
        match step {
            Step::Write(layout, seed) => {
                let (regions, list) = laid_out(layout, *seed, false);
                store.write(FILE, &regions, &list).await.unwrap();
                let (bytes, mut at) = (list.to_vec(), 0);
                for region in regions {
                    let (from, len) = (region.offset as usize, region.len as usize);
                    model.resize(model.len().max(from + len), 0);
                    model[from..from + len].copy_from_slice(&bytes[at..at + len]);
                    at += len;
                }
            }
            Step::Read(layout) => {
                let (regions, list) = laid_out(layout, 0, true);
                list.pieces().iter().for_each(|piece| piece.copy_from(&vec![0xee; piece.len()]));
                store.read(FILE, &regions, &list).await.unwrap();
                let byte = |at: u64| model.get(at as usize).copied().unwrap_or(0);
                let expected = regions.iter().flat_map(|region| region.offset..region.offset + region.len).map(byte);
                prop_assert!(list.to_vec().into_iter().eq(expected), "{:?}", step);
            }
            Step::Truncate(size) => {
                store.truncate(FILE, *size).await.unwrap();
                model.resize(*size as usize, 0);
            }
            Step::Sync => store.sync(&[FILE]).await.unwrap(),
            Step::Reopen => {
                drop(store);
                store = mode.open(dir.path(), 30_000);
            }
        }
        prop_assert_eq!(store.size(FILE).await, Ok(model.len() as u64));
    }
    for at in [0, 1] {
        prop_assert!(read(&store, 0, at, model.len()).await.unwrap() == model, "at {}", at);
    }
    prop_assert_eq!(store.moves_directly(), permits(dir.path()));
    drop(store);
    // As another program sees it.
    prop_assert!(fs::read(dir.path().join(PATH)).unwrap_or_default() == model);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// After any transfers, with any alignment, the bytes are those of a plain vector.
    #[test]
    fn any_transfers_give_the_bytes_of_a_vector(steps in steps()) {
        for mode in DIRECT {
            run(play(mode, &steps))?;
        }
        // Without a runtime.
        play(Mode::Threads, &steps).now_or_never().expect("it waits for nothing")?;
    }
}
