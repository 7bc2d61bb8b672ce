//! The datafiles of a store of files that were created and never written: they have no file yet.
//!
//! **Why.** The manager lets datafiles be created long before they are used, many at a time, and
//! most small files use one of several. A file for each of them costs more than all the rest of a
//! create. So `create` records a range here, with one write and one sync. The first write makes the
//! file, and the first sync takes the datafile off this record. From then on a missing file is an
//! error. Before that, nobody was promised that anything survives.
//!
//! **Number of datafiles.** A datafile has a file, or it is on the record, or both. So the record
//! also counts the files: it knows, in memory, which datafiles on it have one, and how many files
//! there are besides. The files are counted when the store is opened. What other programs add or
//! remove later is noticed at the next start.
//!
//! **Invariants**
//! 1. A datafile is taken off only when the name of its file is durable, or when it is removed.
//! 2. A block is written within one sector, and the disk writes a sector as a whole or not at all,
//!    as for the marks (`marks.rs`). So after a power failure a block that was used again has its
//!    old content or its new one, never the header of one with bits of the other. The check value
//!    covers only the header, and could not tell. Older directories have blocks that cross a
//!    sector. They are read, and datafiles are taken off them one byte at a time, but they are not
//!    used again.
//! 3. One sync at a time: the system reports a failure only once, and whoever waits for a sync must
//!    learn of it.
//! 4. Whoever takes a datafile off, or finds it off, learns of success only when that is durable.
//! 5. The state is never locked while anything waits for the disk, because an event loop looks at
//!    it. Files are made, and taken off the record, one at a time (`changing`).
//! 6. The number of datafiles is exact whenever no change is in progress.
//! 7. After a failed sync no change succeeds. The next start writes again what it reads, because
//!    that may be only in the system's memory.
//!
//! **Layout:** `block.rs`.

mod block;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use fs_proto::DatafileHandle;

#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(in crate::store) use self::block::fuzz_repair;
use self::block::{BITS, BLOCK, Block, HEADER, crosses};
use crate::lock::lock;
use crate::store::disk::steps;
use crate::store::disk::{DiskDir, DiskFile, read_file};

pub(in crate::store) const NAME: &str = "catalogue";

/// The record. Worker threads use it too.
#[derive(Debug)]
pub(in crate::store) struct Catalogue {
    file: Arc<dyn DiskFile>,
    state: Mutex<State>,
    /// Held while a file is made, or datafiles are taken off. Only worker threads take it.
    changing: Mutex<()>,
    /// Held during a sync. True if one has failed.
    failed: Mutex<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// By first handle.
    blocks: BTreeMap<u64, Block>,
    /// Numbers of blocks of the file that are free.
    free: Vec<u64>,
    /// Number of blocks of the file.
    len: u64,
    /// Number of datafiles on the record.
    new: u64,
    /// Number of files of datafiles that are not on it.
    files: u64,
    /// Number of times that a datafile was taken off, and how many of them are durable.
    taken_off: u64,
    durable: u64,
    /// The highest handle so far, of those on the record and those that have a file.
    highest: u64,
}

impl State {
    /// Returns true if a block has handles from `first` to `last`.
    fn overlaps(&self, first: u64, last: u64) -> bool {
        self.blocks.range(..=last).next_back().is_some_and(|(start, block)| block.last(*start) >= first)
    }

    /// Returns a number for a new block.
    fn allocate(&mut self) -> u64 {
        self.free.pop().unwrap_or_else(|| {
            // What is left out is zero in the file, and no block.
            let number = (self.len..).find(|number| !crosses(*number)).expect("most numbers do not cross");
            self.len = number + 1;
            number
        })
    }

    /// Notes that a number has no block any more.
    fn release(&mut self, number: u64) {
        if !crosses(number) {
            self.free.push(number);
        }
    }

    fn insert(&mut self, first: u64, block: Block) {
        self.new += block.len();
        self.highest = self.highest.max(block.last(first));
        self.blocks.insert(first, block);
    }

    /// Returns the block of a handle, its first handle, and the place of the handle's bit.
    fn find(&mut self, handle: u64) -> Option<(u64, &mut Block, usize, u8)> {
        let (first, block) = self.blocks.range_mut(..=handle).next_back()?;
        let at = usize::try_from(handle - first).ok().filter(|at| *at < block.count as usize)?;
        (block.bits[at / 8] & 1 << (at % 8) != 0).then_some((*first, block, at / 8, 1 << (at % 8)))
    }
}

impl Catalogue {
    /// Opens the record of a directory, and creates it if it does not exist.
    pub(in crate::store) fn open(dir: &dyn DiskDir) -> io::Result<Catalogue> {
        let file = dir.open(NAME, true)?;
        let len = file.held()?.size;
        let mut state = State { len: len / BLOCK as u64, ..State::default() };
        if len % BLOCK as u64 != 0 {
            // A part of a block must not become a whole one when later blocks are written.
            steps::step(|| file.set_len(state.len * BLOCK as u64))?;
        }
        let record = read_file(dir, NAME, len)?;
        for (number, bytes) in (0..state.len).zip(record.as_chunks::<BLOCK>().0) {
            let mut bytes = *bytes;
            let mut block = Block::decode(number, &bytes);
            if block.as_ref().is_some_and(|(first, block)| state.overlaps(*first, block.last(*first))) {
                // Blocks have no handles in common. It would come back when the other is gone.
                (block, bytes) = (None, [0; BLOCK]);
            }
            steps::write_all_at(&*file, &bytes, number * BLOCK as u64)?;
            match block {
                Some((first, block)) => state.insert(first, block),
                None => state.release(number),
            }
        }
        if state.len > 0 {
            steps::sync_file(&*file, true)?;
        }
        Ok(Catalogue { file, state: Mutex::new(state), changing: Mutex::default(), failed: Mutex::new(false) })
    }

    /// Returns true if a sync has failed, so that nobody knows what the disk has of the record.
    pub(in crate::store) fn has_failed(&self) -> bool {
        *lock(&self.failed)
    }

    fn sync(&self) -> io::Result<()> {
        let mut failed = lock(&self.failed);
        if *failed {
            return Err(io::Error::other("an earlier sync of the catalogue failed"));
        }
        let taken_off = lock(&self.state).taken_off;
        steps::sync_file(&*self.file, false).inspect_err(|_| *failed = true)?;
        lock(&self.state).durable = taken_off;
        Ok(())
    }

    /// Returns true if a datafile was created and never written.
    pub(in crate::store) fn is_new(&self, datafile: DatafileHandle) -> bool {
        lock(&self.state).find(datafile.0).is_some()
    }

    /// Returns true if a datafile was created and never written, and has no file.
    pub(super) fn has_no_file(&self, datafile: DatafileHandle) -> bool {
        lock(&self.state).find(datafile.0).is_some_and(|(_, block, byte, bit)| block.made[byte] & bit == 0)
    }

    /// Counts files that the store has. Called once for each when it is opened.
    pub(super) fn count_files(&self, datafiles: impl IntoIterator<Item = DatafileHandle>) {
        let state = &mut *lock(&self.state);
        for datafile in datafiles {
            state.highest = state.highest.max(datafile.0);
            match state.find(datafile.0) {
                Some((_, block, byte, bit)) => block.made[byte] |= bit,
                None => state.files += 1,
            }
        }
    }

    /// Returns the number of datafiles: those on the record and those that have a file.
    pub(in crate::store) fn datafiles(&self) -> u64 {
        let state = lock(&self.state);
        state.new + state.files
    }

    /// Makes the file of a datafile with `make`, if the datafile is on the record. Nobody takes it
    /// off meanwhile.
    pub(super) fn make_file<R>(
        &self,
        datafile: DatafileHandle,
        make: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<Option<R>> {
        let _change = lock(&self.changing);
        if lock(&self.state).find(datafile.0).is_none() {
            return Ok(None);
        }
        let made = make()?;
        if let Some((_, block, byte, bit)) = lock(&self.state).find(datafile.0) {
            block.made[byte] |= bit;
        }
        Ok(Some(made))
    }

    /// Notes that the file of a datafile that is not on the record was removed.
    pub(super) fn file_removed(&self) {
        let mut state = lock(&self.state);
        state.files = state.files.saturating_sub(1);
    }

    /// Records datafiles that were never written, durably. A range that is recorded already is left
    /// as it is. `has_file` tells whether a datafile has a file. It is only called for a range that
    /// was recorded before.
    pub(in crate::store) fn create(
        &self,
        first: DatafileHandle,
        count: u32,
        has_file: impl Fn(DatafileHandle) -> bool,
    ) -> io::Result<()> {
        let block = {
            let mut state = lock(&self.state);
            if state.blocks.contains_key(&first.0) {
                return Ok(());
            }
            let number = state.allocate();
            let mut bits = [0; BITS];
            (0..count as usize).for_each(|at| bits[at / 8] |= 1 << (at % 8));
            Block { number, count, bits, made: [0; BITS] }
        };
        let written = steps::write_all_at(&*self.file, &block.encode(first.0), block.number * BLOCK as u64);
        let result = written.and_then(|()| self.sync());
        if result.is_err() {
            lock(&self.state).release(block.number);
            return result;
        }
        let may_have_files = first.0 <= lock(&self.state).highest;
        let handles = (first.0..).take(count as usize).map(DatafileHandle);
        let found: Vec<DatafileHandle> = handles.filter(|datafile| may_have_files && has_file(*datafile)).collect();
        let state = &mut *lock(&self.state);
        state.insert(first.0, block);
        for datafile in found {
            if let Some((_, block, byte, bit)) = state.find(datafile.0) {
                block.made[byte] |= bit;
                state.files = state.files.saturating_sub(1);
            }
        }
        Ok(())
    }

    /// Returns the byte of the file that has the bit of a datafile, without this bit, and its
    /// place. `None` if the datafile is not on the record.
    fn without(&self, datafile: DatafileHandle) -> Option<(u8, u64)> {
        let mut state = lock(&self.state);
        let (_, block, byte, bit) = state.find(datafile.0)?;
        Some((block.bits[byte] & !bit, block.number * BLOCK as u64 + (HEADER + byte) as u64))
    }

    /// Notes that a datafile was taken off.
    fn taken_off(&self, datafile: DatafileHandle) {
        let state = &mut *lock(&self.state);
        let Some((first, block, byte, bit)) = state.find(datafile.0) else { return };
        let made = block.made[byte] & bit != 0;
        block.bits[byte] &= !bit;
        block.made[byte] &= !bit;
        let emptied = block.is_empty().then_some(block.number);
        state.new -= 1;
        state.taken_off += 1;
        state.files += u64::from(made);
        if let Some(number) = emptied {
            state.blocks.remove(&first);
            // The last bit may not be durable yet. A block that takes the place overwrites all of
            // the old one at once, so it says the same.
            state.release(number);
        }
    }

    /// Takes datafiles off the record, durably. One that is not on it may have been taken off by
    /// another call that has not synced yet, or that has failed. So this one syncs then.
    pub(in crate::store) fn take_off(&self, datafiles: impl IntoIterator<Item = DatafileHandle>) -> io::Result<()> {
        let mut any = false;
        {
            // Writes of one byte stay in order.
            let _change = lock(&self.changing);
            for datafile in datafiles {
                any = true;
                let Some((bits, at)) = self.without(datafile) else { continue };
                steps::write_all_at(&*self.file, &[bits], at)?;
                self.taken_off(datafile);
            }
        }
        let is_durable = {
            let state = lock(&self.state);
            state.durable == state.taken_off
        };
        if any && !is_durable { self.sync() } else { Ok(()) }
    }

    /// Returns the datafiles on the record for which `wanted` is true, in order.
    pub(in crate::store) fn list(&self, wanted: impl Fn(DatafileHandle) -> bool) -> Vec<DatafileHandle> {
        let state = lock(&self.state);
        let handles = state.blocks.iter().flat_map(|(first, block)| {
            let is_new = |at: &u64| block.bits[(*at / 8) as usize] & 1 << (*at % 8) != 0;
            (0..u64::from(block.count)).filter(is_new).map(move |at| DatafileHandle(first + at))
        });
        handles.filter(|handle| wanted(*handle)).collect()
    }
}
