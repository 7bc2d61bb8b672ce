//! A task, and its end.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::future::{AbortHandle, Abortable};

use super::Host;
use crate::error::{Error, ErrorKind};

/// A task that was started by [`spawn`](super::spawn). To await it is to wait for its result. When
/// it is dropped, the task goes on.
#[derive(Debug)]
pub struct Task<T>(Kind<T>);

#[derive(Debug)]
enum Kind<T> {
    #[cfg(feature = "tokio")]
    Tokio(tokio::task::JoinHandle<T>),
    Host {
        end: Arc<End<T>>,
        abort: AbortHandle,
    },
}

/// The end of a task of a host.
#[derive(Debug)]
struct End<T>(Mutex<Progress<T>>);

#[derive(Debug)]
enum Progress<T> {
    Runs(Option<Waker>),
    /// `None` if it was dropped before its end.
    Ended(Option<T>),
}

impl<T> End<T> {
    fn lock(&self) -> MutexGuard<'_, Progress<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, result: Option<T>) {
        let before = std::mem::replace(&mut *self.lock(), Progress::Ended(result));
        if let Progress::Runs(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// Ends the task when it is dropped without a result.
struct Ending<T>(Option<Arc<End<T>>>);

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end.set(None);
        }
    }
}

impl<T: Send + 'static> Task<T> {
    #[cfg(feature = "tokio")]
    pub(super) fn of_tokio(task: tokio::task::JoinHandle<T>) -> Task<T> {
        Task(Kind::Tokio(task))
    }

    pub(super) fn start(host: &dyn Host, future: impl Future<Output = T> + Send + 'static) -> Task<T> {
        let end = Arc::new(End(Mutex::new(Progress::Runs(None))));
        let mut ending = Ending(Some(Arc::clone(&end)));
        let (abort, registration) = AbortHandle::new_pair();
        let future = Abortable::new(future, registration);
        host.spawn(Box::pin(async move {
            let result = future.await.ok();
            if let Some(end) = ending.0.take() {
                end.set(result);
            }
        }));
        Task(Kind::Host { end, abort })
    }

    /// Drops the task. It then ends with `Abandoned`, unless it had ended.
    pub fn abort(&self) {
        self.abort_handle().abort();
    }

    /// Returns what aborts the task.
    pub fn abort_handle(&self) -> TaskAbort {
        TaskAbort(match &self.0 {
            #[cfg(feature = "tokio")]
            Kind::Tokio(task) => Abort::Tokio(task.abort_handle()),
            Kind::Host { abort, .. } => Abort::Host(abort.clone()),
        })
    }

    /// Returns true if it has ended.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            #[cfg(feature = "tokio")]
            Kind::Tokio(task) => task.is_finished(),
            Kind::Host { end, .. } => matches!(*end.lock(), Progress::Ended(_)),
        }
    }
}

/// Aborts a [`Task`].
#[derive(Clone, Debug)]
pub struct TaskAbort(Abort);

#[derive(Clone, Debug)]
enum Abort {
    #[cfg(feature = "tokio")]
    Tokio(tokio::task::AbortHandle),
    Host(AbortHandle),
}

impl TaskAbort {
    /// As [`Task::abort`].
    pub fn abort(&self) {
        match &self.0 {
            #[cfg(feature = "tokio")]
            Abort::Tokio(task) => task.abort(),
            Abort::Host(task) => task.abort(),
        }
    }
}

/// The result of the task.
///
/// # Errors
/// `Abandoned` if it panicked, was aborted, or lost its node or its runtime.
impl<T> Future for Task<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, Error>> {
        let dropped = || Error::new(ErrorKind::Abandoned, "a task that was dropped before its end");
        match &mut self.0 {
            #[cfg(feature = "tokio")]
            Kind::Tokio(task) => Pin::new(task).poll(cx).map_err(|ended| match ended.is_panic() {
                true => Error::new(ErrorKind::Abandoned, "a task that panicked"),
                false => dropped(),
            }),
            Kind::Host { end, .. } => match &mut *end.lock() {
                Progress::Ended(result) => Poll::Ready(result.take().ok_or_else(dropped)),
                Progress::Runs(waker) => {
                    *waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            },
        }
    }
}
