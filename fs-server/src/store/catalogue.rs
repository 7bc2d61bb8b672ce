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
//! 2. A block that was written in part has a wrong check value, and counts as free.
//! 3. One sync at a time: the system reports a failure only once, and whoever waits for a sync must
//!    learn of it.
//! 4. The state is never locked while anything waits for the disk, because an event loop looks at
//!    it. Files are made, and taken off the record, one at a time (`changing`).
//! 5. The number of datafiles is exact whenever no change is under way.
//! 6. After a failed sync no change succeeds. The next start writes again what it reads, because
//!    that may be only in the system's memory.
//!
//! **Layout** of `<dir>/catalogue`: blocks of 144 bytes, little-endian. A block whose bits are all
//! zero is free, and is used again.
//!
//! ```text
//!   ┌──────────────┬───────┬───────┬──────────────────────────────────────────┐
//!   │ first handle │ count │ check │ a bit for each handle: never written     │
//!   │ 8            │ 4     │ 4     │ 128                                      │
//!   └──────────────┴───────┴───────┴──────────────────────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fs_proto::DatafileHandle;
use fs_proto::limits::MAX_DATAFILES;

use super::steps;

pub(super) const NAME: &str = "catalogue";
const HEADER: usize = 16;
const BITS: usize = MAX_DATAFILES / 8;
const BLOCK: usize = HEADER + BITS;

/// The record. Worker threads use it too.
#[derive(Debug)]
pub(super) struct Catalogue {
    file: File,
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
    /// The highest handle so far, of those on the record and those that have a file.
    highest: u64,
}

#[derive(Debug)]
struct Block {
    /// The place in the file.
    number: u64,
    count: u32,
    bits: [u8; BITS],
    /// A bit for each handle that is on the record and has a file. It is not on the disk.
    made: [u8; BITS],
}

/// Returns the check value of a block's header.
fn check(first: u64, count: u32) -> u32 {
    let bytes = first.to_le_bytes().into_iter().chain(count.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Gives each whole block the right check value.
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(super) fn fuzz_repair(bytes: &mut [u8]) {
    for block in bytes.as_chunks_mut::<BLOCK>().0 {
        let first = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
        let count = u32::from_le_bytes(block[8..12].try_into().expect("four bytes"));
        block[12..HEADER].copy_from_slice(&check(first, count).to_le_bytes());
    }
}

impl Block {
    fn decode(number: u64, bytes: &[u8; BLOCK]) -> Option<(u64, Block)> {
        let (header, bits) = bytes.split_at(HEADER);
        let first = u64::from_le_bytes(header[..8].try_into().ok()?);
        let count = u32::from_le_bytes(header[8..12].try_into().ok()?);
        let checked = u32::from_le_bytes(header[12..].try_into().ok()?);
        let exists = count as usize <= MAX_DATAFILES && first.checked_add(count.into()).is_some();
        if !exists || checked != check(first, count) {
            return None;
        }
        let mut bits: [u8; BITS] = bits.try_into().ok()?;
        // The check value does not cover the bits. Those beyond the count belong to no datafile.
        (count as usize..MAX_DATAFILES).for_each(|at| bits[at / 8] &= !(1 << (at % 8)));
        let block = Block { number, count, bits, made: [0; BITS] };
        (!block.is_empty()).then_some((first, block))
    }

    fn encode(&self, first: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK);
        bytes.extend(first.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(check(first, self.count).to_le_bytes());
        bytes.extend(self.bits);
        bytes
    }

    /// Returns the number of handles on the record.
    fn len(&self) -> u64 {
        self.bits.iter().map(|bits| u64::from(bits.count_ones())).sum()
    }

    /// Returns the last handle, if this is the first one.
    fn last(&self, first: u64) -> u64 {
        first.saturating_add(u64::from(self.count)).saturating_sub(1)
    }

    fn is_empty(&self) -> bool {
        self.bits.iter().all(|bits| *bits == 0)
    }
}

impl State {
    /// Returns true if a block has handles from `first` to `last`.
    fn overlaps(&self, first: u64, last: u64) -> bool {
        self.blocks.range(..=last).next_back().is_some_and(|(start, block)| block.last(*start) >= first)
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
    pub(super) fn open(dir: &Path) -> io::Result<Catalogue> {
        let path = dir.join(NAME);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut state = State { len: file.metadata()?.len() / BLOCK as u64, ..State::default() };
        let mut bytes = [0; BLOCK];
        for number in 0..state.len {
            file.read_exact_at(&mut bytes, number * BLOCK as u64)?;
            let mut block = Block::decode(number, &bytes);
            if block.as_ref().is_some_and(|(first, block)| state.overlaps(*first, block.last(*first))) {
                // Blocks have no handles in common. It would come back when the other is gone.
                (block, bytes) = (None, [0; BLOCK]);
            }
            steps::write_all_at(&file, &bytes, number * BLOCK as u64)?;
            match block {
                Some((first, block)) => state.insert(first, block),
                None => state.free.push(number),
            }
        }
        if state.len > 0 {
            steps::sync_all(&file)?;
        }
        Ok(Catalogue { file, state: Mutex::new(state), changing: Mutex::default(), failed: Mutex::new(false) })
    }

    /// Returns true if a sync has failed, so that nobody knows what the disk has of the record.
    pub(super) fn has_failed(&self) -> bool {
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sync(&self) -> io::Result<()> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if *failed {
            return Err(io::Error::other("an earlier sync of the catalogue failed"));
        }
        steps::sync_data(&self.file).inspect_err(|_| *failed = true)
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a datafile was created and never written.
    pub(super) fn is_new(&self, datafile: DatafileHandle) -> bool {
        self.state().find(datafile.0).is_some()
    }

    /// Returns true if a datafile was created and never written, and has no file.
    pub(super) fn has_no_file(&self, datafile: DatafileHandle) -> bool {
        self.state().find(datafile.0).is_some_and(|(_, block, byte, bit)| block.made[byte] & bit == 0)
    }

    /// Counts files that the store has. Called once for each when it is opened.
    pub(super) fn count_files(&self, datafiles: impl IntoIterator<Item = DatafileHandle>) {
        let state = &mut *self.state();
        for datafile in datafiles {
            state.highest = state.highest.max(datafile.0);
            match state.find(datafile.0) {
                Some((_, block, byte, bit)) => block.made[byte] |= bit,
                None => state.files += 1,
            }
        }
    }

    /// Returns the number of datafiles: those on the record and those that have a file.
    pub(super) fn datafiles(&self) -> u64 {
        let state = self.state();
        state.new + state.files
    }

    /// Makes the file of a datafile with `make`, if the datafile is on the record. Nobody takes it
    /// off meanwhile.
    pub(super) fn make_file<R>(
        &self,
        datafile: DatafileHandle,
        make: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<Option<R>> {
        let _change = self.change();
        if self.state().find(datafile.0).is_none() {
            return Ok(None);
        }
        let made = make()?;
        if let Some((_, block, byte, bit)) = self.state().find(datafile.0) {
            block.made[byte] |= bit;
        }
        Ok(Some(made))
    }

    /// Notes that the file of a datafile that is not on the record was removed.
    pub(super) fn file_removed(&self) {
        let mut state = self.state();
        state.files = state.files.saturating_sub(1);
    }

    /// Records datafiles that were never written, durably. A range that is recorded already is left
    /// as it is. `has_file` tells whether a datafile has a file. It is only called for a range that
    /// was recorded before.
    pub(super) fn create(
        &self,
        first: DatafileHandle,
        count: u32,
        has_file: impl Fn(DatafileHandle) -> bool,
    ) -> io::Result<()> {
        let block = {
            let mut state = self.state();
            if state.blocks.contains_key(&first.0) {
                return Ok(());
            }
            let number = state.free.pop().unwrap_or_else(|| {
                state.len += 1;
                state.len - 1
            });
            let mut bits = [0; BITS];
            (0..count as usize).for_each(|at| bits[at / 8] |= 1 << (at % 8));
            Block { number, count, bits, made: [0; BITS] }
        };
        let written = steps::write_all_at(&self.file, &block.encode(first.0), block.number * BLOCK as u64);
        let result = written.and_then(|()| self.sync());
        if result.is_err() {
            self.state().free.push(block.number);
            return result;
        }
        let may_have_files = first.0 <= self.state().highest;
        let handles = (first.0..).take(count as usize).map(DatafileHandle);
        let found: Vec<DatafileHandle> = handles.filter(|datafile| may_have_files && has_file(*datafile)).collect();
        let state = &mut *self.state();
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
        let mut state = self.state();
        let (_, block, byte, bit) = state.find(datafile.0)?;
        Some((block.bits[byte] & !bit, block.number * BLOCK as u64 + (HEADER + byte) as u64))
    }

    /// Notes that a datafile was taken off.
    fn taken_off(&self, datafile: DatafileHandle) {
        let state = &mut *self.state();
        let Some((first, block, byte, bit)) = state.find(datafile.0) else { return };
        let made = block.made[byte] & bit != 0;
        block.bits[byte] &= !bit;
        block.made[byte] &= !bit;
        let emptied = block.is_empty().then_some(block.number);
        state.new -= 1;
        state.files += u64::from(made);
        if let Some(number) = emptied {
            state.blocks.remove(&first);
            state.free.push(number);
        }
    }

    /// Takes datafiles off the record, durably. Those that are not on it are ignored.
    pub(super) fn take_off(&self, datafiles: impl IntoIterator<Item = DatafileHandle>) -> io::Result<()> {
        let mut changed = false;
        {
            // Writes of one byte stay in order.
            let _change = self.change();
            for datafile in datafiles {
                let Some((bits, at)) = self.without(datafile) else { continue };
                steps::write_all_at(&self.file, &[bits], at)?;
                self.taken_off(datafile);
                changed = true;
            }
        }
        if changed { self.sync() } else { Ok(()) }
    }

    /// Returns the datafiles on the record for which `wanted` is true, in order.
    pub(super) fn list(&self, wanted: impl Fn(DatafileHandle) -> bool) -> Vec<DatafileHandle> {
        let state = self.state();
        let handles = state.blocks.iter().flat_map(|(first, block)| {
            let is_new = |at: &u64| block.bits[(*at / 8) as usize] & 1 << (*at % 8) != 0;
            (0..u64::from(block.count)).filter(is_new).map(move |at| DatafileHandle(first + at))
        });
        handles.filter(|handle| wanted(*handle)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(catalogue: &Catalogue) -> Vec<u64> {
        catalogue.list(|_| true).into_iter().map(|handle| handle.0).collect()
    }

    fn no_file(_: DatafileHandle) -> bool {
        false
    }

    #[test]
    fn what_is_recorded_is_there_until_it_is_taken_off() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Catalogue::open(dir.path()).unwrap();
        let catalogue = open();
        catalogue.create(DatafileHandle(100), 20, no_file).unwrap();
        catalogue.create(DatafileHandle(100), 20, no_file).unwrap();
        catalogue.create(DatafileHandle(1000), 1024, no_file).unwrap();
        catalogue.take_off([101, 119, 5, 120, 1500].map(DatafileHandle)).unwrap();
        for catalogue in [catalogue, open()] {
            let expected: Vec<u64> =
                (100..119).filter(|at| *at != 101).chain((1000..2024).filter(|at| *at != 1500)).collect();
            assert_eq!(all(&catalogue), expected);
            assert!(catalogue.is_new(DatafileHandle(100)) && !catalogue.is_new(DatafileHandle(101)));
            assert!(!catalogue.is_new(DatafileHandle(120)) && !catalogue.is_new(DatafileHandle(99)));
        }
    }

    #[test]
    fn blocks_are_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        for round in 0..50u64 {
            catalogue.create(DatafileHandle(round * 100), 100, no_file).unwrap();
            catalogue.take_off((0..100).map(|at| DatafileHandle(round * 100 + at))).unwrap();
        }
        assert_eq!(all(&catalogue), [0; 0]);
        assert_eq!(std::fs::metadata(dir.path().join(NAME)).unwrap().len(), BLOCK as u64);
        let again = Catalogue::open(dir.path()).unwrap();
        again.create(DatafileHandle(7), 1, no_file).unwrap();
        assert_eq!(std::fs::metadata(dir.path().join(NAME)).unwrap().len(), BLOCK as u64);
    }

    #[test]
    fn a_block_that_was_cut_off_or_torn_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let catalogue = Catalogue::open(dir.path()).unwrap();
        catalogue.create(DatafileHandle(1), 3, no_file).unwrap();
        catalogue.create(DatafileHandle(50), 3, no_file).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[BLOCK] ^= 1;
        bytes.truncate(2 * BLOCK);
        bytes.extend([1; 30]);
        std::fs::write(&path, bytes).unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        assert_eq!(all(&catalogue), [1, 2, 3]);
        catalogue.create(DatafileHandle(90), 1, no_file).unwrap();
        assert_eq!(all(&Catalogue::open(dir.path()).unwrap()), [1, 2, 3, 90]);
    }

    /// A regression test. Bits that belong to no datafile were counted. Of two blocks for one range
    /// only one was found, and the other came back at the next start.
    #[test]
    fn damaged_blocks_do_not_make_datafiles() {
        let block = |first: u64, count: u32, bits: u8| {
            let block = Block { number: 0, count, bits: [0; BITS], made: [0; BITS] };
            let mut bytes = block.encode(first);
            bytes[HEADER] = bits;
            bytes
        };
        let dir = tempfile::tempdir().unwrap();
        let blocks = [block(16, 3, 0xff), block(16, 3, 0x06), block(17, 8, 0xff), block(u64::MAX - 2, 8, 0xff)];
        std::fs::write(dir.path().join(NAME), blocks.concat()).unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        assert_eq!((all(&catalogue), catalogue.datafiles()), (vec![16, 17, 18], 3));
        catalogue.take_off([16, 17, 18].map(DatafileHandle)).unwrap();
        assert_eq!(catalogue.datafiles(), 0);
        drop(catalogue);
        assert!(all(&Catalogue::open(dir.path()).unwrap()).is_empty(), "they do not come back");
    }

    #[test]
    fn a_range_that_is_recorded_again_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        let all = [5, 6, 7].map(DatafileHandle);
        catalogue.create(all[0], 3, no_file).unwrap();
        assert_eq!(catalogue.make_file(all[1], || Ok(())).unwrap(), Some(()));
        assert_eq!(catalogue.make_file(DatafileHandle(9), || Ok(())).unwrap(), None);
        assert_eq!(catalogue.datafiles(), 3);
        // Only one of them has a file.
        catalogue.take_off(all).unwrap();
        assert_eq!(catalogue.datafiles(), 1);
        catalogue.create(all[0], 3, |datafile| datafile == all[1]).unwrap();
        assert_eq!(catalogue.datafiles(), 3);
        catalogue.take_off(all).unwrap();
        catalogue.file_removed();
        assert_eq!(catalogue.datafiles(), 0);
    }
}
