//! Tests of the record: what is on it, blocks that are torn, damaged or used again, failed syncs.

use std::collections::BTreeSet;
use std::path::Path;

use fs_proto::limits::MAX_DATAFILES;

use super::*;
use crate::store::SECTOR;
use crate::store::disk::SystemDir;

fn opened(dir: &Path) -> Catalogue {
    Catalogue::open(&SystemDir::open(dir).unwrap()).unwrap()
}

fn all(catalogue: &Catalogue) -> Vec<u64> {
    catalogue.list(|_| true).into_iter().map(|handle| handle.0).collect()
}

fn no_file(_: DatafileHandle) -> bool {
    false
}

#[test]
fn what_is_recorded_is_there_until_it_is_taken_off() {
    let dir = tempfile::tempdir().unwrap();
    let open = || opened(dir.path());
    let catalogue = open();
    catalogue.create(DatafileHandle(100), 20, no_file).unwrap();
    catalogue.create(DatafileHandle(100), 20, no_file).unwrap();
    catalogue.create(DatafileHandle(1000), 1024, no_file).unwrap();
    catalogue.take_off([101, 119, 5, 120, 1500].map(DatafileHandle)).unwrap();
    for catalogue in [catalogue, open()] {
        let expected: Vec<u64> =
            (100..119).filter(|at| *at != 101).chain((1000..2024).filter(|at| *at != 1500)).collect();
        assert_eq!(all(&catalogue), expected);
        assert!(catalogue.is_new(DatafileHandle(100)) && !catalogue.is_new(DatafileHandle(101)));
        assert!(!catalogue.is_new(DatafileHandle(120)) && !catalogue.is_new(DatafileHandle(99)));
    }
}

#[test]
fn blocks_are_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = opened(dir.path());
    for round in 0..50u64 {
        catalogue.create(DatafileHandle(round * 100), 100, no_file).unwrap();
        catalogue.take_off((0..100).map(|at| DatafileHandle(round * 100 + at))).unwrap();
    }
    assert_eq!(all(&catalogue), [0; 0]);
    assert_eq!(std::fs::metadata(dir.path().join(NAME)).unwrap().len(), BLOCK as u64);
    let again = opened(dir.path());
    again.create(DatafileHandle(7), 1, no_file).unwrap();
    assert_eq!(std::fs::metadata(dir.path().join(NAME)).unwrap().len(), BLOCK as u64);
}

/// Returns the numbers of the blocks in use.
fn numbers(catalogue: &Catalogue) -> Vec<u64> {
    lock(&catalogue.state).blocks.values().map(|block| block.number).collect()
}

/// A regression test. Blocks crossed sectors. After a power failure the old header could meet
/// new bits, and datafiles that were removed came back; or the new header met a part of the
/// bits, and the same `create` again found its range and left the rest out.
#[test]
fn a_block_that_was_used_again_and_torn_is_the_old_one_or_the_new_one() {
    // The syncs of a test need no disk.
    steps::injected::observe(Some(Box::new(|_| {})));
    const COUNT: u64 = MAX_DATAFILES as u64;
    let handles = |first: u64| (first..first + COUNT).map(DatafileHandle);
    let record = |dir: &Path, first: u64| {
        opened(dir).create(DatafileHandle(first), COUNT as u32, no_file).unwrap();
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let mut acknowledged: Vec<u64> = (0..32).map(|range| range * COUNT).collect();
    acknowledged.iter().for_each(|first| record(dir.path(), *first));
    for new in (32..64).map(|range| range * COUNT) {
        let old = acknowledged.remove(0);
        opened(dir.path()).take_off(handles(old)).unwrap();
        let before = std::fs::read(&path).unwrap();
        record(dir.path(), new);
        let after = std::fs::read(&path).unwrap();
        assert_eq!(before.len(), after.len(), "a block is used again");
        let boundaries = (0..=after.len()).step_by(SECTOR);
        let torn = |boundary: usize| {
            [[&before[..boundary], &after[boundary..]].concat(), [&after[..boundary], &before[boundary..]].concat()]
        };
        // Most of them are equal.
        let images: BTreeSet<Vec<u8>> = boundaries.flat_map(torn).collect();
        for image in images {
            std::fs::write(&path, image).unwrap();
            let found = all(&opened(dir.path()));
            let mut expected: Vec<u64> = acknowledged.iter().flat_map(|first| *first..first + COUNT).collect();
            let all_of_new: Vec<u64> = (new..new + COUNT).collect();
            let is_new = found.last().is_some_and(|last| *last >= new);
            assert!(found == [&expected[..], if is_new { &all_of_new } else { &[] }].concat(), "range {new}");
            // The manager sends it again.
            record(dir.path(), new);
            expected.extend(all_of_new);
            assert!(all(&opened(dir.path())) == expected, "range {new}, created again");
        }
        std::fs::write(&path, &after).unwrap();
        acknowledged.push(new);
    }
    steps::injected::observe(None);
}

#[test]
fn no_new_block_crosses_a_sector() {
    steps::injected::observe(Some(Box::new(|_| {})));
    let dir = tempfile::tempdir().unwrap();
    let mut catalogue = opened(dir.path());
    for round in 0..4u64 {
        for range in 0..50 {
            catalogue.create(DatafileHandle((round * 50 + range) * 10), 10, no_file).unwrap();
        }
        let whole = |number: &u64| number * 144 / 512 == (number * 144 + 143) / 512;
        assert!(numbers(&catalogue).iter().all(whole), "{:?}", numbers(&catalogue));
        let some = (0..round * 25).flat_map(|range| (0..10).map(move |at| DatafileHandle(range * 10 + at)));
        catalogue.take_off(some).unwrap();
        catalogue = opened(dir.path());
    }
    // A create that fails gives its number back, and only that.
    let before = numbers(&catalogue).len();
    steps::injected::fail(Some(steps::injected::Failing { first: 1, count: 1, error: libc::ENOSPC }));
    catalogue.create(DatafileHandle(90_000), 10, no_file).unwrap_err();
    steps::injected::fail(None);
    assert!(lock(&catalogue.state).free.iter().all(|number| !crosses(*number)));
    catalogue.create(DatafileHandle(90_000), 10, no_file).unwrap();
    assert_eq!(numbers(&catalogue).len(), before + 1);
    steps::injected::observe(None);
}

/// Older directories have their blocks one after the other.
#[test]
fn a_block_of_an_older_directory_that_crosses_a_sector_is_read_and_not_used_again() {
    steps::injected::observe(Some(Box::new(|_| {})));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let older = |number: u64| {
        let block = Block { number, count: 8, bits: [0; BITS], made: [0; BITS] };
        let mut bytes = block.encode(number * 8);
        bytes[HEADER] = 0xff;
        bytes
    };
    let blocks: Vec<Vec<u8>> = (0..64).map(older).collect();
    std::fs::write(&path, blocks.concat()).unwrap();
    let catalogue = opened(dir.path());
    assert_eq!(all(&catalogue), (0..512).collect::<Vec<u64>>());
    assert_eq!(numbers(&catalogue).into_iter().filter(|number| crosses(*number)).count(), 16);
    // They are taken off in part, and then as a whole.
    catalogue.take_off((0..512).filter(|handle| handle % 8 < 3).map(DatafileHandle)).unwrap();
    let left: Vec<u64> = (0..512).filter(|handle| handle % 8 >= 3).collect();
    let again = opened(dir.path());
    assert_eq!((all(&catalogue), all(&again)), (left.clone(), left.clone()));
    again.take_off(left.into_iter().map(DatafileHandle)).unwrap();
    let create = |catalogue: &Catalogue, first: u64| {
        (0..60).for_each(|range| catalogue.create(DatafileHandle(first + range * 8), 8, no_file).unwrap());
        assert!(!numbers(catalogue).into_iter().any(crosses), "{:?}", numbers(catalogue));
    };
    create(&again, 1000);
    let again = opened(dir.path());
    create(&again, 2000);
    assert_eq!(all(&opened(dir.path())), (1000..1480).chain(2000..2480).collect::<Vec<u64>>());
    // A part of a block at the end does not become one when a later block is written.
    let mut bytes: Vec<u8> = (0..4).flat_map(older).collect();
    bytes.truncate(4 * BLOCK - 100);
    std::fs::write(&path, bytes).unwrap();
    let catalogue = opened(dir.path());
    catalogue.create(DatafileHandle(500), 1, no_file).unwrap();
    assert_eq!(numbers(&catalogue), [0, 1, 2, 4]);
    assert_eq!(all(&opened(dir.path())), (0..24).chain([500]).collect::<Vec<u64>>());
    steps::injected::observe(None);
}

#[test]
fn a_block_that_was_cut_off_or_torn_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let catalogue = opened(dir.path());
    catalogue.create(DatafileHandle(1), 3, no_file).unwrap();
    catalogue.create(DatafileHandle(50), 3, no_file).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[BLOCK] ^= 1;
    bytes.truncate(2 * BLOCK);
    bytes.extend([1; 30]);
    std::fs::write(&path, bytes).unwrap();
    let catalogue = opened(dir.path());
    assert_eq!(all(&catalogue), [1, 2, 3]);
    catalogue.create(DatafileHandle(90), 1, no_file).unwrap();
    assert_eq!(all(&opened(dir.path())), [1, 2, 3, 90]);
}

/// A regression test. Bits that belong to no datafile were counted. Of two blocks for one range
/// only one was found, and the other came back at the next start.
#[test]
fn damaged_blocks_do_not_make_datafiles() {
    let block = |first: u64, count: u32, bits: u8| {
        let block = Block { number: 0, count, bits: [0; BITS], made: [0; BITS] };
        let mut bytes = block.encode(first);
        bytes[HEADER] = bits;
        bytes
    };
    let dir = tempfile::tempdir().unwrap();
    let blocks = [block(16, 3, 0xff), block(16, 3, 0x06), block(17, 8, 0xff), block(u64::MAX - 2, 8, 0xff)];
    std::fs::write(dir.path().join(NAME), blocks.concat()).unwrap();
    let catalogue = opened(dir.path());
    assert_eq!((all(&catalogue), catalogue.datafiles()), (vec![16, 17, 18], 3));
    catalogue.take_off([16, 17, 18].map(DatafileHandle)).unwrap();
    assert_eq!(catalogue.datafiles(), 0);
    drop(catalogue);
    assert!(all(&opened(dir.path())).is_empty(), "they do not come back");
}

/// A regression test. A call that found the datafiles off the record succeeded at once,
/// although the one that had taken them off had failed before its sync. They could come back.
#[test]
fn whoever_finds_a_datafile_off_the_record_waits_until_that_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = opened(dir.path());
    let all = [5, 6, 7].map(DatafileHandle);
    catalogue.create(all[0], 3, no_file).unwrap();
    let failing = |first, datafiles: &[DatafileHandle]| {
        let failing = steps::injected::Failing { first, count: 1, error: libc::EIO };
        steps::injected::fail(Some(failing));
        let result = catalogue.take_off(datafiles.iter().copied());
        let steps = steps::injected::count();
        steps::injected::fail(None);
        (result.is_ok(), steps)
    };
    assert_eq!(failing(2, &all[..2]), (false, 2), "the second write fails");
    assert_eq!(failing(9, &[]), (true, 0));
    assert_eq!(failing(9, &all[..1]), (true, 1), "it syncs");
    assert_eq!(failing(9, &all[..1]), (true, 0), "it is durable");
    assert_eq!(failing(2, &all[1..]), (false, 2), "the second write fails");
    assert_eq!(failing(2, &all[1..]), (false, 2), "the sync fails");
    assert_eq!(failing(9, &all[1..]), (false, 0), "nobody knows whether it is durable");
}

#[test]
fn a_range_that_is_recorded_again_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = opened(dir.path());
    let all = [5, 6, 7].map(DatafileHandle);
    catalogue.create(all[0], 3, no_file).unwrap();
    assert_eq!(catalogue.make_file(all[1], || Ok(())).unwrap(), Some(()));
    assert_eq!(catalogue.make_file(DatafileHandle(9), || Ok(())).unwrap(), None);
    assert_eq!(catalogue.datafiles(), 3);
    // Only one of them has a file.
    catalogue.take_off(all).unwrap();
    assert_eq!(catalogue.datafiles(), 1);
    catalogue.create(all[0], 3, |datafile| datafile == all[1]).unwrap();
    assert_eq!(catalogue.datafiles(), 3);
    catalogue.take_off(all).unwrap();
    catalogue.file_removed();
    assert_eq!(catalogue.datafiles(), 0);
}
