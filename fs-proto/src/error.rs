//! One error for the whole file system, on the wire and in the client library: a code that a
//! program acts on, words for people, and, where data is concerned, which server and which ranges.

use std::fmt;

use bmi_core::ErrorKind;
use serde::{Deserialize, Serialize};

use crate::limits::{self, MAX_DETAIL, MAX_ERROR_RANGES};
use crate::region::Region;

/// What a caller can do about an [`FsError`]. The names are those of `errno`, spelled out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorCode {
    /// No such file or directory.
    NotFound,
    /// The name is taken.
    Exists,
    /// A directory was needed here.
    NotDirectory,
    /// A file was needed here.
    IsDirectory,
    /// The directory has entries.
    NotEmpty,
    /// A name or path is too long.
    NameTooLong,
    /// The disk is full.
    NoSpace,
    /// The disk or the metadata store failed.
    Io,
    /// Not allowed.
    Permission,
    /// The request makes no sense; repeating it is of no use.
    Invalid,
    /// The handle names something that was removed.
    Stale,
    /// A file, region or message is larger than what can be.
    TooLarge,
    /// The time limit passed first. A change of the namespace may or may not have happened; resend
    /// it under the same id to know.
    Timeout,
    /// The server cannot be reached, or the connection to it was lost.
    Unreachable,
    /// The server has too much to do; later it may work.
    Busy,
    /// The peer speaks another version of the protocol, or broke it.
    Protocol,
}

impl ErrorCode {
    /// As a short lower-case phrase.
    pub const fn as_str(self) -> &'static str {
        match self {
            ErrorCode::NotFound => "no such file or directory",
            ErrorCode::Exists => "exists already",
            ErrorCode::NotDirectory => "not a directory",
            ErrorCode::IsDirectory => "is a directory",
            ErrorCode::NotEmpty => "directory not empty",
            ErrorCode::NameTooLong => "name too long",
            ErrorCode::NoSpace => "no space left",
            ErrorCode::Io => "i/o error",
            ErrorCode::Permission => "permission denied",
            ErrorCode::Invalid => "invalid request",
            ErrorCode::Stale => "stale handle",
            ErrorCode::TooLarge => "too large",
            ErrorCode::Timeout => "timed out",
            ErrorCode::Unreachable => "server unreachable",
            ErrorCode::Busy => "server busy",
            ErrorCode::Protocol => "protocol error",
        }
    }

    /// Whether the same request may succeed later without a change by the caller.
    pub const fn is_retryable(self) -> bool {
        matches!(self, ErrorCode::Timeout | ErrorCode::Unreachable | ErrorCode::Busy)
    }

    /// The number that Linux gives this error, for a mount.
    pub const fn errno(self) -> i32 {
        match self {
            ErrorCode::NotFound => 2,
            ErrorCode::Exists => 17,
            ErrorCode::NotDirectory => 20,
            ErrorCode::IsDirectory => 21,
            ErrorCode::NotEmpty => 39,
            ErrorCode::NameTooLong => 36,
            ErrorCode::NoSpace => 28,
            ErrorCode::Io => 5,
            ErrorCode::Permission => 13,
            ErrorCode::Invalid => 22,
            ErrorCode::Stale => 116,
            ErrorCode::TooLarge => 27,
            ErrorCode::Timeout => 110,
            ErrorCode::Unreachable => 113,
            ErrorCode::Busy => 16,
            ErrorCode::Protocol => 71,
        }
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
    /// What a caller can do about it.
    pub code: ErrorCode,
    /// What happened, in words.
    #[serde(deserialize_with = "limits::text::<MAX_DETAIL, _>")]
    pub detail: String,
    /// The ranges that were not read or written, at most [`MAX_ERROR_RANGES`]; everything else of
    /// the request was.
    #[serde(deserialize_with = "limits::bounded::<MAX_ERROR_RANGES, _, _>")]
    pub ranges: Vec<Region>,
    /// Which server said so, as the client knows it; never on the wire.
    #[serde(skip)]
    pub server: Option<String>,
}

impl FsError {
    /// An error of `code`; `detail` is cut at [`MAX_DETAIL`] bytes.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> FsError {
        let mut detail = detail.into();
        if detail.len() > MAX_DETAIL {
            let end = (0..=MAX_DETAIL).rev().find(|end| detail.is_char_boundary(*end)).unwrap_or(0);
            detail.truncate(end);
        }
        FsError { code, detail, ranges: Vec::new(), server: None }
    }

    /// Names the ranges concerned. Of more than [`MAX_ERROR_RANGES`], the last one named covers all
    /// that follow.
    #[must_use]
    pub fn with_ranges(mut self, ranges: impl IntoIterator<Item = Region>) -> FsError {
        self.ranges.clear();
        for range in ranges {
            let full = self.ranges.len() == MAX_ERROR_RANGES;
            match self.ranges.last_mut() {
                Some(last) if full => *last = last.hull(range),
                _ => self.ranges.push(range),
            }
        }
        self
    }

    /// Names the server.
    #[must_use]
    pub fn with_server(mut self, server: impl fmt::Display) -> FsError {
        self.server.get_or_insert_with(|| server.to_string());
        self
    }

    /// Whether the same request may succeed later.
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

impl From<bmi_core::Error> for FsError {
    /// What an error of the transport means for a request: the connection's trouble, not the
    /// disk's.
    fn from(error: bmi_core::Error) -> FsError {
        let code = match error.kind() {
            ErrorKind::TimedOut => ErrorCode::Timeout,
            ErrorKind::Refused | ErrorKind::PeerLost | ErrorKind::Cancelled | ErrorKind::Io => ErrorCode::Unreachable,
            ErrorKind::Exhausted => ErrorCode::Busy,
            ErrorKind::TooLong => ErrorCode::TooLarge,
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
