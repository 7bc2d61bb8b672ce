//! The simulator's errors and their mapping to the library's errors; the reasons why a world
//! stalls.

use bmi_core::{Error, ErrorKind, Time};

/// The reason why a connection ended or a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum SimError {
    #[error("{0} is not an address of the simulator on this node; use sim://{1}:port")]
    WrongAddress(String, String),
    #[error("{0} is in use")]
    AddressInUse(String),
    #[error("no port of the node is free")]
    NoPort,
    #[error("the node has been killed")]
    NodeKilled,
    #[error("there is no node {0:?} in this world")]
    UnknownNode(String),
    #[error("nobody listens at {0}")]
    NobodyListens(String),
    #[error("node {0:?} is down")]
    NodeDown(String),
    #[error("the peer did not answer in time")]
    HandshakeTimeout,
    #[error("this side closed the connection")]
    ClosedHere,
    #[error("the peer closed the connection")]
    ClosedByPeer,
    #[error("the peer no longer answers")]
    PeerSilent,
    #[error("the connection was cut")]
    Cut,
    #[error("a packet was sent again and again and never acknowledged")]
    RetriesExceeded,
    #[error("a message from the peer failed its check")]
    Damaged,
    #[error("the peer found a message damaged and ended the connection")]
    PeerFoundDamage,
    #[error("the completion queue overran")]
    Overrun,
    #[error("the connection request is no longer there")]
    RequestGone,
    #[error("no such connection")]
    NoConnection,
    #[error("the peer reached for memory that was not exposed to it: {0}")]
    PeerViolation(&'static str),
    #[error("the peer refused an access to its memory")]
    AccessRefused,
    #[error("the peer sent a message for which no receive was posted")]
    NoReceive,
    #[error("no receive was ready in time for a message from the peer")]
    Struck,
    #[error("the peer had no receive posted")]
    PeerNotReady,
    #[error("the peer sent {0} bytes into a receive of {1}")]
    MessageTooLong(u64, u64),
    #[error("the message was longer than the peer's receive")]
    PeerReceiveShort,
    #[error("all {0} registrations of the adapter are in use (max_registrations)")]
    TooManyRegistrations(usize),
    #[error("the segment belongs to another transport")]
    ForeignSegment,
    #[error("the disk is full")]
    DiskFull,
    #[error("the disk failed")]
    DiskFailed,
}

impl SimError {
    fn kind(&self) -> ErrorKind {
        match self {
            SimError::WrongAddress(..) | SimError::AddressInUse(_) | SimError::ForeignSegment => ErrorKind::Invalid,
            SimError::NoPort | SimError::TooManyRegistrations(_) | SimError::DiskFull => ErrorKind::Exhausted,
            SimError::NodeKilled | SimError::DiskFailed => ErrorKind::Io,
            SimError::UnknownNode(_) | SimError::NobodyListens(_) | SimError::NodeDown(_) => ErrorKind::Refused,
            SimError::HandshakeTimeout => ErrorKind::TimedOut,
            SimError::ClosedHere => ErrorKind::Cancelled,
            SimError::PeerViolation(_) | SimError::NoReceive | SimError::MessageTooLong(..) => ErrorKind::Protocol,
            SimError::ClosedByPeer
            | SimError::PeerSilent
            | SimError::Cut
            | SimError::RetriesExceeded
            | SimError::Damaged
            | SimError::PeerFoundDamage
            | SimError::Overrun
            | SimError::Struck
            | SimError::RequestGone
            | SimError::NoConnection
            | SimError::AccessRefused
            | SimError::PeerNotReady
            | SimError::PeerReceiveShort => ErrorKind::PeerLost,
        }
    }
}

impl From<SimError> for Error {
    fn from(error: SimError) -> Error {
        Error::new(error.kind(), error.to_string())
    }
}

/// Why a world cannot go on although the future it runs is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StallKind {
    /// No event is left: all tasks wait for each other.
    #[error("deadlock: no event is left and the future is not ready")]
    Deadlock,
    /// Tasks wake each other without end, and no time passes.
    #[error("livelock: tasks run for ever and no time passes")]
    Livelock,
    /// [`SimConfig::time_limit`](crate::SimConfig::time_limit) has been reached.
    #[error("the time limit of the world is over")]
    TimeLimit,
    /// More than [`SimConfig::event_limit`](crate::SimConfig::event_limit) events have happened.
    #[error("more events than the world may have")]
    EventLimit,
}

/// The error of a world that cannot go on, with the list of what was waiting in it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kind} at {now}\n{pending}")]
pub struct Stalled {
    /// The reason.
    pub kind: StallKind,
    /// The virtual time of the stall.
    pub now: Time,
    /// The waiting nodes, tasks and connections, one per line.
    pub pending: String,
}
