//! The manager: namespace, attributes, layouts. It is never in the data path.
//!
//! Its event loop never waits for the disk: commits are made beside it (`database`), each for many
//! changes (`changes`, `group`).
//!
//! **Invariants**
//! 1. A change is durable before it is answered.
//! 2. A change is made once, even if its request arrives several times (`dedup`).
//! 3. No datafile is lost: it is in a pool (`pools`), belongs to a file, or is an orphan that will
//!    be removed from its I/O server (`maintenance`).
//! 4. An I/O server's store is the same as before, and no older (`members`).
//! 5. A manager that has gone back in time creates no file. It stops when an I/O server reports a
//!    start of the manager that it does not know, or a higher handle than it has assigned.
//! 6. A file is not seen until it is complete (`names/nameless.rs`, `clients`), and its size is
//!    changed at all of its servers or at none (`truncate`).
//! 7. Restored metadata is served only after all I/O servers have reported how far they have come
//!    (`roll_call`). Then it is compared with what they have (`inventory`).
//!
//! **Rooms.** Each uses only those below it; [`Manager`] has a part of each.
//!
//! ```text
//!   answer   requests that change nothing, further loops, clients      backup   the metadata in pages
//!   commit   changes: queued, made in groups, seen by all loops; changes of size
//!   fleet    the I/O servers: who is up, what is to be done at each
//!   tables   the database's tables: names, pools, placement, replies that were given
//! ```
//!
//! **Source.** [PVFS-IB §2.1].

mod answer;
pub(crate) mod backup;
mod commit;
mod fault;
mod fleet;
mod tables;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bmi::{Addr, Endpoint, Incoming, Scheme};
use fs_proto::limits::{DEFAULT_STRIP, MAX_DATAFILES, REPLY_ROOM};
use fs_proto::{
    Caller, ClusterId, ErrorCode, FsError, Hello, Identity, ManagerReply, ManagerRequest, Name, Reply, ReplyBody,
    Request, RequestBody, Sender, Start, StoreId, TicketNews, codec,
};
use redb::ReadableTable;
use tokio::sync::Notify;

use crate::metrics::keep_sampling;
use crate::service::{Answer, Context, Handler, Session};
use crate::store::MetaStore;
use answer::{Clients, Errands, Mint};
use backup::{Snapshots, What};
use commit::{Database, Lookups, Queue, Requested, Shared, Truncations};
use fleet::{Members, Registering};
use tables::{
    ASKED, CLIENTS, COUNTERS, Change, Dedup, Holds, IDENTITY, Pools, RESTORED, STARTS, identity, not_formatted,
};

pub(crate) use answer::ManagerLoop;
pub(crate) use fault::Fault;
pub(crate) use fleet::RollCall;

/// How often an I/O server confirms that it is up.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long a file without a name outlives the connection of its client. Longer than it takes to
/// restart a manager or to repair a switch.
const NAMELESS_GRACE: Duration = Duration::from_secs(600);

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

/// The manager. Pass it to [`crate::service::serve`].
pub struct Manager {
    endpoint: Endpoint,
    /// Endpoints for I/O servers that `endpoint` does not reach.
    others: Vec<(Scheme, Endpoint)>,
    database: Database,
    settings: ManagerSettings,
    wall: Box<dyn Fn() -> u64>,
    identity: ManagerIdentity,
    /// All starts of this database: epoch and instance.
    starts: BTreeMap<u64, u128>,
    /// Starts up to this epoch may also be those of metadata that was lost.
    asked: u64,
    /// The number of handles that had been assigned when this start began.
    assigned: u64,
    members: Shared<Members>,
    pools: Shared<Pools>,
    lookups: Arc<Lookups>,
    changes: Queue,
    clients: Arc<Clients>,
    snapshots: RefCell<Snapshots>,
    /// Requests that came over other event loops.
    errands: Errands,
    /// Makes tickets, if the cluster has any.
    mint: Option<Arc<Mint>>,
    truncations: Truncations,
    /// The registration that is being recorded.
    registering: Rc<Registering>,
    /// I/O servers that could not create datafiles the last time, with their errors.
    failing: RefCell<BTreeMap<u32, FsError>>,
    /// There may be something to do at an I/O server.
    maintenance: Rc<Notify>,
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

/// Formats the database of a new cluster, whose root directory belongs to `owner`.
///
/// # Errors
/// `Invalid` if it is formatted already; `Io`, `NoSpace`.
pub fn format(
    store: &MetaStore,
    cluster: ClusterId,
    number: StoreId,
    owner: &Caller,
    now_ns: u64,
) -> Result<(), FsError> {
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
            Change::open(&transaction, now_ns)?.give_root_to(owner)?;
        }
        transaction.commit()?;
        Ok::<(), Fault>(())
    };
    format().map_err(Fault::into_error)
}

impl Manager {
    /// Creates a manager over `store`, which [`format()`] has formatted, and begins its next start.
    /// `instance` is drawn at random. `wall` returns the time for attributes, in nanoseconds since
    /// 1970. A program passes the system's clock, the simulator its own.
    ///
    /// # Errors
    /// `Invalid` without I/O servers, with a strip size out of bounds, or with a store that is not
    /// formatted; `Io` if the store cannot be prepared.
    pub fn new(
        endpoint: Endpoint,
        store: MetaStore,
        settings: ManagerSettings,
        instance: u128,
        wall: impl Fn() -> u64 + 'static,
    ) -> Result<Manager, FsError> {
        let servers = u32::try_from(settings.iods.len()).unwrap_or(u32::MAX);
        fs_proto::Distribution::simple_stripe(settings.strip_size, servers)?;
        if !(1..=MAX_DATAFILES as u32).contains(&settings.pool) {
            let text = format!("pools of {} datafiles; there must be from 1 to {MAX_DATAFILES}", settings.pool);
            return Err(FsError::new(ErrorCode::Invalid, text));
        }
        let begun = begin(&store, &settings, instance, endpoint.now(), wall()).map_err(Fault::into_error)?;
        let Begun { identity, starts, asked, assigned, members, pools } = begun;
        let holds = Holds::default();
        let holders = store.read().map_err(Fault::from).and_then(|read| holds.begin(&read, endpoint.now()));
        let holders = holders.map_err(Fault::into_error)?;
        let clients = Clients::begin(&store, holders, endpoint.now()).map_err(Fault::into_error)?;
        let (database, lookups) = Database::new(store, holds).map_err(Fault::into_error)?;
        Ok(Manager {
            endpoint,
            others: Vec::new(),
            database,
            settings,
            wall: Box::new(wall),
            identity,
            starts,
            asked,
            assigned,
            members: Rc::new(RefCell::new(members)),
            pools: Rc::new(RefCell::new(pools)),
            lookups,
            changes: Queue::default(),
            clients: Arc::new(clients),
            snapshots: RefCell::default(),
            errands: Errands::default(),
            mint: None,
            truncations: Truncations::new(identity.start.epoch),
            registering: Rc::default(),
            failing: RefCell::default(),
            maintenance: Rc::default(),
            failure: RefCell::default(),
            failed: Notify::new(),
        })
    }

    /// Gives clients tickets for what they open, and I/O servers what they need to check them.
    /// `secret` is drawn at random for each start, and told to nobody.
    #[must_use]
    pub fn with_tickets(mut self, secret: [u8; 32]) -> Manager {
        self.mint = Some(Arc::new(Mint::new(secret, self.identity.start.epoch, self.endpoint.now())));
        self
    }

    /// Returns what an I/O server is told of tickets.
    fn ticket_news(&self) -> Option<TicketNews> {
        let revoked = || self.lookups.revoked().into_keys().map(Name).collect();
        self.mint.as_ref().map(|mint| mint.news(self.endpoint.now(), revoked()))
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
        self.database.doubt().is_some()
    }

    /// Answers a request that came over any event loop.
    async fn answer(&self, context: &Context, request: Request) -> Answer {
        if let Err(error) = self.lookups.check_party(context.party()) {
            return Answer::error(error);
        }
        let caller = context.caller(&request);
        let RequestBody::Manager(body) = request.body else {
            return Answer::error(FsError::new(ErrorCode::Invalid, "this is the manager, not an I/O server"));
        };
        if let ManagerRequest::Register(registration) = &body {
            return Answer::from(self.register(context, registration).await.map(ReplyBody::Manager));
        }
        if !body.changes() {
            if matches!(body, ManagerRequest::Hold { .. } | ManagerRequest::Release { .. }) {
                match context.speaks_for(request.id.client) {
                    Ok(session) => self.clients.connected(request.id.client, session),
                    Err(error) => return Answer::error(error),
                }
            }
            self.clients.uses(request.id.client, context.session());
            let room = context.room.saturating_sub(REPLY_ROOM);
            let result = match body {
                ManagerRequest::Backup { page } => self.snapshot(context.session(), What::Backup, page, room).await,
                ManagerRequest::Check { page } => self.snapshot(context.session(), What::Check, page, room).await,
                body => self.until(context.deadline, self.look(&caller, request.id.client, &body, room)).await,
            };
            let complete = |reply| match &self.mint {
                Some(mint) => mint.complete(context.party(), reply),
                None => reply,
            };
            return Answer::from(result.map(complete).map(ReplyBody::Manager));
        }
        match context.speaks_for(request.id.client) {
            Ok(session) => self.clients.connected(request.id.client, session),
            Err(error) => return Answer::error(error),
        }
        let room = context.room.saturating_sub(REPLY_ROOM);
        let change = Requested { id: request.id, unanswered: request.unanswered, caller, request: body };
        let opens = matches!(change.request, ManagerRequest::Create { .. } | ManagerRequest::Grow { .. });
        let (caller, client) = (opens.then(|| change.caller.clone()), change.id.client);
        let answer = self.carry_out(change, context.deadline, room, context.share).await;
        match (&self.mint, caller) {
            (Some(mint), Some(caller)) => self.with_grant(mint, context, &caller, client, answer).await,
            _ => answer,
        }
    }

    /// Adds tickets to the answer of a change that opens a file. The answer may be one that was
    /// given long ago, so what the client may do now counts.
    async fn with_grant(
        &self,
        mint: &Mint,
        context: &Context,
        caller: &Caller,
        client: u128,
        answer: Answer,
    ) -> Answer {
        let Answer::Encoded(bytes) = &answer else { return answer };
        let Ok(Reply { result: Ok(ReplyBody::Manager(ManagerReply::Opened { entry, .. })) }) =
            codec::decode_reply(bytes)
        else {
            return answer;
        };
        let access = self.read(|read| {
            let view = tables::names::view(read)?.by(caller, client);
            let held = self.lookups.holds.access(entry.handle.raw(), client);
            view.opened_by_handle(&view.named(entry.handle)?, held)
        });
        match access.await {
            Ok(access) => {
                let opened = ManagerReply::Opened { entry, access, grant: None };
                Answer::from(Ok(mint.complete(context.party(), opened).into()))
            }
            Err(_) => answer,
        }
    }

    fn iods(&self) -> u32 {
        self.settings.iods.len() as u32
    }

    /// Returns true if an I/O server is up.
    fn is_up(&self, iod: u32) -> bool {
        self.members.borrow().is_up(iod, self.endpoint.now())
    }

    /// Lets each piece of work on the database take this long.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn taking(mut self, time: Duration) -> Manager {
        self.database.take(time);
        self
    }

    /// Adds an endpoint for I/O servers whose addresses are of `scheme`.
    #[must_use]
    pub fn with_endpoint(mut self, scheme: Scheme, endpoint: Endpoint) -> Manager {
        self.others.push((scheme, endpoint));
        self
    }

    /// Returns the endpoint that reaches `addr`.
    fn towards(&self, addr: &Addr) -> &Endpoint {
        let other = self.others.iter().find(|(scheme, _)| *scheme == addr.scheme());
        other.map_or(&self.endpoint, |(_, endpoint)| endpoint)
    }

    /// Tries the deferred changes again from time to time, in an endless loop: servers that are
    /// waited for may turn out to be down. Also ends the snapshots that nobody uses any more.
    async fn watch_deferred(&self) {
        loop {
            self.endpoint.sleep(self.settings.heartbeat).await;
            self.snapshots.borrow_mut().sweep(self.endpoint.now());
            self.retry_deferred();
        }
    }
}

fn is_open(session: &Weak<Session>) -> bool {
    session.upgrade().is_some_and(|session| session.is_open())
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
    now: bmi::Time,
    now_ns: u64,
) -> Result<Begun, Fault> {
    let transaction = store.write()?;
    let Some((cluster, number)) = identity(&transaction)? else {
        return Err(not_formatted().into());
    };
    let (restored, asked) = {
        let counters = transaction.open_table(COUNTERS)?;
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
        Dedup::open(&transaction, CLIENTS)?;
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
impl Handler for Manager {
    async fn handle(&self, context: &Context, request: Request, call: &Incoming) -> Answer {
        let answer = self.answer(context, request).await;
        context.keep_while_drafting(call);
        answer
    }

    fn refused(&self, hello: &Hello, identity: &Identity) {
        if let Some(how) = how_gone_back(hello, identity) {
            self.fail(&self.gone_back(&how));
        }
    }

    async fn background(&self) {
        let answering = self.run_errands();
        let sample = keep_sampling(&self.endpoint, async || self.values().await);
        tokio::join!(self.work(), self.maintain(), self.watch_deferred(), self.watch_nameless(), answering, sample);
    }
}

/// Returns how this manager has gone back in time, if a refused Hello shows it: another server has
/// seen a later start of it.
fn how_gone_back(hello: &Hello, identity: &Identity) -> Option<String> {
    let Sender::Server(role, _) = hello.sender else { return None };
    let same = hello.cluster == Some(identity.cluster) && hello.role == identity.role;
    let seen = hello.seen.filter(|seen| !identity.start.may_follow(seen))?;
    let is_own = same && hello.store.is_none_or(|store| store == identity.store);
    let own = identity.start.epoch;
    is_own.then(|| format!("{role} has seen its start {}; this is start {own}", seen.epoch))
}

#[cfg(test)]
mod tests;
