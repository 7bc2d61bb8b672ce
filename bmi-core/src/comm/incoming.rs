//! The server's side of a call: a request, its data wherever it is, and the answer.
//!
//! A server takes the data of a write with [`Incoming::data`] or [`Incoming::fetch`], moves that of
//! a read with [`Incoming::store`] or gives it to [`Incoming::reply`], and need not know the path.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use super::path::{Direction, Path};
use super::wire::{
    CALL_HEAD, CallHead, REPLY_HEAD, REPLY_HEADER, ReplyHeader, ReplyKind, Way, descriptor, put_descriptor,
};
use crate::async_endpoint::AsyncEndpoint;
use crate::bulk::BulkDescriptor;
use crate::endpoint::Unexpected;
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, MemSlice, Memory};
use crate::mutated;
use crate::op::{Options, PeerId, Tag};
use crate::transport::{HostWork, ServiceClass, Transport};

/// Bytes of data that a message says its request has; 0 for one that is no call. For a server to
/// decide when to take it apart.
pub fn announced(message: &Unexpected) -> u64 {
    let mut wire = [0; CALL_HEAD];
    if message.len() < CALL_HEAD {
        return 0;
    }
    match message.in_fast_slot() {
        Some(slot) => slot.copy_to(&mut wire),
        None => wire.copy_from_slice(&message.bytes()[..CALL_HEAD]),
    }
    CallHead::decode(&wire, message.len()).map_or(0, |head| head.data)
}

/// A request that came in, with the means to move its data and to answer it.
pub struct Incoming<T: Transport> {
    endpoint: AsyncEndpoint<T>,
    peer: PeerId,
    tag: Tag,
    head: CallHead,
    request: Bytes,
    /// The client's memory.
    remote: Option<BulkDescriptor>,
    /// The data of a write that came with the request.
    data: Option<MemSlice>,
    /// Holds the slot that the data stands in.
    _message: Option<Unexpected>,
}

impl<T: Transport> Incoming<T> {
    /// Takes a message apart. The receive slot that it was in is free at once, a fast-RDMA slot
    /// with data in it when the request is answered.
    ///
    /// # Errors
    /// `Protocol` for bytes that are no call: whoever sent them is best cut off.
    pub fn new(endpoint: &AsyncEndpoint<T>, message: Unexpected) -> Result<Incoming<T>, Error> {
        let (peer, tag) = (message.peer(), message.tag());
        let protocol = |what: &str| Error::new(ErrorKind::Protocol, format!("a message that {what}"));
        // Nothing in a fast-RDMA slot is referred to: its peer can write to it at any time.
        let front = |len: usize| match message.in_fast_slot() {
            Some(slot) => slot.slice(0, len.min(slot.len())).to_vec(),
            None => message.bytes()[..len.min(message.len())].to_vec(),
        };
        let wire = front(CALL_HEAD);
        let wire = wire.first_chunk().ok_or_else(|| protocol("is no call"))?;
        let head = CallHead::decode(wire, message.len()).map_err(protocol)?;
        let (max_pieces, max_data) = endpoint.with(|e| (e.config().limits.max_pieces, e.config().limits.max_message));
        if head.data > max_data {
            return Err(Error::new(ErrorKind::Protocol, format!("a request with {} bytes of data", head.data)));
        }
        // Both add up to less than the message, which is here.
        let (request, described) = (head.request as usize, head.descriptor as usize);
        let mut front = front(CALL_HEAD + request + described);
        let remote = match described {
            0 => None,
            _ => {
                Some(descriptor(&front[CALL_HEAD + request..], max_pieces)?).filter(|remote| remote.len() == head.data)
            }
        };
        if described > 0 && remote.is_none() {
            return Err(protocol("describes more or less memory than its data"));
        }
        front.truncate(CALL_HEAD + request);
        front.drain(..CALL_HEAD);
        let at = CALL_HEAD + request;
        let (data, message) = match (head.carries_data(), message.in_fast_slot().cloned()) {
            (false, _) => (None, None),
            (true, Some(slot)) => (Some(slot.slice(at, slot.len() - at)), Some(message)),
            // At most an eager message; copied, so that the receive slot and its credit go back
            // before the disk is waited for.
            (true, None) => {
                let bytes = message.bytes()[at..].to_vec();
                let work = HostWork::Copy { bytes: bytes.len() as u64, pieces: 1 };
                drop(message);
                endpoint.with(|endpoint| endpoint.transport_mut().charge(work));
                (Some(Memory::from(bytes).all()), None)
            }
        };
        Ok(Incoming {
            endpoint: endpoint.clone(),
            peer,
            tag,
            head,
            request: front.into(),
            remote,
            data,
            _message: message,
        })
    }

    /// The endpoint that the call came in at.
    pub fn endpoint(&self) -> &AsyncEndpoint<T> {
        &self.endpoint
    }

    /// Options whose deadline is `timeout` from now.
    pub fn within(&self, timeout: Duration) -> Options {
        self.endpoint.within(timeout)
    }

    /// Who asks.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// The tag of request and reply.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// The request.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// The request as `Bytes`, without a copy.
    pub fn request_bytes(&self) -> Bytes {
        self.request.clone()
    }

    /// Which way its data goes; `None` if it has none.
    pub fn direction(&self) -> Option<Direction> {
        self.head.direction
    }

    /// Bytes of data.
    pub fn len(&self) -> u64 {
        self.head.data
    }

    /// Whether it has no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The path, as far as it can be told from here.
    pub fn path(&self) -> Option<Path> {
        match self.head.way {
            Way::None => None,
            Way::Message if self._message.is_some() || self.remote.is_some() => Some(Path::FastRdma),
            Way::Message => Some(Path::Inline),
            Way::ServerBased => Some(Path::ServerBased),
            Way::ClientBased => Some(Path::ClientBased),
        }
    }

    /// The data of a write, if it came with the request: good for the store as it is. In a
    /// fast-RDMA slot the client can still change it; then it is the client's own data that is
    /// spoilt.
    pub fn data(&self) -> Option<&MemSlice> {
        self.data.as_ref()
    }

    /// Whether the data of a read is to be given to [`Incoming::reply`], all of it.
    pub fn replies_with_data(&self) -> bool {
        self.head.way == Way::Message && self.head.direction == Some(Direction::Read)
    }

    /// Bytes that the reply may have, data aside; 0 if the client is gone.
    pub fn room(&self) -> usize {
        self.endpoint.limits(self.peer).map_or(0, |limits| limits.eager.saturating_sub(REPLY_HEADER))
    }

    /// Moves the data of a write from `at` on into `into`, as many bytes as that holds.
    ///
    /// # Errors
    /// `Invalid` if the data is not a write's or does not reach so far; `PeerLost`, `TimedOut`.
    pub async fn fetch(&self, at: u64, into: impl Into<MemList>, options: Options) -> Result<(), Error> {
        let into = into.into();
        self.check(Direction::Write, at, into.len() as u64)?;
        if into.is_empty() {
            return Ok(());
        }
        if let Some(data) = &self.data {
            let at = if mutated("call/unit-from-the-beginning") { 0 } else { at };
            let mut from = data.slice(usize::try_from(at).expect("within the data"), into.len());
            for piece in into.pieces() {
                piece.copy_from_slice_of(&from);
                from = from.slice(piece.len(), from.len() - piece.len());
            }
            let work = HostWork::copy(into.len(), &into);
            self.endpoint.with(|endpoint| endpoint.transport_mut().charge(work));
            return Ok(());
        }
        if let Some(remote) = &self.remote {
            return self.endpoint.pull(self.peer, remote, at, into, options).await.map(|_| ());
        }
        let (grant, written) = self.endpoint.grant(self.peer, into, options)?;
        let mut body = grant.token.to_le_bytes().to_vec();
        put_descriptor(&mut body, &grant.descriptor);
        self.tell(ReplyKind::Grant, at, &body, options).await?;
        written.await.map(|_| ())
    }

    /// Moves `from` to the data of a read, from `at` on.
    ///
    /// # Errors
    /// `Invalid` if the data is not a read's, does not reach so far, or is to go with the reply;
    /// `PeerLost`, `TimedOut`.
    pub async fn store(&self, at: u64, from: impl Into<MemList>, options: Options) -> Result<(), Error> {
        let from = from.into();
        self.check(Direction::Read, at, from.len() as u64)?;
        if from.is_empty() {
            return Ok(());
        }
        if let Some(remote) = &self.remote {
            return self.endpoint.push(self.peer, remote, at, from, options).await.map(|_| ());
        }
        if self.head.way != Way::ClientBased {
            return Err(Error::new(ErrorKind::Invalid, "the data of this read goes with its reply"));
        }
        let offer = self.endpoint.expose(self.peer, from, Access::READ)?;
        let mut body = Vec::new();
        put_descriptor(&mut body, offer.descriptor());
        let taken = self.endpoint.recv(self.peer, self.tag, Memory::from(Vec::new()), options);
        self.tell(ReplyKind::Offer, at, &body, options).await?;
        taken.await.map(|_| ())
    }

    /// The client's memory itself, `len` bytes of the data from `at` on, where it stands in this
    /// process too: a store reads it (for a write) or fills it (for a read), and nothing is copied
    /// on the way. `None` where that cannot be; then [`Incoming::fetch`] or [`Incoming::store`]
    /// moves the bytes, and says what is wrong if anything is. The client may change the bytes
    /// while they are read; then it is its own data that is spoilt. The pages are given back when
    /// the list is dropped, and every part of it.
    pub fn pages(&self, at: u64, len: u64) -> Option<MemList> {
        let remote = self.remote.as_ref()?;
        let access = match self.head.direction? {
            Direction::Write => Access::READ,
            Direction::Read => Access::WRITE,
        };
        self.endpoint.with(|endpoint| endpoint.map_remote(self.peer, remote, at, len, access))
    }

    fn check(&self, direction: Direction, at: u64, len: u64) -> Result<(), Error> {
        if self.head.direction == Some(direction) && at.checked_add(len).is_some_and(|end| end <= self.head.data) {
            return Ok(());
        }
        let text = format!("{len} bytes at {at} of a {:?} of {} bytes", self.head.direction, self.head.data);
        Err(Error::new(ErrorKind::Invalid, text))
    }

    async fn tell(&self, kind: ReplyKind, at: u64, body: &[u8], options: Options) -> Result<(), Error> {
        let bytes = u32::try_from(body.len()).expect("as long as a descriptor");
        let message = [&ReplyHeader { kind, bytes, at }.encode()[..], body].concat();
        self.endpoint.send(self.peer, self.tag, message, options).await.map(|_| ())
    }

    /// Answers. `data` is that of a read for which [`Incoming::replies_with_data`], all of it, or
    /// `None` if there is none to be had.
    ///
    /// # Errors
    /// `Invalid` for data of another length or for another request; `PeerLost`, `TimedOut`.
    pub async fn reply(self, bytes: &[u8], data: Option<MemList>, options: Options) -> Result<(), Error> {
        if data.as_ref().is_some_and(|data| !self.replies_with_data() || data.len() as u64 != self.head.data) {
            return Err(Error::new(ErrorKind::Invalid, "data that was not asked for").during("reply"));
        }
        let len = u32::try_from(bytes.len()).map_err(|_| Error::new(ErrorKind::TooLong, "a reply without end"))?;
        let continued = self.head.narrow && bytes.len() > REPLY_HEAD - REPLY_HEADER;
        let (kind, here) = if continued { (ReplyKind::Continued, &[][..]) } else { (ReplyKind::Reply, bytes) };
        let carried = data.as_ref().filter(|_| self.head.narrow).map_or(0, |data| data.len() as u64);
        let mut front = Vec::with_capacity(REPLY_HEAD.max(REPLY_HEADER + here.len()));
        front.extend_from_slice(&ReplyHeader { kind, bytes: len, at: carried }.encode());
        front.extend_from_slice(here);
        let mut ahead = None;
        let message: MemList = match (data, &self.remote) {
            (Some(data), None) if carried > 0 => {
                front.resize(REPLY_HEAD, 0);
                std::iter::once(Memory::from(front).all()).chain(data.pieces().iter().cloned()).collect()
            }
            (Some(data), Some(remote)) if !data.is_empty() => {
                // Ahead of the reply: what is posted first arrives first (C3), so the reply need
                // not wait for its end.
                let bulk = options.class(ServiceClass::Message);
                let push = self.endpoint.push(self.peer, remote, 0, data, bulk);
                let issued = push.id().is_none_or(|op| self.endpoint.with(|endpoint| endpoint.is_issued(op)));
                if issued {
                    ahead = Some(push);
                } else {
                    push.await?;
                }
                front.into()
            }
            _ => front.into(),
        };
        let slot = self.head.slot && carried > 0;
        let reply = self.endpoint.send(self.peer, self.tag, message, Options { slot, ..options });
        let rest = continued.then(|| self.endpoint.send(self.peer, self.tag, bytes.to_vec(), options));
        if let Some(ahead) = ahead {
            ahead.await?;
        }
        reply.await?;
        match rest {
            Some(rest) => rest.await.map(|_| ()),
            None => Ok(()),
        }
    }
}

impl<T: Transport> fmt::Debug for Incoming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incoming({:?}, tag {}, {} bytes, {:?})", self.peer, self.tag, self.request.len(), self.head)
    }
}
