//! The parts of streams, between the loop that takes calls and the handlers.
//!
//! **Protocol.** A part stays in the client's memory, or in the message that brought it, until the
//! handler takes it. A part that the handler sends waits in its own memory until the client asks
//! for one. So neither side has more of a stream than [`WINDOW`] messages and the part that it
//! works at. Before the handler has begun it is one part.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bmi_core::{AnyThread, SharedPeer};
use tokio::sync::Notify;

use super::until::until;
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
    /// Held by the handler's task that takes a part, so that parts stay in order.
    pub(super) taking: tokio::sync::Mutex<()>,
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
    /// The client has dropped the call, be it answered or not.
    is_dropped: bool,
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
    /// The connection is gone.
    Lost,
    /// The client has sent a part that is too long.
    TooLarge,
    /// The client has broken a rule, or the handler has dropped a part while it was sent.
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
            End::Lost => (ErrorKind::PeerLost, "the connection is gone"),
            End::TooLarge => (ErrorKind::TooLarge, "the client has sent a part that is too long (max_data)"),
            End::Broken => {
                (ErrorKind::Protocol, "a part is missing: the client has left it out, or its send was dropped")
            }
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
    pub(super) fn open(self: &Arc<Self>, peer: &SharedPeer, number: u32) -> Option<Open> {
        let (key, stream) = ((peer.id(), number), Arc::<Stream>::default());
        let mut table = self.table();
        if table.contains_key(&key) {
            return None;
        }
        table.insert(key, Arc::clone(&stream));
        drop(table);
        // The loss may have been reported before.
        if peer.limits().is_none() {
            stream.set_end(End::Lost);
        }
        Some(Open { streams: Arc::clone(self), key, stream })
    }

    /// Notes what a client says of a stream. If the stream is over, `call` is dropped, and the
    /// client is told that there is no answer.
    pub(super) fn note(&self, peer: PeerId, number: u32, event: StreamEvent, call: Incoming<AnyThread>) {
        let stream = self.table().get(&(peer, number)).cloned();
        if let Some(stream) = stream {
            stream.note(event, call);
        }
    }

    /// Notes that a client has sent a part that is too long.
    pub(super) fn too_large(&self, peer: PeerId, number: u32) {
        let stream = self.table().get(&(peer, number)).cloned();
        stream.inspect(|stream| stream.set_end(End::TooLarge));
    }

    /// Ends the streams of a peer that is gone.
    pub(super) fn lost(&self, peer: PeerId) {
        let lost: Vec<_> = self.table().range((peer, 0)..=(peer, u32::MAX)).map(|(_, stream)| stream.clone()).collect();
        lost.iter().for_each(|stream| stream.set_end(End::Lost));
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

    fn note(&self, event: StreamEvent, call: Incoming<AnyThread>) {
        let mut state = self.state();
        let bound = if state.begun { WINDOW } else { 1 };
        state.is_dropped |= event == StreamEvent::Close;
        let (sent, mut call) = (state.parts.next, Some(call));
        let end = match (event, state.end) {
            (_, Some(end)) if !matches!(end, End::Ended | End::Finished) => Some(end),
            (StreamEvent::Part { turn }, None) if state.parts.push(turn, bound, &mut call) => None,
            (StreamEvent::Demand { turn }, end @ (None | Some(End::Ended)))
                if state.demands.push(turn, WINDOW, &mut call) =>
            {
                end
            }
            (StreamEvent::End { parts, takes: true }, None) if parts == sent => Some(End::Ended),
            (StreamEvent::End { parts, takes: false }, _) if parts == sent => Some(End::Finished),
            (StreamEvent::Close, _) => Some(End::Closed),
            _ => Some(End::Broken),
        };
        state.end = end;
        drop(state);
        self.changed.notify_waiters();
        // What was not kept is dropped behind the lock.
        drop(call);
    }

    /// Ends it, unless it is over.
    fn set_end(&self, end: End) {
        let mut state = self.state();
        if matches!(state.end, None | Some(End::Ended | End::Finished)) {
            state.end = Some(end);
        }
        state.is_dropped |= end == End::Lost;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends it when the value that is returned is dropped, unless that is told otherwise.
    pub(super) fn broken_unless_done(&self) -> Unfinished<'_> {
        Unfinished(Some(self))
    }

    /// Returns true if a part is missing.
    pub(super) fn is_broken(&self) -> bool {
        self.state().end == Some(End::Broken)
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
    pub(super) async fn dropped(&self) {
        until(&self.changed, || self.is_dropped().then_some(())).await;
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.state().is_dropped
    }

    /// Waits until the client takes no part any more. Returns the error of one that is being sent.
    pub(super) async fn takes_no_more(&self) -> Error {
        until(&self.changed, || self.state().end.filter(|end| *end != End::Ended).map(End::error)).await
    }
}

/// A part that is being sent.
pub(super) struct Unfinished<'a>(Option<&'a Stream>);

impl Unfinished<'_> {
    pub(super) fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let Some(stream) = self.0 else { return };
        // The client must not take what follows for all of it.
        if matches!(stream.state().end, None | Some(End::Ended)) {
            stream.set_end(End::Broken);
        }
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
