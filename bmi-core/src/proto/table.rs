//! A slab whose keys are checked: a slot, and a generation that tells a reused slot from the one that the caller means.

use slab::Slab;

/// Generations are kept below this, so that slot, generation and a two-bit kind share a 64-bit word (see `endpoint::work`).
pub(crate) const GENERATIONS: u32 = 1 << 30;

/// Names an entry of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// A table of `V` with checked keys.
#[derive(Debug)]
pub(crate) struct Table<V> {
    slab: Slab<(u32, V)>,
    generation: u32,
}

impl<V> Table<V> {
    pub(crate) fn new() -> Table<V> {
        Table { slab: Slab::new(), generation: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(crate) fn insert(&mut self, value: V) -> Key {
        self.generation = (self.generation + 1) % GENERATIONS;
        let slot = self.slab.insert((self.generation, value));
        Key { slot: u32::try_from(slot).expect("fewer than 2^32 entries"), generation: self.generation }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&V> {
        let (generation, value) = self.slab.get(key.slot as usize)?;
        (*generation == key.generation).then_some(value)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut V> {
        let (generation, value) = self.slab.get_mut(key.slot as usize)?;
        (*generation == key.generation).then_some(value)
    }

    /// The entry that is in a slot now.
    pub(crate) fn at(&self, slot: u32) -> Option<(Key, &V)> {
        let (generation, value) = self.slab.get(slot as usize)?;
        Some((Key { slot, generation: *generation }, value))
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<V> {
        self.get(key)?;
        Some(self.slab.remove(key.slot as usize).1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &V)> {
        self.slab.iter().map(|(slot, (generation, value))| {
            let slot = u32::try_from(slot).expect("fewer than 2^32 entries");
            (Key { slot, generation: *generation }, value)
        })
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.slab.iter_mut().map(|(_, (_, value))| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut table = Table::new();
        let first = table.insert('a');
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b');
        assert_eq!(first.slot, second.slot);
        assert_eq!((table.get(first), table.get(second)), (None, Some(&'b')));
        assert_eq!(table.remove(first), None);
        assert_eq!(table.len(), 1);
    }
}
