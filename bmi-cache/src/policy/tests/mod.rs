//! Tests of the policies.

mod balance;
mod model;
mod order;
mod rates;
mod scan_resistant;
mod search;
mod traces;

use std::collections::BTreeMap;

use super::*;

/// The size of most units of these tests, in bytes.
const UNIT: u32 = 64 << 10;

/// Returns policies for a cache of that many units.
fn policies(units: u64) -> Policies {
    Policies::new(Policy::Default, units * u64::from(UNIT))
}

impl Policies {
    /// Inserts units of the size [`UNIT`]. Their keys are their ids.
    fn insert_all(&mut self, ids: impl IntoIterator<Item = usize>, policy: Policy) {
        ids.into_iter().for_each(|id| self.insert(id, id as u64, UNIT, policy));
    }

    /// Returns the next victim, however many units must be asked for.
    fn victim(&mut self, is_free: &mut dyn FnMut(usize) -> bool) -> Option<usize> {
        match self.search(usize::MAX, is_free) {
            Search::Found(id) => Some(id),
            Search::None => None,
            Search::Goes => unreachable!("it may ask for all"),
        }
    }

    /// Returns the next victim if all units are free.
    fn next(&mut self) -> Option<usize> {
        self.victim(&mut |_| true)
    }

    /// Evicts all units that are not in use, and returns their ids in that order.
    fn drain(&mut self, mut is_free: impl FnMut(usize) -> bool) -> Vec<usize> {
        let mut drained = Vec::new();
        while let Some(id) = self.victim(&mut is_free) {
            self.evicted(id);
            drained.push(id);
        }
        drained
    }
}

/// A cache with units of the size [`UNIT`], each of which has a name.
struct Cache {
    policies: Policies,
    capacity: usize,
    ids: BTreeMap<u64, usize>,
    /// The names of the units, by id.
    names: Vec<u64>,
}

impl Cache {
    fn new(capacity: usize) -> Cache {
        Cache { policies: policies(capacity as u64), capacity, ids: BTreeMap::new(), names: Vec::new() }
    }

    /// Uses a unit. Returns true if it was in the cache.
    fn request(&mut self, name: u64, policy: Policy) -> bool {
        if let Some(id) = self.ids.get(&name) {
            self.policies.touch(*id, policy);
            return true;
        }
        let id = if self.names.len() < self.capacity {
            self.names.push(name);
            self.names.len() - 1
        } else {
            let victim = self.policies.next().unwrap();
            self.policies.evicted(victim);
            self.ids.remove(&std::mem::replace(&mut self.names[victim], name));
            victim
        };
        self.ids.insert(name, id);
        self.policies.insert(id, name, UNIT, policy);
        false
    }
}
