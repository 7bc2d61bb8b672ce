//! Manager and I/O servers over the simulator, used by plain calls. The tests check what the
//! protocol guarantees to any client library.

#![expect(clippy::unwrap_used, reason = "a test ends where something unexpected happens")]

#[cfg(feature = "mutants")]
mod bounds;
mod iod;
mod manager;
mod peers;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi::paths::Path;
use bmi::{Addr, Body, Config, Endpoint, ErrorKind, MemList, Memory, PeerId};
use bmi_sim::{Node, World};
use fs_proto::{
    DatafileHandle, Entry, ErrorCode, Existing, FsError, Hello, IodReply, IodRequest, ManagerReply, ManagerRequest,
    Place, Region, Regions, Reply, ReplyBody, Request, RequestBody, RequestId, Role, Sender, codec,
};
use fs_server::embedded::{ClusterOptions, SimCluster, datafiles};
use fs_server::store::DataStore;

/// How long a client waits for a reply.
const PATIENCE: Duration = Duration::from_secs(20);
const EAGER: usize = 8 << 10;

/// Creates a world with a cluster. On each I/O server some datafiles exist already, for
/// tests that access one without the manager.
fn cluster(seed: u64, options: ClusterOptions) -> (World, SimCluster) {
    let world = World::new(seed);
    let cluster = SimCluster::start(&world, options).unwrap();
    with_datafiles(&cluster);
    (world, cluster)
}

/// Runs a test with such a cluster and a client of it.
fn with_client(seed: u64, options: ClusterOptions, test: impl AsyncFnOnce(&World, &SimCluster, &Client)) {
    let (world, cluster) = cluster(seed, options);
    let client = Client::new(&world.node("client"), 1);
    world.block_on(test(&world, &cluster, &client));
}

fn with_datafiles(cluster: &SimCluster) {
    for index in 0..cluster.iods().len() {
        cluster.disk(index).exchange(datafiles(DatafileHandle(0), TEST_FILES));
    }
}

/// Number of datafiles that exist from the beginning.
const TEST_FILES: u64 = 3000;

/// A client that only makes calls.
#[derive(Clone)]
struct Client {
    endpoint: Endpoint,
    id: u128,
    seq: Rc<Cell<u64>>,
    /// The path that its data must take; `None` for the policy's choice.
    forced: Rc<Cell<Option<Path>>>,
}

impl Client {
    fn new(node: &Node, id: u128) -> Client {
        Client::over(node.endpoint(Config::named("client")).unwrap(), id)
    }

    fn over(endpoint: Endpoint, id: u128) -> Client {
        Client { endpoint, id, seq: Rc::default(), forced: Rc::default() }
    }

    /// Makes its data take this path.
    fn forcing(self, path: Path) -> Client {
        self.forced.set(Some(path));
        self
    }

    /// Connects to a server of any role. Waits until it serves.
    async fn connect(&self, addr: &Addr) -> PeerId {
        for role in std::iter::once(Role::Manager).chain((0..8).map(Role::Iod)).cycle() {
            let peer = self.connect_silently(addr).await;
            match self.ask(peer, RequestBody::Hello(Hello::to(role))).await {
                Ok(_) => return peer,
                Err(error) => {
                    let other = matches!(error.code, ErrorCode::WrongServer | ErrorCode::Busy | ErrorCode::Unreachable);
                    assert!(other, "{addr}: {error}");
                }
            }
            let _ = self.endpoint.peer(peer).disconnect(self.endpoint.within(PATIENCE)).await;
            self.endpoint.sleep(Duration::from_micros(100)).await;
        }
        unreachable!("it goes on until it succeeds")
    }

    /// Connects without a Hello.
    async fn connect_silently(&self, addr: &Addr) -> PeerId {
        loop {
            match self.endpoint.connect(addr, self.endpoint.within(PATIENCE)).await {
                Ok(peer) => return peer.id(),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Refused, "{addr}: {error}"),
            }
            self.endpoint.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Connects to an I/O server as a manager that it has confirmed does.
    async fn connect_as_manager(&self, cluster: &SimCluster, index: usize) -> PeerId {
        self.connect(&cluster.iods()[index]).await;
        let start = cluster.label(index).unwrap().manager.unwrap();
        let peer = self.connect_silently(&cluster.iods()[index]).await;
        let sender = Sender::Server(Role::Manager, start);
        let hello = Hello { sender, ..Hello::to(Role::Iod(index as u32)) };
        self.ask(peer, RequestBody::Hello(hello)).await.unwrap();
        peer
    }

    fn request(&self, body: impl Into<RequestBody>) -> Request {
        let seq = self.seq.get() + 1;
        self.seq.set(seq);
        let id = RequestId { client: self.id, seq };
        Request { id, unanswered: seq, timeout_ms: 10_000, caller: None, ticket: None, body: body.into() }
    }

    /// Makes a call with bytes that need not be a request. Returns the reply, even if it is an
    /// error.
    async fn call(&self, peer: PeerId, bytes: &[u8], body: Body) -> Result<Reply, bmi::Error> {
        let options = self.endpoint.within(PATIENCE).path(self.forced.get());
        let reply = self.endpoint.peer(peer).call(bytes, body, options)?.reply().await?;
        Ok(codec::decode_reply(&reply.bytes).unwrap())
    }

    async fn send(&self, peer: PeerId, request: &Request, body: Body) -> Result<Reply, bmi::Error> {
        self.call(peer, &codec::encode_request(request), body).await
    }

    async fn ask(&self, peer: PeerId, body: impl Into<RequestBody>) -> Result<ReplyBody, FsError> {
        let request = self.request(body);
        self.send(peer, &request, Body::None).await?.result
    }

    async fn manager(&self, peer: PeerId, request: ManagerRequest) -> Result<ManagerReply, FsError> {
        match self.ask(peer, request).await? {
            ReplyBody::Manager(reply) => Ok(reply),
            other => panic!("the manager answered {other:?}"),
        }
    }

    async fn entry(&self, peer: PeerId, request: ManagerRequest) -> Result<Entry, FsError> {
        match self.manager(peer, request).await? {
            ManagerReply::Entry(entry) | ManagerReply::Opened { entry, .. } => Ok(entry),
            other => panic!("no entry but {other:?}"),
        }
    }

    async fn iod(&self, peer: PeerId, request: IodRequest) -> Result<IodReply, FsError> {
        self.iod_with(peer, request, Body::None).await
    }

    async fn iod_with(&self, peer: PeerId, request: IodRequest, body: Body) -> Result<IodReply, FsError> {
        let request = self.request(request);
        match self.send(peer, &request, body).await?.result? {
            ReplyBody::Iod(reply) => Ok(reply),
            other => panic!("the I/O server answered {other:?}"),
        }
    }

    async fn write(
        &self,
        peer: PeerId,
        file: DatafileHandle,
        regions: &Regions,
        from: &MemList,
    ) -> Result<IodReply, FsError> {
        let write = IodRequest::Write { datafile: file, regions: regions.clone(), sync: false };
        self.iod_with(peer, write, Body::Out(from.clone())).await
    }

    async fn read(&self, peer: PeerId, file: DatafileHandle, regions: &Regions) -> Result<Vec<u8>, FsError> {
        let memory = Memory::from(vec![0xee; regions.total() as usize]);
        let read = IodRequest::Read { datafile: file, regions: regions.clone() };
        match self.iod_with(peer, read, Body::In(MemList::from(&memory))).await? {
            IodReply::Read { len, .. } if len == regions.total() => Ok(memory.to_vec()),
            other => panic!("{other:?} for a read"),
        }
    }
}

fn regions(list: &[(u64, u64)]) -> Regions {
    Regions::try_from(list.iter().map(|(offset, len)| Region::new(*offset, *len)).collect::<Vec<_>>()).unwrap()
}

/// Returns bytes that depend on their position.
fn pattern(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64).map(|at| ((at.wrapping_mul(0x9e37_79b9) >> 7) ^ salt ^ at) as u8).collect()
}

fn mkdir(path: &str) -> ManagerRequest {
    ManagerRequest::Mkdir { place: Place::root(path), mode: 0o755, uid: 1, gid: 2 }
}

fn create(path: &str) -> ManagerRequest {
    let place = Place::root(path);
    ManagerRequest::Create {
        place,
        mode: 0o644,
        uid: 1,
        gid: 2,
        strip_size: 0,
        servers: 0,
        avoid: Vec::new(),
        existing: Existing::Refuse,
        hold: false,
        small: false,
    }
}

fn code<T>(result: Result<T, FsError>) -> Option<ErrorCode> {
    result.err().map(|error| error.code)
}
