//! Requests and replies as values, encoded by `postcard` (feature `typed`).
//!
//! ```
//! use bmi::{Call, Client, Error, Server};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! enum Question<'a> {
//!     Length { key: &'a str },
//! }
//!
//! async fn handle(call: Call) -> Result<(), Error> {
//!     // A request that is no question ends the call with `Invalid`.
//!     let Question::Length { key } = call.decode()?;
//!     let length = key.len() as u64;
//!     call.answer(&length)?.await
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Error> {
//! let server = Server::bind("tcp://127.0.0.1:0").await?;
//! let client = Client::new(&server.addrs()[0]);
//! tokio::spawn(async move { server.serve(handle).await });
//! let reply = client.ask(&Question::Length { key: "seven" })?.await?;
//! assert_eq!(reply.decode::<u64>()?, 5);
//! # Ok(())
//! # }
//! ```
//!
//! Both sides need the same types. Give them a version
//! ([`ServerBuilder::protocol`](super::ServerBuilder::protocol)).

use std::any::type_name;

use serde::{Deserialize, Serialize};

use super::{Call, Client, Reply, Replying, Request};
use crate::{Error, ErrorKind};

impl Client {
    /// Prepares a call whose request is a value.
    ///
    /// # Errors
    /// `Invalid` if the value cannot be encoded.
    pub fn ask<Q: Serialize + ?Sized>(&self, question: &Q) -> Result<Request, Error> {
        Ok(self.call(encode(question)?))
    }
}

impl Call {
    /// Returns the request as a value.
    ///
    /// # Errors
    /// `Invalid` if it is none of this type. A handler that returns the error tells the client.
    pub fn decode<'a, Q: Deserialize<'a>>(&'a self) -> Result<Q, Error> {
        decode(self.request(), ErrorKind::Invalid, "request")
    }

    /// Replies with a value. Add data with [`Replying::data`], and await the result.
    ///
    /// # Errors
    /// `Invalid` if the value cannot be encoded.
    pub fn answer<A: Serialize + ?Sized>(self, answer: &A) -> Result<Replying, Error> {
        let bytes = encode(answer)?;
        Ok(self.reply(bytes))
    }
}

impl Reply {
    /// Returns the handler's reply as a value.
    ///
    /// # Errors
    /// `Protocol` if it is none of this type.
    pub fn decode<'a, A: Deserialize<'a>>(&'a self) -> Result<A, Error> {
        decode(&self.bytes, ErrorKind::Protocol, "reply")
    }
}

fn encode<V: Serialize + ?Sized>(value: &V) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(value).map_err(|error| {
        let text = format!("a {} that postcard cannot encode", type_name::<V>());
        Error::new(ErrorKind::Invalid, text).caused_by(error)
    })
}

fn decode<'a, V: Deserialize<'a>>(bytes: &'a [u8], kind: ErrorKind, what: &str) -> Result<V, Error> {
    let invalid = || Error::new(kind, format!("a {what} of {} bytes that is no {}", bytes.len(), type_name::<V>()));
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(invalid()),
        Err(error) => Err(invalid().caused_by(error)),
    }
}
