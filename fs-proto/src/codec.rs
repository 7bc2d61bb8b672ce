//! Requests and replies as bytes.
//!
//! **Layout**
//!
//! ```text
//!   ┌─────────┬──────────────────────────────┐
//!   │ version │ request or reply, in postcard │
//!   │ 1 byte  │                              │
//!   └─────────┴──────────────────────────────┘
//! ```
//!
//! **Invariants**
//! 1. Decoding never panics, whatever the bytes, and sets aside no more memory than the bytes
//!    themselves justify or the limits allow: every list and text is bounded (see
//!    [`crate::limits`]), and checked before it is made.
//! 2. What was decoded keeps the limits: regions that do not overflow, a layout with as many
//!    datafiles as servers.
//! 3. There are no bytes too few and none too many.
//!
//! Guarded by the round trips and mutations in the tests below.

use serde::{Deserialize, Serialize};

use crate::reply::Reply;
use crate::request::Request;

/// Version of requests and replies. One that differs is refused. 4: stores are registered
/// ([`crate::ManagerRequest::Register`]), and when a file was written is known
/// ([`crate::IodReply::Held`], [`crate::Entry::touched_ns`]).
pub const VERSION: u8 = 4;

/// Why bytes are no request or reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// There are no bytes.
    #[error("empty message")]
    Empty,
    /// Another version.
    #[error("message of version {0}; version {VERSION} is spoken here")]
    Version(u8),
    /// Not the encoding of anything, or over a limit.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// More bytes than the encoding takes.
    #[error("{0} bytes too many")]
    Trailing(usize),
}

/// Encodes a request.
pub fn encode_request(request: &Request) -> Vec<u8> {
    encode(request, 96)
}

/// Encodes a reply.
pub fn encode_reply(reply: &Reply) -> Vec<u8> {
    encode(reply, 48)
}

/// Decodes a request.
///
/// # Errors
/// See [`CodecError`].
pub fn decode_request(bytes: &[u8]) -> Result<Request, CodecError> {
    decode(bytes)
}

/// Decodes a reply.
///
/// # Errors
/// See [`CodecError`].
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, CodecError> {
    decode(bytes)
}

fn encode<T: Serialize>(value: &T, room: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(room);
    bytes.push(VERSION);
    postcard::to_extend(value, bytes)
        .expect("a vector takes all that is written, and no type here refuses to be encoded")
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CodecError> {
    let (version, body) = bytes.split_first().ok_or(CodecError::Empty)?;
    if *version != VERSION {
        return Err(CodecError::Version(*version));
    }
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(CodecError::Trailing(rest.len())),
        Err(error) => Err(CodecError::Malformed(error.to_string())),
    }
}

#[cfg(test)]
mod tests;
