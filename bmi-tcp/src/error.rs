//! The reasons that a connection ended, in this backend's terms. They are mapped to
//! [`bmi_core::Error`] in one place.

use std::io;

use bmi_backend::software::{BadRequest, Refusal};
use bmi_backend::{lost, unreached};
use bmi_core::{Addr, Error, ErrorKind};
use thiserror::Error as ThisError;

/// A violation by the peer that ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub(crate) enum Violation {
    #[error("its first bytes are not those of this protocol")]
    Magic,
    #[error("it speaks version {theirs} of the wire format, this side version {ours}")]
    Version { theirs: u16, ours: u16 },
    #[error("its preamble is malformed")]
    Greeting,
    #[error("it sent a malformed frame header")]
    Header,
    #[error("it sent a frame that is not allowed at this point")]
    Order,
    #[error("it sent bytes before it was accepted")]
    Early,
    #[error(transparent)]
    Request(#[from] BadRequest),
}

impl Violation {
    /// Returns the refusal that the violator receives.
    pub(crate) fn refusal(self) -> Refusal {
        match self {
            Violation::Request(request) => request.refusal(),
            _ => Refusal::BREACH,
        }
    }
}

/// The reason that a connection ends.
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
    #[error("the peer's host answers nothing")]
    Silent,
    #[error("the socket failed")]
    Socket(#[source] io::Error),
    #[error("nobody answers")]
    Unreachable(#[source] io::Error),
    #[error("the name cannot be resolved")]
    Unresolved(#[source] io::Error),
    #[error("the name has no address")]
    NoAddress,
    #[error("the connection was not there by the deadline")]
    ConnectTimeout,
    #[error("it sent no preamble, and others needed the place")]
    MadeRoom,
    #[error("memory was revoked while the peer was reaching it")]
    Revoked,
    #[error("disconnected by this side")]
    Cancelled,
}

impl From<BadRequest> for Fault {
    fn from(request: BadRequest) -> Fault {
        Violation::from(request).into()
    }
}

impl Fault {
    /// Converts the fault to the public error, with the peer's name.
    pub(crate) fn into_error(self, peer: &Addr) -> Error {
        let kind = match &self {
            Fault::Violation(Violation::Version { .. }) => ErrorKind::Incompatible,
            Fault::Violation(_) => ErrorKind::Protocol,
            Fault::Refused(_) | Fault::Closed | Fault::Eof | Fault::Silent => ErrorKind::PeerLost,
            Fault::Socket(error) => lost(error),
            Fault::Unreachable(error) => unreached(error),
            Fault::Unresolved(_) | Fault::NoAddress => ErrorKind::Refused,
            Fault::ConnectTimeout | Fault::MadeRoom => ErrorKind::TimedOut,
            Fault::Revoked | Fault::Cancelled => ErrorKind::Cancelled,
        };
        let error = Error::new(kind, self.to_string()).with_peer(peer);
        match self {
            Fault::Socket(source) | Fault::Unreachable(source) | Fault::Unresolved(source) => error.caused_by(source),
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_map_to_what_a_caller_can_do() {
        let peer = Addr::tcp("10.0.0.1", 7);
        let kind = |fault: Fault| fault.into_error(&peer).kind();
        assert_eq!(kind(Violation::Header.into()), ErrorKind::Protocol);
        assert_eq!(kind(Violation::Version { theirs: 2, ours: 1 }.into()), ErrorKind::Incompatible);
        assert_eq!(kind(Fault::Socket(io::ErrorKind::ConnectionReset.into())), ErrorKind::PeerLost);
        assert_eq!(kind(Fault::Socket(io::ErrorKind::TimedOut.into())), ErrorKind::PeerLost);
        assert_eq!(kind(Fault::Unreachable(io::ErrorKind::ConnectionRefused.into())), ErrorKind::Refused);
        assert_eq!(kind(Fault::Unreachable(io::ErrorKind::TimedOut.into())), ErrorKind::TimedOut);
        let error = Fault::from(BadRequest::TooLong).into_error(&peer);
        assert!(error.to_string().contains("10.0.0.1"), "{error}");
    }
}
