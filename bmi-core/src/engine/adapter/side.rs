//! The adapter side of an endpoint: the transport, which is the adapter, all memory that is
//! registered with it, and the turns of those that want to use it.
//!
//! **Rule.** What concerns a peer takes the peer. Nothing here looks up a peer or an operation, and
//! nothing here knows the queue of a peer. So the rest of the endpoint hands down what it has
//! looked up once, and an adapter can be understood without the protocol.
//!
//! **Refusals.** A post that the transport refuses because a queue is full puts its peer on the
//! list of blocked peers. The poll that finds room (C15 of [`crate::transport`]) gives them a turn.

use std::time::Duration;

use super::short_paths::ShortPaths;
use super::work::Work;
use crate::config::Config;
use crate::engine::books::{Content, Counters, Link, Notice, Op, Parked, Peer, Repost, SlotUse, Turns};
use crate::engine::buffers::{Bounce, FallbackBuffers, Limits, Packing, PinCache, Staging};
use crate::error::{Error, ErrorKind};
use crate::log_limit::LogLimit;
use crate::mem::{MemList, OneOrMany, RemoteSlice, Segment};
use crate::op::{PeerId, Tag};
use crate::time::Time;
use crate::timeline::Recorder;
use crate::transport::capability::{Capabilities, Registration};
use crate::transport::{AnyTransport, HostWork, Payload, PostError, ServiceClass, WorkOptions};
use crate::wire::header::{HEADER_LEN, Header, Kind};
use crate::wire::hello::CONTROL_CREDITS;
use crate::wire::{Violation, credit};

/// How long the registration of memory that the program has dropped may wait to be released with
/// others. So there are at most a hundred batches a second.
const PIN_LINGER: Duration = Duration::from_millis(10);
/// Most pieces that the head of a work request describes.
const PIECES_IN_HEAD: usize = 8;

/// The adapter side of an endpoint.
pub(in crate::engine) struct AdapterSide {
    // The first field, so that it is dropped first. After that no adapter accesses memory of the
    // fields below.
    pub(in crate::engine) transport: AnyTransport,
    pub(in crate::engine) config: Config,
    /// The time of the last poll.
    pub(in crate::engine) now: Time,
    /// [`Capabilities::max_inline`], stored because each message needs it.
    pub(in crate::engine) max_inline: usize,
    /// [`Capabilities::rdma_read`], stored because each immediate pull needs it.
    pub(in crate::engine) rdma_read: bool,
    pub(in crate::engine) short_paths: ShortPaths,
    pub(in crate::engine) registry: PinCache,
    pub(in crate::engine) bounce: Bounce,
    pub(in crate::engine) staging: Staging,
    /// The packing buffers for small pieces of transfers.
    pub(in crate::engine) packing: Packing,
    /// The buffers that are used when memory cannot be registered.
    pub(in crate::engine) fallback_buffers: FallbackBuffers,
    /// The turns of the peers that have bytes to move.
    pub(in crate::engine) turns: Turns,
    /// Number of work requests of operations with the transport.
    pub(in crate::engine) work: usize,
    /// Number of messages posted.
    pub(in crate::engine) transmitted: u64,
    /// Peers whose queue was full. They get a turn when the transport has made progress.
    pub(in crate::engine) blocked: Vec<PeerId>,
    pub(in crate::engine) counters: Counters,
    pub(in crate::engine) log: LogLimit,
    pub(in crate::engine) recorder: Recorder,
    /// The segments of the request that is being made, kept for their capacity.
    pub(in crate::engine) segments: Vec<Segment>,
}

/// The header of a message, without the credits that it will return.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Message {
    pub(in crate::engine) kind: Kind,
    pub(in crate::engine) tag: Tag,
    pub(in crate::engine) len: u64,
    pub(in crate::engine) op: u64,
}

/// The result of an attempt to send a message.
pub(in crate::engine) enum Attempt {
    /// The message was sent, and its memory is free again.
    Sent,
    /// The adapter has the message until it reports its completion.
    Posted,
    /// The message was announced to the peer.
    Announced(OneOrMany<RemoteSlice>),
    /// There was no credit, no slot, no buffer, or a full queue. The message is tried again.
    Blocked,
    /// The message cannot be sent.
    Failed(ErrorKind),
}

/// Options of a message whose success is not reported.
pub(in crate::engine) const fn unsignalled(class: ServiceClass) -> WorkOptions {
    WorkOptions { signalled: false, class }
}

impl AdapterSide {
    /// Creates the adapter side over `transport`, and registers the memory that it always needs.
    ///
    /// # Errors
    /// As [`Engine::new`](crate::engine::Engine::new).
    pub(in crate::engine) fn new(mut transport: AnyTransport, config: Config, now: Time) -> Result<AdapterSide, Error> {
        check(&config, transport.capabilities())?;
        let pins = pin_limits(&config, transport.capabilities());
        let bounce = Bounce::new(&mut *transport, config.credits.eager_limit)?;
        let fallback_buffers = FallbackBuffers::new(&mut *transport, &config)?;
        let staging = Staging::new(config.credits.fast_slot_bytes);
        let packing = Packing::new(&mut *transport, config.tuning.transfer_unit)?;
        let Capabilities { max_inline, rdma_read, .. } = *transport.capabilities();
        let short_paths = ShortPaths::new(max_inline, config.tuning.max_pieces);
        Ok(AdapterSide {
            transport,
            config,
            now,
            max_inline,
            rdma_read,
            short_paths,
            registry: PinCache::new(pins),
            bounce,
            staging,
            packing,
            fallback_buffers,
            turns: Turns::default(),
            work: 0,
            transmitted: 0,
            blocked: Vec::new(),
            counters: Counters::default(),
            log: LogLimit::default(),
            recorder: Recorder::default(),
            segments: Vec::new(),
        })
    }

    /// Returns true if registering memory costs nothing.
    pub(in crate::engine) fn registration_is_free(&self) -> bool {
        self.transport.capabilities().registration == Registration::Free
    }

    /// Returns true if moving a list needs no registration that costs time.
    pub(in crate::engine) fn is_registered_or_free(&self, list: &MemList) -> bool {
        self.registration_is_free() || list.pieces().iter().all(|piece| self.registry.is_registered(piece.memory()))
    }

    /// Returns the length of the longest payload of an eager message to a peer.
    #[inline]
    pub(in crate::engine) fn eager_limit(&self, peer: &Peer) -> usize {
        peer.limits.eager.min(self.config.credits.eager_limit)
    }

    /// Returns how many pieces of a list a message to the peer can describe.
    pub(in crate::engine) fn describable_pieces(&self, peer: &Peer) -> usize {
        (self.eager_limit(peer) / RemoteSlice::WIRE_LEN).min(peer.limits.pieces)
    }

    /// Checks a list against the settings.
    #[inline]
    pub(in crate::engine) fn check_list(&self, peer: &Peer, list: &MemList) -> Result<(), Error> {
        if list.pieces().len() <= self.config.tuning.max_pieces {
            Ok(())
        } else {
            Err(self.too_many_pieces(peer, list))
        }
    }

    /// As [`AdapterSide::check_list`], for a list that is written to.
    #[inline]
    pub(in crate::engine) fn check_target(&self, peer: &Peer, list: &MemList) -> Result<(), Error> {
        self.check_list(peer, list)?;
        if list.is_read_only() { Err(read_only()) } else { Ok(()) }
    }

    #[cold]
    fn too_many_pieces(&self, peer: &Peer, list: &MemList) -> Error {
        let (pieces, limit) = (list.pieces().len(), self.config.tuning.max_pieces);
        let text = format!("a list of {pieces} pieces; at most {limit} are allowed (Config::max_pieces sets it)");
        Error::new(ErrorKind::Invalid, text).with_peer(&peer.addr)
    }

    /// Returns how many answers may wait for a peer ([`Peer::answer`]).
    pub(in crate::engine) fn most_answers(&self) -> usize {
        let credits = &self.config.credits;
        (credits.bytes / credit::OVERHEAD + u32::from(credits.messages)) as usize
    }

    // ---- messages -------------------------------------------------------------------------------

    /// Posts a message. Its header returns the credits that wait to go back. The caller has spent
    /// the credits of the message.
    pub(in crate::engine) fn transmit(
        &mut self,
        peer: &mut Peer,
        message: Message,
        more_head: &[u8],
        payload: Payload<'_>,
        work: Work,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let returned = peer.account.return_to_peer();
        let Message { kind, tag, len, op } = message;
        let header = Header { kind, returned, tag, len, op }.encode();
        let posted = if more_head.is_empty() {
            self.transport.post_send(peer.conn, work.to_id(), &header, payload, options)
        } else {
            let mut head = [0; HEADER_LEN + PIECES_IN_HEAD * RemoteSlice::WIRE_LEN];
            head[..HEADER_LEN].copy_from_slice(&header);
            head[HEADER_LEN..][..more_head.len()].copy_from_slice(more_head);
            self.transport.post_send(peer.conn, work.to_id(), &head[..HEADER_LEN + more_head.len()], payload, options)
        };
        match posted {
            Ok(()) => (self.transmitted, peer.used) = (self.transmitted + 1, self.now),
            Err(_) => peer.account.unreturn(returned),
        }
        posted
    }

    /// Posts a message without a payload.
    pub(in crate::engine) fn transmit_control(&mut self, peer: &mut Peer, message: Message) -> Result<(), PostError> {
        self.transmit(peer, message, &[], Payload::EMPTY, Work::Silent, unsignalled(ServiceClass::Control))
    }

    /// Posts an announcement or a ClearToWrite. A few pieces fit into the head of the work request,
    /// many go into a bounce buffer.
    pub(in crate::engine) fn transmit_pieces(
        &mut self,
        peer: &mut Peer,
        message: Message,
        pieces: &[RemoteSlice],
    ) -> Result<(), PostError> {
        if pieces.len() <= pieces_in_head(self.transport.capabilities()).min(PIECES_IN_HEAD) {
            let mut table = [0; PIECES_IN_HEAD * RemoteSlice::WIRE_LEN];
            for (wire, piece) in table.chunks_exact_mut(RemoteSlice::WIRE_LEN).zip(pieces) {
                wire.copy_from_slice(&piece.to_wire());
            }
            let table = &table[..pieces.len() * RemoteSlice::WIRE_LEN];
            let options = unsignalled(ServiceClass::Message);
            return self.transmit(peer, message, table, Payload::EMPTY, Work::Silent, options);
        }
        let table: Vec<u8> = pieces.iter().flat_map(RemoteSlice::to_wire).collect();
        let Some((slot, segment)) = self.bounce.fill(&MemList::from(table)) else { return Err(PostError::QueueFull) };
        let posted =
            self.transmit(peer, message, &[], Payload::Gather(&[segment]), Work::Bounce(slot), WorkOptions::SIGNALLED);
        if posted.is_err() {
            self.bounce.free(slot);
        }
        posted
    }

    // ---- receives -------------------------------------------------------------------------------

    /// Posts a receive slot again. The credit goes back with the next header. A slot that the
    /// transport refuses waits for [`AdapterSide::repost_rest`].
    #[inline]
    pub(in crate::engine) fn repost(&mut self, peer: &mut Peer, slot: usize, repost: Repost) {
        if let Err(error) = self.post_slot(peer, slot, repost) {
            self.not_posted(peer, slot, repost, error);
        }
    }

    #[inline]
    fn post_slot(&mut self, peer: &mut Peer, slot: usize, repost: Repost) -> Result<(), PostError> {
        let work = Work::Slot(u32::try_from(slot).expect("few slots")).to_id();
        peer.slot_use = SlotUse::Used;
        self.transport.post_alike(peer.conn, work, peer.slots.segment(slot))?;
        match repost {
            Repost::First => {}
            Repost::Message => peer.account.reposted(),
            Repost::Control => peer.account.control_reposted(),
        }
        Ok(())
    }

    #[cold]
    fn not_posted(&mut self, peer: &mut Peer, slot: usize, repost: Repost, error: PostError) {
        match error {
            // The peer's turn posts it again, or cuts the connection.
            PostError::QueueFull | PostError::Invalid(_) => {
                peer.unposted.push((slot, repost));
                self.block(peer.id);
            }
            // The event that ends the connection is on its way.
            PostError::NotConnected => {}
        }
    }

    /// Drops a message that was parked: its space and its credits go back to the peer.
    pub(in crate::engine) fn drop_parked(
        &mut self,
        peer: &mut Peer,
        Parked { cost, content }: Parked,
    ) -> Result<(), Violation> {
        self.counters.discarded += 1;
        peer.account.unparked(cost);
        match content {
            Content::Slot(slot, _) => {
                peer.held -= 1;
                self.repost(peer, slot, Repost::Message);
            }
            Content::Copied(_) => {}
            Content::Fast(slot, _) => peer.account.slot_freed(slot),
            Content::Announced { op, .. } => peer.answer(self.most_answers(), Notice::Cancelled { op })?,
        }
        Ok(())
    }

    /// Posts the slots that the transport refused before.
    ///
    /// # Errors
    /// Returns the reason if the transport calls one of them invalid.
    pub(in crate::engine) fn repost_rest(&mut self, peer: &mut Peer) -> Result<(), &'static str> {
        for (slot, repost) in std::mem::take(&mut peer.unposted) {
            match self.post_slot(peer, slot, repost) {
                Ok(()) => {}
                Err(PostError::Invalid(why)) => return Err(why),
                Err(error) => self.not_posted(peer, slot, repost, error),
            }
        }
        Ok(())
    }

    /// Posts all receive slots of a new connection.
    pub(in crate::engine) fn post_all_slots(&mut self, peer: &mut Peer) {
        for slot in 0..peer.slots.count() {
            let work = Work::Slot(u32::try_from(slot).expect("few slots")).to_id();
            if let Err(error) = self.transport.post_alike(peer.conn, work, peer.slots.segment(slot)) {
                tracing::debug!(?error, slot, "a receive waits");
                peer.unposted.push((slot, Repost::First));
            }
        }
        self.block(peer.id);
    }

    // ---- memory that cannot be registered -------------------------------------------------------

    /// Copies the list of a write into an offered receive to a fallback buffer. Returns the segment
    /// to write.
    pub(in crate::engine) fn copy_to_fallback_buffer(&mut self, op: &mut Op, list: &MemList) -> Option<Segment> {
        let fallback = self.fallback_buffers.take(&mut self.transport, &mut self.registry, list.len(), 0)?;
        fallback.fill(list);
        self.transport.charge(HostWork::copy(list.len(), list));
        let segment = fallback.segment(list.len());
        op.fallback = Some(Box::new(fallback));
        Some(segment)
    }

    /// Counts a message that was copied to a fallback buffer.
    pub(in crate::engine) fn count_fallback_buffer(&mut self, op: &Op) {
        self.counters.bounced += u64::from(op.fallback.is_some());
    }

    /// Returns what becomes of a write that has neither registration nor fallback buffer.
    pub(in crate::engine) fn without_fallback_buffer(&mut self, peer: &Peer, len: usize, error: &Error) -> Attempt {
        if len > self.fallback_buffers.unit {
            return Attempt::Failed(error.kind());
        }
        // Fallback buffers come back when the adapter has made progress.
        self.block(peer.id);
        Attempt::Blocked
    }

    // ---- refusals and the end -------------------------------------------------------------------

    /// Marks a peer whose queue is full. It gets a turn when the transport has made progress.
    pub(in crate::engine) fn block(&mut self, peer: PeerId) {
        if !self.blocked.contains(&peer) {
            self.blocked.push(peer);
        }
    }

    /// Handles a message that the transport refused. Its credits were given back.
    pub(in crate::engine) fn refused(&mut self, peer: &Peer, error: PostError) -> Attempt {
        match error {
            PostError::QueueFull => self.block(peer.id),
            // The event that ends the connection is on its way.
            PostError::NotConnected => {}
            PostError::Invalid(why) => {
                tracing::error!(peer = ?peer.id, why, "the transport calls a message invalid");
                debug_assert!(false, "the transport calls a message invalid: {why}");
                return Attempt::Failed(ErrorKind::Unsupported);
            }
        }
        Attempt::Blocked
    }

    /// Ends a connection at once, without sending what is queued. Everything that still arrives is
    /// ignored.
    #[cold]
    pub(in crate::engine) fn cut(&mut self, peer: &mut Peer, reason: Error) {
        if peer.cut_reason.is_none() {
            if self.log.admits("connection cut", peer.addr.host(), self.now) {
                tracing::warn!(peer = %peer.addr, %reason, "connection cut");
            }
            peer.cut_reason = Some(reason);
        }
        if peer.is_up() {
            peer.link.enter(Link::Cut);
        }
        self.transport.disconnect(peer.conn, Time::ZERO);
    }

    /// Cuts off a peer that broke the protocol.
    #[cold]
    pub(in crate::engine) fn violated(&mut self, peer: &mut Peer, violation: &'static str) {
        self.counters.violations += 1;
        self.cut(peer, Error::new(ErrorKind::Protocol, format!("it sent {violation}")));
    }
}

/// The error for read-only memory that is to be written.
#[cold]
pub(crate) fn read_only() -> Error {
    Error::new(ErrorKind::Invalid, "the memory is read-only, because it was made of `Bytes`")
}

/// Checks the settings against each other and against the transport.
fn check(config: &Config, capabilities: &Capabilities) -> Result<(), Error> {
    config.validate()?;
    let receives = usize::from(config.credits.messages) + usize::from(CONTROL_CREDITS);
    let depth = capabilities.recv_queue_depth;
    if receives > depth {
        let text =
            format!("credit_messages asks for {receives} receives on a connection; the transport has room for {depth}");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let (head, longest) = (capabilities.max_head, HEADER_LEN + RemoteSlice::WIRE_LEN);
    if head < longest {
        let text = format!("the transport takes heads of {head} bytes; the protocol's are up to {longest}");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    Ok(())
}

/// Returns the bounds of the pin-down cache. If registration pins nothing, no registration waits to
/// be dropped.
fn pin_limits(config: &Config, capabilities: &Capabilities) -> Limits {
    let free = capabilities.registration == Registration::Free;
    let linger = if free { Duration::ZERO } else { PIN_LINGER };
    Limits { entries: config.tuning.pin_cache_entries, bytes: config.memory.pin_cache_bytes, linger }
}

/// Returns the number of pieces of a rendezvous that fit into the head of a work request.
fn pieces_in_head(capabilities: &Capabilities) -> usize {
    capabilities.max_head.saturating_sub(HEADER_LEN) / RemoteSlice::WIRE_LEN
}
