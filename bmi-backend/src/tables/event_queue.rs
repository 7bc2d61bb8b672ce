//! The events that no poll has reported yet.

use std::collections::VecDeque;

use bmi_core::transport::Event;

/// Number of events for which room is kept. The end of a connection reports all of its receives, of
/// which it has more than a hundred.
const KEPT: usize = 4096;

/// Events that arose outside of a poll, or more of them at once than a poll may report, in order.
///
/// **Why.** Only a poll reports events, but `accept`, `disconnect` and a failed post cause some as
/// well. The end of many connections causes more of them than one poll may report.
///
/// **Protocol** of a poll that reports at most `limit` events:
///
/// ```text
///   if is_empty() { slots.recycle() }              the polls before have reported every end (C6)
///   if !report_to(events, limit) { return }        what is left comes before anything new
///   ... events of connections, directly; push() for those of an end
///   report_to(events, limit)                       the rest waits for the next poll
/// ```
#[derive(Debug)]
pub struct EventQueue {
    events: VecDeque<Event>,
}

impl Default for EventQueue {
    fn default() -> EventQueue {
        EventQueue { events: VecDeque::with_capacity(64) }
    }
}

impl EventQueue {
    /// Adds an event behind the others.
    #[inline]
    pub fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Returns true if every event was reported.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Moves the oldest events to `events`, until there are `limit`. Returns true if none is left
    /// here.
    #[inline]
    pub fn report_to(&mut self, events: &mut Vec<Event>, limit: usize) -> bool {
        self.events.is_empty() || self.report_some(events, limit)
    }

    #[cold]
    fn report_some(&mut self, events: &mut Vec<Event>, limit: usize) -> bool {
        let count = self.events.len().min(limit.saturating_sub(events.len()));
        events.extend(self.events.drain(..count));
        let all = self.events.is_empty();
        if all && self.events.capacity() > KEPT {
            self.events.shrink_to(KEPT);
        }
        all
    }
}

impl Extend<Event> for EventQueue {
    fn extend<I: IntoIterator<Item = Event>>(&mut self, events: I) {
        self.events.extend(events);
    }
}

#[cfg(test)]
mod tests {
    use bmi_core::PeerIdentity;
    use bmi_core::transport::ConnId;

    use super::*;

    fn event(slot: u32) -> Event {
        Event::Established {
            conn: ConnId { slot, generation: 0 },
            identity: PeerIdentity::Nobody,
            private: Box::default(),
        }
    }

    fn slots(events: &[Event]) -> Vec<u32> {
        let slot = |event: &Event| if let Event::Established { conn, .. } = event { conn.slot } else { u32::MAX };
        events.iter().map(slot).collect()
    }

    #[test]
    fn events_are_reported_in_order_and_never_beyond_the_limit() {
        let (mut queue, mut events) = (EventQueue::default(), Vec::new());
        assert!(queue.report_to(&mut events, 0), "there is nothing to report");
        queue.extend((0..3).map(event));
        queue.push(event(3));
        assert!(!queue.report_to(&mut events, 0));
        assert!(!queue.report_to(&mut events, 2));
        assert_eq!(slots(&events), [0, 1]);
        assert!(!queue.report_to(&mut events, 1), "the events of this poll are beyond the limit already");
        assert_eq!(events.len(), 2);
        assert!(queue.report_to(&mut events, 4) && queue.is_empty());
        assert_eq!(slots(&events), [0, 1, 2, 3]);
    }

    #[test]
    fn the_room_for_a_crowd_is_given_back() {
        let (mut queue, mut events) = (EventQueue::default(), Vec::new());
        queue.extend((0..3 * KEPT as u32).map(event));
        while !queue.report_to(&mut events, 256) {
            events.clear();
        }
        assert!(queue.events.capacity() < 2 * KEPT, "{}", queue.events.capacity());
    }
}
