//! Reads and writes files directly from and to shared memory. This is the only module of this crate
//! with `unsafe`.
//!
//! **Why.** `pread` and `pwrite` of the standard library and of `rustix` take slices. A slice of
//! memory that an adapter may access must not exist (`bmi_core::mem`, invariant 2). The system
//! calls need only addresses.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use bmi_core::MemSlice;

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        let result = call();
        if let Ok(len) = usize::try_from(result) {
            return Ok(len);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn position(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
}

/// Writes some bytes of `from` at `offset` of `file`. Returns how many.
pub(super) fn write_at(file: &File, offset: u64, from: &MemSlice) -> io::Result<usize> {
    let offset = position(offset)?;
    // SAFETY: the slice's handle keeps `len` bytes at its address mapped during the call. Only the
    // kernel reads them.
    retry(|| unsafe { libc::pwrite(file.as_raw_fd(), from.as_ptr().cast(), from.len(), offset) })
}

/// Reads bytes at `offset` of `file` into `into`. Returns how many; 0 at the end of the file.
pub(super) fn read_at(file: &File, offset: u64, into: &MemSlice) -> io::Result<usize> {
    let offset = position(offset)?;
    // SAFETY: as above. Only the kernel writes the bytes.
    retry(|| unsafe { libc::pread(file.as_raw_fd(), into.as_ptr().cast(), into.len(), offset) })
}

/// Starts to write to the disk what the system has of a file in memory. Does not wait for it.
pub(super) fn start_writeback(file: &File) -> io::Result<()> {
    // SAFETY: the call has no pointers, and the descriptor is open.
    retry(|| unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) as libc::ssize_t })
        .map(drop)
}
