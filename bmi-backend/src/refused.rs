//! What the system, a limit or an argument does not allow, told so that a caller can act on it.
//!
//! **Why here.** [`bmi_core::ErrorKind`] says what a caller can do, and an error number says what
//! happened; which of the two stands for the other depends on what was being done. The same
//! `ECONNREFUSED` is a server that does not listen when dialing, and the loss of the peer on a
//! connection.

use std::io;

use bmi_core::transport::MAX_PRIVATE_DATA;
use bmi_core::{Addr, Error, ErrorKind, Scheme};

/// A limit of a backend's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How many there may be.
    pub max: usize,
    /// Of what, in words: `"connections"`.
    pub what: &'static str,
    /// Where a program can set it: `"TcpConfig::max_connections"`.
    pub setting: &'static str,
}

impl Limit {
    /// Whether there may be one more than the `used` that there are.
    ///
    /// # Errors
    /// `Exhausted`; it names the setting.
    pub fn admit(&self, used: usize) -> Result<(), Error> {
        if used < self.max {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Exhausted, format!("{used} {}, the limit of {}", self.what, self.setting)))
    }
}

/// That `private` may travel with a `connect`, `accept` or `reject`.
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

/// That `addr` has the scheme of this backend, which is called `backend` in words (`"TCP"`).
///
/// # Errors
/// `Invalid` for another one.
pub fn check_scheme(addr: &Addr, scheme: Scheme, backend: &str) -> Result<(), Error> {
    if addr.scheme() == scheme {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, format!("{addr} is no address of the {backend} backend")))
}

/// The error of a `listen` that the system refused. What is wrong with the address, or with who may
/// use it, is `Invalid`.
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

/// What the failure of an established connection's socket is to a caller. Whatever says that the
/// peer does not answer any more is its loss.
pub fn lost(error: &io::Error) -> ErrorKind {
    match ErrorKind::from(error) {
        ErrorKind::Refused | ErrorKind::TimedOut => ErrorKind::PeerLost,
        kind => kind,
    }
}

/// What a failed attempt to reach a listener is to a caller. There is no peer yet that could be
/// lost.
pub fn unreached(error: &io::Error) -> ErrorKind {
    match ErrorKind::from(error) {
        ErrorKind::PeerLost => ErrorKind::Refused,
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
