//! The marks of a store of files: datafiles on which most operations must fail.
//!
//! **Why.** Two facts about a datafile must survive a restart, and the datafile itself cannot hold
//! them. Its last sync failed, so nobody knows what the disk has of it. Or it is about to be cut
//! off or extended, as a part of a file whose other parts are on other servers.
//!
//! **Invariants**
//! 1. A mark is durable before it is acknowledged, and so is its end.
//! 2. Operations obey a mark from the moment it is requested. An error leaves it in force, unless
//!    the record could not be written at all.
//! 3. There is room for [`ROOM`] marks on the disk from the beginning, so that a full disk prevents
//!    none of them.
//! 4. One change at a time is written and synced. So a sync that fails is noticed by the change
//!    that it concerns.
//! 5. A store without marks pays for a lookup with one load of a counter.
//!
//! **Layout** of `<dir>/marks`: blocks of 32 bytes, little-endian, which never cross a sector. A
//! block with a wrong check value or an unknown kind is free. The check value is the CRC-32 of the
//! other bytes.
//!
//! ```text
//!   ┌──────┬───────┬──────────┬──────┬──────────┐
//!   │ kind │ check │ datafile │ size │ zero     │    kind 1: its last sync failed
//!   │ 4    │ 4     │ 8        │ 8    │ 8        │    kind 2: it is about to get this size
//!   └──────┴───────┴──────────┴──────┴──────────┘
//! ```

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bmi::hooks::mutated;
use fs_proto::{DatafileHandle, ErrorCode, FsError};

use crate::lock::lock;
use crate::store::disk::steps;
use crate::store::disk::{DiskDir, DiskFile, read_file};

pub(in crate::store) const NAME: &str = "marks";
const BLOCK: usize = 32;
/// Marks for which the file has blocks from the beginning.
const ROOM: u64 = 1024;

/// A reason to refuse operations on a datafile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Mark {
    /// Its last sync failed.
    FailedSync,
    /// It is about to get this length, in bytes.
    Truncating(u64),
    /// As `Truncating`, and that has failed. On the disk it is the same.
    NotTruncated(u64),
}

impl Mark {
    /// Returns the error of an operation on a datafile with this mark.
    pub(in crate::store) fn refusal(self, datafile: DatafileHandle) -> FsError {
        match self {
            Mark::FailedSync => {
                let text = format!(
                    "the last sync of {datafile} failed, and the disk may not have what was written; remove the file and \
                     store it again"
                );
                FsError::new(ErrorCode::Lost, text)
            }
            Mark::Truncating(size) => {
                let text = format!("{datafile} is about to be truncated to {size} bytes");
                FsError::new(ErrorCode::Busy, text)
            }
            Mark::NotTruncated(size) => {
                let text = format!(
                    "{datafile} could not be truncated to {size} bytes, which is tried again; `pvfs stat` says why; truncate \
                     the file once more, or remove it"
                );
                FsError::new(ErrorCode::Unfinished, text)
            }
        }
    }

    /// Returns true if a change of length is prepared.
    pub(in crate::store) fn is_prepared(self) -> bool {
        matches!(self, Mark::Truncating(_) | Mark::NotTruncated(_))
    }

    /// Returns the mark when its change of length has failed.
    pub(in crate::store) fn failed(self) -> Mark {
        if let Mark::Truncating(size) = self { Mark::NotTruncated(size) } else { self }
    }

    fn encode(self, datafile: DatafileHandle) -> [u8; BLOCK] {
        let (kind, size) = match self {
            Mark::FailedSync => (1u32, 0),
            Mark::Truncating(size) | Mark::NotTruncated(size) => (2, size),
        };
        let mut bytes = [0; BLOCK];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&datafile.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&size.to_le_bytes());
        let check = check(&bytes);
        bytes[4..8].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; BLOCK]) -> Option<(DatafileHandle, Mark)> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(bytes[at..at + 4].try_into().ok()?));
        let mark = match half(0)? {
            1 => Mark::FailedSync,
            2 => Mark::Truncating(number(16)?),
            _ => return None,
        };
        (half(4)? == check(bytes) || mutated("store/torn-mark-believed")).then_some((DatafileHandle(number(8)?), mark))
    }
}

/// Returns the check value of a block.
fn check(bytes: &[u8; BLOCK]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..4]);
    hasher.update(&bytes[8..]);
    hasher.finalize()
}

/// Gives each whole block the right check value.
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(in crate::store) fn fuzz_repair(bytes: &mut [u8]) {
    for block in bytes.as_chunks_mut::<BLOCK>().0 {
        let check = check(block);
        block[4..8].copy_from_slice(&check.to_le_bytes());
    }
}

/// The record of the marks. Worker threads use it too.
#[derive(Debug)]
pub(in crate::store) struct Marks {
    /// Locked during a change.
    file: Mutex<Arc<dyn DiskFile>>,
    state: Mutex<State>,
    /// Number of marks.
    count: AtomicUsize,
    /// A sync has failed.
    failed: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Each with the number of its block.
    marks: BTreeMap<DatafileHandle, (Mark, u64)>,
    /// Numbers of free blocks.
    free: Vec<u64>,
    /// Number of blocks of the file.
    len: u64,
}

impl Marks {
    /// Opens the record of a directory, and creates it if it does not exist. The caller makes its
    /// name durable.
    pub(in crate::store) fn open(dir: &dyn DiskDir) -> io::Result<Marks> {
        let file = dir.open(NAME, true)?;
        let mut bytes = read_file(dir, NAME, file.held()?.size)?;
        let len = (bytes.len() as u64 / BLOCK as u64).max(ROOM);
        bytes.resize(len as usize * BLOCK, 0);
        let mut state = State { len, ..State::default() };
        let mut replaced = Vec::new();
        for (number, block) in (0..len).zip(bytes.chunks_exact(BLOCK)) {
            let mark = block.try_into().ok().and_then(Mark::decode);
            match mark {
                Some((datafile, mark)) => replaced.extend(state.marks.insert(datafile, (mark, number))),
                None => state.free.push(number),
            }
        }
        // A datafile has one mark. Another one would come back when that one is cleared.
        for (_, number) in replaced {
            bytes[number as usize * BLOCK..][..BLOCK].fill(0);
            state.free.push(number);
        }
        // What was read may be only in memory, if the last sync failed. And the blocks must exist.
        steps::write_all_at(&*file, &bytes, 0)?;
        steps::sync_file(&*file, true)?;
        // The first blocks are used first.
        state.free.reverse();
        let count = AtomicUsize::new(state.marks.len());
        Ok(Marks { file: Mutex::new(file), state: Mutex::new(state), count, failed: AtomicBool::new(false) })
    }

    /// Returns true if a sync has failed, so that nobody knows what the disk has of the record.
    pub(in crate::store) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    fn sync(&self, file: &dyn DiskFile) -> io::Result<()> {
        if self.has_failed() {
            return Err(io::Error::other("an earlier sync of the marks failed"));
        }
        steps::sync_file(file, false).inspect_err(|_| self.failed.store(true, Ordering::Release))
    }

    /// Returns the mark of a datafile.
    pub(in crate::store) fn find(&self, datafile: DatafileHandle) -> Option<Mark> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        lock(&self.state).marks.get(&datafile).map(|(mark, _)| *mark)
    }

    /// Returns the datafiles whose mark is `wanted`.
    pub(in crate::store) fn list(&self, wanted: impl Fn(Mark) -> bool) -> Vec<DatafileHandle> {
        let state = lock(&self.state);
        let marks = state.marks.iter().inspect(|_| bmi::hooks::step()).filter(|(_, (mark, _))| wanted(*mark));
        marks.map(|(datafile, _)| *datafile).collect()
    }

    /// Marks a datafile, durably. Replaces its mark, but not that of a failed sync.
    pub(in crate::store) fn set(&self, datafile: DatafileHandle, mark: Mark) -> io::Result<()> {
        let file = lock(&self.file);
        let (before, number) = {
            let mut state = lock(&self.state);
            let before = state.marks.get(&datafile).copied();
            let number = match before {
                Some((Mark::FailedSync, _)) => return Ok(()),
                Some((_, number)) => number,
                None => state.free.pop().unwrap_or_else(|| {
                    state.len += 1;
                    state.len - 1
                }),
            };
            state.marks.insert(datafile, (mark, number));
            self.count.store(state.marks.len(), Ordering::Release);
            (before, number)
        };
        let written = steps::write_all_at(&**file, &mark.encode(datafile), number * BLOCK as u64);
        if let Err(error) = written {
            let mut state = lock(&self.state);
            match before {
                Some(before) => drop(state.marks.insert(datafile, before)),
                None => {
                    state.marks.remove(&datafile);
                    state.free.push(number);
                }
            }
            self.count.store(state.marks.len(), Ordering::Release);
            return Err(error);
        }
        if mark.is_prepared() && mutated("store/prepared-truncate-lost-in-a-power-failure") {
            return Ok(());
        }
        self.sync(&**file)
    }

    /// Notes that the change of length for which a datafile is marked has failed.
    pub(super) fn note_failure(&self, datafile: DatafileHandle) {
        if let Some((mark, _)) = lock(&self.state).marks.get_mut(&datafile) {
            *mark = mark.failed();
        }
    }

    /// Takes those marks off these datafiles for which `wanted` is true, durably.
    pub(in crate::store) fn clear(
        &self,
        datafiles: impl IntoIterator<Item = DatafileHandle>,
        wanted: impl Fn(Mark) -> bool,
    ) -> io::Result<()> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let file = lock(&self.file);
        let marked: Vec<(DatafileHandle, u64)> = {
            let state = lock(&self.state);
            let found = datafiles.into_iter().filter_map(|datafile| {
                let (mark, number) = *state.marks.get(&datafile)?;
                wanted(mark).then_some((datafile, number))
            });
            found.collect()
        };
        if marked.is_empty() {
            return Ok(());
        }
        for (_, number) in &marked {
            steps::write_all_at(&**file, &[0; BLOCK], number * BLOCK as u64)?;
        }
        self.sync(&**file)?;
        let mut state = lock(&self.state);
        for (datafile, number) in marked {
            // It may be named twice.
            if state.marks.remove(&datafile).is_some() {
                state.free.push(number);
            }
        }
        self.count.store(state.marks.len(), Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::disk::SystemDir;

    fn opened(dir: &Path) -> Marks {
        Marks::open(&SystemDir::open(dir).unwrap()).unwrap()
    }

    const ONE: DatafileHandle = DatafileHandle(1);
    const TWO: DatafileHandle = DatafileHandle(2);

    #[test]
    fn a_mark_is_there_until_it_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let open = || opened(dir.path());
        let marks = open();
        assert_eq!(marks.find(ONE), None);
        marks.set(ONE, Mark::Truncating(7)).unwrap();
        marks.set(ONE, Mark::Truncating(8)).unwrap();
        marks.set(TWO, Mark::FailedSync).unwrap();
        for marks in [&marks, &open()] {
            assert_eq!(marks.find(ONE), Some(Mark::Truncating(8)));
            assert_eq!(marks.find(TWO), Some(Mark::FailedSync));
            assert_eq!(marks.find(DatafileHandle(3)), None);
        }
        marks.clear([ONE, TWO, ONE], |mark| mark == Mark::Truncating(8)).unwrap();
        for marks in [&marks, &open()] {
            assert_eq!((marks.find(ONE), marks.find(TWO)), (None, Some(Mark::FailedSync)));
        }
        marks.clear([TWO], |_| true).unwrap();
        assert_eq!((open().find(TWO), lock(&marks.state).free.len() as u64), (None, ROOM));
    }

    #[test]
    fn there_is_room_from_the_beginning_and_more_later() {
        let dir = tempfile::tempdir().unwrap();
        let marks = opened(dir.path());
        let len = || std::fs::metadata(dir.path().join(NAME)).unwrap().len();
        assert_eq!(len(), ROOM * BLOCK as u64);
        for raw in 0..ROOM {
            marks.set(DatafileHandle(raw), Mark::FailedSync).unwrap();
        }
        assert_eq!(len(), ROOM * BLOCK as u64);
        marks.set(DatafileHandle(ROOM), Mark::Truncating(1)).unwrap();
        let marks = opened(dir.path());
        assert_eq!(lock(&marks.state).marks.len() as u64, ROOM + 1);
    }

    /// A regression test. Of two blocks for one datafile only one was cleared, and the other came
    /// back at the next start.
    #[test]
    fn a_datafile_has_one_mark_also_in_a_damaged_record() {
        let dir = tempfile::tempdir().unwrap();
        let datafile = DatafileHandle(5);
        let blocks = [Mark::FailedSync.encode(datafile), Mark::Truncating(3).encode(datafile)];
        std::fs::write(dir.path().join(NAME), blocks.concat()).unwrap();
        let marks = opened(dir.path());
        assert_eq!(marks.find(datafile), Some(Mark::Truncating(3)));
        marks.clear([datafile], |_| true).unwrap();
        drop(marks);
        assert_eq!(opened(dir.path()).find(datafile), None, "it does not come back");
    }

    #[test]
    fn a_torn_block_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let marks = opened(dir.path());
        marks.set(ONE, Mark::Truncating(1)).unwrap();
        marks.set(TWO, Mark::Truncating(2)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..BLOCK {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let marks = opened(dir.path());
            assert_eq!((marks.find(ONE), marks.find(TWO)), (None, Some(Mark::Truncating(2))), "byte {at}");
        }
    }
}
