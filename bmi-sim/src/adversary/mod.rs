//! An adversary: a node of the world that hears what the others send to each other, and sends it
//! over connections of its own.
//!
//! **Why.** A peer that breaks the rules seldom gets far with random bytes. One that repeats what
//! others have said meets the code behind the first checks: requests that were in order, names and
//! keys that are in use, tickets that are good for somebody else.
//!
//! **What it can do.** It hears all private data of connections, all messages, and all bytes that
//! are written and read, as if the wire were in the clear ([`Adversary::heard`]). It connects like
//! any program that does not use this library ([`Adversary::connect`]), under the identity that the
//! world vouches for. Over its connections ([`Line`]) it sends what it likes: what it has heard, as
//! it was or made to fit, cut off, changed, in another order. It writes to and reads from what it
//! has heard the names of. A plan draws all that from the seed ([`Adversary::run`]).
//!
//! **What it cannot do.** It cannot speak on connections of others, and neither delay nor change
//! what they send. With TLS that is so; the plans of [`crate::faults`] have delays and damage. It
//! does not listen for connections.
//!
//! **Invariants**
//! 1. Listening changes nothing of a run (`model/overheard.rs`).
//! 2. An adversary draws from a stream of its own. It is the same in every run of a seed.
//!
//! ```
//! use bmi_core::{Config, Memory, Options, PeerIdentity};
//! use bmi_sim::World;
//!
//! let world = World::new(1);
//! let eve = world.adversary("eve", PeerIdentity::named(["user:eve"]))?;
//! let (server, client) = (world.node("server"), world.node("client"));
//! let (s, c) = (server.endpoint(Config::default())?, client.endpoint(Config::default())?);
//! let addr = s.listen(&server.addr(1))?;
//! server.spawn(async move {
//!     loop {
//!         let request = s.next_unexpected().await;
//!         let reply = Memory::from(b"what the server knows".to_vec());
//!         let _ = request.peer().send(request.tag(), reply, Options::default()).await;
//!     }
//! });
//! world.block_on(async {
//!     let peer = c.connect(&addr, Options::default()).await?;
//!     peer.send_unexpected(7, Memory::from(b"tell me".to_vec()), Options::default()).await
//! })?;
//! world.run();
//! // Now the adversary says the same.
//! let heard = eve.heard();
//! let request = heard.iter().find(|heard| heard.to == "server" && heard.is_request());
//! let line = world.block_on(eve.connect(&addr, &bmi_sim::adversary::hello()))?;
//! line.replay(request.expect("the client has sent it"))?;
//! world.run();
//! assert!(line.is_open() && !eve.learned(&[b"what the server knows"]).is_empty());
//! # Ok::<(), bmi_core::Error>(())
//! ```
//!
//! Tested by `tests/it/peers/adversary`.

mod attack;
mod line;
mod secrets;
mod wire;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Addr, Error, ErrorKind, PeerIdentity};

pub use self::attack::{Attack, Tally, Trick};
use self::line::{Adapter, drive};
pub use self::line::{Line, Received};
use self::secrets::Secrets;
pub use self::wire::hello;
pub use crate::model::overheard::{Heard, Verb};
use crate::model::{Node, Sim};
use crate::rng::Rng;

/// Keeps what an adversary draws apart from what the world draws.
const STREAM: u64 = 0x6164_7665;
/// How long it waits for the answer to a connection request.
const PATIENCE: Duration = Duration::from_secs(1);

/// A node that attacks the others. See the [module](self).
pub struct Adversary {
    node: Node,
    adapter: Rc<RefCell<Adapter>>,
    rng: RefCell<Rng>,
}

impl Sim {
    /// Creates an adversary: a node called `name`, which is `identity` to those that it connects
    /// to. It hears what others send from now on.
    ///
    /// # Errors
    /// As [`Node::transport`].
    pub fn adversary(&self, name: &str, identity: PeerIdentity) -> Result<Adversary, Error> {
        let node = self.node(name);
        node.identify(identity);
        let adapter = Rc::new(RefCell::new(Adapter::new(node.transport()?)));
        let seed = self.0.with(|core| {
            core.tap.get_or_insert_default();
            core.config.seed
        });
        let rng = RefCell::new(Rng::new(seed ^ STREAM ^ u64::from(node.id) << 32));
        node.spawn(drive(adapter.clone()));
        Ok(Adversary { node, adapter, rng })
    }
}

impl Adversary {
    /// Returns its node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns what other nodes have sent to each other, in the order in which it arrived: the last
    /// 64 MiB of it.
    pub fn heard(&self) -> Vec<Heard> {
        let own = self.node.name();
        let core = self.node.sim.0.core.borrow();
        let heard = core.tap.iter().flat_map(|tap| &tap.heard);
        heard.filter(|heard| heard.from != own && heard.to != own).cloned().collect()
    }

    /// Connects with this private data, such as [`hello()`], or one that it has heard. It posts as
    /// many receives as the hello promises.
    ///
    /// # Errors
    /// `Refused` if the other side rejects the connection, or does not answer for a second. What it
    /// says is in [`Adversary::received`]. `Invalid` if the private data is too long. Those of the
    /// transport.
    pub async fn connect(&self, addr: &Addr, hello: &[u8]) -> Result<Line, Error> {
        let line = Line::begin(&self.adapter, addr, hello, self.node.now() + PATIENCE)?;
        match line.established().await {
            true => Ok(line),
            false => Err(Error::new(ErrorKind::Refused, format!("{addr} does not connect to the adversary"))),
        }
    }

    /// Returns everything that came over its own connections: private data, messages, and bytes
    /// that it has read; then the memory that it has exposed, as it is now.
    pub fn received(&self) -> Vec<Received> {
        self.adapter.borrow().received()
    }

    /// Returns what it has [received](Adversary::received) that has one of these secrets in it,
    /// each of at least 8 bytes, without what comes from a node to which the adversary had sent
    /// that secret itself.
    ///
    /// # Panics
    /// If a secret is shorter.
    pub fn learned(&self, secrets: &[&[u8]]) -> Vec<Received> {
        self.adapter.borrow().learned(&Secrets::new(secrets))
    }
}
