//! Calls whose requests and replies come in parts.
//!
//! **Protocol.** Both directions move by calls of this side (`rpc/wire.rs`). A *part* brings a
//! part, and is answered when the handler has taken it. A *demand* asks for a part, with memory for
//! it. At first one of each is under way, because the handler may still wait for its turn, or never
//! send a part; after the first answer [`WINDOW`]. The answer to the *open* ends the stream. A part
//! or a demand without an answer says only that the stream is over.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use bmi_core::runtime::Runtime;
use bmi_core::{SharedPeer, Time};
use futures_util::future::{MaybeDone, maybe_done};
use tokio::sync::Mutex;

use super::receive::{Failure, From, Offered, Receiving};
use super::{FIRST_PAUSE, Inner, Reply};
use crate::rpc::wire::{REQUEST_HEAD, RequestHead, RequestKind, StreamEvent};
use crate::rpc::{Trace, WINDOW};
use crate::{Body, Bytes, Error, ErrorKind, MemList, Options};

/// An answer that is on its way.
type Answer = MaybeDone<Pin<Box<dyn Future<Output = Result<Reply, Failure>> + Send>>>;

/// Makes a call now. Its answer is waited for later.
fn begin(call: impl Future<Output = Result<Reply, Failure>> + Send + 'static) -> Answer {
    let mut answer = maybe_done(Box::pin(call) as Pin<Box<_>>);
    // Whoever waits for it polls it again, with a waker.
    let _ = Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop()));
    answer
}

/// Waits for an answer. It is still there if this is dropped.
async fn end(answer: &mut Answer) -> Result<Reply, Failure> {
    (&mut *answer).await;
    Pin::new(answer).take_output().expect("it is taken once")
}

/// A call in parts: [`Request::stream`](super::Request::stream).
///
/// Both directions may be used at the same time. Whoever is slow slows the other side; nothing is
/// queued but a few parts. If it is dropped before [`Stream::finish`], the handler is told that the
/// client has dropped it.
///
/// ```
/// # use bmi::{Call, Client, Error, Server};
/// # #[tokio::main]
/// # async fn main() -> Result<(), Error> {
/// # let server = Server::bind("tcp://127.0.0.1:0").await?;
/// # let client = Client::new(&server.addrs()[0]);
/// async fn handle(call: Call) -> Result<(), Error> {
///     let mut sum = 0;
///     while let Some(part) = call.next().await? {
///         sum += part.len();
///         call.send(part).await?;
///     }
///     call.reply(sum.to_string()).await
/// }
/// # tokio::spawn(async move { server.serve(handle).await });
///
/// let stream = client.call(b"echo").stream().await?;
/// for part in ["one", "two"] {
///     stream.send(part.as_bytes().to_vec()).await?;
///     assert_eq!(stream.next().await?.as_deref(), Some(part.as_bytes()));
/// }
/// assert_eq!(stream.finish().await?.bytes, "6");
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it drops the call"]
pub struct Stream {
    link: Link,
    number: u32,
    /// Replies of the address before the call.
    replies: u64,
    sending: Mutex<Parts>,
    receiving: Mutex<Parts>,
    outcome: Mutex<Outcome>,
    /// The handler knows that this side will do no more.
    is_finished: bool,
    _permit: Permit,
}

/// The connection of a stream.
#[derive(Clone)]
struct Link {
    client: Arc<Inner>,
    at: usize,
    peer: SharedPeer,
    deadline: Time,
}

/// One direction: the calls that are under way in it.
struct Parts {
    /// Number of the next.
    turn: u64,
    window: usize,
    answers: VecDeque<Answer>,
    /// No more follow.
    is_over: bool,
}

/// The answer to the call.
enum Outcome {
    Waits(Answer),
    Is(Result<Reply, Error>),
}

/// One of the calls that a client may have in flight.
struct Permit(Arc<Inner>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.calls.add_permits(1);
    }
}

impl Stream {
    /// Sends a call with the request in `message`, behind room for the head.
    pub(super) async fn open(
        client: Arc<Inner>,
        mut message: Vec<u8>,
        trace: Option<Trace>,
        deadline: Time,
    ) -> Result<Stream, Error> {
        client.permits(&client.calls, 1, deadline).await?.forget();
        let permit = Permit(Arc::clone(&client));
        loop {
            let (at, peer) = client.peer(deadline).await?;
            let link = Link { client: Arc::clone(&client), at, peer, deadline };
            let (number, max_reply) = (client.links[at].next_stream(), link.receiving().max_reply());
            let kind = RequestKind::Stream { stream: number, event: StreamEvent::Open { max_reply } };
            let head = RequestHead { kind, time_us: link.receiving().time_us(), trace };
            message[..REQUEST_HEAD].copy_from_slice(&head.encode());
            let call = match link.peer.call(&message, Body::None, Options::by(deadline)) {
                Ok(call) => call,
                Err(error) if matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Refused) => {
                    client.links[at].lost(&link.peer, &error);
                    client.any_handle()?.sleep(FIRST_PAUSE).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let replies = client.links[at].replies();
            client.metrics.sent(message.len() - REQUEST_HEAD, 0);
            let own = link.clone();
            let outcome = begin(async move {
                let in_flight = own.client.metrics.begin();
                let ended = match call.reply().await {
                    Ok(reply) => own.receiving().take(reply, None).await,
                    Err(error) => Err(Failure { error, from: From::Connection }),
                };
                in_flight.end(ended.as_ref().err().map(|failure| failure.error.kind()));
                ended
            });
            return Ok(Stream {
                link,
                number,
                replies,
                sending: Mutex::new(Parts::new()),
                receiving: Mutex::new(Parts::new()),
                outcome: Mutex::new(Outcome::Waits(outcome)),
                is_finished: false,
                _permit: permit,
            });
        }
    }

    /// Sends a part: `Bytes`, a `Vec`, [`Memory`](crate::Memory) or a list of pieces, of any length
    /// that the server takes. Over verbs and shared memory the handler fetches it without a copy.
    /// It must not change until the stream has ended, or `send` has returned for eight parts behind
    /// it. If that many are under way, this waits until the handler has taken one.
    ///
    /// It may be dropped: the part was sent, or not at all.
    ///
    /// # Errors
    /// The handler's error if it has failed; `Cancelled` if it has replied, and takes no more
    /// parts; `TooLarge`, `TimedOut`, `PeerLost`; `Invalid` after [`Stream::end`].
    pub async fn send(&self, part: impl Into<MemList>) -> Result<(), Error> {
        let part = part.into();
        let mut sending = self.sending.lock().await;
        if sending.is_over {
            return Err(Error::new(ErrorKind::Invalid, "the stream was ended on this side").during("send"));
        }
        while let Some(answered) = sending.answered().await {
            if let Err(failure) = answered {
                return Err(self.unsent(failure).await);
            }
            sending.window = WINDOW;
        }
        let event = StreamEvent::Part { turn: sending.turn };
        match self.tell(event, move |_| if part.is_empty() { Body::None } else { Body::Out(part) }) {
            Ok(answer) => sending.answers.push_back(answer),
            Err(failure) => return Err(self.unsent(failure).await),
        }
        sending.turn += 1;
        Ok(())
    }

    /// Returns why a part was not taken.
    async fn unsent(&self, failure: Failure) -> Error {
        let text = "the handler has replied, and takes no more parts: Stream::finish has its reply";
        self.over(failure).await.err().unwrap_or_else(|| Error::new(ErrorKind::Cancelled, text).during("send"))
    }

    /// Says that no more parts follow. The handler's [`Call::next`](crate::Call::next) returns
    /// `None` behind the last. This side may receive further parts.
    ///
    /// # Errors
    /// `Exhausted` if it could not be sent. It may be called again.
    pub async fn end(&self) -> Result<(), Error> {
        let mut sending = self.sending.lock().await;
        if !sending.is_over {
            let event = StreamEvent::End { parts: sending.turn, takes: true };
            match self.tell(event, |_| Body::None) {
                Ok(answer) => sending.answers.push_back(answer),
                Err(failure) => self.over(failure).await?,
            }
            sending.is_over = true;
        }
        Ok(())
    }

    /// Returns the next part that the handler sends, and `None` when it has replied: then
    /// [`Stream::finish`] has its reply.
    ///
    /// It may be dropped, and called again.
    ///
    /// # Errors
    /// The handler's error; `TooLarge`, `TimedOut`, `PeerLost`.
    pub async fn next(&self) -> Result<Option<Bytes>, Error> {
        let mut receiving = self.receiving.lock().await;
        if !receiving.is_over {
            while receiving.answers.len() < receiving.window {
                let event = StreamEvent::Demand { turn: receiving.turn };
                match self.tell(event, |offered| offered.map_or(Body::None, Body::In)) {
                    Ok(answer) => receiving.answers.push_back(answer),
                    // Those that are under way go on.
                    Err(_) if !receiving.answers.is_empty() => break,
                    Err(failure) => {
                        self.over(failure).await?;
                        receiving.is_over = true;
                        return Ok(None);
                    }
                }
                receiving.turn += 1;
            }
            let first = receiving.answers.front_mut().expect("the window is not empty");
            let answered = self.drive(first).await;
            receiving.answers.pop_front();
            match answered {
                Ok(reply) => {
                    receiving.window = WINDOW;
                    return Ok(Some(reply.data));
                }
                Err(failure) => {
                    receiving.is_over = true;
                    receiving.answers.clear();
                    return self.over(failure).await.map(|()| None);
                }
            }
        }
        self.outcome().await.map(|_| None)
    }

    /// Says that this side sends and takes no more parts, and waits for the handler's reply.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn finish(mut self) -> Result<Reply, Error> {
        let parts = self.sending.get_mut().turn;
        let last = self.tell(StreamEvent::End { parts, takes: false }, |_| Body::None);
        if let Err(Failure { error, from: From::Unsent }) = &last
            && error.kind() != ErrorKind::PeerLost
        {
            return Err(error.clone());
        }
        let outcome = self.outcome().await;
        self.is_finished = true;
        drop(last);
        outcome
    }
}

impl Stream {
    /// Tells the server something of this stream, now. `body` makes the data of memory that is
    /// offered for a part, if one is asked for.
    ///
    /// # Errors
    /// The failure, if nothing was sent.
    fn tell(
        &self,
        event: StreamEvent,
        body: impl FnOnce(Option<MemList>) -> Body + Send + 'static,
    ) -> Result<Answer, Failure> {
        let (link, stream) = (self.link.clone(), self.number);
        let mut answer = begin(async move {
            let unsent = |error| Failure { error, from: From::Unsent };
            let receiving = link.receiving();
            let offered = match event {
                StreamEvent::Demand { .. } => receiving.offer_usual().map_err(unsent)?,
                _ => None,
            };
            let kind = RequestKind::Stream { stream, event };
            let head = RequestHead { kind, time_us: receiving.time_us(), trace: None }.encode();
            let body = body(offered.as_ref().map(Offered::list));
            let len = if let Body::Out(part) = &body { part.len() } else { 0 };
            let call = link.peer.call(&head, body, Options::by(link.deadline)).map_err(unsent)?;
            link.client.metrics.sent(0, len);
            let reply = call.reply().await.map_err(|error| Failure { error, from: From::Connection })?;
            receiving.take(reply, offered).await
        });
        match &answer {
            MaybeDone::Done(Err(failure)) if failure.from == From::Unsent => {
                Err(Pin::new(&mut answer).take_output().and_then(Result::err).expect("it has failed"))
            }
            _ => Ok(answer),
        }
    }

    /// Waits for an answer, and moves parts that the server asks this side to write.
    async fn drive(&self, answer: &mut Answer) -> Result<Reply, Failure> {
        poll_fn(|cx| {
            if let Ok(mut sending) = self.sending.try_lock() {
                sending.answers.iter_mut().for_each(|part| _ = Pin::new(part).poll(cx));
            }
            Pin::new(&mut *answer).poll(cx)
        })
        .await;
        Pin::new(answer).take_output().expect("it is taken once")
    }

    /// Returns why a part has no answer: the handler's error, or nothing if it has replied.
    async fn over(&self, failure: Failure) -> Result<(), Error> {
        match (failure.from, failure.error.kind()) {
            // The answer to the call has the reason.
            (From::Connection, _) | (From::Unsent, ErrorKind::PeerLost) => self.outcome().await.map(|_| ()),
            _ => Err(failure.error),
        }
    }

    /// Waits for the answer to the call.
    async fn outcome(&self) -> Result<Reply, Error> {
        let mut outcome = self.outcome.lock().await;
        if let Outcome::Waits(answer) = &mut *outcome {
            let ended = self.drive(answer).await.map_err(|failure| {
                let Link { client, at, peer, .. } = &self.link;
                client.failed(*at, peer, &failure, self.replies);
                failure.error
            });
            *outcome = Outcome::Is(ended);
        }
        match &*outcome {
            Outcome::Is(ended) => ended.clone(),
            Outcome::Waits(_) => unreachable!("it was waited for"),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.is_finished {
            // Without a runtime it goes now, or the call's deadline ends the handler.
            let told = self.tell(StreamEvent::Close, |_| Body::None);
            if let (Ok(mut answer @ MaybeDone::Future(_)), Ok(runtime)) = (told, Runtime::current()) {
                runtime.spawn(async move { end(&mut answer).await.is_ok() });
            }
        }
    }
}

impl Link {
    fn receiving(&self) -> Receiving<'_> {
        let Link { client, at, peer, deadline } = self;
        Receiving { client, link: *at, peer, deadline: *deadline, into: None }
    }
}

impl Parts {
    fn new() -> Parts {
        Parts { turn: 0, window: 1, answers: VecDeque::new(), is_over: false }
    }

    /// Returns the next answer, if it is there or the window is full.
    async fn answered(&mut self) -> Option<Result<Reply, Failure>> {
        let is_full = self.answers.len() >= self.window;
        let first = self.answers.front_mut()?;
        if !is_full {
            let _ = Pin::new(&mut *first).poll(&mut Context::from_waker(Waker::noop()));
            if !matches!(first, MaybeDone::Done(_)) {
                return None;
            }
        }
        let answered = end(first).await;
        self.answers.pop_front();
        Some(answered)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("number", &self.number).finish_non_exhaustive()
    }
}
