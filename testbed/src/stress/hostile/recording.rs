//! Records what a real client sends, by standing between a `pvfs` command and the servers.
//!
//! **How.** Over TCP the servers are configured with the address of a relay for each of them, and
//! each relay connects to the real port. Over shared memory the socket of a server gets another
//! name, and a relay listens under its own. It passes packets on with their descriptors, and keeps
//! the client's area, which is read at the end. After the recording the relays are gone.
//!
//! **Invariant.** Nothing is changed on the way, so that the command succeeds.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketType,
};

use super::spec::{Part, Stream};

/// Bytes of a line of an area. The first lines are positions and claims of a connection that has
/// ended.
const LINE: usize = 64;
const FIRST_LINES: usize = 8;
/// Most bytes that are passed on at a time: more than the longest packet.
const MOST: usize = 64 << 10;

/// The connections so far, each with the client's area.
type Seen = Arc<Mutex<Vec<(Stream, Option<OwnedFd>)>>>;

fn locked(seen: &Seen) -> MutexGuard<'_, Vec<(Stream, Option<OwnedFd>)>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A relay before a server. Its threads end with their connections, or with the process.
pub(super) struct Relay(Seen);

impl Relay {
    /// Starts a relay over TCP to `server`, which is `host:port`. Returns its own `host:port`.
    pub(super) fn tcp(server: &str) -> io::Result<(Relay, String)> {
        let server: SocketAddr = server.parse().map_err(io::Error::other)?;
        // Not at the server's host: the port there of a server that is not up yet seems to be free.
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?.to_string();
        let dial = move || {
            let socket = TcpStream::connect(server)?;
            socket.set_nodelay(true)?;
            Ok(socket.into())
        };
        Ok((Relay::start(listener.into(), dial)?, addr))
    }

    /// Starts a relay in the place of the socket at `path`.
    pub(super) fn shm(path: &Path) -> io::Result<Relay> {
        let real = real(path);
        std::fs::rename(path, &real)?;
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&listener, 64)?;
        Relay::start(listener, move || connect(&real))
    }

    fn start(listener: OwnedFd, dial: impl Fn() -> io::Result<OwnedFd> + Send + 'static) -> io::Result<Relay> {
        let seen = Seen::default();
        let into = seen.clone();
        let accept = move || {
            while let Ok(client) = rustix::net::accept(&listener) {
                // A server that is not up yet refuses. The client's connection ends then too.
                let Ok(server) = dial() else { continue };
                let number = locked(&into).len();
                locked(&into).push(Default::default());
                let into = into.clone();
                // The error is that one side has ended, which ends the other one.
                let _ = std::thread::Builder::new().spawn(move || pass(&client, &server, &into, number));
            }
        };
        std::thread::Builder::new().name("relay".into()).spawn(accept)?;
        Ok(Relay(seen))
    }

    /// Returns the number of connections so far.
    pub(super) fn connections(&self) -> usize {
        locked(&self.0).len()
    }

    /// Returns what clients have sent over each connection after the first `skipped` ones. Over
    /// shared memory the connections have ended.
    pub(super) fn streams(&self, skipped: usize) -> io::Result<Vec<Stream>> {
        let streams = locked(&self.0).iter().skip(skipped).map(stream).collect::<io::Result<Vec<_>>>()?;
        Ok(streams.into_iter().filter(|stream| !stream.parts.is_empty()).collect())
    }
}

/// Gives a server its socket back, in whose place a relay was.
pub(super) fn put_back(path: &Path) -> io::Result<()> {
    std::fs::rename(real(path), path)
}

fn real(path: &Path) -> PathBuf {
    path.with_extension("real")
}

/// Connects to the socket of a server over shared memory.
pub(super) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Passes bytes on until one side ends, and records those of the client.
fn pass(client: &OwnedFd, server: &OwnedFd, into: &Seen, number: usize) -> io::Result<()> {
    let is_packets = rustix::net::sockopt::socket_type(client)? == SocketType::SEQPACKET;
    let mut bytes = vec![0; MOST];
    loop {
        let mut ready = [PollFd::new(client, PollFlags::IN), PollFd::new(server, PollFlags::IN)];
        poll(&mut ready, None)?;
        let is_client = !ready[0].revents().is_empty();
        let (from, to) = if is_client { (client, server) } else { (server, client) };
        let (len, fds) = receive(from, &mut bytes)?;
        if len == 0 {
            return Ok(());
        }
        let passed = fds.iter().map(|fd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_size as u64)).collect();
        {
            let (stream, area) = &mut locked(into)[number];
            if is_client {
                note(stream, &bytes[..len], passed, is_packets);
                if let (None, Some(fd)) = (&area, fds.first()) {
                    *area = Some(fd.try_clone()?);
                }
            } else if let Some(part) = stream.parts.last_mut() {
                part.answered += len;
            }
        }
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let mut sent = send(to, &bytes[..len], &fds, SendFlags::empty())?;
        while sent < len {
            sent += send(to, &bytes[sent..len], &[], SendFlags::empty())?;
        }
    }
}

/// Adds bytes of the client. Those of a stream belong to one part until the server answers.
fn note(stream: &mut Stream, bytes: &[u8], passed: Vec<u64>, is_packet: bool) {
    match stream.parts.last_mut() {
        Some(part) if part.answered == 0 && !is_packet => part.sent.extend(bytes),
        _ => stream.parts.push(Part { sent: bytes.to_vec(), answered: 0, passed }),
    }
}

fn receive(from: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let passed = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
        _ => Vec::new(),
    });
    Ok((received.bytes, passed.collect()))
}

/// Sends bytes with descriptors. Returns how many bytes were sent.
pub(super) fn send(to: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    Ok(rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL)?)
}

/// Returns a stream with the lines of its area that are not zero.
fn stream((stream, area): &(Stream, Option<OwnedFd>)) -> io::Result<Stream> {
    let Some(area) = area else { return Ok(stream.clone()) };
    let file = File::from(area.try_clone()?);
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let lines = bytes.chunks(LINE).enumerate().skip(FIRST_LINES).filter(|(_, line)| line.iter().any(|byte| *byte != 0));
    let lines = lines.map(|(number, line)| ((number * LINE) as u64, line.to_vec())).collect();
    Ok(Stream { parts: stream.parts.clone(), area_len: bytes.len() as u64, lines })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_relay_records_turns_and_changes_nothing() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let (relay, addr) = Relay::tcp(&server.local_addr().unwrap().to_string()).unwrap();
        let mut client = TcpStream::connect(addr).unwrap();
        let (mut there, _) = server.accept().unwrap();
        let (mut one, mut two) = ([0; 5], [0; 3]);
        for _ in 0..2 {
            client.write_all(b"hello").unwrap();
            there.read_exact(&mut one).unwrap();
            there.write_all(b"you").unwrap();
            client.read_exact(&mut two).unwrap();
            assert_eq!((&one, &two), (b"hello", b"you"));
        }
        let part = Part { sent: b"hello".to_vec(), answered: 3, passed: Vec::new() };
        assert_eq!(
            (relay.connections(), relay.streams(0).unwrap()[0].parts.as_slice()),
            (1, &[part.clone(), part][..])
        );
        assert!(relay.streams(1).unwrap().is_empty());
    }
}
