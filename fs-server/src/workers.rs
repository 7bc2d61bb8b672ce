//! Worker threads: they do what may wait for a disk, so that an event loop does not.
//!
//! **Why.** A server serves all its clients on one thread. A call that waits there, for a disk or
//! for another machine, stops every client, however little each of them wants. So such calls run
//! here, and the request that needs the result waits as a future.
//!
//! **Why not the threads of tokio.** A runtime that ends waits for them, without a limit. A server
//! must be able to stop while its disk does not answer. And a hand-over here wakes one thread at
//! most, however many jobs come at once.
//!
//! **Invariants**
//! 1. Jobs begin in the order in which they were handed over. They run at the same time, so what
//!    must be ordered is one job, or the caller waits in between.
//! 2. There are at most `most` threads. They are started when they are needed, and stay.
//! 3. *No job is forgotten.* While a job waits, a thread is on its way, or all threads are busy.
//!    At most one is on its way, and it sends for the next one if more jobs wait.
//! 4. The queue has no limit of its own. Its users have one: a server's requests in progress, each
//!    of which hands over a few jobs at a time.
//! 5. *Long work makes way.* The threads of a group may be [`Workers::nice`]. Where the processors
//!    are taken, event loops then come before transfers that clients wait for anyway. Twelve
//!    clients that had asked for hundreds of megabytes kept both processors for seconds, and the
//!    small requests of all others waited for a processor.
//! 6. Without a tokio runtime there is no event loop that could be blocked, and [`Workers::run`]
//!    does the work at once, on the caller's thread. So the simulator stays single-threaded.
//!
//! **Stop.** Dropping the workers does not wait for them. They finish what was handed over, and
//! end. Whoever must know that nothing runs any more asks [`Workers::wait_until_idle`].

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use bmi::hooks::handed_over;
use fs_proto::{ErrorCode, FsError};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::lock::lock;

type Job = Box<dyn FnOnce() + Send>;

/// A group of worker threads.
#[derive(Debug)]
pub(crate) struct Workers(Arc<Shared>);

/// What the threads have in common.
#[derive(Debug)]
struct Shared {
    name: &'static str,
    most: usize,
    /// Added to the nice value of each thread.
    nice: i32,
    state: Mutex<State>,
    /// A job waits for an idle thread, or the workers have been dropped.
    called: Condvar,
    /// A thread has become idle.
    idle: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    /// Jobs that run.
    running: usize,
    /// A thread was woken or started, and has not looked for a job yet.
    coming: bool,
    /// The workers have been dropped.
    closed: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let State { jobs, threads, idle, running, coming, closed } = self;
        f.debug_struct("State")
            .field("waiting", &jobs.len())
            .field("threads", threads)
            .field("idle", idle)
            .field("running", running)
            .field("coming", coming)
            .field("closed", closed)
            .finish()
    }
}

/// Which thread must be sent for.
enum Call {
    None,
    Idle,
    New,
}

impl State {
    /// Decides which thread is to come for a waiting job, if one must.
    fn call(&mut self, most: usize) -> Call {
        if self.jobs.is_empty() || self.coming {
            return Call::None;
        }
        if self.idle > 0 {
            self.coming = true;
            Call::Idle
        } else if self.threads < most {
            (self.coming, self.threads) = (true, self.threads + 1);
            Call::New
        } else {
            Call::None
        }
    }
}

impl Shared {
    /// Sends for a thread. Call it without the lock.
    fn send_for(self: &Arc<Self>, call: Call) {
        match call {
            Call::None => {}
            Call::Idle => self.called.notify_one(),
            Call::New => {
                let shared = self.clone();
                if let Err(error) = Builder::new().name(self.name.to_owned()).spawn(move || shared.work()) {
                    tracing::warn!(%error, workers = self.name, "a worker thread could not be started");
                    let mut state = lock(&self.state);
                    (state.coming, state.threads) = (false, state.threads - 1);
                    if state.threads == 0 {
                        // Their callers get an error, because nobody would ever do them.
                        let jobs = std::mem::take(&mut state.jobs);
                        drop(state);
                        drop(jobs);
                    }
                }
            }
        }
    }

    /// The work of a thread: does jobs until the workers have been dropped.
    fn work(self: &Arc<Self>) {
        if self.nice > 0
            && let Err(error) = rustix::process::nice(self.nice)
        {
            tracing::debug!(%error, workers = self.name, "a worker thread does not make way");
        }
        let mut state = lock(&self.state);
        state.coming = false;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.running += 1;
                let call = state.call(self.most);
                drop(state);
                self.send_for(call);
                // A panic is reported by the hook. The caller learns of it, because its end of the
                // channel is dropped.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = lock(&self.state);
                state.running -= 1;
            } else if state.closed {
                break;
            } else {
                state.idle += 1;
                self.idle.notify_all();
                state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                state.coming = false;
            }
        }
        self.idle.notify_all();
    }
}

/// Returns true if this thread runs an event loop, which must not be blocked.
pub(crate) fn on_a_loop() -> bool {
    Handle::try_current().is_ok()
}

impl Workers {
    /// Creates a group of at most `most` threads, which have this name. None is started yet.
    pub(crate) fn new(name: &'static str, most: usize) -> Workers {
        Workers::nice(name, most, 0)
    }

    /// Creates a group whose threads make way for others: `nice` is added to their nice value,
    /// which Linux keeps for each thread.
    pub(crate) fn nice(name: &'static str, most: usize, nice: i32) -> Workers {
        let (state, called, idle) = (Mutex::default(), Condvar::new(), Condvar::new());
        Workers(Arc::new(Shared { name, most: most.max(1), nice, state, called, idle }))
    }

    /// Runs `work` on a worker thread, and waits for its result. Without a tokio runtime, runs it
    /// on this thread. If the future is dropped, the work is done all the same.
    ///
    /// # Errors
    /// `Io` if the work has panicked, or no thread could be started.
    pub(crate) async fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Result<R, FsError> {
        if !on_a_loop() {
            return Ok(handed_over(work));
        }
        let (sender, receiver) = oneshot::channel();
        self.hand_over(Box::new(move || {
            // It fails if nobody waits any more.
            let _ = sender.send(work());
        }));
        let failed = |_| FsError::new(ErrorCode::Io, format!("a worker thread failed ({})", self.0.name));
        receiver.await.map_err(failed)
    }

    /// Lets a worker thread do `work`, for which nobody waits. Without a tokio runtime, does it on
    /// this thread.
    pub(crate) fn start(&self, work: impl FnOnce() + Send + 'static) {
        if !on_a_loop() {
            return handed_over(work);
        }
        self.hand_over(Box::new(work));
    }

    /// Lets a worker thread do `work`, for which nobody waits, wherever this is called.
    pub(crate) fn leave(&self, work: impl FnOnce() + Send + 'static) {
        self.hand_over(Box::new(work));
    }

    fn hand_over(&self, job: Job) {
        let call = {
            let mut state = lock(&self.0.state);
            state.jobs.push_back(job);
            state.call(self.0.most)
        };
        self.0.send_for(call);
    }

    /// Blocks this thread until no job runs or waits, but for `patience` at most. Returns false if
    /// there still is one. Call it when the event loop has ended.
    pub(crate) fn wait_until_idle(&self, patience: Duration) -> bool {
        let is_busy = |state: &mut State| state.running > 0 || !state.jobs.is_empty();
        let waited = self.0.idle.wait_timeout_while(lock(&self.0.state), patience, is_busy);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !is_busy(&mut state)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.0.state).closed = true;
        self.0.called.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    /// Longest wait for another thread. It is only reached by a test that fails.
    const LONG: Duration = Duration::from_secs(60);

    fn on_a_runtime<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// A job that waits until it is let go, and the way to let it go.
    fn stalled() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
        let (go, gone) = mpsc::channel();
        (go, move || {
            let _ = gone.recv();
        })
    }

    #[test]
    fn work_is_done_on_another_thread() {
        let workers = Workers::new("test", 2);
        let own = thread::current().id();
        assert_ne!(on_a_runtime(workers.run(|| thread::current().id())).unwrap(), own);
        assert_eq!(workers.run(|| thread::current().id()).now_or_never().unwrap().unwrap(), own, "without a runtime");
    }

    #[test]
    fn a_job_that_waits_stops_only_its_own_thread() {
        let workers = Workers::new("test", 3);
        on_a_runtime(async {
            let ((go, first), (others, second)) = (stalled(), stalled());
            let mut waits = [
                Box::pin(workers.run(first)) as std::pin::Pin<Box<dyn Future<Output = _>>>,
                Box::pin(workers.run(second)),
            ];
            for waits in &mut waits {
                assert!(waits.as_mut().now_or_never().is_none());
            }
            for number in 0..100 {
                assert_eq!(workers.run(move || number).await, Ok(number));
            }
            assert!(!workers.wait_until_idle(Duration::ZERO));
            drop((go, others));
            for waits in waits {
                waits.await.unwrap();
            }
        });
        assert!(workers.wait_until_idle(LONG));
    }

    /// With all threads stalled, jobs wait, and none is lost.
    #[test]
    fn jobs_wait_for_a_thread_and_begin_in_order() {
        for most in 1..4 {
            let workers = Workers::new("test", most);
            let order = Arc::new(Mutex::new(Vec::new()));
            on_a_runtime(async {
                let stalls: Vec<_> = (0..most).map(|_| stalled()).collect();
                let (latches, stalls): (Vec<_>, Vec<_>) = stalls.into_iter().unzip();
                let stalls = stalls.into_iter().map(|job| workers.run(job)).collect::<Vec<_>>();
                let jobs = (0..50).map(|number| {
                    let order = order.clone();
                    workers.run(move || lock(&order).push(number))
                });
                let mut all = Box::pin(async { (join_all(stalls).await, join_all(jobs).await) });
                assert!(all.as_mut().now_or_never().is_none());
                assert!(lock(&order).is_empty(), "all threads are stalled");
                drop(latches);
                let (stalls, jobs) = all.await;
                assert!(stalls.iter().chain(&jobs).all(Result::is_ok));
            });
            let mut done = lock(&order).clone();
            if most > 1 {
                // Those that run at the same time may overtake each other.
                done.sort();
            }
            assert_eq!(done, (0..50).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_panic_is_the_callers_error_and_the_thread_goes_on() {
        let workers = Workers::new("test", 1);
        on_a_runtime(async {
            let error = workers.run(|| panic!("a test")).await.unwrap_err();
            assert!(error.code == ErrorCode::Io && error.detail.contains("test"), "{error}");
            assert_eq!(workers.run(|| 5).await, Ok(5));
        });
    }

    #[test]
    fn what_was_handed_over_is_done_after_the_end() {
        let workers = Workers::new("test", 1);
        let (count, (go, job), (told, done)) = (Arc::new(AtomicUsize::new(0)), stalled(), mpsc::channel());
        on_a_runtime(async {
            workers.start(job);
            for _ in 0..10 {
                let count = count.clone();
                // The future is dropped.
                assert!(workers.run(move || count.fetch_add(1, Ordering::Relaxed)).now_or_never().is_none());
            }
            workers.start(move || told.send(()).unwrap());
        });
        assert!(!workers.wait_until_idle(Duration::ZERO));
        drop(workers);
        drop(go);
        done.recv_timeout(LONG).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 10);
    }

    /// Long jobs had the same share of a processor as the event loops.
    #[test]
    fn the_threads_of_a_nice_group_make_way_and_no_others_do() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        for (added, expected) in [(0, before), (3, (before + 3).min(19))] {
            let workers = Workers::nice("test", 1, added);
            assert_eq!(on_a_runtime(workers.run(nice)), Ok(expected));
        }
        assert_eq!(nice(), before);
    }

    #[test]
    fn no_more_threads_are_started_than_may_be() {
        let workers = Workers::new("test", 4);
        on_a_runtime(async {
            for _ in 0..20 {
                let all = join_all((0..50).map(|number| workers.run(move || number))).await;
                assert!(all.into_iter().map(Result::unwrap).eq(0..50));
            }
        });
        assert!((1..=4).contains(&lock(&workers.0.state).threads));
    }
}
