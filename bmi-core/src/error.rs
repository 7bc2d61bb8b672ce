//! The error of the whole public interface. It has a kind, the operation, the peer and the reason.
//!
//! The kinds are coarse, and each says what a caller can do. A new kind is added only if a caller
//! would act differently. A backend keeps its own `thiserror` enum inside, and maps it to this type
//! in one place.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// The kind of an [`Error`], by what a caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The arguments of the call are wrong. Do not repeat it.
    Invalid,
    /// The backend or the peer cannot do this at all.
    Unsupported,
    /// The peer speaks another version or lacks a feature. The text names it.
    Incompatible,
    /// There is no listener at the address, or the peer rejected the connection. Or it has closed
    /// an idle connection to make room for others, and what was on its way was not carried out:
    /// any operation may be repeated.
    Refused,
    /// The peer does not let this side in, or this side not the peer, because of who it is (see
    /// [`PeerPolicy`](crate::PeerPolicy)). Do not repeat it: the rights have to be changed first.
    Denied,
    /// The connection is gone: the peer died, closed it, or cut this side off. Connect again, and
    /// repeat the operations that are safe to repeat.
    PeerLost,
    /// The deadline passed first.
    TimedOut,
    /// This side cancelled the operation, or the peer cancelled a transfer in flight.
    Cancelled,
    /// The server ended the call without a reply: the handler panicked, or was dropped. Whether it
    /// did what it was asked for is unknown, and it may well fail in the same way again.
    Abandoned,
    /// The message or the data is longer than the receive that matched it, or than a limit. The
    /// text names the limit.
    TooLarge,
    /// The peer has as much to do as it takes on. It has not begun: the call may be repeated, best
    /// after a pause.
    Busy,
    /// A limit was reached, such as memory, registrations or connections. Later the call may
    /// succeed.
    Exhausted,
    /// The peer broke the protocol and was cut off.
    Protocol,
    /// The operating system or the adapter failed.
    Io,
}

impl ErrorKind {
    /// Returns true if the same call may succeed later without a change by the caller.
    pub const fn is_retryable(self) -> bool {
        use ErrorKind::{Busy, Exhausted, PeerLost, Refused, TimedOut};
        matches!(self, Refused | PeerLost | TimedOut | Exhausted | Busy)
    }

    /// Returns the kind as a short lower-case phrase.
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "invalid argument",
            ErrorKind::Unsupported => "not supported",
            ErrorKind::Incompatible => "incompatible peer",
            ErrorKind::Refused => "refused",
            ErrorKind::Denied => "not let in",
            ErrorKind::PeerLost => "peer lost",
            ErrorKind::TimedOut => "timed out",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Abandoned => "abandoned",
            ErrorKind::TooLarge => "too large",
            ErrorKind::Busy => "busy",
            ErrorKind::Exhausted => "resource exhausted",
            ErrorKind::Protocol => "protocol violation",
            ErrorKind::Io => "i/o error",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error of the transport: its kind, the operation, the peer, and the reason in words. It is
/// cheap to clone.
///
/// `Display` prints each of these once, then the cause in parentheses. `Debug` prints the same
/// text, so that `fn main() -> Result<(), bmi_core::Error>` reports an error readably.
///
/// ```
/// use bmi_core::{Error, ErrorKind};
///
/// let error = Error::new(ErrorKind::Refused, "no program listens there")
///     .during("connect")
///     .with_peer("tcp://10.0.0.3:7001");
/// assert_eq!(error.to_string(), "connect with tcp://10.0.0.3:7001: refused: no program listens there");
/// assert!(error.is_retryable());
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    operation: Option<&'static str>,
    peer: Option<String>,
    detail: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error of `kind`. `detail` says what happened and, where that helps, what to do.
    pub fn new(kind: ErrorKind, detail: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, operation: None, peer: None, detail: detail.into(), source: None }))
    }

    /// Creates an error of `kind` that was caused by `reason`, such as the end of a connection. Its
    /// detail is the text of `reason`, without the peer, and without the kind if the kinds are the
    /// same.
    pub fn because(kind: ErrorKind, reason: &Error) -> Error {
        if reason.kind() != kind {
            return Error::new(kind, reason.reason());
        }
        let mut error = Error::new(kind, reason.detail());
        error.0.source = reason.0.source.clone();
        error
    }

    /// Sets the operation that failed, such as `"send"`, `"pull"` or `"connect"`, unless it is set.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Error {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Sets the peer, unless it is set.
    #[must_use]
    pub fn with_peer(mut self, peer: impl fmt::Display) -> Error {
        self.0.peer.get_or_insert_with(|| peer.to_string());
        self
    }

    /// Sets the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Returns the kind, which says what a caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns true if the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.0.kind.is_retryable()
    }

    /// Returns the operation that failed, if there was one.
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// Returns the address of the peer, if the error concerns one.
    pub fn peer(&self) -> Option<&str> {
        self.0.peer.as_deref()
    }

    /// Returns the reason in words, without kind, operation and peer.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Returns kind, detail and cause as one text, without operation and peer: `refused: no program
    /// listens there`.
    pub fn reason(&self) -> String {
        let Inner { kind, detail, source, .. } = &*self.0;
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        let source = source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default();
        format!("{kind}{detail}{source}")
    }

    /// Returns the error of the system or of a backend that caused this one.
    pub fn cause(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.0.source.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.operation, &self.0.peer) {
            (Some(operation), Some(peer)) => write!(f, "{operation} with {peer}: ")?,
            (Some(operation), None) => write!(f, "{operation}: ")?,
            (None, Some(peer)) => write!(f, "{peer}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.reason())
    }
}

/// Prints the text of `Display`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The cause is part of the text, so `source` returns the source of the cause. [`Error::cause`]
/// returns the cause itself.
impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause().and_then(|cause| cause.source())
    }
}

/// Maps an error of the system to the kind that fits whatever operation failed.
impl From<&std::io::Error> for ErrorKind {
    fn from(error: &std::io::Error) -> ErrorKind {
        use rustix::io::Errno;
        use std::io::ErrorKind as Io;
        match error.kind() {
            Io::ConnectionRefused | Io::AddrNotAvailable | Io::HostUnreachable | Io::NetworkUnreachable => {
                ErrorKind::Refused
            }
            Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe | Io::UnexpectedEof => ErrorKind::PeerLost,
            Io::TimedOut => ErrorKind::TimedOut,
            Io::OutOfMemory | Io::StorageFull | Io::QuotaExceeded => ErrorKind::Exhausted,
            Io::InvalidInput | Io::AddrInUse => ErrorKind::Invalid,
            // `io::ErrorKind` has no kind for a lack of descriptors or of buffers.
            _ => match Errno::from_io_error(error) {
                Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS) => ErrorKind::Exhausted,
                _ => ErrorKind::Io,
            },
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::new(ErrorKind::from(&error), "").caused_by(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A regression test. The end of a connection was reported as "expose with A: peer lost: A:
    /// peer lost: the peer is gone".
    #[test]
    fn an_error_says_each_thing_once() {
        let end = Error::new(ErrorKind::PeerLost, "the peer is gone").with_peer("A");
        let same = Error::because(ErrorKind::PeerLost, &end).with_peer("A").during("expose");
        assert_eq!(same.to_string(), "expose with A: peer lost: the peer is gone");
        let other = Error::because(ErrorKind::Cancelled, &end).with_peer("A").during("send");
        assert_eq!(other.to_string(), "send with A: cancelled: peer lost: the peer is gone");
    }

    #[test]
    fn main_prints_an_error_as_text() {
        let cause = std::io::Error::other("cable pulled");
        let error = Error::new(ErrorKind::Io, "").caused_by(cause).during("listen");
        assert_eq!(format!("{error:?}"), "listen: i/o error (cable pulled)");
        assert_eq!(error.cause().unwrap().to_string(), "cable pulled");
        assert!(error.source().is_none(), "a reporter that prints sources would print the cause twice");
    }

    /// A regression test. It was reported as `Io`, which is not retryable.
    #[test]
    fn a_want_of_descriptors_is_exhausted() {
        for errno in [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE, rustix::io::Errno::NOBUFS] {
            let error = Error::from(std::io::Error::from(errno));
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        }
        let error = Error::from(std::io::Error::from(rustix::io::Errno::BADF));
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    }
}
