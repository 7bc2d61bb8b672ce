//! A call while its handler runs.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bmi_core::{AnyThread, Time};

use super::Shared;
use super::arrival::Arrival;
use super::streams::Stream;
use crate::rpc::permits;
use crate::{Error, ErrorKind, Incoming, Options};

/// A call, held by its handler and by what runs the handler: if the handler ends without a reply,
/// the other one replies.
#[derive(Clone)]
pub(super) struct Held(Arc<Inner>);

struct Inner {
    /// `None` once it was answered, and while it is being used.
    call: Mutex<Option<Incoming<AnyThread>>>,
    shared: Arc<Shared>,
    deadline: Time,
    /// Length of the longest data that the client takes.
    max_reply: u64,
    /// The parts, if the call moves parts.
    stream: Option<Arc<Stream>>,
    /// Permits for the data that the handler has taken.
    permits: Mutex<usize>,
    /// The handler has said that the request is wrong.
    refused: AtomicBool,
}

impl Held {
    pub(super) fn new(arrival: Arrival, shared: Arc<Shared>, stream: Option<Arc<Stream>>) -> Held {
        let Arrival { call, deadline, max_reply, .. } = arrival;
        let (call, permits) = (Mutex::new(Some(call)), Mutex::new(0));
        let refused = AtomicBool::new(false);
        Held(Arc::new(Inner { call, shared, deadline, max_reply, stream, permits, refused }))
    }

    /// Looks at a call that is new.
    pub(super) fn look<R>(&self, f: impl FnOnce(&Incoming<AnyThread>) -> R) -> R {
        f(self.slot().as_ref().expect("it is new"))
    }

    fn slot(&self) -> MutexGuard<'_, Option<Incoming<AnyThread>>> {
        self.0.call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the call, to answer it.
    ///
    /// # Errors
    /// `Invalid` if it was answered.
    pub(super) fn take(&self) -> Result<Incoming<AnyThread>, Error> {
        self.unanswered().ok_or_else(|| Error::new(ErrorKind::Invalid, "the call was answered"))
    }

    /// Takes the call, to move its data. It is there again when the result is dropped.
    ///
    /// # Errors
    /// As [`Held::take`].
    pub(super) fn use_it(&self) -> Result<InUse<'_>, Error> {
        Ok(InUse { held: self, call: Some(self.take()?) })
    }

    /// Waits until so many bytes of data may be taken, by the limit for all calls.
    ///
    /// # Errors
    /// `Cancelled` if the server was closed.
    pub(super) async fn reserve(&self, bytes: u64) -> Result<(), Error> {
        let has = *self.0.permits.lock().unwrap_or_else(PoisonError::into_inner);
        let more = u32::try_from(permits(bytes).saturating_sub(has)).expect("within the limit of a call");
        let permit = self.0.shared.bytes.acquire_many(more).await;
        let permit = permit.map_err(|_| Error::new(ErrorKind::Cancelled, "the server was closed"))?;
        *self.0.permits.lock().unwrap_or_else(PoisonError::into_inner) += permit.num_permits();
        permit.forget();
        Ok(())
    }

    /// Gives back what [`Held::reserve`] has taken.
    pub(super) fn release(&self) {
        let taken = std::mem::take(&mut *self.0.permits.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.shared.bytes.add_permits(taken);
    }

    /// Takes the call if its handler has not answered it.
    pub(super) fn unanswered(&self) -> Option<Incoming<AnyThread>> {
        self.slot().take()
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        self.0.stream.as_deref()
    }

    /// Notes that the handler says that the request is wrong.
    pub(super) fn refuse(&self) {
        self.0.refused.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_refused(&self) -> bool {
        self.0.refused.load(Ordering::Relaxed)
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(super) fn deadline(&self) -> Time {
        self.0.deadline
    }

    pub(super) fn options(&self) -> Options {
        Options::by(self.0.deadline)
    }

    pub(super) fn max_reply(&self) -> u64 {
        self.0.max_reply
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let taken = *self.permits.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.shared.bytes.add_permits(taken);
    }
}

/// The call while it is used. It goes back when this is dropped.
pub(super) struct InUse<'a> {
    held: &'a Held,
    call: Option<Incoming<AnyThread>>,
}

impl Deref for InUse<'_> {
    type Target = Incoming<AnyThread>;

    fn deref(&self) -> &Incoming<AnyThread> {
        self.call.as_ref().expect("until it is dropped")
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        *self.held.slot() = self.call.take();
    }
}
