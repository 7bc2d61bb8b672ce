//! The library's part of a case, on either side, over any transport.
//!
//! The code is the same for every transport. Operations have no deadline of their own;
//! [`Stop`] ends those that hang.
//!
//! **Protocol.** On each connection the server prepares, then sends a signal, and the client
//! begins. The client's last signal ends the server's part where the server cannot count.

mod calls;
mod messages;
mod one_sided;
mod paced;
mod ring;
mod shared;

use std::time::Duration;

use bmi::driver::{MonotonicClock, busy, event, thread};
use bmi::paths::{MessageRule, Rule};
use bmi::threading::{OneThread, Threading};
use bmi::timeline::{Timeline, TimelineOptions};
use bmi::{Addr, Config, Endpoint, Error, ErrorKind, MemSlice, Memory, Operation, Options, Peer, PeerEvent, Scheme};
use futures_util::future::try_join_all;

pub(super) use self::shared::Shared;
use super::adapter;
use super::produce::produce;
use crate::case::{Case, Interface, Over, Settings, Test, Waiting};
use crate::measured::Measured;
use crate::stop::Stop;

/// The tag of the messages that are measured.
pub(crate) const DATA: u64 = 1;
/// The tag of signals.
const SIGNAL: u64 = 2;
/// The tag of descriptors and grants.
const DESCRIPTOR: u64 = 3;
/// Number of entries of a timeline that are kept.
const RECORDED: usize = 4096;
/// How long a connection may take to be made.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Opens an endpoint.
///
/// # Errors
/// Those of [`bmi::endpoint`].
pub(super) fn open(scheme: Scheme, name: &str, settings: &Settings) -> Result<Endpoint, Error> {
    bmi::endpoint(scheme, &adapter::options(settings)?, config(name, settings), MonotonicClock::new())
}

pub(super) fn config(name: &str, settings: &Settings) -> Config {
    Config::named(name).max_message(settings.max_message.max(1 << 20))
}

/// Connects so many times to a server's thread.
async fn connect<S: Threading>(to: &Addr, endpoint: &Endpoint<S>, number: u32) -> Result<Vec<Peer<S>>, Error> {
    let mut peers = Vec::new();
    for _ in 0..number {
        peers.push(endpoint.connect(to, endpoint.within(PATIENCE)).await?);
    }
    Ok(peers)
}

/// An endpoint of one thread, and its connections.
pub(super) struct Side {
    endpoint: Endpoint,
    peers: Vec<Peer>,
}

impl Side {
    /// Connects `connections` times to a server's thread.
    pub(super) fn connect(endpoint: Endpoint, to: &Addr, connections: u32, stop: &Stop) -> Result<Side, Error> {
        let connecting = connect(to, &endpoint, connections);
        let peers = event::block_on(endpoint.clone(), stop.unless(connecting))??;
        Ok(Side { endpoint, peers })
    }

    /// Waits for the connections of a client's thread.
    pub(super) fn accept(endpoint: Endpoint, connections: u32, stop: &Stop) -> Result<Side, Error> {
        let accepting = async {
            let mut peers = Vec::new();
            while peers.len() < connections as usize {
                match endpoint.next_event().await {
                    PeerEvent::Connected { peer, .. } => peers.push(peer),
                    PeerEvent::Lost { reason, .. } => return Err(reason),
                }
            }
            Ok(peers)
        };
        let late = async {
            endpoint.sleep(2 * PATIENCE).await;
            Err(Error::new(ErrorKind::TimedOut, "the client did not connect"))
        };
        let either = async {
            tokio::select! { biased; done = accepting => done, late = late => late }
        };
        let peers = event::block_on(endpoint.clone(), stop.unless(either))??;
        Ok(Side { endpoint, peers })
    }

    /// Waits until the client has closed its connections, which takes both sides.
    pub(super) fn until_they_leave(&self, stop: &Stop) -> Result<(), Error> {
        let leaving = async {
            let mut left = 0;
            while left < self.peers.len() {
                left += usize::from(matches!(self.endpoint.next_event().await, PeerEvent::Lost { .. }));
            }
            Ok(())
        };
        event::block_on(self.endpoint.clone(), stop.unless(leaving))?
    }

    /// Runs the client's part: `count` messages on each connection.
    pub(super) fn measure(&self, case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
        let parts = links(&self.peers, case, count).map(Link::measure);
        let measured = self.drive(case.station.interface, case.waiting, stop.unless(all(parts)))?;
        Ok(measured.into_iter().fold(Measured::default(), Measured::beside))
    }

    /// Runs the server's part.
    pub(super) fn serve(&self, case: &Case, count: u64, stop: &Stop) -> Result<(), Error> {
        let parts = || links(&self.peers, case, count).map(Link::serve);
        let served = stop.unless(async {
            if !case.test.has_paths() {
                return all(parts()).await.map(drop);
            }
            // Calls come to the endpoint, and not to a connection.
            let store = calls::Store::new(case)?;
            tokio::select! {
                biased;
                done = all(parts()) => done.map(drop),
                never = bmi::serve(&self.endpoint, 1024, async |call| store.answer(call).await) => match never {},
            }
        });
        self.drive(case.station.interface, server_waiting(case), served)
    }

    fn drive<R>(
        &self,
        interface: Interface,
        waiting: Waiting,
        part: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Error> {
        let result = match waiting {
            Waiting::Polling => busy::block_on(std::slice::from_ref(&self.endpoint), part),
            _ if interface == Interface::Runtime => {
                event::block_on_with(self.endpoint.clone(), waiting.driver(), part)?
            }
            _ => thread::block_on(&self.endpoint, waiting.driver(), part)?,
        };
        // The last post may leave only with the next poll, and no poll happens between rounds.
        while self.endpoint.progress() {}
        result
    }

    /// Begins to record a timeline.
    pub(super) fn record(&self) -> Result<(), Error> {
        let options = TimelineOptions { events: RECORDED };
        self.endpoint.with(|engine| engine.record(options, MonotonicClock::new()))
    }

    /// Returns what was recorded, if anything was, and ends the recording.
    pub(super) fn recorded(&self) -> Option<Timeline> {
        self.endpoint.with(|engine| {
            let timeline = engine.timeline();
            engine.stop_recording();
            timeline
        })
    }

    /// Returns the paths that the data of calls takes, and those of messages.
    pub(super) fn plan(&self) -> (Vec<Rule>, Vec<MessageRule>) {
        let peer = self.peers.first().map(Peer::id);
        self.endpoint
            .with(|engine| (engine.plan(peer).rules, peer.map_or_else(Vec::new, |peer| engine.message_plan(peer))))
    }
}

/// Returns how the server of a case waits: as the client, unless it has nothing to do.
///
/// A verbs adapter writes and reads memory without its host. A thread that polled beside that would
/// only take a processor, or a share of one, from what is measured. An adapter in software works
/// when it is polled.
fn server_waiting(case: &Case) -> Waiting {
    use Test::{ListRead, ListWrite, ReadBandwidth, ReadLatency, WriteBandwidth, WriteLatency};
    match (case.station.over, case.test) {
        (Over::Ib, WriteLatency | WriteBandwidth | ListWrite | ReadLatency | ReadBandwidth | ListRead) => {
            Waiting::Sleeping
        }
        _ => case.waiting,
    }
}

/// Waits for all parts. One alone is not put into a list.
async fn all<R>(parts: impl Iterator<Item = impl Future<Output = Result<R, Error>>>) -> Result<Vec<R>, Error> {
    let mut parts: Vec<_> = parts.collect();
    match (parts.pop(), parts.is_empty()) {
        (Some(only), true) => Ok(vec![only.await?]),
        (last, _) => try_join_all(parts.into_iter().chain(last)).await,
    }
}

/// A connection and what happens on it.
struct Link<S: Threading = OneThread> {
    peer: Peer<S>,
    case: Case,
    count: u64,
}

fn links<S: Threading>(peers: &[Peer<S>], case: &Case, count: u64) -> impl Iterator<Item = Link<S>> {
    peers.iter().map(move |peer| Link { peer: peer.clone(), case: *case, count })
}

impl<S: Threading> Link<S> {
    async fn measure(self) -> Result<Measured, Error> {
        match self.case.test {
            Test::Latency => self.ping().await,
            Test::Bandwidth | Test::Rate => self.send_stream().await,
            Test::BothWays => self.both_streams().await,
            Test::LatencyAtRate => self.paced_pings().await,
            Test::WriteLatency | Test::WriteBandwidth | Test::ListWrite => self.push().await,
            Test::ReadLatency | Test::ReadBandwidth | Test::ListRead => self.pull().await,
            Test::WriteImm => self.push_granted().await,
            Test::WriteSeen => Err(of_a_backend()),
            Test::CallWrite | Test::CallRead => self.calls().await,
            Test::TokioWrite | Test::TokioRead => Err(of_tasks()),
        }
    }

    async fn serve(self) -> Result<(), Error> {
        match self.case.test {
            Test::Latency => self.pong().await,
            Test::Bandwidth | Test::Rate => self.receive_stream().await,
            Test::BothWays => self.both_streams_back().await,
            Test::LatencyAtRate => self.paced_pongs().await,
            Test::WriteLatency
            | Test::WriteBandwidth
            | Test::ListWrite
            | Test::ReadLatency
            | Test::ReadBandwidth
            | Test::ListRead => self.expose().await,
            Test::WriteImm => self.grant().await,
            Test::WriteSeen => Err(of_a_backend()),
            Test::CallWrite | Test::CallRead => {
                self.signal().await?;
                self.await_signal().await.map(drop)
            }
            Test::TokioWrite | Test::TokioRead => Err(of_tasks()),
        }
    }

    /// Sends a message that is measured, and writes it before.
    fn send(&self, bytes: &MemSlice) -> Operation<S> {
        produce(self.case.station.over, bytes);
        self.peer.send(DATA, bytes, Options::default())
    }

    fn recv(&self, into: &MemSlice) -> Operation<S> {
        self.peer.recv(DATA, into, Options::default())
    }

    async fn signal(&self) -> Result<(), Error> {
        self.peer.send(SIGNAL, vec![1], Options::default()).await.map(drop)
    }

    fn await_signal(&self) -> Operation<S> {
        self.peer.recv(SIGNAL, vec![0], Options::default())
    }

    /// Sends a few bytes that describe something.
    async fn describe(&self, bytes: Vec<u8>) -> Result<(), Error> {
        self.peer.send(DESCRIPTOR, bytes, Options::default()).await.map(drop)
    }

    /// Receives a few bytes that describe something.
    async fn description(&self, room: &Memory) -> Result<Vec<u8>, Error> {
        let len = self.peer.recv(DESCRIPTOR, room, Options::default()).await?.len;
        Ok(room.slice(0, len as usize).to_vec())
    }
}

fn of_a_backend() -> Error {
    Error::new(ErrorKind::Unsupported, "the library does not show when a write is in place")
}

fn of_tasks() -> Error {
    Error::new(ErrorKind::Unsupported, "a test of programs on tokio")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Station;

    /// The source of a message was written once, before the first round. Over shared memory the
    /// receiver then read lines that its own cache had from the round before, and no data moved.
    #[test]
    fn a_message_over_shared_memory_is_written_before_it_is_sent() {
        const LEN: usize = 100_000;
        let (folder, stop) = (tempfile::tempdir().unwrap(), Stop::default());
        let at = Addr::shm(folder.path().join("own/socket").display().to_string());
        let settings = Settings { max_message: 1 << 20, ..Settings::default() };
        let case = |over| {
            let base = crate::case::tests::case();
            Case { station: Station { over, ..base.station }, size: LEN as u64, ..base }
        };
        let (ready, listening) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let (at, settings, stop) = (&at, &settings, &stop);
            let serve = move || {
                let endpoint = open(Scheme::Shm, "server", settings).unwrap();
                endpoint.listen(at).unwrap();
                ready.send(()).unwrap();
                let side = Side::accept(endpoint, 1, stop).unwrap();
                let into = Memory::zeroed(LEN).unwrap();
                let receiving = async {
                    for _ in 0..3 {
                        side.peers[0].recv(DATA, &into, Options::default()).await?;
                    }
                    Ok(())
                };
                side.drive(Interface::Endpoint, Waiting::Sleeping, receiving).unwrap();
            };
            let server = std::thread::Builder::new().spawn_scoped(scope, serve).unwrap();
            listening.recv().unwrap();
            let endpoint = open(Scheme::Shm, "client", settings).unwrap();
            let side = Side::connect(endpoint, at, 1, stop).unwrap();
            let memory = Memory::zeroed(LEN).unwrap();
            // A case over TCP leaves the message as it is.
            for (over, written) in [(Over::Shm, 0), (Over::Shm, 0), (Over::Tcp, 7)] {
                memory.copy_from(0, &[7; LEN]);
                let link = links(&side.peers, &case(over), 1).next().unwrap();
                side.drive(Interface::Endpoint, Waiting::Sleeping, async { link.send(&memory.all()).await.map(drop) })
                    .unwrap();
                assert!(memory.to_vec().iter().all(|byte| *byte == written), "over {over}");
            }
            server.join().unwrap();
        });
    }

    #[test]
    fn a_server_sleeps_only_where_its_adapter_does_the_work() {
        let waiting = |over, test| {
            let base = crate::case::tests::case();
            server_waiting(&Case { test, station: Station { over, ..base.station }, ..base })
        };
        for test in [Test::WriteBandwidth, Test::ReadLatency, Test::ListRead] {
            assert_eq!(waiting(Over::Ib, test), Waiting::Sleeping, "{test:?}");
            assert_eq!(waiting(Over::Tcp, test), Waiting::Polling, "{test:?}");
        }
        for test in [Test::Latency, Test::Bandwidth, Test::WriteImm, Test::CallWrite] {
            assert_eq!(waiting(Over::Ib, test), Waiting::Polling, "{test:?}");
        }
    }
}
