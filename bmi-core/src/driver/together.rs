//! Drivers and the work beside them, as one task of a runtime.
//!
//! **Why.** A task that yields, or that another one wakes, runs again only after its runtime has
//! looked for events. That look is a system call, and a message paid for two. And in a `select!`
//! all branches have the same waker, so a driver polled its endpoint each time that the work was
//! woken. Here each part has a waker of its own. What one part wakes runs in the same poll of the
//! task.
//!
//! **Invariants**
//! 1. A part is polled if it was woken since its last poll began, and only then.
//! 2. A wake is lost nowhere: one that comes during a poll of the task is seen by that poll, or
//!    wakes the task.
//! 3. A poll of the task ends, after [`TURNS`] turns at the latest. Then the runtime looks for
//!    events, runs its other tasks, and continues the parts that are still awake.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::error::Error;

/// Number of turns of all parts in one poll.
const TURNS: usize = 8;

struct Task {
    /// It is being polled. That poll sees which parts are woken.
    runs: AtomicBool,
    waker: Mutex<Waker>,
}

impl Task {
    fn new() -> Arc<Task> {
        Arc::new(Task { runs: AtomicBool::new(false), waker: Mutex::new(Waker::noop().clone()) })
    }

    fn begin(&self, waker: &Waker) {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone_from(waker);
        self.runs.store(true, Ordering::SeqCst);
    }

    fn wake(&self) {
        if !self.runs.load(Ordering::SeqCst) {
            let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
            waker.wake();
        }
    }
}

/// The waker of a part.
struct Part {
    woken: AtomicBool,
    task: Arc<Task>,
}

impl Wake for Part {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

/// A part and its waker.
struct Woken<F> {
    future: F,
    part: Arc<Part>,
    waker: Waker,
}

impl<F: Future + Unpin> Woken<F> {
    fn new(future: F, task: &Arc<Task>) -> Woken<F> {
        let part = Arc::new(Part { woken: AtomicBool::new(true), task: Arc::clone(task) });
        Woken { future, waker: Waker::from(Arc::clone(&part)), part }
    }

    fn is_woken(&self) -> bool {
        self.part.woken.load(Ordering::SeqCst)
    }

    /// Polls the part if it was woken.
    fn poll(&mut self) -> Option<Poll<F::Output>> {
        let woken = self.part.woken.swap(false, Ordering::SeqCst);
        woken.then(|| Pin::new(&mut self.future).poll(&mut Context::from_waker(&self.waker)))
    }
}

/// Runs `work` to its end, and the drivers beside it.
///
/// # Errors
/// That of the first driver that ends.
pub(super) async fn together<D, F>(drivers: Vec<D>, work: F) -> Result<F::Output, Error>
where
    D: Future<Output = Result<Infallible, Error>>,
    F: Future + Unpin,
{
    let task = Task::new();
    let mut drivers: Vec<_> = drivers.into_iter().map(|driver| Woken::new(Box::pin(driver), &task)).collect();
    let mut work = Woken::new(work, &task);
    poll_fn(|cx| {
        task.begin(cx.waker());
        for _ in 0..TURNS {
            // What a driver has woken comes before that driver, which then sends what it posts.
            let mut polled = match work.poll() {
                Some(Poll::Ready(output)) => return Poll::Ready(Ok(output)),
                pending => pending.is_some(),
            };
            for driver in &mut drivers {
                polled |= match driver.poll() {
                    Some(Poll::Ready(Err(error))) => return Poll::Ready(Err(error)),
                    pending => pending.is_some(),
                };
            }
            if !polled {
                break;
            }
        }
        // From here on wakes reach the task. Those before are seen below.
        task.runs.store(false, Ordering::SeqCst);
        if work.is_woken() || drivers.iter().any(Woken::is_woken) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread;
    use std::time::Duration;

    use tokio::runtime::Builder;

    use super::*;

    /// A driver that counts its polls.
    fn counting(polls: &Cell<u32>) -> impl Future<Output = Result<Infallible, Error>> {
        poll_fn(|_| {
            polls.set(polls.get() + 1);
            Poll::Pending
        })
    }

    /// In a `select!`, each wake of the work polled the endpoint too.
    #[test]
    fn a_wake_of_the_work_does_not_poll_the_driver() {
        let polls = Cell::new(0);
        let mut yields = 100;
        let work = poll_fn(|cx| {
            yields -= 1;
            cx.waker().wake_by_ref();
            if yields == 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(together(vec![counting(&polls)], work)).expect("no driver fails");
        assert_eq!(polls.get(), 1);
    }

    /// Only timers and tasks of the runtime end this one.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a timer of the runtime is what must not be stopped")]
    fn a_part_that_is_always_awake_stops_nothing_else() {
        let awake = poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let work = std::pin::pin!(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::spawn(async { 7 }).await.expect("the task")
        });
        assert_eq!(runtime.block_on(together(vec![awake], work)).expect("no driver fails"), 7);
    }

    #[test]
    fn no_wake_of_another_thread_is_lost() {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        for turns in 0..2_000_u32 {
            let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
            let sends = move || (0..turns % 5).for_each(|number| send.send(number).expect("a receiver"));
            let other = thread::Builder::new().spawn(sends).expect("a thread");
            let work = std::pin::pin!(async {
                let mut all = 0;
                while receive.recv().await.is_some() {
                    all += 1;
                }
                all
            });
            let drivers = vec![poll_fn(|_| Poll::Pending)];
            assert_eq!(runtime.block_on(together(drivers, work)).expect("no driver fails"), turns % 5);
            other.join().expect("no panic");
        }
    }

    #[test]
    fn the_error_of_a_driver_ends_it() {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let failing = poll_fn(|_| Poll::Ready(Err(Error::from(std::io::Error::other("no descriptor")))));
        runtime.block_on(together(vec![failing], std::future::pending::<()>())).expect_err("the driver's error");
    }
}
