//! The I/O servers of the cluster: which store each of them has, how far it has come, and whether
//! it is up.
//!
//! **Why.** Data is mixed up or lost without an error if a server works with another directory than
//! before: an empty one because its disk is not mounted, another server's, a copy of one, or one
//! that was restored from an older copy. So an I/O server registers its store before it serves, and
//! is refused if the store cannot be the one that it had.
//!
//! **Going back in time.** Every store counts its starts, and draws a number for each ([`Start`]).
//! The manager records the last start of each I/O server, and the I/O server has it in its label.
//! The I/O server remembers the last start of the manager that has accepted it, and the manager has
//! all of its own in its database. A store, or a database, that was restored from a copy does not
//! know the start that the other side remembers. A copy that is as old as the last start knows it.
//! So the manager also compares the highest handle that the store has seen with those that had been
//! assigned when the manager was started. docs/filesystem.md says which copies remain undetected.
//!
//! **Who is up.** An I/O server registers again every [`ManagerSettings::heartbeat`]. It is up
//! while its connection is open and its last registration is at most [`MISSED`] heartbeats old.
//! After the manager has started, servers that have not registered yet are waited for, equally
//! long.
//!
//! **Layout**
//!
//! ```text
//!   members   I/O server → store, epoch and instance of its last start
//! ```
//!
//! [`ManagerSettings::heartbeat`]: super::ManagerSettings::heartbeat

use std::sync::{Arc, Weak};
use std::time::Duration;

use bmi::Time;
use bmi::hooks::{mutated, step};
use fs_proto::{ErrorCode, FsError, Registration, Start, StoreId};
use redb::{ReadableTable, TableDefinition, WriteTransaction};

use crate::manager::{Fault, is_open};
use crate::service::Session;

type Row = (u128, u64, u128);

pub(in crate::manager) const MEMBERS: TableDefinition<'static, u32, Row> = TableDefinition::new("members");

/// Number of heartbeats after which a server that was not heard of counts as down.
pub(super) const MISSED: u32 = 3;

/// What is recorded about an I/O server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manager) struct Recorded {
    pub(in crate::manager) store: StoreId,
    pub(in crate::manager) start: Start,
}

/// What the manager knows about an I/O server.
#[derive(Debug, Default)]
struct Member {
    recorded: Option<Recorded>,
    /// The connection of its last registration since the manager was started, and when that was.
    heard: Option<(Weak<Session>, Time)>,
    /// The connection of its last registration that was judged.
    judged: Option<Weak<Session>>,
}

/// The I/O servers.
#[derive(Debug)]
pub(in crate::manager) struct Members {
    list: Vec<Member>,
    /// When the manager was started.
    since: Time,
    /// How long a server that was not heard of counts as up.
    patience: Duration,
}

/// The manager's decision about a registration that it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manager) enum Verdict {
    /// The start is recorded already.
    Known,
    /// The store is the one that the server had, or it had none.
    Next,
    /// The store replaces the one that the server had, or an older state of itself takes its place.
    /// Nothing that was known of its datafiles holds.
    Replaced,
}

impl Members {
    /// Reads the records of `iods` servers.
    pub(in crate::manager) fn begin(
        transaction: &WriteTransaction,
        iods: usize,
        since: Time,
        heartbeat: Duration,
    ) -> Result<Members, Fault> {
        let table = transaction.open_table(MEMBERS)?;
        let mut list = Vec::new();
        for iod in 0..iods as u32 {
            let recorded = table.get(iod)?.map(|row| {
                let (store, epoch, instance) = row.value();
                Recorded { store: StoreId(store), start: Start { epoch, instance } }
            });
            list.push(Member { recorded, ..Member::default() });
        }
        Ok(Members { list, since, patience: heartbeat * MISSED })
    }

    /// Returns the store that a server registered.
    pub(in crate::manager) fn store(&self, iod: u32) -> Option<StoreId> {
        self.recorded(iod).map(|recorded| recorded.store)
    }

    /// Returns what is recorded about a server.
    pub(in crate::manager) fn recorded(&self, iod: u32) -> Option<Recorded> {
        self.list.get(iod as usize)?.recorded
    }

    /// Returns true if a server is up.
    pub(in crate::manager) fn is_up(&self, iod: u32, now: Time) -> bool {
        let member = &self.list[iod as usize];
        member.heard.as_ref().is_some_and(|(session, at)| is_open(session) && now.since(*at) <= self.patience)
    }

    /// Returns true if a server has not registered since the manager was started, and is waited
    /// for.
    pub(in crate::manager) fn is_awaited(&self, iod: u32, now: Time) -> bool {
        self.list[iod as usize].heard.is_none() && now.since(self.since) < self.patience
    }

    /// Decides about a registration.
    pub(in crate::manager) fn judge(&self, registration: &Registration) -> Result<Verdict, FsError> {
        let Registration { iod, store, start, offered, confirmed, replace, .. } = *registration;
        let refuse = |why: String| Err(FsError::new(ErrorCode::Invalid, why));
        let Some(member) = self.list.get(iod as usize) else {
            return refuse(format!("there is no iod {iod}; the manager's configuration has {}", self.list.len()));
        };
        let owner = |(_, other): &(usize, &Member)| {
            step();
            store.is_some() && other.recorded.is_some_and(|recorded| Some(recorded.store) == store)
        };
        // A store has one owner. A server that only says that it is up is compared with no other.
        let others = || self.list.iter().enumerate().filter(|(other, _)| *other != iod as usize);
        let is_own = store.is_some() && self.store(iod) == store && !mutated("manager/heartbeat-compared-with-all");
        let owner = if is_own { None } else { others().find(owner) };
        if let (Some((owner, _)), Some(store)) = (owner, store) {
            return refuse(format!("the directory of iod {iod} has store {store}, which is that of iod {owner}"));
        }
        let Some(recorded) = member.recorded else { return Ok(Verdict::Next) };
        if store == Some(recorded.store) {
            if recorded.start == start {
                return Ok(Verdict::Known);
            }
            // The store remembers the start that was recorded, so it is no older than that.
            if [offered, confirmed].contains(&Some(recorded.start)) || mutated("manager/older-store-is-accepted") {
                return Ok(Verdict::Next);
            }
        }
        if replace || mutated("manager/any-store-is-accepted") {
            return Ok(Verdict::Replaced);
        }
        match store {
            None => refuse(format!(
                "the directory of iod {iod} is empty, but it had store {}: is that disk mounted? If the disk is lost for \
                 good, `pvfsd iod {iod} --replace` begins with an empty one",
                recorded.store
            )),
            Some(store) if store == recorded.store => refuse(format!(
                "iod {iod}, store {store}: the manager has recorded its start {}, which this directory does not know: it \
                 has gone back in time. Was it restored from a copy? `pvfsd iod {iod} --replace` uses it all the same; \
                 what was written since the copy is then lost",
                recorded.start.epoch
            )),
            Some(store) => refuse(format!(
                "the directory of iod {iod} has store {store}, but it had store {}: is the right disk mounted? `pvfsd iod \
                 {iod} --replace` takes this one in its place",
                recorded.store
            )),
        }
    }

    /// Returns true if a registration is the newest of its server. Each connection begins with one
    /// that is only judged (`ready` false). A message of an earlier connection that comes late must
    /// not be recorded: the server has gone on from what was recorded before.
    pub(super) fn is_current(&mut self, iod: u32, session: &Arc<Session>, ready: bool) -> bool {
        let judged = &mut self.list[iod as usize].judged;
        if !ready {
            *judged = Some(Arc::downgrade(session));
        }
        judged.as_ref().is_some_and(|judged| std::ptr::eq(judged.as_ptr(), Arc::as_ptr(session)))
    }

    /// Records a store in a transaction. [`Members::note`] follows the commit.
    pub(in crate::manager) fn record(
        transaction: &WriteTransaction,
        iod: u32,
        recorded: Recorded,
    ) -> Result<(), Fault> {
        let Recorded { store, start } = recorded;
        transaction.open_table(MEMBERS)?.insert(iod, (store.0, start.epoch, start.instance))?;
        Ok(())
    }

    /// Remembers what was recorded.
    pub(in crate::manager) fn note(&mut self, iod: u32, recorded: Recorded) {
        self.list[iod as usize].recorded = Some(recorded);
    }

    /// A server has confirmed over this connection that it is up. Returns true if it was not up
    /// before.
    pub(in crate::manager) fn admit(&mut self, iod: u32, session: Weak<Session>, now: Time) -> bool {
        let was_up = self.is_up(iod, now);
        self.list[iod as usize].heard = Some((session, now));
        !was_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MetaStore;

    fn members() -> Members {
        let store = MetaStore::in_memory().unwrap();
        let transaction = store.write().unwrap();
        let start = |epoch| Start { epoch, instance: u128::from(epoch) };
        Members::record(&transaction, 0, Recorded { store: StoreId(7), start: start(3) }).unwrap();
        Members::record(&transaction, 1, Recorded { store: StoreId(8), start: start(3) }).unwrap();
        Members::begin(&transaction, 3, Time::from_nanos(0), Duration::from_secs(1)).unwrap()
    }

    /// A registration of a store that remembers its start `last`.
    fn registration(iod: u32, store: Option<u128>, last: u64) -> Registration {
        let start = |epoch| Start { epoch, instance: u128::from(epoch) };
        Registration {
            iod,
            store: store.map(StoreId),
            start: start(last + 1),
            offered: Some(start(last)),
            confirmed: None,
            manager: None,
            highest: fs_proto::DatafileHandle(0),
            replace: false,
            ready: true,
        }
    }

    #[test]
    fn another_store_than_before_is_refused_until_it_replaces_it() {
        let members = members();
        let judge = |registration: Registration| members.judge(&registration).map_err(|error| error.detail);
        assert_eq!(judge(registration(0, Some(7), 2)), Ok(Verdict::Known));
        assert_eq!(judge(registration(0, Some(7), 3)), Ok(Verdict::Next));
        let confirmed =
            Registration { confirmed: Some(Start { epoch: 3, instance: 3 }), ..registration(0, Some(7), 8) };
        assert_eq!(judge(confirmed), Ok(Verdict::Next), "started without the manager, or offered and not recorded");
        assert_eq!(judge(registration(2, None, 0)), Ok(Verdict::Next), "it never had one");
        assert_eq!(judge(registration(2, Some(9), 0)), Ok(Verdict::Next));
        for (registration, why) in [
            (registration(0, None, 0), "is that disk mounted?"),
            (registration(0, Some(9), 5), "is the right disk mounted?"),
            (registration(0, Some(7), 1), "gone back in time"),
            (registration(0, Some(7), 9), "gone back in time"),
            (registration(0, Some(8), 5), "that of iod 1"),
            (registration(2, Some(8), 5), "that of iod 1"),
            (registration(3, Some(9), 1), "there is no iod 3"),
        ] {
            let error = judge(registration.clone()).unwrap_err();
            assert!(error.contains(why) && !error.contains("  "), "{registration:?}: {error}");
        }
        // A copy that was started as often as the original.
        let copy = Registration { start: Start { epoch: 3, instance: 99 }, ..registration(0, Some(7), 2) };
        assert!(judge(copy).unwrap_err().contains("gone back in time"));
        let replacing = |registration: Registration| judge(Registration { replace: true, ..registration });
        for registration in [registration(0, None, 0), registration(0, Some(9), 0), registration(0, Some(7), 1)] {
            assert_eq!(replacing(registration), Ok(Verdict::Replaced));
        }
        assert_eq!(replacing(registration(0, Some(7), 3)), Ok(Verdict::Next), "it need not replace anything");
        assert!(replacing(registration(0, Some(8), 5)).is_err(), "that of another server stays its own");
    }

    #[test]
    fn a_server_is_up_while_it_is_heard_of() {
        let mut members = members();
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let session = Arc::new(Session::default());
        assert!(!members.is_up(0, at(10)) && members.is_awaited(0, at(2_900)) && !members.is_awaited(0, at(3_100)));
        assert!(members.admit(0, Arc::downgrade(&session), at(1_000)), "it was not up before");
        assert!(members.is_up(0, at(4_000)) && !members.is_awaited(0, at(1_000)));
        assert!(!members.admit(0, Arc::downgrade(&session), at(2_000)));
        assert!(!members.is_up(0, at(5_100)), "three heartbeats were missed");
        // A message of an earlier connection.
        let newer = Arc::new(Session::default());
        assert!(!members.is_current(0, &session, true), "it was not judged");
        assert!(members.is_current(0, &session, false) && members.is_current(0, &session, true));
        assert!(members.is_current(0, &newer, false) && !members.is_current(0, &session, true));
        assert!(members.is_current(0, &newer, true));
        drop(session);
        assert!(!members.is_up(0, at(2_001)), "its connection is gone");
    }
}
