//! A case without an executor: a thread posts and polls, over a backend alone, through an endpoint,
//! or through `libbmi` as a program in C.
//!
//! **Why.** A backend alone has posted receives and work requests, without matching, credits or
//! paths. What the library adds to it is the difference between the two here. What an executor adds
//! is the difference between an endpoint here and one of [`library`](super::library).
//!
//! A side reads the clock at every [`CLOCK_EVERY`]th poll. Memory is registered and exposed once,
//! when the station is opened.
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
//! | `backend`, `engine`, `libbmi` | what posts and polls: a [`Port`] |
//! | `parts` | what happens in a round |

mod backend;
mod engine;
mod libbmi;
mod parts;

use std::time::Duration;

use bmi::backend::AnyTransport;
use bmi::bulk::RemoteSlice;
use bmi::driver::MonotonicClock;
use bmi::{Addr, Clock, Error, ErrorKind, Memory, Scheme, Time};

use self::backend::Backend;
use self::engine::Polled;
use self::libbmi::C;
use super::produce::produce;
use crate::case::{Case, Interface, MOST_BYTES, Settings};
use crate::measured::Measured;
use crate::stop::Stop;

/// Polls for each reading of the clock. That is enough for deadlines of milliseconds.
const CLOCK_EVERY: u32 = 64;
/// How long a connection may take to be made.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes that describe a side's memory to the other one.
const DESCRIPTION: usize = RemoteSlice::WIRE_LEN;

/// How many receives and other operations have ended, without those that were waited for.
#[derive(Debug, Default)]
struct Ended {
    receives: u64,
    others: u64,
}

/// One connection, and the memory of its side: what it sends from and reads into, and what it
/// receives into and the peer writes and reads.
///
/// An operation is posted, or there is no room for it, and then `false` is returned. With `counts`
/// its end is one of [`Ended::others`].
trait Port: Sized {
    /// The place of a message.
    type Place;
    /// Length of the longest message whose bytes a post takes from elsewhere.
    const COPIED: usize;

    /// Begins to connect.
    fn connect(with: Opened, to: &Addr, until: Time) -> Result<Self, Error>;
    /// Begins to listen, and says where.
    fn listen(with: Opened, at: &Addr, listening: &dyn Fn(Addr)) -> Result<Self, Error>;
    /// Returns true as soon as there is a connection. It has posted two receives of
    /// [`DESCRIPTION`]: for the peer's first message, and for the begin of the first round.
    fn is_connected(&self) -> bool;
    /// Returns whether there was anything to do.
    fn poll(&mut self, now: Time) -> Result<bool, Error>;
    fn ended(&mut self) -> &mut Ended;
    /// Returns true if nothing of this side is in flight that no end is counted of.
    fn is_idle(&self) -> bool;

    fn outgoing(&self) -> &Memory;
    fn incoming(&self) -> &Memory;
    fn place(&self, is_outgoing: bool, at: usize, len: usize) -> Self::Place;
    /// Writes a message that is about to leave.
    fn produce(case: &Case, place: &Self::Place);

    /// Posts a receive of a message, or of a signal.
    fn post_recv(&mut self, into: Option<&Self::Place>) -> Result<(), Error>;
    /// Sends a few bytes; none are a signal.
    fn tell(&mut self, bytes: &[u8]) -> Result<bool, Error>;
    fn send(&mut self, from: &Self::Place, counts: bool) -> Result<bool, Error>;
    /// Writes to, or reads from, the peer's memory at `at`. Writes with immediate data end a
    /// receive of the peer.
    fn write(&mut self, from: &Self::Place, at: u64, immediate: Option<u32>, counts: bool) -> Result<bool, Error>;
    fn read(&mut self, into: &Self::Place, at: u64) -> Result<bool, Error>;

    /// Exposes the incoming memory. Returns its description.
    fn expose(&mut self) -> Result<[u8; DESCRIPTION], Error>;
    /// Learns where the peer's memory is.
    fn set_remote(&mut self, remote: RemoteSlice) -> Result<(), Error>;
}

/// What a port is made of.
struct Opened {
    scheme: Scheme,
    settings: Settings,
    /// Bytes of the memory for messages, each way.
    room: usize,
    now: Time,
}

impl Opened {
    fn transport(&self) -> Result<AnyTransport, Error> {
        bmi::backend::open(self.scheme, &super::adapter::options(&self.settings)?)
    }

    fn memory(&self) -> Result<Memory, Error> {
        let memory = Memory::shareable(self.room)?;
        // Touch every page now, and not during the measurement.
        memory.copy_from(0, &vec![1; self.room]);
        Ok(memory)
    }
}

/// The parts of a case on one side.
pub(super) trait Part {
    /// Runs the client's part.
    fn measure(&mut self, case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error>;
    /// Runs the server's part.
    fn serve(&mut self, case: &Case, count: u64, stop: &Stop) -> Result<(), Error>;
}

/// Where a side finds the other one.
pub(super) enum Meeting<'a> {
    At(&'a Addr),
    /// Here; the function is told where exactly.
    Here(&'a Addr, &'a dyn Fn(Addr)),
}

/// Opens a station's side, which is connected.
pub(super) fn open(
    interface: Interface,
    scheme: Scheme,
    settings: &Settings,
    meeting: &Meeting<'_>,
    stop: &Stop,
) -> Result<Box<dyn Part>, Error> {
    Ok(match interface {
        Interface::Backend => Box::new(Side::<Backend>::open(scheme, settings, meeting, stop)?),
        Interface::C => Box::new(Side::<C>::open(scheme, settings, meeting, stop)?),
        _ => Box::new(Side::<Polled>::open(scheme, settings, meeting, stop)?),
    })
}

/// One side of a connection.
struct Side<P: Port> {
    port: P,
    clock: MonotonicClock,
    now: Time,
    polls: u32,
    /// The places of the messages of a case, in turn.
    going: Vec<P::Place>,
    coming: Vec<P::Place>,
    /// Receives that the part will post when others have been consumed.
    to_post: u64,
    posted: u64,
}

impl<P: Port> Side<P> {
    fn open(scheme: Scheme, settings: &Settings, meeting: &Meeting<'_>, stop: &Stop) -> Result<Side<P>, Error> {
        let clock = MonotonicClock::new();
        let room = settings.room.clamp(DESCRIPTION as u64, MOST_BYTES) as usize;
        let now = clock.now();
        let with = Opened { scheme, settings: settings.clone(), room, now };
        let port = match meeting {
            Meeting::At(to) => P::connect(with, to, now + PATIENCE)?,
            Meeting::Here(at, listening) => P::listen(with, at, listening)?,
        };
        let (going, coming) = (Vec::new(), Vec::new());
        let mut side = Side { port, clock, now, polls: 0, going, coming, to_post: 0, posted: 0 };
        while !side.port.is_connected() {
            side.poll(stop)?;
            if side.now >= now + 2 * PATIENCE {
                return Err(Error::new(ErrorKind::TimedOut, "the other side did not connect"));
            }
            std::thread::yield_now();
        }
        let own = side.port.expose()?;
        side.post(stop, |side| side.port.tell(&own))?;
        side.receive(1, stop)?;
        let mut wire = [0; DESCRIPTION];
        side.port.incoming().copy_to(0, &mut wire);
        side.port.set_remote(RemoteSlice::from_wire(&wire))?;
        Ok(side)
    }

    /// Returns whether there was anything to do.
    #[inline]
    fn poll(&mut self, stop: &Stop) -> Result<bool, Error> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(CLOCK_EVERY) {
            self.now = self.clock.now();
            if stop.is_set() {
                return Err(stop.error());
            }
        }
        self.port.poll(self.now)
    }

    /// Waits for messages.
    #[inline]
    fn receive(&mut self, messages: u64, stop: &Stop) -> Result<(), Error> {
        while self.port.ended().receives < messages {
            self.poll(stop)?;
        }
        self.port.ended().receives -= messages;
        Ok(())
    }

    /// Posts a receive, if the part needs another one.
    #[inline]
    fn post_next(&mut self) -> Result<(), Error> {
        if self.to_post == 0 {
            return Ok(());
        }
        self.to_post -= 1;
        self.post_recv()
    }

    /// Waits until so many operations have ended.
    #[inline]
    fn await_ended(&mut self, operations: u64, stop: &Stop) -> Result<(), Error> {
        while self.port.ended().others < operations {
            self.poll(stop)?;
        }
        self.port.ended().others -= operations;
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
        self.port.post_recv(self.coming.get(place))
    }

    /// Posts until there is room.
    #[inline]
    fn post(&mut self, stop: &Stop, mut post: impl FnMut(&mut Side<P>) -> Result<bool, Error>) -> Result<(), Error> {
        while !post(self)? {
            self.poll(stop)?;
        }
        Ok(())
    }

    fn signal(&mut self, stop: &Stop) -> Result<(), Error> {
        self.post(stop, |side| side.port.tell(&[]))
    }

    /// Sends the message of a place, and writes it before.
    #[inline]
    fn send(&mut self, case: &Case, place: usize, counts: bool, stop: &Stop) -> Result<(), Error> {
        if case.len() > P::COPIED {
            P::produce(case, &self.going[place]);
        }
        self.post(stop, |side| side.port.send(&side.going[place], counts))
    }

    /// Writes the bytes of a place to the same place of the peer.
    fn write(
        &mut self,
        case: &Case,
        place: usize,
        immediate: Option<u32>,
        counts: bool,
        stop: &Stop,
    ) -> Result<(), Error> {
        let at = place as u64 * case.size;
        self.post(stop, |side| side.port.write(&side.going[place], at, immediate, counts))
    }

    fn read(&mut self, case: &Case, place: usize, stop: &Stop) -> Result<(), Error> {
        let at = place as u64 * case.size;
        self.post(stop, |side| side.port.read(&side.going[place], at))
    }
}
