//! Runs a script on a store of files once for each step that it takes on the disk, with that step
//! failing. After a restart, or a power failure that takes everything unsynced, all that was
//! acknowledged is there, and nothing that was refused is half done.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use fs_proto::{ClusterId, Role, StoreId};
use futures_util::FutureExt;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use tempfile::TempDir;

use super::modes::{Mode, disk_dir, placed};
use crate::store::disk::steps::injected::{self, Failing};
use crate::store::*;

const SYNCED: &str = "user.pvfs.synced";

/// The length of what is written: a page, which is moved by one call, by direct I/O if that is
/// possible. A write that was refused is not half done then.
const LEN: usize = 4096;

/// A file as a disk has it: its bytes and its attribute.
type Stored = (Vec<u8>, Option<Vec<u8>>);

/// What the disk has for certain: the bytes of files by their inode, and the names in directories.
#[derive(Default)]
struct Image {
    files: BTreeMap<u64, Stored>,
    dirs: BTreeMap<PathBuf, BTreeMap<PathBuf, u64>>,
}

fn stored(path: &Path) -> Stored {
    let mut bytes = [0; 8];
    let attribute = getxattr(path, SYNCED, &mut bytes).ok().map(|len| bytes[..len].to_vec());
    (fs::read(path).unwrap(), attribute)
}

/// Returns the files in a directory, with their inodes.
fn names(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.is_file()).map(|path| (path.clone(), fs::metadata(path).unwrap().ino())).collect()
}

impl Image {
    /// Notes that a file or a directory was synced.
    fn note(&mut self, file: &File) {
        let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let metadata = file.metadata().unwrap();
        if metadata.is_dir() {
            let dir = fs::read_link(link).unwrap();
            let names = names(&dir);
            self.dirs.insert(dir, names);
        } else {
            self.files.insert(metadata.ino(), stored(&link));
        }
    }

    /// Makes the directories as the disk has them.
    fn power_fails(&mut self) {
        for (dir, kept) in std::mem::take(&mut self.dirs) {
            let found = names(&dir);
            for path in found.keys().filter(|path| !kept.contains_key(*path)) {
                fs::remove_file(path).unwrap();
            }
            for (path, inode) in kept {
                let (bytes, attribute) = self.files.get(&inode).cloned().unwrap_or_default();
                let _ = fs::remove_file(&path);
                fs::write(&path, bytes).unwrap();
                if let Some(attribute) = attribute {
                    setxattr(&path, SYNCED, &attribute, XattrFlags::empty()).unwrap();
                }
            }
        }
        self.files.clear();
    }
}

fn run<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("it waits for nothing")
}

/// The contents of a datafile: this byte, so often.
type Content = (u8, usize);

/// What is known of a datafile.
#[derive(Clone, Debug, Default)]
struct Known {
    /// It may be missing, because its creation was refused or it was removed.
    missing: bool,
    /// It must be missing.
    removed: bool,
    /// The contents that may be found after a power failure, and without one. The last one is that
    /// of the last change that was acknowledged.
    possible: Vec<Content>,
    /// One of its syncs was refused.
    doubtful: bool,
    /// It must be about to be truncated; it may be.
    prepared: (bool, bool),
}

/// How bytes are moved, and whether the store keeps checksums.
type Kind = (Mode, bool);

struct Script {
    mode: Mode,
    /// The store keeps checksums.
    summed: bool,
    dir: TempDir,
    store: Option<FileStore>,
    known: BTreeMap<u64, Known>,
    /// Labels that may be found, the last one that was acknowledged first.
    labels: Vec<Option<Label>>,
    refused: u32,
}

fn label(epoch: u64) -> Label {
    Label { epoch, ..Label::new(ClusterId(1), Role::Iod(0), StoreId(1)) }
}

impl Script {
    fn new((mode, summed): Kind) -> Script {
        // In memory, where there is such a file system: the image is the disk. There is direct I/O
        // only where there is a disk.
        let dir = match mode {
            Mode::Cached => tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap(),
            _ => disk_dir(),
        };
        Script { mode, summed, dir, store: None, known: BTreeMap::new(), labels: vec![None], refused: 0 }
    }

    /// Returns the store. Starts it anew if it has failed, or has not been started.
    fn store(&mut self) -> &FileStore {
        if self.store.as_ref().is_some_and(|store| store.failure().now_or_never().is_some()) {
            self.store = None;
        }
        let (path, mode, summed) = (self.dir.path().to_owned(), self.mode, self.summed);
        let open = || {
            let store = FileStore::open(&path, u64::MAX)?;
            if summed { store.checksums(true) } else { Ok(store) }
        };
        let refused = &mut self.refused;
        self.store.get_or_insert_with(|| {
            (0..3)
                .find_map(|_| open().inspect_err(|_| *refused += 1).ok())
                .expect("only one step fails")
                .direct_io(mode != Mode::Cached)
        })
    }

    fn did(&mut self, result: Result<(), FsError>) -> bool {
        self.refused += u32::from(result.is_err());
        result.is_ok()
    }

    fn create(&mut self, first: u64, count: u32) {
        let result = run(self.store().create(DatafileHandle(first), count));
        let missing = !self.did(result);
        for raw in first..first + u64::from(count) {
            self.known.insert(raw, Known { missing, possible: vec![(0, 0)], ..Known::default() });
        }
    }

    fn write(&mut self, raw: u64, byte: u8) {
        let result =
            run(self.store().write(DatafileHandle(raw), &[Region::new(0, LEN as u64)], &placed(0, &[byte; LEN])));
        let done = self.did(result);
        self.changed(raw, (byte, LEN), done);
    }

    /// Notes that a datafile may have these contents from now on, or has.
    fn changed(&mut self, raw: u64, content: Content, done: bool) {
        let possible = &mut self.known.get_mut(&raw).unwrap().possible;
        let at = if done { possible.len() } else { possible.len() - 1 };
        possible.insert(at, content);
    }

    fn settled(&mut self, raw: u64) {
        let known = self.known.get_mut(&raw).unwrap();
        known.possible = known.possible.split_off(known.possible.len() - 1);
    }

    fn sync(&mut self, all: &[u64]) {
        let datafiles: Vec<DatafileHandle> = all.iter().copied().map(DatafileHandle).collect();
        let result = run(self.store().sync(&datafiles));
        let done = self.did(result);
        for raw in all {
            match done {
                true => self.settled(*raw),
                false => self.known.get_mut(raw).unwrap().doubtful = true,
            }
        }
    }

    fn truncate(&mut self, raw: u64, size: usize) {
        let result = run(self.store().truncate(DatafileHandle(raw), size as u64));
        let done = self.did(result);
        self.cut(raw, size, done);
    }

    /// Carries out what was prepared. If nothing was, nothing happens.
    fn commit(&mut self, raw: u64, size: usize) {
        let result = run(self.store().commit_truncate(DatafileHandle(raw), size as u64, size as u64));
        let done = self.did(result);
        let known = self.known.get_mut(&raw).unwrap();
        let (prepared, may_be) = known.prepared;
        known.prepared = (false, may_be && !done);
        known.doubtful |= may_be && !done;
        if may_be {
            // If the preparation was refused, it may be recorded or not.
            self.cut(raw, size, done && prepared);
        }
        if prepared && done {
            self.settled(raw);
        }
    }

    fn cut(&mut self, raw: u64, size: usize, done: bool) {
        let &(byte, len) = self.known[&raw].possible.last().unwrap();
        assert!(size <= len || len == 0, "the script cuts off, or extends what is empty");
        self.changed(raw, (byte, size), done);
    }

    fn prepare(&mut self, raw: u64, size: usize) {
        let result = run(self.store().prepare_truncate(DatafileHandle(raw), size as u64));
        let done = self.did(result);
        self.known.get_mut(&raw).unwrap().prepared = (done, true);
    }

    fn cancel(&mut self, raw: u64) {
        let result = run(self.store().cancel_truncates(&[]));
        let done = self.did(result);
        self.known.get_mut(&raw).unwrap().prepared = (false, !done);
    }

    fn remove(&mut self, all: &[u64]) {
        let datafiles: Vec<DatafileHandle> = all.iter().copied().map(DatafileHandle).collect();
        let result = run(self.store().remove(&datafiles));
        let done = self.did(result);
        for raw in all {
            let known = self.known.get_mut(raw).unwrap();
            (known.missing, known.removed) = (true, done);
        }
    }

    fn relabel(&mut self, epoch: u64) {
        let result = run(self.store().relabel(&label(epoch)));
        if self.did(result) {
            self.labels.clear();
        }
        self.labels.push(Some(label(epoch)));
    }

    /// Makes the checksums. That it fails is nobody's error, but a sync that fails for it counts.
    fn settle(&mut self) {
        if !self.summed {
            return;
        }
        run(self.store().settle_all());
        let marked = |raw: &u64| self.store.as_ref()?.refusal(DatafileHandle(*raw));
        let marked = |raw: &u64| marked(raw).is_some_and(|error| error.code == ErrorCode::Lost);
        let marked: Vec<u64> = self.known.keys().copied().filter(marked).collect();
        marked.iter().for_each(|raw| self.known.get_mut(raw).unwrap().doubtful = true);
    }

    /// The script.
    fn play(&mut self) {
        self.relabel(1);
        self.create(1, 12);
        self.create(256, 4);
        for raw in [1, 2, 3, 256, 257] {
            self.write(raw, 10);
        }
        self.sync(&[1]);
        self.sync(&[2, 3, 256]);
        self.settle();
        self.write(1, 11);
        self.sync(&[1, 2]);
        self.write(2, 12);
        self.truncate(3, 50);
        self.sync(&[3]);
        self.settle();
        self.prepare(256, 20);
        self.commit(256, 20);
        self.prepare(4, 0);
        self.cancel(4);
        self.prepare(1, 30);
        self.relabel(2);
        self.remove(&[257, 5]);
        self.create(300, 3);
        // A restart of the program.
        self.store = None;
        self.write(3, 13);
        self.sync(&[3, 2]);
        self.write(300, 14);
        self.sync(&[300]);
        self.settle();
        self.write(300, 15);
        self.prepare(301, 0);
        self.remove(&[301, 2]);
    }

    /// Looks at everything after a restart.
    fn check(&mut self, case: &str) {
        injected::fail(None);
        self.store = None;
        let known = self.known.clone();
        let labels = self.labels.clone();
        let store = self.store();
        let found = store.label();
        assert!(labels.contains(&found), "{case}: {found:?}, {labels:?}");
        let mut marked = BTreeSet::new();
        for (raw, known) in &known {
            let datafile = DatafileHandle(*raw);
            let case = format!("{case}: {datafile}, {known:?}");
            let list = placed(0, &[0xee; 2 * LEN]);
            match run(store.read(datafile, &[Region::new(0, 2 * LEN as u64)], &list)) {
                Ok(()) => {
                    assert!(!known.removed && !known.prepared.0, "{case}");
                    let size = run(store.size(datafile)).unwrap() as usize;
                    let bytes = list.to_vec();
                    let content = (bytes[0], size);
                    assert!(known.possible.contains(&content) || (size == 0 && bytes[0] == 0), "{case}: {content:?}");
                    assert!(size > 0 || known.possible.iter().any(|(_, len)| *len == 0), "{case}: it is empty");
                    assert!(bytes[..size].iter().all(|byte| *byte == bytes[0]), "{case}: half done");
                    assert!(bytes[size..].iter().all(|byte| *byte == 0), "{case}");
                }
                Err(error) if error.detail.contains("the last sync of") => {
                    assert!(known.doubtful, "{case}");
                    marked.insert(datafile);
                }
                Err(error) if matches!(error.code, ErrorCode::Busy | ErrorCode::Unfinished) => {
                    assert!(known.prepared.1, "{case}: {error}");
                    match known.missing {
                        // Its removal was interrupted.
                        true => run(store.remove(&[datafile])).unwrap(),
                        false => {
                            let size = known.possible.last().unwrap().1 as u64;
                            run(store.commit_truncate(datafile, size, size)).unwrap();
                        }
                    }
                }
                Err(error) => assert!(known.missing && error.code == ErrorCode::Lost, "{case}: {error}"),
            }
        }
        // Everything can be used, or removed.
        let marked: Vec<DatafileHandle> = marked.into_iter().collect();
        run(store.remove(&marked)).unwrap();
        for raw in known.keys() {
            let datafile = DatafileHandle(*raw);
            match run(store.write(datafile, &[Region::new(0, 1)], &vec![1].into())) {
                Ok(()) => run(store.sync(&[datafile])).unwrap(),
                Err(error) => assert!(error.detail.contains("does not exist"), "{case}: {error}"),
            }
        }
        run(store.relabel(&label(9))).unwrap();
        self.check_count(case);
    }

    /// Compares the count of datafiles with a walk, unless the store has failed.
    fn check_count(&self, case: &str) {
        let Some(store) = self.store.as_ref().filter(|store| store.failure().now_or_never().is_none()) else { return };
        let (listed, more) = run(store.list(None, 1000)).unwrap();
        assert_eq!((run(store.stat()).unwrap().datafiles, more), (listed.len() as u64, false), "{case}");
    }
}

/// Runs the script with one step failing. Returns how many steps there were, how many requests were
/// refused, and the directory.
fn scenario(kind: Kind, failing: Option<Failing>, power_fails: bool, case: &str) -> (u64, u32, TempDir) {
    let image: Rc<RefCell<Image>> = Rc::default();
    let noted = image.clone();
    injected::observe(Some(Box::new(move |file| noted.borrow_mut().note(file))));
    let mut script = Script::new(kind);
    injected::fail(failing);
    script.play();
    let steps = injected::count();
    injected::fail(None);
    script.check_count(case);
    if power_fails {
        script.store = None;
        image.borrow_mut().power_fails();
    }
    let refused = script.refused;
    script.check(case);
    injected::observe(None);
    (steps, refused, script.dir)
}

/// Lets each step fail whose number has this remainder by two. Each half is a test of its own, so
/// that a slow disk is no reason to end it.
fn whatever_step_fails(kind: Kind, half: u64) {
    let (steps, refused, _) = scenario(kind, None, true, "nothing fails");
    let (again, refused_again, _) = scenario(kind, None, false, "nothing fails");
    assert_eq!([(steps, refused), (again, refused_again)], [(steps, 0); 2]);
    let (mut noticed, mut runs) = (0, 0);
    // They are removed together: for five seconds, ext4 looks at each inode that was removed before
    // it finds one for a new file.
    let mut dirs = Vec::new();
    for step in (1..=steps).filter(|step| step % 2 == half) {
        for (error, power_fails) in [(libc::EIO, true), (libc::ENOSPC, false)] {
            let case = format!("{kind:?}: step {step} of {steps}, error {error}, power failure: {power_fails}");
            let (_, refused, dir) = scenario(kind, Some(Failing { first: step, count: 1, error }), power_fails, &case);
            dirs.push(dir);
            noticed += u64::from(refused > 0);
            runs += 1;
        }
    }
    println!("{steps} steps; {noticed} of the {runs} runs refused something");
    // Nobody is told that checksums cannot be made.
    let least = if kind.1 { runs / 2 } else { runs * 9 / 10 };
    assert!(steps > 100 && noticed > least, "{steps} steps, {noticed} of {runs} noticed");
}

#[test]
fn whatever_odd_step_fails_what_was_acknowledged_is_stored() {
    whatever_step_fails((Mode::Cached, false), 1);
}

#[test]
fn whatever_even_step_fails_what_was_acknowledged_is_stored() {
    whatever_step_fails((Mode::Cached, false), 0);
}

#[test]
fn whatever_odd_step_fails_with_direct_io_what_was_acknowledged_is_stored() {
    whatever_step_fails((Mode::Threads, false), 1);
}

#[test]
fn whatever_even_step_fails_with_direct_io_what_was_acknowledged_is_stored() {
    whatever_step_fails((Mode::Threads, false), 0);
}

#[test]
fn whatever_odd_step_fails_with_checksums_what_was_acknowledged_is_stored() {
    whatever_step_fails((Mode::Cached, true), 1);
}

#[test]
fn whatever_even_step_fails_with_checksums_what_was_acknowledged_is_stored() {
    whatever_step_fails((Mode::Cached, true), 0);
}
