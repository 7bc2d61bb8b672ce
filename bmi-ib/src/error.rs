//! Why connections end, as far as only this backend knows, and what the peer is told. The rest is
//! [`bmi_backend::Fault`].

use std::fmt::{self, Display};
use std::io;

pub(crate) use bmi_backend::Violation;
use bmi_backend::software::BadRequest;
use bmi_core::ErrorKind;
use bmi_core::transport::WorkKind;

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
    /// In the clear, from a side that takes nothing in the clear.
    Secure = 7,
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
            7 => Bye::Secure,
            _ => Bye::Failed,
        }
    }
}

pub(crate) type Fault = bmi_backend::Fault<Bye>;

pub(crate) const BAD_GREETING: Violation = Violation::Malformed("greeting");
pub(crate) const BAD_ACCESS: Violation = Violation::Other("it reached for memory that it may not reach");
pub(crate) const NOT_READY: Violation = Violation::Request(BadRequest::NotReady(WorkKind::Send));
pub(crate) const TOO_LONG: Violation = Violation::Request(BadRequest::TooLong);

impl fmt::Display for Bye {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bye::RemoteAccess => "remote access refused (key, bounds, rights)",
            Bye::NotReady => "it had no receive posted",
            Bye::TooLong => "a message was longer than its receive",
            Bye::Exhausted => "it has run out of something",
            Bye::Closed => "it closed",
            Bye::Protocol => "it takes this side's bytes for a breach of the protocol",
            Bye::Failed => "its adapter failed",
            Bye::Secure => "it requires TLS",
        })
    }
}

/// Translates a peer's reason for ending the connection. If it is `own`, a request of the peer
/// failed at this side's adapter.
pub(crate) fn from_bye(bye: Bye, own: bool) -> Fault {
    match (bye, own) {
        (Bye::Closed, _) => Fault::Closed,
        (Bye::RemoteAccess, true) => BAD_ACCESS.into(),
        (Bye::NotReady, true) => NOT_READY.into(),
        (Bye::TooLong, true) => TOO_LONG.into(),
        (bye, _) => Fault::Refused(bye),
    }
}

/// Returns the reason that the peer is told, and whether a request of this side failed.
pub(crate) fn to_bye(fault: &Fault) -> (Bye, bool) {
    let bye = match fault {
        Fault::Violation(BAD_ACCESS) => Bye::RemoteAccess,
        Fault::Violation(NOT_READY) => Bye::NotReady,
        Fault::Violation(TOO_LONG) => Bye::TooLong,
        Fault::Violation(_) => Bye::Protocol,
        Fault::Refused(bye) => *bye,
        Fault::Cancelled | Fault::Closed => Bye::Closed,
        Fault::Other(error) if error.kind() == ErrorKind::Exhausted => Bye::Exhausted,
        _ => Bye::Failed,
    };
    (bye, matches!(fault, Fault::Refused(_)))
}

/// Returns why a connection ends whose adapter failed with a request.
pub(crate) fn adapter_failed(why: impl Display) -> Fault {
    Fault::other(ErrorKind::Io, format!("the adapter failed with a request: {why}"))
}

/// Returns why a connection ends whose queue pair cannot be connected.
pub(crate) fn no_route(error: io::Error) -> Fault {
    Fault::caused(ErrorKind::Io, "the adapter cannot be connected to the peer's", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_survive_the_wire() {
        for code in 0..=7 {
            let bye = Bye::from_wire(code);
            assert_eq!(bye as u8, code);
            assert_eq!(to_bye(&from_bye(bye, true)).0, bye);
        }
        assert_eq!(Bye::from_wire(200), Bye::Failed);
    }
}
