//! Replies: how their data travels.
//!
//! | the data | travels |
//! |---|---|
//! | fits the message | behind the reply's bytes |
//! | fits the memory that the client offers | into that memory, with the reply |
//! | is longer | when the client asks for it, with memory of that length |

use std::future::IntoFuture;
use std::pin::Pin;
use std::pin::pin;

use bmi_core::AnyThread;
use futures_util::future::{Either, select};

use super::answers::{append, fail};
use super::held::Held;
use super::streams::Stream;
use crate::paths::Direction;
use crate::rpc::wire::{Place, REPLY_HEAD, ReplyHead};
use crate::{Error, ErrorKind, Incoming, MemList};

/// A reply that is about to be sent. Await it.
#[must_use = "a reply is sent when it is awaited"]
pub struct Replying {
    held: Held,
    /// The head, still empty, and the reply's bytes.
    message: Vec<u8>,
    data: Option<MemList>,
}

impl Replying {
    pub(super) fn new(held: Held, bytes: &[u8]) -> Replying {
        let mut message = Vec::with_capacity(REPLY_HEAD + bytes.len());
        message.resize(REPLY_HEAD, 0);
        message.extend_from_slice(bytes);
        Replying { held, message, data: None }
    }

    /// Adds data, of any length up to what the client takes. Memory that the program keeps goes
    /// over verbs and shared memory without a copy. It must not change until the reply was sent.
    pub fn data(mut self, data: impl Into<MemList>) -> Replying {
        self.data = Some(data.into());
        self
    }

    async fn send(self) -> Result<(), Error> {
        let Replying { held, message, data } = self;
        let call = held.take()?;
        if held.stream().is_some_and(Stream::is_broken) {
            let error = Error::new(ErrorKind::Protocol, "a part of the stream is missing").during("reply");
            Box::pin(fail(call, error.clone(), false)).await;
            return Err(error);
        }
        // The client need not ask for further parts before it takes the reply.
        held.stream().inspect(|stream| stream.answered());
        answer(&held, call, message, data, Answers::Call).await
    }
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answers {
    /// The handler's own call.
    Call,
    /// One that asks for a part.
    Demand,
}

/// Answers a call. In front of `message` there is room for the head.
///
/// # Errors
/// `TooLarge`, and those of the transfer.
pub(super) async fn answer(
    held: &Held,
    call: Incoming<AnyThread>,
    mut message: Vec<u8>,
    data: Option<MemList>,
    of: Answers,
) -> Result<(), Error> {
    let options = held.options();
    let (len, bytes) = (message.len() - REPLY_HEAD, data.as_ref().map_or(0, MemList::len) as u64);
    let room = call.room();
    if room == 0 {
        return Err(Error::new(ErrorKind::PeerLost, "the client is gone").during("reply"));
    }
    let too_large = if message.len() > room {
        Some(format!("a reply of {len} bytes, and there is room for {}: send it as data", room - REPLY_HEAD))
    } else if bytes > held.max_reply() {
        Some(format!("a reply with {bytes} bytes of data, and the client takes {} (max_reply)", held.max_reply()))
    } else {
        None
    };
    if let Some(text) = too_large {
        let error = Error::new(ErrorKind::TooLarge, text).during("reply");
        Box::pin(fail(call, error.clone(), false)).await;
        return Err(error);
    }
    held.shared().metrics.sent(len, bytes);
    let head = |place| {
        let len = u32::try_from(len).expect("within a message");
        ReplyHead { error: None, not_begun: false, place, len, data: bytes }.encode()
    };
    let fits = message.len() as u64 + bytes <= call.room_in_one() as u64;
    let data = match data {
        Some(data) if !fits && bytes > 0 => data,
        data => {
            message[..REPLY_HEAD].copy_from_slice(&head(Place::Behind));
            data.iter().flat_map(MemList::pieces).for_each(|piece| append(&mut message, piece));
            return call.reply(&message, None, options).await;
        }
    };
    if call.direction() == Some(Direction::Read) && bytes <= call.len() {
        message[..REPLY_HEAD].copy_from_slice(&head(Place::InMemory));
        return call.reply(&message, Some(data), options).await;
    }
    let peer = call.peer().clone();
    let mut waiting = held.shared().kept.keep(peer.id(), data);
    message[..REPLY_HEAD].copy_from_slice(&head(Place::Kept { number: waiting.number() }));
    call.reply(&message, None, options).await?;
    // The deadline of the call ends this too.
    let over = async {
        let gone = async {
            held.shared().watch.gone(&peer).await;
            Error::new(ErrorKind::PeerLost, "the client is gone").during("reply")
        };
        match held.stream() {
            None => gone.await,
            Some(stream) if of == Answers::Demand => {
                select(pin!(gone), pin!(stream.takes_no_more())).await.factor_first().0
            }
            Some(stream) => {
                let dropped = async {
                    stream.dropped().await;
                    Error::new(ErrorKind::Cancelled, "the client has dropped the stream").during("reply")
                };
                select(pin!(gone), pin!(dropped)).await.factor_first().0
            }
        }
    };
    match select(pin!(waiting.fetched()), pin!(over)).await {
        Either::Left((fetched, _)) => fetched,
        Either::Right((error, _)) => Err(error),
    }
}

impl IntoFuture for Replying {
    type Output = Result<(), Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
