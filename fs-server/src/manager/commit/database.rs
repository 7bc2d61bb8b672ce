//! The manager's access to its database: what may wait for the disk runs beside the event loop.
//!
//! **Why.** A commit waits for the disk, and a disk can stall for seconds. Meanwhile the manager
//! answers every request that does not need the disk.
//!
//! **How.** Work on the database is queued, and one piece of it runs at a time, on a worker thread
//! of the runtime. The loop is woken when it is done. Without a runtime, as in the simulator, the
//! same work runs at once on the loop's thread, before or after a pause in virtual time.
//!
//! Reads are answered from the *view*: a read transaction of the last commit that the loop knows to
//! be done. It is replaced after each piece of work, in the same step of the loop in which the
//! effects of the work are noted and its requests are answered. All event loops read from it
//! (`lookups`).
//!
//! **Invariants**
//! 1. The loop opens, writes, syncs and closes no file. What fails is closed and opened again by
//!    the piece of work that failed, before the next one begins.
//! 2. A read shows no change that could still fail: the view is of a commit that is durable.
//! 3. A change that was answered is in the view: the view is replaced first.
//! 4. A piece of work that has begun runs to its end, even if nobody waits for it any more, and its
//!    effects on the manager's state are noted in the order of the commits. The only exception is a
//!    server that stops. It waits for the end of the work, and notes nothing.
//!
//! **Tests.** `stalled_disk.rs` with threads and a disk that blocks, `tests/sim/manager/commits.rs`
//! with commits that take virtual time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bmi::Time;
use bmi::hooks::handed_over;
use fs_proto::{ErrorCode, FsError};
use redb::{ReadTransaction, WriteTransaction};
use tokio::sync::{Notify, oneshot};

use super::lookups::{Lookups, View};
use crate::lock::lock;
use crate::manager::tables::Holds;
use crate::manager::{Fault, Manager};
use crate::store::MetaStore;

/// How long a piece of work may take. A disk that takes longer is stalled: from then on only some
/// of the changes wait for it (`changes`).
const STALL: Duration = Duration::from_millis(500);

/// Work on the database, and what follows it on the loop.
struct Job {
    /// Returns true if the store has failed.
    work: Box<dyn FnOnce(&MetaStore) -> bool + Send>,
    finish: Box<dyn FnOnce()>,
}

/// The database, and the work that waits for it.
pub(in crate::manager) struct Database {
    store: Arc<MetaStore>,
    lookups: Arc<Lookups>,
    jobs: RefCell<VecDeque<Job>>,
    /// There is a job or a change to be made.
    pub(in crate::manager) work: Notify,
    /// How long work takes in the simulator.
    time: Duration,
}

/// Runs `work` on a worker thread of the runtime, or on this thread if there is none.
async fn beside_the_loop<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, FsError> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            let failed = |error| FsError::new(ErrorCode::Io, format!("a worker of the metadata store failed: {error}"));
            runtime.spawn_blocking(work).await.map_err(failed)
        }
        Err(_) => Ok(handed_over(work)),
    }
}

/// Returns the error for what waits for a server that ends.
fn stopping() -> FsError {
    FsError::new(ErrorCode::Unreachable, "the manager is stopping")
}

impl Database {
    /// Creates the access to a database. Whoever has the lookups may read it as well.
    pub(in crate::manager) fn new(store: MetaStore, holds: Holds) -> Result<(Database, Arc<Lookups>), Fault> {
        let lookups = Arc::new(Lookups::new(Arc::new(store.read()?), holds)?);
        let (jobs, work, time) = (RefCell::default(), Notify::new(), Duration::ZERO);
        Ok((Database { store: Arc::new(store), lookups: lookups.clone(), jobs, work, time }, lookups))
    }

    /// Lets each piece of work take this long.
    #[cfg(any(test, feature = "sim"))]
    pub(in crate::manager) fn take(&mut self, time: Duration) {
        self.time = time;
    }

    /// Returns the reason why the database must not be used any more.
    pub(in crate::manager) fn doubt(&self) -> Option<FsError> {
        self.store.doubt()
    }

    fn check(&self) -> Result<(), Fault> {
        self.store.doubt().map_or(Ok(()), |error| Err(Fault::Refused(error)))
    }

    /// Queues work on the database. `then` is called on the loop with its result, before the next
    /// piece of work begins. Returns what `then` returns.
    pub(super) async fn submit<R: Send + 'static, Q: 'static>(
        &self,
        work: impl FnOnce(&MetaStore) -> Result<R, Fault> + Send + 'static,
        then: impl FnOnce(Result<R, Fault>) -> Result<Q, Fault> + 'static,
    ) -> Result<Q, Fault> {
        let (answer, done) = oneshot::channel();
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        let work = move |store: &MetaStore| {
            let result = work(store);
            let failed = matches!(result, Err(Fault::Store(_)));
            *lock(&slot) = Some(result);
            failed
        };
        let finish = move || {
            // Without a result the worker has failed, and so has the manager.
            if let Some(result) = lock(&result).take() {
                drop(answer.send(then(result)));
            }
        };
        self.jobs.borrow_mut().push_back(Job { work: Box::new(work), finish: Box::new(finish) });
        self.work.notify_one();
        done.await.unwrap_or_else(|_| Err(stopping().into()))
    }

    /// Returns the metadata as of the last commit. Waits if the database must be opened first.
    pub(in crate::manager) async fn view(&self) -> Result<View, Fault> {
        self.check()?;
        if let Some(view) = self.lookups.view() {
            return Ok(view);
        }
        self.submit(|store| Ok(store.read()?), |view| view.map(Arc::new)).await
    }

    /// Reads from the metadata as of the last commit. If the disk fails, the database is opened
    /// again, and this tries once more.
    pub(in crate::manager) async fn read<R>(
        &self,
        look: impl Fn(&ReadTransaction) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        match look(&*self.view().await?) {
            Err(Fault::Store(error)) => tracing::warn!(%error, "a read of the metadata failed"),
            result => return result,
        }
        let view = self.submit(|store| Ok(store.read()?), |view| view.map(Arc::new)).await?;
        look(&view)
    }

    /// Does a piece of work now, which also returns whether the store has failed. Returns what the
    /// work returned, and the metadata after it.
    async fn run<R: Send + 'static>(
        &self,
        endpoint: &bmi::Endpoint,
        work: impl FnOnce(&MetaStore) -> (R, bool) + Send + 'static,
    ) -> Result<(R, Option<View>), FsError> {
        let store = self.store.clone();
        let work = move || {
            let (result, failed) = work(&store);
            if failed && store.doubt().is_none() {
                store.close_failed();
            }
            // If it cannot be opened now, whoever needs it next tries again.
            let view = if store.doubt().is_none() { store.read().ok() } else { None };
            (result, view.map(Arc::new))
        };
        let pause = async || {
            if !self.time.is_zero() {
                endpoint.sleep(self.time / 2).await;
            }
        };
        // What is durable is not known at once.
        pause().await;
        let done = beside_the_loop(work).await;
        pause().await;
        done
    }
}

impl Manager {
    /// Does what is queued for the database, in an endless loop: groups of changes, and other work
    /// in between.
    pub(in crate::manager) async fn work(&self) {
        loop {
            self.database.work.notified().await;
            loop {
                let changed = self.commit_group().await;
                let job = self.database.jobs.borrow_mut().pop_front();
                match job {
                    Some(job) => self.do_job(job).await,
                    None if changed => {}
                    None => break,
                }
            }
        }
    }

    async fn do_job(&self, job: Job) {
        let Job { work, finish } = job;
        match self.beside(move |store| ((), work(store))).await {
            Ok(((), view)) => {
                self.lookups.publish(view, &[]);
                finish();
            }
            Err(_) => drop(finish),
        }
    }

    /// Does a piece of work now, and waits for its end. `work` also returns whether the store has
    /// failed. Returns what the work returned, and the metadata after it, which the caller
    /// publishes.
    ///
    /// # Errors
    /// The worker has panicked. The manager stops.
    pub(in crate::manager) async fn beside<R: Send + 'static>(
        &self,
        work: impl FnOnce(&MetaStore) -> (R, bool) + Send + 'static,
    ) -> Result<(R, Option<View>), FsError> {
        let mut run = pin!(self.database.run(&self.endpoint, work));
        let result = tokio::select! {
            biased;
            result = &mut run => result,
            () = self.endpoint.sleep(STALL) => {
                self.begin_stall();
                let result = run.await;
                self.end_stall();
                result
            }
        };
        result.inspect_err(|error| self.fail(error))
    }

    /// Runs `work` in a transaction of its own. Returns when it is durable.
    pub(in crate::manager) async fn transact<R: Send + 'static>(
        &self,
        work: impl FnOnce(&WriteTransaction) -> Result<R, Fault> + Send + 'static,
    ) -> Result<R, FsError> {
        self.transact_then(work, Ok).await
    }

    /// Runs `work` in a transaction of its own. When it is durable, calls `then` with what it has
    /// returned, before anything else is committed.
    pub(in crate::manager) async fn transact_then<R: Send + 'static, Q: 'static>(
        &self,
        work: impl FnOnce(&WriteTransaction) -> Result<R, Fault> + Send + 'static,
        then: impl FnOnce(R) -> Result<Q, Fault> + 'static,
    ) -> Result<Q, FsError> {
        let work = move |store: &MetaStore| {
            let transaction = store.write()?;
            let result = work(&transaction)?;
            transaction.commit()?;
            Ok(result)
        };
        let result = self.database.submit(work, |result| result.and_then(then)).await;
        result.map_err(|fault| self.settle(fault))
    }

    /// Reads from the metadata as of the last commit.
    pub(in crate::manager) async fn read<R>(
        &self,
        look: impl Fn(&ReadTransaction) -> Result<R, Fault>,
    ) -> Result<R, FsError> {
        self.database.read(look).await.map_err(|fault| self.settle(fault))
    }

    /// Waits for `work`, but not beyond `deadline`. The work then goes on without its request.
    ///
    /// # Errors
    /// That of the work, or `Busy`.
    pub(in crate::manager) async fn until<R>(
        &self,
        deadline: Time,
        work: impl Future<Output = Result<R, FsError>>,
    ) -> Result<R, FsError> {
        tokio::select! {
            biased;
            result = work => result,
            () = self.endpoint.sleep_until(deadline) => Err(slow()),
        }
    }

    /// Converts a fault to the error for a request. The transaction is over. If it is not known
    /// what the store's disk has, the manager stops: only its next start reads from the disk what
    /// was stored.
    pub(in crate::manager) fn settle(&self, fault: Fault) -> FsError {
        if let Some(error) = self.database.doubt() {
            self.fail(&error);
            // The change may have been made. The next start of the manager tells, if its request
            // comes again.
            return FsError::new(ErrorCode::Unreachable, error.detail);
        }
        if let Fault::Store(_) = fault {
            // They are of a database that was closed.
            self.snapshots.borrow_mut().clear();
        }
        fault.into_error()
    }
}

/// Returns the error for a request that has waited for the disk, and has changed nothing.
pub(in crate::manager) fn slow() -> FsError {
    FsError::new(ErrorCode::Busy, "the manager waits for its disk; nothing was changed")
}

/// State of the manager that work on the database changes when it is done.
pub(in crate::manager) type Shared<S> = Rc<RefCell<S>>;
