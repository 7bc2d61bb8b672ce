//! A client of the store. It finds the leader, and finds it again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bmi::{Client, Error, Instant};
use bytes::Bytes;

use crate::network::Question;
use crate::node::Answer;

/// The time for one node to answer. It is longer than an election.
const ATTEMPT: Duration = Duration::from_secs(1);
/// The pause between two attempts that found no leader.
const PAUSE: Duration = Duration::from_millis(20);
/// The time for all attempts.
const LIMIT: Duration = Duration::from_secs(30);

/// A client of all nodes.
pub struct KeyValue {
    nodes: Vec<(String, Client)>,
    /// The node that was the leader.
    leader: AtomicUsize,
}

impl KeyValue {
    /// Makes a client of the nodes at these addresses.
    pub fn new(addrs: impl IntoIterator<Item = String>) -> KeyValue {
        let with_client = |addr: String| (addr.clone(), Client::new(addr));
        KeyValue { nodes: addrs.into_iter().map(with_client).collect(), leader: AtomicUsize::new(0) }
    }

    /// Sets a value. To do it twice does no harm.
    ///
    /// # Errors
    /// If no leader was found. The value may be set later.
    pub async fn put(&self, key: u64, value: Bytes) -> Result<(), Error> {
        self.ask(&Question::Put { key }, Some(value)).await.map(drop)
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// If no leader was found.
    pub async fn get(&self, key: u64) -> Result<Option<Bytes>, Error> {
        self.ask(&Question::Get { key }, None).await
    }

    async fn ask(&self, question: &Question, data: Option<Bytes>) -> Result<Option<Bytes>, Error> {
        let end = Instant::now() + LIMIT;
        loop {
            let turn = self.leader.load(Ordering::Relaxed) % self.nodes.len();
            let mut request = self.nodes[turn].1.ask(question)?.timeout(ATTEMPT).idempotent();
            if let Some(data) = &data {
                request = request.data(data.clone());
            }
            let (next, error) = match request.await {
                Ok(reply) => match reply.decode()? {
                    Answer::Done { found } => return Ok(found.then_some(reply.data)),
                    Answer::Leader { addr } => {
                        let known = self.nodes.iter().position(|(known, _)| Some(known) == addr.as_ref());
                        (known.unwrap_or(turn + 1), Error::new(bmi::ErrorKind::Busy, "no leader"))
                    }
                },
                Err(error) => (turn + 1, error),
            };
            if Instant::now() >= end {
                return Err(error);
            }
            self.leader.store(next, Ordering::Relaxed);
            bmi::sleep(PAUSE).await;
        }
    }
}
