//! Ends a part that is running, from another thread.
//!
//! **Why.** A part hangs if its peer dies without a word, and a user may interrupt a run. A
//! deadline for each operation would be a cost that is measured with it. A flag that is looked at
//! when the part is woken anyway costs about a nanosecond.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bmi::{Error, ErrorKind};

/// Ends parts of a run.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: AtomicBool,
    why: Mutex<String>,
    wakers: Mutex<Vec<Waker>>,
}

impl Stop {
    /// Ends what is running, and everything that begins later.
    pub(crate) fn now(&self, why: impl Into<String>) {
        if self.is_set() {
            return; // the first reason counts
        }
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = why.into();
        self.is_set.store(true, Ordering::Release);
        for waker in self.wakers.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            waker.wake();
        }
    }

    /// Returns true if everything is to end.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Returns why everything is to end.
    pub(crate) fn error(&self) -> Error {
        Error::new(ErrorKind::Cancelled, self.why.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Runs `part` until it ends or is ended.
    pub(crate) async fn unless<R>(&self, part: impl Future<Output = Result<R, Error>>) -> Result<R, Error> {
        let mut part = pin!(part);
        let mut is_known = false;
        std::future::poll_fn(move |context| {
            if !is_known {
                is_known = true;
                self.know(context.waker());
            }
            self.poll(part.as_mut(), context)
        })
        .await
    }

    fn poll<R>(
        &self,
        part: Pin<&mut impl Future<Output = Result<R, Error>>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<R, Error>> {
        if self.is_set() {
            return Poll::Ready(Err(self.error()));
        }
        part.poll(context)
    }

    fn know(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    /// Forgets the parts that have ended.
    pub(crate) fn forget(&self) {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread::Builder;

    use super::*;

    #[test]
    fn a_part_that_hangs_is_ended_from_another_thread() {
        let stop = Arc::new(Stop::default());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert_eq!(runtime.block_on(stop.unless(async { Ok(7) })).unwrap(), 7);
        let (other, ready) = (stop.clone(), std::sync::Barrier::new(2));
        let ended = std::thread::scope(|scope| {
            let ready = &ready;
            Builder::new()
                .spawn_scoped(scope, move || {
                    ready.wait();
                    other.now("enough");
                    other.now("later");
                })
                .unwrap();
            let hanging = async {
                ready.wait();
                std::future::pending::<Result<(), Error>>().await
            };
            runtime.block_on(stop.unless(hanging)).unwrap_err()
        });
        assert!(ended.to_string().contains("enough"), "{ended}");
        assert!(runtime.block_on(stop.unless(async { Ok(7) })).is_err());
    }
}
