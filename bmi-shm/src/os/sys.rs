//! Memory and processes as the kernel provides them: memfds, mappings, and the memory of another
//! process.
//!
//! **Why.** All checks that must pass before this process may access another process's bytes are in
//! one small module.
//!
//! **Invariants**
//! 1. A descriptor that a peer passed is mapped only by [`map_peer`]. It is a memfd on ordinary
//!    pages, sealed against shrinking, and as long as the mapping. So no access ends in `SIGBUS`,
//!    whatever the peer does.
//! 2. An area of this side is sealed so that no other process can ever map it writable
//!    ([`new_area`]).
//!
//! **Tests**: `hostile` passes descriptors of every wrong kind.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use bmi_core::PeerIdentity;
use bmi_core::mem::Lender;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, PidfdFlags};

/// The file system of a memfd on ordinary pages. A memfd on huge pages has another file system, and
/// any access to it can fail when huge pages run out.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// The socket option that returns a descriptor of the peer's process, since Linux 6.5. It has this
/// number on all processors that this crate supports.
const SO_PEERPIDFD: libc::c_int = 77;

/// A mapping, unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping is an address range, valid on every thread. Its bytes are accessed atomically
// or by the kernel.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(fd: impl AsFd, len: usize, access: ProtFlags) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory that exists.
        let ptr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0)? };
        let ptr = NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { ptr, len, writable: access.contains(ProtFlags::WRITE) })
    }

    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length. Everything that points into the mapping holds
        // it.
        if let Err(error) = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast::<c_void>(), self.len) } {
            tracing::error!(%error, "cannot unmap shared memory");
        }
    }
}

/// Creates `len` zero bytes that this process can write. Any other process that gets the descriptor
/// can only read them.
pub(crate) fn new_area(len: usize) -> io::Result<(OwnedFd, Mapping)> {
    let fd = rustix::fs::memfd_create("bmi-area", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    let mapping = Mapping::new(&fd, len, ProtFlags::READ | ProtFlags::WRITE)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok((fd, mapping))
}

/// Maps the memory that a peer passed, all `len` bytes of it, also for writing if `writable` and
/// the descriptor allows it. The outer error is the peer's fault,
/// the inner error this system's.
pub(crate) fn map_peer(fd: &OwnedFd, len: u64, writable: bool) -> Result<io::Result<Mapping>, &'static str> {
    // Only a memfd has seals.
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| "it passed a descriptor that is no memfd")?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err("it passed memory that is not sealed against a change of length");
    }
    let kind = rustix::fs::fstatfs(fd).map_err(|_| "it passed a descriptor of no file system")?.f_type;
    if kind != TMPFS_MAGIC {
        return Err("it passed memory that is not in ordinary pages");
    }
    let size = rustix::fs::fstat(fd).map_err(|_| "it passed a descriptor without a length")?.st_size;
    if u64::try_from(size) != Ok(len) || len == 0 {
        return Err("it passed memory of another length than it says");
    }
    let len = usize::try_from(len).map_err(|_| "it passed more memory than can be mapped")?;
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|_| "it passed a descriptor without flags")?;
    let writable = writable && flags & OFlags::ACCMODE == OFlags::RDWR;
    let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    Ok(Mapping::new(fd, len, access))
}

/// The process at the other end of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Credentials {
    /// The process number, or 0 if this process cannot see it because it is in another namespace.
    pub(crate) pid: i32,
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl From<Credentials> for PeerIdentity {
    fn from(process: Credentials) -> PeerIdentity {
        let Credentials { pid, user, group } = process;
        PeerIdentity::Process { process: pid.max(0) as u32, user, group }
    }
}

/// Returns the credentials of the process at the other end. Calls `getsockopt` directly because the
/// process number may be 0 here, which the safe wrapper does not allow.
pub(crate) fn credentials(socket: &OwnedFd) -> io::Result<Credentials> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the call writes at most `len` bytes to the structure that the option uses.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut peer).cast(),
            &mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Credentials { pid: peer.pid, user: peer.uid, group: peer.gid })
}

/// A process that lends pages to this one.
pub(crate) struct LenderProcess(OwnedFd);

impl LenderProcess {
    /// Returns the process at the other end of a socket. `None` if its death could not be learned.
    pub(crate) fn of_peer(socket: &OwnedFd) -> Option<LenderProcess> {
        match Life::of_peer(socket) {
            Life::Watched(process) => Some(LenderProcess(process)),
            Life::Over | Life::Number(_) => None,
        }
    }
}

impl Lender for LenderProcess {
    fn is_alive(&self) -> bool {
        !has_ended(&self.0)
    }
}

/// Returns whether all threads of a process have ended. If the kernel cannot tell, returns false.
fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
}

/// What is known of the life of a peer's process: the one that connected, or the one that listened.
#[derive(Debug)]
pub(crate) enum Life {
    /// This descriptor tells.
    Watched(OwnedFd),
    /// The process is dead, and its number may be another's by now.
    Over,
    /// There was no descriptor for it. The number can be asked, unless it is 0 because the process
    /// is in another namespace.
    Number(i32),
}

impl Life {
    /// Returns what is known of the process at the other end of a socket.
    pub(crate) fn of_peer(socket: &OwnedFd) -> Life {
        match peer_process(socket) {
            Ok(process) => Life::Watched(process),
            Err(libc::ESRCH) => Life::Over,
            // Linux before 6.5 does not know the option. Later ones refuse it, with several errors,
            // for a process that is dead and was waited for.
            Err(_) => Life::of_number(credentials(socket).map_or(0, |credentials| credentials.pid)),
        }
    }

    /// Does the same by a process number. If the number is another process's by now, the answer is
    /// about that process, so a dead process may seem to live.
    fn of_number(number: i32) -> Life {
        let Some(pid) = Pid::from_raw(number) else { return Life::Number(0) };
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Life::Watched(process),
            Err(rustix::io::Errno::SRCH) => Life::Over,
            Err(_) => Life::Number(number),
        }
    }

    /// Returns whether the process is known to be dead.
    pub(crate) fn is_over(&mut self) -> bool {
        if let Life::Number(number) = *self {
            *self = Life::of_number(number);
        }
        match self {
            Life::Watched(process) => has_ended(process),
            Life::Over => true,
            Life::Number(_) => false,
        }
    }
}

/// Returns a descriptor of the process at the other end of a socket, or the error's number.
fn peer_process(socket: &OwnedFd) -> Result<OwnedFd, i32> {
    let mut process: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the call writes at most `len` bytes to the number that the option uses.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            std::ptr::from_mut(&mut process).cast(),
            &mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    }
    // SAFETY: the call has made this descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(process) })
}

/// Another process between whose memory and this process's the kernel copies.
///
/// The kernel allows this to a process that may trace the other one: usually one of the same user.
/// It neither improves security nor harms it, because such a process can reach all of the other's
/// memory without this library too.
///
/// The process is known by its number, and by two random words in its memory: a cookie, and the
/// proof behind it. The number alone may be another process's by now. A descriptor of the process
/// would tell too, but it would be one more for each connection.
#[derive(Debug)]
pub(crate) struct Process {
    pid: i32,
    address: u64,
    words: [u64; 2],
}

impl Process {
    /// Returns the process with number `pid` if its memory can be read: `cookie` must be at
    /// `address`. Also returns the word behind the cookie, which is the proof.
    pub(crate) fn probe(pid: i32, address: u64, cookie: u64) -> Option<(Process, u64)> {
        let pid = Pid::from_raw(pid)?.as_raw_nonzero().get();
        let words = read_words(pid, address).filter(|words| words[0] == cookie)?;
        Some((Process { pid, address, words }, words[1]))
    }

    /// Copies `len` bytes between the local pieces and `address` in the process. Returns how many
    /// were copied.
    ///
    /// The process number may have been reused, so that the call would reach an unrelated process.
    /// So each call first looks for the two words. They are gone if the process has ended, or
    /// executes another program.
    ///
    /// # Safety
    /// The pieces must be valid for reads (`write`) or writes, with no reference to them, during
    /// the call.
    pub(crate) unsafe fn copy(
        &self,
        write: bool,
        local: &[libc::iovec],
        address: u64,
        len: usize,
    ) -> Result<usize, io::ErrorKind> {
        if read_words(self.pid, self.address) != Some(self.words) {
            return Err(io::ErrorKind::NotFound);
        }
        // SAFETY: the caller guarantees the local pieces.
        unsafe { copy(self.pid, write, local, address, len) }
    }
}

/// Reads two words in the memory of the process with this number.
fn read_words(pid: i32, address: u64) -> Option<[u64; 2]> {
    let mut words = [0u64; 2];
    let len = size_of_val(&words);
    let local = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: len };
    // SAFETY: the local entry is the array above.
    let read = unsafe { copy(pid, false, &[local], address, len) };
    (read == Ok(len)).then_some(words)
}

/// Copies `len` bytes between the local pieces and `address` in the process with this number.
/// Returns how many were copied.
///
/// # Safety
/// The pieces must be valid for reads (`write`) or writes, with no reference to them, during the
/// call.
unsafe fn copy(pid: i32, write: bool, local: &[libc::iovec], address: u64, len: usize) -> Result<usize, io::ErrorKind> {
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: len };
    let count = local.len() as libc::c_ulong;
    // SAFETY: the caller guarantees the local pieces. The remote one has no meaning in this
    // process.
    let copied = unsafe {
        if write {
            libc::process_vm_writev(pid, local.as_ptr(), count, &remote, 1, 0)
        } else {
            libc::process_vm_readv(pid, local.as_ptr(), count, &remote, 1, 0)
        }
    };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error().kind())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Two sockets that the kernel connected for this process.
    fn pair() -> (OwnedFd, OwnedFd) {
        use rustix::net::{AddressFamily, SocketFlags, SocketType};
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_process_is_reached_while_its_words_are_there() {
        let words = Box::new([7u64, 8]);
        let (number, address) = (std::process::id() as i32, std::ptr::from_ref(&*words) as u64);
        assert!(Process::probe(number, address, 9).is_none(), "another cookie");
        let (process, proof) = Process::probe(number, address, 7).unwrap();
        assert_eq!(proof, 8);
        let read = |process: &Process| {
            let mut byte = [0u8];
            let local = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
            // SAFETY: the local entry is the byte above.
            unsafe { process.copy(false, &[local], address + 8, 1) }.map(|_| byte[0])
        };
        assert_eq!(read(&process), Ok(8));
        let other = Process { words: [7, 9], ..process };
        assert_eq!(read(&other), Err(io::ErrorKind::NotFound));

        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let other = Process { pid: child.id() as i32, words: [7, 8], ..other };
        assert_eq!(read(&other), Err(io::ErrorKind::NotFound), "another process has other words there, or none");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(read(&other), Err(io::ErrorKind::NotFound), "it is dead");
    }

    #[test]
    fn a_process_is_over_when_it_is_dead() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let number = child.id() as i32;
        let mut watched = Life::of_number(number);
        let mut asked = Life::Number(number);
        assert!(!watched.is_over() && !asked.is_over());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(watched.is_over(), "by its descriptor");
        assert!(Life::of_number(number).is_over() && Life::Number(number).is_over(), "by its number");
        assert!(!Life::Number(0).is_over(), "nothing is known of it");
        let (here, _there) = pair();
        assert!(!Life::of_peer(&here).is_over(), "this process lives");
    }
}
