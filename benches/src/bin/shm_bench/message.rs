//! Measures the message interface over the transport.

use std::time::Instant;

use bmi_core::driver::MonotonicClock;
use bmi_core::{
    Access, Addr, BulkDescriptor, Clock, Completion, Config, Endpoint, Error, ErrorKind, Memory, Options, PeerEvent,
    PeerId, Posted, RemoteSlice, Time,
};
use bmi_shm::{ShmConfig, ShmTransport};

use crate::limits::write_lines;
use crate::{Row, Test};

const ROOM: usize = 64 << 20;
const DATA: u64 = 1;
const SYNC: u64 = 2;

/// An endpoint with one peer.
pub(crate) struct Messages {
    endpoint: Endpoint,
    peer: PeerId,
    clock: MonotonicClock,
    now: Time,
    polls: u32,
    /// The byte that was written into the last payload.
    filled: u8,
    completions: Vec<Completion>,
    out: Memory,
    into: Memory,
    remote: BulkDescriptor,
    _held: Vec<Box<dyn std::any::Any>>,
}

fn failed(what: &str) -> Error {
    Error::new(ErrorKind::Io, what)
}

impl Messages {
    pub(crate) fn listen(folder: &str) -> Result<Messages, Error> {
        let clock = MonotonicClock::new();
        let transport = ShmTransport::new(ShmConfig::default())?;
        let mut endpoint = Endpoint::new(Box::new(transport), Config::named("far"), clock.now())?;
        endpoint.listen(&Addr::shm(format!("{folder}/names/message")))?;
        let peer = loop {
            endpoint.poll(clock.now());
            if let Some(PeerEvent::Connected { peer, .. }) = endpoint.poll_event() {
                break peer;
            }
        };
        Messages::start(endpoint, peer, clock)
    }

    pub(crate) fn connect(folder: &str) -> Result<Messages, Error> {
        let clock = MonotonicClock::new();
        let transport = ShmTransport::new(ShmConfig::default())?;
        let mut endpoint = Endpoint::new(Box::new(transport), Config::named("near"), clock.now())?;
        let addr = Addr::shm(format!("{folder}/names/message"));
        let deadline = clock.now() + std::time::Duration::from_secs(10);
        loop {
            let (peer, op) = endpoint.connect(&addr, Options::default())?;
            let done = loop {
                endpoint.poll(clock.now());
                if let Some(done) = endpoint.poll_op(op) {
                    break done;
                }
            };
            match done.status {
                Ok(()) => return Messages::start(endpoint, peer, clock),
                // The peer does not listen yet.
                Err(ErrorKind::Refused) if clock.now() < deadline => {}
                Err(kind) => return Err(Error::new(kind, "while connecting")),
            }
        }
    }

    fn start(mut endpoint: Endpoint, peer: PeerId, clock: MonotonicClock) -> Result<Messages, Error> {
        let (out, into) = (Memory::shareable(ROOM)?, Memory::shareable(ROOM)?);
        let held = [&out, &into].map(|memory| {
            memory.copy_from(0, &vec![1; ROOM]);
            endpoint.register(memory)
        });
        let exposure = endpoint.expose(peer, into.all(), Access::READ_WRITE)?;
        let now = clock.now();
        let own = exposure.descriptor().pieces()[0].to_wire();
        let mut held: Vec<Box<dyn std::any::Any>> =
            held.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().map(|r| Box::new(r) as _).collect();
        held.push(Box::new(exposure));
        let remote = BulkDescriptor::try_from(Vec::new()).map_err(|_| failed("an empty descriptor"))?;
        let mut messages = Messages {
            endpoint,
            peer,
            clock,
            now,
            polls: 0,
            filled: 0,
            completions: Vec::new(),
            out,
            into,
            remote,
            _held: held,
        };
        messages.out.copy_from(0, &own);
        let mut pending = messages.recv(SYNC, 0, own.len())? + messages.send(SYNC, 0, own.len())?;
        messages.wait(&mut pending, 0)?;
        let mut wire = [0; RemoteSlice::WIRE_LEN];
        messages.into.copy_to(0, &mut wire);
        messages.remote = BulkDescriptor::try_from(vec![RemoteSlice::from_wire(&wire)])
            .map_err(|_| failed("the peer's descriptor"))?;
        Ok(messages)
    }

    #[inline]
    fn poll(&mut self) -> Result<usize, Error> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(64) {
            self.now = self.clock.now();
        }
        self.endpoint.poll(self.now);
        let count = self.endpoint.poll_all(&mut self.completions);
        for completion in self.completions.drain(..) {
            if let Err(kind) = completion.status {
                return Err(Error::new(kind, "an operation failed"));
            }
        }
        Ok(count)
    }

    /// Polls until at most `left` of the pending operations remain.
    #[inline]
    fn wait(&mut self, pending: &mut usize, left: usize) -> Result<(), Error> {
        while *pending > left {
            *pending -= self.poll()?;
        }
        Ok(())
    }

    #[inline]
    fn recv(&mut self, tag: u64, at: usize, len: usize) -> Result<usize, Error> {
        pending(self.endpoint.post_recv(self.peer, tag, self.into.slice(at, len), Options::default()))
    }

    #[inline]
    fn send(&mut self, tag: u64, at: usize, len: usize) -> Result<usize, Error> {
        if tag == DATA {
            self.fill(at, len);
        }
        pending(self.endpoint.post_send(self.peer, tag, self.out.slice(at, len), Options::default()))
    }

    /// Writes the payload of the transfer that is posted next.
    #[inline]
    fn fill(&mut self, at: usize, len: usize) {
        self.filled = self.filled.wrapping_add(1);
        let payload = self.out.slice(at, len);
        // SAFETY: the slice lies in memory that this side keeps, and no transfer of this place is
        // under way (`places`).
        unsafe { write_lines(payload.as_ptr(), len, self.filled) };
    }

    fn meet(&mut self) -> Result<(), Error> {
        let mut pending = self.recv(SYNC, 0, 8)? + self.send(SYNC, 0, 8)?;
        self.wait(&mut pending, 0)
    }

    /// Runs one round. The figure is that of the near side.
    #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    pub(crate) fn run(&mut self, row: &Row, near: bool, count: usize) -> Result<f64, Error> {
        self.meet()?;
        let begin = Instant::now();
        match row.test {
            Test::Latency | Test::WriteLatency | Test::Immediate => self.ping_pong(row.size, near, count)?,
            Test::Send | Test::Rate => self.stream(row, near, count)?,
            Test::Write | Test::Read => self.one_sided(row, near, count)?,
        }
        let seconds = begin.elapsed().as_secs_f64();
        Ok(match row.test {
            Test::Latency | Test::WriteLatency | Test::Immediate => seconds / count as f64 / 2.0,
            Test::Rate => count as f64 / seconds,
            _ => (count * row.size) as f64 / seconds,
        })
    }

    /// Runs a ping-pong. The receive for the answer is posted while the message is in flight, as in
    /// `ucx_perftest`.
    fn ping_pong(&mut self, size: usize, near: bool, count: usize) -> Result<(), Error> {
        let (mut receiving, mut sending) = (0, 0);
        if !near {
            receiving = self.recv(DATA, 0, size)?;
        }
        for number in 0..count {
            if near {
                sending = self.send(DATA, 0, size)?;
                receiving = self.recv(DATA, 0, size)?;
            }
            let mut pending = receiving + sending;
            self.wait(&mut pending, 0)?;
            (receiving, sending) = (0, 0);
            if !near {
                sending = self.send(DATA, 0, size)?;
                if number + 1 < count {
                    receiving = self.recv(DATA, 0, size)?;
                }
            }
        }
        self.wait(&mut sending, 0)
    }

    /// Sends messages in one direction.
    ///
    /// The receiver keeps its window of receives full, and polls when it is full, so that receives
    /// wait for messages, as in `ucx_perftest`. The sender polls from time to time for credits.
    fn stream(&mut self, row: &Row, near: bool, count: usize) -> Result<(), Error> {
        let (window, places) = (window(row), places(row));
        let mut pending = 0;
        for number in 0..count {
            let at = number % places * row.size;
            pending += if near { self.send(DATA, at, row.size)? } else { self.recv(DATA, at, row.size)? };
            if near && number % 32 == 0 {
                pending -= self.poll()?.min(pending);
            }
            self.wait(&mut pending, window - 1)?;
        }
        self.wait(&mut pending, 0)?;
        self.meet()
    }

    fn one_sided(&mut self, row: &Row, near: bool, count: usize) -> Result<(), Error> {
        let mut outstanding = 0;
        let places = places(row);
        for number in 0..if near { count } else { 0 } {
            let at = number % places * row.size;
            if row.test == Test::Write {
                self.fill(at, row.size);
            }
            let (list, options) = (self.out.slice(at, row.size), Options::default());
            outstanding += if row.test == Test::Write {
                pending(self.endpoint.post_push(self.peer, &self.remote, at as u64, list, options))?
            } else {
                pending(self.endpoint.post_pull(self.peer, &self.remote, at as u64, list, options))?
            };
            // A place is written again when its transfer has ended.
            self.wait(&mut outstanding, if row.test == Test::Write { places - 1 } else { 3 })?;
        }
        self.wait(&mut outstanding, 0)?;
        self.meet()
    }
}

/// Returns the number of messages of a stream that may be under way.
fn window(row: &Row) -> usize {
    if row.test == Test::Rate { 256 } else { (ROOM / row.size).min(16) }
}

/// Returns the number of places that a row's messages use in turn. No place is written while a
/// transfer of it is under way.
fn places(row: &Row) -> usize {
    match row.test {
        Test::Send | Test::Rate => window(row),
        Test::Write => (ROOM / row.size).clamp(2, 4),
        _ if row.size >= 8 << 20 => 2,
        _ => 1,
    }
}

/// Returns 1 if the operation is still in flight.
fn pending(posted: Result<Posted, Error>) -> Result<usize, Error> {
    Ok(usize::from(posted?.pending().is_some()))
}
