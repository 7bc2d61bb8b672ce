//! Why a connection ended, in this backend's words, mapped once to [`bmi_core::Error`].

use std::io;

use bmi_core::transport::{WorkKind, WorkStatus};
use bmi_core::{Addr, Error, ErrorKind};
use thiserror::Error as ThisError;

use crate::packet::VERSION;

/// What this side tells a peer that it cuts off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: WorkStatus,
    pub(crate) work: Option<WorkKind>,
    pub(crate) id: u32,
}

/// What a peer did that costs it the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub(crate) enum Violation {
    #[error("its first packet is not one of this protocol")]
    Magic,
    #[error("it speaks version {theirs} of the protocol, this side version {VERSION}")]
    Version { theirs: u16 },
    #[error("it sent a malformed packet")]
    Packet,
    #[error("it sent a packet that is not allowed at this point")]
    Order,
    #[error("{0}")]
    Memory(&'static str),
    #[error("its ring holds what no sender writes")]
    Ring,
    #[error("it sent a malformed record")]
    Record,
    #[error("it has more reads outstanding than the limit")]
    TooManyReads,
    #[error("its {0:?} names memory that it may not reach")]
    Access(WorkKind, u32),
    #[error("it sent a message and no receive was posted")]
    NotReady(WorkKind),
    #[error("it sent a message that is longer than the receive")]
    TooLong,
}

impl Violation {
    /// What the violator is told.
    pub(crate) fn refusal(self) -> Refusal {
        let (status, work, id) = match self {
            Violation::Access(work, id) => (WorkStatus::RemoteAccess, Some(work), id),
            Violation::NotReady(work) => (WorkStatus::ReceiverNotReady, Some(work), 0),
            Violation::TooLong => (WorkStatus::TooLong, Some(WorkKind::Send), 0),
            _ => (WorkStatus::Failed, None, 0),
        };
        Refusal { status, work, id }
    }
}

/// Why a connection ends.
#[derive(Debug, ThisError)]
pub(crate) enum Fault {
    #[error("the peer was cut off: {0}")]
    Violation(#[from] Violation),
    #[error("the peer cut the connection: {}", describe(.0))]
    Refused(Refusal),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer is gone")]
    Eof,
    #[error("the socket failed")]
    Socket(#[source] io::Error),
    #[error("nobody listens")]
    Unreachable(#[source] io::Error),
    #[error("the peer runs under user {0}, which ShmConfig::allowed_users does not name")]
    User(u32),
    #[error("no memory for the connection")]
    Memory(#[source] io::Error),
    #[error("the connection was not there by the deadline")]
    ConnectTimeout,
    #[error("memory was revoked while the peer was reaching it")]
    Revoked,
    #[error("disconnected by this side")]
    Cancelled,
}

fn describe(refusal: &Refusal) -> &'static str {
    match refusal.status {
        WorkStatus::RemoteAccess => "remote access refused (key, bounds, rights)",
        WorkStatus::ReceiverNotReady => "it had no receive posted",
        WorkStatus::TooLong => "a message was longer than its receive",
        _ => "it takes what this side wrote for a breach of the protocol",
    }
}

impl Fault {
    /// The public error, with the peer's name.
    pub(crate) fn into_error(self, peer: &Addr) -> Error {
        let kind = match &self {
            Fault::Violation(Violation::Version { .. }) => ErrorKind::Incompatible,
            Fault::Violation(_) => ErrorKind::Protocol,
            Fault::Refused(_) | Fault::Closed | Fault::Eof => ErrorKind::PeerLost,
            Fault::Socket(error) => match Error::from(io::Error::from(error.kind())).kind() {
                ErrorKind::Refused => ErrorKind::PeerLost,
                kind => kind,
            },
            Fault::User(_) | Fault::Unreachable(_) => ErrorKind::Refused,
            Fault::Memory(_) => ErrorKind::Exhausted,
            Fault::ConnectTimeout => ErrorKind::TimedOut,
            Fault::Revoked | Fault::Cancelled => ErrorKind::Cancelled,
        };
        let error = Error::new(kind, self.to_string()).with_peer(peer);
        match self {
            Fault::Socket(source) | Fault::Unreachable(source) | Fault::Memory(source) => error.caused_by(source),
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_map_to_what_a_caller_can_do() {
        let peer = Addr::shm("/run/bmi/iod-0");
        let kind = |fault: Fault| fault.into_error(&peer).kind();
        assert_eq!(kind(Violation::Record.into()), ErrorKind::Protocol);
        assert_eq!(kind(Violation::Version { theirs: 2 }.into()), ErrorKind::Incompatible);
        assert_eq!(kind(Fault::Socket(io::ErrorKind::ConnectionReset.into())), ErrorKind::PeerLost);
        assert_eq!(kind(Fault::Unreachable(io::ErrorKind::NotFound.into())), ErrorKind::Refused);
        assert_eq!(kind(Fault::User(7)), ErrorKind::Refused);
        let error = Fault::Violation(Violation::TooLong).into_error(&peer);
        assert!(error.to_string().contains("/run/bmi/iod-0"), "{error}");
    }
}
