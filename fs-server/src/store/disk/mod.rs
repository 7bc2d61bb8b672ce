//! The disk below a store: what a store asks of a file system.
//!
//! **Why.** A store keeps its promises only as far as the disk keeps its own. So the same store,
//! with its catalogue, its marks and its label, runs on a directory of a file system
//! ([`SystemDir`]) and on a disk in memory that loses, tears and refuses what a real one may
//! (`MemDisk`). The simulator uses the second one, and so do the tests that cut the power.
//!
//! **What a disk promises**
//! 1. A change is seen by every later call. It survives a power failure for certain only after a
//!    sync that began after it, and that returned no error.
//! 2. [`DiskFile::sync`] is about the bytes of a file and its length, and with `whole` about its
//!    note too. [`DiskDir::sync`] is about the names in one directory.
//! 3. Of what was not synced, any sectors survive, as if they were written in any order; a sector
//!    is 512 bytes, and may be torn in the middle. Each change of names survives as a whole or not.
//! 4. The length and the note of a file survive in the order in which they were changed, as in the
//!    journal of a file system: an earlier change is never lost if a later one is kept.
//! 5. A sync that fails leaves in doubt which bytes the disk has, and the next sync does not write
//!    them. Names, lengths and notes are in the journal, and the next sync covers them.
//!
//! **What only a file system has.** Transfers without a wait, direct I/O and mappings use a
//! descriptor ([`DiskFile::system`]). A disk without one moves bytes by [`DiskFile::read_at`] and
//! [`DiskFile::write_at`] alone.

#[cfg(any(test, feature = "sim"))]
mod memory;
pub(crate) mod steps;
mod system;

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::sync::Arc;

use bmi::MemSlice;
use fs_proto::{Allocation, Region, Sought};

#[cfg(any(test, feature = "sim"))]
pub use self::memory::{Contents, DiskStep, MemDatabase, MemDisk};
pub(crate) use self::system::SystemDir;
use super::Held;

/// The name of the manager's database on its disk.
pub(crate) const DATABASE: &str = "metadata.redb";

/// The room of a file system, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) capacity: u64,
    pub(crate) free: u64,
}

/// A directory of a disk. Names are relative to it, and may go into its directories (`00/name`).
pub(crate) trait DiskDir: Debug + Send + Sync {
    /// Opens a file for reading and writing. Makes an empty one if it does not exist and `make` is
    /// true.
    ///
    /// # Errors
    /// `NotFound`, and those of the disk.
    fn open(&self, name: &str, make: bool) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file that is only read, which needs no right to write it.
    ///
    /// # Errors
    /// As [`DiskDir::open`].
    fn open_to_read(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.open(name, false)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// As [`DiskDir::open`].
    fn dir(&self, name: &str) -> io::Result<Arc<dyn DiskDir>>;

    /// Makes an empty directory, unless it exists.
    ///
    /// # Errors
    /// Those of the disk.
    fn make_dir(&self, name: &str) -> io::Result<()>;

    /// Removes a name. The space of the file is free when nobody has it open.
    ///
    /// # Errors
    /// As [`DiskDir::open`].
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives a file another name, in place of the file that had it.
    ///
    /// # Errors
    /// As [`DiskDir::open`].
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Exchanges the names of two files.
    ///
    /// # Errors
    /// `NotFound` if one does not exist; `Unsupported` or `InvalidInput` if the disk cannot do it.
    fn exchange(&self, one: &str, other: &str) -> io::Result<()>;

    /// Returns the length of a file.
    ///
    /// # Errors
    /// As [`DiskDir::open`].
    fn len_of(&self, name: &str) -> io::Result<u64>;

    /// Returns the names in this directory, in any order.
    ///
    /// # Errors
    /// Those of the disk.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Makes the names in this directory durable.
    ///
    /// # Errors
    /// Those of the disk. Then nobody knows which names it has.
    fn sync(&self) -> io::Result<()>;

    /// Returns how much room there is.
    ///
    /// # Errors
    /// Those of the disk.
    fn room(&self) -> io::Result<Room>;

    /// Returns a number of the disk, which other disks of this host do not have.
    ///
    /// # Errors
    /// Those of the disk.
    fn number(&self) -> io::Result<u64>;

    /// Returns the descriptor, if this is a directory of a file system.
    fn system(&self) -> Option<&File> {
        None
    }
}

/// A file of a disk that is open.
pub(crate) trait DiskFile: Debug + Send + Sync {
    /// Reads into a piece of memory. Returns how many bytes; 0 at the end of the file.
    ///
    /// # Errors
    /// Those of the disk.
    fn read_at(&self, offset: u64, into: &MemSlice) -> io::Result<usize>;

    /// Writes from a piece of memory. Returns how many bytes.
    ///
    /// # Errors
    /// Those of the disk.
    fn write_at(&self, offset: u64, from: &MemSlice) -> io::Result<usize>;

    /// Reads a record of the store, as [`DiskFile::read_at`].
    ///
    /// # Errors
    /// Those of the disk.
    fn read_record(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes a record of the store, all of it.
    ///
    /// # Errors
    /// Those of the disk. Any part may be written then.
    fn write_record(&self, offset: u64, from: &[u8]) -> io::Result<()>;

    /// Sets the length. Bytes behind the old end are zeros.
    ///
    /// # Errors
    /// Those of the disk.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Changes the space of a range that is not empty. Bytes of a hole are zeros, and so are those
    /// behind the old end.
    ///
    /// # Errors
    /// Those of the disk; `Unsupported` if it cannot do it. Any part of it may be done.
    fn allocate(&self, range: Region, how: Allocation) -> io::Result<()>;

    /// Returns the offset of the first byte of data, or of a hole, from `offset` on; `None` if
    /// there is none before the end.
    ///
    /// # Errors
    /// Those of the disk.
    fn seek(&self, offset: u64, what: Sought) -> io::Result<Option<u64>>;

    /// Returns the length as the system knows it, without asking anybody who may have to be waited
    /// for. Only for a file of which all changes since it was opened were made here.
    ///
    /// # Errors
    /// Those of the disk.
    fn len(&self) -> io::Result<u64>;

    /// Returns the length and the time of the last change.
    ///
    /// # Errors
    /// Those of the disk.
    fn held(&self) -> io::Result<Held>;

    /// Starts to write to the disk what the system has of the file in memory.
    fn start_writeback(&self);

    /// Writes to the disk what the system has of the file in memory, without making it durable.
    ///
    /// # Errors
    /// As [`DiskFile::sync`].
    fn write_out(&self) -> io::Result<()>;

    /// Makes the bytes and the length durable, and with `whole` the note.
    ///
    /// # Errors
    /// Those of the disk. Then nobody knows what it has of the file.
    fn sync(&self, whole: bool) -> io::Result<()>;

    /// Returns the number that was noted with the file, or 0.
    fn note(&self) -> u64;

    /// Notes a number with the file. A disk that has no notes at all notes nothing.
    ///
    /// # Errors
    /// Those of the disk. The note is the old one or the new one then.
    fn set_note(&self, number: u64) -> io::Result<()>;

    /// Returns the descriptor, if this is a file of a file system.
    fn system(&self) -> Option<&File> {
        None
    }
}

/// Reads a whole file.
///
/// # Errors
/// As [`DiskDir::open`]; `InvalidData` if it is longer than `most` bytes; `UnexpectedEof` if it is
/// cut off meanwhile.
pub(crate) fn read_file(dir: &dyn DiskDir, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let file = dir.open_to_read(name)?;
    let len = file.held()?.size;
    if len > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{name} has {len} bytes, more than {most}")));
    }
    let mut bytes = vec![0; len as usize];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_record(read as u64, &mut bytes[read..])? {
            // It was cut off meanwhile: what is left is no whole record.
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => read += more,
        }
    }
    Ok(bytes)
}
