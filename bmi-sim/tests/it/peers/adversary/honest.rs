//! Honest nodes: two stores, of which one lets in their owners only, and two clients, which keep
//! secrets there, and read and write each other's memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bmi_conformance::data::{Guarded, filled, memory, pattern};
use bmi_core::comm::{Body, Incoming, serve};
use bmi_core::{
    Access, Addr, BulkDescriptor, Config, Endpoint, Error, Memory, Message, Peer, PeerEvent, PeerIdentity,
    ResourceUsage, Time,
};
use bmi_sim::{Node, World};
use futures_util::future::join;

/// Longer than any operation of honest nodes takes.
const SOON: Duration = Duration::from_secs(1);
/// How long a client does nothing between its exchanges.
const PAUSE: Duration = Duration::from_micros(500);
/// The lengths of secrets take different paths.
const LENGTHS: [usize; 4] = [100, 3000, 20_000, 50_000];
/// The names of the clients, as a certificate has them.
pub(super) const OWNERS: [&str; 2] = ["user:alice", "user:bob"];
/// What a store says to others who ask for a secret.
const NOT_YOURS: &[u8] = b"not yours";

fn config() -> Config {
    Config::default()
        .eager_limit(2048)
        .credit_messages(16)
        .pin_cache_entries(0)
        .transfer_unit(16 << 10)
        .fence_grace(Duration::from_millis(10))
}

/// The secrets of a store, by their owners.
type Secrets = Rc<RefCell<BTreeMap<String, Vec<u8>>>>;

/// A secret that a client has kept in a store, or has shown to the other client.
pub(super) fn secret(seed: u64, number: u64) -> Vec<u8> {
    pattern(seed << 32 | number, LENGTHS[number as usize % LENGTHS.len()])
}

/// Answers a call: `p` puts a secret, `g` and a name get one of that owner.
async fn answer(call: Incoming, secrets: &Secrets, asked: &Cell<u64>) -> Result<(), Error> {
    /// The store's own limit. A peer may claim any length.
    const MOST: u64 = 1 << 20;
    let soon = call.within(SOON);
    // All nodes have names. A peer that has gone meanwhile is nobody.
    let PeerIdentity::Names(names) = call.peer().identity() else { return Ok(()) };
    let request = call.request().to_vec();
    if call.len() > MOST {
        return call.reply(b"too long", None, soon).await;
    }
    match request.split_first() {
        Some((b'p', _)) => {
            let data = Memory::zeroed(call.len() as usize)?;
            call.fetch(0, &data, soon).await?;
            secrets.borrow_mut().insert(names[0].clone(), data.to_vec());
            call.reply(b"kept", None, soon).await
        }
        Some((b'g', owner)) if owner == names[0].as_bytes() => {
            let mut data = secrets.borrow().get(&names[0]).cloned().unwrap_or_default();
            data.truncate(call.len() as usize);
            call.reply(b"yours", Some(Memory::from(data).into()), soon).await
        }
        _ => {
            asked.set(asked.get() + 1);
            call.reply(NOT_YOURS, None, soon).await
        }
    }
}

/// Reads or writes the memory that a message of the other client names.
async fn one_sided(message: Message, seed: u64) {
    let (peer, tag, bytes) = (message.peer().clone(), message.tag(), message.bytes().to_vec());
    drop(message);
    if !peer.identity().is_named(OWNERS[0]) {
        return;
    }
    let (what, remote) = (format!("memory of exchange {tag}"), BulkDescriptor::decode(&bytes, 1).unwrap());
    let expected = secret(seed, tag);
    if tag % 2 == 0 {
        let target = Guarded::new(&[expected.len()]);
        peer.pull(&remote, 0, target.list(), peer.within(SOON)).await.expect(&what);
        target.check(&what, &expected);
    } else {
        peer.push(&remote, 0, Memory::from(expected), peer.within(SOON)).await.expect(&what);
    }
    peer.send(tag, Memory::from(b"done".to_vec()), peer.within(SOON)).await.expect(&what);
}

/// All honest nodes.
pub(super) struct Town {
    seed: u64,
    /// The stores, then the clients.
    nodes: Vec<(Node, Endpoint)>,
    /// How often a store was asked for a secret of somebody else.
    pub(super) asked: Rc<Cell<u64>>,
    number: Cell<u64>,
}

impl Town {
    pub(super) fn new(world: &World, seed: u64) -> Town {
        let asked = Rc::new(Cell::new(0));
        let owners = |peer: &bmi_core::Newcomer<'_>| match OWNERS.iter().any(|owner| peer.identity.is_named(owner)) {
            true => Ok(()),
            false => Err(format!("{} owns nothing here", peer.identity)),
        };
        let mut nodes = Vec::new();
        for name in ["bank", "vault", "alice", "bob"] {
            let node = world.node(name);
            node.identify(PeerIdentity::named([format!("user:{name}")]));
            let config = if name == "vault" { config().admit(owners) } else { config() };
            let endpoint = node.endpoint(config).unwrap();
            endpoint.listen(&node.addr(1)).unwrap();
            nodes.push((node, endpoint));
        }
        for (node, endpoint) in &nodes[..2] {
            let (endpoint, secrets, asked) = (endpoint.clone(), Secrets::default(), asked.clone());
            node.spawn(async move {
                let answer = async |call| answer(call, &secrets, &asked).await;
                match serve(&endpoint, 16, answer).await {}
            });
        }
        let (bob, endpoint) = nodes[3].clone();
        bob.clone().spawn(async move {
            loop {
                bob.spawn(one_sided(endpoint.next_unexpected().await, seed));
            }
        });
        Town { seed, nodes, asked, number: Cell::new(0) }
    }

    /// Returns where all of them listen.
    pub(super) fn addrs(&self) -> Vec<Addr> {
        self.nodes.iter().map(|(node, _)| node.addr(1)).collect()
    }

    /// Returns the secrets that there have been.
    pub(super) fn secrets(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..self.number.get()).map(|number| secret(self.seed, number))
    }

    fn next(&self) -> u64 {
        self.number.replace(self.number.get() + 1)
    }

    /// Connects the clients to the others: Alice to both stores and to Bob, Bob to both stores.
    pub(super) async fn connect(&self) -> [Vec<Peer>; 2] {
        let mut peers = [Vec::new(), Vec::new()];
        for (client, to) in [(0, 0), (0, 1), (0, 3), (1, 0), (1, 1)] {
            let endpoint = &self.nodes[2 + client].1;
            peers[client].push(endpoint.connect(&self.nodes[to].0.addr(1), endpoint.within(SOON)).await.unwrap());
        }
        peers
    }

    /// The clients keep and get secrets, until a time, and at least once.
    pub(super) async fn live(&self, peers: &[Vec<Peer>; 2], until: Time) {
        let client = async |client: usize| {
            loop {
                for store in &peers[client][..2] {
                    self.keep(store, OWNERS[client]).await;
                }
                if let Some(bob) = peers[client].get(2) {
                    self.show(bob).await;
                }
                let node = &self.nodes[2 + client].0;
                if node.now() >= until {
                    break;
                }
                node.sleep(PAUSE).await;
            }
        };
        join(client(0), client(1)).await;
    }

    /// Puts a secret into a store, gets it, and asks for that of the other owner.
    async fn keep(&self, store: &Peer, owner: &str) {
        let number = self.next();
        let (what, secret) = (format!("secret {number} of {owner}"), secret(self.seed, number));
        let soon = || store.within(SOON);
        let kept = store.call(b"p", Body::Out(Memory::from(secret.clone()).into()), soon()).expect(&what);
        assert_eq!(kept.reply().await.expect(&what).bytes[..], *b"kept", "{what}");
        let (target, request) = (Guarded::new(&[secret.len()]), [b"g", owner.as_bytes()].concat());
        let got = store.call(&request, Body::In(target.list()), soon()).expect(&what);
        assert_eq!(got.reply().await.expect(&what).bytes[..], *b"yours", "{what}");
        target.check(&what, &secret);
    }

    /// Lets the other client read a secret, or write one.
    async fn show(&self, bob: &Peer) {
        let number = self.next();
        let (what, secret) = (format!("secret {number}"), secret(self.seed, number));
        let (shown, target) = (filled(self.seed << 32 | number, secret.len()), Guarded::new(&[secret.len()]));
        let exposure = match number % 2 {
            0 => bob.expose(&shown, Access::READ),
            _ => bob.expose(target.list(), Access::WRITE),
        };
        let (exposure, done) = (exposure.expect(&what), memory(4));
        let answer = bob.recv(number, &done, bob.within(SOON));
        let named = Memory::from(exposure.descriptor().encode(Vec::new()));
        bob.send_unexpected(number, named, bob.within(SOON)).await.expect(&what);
        answer.await.expect(&what);
        drop(exposure);
        assert_eq!((done.to_vec(), shown.to_vec() == secret), (b"done".to_vec(), true), "{what}");
        match number % 2 {
            0 => target.check_untouched(&what),
            _ => target.check(&what, &secret),
        }
    }

    /// Returns what each of them holds.
    pub(super) fn held(&self) -> Vec<ResourceUsage> {
        self.nodes.iter().map(|(_, endpoint)| endpoint.resource_usage()).collect()
    }

    /// Returns the number of registrations of each.
    pub(super) fn registrations(&self) -> Vec<usize> {
        self.nodes.iter().map(|(node, _)| node.registrations()).collect()
    }

    /// Takes the events of a node. Returns who has connected to it.
    pub(super) fn newcomers(&self, at: usize) -> Vec<PeerIdentity> {
        let mut newcomers = Vec::new();
        while let Some(event) = self.nodes[at].1.with(|engine| engine.poll_event()) {
            if let PeerEvent::Connected { identity, .. } = event {
                newcomers.push(identity);
            }
        }
        newcomers
    }

    /// Returns how often peers of each node have broken the rules.
    pub(super) fn violations(&self) -> u64 {
        self.nodes.iter().map(|(_, endpoint)| endpoint.counters().violations).sum()
    }
}
