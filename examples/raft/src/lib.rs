//! A replicated key-value store: Raft is `openraft`, its network is `bmi`.
//!
//! | module | what |
//! |---|---|
//! | [`runtime`] | openraft's tasks and timers, on tokio or in a simulated world |
//! | [`network`] | openraft's calls between nodes, over [`bmi::Client`] and [`bmi::Server`] |
//! | [`store`] | the log, the state, and what outlives a crash |
//! | [`node`] | a member of a cluster |
//! | [`client`] | a client of the store, which finds the leader |
//! | `over_tonic` | the same network over tonic, to compare (feature `tonic`) |

pub mod client;
pub mod network;
pub mod node;
#[cfg(feature = "tonic")]
pub mod over_tonic;
pub mod runtime;
pub mod store;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What a client asks the cluster to do: set the value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The key.
    pub key: u64,
    /// Its new value.
    pub value: Bytes,
}

openraft::declare_raft_types!(
    /// The types of this store, for openraft. A snapshot is bytes, which travel in one call.
    pub Types: D = Put, R = (), SnapshotData = Bytes, AsyncRuntime = runtime::BmiRuntime
);

/// Openraft with the types of this store.
pub type Raft = openraft::Raft<Types>;
/// The members of a cluster: for each number an address.
pub type Members = std::collections::BTreeMap<u64, openraft::BasicNode>;
