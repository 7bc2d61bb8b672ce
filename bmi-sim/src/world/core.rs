//! The state of the world: nodes, transports, connections and coming events. Everything but the
//! tasks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use bmi_core::transport::{Event as Report, WorkKind};
use bmi_core::{Capabilities, ResourceUsage};

use super::Sim;
use super::timers::Timers;
use crate::adapter::Waiter;
use crate::check::Messages;
use crate::config::SimConfig;
use crate::cpu::{Cpu, Work};
use crate::disk::DiskState;
use crate::events::{ConnRef, Event, EventQueue};
use crate::executor::{Executor, ReadyQueue, TaskKey};
use crate::faults::{DiskUser, Lasting};
use crate::inline_receive;
use crate::memory::Registrations;
use crate::network::{LinkState, Port, Side};
use crate::node::Node;
use crate::queue_pair::{Conn, Pool, RecvWork, State};
use crate::rng::Rng;
use crate::timeline::Timeline;

/// A program that a node runs whenever it is up.
pub(crate) type Program = Rc<dyn Fn(Node)>;

/// Returns the resources that an endpoint holds; `None` once the endpoint is gone.
pub(crate) type Observer = Box<dyn Fn() -> Option<ResourceUsage>>;

/// A node.
pub(crate) struct NodeState {
    pub(crate) name: String,
    pub(crate) alive: bool,
    pub(crate) paused: bool,
    /// Tasks that were woken while the node was paused.
    pub(crate) asleep: Vec<TaskKey>,
    /// The transport that listens on each port.
    pub(crate) ports: BTreeMap<u16, u32>,
    pub(crate) port: Port,
    /// Its live transports.
    pub(crate) adapters: Vec<u32>,
    pub(crate) cpu: Cpu,
    pub(crate) disk: DiskState,
    pub(crate) disk_users: Vec<Rc<dyn DiskUser>>,
    /// How far its wall clock is ahead of virtual time, in ns.
    pub(crate) wall_ns: i64,
    /// The programs that run on it whenever it is up.
    pub(crate) programs: Vec<Program>,
    /// The times at which its power failed.
    pub(crate) crashes: Vec<u64>,
    /// The faults of a plan that affect it.
    pub(crate) lasting: Lasting,
    /// The most steps of inner loops that a task has taken without a break ([`bmi_core::step`]).
    #[cfg(feature = "mutants")]
    pub(crate) longest_piece: u64,
}

/// A transport.
pub(crate) struct AdapterState {
    pub(crate) node: u32,
    /// The first transport of its group; itself if it is in no group.
    pub(crate) group: u32,
    /// The core that its program is bound to, if any.
    pub(crate) core: Option<usize>,
    /// The node was killed, or the transport was dropped.
    pub(crate) dead: bool,
    pub(crate) slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that become free at the first poll that finds nothing more to report.
    limbo: Vec<u32>,
    /// The deadlines of its connections, where there are any.
    pub(crate) deadlines: BTreeSet<(u64, u32)>,
    pub(crate) reports: VecDeque<Report>,
    /// With inline receives: the receives of the messages in `reports`, in the same order. A
    /// message can be taken until its report is polled.
    pub(crate) at_hand: VecDeque<RecvWork>,
    pub(crate) waiter: Arc<Waiter>,
    /// A post was refused because the queue was full, and no poll has reported yet that it may be
    /// tried again (C15).
    pub(crate) starved: bool,
    /// A queue that was full has a place again.
    pub(crate) nudged: bool,
    pub(crate) registrations: Registrations,
}

impl AdapterState {
    /// Frees the slots of ended connections. Called by a poll that finds nothing to report: all
    /// reports about these connections have been polled, before this call.
    pub(crate) fn free_slots(&mut self) {
        self.free.append(&mut self.limbo);
    }

    /// Frees the queue place of a report that goes to the caller. Returns whether the report is a
    /// completion.
    pub(crate) fn polled(&mut self, report: &Report) -> bool {
        match report {
            Report::Work(done) => {
                let slot = &mut self.slots[done.conn.slot as usize];
                if let Some(conn) = slot.conn.as_deref_mut().filter(|_| slot.generation == done.conn.generation) {
                    match done.kind {
                        WorkKind::Recv => conn.recv_places -= 1,
                        _ => conn.send_places -= 1,
                    }
                }
                true
            }
            Report::Disconnected { conn, .. } | Report::Rejected { conn, .. } => {
                self.limbo.push(conn.slot);
                false
            }
            Report::ConnectRequest { .. } | Report::Established { .. } => false,
        }
    }
}

/// A place for a connection.
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) conn: Option<Box<Conn>>,
}

pub(crate) type Action = Box<dyn FnOnce(&Sim)>;

/// Everything but the tasks.
pub(crate) struct Core {
    pub(crate) config: SimConfig,
    pub(crate) capabilities: Capabilities,
    pub(crate) queue: EventQueue,
    pub(crate) keys: Rng,
    pub(crate) jitter: Rng,
    /// Draws how much of a write is in place when its connection ends.
    pub(crate) torn: Rng,
    pub(crate) nodes: Vec<NodeState>,
    pub(crate) names: BTreeMap<String, u32>,
    pub(crate) adapters: Vec<AdapterState>,
    pub(crate) links: BTreeMap<(u32, u32), LinkState>,
    pub(crate) pool: Pool,
    pub(super) timers: Timers,
    pub(super) actions: Vec<Option<Action>>,
    /// Observers of the endpoints of nodes that are up, each with its node.
    pub(crate) observers: Vec<(u32, Observer)>,
    pub(super) wakes: Vec<Waker>,
    /// Nodes that may release a held task now.
    pub(super) released: VecDeque<u32>,
    pub(crate) timeline: Option<Box<Timeline>>,
    /// The messages of this run, if a check records them.
    pub(crate) messages: Option<Box<Messages>>,
    /// The node of the running task, if its processor has several cores.
    pub(crate) running: Option<u32>,
    pub(crate) ready: Arc<ReadyQueue>,
}

impl Core {
    pub(super) fn new(config: SimConfig, ready: Arc<ReadyQueue>) -> Core {
        Core {
            capabilities: config.capabilities(),
            queue: EventQueue::default(),
            // Separate streams, so that draws from one do not change the others.
            keys: Rng::new(config.seed),
            jitter: Rng::new(!config.seed),
            torn: Rng::new(config.seed ^ 0x746f_726e),
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
            running: None,
            ready,
            config,
        }
    }

    // ---- transports and their connections -------------------------------------------------------

    pub(crate) fn add_adapter(&mut self, node: u32) -> u32 {
        self.adapters.push(AdapterState {
            node,
            group: self.adapters.len() as u32,
            core: None,
            dead: false,
            slots: Vec::new(),
            free: Vec::new(),
            limbo: Vec::new(),
            deadlines: BTreeSet::new(),
            reports: VecDeque::new(),
            at_hand: VecDeque::new(),
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

    /// Sets the time at which a connection's handshake, or its disconnect, is given up; `u64::MAX`
    /// for never.
    pub(crate) fn set_deadline(&mut self, at: ConnRef, deadline: u64) {
        let Some(conn) = self.conn_mut(at) else { return };
        let before = std::mem::replace(&mut conn.deadline, deadline);
        let deadlines = &mut self.adapters[at.adapter as usize].deadlines;
        deadlines.remove(&(before, at.slot));
        if deadline != u64::MAX {
            deadlines.insert((deadline, at.slot));
        }
    }

    /// Marks a slot as free to use again. The caller knows that its connection is gone, or will
    /// know once it has polled everything.
    pub(crate) fn free_slot(&mut self, at: ConnRef) {
        self.adapters[at.adapter as usize].limbo.push(at.slot);
    }

    /// Queues a report for the transport's owner, and wakes it.
    pub(crate) fn report(&mut self, adapter: u32, report: Report) {
        let state = &mut self.adapters[adapter as usize];
        state.reports.push_back(report);
        self.wakes.extend(state.waiter.take());
    }

    /// Wakes an owner that waits for a place in a full queue.
    pub(crate) fn nudge(&mut self, adapter: u32) {
        let state = &mut self.adapters[adapter as usize];
        if state.starved {
            state.nudged = true;
            self.wakes.extend(state.waiter.take());
        }
    }

    /// Moves up to `batch` events to `into`. Returns whether there were any.
    pub(crate) fn drain_reports(&mut self, adapter: u32, batch: usize, into: &mut Vec<Report>) -> bool {
        let state = &mut self.adapters[adapter as usize];
        if state.reports.is_empty() {
            state.free_slots();
            return false;
        }
        let inline = self.config.inline_receive_bytes > 0;
        let before = into.len();
        let mut completions = 0;
        while into.len() - before < batch {
            let Some(report) = state.reports.pop_front() else { break };
            completions += u64::from(state.polled(&report));
            if inline && inline_receive::is_message(&report) {
                self.pool.keep_segments(state.at_hand.pop_front().expect("a receive for each message").segments);
            }
            into.push(report);
        }
        let node = state.node;
        self.charge(node, Work::Polling, completions * self.config.profile.cpu_completion_ns);
        into.len() > before
    }

    // ---- events ---------------------------------------------------------------------------------

    /// Returns whether the event would have no effect. The deadline of an operation that has ended
    /// must not move time.
    fn is_stale(&self, event: &Event) -> bool {
        match event {
            Event::Timer { slot, generation } => self.timers.is_stale(*slot, *generation),
            Event::ConnectDeadline { conn } => self.conn(*conn).is_none_or(|conn| conn.state != State::Connecting),
            Event::CloseDeadline { conn } | Event::PeerGone { conn } | Event::GivenUp { conn } => {
                self.conn(*conn).is_none()
            }
            Event::LinkDead { a, b, epoch } => {
                self.links.get(&(*a, *b)).is_none_or(|link| !link.down || link.epoch != *epoch)
            }
            _ => false,
        }
    }

    /// Returns when the next event happens that has an effect.
    pub(super) fn next_time(&mut self) -> Option<u64> {
        while let Some((event, _)) = self.queue.peek() {
            if !self.is_stale(event) {
                break;
            }
            self.queue.pop();
        }
        self.queue.next_time()
    }

    /// Executes the next event. If it is an action, it is returned: the caller has to call it with
    /// nothing borrowed.
    pub(super) fn execute_next(&mut self) -> Option<Action> {
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
            Event::GivenUp { conn } => self.give_up(conn),
            Event::Fault { index } => return self.actions[index as usize].take(),
        }
        None
    }

    // ---- for people -----------------------------------------------------------------------------

    pub(super) fn describe(&self, executor: &Executor) -> String {
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
