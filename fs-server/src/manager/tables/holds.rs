//! Which client has which file open, as far as the clients say so.
//!
//! **Why.** A program that has a file open can use it after its last name is gone. The manager
//! keeps such a file as long as a client holds it. Most files are never removed while they are
//! open, so holds are in memory: an open costs no commit.
//!
//! **Protocol**
//!
//! ```text
//!   client opens a file      Hold      noted here; the answer is the file as it is now
//!   its last name goes       Remove …  held: the file has no name any more, and belongs to its holders (`nameless`)
//!                                      not held: it is removed
//!   client has closed it     Release   the hold goes; of a file without a name, the last one removes it
//!   client is gone           after the time that files without a name are kept
//! ```
//!
//! **Invariants**
//! 1. A hold that was answered was noted before the group of changes that removes the file looked,
//!    or the answer is that the file is gone: who holds a file that is being removed ([`Fate`])
//!    waits for the end of the group.
//! 2. It is durable which clients have holds. If there were any when a start of the manager begins,
//!    every file counts as held by [`NOBODY`] for some time: the clients say again what they hold.
//! 3. A client holds at most [`MOST`] files, and those that it creates in the group that reaches
//!    it.
//! 4. The lock is held for a look or for one change, and nobody takes another lock meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bmi::Time;
use bmi::hooks::{mutated, step};
use fs_proto::Access;
use redb::{ReadTransaction, ReadableTable, TableDefinition};

use crate::lock::lock;
use crate::manager::Fault;

/// Most files that a client holds.
pub(in crate::manager) const MOST: usize = 1 << 16;

/// The clients that have holds, or had some lately.
pub(in crate::manager) const HOLDERS: TableDefinition<'static, u128, ()> = TableDefinition::new("holders");

/// The client that holds every file after a start. No client has this number.
pub(in crate::manager) const NOBODY: u128 = 0;

/// For how long it does. A client that uses files speaks to the manager more often than this.
pub(in crate::manager) const AGAIN: Duration = Duration::from_secs(60);

/// What the group of changes that is being made does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Removed,
    /// It stays without a name.
    Kept,
}

/// What became of a request to hold a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manager) enum Held {
    Yes,
    /// The file is being removed. It is known with the end of the group whether it was.
    Removed,
    TooMany,
}

/// The holds. A clone has the same ones.
#[derive(Clone, Debug, Default)]
pub(in crate::manager) struct Holds(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By file: its clients, and what each may do with it since it has opened it.
    held: BTreeMap<(u64, u128), Access>,
    /// By client: its files.
    files: BTreeMap<u128, BTreeSet<u64>>,
    fates: BTreeMap<u64, Fate>,
    /// The clients in the table of holders.
    known: BTreeSet<u128>,
    /// Until when [`NOBODY`] holds everything, and what it has is kept.
    until: Option<Time>,
}

impl State {
    fn hold(&mut self, file: u64, client: u128, access: Access) {
        self.files.entry(client).or_default().insert(file);
        let held = self.held.entry((file, client)).or_default();
        *held = held.and(access);
    }
}

impl Holds {
    /// The detail of the error of a client that would hold more than it may.
    pub(in crate::manager) const TOO_MANY: &str = "this client holds too many files";

    /// A start of the manager begins, with what earlier ones have left. Returns the clients that
    /// had holds.
    pub(in crate::manager) fn begin(&self, transaction: &ReadTransaction, now: Time) -> Result<BTreeSet<u128>, Fault> {
        let table = transaction.open_table(HOLDERS)?;
        let known = table.iter()?.map(|row| Ok(row?.0.value())).collect::<Result<BTreeSet<u128>, Fault>>()?;
        let mut state = lock(&self.0);
        state.until = (!known.is_empty()).then_some(now + AGAIN);
        state.known.clone_from(&known);
        Ok(known)
    }

    /// Returns true if the time is over in which [`NOBODY`] holds everything, and what it has was
    /// not given up yet.
    pub(in crate::manager) fn is_over(&self, now: Time) -> bool {
        lock(&self.0).until.is_some_and(|until| until <= now)
    }

    /// What [`NOBODY`] had was given up.
    pub(in crate::manager) fn given_up(&self) {
        lock(&self.0).until = None;
    }

    /// Returns true if a client is in the table of holders.
    pub(in crate::manager) fn knows(&self, client: u128) -> bool {
        lock(&self.0).known.contains(&client)
    }

    /// A client was added to the table of holders.
    pub(in crate::manager) fn learn(&self, client: u128) {
        lock(&self.0).known.insert(client);
    }

    /// Notes that a client holds a file.
    pub(in crate::manager) fn hold(&self, file: u64, client: u128) -> Held {
        let mut state = lock(&self.0);
        if state.fates.get(&file) == Some(&Fate::Removed) {
            return Held::Removed;
        }
        if state.files.get(&client).is_some_and(|files| files.len() >= MOST && !files.contains(&file)) {
            return Held::TooMany;
        }
        state.hold(file, client, Access::NONE);
        Held::Yes
    }

    /// Notes what a client that holds a file may do with it, whatever becomes of its mode.
    pub(in crate::manager) fn grant(&self, file: u64, client: u128, access: Access) {
        if let Some(held) = lock(&self.0).held.get_mut(&(file, client)) {
            *held = held.and(access);
        }
    }

    /// Returns what a client may do with a file because it has opened it.
    pub(in crate::manager) fn access(&self, file: u64, client: u128) -> Access {
        lock(&self.0).held.get(&(file, client)).copied().unwrap_or_default()
    }

    /// Returns true if a client can hold more files.
    pub(in crate::manager) fn has_room(&self, client: u128) -> bool {
        lock(&self.0).files.get(&client).is_none_or(|files| files.len() < MOST)
    }

    /// A client has created a file, and holds it. That was durably noted with the file.
    pub(in crate::manager) fn created(&self, file: u64, client: u128) {
        let mut state = lock(&self.0);
        state.known.insert(client);
        state.hold(file, client, Access::BOTH);
    }

    /// Notes that a client does not hold a file any more. Returns false if the file is losing its
    /// name right now: its end must then wait for that of the group.
    pub(in crate::manager) fn release(&self, file: u64, client: u128) -> bool {
        let mut state = lock(&self.0);
        state.held.remove(&(file, client));
        if let Some(files) = state.files.get_mut(&client) {
            files.remove(&file);
            if files.is_empty() {
                state.files.remove(&client);
            }
        }
        !state.fates.contains_key(&file)
    }

    /// A client is gone.
    pub(in crate::manager) fn release_all(&self, client: u128) {
        let mut state = lock(&self.0);
        state.known.remove(&client);
        for file in state.files.remove(&client).unwrap_or_default() {
            step();
            state.held.remove(&(file, client));
        }
    }

    /// Returns the holders of a file whose last name goes with this group of changes.
    pub(super) fn unnamed(&self, file: u64) -> Vec<u128> {
        let mut state = lock(&self.0);
        let mut holders: Vec<u128> =
            state.held.range((file, 0)..=(file, u128::MAX)).map(|((_, client), _)| *client).collect();
        if state.until.is_some() && !mutated("manager/start-forgets-who-has-files-open") {
            holders.push(NOBODY);
        }
        if mutated("manager/open-file-goes-with-its-name") {
            holders.clear();
        }
        state.fates.insert(file, if holders.is_empty() { Fate::Removed } else { Fate::Kept });
        holders
    }

    /// A group of changes has ended.
    pub(in crate::manager) fn group_ended(&self) {
        lock(&self.0).fates.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MetaStore;

    #[test]
    fn a_file_that_is_being_removed_is_not_held() {
        let holds = Holds::default();
        assert_eq!((holds.hold(1, 7), holds.unnamed(1), holds.unnamed(2)), (Held::Yes, vec![7], vec![]));
        assert_eq!((holds.hold(1, 8), holds.hold(2, 8)), (Held::Yes, Held::Removed));
        assert!(!holds.release(1, 8) && holds.release(3, 8));
        holds.group_ended();
        assert_eq!(holds.hold(2, 8), Held::Yes, "the group may have failed");
        holds.release_all(8);
        assert_eq!((holds.unnamed(2), holds.release(1, 7), holds.unnamed(1)), (vec![], true, vec![]));
        assert!(lock(&holds.0).files.is_empty());
    }

    #[test]
    fn everything_is_held_for_some_time_after_a_start_if_there_were_holds() {
        let (holds, start, store) = (Holds::default(), Time::from_nanos(5), MetaStore::in_memory().unwrap());
        let begin = || holds.begin(&store.read().unwrap(), start).unwrap();
        let transaction = store.write().unwrap();
        transaction.open_table(HOLDERS).unwrap();
        transaction.commit().unwrap();
        assert!(begin().is_empty());
        assert_eq!(holds.unnamed(1), [], "nobody had holds");
        let transaction = store.write().unwrap();
        transaction.open_table(HOLDERS).unwrap().insert(7, ()).unwrap();
        transaction.commit().unwrap();
        assert_eq!((begin(), holds.knows(7)), ([7].into(), true));
        assert_eq!((holds.unnamed(1), holds.is_over(start)), (vec![NOBODY], false));
        assert!(holds.is_over(start + AGAIN));
        holds.given_up();
        assert_eq!((holds.unnamed(1), holds.is_over(start + AGAIN)), (vec![], false));
    }

    #[test]
    fn a_client_has_a_most_of_holds() {
        let holds = Holds::default();
        assert!((0..MOST as u64).all(|file| holds.hold(file, 7) == Held::Yes));
        assert_eq!((holds.hold(0, 7), holds.hold(MOST as u64, 7)), (Held::Yes, Held::TooMany));
        assert_eq!(holds.hold(MOST as u64, 8), Held::Yes);
    }
}
