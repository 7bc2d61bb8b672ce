//! Answers that need no handler.

use std::task::{Context, Waker};

use bmi_core::AnyThread;
use bmi_core::runtime::Runtime;
use futures_util::FutureExt;

use crate::rpc::GRACE;
use crate::rpc::wire::{Place, REPLY_HEAD, ReplyHead};
use crate::{Error, Incoming, MemList, MemSlice, Options};

/// Longest text of an error that goes to a client, in bytes. With the head it fits the smallest
/// message.
const LONGEST_TEXT: usize = 200;

/// Replies with an error, before the handler has begun. If that fails, the client learns that there
/// is no reply.
pub(super) async fn refuse(call: Incoming<AnyThread>, error: Error) {
    fail(call, error, true).await;
}

/// Replies with an error. If that fails, the client learns that there is no reply.
pub(super) async fn fail(call: Incoming<AnyThread>, error: Error, not_begun: bool) {
    let mut text = error.detail().to_owned();
    text.truncate(text.floor_char_boundary(LONGEST_TEXT.min(call.room().saturating_sub(REPLY_HEAD))));
    let len = u32::try_from(text.len()).expect("a short text");
    let head = ReplyHead { error: Some(error.kind()), not_begun, place: Place::Behind, len, data: 0 };
    let options = call.within(GRACE);
    let _ = call.reply(&[&head.encode()[..], text.as_bytes()].concat(), None, options).await;
}

/// Answers a ping. If that fails, the client learns that there is no reply.
pub(super) async fn pong(call: Incoming<AnyThread>) {
    let options = call.within(GRACE);
    let _ = acknowledge(call, options).await;
}

/// Answers with nothing.
///
/// # Errors
/// Those of sending the reply.
pub(super) async fn acknowledge(call: Incoming<AnyThread>, options: Options) -> Result<(), Error> {
    let head = ReplyHead { error: None, not_begun: false, place: Place::Behind, len: 0, data: 0 };
    call.reply(&head.encode(), None, options).await
}

/// Sends an answer, although whoever asks for it may be dropped.
pub(super) fn detach(answer: impl Future<Output = Result<(), Error>> + Send + 'static) {
    let mut answer = answer.boxed();
    // Most end at once. If it fails, the client finds out.
    let ended = answer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    if ended.is_pending()
        && let Ok(runtime) = Runtime::current()
    {
        runtime.spawn(answer);
    }
}

/// Replies with data that goes into the memory of the call.
///
/// # Errors
/// Those of the transfer.
pub(super) async fn in_memory(
    call: Incoming<AnyThread>,
    bytes: &[u8],
    data: MemList,
    options: Options,
) -> Result<(), Error> {
    let len = u32::try_from(bytes.len()).expect("within a message");
    let head = ReplyHead { error: None, not_begun: false, place: Place::InMemory, len, data: data.len() as u64 };
    call.reply(&[&head.encode()[..], bytes].concat(), Some(data), options).await
}

/// Appends memory to a message.
pub(super) fn append(message: &mut Vec<u8>, piece: &MemSlice) {
    let at = message.len();
    message.resize(at + piece.len(), 0);
    piece.copy_to(&mut message[at..]);
}
