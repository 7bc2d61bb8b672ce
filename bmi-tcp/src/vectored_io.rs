//! The two system calls of the data path, over raw pieces of memory. All `unsafe` code of this
//! crate is here and at the callers.
//!
//! **Why.** `std::io::IoSlice` is created from references, and a reference to memory that a peer
//! may write is forbidden (`bmi_core::mem`).
//!
//! **Invariants.** Only the kernel dereferences a [`Piece`], inside a call of this module. The
//! caller of that call vouches for it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Number of pieces that one system call takes (`IOV_MAX` of Linux).
pub(crate) const MAX_PIECES: usize = 1024;

/// The address and length of some bytes.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct Piece(libc::iovec);

// SAFETY: it holds only an address and a length. The callers of `send` and `receive`, which pass it
// to the kernel, vouch for the memory.
unsafe impl Send for Piece {}

impl Piece {
    pub(crate) fn new(ptr: *mut u8, len: usize) -> Piece {
        Piece(libc::iovec { iov_base: ptr.cast(), iov_len: len })
    }

    /// Returns a piece of private bytes that are only read.
    pub(crate) fn of(bytes: &[u8]) -> Piece {
        Piece::new(bytes.as_ptr().cast_mut(), bytes.len())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iov_len
    }

    #[cfg(test)]
    pub(crate) fn base(&self) -> *mut libc::c_void {
        self.0.iov_base
    }

    /// Returns the piece without its first `n` bytes.
    pub(crate) fn skip(&self, n: usize) -> Piece {
        Piece::new(self.0.iov_base.cast::<u8>().wrapping_add(n), self.0.iov_len - n)
    }
}

fn message(pieces: &[Piece]) -> libc::msghdr {
    // SAFETY: all zeros is a valid `msghdr`: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len().min(MAX_PIECES) as _;
    message
}

fn moved(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Writes the pieces to the socket, as many bytes as it takes. Never blocks, and never raises a
/// signal.
///
/// # Safety
/// Every piece must be readable during the call. Concurrent accesses to it must be atomic or made
/// by the kernel.
pub(crate) unsafe fn send(socket: BorrowedFd<'_>, pieces: &[Piece]) -> io::Result<usize> {
    const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the caller vouches for the pieces. `message` points to a live array of them.
    moved(unsafe {
        match pieces {
            [one] => libc::send(socket.as_raw_fd(), one.0.iov_base, one.0.iov_len, FLAGS),
            many => libc::sendmsg(socket.as_raw_fd(), &message(many), FLAGS),
        }
    })
}

/// Fills the pieces in order from the socket, with as many bytes as it has. Never blocks. Returns 0
/// at the end of the stream.
///
/// # Safety
/// Every piece must be writable during the call. No reference to it may exist. Concurrent accesses
/// to it must be atomic or made by the kernel.
pub(crate) unsafe fn receive(socket: BorrowedFd<'_>, pieces: &[Piece]) -> io::Result<usize> {
    // SAFETY: the caller vouches for the pieces. `message` points to a live array of them.
    moved(unsafe {
        match pieces {
            [one] => libc::recv(socket.as_raw_fd(), one.0.iov_base, one.0.iov_len, libc::MSG_DONTWAIT),
            many => libc::recvmsg(socket.as_raw_fd(), &mut message(many), libc::MSG_DONTWAIT),
        }
    })
}
