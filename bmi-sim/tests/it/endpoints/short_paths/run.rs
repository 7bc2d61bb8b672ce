//! Runs a script between two endpoints, and records what a program sees.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{
    Access, Completion, Config, Counters, Engine, Error, ErrorKind, Exposure, MemList, Memory, OpId, OpKind, Options,
    PeerEvent, PeerId, Posted, ResourceUsage, Tag, Time,
};
use bmi_sim::{Node, SimConfig, World};
use send_wrapper::SendWrapper;

use super::immediate::{Immediate, Shared};
use super::{Settings, Step, TAGS, Transfer};

/// Bytes that no message has.
const UNTOUCHED: u8 = 0xEE;

/// Longer than everything takes that a script can have outstanding.
const DELIVERY: Duration = Duration::from_millis(1);

/// The end of an operation, as its program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    user: u64,
    kind: OpKind,
    tag: Tag,
    len: u64,
    status: Result<(), ErrorKind>,
}

impl From<Completion> for End {
    fn from(Completion { kind, tag, len, status, user, .. }: Completion) -> End {
        End { user, kind, tag, len, status }
    }
}

/// Something that a program sees, in order. Transfers end apart from this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    /// A message was posted, and may have completed at once.
    Posted(u64, Result<Option<End>, ErrorKind>),
    /// A transfer was posted.
    Began(u64, Result<(), ErrorKind>),
    Ended(End),
    Unexpected(Tag, Vec<u8>),
    /// What was held while nothing was outstanding.
    Held(ResourceUsage),
}

impl Seen {
    /// Returns [`Options::user`] of an operation that ended.
    pub fn user(&self) -> Option<u64> {
        match self {
            Seen::Ended(end) => Some(end.user),
            _ => None,
        }
    }
}

/// What the program of one side sees.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub seen: Vec<Seen>,
    /// The ends of transfers by [`Options::user`]: without the short path they end later.
    pub transfers: BTreeMap<u64, End>,
    /// The memory of each receive, of each pull, and of what was exposed for a transfer.
    pub memory: Vec<(u64, Vec<u8>)>,
    pub counters: Counters,
}

/// Which short paths were taken, on both sides together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    pub sends: u64,
    pub receives: u64,
    pub inline_receives: u64,
    pub transfers: u64,
    /// Messages that went into an offered receive. This is no short path, but offers rely on counts
    /// that the short paths keep.
    pub offered: u64,
}

struct Side {
    node: Node,
    endpoint: Engine,
    peer: Option<PeerId>,
    /// Operations that may still run, and can be cancelled.
    running: Vec<OpId>,
    memory: Vec<(u64, MemList)>,
    exposures: Vec<Exposure>,
    record: Record,
}

impl Side {
    fn new(node: Node, config: Config, shared: &Rc<Shared>, general_only: bool) -> Side {
        let transport = Immediate { inner: node.transport().unwrap(), shared: SendWrapper::new(shared.clone()) };
        let mut endpoint = Engine::new(Box::new(transport), config, node.now()).unwrap();
        if general_only {
            endpoint.use_general_paths_only();
        }
        let (running, memory, exposures) = (Vec::new(), Vec::new(), Vec::new());
        Side { node, endpoint, peer: None, running, memory, exposures, record: Record::default() }
    }

    fn poll(&mut self) -> bool {
        let worked = self.endpoint.poll(self.node.now());
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                PeerEvent::Connected { peer, .. } => self.peer = Some(peer),
                other => panic!("the connection must stay: {other:?}"),
            }
        }
        let mut ends = Vec::new();
        self.endpoint.poll_all(&mut ends);
        for end in ends {
            match end.kind {
                OpKind::Connect => {}
                OpKind::Pull | OpKind::Push => self.transfer_ended(end),
                _ => self.record.seen.push(Seen::Ended(end.into())),
            }
        }
        worked
    }

    fn transfer_ended(&mut self, end: Completion) {
        assert!(self.record.transfers.insert(end.user, end.into()).is_none(), "it ends once");
    }

    fn posted(&mut self, user: u64, posted: Result<Posted, Error>) {
        let posted = posted.map_err(|error| error.kind());
        if let Ok(Posted::Pending(op)) = posted {
            self.running.push(op);
        }
        let end = posted.map(|posted| match posted {
            Posted::Done(end) => Some(end.into()),
            Posted::Pending(_) => None,
        });
        self.record.seen.push(Seen::Posted(user, end));
    }

    fn take_unexpected(&mut self) -> bool {
        let mut any = false;
        while let Some(message) = self.endpoint.poll_unexpected() {
            self.record.seen.push(Seen::Unexpected(message.tag(), message.bytes().to_vec()));
            any = true;
        }
        any
    }

    /// Options whose deadline has passed, or that have none.
    fn options(&self, user: u64, late: bool) -> Options {
        let options = if late { Options::by(self.endpoint.now()) } else { Options::default() };
        options.user(user)
    }
}

/// Creates a list of pieces of these lengths, each in memory of its own.
fn list(lens: &[usize], mut byte: impl FnMut(usize) -> u8) -> MemList {
    let pieces = lens.iter().scan(0, |at, len| {
        let start = *at;
        *at += len;
        Some(Memory::from((start..*at).map(&mut byte).collect::<Vec<u8>>()).all())
    });
    pieces.collect()
}

/// Creates a list that says which operation filled it.
fn content(user: u64, lens: &[usize]) -> MemList {
    list(lens, |at| (at as u8).wrapping_mul(31) ^ (user as u8 & 0x7F))
}

fn target(lens: &[usize], read_only: bool) -> MemList {
    match read_only {
        true => bytes::Bytes::from(vec![UNTOUCHED; lens.iter().sum()]).into(),
        false => list(lens, |_| UNTOUCHED),
    }
}

struct Pair {
    world: World,
    shared: Rc<Shared>,
    sides: [Side; 2],
}

impl Pair {
    fn new(settings: &Settings, general_only: bool) -> Pair {
        let mut sim = SimConfig { inline_receive_bytes: settings.inline_receive_bytes, ..SimConfig::seeded(1) };
        let mut capabilities = sim.capabilities();
        capabilities.send_queue_depth = settings.send_queue_depth;
        sim.capabilities_override = Some(capabilities);
        let (world, shared) = (World::with(sim), Rc::default());
        let config = settings.config();
        let side = |name| Side::new(world.node(name), config.clone(), &shared, general_only);
        let mut sides = [side("a"), side("b")];
        let addr = sides[1].node.addr(1);
        let addr = sides[1].endpoint.listen(&addr).unwrap();
        sides[0].endpoint.connect(&addr, Options::default()).unwrap();
        let mut pair = Pair { world, shared, sides };
        pair.settle();
        pair
    }

    /// Brings everything that was posted to its adapter.
    fn deliver(&mut self) {
        self.world.run_for(DELIVERY);
        self.shared.waits.set(false);
    }

    /// Lets both sides work until nothing is left to do.
    fn settle(&mut self) {
        let mut idle = 0;
        for _ in 0..10_000 {
            self.deliver();
            let worked = self.sides.each_mut().map(Side::poll);
            idle = if worked == [false; 2] { idle + 1 } else { 0 };
            if idle == 3 {
                return;
            }
        }
        panic!("there is no end");
    }

    fn step(&mut self, user: u64, step: &Step) {
        match step {
            Step::Send { side, unexpected, tag, lens, slot } => {
                let side = &mut self.sides[*side];
                let options = Options { slot: *slot, ..side.options(user, false) };
                let (peer, list) = (side.peer.unwrap(), content(user, lens));
                let posted = match unexpected {
                    true => side.endpoint.post_send_unexpected(peer, *tag, list, options),
                    false => side.endpoint.post_send(peer, *tag, list, options),
                };
                side.posted(user, posted);
            }
            Step::Receive { side, tag, lens, read_only, late } => {
                let side = &mut self.sides[*side];
                let list = target(lens, *read_only);
                side.memory.push((user, list.clone()));
                let options = side.options(user, *late);
                let posted = side.endpoint.post_recv(side.peer.unwrap(), *tag, list, options);
                side.posted(user, posted);
            }
            Step::Discard { side, tag } => {
                let side = &mut self.sides[*side];
                let options = side.options(user, false);
                let posted = side.endpoint.post_discard(side.peer.unwrap(), *tag, options);
                side.posted(user, posted);
            }
            Step::Transfer(transfer) => self.transfer(user, transfer),
            Step::Cancel { side, back } => {
                let side = &mut self.sides[*side];
                if let Some(op) = side.running.iter().rev().nth(*back) {
                    side.endpoint.cancel(*op);
                }
            }
            Step::Take { side } => drop(self.sides[*side].take_unexpected()),
            Step::Poll { side } => {
                self.deliver();
                self.sides[*side].poll();
            }
            Step::Settle => {
                self.settle();
                for side in &mut self.sides {
                    side.record.seen.push(Seen::Held(side.endpoint.resource_usage()));
                }
            }
        }
    }

    fn transfer(&mut self, user: u64, transfer: &Transfer) {
        if transfer.late {
            // It moves what is issued when it is posted. Others that still wait would change that.
            self.settle();
        }
        let [a, b] = &mut self.sides;
        let (near, far) = if transfer.side == 0 { (a, b) } else { (b, a) };
        let (remote, access) = match transfer.pull {
            true => (content(user, &transfer.remote), Access::READ),
            false => (target(&transfer.remote, false), Access::WRITE),
        };
        far.memory.push((user, remote.clone()));
        let exposure = far.endpoint.expose(far.peer.unwrap(), remote, access).unwrap();
        let options = near.options(user, transfer.late).lists(transfer.lists).class(transfer.class);
        let (peer, descriptor) = (near.peer.unwrap(), exposure.descriptor());
        let posted = match transfer.pull {
            true => {
                let local = target(&transfer.local, transfer.read_only);
                near.memory.push((user, local.clone()));
                near.endpoint.post_pull(peer, descriptor, transfer.at, local, options)
            }
            false => near.endpoint.post_push(peer, descriptor, transfer.at, content(user, &transfer.local), options),
        };
        far.exposures.push(exposure);
        let posted = posted.map_err(|error| error.kind());
        near.record.seen.push(Seen::Began(user, posted.map(drop)));
        if let Ok(Posted::Done(end)) = posted {
            near.transfer_ended(end);
        }
    }

    /// Ends everything: cancels what waits, and drops the messages that nobody receives.
    fn end(&mut self) {
        self.settle();
        for side in &mut self.sides {
            side.exposures.clear();
            let running = std::mem::take(&mut side.running);
            running.into_iter().for_each(|op| side.endpoint.cancel(op));
        }
        self.settle();
        for _ in 0..1000 {
            for side in &mut self.sides {
                side.take_unexpected();
                for tag in 0..TAGS {
                    let options = Options::default().user(u64::MAX);
                    let posted = side.endpoint.post_discard(side.peer.unwrap(), tag, options);
                    side.posted(u64::MAX, posted);
                    side.running.drain(..).for_each(|op| side.endpoint.cancel(op));
                }
            }
            self.settle();
            if self.sides.iter().all(|side| side.endpoint.unfinished() == ResourceUsage::default()) {
                return;
            }
        }
        let held = self.sides.each_ref().map(|side| side.endpoint.unfinished());
        panic!("not quiet: {held:?}");
    }

    /// Sends in both directions as many messages as a whole window has. Those that complete when
    /// they are posted show that no credit was lost.
    fn probe(&mut self, settings: &Settings) {
        for side in [0, 1] {
            for user in 0..u64::from(settings.credit_messages) + 2 {
                let lens = vec![settings.eager_limit];
                self.step(1000 + user, &Step::Send { side, unexpected: true, tag: 9, lens, slot: false });
            }
        }
        self.end();
    }
}

/// Runs a script. Returns what both programs saw, and which short paths were taken.
pub fn run(settings: &Settings, script: &[Step], general_only: bool) -> ([Record; 2], Taken) {
    let mut pair = Pair::new(settings, general_only);
    for (user, step) in script.iter().enumerate() {
        pair.step(user as u64, step);
    }
    pair.end();
    pair.probe(settings);
    // Registrations that linger are released.
    pair.world.run_for(Duration::from_secs(1));
    pair.settle();
    let mut taken = Taken { inline_receives: pair.shared.taken.get(), ..Taken::default() };
    let records = pair.sides.map(|mut side| {
        let (sends, receives) = side.endpoint.short_paths_taken();
        (taken.sends, taken.receives) = (taken.sends + sends, taken.receives + receives);
        side.record.counters = side.endpoint.counters();
        taken.transfers += side.record.counters.immediate;
        taken.offered += side.record.counters.offered;
        side.record.seen.push(Seen::Held(side.endpoint.resource_usage()));
        side.record.memory = side.memory.iter().map(|(user, list)| (*user, list.to_vec())).collect();
        assert!(side.endpoint.now() > Time::ZERO);
        side.record
    });
    (records, taken)
}
