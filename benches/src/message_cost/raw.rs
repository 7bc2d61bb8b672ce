//! Two transports of one process without the protocol above them, polled in turns.

use std::path::Path;

use bmi::backend::{ConnId, Event, Payload, PostError, Segment, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi::bulk::Access;
use bmi::memory::MemoryRegion;
use bmi::{Error, ErrorKind, Memory, Time};

use super::backend::Backend;
use super::line::{Line, Play};

/// The index of the side that begins.
const NEAR: usize = 0;
/// The index of the other side.
const FAR: usize = 1;
/// The head of a message of at most this many bytes, which the post copies. The bytes of a longer
/// message are gathered from registered memory.
const HEAD: [u8; 256] = [7; 256];
/// As in `pair`.
const STEP: u64 = 20_000;

/// One transport.
struct Side<T: Backend> {
    transport: T,
    conn: Option<ConnId>,
    established: bool,
    region: MemoryRegion,
    /// The bytes of a message.
    segment: Segment,
    events: Vec<Event>,
    now: Time,
}

impl<T: Backend> Side<T> {
    fn new(len: usize) -> Result<Side<T>, Error> {
        let mut transport = T::open()?;
        let region = transport.register(&Memory::shareable(len.max(4096))?)?;
        let segment = region.segment(0, len);
        Ok(Side { transport, conn: None, established: false, region, segment, events: vec![], now: Time::ZERO })
    }

    fn conn(&self) -> Result<ConnId, Error> {
        self.conn.ok_or_else(|| Error::new(ErrorKind::PeerLost, "not connected"))
    }

    /// Polls once, and returns the number of messages that were received.
    fn poll(&mut self) -> Result<usize, Error> {
        self.transport.poll(self.now, &mut self.events);
        let mut received = 0;
        for event in self.events.drain(..) {
            match event {
                Event::Work(work) if work.kind == WorkKind::Recv && work.status == WorkStatus::Ok => received += 1,
                other => return Err(unexpected(&other)),
            }
        }
        Ok(received)
    }

    /// Polls, some time after the poll before, and handles the events of the start of a connection.
    fn connect(&mut self) -> Result<(), Error> {
        self.now = Time::from_nanos(self.now.as_nanos() + STEP);
        self.transport.poll(self.now, &mut self.events);
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::ConnectRequest { conn, .. } => {
                    self.conn = Some(conn);
                    self.transport.accept(conn, &[])?;
                }
                Event::Established { .. } => self.established = true,
                other => return Err(unexpected(&other)),
            }
        }
        Ok(())
    }

    fn recv(&mut self) -> Result<(), Error> {
        let conn = self.conn()?;
        self.transport.post_recv(conn, WorkId(1), std::slice::from_ref(&self.segment)).map_err(refused)
    }

    fn send(&mut self) -> Result<(), Error> {
        let (conn, segments) = (self.conn()?, std::slice::from_ref(&self.segment));
        let (head, payload) = match HEAD.get(..self.segment.len()) {
            Some(head) => (head, Payload::EMPTY),
            None => (&[][..], Payload::Gather(segments)),
        };
        self.transport.post_send(conn, WorkId(2), head, payload, WorkOptions::UNSIGNALLED).map_err(refused)
    }
}

fn refused(error: PostError) -> Error {
    Error::new(ErrorKind::Exhausted, format!("{error:?}"))
}

fn unexpected(event: &Event) -> Error {
    Error::new(ErrorKind::Io, format!("unexpected: {event:?}"))
}

/// Two connected transports.
pub(crate) struct Raw<T: Backend> {
    sides: [Side<T>; 2],
    play: Play,
}

impl<T: Backend> Raw<T> {
    /// Connects two transports and prepares them for the line's operations.
    ///
    /// # Errors
    /// The error of the transport.
    pub(crate) fn connect(line: &Line, folder: &Path) -> Result<Raw<T>, Error> {
        let mut sides = [Side::<T>::new(line.len)?, Side::<T>::new(line.len)?];
        let addr = sides[FAR].transport.listen(&T::place(folder))?;
        sides[NEAR].conn = Some(sides[NEAR].transport.connect(&addr, &[], Time::from_nanos(u64::MAX))?);
        while sides.iter().any(|side| !side.established) {
            sides.iter_mut().try_for_each(Side::connect)?;
        }
        for side in &mut sides {
            // With this the peer may map the memory, and long messages may stay where they are.
            let (conn, all) = (side.conn()?, side.region.segment(0, side.region.memory().len()));
            side.transport.expose(conn, &all, Access::READ)?;
            (0..2 * Play::BATCH).try_for_each(|_| side.recv())?;
        }
        for _ in 0..1000 {
            sides.iter_mut().try_for_each(Side::connect)?;
        }
        let mut raw = Raw { sides, play: line.play };
        for _ in 0..line.warm_up() {
            raw.play()?;
        }
        Ok(raw)
    }

    /// Plays one operation.
    ///
    /// # Errors
    /// If it failed.
    pub(crate) fn play(&mut self) -> Result<(), Error> {
        match self.play {
            Play::RawIdle => self.sides.iter_mut().try_for_each(|side| side.poll().map(drop)),
            Play::RawPing => {
                self.message(NEAR, FAR)?;
                self.message(FAR, NEAR)
            }
            _ => self.rate(),
        }
    }

    /// Sends one message, and posts a receive for another.
    fn message(&mut self, from: usize, to: usize) -> Result<(), Error> {
        self.sides[from].send()?;
        self.receive(from, to, 1)
    }

    fn rate(&mut self) -> Result<(), Error> {
        (0..Play::BATCH).try_for_each(|_| self.sides[NEAR].send())?;
        self.receive(NEAR, FAR, Play::BATCH)
    }

    /// Polls until this many messages have gone from one side to the other, and posts the receives
    /// again.
    fn receive(&mut self, from: usize, to: usize, messages: usize) -> Result<(), Error> {
        let mut received = 0;
        let mut turn = if T::SENDS_WHEN_POSTED { to } else { from };
        while received < messages {
            let here = self.sides[turn].poll()?;
            (0..here).try_for_each(|_| self.sides[turn].recv())?;
            received += here;
            turn = 1 - turn;
        }
        Ok(())
    }
}
