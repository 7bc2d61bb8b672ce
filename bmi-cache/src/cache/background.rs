//! The background work of a cache: writing dirty bytes when they are old enough, and reading ahead.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::calls::Cache;
use super::inner::Inner;
use crate::interface::Disk;
use crate::state::Work;

/// Ticks in the age at which dirty bytes are written.
const TICKS: u32 = 2;

/// Most transfers of the background work at the same time.
const AT_ONCE: usize = 4;
/// Most rounds of work without a break.
const ROUNDS: usize = 4;

impl<D: Disk> Cache<D> {
    /// Does the background work. Run it once for a cache, beside its users, as long as the cache is
    /// in use. `sleep` waits for some time. Never returns.
    pub async fn run<F: Future<Output = ()>>(&self, sleep: impl Fn(Duration) -> F) {
        let inner = &self.0;
        let tick = inner.with(|state| state.settings.age) / TICKS;
        let mut work = FuturesUnordered::new();
        let mut timer: Option<Pin<Box<F>>> = None;
        let mut step = |context: &mut Context<'_>| {
            let mut moved = false;
            while let Poll::Ready(Some(())) = work.poll_next_unpin(context) {
                moved = true;
            }
            while work.len() < AT_ONCE
                && let Some(begun) = inner.with(|state| state.begin_work(TICKS.into()))
            {
                work.push(inner.do_work(begun));
                moved = true;
            }
            if timer.is_none() && inner.with(|state| state.is_dirty()) {
                timer = Some(Box::pin(sleep(tick)));
            }
            if timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready()) {
                (timer, moved) = (None, true);
                inner.with(|state| state.tick());
            }
            let is_full = work.len() == AT_ONCE;
            moved || !inner.with(|state| state.rest(context.waker(), is_full, timer.is_some(), TICKS.into()))
        };
        poll_fn(|context| {
            if !(0..ROUNDS).all(|_| step(context)) {
                return Poll::Pending;
            }
            // A disk that writes at once must not keep others from running.
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

impl<D: Disk> Inner<D> {
    /// Does a piece of work. It counts as begun although nobody has polled the future yet.
    fn do_work<'a>(self: &'a Arc<Self>, work: Work) -> impl Future<Output = ()> + 'a {
        let begun = match work {
            Work::Flush(batch) => Ok(self.flushing(batch)),
            Work::Ahead(ahead) => Err(ahead),
        };
        async move {
            match begun {
                // The file remembers the error.
                Ok(flushing) => drop(flushing.write().await),
                Err(ahead) => self.read_ahead(ahead).await,
            }
        }
    }
}
