//! A slab with checked keys. A key has a slot and a generation, which tells whether the slot was
//! used again since.

use crate::ids::{GENERATIONS, Key};

/// A table of `V` with checked keys.
#[derive(Debug)]
pub(crate) struct Table<V> {
    slots: Vec<(u32, Option<V>)>,
    /// Slots without an entry. The slot that was freed last is used first.
    free: Vec<u32>,
    generation: u32,
}

impl<V> Table<V> {
    pub(crate) fn new() -> Table<V> {
        Table { slots: Vec::new(), free: Vec::new(), generation: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    #[cfg(test)]
    pub(crate) fn insert(&mut self, value: V) -> Key {
        self.insert_with(|_| value)
    }

    /// Inserts a value that may depend on its key.
    pub(crate) fn insert_with(&mut self, value: impl FnOnce(Key) -> V) -> Key {
        self.generation = (self.generation + 1) % GENERATIONS;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 entries")
        });
        let key = Key { slot, generation: self.generation };
        self.slots[slot as usize] = (key.generation, Some(value(key)));
        key
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&V> {
        let (generation, value) = self.slots.get(key.slot as usize)?;
        value.as_ref().filter(|_| *generation == key.generation)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut V> {
        let (generation, value) = self.slots.get_mut(key.slot as usize)?;
        value.as_mut().filter(|_| *generation == key.generation)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<V> {
        self.get(key)?;
        self.free.push(key.slot);
        self.slots[key.slot as usize].1.take()
    }

    /// Gives back the room behind the last value. Keys of values that were there find nothing.
    pub(crate) fn shrink(&mut self) {
        let len = self.slots.iter().rposition(|(_, value)| value.is_some()).map_or(0, |last| last + 1);
        self.slots.truncate(len);
        self.slots.shrink_to_fit();
        self.free.retain(|slot| (*slot as usize) < len);
        self.free.shrink_to_fit();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &V)> {
        self.slots.iter().enumerate().filter_map(|(slot, (generation, value))| {
            let slot = u32::try_from(slot).expect("fewer than 2^32 entries");
            Some((Key { slot, generation: *generation }, value.as_ref()?))
        })
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.slots.iter_mut().filter_map(|(_, value)| value.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_has_shrunk_knows_no_more_than_its_values() {
        let mut table = Table::new();
        let keys: Vec<Key> = (0..10).map(|value| table.insert(value)).collect();
        for at in [9, 8, 7, 2] {
            table.remove(keys[at]);
        }
        table.shrink();
        assert_eq!((table.len(), table.slots.len(), table.free.len()), (6, 7, 1));
        assert_eq!((table.get(keys[9]), table.get(keys[2]), table.get(keys[6])), (None, None, Some(&6)));
        let new = [table.insert(20), table.insert(21)];
        assert_eq!((new[0].slot, new[1].slot, table.len()), (2, 7, 8));
        assert_eq!((table.get(keys[2]), table.get(keys[7]), table.get(new[1])), (None, None, Some(&21)));
    }

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut table = Table::new();
        let first = table.insert('a');
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b');
        assert_eq!(first.slot, second.slot);
        assert_eq!((table.get(first), table.get(second)), (None, Some(&'b')));
        assert_eq!((table.remove(first), table.len()), (None, 1));
        assert_eq!((table.remove(second), table.len(), table.iter().count()), (Some('b'), 0, 0));
    }
}
