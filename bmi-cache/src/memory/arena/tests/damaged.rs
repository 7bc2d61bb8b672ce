//! Files that are damaged, cut or put together wrongly. Nothing panics, nothing that is adopted is
//! out of range, and what contradicts itself is dropped and counted.

use std::fs::File;
use std::os::unix::fs::FileExt;

use bmi_core::ErrorKind;

use super::*;
use crate::memory::arena::layout::{CHUNKS_AT, Layout, SUPERBLOCK};

/// Makes an arena of two chunks with records of every length.
fn leave(path: &Path) -> Vec<Recovered> {
    let (mut arena, _) = Arena::adopt(open(path));
    assert!(arena.grow().unwrap() && arena.grow().unwrap());
    let units = [place(0, 1), place(2, 2), place(4, 4), place(8, 8), place(16, 16), place(63, 1)];
    let left = units.map(|unit| {
        let record = record(5, 65_536 * u64::from(unit.frame), &[0..7, 100..unit.bytes() as u32]);
        arena.record(unit, Some(&record));
        arena.record(unit, Some(&record));
        Recovered { place: unit, record }
    });
    left.into()
}

/// Uses an arena as a cache would: its bytes, all chunks, and a record in each block.
fn use_all(mut arena: Arena, recovered: Vec<Recovered>) {
    for unit in recovered {
        let len = unit.place.bytes() as u32;
        arena.slice(unit.place, 0, len).copy_from(&vec![7; len as usize]);
        arena.record(unit.place, None);
    }
    while arena.grow().unwrap() {}
    for block in 0..arena.blocks() {
        let unit = place(block * 16, 16);
        arena.slice(unit, 0, 65_536).copy_from(&[8; 65_536]);
        arena.record(unit, Some(&record(u64::from(block), 0, &[1..2])));
    }
}

#[derive(Clone, Debug)]
enum Damage {
    /// Bytes in the superblock, in the headers, or anywhere.
    Superblock(u64, Vec<u8>),
    Headers(u64, Vec<u8>),
    Anywhere(u64, Vec<u8>),
    /// A header is copied to another frame.
    Copied(u64, u64),
    Length(u64),
}

fn damage() -> impl Strategy<Value = Damage> {
    let bytes = || prop_oneof![prop::collection::vec(any::<u8>(), 1..80), prop::collection::vec(0..3u8, 1..80)];
    prop_oneof![
        2 => (0..64u64, bytes()).prop_map(|(at, bytes)| Damage::Superblock(at, bytes)),
        8 => (0..64 * 64u64, bytes()).prop_map(|(at, bytes)| Damage::Headers(at, bytes)),
        1 => (any::<u64>(), bytes()).prop_map(|(at, bytes)| Damage::Anywhere(at, bytes)),
        4 => (0..64u64, 0..64u64).prop_map(|(from, to)| Damage::Copied(from, to)),
        1 => any::<u64>().prop_map(Damage::Length),
    ]
}

fn apply(file: &File, damage: &Damage) {
    let len = file.metadata().unwrap().len();
    let header = |frame: u64| 4096 + frame * 64;
    match damage {
        Damage::Superblock(at, bytes) => file.write_all_at(&bytes[..bytes.len().min(8)], *at).unwrap(),
        Damage::Headers(at, bytes) => file.write_all_at(bytes, header(0) + at).unwrap(),
        Damage::Anywhere(at, bytes) => file.write_all_at(bytes, at % len.max(1)).unwrap(),
        Damage::Copied(from, to) => {
            let mut bytes = [0; 64];
            if file.read_exact_at(&mut bytes, header(*from)).is_ok() {
                file.write_all_at(&bytes, header(*to)).unwrap();
            }
        }
        Damage::Length(to) => file.set_len(to % (len + 5000)).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damage_never_panics_and_what_is_adopted_is_sane(damages in prop::collection::vec(damage(), 1..6)) {
        let _guard = no_new_process();
        let dir = folder();
        let path = dir.path().join("arena");
        let left = leave(&path);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        damages.iter().for_each(|damage| apply(&file, damage));
        match Frames::open(&path, SETTINGS, OWNER) {
            Err(error) => {
                prop_assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Incompatible), "{}", error);
            }
            Ok(frames) => {
                let chunks = frames.chunks().len();
                let (arena, recovered) = Arena::adopt(frames.clone());
                check_sane(&arena, &recovered);
                prop_assert!(arena.dropped() <= 64 * chunks as u64);
                let is_outside = |damage: &Damage| matches!(damage, Damage::Superblock(..));
                prop_assert!(!damages.iter().all(is_outside) || chunks < 2 || recovered == left);
                drop(arena);
                // What was dropped does not come back.
                let (arena, the_same) = Arena::adopt(frames);
                prop_assert_eq!((arena.dropped(), &the_same), (0, &recovered));
                use_all(arena, recovered);
                let (arena, recovered) = Arena::adopt(open(&path));
                prop_assert_eq!((arena.dropped(), recovered.len() as u32), (0, arena.max_blocks()));
            }
        }
    }
}

#[test]
fn a_file_of_another_length_is_refused() {
    let _guard = no_new_process();
    let dir = folder();
    let path = dir.path().join("arena");
    leave(&path);
    let file = File::options().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    for cut in [SUPERBLOCK as u64, 4095, 4096, 70_000, len - 1, len + 1] {
        file.set_len(cut).unwrap();
        let error = Frames::open(&path, SETTINGS, OWNER).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("damaged"), "{cut}: {error}");
    }
}

/// Puts a record into the header of a frame, past all checks.
fn forge(frames: &Frames, unit: Place, record: &Record) {
    header::write(frames.mapping(), frames.layout().header_at(unit.frame), unit.frames, record);
}

#[test]
fn records_that_contradict_each_other_are_dropped_and_counted() {
    let frames = Frames::anonymous(SETTINGS).unwrap();
    let (mut arena, _) = Arena::adopt(frames.clone());
    assert!(arena.grow().unwrap());
    let good = record(1, 0, &[0..1]);
    arena.record(place(16, 4), Some(&good));
    // Of the first block, the largest unit shares frames with all others. These share none.
    forge(&frames, place(0, 16), &record(2, 0, &[0..1]));
    forge(&frames, place(3, 1), &record(3, 0, &[0..1]));
    forge(&frames, place(8, 4), &record(4, 0, &[0..1]));
    // Two units have a byte of a file in common, others of the same file have not.
    forge(&frames, place(24, 4), &record(5, 16_384, &[0..1]));
    forge(&frames, place(28, 1), &record(5, 20_480, &[0..1]));
    forge(&frames, place(29, 1), &record(5, 32_768, &[0..1]));
    // A unit that is not aligned, and words that no server stored.
    forge(&frames, place(31, 2), &record(6, 0, &[0..1]));
    frames.mapping().store(frames.layout().header_at(22), 77);
    frames.mapping().store(UNITS_AT, 0);
    for dropped in [7, 0] {
        let (arena, recovered) = Arena::adopt(frames.clone());
        let kept = [(place(16, 4), good.clone()), (place(29, 1), record(5, 32_768, &[0..1]))];
        assert_eq!(recovered, kept.map(|(place, record)| Recovered { place, record }));
        assert_eq!((arena.dropped(), frames.mapping().load(UNITS_AT)), (dropped, 2));
    }
}

#[test]
fn headers_of_chunks_that_do_not_exist_are_never_believed() {
    let _guard = no_new_process();
    let dir = folder();
    let path = dir.path().join("arena");
    leave(&path);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&1u64.to_ne_bytes(), CHUNKS_AT as u64).unwrap();
    let (mut arena, recovered) = Arena::adopt(open(&path));
    assert_eq!((recovered.len(), arena.blocks(), arena.dropped()), (5, 2, 0));
    // The second chunk had a record in its last frame.
    assert!(arena.grow().unwrap());
    drop(arena);
    assert_eq!(Arena::adopt(open(&path)).1.len(), 5);
}

/// A copy that leaves out pages of zeros must not fail later, when the file system is full.
#[test]
fn holes_are_filled() {
    let _guard = no_new_process();
    let dir = folder();
    let path = dir.path().join("arena");
    leave(&path);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let layout = Layout::new(SETTINGS.bytes, SETTINGS.chunk).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(layout.chunk_at(0) as u64).unwrap();
    file.set_len(len).unwrap();
    let pages = |file: &File| std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) / 8;
    assert!(pages(&file) < 64);
    assert_eq!(Arena::adopt(open(&path)).1.len(), 6);
    assert!(pages(&file) >= 64, "two chunks of 32 frames");
}
