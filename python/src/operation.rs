//! How an operation runs: it blocks its thread, or a loop of `asyncio` waits for it.
//!
//! A blocking wait looks for signals every [`TICK`], so that Ctrl-C ends it: only the interpreter
//! knows that one came. The future is dropped then, as when a task of `asyncio` is cancelled.

use std::mem::ManuallyDrop;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use bmi::Handle;
use bmi::runtime::Instant;
use futures_util::FutureExt;
use futures_util::future::{join_all, select};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::buffer::{self, Lease};
use crate::driver::{Driver, Finish};
use crate::error::Raised;

/// Time between two looks for signals.
const TICK: Duration = Duration::from_millis(100);

/// Who waits: nobody but the calling thread, or a future of `asyncio` in the care of a driver.
pub(crate) type How<'py> = Option<(Bound<'py, Driver>, Bound<'py, PyAny>)>;

/// Runs an operation. If that ends well, waits until the engine has let go of its buffers, so that
/// the program may resize them. As a rule it has, or its next poll does. A peer that goes on to
/// claim memory that it has answered for is waited for until `limit` ends.
pub(crate) async fn and_return<T, L: Future>(
    leases: impl IntoIterator<Item = Lease>,
    limit: impl FnOnce() -> L,
    operation: impl Future<Output = Result<T, Raised>>,
) -> Result<T, Raised> {
    let value = operation.await?;
    let mut returned = join_all(leases);
    if (&mut returned).now_or_never().is_none() {
        select(returned, pin!(limit())).await;
    }
    Ok(value)
}

/// Runs an operation to its end and returns what `finish` makes of it, or starts it and returns its
/// key for [`Driver::cancel`]. A thread that waits polls the endpoints of `handle`, if it has one.
///
/// # Errors
/// Those of the operation, of `finish`, and what a handler of a signal raised.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    how: How<'_>,
    handle: Option<&Handle>,
    future: impl Future<Output = Result<T, Raised>> + Send + 'static,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Py<PyAny>> {
    buffer::release(py);
    let guarded = AssertUnwindSafe(future).catch_unwind().map(|ended| {
        ended.unwrap_or_else(|_| Err(PyRuntimeError::new_err("a bug: the operation panicked; see stderr").into()))
    });
    let Some((driver, waits)) = how else {
        let ended = py.detach(|| {
            let mut guarded = pin!(guarded);
            loop {
                let ended = match handle {
                    Some(handle) => handle.block_on_for(guarded.as_mut(), TICK),
                    None => park(guarded.as_mut()),
                };
                match ended {
                    Some(ended) => break ended,
                    None => Python::attach(|py| py.check_signals())?,
                }
            }
        });
        // The operation's own memory is free again, unless it was interrupted.
        buffer::release(py);
        return ended.map_err(|raised| raised.into_exception(py)).and_then(|value| finish(py, value));
    };
    let work = guarded.map(|ended| {
        Box::new(move |py: Python<'_>| match ended {
            Ok(value) => finish(py, value),
            Err(raised) => Err(raised.into_exception(py)),
        }) as Finish
    });
    let key = driver.get().start(py, Box::pin(work), waits.unbind())?;
    Ok(key.into_pyobject(py)?.into_any().unbind())
}

/// Waits for an operation that others drive, for a [`TICK`] at most.
fn park<F: Future>(mut operation: Pin<&mut F>) -> Option<F::Output> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let since = Instant::now();
    loop {
        if let Poll::Ready(ended) = operation.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(ended);
        }
        let left = TICK.saturating_sub(since.elapsed());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

/// What belongs to the process that made it. A child of a fork has neither its threads nor, alone,
/// its connections: it may not use it, and does not end it.
pub(crate) struct Home<T> {
    pid: u32,
    inner: ManuallyDrop<T>,
}

impl<T> Home<T> {
    pub(crate) fn new(inner: T) -> Home<T> {
        Home { pid: std::process::id(), inner: ManuallyDrop::new(inner) }
    }

    /// Returns it.
    ///
    /// # Errors
    /// `RuntimeError` in a child of a fork.
    pub(crate) fn get(&self) -> PyResult<&T> {
        match self.pid == std::process::id() {
            true => Ok(&self.inner),
            false => Err(PyRuntimeError::new_err("made before a fork: make another one in the child")),
        }
    }
}

impl<T> Drop for Home<T> {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // SAFETY: it is not used again.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

/// Returns a time in seconds as a duration.
///
/// # Errors
/// `ValueError` if it is negative, too long, or no number.
pub(crate) fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(format!("{seconds} s: {error}")))
}
