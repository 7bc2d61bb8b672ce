//! Why a connection ends, in the terms of a backend, mapped to [`bmi_core::Error`] in one place.
//!
//! **Why here.** C6 says what a caller learns of an end, and it is the same on all backends: the
//! kind, the words, and which ends deserve a line in the log.
//!
//! **Tests.** Here; `transport::end` and `transport::connect` of the conformance suite.

use std::fmt::Display;
use std::io;

use bmi_core::{Addr, Error, ErrorKind};
use thiserror::Error as ThisError;

use crate::software::{BadRequest, Refusal};
use crate::{lost, unreached};

/// A breach of the protocol by a peer. It ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ThisError)]
pub enum Violation {
    /// The peer speaks something else.
    #[error("its first bytes are not those of this protocol")]
    Magic,
    /// The peer speaks another version.
    #[error("it speaks version {theirs} of the protocol, this side version {ours}")]
    Version {
        /// The peer's version.
        theirs: u16,
        /// The version of this side.
        ours: u16,
    },
    /// What came is well-formed, but has no place in this phase.
    #[error("it sent something that is not allowed at this point")]
    Order,
    /// What came is malformed: what it is, in words (`"frame header"`).
    #[error("it sent a malformed {0}")]
    Malformed(&'static str),
    /// A breach that only one backend has, in words.
    #[error("{0}")]
    Other(&'static str),
    /// A request that this side does not carry out.
    #[error(transparent)]
    Request(#[from] BadRequest),
}

impl Violation {
    /// Returns the refusal that the peer of a software adapter is sent.
    pub fn refusal(self) -> Refusal {
        match self {
            Violation::Request(request) => request.refusal(),
            _ => Refusal::BREACH,
        }
    }
}

/// Why a connection ends. `R` is the reason that a peer sends when it cuts the connection.
#[derive(Debug, ThisError)]
pub enum Fault<R: Display = Refusal> {
    /// The peer broke the protocol.
    #[error("the peer was cut off: {0}")]
    Violation(#[from] Violation),
    /// The peer says that this side broke the protocol, or that a request was refused.
    #[error("the peer cut the connection: {0}")]
    Refused(R),
    /// The peer is not let in by this side, or does not let this side in.
    #[error("{0}")]
    Denied(String),
    /// The peer said that it ends the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer ended without a word.
    #[error("the peer is gone")]
    Eof,
    /// A hardware adapter reports that the connection failed. The peer may still say why.
    #[error("the connection failed, and the peer did not say why")]
    Unexplained,
    /// The socket of a connected peer failed.
    #[error("the socket failed")]
    Socket(#[source] io::Error),
    /// No socket could be connected.
    #[error("nobody answers")]
    Unreachable(#[source] io::Error),
    /// The look-up failed.
    #[error("the name cannot be resolved")]
    Unresolved(#[source] io::Error),
    /// The look-up found nothing.
    #[error("the name has no address")]
    NoAddress,
    /// A deadline passed during the handshake.
    #[error("the connection was not there by the deadline")]
    ConnectTimeout,
    /// A half-open connection went for a newcomer ([`HalfOpen`](crate::HalfOpen)).
    #[error("it did not introduce itself, and others needed the place")]
    MadeRoom,
    /// This side revoked an exposure in use.
    #[error("memory was revoked while the peer was reaching it")]
    Revoked,
    /// This side disconnected.
    #[error("disconnected by this side")]
    Cancelled,
    /// An end that only one backend knows: the error to report, without the peer.
    #[error("{0}")]
    Other(Error),
}

impl<R: Display> From<BadRequest> for Fault<R> {
    fn from(request: BadRequest) -> Fault<R> {
        Violation::from(request).into()
    }
}

impl<R: Display> Fault<R> {
    /// Returns a fault that only one backend knows.
    pub fn other(kind: ErrorKind, why: impl Into<String>) -> Fault<R> {
        Fault::Other(Error::new(kind, why))
    }

    /// Returns a fault that only one backend knows, with the error of the system that caused it.
    pub fn caused(kind: ErrorKind, why: &'static str, cause: io::Error) -> Fault<R> {
        Fault::Other(Error::new(kind, why).caused_by(cause))
    }

    /// Returns whether the peer's conduct deserves a warning in the log. That of a connection that
    /// is `half_open` does also if the time is over: no layer above learns of it.
    pub fn warns(&self, half_open: bool) -> bool {
        match self {
            Fault::Violation(_) | Fault::MadeRoom | Fault::Denied(_) => true,
            Fault::ConnectTimeout => half_open,
            _ => false,
        }
    }

    /// Converts the fault to the public error, with the peer's name.
    pub fn into_error(self, peer: &Addr) -> Error {
        let kind = match &self {
            Fault::Violation(Violation::Version { .. }) => ErrorKind::Incompatible,
            Fault::Violation(_) => ErrorKind::Protocol,
            Fault::Refused(_) | Fault::Closed | Fault::Eof | Fault::Unexplained => ErrorKind::PeerLost,
            Fault::Socket(error) => lost(error),
            Fault::Unreachable(error) => unreached(error),
            Fault::Unresolved(_) | Fault::NoAddress => ErrorKind::Refused,
            Fault::ConnectTimeout | Fault::MadeRoom => ErrorKind::TimedOut,
            Fault::Denied(_) => ErrorKind::Denied,
            Fault::Revoked | Fault::Cancelled => ErrorKind::Cancelled,
            Fault::Other(error) => error.kind(),
        };
        let text = self.to_string();
        match self {
            Fault::Other(error) => error,
            Fault::Socket(cause) | Fault::Unreachable(cause) | Fault::Unresolved(cause) => {
                Error::new(kind, text).caused_by(cause)
            }
            _ => Error::new(kind, text),
        }
        .with_peer(peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_map_to_what_a_caller_can_do() {
        let peer = Addr::tcp("10.0.0.1", 7);
        let error = |fault: Fault| fault.into_error(&peer);
        let of = |kind: io::ErrorKind| io::Error::from(kind);
        for (fault, kind) in [
            (Violation::Malformed("frame").into(), ErrorKind::Protocol),
            (Violation::Version { theirs: 2, ours: 1 }.into(), ErrorKind::Incompatible),
            (BadRequest::TooLong.into(), ErrorKind::Protocol),
            (Fault::Denied("it has no certificate".into()), ErrorKind::Denied),
            (Fault::Refused(Refusal::BREACH), ErrorKind::PeerLost),
            (Fault::Socket(of(io::ErrorKind::ConnectionReset)), ErrorKind::PeerLost),
            (Fault::Socket(of(io::ErrorKind::TimedOut)), ErrorKind::PeerLost),
            (Fault::Unreachable(of(io::ErrorKind::ConnectionRefused)), ErrorKind::Refused),
            (Fault::Unreachable(of(io::ErrorKind::NotFound)), ErrorKind::Refused),
            (Fault::Unreachable(of(io::ErrorKind::TimedOut)), ErrorKind::TimedOut),
            (Fault::other(ErrorKind::Exhausted, "no room"), ErrorKind::Exhausted),
        ] {
            let (words, error) = (fault.to_string(), error(fault));
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains("10.0.0.1") && error.to_string().contains(&words), "{error}");
        }
        let cause = io::Error::from_raw_os_error(12);
        let words = cause.to_string();
        let error = error(Fault::caused(ErrorKind::Exhausted, "no memory", cause));
        assert!(error.to_string().contains("no memory") && error.to_string().contains(&words), "{error}");
    }

    #[test]
    fn misconduct_warns_and_a_time_out_only_of_a_newcomer() {
        let warns = |fault: Fault| [false, true].map(|half_open| fault.warns(half_open));
        assert_eq!(warns(Violation::Order.into()), [true; 2]);
        assert_eq!(warns(Fault::MadeRoom), [true; 2]);
        assert_eq!(warns(Fault::ConnectTimeout), [false, true]);
        assert_eq!(warns(Fault::Eof), [false; 2]);
    }
}
