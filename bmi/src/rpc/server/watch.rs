//! Which clients are gone, how many calls have begun, and whether the server stops.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bmi_core::{PeerEvent, SharedPeer};
use futures_util::future::select;
use tokio::sync::Notify;

use super::Shared;
use super::streams::Streams;
use super::until::until;
use crate::{Handle, PeerId};

/// What the calls of a server watch.
#[derive(Default)]
pub(super) struct Watch {
    /// The tasks that wait for the loss of a peer, each with a number.
    waiting: Mutex<BTreeMap<(PeerId, u64), Waker>>,
    next: AtomicU64,
    running: AtomicUsize,
    /// The server stops, and so refuses calls.
    stopped: AtomicBool,
    /// Nobody serves, so no calls are taken.
    unserved: AtomicBool,
    /// No call runs any more, and none begins.
    idle: Notify,
    closed: AtomicBool,
    /// The server stops, or is closed.
    end: Notify,
}

impl Watch {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<(PeerId, u64), Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes those that wait for the loss of a peer, until the endpoints are closed, or nobody
    /// serves and no call runs.
    pub(super) async fn run(&self, handle: &Handle, streams: &Streams) {
        let over = || (self.unserved.load(Ordering::SeqCst) && self.is_idle()).then_some(());
        select(pin!(self.watch(handle, streams)), pin!(until(&self.idle, over))).await;
    }

    async fn watch(&self, handle: &Handle, streams: &Streams) {
        while let Ok(event) = handle.next_event().await {
            if let PeerEvent::Lost { peer, .. } = event {
                let id = peer.id();
                let woken: Vec<Waker> =
                    self.waiting().range((id, 0)..=(id, u64::MAX)).map(|(_, w)| w.clone()).collect();
                woken.into_iter().for_each(Waker::wake);
                streams.lost(id);
            }
        }
    }

    /// Waits until a peer is gone.
    pub(super) async fn gone(&self, peer: &SharedPeer) {
        let place = Waits { watch: self, key: (peer.id(), self.next.fetch_add(1, Ordering::Relaxed)) };
        poll_fn(|cx| {
            let mut waiting = self.waiting();
            // The loss is reported after the connection is down. So it is seen here, or wakes.
            if peer.limits().is_none() {
                return Poll::Ready(());
            }
            waiting.insert(place.key, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Notes whether the server takes calls.
    pub(super) fn serves(&self, serves: bool) {
        self.unserved.store(!serves, Ordering::SeqCst);
        self.idle.notify_waiters();
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.end.notify_waiters();
    }

    pub(super) async fn stopped(&self) {
        until(&self.end, || self.is_stopped().then_some(())).await;
    }

    fn is_idle(&self) -> bool {
        self.running.load(Ordering::SeqCst) == 0
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Waits until no call runs, after [`Watch::stop`].
    pub(super) async fn all_ended(&self) {
        until(&self.idle, || self.is_idle().then_some(())).await;
    }

    /// Ends the handlers that run.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.end.notify_waiters();
    }

    pub(super) async fn closed(&self) {
        until(&self.end, || self.closed.load(Ordering::Acquire).then_some(())).await;
    }
}

/// Something that a server which goes down waits for, until this is dropped.
pub(super) struct Running(Arc<Shared>);

impl Running {
    pub(super) fn of(shared: &Arc<Shared>) -> Running {
        shared.watch.running.fetch_add(1, Ordering::AcqRel);
        Running(Arc::clone(shared))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let watch = &self.0.watch;
        // The other side stores and then looks at the number. So one of both sees the other.
        let is_idle = watch.running.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_idle && (watch.stopped.load(Ordering::SeqCst) || watch.unserved.load(Ordering::SeqCst)) {
            watch.idle.notify_waiters();
        }
    }
}

/// A task that waits for the loss of a peer. Nothing is left of it when this is dropped.
struct Waits<'a> {
    watch: &'a Watch,
    key: (PeerId, u64),
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.watch.waiting().remove(&self.key);
    }
}
