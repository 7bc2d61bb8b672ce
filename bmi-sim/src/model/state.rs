//! Nodes and transports: their states, and the places of their connections.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use bmi_core::PeerIdentity;
use bmi_core::transport::{Event as Report, WorkKind};

use super::connection::{Conn, RecvWork, Registrations, Slot, is_message};
use super::disk::DiskState;
use super::handles::Program;
use super::network::Port;
use super::processor::{Cpu, Load, Work};
use crate::engine::{ConnRef, TaskKey};
use crate::faults::{DiskUser, Lasting};
use crate::model::Core;

/// The value of wall clocks when a world begins, in ns since 1970: some day in 2023.
const EPOCH_NS: i64 = 1_700_000_000_000_000_000;

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
    /// Who the peers of transports see that are created on it (C18).
    pub(crate) identity: PeerIdentity,
    /// The times at which its power failed.
    pub(crate) crashes: Vec<u64>,
    /// The faults of a plan that affect it.
    pub(crate) lasting: Lasting,
    /// The most steps of inner loops that a task has taken without a break ([`bmi_core::step`]).
    #[cfg(feature = "mutants")]
    pub(crate) longest_piece: u64,
}

impl NodeState {
    pub(crate) fn new(name: &str, cores: u64) -> NodeState {
        NodeState {
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
            identity: PeerIdentity::Nobody,
            crashes: Vec::new(),
            lasting: Lasting::default(),
            #[cfg(feature = "mutants")]
            longest_piece: 0,
        }
    }

    /// Returns how long each of its resources was occupied up to `now`.
    pub(crate) fn load(&self, now: u64) -> Load {
        let mut load = Load::default();
        self.cpu.add_load(now, &mut load);
        self.port.add_load(now, &mut load);
        load
    }
}

/// A transport.
pub(crate) struct AdapterState {
    pub(crate) node: u32,
    /// Who its peers see (C18).
    pub(crate) identity: PeerIdentity,
    /// The first transport of its group; itself if it is in no group.
    pub(crate) group: u32,
    /// Of the first transport of a group: how many of its members get new connections.
    pub(crate) taking: usize,
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

/// The task that waits on a transport.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    waker: Mutex<Option<Waker>>,
    /// Set when a waker of `Transport::waker` was used since the last poll.
    pub(crate) poked: AtomicBool,
}

impl Waiter {
    pub(crate) fn take(&self) -> Option<Waker> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn set(&self, waker: &Waker) {
        let mut waiting = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *waiting {
            Some(waiting) => waiting.clone_from(waker),
            None => *waiting = Some(waker.clone()),
        }
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.poked.store(true, Ordering::Release);
        if let Some(waker) = self.take() {
            waker.wake();
        }
    }
}

impl Core {
    pub(crate) fn add_adapter(&mut self, node: u32) -> u32 {
        let identity = self.nodes[node as usize].identity.clone();
        self.adapters.push(AdapterState {
            node,
            identity,
            group: self.adapters.len() as u32,
            taking: usize::MAX,
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
            if inline && is_message(&report) {
                self.pool.keep_segments(state.at_hand.pop_front().expect("a receive for each message").segments);
            }
            into.push(report);
        }
        let node = state.node;
        self.charge(node, Work::Polling, completions * self.config.profile.cpu_completion_ns);
        into.len() > before
    }

    /// Takes out the oldest report, together with its receive if it is a message.
    pub(crate) fn next_report(&mut self, adapter: u32) -> Option<(Report, Option<RecvWork>)> {
        let state = &mut self.adapters[adapter as usize];
        let report = state.reports.pop_front()?;
        let receive = is_message(&report).then(|| state.at_hand.pop_front().expect("invariant 1"));
        Some((report, receive))
    }

    /// Posts the receive of a taken message again.
    pub(crate) fn post_again(&mut self, at: ConnRef, receive: RecvWork) {
        match self.conn_mut(at) {
            Some(conn) => conn.receives.push_back(receive),
            // The receiver itself has ended the node.
            None => self.pool.keep_segments(receive.segments),
        }
    }
}
