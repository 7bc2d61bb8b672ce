//! Manager and I/O servers over the simulator, spoken to in raw messages: what the protocol promises, whatever a client library makes of it.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

mod data;
mod faults;
mod names;
mod several;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Access, Addr, AsyncEndpoint, Config, MemList, Memory, PeerId};
use bmi_sim::{Node, SimTransport, World};
use fs_proto::{
    Data, DatafileHandle, Entry, ErrorCode, FsError, IodReply, IodRequest, ManagerReply, ManagerRequest, Place, Region,
    Regions, Reply, ReplyBody, Request, RequestBody, RequestId, codec,
};
use fs_server::embedded::{ClusterOptions, SimCluster};

/// How long a client waits for a reply.
const PATIENCE: Duration = Duration::from_secs(20);
const EAGER: usize = 8 << 10;

/// A world with a cluster.
fn cluster(seed: u64, options: ClusterOptions) -> (World, SimCluster) {
    let world = World::new(seed);
    let cluster = SimCluster::start(&world, options).unwrap();
    (world, cluster)
}

/// A client that knows nothing but messages.
#[derive(Clone)]
struct Client {
    endpoint: AsyncEndpoint<SimTransport>,
    id: u128,
    seq: Rc<Cell<u64>>,
}

impl Client {
    fn new(node: &Node, id: u128) -> Client {
        Client { endpoint: node.endpoint(Config::named("client")).unwrap(), id, seq: Rc::new(Cell::new(0)) }
    }

    async fn connect(&self, addr: &Addr) -> PeerId {
        self.endpoint.connect(addr, self.endpoint.within(PATIENCE)).await.unwrap()
    }

    fn request(&self, body: impl Into<RequestBody>) -> Request {
        let seq = self.seq.get() + 1;
        self.seq.set(seq);
        let id = RequestId { client: self.id, seq };
        Request { id, unanswered: seq, timeout_ms: 10_000, body: body.into() }
    }

    /// Sends a request, with inline data behind it; returns the reply and its inline data.
    async fn send(&self, peer: PeerId, request: &Request, data: &[u8]) -> Result<(Reply, Vec<u8>), bmi_core::Error> {
        let (tag, options) = (request.id.seq, self.endpoint.within(PATIENCE));
        let buffer = Memory::zeroed(EAGER).unwrap();
        let reply = self.endpoint.recv(peer, tag, &buffer, options);
        let message = [codec::encode_request(request), data.to_vec()].concat();
        self.endpoint.send_unexpected(peer, tag, message, options).await?;
        let len = reply.await?.len as usize;
        let bytes = buffer.slice(0, len).to_vec();
        let (reply, data) = codec::decode_reply(&bytes).unwrap();
        Ok((reply, data.to_vec()))
    }

    async fn ask(&self, peer: PeerId, body: impl Into<RequestBody>) -> Result<ReplyBody, FsError> {
        let request = self.request(body);
        self.send(peer, &request, &[]).await?.0.result
    }

    async fn manager(&self, peer: PeerId, request: ManagerRequest) -> Result<ManagerReply, FsError> {
        match self.ask(peer, request).await? {
            ReplyBody::Manager(reply) => Ok(reply),
            other => panic!("the manager answered {other:?}"),
        }
    }

    async fn entry(&self, peer: PeerId, request: ManagerRequest) -> Result<Entry, FsError> {
        match self.manager(peer, request).await? {
            ManagerReply::Entry(entry) => Ok(entry),
            other => panic!("no entry but {other:?}"),
        }
    }

    async fn iod(&self, peer: PeerId, request: IodRequest) -> Result<IodReply, FsError> {
        match self.ask(peer, request).await? {
            ReplyBody::Iod(reply) => Ok(reply),
            other => panic!("the I/O server answered {other:?}"),
        }
    }

    /// Writes by bulk: the server pulls.
    async fn write(
        &self,
        peer: PeerId,
        file: DatafileHandle,
        regions: &Regions,
        from: &MemList,
    ) -> Result<IodReply, FsError> {
        let exposure = self.endpoint.expose(peer, from.clone(), Access::READ)?;
        let data = Data::Bulk(exposure.descriptor().clone());
        self.iod(peer, IodRequest::Write { datafile: file, regions: regions.clone(), data, sync: false }).await
    }

    /// Reads by bulk: the server pushes.
    async fn read(&self, peer: PeerId, file: DatafileHandle, regions: &Regions) -> Result<Vec<u8>, FsError> {
        let memory = Memory::from(vec![0xee; regions.total() as usize]);
        let exposure = self.endpoint.expose(peer, &memory, Access::WRITE)?;
        let data = Data::Bulk(exposure.descriptor().clone());
        self.iod(peer, IodRequest::Read { datafile: file, regions: regions.clone(), data }).await?;
        Ok(memory.to_vec())
    }
}

fn regions(list: &[(u64, u64)]) -> Regions {
    Regions::try_from(list.iter().map(|(offset, len)| Region::new(*offset, *len)).collect::<Vec<_>>()).unwrap()
}

/// Bytes that tell where they belong.
fn pattern(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64).map(|at| ((at.wrapping_mul(0x9e37_79b9) >> 7) ^ salt ^ at) as u8).collect()
}

fn mkdir(path: &str) -> ManagerRequest {
    ManagerRequest::Mkdir { place: Place::root(path), mode: 0o755, uid: 1, gid: 2 }
}

fn create(path: &str) -> ManagerRequest {
    let place = Place::root(path);
    ManagerRequest::Create { place, mode: 0o644, uid: 1, gid: 2, strip_size: 0, servers: 0, exclusive: true }
}

fn code<T>(result: Result<T, FsError>) -> Option<ErrorCode> {
    result.err().map(|error| error.code)
}
