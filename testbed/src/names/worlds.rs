//! The exact model of the names that one worker alone uses: all states in which they can be.
//!
//! **Why worlds.** A rename that failed has happened or not: the file is at the old name or at the
//! new one, and is not lost. A set of states for each name would not show a lost file. So the model
//! is a set of worlds, each with the content of every name.
//!
//! **Invariants**
//! 1. After an acknowledged operation, each world is the one after it. Worlds in which it could not
//!    have succeeded are dropped.
//! 2. After a failed operation, each world is there twice: before and after. An operation of
//!    several changes may have made any of them.
//! 3. An acknowledged observation drops all worlds that it contradicts. If none is left, the file
//!    system is wrong.

use std::collections::{BTreeMap, BTreeSet};

use super::content::Content;

/// The content of each name. Absent names are not in it.
type World = BTreeMap<String, Content>;

/// A change of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The name has this content, whatever it was before.
    Put(String, Content),
    /// The name is absent; it must exist before.
    Remove(String),
    /// The name is absent, whatever it was before.
    Clear(String),
    /// The first name is moved to the second and replaces it.
    Rename(String, String),
    /// The file has this size.
    Truncate(String, u64),
}

impl Change {
    /// Returns the names that it changes.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Change::Put(name, _) | Change::Remove(name) | Change::Clear(name) | Change::Truncate(name, _) => vec![name],
            Change::Rename(from, to) => vec![from, to],
        }
    }

    /// Returns the world after the change, or `None` if it is not possible in this one.
    fn after(&self, world: &World) -> Option<World> {
        let mut world = world.clone();
        match self {
            Change::Put(name, content) => drop(world.insert(name.clone(), *content)),
            Change::Remove(name) => drop(world.remove(name)?),
            Change::Clear(name) => drop(world.remove(name)),
            Change::Rename(from, to) => {
                let content = world.remove(from)?;
                world.insert(to.clone(), content);
            }
            Change::Truncate(name, size) => {
                let content = world.get_mut(name)?;
                *content = content.truncated(*size);
            }
        }
        Some(world)
    }
}

/// Nothing in the model explains what was seen.
#[derive(Debug, PartialEq, Eq)]
pub struct Contradiction;

/// The possible worlds. There is always at least one.
#[derive(Clone, Debug)]
pub struct Worlds(BTreeSet<World>);

impl Worlds {
    /// Returns the model of names that do not exist.
    pub fn absent() -> Worlds {
        Worlds(BTreeSet::from([World::new()]))
    }

    /// Returns the number of worlds.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Records an operation that was acknowledged.
    pub fn acknowledged(&mut self, changes: &[Change]) -> Result<(), Contradiction> {
        let after = |world: &World| changes.iter().try_fold(world.clone(), |world, change| change.after(&world));
        self.replace(self.0.iter().filter_map(after).collect())
    }

    /// Records an operation that failed: each of its changes has been made or not.
    pub fn failed(&mut self, changes: &[Change]) {
        for change in changes {
            let after: Vec<World> = self.0.iter().filter_map(|world| change.after(world)).collect();
            self.0.extend(after);
        }
    }

    /// Records what was seen under a name: `is` returns true for a state that it can be.
    pub fn observed(&mut self, name: &str, is: impl Fn(Option<Content>) -> bool) -> Result<(), Contradiction> {
        // Most worlds share their states, and a comparison reads the whole file.
        let fits: BTreeSet<Option<Content>> = self.states(name).into_iter().filter(|state| is(*state)).collect();
        self.replace(self.0.iter().filter(|world| fits.contains(&world.get(name).copied())).cloned().collect())
    }

    fn replace(&mut self, worlds: BTreeSet<World>) -> Result<(), Contradiction> {
        if worlds.is_empty() {
            return Err(Contradiction);
        }
        self.0 = worlds;
        Ok(())
    }

    /// Returns the possible states of a name; `None` is an absent file.
    pub fn states(&self, name: &str) -> BTreeSet<Option<Content>> {
        self.0.iter().map(|world| world.get(name).copied()).collect()
    }

    /// Returns the content of a name if it is certain that the file exists, and with which content.
    pub fn certain(&self, name: &str) -> Option<Content> {
        let states = self.states(name);
        if states.len() == 1 { states.into_iter().next().flatten() } else { None }
    }

    /// Returns the names that can exist.
    pub fn names(&self) -> BTreeSet<String> {
        self.0.iter().flat_map(|world| world.keys().cloned()).collect()
    }

    /// Returns a name with more than one possible state, if there is one.
    pub fn unresolved(&self) -> Option<String> {
        self.names().into_iter().find(|name| self.states(name).len() > 1)
    }

    /// Removes a name from the model.
    pub fn forget(&mut self, name: &str) {
        let without =
            |world: &World| world.iter().filter(|(key, _)| *key != name).map(|(k, v)| (k.clone(), *v)).collect();
        self.0 = self.0.iter().map(without).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(version: u64) -> Content {
        Content::new("/a", version, 100 * version)
    }

    fn put(name: &str, number: u64) -> Change {
        Change::Put(name.to_owned(), version(number))
    }

    fn rename(from: &str, to: &str) -> Change {
        Change::Rename(from.to_owned(), to.to_owned())
    }

    fn exactly(state: Option<Content>) -> impl Fn(Option<Content>) -> bool {
        move |other| other == state
    }

    #[test]
    fn an_acknowledged_operation_leaves_one_state_and_a_failed_one_two() {
        let mut worlds = Worlds::absent();
        worlds.acknowledged(&[put("/a", 1)]).unwrap();
        assert_eq!(worlds.certain("/a"), Some(version(1)));
        worlds.failed(&[put("/a", 2)]);
        assert_eq!(worlds.states("/a"), BTreeSet::from([Some(version(1)), Some(version(2))]));
        assert_eq!((worlds.certain("/a"), worlds.unresolved().as_deref()), (None, Some("/a")));
        assert_eq!(worlds.clone().observed("/a", exactly(Some(version(3)))), Err(Contradiction));
        assert_eq!(worlds.clone().observed("/a", exactly(None)), Err(Contradiction));
        worlds.observed("/a", exactly(Some(version(1)))).unwrap();
        assert_eq!(
            (worlds.certain("/a"), worlds.unresolved()),
            (Some(version(1)), None),
            "the observation resolves it"
        );
        assert_eq!(worlds.observed("/a", exactly(Some(version(2)))), Err(Contradiction), "a late effect is noticed");
    }

    #[test]
    fn a_failed_rename_is_seen_at_both_names_or_at_none() {
        let mut before = Worlds::absent();
        before.acknowledged(&[put("/a", 1)]).unwrap();
        before.acknowledged(&[put("/b", 2)]).unwrap();
        before.failed(&[rename("/a", "/b")]);
        for (a, b) in [(Some(version(1)), Some(version(2))), (None, Some(version(1)))] {
            let mut worlds = before.clone();
            worlds.observed("/a", exactly(a)).unwrap();
            assert_eq!(worlds.states("/b"), BTreeSet::from([b]));
        }
        let mut lost = before.clone();
        lost.observed("/a", exactly(None)).unwrap();
        assert_eq!(lost.observed("/b", exactly(Some(version(2)))), Err(Contradiction), "version 1 is lost");
        let mut twice = before;
        twice.observed("/b", exactly(Some(version(1)))).unwrap();
        assert_eq!(twice.observed("/a", exactly(Some(version(1)))), Err(Contradiction), "version 1 is there twice");
    }

    #[test]
    fn what_cannot_have_succeeded_resolves_or_contradicts() {
        let mut worlds = Worlds::absent();
        assert_eq!(worlds.acknowledged(&[Change::Remove("/a".into())]), Err(Contradiction));
        worlds.failed(&[put("/a", 1)]);
        worlds.clone().acknowledged(&[rename("/a", "/b")]).unwrap();
        worlds.acknowledged(&[Change::Remove("/a".into())]).unwrap();
        assert_eq!((worlds.count(), worlds.names().len()), (1, 0));
        worlds.acknowledged(&[Change::Clear("/a".into())]).unwrap();
    }

    #[test]
    fn a_tree_that_failed_is_there_in_any_part() {
        let mut worlds = Worlds::absent();
        let tree = [put("/t/a", 1), put("/t/b", 2), put("/t/c", 3)];
        worlds.failed(&tree);
        assert_eq!(worlds.count(), 8);
        worlds.acknowledged(&tree).unwrap();
        assert_eq!(worlds.count(), 1);
        worlds.failed(&[Change::Clear("/t/a".into()), Change::Clear("/t/b".into())]);
        assert_eq!(worlds.count(), 4);
        worlds.observed("/t/a", exactly(None)).unwrap();
        assert_eq!((worlds.count(), worlds.certain("/t/c")), (2, Some(version(3))));
    }

    #[test]
    fn a_failed_truncation_is_whole() {
        let mut worlds = Worlds::absent();
        worlds.acknowledged(&[put("/a", 1)]).unwrap();
        worlds.failed(&[Change::Truncate("/a".into(), 40)]);
        let cut = version(1).truncated(40);
        assert_eq!(worlds.states("/a"), BTreeSet::from([Some(version(1)), Some(cut)]));
        worlds.observed("/a", |state| state.is_some_and(|content| content.is(&cut.bytes()))).unwrap();
        assert_eq!(worlds.certain("/a"), Some(cut));
    }

    #[test]
    fn a_forgotten_name_is_in_no_world() {
        let mut worlds = Worlds::absent();
        worlds.acknowledged(&[put("/b", 2)]).unwrap();
        worlds.failed(&[put("/a", 1)]);
        worlds.forget("/a");
        assert_eq!((worlds.count(), worlds.names()), (1, BTreeSet::from(["/b".to_owned()])));
    }
}
