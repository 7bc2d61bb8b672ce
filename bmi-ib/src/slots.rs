//! The tables of a transport: its connections by slot, and its earliest deadline.

use bmi_core::Time;
use bmi_core::transport::ConnId;

use crate::connect::{Connection, Phase};

#[derive(Default)]
struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// Connections, named by slot and generation. No name is given twice, and no slot before the poll
/// after its last connection's end was reported (C6).
#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Empty, but the end of their connection may not have been reported yet.
    retired: Vec<u32>,
    live: usize,
    /// A connection may be on its way to being established, or to its end.
    unsettled: bool,
}

impl Slots {
    /// Slots, used and free.
    pub(crate) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Connections.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    pub(crate) fn at_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.get_mut(slot as usize)?.connection.as_deref_mut()
    }

    pub(crate) fn find_mut(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.at_mut(id.slot).filter(|connection| connection.id == id)
    }

    /// Whether a handshake may be under way. Asked at each poll, so it is not counted anew each time.
    pub(crate) fn may_be_unsettled(&self) -> bool {
        self.unsettled
    }

    /// A connection leaves the settled state.
    pub(crate) fn unsettle(&mut self) {
        self.unsettled = true;
    }

    /// Counts anew, if there may be any.
    pub(crate) fn settle(&mut self) {
        self.unsettled =
            self.unsettled && self.iter().any(|connection| !matches!(connection.phase, Phase::Established));
    }

    pub(crate) fn insert(&mut self, make: impl FnOnce(ConnId) -> Connection) -> ConnId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        let id = ConnId { slot, generation: entry.generation };
        entry.connection = Some(Box::new(make(id)));
        self.unsettled = true;
        self.live += 1;
        id
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<Connection> {
        let entry = self.slots.get_mut(slot as usize)?;
        let connection = entry.connection.take()?;
        self.live -= 1;
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.retired.push(slot);
        }
        Some(*connection)
    }

    /// All ends were reported: whoever indexes a table by slot has made room.
    pub(crate) fn recycle(&mut self) {
        self.free.append(&mut self.retired);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().filter_map(|slot| slot.connection.as_deref())
    }
}

/// The earliest of all deadlines. Adding one is cheap; when one goes away, the transport looks for the earliest again at the end
/// of its poll.
#[derive(Default)]
pub(crate) struct Deadlines {
    earliest: Option<Time>,
    stale: bool,
}

impl Deadlines {
    pub(crate) fn earliest(&self) -> Option<Time> {
        self.earliest
    }

    pub(crate) fn due(&self, now: Time) -> bool {
        self.earliest.is_some_and(|earliest| earliest <= now)
    }

    pub(crate) fn add(&mut self, deadline: Option<Time>) {
        self.earliest = self.earliest.into_iter().chain(deadline).min();
    }

    /// One may have gone away.
    pub(crate) fn refresh(&mut self) {
        self.stale = true;
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }

    pub(crate) fn set(&mut self, earliest: Option<Time>) {
        (self.earliest, self.stale) = (earliest, false);
    }
}
