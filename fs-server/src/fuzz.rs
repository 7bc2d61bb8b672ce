//! Bodies of the fuzz targets of this crate: what a server reads of its disk, of an administrator,
//! and of clients.
//!
//! The programs in `fuzz/` call them with the fuzzer's bytes, the tests below with the committed
//! corpora (`fuzz/corpus`). A body panics if a decoder breaks one of its rules.

use std::time::Duration;

use bmi::{Addr, Body, Endpoint, Memory, Peer};
use bmi_sim::World;
use fs_proto::{DatafileHandle, Hello, IodRequest, ManagerRequest, Request, RequestBody, RequestId, Role, codec};

use crate::config::Config;
use crate::embedded::{ClusterOptions, SimCluster, datafiles};
pub use crate::manager::backup::fuzz::backup;
pub use crate::store::fuzz::{label, records};

/// A configuration.
///
/// One that is accepted has settings that the servers accept.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(config) = Config::parse(text) else { return };
    config.limits.endpoint("server").validate().expect("settings of an endpoint");
    config.limits.iod().zones().expect("settings of an I/O server");
}

/// How long a client waits for a reply, in virtual time.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most requests that one input is taken for.
const REQUESTS: usize = 24;
/// Longest data of a request, in bytes.
const LONGEST: usize = 8192;

/// A client that sends any bytes as requests.
struct Client {
    endpoint: Endpoint,
    seq: u64,
}

impl Client {
    fn new(world: &World, name: &str) -> Client {
        let endpoint = world.node(name).endpoint(bmi::Config::named(name)).expect("an endpoint");
        Client { endpoint, seq: 0 }
    }

    /// Connects to a server and introduces itself. Waits until the server serves.
    async fn connect(&mut self, addr: &Addr, role: Role) -> Peer {
        for _ in 0..10_000 {
            if let Ok(peer) = self.endpoint.connect(addr, self.endpoint.within(PATIENCE)).await {
                if self.ask(&peer, RequestBody::Hello(Hello::to(role))).await {
                    return peer;
                }
                let _ = peer.disconnect(peer.within(PATIENCE)).await;
            }
            self.endpoint.sleep(Duration::from_micros(500)).await;
        }
        panic!("{role} does not serve");
    }

    /// Sends an honest request. Returns whether the reply is no error.
    async fn ask(&mut self, peer: &Peer, body: impl Into<RequestBody>) -> bool {
        self.seq += 1;
        let id = RequestId { client: 77, seq: self.seq };
        let request =
            Request { id, unanswered: self.seq, timeout_ms: 10_000, caller: None, ticket: None, body: body.into() };
        let reply = self.send(peer, &codec::encode_request(&request), Body::None).await;
        reply.is_some_and(|reply| reply.result.is_ok())
    }

    /// Sends any bytes. Returns the reply; `None` if there is none.
    async fn send(&self, peer: &Peer, bytes: &[u8], body: Body) -> Option<fs_proto::Reply> {
        let call = peer.call(bytes, body, peer.within(PATIENCE)).ok()?;
        let reply = call.reply().await.ok()?;
        Some(codec::decode_reply(&reply.bytes).expect("servers send replies that can be decoded"))
    }
}

/// Requests to a manager and to an I/O server, over a connection to each. A request is a byte for
/// the server and the direction of its data, a byte for the length of the data, a byte for its own
/// length, and its bytes, which begin behind the version.
///
/// Each reply can be decoded. Afterwards both servers serve another client.
pub fn requests(bytes: &[u8]) {
    let world = World::new(1);
    let options = ClusterOptions { pool: 4, disk_capacity: 1 << 30, ..ClusterOptions::with_iods(1) };
    let cluster = SimCluster::start(&world, options).expect("valid options");
    cluster.disk(0).exchange(datafiles(DatafileHandle(0), 8));
    let (mut client, mut other) = (Client::new(&world, "client"), Client::new(&world, "other"));
    let (manager, iod) = (cluster.manager(), cluster.iods()[0].clone());
    world.block_on(async {
        let peers = [client.connect(&manager, Role::Manager).await, client.connect(&iod, Role::Iod(0)).await];
        let mut rest = bytes;
        for _ in 0..REQUESTS {
            let [kind, data, len, behind @ ..] = rest else { break };
            let (body, behind) = behind.split_at(behind.len().min(usize::from(*len)));
            rest = behind;
            let memory = Memory::zeroed((usize::from(*data) * 40).min(LONGEST)).expect("memory");
            let data = match kind >> 1 & 3 {
                0 | 3 => Body::None,
                1 => Body::Out(memory.into()),
                _ => Body::In(memory.into()),
            };
            let request = [&[codec::VERSION], body].concat();
            client.send(&peers[usize::from(kind & 1)], &request, data).await;
        }
        let manager = other.connect(&manager, Role::Manager).await;
        assert!(other.ask(&manager, ManagerRequest::Ping).await, "the manager serves no more");
        let iod = other.connect(&iod, Role::Iod(0)).await;
        assert!(other.ask(&iod, IodRequest::Ping).await, "the I/O server serves no more");
    });
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn corpora_are_replayed() {
        replay("backup", super::backup);
        replay("config", super::config);
        replay("label", super::label);
        replay("requests", super::requests);
        replay("store_records", super::records);
    }
}
