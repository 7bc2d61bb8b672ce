//! Timers: tasks that wait for a point in virtual time.

use std::task::Waker;

use crate::engine::Event;
use crate::model::Core;

struct TimerSlot {
    generation: u32,
    waker: Option<Waker>,
}

/// The timers of a world.
#[derive(Default)]
pub(crate) struct Timers {
    slots: Vec<TimerSlot>,
    free: Vec<u32>,
    /// Upper bound of the number of events of dropped timers that are still in the queue.
    cancelled: usize,
}

impl Timers {
    /// Returns whether a timer is over or was dropped.
    pub(crate) fn is_stale(&self, slot: u32, generation: u32) -> bool {
        self.slots[slot as usize].generation != generation
    }
}

impl Core {
    pub(crate) fn add_timer(&mut self, at: u64, waker: Waker) -> (u32, u32) {
        let timers = &mut self.timers;
        let slot = timers.free.pop().unwrap_or_else(|| {
            timers.slots.push(TimerSlot { generation: 0, waker: None });
            timers.slots.len() as u32 - 1
        });
        let entry = &mut timers.slots[slot as usize];
        entry.waker = Some(waker);
        let generation = entry.generation;
        self.queue.schedule(at, Event::Timer { slot, generation });
        (slot, generation)
    }

    pub(crate) fn drop_timer(&mut self, (slot, generation): (u32, u32)) -> Option<Waker> {
        let entry = self.timers.slots.get_mut(slot as usize).filter(|entry| entry.generation == generation)?;
        entry.generation = entry.generation.wrapping_add(1);
        self.timers.free.push(slot);
        entry.waker.take()
    }

    /// Makes a timer wake another waker, if that is another one.
    pub(crate) fn renew_timer(&mut self, slot: u32, new: &Waker) {
        match &mut self.timers.slots[slot as usize].waker {
            Some(waker) if waker.will_wake(new) => {}
            waker => *waker = Some(new.clone()),
        }
    }

    /// Cancels a timer that was dropped before its time. Its event stays in the queue until there
    /// are too many of them.
    pub(crate) fn cancel_timer(&mut self, timer: (u32, u32)) -> Option<Waker> {
        let waker = self.drop_timer(timer)?;
        self.timers.cancelled += 1;
        if self.timers.cancelled > 1_000 && self.timers.cancelled > self.queue.len() / 2 {
            let timers = &self.timers;
            self.queue.retain(|event| match event {
                Event::Timer { slot, generation } => !timers.is_stale(*slot, *generation),
                _ => true,
            });
            self.timers.cancelled = 0;
        }
        Some(waker)
    }
}
