//! Errors of the system, of a limit or of an argument, in a form that a caller can act on.
//!
//! **Why here.** [`bmi_core::ErrorKind`] tells a caller what it can do, and an error number tells
//! what happened. The mapping between them depends on the operation. The same `ECONNREFUSED` means
//! a server that does not listen when dialing, but the loss of the peer on a connection.

use std::io;

use bmi_core::transport::MAX_PRIVATE_DATA;
use bmi_core::{Addr, Error, ErrorKind, Scheme};

/// A limit on the number of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Largest number allowed.
    pub max: usize,
    /// The things counted, in words: `"connections"`.
    pub what: &'static str,
    /// The setting that changes the limit, if there is one: `"TcpConfig::limits"`.
    pub setting: Option<&'static str>,
}

impl Limit {
    /// Checks that one more is allowed, with `used` in use.
    ///
    /// # Errors
    /// `Exhausted`. The error names the setting, if there is one.
    pub fn admit(&self, used: usize) -> Result<(), Error> {
        if used < self.max {
            return Ok(());
        }
        let limit = self.setting.map_or_else(|| "which is the limit".to_owned(), |of| format!("the limit of {of}"));
        Err(Error::new(ErrorKind::Exhausted, format!("{used} {}, {limit}", self.what)))
    }
}

/// Checks that `private` may travel with a `connect`, `accept` or `reject`.
///
/// # Errors
/// `Invalid` if it is longer than [`MAX_PRIVATE_DATA`].
pub fn check_private(private: &[u8]) -> Result<(), Error> {
    if private.len() <= MAX_PRIVATE_DATA {
        return Ok(());
    }
    let why = format!("{} bytes of private data, at most {MAX_PRIVATE_DATA} travel", private.len());
    Err(Error::new(ErrorKind::Invalid, why))
}

/// Checks that `addr` has the scheme of this backend. `backend` is the backend's name in words
/// (`"TCP"`).
///
/// # Errors
/// `Invalid` for another scheme.
pub fn check_scheme(addr: &Addr, scheme: Scheme, backend: &str) -> Result<(), Error> {
    if addr.scheme() == scheme {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, format!("{addr} is no address of the {backend} backend")))
}

/// Returns the error of a `listen` that the system refused. Problems with the address, or with
/// permissions for it, are `Invalid`.
pub fn listen_failed(addr: &Addr, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::AddrNotAvailable
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::NotFound
        | io::ErrorKind::InvalidFilename => ErrorKind::Invalid,
        _ => ErrorKind::from(&error),
    };
    Error::new(kind, format!("cannot listen at {addr}")).caused_by(error).during("listen")
}

/// Returns the error of an `accept` whose request is no longer there: it was answered, or the peer
/// is gone.
pub fn request_gone() -> Error {
    Error::new(ErrorKind::PeerLost, "the connection request is no longer there").during("accept")
}

/// Returns the error of an `expose` on a connection that takes no exposures, because it has ended.
pub fn connection_ended() -> Error {
    Error::new(ErrorKind::PeerLost, "the connection has ended").during("expose")
}

/// Returns the error kind for a failed socket of an established connection. Errors which mean that
/// the peer no longer answers become `PeerLost`.
pub fn lost(error: &io::Error) -> ErrorKind {
    match ErrorKind::from(error) {
        ErrorKind::Refused | ErrorKind::TimedOut => ErrorKind::PeerLost,
        kind => kind,
    }
}

/// Returns the error kind for a failed attempt to reach a listener. There is no peer yet that could
/// be lost. A socket file that does not exist has no listener.
pub fn unreached(error: &io::Error) -> ErrorKind {
    match ErrorKind::from(error) {
        ErrorKind::PeerLost => ErrorKind::Refused,
        _ if error.kind() == io::ErrorKind::NotFound => ErrorKind::Refused,
        kind => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_error_number_means_what_was_being_done() {
        let of = |kind: io::ErrorKind| io::Error::from(kind);
        assert_eq!(lost(&of(io::ErrorKind::ConnectionReset)), ErrorKind::PeerLost);
        assert_eq!(lost(&of(io::ErrorKind::ConnectionRefused)), ErrorKind::PeerLost);
        assert_eq!(lost(&of(io::ErrorKind::TimedOut)), ErrorKind::PeerLost);
        assert_eq!(unreached(&of(io::ErrorKind::ConnectionReset)), ErrorKind::Refused);
        assert_eq!(unreached(&of(io::ErrorKind::ConnectionRefused)), ErrorKind::Refused);
        assert_eq!(unreached(&of(io::ErrorKind::TimedOut)), ErrorKind::TimedOut);
        let no_descriptor = io::Error::from_raw_os_error(24);
        assert_eq!((lost(&no_descriptor), unreached(&no_descriptor)), (ErrorKind::Exhausted, ErrorKind::Exhausted));
        let addr = Addr::tcp("10.0.0.1", 1);
        for (error, kind) in [
            (of(io::ErrorKind::PermissionDenied), ErrorKind::Invalid),
            (of(io::ErrorKind::AddrInUse), ErrorKind::Invalid),
            (of(io::ErrorKind::AddrNotAvailable), ErrorKind::Invalid),
            (no_descriptor, ErrorKind::Exhausted),
        ] {
            let error = listen_failed(&addr, error);
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains("10.0.0.1"), "{error}");
        }
    }
}
