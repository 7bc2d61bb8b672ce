//! Replies: where their data is received, and what a call without one ends with.

use bmi_core::{SharedPeer, Time};
use bytes::Buf;
use tokio::sync::SemaphorePermit;

use super::{Inner, Reply};
use crate::rpc::permits;
use crate::rpc::wire::{Place, REPLY_HEAD, ReplyHead, RequestHead, RequestKind};
use crate::{Body, Bytes, Error, ErrorKind, MemList, Memory, Options};

/// Why a call has no reply.
pub(super) struct Failure {
    pub(super) error: Error,
    pub(super) from: From,
}

/// Where the error of a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// This side: nothing was sent.
    Unsent,
    /// The connection, after the request was sent.
    Connection,
    /// This side, which cannot take the data of the reply.
    Here,
    /// The server, before the handler has begun.
    Server,
    /// The handler. Its kind is about what the handler did, not about this connection.
    Handler,
}

impl Failure {
    /// Returns true if the handler has not begun, and another attempt may succeed.
    pub(super) fn may_be_repeated(&self) -> bool {
        match (self.from, self.error.kind()) {
            (From::Unsent, ErrorKind::PeerLost) => true,
            // It goes down, or has closed the connection because it was idle.
            (From::Unsent | From::Connection | From::Server, ErrorKind::Refused) => true,
            _ => false,
        }
    }
}

/// What receives the reply to a call.
pub(super) struct Receiving<'a> {
    pub(super) client: &'a Inner,
    pub(super) link: usize,
    pub(super) peer: &'a SharedPeer,
    pub(super) deadline: Time,
    /// The program's memory for the data.
    pub(super) into: Option<&'a MemList>,
}

/// Memory that a call offers for the data of its reply.
pub(super) struct Offered<'a> {
    memory: Memory,
    _permit: Option<SemaphorePermit<'a>>,
}

impl Offered<'_> {
    pub(super) fn list(&self) -> MemList {
        MemList::from(&self.memory)
    }
}

impl<'a> Receiving<'a> {
    /// Returns the length of the longest data that the call takes.
    pub(super) fn max_reply(&self) -> u64 {
        let settings = &self.client.settings;
        self.into.map_or(settings.max_reply.min(settings.max_bytes), |into| into.len() as u64)
    }

    /// Returns the time until the call's deadline, in us.
    pub(super) fn time_us(&self) -> u64 {
        self.deadline.since(self.peer.endpoint().now()).as_micros() as u64
    }

    /// Returns memory to offer for the reply of a call: as much as the client is told to, or as the
    /// last replies needed.
    ///
    /// # Errors
    /// `Exhausted` if there is no memory.
    pub(super) fn offer(&self) -> Result<Option<Offered<'a>>, Error> {
        let (client, link) = (self.client, &self.client.links[self.link]);
        let (usual, expected) = (client.settings.offer, link.expected());
        if usual == 0 {
            return Ok(None);
        }
        let more = (expected > usual).then(|| client.bytes.try_acquire_many(permits(expected as u64) as u32).ok());
        let more = more.flatten().and_then(|permit| Some((permit, link.buffers.take(expected).ok()?)));
        match more {
            Some((permit, memory)) => Ok(Some(Offered { memory, _permit: Some(permit) })),
            None => self.offer_usual(),
        }
    }

    /// Returns memory to offer for a part. Those who ask for parts may wait for long, so they hold
    /// no memory that others wait for.
    ///
    /// # Errors
    /// As [`Receiving::offer`].
    pub(super) fn offer_usual(&self) -> Result<Option<Offered<'a>>, Error> {
        let (usual, buffers) = (self.client.settings.offer, &self.client.links[self.link].buffers);
        match usual {
            0 => Ok(None),
            _ => Ok(Some(Offered { memory: buffers.take(usual)?, _permit: None })),
        }
    }

    /// Takes what the server has answered.
    pub(super) async fn take(&self, reply: crate::Reply, offered: Option<Offered<'_>>) -> Result<Reply, Failure> {
        let sent = |error| Failure { error, from: From::Connection };
        let link = &self.client.links[self.link];
        link.replied();
        let mut bytes = reply.bytes;
        let head = ReplyHead::decode(&bytes).map_err(sent)?;
        let end = REPLY_HEAD + head.len as usize;
        let keep = |offered: Option<Offered<'_>>| {
            offered.into_iter().for_each(|offered| link.buffers.keep(offered.memory));
        };
        if let Some(kind) = head.error {
            keep(offered);
            let text = String::from_utf8_lossy(&bytes[REPLY_HEAD..end]).into_owned();
            let error = Error::new(kind, text).during("call");
            let error = match self.peer.addr() {
                Some(addr) => error.with_peer(addr),
                None => error,
            };
            return Err(Failure { error, from: if head.not_begun { From::Server } else { From::Handler } });
        }
        let was_offered = offered.is_some();
        let data = match head.place {
            Place::Behind => {
                keep(offered);
                self.copied(bytes.slice(end..)).map_err(|error| Failure { error, from: From::Here })?
            }
            Place::InMemory if head.data != reply.data => return Err(sent(short(head.data, reply.data))),
            Place::InMemory => match offered {
                Some(offered) => link.buffers.contents(offered.memory, reply.data as usize),
                None => Bytes::new(),
            },
            Place::Kept { number } => {
                keep(offered);
                let fetched = Box::pin(self.fetch(number, head.data)).await;
                fetched.map_err(|error| match error.kind() {
                    ErrorKind::PeerLost | ErrorKind::TimedOut | ErrorKind::Refused => sent(error),
                    _ => Failure { error, from: From::Here },
                })?
            }
        };
        if was_offered {
            link.expect(head.data as usize);
        }
        self.client.metrics.received(end - REPLY_HEAD, head.data);
        // To share the bytes would allocate. Most replies have nothing behind them.
        if end < bytes.len() {
            bytes = bytes.slice(..end);
        }
        bytes.advance(REPLY_HEAD);
        Ok(Reply { bytes, data, data_len: head.data })
    }

    /// Returns data that came with the reply's bytes, or copies it to the program's memory.
    fn copied(&self, data: Bytes) -> Result<Bytes, Error> {
        match self.into {
            None => Ok(data),
            Some(into) if into.len() < data.len() => Err(too_large(data.len() as u64, into.len() as u64)),
            Some(into) => {
                into.copy_from(0, &data);
                Ok(Bytes::new())
            }
        }
    }

    /// Asks for the data of a reply, with memory of its length.
    async fn fetch(&self, number: u64, len: u64) -> Result<Bytes, Error> {
        let (client, most) = (self.client, self.max_reply());
        if len > most {
            return Err(too_large(len, most));
        }
        let whole = usize::try_from(len).expect("within the limit of a reply");
        let buffers = &client.links[self.link].buffers;
        let (into, memory, _permit) = match self.into {
            Some(into) => (into.range(0, whole).collect(), None, None),
            None => {
                let permit = client.permits(&client.bytes, permits(len), self.deadline).await?;
                let memory = buffers.take(whole)?;
                (memory.slice(0, whole).into(), Some(memory), Some(permit))
            }
        };
        let kind = RequestKind::Fetch { number };
        let request = RequestHead { kind, time_us: self.time_us(), trace: None }.encode();
        let reply = self.peer.call(&request, Body::In(into), Options::by(self.deadline))?.reply().await?;
        let head = ReplyHead::decode(&reply.bytes)?;
        if let Some(kind) = head.error {
            return Err(Error::new(kind, String::from_utf8_lossy(&reply.bytes[REPLY_HEAD..])).during("call"));
        }
        if reply.data != len {
            return Err(short(len, reply.data));
        }
        Ok(memory.map_or_else(Bytes::new, |memory| buffers.contents(memory, whole)))
    }
}

fn too_large(len: u64, most: u64) -> Error {
    let text = format!("a reply with {len} bytes of data, and this side takes {most} (max_reply, max_bytes)");
    Error::new(ErrorKind::TooLarge, text).during("call")
}

fn short(said: u64, came: u64) -> Error {
    Error::new(ErrorKind::Protocol, format!("a reply with {said} bytes of data, of which {came} came")).during("call")
}
