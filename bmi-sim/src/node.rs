//! A node of the world: where tasks, transports and a disk stand.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::driver::Waiting;
use bmi_core::{Addr, AsyncEndpoint, Config, Endpoint, Error, Time};

use crate::adapter::SimTransport;
use crate::clock::SimClock;
use crate::cpu::Work;
use crate::disk::SimDisk;
use crate::driver::drive_with;
use crate::error::SimError;
use crate::executor::JoinHandle;
use crate::faults::{DiskUser, Loss};
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

    // ---- what it is -----------------------------------------------------------------------------

    /// Its name.
    pub fn name(&self) -> String {
        self.state(|node, _| node.name.clone())
    }

    /// The address of a port of it; 0 for `listen` to choose one.
    pub fn addr(&self, port: u16) -> Addr {
        Addr::sim(self.name(), port)
    }

    /// Its world.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// Whether it has not been killed.
    pub fn is_alive(&self) -> bool {
        self.state(|node, _| node.alive)
    }

    /// Time that its processor has spent on the transport's work, on the protocol's copies and on
    /// [`Node::compute`].
    pub fn cpu_busy(&self) -> Duration {
        self.usage().busy()
    }

    /// What its processor has spent its time on since the start.
    pub fn usage(&self) -> Usage {
        self.state(|node, _| node.cpu.usage())
    }

    /// Units that the switch lost on the way to it: its port was full
    /// ([`crate::Profile::switch_port_drops`]).
    pub fn lost_units(&self) -> u64 {
        self.state(|node, _| node.port.lost())
    }

    /// Time that its endpoints have spent polling for nothing, until they last found something;
    /// work goes on meanwhile. See [`crate::drive_with`].
    pub fn cpu_spinning(&self) -> Duration {
        self.usage().spinning
    }

    // ---- what runs on it ------------------------------------------------------------------------

    /// Starts a task on it; on a killed node the handle ends at once. Dropping the handle lets the
    /// task run on.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        if !self.is_alive() {
            return JoinHandle::killed();
        }
        JoinHandle::spawn(&self.sim, Some(self.id as usize), future)
    }

    /// A transport on it, for those who drive it themselves.
    ///
    /// # Errors
    /// `Io` if the node has been killed.
    pub fn transport(&self) -> Result<SimTransport, Error> {
        if !self.is_alive() {
            return Err(SimError::NodeKilled.into());
        }
        Ok(SimTransport::new(self))
    }

    /// An endpoint on it, driven by a task of its own that polls.
    ///
    /// # Errors
    /// As [`Endpoint::new`]; `Io` if the node has been killed.
    pub fn endpoint(&self, config: Config) -> Result<AsyncEndpoint<SimTransport>, Error> {
        self.endpoint_waiting(config, Waiting::Busy)
    }

    /// An endpoint on it, driven by a task of its own that waits as `waiting` says.
    ///
    /// # Errors
    /// As [`Node::endpoint`].
    pub fn endpoint_waiting(&self, config: Config, waiting: Waiting) -> Result<AsyncEndpoint<SimTransport>, Error> {
        let endpoint = Endpoint::new(self.transport()?, config, self.now())?;
        let endpoint = AsyncEndpoint::new(endpoint, self.clock());
        let observer = endpoint.observer();
        self.sim.0.with(|core| core.observers.push((self.id, Box::new(observer))));
        self.spawn(drive_with(self.clone(), endpoint.clone(), waiting));
        Ok(endpoint)
    }

    /// Its tasks run on the first `cores` cores of its processor only, at least one: with 1 they
    /// are a program of one thread, as the servers and clients of the papers are. The kernel's work
    /// for an adapter in software still takes any core.
    pub fn limit_cores(&self, cores: usize) {
        self.state(|node, _| node.cpu.limit_tasks(cores));
    }

    /// Its disk.
    pub fn disk(&self) -> SimDisk {
        SimDisk { node: self.clone() }
    }

    /// The virtual time here: when the processor has done what it was given so far. Ahead of the
    /// world's while a task makes it work.
    pub fn now(&self) -> Time {
        self.sim.0.now_at(self.id)
    }

    /// Its clock, for endpoints: shows [`Node::now`].
    pub fn clock(&self) -> SimClock {
        SimClock { shared: self.sim.0.clone(), node: Some(self.id) }
    }

    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sim.sleep_until(self.now() + duration)
    }

    /// Keeps the processor busy for `work`, once it is free; ends when that is done.
    pub fn compute(&self, work: Duration) -> Sleep {
        let cost = u64::try_from(work.as_nanos()).unwrap_or(u64::MAX);
        let done = self.sim.0.with(|core| core.charge(self.id, Work::Application, cost));
        self.sim.sleep_until(Time::from_nanos(done))
    }

    /// Whether an adapter of it has reported what no driver has taken yet.
    pub(crate) fn has_reports(&self) -> bool {
        let core = self.sim.0.core.borrow();
        let mut adapters = core.nodes[self.id as usize].adapters.iter();
        adapters.any(|adapter| !core.adapters[*adapter as usize].reports.is_empty())
    }

    /// A driver has polled for nothing.
    pub(crate) fn spin(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.state(|node, _| node.cpu.spin(ns));
    }

    /// Charges what a program pays that slept until its adapter had something: interrupt, switch,
    /// and the call that it slept in. Where the adapter is in software only the switch, because the
    /// interrupt is the kernel's and charged anyway. Drivers of this crate do it by themselves
    /// ([`crate::drive_with`]).
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

    /// Runs `program` on it now, and anew whenever it comes up again after it was killed: what an
    /// init script is for. Called again, that runs too.
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

    /// Its clock on the wall, in ns since 1970: virtual time and a day in 2023, unless a plan of
    /// faults has stepped it.
    pub fn wall_ns(&self) -> u64 {
        self.state(|node, now| u64::try_from(i128::from(node.wall_ns) + i128::from(now)).unwrap_or(0))
    }

    /// Sets the clock on its wall, forwards or back.
    pub fn step_wall(&self, by_ns: i64) {
        self.state(|node, _| node.wall_ns = node.wall_ns.saturating_add(by_ns));
    }

    /// When its power failed so far ([`Node::crash`]).
    pub fn crashes(&self) -> Vec<Time> {
        self.state(|node, _| node.crashes.iter().map(|at| Time::from_nanos(*at)).collect())
    }

    pub(crate) fn disk_users(&self) -> Vec<Rc<dyn DiskUser>> {
        self.state(|node, _| node.disk_users.clone())
    }

    /// Its power fails: it is killed, and its disk loses what was not synced, as `loss` says.
    pub fn crash(&self, loss: &mut Loss) {
        if !self.is_alive() {
            return;
        }
        self.state(|node, now| {
            node.crashes.push(now);
            node.disk.lose_power();
        });
        // Before the tasks: what they do while they are dropped must not reach the disk.
        self.disk_users().iter().for_each(|user| user.power_fails(loss));
        self.kill();
    }

    /// Kills it, as `kill -9` ends a program: its tasks are dropped, its connections end, its ports
    /// are free. Its peers notice after the detection time. What it wrote to its disk is there,
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
    /// programs ([`Node::boot`]). No effect on one that is alive.
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

    /// Its tasks stand still until [`Node::resume`]; its adapter works on.
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
