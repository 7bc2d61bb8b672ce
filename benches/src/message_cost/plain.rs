//! Two plain sockets of one thread, in lockstep: the least with which two programs can do what a
//! line does. Calls do not block.
//!
//! **Polling.** A side calls `recv` until something comes. **Sleeping.** One level-triggered
//! `epoll_wait` waits for both sides. It tells the side that it wakes that there is something, so
//! that one `recv` follows, and no second one that finds nothing. A side whose socket is full asks
//! `epoll` for room.
//!
//! Push and pull are exchanges: the data with a request before it and an acknowledgement back, and
//! a request and the data with a reply before it. Header and data are one piece of memory here.

use std::io::{Error, ErrorKind, IoSlice, Read, Result, Write};
use std::net::{TcpListener, TcpStream};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::line::{Line, Mode, Play, Target};

/// The index of the side that begins.
const NEAR: usize = 0;
/// The index of the other side.
const FAR: usize = 1;
/// About the length of a request with a descriptor of memory.
const REQUEST: usize = 40;
/// The length of an acknowledgement.
const REPLY: usize = 8;
/// The length of the reads of small messages.
const READ: usize = 64 << 10;
/// Time limit of a wait, as in `pair`.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Two connected sockets.
pub(crate) struct Plain {
    sides: [TcpStream; 2],
    epoll: std::os::fd::OwnedFd,
    events: Vec<Event>,
    line: Line,
    out: Vec<u8>,
    into: Vec<u8>,
}

/// Turns the result of a call that does not block into 0 if there was nothing to do.
fn moved(result: Result<usize>) -> Result<usize> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

impl Plain {
    /// Connects two sockets and warms them up.
    ///
    /// # Errors
    /// If the system refuses, or nothing arrives.
    pub(crate) fn connect(line: &Line) -> Result<Plain> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let sides = [near, listener.accept()?.0];
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (side, stream) in sides.iter().enumerate() {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll::add(&epoll, stream, EventData::new_u64(side as u64), EventFlags::IN)?;
        }
        let (out, into) = (vec![7; line.len + REQUEST], vec![0; (line.len + REQUEST).max(READ)]);
        let mut plain = Plain { sides, epoll, events: Vec::with_capacity(2), line: *line, out, into };
        for _ in 0..line.warm_up() {
            plain.play()?;
        }
        Ok(plain)
    }

    /// Plays one operation.
    ///
    /// # Errors
    /// If it failed, or nothing arrived for some seconds.
    pub(crate) fn play(&mut self) -> Result<()> {
        let len = self.line.len;
        let (there, back) = match self.line.play {
            Play::Push => (REQUEST + len, REPLY),
            Play::Pull => (REQUEST, REPLY + len),
            Play::Rate => return self.rate(),
            Play::Idle => {
                return self.sides.iter().try_for_each(|mut side| moved(side.read(&mut self.into)).map(drop));
            }
            _ => (len, len),
        };
        self.message(NEAR, FAR, there)?;
        self.message(FAR, NEAR, back)
    }

    /// Moves a message, which is as long as the socket has room, or longer.
    fn message(&mut self, from: usize, to: usize, len: usize) -> Result<()> {
        let (mut sent, mut came) = (moved((&self.sides[from]).write(&self.out[..len]))?, 0);
        let is_blocked = sent < len;
        if is_blocked {
            self.want(from, EventFlags::IN | EventFlags::OUT)?;
        }
        while came < len {
            let [readable, writable] = self.ready(from, to)?;
            if readable {
                came += moved((&self.sides[to]).read(&mut self.into[came..len]))?;
            }
            if writable && sent < len {
                sent += moved((&self.sides[from]).write(&self.out[sent..len]))?;
                if sent == len {
                    self.want(from, EventFlags::IN)?;
                }
            }
        }
        Ok(())
    }

    /// Moves [`Play::BATCH`] messages in one direction.
    fn rate(&mut self) -> Result<()> {
        let (len, mut stream) = (self.line.len, &self.sides[NEAR]);
        let message = &self.out[..len];
        let sent = match self.line.over {
            Target::BatchedSockets => stream.write_vectored(&[IoSlice::new(message); Play::BATCH])?,
            _ => (0..Play::BATCH).map(|_| stream.write(message)).sum::<Result<usize>>()?,
        };
        let mut came = 0;
        while came < sent {
            if let [true, _] = self.ready(NEAR, FAR)? {
                came += moved((&self.sides[FAR]).read(&mut self.into))?;
            }
        }
        if came == Play::BATCH * len { Ok(()) } else { Err(Error::other("a short message did not fit")) }
    }

    /// Says what a side sleeps for. One that polls tries everything.
    fn want(&self, side: usize, flags: EventFlags) -> Result<()> {
        if self.line.mode == Mode::Sleeping {
            epoll::modify(&self.epoll, &self.sides[side], EventData::new_u64(side as u64), flags)?;
        }
        Ok(())
    }

    /// Returns whether the receiver can read, and the sender can write. Sleeps until one can.
    fn ready(&mut self, from: usize, to: usize) -> Result<[bool; 2]> {
        if self.line.mode == Mode::Polling {
            return Ok([true, true]);
        }
        self.events.clear();
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&PATIENCE))?;
        if self.events.is_empty() {
            return Err(Error::new(ErrorKind::TimedOut, "both sides sleep and nothing arrives"));
        }
        let has = |side: usize, flag| {
            self.events.iter().any(|event| event.data.u64() == side as u64 && { event.flags }.contains(flag))
        };
        Ok([has(to, EventFlags::IN), has(from, EventFlags::OUT)])
    }
}
