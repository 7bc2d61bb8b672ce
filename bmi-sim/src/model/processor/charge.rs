//! Makes the processors of nodes work.

use super::calendar::Calendar;
use super::cpu::Work;
use super::locks::Lock;
use crate::engine::Side;
use crate::model::Core;
use crate::prices::per_bytes;

impl Core {
    /// Makes the current core of a node work. Returns when it is done.
    pub(crate) fn charge(&mut self, node: u32, work: Work, cost: u64) -> u64 {
        let now = self.queue.now;
        let cpu = &mut self.nodes[node as usize].cpu;
        if cost == 0 {
            return cpu.free_at(now);
        }
        let slice = cpu.charge(now, work, cost);
        if self.running == Some(node) {
            self.ready.stamp(slice.end);
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.core(node, work, slice);
        }
        slice.end
    }

    /// Makes the current core of a node copy for `cost` ns. For `bus` ns of these it needs the
    /// memory bus. Returns when it is done.
    pub(crate) fn charge_copy(&mut self, node: u32, cost: u64, bus: u64) -> u64 {
        let now = self.queue.now;
        let cpu = &mut self.nodes[node as usize].cpu;
        let from = cpu.free_at(now);
        if let Some(shared) = &mut cpu.bus {
            let carried = shared.book(now, from, bus);
            return self.charge(node, Work::Copying, cost.max(carried.saturating_sub(from)));
        }
        let end = self.charge(node, Work::Copying, cost);
        if cost > 0 {
            let cpu = &mut self.nodes[node as usize].cpu;
            cpu.leave_bus(cpu.current, cost.saturating_sub(bus));
        }
        end
    }

    /// Accounts for an adapter that moves `bytes` bytes from or to memory from `at` on. Copies that
    /// the node's cores make at that time take longer.
    pub(crate) fn dma(&mut self, node: u32, at: u64, bytes: u64) {
        let profile = &self.config.profile;
        let cost = per_bytes(bytes, profile.memory_ps_per_byte);
        if let Some(shared) = &mut self.nodes[node as usize].cpu.bus {
            shared.book(self.queue.now, at, cost);
            return;
        }
        // The price of the kernel's copies was measured with an adapter working at the same time.
        if cost == 0 || profile.software {
            return;
        }
        for core in 0..self.nodes[node as usize].cpu.cores.len() {
            let slice = self.nodes[node as usize].cpu.slow_copy(core, at, cost);
            if let (Some(slice), Some(timeline)) = (slice, &mut self.timeline) {
                timeline.core(node, Work::Copying, slice);
            }
        }
    }

    /// Makes the kernel's thread for one direction do `works` in turn, from `from` on at the
    /// earliest. Returns when it is done.
    pub(crate) fn charge_kernel(&mut self, node: u32, side: Side, from: u64, works: &[(Work, u64)]) -> u64 {
        let cpu = &mut self.nodes[node as usize].cpu;
        let mut done = from.max(cpu.kernel[side as usize]);
        let core = cpu.kernel_core(side, done);
        let (begin, tasks_done) = (done.max(cpu.cores[core]), cpu.tasks_done[core]);
        done = self.charge_kernel_on(node, core, done, works);
        let cpu = &mut self.nodes[node as usize].cpu;
        cpu.tasks_done[core] = tasks_done;
        cpu.kernel[side as usize] = done;
        cpu.kernel_spent[side as usize] += done.saturating_sub(begin);
        done
    }

    /// Makes a core do `works` of the kernel in turn, from `from` on at the earliest. Returns when
    /// it is done.
    pub(crate) fn charge_kernel_on(&mut self, node: u32, core: usize, from: u64, works: &[(Work, u64)]) -> u64 {
        let now = self.queue.now;
        let mut done = from;
        let cpu = &mut self.nodes[node as usize].cpu;
        let current = std::mem::replace(&mut cpu.current, core);
        for (work, mut cost) in works.iter().copied().filter(|(_, cost)| *cost > 0) {
            let cpu = &mut self.nodes[node as usize].cpu;
            if let Some(shared) = cpu.bus.as_mut().filter(|_| work == Work::Copying) {
                let from = cpu.cores[core].max(done);
                cost = cost.max(shared.book(now, from, cost).saturating_sub(from));
            }
            let slice = cpu.charge(done, work, cost);
            done = slice.end;
            if let Some(timeline) = &mut self.timeline {
                timeline.core(node, work, slice);
            }
        }
        self.nodes[node as usize].cpu.current = current;
        done
    }

    /// Returns whether the kernel's thread for a direction is idle.
    pub(crate) fn kernel_idle(&self, node: u32, side: Side) -> bool {
        self.nodes[node as usize].cpu.kernel[side as usize] < self.queue.now
    }

    /// Makes the current core of a node wait for a lock, take it and return it.
    pub(crate) fn locked(&mut self, node: u32, name: &'static str) {
        let profile = &self.config.profile;
        let (hold, fetch) = (profile.lock_hold_ns, profile.lock_lines.saturating_mul(profile.cache_line_ns));
        let now = self.queue.now;
        let cpu = &mut self.nodes[node as usize].cpu;
        let (core, from) = (cpu.current_core(), cpu.free_at(now));
        let locks = cpu.locks();
        let at = locks.iter().position(|lock| lock.name == name).unwrap_or_else(|| {
            locks.push(Lock { name, calendar: Calendar::default(), booked: 0 });
            locks.len() - 1
        });
        let lock = &mut locks[at];
        let booking = lock.calendar.book(now, from, core, |before| match before {
            Some(before) if before.core != core => hold.saturating_add(fetch),
            _ => hold,
        });
        let held = booking.end - booking.start;
        lock.booked = lock.booked.saturating_add(held);
        self.charge(node, Work::LockWaiting, booking.start - from);
        self.charge(node, Work::Locking, held);
    }
}
