//! The parts of streams, between the loop that takes calls and the handlers.
//!
//! **Protocol.** A part stays in the client's memory, or in the message that brought it, until the
//! handler takes it. A part that the handler sends waits in its own memory until the client asks
//! for one. So neither side has more of a stream than [`WINDOW`] messages and the part that it
//! works at. Before the handler has begun it is one part.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bmi_core::AnyThread;
use tokio::sync::Notify;

use super::watch::until;
use crate::rpc::WINDOW;
use crate::rpc::wire::StreamEvent;
use crate::{Bytes, Error, ErrorKind, Incoming, PeerId};

type Key = (PeerId, u32);

/// The streams of a server: for each peer, by the number that the peer has given it.
#[derive(Default)]
pub(super) struct Streams {
    table: Mutex<BTreeMap<Key, Arc<Stream>>>,
}

/// What waits between the client and the handler.
#[derive(Default)]
pub(super) struct Stream {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    begun: bool,
    parts: Queue,
    demands: Queue,
    /// Parts that the handler has fetched, and not seen.
    fetched: VecDeque<Bytes>,
    /// Why no more parts come.
    end: Option<End>,
}

/// Calls of the client, in the order of their turns.
#[derive(Default)]
struct Queue {
    next: u64,
    waiting: VecDeque<Incoming<AnyThread>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client has sent its last part.
    Ended,
    /// The same, and it takes none.
    Finished,
    /// The client has dropped the call.
    Closed,
    /// The client has broken a rule.
    Broken,
    /// The handler has replied, or has ended.
    Answered,
}

impl End {
    /// Returns the error of what a handler does afterwards.
    fn error(self) -> Error {
        let (kind, text) = match self {
            End::Ended | End::Finished => (ErrorKind::Cancelled, "the client takes no more parts"),
            End::Closed => (ErrorKind::Cancelled, "the client has dropped the stream"),
            End::Broken => (ErrorKind::Protocol, "the client has broken the rules of a stream"),
            End::Answered => (ErrorKind::Invalid, "the call was answered"),
        };
        Error::new(kind, text).during("stream")
    }
}

impl Streams {
    fn table(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Stream>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a stream; `None` if the peer has given this number twice.
    pub(super) fn open(self: &Arc<Self>, peer: PeerId, number: u32) -> Option<Open> {
        let (key, stream) = ((peer, number), Arc::<Stream>::default());
        let mut table = self.table();
        if table.contains_key(&key) {
            return None;
        }
        table.insert(key, Arc::clone(&stream));
        Some(Open { streams: Arc::clone(self), key, stream })
    }

    /// Notes what a client says of a stream. If the stream is over, `call` is dropped, and the
    /// client is told that there is no answer.
    pub(super) fn note(&self, peer: PeerId, number: u32, event: StreamEvent, call: Option<Incoming<AnyThread>>) {
        let stream = self.table().get(&(peer, number)).cloned();
        if let Some(stream) = stream {
            stream.note(event, call);
        }
    }
}

/// A stream whose call is not over. It is over when this is dropped.
pub(super) struct Open {
    streams: Arc<Streams>,
    key: Key,
    stream: Arc<Stream>,
}

impl Open {
    /// The handler begins. Returns what it has of the stream.
    pub(super) fn begin(&self) -> Arc<Stream> {
        self.stream.state().begun = true;
        Arc::clone(&self.stream)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.streams.table().remove(&self.key);
        self.stream.answered();
    }
}

impl Stream {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, event: StreamEvent, mut call: Option<Incoming<AnyThread>>) {
        let mut state = self.state();
        let bound = if state.begun { WINDOW } else { 1 };
        let end = match (event, state.end) {
            (_, Some(end @ (End::Closed | End::Broken | End::Answered))) => Some(end),
            (StreamEvent::Part { turn }, None) if state.parts.push(turn, bound, &mut call) => None,
            (StreamEvent::Demand { turn }, end @ (None | Some(End::Ended)))
                if state.demands.push(turn, WINDOW, &mut call) =>
            {
                end
            }
            (StreamEvent::End { takes: true }, None) => Some(End::Ended),
            (StreamEvent::End { takes: false }, _) => Some(End::Finished),
            (StreamEvent::Close, _) => Some(End::Closed),
            _ => Some(End::Broken),
        };
        state.end = end;
        drop(state);
        self.changed.notify_waiters();
        // What was not kept is dropped behind the lock.
        drop(call);
    }

    /// Notes that the handler has replied or ended. What waits is told that there is no answer.
    pub(super) fn answered(&self) {
        let waiting = {
            let mut state = self.state();
            state.end = Some(End::Answered);
            (std::mem::take(&mut state.parts.waiting), std::mem::take(&mut state.demands.waiting))
        };
        self.changed.notify_waiters();
        drop(waiting);
    }

    /// Waits for the next part, and takes it; `None` behind the last one.
    ///
    /// # Errors
    /// `Cancelled` if the client has dropped the call, `Protocol` if it has broken a rule,
    /// `Invalid` if the call was answered.
    pub(super) async fn part(&self) -> Result<Option<Waited<'_>>, Error> {
        until(&self.changed, || {
            let mut state = self.state();
            match state.end {
                None => state.parts.waiting.pop_front().map(|call| Ok(Some(self.waited(Which::Parts, call)))),
                Some(End::Ended | End::Finished) => {
                    Some(Ok(state.parts.waiting.pop_front().map(|call| self.waited(Which::Parts, call))))
                }
                Some(end) => Some(Err(end.error())),
            }
        })
        .await
    }

    pub(super) fn keep_fetched(&self, part: Bytes) {
        self.state().fetched.push_back(part);
    }

    pub(super) fn take_fetched(&self) -> Option<Bytes> {
        self.state().fetched.pop_front()
    }

    /// Waits until the client asks for a part.
    ///
    /// # Errors
    /// As [`Stream::part`].
    pub(super) async fn demand(&self) -> Result<Waited<'_>, Error> {
        until(&self.changed, || {
            let mut state = self.state();
            match state.end {
                None | Some(End::Ended) => {
                    state.demands.waiting.pop_front().map(|call| Ok(self.waited(Which::Demands, call)))
                }
                Some(end) => Some(Err(end.error())),
            }
        })
        .await
    }

    fn waited(&self, queue: Which, call: Incoming<AnyThread>) -> Waited<'_> {
        Waited { queue, stream: self, call: Some(call) }
    }

    /// Waits until the client has dropped the stream.
    pub(super) async fn closed(&self) {
        until(&self.changed, || matches!(self.state().end, Some(End::Closed | End::Broken)).then_some(())).await;
    }
}

impl Queue {
    /// Takes a call if it is its turn, and not more than `bound` wait then.
    fn push(&mut self, turn: u64, bound: usize, call: &mut Option<Incoming<AnyThread>>) -> bool {
        let fits = turn == self.next && self.waiting.len() < bound;
        if fits {
            self.next += 1;
            self.waiting.extend(call.take());
        }
        fits
    }
}

#[derive(Clone, Copy)]
enum Which {
    Parts,
    Demands,
}

/// A call of a stream that the handler has taken. It waits again, in front, if this is dropped
/// before the handler has used it.
pub(super) struct Waited<'a> {
    queue: Which,
    stream: &'a Stream,
    call: Option<Incoming<AnyThread>>,
}

impl Waited<'_> {
    pub(super) fn call(&self) -> &Incoming<AnyThread> {
        self.call.as_ref().expect("until it is used")
    }

    /// Takes the call, to answer it.
    pub(super) fn take(mut self) -> Incoming<AnyThread> {
        self.call.take().expect("until it is used")
    }
}

impl Drop for Waited<'_> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let mut state = self.stream.state();
        match self.queue {
            Which::Parts => state.parts.waiting.push_front(call),
            Which::Demands => state.demands.waiting.push_front(call),
        }
        drop(state);
        self.stream.changed.notify_waiters();
    }
}
