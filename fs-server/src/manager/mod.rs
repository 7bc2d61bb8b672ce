//! The manager: namespace, attributes, layouts. It is never in the data path.
//!
//! **Why one commit for many changes.** A commit waits for the disk, and meanwhile more changes
//! arrive. They wait in a queue, and the next commit takes all of them, up to a limit. So changes
//! are durable before they are acknowledged, and many are possible per second.
//!
//! **Invariants**
//! 1. A change is durable before it is answered.
//! 2. A change is made once, even if its request arrives several times (`dedup`).
//! 3. No datafile is lost: it belongs to a file, or it is an orphan that will be removed from its
//!    I/O server (`orphans`).
//! 4. An I/O server's store is the same as before (`stores`).
//!
//! **Source.** [PVFS-IB §2.1].

mod dedup;
mod namespace;
mod orphans;
mod stores;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use async_trait::async_trait;
use bmi_core::comm::Incoming;
use bmi_core::mutated;
use bmi_core::{Addr, AsyncEndpoint, Scheme, Transport};
use fs_proto::limits::{MAX_ENTRIES, REPLY_ROOM};
use fs_proto::{
    ClusterInfo, ErrorCode, FsError, ManagerReply, ManagerRequest, Reply, ReplyBody, Request, RequestBody, RequestId,
    codec,
};
use tokio::sync::{Notify, oneshot};

use crate::service::{Answer, Context, Handler, Session};
use crate::store::MetaStore;
use namespace::{Birth, Change};

/// Most changes that share one commit.
const GROUP: usize = 128;

/// Settings of the manager.
#[derive(Clone, Debug)]
pub struct ManagerSettings {
    /// The addresses that the I/O servers are known by, in the order of their numbers in layouts.
    /// The order must never change once files exist.
    pub iods: Vec<Addr>,
    /// Strip size of files for which the client requests no other, in bytes.
    pub strip_size: u64,
}

/// The reason why a request of the namespace failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The request is not possible. Nothing was written.
    Refused(FsError),
    /// The store failed. The transaction is lost.
    Store(redb::Error),
    /// The stored data is inconsistent. The transaction is lost.
    Corrupt(String),
}

impl Fault {
    fn into_error(self) -> FsError {
        match self {
            Fault::Refused(error) => error,
            Fault::Store(error) => crate::store::fault(&error),
            Fault::Corrupt(what) => FsError::new(ErrorCode::Io, format!("metadata store is corrupt: {what}")),
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
    waiting: RefCell<VecDeque<Waiting>>,
    /// Clients that made changes over a connection that may still exist.
    connected: RefCell<BTreeMap<u128, Weak<Session>>>,
    work: Notify,
    orphaned: Notify,
}

impl<T: Transport> Manager<T> {
    /// Creates a manager over `store`. `wall` returns the time for attributes, in nanoseconds since
    /// 1970. A program passes the system's clock, the simulator its own.
    ///
    /// # Errors
    /// `Invalid` without I/O servers or with a strip size out of bounds; `Io` if the store cannot
    /// be prepared.
    pub fn new(
        endpoint: AsyncEndpoint<T>,
        store: MetaStore,
        settings: ManagerSettings,
        wall: impl Fn() -> u64 + 'static,
    ) -> Result<Manager<T>, FsError> {
        let servers = u32::try_from(settings.iods.len()).unwrap_or(u32::MAX);
        fs_proto::Distribution::simple_stripe(settings.strip_size, servers)?;
        prepare(&store, wall()).map_err(Fault::into_error)?;
        Ok(Manager {
            endpoint,
            others: Vec::new(),
            store,
            settings,
            wall: Box::new(wall),
            waiting: RefCell::default(),
            connected: RefCell::default(),
            work: Notify::new(),
            orphaned: Notify::new(),
        })
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
                    // The receiver is gone if the server is stopping.
                    let _ = waiting.answer.send(answer);
                }
                self.orphaned.notify_waiters();
            }
        }
    }

    /// Converts a fault to the error for a request, and closes the store if it failed. The
    /// transaction is over.
    fn settle(&self, fault: Fault) -> FsError {
        if let Fault::Store(_) = fault
            && !mutated("manager/failed-store-kept")
        {
            self.store.close_failed();
        }
        fault.into_error()
    }

    /// Makes a group of changes in one transaction. Returns their encoded answers.
    fn change(&self, group: &[Waiting]) -> Vec<Vec<u8>> {
        self.try_change(group).unwrap_or_else(|fault| {
            let error = self.settle(fault);
            tracing::error!(%error, changes = group.len(), "a commit failed; its changes were not made");
            let reply = codec::encode_reply(&Reply { result: Err(error) });
            group.iter().map(|_| reply.clone()).collect()
        })
    }

    fn try_change(&self, group: &[Waiting]) -> Result<Vec<Vec<u8>>, Fault> {
        let mut transaction = self.store.write()?;
        if mutated("manager/answers-before-it-is-synced") {
            // This fails only for a transaction with savepoints.
            let _ = transaction.set_durability(redb::Durability::None);
        }
        let mut answers = Vec::with_capacity(group.len());
        {
            let mut change = Change::open(&transaction, (self.wall)())?;
            let mut dedup = dedup::Dedup::open(&transaction, dedup::CLIENTS)?;
            for waiting in group {
                answers.push(self.once(&mut change, &mut dedup, waiting)?);
            }
        }
        transaction.commit()?;
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
        let answer = match self.apply(change, &waiting.request) {
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

    fn apply(&self, change: &mut Change<'_>, request: &ManagerRequest) -> Result<ManagerReply, Fault> {
        let iods = self.settings.iods.len() as u32;
        let reply = match request {
            ManagerRequest::Mkdir { place, mode, uid, gid } => {
                ManagerReply::Entry(change.mkdir(place, Birth { mode: *mode, uid: *uid, gid: *gid })?)
            }
            ManagerRequest::Create { place, mode, uid, gid, strip_size, servers, exclusive } => {
                let strip = if *strip_size == 0 { self.settings.strip_size } else { *strip_size };
                let birth = Birth { mode: *mode, uid: *uid, gid: *gid };
                ManagerReply::Entry(change.create(place, birth, strip, *servers, iods, *exclusive)?)
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
            ManagerRequest::Register { iod, store, used, adopt } => {
                stores::register(change.transaction(), *iod, iods, *store, *used, *adopt)?;
                ManagerReply::Done
            }
            other => return Err(FsError::new(ErrorCode::Invalid, format!("{} changes nothing", other.name())).into()),
        };
        Ok(reply)
    }

    /// Answers a request that changes nothing. The reply has `room` bytes.
    fn look(&self, request: &ManagerRequest, room: usize) -> Result<ManagerReply, Fault> {
        let transaction = || Ok::<_, Fault>(self.store.read()?);
        Ok(match request {
            ManagerRequest::Ping => ManagerReply::Done,
            ManagerRequest::Lookup { place } => ManagerReply::Entry(namespace::view(&transaction()?)?.lookup(place)?),
            ManagerRequest::Getattr { handle } => {
                ManagerReply::Entry(namespace::view(&transaction()?)?.getattr(*handle)?)
            }
            ManagerRequest::Readdir { dir, after, max } => {
                let max = (*max as usize).min(MAX_ENTRIES);
                let (entries, more) = namespace::view(&transaction()?)?.readdir(*dir, after, max, room)?;
                ManagerReply::Entries { entries, more }
            }
            ManagerRequest::Statfs => ManagerReply::Stat(namespace::stat(&transaction()?)?),
            ManagerRequest::Cluster { first } => ManagerReply::Cluster(self.cluster(*first as usize, room)),
            other => return Err(FsError::new(ErrorCode::Invalid, format!("{} changes something", other.name())).into()),
        })
    }

    /// Returns the I/O servers from `first` on, as many as fit into a reply of `room` bytes.
    fn cluster(&self, first: usize, room: usize) -> ClusterInfo {
        let mut left = room;
        let iods = self.settings.iods.iter().skip(first).enumerate().take_while(|(index, addr)| {
            // Two bytes for the length, beside the text.
            let needed = addr.to_string().len() + 2;
            let fits = needed <= left || *index == 0;
            left = left.saturating_sub(needed);
            fits
        });
        ClusterInfo {
            iods: iods.map(|(_, addr)| addr.clone()).collect(),
            total: self.settings.iods.len() as u32,
            strip_size: self.settings.strip_size,
        }
    }
}

fn is_open(session: &Weak<Session>) -> bool {
    session.upgrade().is_some_and(|session| session.is_open())
}

/// Creates the tables and the root directory, so that readers find them.
fn prepare(store: &MetaStore, now_ns: u64) -> Result<(), Fault> {
    let transaction = store.write()?;
    Change::open(&transaction, now_ns)?;
    dedup::Dedup::open(&transaction, dedup::CLIENTS)?;
    transaction.commit()?;
    Ok(())
}

#[async_trait(?Send)]
impl<T: Transport> Handler<T> for Manager<T> {
    async fn handle(&self, context: &Context, request: Request, _call: &Incoming<T>) -> Answer {
        let RequestBody::Manager(body) = request.body else {
            return Answer::error(FsError::new(ErrorCode::Invalid, "this is the manager, not an I/O server"));
        };
        if !body.changes() {
            let room = context.room.saturating_sub(REPLY_ROOM);
            let result = self.look(&body, room).map(ReplyBody::Manager).map_err(|fault| self.settle(fault));
            return Answer::from(result);
        }
        match context.speaks_for(request.id.client) {
            Ok(session) => self.note_client(request.id.client, session),
            Err(error) => return Answer::error(error),
        }
        let (answer, done) = oneshot::channel();
        let waiting = Waiting { id: request.id, unanswered: request.unanswered, request: body, answer };
        self.waiting.borrow_mut().push_back(waiting);
        self.work.notify_one();
        match done.await {
            Ok(reply) => Answer::Encoded(reply),
            Err(_) => Answer::error(FsError::new(ErrorCode::Unreachable, "the manager is stopping")),
        }
    }

    async fn background(&self) {
        futures_util::future::join(self.commit(), self.tend_orphans()).await;
    }
}

#[cfg(test)]
mod tests;
