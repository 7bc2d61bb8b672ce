//! Requests and replies as bytes.
//!
//! **Layout**
//!
//! ```text
//!   ┌─────────┬──────────────────────────────┬───────────────────────────────┐
//!   │ version │ request or reply, in postcard │ inline data, exactly as long │
//!   │ 1 byte  │                              │ as the request or reply says  │
//!   └─────────┴──────────────────────────────┴───────────────────────────────┘
//! ```
//!
//! **Invariants**
//! 1. Decoding never panics, whatever the bytes, and sets aside no more memory than the bytes themselves justify or the limits allow: every list and
//!    text is bounded (see [`crate::limits`]), and checked before it is made.
//! 2. What was decoded keeps the limits: regions that do not overflow, a layout with as many datafiles as servers.
//! 3. There are no bytes too few and none too many.
//!
//! Guarded by the round trips and mutations in the tests below.

use serde::{Deserialize, Serialize};

use crate::reply::Reply;
use crate::request::Request;

/// Version of requests and replies. One that differs is refused.
pub const VERSION: u8 = 2;

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
    /// More or less inline data than announced.
    #[error("{found} bytes of inline data where {announced} were announced")]
    Inline {
        /// What the request or reply says.
        announced: u64,
        /// What is there.
        found: usize,
    },
}

/// Encodes a request; inline data goes behind it.
pub fn encode_request(request: &Request) -> Vec<u8> {
    encode(request, 96)
}

/// Encodes a reply; inline data goes behind it.
pub fn encode_reply(reply: &Reply) -> Vec<u8> {
    encode(reply, 48)
}

/// Decodes a request, and returns what inline data is behind it.
///
/// # Errors
/// See [`CodecError`].
pub fn decode_request(bytes: &[u8]) -> Result<(Request, &[u8]), CodecError> {
    let (request, data) = decode::<Request>(bytes)?;
    check_inline(request.inline_len(), data)?;
    Ok((request, data))
}

/// Decodes a reply, and returns what inline data is behind it.
///
/// # Errors
/// See [`CodecError`].
pub fn decode_reply(bytes: &[u8]) -> Result<(Reply, &[u8]), CodecError> {
    let (reply, data) = decode::<Reply>(bytes)?;
    check_inline(reply.inline_len(), data)?;
    Ok((reply, data))
}

fn encode<T: Serialize>(value: &T, room: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(room);
    bytes.push(VERSION);
    postcard::to_extend(value, bytes)
        .expect("a vector takes all that is written, and no type here refuses to be encoded")
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), CodecError> {
    match bytes.split_first() {
        None => Err(CodecError::Empty),
        Some((&VERSION, body)) => {
            postcard::take_from_bytes(body).map_err(|error| CodecError::Malformed(error.to_string()))
        }
        Some((version, _)) => Err(CodecError::Version(*version)),
    }
}

fn check_inline(announced: u64, data: &[u8]) -> Result<(), CodecError> {
    if announced == data.len() as u64 {
        return Ok(());
    }
    Err(CodecError::Inline { announced, found: data.len() })
}

#[cfg(test)]
mod tests;
