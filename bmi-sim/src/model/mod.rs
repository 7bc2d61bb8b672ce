//! What the world consists of: nodes with their processors, disks and adapters, the network between
//! them, and their connections. [`Core`] has the state of all, and each room the part of it that it
//! is named after, with the methods of `Core` that make it work.
//!
//! ```text
//!  run                    events: who is called for which
//!  state                  nodes and transports, and the places of their connections
//!  disk  timers  messages a disk's requests; tasks that wait for a time; messages for a report
//!  connection             handshake, work requests, memory that peers may access, ends
//!  network  timeline      adapters, switch, links; spans for a browser
//!  overheard              what goes over the wire, for an adversary
//!  processor              cores, locks, memory bus, where the time went
//!  handles                the core with its tasks behind one handle; a handle of a node
//! ```
//!
//! A room names those below it only, and `Core`. What happens in one goes on in another by methods
//! of `Core`: a packet that has arrived is a connection's, and what that sends is the network's.

pub(crate) mod connection;
mod disk;
mod handles;
pub(crate) mod messages;
pub(crate) mod network;
pub(crate) mod overheard;
pub(crate) mod processor;
mod run;
mod state;
mod timeline;
mod timers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bmi_core::{Capabilities, ResourceUsage};

use self::connection::Pool;
pub(crate) use self::disk::Request;
pub(crate) use self::handles::{Action, Program, Shared};
pub use self::handles::{Node, Sim};
use self::messages::Messages;
use self::network::LinkState;
use self::overheard::Tap;
use self::state::AdapterState;
pub(crate) use self::state::{NodeState, Waiter};
pub(crate) use self::timeline::Timeline;
use self::timers::Timers;
use crate::config::SimConfig;
use crate::engine::{EventQueue, ReadyQueue};
use crate::rng::Rng;

/// Returns the resources that an endpoint holds; `None` once the endpoint is gone.
pub(crate) type Observer = Box<dyn Fn() -> Option<ResourceUsage>>;

/// Everything but the tasks.
pub(crate) struct Core {
    pub(crate) config: SimConfig,
    pub(crate) capabilities: Capabilities,
    pub(crate) queue: EventQueue,
    pub(crate) keys: Rng,
    pub(crate) jitter: Rng,
    /// Draws how much of a write is in place when its connection ends.
    pub(crate) torn: Rng,
    /// The random numbers of programs.
    pub(crate) programs: Rng,
    pub(crate) nodes: Vec<NodeState>,
    pub(crate) names: BTreeMap<String, u32>,
    pub(crate) adapters: Vec<AdapterState>,
    pub(crate) links: BTreeMap<(u32, u32), LinkState>,
    pub(crate) pool: Pool,
    timers: Timers,
    pub(crate) actions: Vec<Option<Action>>,
    /// Observers of the endpoints of nodes that are up, each with its node.
    pub(crate) observers: Vec<(u32, Observer)>,
    wakes: Vec<Waker>,
    /// Nodes that may release a held task now.
    pub(crate) released: VecDeque<u32>,
    pub(crate) timeline: Option<Box<Timeline>>,
    /// The messages of this run, if a check records them.
    pub(crate) messages: Option<Box<Messages>>,
    /// What nodes have sent to each other, if somebody listens.
    pub(crate) tap: Option<Box<Tap>>,
    /// The node of the running task, if its processor has several cores.
    pub(crate) running: Option<u32>,
    pub(crate) ready: Arc<ReadyQueue>,
}

impl Core {
    pub(crate) fn new(config: SimConfig, ready: Arc<ReadyQueue>) -> Core {
        Core {
            capabilities: config.capabilities(),
            queue: EventQueue::default(),
            // Separate streams, so that draws from one do not change the others.
            keys: Rng::new(config.seed),
            jitter: Rng::new(!config.seed),
            torn: Rng::new(config.seed ^ 0x746f_726e),
            programs: Rng::new(config.seed ^ 0x7072_6f67),
            nodes: Vec::new(),
            names: BTreeMap::new(),
            adapters: Vec::new(),
            links: BTreeMap::new(),
            pool: Pool::default(),
            timers: Timers::default(),
            actions: Vec::new(),
            observers: Vec::new(),
            wakes: Vec::new(),
            released: VecDeque::new(),
            timeline: config.trace.map(|options| Box::new(Timeline::new(options))),
            messages: None,
            tap: None,
            running: None,
            ready,
            config,
        }
    }
}
