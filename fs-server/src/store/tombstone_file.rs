//! Keeps the recently removed datafiles on disk, so that a restarted server still rejects writes to
//! them.
//!
//! **Layout**: `<dir>/removed` has a handle of eight bytes, little-endian, for each removal, the
//! latest at the end. Only the last [`TombstoneSet::KEPT`] count. When there are four times as
//! many, the file is rewritten. An incomplete handle at the end is from a write that was cut off.
//!
//! **Why errors do not stop a removal.** On a full disk, removing is what makes room. A removal
//! that is not recorded has a risk: a client with an old layout can create the datafile again, and
//! nothing removes it any more.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use fs_proto::DatafileHandle;

use super::TombstoneSet;

const NAME: &str = "removed";
/// Size of a handle, in bytes.
const ROW: usize = 8;

/// The file. Worker threads use it, one at a time.
#[derive(Debug)]
pub(super) struct TombstoneFile {
    dir: PathBuf,
    keep: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// Number of handles in the file.
    rows: usize,
    last: VecDeque<u64>,
}

impl TombstoneFile {
    /// Opens the file in `dir`, and creates it if it does not exist. Also returns the set of
    /// handles in it.
    pub(super) fn open(dir: &Path) -> io::Result<(TombstoneFile, TombstoneSet)> {
        let tombstone_file = TombstoneFile::open_keeping(dir, TombstoneSet::KEPT)?;
        let mut removed = TombstoneSet::default();
        tombstone_file.with(|state| state.last.iter().for_each(|handle| removed.bury(DatafileHandle(*handle))));
        Ok((tombstone_file, removed))
    }

    fn open_keeping(dir: &Path, keep: usize) -> io::Result<TombstoneFile> {
        let bytes = match fs::read(dir.join(NAME)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            result => result?,
        };
        let (rows, tail) = bytes.as_chunks::<ROW>();
        let last = rows[rows.len().saturating_sub(keep)..].iter().map(|row| u64::from_le_bytes(*row)).collect();
        let file = OpenOptions::new().append(true).create(true).open(dir.join(NAME))?;
        if !tail.is_empty() {
            file.set_len((rows.len() * ROW) as u64)?;
        }
        Ok(TombstoneFile { dir: dir.to_owned(), keep, state: Mutex::new(State { file, rows: rows.len(), last }) })
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records a removal, durably. Call it before the datafile is removed.
    pub(super) fn bury(&self, datafile: DatafileHandle) -> io::Result<()> {
        self.with(|state| {
            state.last.push_back(datafile.0);
            if state.last.len() > self.keep {
                state.last.pop_front();
            }
            if state.rows >= self.keep * 4 {
                return self.write_anew(state);
            }
            state.file.write_all(&datafile.0.to_le_bytes())?;
            state.rows += 1;
            state.file.sync_data()
        })
    }

    fn write_anew(&self, state: &mut State) -> io::Result<()> {
        let new = self.dir.join("removed.new");
        let bytes: Vec<u8> = state.last.iter().flat_map(|handle| handle.to_le_bytes()).collect();
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&new, self.dir.join(NAME))?;
        state.file = OpenOptions::new().append(true).open(self.dir.join(NAME))?;
        state.rows = state.last.len();
        File::open(&self.dir)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(tombstone_file: &TombstoneFile) -> Vec<u64> {
        tombstone_file.with(|state| state.last.iter().copied().collect())
    }

    #[test]
    fn the_last_ones_are_kept_and_the_file_stays_small() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..5 {
            let tombstone_file = TombstoneFile::open_keeping(dir.path(), 4).unwrap();
            for handle in 0..10 {
                tombstone_file.bury(DatafileHandle(round * 10 + handle)).unwrap();
                assert!(fs::metadata(dir.path().join(NAME)).unwrap().len() <= 16 * 8);
            }
            let expected: Vec<u64> = (round * 10 + 6..round * 10 + 10).collect();
            assert_eq!(last(&tombstone_file), expected);
            assert_eq!(last(&TombstoneFile::open_keeping(dir.path(), 4).unwrap()), expected);
        }
    }

    #[test]
    fn a_write_that_was_cut_off_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        TombstoneFile::open_keeping(dir.path(), 4).unwrap().bury(DatafileHandle(7)).unwrap();
        OpenOptions::new().append(true).open(dir.path().join(NAME)).unwrap().write_all(&[1, 2, 3]).unwrap();
        let tombstone_file = TombstoneFile::open_keeping(dir.path(), 4).unwrap();
        tombstone_file.bury(DatafileHandle(8)).unwrap();
        assert_eq!(last(&TombstoneFile::open_keeping(dir.path(), 4).unwrap()), [7, 8]);
    }
}
