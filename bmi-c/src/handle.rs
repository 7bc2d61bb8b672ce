//! What a C program holds: numbers of operations, addresses and contexts.
//!
//! A number has the place of an entry and its generation, so that a stale one is found to be so. It
//! is positive and never 0. The tables of another `BMI_initialize` begin with other generations.
//!
//! ```text
//!   operation, address   0 | transport + 1: 2 bits | generation: 29 bits | slot: 32 bits
//!   context              generation: 22 bits, odd | index: 8 bits                   (fits an int)
//! ```

use std::sync::atomic::{AtomicU32, Ordering};

/// Contexts that may be open at a time. BMI has 16.
pub(crate) const CONTEXTS: usize = 64;
/// Generations of an entry.
const GENERATIONS: u32 = 1 << 29;
/// Generations of a context.
const CONTEXT_GENERATIONS: u32 = 1 << 22;

/// An entry of a [`Table`], and the word that operations of the transport carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    fn new(slot: usize, generation: u32) -> Key {
        Key(u64::from(generation) << 32 | slot as u64)
    }

    fn slot(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the number for the program. `transport` is below 3.
    pub(crate) fn to_id(self, transport: usize) -> i64 {
        ((transport as u64 + 1) << 61 | self.0).cast_signed()
    }

    /// Returns the transport and the key of a number, or `None` for one that no table has given.
    pub(crate) fn of_id(id: i64) -> Option<(usize, Key)> {
        let bits = u64::try_from(id).ok()?;
        let transport = (bits >> 61) as usize;
        transport.checked_sub(1).map(|transport| (transport, Key(bits & ((1 << 61) - 1))))
    }
}

/// Entries by slot and generation.
pub(crate) struct Table<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<usize>,
    /// The generation of a new slot.
    first: u32,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Table<T> {
        static FIRST: AtomicU32 = AtomicU32::new(0);
        let first = FIRST.fetch_add(GENERATIONS / 32 + 1, Ordering::Relaxed) % GENERATIONS;
        Table { entries: Vec::new(), free: Vec::new(), first }
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push((self.first, None));
            self.entries.len() - 1
        });
        let (generation, entry) = &mut self.entries[slot];
        *generation = *generation % (GENERATIONS - 1) + 1;
        *entry = Some(value);
        Key::new(slot, *generation)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let (generation, entry) = self.entries.get(key.slot())?;
        entry.as_ref().filter(|_| *generation == key.generation())
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, entry) = self.entries.get_mut(key.slot())?;
        entry.as_mut().filter(|_| *generation == key.generation())
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        self.free.push(key.slot());
        self.entries[key.slot()].1.take()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(slot, (generation, entry))| Some((Key::new(slot, *generation), entry.as_ref()?)))
    }
}

/// The contexts: a generation each, which is odd while the context is open.
pub(crate) struct Contexts([AtomicU32; CONTEXTS]);

impl Contexts {
    pub(crate) const fn new() -> Contexts {
        Contexts([const { AtomicU32::new(0) }; CONTEXTS])
    }

    /// Opens a context and returns its number. `None` if all are open.
    pub(crate) fn open(&self) -> Option<i64> {
        self.0.iter().zip(0_i64..).find_map(|(context, index)| {
            let closed = context.load(Ordering::Acquire);
            let open = (closed + 1) % CONTEXT_GENERATIONS;
            let taken = closed.is_multiple_of(2)
                && context.compare_exchange(closed, open, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            taken.then(|| i64::from(open) << 8 | index)
        })
    }

    /// Returns the index of a context that is open.
    pub(crate) fn index(&self, id: i64) -> Option<usize> {
        let index = usize::try_from(id & 0xff).ok()?;
        let open = self.0.get(index)?.load(Ordering::Acquire);
        (!open.is_multiple_of(2) && id >> 8 == i64::from(open)).then_some(index)
    }

    /// Closes a context. Returns its index if it was open.
    pub(crate) fn close(&self, id: i64) -> Option<usize> {
        let index = self.index(id)?;
        let open = u32::try_from(id >> 8).ok()?;
        let closed = (open + 1) % CONTEXT_GENERATIONS;
        self.0[index].compare_exchange(open, closed, Ordering::AcqRel, Ordering::Relaxed).ok().map(|_| index)
    }

    pub(crate) fn close_all(&self) {
        for context in &self.0 {
            let open = context.load(Ordering::Acquire);
            if !open.is_multiple_of(2) {
                context.store((open + 1) % CONTEXT_GENERATIONS, Ordering::Release);
            }
        }
    }
}
