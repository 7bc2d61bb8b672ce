//! Operations of the message interface: their ids, their options and their results.

use std::fmt;
use std::time::Duration;

use crate::comm::Path;
use crate::error::ErrorKind;
use crate::lists::Lists;
use crate::proto::table::Key;
use crate::time::Time;
use crate::transport::ServiceClass;

/// Matches a send with a receive of the same peer. A program may use the tags up to
/// [`MAX_TAG`](crate::MAX_TAG). Larger ones are the ids of calls ([`crate::comm`]), which the
/// endpoint draws.
pub type Tag = u64;

/// Identifies a posted operation. It has a slot and a generation, so that a stale id is detected
/// and never reaches another operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub(crate) Key);

impl OpId {
    /// The id of an operation that completed when it was posted. It names no operation.
    pub(crate) const NONE: OpId = OpId(Key { slot: u32::MAX, generation: 0 });
}

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op{}.{}", self.0.slot, self.0.generation)
    }
}

/// Identifies a peer of one endpoint. A stale id is detected, as for an [`OpId`].
///
/// The upper 8 bits of the slot are the number of the endpoint
/// ([`Engine::numbered`](crate::Engine::numbered)), 0 for an endpoint by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub(crate) Key);

impl PeerId {
    /// The place of the endpoint's number in a slot.
    pub(crate) const ENDPOINT_SHIFT: u32 = 24;

    /// Makes the id of the peer at `key`. `origin` is the endpoint's number, in its place.
    #[inline]
    pub(crate) fn new(key: Key, origin: u32) -> PeerId {
        debug_assert!(key.slot < 1 << PeerId::ENDPOINT_SHIFT, "slot {}", key.slot);
        PeerId(Key { slot: key.slot | origin, ..key })
    }

    /// Returns the key in the endpoint with this number. The key of another endpoint's peer is
    /// beyond any table.
    #[inline]
    pub(crate) fn in_endpoint(self, origin: u32) -> Key {
        Key { slot: self.0.slot ^ origin, ..self.0 }
    }

    /// Returns the number of the endpoint that the peer belongs to.
    #[inline]
    pub fn endpoint(self) -> u8 {
        (self.0.slot >> PeerId::ENDPOINT_SHIFT) as u8
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer{}.{}", self.0.slot, self.0.generation)
    }
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Sends an expected message.
    Send,
    /// Sends an unexpected message.
    SendUnexpected,
    /// Receives an expected message.
    Recv,
    /// Drops an expected message.
    Discard,
    /// Reads from memory that the peer exposed (bulk).
    Pull,
    /// Writes to memory that the peer exposed (bulk).
    Push,
    /// Allows the peer to write a local buffer once.
    Grant,
    /// Sets up a connection.
    Connect,
    /// Ends a connection.
    Disconnect,
    /// Waits for a point in time.
    Timer,
    /// Asks the peer's endpoint for an answer, to measure the path to it.
    Probe,
}

impl OpKind {
    /// Returns the operation's name, as used in errors.
    pub const fn as_str(self) -> &'static str {
        match self {
            OpKind::Send => "send",
            OpKind::SendUnexpected => "send unexpected",
            OpKind::Recv => "receive",
            OpKind::Discard => "discard",
            OpKind::Pull => "pull",
            OpKind::Push => "push",
            OpKind::Grant => "grant",
            OpKind::Connect => "connect",
            OpKind::Disconnect => "disconnect",
            OpKind::Timer => "timer",
            OpKind::Probe => "probe",
        }
    }
}

/// How an operation is carried out. `Options::default()` has no deadline and class `Message`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// When the operation must have ended. At the deadline it is cancelled. It then ends with
    /// `TimedOut`, at most [`Config::fence_grace`](crate::Config::fence_grace) later.
    /// If the peer has not released its memory by then, the connection is cut, and the other
    /// operations of the peer end with `PeerLost`.
    pub deadline: Option<Time>,
    /// Service class of the operation's traffic on the wire.
    pub class: ServiceClass,
    /// How its list of memory is moved. `Auto` uses [`Config::lists`](crate::Config::lists).
    pub lists: Lists,
    /// Returned in the completion. This is BMI's user pointer.
    pub user: u64,
    /// For a send: uses a fast-RDMA slot of the peer if one is free, even if the message fits an
    /// eager message.
    pub slot: bool,
    /// For a call: the path of its data, if that path is available. `None` leaves the choice to the
    /// policy.
    pub path: Option<Path>,
}

impl Options {
    /// Returns options with this deadline.
    pub fn by(deadline: Time) -> Options {
        Options { deadline: Some(deadline), ..Options::default() }
    }

    /// Returns options with a deadline `timeout` after `now`.
    pub fn within(now: Time, timeout: Duration) -> Options {
        Options::by(now + timeout)
    }

    /// Sets the user word.
    #[must_use]
    pub fn user(self, user: u64) -> Options {
        Options { user, ..self }
    }

    /// Sets how the list is moved.
    #[must_use]
    pub fn lists(self, lists: Lists) -> Options {
        Options { lists, ..self }
    }

    /// Sets the path of a call's data.
    #[must_use]
    pub fn path(self, path: impl Into<Option<Path>>) -> Options {
        Options { path: path.into(), ..self }
    }

    /// Sets the service class.
    #[must_use]
    pub fn class(self, class: ServiceClass) -> Options {
        Options { class, ..self }
    }
}

/// The result of an operation, small and cheap to copy. [`crate::Engine::explain`] turns a
/// failure into a [`crate::Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The operation. Its id is free again.
    pub op: OpId,
    /// The kind of the operation.
    pub kind: OpKind,
    /// The peer; `None` for a timer.
    pub peer: Option<PeerId>,
    /// The message's tag; 0 if there is none.
    pub tag: Tag,
    /// Bytes transferred. For a receive this is the message's length, which may be less than the
    /// receive's.
    pub len: u64,
    /// `Ok(())`, or the kind of failure.
    pub status: Result<(), ErrorKind>,
    /// The word from [`Options::user`].
    pub user: u64,
}

/// The result of posting an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// Completed immediately. There is no operation to wait for.
    Done(Completion),
    /// Still running.
    Pending(OpId),
}

impl From<OpId> for Posted {
    fn from(op: OpId) -> Posted {
        Posted::Pending(op)
    }
}

impl Posted {
    /// Returns the running operation, if any.
    pub fn pending(self) -> Option<OpId> {
        match self {
            Posted::Done(_) => None,
            Posted::Pending(op) => Some(op),
        }
    }
}
