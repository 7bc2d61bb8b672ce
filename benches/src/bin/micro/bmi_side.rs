//! The same measurements through the library, over any backend. The code for the endpoints of both
//! sides is the same, with two drivers.
//!
//! Operations have no deadline of their own. The limit of the phase ends those that hang.

use std::collections::VecDeque;
use std::time::Instant;

use bmi_core::driver::{busy, event};
use bmi_core::{Access, AsyncEndpoint, BulkDescriptor, Error, ErrorKind, Memory, Operation, Options, PeerId};
use bmi_report::{Histogram, stats};

use crate::phase::{Mode, Outcome, Phase, What};

/// The tag of the messages that are measured.
const DATA: u64 = 1;
/// The tag of control messages to and from the peer: ready, go, done.
const SIGNAL: u64 = 2;
/// The tag of the peer's descriptor of its exposed memory.
const DESCRIPTOR: u64 = 3;
/// The bytes that are reserved for a descriptor of one piece.
const DESCRIPTOR_ROOM: usize = 512;

/// An endpoint and its only peer.
pub(crate) struct Ours {
    endpoint: AsyncEndpoint,
    peer: PeerId,
}

impl Ours {
    /// Wraps an endpoint that is connected to `peer`.
    pub(crate) fn new(endpoint: AsyncEndpoint, peer: PeerId) -> Ours {
        Ours { endpoint, peer }
    }

    /// Runs this side's part of a phase, as the side that measures.
    ///
    /// # Errors
    /// The error of any operation.
    pub(crate) fn measure(&self, phase: &Phase) -> Result<Outcome, Error> {
        drive(&self.endpoint, phase.mode, async {
            let ring = Ring::new(phase)?;
            let mut each = Histogram::new();
            let seconds = match phase.what {
                What::Latency => self.ping(phase, &ring, &mut each).await?,
                What::Send | What::Rate | What::RateEach => self.send_stream(phase, &ring).await?,
                What::Write | What::Read => self.one_sided(phase, &ring).await?,
            };
            Ok(Outcome { seconds, each, ..Outcome::default() })
        })
    }

    /// Runs the peer's part.
    ///
    /// # Errors
    /// As [`Ours::measure`].
    pub(crate) fn serve(&self, phase: &Phase) -> Result<(), Error> {
        drive(&self.endpoint, phase.mode, async {
            let ring = Ring::new(phase)?;
            match phase.what {
                What::Latency => self.pong(phase, &ring).await,
                What::Send | What::Rate | What::RateEach => self.receive_stream(phase, &ring).await,
                What::Write | What::Read => self.expose(phase, &ring).await,
            }
        })
    }

    fn send(&self, tag: u64, bytes: &bmi_core::MemSlice) -> Operation {
        self.endpoint.send(self.peer, tag, bytes, Options::default())
    }

    fn recv(&self, tag: u64, into: &bmi_core::MemSlice) -> Operation {
        self.endpoint.recv(self.peer, tag, into, Options::default())
    }

    async fn signal(&self) -> Result<(), Error> {
        self.endpoint.send(self.peer, SIGNAL, vec![1], Options::default()).await.map(drop)
    }

    fn await_signal(&self) -> Operation {
        self.endpoint.recv(self.peer, SIGNAL, vec![0], Options::default())
    }

    #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    async fn ping(&self, phase: &Phase, ring: &Ring, each: &mut Histogram) -> Result<f64, Error> {
        let (out, back) = (ring.message(0), ring.message(1));
        self.await_signal().await?;
        let mut trips = Vec::with_capacity(phase.count as usize);
        for _ in 0..phase.count {
            let begin = Instant::now();
            let answer = self.recv(DATA, &back);
            let sent = self.send(DATA, &out);
            answer.await?;
            trips.push(begin.elapsed().as_secs_f64());
            sent.await?;
        }
        trips.iter().for_each(|trip| each.record((trip / 2.0 * 1e9) as u64));
        Ok(stats::middle(&mut trips) / 2.0)
    }

    async fn pong(&self, phase: &Phase, ring: &Ring) -> Result<(), Error> {
        let (out, back) = (ring.message(0), ring.message(1));
        let mut next = self.recv(DATA, &out);
        self.signal().await?;
        for number in 1..=phase.count {
            next.await?;
            // Post the next receive before the answer that makes the peer send its message.
            let after = (number < phase.count).then(|| self.recv(DATA, &out));
            self.send(DATA, &back).await?;
            match after {
                Some(after) => next = after,
                None => break,
            }
        }
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    async fn send_stream(&self, phase: &Phase, ring: &Ring) -> Result<f64, Error> {
        self.await_signal().await?;
        let done = self.await_signal();
        let begin = Instant::now();
        let mut window = Window::new(phase);
        for number in 0..phase.count {
            window.room().await?;
            window.add(self.send(DATA, ring.turn(number)));
        }
        window.drain().await?;
        done.await?;
        Ok(begin.elapsed().as_secs_f64())
    }

    async fn receive_stream(&self, phase: &Phase, ring: &Ring) -> Result<(), Error> {
        let mut window = Window::new(phase);
        for number in 0..phase.count.min(phase.window as u64) {
            window.add(self.recv(DATA, ring.turn(number)));
        }
        self.signal().await?;
        for number in phase.window as u64..phase.count {
            window.room().await?;
            window.add(self.recv(DATA, ring.turn(number)));
        }
        window.drain().await?;
        self.signal().await
    }

    #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    async fn one_sided(&self, phase: &Phase, ring: &Ring) -> Result<f64, Error> {
        let described = Memory::zeroed(DESCRIPTOR_ROOM)?;
        let len = self.endpoint.recv(self.peer, DESCRIPTOR, &described, Options::default()).await?.len;
        let remote: BulkDescriptor = serde_json::from_slice(&described.slice(0, len as usize).to_vec())
            .map_err(|error| Error::new(ErrorKind::Protocol, "the peer's descriptor").caused_by(error))?;
        let begin = Instant::now();
        let mut window = Window::new(phase);
        for number in 0..phase.count {
            let at = number % phase.window as u64 * phase.size as u64;
            let local = ring.turn(number);
            window.room().await?;
            window.add(if phase.what == What::Write {
                self.endpoint.push(self.peer, &remote, at, local, Options::default())
            } else {
                self.endpoint.pull(self.peer, &remote, at, local, Options::default())
            });
        }
        window.drain().await?;
        let elapsed_here = begin.elapsed();
        // An answer to a message that was sent after the writes shows that they are in place. Data
        // that was read is here.
        self.signal().await?;
        self.await_signal().await?;
        let elapsed = if phase.what == What::Write { begin.elapsed() } else { elapsed_here };
        Ok(elapsed.as_secs_f64())
    }

    async fn expose(&self, phase: &Phase, ring: &Ring) -> Result<(), Error> {
        let access = if phase.what == What::Write { Access::WRITE } else { Access::READ };
        let exposure = self.endpoint.expose(self.peer, &ring.memory, access)?;
        let described = serde_json::to_vec(exposure.descriptor())
            .map_err(|error| Error::new(ErrorKind::Invalid, "a descriptor").caused_by(error))?;
        let done = self.await_signal();
        self.endpoint.send(self.peer, DESCRIPTOR, described, Options::default()).await?;
        done.await?;
        self.signal().await
    }
}

/// Runs `future` with the driver for `mode`.
fn drive<R>(endpoint: &AsyncEndpoint, mode: Mode, future: impl Future<Output = Result<R, Error>>) -> Result<R, Error> {
    let result = match mode {
        Mode::Polling => busy::block_on(std::slice::from_ref(endpoint), future),
        Mode::Sleeping => event::block_on(endpoint.clone(), future)?,
    };
    // The last post may leave only with the next poll, and no poll happens between phases.
    while endpoint.progress() {}
    result
}

/// The buffers that a phase uses in turn.
struct Ring {
    memory: Memory,
    messages: Vec<bmi_core::MemSlice>,
}

impl Ring {
    fn new(phase: &Phase) -> Result<Ring, Error> {
        let memory = Memory::zeroed(phase.size * phase.window)?;
        // Touch every page now, and not during the measurement.
        memory.copy_from(0, &vec![1; memory.len()]);
        let messages = (0..phase.window).map(|number| memory.slice(number * phase.size, phase.size)).collect();
        Ok(Ring { memory, messages })
    }

    fn message(&self, index: usize) -> bmi_core::MemSlice {
        self.messages[index % self.messages.len()].clone()
    }

    fn turn(&self, number: u64) -> &bmi_core::MemSlice {
        &self.messages[(number % self.messages.len() as u64) as usize]
    }
}

/// A limited number of operations in flight. The oldest is awaited before another is posted.
struct Window {
    under_way: VecDeque<Operation>,
    most: usize,
}

impl Window {
    fn new(phase: &Phase) -> Window {
        Window { under_way: VecDeque::with_capacity(phase.window), most: phase.window }
    }

    /// Waits until another operation may be added.
    async fn room(&mut self) -> Result<(), Error> {
        if self.under_way.len() == self.most
            && let Some(oldest) = self.under_way.pop_front()
        {
            oldest.await?;
        }
        Ok(())
    }

    fn add(&mut self, operation: Operation) {
        self.under_way.push_back(operation);
    }

    async fn drain(&mut self) -> Result<(), Error> {
        while let Some(oldest) = self.under_way.pop_front() {
            oldest.await?;
        }
        Ok(())
    }
}
