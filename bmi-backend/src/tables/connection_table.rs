//! The connections of a transport, with ids that are never reused, so that a stale id finds
//! nothing.

use bmi_core::Error;
use bmi_core::transport::ConnId;

use crate::Limit;

struct Slot<C> {
    generation: u32,
    connection: Option<Box<C>>,
}

/// Connections, identified by slot and generation.
///
/// **Invariants**
/// 1. No id is used twice. A slot whose generations are used up is not reused.
/// 2. No slot is reused before [`ConnectionTable::recycle`]. The transport calls it at the
///    beginning of a poll if the polls before have reported every end (C6). A user that indexes a
///    table by slot has freed the entry by then.
pub struct ConnectionTable<C> {
    slots: Vec<Slot<C>>,
    free: Vec<u32>,
    /// Empty slots whose connection's end may not have been reported yet.
    retired: Vec<u32>,
    live: usize,
    limit: Limit,
}

impl<C> ConnectionTable<C> {
    /// Returns a table without connections. `limit` bounds their number.
    pub fn new(limit: Limit) -> ConnectionTable<C> {
        ConnectionTable { slots: Vec::new(), free: Vec::new(), retired: Vec::new(), live: 0, limit }
    }

    /// Returns the number of slots, used and free. Allows a walk over all connections while they
    /// change, with [`ConnectionTable::at_mut`].
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns true if there are no connections.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns true if [`ConnectionTable::insert`] would fail.
    pub fn is_full(&self) -> bool {
        self.live >= self.limit.max
    }

    /// Returns the connection in a slot, whatever its generation.
    #[inline]
    pub fn at_mut(&mut self, slot: u32) -> Option<&mut C> {
        self.slots.get_mut(slot as usize)?.connection.as_deref_mut()
    }

    /// Returns the connection with this id, if it still exists.
    pub fn find(&self, id: ConnId) -> Option<&C> {
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        slot.connection.as_deref()
    }

    /// Returns the connection with this id, if it still exists.
    #[inline]
    pub fn find_mut(&mut self, id: ConnId) -> Option<&mut C> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        slot.connection.as_deref_mut()
    }

    /// Takes a slot and stores the connection that `make` creates from the new id.
    ///
    /// # Errors
    /// `Exhausted` at the limit. The error names the setting.
    pub fn insert(&mut self, make: impl FnOnce(ConnId) -> C) -> Result<ConnId, Error> {
        self.limit.admit(self.live)?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, connection: None });
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        let id = ConnId { slot, generation: entry.generation };
        entry.connection = Some(Box::new(make(id)));
        self.live += 1;
        Ok(id)
    }

    /// Removes the connection in a slot. Its id is invalid from now on.
    pub fn remove(&mut self, slot: u32) -> Option<C> {
        let entry = self.slots.get_mut(slot as usize)?;
        let connection = entry.connection.take()?;
        self.live -= 1;
        if let Some(next) = entry.generation.checked_add(1) {
            entry.generation = next;
            self.retired.push(slot);
        }
        Some(*connection)
    }

    /// Makes the slots of removed connections available again. Call it after all ends were
    /// reported.
    #[inline]
    pub fn recycle(&mut self) {
        self.free.append(&mut self.retired);
    }

    /// Returns all connections.
    pub fn iter(&self) -> impl Iterator<Item = &C> {
        self.slots.iter().filter_map(|slot| slot.connection.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use bmi_core::ErrorKind;

    use super::*;

    #[test]
    fn names_are_never_given_twice_and_slots_only_after_the_end_was_reported() {
        let mut slots =
            ConnectionTable::new(Limit { max: 2, what: "connections", setting: Some("Config::max_connections") });
        let first = slots.insert(|id| id).unwrap();
        assert_eq!(slots.find_mut(first), Some(&mut first.clone()));
        assert_eq!(slots.remove(first.slot), Some(first));
        assert!(slots.find_mut(first).is_none() && slots.remove(first.slot).is_none() && slots.is_empty());
        let second = slots.insert(|id| id).unwrap();
        assert_ne!(second.slot, first.slot, "the end of the first may not have been reported yet");
        slots.recycle();
        let third = slots.insert(|id| id).unwrap();
        assert_eq!((third.slot, third.generation), (first.slot, first.generation + 1));
        assert!(slots.find_mut(first).is_none(), "a stale name finds nothing");
        assert_eq!(slots.iter().copied().collect::<Vec<_>>(), [third, second]);
        assert!(slots.is_full());
        let error = slots.insert(|id| id).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(error.to_string().contains("2 connections, the limit of Config::max_connections"), "{error}");
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_not_used_again() {
        let mut slots = ConnectionTable::new(Limit { max: 9, what: "connections", setting: None });
        let first = slots.insert(|id| id).unwrap();
        slots.slots[0].generation = u32::MAX;
        slots.remove(first.slot);
        slots.recycle();
        assert_eq!(slots.insert(|id| id).unwrap().slot, 1);
        assert!(slots.find_mut(ConnId { slot: 0, generation: u32::MAX }).is_none());
    }
}
