//! The manager: namespace, attributes, layouts. It is never in the data path.
//!
//! **Why one commit for many changes.** A commit waits for the disk, and meanwhile more changes
//! arrive. They wait in a queue, and the next commit takes all of them, up to a limit. So changes
//! are durable before they are acknowledged, and many are possible per second.
//!
//! **Invariants**
//! 1. A change is durable before it is answered.
//! 2. A change is made once, even if its request arrives several times (`dedup`).
//! 3. No datafile is lost: it is in a pool (`pools`), belongs to a file, or is an orphan that will
//!    be removed from its I/O server (`maintenance`).
//! 4. An I/O server's store is the same as before, and no older (`members`).
//! 5. A manager that has gone back in time creates no file. It stops when an I/O server reports a
//!    start of the manager that it does not know, or a higher handle than it has assigned.
//! 6. A file is not seen until it is complete (`namespace/nameless.rs`, `owners`), and its size is
//!    changed at all of its servers or at none (`truncate`).
//! 7. Restored metadata is served only after all I/O servers have reported how far they have come
//!    (`roll_call`). Then it is compared with what they have (`inventory`).
//!
//! **Source.** [PVFS-IB §2.1].

mod convert;
mod creators;
mod dedup;
mod import;
mod inventory;
mod maintenance;
mod members;
mod namespace;
mod owners;
mod placement;
mod pools;
mod registration;
mod roll_call;
mod snapshot;
mod truncate;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bmi_core::comm::Incoming;
use bmi_core::mutated;
use bmi_core::{Addr, AsyncEndpoint, Scheme, Time, Transport};
use fs_proto::limits::{DEFAULT_STRIP, MAX_DATAFILES, MAX_ENTRIES, REPLY_ROOM};
use fs_proto::{
    ClusterId, ClusterInfo, DatafileHandle, Entry, ErrorCode, Existing, FsError, Handle, Hello, Identity, IodInfo,
    ManagerReply, ManagerRequest, Reply, ReplyBody, Request, RequestBody, RequestId, Sender, Start, StoreId, codec,
};
use redb::{ReadableTable, TableDefinition, WriteTransaction};
use tokio::sync::{Notify, oneshot};

use crate::service::{Answer, Context, Handler, Session};
use crate::store::MetaStore;
use creators::Creators;
use members::Members;
use namespace::{Birth, Change, NewFile, Publication};
use owners::Owners;
use placement::{Candidate, Unplaced, Wanted};
use pools::Pools;
use snapshot::Snapshots;
use truncate::Truncations;

pub(crate) use convert::{convert, layouts};
pub(crate) use import::Import;
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(crate) use namespace::fuzz_view;
pub(crate) use roll_call::RollCall;

/// Most changes that share one commit.
const GROUP: usize = 128;

/// How often an I/O server confirms that it is up.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long a file without a name outlives the connection of its client. Longer than it takes to
/// restart a manager or to repair a switch.
const NAMELESS_GRACE: Duration = Duration::from_secs(600);

/// The cluster and the store of a manager's database.
const IDENTITY: TableDefinition<'static, &'static str, u128> = TableDefinition::new("identity");

/// The counter that marks a database that was made from a backup, until the I/O servers were asked
/// (`roll_call`).
const RESTORED: &str = "restored";
/// The counter of the newest start up to which the I/O servers were asked (`roll_call`).
const ASKED: &str = "asked";

/// The starts of a manager's database: epoch and instance of each.
const STARTS: TableDefinition<'static, u64, u128> = TableDefinition::new("starts");

/// Settings of the manager.
#[derive(Clone, Debug)]
pub struct ManagerSettings {
    /// The addresses that the I/O servers are known by, in the order of their numbers in layouts.
    /// The order must never change once files exist.
    pub iods: Vec<Addr>,
    /// Strip size of files for which the client requests no other, in bytes.
    pub strip_size: u64,
    /// How often each I/O server confirms that it is up. A server that has missed three times is
    /// given no new files.
    pub heartbeat: Duration,
    /// Number of datafiles that each I/O server creates in advance at a time, at most
    /// [`MAX_DATAFILES`].
    pub pool: u32,
    /// A file without a name is removed when its client has had no connection for this long.
    pub nameless_grace: Duration,
}

impl ManagerSettings {
    /// Returns the default settings for these I/O servers.
    pub fn new(iods: Vec<Addr>) -> ManagerSettings {
        ManagerSettings {
            iods,
            strip_size: DEFAULT_STRIP,
            heartbeat: HEARTBEAT,
            pool: 1024,
            nameless_grace: NAMELESS_GRACE,
        }
    }
}

/// The reason why a request of the namespace failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The request is not possible. Nothing was written.
    Refused(FsError),
    /// The store failed. The transaction is lost.
    Store(redb::Error),
    /// The stored data is inconsistent. The transaction is lost. Of a group of changes, only the
    /// one that met it fails.
    Corrupt(String),
    /// The request is possible, but not yet: an I/O server must create datafiles first. Nothing was
    /// written.
    Later,
}

impl Fault {
    fn into_error(self) -> FsError {
        match self {
            Fault::Refused(error) => error,
            Fault::Store(error) => crate::store::fault(&error),
            Fault::Corrupt(what) => FsError::new(ErrorCode::Io, format!("the metadata is damaged: {what}")),
            Fault::Later => FsError::new(ErrorCode::Busy, "the I/O servers have no datafiles ready"),
        }
    }
}

impl From<FsError> for Fault {
    fn from(error: FsError) -> Fault {
        Fault::Refused(error)
    }
}

macro_rules! store_faults {
    ($($error:ty),*) => {
        $(impl From<$error> for Fault {
            fn from(error: $error) -> Fault {
                Fault::Store(error.into())
            }
        })*
    };
}
store_faults!(redb::Error, redb::StorageError, redb::TableError, redb::CommitError);

/// A change that waits for the next commit.
struct Waiting {
    id: RequestId,
    unanswered: u64,
    request: ManagerRequest,
    answer: oneshot::Sender<Vec<u8>>,
}

/// The manager. Pass it to [`crate::service::serve`].
pub struct Manager<T: Transport> {
    endpoint: AsyncEndpoint<T>,
    /// Endpoints for I/O servers that `endpoint` does not reach.
    others: Vec<(Scheme, AsyncEndpoint<T>)>,
    store: MetaStore,
    settings: ManagerSettings,
    wall: Box<dyn Fn() -> u64>,
    identity: ManagerIdentity,
    /// All starts of this database: epoch and instance.
    starts: BTreeMap<u64, u128>,
    /// Starts up to this epoch may also be those of metadata that was lost.
    asked: u64,
    /// The number of handles that had been assigned when this start began.
    assigned: u64,
    members: RefCell<Members>,
    pools: RefCell<Pools>,
    creators: RefCell<Creators>,
    waiting: RefCell<VecDeque<Waiting>>,
    /// Changes that need datafiles which are not ready.
    deferred: RefCell<Vec<Waiting>>,
    /// Clients that made changes over a connection that may still exist.
    connected: RefCell<BTreeMap<u128, Weak<Session>>>,
    snapshots: RefCell<Snapshots>,
    owners: RefCell<Owners>,
    truncations: Truncations<T>,
    work: Notify,
    /// I/O servers that could not create datafiles the last time, with their errors.
    failing: RefCell<BTreeMap<u32, FsError>>,
    /// There may be something to do at an I/O server.
    maintenance: Notify,
    /// The reason why this manager must stop.
    failure: RefCell<Option<FsError>>,
    failed: Notify,
}

/// Who a manager is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerIdentity {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its store: the database.
    pub store: StoreId,
    /// Its current start.
    pub start: Start,
}

/// Creates an error that names a manager's directory.
pub(crate) fn invalid_directory(dir: &std::path::Path, why: &str) -> FsError {
    FsError::new(ErrorCode::Invalid, format!("data directory {}: {why}", dir.display()))
}

/// Formats the database of a new cluster.
///
/// # Errors
/// `Invalid` if it is formatted already; `Io`, `NoSpace`.
pub fn format(store: &MetaStore, cluster: ClusterId, number: StoreId, now_ns: u64) -> Result<(), FsError> {
    let format = || {
        let transaction = store.write()?;
        if let Some((found, ..)) = identity(&transaction)? {
            let text = format!("the database is that of cluster {found} already");
            return Err(FsError::new(ErrorCode::Invalid, text).into());
        }
        {
            let mut table = transaction.open_table(IDENTITY)?;
            table.insert("cluster", cluster.0)?;
            table.insert("store", number.0)?;
            Change::open(&transaction, now_ns)?;
        }
        transaction.commit()?;
        Ok::<(), Fault>(())
    };
    format().map_err(Fault::into_error)
}

/// Returns the cluster and the store of a database; `None` if it is not formatted.
fn identity(transaction: &WriteTransaction) -> Result<Option<(ClusterId, StoreId)>, Fault> {
    let table = transaction.open_table(IDENTITY)?;
    let number = |name: &str| Ok::<_, Fault>(table.get(name)?.map(|number| number.value()));
    Ok(number("cluster")?.zip(number("store")?).map(|(cluster, store)| (ClusterId(cluster), StoreId(store))))
}

impl<T: Transport> Manager<T> {
    /// Creates a manager over `store`, which [`format()`] has formatted, and begins its next start.
    /// `instance` is drawn at random. `wall` returns the time for attributes, in nanoseconds since
    /// 1970. A program passes the system's clock, the simulator its own.
    ///
    /// # Errors
    /// `Invalid` without I/O servers, with a strip size out of bounds, or with a store that is not
    /// formatted; `Io` if the store cannot be prepared.
    pub fn new(
        endpoint: AsyncEndpoint<T>,
        store: MetaStore,
        settings: ManagerSettings,
        instance: u128,
        wall: impl Fn() -> u64 + 'static,
    ) -> Result<Manager<T>, FsError> {
        let servers = u32::try_from(settings.iods.len()).unwrap_or(u32::MAX);
        fs_proto::Distribution::simple_stripe(settings.strip_size, servers)?;
        if !(1..=MAX_DATAFILES as u32).contains(&settings.pool) {
            let text = format!("pools of {} datafiles; there must be from 1 to {MAX_DATAFILES}", settings.pool);
            return Err(FsError::new(ErrorCode::Invalid, text));
        }
        let begun = begin(&store, &settings, instance, endpoint.now(), wall()).map_err(Fault::into_error)?;
        let Begun { identity, starts, asked, assigned, members, pools } = begun;
        let owners = Owners::begin(&store, endpoint.now()).map_err(Fault::into_error)?;
        Ok(Manager {
            endpoint,
            others: Vec::new(),
            store,
            settings,
            wall: Box::new(wall),
            identity,
            starts,
            asked,
            assigned,
            members: RefCell::new(members),
            pools: RefCell::new(pools),
            creators: RefCell::default(),
            waiting: RefCell::default(),
            deferred: RefCell::default(),
            connected: RefCell::default(),
            snapshots: RefCell::default(),
            owners: RefCell::new(owners),
            truncations: Truncations::new(identity.start.epoch),
            work: Notify::new(),
            failing: RefCell::default(),
            maintenance: Notify::new(),
            failure: RefCell::default(),
            failed: Notify::new(),
        })
    }

    /// Returns who this manager is.
    pub fn identity(&self) -> ManagerIdentity {
        self.identity
    }

    /// Waits until the manager finds that it must not serve, and returns the reason.
    pub async fn failure(&self) -> FsError {
        loop {
            let failed = self.failed.notified();
            if let Some(error) = self.failure.borrow().clone() {
                return error;
            }
            failed.await;
        }
    }

    /// Stops serving for good.
    fn fail(&self, error: &FsError) {
        if self.failure.borrow().is_none() {
            tracing::error!(%error, "the manager stops");
            *self.failure.borrow_mut() = Some(error.clone());
        }
        self.failed.notify_waiters();
    }

    /// Returns true if it is not known what the disk has of the metadata. The manager has failed,
    /// and its next start reads it.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.store.doubt().is_some()
    }

    fn iods(&self) -> u32 {
        self.settings.iods.len() as u32
    }

    /// Returns true if an I/O server is up.
    fn is_up(&self, iod: u32) -> bool {
        self.members.borrow().is_up(iod, self.endpoint.now())
    }

    /// Runs `work` in a transaction of its own.
    fn transact<R>(&self, work: impl FnOnce(&WriteTransaction) -> Result<R, Fault>) -> Result<R, Fault> {
        let transaction = self.store.write()?;
        let result = work(&transaction)?;
        transaction.commit()?;
        Ok(result)
    }

    /// Adds an endpoint for I/O servers whose addresses are of `scheme`.
    #[must_use]
    pub fn with_endpoint(mut self, scheme: Scheme, endpoint: AsyncEndpoint<T>) -> Manager<T> {
        self.others.push((scheme, endpoint));
        self
    }

    /// Returns the endpoint that reaches `addr`.
    fn towards(&self, addr: &Addr) -> &AsyncEndpoint<T> {
        let other = self.others.iter().find(|(scheme, _)| *scheme == addr.scheme());
        other.map_or(&self.endpoint, |(_, endpoint)| endpoint)
    }

    /// Commits the waiting changes, in an endless loop.
    async fn commit(&self) {
        loop {
            self.work.notified().await;
            loop {
                let group: Vec<Waiting> = {
                    let mut waiting = self.waiting.borrow_mut();
                    let count = waiting.len().min(GROUP);
                    waiting.drain(..count).collect()
                };
                if group.is_empty() {
                    break;
                }
                let answers = self.change(&group);
                for (waiting, answer) in group.into_iter().zip(answers) {
                    match answer {
                        // The receiver is gone if the server is stopping.
                        Some(answer) => drop(waiting.answer.send(answer)),
                        None => self.deferred.borrow_mut().push(waiting),
                    }
                }
                self.maintenance.notify_waiters();
            }
        }
    }

    /// Lets a change be made with the next commit, and returns its answer.
    async fn queue(&self, id: RequestId, unanswered: u64, request: ManagerRequest, deadline: Time) -> Answer {
        let (answer, done) = oneshot::channel();
        self.waiting.borrow_mut().push_back(Waiting { id, unanswered, request, answer });
        self.work.notify_one();
        tokio::select! {
            biased;
            reply = done => match reply {
                Ok(reply) => Answer::Encoded(reply),
                Err(_) => Answer::error(FsError::new(ErrorCode::Unreachable, "the manager is stopping")),
            },
            // Only a change that needs datafiles waits that long. It is not made any more: its
            // receiver is gone.
            () = self.endpoint.sleep_until(deadline) => Answer::error(Fault::Later.into_error()),
        }
    }

    /// Tries the deferred changes again, except those whose requests have ended.
    fn retry_deferred(&self) {
        let mut deferred = std::mem::take(&mut *self.deferred.borrow_mut());
        deferred.retain(|waiting| !waiting.answer.is_closed());
        if !deferred.is_empty() {
            self.waiting.borrow_mut().extend(deferred);
            self.work.notify_one();
        }
    }

    /// Tries the deferred changes again from time to time, in an endless loop: servers that are
    /// waited for may turn out to be down. Also ends what clients have left behind: snapshots, and
    /// files without a name.
    async fn watch_deferred(&self) {
        loop {
            self.endpoint.sleep(self.settings.heartbeat).await;
            self.snapshots.borrow_mut().sweep(self.endpoint.now());
            self.retry_deferred();
            if let Err(fault) = self.sweep_nameless() {
                let error = self.settle(fault);
                tracing::warn!(%error, "files without a name are removed later");
            }
        }
    }

    /// Converts a fault to the error for a request, and closes the store if it failed. The
    /// transaction is over. If it is not known what the store's disk has, the manager stops: only
    /// its next start reads from the disk what was stored.
    fn settle(&self, fault: Fault) -> FsError {
        if let Some(error) = self.store.doubt() {
            self.fail(&error);
            // The change may have been made. The next start of the manager tells, if its request
            // comes again.
            return FsError::new(ErrorCode::Unreachable, error.detail);
        }
        if let Fault::Store(_) = fault
            && !mutated("manager/failed-store-kept")
        {
            // They would keep the database open.
            self.snapshots.borrow_mut().clear();
            self.store.close_failed();
        }
        fault.into_error()
    }

    /// Makes a group of changes in one transaction. Returns their encoded answers, or `None` for
    /// those that must wait for datafiles.
    ///
    /// A change that meets stored data which cannot be read fails alone. What it has written so far
    /// is dropped with the transaction, and the others are made again without it.
    fn change(&self, group: &[Waiting]) -> Vec<Option<Vec<u8>>> {
        let mut failed = BTreeMap::new();
        loop {
            let mut at = None;
            let fault = match self.try_change(group, &failed, &mut at) {
                Ok(answers) => return answers,
                Err(fault) => fault,
            };
            self.pools.borrow_mut().undo();
            if let (Fault::Corrupt(_), Some(at)) = (&fault, at) {
                let error = fault.into_error();
                tracing::error!(%error, request = group[at].request.name(), "a change failed");
                failed.insert(at, codec::encode_reply(&Reply { result: Err(error) }));
                continue;
            }
            let error = self.settle(fault);
            tracing::error!(%error, changes = group.len(), "a commit failed; its changes were not made");
            let reply = codec::encode_reply(&Reply { result: Err(error) });
            return group.iter().map(|_| Some(reply.clone())).collect();
        }
    }

    /// Makes those changes of a group that have not `failed` before with these answers. Sets `at`
    /// to the number of the change that a fault comes from.
    fn try_change(
        &self,
        group: &[Waiting],
        failed: &BTreeMap<usize, Vec<u8>>,
        at: &mut Option<usize>,
    ) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        let mut transaction = self.store.write()?;
        if mutated("manager/answers-before-it-is-synced") {
            // This fails only for a transaction with savepoints.
            let _ = transaction.set_durability(redb::Durability::None);
        }
        let mut answers = Vec::with_capacity(group.len());
        {
            let mut change = Change::open(&transaction, (self.wall)())?;
            let mut dedup = dedup::Dedup::open(&transaction, dedup::CLIENTS)?;
            for (index, waiting) in group.iter().enumerate() {
                if waiting.answer.is_closed() {
                    // Its client was told that it was not made.
                    answers.push(None);
                    continue;
                }
                if let Some(answer) = failed.get(&index) {
                    answers.push(Some(answer.clone()));
                    continue;
                }
                *at = Some(index);
                answers.push(match self.once(&mut change, &mut dedup, waiting) {
                    Ok(answer) => Some(answer),
                    Err(Fault::Later) => None,
                    Err(fault) => return Err(fault),
                });
            }
        }
        *at = None;
        self.pools.borrow().store(&transaction)?;
        transaction.commit()?;
        self.pools.borrow_mut().committed();
        Ok(answers)
    }

    /// Makes one change, unless it was made before. Returns the encoded answer.
    fn once(&self, change: &mut Change<'_>, dedup: &mut dedup::Dedup<'_>, waiting: &Waiting) -> Result<Vec<u8>, Fault> {
        let encode = |result: Result<ManagerReply, FsError>| {
            codec::encode_reply(&Reply { result: result.map(ReplyBody::Manager) })
        };
        match dedup.recall(waiting.id, waiting.unanswered) {
            Ok(Some(answer)) if !mutated("manager/change-made-twice") => return Ok(answer),
            Ok(Some(_)) => {}
            Ok(None) => {}
            Err(Fault::Refused(error)) => return Ok(encode(Err(error))),
            Err(fault) => return Err(fault),
        }
        let answer = match self.apply(change, waiting.id.client, &waiting.request) {
            Ok(reply) => encode(Ok(reply)),
            Err(Fault::Refused(error)) => encode(Err(error)),
            Err(fault) => return Err(fault),
        };
        if !mutated("manager/reply-not-remembered") {
            let connected = self.connected.borrow();
            let is_connected = |client: u128| connected.get(&client).is_some_and(is_open);
            dedup.remember(waiting.id, waiting.unanswered, &answer, is_connected)?;
        }
        Ok(answer)
    }

    /// Records that a client makes changes over a connection.
    fn note_client(&self, client: u128, session: &Rc<Session>) {
        let mut connected = self.connected.borrow_mut();
        // Sweep each time the table has doubled.
        let full = connected.len() >= 64 && connected.len().is_power_of_two();
        if full && !connected.contains_key(&client) {
            connected.retain(|_, session| is_open(session));
        }
        connected.insert(client, Rc::downgrade(session));
    }

    /// Returns the connection over which a client makes changes.
    fn session_of(&self, client: u128) -> Option<Rc<Session>> {
        self.connected.borrow().get(&client).and_then(Weak::upgrade)
    }

    /// Carries out a change, and answers.
    async fn carry_out(&self, id: RequestId, unanswered: u64, body: ManagerRequest, deadline: Time) -> Answer {
        let ManagerRequest::Truncate { file, size } = body else {
            return self.queue(id, unanswered, body, deadline).await;
        };
        // If it was decided before, no server needs to prepare it again.
        match self.store.read().map_err(Fault::from).and_then(|read| dedup::answer(&read, id)) {
            Ok(Some(answer)) => return Answer::Encoded(answer),
            Ok(None) => {}
            Err(fault) => return Answer::error(self.settle(fault)),
        }
        let decide = self.queue(id, unanswered, body, deadline);
        self.truncate(file, size, deadline, decide).await.unwrap_or_else(Answer::error)
    }

    fn apply(&self, change: &mut Change<'_>, client: u128, request: &ManagerRequest) -> Result<ManagerReply, Fault> {
        let reply = match request {
            ManagerRequest::Mkdir { place, mode, uid, gid } => {
                ManagerReply::Entry(change.mkdir(place, Birth { mode: *mode, uid: *uid, gid: *gid })?)
            }
            ManagerRequest::Create { place, mode, uid, gid, strip_size, servers, avoid, existing } => {
                let birth = Birth { mode: *mode, uid: *uid, gid: *gid };
                let default_strip = self.settings.strip_size;
                let (strip_size, servers, existing) = (*strip_size, *servers, *existing);
                let new = NewFile { place, birth, strip_size, default_strip, servers, existing, client };
                let (entry, created) = change.create(new, |created, wanted| self.place(created, wanted, avoid))?;
                match created {
                    true => self.creators.borrow_mut().created(entry.handle.raw(), client),
                    false => self.seen(&entry, client),
                }
                if existing == Existing::Replace {
                    self.owners.borrow_mut().note(client, self.endpoint.now());
                    self.session_of(client).inspect(|session| session.draft_begun());
                }
                ManagerReply::Entry(entry)
            }
            ManagerRequest::Publish { file, place, inherit, mode, mtime_ns, size } => {
                let (file, inherit) = (*file, *inherit);
                let how = Publication { file, place, inherit, mode: *mode, mtime_ns: *mtime_ns, size: *size };
                let entry = change.publish(client, how)?;
                self.session_of(client).inspect(|session| session.draft_ended());
                ManagerReply::Entry(entry)
            }
            ManagerRequest::Abandon { file } => {
                change.abandon(client, *file)?;
                self.session_of(client).inspect(|session| session.draft_ended());
                ManagerReply::Done
            }
            ManagerRequest::Truncate { file, size } => {
                change.truncate(*file, *size)?;
                ManagerReply::Done
            }
            ManagerRequest::RecordSize { file, size } => {
                let may = size.is_none() || self.creators.borrow().is_only_known_to(file.0, client);
                if may && !(size.is_none() && mutated("manager/recorded-size-kept")) {
                    change.record_size(*file, *size)?;
                }
                ManagerReply::Done
            }
            ManagerRequest::Setattr { handle, set } => ManagerReply::Entry(change.setattr(*handle, set)?),
            ManagerRequest::Rename { from, to } => {
                change.rename(from, to)?;
                ManagerReply::Done
            }
            ManagerRequest::Remove { place, kind } => {
                change.remove(place, *kind)?;
                ManagerReply::Done
            }
            other => return Err(FsError::new(ErrorCode::Invalid, format!("{} changes nothing", other.name())).into()),
        };
        Ok(reply)
    }

    /// Takes datafiles for a new file from the pools.
    fn place(&self, created: u64, wanted: Wanted, avoid: &[u32]) -> Result<Vec<(u32, DatafileHandle)>, Fault> {
        let (members, now) = (self.members.borrow(), self.endpoint.now());
        let mut pools = self.pools.borrow_mut();
        let candidate = |iod| Candidate {
            up: members.is_up(iod, now),
            awaited: members.is_awaited(iod, now),
            prepared: pools.left(iod) > 0,
            failing: self.failing.borrow().contains_key(&iod),
            avoided: avoid.contains(&iod),
        };
        let candidates: Vec<Candidate> = (0..self.iods()).map(candidate).collect();
        let iods = match placement::place(&candidates, created, wanted) {
            Ok(iods) => iods,
            Err(Unplaced::Later) => return Err(Fault::Later),
            Err(Unplaced::Refused(error)) => return Err(Fault::Refused(error)),
            Err(Unplaced::Failing(iod)) => {
                let error = self.failing.borrow().get(&iod).cloned();
                let error = error.unwrap_or_else(|| Fault::Later.into_error());
                let text = format!("iod {iod} cannot create datafiles: {}", error.detail);
                return Err(Fault::Refused(FsError::new(error.code, text)));
            }
        };
        let take = |iod| Some((iod, pools.take(iod)?));
        iods.into_iter().map(take).collect::<Option<Vec<_>>>().ok_or(Fault::Later)
    }

    /// Records that a client has learned where a file is.
    fn seen(&self, entry: &Entry, client: u128) {
        if let Handle::File(file) = entry.handle {
            self.creators.borrow_mut().seen(file.0, client);
        }
    }

    /// Answers a request that changes nothing. The reply has `room` bytes.
    fn look(&self, client: u128, request: &ManagerRequest, room: usize) -> Result<ManagerReply, Fault> {
        let transaction = || Ok::<_, Fault>(self.store.read()?);
        Ok(match request {
            ManagerRequest::Ping => ManagerReply::Done,
            ManagerRequest::Lookup { place } => {
                let entry = namespace::view(&transaction()?)?.lookup(place)?;
                self.seen(&entry, client);
                ManagerReply::Entry(entry)
            }
            ManagerRequest::Getattr { handle } => {
                let entry = namespace::view(&transaction()?)?.getattr(*handle)?;
                self.seen(&entry, client);
                ManagerReply::Entry(entry)
            }
            ManagerRequest::Readdir { dir, after, max } => {
                let max = (*max as usize).min(MAX_ENTRIES);
                let (entries, more) = namespace::view(&transaction()?)?.readdir(*dir, after, max, room)?;
                ManagerReply::Entries { entries, more }
            }
            ManagerRequest::Statfs => {
                let stat = namespace::stat(&transaction()?)?;
                ManagerReply::Stat(fs_proto::ManagerStat { prepared: self.pools.borrow().total(), ..stat })
            }
            ManagerRequest::Cluster { first } => ManagerReply::Cluster(self.cluster(*first as usize, room)),
            other => return Err(FsError::new(ErrorCode::Invalid, format!("{} changes something", other.name())).into()),
        })
    }

    /// Returns the I/O servers from `first` on, as many as fit into a reply of `room` bytes.
    fn cluster(&self, first: usize, room: usize) -> ClusterInfo {
        let (members, now, mut left) = (self.members.borrow(), self.endpoint.now(), room);
        let iods = self.settings.iods.iter().enumerate().skip(first).take_while(|(index, addr)| {
            // Beside the text: lengths, the number of the store, and whether the server is up.
            let needed = addr.to_string().len() + 24;
            let fits = needed <= left || *index == first;
            left = left.saturating_sub(needed);
            fits
        });
        let info = |(index, addr): (usize, &Addr)| {
            let iod = index as u32;
            IodInfo { addr: addr.clone(), store: members.store(iod), up: members.is_up(iod, now) }
        };
        ClusterInfo { iods: iods.map(info).collect(), total: self.iods(), strip_size: self.settings.strip_size }
    }
}

fn is_open(session: &Weak<Session>) -> bool {
    session.upgrade().is_some_and(|session| session.is_open())
}

fn not_formatted() -> FsError {
    FsError::new(ErrorCode::Invalid, "the database is not formatted; a new cluster begins with `pvfsd format`")
}

/// What a manager knows when a start begins.
struct Begun {
    identity: ManagerIdentity,
    starts: BTreeMap<u64, u128>,
    asked: u64,
    assigned: u64,
    members: Members,
    pools: Pools,
}

/// Begins the next start of a database: counts it, and creates the tables, so that readers find
/// them.
fn begin(
    store: &MetaStore,
    settings: &ManagerSettings,
    instance: u128,
    now: bmi_core::Time,
    now_ns: u64,
) -> Result<Begun, Fault> {
    let transaction = store.write()?;
    let Some((cluster, number)) = identity(&transaction)? else {
        return Err(not_formatted().into());
    };
    let (restored, asked) = {
        let counters = transaction.open_table(namespace::COUNTERS)?;
        (counters.get(RESTORED)?.is_some(), counters.get(ASKED)?.map_or(0, |asked| asked.value()))
    };
    if restored {
        let text = "the metadata was restored from a backup; start it with `pvfsd manager --restored`, which first asks all \
             I/O servers how far they have come";
        return Err(FsError::new(ErrorCode::Invalid, text).into());
    }
    let iods = settings.iods.len();
    let begun = {
        let mut change = Change::open(&transaction, now_ns)?;
        let (epoch, assigned) = (change.begin_epoch()?, change.assigned()?);
        dedup::Dedup::open(&transaction, dedup::CLIENTS)?;
        let mut table = transaction.open_table(STARTS)?;
        table.insert(epoch, instance)?;
        let mut starts = BTreeMap::new();
        for row in table.iter()? {
            let (epoch, instance) = row?;
            starts.insert(epoch.value(), instance.value());
        }
        Begun {
            identity: ManagerIdentity { cluster, store: number, start: Start { epoch, instance } },
            starts,
            asked,
            assigned,
            members: Members::begin(&transaction, iods, now, settings.heartbeat)?,
            pools: Pools::begin(&transaction, iods)?,
        }
    };
    transaction.commit()?;
    Ok(begun)
}

/// Returns the cluster and the store of a database; `None` if it is not formatted.
///
/// # Errors
/// `Io`.
pub fn identity_of(store: &MetaStore) -> Result<Option<(ClusterId, StoreId)>, FsError> {
    let read = || identity(&store.write()?);
    read().map_err(Fault::into_error)
}

#[async_trait(?Send)]
impl<T: Transport> Handler<T> for Manager<T> {
    async fn handle(&self, context: &Context, request: Request, call: &Incoming<T>) -> Answer {
        let RequestBody::Manager(body) = request.body else {
            return Answer::error(FsError::new(ErrorCode::Invalid, "this is the manager, not an I/O server"));
        };
        if let ManagerRequest::Register(registration) = &body {
            return Answer::from(self.register(context, registration).map(ReplyBody::Manager));
        }
        if let ManagerRequest::Backup { page } = body {
            let (room, now) = (context.room.saturating_sub(REPLY_ROOM), self.endpoint.now());
            let mut snapshots = self.snapshots.borrow_mut();
            let result = snapshots.page(&self.store, context.session(), page, room, now);
            drop(snapshots);
            return Answer::from(result.map(ReplyBody::Manager).map_err(|fault| self.settle(fault)));
        }
        if !body.changes() {
            if self.owners.borrow().has(request.id.client) {
                self.note_client(request.id.client, context.session());
            }
            let room = context.room.saturating_sub(REPLY_ROOM);
            let result =
                self.look(request.id.client, &body, room).map(ReplyBody::Manager).map_err(|fault| self.settle(fault));
            return Answer::from(result);
        }
        match context.speaks_for(request.id.client) {
            Ok(session) => self.note_client(request.id.client, session),
            Err(error) => return Answer::error(error),
        }
        let answer = self.carry_out(request.id, request.unanswered, body, context.deadline).await;
        context.session().keep_while_drafting(|| call.endpoint().with(|endpoint| endpoint.keep(call.peer())));
        answer
    }

    fn refused(&self, hello: &Hello, identity: &Identity) {
        let Sender::Server(role, _) = hello.sender else { return };
        let same = hello.cluster == Some(identity.cluster) && hello.role == identity.role;
        if let Some(seen) = hello.seen
            && same
            && hello.store.is_none_or(|store| store == identity.store)
            && !identity.start.may_follow(&seen)
        {
            let (seen, own) = (seen.epoch, identity.start.epoch);
            self.fail(&self.gone_back(&format!("{role} has seen its start {seen}; this is start {own}")));
        }
    }

    async fn background(&self) {
        tokio::join!(self.commit(), self.maintain(), self.watch_deferred());
    }
}

#[cfg(test)]
mod every_change;
#[cfg(test)]
mod tests;
