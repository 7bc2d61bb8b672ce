//! openraft's network, over [`bmi`].
//!
//! A request says what it is. What may be long is the data of the call: entries, a snapshot, a
//! value. A snapshot is one call, whose data goes from the memory of one node to that of the other
//! over shared memory and verbs.
//!
//! No error is openraft's `Unreachable`. Openraft pauses after that, in a `select!` whose order is
//! random, and a run in a world could not be repeated.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use bmi::{Call, Client, Error, ErrorKind, Server};
use bytes::Bytes;
use futures_util::future::{Either, select};
use openraft::error::{Fatal, NetworkError, RPCError, RaftError, ReplicationClosed, StreamingError};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{BasicNode, OptionalSend, Snapshot, SnapshotMeta, Vote};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Types;
use crate::node::{Answer, Node};

/// The longest snapshot, in bytes.
const MOST_DATA: u64 = 1 << 30;

/// What a call asks for.
#[derive(Serialize, Deserialize)]
pub(crate) enum Question {
    /// The data is the request of openraft.
    Append,
    Vote(VoteRequest<u64>),
    /// The data is the snapshot.
    Snapshot(Vote<u64>, SnapshotMeta<u64, BasicNode>),
    /// The data is the value.
    Put {
        key: u64,
    },
    /// The reply's data is the value.
    Get {
        key: u64,
    },
}

/// The calls of a node to others: a client for each.
#[derive(Default)]
pub struct Network(BTreeMap<String, Peer>);

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, _: u64, node: &BasicNode) -> Peer {
        self.0.entry(node.addr.clone()).or_insert_with(|| Peer::new(&node.addr)).clone()
    }
}

/// Another node.
#[derive(Clone)]
pub struct Peer(Client);

impl Peer {
    /// Connects to a node when that is needed.
    pub fn new(addr: &str) -> Peer {
        Peer(Client::new(addr))
    }

    /// Sets a value at this node, if it is the leader.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn put(&self, key: u64, value: Bytes, time: Duration) -> Result<Answer, NetworkError> {
        self.ask(&Question::Put { key }, value, time).await
    }

    /// Every request of Raft may arrive twice.
    async fn ask<A>(&self, question: &Question, data: Bytes, time: Duration) -> Result<A, NetworkError>
    where
        A: DeserializeOwned,
    {
        let asked = async { self.0.ask(question)?.data(data).timeout(time).idempotent().await?.decode() };
        asked.await.map_err(|error: Error| NetworkError::new(&error))
    }
}

impl RaftNetwork<Types> for Peer {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        let data = postcard::to_stdvec(&rpc).map_err(|error| NetworkError::new(&error))?;
        Ok(self.ask(&Question::Append, data.into(), option.hard_ttl()).await?)
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        option: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, BasicNode, RaftError<u64>>> {
        Ok(self.ask(&Question::Vote(rpc), Bytes::new(), option.hard_ttl()).await?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<u64>,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<Types, Fatal<u64>>> {
        let question = Question::Snapshot(vote, snapshot.meta);
        match select(pin!(self.ask(&question, *snapshot.snapshot, option.hard_ttl())), pin!(cancel)).await {
            Either::Left((answer, _)) => Ok(answer?),
            Either::Right((closed, _)) => Err(StreamingError::Closed(closed)),
        }
    }
}

/// Listens for nodes and clients.
///
/// # Errors
/// As [`Server::bind`].
pub async fn bind(addr: &str) -> Result<Server, Error> {
    Server::builder().max_data(MOST_DATA).max_bytes(MOST_DATA).bind(addr).await
}

/// Answers nodes and clients.
///
/// # Errors
/// As [`Server::serve`].
pub async fn serve(server: &Server, node: Node) -> Result<(), Error> {
    server.serve(move |call| answer(call, node.clone())).await
}

async fn answer(call: Call, node: Node) -> Result<(), Error> {
    match call.decode()? {
        Question::Append => {
            let rpc = postcard::from_bytes(&call.data().await?);
            let rpc = rpc.map_err(|error| Error::new(ErrorKind::Invalid, "no entries").caused_by(error))?;
            call.answer(&node.append(rpc).await?)?.await
        }
        Question::Vote(rpc) => call.answer(&node.vote(rpc).await?)?.await,
        Question::Snapshot(vote, meta) => {
            let snapshot = call.data().await?;
            call.answer(&node.install(vote, meta, snapshot).await?)?.await
        }
        Question::Put { key } => {
            let value = call.data().await?;
            call.answer(&node.put(key, value).await?)?.await
        }
        Question::Get { key } => {
            let (answer, value) = node.get(key).await?;
            call.answer(&answer)?.data(value).await
        }
    }
}
