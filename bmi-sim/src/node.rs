//! A node of the world: it has tasks, transports and a disk.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::driver::Waiting;
use bmi_core::{Addr, Config, Endpoint, Engine, Error, Handle, HandleConfig, Time};

use crate::adapter::SimTransport;
use crate::clock::SimClock;
use crate::cpu::{Cpu, Work};
use crate::disk::SimDisk;
use crate::driver::{drive_adapter, drive_until_closed, drive_with};
use crate::error::SimError;
use crate::executor::JoinHandle;
use crate::faults::{DiskUser, Loss};
use crate::load::Load;
use crate::network::Port;
use crate::usage::Usage;
use crate::world::{NodeState, Program, Sim, Sleep};

/// A handle to a node.
#[derive(Clone)]
pub struct Node {
    pub(crate) sim: Sim,
    pub(crate) id: u32,
}

impl Node {
    fn state<R>(&self, f: impl FnOnce(&mut NodeState, u64) -> R) -> R {
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
        self.state(|node, now| Load::of(node, now))
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

    // ---- tasks and endpoints --------------------------------------------------------------------

    /// Starts a task on the node. On a killed node the handle ends at once. Dropping the handle
    /// does not stop the task.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        if !self.is_alive() {
            return JoinHandle::killed();
        }
        JoinHandle::spawn(&self.sim, Some(self.id as usize), None, future)
    }

    /// Starts a task that runs only on core `core` of the node's processor, counted from 0: a
    /// thread that is bound to a core. If tasks have fewer cores ([`Node::limit_cores`]), it runs
    /// on the last of them. Otherwise as [`Node::spawn`].
    pub fn spawn_on<T: 'static>(&self, core: usize, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        if !self.is_alive() {
            return JoinHandle::killed();
        }
        JoinHandle::spawn(&self.sim, Some(self.id as usize), Some(core), future)
    }

    /// Creates a transport on the node that the caller drives.
    ///
    /// # Errors
    /// `Io` if the node has been killed.
    pub fn transport(&self) -> Result<SimTransport, Error> {
        if !self.is_alive() {
            return Err(SimError::NodeKilled.into());
        }
        Ok(SimTransport::new(self))
    }

    /// Creates `count` transports on the node that share the addresses on which any of them
    /// listens (C17 of [`bmi_core::transport`]). A connection request for such an address goes to
    /// the transport with the fewest connections. Of several, the one that listens has precedence.
    ///
    /// A transport that is dropped leaves the group. The requests that it has not polled go to the
    /// others, and the connections of the others go on. Nobody listens at its addresses any more.
    ///
    /// # Errors
    /// `Io` if the node has been killed.
    pub fn transports(&self, count: usize) -> Result<Vec<SimTransport>, Error> {
        let members = (0..count).map(|_| self.transport()).collect::<Result<Vec<_>, _>>()?;
        if let Some(first) = members.first().map(|first| first.id) {
            self.sim.0.with(|core| {
                members.iter().for_each(|member| core.adapters[member.id as usize].group = first);
            });
        }
        Ok(members)
    }

    /// Creates an endpoint on the node, driven by a task of its own that polls.
    ///
    /// # Errors
    /// As [`Engine::new`]; `Io` if the node has been killed.
    pub fn endpoint(&self, config: Config) -> Result<Endpoint, Error> {
        self.endpoint_waiting(config, Waiting::Busy)
    }

    /// Creates an endpoint on the node, driven by a task of its own that waits as `waiting` says.
    ///
    /// # Errors
    /// As [`Node::endpoint`].
    pub fn endpoint_waiting(&self, config: Config, waiting: Waiting) -> Result<Endpoint, Error> {
        let endpoint = self.observed(self.transport()?, config)?;
        self.spawn(drive_with(self.clone(), endpoint.clone(), waiting));
        Ok(endpoint)
    }

    /// Creates `count` endpoints over transports that share an address ([`Node::transports`]): a
    /// program with several event loops. The driver of endpoint `i` is bound to core `i`, as by
    /// [`Node::spawn_on`], and waits as `waiting` says. Bind the tasks that use the endpoint to the
    /// same core. From then on the copies of all cores of the node share its memory bus, and a
    /// loop's own core sends what the loop sends by an adapter in software.
    ///
    /// # Errors
    /// As [`Node::endpoint`].
    pub fn shards(&self, config: &Config, waiting: Waiting, count: usize) -> Result<Vec<Endpoint>, Error> {
        let mut members = Vec::new();
        for (core, transport) in self.transports(count)?.into_iter().enumerate() {
            let adapter = transport.id;
            self.sim.0.with(|state| {
                let cpu = &mut state.nodes[self.id as usize].cpu;
                cpu.share_bus();
                state.adapters[adapter as usize].core = Some(cpu.task_core(core));
            });
            let endpoint = self.observed(transport, config.clone())?;
            self.spawn_on(core, drive_adapter(self.clone(), endpoint.clone(), waiting, adapter));
            members.push(endpoint);
        }
        Ok(members)
    }

    /// Creates a [`Handle`] over `count` endpoints, whose transports share an address
    /// ([`Node::transports`]). Tasks of the node drive them, so all is done on one thread, in an
    /// order that is the same in each run. When the handle is closed, the drivers end.
    ///
    /// # Errors
    /// As [`Node::endpoint`]; `Invalid` as [`Handle::start`].
    pub fn handle(&self, config: &Config, count: usize, settings: HandleConfig) -> Result<Handle, Error> {
        let transports = self.transports(count)?;
        let adapters: Vec<u32> = transports.iter().map(|transport| transport.id).collect();
        let open = |transport: SimTransport| Engine::new(Box::new(transport), config.clone(), self.now());
        let endpoints = transports.into_iter().map(open).collect::<Result<_, _>>()?;
        let (handle, endpoints) = Handle::undriven(endpoints, self.clock(), settings)?;
        for (endpoint, adapter) in endpoints.into_iter().zip(adapters) {
            let observer = endpoint.observer();
            self.sim.0.with(|core| core.observers.push((self.id, Box::new(observer))));
            self.spawn(drive_until_closed(self.clone(), endpoint, settings.waiting, adapter));
        }
        Ok(handle)
    }

    /// Creates an endpoint over a transport of this node, and has its resources observed.
    fn observed(&self, transport: SimTransport, config: Config) -> Result<Endpoint, Error> {
        let endpoint = Endpoint::new(Engine::new(Box::new(transport), config, self.now())?, self.clock());
        let observer = endpoint.observer();
        self.sim.0.with(|core| core.observers.push((self.id, Box::new(observer))));
        Ok(endpoint)
    }

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

    /// Returns its disk.
    pub fn disk(&self) -> SimDisk {
        SimDisk { node: self.clone(), prices: None }
    }

    /// Returns the virtual time of this node: when its processor has done its work so far. It is
    /// ahead of the world's time while a task makes the processor work.
    pub fn now(&self) -> Time {
        self.sim.0.now_at(self.id)
    }

    /// Returns its clock for endpoints, which shows [`Node::now`].
    pub fn clock(&self) -> SimClock {
        SimClock::new(self.sim.0.clone(), Some(self.id))
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sim.sleep_until(self.now() + duration)
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

    // ---- faults ---------------------------------------------------------------------------------

    /// Runs `program` on the node now, and again whenever the node comes up after it was killed,
    /// like an init script. Each call adds a program.
    pub fn boot<F: Future<Output = ()> + 'static>(&self, program: impl Fn(Node) -> F + 'static) {
        let program: Program = Rc::new(move |node: Node| {
            let running = program(node.clone());
            node.spawn(running);
        });
        self.state(|node, _| node.programs.push(program.clone()));
        if self.is_alive() {
            program(self.clone());
        }
    }

    /// Returns its wall clock, in ns since 1970: a day in 2023 plus virtual time, unless a plan of
    /// faults has stepped it.
    pub fn wall_ns(&self) -> u64 {
        self.state(|node, now| u64::try_from(i128::from(node.wall_ns) + i128::from(now)).unwrap_or(0))
    }

    /// Steps its wall clock, forwards or back.
    pub fn step_wall(&self, by_ns: i64) {
        self.state(|node, _| node.wall_ns = node.wall_ns.saturating_add(by_ns));
    }

    /// Returns the times at which its power failed so far ([`Node::crash`]).
    pub fn crashes(&self) -> Vec<Time> {
        self.state(|node, _| node.crashes.iter().map(|at| Time::from_nanos(*at)).collect())
    }

    pub(crate) fn disk_users(&self) -> Vec<Rc<dyn DiskUser>> {
        self.state(|node, _| node.disk_users.clone())
    }

    /// Fails its power: the node is killed, and its disk loses data that was not synced, as `loss`
    /// says.
    pub fn crash(&self, loss: &mut Loss) {
        if !self.is_alive() {
            return;
        }
        self.state(|node, now| {
            node.crashes.push(now);
            node.disk.lose_power();
        });
        // Before the tasks are dropped: their drop code must not reach the disk.
        self.disk_users().iter().for_each(|user| user.power_fails(loss));
        self.kill();
    }

    /// Kills the node, as `kill -9` ends a program. Its tasks are dropped, its connections end, its
    /// ports are free. Its peers notice after the detection time. Its writes to its disk are kept,
    /// synced or not.
    pub fn kill(&self) {
        if self.state(|node, _| node.lasting.armed.take()).is_some() {
            self.disk_users().iter().for_each(|user| user.cuts_off(None));
        }
        let observers = self.sim.0.with(|core| {
            core.kill_node(self.id);
            core.observers.extract_if(.., |(node, _)| *node == self.id).collect::<Vec<_>>()
        });
        drop(observers);
        let id = self.id as usize;
        self.sim.0.executor.drop_tasks(|node| node == Some(id));
    }

    /// Lets a killed node run again, with no transports, an idle processor, and no tasks but its
    /// programs ([`Node::boot`]). It has no effect on a node that is alive.
    pub fn restart(&self) {
        if !self.is_alive() {
            self.note("is up again");
        }
        let programs = self.state(|node, _| {
            if node.alive {
                return Vec::new();
            }
            node.alive = true;
            node.asleep.clear();
            node.cpu.reset();
            node.port = Port::default();
            node.programs.clone()
        });
        programs.iter().for_each(|program| program(self.clone()));
    }

    /// Stops its tasks until [`Node::resume`]. Its adapter works on.
    pub fn pause(&self) {
        self.state(|node, _| node.paused = node.alive);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        if self.state(|node, _| node.paused) {
            self.note("goes on");
        }
        let asleep = self.state(|node, _| {
            node.paused = false;
            std::mem::take(&mut node.asleep)
        });
        for task in asleep {
            self.sim.0.executor.ready.push(task);
        }
    }
}
