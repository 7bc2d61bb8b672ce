//! The manager's work at the I/O servers: it creates datafiles in advance, discards those that it
//! cannot use, and removes those of removed files.
//!
//! **Why here.** `remove` ends when the name is gone, in one transaction that also lists the
//! datafiles as orphans. The manager tells the I/O servers afterwards. So no datafile is left
//! behind if a client dies in between, or if the manager or an I/O server is down for a while.
//!
//! **How.** There is one loop for each I/O server. It works while the server is up. It has several
//! duties: to carry out or cancel changes of size (`truncate`), to discard, to remove a page of
//! orphans, and to fill the pool. It goes round, until nothing is left to do. Each step is
//! idempotent, and is recorded only when the server has confirmed it. So a crash in between does no
//! harm.
//!
//! **Failures.** A duty that has failed pauses, twice as long each time, up to [`LONGEST`]. The
//! others go on: what fails for ever stops nothing else. A server that does not answer is left
//! alone by all of them. Changes of size and removals fail each by itself: a datafile that cannot
//! be removed is passed over, and tried again with the next round.
//!
//! **Invariant.** The connection begins with a Hello that names the cluster, the server and its
//! store. So nothing is removed from another server.

use std::collections::BTreeSet;
use std::time::Duration;

use bmi::hooks::{mutated, step};
use bmi::{Endpoint, Peer, Time};
use fs_proto::limits::MAX_DATAFILES;
use fs_proto::{Caller, DatafileHandle, ErrorCode, FsError, Hello, IodReply, IodRequest, ReplyBody, Role, Sender};
use futures_util::future::join_all;
use redb::WriteTransaction;

use crate::call;
use crate::manager::Manager;
use crate::manager::tables::{Change, Decided, Pools, Truncates, names, pools};

/// Most orphans removed by one request.
const PAGE: usize = 256;
/// Time limit of one request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after the first failure. A server that has registered is about to serve.
const SHORTEST: Duration = Duration::from_millis(5);
/// Up to this pause, the failure of a server is not worth a warning: it may be about to serve.
/// Files that need it are waited for.
const SOON: Duration = Duration::from_millis(500);
/// A change of size that fails after a pause like this is told as failed. Its first failures may
/// pass.
const PASSES: Duration = Duration::from_millis(80);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(30);

/// What is to be done at an I/O server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    Truncates,
    Discards,
    Orphans,
    Pool,
}

/// When a duty is done again after it has failed.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// The pause after the next failure.
    pause: Duration,
    /// When the pause ends.
    due: Option<Time>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { pause: SHORTEST, due: None }
    }
}

impl Pace {
    fn failed(&mut self, now: Time) {
        self.due = Some(now + self.pause);
        self.pause = (self.pause * 2).min(LONGEST);
    }
}

/// The changes of size in progress at an I/O server.
struct TruncatesAt {
    /// Being prepared.
    preparing: Vec<DatafileHandle>,
    /// To be cancelled.
    cancelled: Vec<DatafileHandle>,
    /// To be carried out.
    decided: Vec<Decided>,
}

/// A connection to an I/O server.
pub(in crate::manager) struct Link {
    endpoint: Endpoint,
    iod: u32,
    peer: Option<Peer>,
    seq: u64,
    /// True if the server could not create datafiles, perhaps because its disk is full.
    is_full: bool,
    /// True if the server has cancelled what an earlier start of the manager let it prepare.
    is_settled: bool,
    orphans: Orphans,
}

/// A round through the datafiles to remove. What cannot be removed is found by halves, and passed
/// over until the next round, which begins after a pause.
struct Orphans {
    /// The handle to go on from.
    from: u64,
    /// Most datafiles of the next request.
    page: usize,
    /// Why one of this round could not be removed.
    failed: Option<FsError>,
    /// One of this round or of the last one could not be removed.
    is_troubled: bool,
}

impl Default for Orphans {
    fn default() -> Orphans {
        Orphans { from: 0, page: PAGE, failed: None, is_troubled: false }
    }
}

impl Link {
    /// Returns a link to an I/O server that is not connected yet.
    pub(in crate::manager) fn new(endpoint: Endpoint, iod: u32) -> Link {
        Link { endpoint, iod, peer: None, seq: 0, is_full: false, is_settled: false, orphans: Orphans::default() }
    }

    pub(in crate::manager) fn iod(&self) -> u32 {
        self.iod
    }

    pub(in crate::manager) async fn ask(&mut self, request: IodRequest) -> Result<ReplyBody, FsError> {
        self.ask_within(request, PATIENCE).await
    }

    /// Sends a request, and waits for the reply until `deadline`, but not longer than usual.
    pub(in crate::manager) async fn ask_until(
        &mut self,
        request: IodRequest,
        deadline: Time,
    ) -> Result<ReplyBody, FsError> {
        let left = deadline.since(self.endpoint.now());
        self.ask_within(request, left.min(PATIENCE)).await
    }

    async fn ask_within(&mut self, request: IodRequest, limit: Duration) -> Result<ReplyBody, FsError> {
        let Some(peer) = &self.peer else { return Err(call::unexpected()) };
        self.seq += 1;
        call::ask(peer, self.seq, request, limit).await
    }

    /// Ends the connection. If the server was restarted, the old one is of no use.
    pub(in crate::manager) async fn close(&mut self) {
        if let Some(peer) = self.peer.take() {
            let _ = peer.disconnect(peer.within(PATIENCE)).await;
        }
    }
}

impl Manager {
    /// Runs the loops of all I/O servers. Never returns.
    pub(in crate::manager) async fn maintain(&self) {
        join_all((0..self.iods()).map(|iod| self.maintain_one(iod))).await;
    }

    async fn maintain_one(&self, iod: u32) {
        let mut link = Link::new(self.towards(&self.settings.iods[iod as usize]).clone(), iod);
        let mut paces = [Pace::default(); 4];
        loop {
            // Registered before the work is looked for, so that nothing that is added in between is
            // missed.
            let news = self.maintenance.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let begun = self.endpoint.now();
            if !self.is_up(iod) {
                // When it is back, everything is tried at once.
                paces = [Pace::default(); 4];
                self.truncations.failing.borrow_mut().retain(|(at, _), _| *at != iod);
                self.failing.borrow_mut().remove(&iod);
            } else if self.go_round(&mut link, &mut paces).await {
                continue;
            }
            let due = paces.iter().filter_map(|pace| pace.due).chain(self.next_truncate(iod, begun)).min();
            let is_due = async {
                match due {
                    Some(due) => self.endpoint.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = news => {}
                () = is_due => {}
            }
        }
    }

    /// Does a step of each duty that is due. Returns whether there was any work.
    async fn go_round(&self, link: &mut Link, paces: &mut [Pace; 4]) -> bool {
        let iod = link.iod;
        // A create may be waiting. But on a full disk, removing is what makes room.
        let urgent = self.pools.borrow().left(iod) == 0 && !link.is_full;
        let order = match (link.is_full, urgent) {
            (true, _) => [Duty::Discards, Duty::Orphans, Duty::Truncates, Duty::Pool],
            (false, true) => [Duty::Truncates, Duty::Pool, Duty::Discards, Duty::Orphans],
            (false, false) => [Duty::Truncates, Duty::Discards, Duty::Orphans, Duty::Pool],
        };
        let mut more = false;
        for duty in order {
            let is_due = paces[duty as usize].due.is_none_or(|due| due <= self.endpoint.now());
            if !is_due || (duty == Duty::Pool && more && !urgent) {
                continue;
            }
            let error = match self.step(link, duty).await {
                Ok(worked) => {
                    // While some datafiles cannot be removed, the pauses between rounds grow.
                    if duty != Duty::Orphans || !link.orphans.is_troubled {
                        paces[duty as usize] = Pace::default();
                    }
                    more |= worked;
                    match duty {
                        // There may be room now.
                        Duty::Orphans if worked => paces[Duty::Pool as usize].due = None,
                        // What failed before has succeeded, or is not needed any more.
                        Duty::Pool => drop(self.failing.borrow_mut().remove(&iod)),
                        _ => {}
                    }
                    continue;
                }
                Err(error) => error,
            };
            // Reconnect after any failure.
            link.close().await;
            if !self.is_up(iod) {
                tracing::debug!(%error, iod, "the I/O server is down");
                return false;
            }
            let pause = paces[duty as usize].pause;
            paces[duty as usize].failed(self.endpoint.now());
            // It is not the duty but the server that fails.
            let concerns_all = error.is_retryable() || mutated("manager/failed-duty-stops-the-others");
            if concerns_all {
                *paces = [paces[duty as usize]; 4];
            }
            // It has registered, and is about to serve. Then it closes its connections.
            if error.code == ErrorCode::NoSpace || pause > SOON {
                if concerns_all || duty == Duty::Pool {
                    self.failing.borrow_mut().insert(iod, error.clone());
                    self.retry_deferred();
                }
                let pause_ms = pause.as_millis() as u64;
                tracing::warn!(%error, iod, ?duty, pause_ms, "maintenance is tried again later");
            }
            if concerns_all {
                return false;
            }
        }
        more
    }

    /// Does one step of a duty. Returns whether there was any work.
    async fn step(&self, link: &mut Link, duty: Duty) -> Result<bool, FsError> {
        let iod = link.iod;
        match duty {
            Duty::Truncates => self.truncate_step(link).await,
            Duty::Discards => {
                let discard = self.read(|read| pools::discard(read, iod)).await?;
                let Some((first, count)) = discard else { return Ok(false) };
                self.connect(link).await?;
                link.ask(IodRequest::Discard { first, count }).await?;
                self.transact(move |transaction| pools::discarded(transaction, iod, first)).await?;
                Ok(true)
            }
            Duty::Orphans => {
                let Orphans { from, page, .. } = link.orphans;
                let orphans = self.read(move |read| names::orphans(read, iod, from, page)).await?;
                if orphans.is_empty() {
                    let failed = std::mem::take(&mut link.orphans).failed;
                    link.orphans.is_troubled = failed.is_some();
                    return failed.map_or(Ok(false), Err);
                }
                self.connect(link).await?;
                self.remove_page(link, orphans).await?;
                Ok(true)
            }
            Duty::Pool => {
                if self.pools.borrow().left(iod) >= u64::from(self.settings.pool.div_ceil(2)) {
                    return Ok(false);
                }
                self.connect(link).await?;
                let filled = self.fill_pool(link).await;
                link.is_full = matches!(&filled, Err(error) if error.code == ErrorCode::NoSpace);
                filled.map(|()| true)
            }
        }
    }

    /// Connects to the I/O server, unless there is a connection.
    pub(in crate::manager) async fn connect(&self, link: &mut Link) -> Result<(), FsError> {
        if link.peer.as_ref().is_some_and(|peer| peer.limits().is_some()) {
            return Ok(());
        }
        let addr = &self.settings.iods[link.iod as usize];
        let named = |error: FsError| error.with_server(addr);
        let options = link.endpoint.within(PATIENCE);
        let peer = link.endpoint.connect(&addr.without_device(), options).await.map_err(FsError::from);
        let peer = link.peer.insert(peer.map_err(named)?);
        let recorded = self.members.borrow().recorded(link.iod);
        let hello = Hello {
            cluster: Some(self.identity.cluster),
            role: Role::Iod(link.iod),
            store: recorded.map(|recorded| recorded.store),
            seen: recorded.map(|recorded| recorded.start),
            sender: Sender::Server(Role::Manager, self.identity.start),
            caller: Caller::ROOT,
        };
        call::greet(peer, hello, PATIENCE).await.map_err(named)?;
        Ok(())
    }

    /// Cancels or carries out changes of size. Returns whether there was any work.
    async fn truncate_step(&self, link: &mut Link) -> Result<bool, FsError> {
        let iod = link.iod;
        let found = self.truncates_at(iod).await?;
        if link.is_settled && found.cancelled.is_empty() && found.decided.iter().all(|one| self.is_pausing(iod, one)) {
            return Ok(false);
        }
        self.connect(link).await?;
        // Others may have begun or been decided meanwhile. They must not be cancelled.
        let TruncatesAt { preparing, cancelled, mut decided } = self.truncates_at(iod).await?;
        if !cancelled.is_empty() || !link.is_settled {
            let before = self.truncations.next_number();
            let except = decided.iter().map(|one| one.datafile).chain(preparing).collect();
            link.ask(IodRequest::CancelTruncates { before, except }).await?;
            link.is_settled = true;
            if !cancelled.is_empty() {
                let ended = cancelled.into_iter().map(|datafile| (datafile, false)).collect();
                self.end_truncates(iod, ended, Vec::new()).await?;
            }
            return Ok(true);
        }
        decided.retain(|one| !self.is_pausing(iod, one));
        let datafiles: Vec<_> = decided.iter().map(|one| (one.datafile, one.cut, one.size)).collect();
        if datafiles.is_empty() {
            return Ok(false);
        }
        let before = self.truncations.next_number();
        let reply = link.ask(IodRequest::CommitTruncates { before, datafiles }).await?;
        let ReplyBody::Iod(IodReply::Committed(results)) = reply else { return Err(call::unexpected()) };
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        // They are the first ones, in order.
        for (one, (datafile, error)) in decided.into_iter().zip(results) {
            if one.datafile != datafile {
                return Err(call::unexpected());
            }
            match error {
                Some(error) if mutated("manager/failed-commit-stops-the-others") => return Err(error),
                Some(error) if !mutated("manager/failed-commit-counts-as-done") => {
                    let pause = self.pause_truncate(iod, datafile);
                    tracing::debug!(%error, iod, %datafile, "a change of size has failed");
                    // It may pass, or a later change is prepared.
                    if pause > PASSES && !error.is_retryable() && error.code != ErrorCode::Stale {
                        tracing::warn!(%error, iod, %datafile, "a change of size fails; it is tried again later");
                        failed.push((one, error));
                    }
                }
                _ => {
                    self.truncations.failing.borrow_mut().remove(&(iod, datafile));
                    done.push((datafile, one.again));
                }
            }
        }
        let worked = !done.is_empty();
        if worked || !failed.is_empty() {
            self.end_truncates(iod, done, failed).await?;
        }
        Ok(worked)
    }

    /// Records what became of changes of size.
    async fn end_truncates(
        &self,
        iod: u32,
        ended: Vec<(DatafileHandle, bool)>,
        failed: Vec<(Decided, FsError)>,
    ) -> Result<(), FsError> {
        let now_ns = (self.wall)();
        let end = move |transaction: &WriteTransaction| {
            let mut change = Change::open(transaction, now_ns)?;
            change.end_truncates(iod, ended)?;
            failed.iter().try_for_each(|(one, error)| change.fail_truncate(iod, *one, error))
        };
        self.transact(end).await?;
        self.maintenance.notify_waiters();
        Ok(())
    }

    /// Returns true if a change of size has failed, and is not tried again yet.
    fn is_pausing(&self, iod: u32, one: &Decided) -> bool {
        let failing = self.truncations.failing.borrow();
        failing.get(&(iod, one.datafile)).is_some_and(|(_, due)| *due > self.endpoint.now())
    }

    /// Returns when the next change of size that has failed is tried again. What was due at `begun`
    /// was looked at.
    fn next_truncate(&self, iod: u32, begun: Time) -> Option<Time> {
        let failing = self.truncations.failing.borrow();
        let of_server = failing.range((iod, DatafileHandle(0))..=(iod, DatafileHandle(u64::MAX)));
        of_server.inspect(|_| step()).map(|(_, (_, due))| *due).filter(|due| *due > begun).min()
    }

    /// Lets a change of size that has failed pause. Returns for how long.
    fn pause_truncate(&self, iod: u32, datafile: DatafileHandle) -> Duration {
        let mut failing = self.truncations.failing.borrow_mut();
        let pause = failing.get(&(iod, datafile)).map_or(SHORTEST, |(pause, _)| (*pause * 2).min(LONGEST));
        failing.insert((iod, datafile), (pause, self.endpoint.now() + pause));
        pause
    }

    /// Returns the changes of size in progress at an I/O server.
    async fn truncates_at(&self, iod: u32) -> Result<TruncatesAt, FsError> {
        let found = self.read(|read| names::truncates(read, iod)).await?;
        let Truncates { mut undecided, mut decided } = found;
        if mutated("manager/decided-truncate-cancelled") {
            undecided.extend(decided.drain(..).map(|one| one.datafile));
        }
        let prepares = |datafile: &DatafileHandle| self.truncations.prepares(*datafile);
        let (mut preparing, cancelled): (Vec<_>, Vec<_>) = undecided.into_iter().partition(prepares);
        preparing.extend(decided.extract_if(.., |one| prepares(&one.datafile)).map(|one| one.datafile));
        // Those of files that were removed.
        let there: BTreeSet<DatafileHandle> = decided.iter().map(|one| one.datafile).collect();
        let of_server = (iod, DatafileHandle(0))..=(iod, DatafileHandle(u64::MAX));
        let is_gone = |(_, datafile): &(u32, DatafileHandle), _: &mut _| !there.contains(datafile);
        self.truncations.failing.borrow_mut().extract_if(of_server, is_gone).for_each(drop);
        let mut found = TruncatesAt { preparing, cancelled, decided };
        if mutated("manager/undecided-truncate-carried-out") {
            let early = found.cancelled.drain(..).map(|datafile| Decided { datafile, cut: 0, size: 0, again: false });
            found.decided.extend(early);
        }
        Ok(found)
    }

    /// Lets the server create datafiles, and adds them to its pool.
    async fn fill_pool(&self, link: &mut Link) -> Result<(), FsError> {
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

    /// Lets the server remove datafiles. If it fails to, the next request has half as many.
    ///
    /// # Errors
    /// None was removed, and the server fails, or does not answer.
    async fn remove_page(&self, link: &mut Link, page: Vec<DatafileHandle>) -> Result<(), FsError> {
        let result = link.ask(IodRequest::Remove { datafiles: page.clone() }).await;
        match result {
            Err(error) if error.is_retryable() => {
                if !mutated("manager/orphan-forgotten-before-it-is-removed") {
                    return Err(error);
                }
            }
            Err(error) => {
                link.orphans.is_troubled = true;
                link.orphans.page = page.len().div_ceil(2);
                if let [datafile] = page[..] {
                    tracing::debug!(%error, iod = link.iod, %datafile, "a datafile cannot be removed");
                    (link.orphans.from, link.orphans.failed) = (datafile.0.saturating_add(1), Some(error));
                }
                return Ok(());
            }
            Ok(_) => link.orphans.page = (2 * page.len()).clamp(1, PAGE),
        }
        let (now_ns, iod) = ((self.wall)(), link.iod);
        self.transact(move |transaction| Change::open(transaction, now_ns)?.forget(iod, &page)).await
    }
}
