//! Calls from one server to another.

use std::time::Duration;

use bmi::{Body, Peer};
use fs_proto::{Claims, ErrorCode, FsError, Hello, Identity, ReplyBody, Request, RequestBody, RequestId, codec};

/// Sends a request and returns the answer. `seq` is the caller's own number for it.
///
/// # Errors
/// The server's error, or that of the transport.
pub(crate) async fn ask(
    peer: &Peer,
    seq: u64,
    body: impl Into<RequestBody>,
    limit: Duration,
) -> Result<ReplyBody, FsError> {
    // None of these requests is one that must be executed once.
    ask_as(peer, RequestId { client: 0, seq }, body, limit).await
}

/// Sends a request under this number, and returns the answer.
///
/// # Errors
/// As [`ask`].
pub(crate) async fn ask_as(
    peer: &Peer,
    id: RequestId,
    body: impl Into<RequestBody>,
    limit: Duration,
) -> Result<ReplyBody, FsError> {
    let request = Request {
        id,
        unanswered: id.seq,
        caller: None,
        ticket: None,
        timeout_ms: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX),
        body: body.into(),
    };
    let (bytes, options) = (codec::encode_request(&request), peer.within(limit));
    let reply = peer.call(&bytes, Body::None, options)?.reply().await?;
    match codec::decode_reply(&reply.bytes) {
        Ok(reply) => reply.result,
        Err(error) => Err(FsError::new(ErrorCode::Protocol, error.to_string())),
    }
}

/// Opens a connection with a Hello, under the number 0. Checks the answer too.
///
/// # Errors
/// `WrongServer`, `Busy`, and those of the transport.
pub(crate) async fn greet(peer: &Peer, hello: Hello, limit: Duration) -> Result<Identity, FsError> {
    match ask(peer, 0, RequestBody::Hello(hello.clone()), limit).await? {
        ReplyBody::Identity(identity) => {
            identity.check(&hello)?;
            Claims::check_server(&peer.identity(), identity.role)?;
            Ok(identity)
        }
        _ => Err(unexpected()),
    }
}

/// Returns the error for a reply that does not match its request.
pub(crate) fn unexpected() -> FsError {
    FsError::new(ErrorCode::Protocol, "a reply that does not fit the request")
}
