//! A client: reads and writes blocks at a majority of the replicas.

use std::pin::pin;
use std::time::Duration;

use bmi::{Addr, Body, Bytes, Endpoint, Error, ErrorKind, Memory, Options, Peer};
use futures_util::StreamExt;
use futures_util::future::select;
use futures_util::stream::FuturesUnordered;

use super::wire::{Held, Kind, Request, Version};

/// Number of times that a get starts again because the block changes while it is read.
const ATTEMPTS: usize = 5;

/// A client of a set of replicas. It does one operation at a time.
pub struct Client {
    endpoint: Endpoint,
    replicas: Vec<Replica>,
    patience: Duration,
    /// Number of replicas that must answer.
    pub(super) quorum: usize,
    writer: u64,
    /// The number of the last version that this client used.
    last: u64,
}

struct Replica {
    addr: Addr,
    peer: Option<Peer>,
}

impl Client {
    /// Returns a client. `writer` must differ from that of every other client. Each call to a
    /// replica ends after `patience`.
    pub fn new(endpoint: Endpoint, replicas: Vec<Addr>, writer: u64, patience: Duration) -> Client {
        let replicas: Vec<_> = replicas.into_iter().map(|addr| Replica { addr, peer: None }).collect();
        let quorum = replicas.len() / 2 + 1;
        Client { endpoint, replicas, patience, quorum, writer, last: 0 }
    }

    /// Writes a block. Returns its version.
    ///
    /// # Errors
    /// If no majority answers. The block may still have been written. To find out, read it or write
    /// it again.
    pub async fn put(&mut self, key: &str, bytes: impl Into<Bytes>) -> Result<Version, Error> {
        let newest = self.newest(key).await?.0;
        self.last = self.last.max(newest.version.number) + 1;
        let version = Version { number: self.last, writer: self.writer };
        self.write(key, version, &Memory::from(bytes.into())).await?;
        Ok(version)
    }

    /// Reads a block. Returns its version and contents, or `None` if it was never written.
    ///
    /// # Errors
    /// If no majority answers.
    pub async fn get(&mut self, key: &str) -> Result<Option<(Version, Bytes)>, Error> {
        let mut error = Error::new(ErrorKind::Exhausted, "the block changes too fast");
        for _ in 0..ATTEMPTS {
            let (newest, holders) = self.newest(key).await?;
            if newest == Held::default() {
                return Ok(None);
            }
            for index in &holders {
                match self.read(*index, key, newest).await {
                    Ok(Some(memory)) => {
                        if holders.len() < self.quorum {
                            self.write(key, newest.version, &memory).await?;
                        }
                        return Ok(Some((newest.version, memory.into_bytes())));
                    }
                    // The block was replaced, so there is a newer one.
                    Ok(None) => {}
                    Err(failed) => error = failed,
                }
            }
        }
        Err(error)
    }

    /// Closes the connections.
    pub async fn close(self) {
        for replica in self.replicas {
            if let Some(peer) = replica.peer {
                // A replica that is gone needs no goodbye.
                let _ = peer.disconnect(peer.within(self.patience)).await;
            }
        }
    }

    /// Returns the newest block that a majority holds, and which replicas hold it.
    async fn newest(&mut self, key: &str) -> Result<(Held, Vec<usize>), Error> {
        let answers = self.call_all(Request { kind: Kind::Ask, version: Version::default(), key }, None).await?;
        let newest = answers.iter().map(|(_, held)| *held).max().unwrap_or_default();
        Ok((newest, answers.iter().filter(|(_, held)| *held == newest).map(|(index, _)| *index).collect()))
    }

    /// Writes a block to a majority.
    async fn write(&mut self, key: &str, version: Version, block: &Memory) -> Result<(), Error> {
        self.call_all(Request { kind: Kind::Write, version, key }, Some(block)).await.map(drop)
    }

    /// Reads a block from one replica. Returns `None` if it does not hold that version any more.
    async fn read(&mut self, index: usize, key: &str, wanted: Held) -> Result<Option<Memory>, Error> {
        let options = self.within();
        let memory = Memory::zeroed(wanted.len as usize)?;
        let request = Request { kind: Kind::Read, version: wanted.version, key };
        let body = Body::In((&memory).into());
        let held = self.replicas[index].call(&self.endpoint, request, body, options).await?;
        Ok((held == wanted).then_some(memory))
    }

    fn within(&self) -> Options {
        self.endpoint.within(self.patience)
    }

    /// Sends a request to all replicas at the same time. Returns the answers of a majority.
    async fn call_all(&mut self, request: Request<'_>, block: Option<&Memory>) -> Result<Vec<(usize, Held)>, Error> {
        let options = self.within();
        let (endpoint, all) = (&self.endpoint, self.replicas.len());
        let begin = endpoint.now();
        let mut calls: FuturesUnordered<_> = self
            .replicas
            .iter_mut()
            .enumerate()
            .map(async |(index, replica)| {
                let body = block.map_or(Body::None, |block| Body::Out(block.into()));
                (index, replica.call(endpoint, request, body, options).await)
            })
            .collect();
        let (mut answers, mut error) = (Vec::new(), None);
        while answers.len() < self.quorum {
            match calls.next().await {
                Some((index, Ok(held))) => answers.push((index, held)),
                Some((_, Err(failed))) => error = Some(failed),
                None => {
                    let error = error.unwrap_or_else(|| Error::new(ErrorKind::Invalid, "there are no replicas"));
                    let text =
                        format!("{} of {all} replicas answered, {} are needed; {error}", answers.len(), self.quorum);
                    return Err(Error::new(error.kind(), text));
                }
            }
        }
        if request.kind == Kind::Write {
            // Slower replicas get as much time again, so that they have the block too. After that
            // their calls are dropped, which revokes their access to the memory.
            let rest = async { while calls.next().await.is_some() {} };
            select(pin!(rest), pin!(endpoint.sleep(endpoint.now() - begin))).await;
        }
        Ok(answers)
    }
}

impl Replica {
    /// Makes a call. Connects first if there is no connection.
    async fn call(
        &mut self,
        endpoint: &Endpoint,
        request: Request<'_>,
        body: Body,
        options: Options,
    ) -> Result<Held, Error> {
        let peer = match &self.peer {
            Some(peer) => peer,
            None => self.peer.insert(endpoint.connect(&self.addr, options).await?),
        };
        let reply = match peer.call(&request.encode(), body, options) {
            Ok(call) => call.reply().await,
            Err(error) => Err(error),
        };
        if reply.as_ref().is_err_and(|error| error.kind() == ErrorKind::PeerLost) {
            // The next call connects again.
            self.peer = None;
        }
        let held = Held::decode(&reply?.bytes)?;
        if request.kind == Kind::Write && held.version < request.version {
            return Err(Error::new(ErrorKind::Protocol, "the replica did not store the block"));
        }
        Ok(held)
    }
}
