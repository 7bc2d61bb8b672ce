//! The open files of a store, at most as many as it may have.
//!
//! **Why.** The system reports an error of its writeback to the descriptors that are open at that
//! time, or to the next one if the file is still known. If a descriptor with unsynced data were
//! simply closed, an error after that could be lost, and a later sync would succeed. So its data is
//! written before it is closed. The wait for that reports the error, and takes much less time than
//! a sync: nothing is flushed, and no journal is committed.
//!
//! A request that needs a descriptor should not wait for that. So the oldest files are *settled*
//! before they must be closed: a batch of them is written in the background, once less than a
//! quarter of the table is free or settled. A file that is used again is no longer settled.
//!
//! ```text
//!   free ◀──closed── settled: oldest … ◀──written── recent: oldest … newest ◀── every use
//! ```
//!
//! **Invariants**
//! 1. There is one [`OpenFile`] for a datafile, as long as anybody uses it.
//! 2. A file that was changed since its last sync is closed only after its data was written without
//!    an error, or after its datafile is gone.
//! 3. A step looks at [`BATCH`] files of each queue at most, however many there are.
//! 4. Files are written ahead by one worker at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use fs_proto::DatafileHandle;

use super::file::OpenFile;
use super::order::{Order, Queue};

/// Most files kept open, unless the store is given another number. It is well below the usual limit
/// of 1024 descriptors per process.
pub(in crate::store) const OPEN_FILES: usize = 256;

/// Number of files that are looked at, and written, together. The disk then has all of them to
/// write at once.
const BATCH: usize = 64;

/// The part of the table that should be free or settled: a quarter.
const READY: usize = 4;

/// A datafile with its open file.
pub(in crate::store) type Named = (DatafileHandle, Arc<OpenFile>);

/// An open file in the table.
struct Entry {
    datafile: DatafileHandle,
    file: Arc<OpenFile>,
    queue: Queue,
}

impl Entry {
    /// Returns whether the file must be written before it is closed; `None` if somebody uses it.
    fn unused(&mut self) -> Option<bool> {
        // Only the table can give a file that nobody else has to somebody.
        Some(Arc::get_mut(&mut self.file)?.is_unwritten())
    }

    fn named(&self) -> Named {
        (self.datafile, self.file.clone())
    }
}

/// The most recently used files.
pub(in crate::store) struct OpenFiles {
    /// Most files kept open.
    most: usize,
    places: BTreeMap<DatafileHandle, usize>,
    /// By place.
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    order: Order,
    /// Exists while files are written ahead.
    ahead: Weak<()>,
}

/// What came of closing files.
pub(in crate::store) enum Closing {
    /// These are closed when they are dropped, which may wait for the disk. There is at least one.
    Closed(Vec<Arc<OpenFile>>),
    /// None was closed. These can be once the caller has written them. If there are none, all that
    /// were looked at are in use.
    Unwritten(Vec<Named>),
}

/// Files to write ahead of need. No others are, as long as this exists.
pub(in crate::store) struct Ahead {
    pub(in crate::store) files: Vec<Named>,
    _running: Arc<()>,
}

impl OpenFiles {
    /// Creates an empty table that keeps at most `most` files open.
    pub(in crate::store) fn new(most: usize) -> OpenFiles {
        OpenFiles {
            most,
            places: BTreeMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            order: Order::default(),
            ahead: Weak::new(),
        }
    }

    /// Returns a file, and makes it the most recently used one.
    pub(in crate::store) fn find(&mut self, datafile: DatafileHandle) -> Option<Arc<OpenFile>> {
        let place = *self.places.get(&datafile)?;
        self.enqueue(place, Queue::Recent);
        Some(self.entries[place].as_ref()?.file.clone())
    }

    /// Keeps a file. Returns the one that it replaces.
    pub(in crate::store) fn keep(&mut self, datafile: DatafileHandle, file: &Arc<OpenFile>) -> Option<Arc<OpenFile>> {
        let replaced = self.forget(datafile);
        let place = self.free.pop().unwrap_or(self.entries.len());
        if place == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[place] = Some(Entry { datafile, file: file.clone(), queue: Queue::Recent });
        self.order.append(Queue::Recent, place);
        self.places.insert(datafile, place);
        replaced
    }

    /// Returns the file of a datafile that is gone, which is closed when it is dropped.
    pub(in crate::store) fn forget(&mut self, datafile: DatafileHandle) -> Option<Arc<OpenFile>> {
        let place = self.places.remove(&datafile)?;
        self.free.push(place);
        let entry = self.entries[place].take()?;
        self.order.remove(entry.queue, place);
        Some(entry.file)
    }

    /// Makes an entry the newest of a queue.
    fn enqueue(&mut self, place: usize, queue: Queue) {
        let Some(entry) = &mut self.entries[place] else { return };
        self.order.remove(entry.queue, place);
        entry.queue = queue;
        self.order.append(queue, place);
    }

    /// Makes room for some more files. `None` if there is room. If all that were looked at are in
    /// use, there are more than the table keeps for a while.
    pub(in crate::store) fn make_room(&mut self, coming: usize) -> Option<Closing> {
        let excess = (self.places.len() + coming).saturating_sub(self.most).min(self.places.len());
        if excess == 0 {
            return None;
        }
        match self.close(excess) {
            Closing::Unwritten(files) if files.is_empty() => None,
            closing => Some(closing),
        }
    }

    /// Looks at the oldest files, and closes those that nobody uses and that need not be written,
    /// at most `count`.
    pub(in crate::store) fn close(&mut self, count: usize) -> Closing {
        let (mut closed, mut unwritten) = self.look(Queue::Settled, count);
        if closed.len() < count {
            let (more, others) = self.look(Queue::Recent, count - closed.len());
            closed.extend(more);
            if unwritten.is_empty() {
                unwritten = others;
            }
        }
        if !closed.is_empty() {
            return Closing::Closed(closed);
        }
        for place in &unwritten {
            if self.entries[*place].as_ref().is_some_and(|entry| entry.queue == Queue::Recent) {
                self.enqueue(*place, Queue::Settled);
            }
        }
        let entries = unwritten.iter().filter_map(|place| self.entries[*place].as_ref());
        Closing::Unwritten(entries.map(Entry::named).collect())
    }

    /// Looks at the oldest files of a queue, and closes what can be closed, at most `count`.
    /// Returns those, and the places of those that must be written first.
    fn look(&mut self, queue: Queue, count: usize) -> (Vec<Arc<OpenFile>>, Vec<usize>) {
        let (mut closed, mut unwritten) = (Vec::new(), Vec::new());
        let mut next = self.order.oldest(queue);
        for _ in 0..BATCH.min(self.order.len(queue)) {
            let Some(place) = next.filter(|_| closed.len() < count) else { break };
            next = self.order.newer(place);
            let Some(entry) = &mut self.entries[place] else { break };
            match entry.unused() {
                Some(false) => {
                    let datafile = entry.datafile;
                    closed.extend(self.forget(datafile));
                }
                // It is used now.
                None if queue == Queue::Recent => self.enqueue(place, queue),
                // It is not written, or just being written.
                _ => unwritten.push(place),
            }
        }
        (closed, unwritten)
    }

    /// Settles the oldest of the recently used files. Returns those that the caller must write.
    fn settle(&mut self) -> Vec<Named> {
        let mut unwritten = Vec::new();
        for _ in 0..BATCH.min(self.order.len(Queue::Recent)) {
            let Some(place) = self.order.oldest(Queue::Recent) else { break };
            let Some(entry) = &mut self.entries[place] else { break };
            let queue = match entry.unused() {
                // It is used now.
                None => Queue::Recent,
                Some(must_write) => {
                    unwritten.extend(must_write.then(|| entry.named()));
                    Queue::Settled
                }
            };
            self.enqueue(place, queue);
        }
        unwritten
    }

    /// Returns files to write ahead of need: if most of the table is neither free nor settled, and
    /// nothing is being written ahead.
    pub(in crate::store) fn ahead(&mut self) -> Option<Ahead> {
        let ready = self.most.saturating_sub(self.places.len()) + self.order.len(Queue::Settled);
        if ready >= self.most / READY || self.ahead.strong_count() > 0 {
            return None;
        }
        let files = self.settle();
        if files.is_empty() {
            return None;
        }
        let running = Arc::new(());
        self.ahead = Arc::downgrade(&running);
        Some(Ahead { files, _running: running })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with files of a directory.
    struct World {
        dir: tempfile::TempDir,
        table: OpenFiles,
    }

    impl World {
        fn new(most: usize) -> World {
            World { dir: tempfile::tempdir().unwrap(), table: OpenFiles::new(most) }
        }

        /// Opens a file, as a request does. It counts as changed if `changed` is set.
        fn open(&mut self, number: u64, changed: bool) -> Arc<OpenFile> {
            let path = self.dir.path().join(number.to_string());
            let options = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path);
            let file = Arc::new(OpenFile::new(Arc::new(options.unwrap()), Weak::new()));
            if changed {
                file.changed();
            }
            assert!(self.table.keep(DatafileHandle(number), &file).is_none());
            file
        }

        /// Closes what can be closed, for one more file. Returns what must be written first.
        fn make_room(&mut self) -> Vec<Named> {
            loop {
                match self.table.make_room(1) {
                    None => return Vec::new(),
                    Some(Closing::Unwritten(files)) => return files,
                    Some(Closing::Closed(files)) => assert!(!files.is_empty()),
                }
            }
        }

        fn is_open(&self, number: u64) -> bool {
            self.table.places.contains_key(&DatafileHandle(number))
        }
    }

    fn numbers(files: &[Named]) -> Vec<u64> {
        files.iter().map(|(datafile, _)| datafile.0).collect()
    }

    #[test]
    fn the_oldest_unused_file_is_closed() {
        let mut world = World::new(4);
        let held = world.open(0, false);
        (1..4).for_each(|number| drop(world.open(number, false)));
        world.table.find(DatafileHandle(1)).unwrap();
        assert!(world.make_room().is_empty());
        assert_eq!([0, 1, 2, 3].map(|number| world.is_open(number)), [true, true, false, true], "2 is the oldest");
        drop((world.open(4, false), held));
        assert!(world.make_room().is_empty());
        assert!(!world.is_open(3), "3 is older than the last use of 1, and than the use of 0 that has just ended");
        // All are in use.
        let held: Vec<_> = [0, 1, 4].map(|number| world.table.find(DatafileHandle(number)).unwrap()).into();
        let more = [world.open(5, false), world.open(6, false)];
        assert!(world.make_room().is_empty());
        assert_eq!(world.table.places.len(), 5);
        drop((held, more));
        assert!(world.make_room().is_empty());
        assert_eq!(world.table.places.len(), 3, "there are no more than the table keeps");
    }

    #[test]
    fn a_file_is_written_before_it_is_closed() {
        let mut world = World::new(200);
        (0..200).for_each(|number| drop(world.open(number, true)));
        let unwritten = world.make_room();
        assert_eq!(numbers(&unwritten), (0..64).collect::<Vec<_>>(), "a batch of the oldest");
        // Another request needs room too, and waits for the same files.
        assert_eq!(numbers(&world.make_room()), numbers(&unwritten));
        assert_eq!(world.table.places.len(), 200);
        unwritten.iter().for_each(|(_, file)| file.write_out().unwrap());
        drop(unwritten);
        // It is used and changed again.
        world.table.find(DatafileHandle(0)).unwrap().changed();
        assert!(world.make_room().is_empty());
        assert!(world.is_open(0) && !world.is_open(1) && world.is_open(2));
    }

    #[test]
    fn files_are_written_before_room_is_needed() {
        let mut world = World::new(256);
        for number in 0..192 {
            assert!(world.table.ahead().is_none(), "{number}");
            world.open(number, true);
        }
        world.open(192, true);
        let ahead = world.table.ahead().unwrap();
        assert_eq!(numbers(&ahead.files), (0..64).collect::<Vec<_>>());
        (193..256).for_each(|number| drop(world.open(number, true)));
        assert!(world.table.ahead().is_none(), "one batch at a time");
        ahead.files.iter().for_each(|(_, file)| file.write_out().unwrap());
        drop(ahead);
        for number in 256..320 {
            assert!(world.make_room().is_empty(), "{number}: no request waits");
            world.open(number, true);
        }
        assert_eq!(world.table.places.len(), 256);
        assert_eq!(numbers(&world.table.ahead().unwrap().files), (64..128).collect::<Vec<_>>());
    }

    #[test]
    fn files_that_were_only_read_need_no_writing() {
        let mut world = World::new(256);
        for number in 0..1000 {
            assert!(world.make_room().is_empty() && world.table.ahead().is_none());
            world.open(number, false);
        }
        assert_eq!(world.table.places.len(), 256);
    }
}
