//! The programs of a node, and how it is killed, loses its power and comes up again.

use std::future::Future;
use std::rc::Rc;

use bmi_core::Time;

use crate::faults::Loss;
use crate::model::network::Port;
use crate::model::{Node, Program};

impl Node {
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

    /// Returns the times at which its power failed so far ([`Node::crash`]).
    pub fn crashes(&self) -> Vec<Time> {
        self.state(|node, _| node.crashes.iter().map(|at| Time::from_nanos(*at)).collect())
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
