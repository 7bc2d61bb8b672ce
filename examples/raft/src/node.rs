//! A member of a cluster: openraft with its log and its state, and what it answers.
//!
//! Each answer is an error of [`bmi`] if openraft has ended. `network` and `over_tonic` carry them.

use std::sync::Arc;

use bmi::{Error, ErrorKind};
use bytes::Bytes;
use openraft::error::{ClientWriteError, ForwardToLeader, RaftError};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use openraft::{BasicNode, Config, RaftNetworkFactory, Snapshot, SnapshotMeta, Vote};
use serde::{Deserialize, Serialize};

use crate::store::{Disk, LogStore, Observer, StateMachine};
use crate::{Members, Put, Raft, Types};

/// A member. A clone is another handle to it.
#[derive(Clone)]
pub struct Node {
    /// Openraft.
    pub raft: Raft,
    /// The state.
    pub state: StateMachine,
}

/// The answer to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It was done. The reply's data is the value, where one was asked for.
    Done {
        /// Whether the key has a value.
        found: bool,
    },
    /// Ask the leader. It is unknown between two leaders.
    Leader {
        /// Its address.
        addr: Option<String>,
    },
}

impl Node {
    /// Starts a member, with what is on its disk. The members begin a cluster, unless the disk
    /// knows of one.
    ///
    /// # Errors
    /// Those of the disk, and of a configuration that is wrong.
    pub async fn start<N: RaftNetworkFactory<Types>>(
        id: u64,
        members: Members,
        config: Config,
        network: N,
        disk: Disk,
        observer: Option<Observer>,
    ) -> Result<Node, Error> {
        let config = Arc::new(config.validate().map_err(failed)?);
        let state = StateMachine::open(disk.clone(), observer).map_err(failed)?;
        let log = LogStore::open(disk);
        let raft = Raft::new(id, config, network, log, state.clone()).await.map_err(failed)?;
        // All members do the same, and only the first start of a cluster takes it.
        if !raft.is_initialized().await.map_err(failed)? {
            match raft.initialize(members).await {
                Ok(()) | Err(RaftError::APIError(_)) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(Node { raft, state })
    }

    /// Takes entries of a leader.
    ///
    /// # Errors
    /// If openraft has ended.
    pub async fn append(&self, rpc: AppendEntriesRequest<Types>) -> Result<AppendEntriesResponse<u64>, Error> {
        self.raft.append_entries(rpc).await.map_err(failed)
    }

    /// Votes for a candidate, or not.
    ///
    /// # Errors
    /// If openraft has ended.
    pub async fn vote(&self, rpc: VoteRequest<u64>) -> Result<VoteResponse<u64>, Error> {
        self.raft.vote(rpc).await.map_err(failed)
    }

    /// Takes a snapshot of a leader.
    ///
    /// # Errors
    /// If openraft has ended.
    pub async fn install(
        &self,
        vote: Vote<u64>,
        meta: SnapshotMeta<u64, BasicNode>,
        bytes: Bytes,
    ) -> Result<SnapshotResponse<u64>, Error> {
        let snapshot = Snapshot { meta, snapshot: Box::new(bytes) };
        self.raft.install_full_snapshot(vote, snapshot).await.map_err(failed)
    }

    /// Sets a value, if this is the leader.
    ///
    /// # Errors
    /// If openraft has ended.
    pub async fn put(&self, key: u64, value: Bytes) -> Result<Answer, Error> {
        match self.raft.client_write(Put { key, value }).await {
            Ok(_) => Ok(Answer::Done { found: true }),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(to))) => Ok(elsewhere(to)),
            Err(error) => Err(failed(error)),
        }
    }

    /// Returns a value that is as new as any that was acknowledged before, if this is the leader.
    ///
    /// # Errors
    /// If openraft has ended, or if no majority confirms the leader.
    pub async fn get(&self, key: u64) -> Result<(Answer, Bytes), Error> {
        let upto = match self.raft.get_read_log_id().await {
            Ok((upto, _)) => upto,
            Err(RaftError::APIError(error)) => match error {
                openraft::error::CheckIsLeaderError::ForwardToLeader(to) => return Ok((elsewhere(to), Bytes::new())),
                other => return Err(Error::new(ErrorKind::Busy, other.to_string())),
            },
            Err(error) => return Err(failed(error)),
        };
        self.state.reached(upto).await;
        let value = self.state.value(key);
        Ok((Answer::Done { found: value.is_some() }, value.unwrap_or_default()))
    }
}

fn elsewhere(to: ForwardToLeader<u64, BasicNode>) -> Answer {
    Answer::Leader { addr: to.leader_node.map(|node| node.addr) }
}

/// Returns the error for one of openraft's that a caller can do nothing about.
fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}
