//! Records what a real client sends, by standing between a `pvfs` command and the servers.
//!
//! **How.** Over TCP the servers are configured with the address of a relay for each of them, and
//! each relay connects to the real port. Over shared memory the socket of a server gets another
//! name, and a relay listens under its own. It passes packets on with their descriptors, and keeps
//! the client's area, which is read at the end. After the recording the relays are gone.
//!
//! **Invariant.** Nothing is changed on the way, so that the command succeeds.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketType,
};

use super::spec::{Packet, ShmStream, TcpStream as Recorded, Turn};

/// Bytes of a line of an area.
const LINE: usize = 64;
/// Longest packet of the protocol and more.
const MOST_PACKET: usize = 4096;

/// What a relay has recorded, by connection.
type Shared<T> = Arc<Mutex<Vec<Arc<Mutex<T>>>>>;

fn snapshot<T: Clone>(shared: &Shared<T>) -> Vec<T> {
    let all = shared.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().map(|one| one.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect()
}

fn add<T: Default>(shared: &Shared<T>) -> Arc<Mutex<T>> {
    let one = Arc::new(Mutex::new(T::default()));
    shared.lock().unwrap_or_else(PoisonError::into_inner).push(one.clone());
    one
}

/// A relay over TCP. Its threads end with their connections, or with the process.
pub(super) struct TcpRelay {
    pub(super) addr: String,
    streams: Shared<Recorded>,
}

impl TcpRelay {
    /// Starts a relay to `server`, which is `host:port`.
    pub(super) fn start(server: &str) -> io::Result<TcpRelay> {
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        let listener = TcpListener::bind((host, 0))?;
        let addr = listener.local_addr()?.to_string();
        let (streams, server): (Shared<Recorded>, String) = (Shared::default(), server.to_owned());
        let into = streams.clone();
        let accept = move || {
            for client in listener.incoming().map_while(Result::ok) {
                // A server that is not up yet refuses. The client's connection ends then too.
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let _ = relay(client, server, &add(&into));
            }
        };
        std::thread::Builder::new().name("relay".into()).spawn(accept)?;
        Ok(TcpRelay { addr, streams })
    }

    /// Returns the number of connections so far.
    pub(super) fn connections(&self) -> usize {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns what the connections after the first `skipped` ones have sent.
    pub(super) fn streams(&self, skipped: usize) -> Vec<Recorded> {
        snapshot(&self.streams).into_iter().skip(skipped).filter(|stream| !stream.turns.is_empty()).collect()
    }
}

/// Passes bytes on in both directions, each in a thread of its own.
fn relay(client: TcpStream, server: TcpStream, into: &Arc<Mutex<Recorded>>) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let pass = |mut from: TcpStream, mut to: TcpStream, into: Arc<Mutex<Recorded>>, is_client: bool| {
        move || {
            let mut bytes = vec![0; 64 << 10];
            while let Ok(len @ 1..) = from.read(&mut bytes) {
                note(&mut into.lock().unwrap_or_else(PoisonError::into_inner), &bytes[..len], is_client);
                if to.write_all(&bytes[..len]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Write);
        }
    };
    let there = pass(client.try_clone()?, server.try_clone()?, into.clone(), true);
    std::thread::Builder::new().spawn(there)?;
    std::thread::Builder::new().spawn(pass(server, client, into.clone(), false))?;
    Ok(())
}

fn note(stream: &mut Recorded, bytes: &[u8], is_client: bool) {
    match stream.turns.last_mut() {
        Some(turn) if is_client && turn.answered == 0 => turn.sent.extend(bytes),
        Some(turn) if !is_client => turn.answered += bytes.len(),
        None if !is_client => {}
        _ => stream.turns.push(Turn { sent: bytes.to_vec(), answered: 0 }),
    }
}

/// What is known of a connection over shared memory.
#[derive(Clone, Default)]
struct Seen {
    packets: Vec<Packet>,
    /// The first descriptor that came from the client: its area.
    area: Option<Arc<OwnedFd>>,
}

/// A relay over shared memory, in the place of a server's socket.
pub(super) struct ShmRelay<'a> {
    path: &'a Path,
    streams: Shared<Seen>,
}

impl ShmRelay<'_> {
    /// Takes the place of the socket at `path`.
    pub(super) fn start(path: &Path) -> io::Result<ShmRelay<'_>> {
        let real = real(path);
        std::fs::rename(path, &real)?;
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&listener, 64)?;
        let streams: Shared<Seen> = Shared::default();
        let into = streams.clone();
        let accept = move || {
            while let Ok(client) = rustix::net::accept(&listener) {
                let Ok(server) = connect(&real) else { continue };
                let seen = add(&into);
                let _ = std::thread::Builder::new().spawn(move || pass(&client, &server, &seen));
            }
        };
        std::thread::Builder::new().name("relay".into()).spawn(accept)?;
        Ok(ShmRelay { path, streams })
    }

    /// Gives the server its name back, and returns what was recorded.
    pub(super) fn end(self) -> io::Result<Vec<ShmStream>> {
        std::fs::rename(real(self.path), self.path)?;
        let streams = snapshot(&self.streams).into_iter().map(|seen| stream(&seen));
        streams.filter(|stream| stream.as_ref().map_or(true, |stream| stream.area_len > 0)).collect()
    }
}

fn real(path: &Path) -> std::path::PathBuf {
    path.with_extension("real")
}

fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Passes packets on until one side ends.
fn pass(client: &OwnedFd, server: &OwnedFd, seen: &Mutex<Seen>) {
    loop {
        let mut ready = [PollFd::new(client, PollFlags::IN), PollFd::new(server, PollFlags::IN)];
        if poll(&mut ready, None).is_err() {
            return;
        }
        let from_client = !ready[0].revents().is_empty();
        let (from, to) = if from_client { (client, server) } else { (server, client) };
        let mut bytes = [0; MOST_PACKET];
        let Ok((len @ 1.., fds)) = receive(from, &mut bytes) else { return };
        if from_client {
            let lens = fds.iter().map(|fd| rustix::fs::fstat(fd).map_or(0, |stat| stat.st_size as u64)).collect();
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.packets.push(Packet { bytes: bytes[..len].to_vec(), passed: lens });
            if let (None, Some(fd)) = (&seen.area, fds.first()) {
                seen.area = fd.try_clone().ok().map(Arc::new);
            }
        }
        if send(to, &bytes[..len], &fds).is_err() {
            return;
        }
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

fn send(to: &OwnedFd, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Returns a stream with the lines of its area that are not zero.
fn stream(seen: &Seen) -> io::Result<ShmStream> {
    let Some(area) = &seen.area else { return Ok(ShmStream::default()) };
    let file = File::from(area.try_clone()?);
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let lines = bytes.chunks(LINE).enumerate().filter(|(_, line)| line.iter().any(|byte| *byte != 0));
    let lines = lines
        // The first lines are positions and claims of a connection that has ended.
        .filter(|(number, _)| *number >= 8)
        .map(|(number, line)| ((number * LINE) as u64, line.to_vec()))
        .collect();
    Ok(ShmStream { packets: seen.packets.clone(), area_len: bytes.len() as u64, lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_records_turns_and_changes_nothing() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = TcpRelay::start(&server.local_addr().unwrap().to_string()).unwrap();
        let mut client = TcpStream::connect(&relay.addr).unwrap();
        let (mut there, _) = server.accept().unwrap();
        let (mut one, mut two) = ([0; 5], [0; 3]);
        for _ in 0..2 {
            client.write_all(b"hello").unwrap();
            there.read_exact(&mut one).unwrap();
            there.write_all(b"you").unwrap();
            client.read_exact(&mut two).unwrap();
            assert_eq!((&one, &two), (b"hello", b"you"));
        }
        let turn = Turn { sent: b"hello".to_vec(), answered: 3 };
        assert_eq!((relay.connections(), relay.streams(0)), (1, vec![Recorded { turns: vec![turn.clone(), turn] }]));
        assert!(relay.streams(1).is_empty());
    }
}
