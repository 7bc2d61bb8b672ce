//! The processor of a node: the work that the transport causes, the core it runs on, and the time
//! at which that core is free again.
//!
//! **Cores.** Each node has [`Profile::cpu_cores`](crate::Profile::cpu_cores) cores. Posting,
//! taking completions, copying, registering and [`crate::Node::compute`] occupy the core that the
//! task runs on. A task that is woken runs on the first idle core. If no core is idle, the task is
//! held. Held tasks run in the order in which they were woken, each when a core is free.
//!
//! With one core, whatever a task sees, polls and posts comes after the work that it waited for.
//! With several cores, a task may be woken by another task of its node. It does not start before
//! the work that the other task had caused by then, and never before its own work is done.
//! [`crate::Node::limit_cores`] limits tasks to some cores, which models a program with one thread.
//! A task that is bound to a core ([`crate::Node::spawn_on`]) runs on that core only, and is held
//! until that core has done what it had to do when the task was woken, and the work of tasks that
//! ran before. This models a program with a thread for each core. Held tasks of other cores do not
//! delay it, and it does not delay them. Work of the kernel that arrives while the task waits does
//! not delay it either. Otherwise a kernel that always has something to receive would keep one loop
//! of a server from running at all.
//!
//! A task that makes the processor work goes on at once. The time of its node's clock has passed
//! ([`crate::Node::now`]), and the world's time follows. Tasks themselves cost nothing unless they
//! charge for it. Calls from outside the node's tasks are charged to its first core.
//!
//! **Kernel.** Two threads of the kernel do the work for an adapter in software, one for each
//! direction. Sending runs where the sending program runs, since its call does the work: on one of
//! the cores for tasks. Receiving is the work of an interrupt: it runs on whichever core is idle
//! first.
//!
//! **Memory bus.** A copy shares the memory bus with the adapter, and the adapter has priority. The
//! adapter moves bytes at [`Profile::memory_ps_per_byte`](crate::Profile::memory_ps_per_byte) while
//! a core copies. These bytes first use the time in which the copy leaves the bus idle. Beyond
//! that, they make the copy take longer. The core is then free later, and a task that waits for a
//! disk in memory waits until then. A request that a program posted behind the copy still leaves at
//! the time that was booked.
//! Cores with a loop each share the bus with each other, too, and take locks: see [`super::locks`].
//!
//! **Polling.** Waiting for the adapter is counted separately. Time spent polling without a result
//! ([`crate::Node::cpu_spinning`]) does not occupy a core.

use std::collections::VecDeque;
use std::time::Duration;

use super::load::{Load, over};
use super::locks::{Lock, MemoryBus};
use super::usage::Usage;
use crate::engine::{Side, TaskKey};

/// A kind of work of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Application,
    Copying,
    Protocol,
    SystemCall,
    Interrupt,
    Registration,
    Polling,
    Locking,
    LockWaiting,
}

/// Number of kinds of work.
const WORKS: usize = 9;

impl Work {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Work::Application => "application",
            Work::Copying => "copying",
            Work::Protocol => "protocol",
            Work::SystemCall => "system call",
            Work::Interrupt => "interrupt",
            Work::Registration => "registration",
            Work::Polling => "polling",
            Work::Locking => "locking",
            Work::LockWaiting => "waiting for a lock",
        }
    }
}

/// A task that waits for a core.
#[derive(Clone, Copy, Debug)]
struct Held {
    task: TaskKey,
    not_before: u64,
    /// The core that it is bound to, if any.
    bound: Option<usize>,
    /// When that core has done what it had to do when the task began to wait.
    behind: u64,
}

/// A period of work of a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    pub(crate) core: usize,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// A copy that a task waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Awaited {
    core: usize,
    /// When it ends, if nothing slows it any more.
    end: u64,
    /// The value of `Cpu::slowed` of its core at that time.
    slowed: u64,
}

/// A node's processor.
#[derive(Debug)]
pub(crate) struct Cpu {
    /// When each core is free, in ns.
    pub(super) cores: Box<[u64]>,
    /// When each core has done the work of tasks, in ns. The kernel's work may last longer.
    pub(super) tasks_done: Box<[u64]>,
    /// Tasks run on this many cores, from the front.
    task_cores: usize,
    /// The core of the running task; the first one if no task runs.
    pub(super) current: usize,
    /// Time spent, by `Work`.
    spent: [u64; WORKS],
    /// Time spent by each core, in ns.
    spent_by_core: Box<[u64]>,
    spinning: u64,
    /// The period in which each core copies or will copy: from and until. It includes other work
    /// between two copies.
    copying: Box<[(u64, u64)]>,
    /// The total time by which each core's copies were slowed, in ns.
    slowed: Box<[u64]>,
    /// For how long of the period in `copying` the memory bus is idle, at most.
    spare: Box<[u64]>,
    /// When the kernel's thread for each direction is free.
    pub(super) kernel: [u64; 2],
    /// How long the kernel's thread for each direction has worked, in ns.
    pub(super) kernel_spent: [u64; 2],
    locks: Vec<Lock>,
    /// The memory bus, if all cores share it.
    pub(super) bus: Option<MemoryBus>,
    held: VecDeque<Held>,
    /// An event at this time will release a held task; `u64::MAX` for none.
    release_at: u64,
}

impl Cpu {
    pub(crate) fn new(cores: u64) -> Cpu {
        let task_cores = cores.max(1) as usize;
        Cpu {
            cores: vec![0; task_cores].into(),
            tasks_done: vec![0; task_cores].into(),
            task_cores,
            current: 0,
            spent: [0; WORKS],
            spent_by_core: vec![0; task_cores].into(),
            spinning: 0,
            copying: vec![(0, 0); task_cores].into(),
            slowed: vec![0; task_cores].into(),
            spare: vec![0; task_cores].into(),
            kernel: [0; 2],
            kernel_spent: [0; 2],
            locks: Vec::new(),
            bus: None,
            held: VecDeque::new(),
            release_at: u64::MAX,
        }
    }

    /// Works for `cost` ns, from `now` or from when the current core is free.
    pub(super) fn charge(&mut self, now: u64, work: Work, cost: u64) -> Slice {
        let core = self.current;
        let start = self.cores[core].max(now);
        let end = start.saturating_add(cost);
        self.cores[core] = end;
        self.tasks_done[core] = end;
        self.spent[work as usize] = self.spent[work as usize].saturating_add(cost);
        self.spent_by_core[core] = self.spent_by_core[core].saturating_add(cost);
        if work == Work::Copying {
            let (from, until) = &mut self.copying[core];
            if *until <= now {
                *from = start;
                self.spare[core] = 0;
            }
            *until = end;
        }
        Slice { core, start, end }
    }

    /// Adds `ns` of idle bus time to a copy that the core is busy with.
    pub(super) fn leave_bus(&mut self, core: usize, ns: u64) {
        self.spare[core] = self.spare[core].saturating_add(ns);
    }

    /// Slows the copies of `core`, because an adapter needs the memory bus for `cost` ns at `at`.
    /// The copies take longer by the part of `cost` that does not fit into their idle bus time.
    /// Returns `None` if the core is not copying at that time, or is not slowed.
    pub(super) fn slow_copy(&mut self, core: usize, at: u64, cost: u64) -> Option<Slice> {
        let (from, until) = &mut self.copying[core];
        if !(*from..*until).contains(&at) {
            return None;
        }
        let spare = self.spare[core].min(*until - at);
        self.spare[core] = spare.saturating_sub(cost);
        let cost = cost.saturating_sub(spare);
        if cost == 0 {
            return None;
        }
        *until = until.saturating_add(cost);
        self.slowed[core] = self.slowed[core].saturating_add(cost);
        let start = self.cores[core];
        let end = start.saturating_add(cost);
        self.cores[core] = end;
        self.spent[Work::Copying as usize] = self.spent[Work::Copying as usize].saturating_add(cost);
        self.spent_by_core[core] = self.spent_by_core[core].saturating_add(cost);
        Some(Slice { core, start, end })
    }

    /// Returns a handle to a copy that the current core was just charged with and that ends at
    /// `end`.
    pub(crate) fn copy_to(&self, end: u64) -> Awaited {
        Awaited { core: self.current, end, slowed: self.slowed[self.current] }
    }

    /// Returns when a copy ends, as far as is known.
    pub(crate) fn end_of(&self, copy: Awaited) -> u64 {
        copy.end.saturating_add(self.slowed[copy.core] - copy.slowed)
    }

    /// Returns the core that a kernel thread works on from `from` on. Of the cores that the thread
    /// may use, it is the one that is idle first. If several are, it is the last, because tasks
    /// take the first ones.
    pub(super) fn kernel_core(&self, side: Side, from: u64) -> usize {
        let may = match side {
            Side::Transmit => &self.cores[..self.task_cores],
            Side::Receive => &self.cores[..],
        };
        let at = may.iter().rev().enumerate().min_by_key(|(_, free)| from.max(**free)).map_or(0, |(at, _)| at);
        may.len() - 1 - at
    }

    /// Returns the core of the running task.
    pub(crate) fn current_core(&self) -> usize {
        self.current
    }

    pub(crate) fn locks(&mut self) -> &mut Vec<Lock> {
        &mut self.locks
    }

    /// From now on all cores share the memory bus.
    pub(crate) fn share_bus(&mut self) {
        self.bus.get_or_insert_default();
    }

    /// Returns when the current core is free.
    pub(crate) fn free_at(&self, now: u64) -> u64 {
        self.cores[self.current].max(now)
    }

    /// Counts `ns` of polling without a result.
    pub(crate) fn spin(&mut self, ns: u64) {
        self.spinning = self.spinning.saturating_add(ns);
    }

    /// Limits tasks to the first `cores` cores from now on.
    pub(crate) fn limit_tasks(&mut self, cores: usize) {
        self.task_cores = cores.clamp(1, self.cores.len());
    }

    // ---- tasks ----------------------------------------------------------------------------------

    /// Gives a core to a task that may run from `not_before` on: the one that it is bound to, or
    /// any. If the task can run now, it owns a core until [`Cpu::left`]. Otherwise it is held; the
    /// error is then the time at which an event must release it, unless an event is scheduled
    /// already.
    pub(crate) fn enter(
        &mut self,
        now: u64,
        task: TaskKey,
        not_before: u64,
        bound: Option<usize>,
    ) -> Result<(), Option<u64>> {
        let bound = bound.map(|core| self.task_core(core));
        let waits = |held: &Held| held.bound == bound && held.not_before <= now;
        let queue = not_before > now || (!self.held.is_empty() && self.held.iter().any(waits));
        match self.idle_core(now, bound) {
            Some(core) if !queue => {
                self.current = core;
                Ok(())
            }
            _ => {
                let behind = bound.map_or(0, |core| self.cores[core]);
                self.held.push_back(Held { task, not_before, bound, behind });
                Err(self.next_release())
            }
        }
    }

    /// Returns this core, or the last one for tasks if it is beyond that.
    pub(crate) fn task_core(&self, core: usize) -> usize {
        core.min(self.task_cores - 1)
    }

    /// Returns an idle core for a task: the one that it is bound to, or the first one.
    fn idle_core(&self, now: u64, bound: Option<usize>) -> Option<usize> {
        match bound {
            Some(core) => (self.cores[core] <= now).then_some(core),
            None => self.cores[..self.task_cores].iter().position(|free| *free <= now),
        }
    }

    /// Returns the core for a held task if it may have one now.
    fn core_for(&self, now: u64, held: &Held) -> Option<usize> {
        match held.bound {
            Some(core) => (self.bound_from(core, held) <= now).then_some(core),
            None => self.idle_core(now, None),
        }
    }

    /// Returns when a held task that is bound to `core` may have it. It has its turn in the order
    /// of arrival: the kernel's work that came later does not keep it from running.
    fn bound_from(&self, core: usize, held: &Held) -> u64 {
        self.cores[core].min(held.behind.max(self.tasks_done[core]))
    }

    /// Ends the turn of the running task. Returns when the work that it caused is done.
    pub(crate) fn left(&mut self) -> u64 {
        self.cores[std::mem::take(&mut self.current)]
    }

    /// Returns when to release a held task, unless an event does so by then.
    pub(crate) fn next_release(&mut self) -> Option<u64> {
        let idle = self.cores[..self.task_cores].iter().copied().min().unwrap_or(0);
        let mut at = u64::MAX;
        for held in &self.held {
            at = at.min(held.not_before.max(held.bound.map_or(idle, |core| self.bound_from(core, held))));
        }
        if at >= self.release_at || self.held.is_empty() {
            return None;
        }
        self.release_at = at;
        Some(at)
    }

    /// Takes out the first held task that may run now. It owns a core until [`Cpu::left`].
    pub(crate) fn release(&mut self, now: u64) -> Option<TaskKey> {
        if self.release_at <= now {
            self.release_at = u64::MAX;
        }
        let ready = self.held.iter().enumerate().filter(|(_, held)| held.not_before <= now);
        let (at, core) = ready.filter_map(|(at, held)| Some((at, self.core_for(now, held)?))).next()?;
        self.current = core;
        self.held.remove(at).map(|held| held.task)
    }

    /// Returns whether a task must be kept from running before its own work is done. With one core
    /// it is kept anyway.
    pub(crate) fn is_parallel(&self) -> bool {
        self.task_cores > 1
    }

    /// Forgets the work that is not yet done, and the held tasks.
    pub(crate) fn reset(&mut self) {
        self.cores.fill(0);
        self.tasks_done.fill(0);
        self.copying.fill((0, 0));
        self.spare.fill(0);
        self.kernel = [0; 2];
        self.locks.clear();
        self.bus = None;
        self.held.clear();
        self.release_at = u64::MAX;
    }

    /// Adds how long cores, locks and memory bus were occupied up to `now`.
    pub(crate) fn add_load(&self, now: u64, load: &mut Load) {
        load.cores = self.spent_by_core.iter().zip(&self.cores).map(|(spent, free)| over(*spent, *free, now)).collect();
        load.lock_waiting = Duration::from_nanos(self.spent[Work::LockWaiting as usize]);
        load.locks = self.locks.iter().map(|lock| (lock.name, Duration::from_nanos(lock.held(now)))).collect();
        let receiving = Side::Receive as usize;
        load.kernel_receiving = over(self.kernel_spent[receiving], self.kernel[receiving], now);
        load.memory_bus = Duration::from_nanos(self.bus.as_ref().map_or(0, |bus| bus.used(now)));
    }

    pub(crate) fn usage(&self) -> Usage {
        let of = |work: Work| Duration::from_nanos(self.spent[work as usize]);
        Usage {
            application: of(Work::Application),
            copying: of(Work::Copying),
            protocol: of(Work::Protocol),
            system_calls: of(Work::SystemCall),
            interrupts: of(Work::Interrupt),
            registration: of(Work::Registration),
            polling: of(Work::Polling),
            locking: of(Work::Locking),
            lock_waiting: of(Work::LockWaiting),
            spinning: Duration::from_nanos(self.spinning),
        }
    }
}
