//! Tests of a store of files whose disk does not answer: all worker threads for what is short wait
//! for a latch, as they would for the disk.

use std::pin::{Pin, pin};
use std::sync::mpsc;

use futures_util::FutureExt;

use super::FILE;
use crate::store::*;

/// A datafile that has a file, which is not open.
const CLOSED: DatafileHandle = DatafileHandle(0xab_00ce);
/// A datafile that has no file.
const NEW: DatafileHandle = DatafileHandle(0xab_00cf);

/// More than there are threads.
const STALLED: usize = 100;

fn is_waiting<R>(future: &mut Pin<&mut impl Future<Output = R>>) -> bool {
    future.as_mut().now_or_never().is_none()
}

async fn write(store: &FileStore, datafile: DatafileHandle, byte: u8) -> Result<(), FsError> {
    store.write(datafile, &[Region::new(0, 100)], &vec![byte; 100].into()).await
}

async fn read(store: &FileStore, datafile: DatafileHandle) -> Result<Vec<u8>, FsError> {
    let list = MemList::from(vec![0xee; 100]);
    store.read(datafile, &[Region::new(0, 100)], &list).await.map(|()| list.to_vec())
}

/// Runs `test` with a store whose disk does not answer until the latch is dropped.
fn while_stalled(test: impl AsyncFnOnce(&FileStore, mpsc::Sender<()>)) {
    // On a disk, where there is one.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = FileStore::open(dir.path(), 1000).unwrap();
        store.create(FILE, 3).await.unwrap();
        for datafile in [FILE, CLOSED] {
            write(&store, datafile, 1).await.unwrap();
        }
        store.sync(&[FILE, CLOSED]).await.unwrap();
        drop(store);
        let store = FileStore::open(dir.path(), 1000).unwrap();
        assert!(!store.at_once.in_memory(), "the file system of the sources has no disk: nothing is tested here");
        assert_eq!(read(&store, FILE).await.unwrap(), [1; 100]);
        let (latch, stalled) = mpsc::channel::<()>();
        let stalled = std::sync::Arc::new(std::sync::Mutex::new(stalled));
        for _ in 0..STALLED {
            let stalled = stalled.clone();
            store.core.short.leave(move || {
                let _ = stalled.lock().unwrap().recv();
            });
        }
        test(&store, latch).await;
        assert!(store.wait_until_idle(std::time::Duration::from_secs(60)));
    });
}

#[test]
fn what_is_in_memory_needs_no_worker() {
    while_stalled(async |store, latch| {
        assert_eq!(store.size(FILE).now_or_never().unwrap(), Ok(100));
        assert_eq!(store.size(NEW).now_or_never().unwrap(), Ok(0));
        assert_eq!(read(store, NEW).now_or_never().unwrap().unwrap(), [0; 100]);
        assert_eq!(store.known_stat().unwrap().datafiles, 3);
        if store.at_once.knows_attributes() {
            assert_eq!(read(store, FILE).now_or_never().unwrap().unwrap(), [1; 100], "from the page cache");
            assert_eq!(store.held(FILE).now_or_never().unwrap().unwrap().size, 100);
        }
        drop(latch);
    });
}

#[test]
fn what_waits_for_the_disk_ends_when_it_answers() {
    while_stalled(async |store, latch| {
        let mut opened = pin!(read(store, CLOSED));
        let mut again = pin!(read(store, CLOSED));
        let mut made = pin!(write(store, NEW, 3));
        let mut asked = pin!(store.stat());
        assert!(is_waiting(&mut opened) && is_waiting(&mut again) && is_waiting(&mut made) && is_waiting(&mut asked));
        // What takes long has other threads.
        store.sync(&[FILE]).await.unwrap();
        drop(latch);
        assert_eq!((opened.await.unwrap(), again.await.unwrap()), (vec![1; 100], vec![1; 100]));
        made.await.unwrap();
        assert_eq!(asked.await.unwrap().datafiles, 3);
        assert_eq!(read(store, NEW).await.unwrap(), [3; 100]);
    });
}

/// A file that was opened before its datafile was removed, and is delivered after that, is not
/// used.
#[test]
fn a_datafile_that_is_removed_while_it_is_opened_is_gone() {
    while_stalled(async |store, latch| {
        let mut late = pin!(write(store, CLOSED, 2));
        assert!(is_waiting(&mut late));
        drop(latch);
        // The file may be open by now.
        store.core.short.run(|| ()).await.unwrap();
        store.remove(&[CLOSED]).await.unwrap();
        assert_eq!(late.await.unwrap_err().code, ErrorCode::Lost);
        assert_eq!(read(store, CLOSED).await.unwrap_err().code, ErrorCode::Lost);
        assert_eq!(store.stat().await.unwrap().datafiles, 2);
    });
}

/// The limit of open files is kept, although all are opened at the same time.
#[test]
fn many_files_are_opened_at_the_same_time() {
    while_stalled(async |store, latch| {
        drop(latch);
        let first = DatafileHandle(0x1_0000);
        store.create(first, 600).await.unwrap();
        for _ in 0..2 {
            let all = (0..600).map(|at| write(store, DatafileHandle(first.0 + at), at as u8));
            futures_util::future::join_all(all).await.into_iter().for_each(|result| result.unwrap());
        }
        let all: Vec<_> = (0..600).map(|at| DatafileHandle(first.0 + at)).collect();
        store.sync(&all).await.unwrap();
        for at in 0..600 {
            assert_eq!(read(store, DatafileHandle(first.0 + at)).await.unwrap(), [at as u8; 100]);
        }
    });
}
