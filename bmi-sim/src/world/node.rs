//! A node of the world: what it is, its processor and its registrations.

use std::time::Duration;

use bmi_core::{Addr, PeerIdentity, Time};

use super::time::Sleep;
use crate::model::processor::{Cpu, Load, Usage, Work};
use crate::model::{Node, NodeState, Sim};

impl Node {
    pub(super) fn state<R>(&self, f: impl FnOnce(&mut NodeState, u64) -> R) -> R {
        self.sim.0.with(|core| f(&mut core.nodes[self.id as usize], core.queue.now))
    }

    // ---- properties -----------------------------------------------------------------------------

    /// Returns the node's name.
    pub fn name(&self) -> String {
        self.state(|node, _| node.name.clone())
    }

    /// Returns the address of one of its ports; use 0 to let `listen` choose one.
    pub fn addr(&self, port: u16) -> Addr {
        Addr::sim(self.name(), port)
    }

    /// Sets who the node's transports are to their peers (C18 of [`bmi_core::transport`]): those
    /// that are created from now on. No certificate is made or checked: the world vouches for it. A
    /// new node is nobody.
    ///
    /// ```
    /// use bmi_core::PeerIdentity;
    /// use bmi_sim::World;
    ///
    /// let world = World::new(1);
    /// world.sim().node("a").identify(PeerIdentity::named(["user:alice"]));
    /// ```
    pub fn identify(&self, identity: PeerIdentity) {
        self.state(|node, _| node.identity = identity);
    }

    /// Returns the node's world.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// Returns true if the node is up: it has not been killed, or was restarted since.
    pub fn is_alive(&self) -> bool {
        self.state(|node, _| node.alive)
    }

    /// Returns the time that its processor has spent on the transport's work, on the protocol's
    /// copies and on [`Node::compute`].
    pub fn cpu_busy(&self) -> Duration {
        self.usage().busy()
    }

    /// Returns its processor time since the start, by kind of work.
    pub fn usage(&self) -> Usage {
        self.state(|node, _| node.cpu.usage())
    }

    /// Returns how long each of its resources was occupied since it came up.
    pub fn load(&self) -> Load {
        self.state(|node, now| node.load(now))
    }

    /// Returns the number of units that the switch lost on the way to this node because its port
    /// was full ([`crate::Profile::switch_port_drops`]).
    pub fn lost_units(&self) -> u64 {
        self.state(|node, _| node.port.lost())
    }

    /// Returns the time that its endpoints have spent polling without a result, until they last
    /// found something. Other work goes on meanwhile. See [`crate::drive_with`].
    pub fn cpu_spinning(&self) -> Duration {
        self.usage().spinning
    }

    /// Returns the most steps of inner loops that one of its tasks has taken without a break, since
    /// the last call of this: how long its event loop stood still ([`bmi_core::step`]).
    #[cfg(feature = "mutants")]
    pub fn longest_piece(&self) -> u64 {
        self.state(|node, _| std::mem::take(&mut node.longest_piece))
    }

    // ---- its processor and its adapters ---------------------------------------------------------

    /// Returns the number of regions that its adapters have registered. Released ones count until
    /// the next poll collects them.
    pub fn registrations(&self) -> usize {
        let core = self.sim.0.core.borrow();
        let live = |&adapter: &u32| core.adapters[adapter as usize].registrations.live;
        core.nodes[self.id as usize].adapters.iter().map(live).sum()
    }

    /// Makes the next `count` registrations of each of its adapters fail with `Exhausted`.
    pub fn fail_registrations(&self, count: usize) {
        self.sim.0.with(|core| {
            for &adapter in &core.nodes[self.id as usize].adapters {
                core.adapters[adapter as usize].registrations.failing = count;
            }
        });
    }

    /// Limits its tasks to the first `cores` cores of its processor, at least one. With 1 its tasks
    /// are a program of one thread, like the servers and clients of the papers. The kernel's work
    /// for an adapter in software still uses any core.
    pub fn limit_cores(&self, cores: usize) {
        self.state(|node, _| node.cpu.limit_tasks(cores));
    }

    /// Gives the node a processor with this many cores, at least one, and forgets the work of the
    /// old one. Call it before anything runs on the node.
    pub fn set_cores(&self, cores: usize) {
        self.state(|node, _| node.cpu = Cpu::new(cores as u64));
    }

    /// Keeps the processor busy for `work`, once it is free. The returned future ends when that is
    /// done.
    pub fn compute(&self, work: Duration) -> Sleep {
        let cost = u64::try_from(work.as_nanos()).unwrap_or(u64::MAX);
        let done = self.sim.0.with(|core| core.charge(self.id, Work::Application, cost));
        self.sim.sleep_until(Time::from_nanos(done))
    }

    /// Makes the processor take a lock of the program, do a short piece of work under it, and
    /// return it, all at the profile's prices ([`crate::Profile::lock_hold_ns`]). A lock is known
    /// by its name. If another core of the node has it, the core of this task does nothing else
    /// until then.
    pub fn locked(&self, lock: &'static str) {
        self.sim.0.with(|core| core.locked(self.id, lock));
    }

    /// Returns whether one of its adapters, or this one, has reports that no driver has taken yet.
    pub(crate) fn has_reports(&self, adapter: Option<u32>) -> bool {
        let core = self.sim.0.core.borrow();
        let has = |adapter: &u32| !core.adapters[*adapter as usize].reports.is_empty();
        adapter.map_or_else(|| core.nodes[self.id as usize].adapters.iter().any(has), |adapter| has(&adapter))
    }

    /// Counts time that a driver has polled without a result.
    pub(crate) fn spin(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.state(|node, _| node.cpu.spin(ns));
    }

    /// Charges the cost of waking a program that slept until its adapter had something: interrupt,
    /// switch, and the call that it slept in. With an adapter in software only the switch is
    /// charged, because the kernel's interrupt is charged anyway. The drivers of this crate
    /// ([`crate::drive_with`]) call this themselves.
    pub fn wake_up(&self) {
        self.sim.0.with(|core| {
            let profile = &core.config.profile;
            let (interrupt, call) =
                if profile.software { (0, 0) } else { (profile.interrupt_ns, profile.system_call_ns) };
            core.charge(self.id, Work::Interrupt, interrupt + core.config.profile.context_switch_ns);
            core.charge(self.id, Work::SystemCall, call);
        });
    }
}
