//! Tests of the ring. Transfers from a pipe wait until something is written to it, as transfers
//! wait for a disk.

use std::io::{PipeWriter, Write, pipe};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Weak, mpsc};

use bmi::MemList;
use fs_proto::Region;
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::*;
use crate::store::open::OpenFile;
use crate::store::tests::modes::opened_ring;
use crate::store::transfer::jobs::jobs;
use crate::workers::Workers;

/// Longest wait for another thread. It is only reached by a test that fails.
const LONG: Duration = Duration::from_secs(60);

/// Runs a test with a ring that has some places. Where the kernel permits none, that is what is
/// tested.
fn with_ring(places: usize, test: impl AsyncFnOnce(Ring)) {
    if let Some(ring) = opened_ring(|| Ring::with_places(places)) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test(ring));
    }
}

fn open_file(file: impl Into<OwnedFd>) -> Arc<OpenFile> {
    Arc::new(OpenFile::new(Arc::new(File::from(file.into())), Weak::new()))
}

/// A pipe: its file, and the way to let readers go on.
fn stalled() -> (Arc<OpenFile>, PipeWriter) {
    let (reader, writer) = pipe().unwrap();
    (open_file(reader), writer)
}

fn course(direction: Direction, file: &Arc<OpenFile>, offset: u64, list: &MemList) -> Course {
    Course::new(direction, file.clone(), jobs(&[Region::new(offset, list.len() as u64)], list))
}

/// Makes a transfer on a ring.
async fn run(ring: &Ring, course: Course, keep: Arc<()>) -> Result<(), (u64, io::Error)> {
    let place = ring.place().await.unwrap();
    ring.run(place, course, keep).await.unwrap().result
}

async fn read(ring: &Ring, file: &Arc<OpenFile>, into: &Memory) {
    run(ring, course(Direction::Read, file, 0, &into.into()), Arc::default()).await.unwrap();
}

fn is_waiting<R>(future: &mut Pin<Box<impl Future<Output = R>>>) -> bool {
    future.as_mut().now_or_never().is_none()
}

#[test]
fn bytes_are_written_and_read() {
    with_ring(4, async |ring| {
        let file = open_file(tempfile::tempfile().unwrap());
        let memory = Memory::from((0..200u8).collect::<Vec<_>>());
        let list: MemList = [memory.slice(50, 30), memory.slice(0, 20)].into_iter().collect();
        run(&ring, course(Direction::Write, &file, 1000, &list), Arc::default()).await.unwrap();
        assert!(file.is_unwritten(), "it was changed");
        let into = Memory::from(vec![0xee; 100]);
        run(&ring, course(Direction::Read, &file, 990, &(&into).into()), Arc::default()).await.unwrap();
        let expected: Vec<u8> = [0; 10].into_iter().chain(50..80).chain(0..20).chain([0; 40]).collect();
        assert_eq!(into.to_vec(), expected, "with zeros behind the end");
    });
}

/// Many more transfers than places.
#[test]
fn transfers_wait_for_a_place_in_order() {
    with_ring(1, async |ring| {
        let (file, mut writer) = stalled();
        let memories: Vec<Memory> = (0..50).map(|_| Memory::from(vec![0])).collect();
        let mut all = Box::pin(join_all(memories.iter().map(|memory| read(&ring, &file, memory))));
        assert!(is_waiting(&mut all));
        assert_eq!((ring.0.places.available_permits(), lock(&ring.0.state).taken), (0, 1));
        writer.write_all(&(0..50).collect::<Vec<u8>>()).unwrap();
        all.await;
        let bytes: Vec<u8> = memories.iter().flat_map(Memory::to_vec).collect();
        assert_eq!(bytes, (0..50).collect::<Vec<u8>>());
        assert!(ring.wait_until_idle(LONG));
    });
}

#[test]
fn a_transfer_that_waits_stops_no_other() {
    with_ring(8, async |ring| {
        let (pipe, mut writer) = stalled();
        let memories: Vec<Memory> = (0..7).map(|_| Memory::from(vec![0])).collect();
        let mut stalls = Box::pin(join_all(memories.iter().map(|memory| read(&ring, &pipe, memory))));
        assert!(is_waiting(&mut stalls));
        let file = open_file(tempfile::tempfile().unwrap());
        for number in 0..100u8 {
            let list = MemList::from(vec![number; 100]);
            run(&ring, course(Direction::Write, &file, 0, &list), Arc::default()).await.unwrap();
        }
        assert!(is_waiting(&mut stalls) && !ring.wait_until_idle(Duration::ZERO));
        writer.write_all(&[7; 7]).unwrap();
        stalls.await;
        assert!(ring.wait_until_idle(LONG));
    });
}

/// A call that moves some of the bytes is followed by one for the rest.
#[test]
fn a_short_call_is_continued() {
    with_ring(2, async |ring| {
        let (file, mut writer) = stalled();
        let memory = Memory::from(vec![0xee; 10]);
        let mut reads = Box::pin(read(&ring, &file, &memory));
        assert!(is_waiting(&mut reads));
        for byte in 0..9 {
            writer.write_all(&[byte]).unwrap();
            // Until the ring has taken it: a pipe is read to its end before it counts as empty.
            while rustix::io::ioctl_fionread(&writer).unwrap() > 0 {
                std::thread::yield_now();
            }
            assert!(is_waiting(&mut reads));
        }
        drop(writer);
        reads.await;
        assert_eq!(memory.to_vec(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
    });
}

#[test]
fn memory_stays_until_the_end_though_nobody_waits() {
    with_ring(2, async |ring| {
        let (file, mut writer) = stalled();
        let (mut memory, keep) = (Memory::from(vec![0; 100]), Arc::new(()));
        {
            let mut reads = Box::pin(run(&ring, course(Direction::Read, &file, 0, &(&memory).into()), keep.clone()));
            assert!(is_waiting(&mut reads));
        }
        let (file, _) = (Arc::downgrade(&file), drop(file));
        assert!(memory.get_mut().is_none() && file.upgrade().is_some() && Arc::strong_count(&keep) == 2);
        assert!(!ring.wait_until_idle(Duration::ZERO));
        writer.write_all(&[5; 100]).unwrap();
        assert!(ring.wait_until_idle(LONG));
        assert_eq!(memory.get_mut().unwrap(), [5; 100]);
        assert!(file.upgrade().is_none() && Arc::strong_count(&keep) == 1);
    });
}

/// The thread goes on after the handle is gone, and ends when nothing is left to do.
#[test]
fn what_was_handed_over_is_done_after_the_end() {
    with_ring(2, async |ring| {
        let (file, mut writer) = stalled();
        let memories: Vec<Memory> = (0..2).map(|_| Memory::from(vec![0; 4])).collect();
        for memory in &memories {
            assert!(is_waiting(&mut Box::pin(read(&ring, &file, memory))), "the future is dropped");
        }
        let shared = ring.0.clone();
        drop(ring);
        assert!(!shared.wait_until_idle(Duration::ZERO));
        writer.write_all(b"donedone").unwrap();
        assert!(shared.wait_until_idle(LONG));
        assert!(memories.iter().all(|memory| memory.to_vec() == b"done"));
        let (shared, _) = (Arc::downgrade(&shared), drop(shared));
        let has_ended = (0..LONG.as_millis()).any(|_| {
            std::thread::park_timeout(RETRY);
            shared.strong_count() == 0
        });
        assert!(has_ended, "the thread has ended, and with it the ring");
    });
}

#[test]
fn a_file_that_nobody_waits_for_is_closed_by_a_worker() {
    with_ring(2, async |ring| {
        let (reader, mut writer) = pipe().unwrap();
        let workers = Arc::new(Workers::new("test", 1));
        let (go, gone) = mpsc::channel::<()>();
        workers.leave(move || gone.recv().unwrap_or_default());
        let file = OpenFile::new(Arc::new(File::from(OwnedFd::from(reader))), Arc::downgrade(&workers));
        let memory = Memory::from(vec![0]);
        {
            let (file, list) = (Arc::new(file), MemList::from(&memory));
            let transfer = course(Direction::Read, &file, 0, &list);
            drop(file);
            assert!(is_waiting(&mut Box::pin(run(&ring, transfer, Arc::default()))));
        }
        writer.write_all(&[1]).unwrap();
        // The thread of the ring is not used up by closing: it makes the next transfer.
        let next = open_file(tempfile::tempfile().unwrap());
        run(&ring, course(Direction::Write, &next, 0, &vec![1].into()), Arc::default()).await.unwrap();
        while memory.to_vec() == [0] {
            std::thread::yield_now();
        }
        assert!(writer.write_all(&[1]).is_ok(), "the other end is still open: the worker is busy");
        assert!(!ring.wait_until_idle(Duration::ZERO));
        drop(go);
        assert!(ring.wait_until_idle(LONG));
        assert!(writer.write_all(&[1]).is_err(), "it was closed");
    });
}

#[test]
fn an_error_says_how_far_the_transfer_came() {
    with_ring(2, async |ring| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 100]).unwrap();
        let file = open_file(File::open(&path).unwrap());
        let list = MemList::from(vec![1; 10]);
        let (moved, error) = run(&ring, course(Direction::Write, &file, 0, &list), Arc::default()).await.unwrap_err();
        assert_eq!((moved, error.raw_os_error()), (0, Some(libc::EBADF)), "it is open for reading only");
        let far = [Region::new(90, 5), Region::new(1 << 63, 5)];
        let transfer = Course::new(Direction::Read, file.clone(), jobs(&far, &list));
        let (moved, error) = run(&ring, transfer, Arc::default()).await.unwrap_err();
        assert_eq!((moved, error.kind()), (5, io::ErrorKind::FileTooLarge));
        assert_eq!(list.to_vec(), [7, 7, 7, 7, 7, 1, 1, 1, 1, 1]);
    });
}

#[test]
fn a_transfer_that_panics_fails_alone() {
    with_ring(2, async |ring| {
        let file = open_file(tempfile::tempfile().unwrap());
        // The file is empty, so zeros are written, which this memory does not permit.
        let read_only = Memory::from(Memory::from(vec![1; 8]).into_bytes());
        let place = ring.place().await.unwrap();
        let transfer = course(Direction::Read, &file, 0, &read_only.into());
        let error = ring.run(place, transfer, Arc::new(())).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Io);
        let memory = Memory::from(vec![1; 8]);
        read(&ring, &file, &memory).await;
        assert_eq!(memory.to_vec(), [0; 8]);
        assert!(ring.wait_until_idle(LONG), "the place is free");
    });
}

#[test]
fn a_ring_that_is_broken_takes_nothing_more() {
    with_ring(2, async |ring| {
        let file = open_file(tempfile::tempfile().unwrap());
        let place = ring.place().await.unwrap();
        ring.0.give_up(&io::Error::from_raw_os_error(libc::EFAULT));
        assert!(ring.place().await.is_none());
        let late = ring.run(place, course(Direction::Write, &file, 0, &vec![1].into()), Arc::new(())).await;
        assert_eq!(late.unwrap_err().code, ErrorCode::Io);
        assert!(ring.wait_until_idle(Duration::ZERO));
    });
}

/// Event loops on several threads use one ring.
#[test]
fn loops_share_a_ring() {
    let Some(ring) = opened_ring(|| Ring::with_places(3)) else { return };
    let file = open_file(tempfile::tempfile().unwrap());
    std::thread::scope(|scope| {
        for own in 0..4u64 {
            let (ring, file) = (&ring, &file);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    for round in 0..200u64 {
                        let (byte, offset) = ((own * 50 + round) as u8, own * 1000);
                        let list = MemList::from(vec![byte; 1000]);
                        run(ring, course(Direction::Write, file, offset, &list), Arc::default()).await.unwrap();
                        let into = Memory::from(vec![0xee; 1000]);
                        run(ring, course(Direction::Read, file, offset, &(&into).into()), Arc::default())
                            .await
                            .unwrap();
                        assert_eq!(into.to_vec(), vec![byte; 1000]);
                    }
                });
            });
        }
    });
}
