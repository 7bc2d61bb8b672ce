//! Sockets whose calls a ring of the kernel (io_uring) makes.
//!
//! **How.** A call of io_uring_enter(2) hands over all that was appended, and waits for what comes.
//! Short data comes by receives that stay posted, into buffers that the kernel chooses, and that it
//! gets back at once: what has come is only counted. A long message is received where it belongs.
//! Messages that leave together are a chain of linked requests, with one completion.
//!
//! **Invariants**
//! 1. *Memory outlives its requests.* It changes or goes only while no request is in flight:
//!    [`Ring::settle`] cancels all of them.
//! 2. A connection has one receive, and one chain whose end is awaited, in flight at most.
//!
//! **Source.** io_uring(7), io_uring_enter(2), io_uring_register_buf_ring(3).

use std::io;
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::task::Poll;

use bmi::{Error, ErrorKind, Memory};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{BufRingEntry, CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};

use crate::case::{Case, Over};
use crate::work::produce::memory;
use crate::work::sockets::{LOOK, READ};

/// Number of requests that are handed over with one call at most.
const ENTRIES: u32 = 256;
/// Most messages of a chain.
pub(super) const CHAIN: u64 = 64;
/// Number of the kernel's buffers, a power of two, and the length of each in bytes.
const BUFFERS: u16 = 16;
const BUFFER: usize = 16 << 10;
/// Size of the page in which the kernel finds them.
const PAGE: usize = 4096;
/// The group of these buffers.
const GROUP: u16 = 0;
/// In the number of a request: it sends. The rest is the number of the connection.
const SENDS: u64 = 1 << 63;

/// The buffers that the kernel chooses from.
struct Buffers {
    /// The page in which the kernel finds them.
    page: Memory,
    memory: Memory,
    /// Number of buffers that the kernel got.
    provided: u16,
}

impl Buffers {
    /// Gives the kernel a buffer.
    fn provide(&mut self, id: u16) {
        let entries = self.page.as_ptr().cast::<BufRingEntry>();
        // SAFETY: the page is aligned and has room for the entries. This one is not the kernel's
        // before the tail is behind it. The tail is a word of the page that the kernel only reads.
        unsafe {
            let entry = &mut *entries.add(usize::from(self.provided % BUFFERS));
            entry.set_addr(self.memory.as_ptr() as u64 + u64::from(id) * BUFFER as u64);
            entry.set_len(BUFFER as u32);
            entry.set_bid(id);
            self.provided = self.provided.wrapping_add(1);
            let tail = &*BufRingEntry::tail(entries).cast::<AtomicU16>();
            tail.store(self.provided, Ordering::Release);
        }
    }
}

/// A connection.
struct Connection {
    stream: TcpStream,
    /// What leaves.
    out: Memory,
    /// Where long messages come.
    into: Memory,
    /// Number of bytes that have come and were not taken.
    came: usize,
    is_receiving: bool,
    is_sending: bool,
}

/// A ring and its connections.
pub(super) struct Ring {
    /// First, so that the memory of all else outlives it.
    uring: IoUring,
    buffers: Buffers,
    connections: Vec<Connection>,
    /// Length of the messages of a stream in bytes, and how many have memory of their own.
    len: usize,
    turns: u64,
}

/// Opens a ring for this thread.
///
/// # Errors
/// If the kernel is older than 6.0, or has no rings for this process.
pub(super) fn open() -> io::Result<IoUring> {
    // What a request has left to do is done when the thread enters the kernel. A flag tells it.
    IoUring::builder().setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag().build(ENTRIES)
}

impl Ring {
    pub(super) fn new(streams: Vec<TcpStream>) -> Result<Ring, Error> {
        let new = |stream: TcpStream| {
            // A socket that does not block would fail instead of waiting in the ring.
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            let (out, into) = (Memory::zeroed(0)?, Memory::zeroed(0)?);
            Ok(Connection { stream, out, into, came: 0, is_receiving: false, is_sending: false })
        };
        let connections = streams.into_iter().map(new).collect::<Result<_, Error>>()?;
        let (page, memory) = (Memory::zeroed(PAGE)?, Memory::zeroed(usize::from(BUFFERS) * BUFFER)?);
        let (uring, mut buffers) = (open()?, Buffers { page, memory, provided: 0 });
        let at = buffers.page.as_ptr() as u64;
        // SAFETY: the page has room for the entries, and outlives the ring of the kernel.
        unsafe { uring.submitter().register_buf_ring_with_flags(at, BUFFERS, GROUP, 0)? };
        (0..BUFFERS).for_each(|id| buffers.provide(id));
        Ok(Ring { uring, buffers, connections, len: 0, turns: 1 })
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Makes room for the messages of a case. Nothing is in flight.
    pub(super) fn prepare(&mut self, case: &Case) -> Result<(), Error> {
        (self.len, self.turns) = (case.len(), case.buffers() as u64);
        let (out, back) = case.test.exchange(case.len()).unwrap_or_default();
        let bytes = (case.len() * case.buffers()).max(out).max(back);
        for connection in &mut self.connections {
            for place in [&mut connection.out, &mut connection.into] {
                if place.len() < bytes {
                    *place = memory(Over::Uring, bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Appends `number` requests that may be linked.
    fn push(uring: &mut IoUring, number: usize, requests: impl Iterator<Item = Entry>) -> Result<(), Error> {
        if uring.submission().len() + number > ENTRIES as usize {
            uring.submit()?;
        }
        let mut queue = uring.submission();
        for request in requests {
            // SAFETY: it is of a socket and memory of this ring (invariant 1).
            let pushed = unsafe { queue.push(&request) };
            pushed.map_err(|_| Error::new(ErrorKind::Exhausted, "the kernel takes no requests"))?;
        }
        Ok(())
    }

    /// Takes `len` bytes that have come on a connection, or receives them. Those of a long message
    /// have memory of their own.
    pub(super) fn take(&mut self, number: usize, message: u64, len: usize) -> Poll<Result<(), Error>> {
        let (at, is_long) = ((message % self.turns) as usize * self.len, self.len >= READ);
        let connection = &mut self.connections[number];
        if connection.came >= len {
            connection.came -= len;
            return Poll::Ready(Ok(()));
        }
        if connection.is_receiving {
            return Poll::Pending;
        }
        connection.is_receiving = true;
        let fd = Fd(connection.stream.as_raw_fd());
        let request = if is_long {
            let place = connection.into.slice(at + connection.came, len - connection.came);
            opcode::Recv::new(fd, place.as_ptr(), place.len() as u32).flags(libc::MSG_WAITALL).build()
        } else {
            opcode::RecvMulti::new(fd, GROUP).build()
        };
        match Ring::push(&mut self.uring, 1, std::iter::once(request.user_data(number as u64))) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Sends messages of `len` bytes when those before have left. If the peer's next message tells
    /// that they have left, nothing else will.
    pub(super) fn send(
        &mut self,
        number: usize,
        messages: Range<u64>,
        len: usize,
        is_answered: bool,
    ) -> Poll<Result<(), Error>> {
        if self.is_sending(number) {
            return Poll::Pending;
        }
        let connection = &mut self.connections[number];
        connection.is_sending = !is_answered;
        let (fd, out) = (Fd(connection.stream.as_raw_fd()), connection.out.clone());
        let (last, count, turns, room) = (messages.end - 1, messages.end - messages.start, self.turns, self.len);
        let requests = messages.map(|message| {
            let place = out.slice((message % turns) as usize * room, len);
            let send = opcode::Send::new(fd, place.as_ptr(), len as u32);
            let flags = match message == last {
                true if is_answered => Flags::SKIP_SUCCESS,
                true => Flags::empty(),
                false => Flags::IO_LINK | Flags::SKIP_SUCCESS,
            };
            let send = send.flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL).build();
            send.flags(flags).user_data(SENDS | number as u64)
        });
        Poll::Ready(Ring::push(&mut self.uring, count as usize, requests))
    }

    /// Returns true if the last of the messages that nothing answers has not left.
    pub(super) fn is_sending(&self, number: usize) -> bool {
        self.connections[number].is_sending
    }

    /// Hands over what was appended and takes what has completed. With `sleeps` waits for that, but
    /// not for long.
    ///
    /// # Errors
    /// The first error of a request.
    pub(super) fn enter(&mut self, sleeps: bool) -> Result<(), Error> {
        let entered = if sleeps {
            let most = Timespec::new().sec(LOOK.tv_sec as u64).nsec(LOOK.tv_nsec as u32);
            self.uring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&most))
        } else {
            let queue = self.uring.submission();
            let has_work = !queue.is_empty() || queue.taskrun();
            drop(queue);
            if has_work { self.uring.submit() } else { Ok(0) }
        };
        match entered.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) | Err((Some(libc::ETIME | libc::EINTR), _)) => self.reap(),
            Err((_, error)) => Err(error.into()),
        }
    }

    fn reap(&mut self) -> Result<(), Error> {
        let Ring { uring, buffers, connections, .. } = self;
        for done in uring.completion() {
            let connection = &mut connections[(done.user_data() & !SENDS) as usize];
            let is_receive = done.user_data() & SENDS == 0;
            if is_receive {
                connection.is_receiving = cqueue::more(done.flags());
            } else {
                connection.is_sending = false;
            }
            match (usize::try_from(done.result()), -done.result()) {
                (Ok(0), _) if is_receive => {
                    return Err(Error::new(ErrorKind::PeerLost, "the other side has closed the socket"));
                }
                (Ok(len), _) if is_receive => connection.came += len,
                // All buffers were full, or the ring settles.
                (Ok(_), _) | (Err(_), libc::ENOBUFS | libc::ECANCELED) => {}
                (Err(_), error) => return Err(io::Error::from_raw_os_error(error).into()),
            }
            if let Some(id) = cqueue::buffer_select(done.flags()) {
                buffers.provide(id);
            }
        }
        Ok(())
    }

    /// Cancels all requests, and returns when none is in flight.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        self.uring.submit()?;
        match self.uring.submitter().register_sync_cancel(None, CancelBuilder::any()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        while self.connections.iter().any(|connection| connection.is_receiving || connection.is_sending) {
            self.enter(true)?;
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.settle().is_err() {
            // The kernel may be at the memory: it is never freed.
            std::mem::take(&mut self.connections).into_iter().for_each(std::mem::forget);
            std::mem::forget((self.buffers.page.clone(), self.buffers.memory.clone()));
        }
    }
}
