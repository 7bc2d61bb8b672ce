//! Why a connection ended, in this backend's terms, mapped to [`bmi_core::Error`] in one place.

use std::io;

use bmi_backend::{lost, unreached};
use bmi_core::{Addr, Error, ErrorKind};
use thiserror::Error as ThisError;

/// The reason that a peer gave for ending the connection, as encoded in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Bye {
    Closed = 0,
    RemoteAccess = 1,
    NotReady = 2,
    TooLong = 3,
    Protocol = 4,
    Exhausted = 5,
    Failed = 6,
}

impl Bye {
    pub(crate) fn from_wire(code: u8) -> Bye {
        match code {
            0 => Bye::Closed,
            1 => Bye::RemoteAccess,
            2 => Bye::NotReady,
            3 => Bye::TooLong,
            4 => Bye::Protocol,
            5 => Bye::Exhausted,
            _ => Bye::Failed,
        }
    }
}

/// A breach of the protocol by a peer; it ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub(crate) enum Violation {
    #[error("its first bytes are not those of this protocol")]
    Magic,
    #[error("it speaks version {theirs} of the side channel, this side version {ours}")]
    Version { theirs: u16, ours: u16 },
    #[error("its greeting is malformed")]
    Greeting,
    #[error("it sent something on the side channel that is not allowed at this point")]
    Order,
    #[error("it reached for memory that it may not reach")]
    Access,
    #[error("it sent a message and no receive was posted")]
    NotReady,
    #[error("it sent a message that is longer than the receive")]
    TooLong,
}

/// Why a connection ends.
#[derive(Debug, ThisError)]
pub(crate) enum Fault {
    #[error("the peer was cut off: {0}")]
    Violation(#[from] Violation),
    #[error("the peer cut the connection: {}", describe(*.0))]
    Refused(Bye),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer is gone")]
    Eof,
    #[error("the side channel failed")]
    Socket(#[source] io::Error),
    #[error("nobody answers")]
    Unreachable(#[source] io::Error),
    #[error("the name cannot be resolved")]
    Unresolved(#[source] io::Error),
    #[error("the name has no address")]
    NoAddress,
    #[error("the connection was not there by the deadline")]
    ConnectTimeout,
    #[error("it sent no greeting, and others needed the place")]
    MadeRoom,
    #[error("the peer refused the connection: it has no room")]
    Full,
    #[error("the queue pair failed, and the peer did not say why")]
    QueuePair,
    #[error("the peer's adapter does not answer")]
    NoAnswer,
    #[error("the adapter failed with a request: {0}")]
    Adapter(String),
    #[error("the adapter cannot be connected to the peer's")]
    Route(#[source] io::Error),
    #[error("port {port} of {device} is down")]
    PortDown { device: String, port: u8 },
    #[error("the adapter {0} is gone")]
    DeviceGone(String),
    #[error("{0}")]
    Memory(Error),
    #[error("disconnected by this side")]
    Cancelled,
}

fn describe(bye: Bye) -> &'static str {
    match bye {
        Bye::RemoteAccess => "remote access refused (key, bounds, rights)",
        Bye::NotReady => "it had no receive posted",
        Bye::TooLong => "a message was longer than its receive",
        Bye::Exhausted => "it has run out of something",
        Bye::Closed => "it closed",
        Bye::Protocol => "it takes this side's bytes for a breach of the protocol",
        Bye::Failed => "its adapter failed",
    }
}

impl Fault {
    /// Translates a peer's reason for ending the connection.
    pub(crate) fn from_bye(bye: Bye, own: bool) -> Fault {
        match (bye, own) {
            (Bye::Closed, _) => Fault::Closed,
            // This side's adapter refused a request of the peer.
            (Bye::RemoteAccess, true) => Violation::Access.into(),
            (Bye::NotReady, true) => Violation::NotReady.into(),
            (Bye::TooLong, true) => Violation::TooLong.into(),
            (bye, _) => Fault::Refused(bye),
        }
    }

    /// Returns the reason that the peer is told, and whether a request of this side failed.
    pub(crate) fn bye(&self) -> (Bye, bool) {
        let bye = match self {
            Fault::Violation(Violation::Access) => Bye::RemoteAccess,
            Fault::Violation(Violation::NotReady) => Bye::NotReady,
            Fault::Violation(Violation::TooLong) => Bye::TooLong,
            Fault::Violation(_) => Bye::Protocol,
            Fault::Refused(bye) => *bye,
            Fault::Cancelled | Fault::Closed => Bye::Closed,
            Fault::Memory(_) => Bye::Exhausted,
            _ => Bye::Failed,
        };
        (bye, matches!(self, Fault::Refused(_)))
    }

    /// Returns the public error, with the peer's name.
    pub(crate) fn into_error(self, peer: &Addr) -> Error {
        let kind = match &self {
            Fault::Violation(Violation::Version { .. }) => ErrorKind::Incompatible,
            Fault::Violation(_) => ErrorKind::Protocol,
            Fault::Refused(_) | Fault::Closed | Fault::Eof | Fault::QueuePair | Fault::NoAnswer => ErrorKind::PeerLost,
            Fault::PortDown { .. } => ErrorKind::PeerLost,
            Fault::Socket(error) => lost(error),
            Fault::Unreachable(error) => unreached(error),
            Fault::Unresolved(_) | Fault::NoAddress | Fault::Full => ErrorKind::Refused,
            Fault::ConnectTimeout | Fault::MadeRoom => ErrorKind::TimedOut,
            Fault::Adapter(_) | Fault::Route(_) | Fault::DeviceGone(_) => ErrorKind::Io,
            Fault::Memory(error) => error.kind(),
            Fault::Cancelled => ErrorKind::Cancelled,
        };
        let error = Error::new(kind, self.to_string()).with_peer(peer);
        match self {
            Fault::Socket(source) | Fault::Unreachable(source) | Fault::Unresolved(source) | Fault::Route(source) => {
                error.caused_by(source)
            }
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_map_to_what_a_caller_can_do() {
        let peer = Addr::ib(None, "10.0.0.1", 7);
        let kind = |fault: Fault| fault.into_error(&peer).kind();
        assert_eq!(kind(Violation::Access.into()), ErrorKind::Protocol);
        assert_eq!(kind(Violation::Version { theirs: 2, ours: 1 }.into()), ErrorKind::Incompatible);
        assert_eq!(kind(Fault::Socket(io::ErrorKind::ConnectionReset.into())), ErrorKind::PeerLost);
        assert_eq!(kind(Fault::Unreachable(io::ErrorKind::ConnectionRefused.into())), ErrorKind::Refused);
        assert_eq!(kind(Fault::PortDown { device: "rxe0".into(), port: 1 }), ErrorKind::PeerLost);
        let error = Fault::Refused(Bye::RemoteAccess).into_error(&peer);
        assert!(error.to_string().contains("10.0.0.1"), "{error}");
    }

    #[test]
    fn reasons_survive_the_wire() {
        for code in 0..=6 {
            assert_eq!(Bye::from_wire(code) as u8, code);
        }
        assert_eq!(Bye::from_wire(200), Bye::Failed);
    }
}
