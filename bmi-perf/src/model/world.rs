//! Two nodes in the simulator that run one case, with the messages of `library`.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bmi::bulk::{Access, BulkDescriptor};
use bmi::{Config, Error, MemSlice, Memory, Operation, Options, Peer, PeerEvent};
use bmi_sim::{Node, Profile, SimConfig, World};

use super::Question;
use crate::case::Test;

const DATA: u64 = 1;
const SIGNAL: u64 = 2;
const DESCRIPTOR: u64 = 3;
/// Bytes for a descriptor of one memory, and its most pieces.
const DESCRIPTOR_ROOM: usize = 64 << 10;
const MOST_PIECES: usize = 8192;
/// The virtual time after which a prediction is given up.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Returns what the library would measure on such machines, in the unit of the test.
pub(super) fn predict(profile: &Profile, question: Question) -> Result<f64, String> {
    let config = SimConfig { time_limit: PATIENCE, ..SimConfig::with_profile(profile.clone()) };
    let world = World::with(config);
    let (client, server) = (world.node("client"), world.node("server"));
    let error = |error: Error| error.to_string();
    let open = |node: &Node| node.endpoint_waiting(Config::named(node.name()), question.waiting.driver());
    let (here, there) = (open(&client).map_err(error)?, open(&server).map_err(error)?);
    let addr = there.listen(&server.addr(0)).map_err(error)?;
    let serving = server.spawn(async move {
        loop {
            if let PeerEvent::Connected { peer, .. } = there.next_event().await {
                let side = Side::new(peer, question)?;
                return if question.is_one_sided() { side.expose().await } else { side.answer().await };
            }
        }
    });
    let node = client.clone();
    let measuring = client.spawn(async move {
        let peer = here.connect(&addr, Options::default()).await?;
        Side::new(peer, question)?.measure(&node).await
    });
    let both = async {
        let measured = measuring.await;
        (measured, serving.await)
    };
    let (measured, served) = world.try_block_on(both).map_err(|stalled| stalled.to_string())?;
    let ended = |killed: bmi_sim::Killed| killed.to_string();
    served.map_err(ended)?.map_err(error)?;
    let seconds = measured.map_err(ended)?.map_err(error)?.as_secs_f64() / question.messages() as f64;
    Ok(match question.test {
        // There and back.
        Test::Latency => seconds / 2.0,
        Test::Rate => 1.0 / seconds,
        test if test.streams() => question.size as f64 / seconds,
        _ => seconds,
    })
}

impl Question {
    fn is_one_sided(&self) -> bool {
        !matches!(self.test, Test::Latency | Test::Bandwidth | Test::Rate)
    }

    /// Returns the number of messages of each pass: that which fills caches, and the measured one.
    fn passes(&self) -> [usize; 2] {
        [2 * self.depth, self.messages()]
    }
}

type Pending = VecDeque<Operation>;

/// One side of the connection.
struct Side {
    peer: Peer,
    question: Question,
    /// The buffers that are used in turn.
    out: Rc<[MemSlice]>,
    back: Rc<[MemSlice]>,
    memory: Memory,
}

impl Side {
    fn new(peer: Peer, question: Question) -> Result<Side, Error> {
        let Question { size, depth, .. } = question;
        let buffers = || -> Result<(Memory, Rc<[MemSlice]>), Error> {
            let memory = Memory::zeroed(size * depth)?;
            let slices = (0..depth).map(|index| memory.slice(index * size, size)).collect();
            Ok((memory, slices))
        };
        let ((memory, out), (_, back)) = (buffers()?, buffers()?);
        Ok(Side { peer, question, out, back, memory })
    }

    fn send(&self, tag: u64, bytes: &MemSlice) -> Operation {
        self.peer.send(tag, bytes, Options::default())
    }

    fn recv(&self, tag: u64, into: &MemSlice) -> Operation {
        self.peer.recv(tag, into, Options::default())
    }

    fn signal(&self) -> Operation {
        self.peer.send(SIGNAL, vec![1], Options::default())
    }

    fn await_signal(&self) -> Operation {
        self.peer.recv(SIGNAL, vec![0], Options::default())
    }

    // ---- the client -----------------------------------------------------------------------------

    /// Returns the time of the measured pass.
    async fn measure(self, node: &Node) -> Result<Duration, Error> {
        let remote = if self.question.is_one_sided() { Some(self.remote().await?) } else { None };
        let mut took = Duration::ZERO;
        for messages in self.question.passes() {
            self.await_signal().await?;
            let done = self.await_signal();
            let start = node.now();
            match &remote {
                Some(remote) => self.access(remote, messages).await?,
                None if self.question.test == Test::Latency => self.ping(messages).await?,
                None => self.stream(messages).await?,
            }
            let alone = node.now() - start;
            self.signal().await?;
            done.await?;
            // A stream has ended when the server has it. Writes are in place when it answers.
            let is_there = matches!(self.question.test, Test::Bandwidth | Test::Rate | Test::WriteBandwidth);
            took = if is_there { node.now() - start } else { alone };
        }
        Ok(took)
    }

    async fn ping(&self, messages: usize) -> Result<(), Error> {
        for _ in 0..messages {
            let answer = self.recv(DATA, &self.back[0]);
            let sent = self.send(DATA, &self.out[0]);
            answer.await?;
            sent.await?;
        }
        Ok(())
    }

    async fn stream(&self, messages: usize) -> Result<(), Error> {
        self.window(messages, |turn| self.send(DATA, &self.out[turn])).await
    }

    /// Receives the descriptor of the server's memory.
    async fn remote(&self) -> Result<BulkDescriptor, Error> {
        let room = Memory::zeroed(DESCRIPTOR_ROOM)?;
        let len = self.peer.recv(DESCRIPTOR, &room, Options::default()).await?.len;
        BulkDescriptor::decode(&room.slice(0, len as usize).to_vec(), MOST_PIECES)
    }

    async fn access(&self, remote: &BulkDescriptor, messages: usize) -> Result<(), Error> {
        let writes = matches!(self.question.test, Test::WriteLatency | Test::WriteBandwidth);
        let post = |turn: usize| {
            let (at, local) = ((turn * self.question.size) as u64, &self.out[turn]);
            match writes {
                true => self.peer.push(remote, at, local, Options::default()),
                false => self.peer.pull(remote, at, local, Options::default()),
            }
        };
        self.window(messages, post).await
    }

    /// Posts all, with as many in flight as there are buffers.
    async fn window(&self, messages: usize, post: impl Fn(usize) -> Operation) -> Result<(), Error> {
        let mut pending = Pending::new();
        for number in 0..messages {
            if pending.len() == self.question.depth
                && let Some(oldest) = pending.pop_front()
            {
                oldest.await?;
            }
            pending.push_back(post(number % self.question.depth));
        }
        drain(pending).await
    }

    // ---- the server -----------------------------------------------------------------------------

    async fn answer(self) -> Result<(), Error> {
        for messages in self.question.passes() {
            match self.question.test {
                Test::Latency => self.pong(messages).await?,
                _ => self.receive(messages).await?,
            }
            self.await_signal().await?;
            self.signal().await?;
        }
        Ok(())
    }

    async fn pong(&self, messages: usize) -> Result<(), Error> {
        let mut next = Some(self.recv(DATA, &self.out[0]));
        self.signal().await?;
        let mut number = 0;
        while let Some(message) = next {
            message.await?;
            number += 1;
            // Post the next receive before the answer that makes the client send its message.
            next = (number < messages).then(|| self.recv(DATA, &self.out[0]));
            self.send(DATA, &self.back[0]).await?;
        }
        Ok(())
    }

    async fn receive(&self, messages: usize) -> Result<(), Error> {
        let mut pending = Pending::new();
        for number in 0..messages {
            // The first receives are posted: each pass has more messages than buffers.
            if number == self.question.depth {
                self.signal().await?;
            }
            if pending.len() == self.question.depth
                && let Some(oldest) = pending.pop_front()
            {
                oldest.await?;
            }
            pending.push_back(self.recv(DATA, &self.out[number % self.question.depth]));
        }
        drain(pending).await
    }

    async fn expose(self) -> Result<(), Error> {
        let access = match self.question.test {
            Test::WriteLatency | Test::WriteBandwidth => Access::WRITE,
            _ => Access::READ,
        };
        let exposure = self.peer.expose(&self.memory, access)?;
        let described = exposure.descriptor().encode(Vec::new());
        self.peer.send(DESCRIPTOR, described, Options::default()).await?;
        for _ in self.question.passes() {
            let done = self.await_signal();
            self.signal().await?;
            done.await?;
            self.signal().await?;
        }
        Ok(())
    }
}

async fn drain(pending: Pending) -> Result<(), Error> {
    for operation in pending {
        operation.await?;
    }
    Ok(())
}
