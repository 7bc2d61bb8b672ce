//! Real servers in the simulator, each behind a relay. The relay passes requests and data on, or
//! answers for the server, loses the reply, or never answers, as a test asks. It is in one world
//! with the client, so a test can inspect the requests that the servers have answered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bmi::backend::{ConnId, Transport, forward_transport};
use bmi::paths::Direction;
use bmi::polled::Engine;
use bmi::{
    Addr, Body, Config, Endpoint, Error, ErrorKind, Incoming, MemList, Memory, Message, Options, Peer, PeerId, Time,
};
use bmi_sim::{Node, SimTransport, World};
use fs_client::{Client, ClientOptions};
use fs_proto::{FsError, Reply, ReplyBody, RequestBody, codec};
use fs_server::embedded::{ClusterOptions, SimCluster};

/// The address that each address leads to, as one machine sees it.
pub type Names = Arc<Mutex<BTreeMap<Addr, Addr>>>;

/// A simulated adapter whose addresses are translated. It stands in for a transport of another
/// scheme. So a test can have several transports in one world, and can choose what each address
/// leads to.
pub struct Alias {
    inner: SimTransport,
    names: Names,
}

impl Alias {
    /// Returns an endpoint over such an adapter of a node, which the node drives.
    pub fn endpoint(node: &Node, names: &Names) -> Endpoint {
        let transport = Alias { inner: node.transport().unwrap(), names: names.clone() };
        let endpoint = Engine::new(Box::new(transport), Config::named(node.name()), node.now()).unwrap();
        let endpoint = Endpoint::new(endpoint, node.sim().clock());
        node.spawn(bmi_sim::drive(node.sim().clone(), endpoint.clone()));
        endpoint
    }

    fn find(&self, addr: &Addr) -> Result<Addr, Error> {
        let nobody = || Error::new(ErrorKind::Refused, "nobody listens there").with_peer(addr);
        self.names.lock().unwrap().get(addr).cloned().ok_or_else(nobody)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Transport for Alias {
    fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        let real = self.find(addr)?;
        self.inner.listen(&real).map(|_| addr.clone())
    }

    fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
        let real = self.find(addr)?;
        self.inner.connect(&real, private, deadline)
    }

    forward_transport!(self => self.inner; except listen, connect);
}

/// What a relay does with a request.
pub enum Deed {
    /// It passes it on, and the reply back.
    Pass,
    /// It passes it on, and then ends the client's connection.
    Cut,
    /// It never answers.
    Keep,
    /// It sends these bytes as the reply.
    Say(Vec<u8>),
    /// It sends these bytes as a message of their own, not as those of a reply.
    SayRaw(Vec<u8>),
}

impl Deed {
    /// The reply of a server.
    pub fn reply(result: Result<ReplyBody, FsError>) -> Deed {
        Deed::Say(codec::encode_reply(&Reply { result }))
    }
}

/// Decides about the requests to the manager, `None`, and to the I/O servers. It is not asked about
/// the first request of a connection.
type Rule = Box<dyn FnMut(Option<u32>, &RequestBody) -> Deed>;

/// The requests that servers have answered, each with its server.
type Passed = Rc<RefCell<Vec<(Option<u32>, RequestBody)>>>;

/// A cluster behind relays, and the node of a client.
pub struct Relayed {
    pub world: World,
    pub cluster: SimCluster,
    node: Node,
    names: Names,
    rule: Rc<RefCell<Rule>>,
    passed: Passed,
}

impl Relayed {
    /// Starts a cluster, and waits until it serves.
    pub fn new(seed: u64, iods: u32) -> Relayed {
        let world = World::new(seed);
        let cluster = SimCluster::start(&world.sim(), ClusterOptions::with_iods(iods as usize)).unwrap();
        let rule: Rule = Box::new(|_, _| Deed::Pass);
        let (node, rule) = (world.node("client"), Rc::new(RefCell::new(rule)));
        let relayed = Relayed { world, cluster, node, names: Names::default(), rule, passed: Rc::default() };
        relayed.relay(None, relayed.cluster.manager());
        (0..iods).zip(relayed.cluster.iods()).for_each(|(iod, addr)| relayed.relay(Some(iod), addr));
        relayed.world.block_on(relayed.node.sleep(Duration::from_secs(1)));
        relayed
    }

    /// Starts the relay of a server.
    fn relay(&self, iod: Option<u32>, addr: Addr) {
        let node = self.world.node("relay");
        let own = node.addr(1 + iod.map_or(0, |iod| 1 + iod as u16));
        let endpoint = node.endpoint(Config::named("relay")).unwrap();
        endpoint.listen(&own).unwrap();
        self.names.lock().unwrap().insert(addr.clone(), own);
        let (rule, passed) = (self.rule.clone(), self.passed.clone());
        let (peers, kept) = (RefCell::default(), RefCell::default());
        let relay = Rc::new(Relay { endpoint, iod, addr, rule, passed, peers, kept });
        let tasks = node.clone();
        node.spawn(async move {
            loop {
                let message = relay.endpoint.next_unexpected().await;
                let relay = relay.clone();
                tasks.spawn(async move { relay.answer(message).await });
            }
        });
    }

    /// From now on the relays do what `rule` says.
    pub fn set(&self, rule: impl FnMut(Option<u32>, &RequestBody) -> Deed + 'static) {
        *self.rule.borrow_mut() = Box::new(rule);
    }

    /// From now on the relays pass everything on.
    pub fn pass(&self) {
        self.set(|_, _| Deed::Pass);
    }

    /// Takes the requests that servers have answered since the last call.
    pub fn passed(&self) -> Vec<(Option<u32>, RequestBody)> {
        self.passed.take()
    }

    pub fn options(&self) -> ClientOptions {
        let (timeout, retry_for) = (Duration::from_secs(3), Duration::ZERO);
        ClientOptions { timeout, retry_for, ..ClientOptions::new(7) }
    }

    pub async fn client(&self) -> Client {
        let endpoint = Alias::endpoint(&self.node, &self.names);
        Client::connect(endpoint, self.cluster.manager(), self.options()).await.unwrap()
    }
}

struct Relay {
    endpoint: Endpoint,
    iod: Option<u32>,
    /// The address of the server.
    addr: Addr,
    rule: Rc<RefCell<Rule>>,
    passed: Passed,
    /// By client: the connection to the server for it.
    peers: RefCell<BTreeMap<PeerId, Peer>>,
    /// Dropped, a request would tell its caller.
    kept: RefCell<Vec<Incoming>>,
}

impl Relay {
    async fn answer(&self, message: Message) {
        let (peer, tag) = (message.peer().clone(), message.tag());
        let incoming = Incoming::new(message).unwrap();
        let body = codec::decode_request(incoming.request()).unwrap().body;
        let deed = match &body {
            RequestBody::Hello(_) => Deed::Pass,
            body => (self.rule.borrow_mut())(self.iod, body),
        };
        let options = Options::default();
        match deed {
            Deed::Pass | Deed::Cut => {
                let answers = matches!(deed, Deed::Pass);
                if self.pass(incoming, body, answers).await.is_err() || !answers {
                    cut(&peer);
                }
            }
            Deed::Keep => self.kept.borrow_mut().push(incoming),
            Deed::Say(bytes) => drop(incoming.reply(&bytes, None, options).await),
            Deed::SayRaw(bytes) => drop(peer.send(tag, bytes, options).await),
        }
    }

    /// Passes a request on, and with `answers` the reply back.
    async fn pass(&self, incoming: Incoming, body: RequestBody, answers: bool) -> Result<(), Error> {
        let known = self.peers.borrow().get(&incoming.peer().id()).cloned();
        let server = match known {
            Some(server) => server,
            None => self.endpoint.connect(&self.addr, Options::default()).await?,
        };
        self.peers.borrow_mut().insert(incoming.peer().id(), server.clone());
        let memory = Memory::zeroed(incoming.len() as usize)?;
        let data = match incoming.direction() {
            None => Body::None,
            Some(Direction::Read) => Body::In(MemList::from(&memory)),
            Some(Direction::Write) => {
                incoming.fetch(0, &memory, Options::default()).await?;
                Body::Out(MemList::from(&memory))
            }
        };
        let is_read = matches!(data, Body::In(_));
        let call = server.call(incoming.request(), data, Options::default())?;
        let reply = call.reply().await?;
        self.passed.borrow_mut().push((self.iod, body));
        if !answers {
            return Ok(());
        }
        let mut data = is_read.then(|| MemList::from(memory.slice(0, reply.data as usize)));
        if !incoming.replies_with_data()
            && let Some(data) = data.take()
        {
            incoming.store(0, data, Options::default()).await?;
        }
        incoming.reply(&reply.bytes, data, Options::default()).await
    }
}

/// Ends a client's connection at once.
fn cut(peer: &Peer) {
    peer.endpoint().with(|engine| {
        let now = Options::by(Time::from_nanos(1));
        // It may have ended already.
        if let Ok(op) = engine.disconnect(peer.id(), now) {
            engine.abandon(op);
        }
    });
}
