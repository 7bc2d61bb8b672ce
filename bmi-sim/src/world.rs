//! The world: nodes, connections, time, and the loop that moves them.
//!
//! **Why one structure.** Everything that the simulation knows stands in [`Core`], behind one `RefCell`; tasks stand in the executor beside it. An event
//! is executed with the core borrowed and wakes tasks only afterwards; a task runs with nothing borrowed. So no call from a task can meet a
//! half-done event.
//!
//! **Invariants**
//! 1. Time moves only when no task is ready.
//! 2. Equal settings and equal programs give equal digests: order comes from the event queue and the ready queue alone, and all maps are ordered.
//!
//! Tested by `tests/determinism.rs`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bmi_core::transport::Event as Report;
use bmi_core::{Capabilities, Holdings, Time};

use crate::adapter::Waiter;
use crate::clock::SimClock;
use crate::config::SimConfig;
use crate::cpu::{Cpu, Work};
use crate::disk::DiskState;
use crate::error::{StallKind, Stalled};
use crate::events::{ConnRef, Event, EventQueue};
use crate::executor::{Executor, JoinHandle, ROOT, ReadyQueue, TaskKey, TaskWaker};
use crate::faults::DiskUser;
use crate::memory::Registrations;
use crate::network::{LinkState, Port, Side};
use crate::node::Node;
use crate::queue_pair::{Conn, Pool, State};
use crate::rng::Rng;
use crate::timeline::{Timeline, Trace, TraceOptions};

/// Task polls at one point in time after which the world counts as spinning.
const LIVELOCK_POLLS: u64 = 20_000_000;

/// What the clocks on the walls show when a world begins, in ns since 1970: some day in 2023.
const EPOCH_NS: i64 = 1_700_000_000_000_000_000;

/// What a node runs whenever it is up.
pub(crate) type Program = Rc<dyn Fn(Node)>;

/// What an endpoint holds; `None` once it is gone.
pub(crate) type Observer = Box<dyn Fn() -> Option<Holdings>>;

/// A node.
pub(crate) struct NodeState {
    pub(crate) name: String,
    pub(crate) alive: bool,
    pub(crate) paused: bool,
    /// Tasks that were woken while the node was paused.
    pub(crate) asleep: Vec<TaskKey>,
    /// Who listens where.
    pub(crate) ports: BTreeMap<u16, u32>,
    pub(crate) port: Port,
    /// Its transports, those that there are.
    pub(crate) adapters: Vec<u32>,
    pub(crate) cpu: Cpu,
    pub(crate) disk: DiskState,
    pub(crate) disk_users: Vec<Rc<dyn DiskUser>>,
    /// What its clock on the wall is ahead of virtual time, in ns.
    pub(crate) wall_ns: i64,
    /// What runs on it whenever it is up.
    pub(crate) programs: Vec<Program>,
    /// When its power failed.
    pub(crate) crashes: Vec<u64>,
}

/// A transport.
pub(crate) struct AdapterState {
    pub(crate) node: u32,
    /// The node was killed, or the transport dropped.
    pub(crate) dead: bool,
    pub(crate) slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots to be free again at the first poll that finds nothing more to report.
    limbo: Vec<u32>,
    /// Of its connections, those that there are.
    pub(crate) deadlines: BTreeSet<(u64, u32)>,
    pub(crate) reports: VecDeque<Report>,
    pub(crate) waiter: Arc<Waiter>,
    /// A post was turned away with a full queue since the last poll.
    pub(crate) starved: bool,
    /// A queue that was full has a place again.
    pub(crate) nudged: bool,
    pub(crate) registrations: Registrations,
}

/// A place for a connection.
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) conn: Option<Box<Conn>>,
}

struct TimerSlot {
    generation: u32,
    waker: Option<Waker>,
}

/// Whether a task that is ready runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Admission {
    Now,
    /// Its node is paused, or its node's processor works.
    Later,
}

pub(crate) type Action = Box<dyn FnOnce(&Sim)>;

/// Everything but the tasks.
pub(crate) struct Core {
    pub(crate) config: SimConfig,
    pub(crate) capabilities: Capabilities,
    pub(crate) queue: EventQueue,
    pub(crate) keys: Rng,
    pub(crate) jitter: Rng,
    pub(crate) nodes: Vec<NodeState>,
    pub(crate) names: BTreeMap<String, u32>,
    pub(crate) adapters: Vec<AdapterState>,
    pub(crate) links: BTreeMap<(u32, u32), LinkState>,
    pub(crate) pool: Pool,
    timers: Vec<TimerSlot>,
    free_timers: Vec<u32>,
    /// Events of dropped timers that are still in the queue, at most.
    cancelled_timers: usize,
    actions: Vec<Option<Action>>,
    /// The endpoints of nodes that are up, each with its node.
    pub(crate) observers: Vec<(u32, Observer)>,
    wakes: Vec<Waker>,
    /// Nodes of which a task may be released now.
    released: VecDeque<u32>,
    pub(crate) timeline: Option<Box<Timeline>>,
    /// The node of the task that runs, if its processor has several cores.
    pub(crate) running: Option<u32>,
    pub(crate) ready: Arc<ReadyQueue>,
}

impl Core {
    fn new(config: SimConfig, ready: Arc<ReadyQueue>) -> Core {
        Core {
            capabilities: config.capabilities(),
            queue: EventQueue::default(),
            // Two streams, so that jitter does not change keys.
            keys: Rng::new(config.seed),
            jitter: Rng::new(!config.seed),
            nodes: Vec::new(),
            names: BTreeMap::new(),
            adapters: Vec::new(),
            links: BTreeMap::new(),
            pool: Pool::default(),
            timers: Vec::new(),
            free_timers: Vec::new(),
            cancelled_timers: 0,
            actions: Vec::new(),
            observers: Vec::new(),
            wakes: Vec::new(),
            released: VecDeque::new(),
            timeline: config.trace.map(|options| Box::new(Timeline::new(options))),
            running: None,
            ready,
            config,
        }
    }

    // ---- transports and their connections ---------------------------------------------------------------------------------

    pub(crate) fn add_adapter(&mut self, node: u32) -> u32 {
        self.adapters.push(AdapterState {
            node,
            dead: false,
            slots: Vec::new(),
            free: Vec::new(),
            limbo: Vec::new(),
            deadlines: BTreeSet::new(),
            reports: VecDeque::new(),
            waiter: Arc::new(Waiter::default()),
            starved: false,
            nudged: false,
            registrations: Registrations::new(),
        });
        let id = self.adapters.len() as u32 - 1;
        self.nodes[node as usize].adapters.push(id);
        id
    }

    pub(crate) fn conn(&self, at: ConnRef) -> Option<&Conn> {
        let slot = self.adapters.get(at.adapter as usize)?.slots.get(at.slot as usize)?;
        slot.conn.as_deref().filter(|_| slot.generation == at.generation)
    }

    pub(crate) fn conn_mut(&mut self, at: ConnRef) -> Option<&mut Conn> {
        let slot = self.adapters.get_mut(at.adapter as usize)?.slots.get_mut(at.slot as usize)?;
        slot.conn.as_deref_mut().filter(|_| slot.generation == at.generation)
    }

    pub(crate) fn insert_conn(&mut self, adapter: u32, conn: Conn) -> ConnRef {
        let state = &mut self.adapters[adapter as usize];
        let slot = state.free.pop().unwrap_or_else(|| {
            state.slots.push(Slot { generation: 0, conn: None });
            state.slots.len() as u32 - 1
        });
        let entry = &mut state.slots[slot as usize];
        entry.conn = Some(Box::new(conn));
        ConnRef { adapter, slot, generation: entry.generation }
    }

    /// Takes a connection out. Its slot is not used again before [`Core::free_slot`].
    pub(crate) fn remove_conn(&mut self, at: ConnRef) -> Option<Box<Conn>> {
        let state = self.adapters.get_mut(at.adapter as usize)?;
        let slot = state.slots.get_mut(at.slot as usize)?;
        if slot.generation != at.generation {
            return None;
        }
        let conn = slot.conn.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        state.deadlines.remove(&(conn.deadline, at.slot));
        Some(conn)
    }

    /// A connection's handshake, or its disconnect, is given up at `deadline`; `u64::MAX` for never.
    pub(crate) fn set_deadline(&mut self, at: ConnRef, deadline: u64) {
        let Some(conn) = self.conn_mut(at) else { return };
        let before = std::mem::replace(&mut conn.deadline, deadline);
        let deadlines = &mut self.adapters[at.adapter as usize].deadlines;
        deadlines.remove(&(before, at.slot));
        if deadline != u64::MAX {
            deadlines.insert((deadline, at.slot));
        }
    }

    /// The caller knows, or will know once it has polled everything, that the connection of this slot is gone.
    pub(crate) fn free_slot(&mut self, at: ConnRef) {
        self.adapters[at.adapter as usize].limbo.push(at.slot);
    }

    /// Something for the transport's owner.
    pub(crate) fn report(&mut self, adapter: u32, report: Report) {
        let state = &mut self.adapters[adapter as usize];
        state.reports.push_back(report);
        self.wakes.extend(state.waiter.take());
    }

    /// A queue has a place again.
    pub(crate) fn nudge(&mut self, adapter: u32) {
        let state = &mut self.adapters[adapter as usize];
        if state.starved {
            state.nudged = true;
            self.wakes.extend(state.waiter.take());
        }
    }

    /// Moves up to `batch` events to `into`; returns whether there was any.
    pub(crate) fn drain_reports(&mut self, adapter: u32, batch: usize, into: &mut Vec<Report>) -> bool {
        let state = &mut self.adapters[adapter as usize];
        if state.reports.is_empty() {
            // All that was reported of these has been polled, and before this call.
            state.free.append(&mut state.limbo);
            return false;
        }
        let before = into.len();
        let mut completions = 0;
        while into.len() - before < batch {
            let Some(report) = state.reports.pop_front() else { break };
            match &report {
                Report::Work(done) => {
                    completions += 1;
                    let slot = &mut state.slots[done.conn.slot as usize];
                    if let Some(conn) = slot.conn.as_deref_mut().filter(|_| slot.generation == done.conn.generation) {
                        match done.kind {
                            bmi_core::transport::WorkKind::Recv => conn.recv_places -= 1,
                            _ => conn.send_places -= 1,
                        }
                    }
                }
                Report::Disconnected { conn, .. } | Report::Rejected { conn, .. } => state.limbo.push(conn.slot),
                Report::ConnectRequest { .. } | Report::Established { .. } => {}
            }
            into.push(report);
        }
        let node = state.node;
        self.charge(node, Work::Polling, completions * self.config.profile.cpu_completion_ns);
        into.len() > before
    }

    // ---- timers -----------------------------------------------------------------------------------------------------------

    fn add_timer(&mut self, at: u64, waker: Waker) -> (u32, u32) {
        let slot = self.free_timers.pop().unwrap_or_else(|| {
            self.timers.push(TimerSlot { generation: 0, waker: None });
            self.timers.len() as u32 - 1
        });
        let entry = &mut self.timers[slot as usize];
        entry.waker = Some(waker);
        let generation = entry.generation;
        self.queue.schedule(at, Event::Timer { slot, generation });
        (slot, generation)
    }

    fn drop_timer(&mut self, (slot, generation): (u32, u32)) -> Option<Waker> {
        let entry = self.timers.get_mut(slot as usize).filter(|entry| entry.generation == generation)?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free_timers.push(slot);
        entry.waker.take()
    }

    /// A timer was dropped before its time; its event stays behind, until there are too many of those.
    fn cancel_timer(&mut self, timer: (u32, u32)) -> Option<Waker> {
        let waker = self.drop_timer(timer)?;
        self.cancelled_timers += 1;
        if self.cancelled_timers > 1_000 && self.cancelled_timers > self.queue.len() / 2 {
            let timers = &self.timers;
            self.queue.retain(|event| match event {
                Event::Timer { slot, generation } => timers[*slot as usize].generation == *generation,
                _ => true,
            });
            self.cancelled_timers = 0;
        }
        Some(waker)
    }

    // ---- events -----------------------------------------------------------------------------------------------------------

    /// Whether nothing would happen: deadlines of what has long ended must not move time.
    fn is_stale(&self, event: &Event) -> bool {
        match event {
            Event::Timer { slot, generation } => self.timers[*slot as usize].generation != *generation,
            Event::ConnectDeadline { conn } => self.conn(*conn).is_none_or(|conn| conn.state != State::Connecting),
            Event::CloseDeadline { conn } | Event::PeerGone { conn } => self.conn(*conn).is_none(),
            Event::LinkDead { a, b, epoch } => {
                self.links.get(&(*a, *b)).is_none_or(|link| !link.down || link.epoch != *epoch)
            }
            _ => false,
        }
    }

    /// When the next event that counts happens.
    fn next_time(&mut self) -> Option<u64> {
        while let Some((event, _)) = self.queue.peek() {
            if !self.is_stale(event) {
                break;
            }
            self.queue.pop();
        }
        self.queue.next_time()
    }

    /// Executes the next event. An action has to be called by the caller, with nothing borrowed.
    fn execute_next(&mut self) -> Option<Action> {
        let (time, event) = self.queue.pop()?;
        self.queue.executed(time, &event);
        match event {
            Event::Timer { slot, generation } => {
                let waker = self.drop_timer((slot, generation));
                self.wakes.extend(waker);
            }
            Event::Port { node, side } => self.go_on(node, side),
            Event::Arrive { .. } | Event::Answer { .. } => self.arrive(event),
            Event::Deliver { node, len, packet } => {
                self.take_in(node, len, packet);
                self.go_on(node, Side::Receive);
            }
            Event::Take { node, packet } => self.deliver(node, packet),
            Event::CpuFree { node } => self.released.push_back(node),
            Event::Refuse { conn, why } => self.handle_refusal(conn, why),
            Event::ConnectDeadline { conn } => self.handle_connect_deadline(conn),
            Event::CloseDeadline { conn } => self.handle_close_deadline(conn),
            Event::PeerGone { conn } => self.peer_gone(conn),
            Event::LinkDead { a, b, epoch } => self.link_dead(a, b, epoch),
            Event::GivenUp { a, b } => self.give_up(a, b),
            Event::Fault { index } => return self.actions[index as usize].take(),
        }
        None
    }

    // ---- the processors and the tasks -------------------------------------------------------------------------------------

    /// What becomes of a task of `node` that is ready and may run from `not_before` on.
    fn admit(&mut self, node: u32, key: TaskKey, not_before: u64) -> Admission {
        let now = self.queue.now;
        let state = &mut self.nodes[node as usize];
        if state.paused {
            state.asleep.push(key);
            return Admission::Later;
        }
        match state.cpu.enter(now, key, not_before) {
            Ok(()) => {
                self.running = state.cpu.is_parallel().then_some(node);
                Admission::Now
            }
            Err(release_at) => {
                self.release_later(node, release_at);
                Admission::Later
            }
        }
    }

    /// The first of the tasks that a node's processor was too busy for, if it may run now.
    fn release_task(&mut self, node: u32) -> Option<TaskKey> {
        let now = self.queue.now;
        let state = &mut self.nodes[node as usize];
        let key = state.cpu.release(now);
        match key {
            Some(key) if state.paused => {
                state.asleep.push(key);
                self.left(node);
                None
            }
            Some(key) => {
                self.running = state.cpu.is_parallel().then_some(node);
                Some(key)
            }
            None => {
                self.schedule_release(node);
                None
            }
        }
    }

    /// A task of `node` has run: the next one may, when what it caused is done. Returns when that is, where it keeps others from running.
    fn left(&mut self, node: u32) -> Option<u64> {
        let cpu = &mut self.nodes[node as usize].cpu;
        self.running = None;
        let end = cpu.left();
        let end = cpu.is_parallel().then_some(end);
        self.schedule_release(node);
        end
    }

    fn schedule_release(&mut self, node: u32) {
        let at = self.nodes[node as usize].cpu.next_release();
        self.release_later(node, at);
    }

    /// A held task of `node` may run at `at`, if nothing lets it already. Who has not to wait for time to pass needs no event.
    fn release_later(&mut self, node: u32, at: Option<u64>) {
        match at {
            Some(at) if at > self.queue.now => self.queue.schedule(at, Event::CpuFree { node }),
            Some(_) => self.released.push_back(node),
            None => {}
        }
    }

    fn describe(&self, executor: &Executor) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        let line = &mut text;
        // Writing to a string cannot fail.
        let _ = writeln!(line, "  world: {} tasks on no node", executor.count(None));
        for (index, node) in self.nodes.iter().enumerate() {
            let state = if !node.alive {
                "killed"
            } else if node.paused {
                "paused"
            } else {
                "up"
            };
            let _ = writeln!(line, "  node {:?}: {state}, {} tasks", node.name, executor.count(Some(index)));
            for adapter in (0..self.adapters.len() as u32).filter(|id| self.adapters[*id as usize].node == index as u32)
            {
                for at in self.conns_of(adapter).into_iter().take(16) {
                    let Some(conn) = self.conn(at) else { continue };
                    let (sends, reads, receives) = (conn.sends.len(), conn.reads.len(), conn.receives.len());
                    let _ = writeln!(
                        line,
                        "    to {}: {:?}, {sends} sends, {reads} reads, {receives} receives posted, {} events not polled",
                        conn.peer_name,
                        conn.state,
                        self.adapters[adapter as usize].reports.len()
                    );
                }
            }
        }
        text
    }
}

/// What all handles of a world share.
pub(crate) struct Shared {
    pub(crate) core: RefCell<Core>,
    pub(crate) executor: Executor,
}

impl Shared {
    /// Runs `f` on the core, then wakes whom it concerns.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let (result, mut wakes) = {
            let mut core = self.core.borrow_mut();
            let result = f(&mut core);
            if core.wakes.is_empty() {
                return result;
            }
            (result, std::mem::take(&mut core.wakes))
        };
        for waker in wakes.drain(..) {
            waker.wake();
        }
        let mut core = self.core.borrow_mut();
        if core.wakes.is_empty() {
            core.wakes = wakes; // keeps its room
        }
        result
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(self.core.borrow().queue.now)
    }

    /// The time at a node's clock: when its processor has done what it was given.
    pub(crate) fn now_at(&self, node: u32) -> Time {
        let core = self.core.borrow();
        Time::from_nanos(core.nodes[node as usize].cpu.free_at(core.queue.now))
    }
}

/// A handle to a world, for tasks: cheap to clone, does not keep the tasks of a dropped [`World`] alive.
#[derive(Clone)]
pub struct Sim(pub(crate) Rc<Shared>);

impl Sim {
    // ---- time -------------------------------------------------------------------------------------------------------------

    /// The virtual time.
    pub fn now(&self) -> Time {
        self.0.now()
    }

    /// The world's clock.
    pub fn clock(&self) -> SimClock {
        SimClock { shared: self.0.clone(), node: None }
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Waits until `at`.
    pub fn sleep_until(&self, at: Time) -> Sleep {
        Sleep { sim: self.clone(), at: at.as_nanos(), timer: None }
    }

    /// Calls `action` at a point in virtual time: for faults by schedule. A time that has passed means now.
    pub fn at(&self, time: Time, action: impl FnOnce(&Sim) + 'static) {
        self.0.with(|core| {
            core.actions.push(Some(Box::new(action)));
            let index = core.actions.len() as u32 - 1;
            core.queue.schedule(time.as_nanos(), Event::Fault { index });
        });
    }

    // ---- nodes and tasks --------------------------------------------------------------------------------------------------

    /// The node called `name`; made if there is none yet.
    pub fn node(&self, name: &str) -> Node {
        let id = self.0.with(|core| {
            if let Some(id) = core.names.get(name) {
                return *id;
            }
            let id = core.nodes.len() as u32;
            let cores = core.config.profile.cpu_cores;
            core.names.insert(name.to_owned(), id);
            core.nodes.push(NodeState {
                name: name.to_owned(),
                alive: true,
                paused: false,
                asleep: Vec::new(),
                ports: BTreeMap::new(),
                port: Port::default(),
                adapters: Vec::new(),
                cpu: Cpu::new(cores),
                disk: DiskState::default(),
                disk_users: Vec::new(),
                wall_ns: EPOCH_NS,
                programs: Vec::new(),
                crashes: Vec::new(),
            });
            id
        });
        Node { sim: self.clone(), id }
    }

    /// Starts a task that belongs to no node: a script of faults, an observer. Dropping the handle lets it run on.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        JoinHandle::spawn(self, None, future)
    }

    // ---- what was done ----------------------------------------------------------------------------------------------------

    /// A number over every event executed so far: time, kind, nodes, connection, length. Equal runs have equal digests.
    pub fn digest(&self) -> u64 {
        self.0.core.borrow().queue.digest()
    }

    /// Events executed so far.
    pub fn events(&self) -> u64 {
        self.0.core.borrow().queue.count()
    }

    /// What endpoints of nodes that are up hold though they should not, if nothing is under way any more: one line for each. Connections, and what waits on
    /// them, are no leak.
    pub fn leaks(&self) -> Vec<String> {
        let core = self.0.core.borrow();
        let held = core.observers.iter().filter_map(|(node, observer)| {
            let held = observer()?;
            (held != Holdings::default()).then(|| format!("  {}: {held:?}", core.nodes[*node as usize].name))
        });
        held.collect()
    }

    /// What transports of this world can do.
    pub fn capabilities(&self) -> Capabilities {
        self.0.core.borrow().capabilities.clone()
    }

    /// Records a timeline from now on, if none is recorded yet, and gives a handle to it.
    pub fn trace(&self, options: TraceOptions) -> Trace {
        self.0.with(|core| {
            core.timeline.get_or_insert_with(|| Box::new(Timeline::new(options)));
        });
        Trace { sim: self.clone() }
    }

    // ---- faults -----------------------------------------------------------------------------------------------------------

    /// Ends every connection between two nodes, at once and on both sides, `PeerLost`.
    pub fn cut(&self, a: &Node, b: &Node) {
        self.0.with(|core| core.cut(a.id, b.id));
    }

    /// Takes the link between two nodes down: nothing is delivered. After the profile's detection time their connections end.
    pub fn partition(&self, a: &Node, b: &Node) {
        self.0.with(|core| core.partition(a.id, b.id));
    }

    /// Brings the link up again; what waited is delivered.
    pub fn heal(&self, a: &Node, b: &Node) {
        self.0.with(|core| core.heal(a.id, b.id));
    }

    /// Polls every task that is ready, and those that become ready by it. `root` is polled for the key `root_key`; stops when it says so.
    fn run_ready(&self, root_key: TaskKey, root: &mut dyn FnMut() -> bool) -> Result<bool, StallKind> {
        let executor = &self.0.executor;
        for _ in 0..LIVELOCK_POLLS {
            let released = self.0.core.borrow_mut().released.pop_front();
            if let Some(node) = released {
                let key = self.0.core.borrow_mut().release_task(node);
                key.into_iter().for_each(|key| self.run_on(node, key));
                continue;
            }
            let Some((key, stamp)) = executor.ready.pop() else { return Ok(false) };
            if key == root_key {
                if root() {
                    return Ok(true);
                }
            } else if key.index != ROOT
                && let Some((node, not_before)) = executor.node_of(key)
            {
                match node {
                    // The world's own tasks have a processor each.
                    None => executor.run(key),
                    Some(node) => {
                        let (node, not_before) = (node as u32, not_before.max(stamp));
                        let admission = self.0.core.borrow_mut().admit(node, key, not_before);
                        if admission == Admission::Now {
                            self.run_on(node, key);
                        }
                    }
                }
            }
        }
        Err(StallKind::Livelock)
    }

    /// Runs a task that has a core of its node's processor.
    fn run_on(&self, node: u32, key: TaskKey) {
        self.0.executor.run(key);
        let end = self.0.core.borrow_mut().left(node);
        if let Some(end) = end {
            // Its own next turn comes after what it did.
            self.0.executor.not_before(key, end);
            self.0.executor.ready.stamp(0);
        }
    }

    /// Executes the next event if it happens by `limit`.
    fn execute(&self, limit: u64) -> bool {
        let action = self.0.with(|core| match core.next_time() {
            Some(time) if time <= limit => Some(core.execute_next()),
            _ => None,
        });
        match action {
            Some(Some(action)) => action(self),
            Some(None) => {}
            None => return false,
        }
        true
    }

    fn stalled(&self, kind: StallKind) -> Stalled {
        let pending = self.0.core.borrow().describe(&self.0.executor);
        Stalled { kind, now: self.now(), pending }
    }
}

/// A simulated world, and what runs it. Dropping it drops its tasks. See the [crate](crate) for an example.
pub struct World {
    sim: Sim,
}

impl std::ops::Deref for World {
    type Target = Sim;

    fn deref(&self) -> &Sim {
        &self.sim
    }
}

impl World {
    /// A world of default settings.
    pub fn new(seed: u64) -> World {
        World::with(SimConfig::seeded(seed))
    }

    /// A world.
    pub fn with(config: SimConfig) -> World {
        let executor = Executor::default();
        let shared = Shared { core: RefCell::new(Core::new(config, executor.ready.clone())), executor };
        World { sim: Sim(Rc::new(shared)) }
    }

    /// A handle, for tasks.
    pub fn sim(&self) -> Sim {
        self.sim.clone()
    }

    /// Runs the world until `future` is ready. Call it again to go on.
    ///
    /// # Panics
    /// If the world stalls before; the message says what stood waiting.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self.try_block_on(future) {
            Ok(output) => output,
            Err(stalled) => panic!("{stalled}"),
        }
    }

    /// Runs the world until `future` is ready.
    ///
    /// # Errors
    /// [`Stalled`] if no event is left, if tasks spin, or if the time limit is over.
    pub fn try_block_on<F: Future>(&self, future: F) -> Result<F::Output, Stalled> {
        let mut future = pin!(future);
        let key = self.0.executor.fresh_key(ROOT);
        let notify = TaskWaker::new(key, self.0.executor.ready.clone());
        let waker = Waker::from(notify.clone());
        waker.wake_by_ref();
        let limit = (Time::ZERO + self.0.core.borrow().config.time_limit).as_nanos();
        let event_limit = self.0.core.borrow().config.event_limit;
        let mut output = None;
        loop {
            let mut root = || {
                notify.taken();
                match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(ready) => {
                        output = Some(ready);
                        true
                    }
                    Poll::Pending => false,
                }
            };
            let done = self.run_ready(key, &mut root).map_err(|kind| self.stalled(kind))?;
            if done && let Some(output) = output.take() {
                return Ok(output);
            }
            if self.events() >= event_limit {
                return Err(self.stalled(StallKind::EventLimit));
            }
            if !self.execute(limit) {
                let waiting = self.0.with(|core| core.next_time().is_some());
                return Err(self.stalled(if waiting { StallKind::TimeLimit } else { StallKind::Deadlock }));
            }
        }
    }

    /// Runs until virtual time is `time`: everything that happens by then has happened.
    ///
    /// # Panics
    /// If tasks spin without time passing.
    pub fn run_until(&self, time: Time) {
        self.run_events(time.as_nanos());
        self.0.with(|core| core.queue.now = core.queue.now.max(time.as_nanos()));
    }

    /// Runs for `duration`; see [`World::run_until`].
    ///
    /// # Panics
    /// If tasks spin without time passing.
    pub fn run_for(&self, duration: Duration) {
        self.run_until(self.now() + duration);
    }

    /// Runs until no event is left, or the time limit is over. Returns the virtual time then.
    ///
    /// # Panics
    /// If tasks spin without time passing.
    pub fn run(&self) -> Time {
        let limit = Time::ZERO + self.0.core.borrow().config.time_limit;
        self.run_events(limit.as_nanos());
        self.now()
    }

    /// Runs the tasks that are ready, then executes one event, if one happens by `limit`. Returns whether one did. For those who drive transports
    /// by hand.
    ///
    /// # Panics
    /// If tasks spin without time passing.
    pub fn step(&self, limit: Time) -> bool {
        let nobody = self.0.executor.fresh_key(ROOT);
        if let Err(kind) = self.run_ready(nobody, &mut || false) {
            panic!("{}", self.stalled(kind));
        }
        self.execute(limit.as_nanos())
    }

    fn run_events(&self, limit: u64) {
        while self.step(Time::from_nanos(limit)) {}
    }
}

impl Drop for World {
    /// Tasks hold handles to the world, which would otherwise keep each other alive.
    fn drop(&mut self) {
        while !self.0.executor.is_empty() {
            self.0.executor.drop_tasks(|_| true);
        }
        let (actions, kept) = self.0.with(|core| {
            core.queue.clear();
            core.observers.clear();
            let kept = core
                .nodes
                .iter_mut()
                .map(|node| (std::mem::take(&mut node.programs), std::mem::take(&mut node.disk_users)));
            (std::mem::take(&mut core.actions), kept.collect::<Vec<_>>())
        });
        drop((actions, kept));
    }
}

/// Waits for a point in virtual time.
#[must_use = "does nothing unless awaited"]
pub struct Sleep {
    sim: Sim,
    at: u64,
    timer: Option<(u32, u32)>,
}

impl Sleep {
    /// When it ends.
    pub fn at(&self) -> Time {
        Time::from_nanos(self.at)
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (at, timer) = (self.at, self.timer);
        let shared = self.sim.0.clone();
        let mut core = shared.core.borrow_mut();
        if core.queue.now >= at {
            return Poll::Ready(());
        }
        match timer {
            None => self.timer = Some(core.add_timer(at, cx.waker().clone())),
            Some((slot, _)) => match &mut core.timers[slot as usize].waker {
                Some(waker) if waker.will_wake(cx.waker()) => {}
                waker => *waker = Some(cx.waker().clone()),
            },
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            drop(self.sim.0.with(|core| core.cancel_timer(timer)));
        }
    }
}
