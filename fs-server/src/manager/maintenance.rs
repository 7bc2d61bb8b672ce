//! The manager's work at the I/O servers: it creates datafiles in advance, discards those that it
//! cannot use, and removes those of removed files.
//!
//! **Why here.** `remove` ends when the name is gone, in one transaction that also lists the
//! datafiles as orphans. The manager tells the I/O servers afterwards. So no datafile is left
//! behind if a client dies in between, or if the manager or an I/O server is down for a while.
//!
//! **How.** There is one loop for each I/O server. It works while the server is up. It carries out
//! or cancels changes of size (`truncate`), discards, fills the pool, and removes a page of
//! orphans, until nothing is left to do. Each step is idempotent, and is recorded only when the
//! server has confirmed it. So a crash in between does no harm. After a failure the loop waits,
//! twice as long each time, up to [`LONGEST`].
//!
//! **Invariant.** The connection begins with a Hello that names the cluster, the server and its
//! store. So nothing is removed from another server.

use std::time::Duration;

use bmi_core::comm::Caller;
use bmi_core::mutated;
use bmi_core::{PeerId, Time, Transport};
use fs_proto::limits::MAX_DATAFILES;
use fs_proto::{DatafileHandle, ErrorCode, FsError, Hello, IodRequest, ReplyBody, Role, Sender};
use futures_util::future::join_all;
use redb::WriteTransaction;

use super::Manager;
use super::namespace::{self, Change, Truncates};
use super::pools::{self, Pools};
use crate::call;

/// Most orphans removed by one request.
const PAGE: usize = 256;
/// Time limit of one request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after the first failure. A server that has registered is about to serve.
const SHORTEST: Duration = Duration::from_millis(5);
/// Up to this pause, the failure of a server is not worth a warning: it may be about to serve.
/// Files that need it are waited for.
const SOON: Duration = Duration::from_millis(500);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(30);

/// The changes of size in progress at an I/O server.
struct TruncatesAt {
    /// Being prepared.
    preparing: Vec<DatafileHandle>,
    /// To be cancelled.
    cancelled: Vec<DatafileHandle>,
    /// To be carried out.
    decided: Vec<DatafileHandle>,
}

/// A connection to an I/O server.
pub(super) struct Link<T: Transport> {
    caller: Caller<T>,
    iod: u32,
    peer: Option<PeerId>,
    seq: u64,
    /// True if the server could not create datafiles, perhaps because its disk is full.
    is_full: bool,
    /// True if the server has cancelled what an earlier start of the manager let it prepare.
    is_settled: bool,
}

impl<T: Transport> Link<T> {
    /// Returns a link to an I/O server that is not connected yet.
    pub(super) fn new(caller: Caller<T>, iod: u32) -> Link<T> {
        Link { caller, iod, peer: None, seq: 0, is_full: false, is_settled: false }
    }

    pub(super) fn iod(&self) -> u32 {
        self.iod
    }

    pub(super) async fn ask(&mut self, request: IodRequest) -> Result<ReplyBody, FsError> {
        self.ask_within(request, PATIENCE).await
    }

    /// Sends a request, and waits for the reply until `deadline`, but not longer than usual.
    pub(super) async fn ask_until(&mut self, request: IodRequest, deadline: Time) -> Result<ReplyBody, FsError> {
        let left = deadline.since(self.caller.endpoint().now());
        self.ask_within(request, left.min(PATIENCE)).await
    }

    async fn ask_within(&mut self, request: IodRequest, limit: Duration) -> Result<ReplyBody, FsError> {
        let Some(peer) = self.peer else { return Err(call::unexpected()) };
        self.seq += 1;
        call::ask(&self.caller, peer, self.seq, request, limit).await
    }

    /// Ends the connection. If the server was restarted, the old one is of no use.
    pub(super) async fn close(&mut self) {
        if let Some(peer) = self.peer.take() {
            let endpoint = self.caller.endpoint();
            let _ = endpoint.disconnect(peer, endpoint.within(PATIENCE)).await;
        }
    }
}

impl<T: Transport> Manager<T> {
    /// Runs the loops of all I/O servers. Never returns.
    pub(super) async fn maintain(&self) {
        join_all((0..self.iods()).map(|iod| self.maintain_one(iod))).await;
    }

    async fn maintain_one(&self, iod: u32) {
        let caller = Caller::new(self.towards(&self.settings.iods[iod as usize]).clone());
        let mut link = Link::new(caller, iod);
        let mut pause = SHORTEST;
        loop {
            // Registered before the work is looked for, so that nothing that is added in between is
            // missed.
            let news = self.maintenance.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            match self.step(&mut link).await {
                // To make room on a full disk is no sign that it is well.
                Ok(true) if link.is_full => {}
                Ok(more) => {
                    pause = SHORTEST;
                    // What failed before has succeeded, or is not needed any more.
                    self.failing.borrow_mut().remove(&iod);
                    if !more {
                        news.await;
                    }
                }
                Err(error) => {
                    // Reconnect after any failure.
                    link.close().await;
                    if !self.is_up(iod) {
                        tracing::debug!(%error, iod, "the I/O server is down");
                        news.await;
                        continue;
                    }
                    if error.code != ErrorCode::NoSpace && pause <= SOON {
                        // It has registered, and is about to serve. Then it closes its connections.
                        self.endpoint.sleep(pause).await;
                        pause *= 2;
                        continue;
                    }
                    self.failing.borrow_mut().insert(iod, error.clone());
                    self.retry_deferred();
                    let pause_ms = pause.as_millis() as u64;
                    tracing::warn!(%error, iod, pause_ms, "maintenance is tried again later");
                    self.endpoint.sleep(pause).await;
                    pause = (pause * 2).min(LONGEST);
                }
            }
        }
    }

    /// Does one step of work. Returns whether there was any.
    async fn step(&self, link: &mut Link<T>) -> Result<bool, FsError> {
        let iod = link.iod;
        if !self.is_up(iod) {
            return Ok(false);
        }
        if self.truncate_step(link).await? {
            return Ok(true);
        }
        let (discard, orphans) =
            self.read(|read| Ok((pools::discard(read, iod)?, namespace::orphans(read, iod, PAGE)?))).await?;
        let left = self.pools.borrow().left(iod);
        let low = left < u64::from(self.settings.pool.div_ceil(2));
        if discard.is_none() && orphans.is_empty() && !low {
            return Ok(false);
        }
        self.connect(link).await?;
        // A create may be waiting. But on a full disk, removing is what makes room.
        let urgent = left == 0 && !link.is_full;
        let idle = discard.is_none() && orphans.is_empty();
        if urgent || idle {
            let filled = self.fill_pool(link).await;
            link.is_full = matches!(&filled, Err(error) if error.code == ErrorCode::NoSpace);
            filled?;
        } else if let Some((first, count)) = discard {
            link.ask(IodRequest::Discard { first, count }).await?;
            self.transact(move |transaction| pools::discarded(transaction, iod, first)).await?;
        } else {
            self.remove_page(link, orphans).await?;
        }
        Ok(true)
    }

    /// Connects to the I/O server, unless there is a connection.
    pub(super) async fn connect(&self, link: &mut Link<T>) -> Result<(), FsError> {
        let endpoint = link.caller.endpoint();
        if link.peer.is_some_and(|peer| endpoint.limits(peer).is_some()) {
            return Ok(());
        }
        let addr = &self.settings.iods[link.iod as usize];
        let named = |error: FsError| error.with_server(addr);
        let peer = endpoint.connect(&addr.without_device(), endpoint.within(PATIENCE)).await.map_err(FsError::from);
        let peer = peer.map_err(named)?;
        link.peer = Some(peer);
        let recorded = self.members.borrow().recorded(link.iod);
        let hello = Hello {
            cluster: Some(self.identity.cluster),
            role: Role::Iod(link.iod),
            store: recorded.map(|recorded| recorded.store),
            seen: recorded.map(|recorded| recorded.start),
            sender: Sender::Server(Role::Manager, self.identity.start),
        };
        call::greet(&link.caller, peer, hello, PATIENCE).await.map_err(named)?;
        Ok(())
    }

    /// Cancels or carries out changes of size. Returns whether there were any.
    async fn truncate_step(&self, link: &mut Link<T>) -> Result<bool, FsError> {
        let iod = link.iod;
        let found = self.truncates_at(iod).await?;
        if link.is_settled && found.cancelled.is_empty() && found.decided.is_empty() {
            return Ok(false);
        }
        self.connect(link).await?;
        // Others may have begun or been decided meanwhile. They must not be cancelled.
        let TruncatesAt { preparing, cancelled, decided } = self.truncates_at(iod).await?;
        let ended = if !cancelled.is_empty() || !link.is_settled {
            let before = self.truncations.next_number();
            let except = decided.into_iter().chain(preparing).collect();
            link.ask(IodRequest::CancelTruncates { before, except }).await?;
            link.is_settled = true;
            cancelled
        } else {
            link.ask(IodRequest::CommitTruncates { datafiles: decided.clone() }).await?;
            decided
        };
        if !ended.is_empty() {
            let now_ns = (self.wall)();
            let end =
                move |transaction: &WriteTransaction| Change::open(transaction, now_ns)?.end_truncates(iod, &ended);
            self.transact(end).await?;
            self.maintenance.notify_waiters();
        }
        Ok(true)
    }

    /// Returns the changes of size in progress at an I/O server.
    async fn truncates_at(&self, iod: u32) -> Result<TruncatesAt, FsError> {
        let found = self.read(|read| namespace::truncates(read, iod)).await?;
        let Truncates { mut undecided, mut decided } = found;
        if mutated("manager/decided-truncate-cancelled") {
            undecided.extend(decided.drain(..).map(|(datafile, _)| datafile));
        }
        let (preparing, mut cancelled): (Vec<_>, Vec<_>) =
            undecided.into_iter().partition(|datafile| self.truncations.prepares(*datafile));
        let mut decided: Vec<DatafileHandle> = decided.into_iter().map(|(datafile, _)| datafile).collect();
        if mutated("manager/undecided-truncate-carried-out") {
            decided.append(&mut cancelled);
        }
        Ok(TruncatesAt { preparing, cancelled, decided })
    }

    /// Lets the server create datafiles, and adds them to its pool.
    async fn fill_pool(&self, link: &mut Link<T>) -> Result<(), FsError> {
        let (iod, count) = (link.iod, self.settings.pool.min(MAX_DATAFILES as u32));
        let now_ns = (self.wall)();
        let order = self.transact(move |transaction| {
            let first = Change::open(transaction, now_ns)?.handles(count.into())?;
            Pools::order(transaction, iod, first, count)?;
            Ok(first)
        });
        let first = order.await?;
        if !mutated("manager/pool-filled-without-asking") {
            link.ask(IodRequest::Create { first: DatafileHandle(first), count }).await?;
        }
        let pools = self.pools.clone();
        let created = move |transaction: &WriteTransaction| Pools::created(transaction, iod, first, count);
        let add = move |()| {
            pools.borrow_mut().add(iod, first, count);
            Ok(())
        };
        self.transact_then(created, add).await?;
        self.failing.borrow_mut().remove(&iod);
        self.retry_deferred();
        Ok(())
    }

    async fn remove_page(&self, link: &mut Link<T>, page: Vec<DatafileHandle>) -> Result<(), FsError> {
        let result = link.ask(IodRequest::Remove { datafiles: page.clone() }).await.map(drop);
        if result.is_err() && !mutated("manager/orphan-forgotten-before-it-is-removed") {
            return result;
        }
        let (now_ns, iod) = ((self.wall)(), link.iod);
        self.transact(move |transaction| Change::open(transaction, now_ns)?.forget(iod, &page)).await
    }
}
