//! Applies a plan to a world. Every event becomes an action at its time, and every fault that lasts
//! has a second action at its end.

use std::time::Duration;

use crate::faults::link::Trouble;
use crate::faults::loss::DiskFault;
use crate::faults::{Fault, Lasting, Loss, Plan};
use crate::model::{Node, Sim};

impl Plan {
    /// Schedules all events in `sim`, and the end of all faults. An unknown node name is ignored
    /// when its time comes, because a plan may have been drawn for a larger world.
    pub fn apply(&self, sim: &Sim) {
        let start = sim.now();
        for event in &self.events {
            let fault = event.fault.clone();
            sim.at(start + Duration::from_micros(event.at_us), move |sim| begin(sim, &fault));
        }
        if !self.events.is_empty() {
            // After the last fault's own end, which was scheduled before.
            sim.at(start + Duration::from_micros(self.end_us() + 1), Sim::calm);
        }
    }
}

fn later(sim: &Sim, us: u64, action: impl FnOnce(&Sim) + 'static) {
    sim.at(sim.now() + Duration::from_micros(us), action);
}

fn on_link(sim: &Sim, a: &str, b: &str, act: impl FnOnce(&Sim, &Node, &Node)) {
    if let (Some(a), Some(b)) = (sim.find_node(a), sim.find_node(b)) {
        act(sim, &a, &b);
    }
}

fn begin(sim: &Sim, fault: &Fault) {
    sim.0.with(|core| core.note_fault(fault));
    match fault {
        Fault::Cut { a, b } => on_link(sim, a, b, Sim::cut),
        Fault::Partition { a, b, for_us } => on_link(sim, a, b, |sim, a, b| {
            let until = (sim.now() + Duration::from_micros(*for_us)).as_nanos();
            sim.0.with(|core| core.trouble(a.id, b.id, |trouble| trouble.down_until = trouble.down_until.max(until)));
            sim.partition(a, b);
            let (a, b) = (a.id, b.id);
            later(sim, *for_us, move |sim| {
                sim.0.with(|core| {
                    let mut over = false;
                    core.trouble(a, b, |trouble| over = ends(&mut trouble.down_until, until));
                    if over {
                        core.heal(a, b);
                    }
                });
            });
        }),
        Fault::Delay { a, b, by_us, for_us, salt } => on_link(sim, a, b, |sim, a, b| {
            let until = (sim.now() + Duration::from_micros(*for_us)).as_nanos();
            let by_ns = by_us.saturating_mul(1000);
            sim.0.with(|core| core.trouble(a.id, b.id, |trouble| trouble.delay(until, by_ns, *salt)));
        }),
        Fault::Lossy { a, b, percent, for_us, salt } => on_link(sim, a, b, |sim, a, b| {
            let until = (sim.now() + Duration::from_micros(*for_us)).as_nanos();
            sim.0.with(|core| core.trouble(a.id, b.id, |trouble| trouble.lose(until, *percent, *salt)));
        }),
        Fault::Corrupt { a, b } => on_link(sim, a, b, |sim, a, b| {
            sim.0.with(|core| core.trouble(a.id, b.id, Trouble::corrupt_next));
        }),
        Fault::NotReady { a, b } => on_link(sim, a, b, |sim, a, b| {
            sim.0.with(|core| core.trouble(a.id, b.id, Trouble::miss_next));
        }),
        Fault::Unanswered { a, b } => on_link(sim, a, b, |sim, a, b| {
            let (a, b) = (a.id, b.id);
            sim.0.with(|core| core.trouble(a, b, |trouble| trouble.answer_is_lost(a < b)));
        }),
        Fault::Overrun { node }
        | Fault::Pause { node, .. }
        | Fault::Crash { node, .. }
        | Fault::CrashWriting { node, .. }
        | Fault::DiskFull { node, .. }
        | Fault::DiskBroken { node, .. }
        | Fault::Registrations { node, .. }
        | Fault::ClockStep { node, .. } => {
            if let Some(node) = sim.find_node(node) {
                begin_at(sim, &node, fault);
            }
        }
    }
}

/// Returns whether the fault that ends at `until` is the one that counts, and if so, clears it.
/// Code that looks at the same instant but before this call must still find the fault.
fn ends(lasts: &mut u64, until: u64) -> bool {
    let over = *lasts == until;
    *lasts = if over { 0 } else { *lasts };
    over
}

impl Node {
    fn lasting<R>(&self, act: impl FnOnce(&mut Lasting) -> R) -> R {
        self.sim.0.with(|core| act(&mut core.nodes[self.id as usize].lasting))
    }

    /// Takes the power away for a while.
    fn lose_power(&self, for_us: u64, salt: u32) {
        let now = self.sim.now();
        let until = (now + Duration::from_micros(for_us)).as_nanos();
        // A node that was killed by hand has no power to lose.
        let mine = self.lasting(|lasting| lasting.down > 0) || self.is_alive();
        if !mine {
            return;
        }
        self.lasting(|lasting| {
            lasting.down = lasting.down.max(until);
            lasting.armed = None;
        });
        self.crash(&mut Loss::drawn(u64::from(salt)));
        let node = self.clone();
        later(&self.sim, for_us, move |_| {
            if node.lasting(|lasting| ends(&mut lasting.down, until)) {
                node.restart();
            }
        });
    }

    /// Sets the disk's state from the faults that still last.
    fn set_disk(&self) {
        let now = self.sim.now().as_nanos();
        let fault = self.lasting(|lasting| match () {
            () if now < lasting.broken => DiskFault::Broken,
            () if now < lasting.full => DiskFault::Full,
            () => DiskFault::None,
        });
        self.disk().set_fault(fault);
    }

    /// Fails the power if the task that just ran has reached the write at which the power is to
    /// fail.
    pub(crate) fn may_blow(&self) {
        let Some((for_us, salt)) = self.lasting(|lasting| lasting.armed) else { return };
        if self.disk_users().iter().any(|user| user.is_cut_off()) {
            self.note("loses power, in the middle of a write");
            self.lose_power(for_us, salt);
        }
    }
}

/// Begins a fault of one node.
fn begin_at(sim: &Sim, node: &Node, fault: &Fault) {
    let node = node.clone();
    let until = |us: u64| (sim.now() + Duration::from_micros(us)).as_nanos();
    match fault {
        Fault::Overrun { .. } => sim.0.with(|core| core.overrun(node.id)),
        Fault::Pause { for_us, .. } => {
            let until = until(*for_us);
            node.pause();
            node.lasting(|lasting| lasting.paused = lasting.paused.max(until));
            later(sim, *for_us, move |_| {
                if node.lasting(|lasting| ends(&mut lasting.paused, until)) {
                    node.resume();
                }
            });
        }
        Fault::Crash { for_us, salt, .. } => node.lose_power(*for_us, *salt),
        // A node that is down writes nothing.
        Fault::CrashWriting { for_us, salt, .. } if !node.is_alive() => node.lose_power(*for_us, *salt),
        Fault::CrashWriting { for_us, salt, .. } => {
            let (for_us, salt) = (*for_us, *salt);
            node.lasting(|lasting| lasting.armed = Some((for_us, salt)));
            let writes = 1 + salt % Fault::MOST_WRITES;
            node.disk_users().iter().for_each(|user| user.cuts_off(Some(writes)));
            later(sim, Fault::PATIENCE_US, move |_| {
                if node.lasting(|lasting| lasting.armed == Some((for_us, salt))) {
                    node.lose_power(for_us, salt);
                }
            });
        }
        Fault::DiskFull { for_us, .. } => {
            let until = until(*for_us);
            node.lasting(|lasting| lasting.full = lasting.full.max(until));
            node.set_disk();
            later(sim, *for_us, move |_| node.set_disk());
        }
        Fault::DiskBroken { for_us, .. } => {
            let until = until(*for_us);
            node.lasting(|lasting| lasting.broken = lasting.broken.max(until));
            node.set_disk();
            later(sim, *for_us, move |_| node.set_disk());
        }
        Fault::Registrations { count, .. } => sim.0.with(|core| core.fail_registrations(node.id, *count as usize)),
        Fault::ClockStep { by_us, .. } => node.step_wall(by_us.saturating_mul(1000)),
        _ => unreachable!("the others are faults of links"),
    }
}

impl Sim {
    /// Ends all faults that plans have caused: links come up, nodes start, disks work. Clocks stay
    /// as they are. So do manual faults: a node that a test has killed or paused, or a link that it
    /// has cut.
    pub fn calm(&self) {
        let now = self.now().as_nanos();
        let (links, nodes) = self.0.with(|core| {
            let down = core.links.iter().filter(|(_, link)| link.trouble.down_until > 0);
            let links: Vec<_> = down.map(|(ends, _)| *ends).collect();
            core.links.values_mut().for_each(|link| link.trouble.end());
            core.adapters.iter_mut().for_each(|adapter| adapter.registrations.failing = 0);
            let slots = core.adapters.iter_mut().flat_map(|adapter| &mut adapter.slots);
            slots.filter_map(|slot| slot.conn.as_deref_mut()).for_each(|conn| conn.deaf = false);
            (links, core.nodes.len() as u32)
        });
        for (a, b) in links {
            self.0.with(|core| core.heal(a, b));
        }
        for id in 0..nodes {
            let node = Node { sim: self.clone(), id };
            let lasting = node.lasting(std::mem::take);
            if lasting.armed.is_some() {
                node.disk_users().iter().for_each(|user| user.cuts_off(None));
            }
            if lasting.down > 0 {
                node.restart();
            }
            if lasting.paused > 0 {
                node.resume();
            }
            if now < lasting.full.max(lasting.broken) {
                node.disk().set_fault(DiskFault::None);
            }
        }
    }
}
