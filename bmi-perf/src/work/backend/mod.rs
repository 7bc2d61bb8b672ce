//! A case over a backend alone: posted receives and work requests, without matching, credits or
//! paths of the library. What the library adds is the difference between this and an endpoint.
//!
//! It polls, and reads the clock at every [`CLOCK_EVERY`]th poll. Memory is registered and exposed
//! once, when the station is opened.
//!
//! **Protocol.** Between rounds each side has one receive posted. Messages without bytes are
//! signals. Any receive takes one.
//!
//! ```text
//!   client                                  server
//!   posts the receives of its part
//!   signal ──────────────────────────────▶  posts the receives of its part
//!                         ◀──────────────── signal
//!   its part                                its part
//! ```
//!
//! | module | what is there |
//! |---|---|
//! | `connect` | how the two sides find each other, and their memory |
//! | `parts` | what happens in a round |

mod connect;
mod parts;

use bmi::driver::MonotonicClock;
use bmi::{AnyTransport, Clock, Error, ErrorKind, MemoryRegion, Time};
use bmi_core::transport::{ConnId, Event, Payload, PostError, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget};
use bmi_core::{RemoteSlice, Segment};

use super::produce::produce;
use crate::case::Case;
use crate::stop::Stop;

/// Polls for each reading of the clock. That is enough for deadlines of milliseconds.
const CLOCK_EVERY: u32 = 64;
/// Length of the longest message that is given as a head, whose bytes the post copies.
const HEAD: usize = 64;
const UNSIGNALLED: WorkOptions = WorkOptions::UNSIGNALLED;
const SIGNALLED: WorkOptions = WorkOptions::SIGNALLED;

/// One side of a connection of a backend.
pub(super) struct Backend {
    transport: AnyTransport,
    conn: ConnId,
    is_established: bool,
    clock: MonotonicClock,
    now: Time,
    polls: u32,
    events: Vec<Event>,
    /// Messages that came, and other work that ended, without those that were waited for.
    received: u64,
    ended: u64,
    /// What this side sends, and reads into; and what the peer writes to, and reads.
    out: MemoryRegion,
    into: MemoryRegion,
    /// The peer's `into`.
    remote: RemoteSlice,
    /// The places of the messages of a case, in turn.
    going: Vec<Segment>,
    coming: Vec<Segment>,
    /// Receives that the part will post when others have been consumed.
    to_post: u64,
    posted: u64,
}

impl Backend {
    /// Returns whether there was anything to do.
    fn poll(&mut self, stop: &Stop) -> Result<bool, Error> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(CLOCK_EVERY) {
            self.now = self.clock.now();
            if stop.is_set() {
                return Err(stop.error());
            }
        }
        let has_moved = self.transport.poll(self.now, &mut self.events);
        for event in self.events.drain(..) {
            match event {
                Event::Work(work) if work.status == WorkStatus::Ok => match work.kind {
                    WorkKind::Recv => self.received += 1,
                    _ => self.ended += 1,
                },
                Event::Established { .. } => self.is_established = true,
                // The end of the connection follows, and gives the reason.
                Event::Work(_) => {}
                Event::Disconnected { reason, .. } => return Err(reason),
                other => return Err(Error::new(ErrorKind::Protocol, format!("{other:?}"))),
            }
        }
        Ok(has_moved)
    }

    /// Waits for messages.
    fn receive(&mut self, messages: u64, stop: &Stop) -> Result<(), Error> {
        while self.received < messages {
            self.poll(stop)?;
        }
        self.received -= messages;
        Ok(())
    }

    /// Posts a receive, if the part needs another one.
    fn post_next(&mut self) -> Result<(), Error> {
        if self.to_post == 0 {
            return Ok(());
        }
        self.to_post -= 1;
        self.post_recv()
    }

    /// Waits until so many operations have ended.
    fn await_ended(&mut self, operations: u64, stop: &Stop) -> Result<(), Error> {
        while self.ended < operations {
            self.poll(stop)?;
        }
        self.ended -= operations;
        Ok(())
    }

    /// Begins a part that takes `all` messages, with `ahead` receives. The last one stays for the
    /// next round.
    fn post_first(&mut self, all: u64, ahead: u64) -> Result<(), Error> {
        let first = all.min(ahead);
        (self.to_post, self.posted) = (all - first, 0);
        (0..first).try_for_each(|_| self.post_recv())
    }

    fn post_recv(&mut self) -> Result<(), Error> {
        let place = (self.posted % self.coming.len().max(1) as u64) as usize;
        self.posted += 1;
        let segments = self.coming.get(place..=place).unwrap_or_default();
        self.transport.post_recv(self.conn, WorkId(0), segments).map_err(refused)
    }

    /// Posts until there is room.
    fn post(&mut self, stop: &Stop, mut post: impl FnMut(&mut Backend) -> Result<(), PostError>) -> Result<(), Error> {
        loop {
            match post(self) {
                Ok(()) => return Ok(()),
                Err(PostError::QueueFull) => drop(self.poll(stop)?),
                Err(other) => return Err(refused(other)),
            }
        }
    }

    fn signal(&mut self, stop: &Stop) -> Result<(), Error> {
        self.send_head(&[], UNSIGNALLED, stop)
    }

    fn send_head(&mut self, head: &[u8], options: WorkOptions, stop: &Stop) -> Result<(), Error> {
        self.post(stop, |side| side.transport.post_send(side.conn, WorkId(1), head, Payload::EMPTY, options))
    }

    /// Sends the message of a place, and writes it before.
    fn send(&mut self, case: &Case, place: usize, options: WorkOptions, stop: &Stop) -> Result<(), Error> {
        if case.len() <= HEAD {
            return self.send_head(&[1; HEAD][..case.len()], options, stop);
        }
        produce(case, &self.going[place].to_slice());
        self.post(stop, |side| {
            let payload = Payload::Gather(&side.going[place..=place]);
            side.transport.post_send(side.conn, WorkId(1), &[], payload, options)
        })
    }

    /// Writes the bytes of a place to the same place of the peer.
    fn write(&mut self, place: usize, immediate: Option<u32>, options: WorkOptions, stop: &Stop) -> Result<(), Error> {
        let target = WriteTarget { remote: self.place_there(place)?, immediate };
        self.post(stop, |side| {
            let segments = &side.going[place..=place];
            side.transport.post_write(side.conn, WorkId(2), &[], segments, target, options)
        })
    }

    fn read(&mut self, place: usize, stop: &Stop) -> Result<(), Error> {
        let remote = self.place_there(place)?;
        self.post(stop, |side| {
            let segments = &side.going[place..=place];
            side.transport.post_read(side.conn, WorkId(3), segments, remote, SIGNALLED)
        })
    }

    fn place_there(&self, place: usize) -> Result<RemoteSlice, Error> {
        let len = self.going[place].len() as u64;
        let none = || Error::new(ErrorKind::Protocol, "the peer exposes less than the case needs");
        self.remote.slice(place as u64 * len, len).ok_or_else(none)
    }
}

fn refused(error: PostError) -> Error {
    Error::new(ErrorKind::Invalid, format!("the backend refuses a work request: {error:?}"))
}
