//! Why a connection ended, in this backend's terms, mapped to [`bmi_core::Error`] in one place.

use std::io;

use bmi_backend::lost;
use bmi_core::{Addr, Error, ErrorKind};
use thiserror::Error as ThisError;

pub(crate) use bmi_backend::software::{BadRequest, Refusal};

use crate::os::socket::NotOne;

/// A breach of the protocol by a peer; it ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub(crate) enum Violation {
    #[error("its first packet is not one of this protocol")]
    Magic,
    #[error("it speaks version {theirs} of the protocol, this side version {ours}")]
    Version { theirs: u16, ours: u16 },
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
    #[error(transparent)]
    Request(#[from] BadRequest),
}

impl Violation {
    /// Returns the refusal that the peer is told.
    pub(crate) fn refusal(self) -> Refusal {
        match self {
            Violation::Request(request) => request.refusal(),
            _ => Refusal::BREACH,
        }
    }
}

/// Why a connection ends.
#[derive(Debug, ThisError)]
pub(crate) enum Fault {
    #[error("the peer was cut off: {0}")]
    Violation(#[from] Violation),
    #[error("the peer cut the connection: {0}")]
    Refused(Refusal),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer is gone")]
    Eof,
    #[error("the socket failed")]
    Socket(#[source] io::Error),
    #[error("nobody listens")]
    Unreachable(#[source] io::Error),
    #[error(
        "no permission to connect to this socket; run this program as the socket's owner or as root \
         (docs/design/shared-memory.md#security)"
    )]
    Forbidden(#[source] io::Error),
    #[error("the peer runs under user {0}, which ShmConfig::allowed_users does not name")]
    User(u32),
    #[error("no memory for the connection")]
    Memory(#[source] io::Error),
    #[error("the connection was not there by the deadline")]
    ConnectTimeout,
    #[error("it sent no hello, and others needed the place")]
    MadeRoom,
    #[error("memory was revoked while the peer was reaching it")]
    Revoked,
    #[error("disconnected by this side")]
    Cancelled,
}

impl From<NotOne> for Fault {
    fn from(why: NotOne) -> Fault {
        match why {
            NotOne::Theirs => Violation::Memory("it passed no descriptor, or several").into(),
            NotOne::Ours => Fault::Memory(io::Error::from_raw_os_error(libc::EMFILE)),
        }
    }
}

impl From<BadRequest> for Fault {
    fn from(request: BadRequest) -> Fault {
        Violation::from(request).into()
    }
}

impl Fault {
    /// Returns why a socket could not be connected.
    pub(crate) fn of_connect(error: io::Error) -> Fault {
        // The socket's directory is closed to other users.
        if error.kind() == io::ErrorKind::PermissionDenied {
            Fault::Forbidden(error)
        } else {
            Fault::Unreachable(error)
        }
    }

    /// Returns the public error, with the peer's name.
    pub(crate) fn into_error(self, peer: &Addr) -> Error {
        let kind = match &self {
            Fault::Violation(Violation::Version { .. }) => ErrorKind::Incompatible,
            Fault::Violation(_) => ErrorKind::Protocol,
            Fault::Refused(_) | Fault::Closed | Fault::Eof => ErrorKind::PeerLost,
            Fault::Socket(error) => lost(error),
            Fault::User(_) | Fault::Unreachable(_) | Fault::Forbidden(_) => ErrorKind::Refused,
            Fault::Memory(_) => ErrorKind::Exhausted,
            Fault::ConnectTimeout | Fault::MadeRoom => ErrorKind::TimedOut,
            Fault::Revoked | Fault::Cancelled => ErrorKind::Cancelled,
        };
        let error = Error::new(kind, self.to_string()).with_peer(peer);
        match self {
            Fault::Socket(source) | Fault::Unreachable(source) | Fault::Forbidden(source) | Fault::Memory(source) => {
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
        let peer = Addr::shm("/run/bmi/iod-0");
        let kind = |fault: Fault| fault.into_error(&peer).kind();
        assert_eq!(kind(Violation::Record.into()), ErrorKind::Protocol);
        assert_eq!(kind(Violation::Version { theirs: 2, ours: 1 }.into()), ErrorKind::Incompatible);
        assert_eq!(kind(Fault::Socket(io::ErrorKind::ConnectionReset.into())), ErrorKind::PeerLost);
        assert_eq!(kind(Fault::Unreachable(io::ErrorKind::NotFound.into())), ErrorKind::Refused);
        assert_eq!(kind(Fault::User(7)), ErrorKind::Refused);
        for errno in [libc::EACCES, libc::EPERM] {
            let error = Fault::of_connect(io::Error::from_raw_os_error(errno)).into_error(&peer);
            assert_eq!(error.kind(), ErrorKind::Refused);
            assert!(error.to_string().contains("no permission") && error.to_string().contains("iod-0"), "{error}");
        }
        for errno in [libc::ENOENT, libc::ECONNREFUSED] {
            let error = Fault::of_connect(io::Error::from_raw_os_error(errno)).into_error(&peer);
            assert!(error.to_string().contains("nobody listens"), "{error}");
        }
        let error = Fault::from(BadRequest::TooLong).into_error(&peer);
        assert!(error.to_string().contains("/run/bmi/iod-0"), "{error}");
    }
}
