//! The futures that a loop of `asyncio` waits for.
//!
//! **Why an event fd.** A completion happens on the thread of a driver of the transport. To call
//! `loop.call_soon_threadsafe` there, it would have to wait for the interpreter, and with it every
//! other operation. Instead it adds a key to a list, and makes an event fd readable, which the loop
//! watches (`add_reader`). However many futures complete until the loop runs, it is woken once.
//!
//! **Invariant.** A key in the list was pushed after the flag of its waker was set. A push to an
//! empty list makes the fd readable, and the list is emptied after the fd was read. So no wake-up
//! is lost.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use crate::buffer;

/// Makes the result of an operation, with the interpreter's lock held.
pub(crate) type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
/// An operation on its way.
pub(crate) type Work = Pin<Box<dyn Future<Output = Finish> + Send>>;

/// What a loop of `asyncio` waits for. `bmi/aio.py` makes one for each loop.
#[pyclass(frozen)]
pub(crate) struct Driver {
    ready: Arc<Ready>,
    tasks: Mutex<HashMap<u64, Task>>,
    next: AtomicU64,
}

/// The keys of futures that are to be polled.
struct Ready {
    fd: OwnedFd,
    keys: Mutex<Vec<u64>>,
}

struct Task {
    work: Work,
    /// The future of `asyncio`.
    waits: Py<PyAny>,
    wake: Arc<TaskWake>,
}

struct TaskWake {
    key: u64,
    ready: Arc<Ready>,
    /// The key is in the list.
    is_queued: AtomicBool,
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut keys = lock(&self.ready.keys);
        keys.push(self.key);
        if keys.len() == 1 {
            // It cannot fail: the counter is far from its end.
            let _ = rustix::io::write(&self.ready.fd, &1u64.to_ne_bytes());
        }
    }
}

impl Task {
    /// Polls the future, without the interpreter's lock.
    fn poll(&mut self, py: Python<'_>) -> Poll<Finish> {
        let Task { work, wake, .. } = self;
        py.detach(|| {
            wake.is_queued.store(false, Ordering::Release);
            let waker = Waker::from(Arc::clone(wake));
            work.as_mut().poll(&mut Context::from_waker(&waker))
        })
    }

    /// Gives the result to the future of `asyncio`, unless that was cancelled.
    fn end(self, py: Python<'_>, finish: Finish) -> PyResult<()> {
        // The operation's memory is free before the program goes on.
        drop(self.work);
        buffer::release(py);
        let waits = self.waits.bind(py);
        if waits.call_method0("done")?.is_truthy()? {
            return Ok(());
        }
        match finish(py) {
            Ok(value) => waits.call_method1("set_result", (value,))?,
            Err(raised) => waits.call_method1("set_exception", (raised.into_value(py),))?,
        };
        Ok(())
    }
}

impl Driver {
    /// Starts an operation, and returns its key.
    ///
    /// # Errors
    /// Those of the future of `asyncio`.
    pub(crate) fn start(&self, py: Python<'_>, work: Work, waits: Py<PyAny>) -> PyResult<u64> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let wake = TaskWake { key, ready: Arc::clone(&self.ready), is_queued: AtomicBool::new(false) };
        self.step(py, key, Task { work, waits, wake: Arc::new(wake) })?;
        Ok(key)
    }

    fn step(&self, py: Python<'_>, key: u64, mut task: Task) -> PyResult<()> {
        match task.poll(py) {
            Poll::Ready(finish) => task.end(py, finish),
            Poll::Pending => {
                lock(&self.tasks).insert(key, task);
                Ok(())
            }
        }
    }
}

#[pymethods]
impl Driver {
    #[new]
    fn new() -> PyResult<Driver> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from)?;
        let ready = Arc::new(Ready { fd, keys: Mutex::default() });
        Ok(Driver { ready, tasks: Mutex::default(), next: AtomicU64::new(0) })
    }

    /// Returns the descriptor that is readable when [`Driver::run`] has something to do.
    fn fileno(&self) -> i32 {
        self.ready.fd.as_raw_fd()
    }

    /// Polls the futures that are ready, and ends those that have ended.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let _ = rustix::io::read(&self.ready.fd, &mut [0; 8]);
        let keys = std::mem::take(&mut *lock(&self.ready.keys));
        let mut ended = Ok(());
        for key in keys {
            // One that was cancelled has no task any more.
            let task = lock(&self.tasks).remove(&key);
            ended = ended.and(task.map_or(Ok(()), |task| self.step(py, key, task)));
        }
        ended
    }

    /// Drops an operation that has not ended.
    fn cancel(&self, py: Python<'_>, key: u64) {
        let task = lock(&self.tasks).remove(&key);
        py.detach(|| drop(task));
        buffer::release(py);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
