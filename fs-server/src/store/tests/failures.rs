//! Tests of a store of files whose disk fails.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use bmi_cache::{ArenaSettings, Frames, Settings};
use futures_util::FutureExt;

use super::FILE;
use super::modes::{Mode, disk_dir, placed};
use crate::store::disk::steps::injected::{self, Failing};
use crate::store::*;

/// The length of the datafiles: a page, which direct I/O may move, and a tail.
const LEN: usize = 4196;

/// Runs a future that waits for nothing: without a runtime a store does all its work at once.
fn run<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("it waits for nothing")
}

/// Runs `work` while the steps from the `first` one on fail.
fn failing<R>(first: u64, count: u64, error: i32, work: impl FnOnce() -> R) -> R {
    injected::fail(Some(Failing { first, count, error }));
    let result = work();
    injected::fail(None);
    result
}

/// Opens a store that keeps 256 files open.
fn open(mode: Mode, dir: &Path) -> FileStore {
    let store = mode.open(dir, 1000);
    if store.moves_directly() { store.keeping_open(512) } else { store.keeping_open(256) }
}

/// Runs a test with such a store that has some datafiles, and with a way to open it again.
fn with_store(mode: Mode, first: DatafileHandle, count: u32, test: impl FnOnce(FileStore, &dyn Fn() -> FileStore)) {
    let dir = disk_dir();
    let again = || open(mode, dir.path());
    let store = again();
    run(store.create(first, count)).unwrap();
    test(store, &again);
}

/// Runs a test with each way of moving bytes. Without a runtime the caller's thread makes all
/// calls, so no ring is used.
fn each(first: DatafileHandle, count: u32, test: impl Fn(FileStore, &dyn Fn() -> FileStore)) {
    [Mode::Cached, Mode::Threads].into_iter().for_each(|mode| with_store(mode, first, count, &test));
}

/// The steps of writing to a datafile for the first time, and of reading one whose file is not
/// open: the file is looked for, made, opened for direct transfers, and written in one or two
/// parts.
fn steps(store: &FileStore) -> (u64, u64) {
    if store.moves_directly() { (5, 2) } else { (3, 1) }
}

fn write(store: &FileStore, datafile: DatafileHandle, byte: u8) -> Result<(), FsError> {
    run(store.write(datafile, &[Region::new(0, LEN as u64)], &placed(0, &[byte; LEN])))
}

fn read(store: &FileStore, datafile: DatafileHandle) -> Result<Vec<u8>, FsError> {
    let list = placed(0, &[0xee; LEN]);
    run(store.read(datafile, &[Region::new(0, LEN as u64)], &list)).map(|()| list.to_vec())
}

fn sync(store: &FileStore, datafile: DatafileHandle) -> Result<(), FsError> {
    run(store.sync(&[datafile]))
}

/// Returns the errors of all operations that a failed sync forbids.
fn outcomes(store: &FileStore) -> Vec<Option<FsError>> {
    vec![
        read(store, FILE).err(),
        write(store, FILE, 9).err(),
        sync(store, FILE).err(),
        run(store.held(FILE)).err(),
        run(store.truncate(FILE, 1)).err(),
        run(store.prepare_truncate(FILE, 1)).err(),
    ]
}

fn has_failed(store: &FileStore) -> bool {
    store.failure().now_or_never().is_some()
}

/// Replays a bug: a datafile whose sync had failed was read, and synced without an error, although
/// the system had discarded what it could not write.
#[test]
fn a_datafile_whose_sync_failed_is_lost_until_it_is_removed() {
    for error in [libc::EIO, libc::ENOSPC] {
        each(FILE, 2, |store, again| {
            write(&store, FILE, 1).unwrap();
            let failed = failing(1, 1, error, || sync(&store, FILE)).unwrap_err();
            assert!(failed.code == ErrorCode::Io && failed.detail.contains("store it again"), "{failed}");
            for store in [&store, &again()] {
                for outcome in outcomes(store) {
                    let error = outcome.unwrap();
                    assert!(error.code == ErrorCode::Lost && error.detail.contains("the last sync of"), "{error}");
                }
                assert!(!has_failed(store));
                let other = DatafileHandle(FILE.0 + 1);
                write(store, other, 1).and_then(|()| sync(store, other)).unwrap();
            }
            run(store.remove(&[FILE])).unwrap();
            for store in [&store, &again()] {
                let error = read(store, FILE).unwrap_err();
                assert!(error.detail.contains("does not exist here"), "{error}");
            }
        });
    }
}

/// The steps of a first sync: the data, opening and syncing the subdirectory, and the catalogue's
/// write and sync.
#[test]
fn a_store_that_cannot_record_what_happened_has_failed() {
    // The step that fails, how many fail, whether the datafile is marked, and whether the store
    // has failed.
    let cases = [
        (1, 1, true, false),
        (1, 2, true, true),
        (1, 3, true, true),
        (2, 1, false, false),
        (3, 1, false, true),
        (4, 1, false, false),
        (5, 1, false, true),
    ];
    for (first, count, marked, ends) in cases {
        each(FILE, 1, |store, _| {
            write(&store, FILE, 1).unwrap();
            failing(first, count, libc::EIO, || sync(&store, FILE)).unwrap_err();
            let case = format!("step {first}, {count}");
            assert_eq!(has_failed(&store), ends, "{case}");
            if ends {
                let error = store.failure().now_or_never().unwrap();
                assert!(error.detail.contains("start the server again"), "{error}");
                assert!(
                    outcomes(&store).iter().all(|outcome| outcome.as_ref().unwrap().detail == error.detail),
                    "{case}"
                );
            } else if !marked {
                sync(&store, FILE).unwrap();
                assert_eq!(read(&store, FILE), Ok(vec![1; LEN]), "{case}");
            }
        });
    }
}

/// Replays a bug: with more files than can be open, an error of the system's writeback could be
/// gone with the descriptor, and the next sync succeeded.
#[test]
fn an_error_of_the_writeback_reaches_the_next_sync() {
    each(DatafileHandle(0), 300, |store, _| {
        let written = |raw: u64| write(&store, DatafileHandle(raw), 1);
        (0..256).try_for_each(written).unwrap();
        // 64 files are written before one of them is closed. That of the third one fails. Then the
        // next file is looked for, made, and written.
        failing(3, 1, libc::EIO, || written(256)).unwrap();
        (257..300).try_for_each(written).unwrap();
        for raw in 0..300 {
            let result = sync(&store, DatafileHandle(raw));
            assert_eq!(
                result.map_err(|error| error.code),
                if raw == 2 { Err(ErrorCode::Lost) } else { Ok(()) },
                "{raw}"
            );
        }
        // A file that was synced is closed without more ado.
        injected::fail(None);
        read(&store, DatafileHandle(0)).unwrap();
        assert_eq!(injected::count(), steps(&store).1, "it was opened");
    });
}

#[test]
fn an_error_of_writing_ahead_reaches_the_next_sync() {
    each(DatafileHandle(0), 300, |store, _| {
        let written = |raw: u64| write(&store, DatafileHandle(raw), 1);
        (0..200).try_for_each(written).unwrap();
        let work = store.write_ahead().unwrap();
        failing(3, 1, libc::EIO, work);
        injected::fail(None);
        (200..300).try_for_each(written).unwrap();
        assert_eq!(
            injected::count(),
            100 * steps(&store).0,
            "files were looked for, made and written to, and no request wrote out another"
        );
        for raw in 0..300 {
            let result = sync(&store, DatafileHandle(raw));
            assert_eq!(
                result.map_err(|error| error.code),
                if raw == 2 { Err(ErrorCode::Lost) } else { Ok(()) },
                "{raw}"
            );
        }
    });
}

#[test]
fn a_file_that_cannot_be_opened_is_no_failed_sync() {
    for error in [libc::EMFILE, libc::ENFILE] {
        each(FILE, 1, |store, again| {
            let busy = failing(1, 1, error, || write(&store, FILE, 1)).unwrap_err();
            assert!(busy.code == ErrorCode::Busy && busy.detail.contains("raise its limit"), "{busy}");
            write(&store, FILE, 1).unwrap();
            // The subdirectory, when its names are to be synced.
            assert_eq!(failing(2, 1, error, || sync(&store, FILE)).unwrap_err().code, ErrorCode::Busy);
            drop(store);
            let store = again();
            assert_eq!(failing(1, 1, error, || sync(&store, FILE)).unwrap_err().code, ErrorCode::Busy);
            sync(&store, FILE).unwrap();
            assert_eq!(read(&store, FILE), Ok(vec![1; LEN]));
        });
    }
}

/// Replays a bug: with many connections no descriptor was free, and requests failed although the
/// store kept files open that nobody used.
#[test]
fn unused_files_are_closed_when_no_descriptor_is_free() {
    let other = |raw: u64| DatafileHandle(FILE.0 + raw);
    for error in [libc::EMFILE, libc::ENFILE] {
        each(FILE, 60, |store, _| {
            (0..40).try_for_each(|raw| write(&store, other(raw), 1)).unwrap();
            // When the file is looked for. The others must be written before some are closed.
            failing(1, 1, error, || write(&store, other(40), 1)).unwrap();
            // When it is made.
            failing(2, 1, error, || write(&store, other(41), 1)).unwrap();
            // The subdirectory, when its names are to be synced, and when they are removed.
            failing(2, 1, error, || sync(&store, other(41))).unwrap();
            // The file to be removed is removed. Then its subdirectory is opened.
            failing(2, 1, error, || run(store.remove(&[other(41)]))).unwrap();
            assert_eq!(read(&store, other(41)).unwrap_err().code, ErrorCode::Lost);
            read(&store, other(0)).unwrap();
            failing(1, 1, error, || run(store.list(None, 1000))).unwrap();
            read(&store, other(0)).unwrap();
            let label = Label::new(fs_proto::ClusterId(1), fs_proto::Role::Iod(2), fs_proto::StoreId(3));
            failing(1, 1, error, || run(store.relabel(&label))).unwrap();
            for raw in 0..41 {
                sync(&store, other(raw)).unwrap();
                assert_eq!(read(&store, other(raw)), Ok(vec![1; LEN]), "{raw}");
            }
            // Files are closed until none is left.
            let none = failing(1, 1000, error, || write(&store, other(50), 1)).unwrap_err();
            assert!(none.code == ErrorCode::Busy && none.detail.contains("no file descriptor is free"), "{none}");
            write(&store, other(50), 1).unwrap();
            assert!(!has_failed(&store));
        });
    }
}

/// Replays a bug: the file of a datafile that could not be removed was closed, and an error of its
/// writeback with it.
#[test]
fn a_removal_that_fails_leaves_unsynced_data_noticed() {
    each(FILE, 1, |store, _| {
        write(&store, FILE, 1).and_then(|()| sync(&store, FILE)).unwrap();
        write(&store, FILE, 2).unwrap();
        // The file itself cannot be removed.
        failing(1, 1, libc::EIO, || run(store.remove(&[FILE]))).unwrap_err();
        injected::fail(None);
        sync(&store, FILE).unwrap();
        assert_eq!(injected::count(), 1, "its file was still open");
        assert_eq!(read(&store, FILE), Ok(vec![2; LEN]));
    });
}

/// Runs `test` in a directory on a file system in memory that has so many inodes, which only this
/// thread sees. Returns false if this user cannot mount one.
fn with_inodes(inodes: u32, test: impl FnOnce(&Path) + Send) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let target = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
    let options = std::ffi::CString::new(format!("size=16m,nr_inodes={inodes}")).unwrap();
    let run = || {
        let none = std::ptr::null();
        // SAFETY: from now on the thread has its own view of the mounts, and ends with this
        // function. All pointers are null or to strings that outlive the calls.
        let mounted = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
                && libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast()) == 0
        };
        if mounted {
            test(dir.path());
        }
        mounted
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Replays a bug: a change of length of a datafile that was never written was prepared without a
/// file, and without a free inode it could never be carried out.
#[test]
fn without_a_free_inode_a_change_of_length_is_refused_before_it_is_decided() {
    let tried = with_inodes(300, |dir| {
        let store = open(Mode::Cached, dir);
        let (empty, longer) = (FILE, DatafileHandle(FILE.0 + 1));
        run(store.create(FILE, 2)).unwrap();
        let filler = (0..1000).map(|number| dir.join(format!("filler{number}")));
        let fillers: Vec<_> = filler.take_while(|path| File::create(path).is_ok()).collect();
        assert!(!fillers.is_empty() && fillers.len() < 1000);
        // Nothing is needed for this.
        run(store.prepare_truncate(empty, 0)).unwrap();
        run(store.commit_truncate(empty, 0, 0)).unwrap();
        assert_eq!(run(store.size(empty)), Ok(0));
        assert_eq!(run(store.prepare_truncate(longer, 10)).unwrap_err().code, ErrorCode::NoSpace);
        assert_eq!(run(store.size(longer)), Ok(0), "it is served");
        fs::remove_file(&fillers[0]).unwrap();
        fs::remove_file(&fillers[1]).unwrap();
        run(store.prepare_truncate(longer, 10)).unwrap();
        drop(File::create(&fillers[0]));
        run(store.commit_truncate(longer, 10, 10)).unwrap();
        assert_eq!(run(store.size(longer)), Ok(10));
    });
    if !tried {
        println!("SKIPPED: this user cannot mount a file system with few inodes");
    }
}

/// Replays a bug: a length that no file can have was prepared, and could never be carried out.
#[test]
fn a_length_that_no_file_can_have_is_refused_before_it_is_decided() {
    let dir = disk_dir();
    let store = open(Mode::Cached, dir.path());
    run(store.create(FILE, 1)).unwrap();
    write(&store, FILE, 1).unwrap();
    let files = || fs::read_dir(dir.path()).unwrap().count();
    let before = files();
    let refused = |result: Result<(), FsError>| {
        assert_eq!(result.unwrap_err().code, ErrorCode::TooLarge);
        for store in [&store, &open(Mode::Cached, dir.path())] {
            assert_eq!((run(store.size(FILE)), read(store, FILE)), (Ok(LEN as u64), Ok(vec![1; LEN])));
        }
        assert_eq!(files(), before);
    };
    // The steps are to make a file and to set its length.
    let size = LEN as u64 + 1;
    refused(failing(2, 1, libc::EFBIG, || run(store.prepare_truncate(FILE, size))));
    // Where it is prepared, nobody sees it, and nothing has to be put back.
    run(store.prepare_truncate(FILE, size)).unwrap();
    run(store.cancel_truncates(&[])).unwrap();
    assert_eq!(run(store.size(FILE)), Ok(LEN as u64));
    let most = |size| File::create(dir.path().join("most")).unwrap().set_len(size).is_ok();
    let takes_all = most(100 << 40);
    fs::remove_file(dir.path().join("most")).unwrap();
    if takes_all {
        println!("SKIPPED in part: a file of 100 TB is possible in {}", dir.path().display());
    } else {
        refused(run(store.prepare_truncate(FILE, 100 << 40)));
    }
}

/// The commit fails although everything was tried. Then operations fail at once, with a reason, and
/// another length can be prepared.
#[test]
fn a_commit_that_fails_is_told_and_another_length_mends_the_datafile() {
    let dir = disk_dir();
    let store = open(Mode::Cached, dir.path());
    run(store.create(FILE, 1)).unwrap();
    write(&store, FILE, 1).unwrap();
    run(store.prepare_truncate(FILE, 10)).unwrap();
    assert_eq!(read(&store, FILE).unwrap_err().code, ErrorCode::Busy);
    let failed = failing(1, 1, libc::ENOSPC, || run(store.commit_truncate(FILE, 10, 10)));
    assert_eq!(failed.unwrap_err().code, ErrorCode::NoSpace);
    let error = read(&store, FILE).unwrap_err();
    assert!(error.code == ErrorCode::Unfinished && error.detail.contains("pvfs stat"), "{error}");
    run(store.prepare_truncate(FILE, 20)).unwrap();
    assert_eq!(read(&store, FILE).unwrap_err().code, ErrorCode::Busy);
    run(store.commit_truncate(FILE, 20, 20)).unwrap();
    assert_eq!(run(store.size(FILE)), Ok(20));
}

/// Replays a bug: a sync failed while a change of the datafile's length was prepared. The mark of
/// the change replaced that of the failed sync, and after the change the datafile was served.
#[test]
fn a_sync_that_fails_while_a_change_of_length_is_prepared_stays_final() {
    let dir = disk_dir();
    let store = open(Mode::Cached, dir.path());
    run(store.create(FILE, 1)).unwrap();
    write(&store, FILE, 1).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut preparing = std::pin::pin!(store.prepare_truncate(FILE, LEN as u64 + 1));
        assert!(preparing.as_mut().now_or_never().is_none(), "a worker makes the file durable, or tries the length");
        store.core.marks.set(FILE, crate::store::files::Mark::FailedSync).unwrap();
        assert_eq!(preparing.await.map_err(|error| error.code), Err(ErrorCode::Lost));
        store.commit_truncate(FILE, 10, 10).await.unwrap();
    });
    for store in [&store, &open(Mode::Cached, dir.path())] {
        assert_eq!(read(store, FILE).map_err(|error| error.code), Err(ErrorCode::Lost));
    }
}

/// Replays a bug: the mark of a datafile that was cut off went before the bytes behind the cut that
/// were only in the server's own cache. If the process was killed in between, the next one took
/// them over, and wrote them.
#[test]
fn truncated_bytes_do_not_come_back_wherever_the_process_ends() {
    const CACHE: u64 = 1 << 20;
    for step in 1.. {
        let dir = disk_dir();
        let frames = Frames::anonymous(ArenaSettings { bytes: CACHE, chunk: 64 << 10 }).unwrap();
        let files = || Arc::new(open(Mode::Cached, dir.path()));
        let open = || UnifiedStore::new(files(), frames.clone(), Settings::for_bytes(CACHE), || 0);
        let store = open();
        run(store.create(FILE, 1)).unwrap();
        run(store.write(FILE, &[Region::new(0, 1000)], &vec![1; 1000].into())).unwrap();
        run(store.sync(&[FILE])).unwrap();
        // This comes after the bytes were written for the preparation.
        run(store.write(FILE, &[Region::new(5, 2000)], &vec![2; 2000].into())).unwrap();
        run(store.behind().prepare_truncate(FILE, 10)).unwrap();
        let end = || failing(step, 1, injected::END, || run(store.commit_truncate(FILE, 10, 10)));
        let has_ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(end)).is_err();
        injected::fail(None);
        drop(store);
        let store = open();
        run(store.reconcile()).unwrap();
        // The manager repeats it.
        run(store.commit_truncate(FILE, 10, 10)).unwrap();
        run(store.flush_all()).unwrap();
        let list = placed(0, &[0xee; 100]);
        run(store.read(FILE, &[Region::new(0, 100)], &list)).unwrap();
        let expected = [vec![1; 5], vec![2; 5], vec![0; 90]].concat();
        assert_eq!((run(store.size(FILE)), list.to_vec()), (Ok(10), expected), "the process ends at step {step}");
        if !has_ended {
            assert!(step > 4, "{step} steps");
            return;
        }
    }
}
