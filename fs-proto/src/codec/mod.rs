//! Encodes and decodes requests and replies.
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
//! 1. Decoding never panics, whatever the bytes are. It allocates no more memory than the bytes
//!    justify or the limits allow. Every list and text is bounded (see [`crate::limits`]), and its
//!    length is checked before it is allocated.
//! 2. Decoded values respect the limits: regions do not overflow, and a layout has as many
//!    datafiles as servers.
//! 3. A message with missing or surplus bytes is rejected.
//!
//! The round trips and mutations in the tests below check these invariants.

use serde::{Deserialize, Serialize};

use crate::message::{Reply, Request};

/// Version of requests and replies. A message of another version is rejected. Version 7 has hints
/// for caches, queries of them, and shared reads. Version 8 has views. Version 10 has conditions
/// for what is replaced, and locks.
pub const VERSION: u8 = 17;

/// Why bytes could not be decoded as a request or reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The message is empty.
    #[error("empty message")]
    Empty,
    /// The message has another version.
    #[error("message of version {0}; version {VERSION} is spoken here")]
    Version(u8),
    /// The bytes are not a valid encoding, or a value exceeds a limit.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// There are more bytes than the encoding needs.
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

/// Returns true if an encoded reply is an error. Decodes nothing else of it.
pub fn is_error(reply: &[u8]) -> bool {
    // The variant of the result is in front: `Err` is 1.
    reply.get(1) == Some(&1)
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
