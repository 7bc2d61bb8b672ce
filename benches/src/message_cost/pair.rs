//! Two endpoints of one process that exchange messages in lockstep, so that every run does the same
//! work.
//!
//! **Polling.** The two sides poll in turns until the operation has ended.
//!
//! **Sleeping.** Each side does what a driver that sleeps does (`bmi::driver::thread`). One
//! `poll(2)` waits for both:
//!
//! ```text
//!            posts, or its fd is readable                       nothing to do, armed
//!   asleep ──────────────────────────────> awake: polls ──────────────────────────────> asleep
//! ```
//!
//! **Time** is a number. It does not change after the two are connected. Otherwise, work that a
//! transport does once per millisecond would be counted in one repetition and not in the next.

use std::path::Path;
use std::task::Waker;

use bmi::backend::Armed;
use bmi::bulk::{Access, Exposure};
use bmi::polled::{Completion, Engine, Posted};
use bmi::{Config, Error, ErrorKind, Memory, Options, PeerEvent, PeerId, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::backend::Backend;
use super::line::{Line, Mode, Play};

/// The index of the side that begins.
const NEAR: usize = 0;
/// The index of the other side.
const FAR: usize = 1;
const TAG: u64 = 1;
/// The time between two polls while the two connect, in nanoseconds. It is long enough for all
/// periodic work of a transport.
const STEP: u64 = 20_000;
/// Time limit of a wait. It is longer than anything on one host takes to arrive.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// One endpoint.
pub(crate) struct Side {
    pub(crate) endpoint: Engine,
    peer: Option<PeerId>,
    pub(crate) out: Memory,
    pub(crate) into: Memory,
    /// The exposure of all of `into`, for the other side.
    exposed: Option<Exposure>,
    /// The number of posted operations that have not ended.
    pending: usize,
    completions: Vec<Completion>,
    /// True if the side has to poll before it may sleep.
    awake: bool,
    /// True if a poll of [`Pair::settle`] has found work since the transfer began.
    worked: bool,
    pub(crate) now: Time,
}

impl Side {
    fn new<T: Backend>(name: &str, room: usize) -> Result<Side, Error> {
        Ok(Side {
            endpoint: Engine::new(Box::new(T::open()?), Config::named(name), Time::ZERO)?,
            peer: None,
            out: Memory::shareable(room)?,
            into: Memory::shareable(room)?,
            exposed: None,
            pending: 0,
            completions: Vec::new(),
            awake: true,
            worked: false,
            now: Time::ZERO,
        })
    }

    pub(crate) fn peer(&self) -> Result<PeerId, Error> {
        self.peer.ok_or_else(|| Error::new(ErrorKind::PeerLost, "not connected"))
    }

    /// Polls once. Returns whether there was work, and how many operations ended.
    #[inline]
    fn poll(&mut self) -> Result<(bool, usize), Error> {
        let worked = self.endpoint.poll(self.now);
        let ended = self.endpoint.poll_all(&mut self.completions);
        if ended > 0 {
            self.pending -= ended;
            for completion in self.completions.drain(..) {
                completion.status.map_err(|kind| Error::new(kind, "an operation failed"))?;
            }
        }
        Ok((worked, ended))
    }

    fn note(&mut self, posted: Posted) {
        self.pending += usize::from(posted.pending().is_some());
        self.awake = true;
    }

    fn recv(&mut self, at: usize, len: usize) -> Result<(), Error> {
        let (peer, list) = (self.peer()?, self.into.slice(at, len));
        let posted = self.endpoint.post_recv(peer, TAG, list, Options::default())?;
        self.note(posted);
        Ok(())
    }

    fn send(&mut self, at: usize, len: usize) -> Result<(), Error> {
        let (peer, list) = (self.peer()?, self.out.slice(at, len));
        let posted = self.endpoint.post_send(peer, TAG, list, Options::default())?;
        self.note(posted);
        Ok(())
    }
}

/// Two connected endpoints.
pub(crate) struct Pair {
    sides: [Side; 2],
    mode: Mode,
    /// [`Backend::SENDS_WHEN_POSTED`]
    sends_when_posted: bool,
    play: Play,
    len: usize,
    /// Wakes the near side.
    waker: Waker,
}

impl Pair {
    /// Connects two endpoints and prepares them for the line's operations.
    ///
    /// # Errors
    /// The error of the transport.
    pub(crate) fn connect<T: Backend>(line: &Line, folder: &Path) -> Result<Pair, Error> {
        let room = (line.len * line.play.things()).max(4096);
        let mut sides = [Side::new::<T>("near", room)?, Side::new::<T>("far", room)?];
        let addr = sides[FAR].endpoint.listen(&T::place(folder))?;
        sides[NEAR].endpoint.connect(&addr, Options::default())?;
        // The connection is an operation, too, and ends.
        sides[NEAR].pending = 1;
        let mut pair = Pair {
            waker: sides[NEAR].endpoint.transport().waker(),
            sides,
            mode: line.mode,
            sends_when_posted: T::SENDS_WHEN_POSTED,
            play: line.play,
            len: line.len,
        };
        while pair.sides.iter().any(|side| side.peer.is_none() || side.pending > 0) {
            pair.let_time_pass()?;
            for side in &mut pair.sides {
                if let Some(PeerEvent::Connected { peer, .. }) = side.endpoint.poll_event() {
                    side.peer = Some(peer);
                }
            }
        }
        let [_, far] = &mut pair.sides;
        far.exposed = Some(far.endpoint.expose(far.peer()?, far.into.all(), Access::READ_WRITE)?);
        if line.play == Play::Ping {
            pair.sides.iter_mut().try_for_each(|side| side.recv(0, line.len))?;
        }
        // Enough for all messages that the two sides exchange at the beginning.
        for _ in 0..1000 {
            pair.let_time_pass()?;
        }
        for _ in 0..line.warm_up() {
            pair.play()?;
        }
        Ok(pair)
    }

    /// Polls each side, some time after the poll before.
    fn let_time_pass(&mut self) -> Result<(), Error> {
        for side in &mut self.sides {
            side.now = Time::from_nanos(side.now.as_nanos() + STEP);
            side.poll()?;
        }
        Ok(())
    }

    /// Returns the length of a message.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Hands over the two endpoints.
    pub(crate) fn into_sides(self) -> [Side; 2] {
        self.sides
    }

    /// Plays one operation.
    ///
    /// # Errors
    /// If it failed, or nothing arrived for some seconds.
    pub(crate) fn play(&mut self) -> Result<(), Error> {
        match self.play {
            Play::Idle => self.sides.iter_mut().try_for_each(|side| side.poll().map(drop)),
            Play::Wake => self.wake(),
            Play::Rate => self.rate(),
            Play::Push | Play::Pull => self.transfer(),
            _ => {
                self.message(NEAR, FAR)?;
                self.message(FAR, NEAR)
            }
        }
    }

    fn wake(&mut self) -> Result<(), Error> {
        while self.settle()? {}
        self.waker.wake_by_ref();
        self.sleep()?;
        while self.settle()? {}
        Ok(())
    }

    /// Sends one message whose receive is posted, and posts a receive for the next.
    fn message(&mut self, from: usize, to: usize) -> Result<(), Error> {
        self.sides[from].send(0, self.len)?;
        // The receive of the answer is pending on the side that sends.
        let first = if self.sends_when_posted { to } else { from };
        self.advance(first, |sides| sides[to].pending == 0 && sides[from].pending <= 1)?;
        self.sides[to].recv(0, self.len)
    }

    /// Sends messages in one direction. The receives are posted first.
    fn rate(&mut self) -> Result<(), Error> {
        for at in 0..Play::BATCH {
            self.sides[FAR].recv(at * self.len, self.len)?;
        }
        // A side that sleeps is woken by the credits that come back.
        if self.mode == Mode::Polling {
            self.sides[NEAR].poll()?;
        }
        for at in 0..Play::BATCH {
            self.sides[NEAR].send(at * self.len, self.len)?;
        }
        let first = if self.sends_when_posted { FAR } else { NEAR };
        self.advance(first, |sides| sides.iter().all(|side| side.pending == 0))
    }

    /// Plays one transfer between the near side's memory and that of the far side.
    fn transfer(&mut self) -> Result<(), Error> {
        let [near, far] = &mut self.sides;
        let exposed = far.exposed.as_ref().ok_or_else(|| Error::new(ErrorKind::Invalid, "nothing is exposed"))?;
        let (peer, remote, list) = (near.peer()?, exposed.descriptor(), near.out.slice(0, self.len));
        let posted = match self.play {
            Play::Push => near.endpoint.post_push(peer, remote, 0, list, Options::default())?,
            _ => near.endpoint.post_pull(peer, remote, 0, list, Options::default())?,
        };
        near.note(posted);
        far.worked = false;
        self.advance(NEAR, |sides| sides[NEAR].pending == 0)?;
        if self.play == Play::Push && !self.sends_when_posted { self.drain() } else { Ok(()) }
    }

    /// Lets the far side take the bytes of a push. The push has ended when the kernel has its
    /// bytes; those of many pushes would fill the socket.
    fn drain(&mut self) -> Result<(), Error> {
        match self.mode {
            Mode::Polling => while self.sides[FAR].poll()?.0 {},
            _ => loop {
                while self.settle()? {}
                if self.sides[FAR].worked {
                    break;
                }
                self.sleep()?;
            },
        }
        Ok(())
    }

    /// Lets both sides work until `done`. If they poll, `first` begins.
    fn advance(&mut self, first: usize, done: impl Fn(&[Side; 2]) -> bool) -> Result<(), Error> {
        let mut turn = first;
        while !done(&self.sides) {
            match self.mode {
                Mode::Polling => {
                    self.sides[turn].poll()?;
                    turn = 1 - turn;
                }
                _ => {
                    if !self.settle()? {
                        self.sleep()?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Each side that is awake polls until there is nothing to do, and then arms. Returns true as
    /// soon as an operation has ended, so that the program runs before the side sleeps.
    fn settle(&mut self) -> Result<bool, Error> {
        for side in &mut self.sides {
            while side.awake {
                let (worked, ended) = side.poll()?;
                side.worked |= worked;
                if ended > 0 {
                    return Ok(true);
                }
                side.awake = worked || side.endpoint.arm(Waker::noop()) == Armed::Busy;
            }
        }
        Ok(false)
    }

    /// Sleeps until one side has something to do, and wakes that side.
    fn sleep(&mut self) -> Result<(), Error> {
        let [near, far] = &self.sides;
        let no_fd = || Error::new(ErrorKind::Unsupported, "the transport has no event fd");
        let (near, far) = (near.endpoint.event_fd().ok_or_else(no_fd)?, far.endpoint.event_fd().ok_or_else(no_fd)?);
        let mut fds = [near, far].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll(&mut fds, Some(&PATIENCE)).map_err(std::io::Error::from)?;
        let readable = fds.iter().position(|fd| !fd.revents().is_empty());
        let readable =
            readable.ok_or_else(|| Error::new(ErrorKind::TimedOut, "both sides sleep and nothing arrives"))?;
        self.sides[readable].awake = true;
        Ok(())
    }
}
