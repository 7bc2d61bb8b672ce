//! The client's side of a call: it sends the request, moves its data by the chosen path, and takes
//! the reply.

use std::collections::VecDeque;

use bytes::Bytes;

use super::packing::Packed;
use crate::endpoint::threading::{OneThread, Threading};
use crate::endpoint::{Dropped, Operation, Peer};
use crate::engine::{CallPart, DroppedCall, Exposure, Grant, read_only};
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, Memory};
use crate::mutated;
use crate::op::{Options, Tag};
use crate::paths::{Choice, Direction, Path};
use crate::transport::ServiceClass;
use crate::wire::call::{
    CALL_HEAD, CallHead, REPLY_HEAD, REPLY_HEADER, ReplyHeader, ReplyKind, Way, bad_reply, descriptor, put_descriptor,
};

/// Largest number of pieces of the user's memory that a server writes ahead of a reply. For more
/// pieces, one message and a copy cost less.
const FEW_PIECES: usize = 16;
/// Largest number of grants that a call writes at a time. A server may grant its data byte by byte,
/// and each would be an operation. Two keep the adapter busy while the server is told of an end.
const AT_ONCE: usize = 2;

/// The data of a call.
#[derive(Clone, Debug)]
pub enum Body {
    /// No data.
    None,
    /// Data to the server: a write. The bytes must not change until the reply.
    Out(MemList),
    /// Data from the server: a read.
    In(MemList),
}

/// What a call has with its endpoint. Dropping it ends the use of the call's id. If the request is
/// in flight, the endpoint keeps what the server needs ([`Call`] says how long).
struct InFlight<S: Threading> {
    peer: Peer<S>,
    id: Tag,
    send: Operation<S>,
    recv: Operation<S>,
    data: Option<MemList>,
    /// The server may access the data while this lives.
    exposure: Option<Exposure>,
}

impl<S: Threading> Drop for InFlight<S> {
    fn drop(&mut self) {
        let InFlight { id, ref mut send, ref mut recv, .. } = *self;
        let peer = self.peer.id();
        let dropped = match (send.release(), recv.release()) {
            (None, None) => Dropped::Call(peer, id),
            (send, recv) => {
                // Now, because a pool may look at once whether it can use the memory again.
                let retired = self.data.as_ref().map_or_else(Vec::new, MemList::retire);
                let exposure = self.exposure.take();
                Dropped::EarlyCall(Box::new(DroppedCall { peer, id, send, recv, exposure, retired }))
            }
        };
        self.peer.endpoint.settle(dropped);
    }
}

/// A call in flight. It may be dropped at any time, and the reply is dropped then when it arrives.
///
/// If the call is dropped before its reply, the server may be at the memory that was exposed to it.
/// To revoke it then would end the connection, and with it the calls of others. So the server keeps
/// its access until its reply arrives, until the deadline of the call, or until the connection
/// ends. The bytes of a read may change until then, and those of a write should not. The endpoint
/// holds the [`Memory`] meanwhile: [`Memory::is_retired`] returns true, and [`Memory::get_mut`]
/// returns `None`. A call without a deadline has
/// [`TimeoutConfig::dropped_call`](crate::TimeoutConfig::dropped_call) from its drop on. A request
/// that is not sent yet is taken back, and nothing is kept.
///
/// At the deadline the access is revoked, whether or not the server is at the memory. A server that
/// stops its work some time before its client's deadline loses no connection.
#[must_use = "dropping it abandons the call"]
pub struct Call<S: Threading = OneThread> {
    in_flight: InFlight<S>,
    options: Options,
    /// The user's list that the data comes from or goes to, if it is packed.
    packed: Option<Packed>,
    buffer: Memory,
    narrow: bool,
    direction: Option<Direction>,
    /// Bytes of data for which the server has sent a grant or an offer.
    moved: u64,
    choice: Option<Choice>,
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The server's bytes.
    pub bytes: Bytes,
    /// For a read: the length of the data in bytes, up to the last one that the server moved. It
    /// may be less than the request's memory. The contents of the memory behind it are
    /// unspecified. 0 for a write.
    pub data: u64,
    /// The path of the data, and the reason a cheaper path was not taken. `None` for a call without
    /// data.
    pub choice: Option<Choice>,
}

/// Calls.
impl<S: Threading> Peer<S> {
    /// Returns the largest length of a request in bytes, including its memory descriptor but
    /// without data. Returns 0 without a connection.
    pub fn request_room(&self) -> usize {
        self.limits().map_or(0, |limits| limits.eager.max(limits.fast).saturating_sub(CALL_HEAD))
    }

    /// Sends `request` with `body` and prepares for the reply. Any number of calls to a peer may be
    /// in flight. [`Options::path`] overrides the policy's path.
    ///
    /// # Errors
    /// `PeerLost`, `Exhausted`, or `TooLong` if the request does not fit a message. Nothing was
    /// sent in these cases.
    pub fn call(&self, request: &[u8], body: Body, options: Options) -> Result<Call<S>, Error> {
        self.endpoint.check_room()?;
        let (direction, data) = match body {
            Body::None => (None, None),
            Body::Out(list) => (Some(Direction::Write), Some(list)),
            Body::In(list) if list.is_read_only() => return Err(read_only().during("call")),
            Body::In(list) => (Some(Direction::Read), Some(list)),
        };
        let choice =
            direction.zip(data.as_ref()).map(|(direction, data)| self.choose(direction, request, data, options.path));
        let way = choice.map_or(Way::None, |choice| Way::of(choice.path));
        let packed = match (direction, &data) {
            (Some(direction), Some(list)) if matches!(way, Way::ServerBased | Way::ClientBased) => {
                self.pack(direction, CALL_HEAD + request.len(), list, way == Way::ServerBased, options.lists)?
            }
            _ => None,
        };
        let data = packed.as_ref().map(|packed| packed.data().into()).or(data);
        let exposure = self.expose_for_call(direction, way, choice, data.as_ref())?;
        let slot = choice.is_some_and(|choice| choice.path == Path::FastRdma);
        let narrow = way == Way::Message && direction == Some(Direction::Read) && exposure.is_none();

        let mut front = Vec::with_capacity(CALL_HEAD + request.len() + 64);
        front.resize(CALL_HEAD, 0);
        front.extend_from_slice(request);
        if let Some(exposure) = &exposure {
            put_descriptor(&mut front, exposure.descriptor());
        }
        let head = CallHead {
            way,
            direction,
            narrow,
            slot,
            request: wire_len(request.len())?,
            descriptor: wire_len(front.len() - CALL_HEAD - request.len())?,
            data: data.as_ref().map_or(0, |data| data.len() as u64),
        };
        front[..CALL_HEAD].copy_from_slice(&head.encode());
        let message: MemList = match &data {
            Some(data) if head.carries_data() => {
                std::iter::once(Memory::from(front).all()).chain(data.pieces().iter().cloned()).collect()
            }
            _ => Memory::from(front).into(),
        };
        let len = if narrow { REPLY_HEAD } else { self.limits().map_or(0, |limits| limits.eager).max(REPLY_HEAD) };
        let buffer = self.endpoint.call_buffers().take_reply(len)?;
        // The receive is posted first, because the reply may come while the request is still being
        // posted.
        let into: MemList = match &data {
            Some(data) if narrow => {
                std::iter::once(buffer.slice(0, REPLY_HEAD)).chain(data.pieces().iter().cloned()).collect()
            }
            _ => MemList::from(&buffer),
        };
        let peer = self.id();
        let id = self.endpoint.look(|engine| engine.open_call(peer))?;
        let into_slot = Options { slot: slot && head.carries_data(), ..options };
        let bytes = data.as_ref().map_or(0, |data| data.len() as u64);
        let (recv, send) = self.endpoint.with(|engine| {
            engine.record_call(peer, id, choice.map(|choice| choice.path), bytes);
            let recv = engine.post_in_call(CallPart::Receive, peer, id, into, options);
            (recv, engine.post_in_call(CallPart::Request, peer, id, message, into_slot))
        });
        let (recv, send) = (self.endpoint.operation(recv), self.endpoint.operation(send));
        let refusal = send.refusal();
        let mut in_flight = InFlight { peer: self.clone(), id, send, recv, data, exposure };
        if let Some(error) = refusal {
            // The server knows of no memory.
            in_flight.exposure = None;
            return Err(error);
        }
        Ok(Call { in_flight, options, packed, buffer, narrow, direction, moved: 0, choice })
    }

    fn choose(&self, direction: Direction, request: &[u8], data: &MemList, forced: Option<Path>) -> Choice {
        let front = CALL_HEAD + request.len();
        self.endpoint.look(|engine| {
            // One piece more than the user's goes with a message.
            let too_many = data.pieces().len() >= engine.config().tuning.max_pieces;
            let forced = match () {
                // Without data there is nothing to describe.
                () if data.is_empty() => Some(Path::Inline),
                () if too_many => Some(Path::ServerBased),
                () => forced,
            };
            engine.choose_path(self.id(), direction, front, data, forced)
        })
    }

    /// Exposes the data to the server, if the path needs it.
    fn expose_for_call(
        &self,
        direction: Option<Direction>,
        way: Way,
        choice: Option<Choice>,
        data: Option<&MemList>,
    ) -> Result<Option<Exposure>, Error> {
        let (Some(direction), Some(data), Some(choice)) = (direction, data, choice) else { return Ok(None) };
        let ahead = choice.path == Path::FastRdma && direction == Direction::Read && data.pieces().len() <= FEW_PIECES;
        let exposed = match way {
            Way::ServerBased => true,
            Way::Message => ahead && self.endpoint.look(|engine| engine.is_registered_or_free(data)),
            Way::None | Way::ClientBased => false,
        };
        let access = if direction == Direction::Write { Access::READ } else { Access::WRITE };
        exposed.then(|| self.endpoint.with(|engine| engine.expose(self.id(), data.clone(), access))).transpose()
    }
}

/// Returns the length of a reply's message, with `bytes` bytes after its header, or with data after
/// the head.
fn whole(carried: u64, bytes: usize) -> Option<u64> {
    match carried {
        0 => Some((REPLY_HEADER + bytes) as u64),
        _ => carried.checked_add(REPLY_HEAD as u64),
    }
}

fn wire_len(len: usize) -> Result<u32, Error> {
    u32::try_from(len).map_err(|_| Error::new(ErrorKind::TooLarge, format!("a request of {len} bytes")))
}

impl<S: Threading> Call<S> {
    /// Returns the chosen path.
    pub fn choice(&self) -> Option<Choice> {
        self.choice
    }

    /// Waits for the reply. Meanwhile moves data as the server grants it.
    ///
    /// # Errors
    /// `PeerLost`, `TimedOut`, `Protocol` for an invalid reply, or `Abandoned` if the server gave
    /// the request up.
    pub async fn reply(mut self) -> Result<Reply, Error> {
        let mut pushes = VecDeque::new();
        (&mut self.in_flight.send).await?;
        loop {
            let len = (&mut self.in_flight.recv).await?.len;
            let mut wire = [0; REPLY_HEADER];
            if len < REPLY_HEADER as u64 {
                return Err(bad_reply("without a header"));
            }
            self.buffer.copy_to(0, &mut wire);
            let header = ReplyHeader::decode(&wire)?;
            match header.kind {
                ReplyKind::Reply => {
                    let reply = self.take(header, len)?;
                    // The server has seen the end of the pushes, so they are complete or about to
                    // be.
                    for push in pushes {
                        push.await?;
                    }
                    if let Some(packed) = self.packed {
                        self.in_flight.peer.unpack(packed, reply.data);
                    }
                    self.in_flight.peer.endpoint.call_buffers().keep_reply(self.buffer);
                    return Ok(reply);
                }
                ReplyKind::Continued => return self.continued(header, len).await,
                ReplyKind::Grant => {
                    let full = pushes.len() == AT_ONCE && !mutated("call/an-operation-for-each-grant");
                    if let Some(oldest) = if full { pushes.pop_front() } else { None } {
                        oldest.await?;
                    }
                    pushes.push_back(self.granted(header, len)?);
                }
                ReplyKind::Offer => self.offered(header, len).await?,
                ReplyKind::Unanswered => return Err(self.unanswered()),
            }
        }
    }

    /// Decodes the reply.
    fn take(&self, header: ReplyHeader, len: u64) -> Result<Reply, Error> {
        let bytes = header.bytes as usize;
        let (room, carried) = match self.narrow {
            true => (REPLY_HEAD - REPLY_HEADER, header.at),
            false => (self.buffer.len() - REPLY_HEADER, 0),
        };
        if bytes > room || whole(carried, bytes) != Some(len) {
            return Err(bad_reply("that contradicts its length"));
        }
        let asked = self
            .in_flight
            .data
            .as_ref()
            .filter(|_| self.direction == Some(Direction::Read))
            .map_or(0, |data| data.len() as u64);
        if header.at > asked {
            return Err(bad_reply("with more data than was asked for"));
        }
        let mut reply = vec![0; bytes];
        self.buffer.slice(REPLY_HEADER, bytes).copy_to(&mut reply);
        Ok(Reply { bytes: reply.into(), data: header.at, choice: self.choice })
    }

    /// Returns the error of a call that the server gave up.
    fn unanswered(&self) -> Error {
        let error = Error::new(ErrorKind::Abandoned, "the server gave the request up without a reply").during("call");
        match self.in_flight.peer.addr() {
            Some(addr) => error.with_peer(addr),
            None => error,
        }
    }

    /// Receives the reply's bytes, which did not fit the head and come in a message of their own.
    async fn continued(self, header: ReplyHeader, len: u64) -> Result<Reply, Error> {
        let carried = header.at;
        if !self.narrow || whole(carried, 0) != Some(len) {
            return Err(bad_reply("that contradicts its length"));
        }
        let peer = &self.in_flight.peer;
        let limit = peer.limits().map_or(0, |limits| limits.eager);
        if header.bytes as usize > limit {
            return Err(bad_reply("longer than a message"));
        }
        let buffer = Memory::zeroed(header.bytes as usize)?;
        let done = peer.recv_in_call(self.in_flight.id, &buffer, self.options).await?;
        if done.len != u64::from(header.bytes) {
            return Err(bad_reply("that contradicts its length"));
        }
        Ok(Reply { bytes: buffer.into_bytes(), data: carried, choice: self.choice })
    }

    /// Returns the data of the call and the body of a grant or an offer. Posts the receive for the
    /// next message.
    fn part(&mut self, header: ReplyHeader, len: u64) -> Result<(MemList, Vec<u8>), Error> {
        let body = header.bytes as usize;
        if self.in_flight.exposure.is_some() || self.narrow || len != (REPLY_HEADER + body) as u64 {
            return Err(bad_reply("with a grant that nobody waits for"));
        }
        let mut bytes = vec![0; body];
        self.buffer.slice(REPLY_HEADER, body).copy_to(&mut bytes);
        self.in_flight.recv = self.in_flight.peer.recv_in_call(self.in_flight.id, &self.buffer, self.options);
        let data = self.in_flight.data.as_ref().ok_or_else(|| bad_reply("with a grant for a request without data"))?;
        Ok((data.clone(), bytes))
    }

    /// Writes into the memory that the server grants.
    fn granted(&mut self, header: ReplyHeader, len: u64) -> Result<Operation<S>, Error> {
        let (data, body) = self.part(header, len)?;
        let (token, wire) = body.split_first_chunk::<4>().ok_or_else(|| bad_reply("with a grant cut off"))?;
        let grant = Grant { descriptor: descriptor(wire, self.max_pieces())?, token: u32::from_le_bytes(*token) };
        let at = if mutated("call/grant-for-the-beginning") { 0 } else { header.at };
        let part = self.cut(&data, at, grant.descriptor.len())?;
        let options = self.options.class(ServiceClass::Bulk);
        let peer = &self.in_flight.peer;
        Ok(peer.post_for_call(|engine| engine.post_push_granted(peer.id(), &grant, part, options)))
    }

    /// Reads from the memory that the server offers, and reports when that is done.
    async fn offered(&mut self, header: ReplyHeader, len: u64) -> Result<(), Error> {
        let (data, body) = self.part(header, len)?;
        let offer = descriptor(&body, self.max_pieces())?;
        let part = self.cut(&data, header.at, offer.len())?;
        let (peer, options) = (&self.in_flight.peer, self.options.class(ServiceClass::Bulk));
        peer.post_for_call(|engine| engine.post_pull(peer.id(), &offer, 0, part, options)).await?;
        peer.send_in_call(self.in_flight.id, Memory::from(Vec::new()), self.options).await?;
        Ok(())
    }

    /// Returns the `len` bytes of the data from `at` on, if they exist. Without the check of the
    /// total, a server that moves more bytes than there are could continue without end.
    fn cut(&mut self, data: &MemList, at: u64, len: u64) -> Result<MemList, Error> {
        let whole = data.len() as u64;
        let end = at.checked_add(len).filter(|end| len > 0 && *end <= whole);
        end.ok_or_else(|| bad_reply("with a grant beyond the data"))?;
        self.moved += len;
        if self.moved > whole {
            return Err(bad_reply("with grants for more than the data"));
        }
        let (at, len) = (usize::try_from(at).expect("within memory"), usize::try_from(len).expect("within memory"));
        Ok(data.range(at, len).collect())
    }

    fn max_pieces(&self) -> usize {
        self.in_flight.peer.endpoint.look(|engine| engine.config().tuning.max_pieces)
    }
}
