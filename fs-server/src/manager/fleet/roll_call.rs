//! Asks all I/O servers how far they have come, before a manager starts over restored metadata.
//!
//! **Why.** Restored metadata has forgotten which handles were assigned after the copy, and how
//! often the manager was started. A manager that simply went on would assign handles again: two
//! files would share a datafile. The I/O servers know better. Each remembers the last start of
//! the manager and the highest handle that it has seen. So nothing is served until every I/O server
//! of the configuration has reported both.
//!
//! **How**
//!
//! ```text
//!   I/O server   Hello, with the last start of the manager that has accepted it
//!   manager      Busy: but the connection may register             (`Standing::gathering`)
//!   I/O server   Register, with its store and its highest handle
//!   manager      notes both; Busy, so that the server asks again later; Invalid if it is the wrong store
//!   …            when all have reported: one transaction, and the manager starts as usual
//! ```
//!
//! **Invariants**
//! 1. No client is served meanwhile.
//! 2. An I/O server that had a store reports with a store. An empty directory in its place says
//!    nothing about handles, so it is refused: its disk is not mounted.
//! 3. The next start of the manager and its next handle are above all that were reported. The
//!    reported starts of the manager are accepted from then on, although the database does not have
//!    them.
//! 4. Recorded sizes are forgotten: a file may have been written after the copy. Clients then ask
//!    the I/O servers.
//! 5. No datafile is removed because of restored metadata: the lists of datafiles to remove or to
//!    discard are of the copy's time, and are emptied. So is the list of files without a name: such
//!    a file may have been published since.
//! 6. Changes of size that were decided are carried out. If a server has done so since, its
//!    datafile is not prepared any more, and nothing happens to it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use bmi::{Endpoint, Incoming, Time};
use fs_proto::{
    COUNT_BITS, ErrorCode, FsError, Identity, MAX_EPOCH, ManagerRequest, Registration, Request, RequestBody, Role,
    Sender, Start,
};
use redb::{ReadableTable, WriteTransaction};
use tokio::sync::Notify;

use super::members::{Members, Recorded};
use crate::lock::lock;
use crate::manager::tables::{
    ASKED, COUNTERS, DISCARDS, NAMELESS, OBJECTS, ORPHANS, Object, POOLS, RESTORED, Stored, TRUNCATES, identity,
    not_formatted, objects_from,
};
use crate::manager::{Fault, ManagerIdentity, ManagerSettings};
use crate::service::{Answer, Context, Handler, Limits, Standing, serve_until};
use crate::store::MetaStore;

/// Largest count in a handle that is believed. The rest of the numbers lasts for ages, and no
/// report can use it up.
const MAX_COUNT: u64 = (1 << COUNT_BITS) - (1 << 36);

/// Number of objects that are looked at before some are changed.
const STEP: usize = 1024;

/// What a client is told.
const WHY: &str = "the manager was restored and waits until all I/O servers have reported";

/// What an I/O server has seen.
#[derive(Clone, Copy, Debug)]
struct Report {
    /// The epoch of the newest start of the manager.
    epoch: u64,
    /// The count in the highest handle.
    count: u64,
    /// The server's own last start that its store knows, if the store is the one of the record.
    known: Option<Recorded>,
}

/// The reports of the I/O servers. They may come over any event loop of the manager.
pub(crate) struct RollCall {
    identity: ManagerIdentity,
    members: Members,
    iods: u32,
    reports: Mutex<BTreeMap<u32, Report>>,
    news: Notify,
}

impl RollCall {
    /// Prepares to ask the I/O servers that `settings` name.
    ///
    /// # Errors
    /// `Invalid` if the database is not formatted; `Io`.
    pub(crate) fn new(store: &MetaStore, settings: &ManagerSettings, now: Time) -> Result<RollCall, FsError> {
        let begin = || {
            // Nothing is committed.
            let transaction = store.write()?;
            let Some((cluster, number)) = identity(&transaction)? else {
                return Err(not_formatted().into());
            };
            let members = Members::begin(&transaction, settings.iods.len(), now, settings.heartbeat)?;
            let epoch = transaction.open_table(COUNTERS)?.get("epoch")?.map_or(0, |epoch| epoch.value());
            let identity = ManagerIdentity { cluster, store: number, start: Start { epoch, instance: 0 } };
            Ok((identity, members))
        };
        let (identity, members) = begin().map_err(Fault::into_error)?;
        let iods = settings.iods.len() as u32;
        Ok(RollCall { identity, members, iods, reports: Mutex::default(), news: Notify::new() })
    }

    /// Returns whose database it is. The start is the last one of the copy.
    pub(crate) fn identity(&self) -> ManagerIdentity {
        self.identity
    }

    /// Returns the standing of the manager meanwhile.
    pub(crate) fn standing(identity: Identity) -> Standing {
        Standing::gathering(identity, WHY)
    }

    /// Answers until all I/O servers have reported, or until `stop` ends. Calls `progress` with the
    /// servers that are missing, whenever they are others. Returns whether all have reported.
    pub(crate) async fn hold(
        &self,
        endpoints: &[Endpoint],
        standing: &Standing,
        limits: Limits,
        progress: impl Fn(&str),
        stop: impl Future<Output = ()>,
    ) -> bool {
        serve_until(endpoints, self, standing, limits, self.complete(progress), stop).await.is_some()
    }

    async fn complete(&self, progress: impl Fn(&str)) {
        loop {
            let missing = self.missing();
            if missing.is_empty() {
                return;
            }
            let names: Vec<String> = missing.iter().map(|iod| format!("iod{iod}")).collect();
            progress(&format!("waiting for {}", names.join(", ")));
            while self.missing() == missing {
                self.news.notified().await;
            }
        }
    }

    fn missing(&self) -> Vec<u32> {
        let reports = lock(&self.reports);
        (0..self.iods).filter(|iod| !reports.contains_key(iod)).collect()
    }

    /// Notes what an I/O server has seen.
    fn note(&self, sender: Option<Sender>, registration: &Registration) -> Result<(), FsError> {
        let Registration { iod, store, offered, confirmed, manager, highest, .. } = *registration;
        let refuse = |text: String| Err(FsError::new(ErrorCode::Invalid, text));
        if !matches!(sender, Some(Sender::Server(Role::Iod(sender), _)) if sender == iod) {
            return refuse(format!("the registration of iod {iod} came over a connection of somebody else"));
        }
        // The record of a store may be as old as the copy. A store that knows no later start of its
        // own is older still.
        let known = offered.or(confirmed);
        let record = self.members.recorded(iod).filter(|record| store == Some(record.store));
        match record.filter(|record| known.is_some_and(|known| known.may_follow(&record.start))) {
            Some(record) => {
                self.members.judge(&Registration { confirmed: Some(record.start), ..registration.clone() })?
            }
            None => self.members.judge(registration)?,
        };
        let report = Report {
            epoch: manager.map_or(0, |start| start.epoch),
            count: highest.0 & ((1 << COUNT_BITS) - 1),
            known: record.zip(known).map(|(record, start)| Recorded { start, ..record }),
        };
        if report.epoch >= MAX_EPOCH || report.count > MAX_COUNT {
            return refuse(format!(
                "iod {iod} has seen start {} of the manager and {highest}; no manager gets that far: its {} is damaged",
                report.epoch,
                crate::store::IDENTITY,
            ));
        }
        lock(&self.reports).insert(iod, report);
        self.news.notify_one();
        Ok(())
    }

    /// Prepares the database for the next start, in one transaction.
    ///
    /// # Errors
    /// `Io`, `NoSpace`.
    pub(crate) fn conclude(&self, store: &MetaStore) -> Result<(), FsError> {
        // Other event loops may still note what they are told.
        let reports = lock(&self.reports).clone();
        let conclude = || {
            let transaction = store.write()?;
            {
                let mut counters = transaction.open_table(COUNTERS)?;
                let own = |name: &str| Ok::<u64, Fault>(counters.get(name)?.map_or(0, |value| value.value()));
                let (mut epoch, mut next) = (own("epoch")?, own("next")?);
                for (iod, Report { epoch: seen, count, known }) in &reports {
                    (epoch, next) = (epoch.max(*seen), next.max(count + 1));
                    // So that the manager knows the start that the store remembers.
                    known.map_or(Ok(()), |known| Members::record(&transaction, *iod, known))?;
                }
                // The manager counts its start from here.
                counters.insert("epoch", epoch)?;
                counters.insert(ASKED, epoch)?;
                counters.insert("next", next)?;
                counters.remove(RESTORED)?;
                transaction.open_table(POOLS)?.retain(|_, _| false)?;
                transaction.open_table(DISCARDS)?.retain(|_, _| false)?;
                transaction.open_table(ORPHANS)?.retain(|_, ()| false)?;
                transaction.open_table(TRUNCATES)?.retain(|_, (size, ..)| size.is_some())?;
                transaction.open_table(NAMELESS)?.retain(|_, ()| false)?;
                forget_sizes(&transaction)?;
            }
            transaction.commit()?;
            Ok(())
        };
        conclude().map_err(Fault::into_error)
    }
}

/// Forgets what is known about the content of all files, and all files without a name.
fn forget_sizes(transaction: &WriteTransaction) -> Result<(), Fault> {
    let mut objects = transaction.open_table(OBJECTS)?;
    let mut from = Some(0);
    while let Some(first) = from.take() {
        let page = objects_from(&objects, first, STEP)?;
        from = page.last().and_then(|(raw, _)| raw.checked_add(1));
        for (raw, object) in page {
            if object.is_nameless() {
                objects.remove(raw)?;
            } else if object.content != Stored::Shared {
                let bytes = postcard::to_stdvec(&Object { content: Stored::Shared, ..object });
                let bytes = bytes.map_err(|error| Fault::Corrupt(format!("object {raw}: {error}")))?;
                objects.insert(raw, bytes.as_slice())?;
            }
        }
    }
    Ok(())
}

#[async_trait(?Send)]
impl Handler for RollCall {
    async fn handle(&self, context: &Context, request: Request, _call: &Incoming) -> Answer {
        let noted = match &request.body {
            RequestBody::Manager(ManagerRequest::Register(registration)) => {
                self.note(context.hello().map(|hello| hello.sender), registration)
            }
            _ => Ok(()),
        };
        Answer::error(noted.err().unwrap_or_else(|| FsError::new(ErrorCode::Busy, WHY)))
    }
}

#[cfg(test)]
mod tests {
    use bmi::Addr;
    use fs_proto::{ClusterId, DatafileHandle, Existing, Place, RequestId, StoreId, handle_number};

    use super::*;
    use crate::manager::tables::{Birth, Change, NewFile, names};

    fn registration(iod: u32, store: Option<u128>, seen: u64, highest: u64) -> Registration {
        Registration {
            iod,
            store: store.map(StoreId),
            start: Start { epoch: 9, instance: 9 },
            offered: Some(Start { epoch: 8, instance: 8 }),
            confirmed: None,
            manager: Some(Start { epoch: seen, instance: 1 }),
            highest: DatafileHandle(highest),
            replace: false,
            ready: false,
        }
    }

    #[test]
    fn the_next_start_is_above_all_that_was_reported() {
        let store = MetaStore::in_memory().unwrap();
        crate::manager::format(&store, ClusterId(1), StoreId(2), &fs_proto::Caller::ROOT, 5).unwrap();
        let transaction = store.write().unwrap();
        Members::record(&transaction, 0, Recorded { store: StoreId(7), start: Start { epoch: 3, instance: 3 } })
            .unwrap();
        {
            let mut change = Change::open(&transaction, 5).unwrap();
            let birth = Birth { mode: 0o644, uid: 0, gid: 0 };
            let datafiles = |_, _| Ok((vec![(0, DatafileHandle(9)), (1, DatafileHandle(10))], 2));
            let new = |place, existing| NewFile {
                place,
                birth,
                strip_size: 0,
                default_strip: 4096,
                servers: 0,
                existing,
                small: false,
                by: RequestId { client: 1, seq: 1 },
            };
            let place = Place::root("file");
            let (file, _) = change.create(new(&place, Existing::Refuse), datafiles).unwrap();
            change.create(new(&place, Existing::Replace), datafiles).unwrap();
            change.record_size(file.handle.file().unwrap(), RequestId { client: 1, seq: 2 }, 77).unwrap();
        }
        transaction.open_table(ORPHANS).unwrap().insert((0, 5), ()).unwrap();
        transaction.open_table(POOLS).unwrap().insert((0, 5), 4).unwrap();
        transaction.open_table(DISCARDS).unwrap().insert((0, 5), 4).unwrap();
        transaction.open_table(COUNTERS).unwrap().insert(RESTORED, 1).unwrap();
        transaction.commit().unwrap();
        let settings = ManagerSettings::new(vec![Addr::tcp("a", 1), Addr::tcp("a", 2)]);
        let roll_call = RollCall::new(&store, &settings, Time::from_nanos(0)).unwrap();
        let note = |from, registration: Registration| {
            let sender = Some(Sender::Server(Role::Iod(from), registration.start));
            roll_call.note(sender, &registration).map_err(|error| error.detail)
        };
        assert!(note(1, registration(0, Some(7), 4, 77)).unwrap_err().contains("somebody else"));
        assert!(note(0, registration(0, None, 4, 77)).unwrap_err().contains("is that disk mounted?"));
        assert!(note(0, registration(0, Some(8), 4, 77)).unwrap_err().contains("is the right disk mounted?"));
        let older = Registration { offered: Some(Start { epoch: 2, instance: 2 }), ..registration(0, Some(7), 4, 77) };
        assert!(note(0, older).unwrap_err().contains("gone back in time"));
        assert!(note(0, registration(0, Some(7), MAX_EPOCH, 77)).unwrap_err().contains("no manager gets that far"));
        assert!(note(0, registration(0, Some(7), 1, u64::MAX)).unwrap_err().contains("no manager gets that far"));
        assert_eq!(roll_call.missing(), [0, 1]);
        note(0, registration(0, Some(7), 4, handle_number(3, 1000))).unwrap();
        note(1, Registration { manager: None, ..registration(1, None, 0, 0) }).unwrap();
        assert_eq!(roll_call.missing(), [] as [u32; 0], "the second one never had a store");
        let size = |store: &MetaStore| {
            let read = store.read().unwrap();
            let entry = names::view(&read).unwrap().lookup(&Place::root("file")).unwrap();
            (entry.handle, entry.recorded_size(), entry.layout.unwrap().datafiles().to_vec())
        };
        let before = size(&store);
        roll_call.conclude(&store).unwrap();
        assert_eq!((before.1, size(&store)), (Some(77), (before.0, None, before.2)), "it may have grown since");
        let read = store.read().unwrap();
        let counters = read.open_table(COUNTERS).unwrap();
        let counter = |name: &str| counters.get(name).unwrap().map(|value| value.value());
        assert_eq!((counter("epoch"), counter("next"), counter(RESTORED)), (Some(4), Some(1001), None));
        assert_eq!(counter(ASKED), Some(4));
        let members = read.open_table(crate::manager::fleet::members::MEMBERS).unwrap();
        assert_eq!(members.get(0).unwrap().unwrap().value(), (7, 8, 8), "the start that the store knows");
        assert!(members.get(1).unwrap().is_none());
        assert_eq!(read.open_table(ORPHANS).unwrap().iter().unwrap().count(), 0);
        assert_eq!(read.open_table(NAMELESS).unwrap().iter().unwrap().count(), 0);
        assert_eq!(read.open_table(OBJECTS).unwrap().iter().unwrap().count(), 2, "the root and the file");
        assert_eq!(read.open_table(POOLS).unwrap().iter().unwrap().count(), 0);
        assert_eq!(read.open_table(DISCARDS).unwrap().iter().unwrap().count(), 0);
    }
}
