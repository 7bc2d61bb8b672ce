//! A directory of a file system.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use bmi::MemSlice;
use fs_proto::{Allocation, Region, Sought};
use rustix::fs::{
    AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, XattrFlags, fallocate, fgetxattr,
    fsetxattr, fstatvfs, mkdirat, openat, renameat, renameat_with, statat, statx, unlinkat,
};
use rustix::io::{Errno, retry_on_intr};

use super::{DiskDir, DiskFile, Room};
use crate::store::{Held, sys};

/// The attribute of a file that holds its note: eight bytes, little-endian.
const NOTE: &str = "user.pvfs.synced";

/// A directory of a file system, which is opened once. It stays the same one, whatever is put at
/// its path later.
#[derive(Debug)]
pub(crate) struct SystemDir(File);

impl SystemDir {
    /// Opens a directory.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn open(path: &Path) -> io::Result<SystemDir> {
        Ok(SystemDir(File::open(path)?))
    }

    fn open_at(&self, name: &str, flags: OFlags) -> io::Result<File> {
        Ok(File::from(openat(&self.0, name, flags | OFlags::CLOEXEC, Mode::from(0o644))?))
    }
}

impl DiskDir for SystemDir {
    fn open(&self, name: &str, make: bool) -> io::Result<Arc<dyn DiskFile>> {
        let flags = if make { OFlags::RDWR | OFlags::CREATE } else { OFlags::RDWR };
        Ok(Arc::new(self.open_at(name, flags)?))
    }

    fn open_to_read(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(self.open_at(name, OFlags::RDONLY)?))
    }

    fn dir(&self, name: &str) -> io::Result<Arc<dyn DiskDir>> {
        Ok(Arc::new(SystemDir(self.open_at(name, OFlags::RDONLY | OFlags::DIRECTORY)?)))
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        match mkdirat(&self.0, name, Mode::from(0o755)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.0, from, &self.0, to)?)
    }

    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        Ok(renameat_with(&self.0, one, &self.0, other, RenameFlags::EXCHANGE)?)
    }

    fn len_of(&self, name: &str) -> io::Result<u64> {
        Ok(statat(&self.0, name, AtFlags::empty())?.st_size as u64)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let names = rustix::fs::Dir::read_from(&self.0)?.map(|entry| {
            let entry = entry?;
            Ok(entry.file_name().to_string_lossy().into_owned())
        });
        names.collect()
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn room(&self) -> io::Result<Room> {
        let stat = fstatvfs(&self.0)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Room { capacity: bytes(stat.f_blocks), free: bytes(stat.f_bavail) })
    }

    fn number(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.dev())
    }

    fn system(&self) -> Option<&File> {
        Some(&self.0)
    }
}

impl DiskFile for File {
    fn read_at(&self, offset: u64, into: &MemSlice) -> io::Result<usize> {
        sys::read_at(self, offset, into)
    }

    fn write_at(&self, offset: u64, from: &MemSlice) -> io::Result<usize> {
        sys::write_at(self, offset, from)
    }

    fn read_record(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, into, offset)
    }

    fn write_record(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.write_all_at(from, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn allocate(&self, range: Region, how: Allocation) -> io::Result<()> {
        let call = |flags| retry_on_intr(|| fallocate(self, flags, range.offset, range.len));
        // Not by `ZERO_RANGE`: a file system in memory has none.
        if !matches!(how, Allocation::Reserve { .. }) {
            call(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)?;
        }
        if let Allocation::Reserve { grows } | Allocation::Zeros { grows } = how {
            call(if grows { FallocateFlags::empty() } else { FallocateFlags::KEEP_SIZE })?;
        }
        Ok(())
    }

    /// Moves the position of the descriptor, which nobody uses.
    fn seek(&self, offset: u64, what: Sought) -> io::Result<Option<u64>> {
        let to = match what {
            Sought::Data => SeekFrom::Data(offset),
            Sought::Hole => SeekFrom::Hole(offset),
        };
        match rustix::fs::seek(self, to) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            // A file system that knows no holes: it has data until the end.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                let len = DiskFile::len(self)?;
                let found = if what == Sought::Data { offset } else { len };
                Ok(Some(found).filter(|_| offset < len))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// All changes of the file are made through this system, so that is the length.
    fn len(&self) -> io::Result<u64> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        Ok(statx(self, c"", flags, StatxFlags::SIZE)?.stx_size)
    }

    fn held(&self) -> io::Result<Held> {
        let metadata = self.metadata()?;
        let ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        // Times before 1970 count as never.
        Ok(Held { size: metadata.len(), mtime_ns: u64::try_from(ns).unwrap_or(0) })
    }

    fn start_writeback(&self) {
        // The wait that follows reports the errors.
        drop(sys::start_writeback(self));
    }

    fn write_out(&self) -> io::Result<()> {
        sys::write_out(self)
    }

    fn sync(&self, whole: bool) -> io::Result<()> {
        if whole { self.sync_all() } else { self.sync_data() }
    }

    fn note(&self) -> u64 {
        let mut bytes = [0; 8];
        match fgetxattr(self, NOTE, &mut bytes) {
            Ok(8) => u64::from_le_bytes(bytes),
            _ => 0,
        }
    }

    fn set_note(&self, number: u64) -> io::Result<()> {
        match fsetxattr(self, NOTE, &number.to_le_bytes(), XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn system(&self) -> Option<&File> {
        Some(self)
    }
}
