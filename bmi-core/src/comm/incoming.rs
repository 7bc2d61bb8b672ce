//! The server's side of a call: it takes the request, moves its data, and sends the reply.
//!
//! A server takes the data of a write with [`Incoming::data`] or [`Incoming::fetch`]. It moves the
//! data of a read with [`Incoming::store`], or passes it to [`Incoming::reply`]. It need not know
//! the path. If it drops the request without a reply, the caller is told.

use std::fmt;
use std::time::Duration;

use bytes::{Buf, Bytes};

use crate::endpoint::threading::{OneThread, Slot, Threading};
use crate::endpoint::{Dropped, Endpoint, Message, Operation, Peer};
use crate::engine::{Exposure, Kept, Unexpected, read_only};
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, MemSlice, Memory};
use crate::mutated;
use crate::op::{Options, Posted, Tag};
use crate::paths::{Direction, Path};
use crate::transport::ServiceClass;
use crate::wire::BulkDescriptor;
use crate::wire::call::{
    CALL_HEAD, CallHead, REPLY_HEAD, REPLY_HEADER, ReplyHeader, ReplyKind, Way, descriptor, put_descriptor,
};

/// Returns the number of data bytes that a message announces for its request, or 0 if it is not a
/// call. A server can use it to decide when to handle the message.
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

/// Returns a copy of the request in a message, if the message is a call. A server can use it to
/// decide when to handle the message, if there is reason to look.
pub fn request_of(message: &Unexpected) -> Option<Vec<u8>> {
    let front = |len: usize| match message.in_fast_slot() {
        Some(slot) => slot.slice(0, len.min(slot.len())).to_vec(),
        None => message.bytes()[..len.min(message.len())].to_vec(),
    };
    let wire = front(CALL_HEAD);
    let head = CallHead::decode(wire.first_chunk()?, message.len()).ok()?;
    // The sum is less than the length of the message.
    let mut bytes = front(CALL_HEAD + head.request as usize);
    bytes.drain(..CALL_HEAD);
    Some(bytes)
}

/// A request from a client, with the means to move its data and to answer it. If it is dropped
/// without a reply, the call ends with `Abandoned` at once.
pub struct Incoming<S: Threading = OneThread> {
    peer: Peer<S>,
    /// The id of the call.
    id: Tag,
    head: CallHead,
    request: Bytes,
    /// The client's memory.
    remote: Option<BulkDescriptor>,
    /// The data of a write that came with the request.
    data: Option<MemSlice>,
    /// Holds the slot that contains the data.
    message: Option<Unexpected>,
    /// The connection is not idle until the call is answered.
    _kept: Option<Kept>,
    /// The end of the data of a read that was stored.
    stored: S::Slot<u64>,
    /// The reply was sent.
    answered: bool,
}

impl<S: Threading> Drop for Incoming<S> {
    fn drop(&mut self) {
        if !self.answered && !mutated("call/dropped-request-not-told") {
            self.peer.endpoint.settle(Dropped::Unanswered(self.peer.id(), self.id));
        }
    }
}

impl<S: Threading> Message<S> {
    /// Returns the call that the message is. If it is none, cuts its sender off and returns `None`.
    pub fn into_call(self) -> Option<Incoming<S>> {
        let peer = self.peer().clone();
        match Incoming::new(self) {
            Ok(call) => Some(call),
            Err(error) => {
                if peer.admits_log_line("cut off") {
                    tracing::warn!(?peer, %error, "cut off");
                }
                peer.cut(error);
                None
            }
        }
    }
}

impl<S: Threading> Incoming<S> {
    /// Decodes a message. A receive slot that held it is free at once. A fast-RDMA slot with data
    /// in it is free when the request is answered.
    ///
    /// # Errors
    /// `Protocol` if the bytes are not a call. The connection to that peer should then be closed.
    pub fn new(message: Message<S>) -> Result<Incoming<S>, Error> {
        let (peer, message) = message.into_parts();
        let (endpoint, id) = (&peer.endpoint, message.tag());
        let protocol = |what: &str| Error::new(ErrorKind::Protocol, format!("a message that {what}"));
        // A connection that is lost has no calls, but its requests are still here.
        if !endpoint.look(|engine| engine.is_call_of(peer.id(), id) || engine.limits(peer.id()).is_none()) {
            return Err(protocol("has not the id of a call"));
        }
        // The contents of a fast-RDMA slot are copied, never referred to: the peer can write to it
        // any time.
        let front = |len: usize| match message.in_fast_slot() {
            Some(slot) => slot.slice(0, len.min(slot.len())).to_vec(),
            None => message.bytes()[..len.min(message.len())].to_vec(),
        };
        let wire = front(CALL_HEAD);
        let wire = wire.first_chunk().ok_or_else(|| protocol("is no call"))?;
        let head = CallHead::decode(wire, message.len()).map_err(protocol)?;
        let (max_pieces, max_data, kept) =
            endpoint.look(|e| (e.config().tuning.max_pieces, e.config().limits.max_message, e.keep(peer.id())));
        if head.data > max_data {
            return Err(Error::new(ErrorKind::Protocol, format!("a request with {} bytes of data", head.data)));
        }
        // The sum of both is less than the length of the message, which has arrived.
        let (request, described) = (head.request as usize, head.descriptor as usize);
        let front = front(CALL_HEAD + request + described);
        let remote = match described {
            0 => None,
            _ => {
                Some(descriptor(&front[CALL_HEAD + request..], max_pieces)?).filter(|remote| remote.len() == head.data)
            }
        };
        if described > 0 && remote.is_none() {
            return Err(protocol("describes more or less memory than its data"));
        }
        let at = CALL_HEAD + request;
        // Without a descriptor this neither copies nor allocates.
        let mut request = Bytes::from(front);
        request.truncate(at);
        request.advance(CALL_HEAD);
        let (data, message) = match (head.carries_data(), message.in_fast_slot().cloned()) {
            (false, _) => (None, None),
            (true, Some(slot)) => (Some(slot.slice(at, slot.len() - at)), Some(message)),
            // At most an eager message. It is copied, so that the receive slot and its credit are
            // returned before the server waits for the disk.
            (true, None) => {
                let bytes = message.bytes()[at..].to_vec();
                drop(message);
                endpoint.copied(bytes.len() as u64, 1);
                (Some(Memory::from(bytes).all()), None)
            }
        };
        let (stored, answered) = (S::Slot::new(0), false);
        Ok(Incoming { peer, id, head, request, remote, data, message, _kept: kept, stored, answered })
    }

    /// The endpoint that the call came in at.
    pub fn endpoint(&self) -> &Endpoint<S> {
        &self.peer.endpoint
    }

    /// Options whose deadline is `timeout` from now.
    pub fn within(&self, timeout: Duration) -> Options {
        self.peer.within(timeout)
    }

    /// Returns the client.
    pub fn peer(&self) -> &Peer<S> {
        &self.peer
    }

    /// Returns the id of the call, which no other call of the peer's has while this one lasts.
    pub fn id(&self) -> Tag {
        self.id
    }

    /// Returns the request.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Returns the request as `Bytes`, without a copy.
    pub fn request_bytes(&self) -> Bytes {
        self.request.clone()
    }

    /// Returns the direction of the data, or `None` if there is none.
    pub fn direction(&self) -> Option<Direction> {
        self.head.direction
    }

    /// Returns the number of data bytes.
    pub fn len(&self) -> u64 {
        self.head.data
    }

    /// Returns true if it has no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the path, as far as this side can tell.
    pub fn path(&self) -> Option<Path> {
        match self.head.way {
            Way::None => None,
            Way::Message if self.message.is_some() || self.remote.is_some() => Some(Path::FastRdma),
            Way::Message => Some(Path::Inline),
            Way::ServerBased => Some(Path::ServerBased),
            Way::ClientBased => Some(Path::ClientBased),
        }
    }

    /// Returns the data of a write, if it came with the request. A store can use it in place. In a
    /// fast-RDMA slot the client can still change it, but that spoils only the client's own data.
    pub fn data(&self) -> Option<&MemSlice> {
        self.data.as_ref()
    }

    /// Returns true if all data of a read must be passed to [`Incoming::reply`].
    pub fn replies_with_data(&self) -> bool {
        self.head.way == Way::Message && self.head.direction == Some(Direction::Read)
    }

    /// Returns the largest length of a reply in bytes, without data. Returns 0 if the client is
    /// gone.
    pub fn room(&self) -> usize {
        self.peer.limits().map_or(0, |limits| limits.eager.saturating_sub(REPLY_HEADER))
    }

    /// Returns the largest length of a reply, without data, that travels in one message. It is less
    /// than [`Incoming::room`] if the client receives the reply's data next to it.
    pub fn room_in_one(&self) -> usize {
        if self.head.narrow { REPLY_HEAD - REPLY_HEADER } else { self.room() }
    }

    /// Copies the data of a write from `at` on into `into`, until `into` is full.
    ///
    /// On the client-based path the client writes into `into`, and an adapter does not tell how
    /// much it wrote. So `into` is zeroed first. A client that writes less than it says gets zeros,
    /// and nothing that `into` held before. If this ends early there, the client may still write
    /// for a while, because to stop it would end the connection. So `into` stays
    /// [retired](Memory::is_retired): a pool must not use it again
    /// ([`Engine::post_grant`](crate::Engine::post_grant) says how long).
    ///
    /// # Errors
    /// `Invalid` if the call is not a write, or the data is too short; `PeerLost`, `TimedOut`.
    pub async fn fetch(&self, at: u64, into: impl Into<MemList>, options: Options) -> Result<(), Error> {
        let into = into.into();
        self.check(Direction::Write, at, into.len() as u64)?;
        if into.is_read_only() {
            return Err(read_only().during("fetch"));
        }
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
            self.peer.endpoint.copied(into.len() as u64, into.pieces().len() as u64);
            return Ok(());
        }
        if let Some(remote) = &self.remote {
            let pull = self.peer.post_for_call(|engine| engine.post_pull(self.peer.id(), remote, at, into, options));
            return pull.await.map(|_| ());
        }
        let endpoint = &self.peer.endpoint;
        let (grant, op) = endpoint.with(|engine| engine.post_grant(self.peer.id(), into, options))?;
        let written = endpoint.operation(Ok(Posted::Pending(op)));
        let mut body = grant.token.to_le_bytes().to_vec();
        put_descriptor(&mut body, &grant.descriptor);
        self.tell(ReplyKind::Grant, at, &body, options).await?;
        written.await.map(|_| ())
    }

    /// Moves `from` to the data of a read, from `at` on. If this ends early on the client-based
    /// path, the client may still read `from` for a while, as with [`Incoming::fetch`].
    ///
    /// # Errors
    /// `Invalid` if the call is not a read, the data is too short, or it must go with the reply;
    /// `PeerLost`, `TimedOut`.
    pub async fn store(&self, at: u64, from: impl Into<MemList>, options: Options) -> Result<(), Error> {
        let from = from.into();
        self.check(Direction::Read, at, from.len() as u64)?;
        if from.is_empty() {
            return Ok(());
        }
        let end = at + from.len() as u64;
        if let Some(remote) = &self.remote {
            self.push(remote, at, from, options).await?;
            self.note_stored(end);
            return Ok(());
        }
        if self.head.way != Way::ClientBased {
            return Err(Error::new(ErrorKind::Invalid, "the data of this read goes with its reply"));
        }
        let endpoint = &self.peer.endpoint;
        let offer = endpoint.with(|engine| engine.expose(self.peer.id(), from.clone(), Access::READ))?;
        let mut body = Vec::new();
        put_descriptor(&mut body, offer.descriptor());
        let mut offered = Offered { endpoint, offer: Some(offer), memory: from };
        let taken = self.peer.recv_in_call(self.id, Memory::from(Vec::new()), options);
        self.tell(ReplyKind::Offer, at, &body, options).await?;
        taken.await?;
        if let Some(offer) = offered.offer.take() {
            // The caller may fill the memory for another client at once.
            endpoint.with(|engine| engine.withdraw(offer));
        }
        self.note_stored(end);
        Ok(())
    }

    /// Returns the client's own memory for `len` bytes of the data from `at` on, if it is mapped in
    /// this process too. A store reads it (for a write) or fills it (for a read) without a copy.
    ///
    /// Returns `None` if this is not possible. [`Incoming::fetch`] or [`Incoming::store`] then
    /// moves the bytes and reports any error. The client may change the bytes while they are read,
    /// but that spoils only its own data. The pages are returned when the list and every part of it
    /// are dropped.
    pub fn pages(&self, at: u64, len: u64) -> Option<MemList> {
        let remote = self.remote.as_ref()?;
        let access = match self.head.direction? {
            Direction::Write => Access::READ,
            Direction::Read => Access::WRITE,
        };
        let pages = self.peer.endpoint.with(|engine| engine.map_remote(self.peer.id(), remote, at, len, access));
        if pages.is_some() && access.remote_write {
            self.note_stored(at + len);
        }
        pages
    }

    fn push(&self, remote: &BulkDescriptor, at: u64, from: MemList, options: Options) -> Operation<S> {
        self.peer.post_for_call(|engine| engine.post_push(self.peer.id(), remote, at, from, options))
    }

    /// Returns the end of the data of a read that was stored.
    fn stored(&self) -> u64 {
        self.stored.with(|stored| *stored)
    }

    fn note_stored(&self, end: u64) {
        self.stored.with(|stored| *stored = (*stored).max(end));
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
        self.peer.send_in_call(self.id, message, options).await.map(|_| ())
    }

    /// Sends the reply. `data` is the data of a read from its beginning, or `None` if there is no
    /// data, or if [`Incoming::store`] has moved it. It may be shorter than the client's memory.
    /// The client learns the length ([`Reply::data`](super::Reply::data)). On a path whose data
    /// does not travel with the reply, the data is stored first.
    ///
    /// # Errors
    /// `Invalid` if the request is no read, or the data is longer than the client asked for;
    /// `PeerLost`, `TimedOut`. The caller is then told that there is no reply.
    pub async fn reply(mut self, bytes: &[u8], mut data: Option<MemList>, options: Options) -> Result<(), Error> {
        let is_asked_for =
            |data: &MemList| self.head.direction == Some(Direction::Read) && data.len() as u64 <= self.head.data;
        if !data.as_ref().is_none_or(is_asked_for) {
            return Err(Error::new(ErrorKind::Invalid, "data that was not asked for").during("reply"));
        }
        if !self.replies_with_data()
            && let Some(data) = data.take()
        {
            self.store(0, data, options).await?;
        }
        let len = u32::try_from(bytes.len()).map_err(|_| Error::new(ErrorKind::TooLarge, "a reply without end"))?;
        let continued = self.head.narrow && bytes.len() > REPLY_HEAD - REPLY_HEADER;
        let (kind, here) = if continued { (ReplyKind::Continued, &[][..]) } else { (ReplyKind::Reply, bytes) };
        let moved = data.as_ref().map_or(0, |data| data.len() as u64).max(self.stored());
        let carried = if self.head.narrow { moved } else { 0 };
        let mut front = Vec::with_capacity(REPLY_HEAD.max(REPLY_HEADER + here.len()));
        front.extend_from_slice(&ReplyHeader { kind, bytes: len, at: moved }.encode());
        front.extend_from_slice(here);
        let mut ahead = None;
        let message: MemList = match (data, &self.remote) {
            (Some(data), None) if carried > 0 => {
                front.resize(REPLY_HEAD, 0);
                std::iter::once(Memory::from(front).all()).chain(data.pieces().iter().cloned()).collect()
            }
            (Some(data), Some(remote)) if !data.is_empty() => {
                // The data is posted ahead of the reply. Requests arrive in the order of posting
                // (C3), so the reply need not wait for the data to complete.
                let bulk = options.class(ServiceClass::Message);
                let push = self.push(remote, 0, data, bulk);
                let issued = push.id().is_none_or(|op| self.peer.endpoint.look(|engine| engine.is_issued(op)));
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
        let reply = self.peer.send_in_call(self.id, message, Options { slot, ..options });
        let rest = continued.then(|| self.peer.send_in_call(self.id, bytes.to_vec(), options));
        // The rest of a reply is not told from a refusal. After a whole reply a refusal is late.
        self.answered = continued;
        if let Some(ahead) = ahead {
            ahead.await?;
        }
        reply.await?;
        self.answered = true;
        match rest {
            Some(rest) => rest.await.map(|_| ()),
            None => Ok(()),
        }
    }
}

/// Memory that the client may read until it says that it has. If this side ends the wait early, the
/// memory is left to the client: to revoke it would end the connection.
struct Offered<'a, S: Threading> {
    endpoint: &'a Endpoint<S>,
    offer: Option<Exposure>,
    memory: MemList,
}

impl<S: Threading> Drop for Offered<'_, S> {
    fn drop(&mut self) {
        if let Some(offer) = self.offer.take() {
            // Now, because a pool may look at once whether it can use the memory again.
            let retired = self.memory.retire();
            self.endpoint.settle(Dropped::Exposed(Box::new((offer, retired))));
        }
    }
}

impl<S: Threading> fmt::Debug for Incoming<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incoming({:?}, call {:#x}, {} bytes, {:?})", self.peer, self.id, self.request.len(), self.head)
    }
}
