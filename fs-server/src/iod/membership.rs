//! An I/O server's membership in its cluster: it registers its store with the manager, and confirms
//! from then on that it is up.
//!
//! **Why.** A directory says whose it is (`store/label/identity.rs`), but not whether it is the
//! newest one. An empty directory says nothing. So the manager, which remembers every store,
//! decides. See `manager/fleet/members.rs`.
//!
//! **How**
//!
//! ```text
//!   empty directory    ask the manager, for as long as it takes ──▶ label it, and go on as below
//!   labelled           ask the manager to judge ──▶ write the start into the label ──▶ register
//!                         ──▶ serve, and register again every heartbeat
//!                         the manager cannot be reached: serve on the strength of the label; every
//!                         connection names the store that it expects, and the newest start it has seen
//!                         the manager refuses: stop
//! ```
//!
//! **Invariants**
//! 1. A server with an empty directory serves nothing before the manager has agreed.
//! 2. A start is in the label, durably, before the manager records it or a client sees it. A start
//!    that the manager refuses leaves no trace, so a copy that is started often enough does not
//!    become acceptable.
//! 3. The start of the manager that has accepted the store is durable before that manager counts
//!    the server as up. So no older manager is accepted later. A manager that finds itself gone
//!    back in time accepts nothing, and leaves no trace here.

use std::sync::Arc;
use std::time::Duration;

use bmi::hooks::mutated;
use bmi::{Addr, Endpoint, Peer};
use fs_proto::{
    Caller, ClusterId, DatafileHandle, ErrorCode, FsError, Hello, ManagerReply, ManagerRequest, Registration,
    ReplyBody, RequestBody, Role, Sender, Start, StoreId,
};
use tokio::sync::Mutex;

use super::gate::Gate;
use crate::call;
use crate::store::{DataStore, Label};

/// Time limit of one request.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause after the first failed attempt.
const SHORTEST: Duration = Duration::from_millis(20);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(2);

/// A label that several tasks change, one after the other.
#[derive(Debug, Default)]
pub struct LabelLock(Mutex<()>);

impl LabelLock {
    /// Changes the label of a store, durably. Returns the new label.
    ///
    /// # Errors
    /// Those of [`DataStore::relabel`]; `Invalid` if the store has no label.
    pub async fn change(
        &self,
        store: &(impl DataStore + ?Sized),
        edit: impl FnOnce(&mut Label),
    ) -> Result<Label, FsError> {
        let _guard = self.0.lock().await;
        let none = || FsError::new(ErrorCode::Invalid, "the store has no label");
        let mut label = store.label().ok_or_else(none)?;
        let before = label;
        edit(&mut label);
        if label != before {
            store.relabel(&label).await?;
        }
        Ok(label)
    }
}

/// An I/O server's connection to its manager.
pub struct Membership {
    endpoint: Endpoint,
    manager: Addr,
    iod: u32,
    /// A number drawn at random at this start.
    instance: u128,
    replace: bool,
    heartbeat: Duration,
    /// The connection, and the manager's start at its other end.
    link: Option<(Peer, Start)>,
    /// The connection on which the manager has judged the store.
    judged: Option<Peer>,
    seq: u64,
    /// Learns of tickets.
    gate: Arc<Gate>,
}

/// The manager's answer to a registration.
struct Answer {
    cluster: ClusterId,
    manager: Start,
    recorded: Option<Start>,
}

impl Answer {
    /// Returns the lowest epoch that a start may have now.
    fn least_epoch(&self) -> u64 {
        self.recorded.map_or(1, |recorded| recorded.epoch + 1)
    }
}

impl Membership {
    /// Creates the membership of I/O server `iod`. `endpoint` reaches the manager. `instance` is
    /// drawn at random. With `replace`, the store is to replace the one that the server had.
    pub fn new(
        endpoint: Endpoint,
        manager: Addr,
        iod: u32,
        instance: u128,
        replace: bool,
        heartbeat: Duration,
    ) -> Membership {
        let (link, judged, seq, gate) = (None, None, 0, Arc::default());
        Membership { endpoint, manager, iod, instance, replace, heartbeat, link, judged, seq, gate }
    }

    /// Tells this gate what the manager says of tickets.
    #[must_use]
    pub fn telling(mut self, gate: Arc<Gate>) -> Membership {
        self.gate = gate;
        self
    }

    /// Asks the manager whether an empty directory may become the server's, until it answers.
    /// Returns the label for the directory; `store` is its number, drawn at random.
    ///
    /// # Errors
    /// That of the manager if it refuses.
    pub async fn ask_for_label(&mut self, store: StoreId) -> Result<Label, FsError> {
        let mut pause = SHORTEST;
        loop {
            match self.register(None, Start { epoch: 0, instance: self.instance }, false).await {
                Ok(answer) => {
                    let label = Label::new(answer.cluster, Role::Iod(self.iod), store);
                    return Ok(Label { epoch: answer.least_epoch() - 1, ..label });
                }
                Err(error) if is_final(&error) => return Err(error.with_server(&self.manager)),
                Err(error) => self.retry(&error, &mut pause).await,
            }
        }
    }

    /// Begins the next start of a store and registers it. Returns the start. If the manager cannot
    /// be reached, the start's number comes from the store's label alone.
    ///
    /// # Errors
    /// That of the manager if it refuses; those of the store.
    pub async fn begin(&mut self, store: &dyn DataStore, lock: &LabelLock) -> Result<Start, FsError> {
        let epoch = store.label().map_or(0, |label| label.epoch) + 1;
        let mut start = Start { epoch, instance: self.instance };
        match self.register(store.label().as_ref(), start, false).await {
            Ok(answer) => {
                // It is higher only if this store replaces one that was started more often.
                start.epoch = epoch.max(answer.least_epoch());
                self.offer(store, lock, start, &answer).await?;
                if let Err(error) = self.confirm(store, lock, start).await {
                    tracing::warn!(manager = %self.manager, %error, "the manager has not recorded the start yet");
                }
            }
            Err(error) if is_final(&error) => return Err(error.with_server(&self.manager)),
            Err(error) => {
                tracing::warn!(manager = %self.manager, %error, "the manager has not confirmed the store yet");
                lock.change(store, |label| label.epoch = start.epoch).await?;
            }
        }
        Ok(start)
    }

    /// Writes a start that the manager has judged into the label.
    async fn offer(
        &self,
        store: &dyn DataStore,
        lock: &LabelLock,
        start: Start,
        answer: &Answer,
    ) -> Result<(), FsError> {
        let edit = |label: &mut Label| {
            label.epoch = start.epoch;
            // A store that replaces another must not pretend to know its start.
            if !self.replace || label.offered == answer.recorded {
                label.confirmed = answer.recorded;
            }
            label.offered = Some(start);
            if !mutated("iod/managers-start-not-remembered") {
                label.manager = Some(answer.manager);
            }
        };
        lock.change(store, edit).await.map(drop)
    }

    /// Confirms again and again that the server is up. Returns only when the manager of its cluster
    /// refuses the store.
    pub async fn keep(&mut self, store: &dyn DataStore, lock: &LabelLock, start: Start) -> FsError {
        let mut pause = SHORTEST;
        loop {
            match self.confirm(store, lock, start).await {
                Ok(()) => {
                    pause = SHORTEST;
                    self.endpoint.sleep(self.heartbeat).await;
                }
                // Another manager at the address says nothing about the store.
                Err(error) if is_final(&error) && error.code != ErrorCode::WrongServer => {
                    return error.with_server(&self.manager);
                }
                Err(error) => self.retry(&error, &mut pause).await,
            }
        }
    }

    async fn retry(&mut self, error: &FsError, pause: &mut Duration) {
        tracing::debug!(manager = %self.manager, %error, "not registered yet");
        self.leave().await;
        self.endpoint.sleep(*pause).await;
        *pause = (*pause * 2).min(LONGEST);
    }

    /// Ends the connection.
    async fn leave(&mut self) {
        if let Some((peer, _)) = self.link.take() {
            // An error means that the connection has ended already.
            let _ = peer.disconnect(peer.within(PATIENCE)).await;
        }
    }

    /// Registers a labelled store. On a new connection, asks the manager to judge first.
    async fn confirm(&mut self, store: &dyn DataStore, lock: &LabelLock, start: Start) -> Result<(), FsError> {
        let (peer, manager) = self.connect(store.label().as_ref(), start).await?;
        let knows = |label: Label| label.offered == Some(start) && label.manager == Some(manager);
        if self.judged != Some(peer) || !store.label().is_some_and(knows) {
            let answer = self.register(store.label().as_ref(), start, false).await?;
            self.offer(store, lock, start, &answer).await?;
        }
        let answer = self.register(store.label().as_ref(), start, true).await?;
        if answer.recorded == Some(start) {
            // From now on it is the server's own.
            self.replace = false;
            lock.change(store, |label| label.confirmed = Some(start)).await?;
        }
        Ok(())
    }

    /// Returns the connection to the manager, and the manager's start. Connects first if necessary.
    async fn connect(&mut self, label: Option<&Label>, start: Start) -> Result<(Peer, Start), FsError> {
        if let Some(link) = self.link.as_ref().filter(|(peer, _)| peer.limits().is_some()) {
            return Ok(link.clone());
        }
        let options = self.endpoint.within(PATIENCE);
        let peer = self.endpoint.connect(&self.manager.without_device(), options).await?;
        let hello = Hello {
            cluster: label.map(|label| label.cluster),
            role: Role::Manager,
            store: None,
            seen: label.and_then(|label| label.manager),
            sender: Sender::Server(Role::Iod(self.iod), start),
            caller: Caller::ROOT,
        };
        match call::greet(&peer, hello, PATIENCE).await {
            Ok(identity) => {
                self.link = Some((peer.clone(), identity.start));
                Ok((peer, identity.start))
            }
            Err(error) => {
                // A manager that was restored serves nobody, but must be told how far this store
                // has come. It may also refuse the store.
                let refusal = match error.code {
                    ErrorCode::Busy => self.send(&peer, label, start, false).await.err().filter(is_final),
                    _ => None,
                };
                let _ = peer.disconnect(peer.within(PATIENCE)).await;
                Err(refusal.unwrap_or(error))
            }
        }
    }

    async fn register(&mut self, label: Option<&Label>, start: Start, ready: bool) -> Result<Answer, FsError> {
        let (peer, _) = self.connect(label, start).await?;
        self.send(&peer, label, start, ready).await
    }

    /// Sends a registration over a connection.
    async fn send(&mut self, peer: &Peer, label: Option<&Label>, start: Start, ready: bool) -> Result<Answer, FsError> {
        self.seq += 1;
        let registration = Registration {
            iod: self.iod,
            store: label.map(|label| label.store),
            start,
            offered: label.and_then(|label| label.offered),
            confirmed: label.and_then(|label| label.confirmed),
            manager: label.and_then(|label| label.manager),
            highest: label.map_or(DatafileHandle(0), |label| label.highest),
            replace: self.replace,
            ready,
        };
        let request = RequestBody::Manager(ManagerRequest::Register(registration));
        match call::ask(peer, self.seq, request, PATIENCE).await? {
            ReplyBody::Manager(ManagerReply::Registered { cluster, start, recorded, tickets }) => {
                if let Some(news) = tickets {
                    self.gate.learn(*news, self.endpoint.now());
                }
                self.judged = Some(peer.clone());
                Ok(Answer { cluster, manager: start, recorded })
            }
            _ => Err(call::unexpected()),
        }
    }
}

/// Returns true if the manager has refused the store. An answer of a manager that has itself gone
/// back in time is not final: the right one may come back.
fn is_final(error: &FsError) -> bool {
    matches!(error.code, ErrorCode::Invalid | ErrorCode::WrongServer)
}
