//! The manager with threads, over a disk that blocks until the test lets it go on.

use std::io;
use std::sync::{Arc, Condvar, Mutex};

use fs_proto::{Caller, ManagerReply, Place};
use futures_util::FutureExt;
use futures_util::future::join_all;
use redb::StorageBackend;

use super::{mkdir, start};
use crate::manager::*;
use crate::store::{MemDatabase, MemDisk};

/// What a disk does with the next change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Latch {
    #[default]
    Open,
    /// Operations wait.
    Closed,
    /// An operation waits.
    Reached,
}

/// A disk whose reads and changes wait while its latch is closed.
#[derive(Clone, Debug)]
struct Stalling {
    disk: MemDisk,
    bytes: MemDatabase,
    latch: Arc<(Mutex<Latch>, Condvar)>,
    reached: Arc<Notify>,
}

impl Default for Stalling {
    fn default() -> Stalling {
        let disk = MemDisk::default();
        Stalling { bytes: disk.database(), disk, latch: Arc::default(), reached: Arc::default() }
    }
}

impl Stalling {
    fn close(&self) {
        *self.latch.0.lock().unwrap() = Latch::Closed;
    }

    fn open(&self) {
        *self.latch.0.lock().unwrap() = Latch::Open;
        self.latch.1.notify_all();
    }

    /// Waits until an operation waits.
    async fn reached(&self) {
        loop {
            let reached = self.reached.notified();
            if *self.latch.0.lock().unwrap() == Latch::Reached {
                return;
            }
            reached.await;
        }
    }

    /// Waits until an operation waits, which must be before `change` ends.
    async fn reached_before<R>(&self, change: impl Future<Output = R>) {
        tokio::select! {
            biased;
            _ = change => panic!("acknowledged before it was stored"),
            () = self.reached() => {}
        }
    }

    fn pass(&self) {
        let mut latch = self.latch.0.lock().unwrap();
        while *latch != Latch::Open {
            *latch = Latch::Reached;
            self.reached.notify_waiters();
            latch = self.latch.1.wait(latch).unwrap();
        }
    }
}

impl StorageBackend for Stalling {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.pass();
        self.bytes.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.pass();
        self.bytes.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.pass();
        self.bytes.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.pass();
        self.bytes.write(offset, data)
    }
}

/// Runs a test on a runtime with threads, beside the manager's work.
fn with_threads<F: Future>(manager: &Manager, test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        tokio::select! {
            biased;
            output = test => output,
            () = manager.work() => unreachable!("it never ends"),
        }
    })
}

async fn make(manager: &Manager, names: &[&str]) -> Vec<Result<(), ErrorCode>> {
    let client = |name: &str| u128::from(name.as_bytes()[0]);
    let one = |name| async move {
        let id = fs_proto::RequestId { client: client(name), seq: 1 };
        mkdir(manager, id, name).await.map_err(|error| error.code)
    };
    join_all(names.iter().map(|name| one(*name))).await
}

/// Looks something up. It must not wait.
fn look(manager: &Manager, path: &str) -> Result<(), ErrorCode> {
    let request = ManagerRequest::Lookup { place: Place::root(path), open: false };
    let found =
        manager.look(&Caller::ROOT, 9, &request, 1 << 20).now_or_never().expect("it does not wait for the disk");
    found.map(drop).map_err(|error| error.code)
}

/// Asks for what needs no disk, and for what was committed.
fn is_served(manager: &Manager, dirs: u64) {
    let ask =
        |request| manager.look(&Caller::ROOT, 9, &request, 1 << 20).now_or_never().expect("it does not wait").unwrap();
    assert_eq!(ask(ManagerRequest::Ping), ManagerReply::Done);
    assert!(matches!(ask(ManagerRequest::Cluster { first: 0 }), ManagerReply::Cluster(_)));
    let ManagerReply::Stat(stat) = ask(ManagerRequest::Statfs) else { panic!("statfs") };
    assert_eq!(stat.dirs, dirs);
    let list = ManagerRequest::Readdir {
        dir: fs_proto::DirHandle::ROOT,
        after: fs_proto::BString::default(),
        max: 100,
        attributes: false,
    };
    let ManagerReply::Entries { entries, .. } = ask(list) else { panic!("readdir") };
    assert_eq!(entries.len() as u64, dirs - 1);
}

#[test]
fn lookups_are_answered_while_a_commit_waits_for_the_disk() {
    let disk = Stalling::default();
    let manager = start(&disk, 1);
    with_threads(&manager, async {
        assert_eq!(make(&manager, &["old"]).await, [Ok(())]);
        disk.close();
        let mut first = Box::pin(make(&manager, &["a", "b", "c"]));
        disk.reached_before(&mut first).await;
        let mut second = Box::pin(make(&manager, &["d", "e"]));
        for _ in 0..10 {
            assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
            tokio::task::yield_now().await;
            is_served(&manager, 2);
            assert_eq!((look(&manager, "old"), look(&manager, "a")), (Ok(()), Err(ErrorCode::NotFound)));
        }
        disk.open();
        assert_eq!(first.await, [Ok(()); 3]);
        assert_eq!((look(&manager, "a"), look(&manager, "c")), (Ok(()), Ok(())), "what was acknowledged is seen");
        assert_eq!(second.await, [Ok(()); 2]);
        is_served(&manager, 7);
    });
}

#[test]
fn a_failed_commit_answers_its_own_changes_with_the_error() {
    let disk = Stalling::default();
    let manager = start(&disk, 1);
    with_threads(&manager, async {
        assert_eq!(make(&manager, &["old"]).await, [Ok(())]);
        disk.close();
        let mut failing = Box::pin(make(&manager, &["a", "b"]));
        disk.reached_before(&mut failing).await;
        let mut later = Box::pin(make(&manager, &["c", "d"]));
        assert!((&mut later).now_or_never().is_none());
        // One change of the disk fails, because it is full. Then there is room again.
        disk.disk.fail_at(Some((disk.disk.changes() + 1, 1, io::ErrorKind::StorageFull)));
        disk.open();
        assert_eq!(failing.await, [Err(ErrorCode::NoSpace); 2]);
        assert_eq!((look(&manager, "old"), look(&manager, "a")), (Ok(()), Err(ErrorCode::NotFound)));
        assert_eq!(later.await, [Ok(()), Ok(())]);
        assert!(manager.failure.borrow().is_none());
        is_served(&manager, 4);
        // A sync that fails ends the manager.
        disk.close();
        let mut failing = Box::pin(make(&manager, &["e", "f"]));
        disk.reached_before(&mut failing).await;
        let mut later = Box::pin(make(&manager, &["g"]));
        assert!((&mut later).now_or_never().is_none() && manager.failure.borrow().is_none());
        is_served(&manager, 4);
        disk.disk.fail_syncs(true);
        disk.open();
        assert_eq!(failing.await, [Err(ErrorCode::Unreachable); 2]);
        assert_eq!(later.await, [Err(ErrorCode::Unreachable)]);
        assert!(manager.failure.borrow().is_some());
    });
}

/// A database that is opened again reads its disk, which may stall too.
#[test]
fn lookups_are_answered_while_the_database_is_opened_again() {
    let disk = Stalling::default();
    let manager = start(&disk, 1);
    with_threads(&manager, async {
        assert_eq!(make(&manager, &["old"]).await, [Ok(())]);
        disk.disk.fail_at(Some((disk.disk.changes() + 1, 1, io::ErrorKind::StorageFull)));
        disk.close();
        let mut failing = Box::pin(make(&manager, &["a"]));
        // The change that fails, and those of opening the database, one after the other.
        let mut stalls = 0;
        let results = loop {
            tokio::select! {
                biased;
                results = &mut failing => break results,
                () = disk.reached() => {}
            }
            stalls += 1;
            is_served(&manager, 2);
            disk.open();
            tokio::task::yield_now().await;
            disk.close();
        };
        disk.open();
        assert_eq!(results, [Err(ErrorCode::NoSpace)]);
        assert!(stalls > 0);
        assert_eq!(make(&manager, &["b"]).await, [Ok(())]);
    });
}

#[test]
fn a_manager_that_stops_waits_for_its_commit() {
    let disk = Stalling::default();
    let manager = start(&disk, 1);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    disk.close();
    runtime.block_on(async {
        tokio::select! {
            biased;
            _ = make(&manager, &["a"]) => panic!("acknowledged before it was stored"),
            () = manager.work() => unreachable!("it never ends"),
            () = disk.reached() => {}
        }
    });
    let closed = disk.clone();
    let opener = std::thread::Builder::new().name("opener".to_owned()).spawn(move || closed.open()).unwrap();
    drop(runtime);
    // Nothing that happens from now on reaches the disk.
    let disk = Stalling { bytes: disk.disk.crash().database(), ..Stalling::default() };
    opener.join().unwrap();
    let manager = start(&disk, 2);
    assert_eq!(look(&manager, "a"), Ok(()));
}
