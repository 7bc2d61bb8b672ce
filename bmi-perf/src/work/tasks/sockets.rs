//! Calls over plain sockets of tokio, as a program would write them that is to be fast.
//!
//! **Frame.** The length of what follows (u32, little-endian), the id of the call (u64), the bytes:
//! a request and the data of a write, or the data of a reply.
//!
//! **How.** Calls of all tasks share a connection. Whoever has the lock of the socket writes the
//! frames of all that wait for it, with one call. A task reads the replies, each into the buffer of
//! its call, and wakes the caller. The server reads requests in a task for each connection and
//! answers each in a task of its own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bmi::{Error, ErrorKind, Memory};
use bytes::Buf;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::{Client, Pool, REQUEST, Request, Rounds, Verb, lock};
use crate::case::{MOST_BYTES, Over};
use crate::work::produce::bytes;

/// Length of the reads of small frames in bytes.
const READ: usize = 64 << 10;
/// Data that is longer leaves from where it is. Shorter data is copied, so that frames of several
/// tasks leave with one call.
const LONG: usize = 16 << 10;

fn protocol(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, what)
}

/// Returns the bytes of the data of a frame, if it has any.
fn content(data: &mut Option<Memory>) -> &mut [u8] {
    data.as_mut().map_or(&mut [], bytes)
}

/// The way out of a connection, which tasks share.
struct Out {
    /// Frames that wait for the socket.
    waiting: Mutex<Vec<u8>>,
    /// The socket, and a buffer for what leaves.
    socket: AsyncMutex<(OwnedWriteHalf, Vec<u8>)>,
}

impl Out {
    /// Sends a frame. If it is written with those of others, another task may see the error.
    async fn send(&self, id: u64, front: &[u8], data: &[u8]) -> Result<(), Error> {
        let len = u32::try_from(front.len() + data.len()).map_err(|_| protocol("a frame that is too long"))?;
        let put_front = |frames: &mut Vec<u8>| {
            frames.extend_from_slice(&len.to_le_bytes());
            frames.extend_from_slice(&id.to_le_bytes());
            frames.extend_from_slice(front);
        };
        let is_long = data.len() > LONG;
        if !is_long {
            let mut waiting = lock(&self.waiting);
            put_front(&mut waiting);
            waiting.extend_from_slice(data);
        }
        let mut socket = self.socket.lock().await;
        let (half, frames) = &mut *socket;
        frames.clear();
        std::mem::swap(frames, &mut *lock(&self.waiting));
        if is_long {
            put_front(frames);
            half.write_all_buf(&mut Buf::chain(&frames[..], data)).await?;
        } else {
            half.write_all(frames).await?;
        }
        Ok(())
    }
}

fn split(stream: TcpStream) -> Result<(BufReader<OwnedReadHalf>, Arc<Out>), Error> {
    stream.set_nodelay(true)?;
    let (read, write) = stream.into_split();
    let out = Out { waiting: Mutex::default(), socket: AsyncMutex::new((write, Vec::new())) };
    Ok((BufReader::with_capacity(READ, read), Arc::new(out)))
}

/// The calls that wait for their replies: where the data goes, and who is to be told.
type Calls = Mutex<HashMap<u64, (Option<Memory>, oneshot::Sender<Option<Memory>>)>>;

/// A connection of a client.
pub(super) struct Connection {
    out: Arc<Out>,
    calls: Arc<Calls>,
    next: AtomicU64,
}

/// Connects to a server.
pub(super) async fn connect(to: &str, connections: u32) -> Result<Vec<Arc<Connection>>, Error> {
    let mut all = Vec::new();
    for _ in 0..connections {
        let (read, out) = split(TcpStream::connect(to).await?)?;
        let calls = Arc::<Calls>::default();
        let of_reader = calls.clone();
        tokio::spawn(async move {
            let ended = read_replies(read, &of_reader).await;
            // Nobody answers those that still wait.
            lock(&of_reader).clear();
            ended
        });
        all.push(Arc::new(Connection { out, calls, next: AtomicU64::new(0) }));
    }
    Ok(all)
}

async fn read_replies(mut from: BufReader<OwnedReadHalf>, calls: &Calls) -> Result<(), Error> {
    loop {
        let (len, id) = (from.read_u32_le().await? as usize, from.read_u64_le().await?);
        let called = lock(calls).remove(&id);
        let (mut into, told) = called.ok_or_else(|| protocol("a reply to no call"))?;
        let place = content(&mut into).get_mut(..len).ok_or_else(|| protocol("a reply that is too long"))?;
        from.read_exact(place).await?;
        // The caller may have gone.
        let _ = told.send(into);
    }
}

impl Client for Arc<Connection> {
    async fn call(&self, request: Request, data: Memory) -> Result<Memory, Error> {
        let (mut out, into) = if request.verb == Verb::Write { (Some(data), None) } else { (None, Some(data)) };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        lock(&self.calls).insert(id, (into, tell));
        self.out.send(id, &request.encode(), content(&mut out)).await?;
        let lost = || Error::new(ErrorKind::PeerLost, "the server has closed the connection");
        let came = told.await.map_err(|_| lost())?;
        out.or(came).ok_or_else(lost)
    }
}

/// Listens, and serves until the runtime ends. Returns where it listens.
pub(super) async fn serve(at: SocketAddr, rounds: Arc<Rounds>) -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind(at).await?;
    let at = listener.local_addr()?;
    let server = Arc::new(Server { rounds, pool: Pool(Over::Sockets, Mutex::default()) });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(server.clone().read_requests(stream));
        }
    });
    Ok(at)
}

struct Server {
    rounds: Arc<Rounds>,
    pool: Pool,
}

impl Server {
    /// Reads requests until the client goes, or sends something odd.
    async fn read_requests(self: Arc<Server>, stream: TcpStream) -> Result<(), Error> {
        let (mut from, out) = split(stream)?;
        loop {
            let (len, id) = (from.read_u32_le().await? as usize, from.read_u64_le().await?);
            let data = len.checked_sub(REQUEST).filter(|data| *data as u64 <= MOST_BYTES);
            let mut data = self.memory(data.ok_or_else(|| protocol("a request of an odd length"))?)?;
            let mut request = [0; REQUEST];
            from.read_exact(&mut request).await?;
            from.read_exact(content(&mut data)).await?;
            tokio::spawn(self.clone().answer(id, Request::decode(&request)?, data, out.clone()));
        }
    }

    async fn answer(
        self: Arc<Server>,
        id: u64,
        request: Request,
        came: Option<Memory>,
        out: Arc<Out>,
    ) -> Result<(), Error> {
        self.rounds.handle(request.verb).await;
        came.into_iter().for_each(|memory| self.pool.put(memory));
        // At most as long as `Request::decode` admits.
        let mut data = self.memory(request.size as usize)?;
        out.send(id, &[], content(&mut data)).await?;
        data.into_iter().for_each(|memory| self.pool.put(memory));
        Ok(())
    }

    fn memory(&self, len: usize) -> Result<Option<Memory>, Error> {
        (len > 0).then(|| self.pool.take(len)).transpose()
    }
}
