//! Tests of the arena: what is recorded, and what is found after a restart or a kill.
#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is meant")]

mod damaged;
mod full;
mod killed;
mod open;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

pub(super) const STORE: u128 = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;
/// Of this store, with the same number for all frames: as if each was noted.
pub(super) const OWNER: Owner = Owner { store: STORE, noted: Some(1), next: 1 };
/// Four chunks of two blocks.
pub(super) const SETTINGS: ArenaSettings = ArenaSettings { bytes: 8 * BLOCK as u64, chunk: 2 * BLOCK };

/// Until it runs another program, a new process has all open files of this one, and so their locks.
/// A test that closes and opens a file again must not meet one.
static PROCESSES: RwLock<()> = RwLock::new(());

/// No test begins a process while this is held. A thread must not have two of them.
pub(crate) fn no_new_process() -> RwLockReadGuard<'static, ()> {
    PROCESSES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held while a process begins.
pub(super) fn new_process() -> RwLockWriteGuard<'static, ()> {
    PROCESSES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a directory in memory, where there is one.
pub(super) fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

pub(super) fn open(path: &Path) -> Frames {
    Frames::open(path, SETTINGS, OWNER).unwrap()
}

pub(super) fn ranges(list: &[Range<u32>]) -> Ranges {
    list.iter().fold(Ranges::NONE, |all, range| all.with(range.clone()).unwrap())
}

pub(super) fn record(file: u64, at: u64, list: &[Range<u32>]) -> Record {
    Record { file, at, dirty: ranges(list) }
}

pub(super) fn place(frame: u32, frames: u8) -> Place {
    Place { frame, frames }
}

/// Checks invariant 3 of the arena.
pub(super) fn check_sane(arena: &Arena, recovered: &[Recovered]) {
    let frames = arena.blocks() as usize * FRAMES_OF_BLOCK;
    for (index, Recovered { place, record }) in recovered.iter().enumerate() {
        assert!(place.is_sane() && place.end() <= frames && record.fits(place.frames), "{place:?}, {record:?}");
        for other in &recovered[..index] {
            assert!(other.place.end() <= place.frame as usize, "{place:?} and {:?}", other.place);
            let (end, other_end) = (record.at + place.bytes() as u64, other.record.at + other.place.bytes() as u64);
            let is_apart = record.file != other.record.file || end <= other.record.at || other_end <= record.at;
            assert!(is_apart, "{record:?} and {:?}", other.record);
        }
    }
}

#[test]
fn units_have_their_bytes_in_the_chunks() {
    let (mut arena, recovered) = Arena::adopt(Frames::anonymous(SETTINGS).unwrap());
    assert_eq!((recovered, arena.blocks(), arena.max_blocks(), arena.dropped()), (Vec::new(), 0, 8, 0));
    let mut blocks = Vec::new();
    while arena.grow().unwrap() {
        blocks.push(arena.blocks());
    }
    assert_eq!(blocks, [2, 4, 6, 8]);
    for number in 0..128u32 {
        arena.slice(place(number, 1), 0, 4096).copy_from(&[number as u8; 4096]);
    }
    for (unit, chunk, first) in [(place(0, 16), 0, 0), (place(40, 8), 1, 8), (place(127, 1), 3, 31)] {
        assert_eq!(arena.chunk_of(unit), chunk);
        let all = arena.slice(unit, 0, unit.bytes() as u32);
        assert_eq!((all.memory().id(), all.offset()), (arena.chunk(chunk).id(), first * FRAME));
        let expected: Vec<u8> = (0..unit.bytes()).map(|at| (unit.frame as usize + at / FRAME) as u8).collect();
        assert_eq!(all.to_vec(), expected);
        assert_eq!(arena.slice(unit, 4000, 96).to_vec(), [unit.frame as u8; 96]);
    }
}

#[test]
fn what_breaks_the_protocol_panics() {
    let new = || {
        let mut arena = Arena::adopt(Frames::anonymous(SETTINGS).unwrap()).0;
        assert!(arena.grow().unwrap());
        arena.record(place(4, 4), Some(&record(1, 0, &[0..1])));
        arena
    };
    let panics = |test: &dyn Fn(Arena)| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(new()))).is_err();
    let fine = record(2, 0, &[0..1]);
    for bad in [place(0, 0), place(0, 3), place(0, 32), place(2, 4), place(32, 1), place(u32::MAX, 1)] {
        assert!(panics(&|arena| drop(arena.slice(bad, 0, 0))), "{bad:?}");
        assert!(panics(&|mut arena| arena.record(bad, Some(&fine))), "{bad:?}");
        assert!(panics(&|mut arena| arena.record(bad, None)), "{bad:?}");
    }
    for shared in [place(0, 16), place(0, 8), place(4, 1), place(4, 2), place(7, 1)] {
        assert!(panics(&|mut arena| arena.record(shared, Some(&fine))), "{shared:?}");
        assert!(panics(&|mut arena| arena.record(shared, None)), "{shared:?}");
    }
    for record in [record(2, 4096, &[0..1]), record(2, 0, &[8191..8193]), record(2, 0u64.wrapping_sub(8192), &[0..1])] {
        assert!(panics(&|mut arena| arena.record(place(8, 2), Some(&record))), "{record:?}");
    }
    assert!(panics(&|mut arena| arena.record(place(4, 4), Some(&fine))), "not erased");
    assert!(panics(&|arena| drop(arena.slice(place(4, 4), 16_000, 385))));
    assert!(!panics(&|mut arena| {
        arena.record(place(4, 4), None);
        arena.record(place(4, 4), Some(&fine));
        arena.record(place(4, 4), Some(&record(2, 0, &[])));
        arena.record(place(0, 16), Some(&fine));
        arena.record(place(16, 16), None);
    }));
}

/// A killed process does nothing any more. Tests and the simulator kill only what they can.
#[test]
fn an_arena_that_was_superseded_does_nothing() {
    let frames = Frames::anonymous(SETTINGS).unwrap();
    let (mut old, _) = Arena::adopt(frames.clone());
    assert!(old.grow().unwrap());
    old.record(place(0, 1), Some(&record(1, 0, &[0..1])));
    let (arena, recovered) = Arena::adopt(frames.clone());
    old.record(place(0, 1), None);
    old.record(place(1, 1), Some(&record(1, 4096, &[0..1])));
    assert!(!old.grow().unwrap());
    assert_eq!(arena.chunk(0).id(), old.chunk(0).id(), "what is registered stays registered");
    assert_eq!((recovered.len(), arena.blocks()), (1, 2));
    assert_eq!(Arena::adopt(frames).1, recovered);
}

/// What a model of the arena holds: what is recorded.
type Model = BTreeMap<Place, Record>;

/// One step of a program over an arena.
#[derive(Clone, Debug)]
enum Step {
    /// Frame and binary logarithm of the length are brought into range.
    Record(u32, u8, Vec<Range<u32>>),
    /// Erases the unit with this number, modulo their count.
    Erase(usize),
    Grow,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..65_536u32, 1..65_536u32).prop_map(|(start, len)| start..start + len);
    prop_oneof![
        8 => (any::<u32>(), 0..5u8, prop::collection::vec(range, 0..4)).prop_map(|(frame, log, list)| Step::Record(frame, log, list)),
        3 => any::<usize>().prop_map(Step::Erase),
        1 => Just(Step::Grow),
    ]
}

/// Returns what the step records where, if it can in this state. `file` is a file without records.
fn plan(step: &Step, model: &Model, blocks: u32, file: u64) -> Option<(Place, Option<Record>)> {
    match step {
        Step::Record(frame, log, list) => {
            let count = blocks * FRAMES_OF_BLOCK as u32;
            let unit = place(frame.checked_rem(count)? >> log << log, 1 << log);
            let is_apart = |other: &Place| other.end() <= unit.frame as usize || unit.end() <= other.frame as usize;
            if !model.keys().all(|other| *other == unit || is_apart(other)) {
                return None;
            }
            let len = unit.bytes() as u32;
            let cut =
                list.iter().map(|range| range.start % len..(range.start % len + range.end - range.start).min(len));
            let (file, at) = model.get(&unit).map_or((file, file * u64::from(len)), |old| (old.file, old.at));
            Some((unit, Some(record(file, at, &cut.collect::<Vec<_>>()))))
        }
        Step::Erase(number) => Some((*model.keys().nth(number.checked_rem(model.len())?)?, None)),
        Step::Grow => None,
    }
}

/// What the model is after a step that was carried out as a whole.
fn after(model: &Model, (unit, record): &(Place, Option<Record>)) -> Model {
    let mut model = model.clone();
    match record.as_ref().filter(|record| !record.dirty.is_empty()) {
        Some(record) => model.insert(*unit, record.clone()),
        None => model.remove(unit),
    };
    model
}

/// Makes a cache over what the last one has left: the same frames, or the file.
fn restart(frames: Frames, file: Option<&PathBuf>) -> (Frames, Arena, Model) {
    let frames = match file {
        Some(path) => {
            drop(frames);
            open(path)
        }
        None => {
            frames.mapping().stores_left.store(u64::MAX, Ordering::Relaxed);
            frames
        }
    };
    let (arena, recovered) = Arena::adopt(frames.clone());
    assert_eq!(arena.dropped(), 0);
    check_sane(&arena, &recovered);
    let count = frames.mapping().load(UNITS_AT);
    assert_eq!((count, frames.is_dirty()), (recovered.len() as u64, count > 0));
    (frames, arena, recovered.into_iter().map(|unit| (unit.place, unit.record)).collect())
}

/// Carries out the steps. Each has the number of stores after which the process is killed in it, if
/// there is one.
fn run(steps: Vec<(Step, Option<u64>)>, file: Option<&PathBuf>) {
    let frames = file.map_or_else(|| Frames::anonymous(SETTINGS).unwrap(), |path| open(path));
    let (mut frames, mut arena, mut model) = restart(frames, None);
    for (file_number, (step, kill)) in (1..).zip(steps) {
        frames.mapping().stores_left.store(kill.unwrap_or(u64::MAX), Ordering::Relaxed);
        let blocks = arena.blocks();
        let planned = plan(&step, &model, blocks, file_number);
        let next = planned.as_ref().map_or(model.clone(), |planned| after(&model, planned));
        match (&planned, &step) {
            (Some((unit, record)), _) => arena.record(*unit, record.as_ref()),
            (None, Step::Grow) => assert_eq!(arena.grow().unwrap(), blocks < 8),
            (None, _) => {}
        }
        let was_cut = frames.mapping().stores_left.load(Ordering::Relaxed) == 0;
        let never_too_few = frames.mapping().load(UNITS_AT);
        if let (None, Step::Grow, false) = (&planned, &step, was_cut) {
            assert_eq!(arena.blocks(), (blocks + 2).min(8));
        }
        if kill.is_none() {
            model = next;
            continue;
        }
        drop(arena);
        let found;
        (frames, arena, found) = restart(frames, file);
        assert!(found == model || (found == next), "{found:?} is neither {model:?} nor {next:?}");
        assert!(was_cut || found == next, "{found:?} is not {next:?}");
        assert!(never_too_few >= found.len() as u64);
        assert!(arena.blocks() == blocks || arena.blocks() == blocks + 2);
        model = found;
    }
    drop(arena);
    assert_eq!(restart(frames, file).2, model);
}

fn steps() -> impl Strategy<Value = Vec<(Step, Option<u64>)>> {
    let kill = prop_oneof![3 => Just(None), 1 => (0..9u64).prop_map(Some)];
    prop::collection::vec((step(), kill), 0..80)
}

proptest! {
    #[test]
    fn a_new_cache_finds_what_was_recorded(steps in steps()) {
        run(steps, None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_new_process_finds_what_was_recorded(steps in steps()) {
        let _guard = no_new_process();
        let dir = folder();
        run(steps, Some(&dir.path().join("arena")));
    }
}

/// Each prefix of the stores of each kind of step, in turn.
#[test]
fn every_step_is_whole_wherever_it_is_cut() {
    let one = || (Step::Record(5, 0, vec![0..9]), None);
    let longer = || Step::Record(5, 0, vec![0..9, 20..30, 100..200]);
    let programs: [Vec<(Step, Option<u64>)>; 6] = [
        vec![(Step::Record(5, 0, vec![0..9]), None)],
        vec![one(), (longer(), None)],
        vec![one(), (longer(), None), (Step::Record(5, 0, vec![3..4]), None)],
        vec![one(), (Step::Erase(0), None)],
        vec![one(), (longer(), None), (Step::Erase(0), None)],
        vec![one(), (Step::Grow, None)],
    ];
    for program in programs {
        for kill in 0..9 {
            let mut steps = program.clone();
            steps.insert(0, (Step::Grow, None));
            steps.last_mut().unwrap().1 = Some(kill);
            // Life goes on, also in the frames that had the record.
            steps.extend([(Step::Erase(0), None), (Step::Record(5, 4, vec![7..8]), Some(100)), one()]);
            run(steps, None);
        }
    }
}
