//! Unix sockets: names in a private directory, packets, descriptors.
//!
//! **Names.** A socket's directory must belong to this user and be closed to all others (mode
//! 0700). If it does not exist, it is created with that mode. A killed process leaves its socket's
//! name behind. Such a name is recognized because connections to it are refused, and it is removed.
//! Two processes that want one name at the same moment take turns by a lock on the directory. The
//! lock is held only during these few calls, so it leaves nothing behind either.
//!
//! **Tests**: `tests/it/connection.rs`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Connections that the system keeps for a listener until they are accepted.
const BACKLOG: i32 = 1024;
/// Tries to get the lock of a directory. Each holder needs it for some microseconds.
const LOCK_TRIES: usize = 1000;
/// Most descriptors that are received with one packet. If there are too many, they are closed. The
/// kernel drops any more.
const MAX_DESCRIPTORS: usize = 4;

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// A listening socket and its name, which is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the name when it was made.
    inode: (u64, u64),
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Another process may have removed the name and listen there now.
        let ours = |stat: &rustix::fs::Stat| (stat.st_dev, stat.st_ino) == self.inode;
        if rustix::fs::stat(&self.path).is_ok_and(|stat| ours(&stat))
            && let Err(error) = rustix::fs::unlink(&self.path)
        {
            tracing::debug!(path = %self.path.display(), %error, "cannot remove a socket's name");
        }
    }
}

/// Why listening failed.
#[derive(Debug)]
pub(crate) enum ListenError {
    /// The path cannot be used, for example because the directory belongs to another user or the
    /// name is in use. The text says why.
    Invalid(&'static str),
    Io(io::Error),
}

impl<E: Into<io::Error>> From<E> for ListenError {
    fn from(error: E) -> ListenError {
        ListenError::Io(error.into())
    }
}

/// Opens the directory and checks its owner and mode. Creates it with mode 0700 if it does not
/// exist.
fn own_directory(path: &Path) -> Result<OwnedFd, ListenError> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&directory)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(ListenError::Invalid("its directory belongs to another user"));
    }
    if stat.st_mode & 0o077 != 0 {
        return Err(ListenError::Invalid(
            "its directory is open to other users; use one of its own with mode 0700, which is made if it is missing",
        ));
    }
    Ok(directory)
}

/// Listens at a path where no other process listens.
pub(crate) fn listen(path: &Path) -> Result<Listening, ListenError> {
    let parent = path.parent().ok_or(ListenError::Invalid("it has no directory"))?;
    let directory = own_directory(parent)?;
    let mut tries = 0;
    while let Err(error) = rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        tries += 1;
        if tries == LOCK_TRIES {
            return Err(error.into());
        }
        std::thread::yield_now();
    }
    match rustix::fs::lstat(path) {
        Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
            return Err(ListenError::Invalid("its name is taken by something that is no socket"));
        }
        Ok(_) => match connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                tracing::info!(path = %path.display(), "removed the name of a listener that is dead");
                rustix::fs::unlink(path)?;
            }
            _ => return Err(ListenError::Invalid("somebody listens there")),
        },
    }
    let socket = new_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let stat = rustix::fs::stat(path)?;
    let listening = Listening { socket, path: path.to_owned(), inode: (stat.st_dev, stat.st_ino) };
    rustix::net::listen(&listening.socket, BACKLOG)?;
    Ok(listening)
    // The lock is released when the directory's descriptor is closed.
}

/// Checks that a path can be a socket's name: at most 107 bytes.
pub(crate) fn check_name(path: &Path) -> io::Result<()> {
    Ok(SocketAddrUnix::new(path).map(|_| ())?)
}

/// Connects without waiting. The error is `WouldBlock` if the listener's queue is full.
pub(crate) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
}

/// Sends a packet, with a descriptor if there is one. Never blocks.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(fd) = &fd {
        control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

/// The descriptors that came with a packet.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    fds: Vec<OwnedFd>,
    /// Set if more came than these.
    cut: bool,
}

/// Why a packet did not come with exactly one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOne {
    /// The peer passed none, or several.
    Theirs,
    /// This process has no room for another one.
    Ours,
}

impl Passed {
    /// Returns the only descriptor.
    pub(crate) fn only(mut self) -> Result<OwnedFd, NotOne> {
        match (self.fds.pop(), self.cut) {
            (Some(fd), false) if self.fds.is_empty() => Ok(fd),
            // The kernel drops descriptors for which the buffer or this process has no room.
            (None, true) => Err(NotOne::Ours),
            _ => Err(NotOne::Theirs),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fds.is_empty() && !self.cut
    }
}

/// Receives a packet into `bytes`. Returns its length: 0 at the peer's end, and more than the
/// length of `bytes` if the packet is too long. Never blocks.
pub(crate) fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Passed)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let room = bytes.len();
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut passed = Passed { fds: Vec::new(), cut: received.flags.contains(ReturnFlags::CTRUNC) };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            passed.fds.extend(fds);
        }
    }
    let len = if received.flags.contains(ReturnFlags::TRUNC) { room + 1 } else { received.bytes };
    Ok((len, passed))
}
