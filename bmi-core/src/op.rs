//! Operations of the message interface: their ids, their options and their results.

use std::time::Duration;

use crate::class::ServiceClass;
use crate::error::ErrorKind;
pub use crate::ids::{OpId, PeerId, Tag};
use crate::lists::Lists;
use crate::paths::Path;
use crate::time::Time;

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
