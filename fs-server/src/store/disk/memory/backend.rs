//! A database on a disk in memory.

use std::io;

use redb::StorageBackend;

use super::super::{DATABASE, DiskFile};
use super::names::{Entry, Inode};
use super::{MemDisk, MemFile, lock};

/// The file of a manager's database on a [`MemDisk`].
#[derive(Clone, Debug)]
pub struct MemDatabase(MemFile);

impl MemDisk {
    /// Returns the file of the manager's database, as the disk has it: without what a failed sync
    /// did not write. It is there from the beginning.
    #[must_use]
    pub fn database(&self) -> MemDatabase {
        let state = &mut *lock(&self.state);
        let found = state.names.file(DATABASE).cloned();
        let inode = found.unwrap_or_else(|| {
            let inode = Inode::default();
            state.names.tamper(vec![(DATABASE.to_owned(), Some(Entry::File(inode.clone())))]);
            inode
        });
        lock(&inode).read_again();
        MemDatabase(MemFile { disk: self.clone(), name: DATABASE.to_owned(), inode })
    }
}

impl StorageBackend for MemDatabase {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.0.read_record(offset, out)? == out.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        DiskFile::set_len(&self.0, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync(false)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        if end > self.0.len()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.0.write_record(offset, data)
    }
}
