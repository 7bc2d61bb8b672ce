//! The two system calls of the data path, over raw pieces of memory, the one that looks for
//! readiness, and two socket options that no safe library has. All `unsafe` code of this crate is
//! here and at the callers.
//!
//! **Why.** `std::io::IoSlice` is created from references, and a reference to memory that a peer
//! may write is forbidden (`bmi_core::mem`).
//!
//! **Invariants.** Only the kernel dereferences a [`Piece`], inside a call of this module. The
//! caller of that call vouches for it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use crate::silence::Sample;

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

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// Returns its first bytes, at most `len`.
    pub(crate) fn first(&self, len: usize) -> Piece {
        Piece::new(self.ptr(), len.min(self.len()))
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

/// Writes private bytes to the socket, as many as it takes. The system keeps the end for a while if
/// `more` follows.
pub(crate) fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], more: bool) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    // SAFETY: the bytes are borrowed for the call.
    moved(unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
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

/// Number of events that one call to epoll reports.
pub(crate) const EPOLL_EVENTS: usize = 256;

/// Replaces `events` by what epoll reports within `timeout`, which is rounded up to milliseconds;
/// `None` is without end. A signal ends the call early.
pub(crate) fn wait(
    epoll: BorrowedFd<'_>,
    events: &mut Vec<libc::epoll_event>,
    timeout: Option<Duration>,
) -> io::Result<()> {
    events.clear();
    events.reserve(EPOLL_EVENTS);
    let millis = |timeout: Duration| timeout.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(libc::c_int::MAX);
    let (timeout, most) = (timeout.map_or(-1, millis), EPOLL_EVENTS as libc::c_int);
    // SAFETY: there is room for `most` events.
    match moved(unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), most, timeout) } as isize) {
        // SAFETY: the kernel has written so many.
        Ok(count) => unsafe { events.set_len(count) },
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// `TCP_RTO_MAX_MS` of Linux 6.15 and later.
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// The values in milliseconds that the system takes for it.
const RTO_MAX_RANGE: (u128, u128) = (1_000, 120_000);

/// Limits the interval between two retransmissions or probes, as near to `interval` as the system
/// allows. Systems that know no such limit keep theirs, which is two minutes.
pub(crate) fn limit_retransmission_interval(socket: BorrowedFd<'_>, interval: Duration) -> io::Result<()> {
    let (least, most) = RTO_MAX_RANGE;
    let value = interval.as_millis().clamp(least, most) as libc::c_int;
    // SAFETY: the option is an integer, which lives during the call.
    let result = unsafe {
        let (value, len) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, TCP_RTO_MAX_MS, value, len)
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOPROTOOPT) { Ok(()) } else { Err(error) }
}

/// `struct tcp_info` of Linux, up to the last field that is used here. That of `libc` ends earlier.
#[derive(Default)]
#[repr(C)]
struct TcpInfo {
    states: [u8; 2],
    retransmits: u8,
    probes: u8,
    backoff_to_bits: [u8; 4],
    rto_to_rcv_mss: [u32; 4],
    unacked: u32,
    sacked_to_last_data_recv: [u32; 7],
    last_ack_recv_ms: u32,
    pmtu_to_total_retrans: [u32; 11],
    pacing_rate_to_bytes_received: [u64; 4],
    segs: [u32; 2],
    notsent_bytes: u32,
    min_rtt: u32,
}

/// Asks the system what the peer's host has answered.
pub(crate) fn answers(socket: BorrowedFd<'_>) -> io::Result<Sample> {
    let mut info = TcpInfo::default();
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, which consists of integers without
    // gaps. Both live during the call.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut len)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Sample {
        waiting: info.unacked > 0 || info.notsent_bytes > 0,
        unanswered: info.retransmits.max(info.probes),
        quiet: Duration::from_millis(info.last_ack_recv_ms.into()),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::mem::offset_of;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_system_says_what_waits_for_the_peer() {
        let ours = (offset_of!(TcpInfo, unacked), offset_of!(TcpInfo, last_ack_recv_ms), offset_of!(TcpInfo, segs));
        let theirs = (offset_of!(libc::tcp_info, tcpi_unacked), offset_of!(libc::tcp_info, tcpi_last_ack_recv));
        assert_eq!(ours, (theirs.0, theirs.1, 136), "the kernel's struct has the rest at fixed places");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!answers(stream.as_fd()).unwrap().waiting);
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 64 << 10]).is_ok() {}
        let sample = answers(stream.as_fd()).unwrap();
        assert!(sample.waiting && sample.quiet < Duration::from_secs(5), "{sample:?}");
        for interval in [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(7200)] {
            limit_retransmission_interval(stream.as_fd(), interval).unwrap();
        }
    }
}
