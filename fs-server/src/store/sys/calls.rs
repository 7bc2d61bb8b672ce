//! System calls on files that no safe interface has: transfers directly from and to shared memory,
//! also such that do not wait, control of the writeback, and a look at the page cache. This module,
//! `ring/sys.rs` and `mapped/sys.rs` are the only ones of this crate with `unsafe`.
//!
//! **Why.** `pread` and `pwrite` of the standard library and of `rustix` take slices. A slice of
//! memory that an adapter may access must not exist (`bmi::memory`, invariant 2). The system
//! calls need only addresses.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use bmi::MemSlice;

/// Most pieces of memory that a call takes (`IOV_MAX`).
pub(in crate::store) const MOST_PIECES: usize = libc::UIO_MAXIOV as usize;

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

/// Converts an offset in a file.
pub(in crate::store) fn position(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
}

/// Writes some bytes of `from` at `offset` of `file`. Returns how many.
pub(in crate::store) fn write_at(file: &File, offset: u64, from: &MemSlice) -> io::Result<usize> {
    let offset = position(offset)?;
    // SAFETY: the slice's handle keeps `len` bytes at its address mapped during the call. Only the
    // kernel reads them.
    retry(|| unsafe { libc::pwrite(file.as_raw_fd(), from.as_ptr().cast(), from.len(), offset) })
}

/// Reads bytes at `offset` of `file` into `into`. Returns how many; 0 at the end of the file.
pub(in crate::store) fn read_at(file: &File, offset: u64, into: &MemSlice) -> io::Result<usize> {
    let offset = position(offset)?;
    // SAFETY: as above. Only the kernel writes the bytes.
    retry(|| unsafe { libc::pread(file.as_raw_fd(), into.as_ptr().cast(), into.len(), offset) })
}

/// Returns the addresses of pieces of memory. They are valid as long as the pieces live.
pub(in crate::store) fn vectors<'a>(pieces: impl IntoIterator<Item = &'a MemSlice>) -> Vec<libc::iovec> {
    let vector = |piece: &MemSlice| libc::iovec { iov_base: piece.as_ptr().cast(), iov_len: piece.len() };
    pieces.into_iter().map(vector).collect()
}

/// Returns the number of vectors, which is `MOST_PIECES` at most.
pub(in crate::store) fn count(vectors: &[libc::iovec]) -> libc::c_int {
    debug_assert!(vectors.len() <= MOST_PIECES);
    vectors.len().min(MOST_PIECES) as libc::c_int
}

/// As [`write_at`], with memory in pieces.
pub(in crate::store) fn write_pieces_at(file: &File, offset: u64, from: &VecDeque<MemSlice>) -> io::Result<usize> {
    let (offset, vectors) = (position(offset)?, vectors(from));
    // SAFETY: as for `write_at`, for each piece. There are as many vectors as are counted.
    retry(|| unsafe { libc::pwritev(file.as_raw_fd(), vectors.as_ptr(), count(&vectors), offset) })
}

/// As [`read_at`], with memory in pieces.
pub(in crate::store) fn read_pieces_at(file: &File, offset: u64, into: &VecDeque<MemSlice>) -> io::Result<usize> {
    let (offset, vectors) = (position(offset)?, vectors(into));
    // SAFETY: as for `read_at`, for each piece. There are as many vectors as are counted.
    retry(|| unsafe { libc::preadv(file.as_raw_fd(), vectors.as_ptr(), count(&vectors), offset) })
}

/// One piece of memory, and the flags of a transfer that does not wait.
fn piece(memory: &MemSlice) -> (libc::iovec, libc::c_int) {
    (libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: memory.len() }, libc::RWF_NOWAIT)
}

/// As [`write_at`], but only as far as that needs no wait. `WouldBlock` means that it needs one for
/// the first byte.
pub(in crate::store) fn write_at_once(file: &File, offset: u64, from: &MemSlice) -> io::Result<usize> {
    let (offset, (memory, flags)) = (position(offset)?, piece(from));
    // SAFETY: as for `write_at`. The vector has one element.
    retry(|| unsafe { libc::pwritev2(file.as_raw_fd(), &raw const memory, 1, offset, flags) })
}

/// As [`read_at`], but only as far as the bytes are in the system's memory. `WouldBlock` means that
/// the first one is not.
pub(in crate::store) fn read_at_once(file: &File, offset: u64, into: &MemSlice) -> io::Result<usize> {
    let (offset, (memory, flags)) = (position(offset)?, piece(into));
    // SAFETY: as for `read_at`. The vector has one element.
    retry(|| unsafe { libc::preadv2(file.as_raw_fd(), &raw const memory, 1, offset, flags) })
}

/// Starts to write to the disk what the system has of a file in memory. Does not wait for it.
pub(in crate::store) fn start_writeback(file: &File) -> io::Result<()> {
    // SAFETY: the call has no pointers, and the descriptor is open.
    retry(|| unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) as libc::ssize_t })
        .map(drop)
}

/// Writes to the disk what the system has of a file in memory, and waits for that. Reports the
/// errors of all writeback so far, once, as a sync does. Does not flush the disk's cache.
pub(in crate::store) fn write_out(file: &File) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call has no pointers, and the descriptor is open.
    let call = || unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) as libc::ssize_t };
    match retry(call) {
        // A file system without this call.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE)) => {
            file.sync_data()
        }
        result => result.map(drop),
    }
}

/// Bytes of a file that are looked at at once.
const WINDOW: u64 = 1 << 30;

/// Returns the number of pages of a file of `len` bytes that the system has in memory.
pub(in crate::store) fn resident(file: &File, len: u64) -> io::Result<u64> {
    let page = rustix::param::page_size() as u64;
    let mut count = 0;
    for offset in (0..len).step_by(WINDOW as usize) {
        let len = WINDOW.min(len - offset);
        let mut pages = vec![0u8; len.div_ceil(page) as usize];
        // SAFETY: a new mapping is made, which replaces none. Its memory is never accessed.
        let address = unsafe {
            let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), len as usize, protection, flags, file.as_raw_fd(), position(offset)?)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping has `len` bytes, and `pages` has a byte for each of its pages.
        let looked = retry(|| unsafe { libc::mincore(address, len as usize, pages.as_mut_ptr()) as libc::ssize_t });
        // SAFETY: the mapping was made above, and nothing refers to it.
        unsafe { libc::munmap(address, len as usize) };
        looked?;
        count += pages.iter().filter(|page| *page & 1 != 0).count() as u64;
    }
    Ok(count)
}
