//! The metadata as of one moment, in pages, for a backup or a check.
//!
//! **Why a read transaction.** The database keeps the pages that a reader may still read. So the
//! rows of a backup are of one moment, although changes go on, and no change waits for it.
//!
//! **Invariants**
//! 1. A host has at most one snapshot, and there are at most [`MOST`]. So no host keeps the others
//!    from making a backup. While a snapshot exists, the database cannot use the space of old pages
//!    again.
//! 2. A snapshot ends with its last page, with its connection, when nothing was requested for
//!    [`PATIENCE`], or when it is [`LIFE`] old. So a client that asks now and then does not keep it
//!    for ever.
//! 3. A page fits its reply. The work for it is bounded by its size.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bmi::Time;
use bmi::hooks::step;
use fs_proto::limits::MAX_BACKUP_PAGE;
use fs_proto::{ErrorCode, FsError, ManagerReply};

use super::row::{Row, push_row};
use crate::manager::commit::View;
use crate::manager::fleet::MEMBERS;
use crate::manager::tables::{COUNTERS, CheckFrom, NAMES, OBJECTS, ORPHANS, TRUNCATES, XATTRS, check_page};
use crate::manager::{Fault, is_open};
use crate::service::Session;

/// Most snapshots at the same time.
const MOST: usize = 2;
/// How long a snapshot is kept without a request.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a snapshot is kept at all. It is longer than the slowest backup that makes progress:
/// at one page of 1 MiB in a second it is for 21 GiB, the metadata of more than 50 million files.
const LIFE: Duration = Duration::from_hours(6);

/// What the pages are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manager) enum What {
    Backup,
    Check,
}

/// The first row that was not returned yet.
#[derive(Debug)]
enum Position {
    Check(CheckFrom),
    Counters(String),
    Members(u32),
    Objects(u64),
    Names(u64, Vec<u8>),
    Xattrs(u64, Vec<u8>),
    Orphans(u32, u64),
    Truncates(u32, u64),
    End,
}

struct Snapshot {
    session: Weak<Session>,
    transaction: View,
    position: Position,
    /// The number of the next page.
    next: u64,
    began: Time,
    used: Time,
}

/// The snapshots of all connections.
#[derive(Default)]
pub(in crate::manager) struct Snapshots(Vec<Snapshot>);

impl Snapshots {
    /// Ends the snapshots that are not in use any more.
    pub(in crate::manager) fn sweep(&mut self, now: Time) {
        self.0.retain(|snapshot| {
            let is_used = now.since(snapshot.used) < PATIENCE && now.since(snapshot.began) < LIFE;
            is_used && is_open(&snapshot.session)
        });
    }

    /// Ends all snapshots, because the database is about to be closed.
    pub(in crate::manager) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns a page for a connection, of at most `room` bytes. Page 0 begins a snapshot, of
    /// the `view`.
    pub(in crate::manager) fn page(
        &mut self,
        view: &View,
        session: &Arc<Session>,
        (what, page): (What, u64),
        room: usize,
        now: Time,
    ) -> Result<ManagerReply, Fault> {
        self.sweep(now);
        let own = Arc::downgrade(session);
        if page == 0 {
            self.0.retain(|snapshot| !snapshot.session.ptr_eq(&own));
            if let Some(host) = session.host().filter(|host| self.0.iter().any(|snapshot| snapshot.is_of(host))) {
                let text = format!(
                    "a backup or a check is being made from {host} already; wait until it has ended, or end it"
                );
                return Err(FsError::new(ErrorCode::Busy, text).into());
            }
            if self.0.len() >= MOST {
                let text = format!("{MOST} backups or checks are being made already; wait until one of them has ended");
                return Err(FsError::new(ErrorCode::Busy, text).into());
            }
            let position = match what {
                What::Backup => Position::Counters(String::new()),
                What::Check => Position::Check(CheckFrom::Begin),
            };
            let (session, transaction) = (own.clone(), view.clone());
            self.0.push(Snapshot { session, transaction, position, next: 0, began: now, used: now });
        }
        let is_next = |snapshot: &Snapshot| {
            let is_check = matches!(snapshot.position, Position::Check(_));
            snapshot.session.ptr_eq(&own) && snapshot.next == page && is_check == (what == What::Check)
        };
        let at = self.0.iter().position(is_next);
        let Some(at) = at else {
            let text = format!("page {page} of something that has ended, or is not at that page; begin again");
            return Err(FsError::new(ErrorCode::Stale, text).into());
        };
        let snapshot = &mut self.0[at];
        (snapshot.next, snapshot.used) = (page + 1, now);
        let (reply, more) = match &snapshot.position {
            Position::Check(from) => {
                let (rows, next) = check_page(&snapshot.transaction, from.clone(), room)?;
                snapshot.position = Position::Check(next);
                let more = !matches!(snapshot.position, Position::Check(CheckFrom::End));
                (ManagerReply::Check { rows, more }, more)
            }
            _ => {
                let rows = snapshot.fill(room.min(MAX_BACKUP_PAGE))?;
                let more = !matches!(snapshot.position, Position::End);
                (ManagerReply::Backup { rows, more }, more)
            }
        };
        if !more {
            self.0.remove(at);
        }
        Ok(reply)
    }
}

impl Snapshot {
    /// Returns true if a connection from this host has it.
    fn is_of(&self, host: &str) -> bool {
        self.session.upgrade().is_some_and(|session| session.host() == Some(host))
    }

    /// Returns the next rows, as many as fit.
    fn fill(&mut self, room: usize) -> Result<Vec<u8>, Fault> {
        let mut page = Vec::with_capacity(room);
        let from = std::mem::replace(&mut self.position, Position::End);
        self.position = self.rows(from, &mut |row| match push_row(&mut page, row, room) {
            Ok(false) if page.is_empty() => {
                let text = format!("a row of the metadata does not fit into a reply of {room} bytes");
                Err(FsError::new(ErrorCode::TooLarge, text).into())
            }
            Ok(fits) => Ok(fits),
            Err(error) => Err(Fault::Corrupt(error.to_string())),
        })?;
        Ok(page)
    }

    /// Passes rows to `push` until it returns false. Returns the position of that row.
    fn rows(&self, from: Position, push: &mut impl FnMut(&Row<'_>) -> Result<bool, Fault>) -> Result<Position, Fault> {
        let mut at = from;
        if let Position::Counters(from) = &at {
            for row in self.transaction.open_table(COUNTERS)?.range(from.as_str()..)? {
                let (name, value) = row?;
                if !push(&Row::Counter(name.value(), value.value()))? {
                    return Ok(Position::Counters(name.value().to_owned()));
                }
            }
            at = Position::Members(0);
        }
        if let Position::Members(from) = at {
            for row in self.transaction.open_table(MEMBERS)?.range(from..)? {
                let (iod, row) = row?;
                let (store, epoch, instance) = row.value();
                if !push(&Row::Member(iod.value(), store, epoch, instance))? {
                    return Ok(Position::Members(iod.value()));
                }
            }
            at = Position::Objects(0);
        }
        if let Position::Objects(from) = at {
            for row in self.transaction.open_table(OBJECTS)?.range(from..)? {
                let (raw, object) = row?;
                if !push(&Row::Object(raw.value(), object.value()))? {
                    return Ok(Position::Objects(raw.value()));
                }
            }
            at = Position::Names(0, Vec::new());
        }
        if let Position::Names(dir, name) = &at {
            for row in self.transaction.open_table(NAMES)?.range((*dir, name.as_slice())..)? {
                let (key, value) = row?;
                let ((dir, name), (raw, kind)) = (key.value(), value.value());
                if !push(&Row::Name(dir, name, raw, kind))? {
                    return Ok(Position::Names(dir, name.to_owned()));
                }
            }
            at = Position::Xattrs(0, Vec::new());
        }
        if let Position::Xattrs(raw, name) = &at {
            for row in self.transaction.open_table(XATTRS)?.range((*raw, name.as_slice())..)? {
                let (key, value) = row?;
                let (raw, name) = key.value();
                if !push(&Row::Xattr(raw, name, value.value()))? {
                    return Ok(Position::Xattrs(raw, name.to_owned()));
                }
            }
            at = Position::Orphans(0, 0);
        }
        if let Position::Orphans(iod, datafile) = at {
            for row in self.transaction.open_table(ORPHANS)?.range((iod, datafile)..)? {
                let (iod, datafile) = row?.0.value();
                if !push(&Row::Orphan(iod, datafile))? {
                    return Ok(Position::Orphans(iod, datafile));
                }
            }
            at = Position::Truncates(0, 0);
        }
        if let Position::Truncates(iod, datafile) = at {
            for row in self.transaction.open_table(TRUNCATES)?.range((iod, datafile)..)? {
                let (key, row) = row?;
                step();
                let ((iod, datafile), (size, error, _)) = (key.value(), row.value());
                // What is not decided is cancelled.
                let Some(size) = size else { continue };
                if !push(&Row::Truncate(iod, datafile, size, error))? {
                    return Ok(Position::Truncates(iod, datafile));
                }
            }
        }
        Ok(Position::End)
    }
}

#[cfg(test)]
mod tests {
    use fs_proto::{ClusterId, Place, StoreId};

    use super::*;
    use crate::manager::backup::file::{FORMAT, Header};
    use crate::manager::backup::import::Import;
    use crate::manager::backup::row::Rows;
    use crate::manager::tables::{Birth, Change};
    use crate::store::MetaStore;

    const BIRTH: Birth = Birth { mode: 0o755, uid: 1, gid: 2 };

    fn view(store: &MetaStore) -> View {
        store.read().unwrap().into()
    }

    fn mkdir(store: &MetaStore, name: &str) {
        let transaction = store.write().unwrap();
        Change::open(&transaction, 5).unwrap().mkdir(&Place::root(name), BIRTH).unwrap();
        transaction.open_table(MEMBERS).unwrap().insert(3, (7, 8, 9)).unwrap();
        transaction.open_table(ORPHANS).unwrap().insert((1, 77), ()).unwrap();
        let mut truncates = transaction.open_table(TRUNCATES).unwrap();
        truncates.insert((1, 78), (Some((8, 9)), Some(&[3, 0, 0][..]), false)).unwrap();
        truncates.insert((1, 79), (None, None, false)).unwrap();
        drop(truncates);
        transaction.commit().unwrap();
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn pages_are_of_one_moment_and_make_an_equal_database() {
        let store = MetaStore::in_memory().unwrap();
        crate::manager::format(&store, ClusterId(1), StoreId(2), &fs_proto::Caller::ROOT, 5).unwrap();
        (0..50).for_each(|number| mkdir(&store, &format!("dir{number:02}")));
        let (mut snapshots, session) = (Snapshots::default(), Arc::new(Session::default()));
        let copy = MetaStore::in_memory().unwrap();
        let header = Header { format: FORMAT, cluster: ClusterId(1), store: StoreId(2), epoch: 3, time_ns: 4 };
        let mut import = Import::begin(&copy, &header).unwrap();
        let mut page = 0;
        loop {
            let reply = snapshots.page(&view(&store), &session, (What::Backup, page), 200, at(page)).unwrap();
            let ManagerReply::Backup { rows, more } = reply else { panic!("{reply:?}") };
            assert!(rows.len() <= 200);
            for row in Rows(&rows) {
                assert!(import.add(&row.unwrap().1).unwrap());
            }
            mkdir(&store, &format!("later{page}"));
            page += 1;
            if !more {
                break;
            }
        }
        assert!(page > 5 && snapshots.0.is_empty());
        assert_eq!(import.finish(&copy).unwrap(), Some(51));
        let read = copy.read().unwrap();
        assert_eq!(crate::manager::tables::names::stat(&read).unwrap().dirs, 51);
        let (names, _) = crate::manager::tables::names::view(&read)
            .unwrap()
            .readdir(fs_proto::DirHandle::ROOT, b"", 1000, 1 << 20)
            .unwrap();
        assert!(names.len() == 50 && names.iter().all(|entry| entry.name.starts_with(b"dir")));
        let truncates = read.open_table(TRUNCATES).unwrap();
        assert_eq!(truncates.get((1, 78)).unwrap().unwrap().value(), (Some((8, 9)), Some(&[3, 0, 0][..]), false));
        assert!(truncates.get((1, 79)).unwrap().is_none(), "it was not decided");
        assert_eq!(read.open_table(MEMBERS).unwrap().get(3).unwrap().unwrap().value(), (7, 8, 9));
    }

    /// A regression test. A client that asked for a page a minute kept its snapshot for ever, and
    /// with two connections it kept the operator from making a backup.
    #[test]
    fn a_slow_client_does_not_keep_a_snapshot_for_ever_nor_others_from_a_backup() {
        let store = MetaStore::in_memory().unwrap();
        crate::manager::format(&store, ClusterId(1), StoreId(2), &fs_proto::Caller::ROOT, 5).unwrap();
        (0..800).for_each(|number| mkdir(&store, &format!("dir{number:03}")));
        let mut snapshots = Snapshots::default();
        let sessions = ["slow", "slow", "operator", "third"].map(|host| {
            let session = Arc::new(Session::default());
            session.seen_at(host);
            session
        });
        let mut page = |session: usize, page, seconds: u64| {
            let result =
                snapshots.page(&view(&store), &sessions[session], (What::Backup, page), 80, at(seconds * 1000));
            result.map(|_| ()).map_err(|fault| fault.into_error())
        };
        page(0, 0, 0).unwrap();
        let refused = page(1, 0, 0).unwrap_err();
        assert!(refused.code == ErrorCode::Busy && refused.detail.contains("from slow already"), "{refused}");
        page(2, 0, 0).unwrap();
        page(2, 0, 1).expect("the same connection begins again");
        assert_eq!(page(3, 0, 1).unwrap_err().code, ErrorCode::Busy);
        let minutes = LIFE.as_secs() / 59;
        (1..=minutes).for_each(|number| page(0, number, number * 59).unwrap());
        let refused = page(0, minutes + 1, (minutes + 1) * 59).unwrap_err();
        assert!(refused.code == ErrorCode::Stale && refused.detail.contains("begin again"), "{refused}");
        page(1, 0, (minutes + 1) * 59).expect("the first of this host has ended");
    }

    #[test]
    fn snapshots_are_few_and_end() {
        let store = MetaStore::in_memory().unwrap();
        crate::manager::format(&store, ClusterId(1), StoreId(2), &fs_proto::Caller::ROOT, 5).unwrap();
        (0..50).for_each(|number| mkdir(&store, &format!("dir{number:02}")));
        let mut snapshots = Snapshots::default();
        let sessions = [(); 3].map(|()| Arc::new(Session::default()));
        let mut page = |session: usize, page, ms| {
            let result = snapshots.page(&view(&store), &sessions[session], (What::Backup, page), 200, at(ms));
            result.map(|_| ()).map_err(|fault| fault.into_error().code)
        };
        assert_eq!(page(0, 0, 0), Ok(()));
        assert_eq!(page(1, 0, 0), Ok(()));
        assert_eq!(page(2, 0, 0), Err(ErrorCode::Busy));
        assert_eq!(page(0, 1, 30_000), Ok(()));
        assert_eq!(page(0, 1, 30_000), Err(ErrorCode::Stale), "a page comes once");
        assert_eq!(page(2, 0, 70_000), Ok(()), "the second has been idle for a minute");
        assert_eq!(page(1, 1, 70_000), Err(ErrorCode::Stale));
        assert_eq!(page(0, 2, 70_000), Ok(()));
        let (stat, gone) = (snapshots.0.len(), sessions);
        drop(gone);
        snapshots.sweep(at(70_000));
        assert_eq!((stat, snapshots.0.len()), (2, 0), "their connections are gone");
        // A row that has no room in a reply at all.
        let session = Arc::new(Session::default());
        let error = snapshots.page(&view(&store), &session, (What::Backup, 0), 6, at(0)).unwrap_err().into_error();
        assert_eq!(error.code, ErrorCode::TooLarge);
    }
}
