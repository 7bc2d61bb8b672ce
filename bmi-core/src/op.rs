//! Operations of the message interface: their names, their options, and what became of them.

use std::fmt;
use std::time::Duration;

use crate::error::ErrorKind;
use crate::lists::Lists;
use crate::proto::table::Key;
use crate::time::Time;
use crate::transport::ServiceClass;

/// Matches a send with a receive of the same peer.
pub type Tag = u64;

/// Names a posted operation: a slot and a generation, so that a stale id is noticed and never
/// reaches another operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub(crate) Key);

impl OpId {
    /// Of what was over when it was posted: it names no operation.
    pub(crate) const NONE: OpId = OpId(Key { slot: u32::MAX, generation: 0 });
}

impl fmt::Debug for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op{}.{}", self.0.slot, self.0.generation)
    }
}

/// Names a peer of one endpoint, checked like an [`OpId`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub(crate) Key);

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "peer{}.{}", self.0.slot, self.0.generation)
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Sends an expected message.
    Send,
    /// Sends an unexpected message.
    SendUnexpected,
    /// Receives an expected message.
    Recv,
    /// Reads from memory that the peer exposed (bulk).
    Pull,
    /// Writes to memory that the peer exposed (bulk).
    Push,
    /// Lets the peer write into memory of ours, once.
    Grant,
    /// Sets up a connection.
    Connect,
    /// Ends a connection.
    Disconnect,
    /// Waits for a point in time.
    Timer,
    /// Asks the peer's endpoint for an answer, to measure the way there.
    Probe,
}

impl OpKind {
    /// The operation's name, as errors give it.
    pub const fn as_str(self) -> &'static str {
        match self {
            OpKind::Send => "send",
            OpKind::SendUnexpected => "send unexpected",
            OpKind::Recv => "receive",
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

/// How an operation is to be carried out. `Options::default()` has no deadline and class `Message`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// When the operation must have ended. At the deadline it is cancelled; it ends `TimedOut`, at
    /// the latest [`Config::fence_grace`](crate::Config::fence_grace) later.
    pub deadline: Option<Time>,
    /// Service class of what goes over the wire for it.
    pub class: ServiceClass,
    /// How its list of memory is moved; `Auto` leaves it to
    /// [`Config::lists`](crate::Config::lists).
    pub lists: Lists,
    /// Handed back in the completion: BMI's user pointer.
    pub user: u64,
    /// Of a send: goes into a fast-RDMA slot of the peer, if one is free, though an eager message
    /// has room for it.
    pub slot: bool,
}

impl Options {
    /// Ends at `deadline` at the latest.
    pub fn by(deadline: Time) -> Options {
        Options { deadline: Some(deadline), ..Options::default() }
    }

    /// Ends `timeout` after `now` at the latest.
    pub fn within(now: Time, timeout: Duration) -> Options {
        Options::by(now + timeout)
    }

    /// With this user word.
    #[must_use]
    pub fn user(self, user: u64) -> Options {
        Options { user, ..self }
    }

    /// With its list moved this way.
    #[must_use]
    pub fn lists(self, lists: Lists) -> Options {
        Options { lists, ..self }
    }

    /// With this service class.
    #[must_use]
    pub fn class(self, class: ServiceClass) -> Options {
        Options { class, ..self }
    }
}

/// What became of an operation: small, and cheap to hand around. [`crate::Endpoint::explain`] makes
/// an [`crate::Error`] of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The operation; its id is free again.
    pub op: OpId,
    /// What it did.
    pub kind: OpKind,
    /// The peer; `None` for a timer.
    pub peer: Option<PeerId>,
    /// The message's tag; 0 where there is none.
    pub tag: Tag,
    /// Bytes transferred. For a receive the message's length, which may be less than the receive's.
    pub len: u64,
    /// `Ok(())`, or the kind of failure.
    pub status: Result<(), ErrorKind>,
    /// The word from [`Options::user`].
    pub user: u64,
}

/// How a post ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// At once: there is no operation to wait for.
    Done(Completion),
    /// Under way.
    Pending(OpId),
}

impl Posted {
    /// The operation under way, if any.
    pub fn pending(self) -> Option<OpId> {
        match self {
            Posted::Done(_) => None,
            Posted::Pending(op) => Some(op),
        }
    }
}
