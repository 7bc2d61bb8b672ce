//! [`Sim`]: a handle to a world.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Capabilities, ResourceUsage, Time};

use super::core::{Core, NodeState};
use super::timers::Sleep;
use crate::clock::SimClock;
use crate::cpu::Cpu;
use crate::disk::DiskState;
use crate::events::Event;
use crate::executor::{Executor, JoinHandle};
use crate::faults::Lasting;
use crate::network::Port;
use crate::node::Node;
use crate::timeline::{Timeline, Trace, TraceOptions};

/// The value of wall clocks when a world begins, in ns since 1970: some day in 2023.
const EPOCH_NS: i64 = 1_700_000_000_000_000_000;

/// The state that all handles of a world share.
pub(crate) struct Shared {
    pub(crate) core: RefCell<Core>,
    pub(crate) executor: Executor,
}

impl Shared {
    /// Runs `f` on the core, then wakes the tasks that it affected.
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
            core.wakes = wakes; // keeps its capacity
        }
        result
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_nanos(self.core.borrow().queue.now)
    }

    /// Returns the time of a node's clock: when its processor has done its work so far.
    pub(crate) fn now_at(&self, node: u32) -> Time {
        let core = self.core.borrow();
        Time::from_nanos(core.nodes[node as usize].cpu.free_at(core.queue.now))
    }
}

/// A handle to a world, for tasks. It is cheap to clone and does not keep the tasks of a dropped
/// [`World`](crate::World) alive.
#[derive(Clone)]
pub struct Sim(pub(crate) Rc<Shared>);

impl Sim {
    // ---- time -----------------------------------------------------------------------------------

    /// Returns the virtual time.
    pub fn now(&self) -> Time {
        self.0.now()
    }

    /// Returns the world's clock.
    pub fn clock(&self) -> SimClock {
        SimClock::new(self.0.clone(), None)
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Waits until `at`.
    pub fn sleep_until(&self, at: Time) -> Sleep {
        Sleep { sim: self.clone(), at: at.as_nanos(), timer: None }
    }

    /// Calls `action` at a point in virtual time, for scheduled faults. A time that has passed
    /// means now.
    pub fn at(&self, time: Time, action: impl FnOnce(&Sim) + 'static) {
        self.0.with(|core| {
            core.actions.push(Some(Box::new(action)));
            let index = core.actions.len() as u32 - 1;
            core.queue.schedule(time.as_nanos(), Event::Fault { index });
        });
    }

    // ---- nodes and tasks ------------------------------------------------------------------------

    /// Returns the node called `name`, and creates it if it does not exist.
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
                lasting: Lasting::default(),
                #[cfg(feature = "mutants")]
                longest_piece: 0,
            });
            id
        });
        Node { sim: self.clone(), id }
    }

    /// Starts a task that belongs to no node: a script of faults, or an observer. Dropping the
    /// handle does not stop the task.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        JoinHandle::spawn(self, None, None, future)
    }

    // ---- the run so far -------------------------------------------------------------------------

    /// Returns a hash of every event executed so far: time, kind, nodes, connection, length. Equal
    /// runs have equal digests.
    pub fn digest(&self) -> u64 {
        self.0.core.borrow().queue.digest()
    }

    /// Returns the number of events executed so far.
    pub fn events(&self) -> u64 {
        self.0.core.borrow().queue.count()
    }

    /// Returns the resources that endpoints of running nodes hold but should not hold when nothing
    /// is under way, one line for each endpoint. Connections and what waits on them are not leaks.
    pub fn leaks(&self) -> Vec<String> {
        let core = self.0.core.borrow();
        let held = core.observers.iter().filter_map(|(node, observer)| {
            let held = observer()?;
            (held != ResourceUsage::default()).then(|| format!("  {}: {held:?}", core.nodes[*node as usize].name))
        });
        held.collect()
    }

    /// Returns the capabilities of this world's transports.
    pub fn capabilities(&self) -> Capabilities {
        self.0.core.borrow().capabilities.clone()
    }

    /// Records a timeline from now on, if none is recorded yet. Returns a handle to it.
    pub fn trace(&self, options: TraceOptions) -> Trace {
        self.0.with(|core| {
            core.timeline.get_or_insert_with(|| Box::new(Timeline::new(options)));
        });
        Trace { sim: self.clone() }
    }

    // ---- faults ---------------------------------------------------------------------------------

    /// Ends every connection between two nodes with `PeerLost`, at once and on both sides.
    pub fn cut(&self, a: &Node, b: &Node) {
        self.0.with(|core| core.cut(a.id, b.id));
    }

    /// Takes the link between two nodes down, so that it delivers nothing. After the profile's
    /// detection time their connections end.
    pub fn partition(&self, a: &Node, b: &Node) {
        self.0.with(|core| core.partition(a.id, b.id));
    }

    /// Brings the link up again. Packets that waited are delivered.
    pub fn heal(&self, a: &Node, b: &Node) {
        self.0.with(|core| core.heal(a.id, b.id));
    }
}
