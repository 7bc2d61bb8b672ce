//! [`Sim`]: a handle to a world.

use std::future::Future;
use std::io::{self, Write};

use bmi_core::{Capabilities, ResourceUsage, Time};

use crate::config::TraceOptions;
use crate::engine::Event;
use crate::model::{Node, NodeState, Sim, Timeline};

impl Sim {
    /// Calls `action` at a point in virtual time, for scheduled faults. A time that has passed
    /// means now.
    pub fn at(&self, time: Time, action: impl FnOnce(&Sim) + 'static) {
        self.0.with(|core| {
            core.actions.push(Some(Box::new(action)));
            let index = core.actions.len() as u32 - 1;
            core.queue.schedule(time.as_nanos(), Event::Fault { index });
        });
    }

    /// Returns the node called `name`, and creates it if it does not exist.
    pub fn node(&self, name: &str) -> Node {
        let id = self.0.with(|core| {
            if let Some(id) = core.names.get(name) {
                return *id;
            }
            let id = core.nodes.len() as u32;
            core.names.insert(name.to_owned(), id);
            core.nodes.push(NodeState::new(name, core.config.profile.cpu_cores));
            id
        });
        Node { sim: self.clone(), id }
    }

    /// Returns the node called `name`, if there is one.
    pub fn find_node(&self, name: &str) -> Option<Node> {
        let id = self.0.core.borrow().names.get(name).copied()?;
        Some(Node { sim: self.clone(), id })
    }

    /// Returns the names of all nodes, in the order in which they were made.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.core.borrow().nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// Runs a program at the node called `name`, now and again whenever the node comes up after a
    /// crash; see [`Node::boot`]. The node is created if it does not exist.
    pub fn boot<F: Future<Output = T> + 'static, T>(&self, name: &str, program: impl Fn() -> F + 'static) {
        self.node(name).boot(move |_| {
            let running = program();
            async move { drop(running.await) }
        });
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
    /// is outstanding, one line for each endpoint. Connections and what waits on them are not
    /// leaks.
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

/// A handle to the timeline of a world.
#[derive(Clone)]
pub struct Trace {
    pub(crate) sim: Sim,
}

impl Trace {
    /// Returns the number of spans recorded so far, and the number left out because there was no
    /// room.
    pub fn spans(&self) -> (usize, u64) {
        let core = self.sim.0.core.borrow();
        core.timeline.as_ref().map_or((0, 0), |timeline| timeline.spans())
    }

    /// Writes everything recorded so far as one JSON document; see the module's layout.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_chrome(&self, out: impl Write) -> io::Result<()> {
        let (names, timeline) = {
            let core = self.sim.0.core.borrow();
            let Some(timeline) = &core.timeline else { return Ok(()) };
            let names: Vec<String> = core.nodes.iter().map(|node| node.name.clone()).collect();
            (names, timeline.clone())
        };
        timeline.write_chrome(&names, out)
    }
}

impl Sim {
    /// Records a timeline from now on, if none is recorded yet. Returns a handle to it.
    pub fn trace(&self, options: TraceOptions) -> Trace {
        self.0.with(|core| {
            core.timeline.get_or_insert_with(|| Box::new(Timeline::new(options)));
        });
        Trace { sim: self.clone() }
    }
}
