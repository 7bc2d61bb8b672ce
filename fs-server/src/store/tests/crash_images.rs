//! Cuts the power at each write and each sync of a script, and looks at what is left.
//!
//! **Procedure.** A script of operations runs on a store on a disk in memory, with and without
//! checksums and a cache in front of it. For every number *n*, the power fails at the *n*th change
//! of the disk. Of what was not synced, a drawn part survives, in any order and with torn sectors.
//! The store is opened from that, and the power fails once more at a drawn change of this start.
//! Then it is opened again.
//!
//! **Checks**
//! 1. What was synced is there. Every other byte is what it was at the last sync, what was written
//!    since, or zero.
//! 2. A datafile whose creation was acknowledged exists, and one whose removal was acknowledged
//!    does not.
//! 3. A prepared change of length that was acknowledged is still prepared.
//! 4. The label is the last one that was acknowledged, or the one that was being written.
//! 5. The store counts what it lists. All datafiles can be written, synced and removed.
//! 6. Nothing is reported as cut off, as damaged, or as lost by a failed sync: a disk without power
//!    has not failed.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::sync::Arc;

use bmi_cache::{ArenaSettings, Frames, Settings};
use bmi_sim::Rng;
use fs_proto::{Allocation, ClusterId, DatafileHandle, Role, StoreId};
use futures_util::FutureExt;

use crate::store::*;

/// Longest datafile, in bytes.
const LONGEST: usize = 6000;
/// Memory of the cache: two units.
const CACHE: u64 = 128 << 10;

/// A power failure that leaves a drawn part of what was not synced.
struct Drawn(Rng);

impl Fates for Drawn {
    fn keeps(&mut self) -> bool {
        self.0.below(2) == 0
    }

    fn content(&mut self, count: usize) -> usize {
        self.0.below(count as u64) as usize
    }

    fn sector(&mut self, old: &[u8], now: &mut [u8]) {
        let differs = |at: &usize| now[*at] != old[*at];
        let first = (0..now.len()).find(differs).unwrap_or(0);
        let last = (0..now.len()).rfind(differs).unwrap_or(0);
        // Nothing of it, all of it, or a part of what is new.
        let written = match self.0.below(3) {
            0 => 0,
            1 => now.len(),
            _ => first + self.0.below((last - first + 1) as u64) as usize,
        };
        now[written..].copy_from_slice(&old[written..]);
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// The first one, and how many.
    Create(u64, u32),
    /// An offset and a length.
    Write(u64, usize, usize),
    Sync(&'static [u64]),
    Prepare(u64, usize),
    /// Carries out what was prepared: where it is cut off, and the length that it gets.
    Commit(u64, usize, usize),
    Truncate(u64, usize),
    /// An offset and a length.
    Hole(u64, usize, usize),
    Cancel,
    Remove(&'static [u64]),
    Label(u64),
    /// Makes the checksums of all datafiles, and syncs those that need it.
    Settle,
    Restart,
}

/// The script. Handles from 256 on are in another subdirectory.
const SCRIPT: &[Op] = &[
    Op::Restart,
    Op::Create(1, 6),
    Op::Create(256, 4),
    Op::Write(1, 0, 3000),
    Op::Write(2, 100, 500),
    Op::Sync(&[1]),
    Op::Settle,
    Op::Label(1),
    // Across sectors that are synced, and those that are not.
    Op::Write(1, 1000, 1500),
    Op::Write(1, 1200, 4000),
    Op::Write(256, 0, 2000),
    Op::Sync(&[2, 256]),
    Op::Settle,
    Op::Label(2),
    Op::Hole(1, 700, 2000),
    Op::Prepare(256, 700),
    Op::Prepare(256, 800),
    Op::Commit(256, 700, 700),
    Op::Prepare(3, 0),
    Op::Cancel,
    Op::Write(3, 0, 600),
    Op::Settle,
    Op::Remove(&[2, 4]),
    Op::Restart,
    Op::Create(300, 3),
    Op::Write(300, 512, 1024),
    Op::Prepare(1, 5500),
    Op::Commit(1, 4800, 5500),
    Op::Write(256, 300, 900),
    Op::Sync(&[1, 256, 300, 3]),
    Op::Prepare(256, 200),
    Op::Label(3),
    Op::Create(400, 8),
    Op::Remove(&[300, 301]),
    Op::Write(3, 50, 700),
    Op::Settle,
    Op::Prepare(3, 1100),
    Op::Truncate(1, 5200),
    Op::Write(1, 5200, 500),
    Op::Sync(&[1]),
    Op::Settle,
    Op::Truncate(1, 100),
    Op::Settle,
    Op::Prepare(302, 1),
];

/// What is known of a datafile.
#[derive(Clone, Debug)]
struct Known {
    must_exist: bool,
    may_exist: bool,
    now: Vec<u8>,
    len: usize,
    /// The values that a byte may have after a power failure: a bit for each.
    may: Vec<u32>,
    lens: BTreeSet<usize>,
    must_be_prepared: bool,
    may_be_prepared: bool,
    /// A change that was prepared is being carried out: it ends with this length.
    committing: Option<usize>,
}

impl Known {
    fn new(exists: bool) -> Known {
        Known {
            must_exist: exists,
            may_exist: true,
            now: vec![0; LONGEST],
            len: 0,
            may: vec![1; LONGEST],
            lens: BTreeSet::from([0]),
            must_be_prepared: false,
            may_be_prepared: false,
            committing: None,
        }
    }

    fn settle(&mut self) {
        self.may.iter_mut().zip(&self.now).for_each(|(may, now)| *may = 1 << now);
        self.lens = BTreeSet::from([self.len]);
    }

    /// It may have this length from now on, with zeros behind it.
    fn cut(&mut self, size: usize) {
        self.now[size..].fill(0);
        self.may[size..].iter_mut().for_each(|may| *may |= 1);
        self.len = size;
        self.lens.insert(size);
    }
}

fn run<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("it waits for nothing")
}

fn label(epoch: u64) -> Label {
    Label { epoch, ..Label::new(ClusterId(1), Role::Iod(0), StoreId(1)) }
}

/// A store, and the files in it.
type Opened = (Arc<dyn DataStore>, Arc<FileStore>);

/// Opens the store on a disk. The memory of its cache is new, as after a power failure.
fn open(disk: &MemDisk, kind: Kind) -> Result<Opened, FsError> {
    let files = FileStore::on(Arc::new(disk.reopen()), "disk".into(), u64::MAX)?;
    let files = Arc::new(if kind == Kind::Plain { files } else { files.checksums(true)? });
    if kind != Kind::Cached {
        return Ok((files.clone(), files));
    }
    let frames = Frames::anonymous(ArenaSettings { bytes: CACHE, chunk: 64 << 10 }).unwrap();
    Ok((Arc::new(UnifiedStore::new(files.clone(), frames, Settings::for_bytes(CACHE), || 0)), files))
}

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    /// With checksums.
    Summed,
    /// With checksums, and a cache in front of it.
    Cached,
}

struct Run {
    disk: MemDisk,
    kind: Kind,
    store: Option<Opened>,
    known: BTreeMap<u64, Known>,
    labels: Vec<Option<Label>>,
    writes: u8,
}

impl Run {
    fn new(kind: Kind) -> Run {
        let disk = MemDisk::default().reordering();
        Run { disk, kind, store: None, known: BTreeMap::new(), labels: vec![None], writes: 0 }
    }

    fn store(&self) -> &dyn DataStore {
        &*self.store.as_ref().expect("it was started").0
    }

    fn known(&mut self, raw: u64) -> &mut Known {
        self.known.get_mut(&raw).unwrap()
    }

    /// Does a step of the script. Returns false if it failed, because the power has.
    fn step(&mut self, op: Op) -> bool {
        let handles = |all: &[u64]| -> Vec<DatafileHandle> { all.iter().copied().map(DatafileHandle).collect() };
        match op {
            Op::Create(first, count) => {
                let done = run(self.store().create(DatafileHandle(first), count)).is_ok();
                self.known.extend((first..first + u64::from(count)).map(|raw| (raw, Known::new(done))));
                done
            }
            Op::Write(raw, offset, len) => {
                self.writes += 1;
                let value = self.writes;
                let list = vec![value; len].into();
                let done =
                    run(self.store().write(DatafileHandle(raw), &[Region::new(offset as u64, len as u64)], &list));
                let known = self.known(raw);
                known.now[offset..offset + len].fill(value);
                known.may[offset..offset + len].iter_mut().for_each(|may| *may |= 1 << value);
                // It may be written in parts.
                known.lens.extend(known.len..=known.len.max(offset + len));
                known.len = known.len.max(offset + len);
                done.is_ok()
            }
            Op::Sync(all) => {
                let done = run(self.store().sync(&handles(all))).is_ok();
                all.iter().filter(|_| done).for_each(|raw| self.known(*raw).settle());
                done
            }
            Op::Prepare(raw, size) => {
                let done = run(self.store().prepare_truncate(DatafileHandle(raw), size as u64)).is_ok();
                let known = self.known(raw);
                (known.must_be_prepared, known.may_be_prepared) = (done, true);
                done
            }
            Op::Commit(raw, cut, size) => {
                let done = run(self.store().commit_truncate(DatafileHandle(raw), cut as u64, size as u64)).is_ok();
                let known = self.known(raw);
                known.cut(cut);
                known.cut(size);
                known.committing = (known.must_be_prepared && !done).then_some(size);
                known.must_be_prepared = false;
                if done {
                    known.settle();
                    known.may_be_prepared = false;
                }
                done
            }
            Op::Truncate(raw, size) => {
                let done = run(self.store().truncate(DatafileHandle(raw), size as u64)).is_ok();
                self.known(raw).cut(size);
                done
            }
            Op::Hole(raw, offset, len) => {
                let range = Region::new(offset as u64, len as u64);
                let done = run(self.store().allocate(DatafileHandle(raw), range, Allocation::Hole)).is_ok();
                let known = self.known(raw);
                let end = known.len.min(offset + len);
                known.now[offset..end].fill(0);
                known.may[offset..end].iter_mut().for_each(|may| *may |= 1);
                done
            }
            Op::Cancel => {
                let done = run(self.store().cancel_truncates(&[])).is_ok();
                for known in self.known.values_mut() {
                    known.must_be_prepared = false;
                    known.may_be_prepared &= !done;
                }
                done
            }
            Op::Remove(all) => {
                let done = run(self.store().remove(&handles(all))).is_ok();
                for raw in all {
                    let known = self.known(*raw);
                    (known.must_exist, known.may_exist) = (false, !done);
                    known.must_be_prepared = false;
                }
                done
            }
            Op::Label(epoch) => {
                let done = run(self.store().relabel(&label(epoch))).is_ok();
                if done {
                    self.labels.clear();
                }
                self.labels.push(Some(label(epoch)));
                done
            }
            Op::Settle => {
                run(self.store.as_ref().expect("it was started").1.settle_all());
                // It ends nothing that fails: the power may be gone.
                !self.disk.is_cut_off()
            }
            Op::Restart => {
                // The cache writes everything, as one does before it ends.
                let all: Vec<u64> =
                    self.known.iter().filter(|(_, known)| known.must_exist).map(|(raw, _)| *raw).collect();
                let cached = self.kind == Kind::Cached;
                let done = !cached || all.is_empty() || run(self.store().sync(&handles(&all))).is_ok();
                if done && cached {
                    all.iter().for_each(|raw| self.known(*raw).settle());
                }
                match open(&self.disk, self.kind) {
                    Ok(store) => {
                        self.store = Some(store);
                        done
                    }
                    Err(_) => false,
                }
            }
        }
    }

    /// Looks at everything in a store that was opened after the power had failed.
    fn check(mut self, case: &str) {
        let found = self.store().label();
        assert!(self.labels.contains(&found), "{case}: {found:?}, {:?}", self.labels);
        for (raw, known) in &self.known {
            let refusal = self.store().refusal(DatafileHandle(*raw));
            let is_prepared = refusal.as_ref().is_some_and(|error| error.code == ErrorCode::Busy);
            let may_be = if is_prepared { known.may_be_prepared } else { !known.must_be_prepared };
            assert!(refusal.is_none() || is_prepared, "{case}: datafile {raw}: {refusal:?}");
            assert!(may_be, "{case}: datafile {raw}: a change of length is prepared: {is_prepared}");
            if let (Some(size), false) = (known.committing, is_prepared) {
                assert_eq!(run(self.store().size(DatafileHandle(*raw))), Ok(size as u64), "{case}: datafile {raw}");
            }
        }
        let (listed, more) = run(self.store().list(None, 1000)).unwrap();
        assert_eq!((run(self.store().stat()).unwrap().datafiles, more), (listed.len() as u64, false), "{case}");
        for (raw, known) in &self.known {
            let is_listed = listed.contains(&DatafileHandle(*raw));
            assert!(if is_listed { known.may_exist } else { !known.must_exist }, "{case}: {raw}: listed: {is_listed}");
        }
        for raw in (0..512).filter(|raw| !self.known.contains_key(raw)) {
            let refusal = self.store().refusal(DatafileHandle(raw));
            assert!(refusal.is_none(), "{case}: datafile {raw} was never heard of: {refusal:?}");
        }
        run(self.store().cancel_truncates(&[])).unwrap();
        for (raw, known) in std::mem::take(&mut self.known) {
            let (datafile, case) = (DatafileHandle(raw), format!("{case}: datafile {raw}"));
            let read = |store: &dyn DataStore| {
                let list: MemList = vec![0xee; LONGEST].into();
                run(store.read(datafile, &[Region::new(0, LONGEST as u64)], &list)).map(|()| list.to_vec())
            };
            let result = read(self.store());
            match result {
                Ok(bytes) => {
                    assert!(known.may_exist, "{case}: it was removed");
                    let size = run(self.store().size(datafile)).unwrap() as usize;
                    assert!(known.lens.contains(&size), "{case}: {size} bytes, not {:?}", known.lens);
                    for (at, byte) in bytes.iter().enumerate() {
                        let may = if at < size { known.may[at] } else { 1 };
                        let is_right = may.checked_shr((*byte).into()).is_some_and(|may| may & 1 == 1);
                        assert!(is_right, "{case}: byte {at} of {size} is {byte}, not one of {may:#b}");
                    }
                    run(self.store().write(datafile, &[Region::new(7, 1)], &vec![1].into())).unwrap();
                    run(self.store().sync(&[datafile])).unwrap();
                }
                Err(error) => {
                    assert!(!known.must_exist && error.detail.contains("does not exist"), "{case}: {error}");
                }
            }
            run(self.store().remove(&[datafile])).unwrap();
            assert_eq!(read(self.store()).unwrap_err().code, ErrorCode::Lost, "{case}");
        }
        run(self.store().relabel(&label(9))).unwrap();
        let (after, _) = open(&self.disk.crash(), self.kind).unwrap();
        assert_eq!(run(after.list(None, 1000)), Ok((Vec::new(), false)), "{case}: what was removed is back");
        assert_eq!(after.label(), Some(label(9)), "{case}");
    }
}

/// Returns a hash of what a disk has.
fn digest(disk: &MemDisk) -> u64 {
    let mut hasher = DefaultHasher::new();
    disk.visit(|name, bytes, note| {
        hasher.write(name.as_bytes());
        hasher.write(bytes);
        hasher.write_u64(note);
    });
    hasher.finish()
}

/// Cuts the power `draws` times at each change. Returns the number of images that differ.
fn images(kind: Kind, draws: u64) -> usize {
    let mut images = BTreeSet::new();
    for cut in 1.. {
        for draw in 0..draws {
            let case = format!("{kind:?}, change {cut}, draw {draw}");
            let mut fates = Drawn(Rng::new(cut << 32 | draw));
            let mut play = Run::new(kind);
            play.disk.cut_off(Some(cut as u32));
            let whole = SCRIPT.iter().all(|op| play.step(*op));
            assert!(whole || play.disk.is_cut_off(), "{case}: an error before the power failed");
            if whole {
                return images.len();
            }
            play.disk.power_fails(&mut fates);
            images.insert(digest(&play.disk));
            // The start fails as well, sooner or later.
            play.disk.cut_off(Some(1 + fates.0.below(10) as u32));
            let started = open(&play.disk, kind);
            assert!(started.is_ok() || play.disk.is_cut_off(), "{case}: it does not start");
            drop(started);
            play.disk.power_fails(&mut fates);
            images.insert(digest(&play.disk));
            play.store = Some(open(&play.disk, kind).unwrap_or_else(|error| panic!("{case}: {error}")));
            play.check(&case);
        }
    }
    unreachable!("the script ends")
}

fn check(kind: Kind) {
    let is_full = std::env::var_os("BMI_FULL").is_some();
    let (draws, least) = match (is_full, kind) {
        (false, _) => (4, 250),
        (true, Kind::Plain | Kind::Summed) => (130, 8000),
        (true, Kind::Cached) => (90, 2000),
    };
    let count = images(kind, draws);
    println!("{count} images that differ");
    assert!(count >= least, "{count} images");
}

#[test]
fn what_was_synced_survives_a_power_failure_at_any_change() {
    check(Kind::Plain);
}

#[test]
fn what_was_synced_survives_a_power_failure_at_any_change_with_its_checksums() {
    check(Kind::Summed);
}

#[test]
fn what_was_synced_survives_a_power_failure_at_any_change_behind_a_cache() {
    check(Kind::Cached);
}
