//! What only a store of files has: a directory with names, files that are opened and closed, event
//! loops that share them.

use std::fs;
use std::sync::Arc;

use bmi::Memory;

use super::every_store::walk;
use super::modes::{MODES, each_mode};
use super::*;

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
                // A page of each loop's own, by direct I/O if that is possible.
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
