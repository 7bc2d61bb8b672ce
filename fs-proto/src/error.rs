//! The error type of the file system, used on the wire and in the client library. An error has a
//! code for programs, a text for people, and for data operations the server and the ranges
//! concerned.

use std::fmt;

use bmi::ErrorKind;
use serde::{Deserialize, Serialize};

use crate::limits::{self, MAX_DETAIL, MAX_ERROR_RANGES};
use crate::region::Region;

/// The code of an [`FsError`], which tells a caller what it can do. The names are those of `errno`,
/// spelled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorCode {
    /// No such file or directory.
    NotFound,
    /// The name exists already.
    Exists,
    /// A directory was expected.
    NotDirectory,
    /// A file was expected.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// A name or path is too long.
    NameTooLong,
    /// The disk is full.
    NoSpace,
    /// The disk or the metadata store failed.
    Io,
    /// The operation is not permitted.
    Permission,
    /// The request is invalid. Repeating it does not help.
    Invalid,
    /// The handle names an object that was removed.
    Stale,
    /// A file, region or message exceeds the largest possible size.
    TooLarge,
    /// The time limit passed. A change of the namespace may or may not have happened. To find out,
    /// resend it under the same id.
    Timeout,
    /// The server cannot be reached, or the connection to it was lost.
    Unreachable,
    /// The server is overloaded. The request may succeed later.
    Busy,
    /// The peer uses another version of the protocol, or violated it.
    Protocol,
    /// The connection leads to another server, store or cluster than the one expected.
    WrongServer,
    /// The server's store is older than one that the sender has seen: it has gone back in time.
    OutOfDate,
    /// Stored data is missing or damaged at the server: a datafile that must exist does not, is
    /// shorter than it must be, or does not match its checksums.
    Lost,
    /// A change was decided, and a server has not carried it out yet. It goes on trying.
    Unfinished,
    /// The file has as many names as it can have.
    TooManyLinks,
    /// The server's file system cannot do it.
    Unsupported,
    /// The request shows no ticket for its datafile that is still good. Nothing was done.
    NoTicket,
}

impl ErrorCode {
    /// Returns the code as a short lower-case phrase, and as the error number of Linux.
    const fn words(self) -> (&'static str, i32) {
        match self {
            ErrorCode::NotFound => ("no such file or directory", 2),
            ErrorCode::Exists => ("exists already", 17),
            ErrorCode::NotDirectory => ("not a directory", 20),
            ErrorCode::IsDirectory => ("is a directory", 21),
            ErrorCode::NotEmpty => ("directory not empty", 39),
            ErrorCode::NameTooLong => ("name too long", 36),
            ErrorCode::NoSpace => ("no space left", 28),
            ErrorCode::Io => ("i/o error", 5),
            ErrorCode::Permission => ("permission denied", 13),
            ErrorCode::Invalid => ("invalid request", 22),
            ErrorCode::Stale => ("stale handle", 116),
            ErrorCode::TooLarge => ("too large", 27),
            ErrorCode::Timeout => ("timed out", 110),
            ErrorCode::Unreachable => ("server unreachable", 113),
            ErrorCode::Busy => ("server busy", 16),
            ErrorCode::Protocol => ("protocol error", 71),
            ErrorCode::WrongServer => ("wrong server", 78),
            ErrorCode::OutOfDate => ("out of date", 116),
            ErrorCode::Lost => ("data lost", 61),
            ErrorCode::Unfinished => ("not carried out yet", 115),
            ErrorCode::TooManyLinks => ("too many links", 31),
            ErrorCode::Unsupported => ("operation not supported", 95),
            ErrorCode::NoTicket => ("no valid ticket", 13),
        }
    }

    /// Returns the code as a short lower-case phrase.
    pub const fn as_str(self) -> &'static str {
        self.words().0
    }

    /// Returns the Linux error number, for a mount.
    pub const fn errno(self) -> i32 {
        self.words().1
    }

    /// Returns true if the same request may succeed later without a change by the caller.
    pub const fn is_retryable(self) -> bool {
        matches!(self, ErrorCode::Timeout | ErrorCode::Unreachable | ErrorCode::Busy)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What went wrong. A server fills in code, detail and, for data, ranges of its datafile; the
/// client library adds the server, and translates the ranges to those of the file.
///
/// `Debug` prints the text of `Display`, so that a `main` that returns it reports it readably.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsError {
    /// The code, which tells a caller what it can do.
    pub code: ErrorCode,
    /// A description of what happened.
    #[serde(deserialize_with = "limits::text::<MAX_DETAIL, _>")]
    pub detail: String,
    /// The ranges that were not read or written, at most [`MAX_ERROR_RANGES`]. The rest of the
    /// request was read or written.
    #[serde(deserialize_with = "limits::bounded::<MAX_ERROR_RANGES, _, _>")]
    pub ranges: Vec<Region>,
    /// The server that reported the error, by the client's name for it. Never sent on the wire.
    #[serde(skip)]
    pub server: Option<String>,
}

impl FsError {
    /// Creates an error with the given code. `detail` is cut at [`MAX_DETAIL`] bytes.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> FsError {
        let mut detail = detail.into();
        if detail.len() > MAX_DETAIL {
            let end = (0..=MAX_DETAIL).rev().find(|end| detail.is_char_boundary(*end)).unwrap_or(0);
            detail.truncate(end);
        }
        FsError { code, detail, ranges: Vec::new(), server: None }
    }

    /// Sets the ranges concerned, and joins neighbours. If there are more than
    /// [`MAX_ERROR_RANGES`], the last one is extended to cover all the others that follow.
    #[must_use]
    pub fn with_ranges(mut self, ranges: impl IntoIterator<Item = Region>) -> FsError {
        self.ranges.clear();
        for range in ranges {
            let full = self.ranges.len() == MAX_ERROR_RANGES;
            match self.ranges.last_mut() {
                Some(last) if full || last.end() == Some(range.offset) => *last = last.hull(range),
                _ => self.ranges.push(range),
            }
        }
        self
    }

    /// Sets the server, unless one is already set.
    #[must_use]
    pub fn with_server(mut self, server: impl fmt::Display) -> FsError {
        self.server.get_or_insert_with(|| server.to_string());
        self
    }

    /// Returns true if the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.code.is_retryable()
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(server) = &self.server {
            write!(f, "{server}: ")?;
        }
        write!(f, "{}", self.code)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        for (index, range) in self.ranges.iter().enumerate() {
            f.write_str(if index == 0 { " (bytes " } else { ", " })?;
            write!(f, "{range}")?;
        }
        if !self.ranges.is_empty() {
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Debug for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for FsError {}

impl From<bmi::Error> for FsError {
    /// Converts an error of the transport to an error of the request. It concerns the connection,
    /// not the disk.
    fn from(error: bmi::Error) -> FsError {
        let code = match error.kind() {
            ErrorKind::TimedOut => ErrorCode::Timeout,
            ErrorKind::Refused | ErrorKind::PeerLost | ErrorKind::Cancelled | ErrorKind::Abandoned | ErrorKind::Io => {
                ErrorCode::Unreachable
            }
            ErrorKind::Exhausted | ErrorKind::Busy => ErrorCode::Busy,
            ErrorKind::TooLarge => ErrorCode::TooLarge,
            ErrorKind::Denied => ErrorCode::Permission,
            ErrorKind::Incompatible | ErrorKind::Protocol | ErrorKind::Unsupported => ErrorCode::Protocol,
            _ => ErrorCode::Invalid,
        };
        FsError::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_and_what() {
        let error = FsError::new(ErrorCode::NoSpace, "the store holds 10 bytes")
            .with_ranges([Region { offset: 5, len: 10 }, Region { offset: 100, len: 1 }])
            .with_server("iod 2 (tcp://localhost:7002)");
        assert_eq!(
            error.to_string(),
            "iod 2 (tcp://localhost:7002): no space left: the store holds 10 bytes (bytes 5..15, 100..101)"
        );
    }

    #[test]
    fn many_ranges_are_folded_into_the_last() {
        let error = FsError::new(ErrorCode::Io, "é".repeat(MAX_DETAIL))
            .with_ranges((0..100).map(|index| Region { offset: index * 10, len: 5 }));
        assert_eq!(error.ranges.len(), MAX_ERROR_RANGES);
        assert_eq!(error.ranges.last().and_then(Region::end), Some(995));
        assert!(error.detail.len() <= MAX_DETAIL);
    }
}
