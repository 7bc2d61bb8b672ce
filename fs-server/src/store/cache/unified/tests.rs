//! Tests of the parts of a transfer, a repeated commit, and reading ahead.

use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bmi_cache::ArenaSettings;
use futures_util::FutureExt;
use futures_util::task::noop_waker_ref;

use super::*;
use crate::store::{FileStore, MemDisk};

const FILE: DatafileHandle = DatafileHandle(1);
const CACHE: u64 = 1 << 20;
const PARTS: usize = 100;

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(noop_waker_ref()))
}

/// Returns how often a future that waits for nothing was polled until its end.
fn polls(future: impl Future<Output = Result<(), FsError>>) -> usize {
    let mut future = pin!(future);
    for polls in 1.. {
        if let Poll::Ready(result) = poll(future.as_mut()) {
            result.unwrap();
            return polls;
        }
    }
    unreachable!("it ends")
}

fn unified(disk: u64) -> UnifiedStore<Rc<FileStore>, fn() -> u64> {
    let frames = Frames::anonymous(ArenaSettings::new(CACHE)).unwrap();
    let files = Rc::new(FileStore::in_memory(&MemDisk::new(disk)));
    UnifiedStore::new(files, frames, Settings::for_bytes(CACHE), || 0)
}

/// Regions that overlap are parts by themselves, and the cache has all of them at once.
#[test]
fn others_run_between_the_parts_of_a_list() {
    let store = unified(CACHE);
    let (regions, list) = ([Region::new(0, 8); PARTS], MemList::from(Memory::zeroed(8 * PARTS).unwrap()));
    assert_eq!(polls(store.create(FILE, 1)), 1);
    assert_eq!(polls(store.write(FILE, &regions, &list)), PARTS);
    assert_eq!(polls(store.read(FILE, &regions, &list)), PARTS);
}

/// Replays a bug: a repeated commit found the change still prepared, and then waited for
/// whoever used the datafile. Meanwhile the first commit carried the change out, and bytes were
/// written that the disk did not take. The repeated commit discarded them.
#[test]
fn a_repeated_commit_discards_nothing_that_was_written_while_it_waited() {
    const CHUNK: u64 = 64 << 10;
    let store = unified(CHUNK);
    let (at_start, beyond) = ([Region::new(0, 100)], [Region::new(CHUNK, 100)]);
    let list = |byte: u8| MemList::from(Memory::from(vec![byte; 100]));
    let (old, new) = (list(1), list(2));
    assert_eq!(polls(store.create(FILE, 1)), 1);
    assert_eq!(polls(store.write(FILE, &at_start, &old)), 1);
    assert_eq!(polls(store.sync(&[FILE])), 1);
    let lent = store.lend(FILE, &at_start, &AtOnce).now_or_never().unwrap().unwrap();
    assert_eq!(polls(store.behind().prepare_truncate(FILE, 10)), 1);
    let mut first = pin!(store.commit_truncate(FILE, 10, 10));
    let mut write = pin!(store.write(FILE, &beyond, &new));
    let mut again = pin!(store.commit_truncate(FILE, 10, 10));
    assert!(poll(first.as_mut()).is_pending());
    assert!(poll(write.as_mut()).is_pending());
    assert!(poll(again.as_mut()).is_pending());
    drop(lent);
    assert_eq!(poll(first), Poll::Ready(Ok(())));
    assert_eq!(poll(write), Poll::Ready(Ok(())));
    assert_eq!(poll(again), Poll::Ready(Ok(())));
    let refused = store.sync(&[FILE]).now_or_never().unwrap();
    assert_eq!(refused.map_err(|error| error.code), Err(ErrorCode::NoSpace), "the disk is full");
    let found = list(0);
    assert_eq!(polls(store.read(FILE, &beyond, &found)), 1);
    assert_eq!(found.to_vec(), new.to_vec());
}

#[test]
fn a_hole_is_not_read_from_the_cache() {
    let store = unified(CACHE);
    let (all, found) = ([Region::new(0, 200)], MemList::from(Memory::zeroed(200).unwrap()));
    assert_eq!(polls(store.create(FILE, 1)), 1);
    assert_eq!(polls(store.write(FILE, &all, &Memory::from(vec![1; 200]).all().into())), 1);
    assert_eq!(polls(store.allocate(FILE, Region::new(50, 100), Allocation::Hole)), 1);
    assert_eq!(polls(store.read(FILE, &all, &found)), 1);
    assert_eq!(found.to_vec(), [[1; 50], [0; 50], [0; 50], [1; 50]].concat());
}

/// Replays a bug: a reader was read ahead of past the end of its datafile. The zeros took up to
/// 4 MiB of the cache, in place of what others used.
#[test]
fn nothing_is_read_ahead_behind_the_end_of_a_datafile() {
    const UNIT: u64 = 64 << 10;
    const LEN: u64 = 20 * UNIT + 100;
    let frames = Frames::anonymous(ArenaSettings::new(64 * CACHE)).unwrap();
    let files = Rc::new(FileStore::in_memory(&MemDisk::default()));
    let store = UnifiedStore::new(files, frames, Settings::for_bytes(64 * CACHE), || 0);
    let list = MemList::from(Memory::zeroed(LEN as usize).unwrap());
    assert_eq!(polls(store.create(FILE, 1)), 1);
    assert_eq!(polls(store.behind().write(FILE, &[Region::new(0, LEN)], &list)), 1);
    // Without dirty bytes nobody sleeps.
    let mut tending = pin!(store.tend(&|_| Box::pin(std::future::pending())));
    for at in (0..LEN).step_by(UNIT as usize) {
        let part = MemList::from(Memory::zeroed(UNIT as usize).unwrap());
        assert_eq!(polls(store.read(FILE, &[Region::new(at, UNIT)], &part)), 1);
        assert!(poll(tending.as_mut()).is_pending());
    }
    let statistics = store.statistics();
    let counters = statistics.counters;
    assert!(counters.ahead_used > LEN / 2, "{counters:?}");
    assert_eq!((counters.filled, statistics.cached), (21 * UNIT, 21 * UNIT), "{counters:?}");
}
