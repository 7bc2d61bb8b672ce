//! Completions on their way to the caller, and the memory of the work that they tell of.
//!
//! **Why.** A program that learns of a completion uses the memory again, so no region of it may be
//! held any longer. Until then the region must be held, even if its bytes were copied while the
//! work was posted (C5). Within a poll both are easy: the poll reports what was done in it. Work
//! that was done while it was posted is reported by a later poll, and its regions wait here.
//!
//! **Invariants**
//! 1. A region in [`Pending`] is held until a poll has reported the completion of its work. That
//!    poll releases it. A region of unsignalled work is held until the next poll that reports.
//! 2. Regions are released in the order in which their work was done, as events are reported in
//!    order.
//!
//! **Tests.** Below; `message::memory` of the conformance suite.

use std::collections::VecDeque;

use bmi_core::transport::Event;
use bmi_core::{MemoryRegion, Segment};

/// Takes completions, and the regions of the work that they tell of.
pub(crate) trait Completions {
    /// Set if the caller learns of the work in a later poll. The work takes a place in its queue
    /// until then.
    const LATER: bool;

    /// Reports a completion.
    fn report(&mut self, event: Event);

    /// Takes a region of the work that was reported last.
    fn release(&mut self, region: MemoryRegion);
}

/// The events of a poll. The caller sees them when the poll returns.
impl Completions for Vec<Event> {
    const LATER: bool = false;

    #[inline]
    fn report(&mut self, event: Event) {
        self.push(event);
    }

    #[inline]
    fn release(&mut self, region: MemoryRegion) {
        drop(region);
    }
}

/// A region that is held until this many events were reported.
struct Held {
    region: MemoryRegion,
    until: u64,
}

/// Events that arose outside of a poll, or more of them at once than a poll may report.
pub(crate) struct Pending {
    events: VecDeque<Event>,
    held: VecDeque<Held>,
    /// The number of events reported so far.
    reported: u64,
}

impl Pending {
    pub(crate) fn new() -> Pending {
        Pending { events: VecDeque::with_capacity(64), held: VecDeque::with_capacity(64), reported: 0 }
    }

    /// Returns whether there is no event.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns whether the next poll has nothing to do here.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.events.is_empty() & self.held.is_empty()
    }

    /// Holds the regions of segments whose work was reported last.
    #[inline]
    pub(crate) fn hold(&mut self, segments: &[Segment]) {
        for segment in segments {
            let until = self.end();
            match self.held.back_mut() {
                Some(held) if held.region.is_same(segment.region()) => held.until = until,
                _ => self.held.push_back(Held { region: segment.region().clone(), until }),
            }
        }
    }

    /// Moves at most `most` events to `events`, and releases the regions of their work.
    pub(crate) fn report_to(&mut self, events: &mut Vec<Event>, most: usize) {
        let count = self.events.len().min(most);
        events.extend(self.events.drain(..count));
        self.reported += count as u64;
        while self.held.front().is_some_and(|held| held.until <= self.reported) {
            self.held.pop_front();
        }
    }

    /// Returns how many events will have been reported once all events are.
    #[inline]
    fn end(&self) -> u64 {
        self.reported + self.events.len() as u64
    }
}

impl Completions for Pending {
    const LATER: bool = true;

    #[inline]
    fn report(&mut self, event: Event) {
        self.events.push_back(event);
    }

    #[inline]
    fn release(&mut self, region: MemoryRegion) {
        let until = self.end();
        self.held.push_back(Held { region, until });
    }
}

#[cfg(test)]
mod tests {
    use bmi_core::transport::{ConnId, WorkCompletion, WorkId, WorkKind, WorkStatus};
    use bmi_core::{Memory, Transport};

    use super::*;
    use crate::{ShmConfig, ShmTransport};

    fn event(work: u64) -> Event {
        let (conn, kind, status) = (ConnId { slot: 0, generation: 0 }, WorkKind::Send, WorkStatus::Ok);
        Event::Work(WorkCompletion { conn, work: WorkId(work), kind, status, len: 0, immediate: None })
    }

    #[test]
    fn a_region_is_held_until_its_completion_is_reported() {
        let mut transport = ShmTransport::new(ShmConfig::default()).unwrap();
        let mut memories = [(); 4].map(|()| Memory::zeroed(100).unwrap());
        let regions = memories.each_ref().map(|memory| transport.register(memory).unwrap());
        let mut pending = Pending::new();
        pending.report(event(0));
        pending.hold(&[regions[0].segment(0, 1), regions[0].segment(50, 1), regions[1].segment(0, 1)]);
        pending.report(event(1));
        pending.hold(&[regions[1].segment(2, 3)]);
        pending.report(event(2));
        pending.release(regions[2].clone());
        pending.hold(&[regions[3].segment(0, 1)]); // of unsignalled work
        drop(regions);
        let mut free = || memories.each_mut().map(|memory| memory.get_mut().is_some());
        assert_eq!(free(), [false; 4]);
        let mut events = Vec::new();
        pending.report_to(&mut events, 1);
        assert_eq!((events.len(), free()), (1, [true, false, false, false]), "the second is in the next request too");
        pending.report_to(&mut events, 1);
        assert_eq!((events.len(), free()), (2, [true, true, false, false]));
        assert!(!pending.is_empty());
        pending.report_to(&mut events, 5);
        assert_eq!((events.len(), free()), (3, [true; 4]));
        assert!(pending.is_empty() && pending.is_idle());
    }
}
