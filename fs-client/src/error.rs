//! The error type of the client. It names the operation and, for each server that failed, the
//! ranges of the file and the reason.
//!
//! **Why.** An operation on a striped file uses several servers at once, and each may fail for its
//! own reason. If only the first failure were reported, the caller would not know which bytes were
//! written. So an error carries all failures. All bytes that no failure names were acknowledged and
//! remain written.
//!
//! ```text
//! write at tcp://10.0.0.3:7001 (iod 2) of bytes 131072..196608 failed: no space left: the store is full
//! write at 2 servers failed: tcp://10.0.0.3:7001 (iod 2), bytes 131072..196608: no space left;
//!   tcp://10.0.0.4:7001 (iod 3), bytes …: peer lost
//! ```

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bmi::Addr;
use fs_proto::{ErrorCode, FsError, Region};

/// A server, as named in errors, plans and listings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerName {
    /// The server's address.
    pub addr: Addr,
    /// The number of an I/O server; `None` for the manager.
    pub iod: Option<u32>,
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.iod {
            Some(number) => write!(f, "{} (iod {number})", self.addr),
            None => write!(f, "{} (manager)", self.addr),
        }
    }
}

/// A failure at one server or on this side.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The server; `None` if the failure is on this side.
    pub server: Option<Arc<ServerName>>,
    /// The affected ranges of the file, in bytes from its beginning. Adjacent ranges are joined.
    /// There are at most [`Failure::MAX_RANGES`].
    pub ranges: Vec<Range<u64>>,
    /// The code, which tells a caller what it can do.
    pub code: ErrorCode,
    /// The reason as text.
    pub detail: String,
    /// The underlying error of the transport.
    pub source: Option<Arc<bmi::Error>>,
    /// The ranges of the datafile that the server named, not yet translated to ranges of the file.
    pub(crate) physical: Vec<Region>,
    /// The kind of the local system's error.
    pub(crate) local: Option<std::io::ErrorKind>,
    /// The server was restarted, and has perhaps lost what it took before.
    pub(crate) restarted: bool,
}

impl Failure {
    /// Most ranges that a failure names. If there are more, the last one extends to the end of them
    /// all.
    pub const MAX_RANGES: usize = 8;

    /// Creates a failure of this side.
    pub fn here(code: ErrorCode, detail: impl Into<String>) -> Failure {
        Failure {
            server: None,
            ranges: Vec::new(),
            code,
            detail: detail.into(),
            source: None,
            physical: Vec::new(),
            local: None,
            restarted: false,
        }
    }

    /// Creates a failure of `server`.
    pub fn at(server: ServerName, code: ErrorCode, detail: impl Into<String>) -> Failure {
        Failure { server: Some(Arc::new(server)), ..Failure::here(code, detail) }
    }

    /// Creates a failure from the transport's error about `server`.
    pub fn transport(server: ServerName, error: bmi::Error) -> Failure {
        let code = fs_proto::FsError::from(error.clone()).code;
        // The server is named in front of this text.
        let during = error.operation().map(|operation| format!("{operation}: ")).unwrap_or_default();
        let detail = during + &error.reason();
        Failure { source: Some(Arc::new(error)), ..Failure::at(server, code, detail) }
    }

    /// Adds the affected ranges of the file. Sorts them and joins adjacent ones.
    #[must_use]
    pub fn of_ranges(mut self, ranges: impl IntoIterator<Item = Range<u64>>) -> Failure {
        let mut all: Vec<Range<u64>> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        all.sort_by_key(|range| range.start);
        for range in all {
            let full = self.ranges.len() == Failure::MAX_RANGES;
            match self.ranges.last_mut() {
                Some(last) if full || range.start <= last.end => last.end = last.end.max(range.end),
                _ => self.ranges.push(range),
            }
        }
        self
    }

    fn fmt_ranges(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes ")?;
        for (index, range) in self.ranges.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{}..{}", range.start, range.end)?;
        }
        Ok(())
    }

    fn fmt_reason(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.detail.as_str(), &self.source) {
            ("", _) => write!(f, "{}", self.code),
            (detail, Some(_)) => f.write_str(detail),
            (detail, None) if self.local.is_some() => f.write_str(detail),
            (detail, None) => write!(f, "{}: {detail}", self.code),
        }
    }
}

/// What went wrong, everywhere. Cheap to clone. `Debug` prints the text of `Display`, so that
/// `fn main() -> Result<(), fs_client::Error>` reports it readably.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

impl From<FsError> for Error {
    /// What this side refuses, such as a type that cannot be.
    fn from(error: FsError) -> Error {
        Error::new(error.code, error.detail)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[derive(Clone, Debug)]
struct Inner {
    operation: Option<String>,
    failures: Vec<Failure>,
}

impl Error {
    /// Creates an error of this side.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Error {
        Error::from(Failure::here(code, detail))
    }

    /// Creates an error for a local file. `what` names the file.
    pub fn local(what: impl fmt::Display, error: &std::io::Error) -> Error {
        let failure = Failure { local: Some(error.kind()), ..Failure::here(ErrorCode::Io, format!("{what}: {error}")) };
        Error::from(failure)
    }

    /// Returns true if the reader of a local pipe has closed it.
    pub fn is_broken_pipe(&self) -> bool {
        self.0.failures.iter().any(|failure| failure.local == Some(std::io::ErrorKind::BrokenPipe))
    }

    /// Returns true if the same data may be stored when it is written again, to a new file: a
    /// server could not be reached or was restarted, or has lost what it had.
    pub(crate) fn is_worth_another_file(&self) -> bool {
        self.0.failures.iter().all(|failure| {
            failure.code.is_retryable()
                || failure.restarted
                || matches!(failure.code, ErrorCode::Stale | ErrorCode::Lost | ErrorCode::OutOfDate)
        })
    }

    /// Returns true if one of the failures is the manager's.
    pub(crate) fn concerns_manager(&self) -> bool {
        let is_manager = |failure: &Failure| failure.server.as_ref().is_some_and(|server| server.iod.is_none());
        self.0.failures.iter().any(is_manager)
    }

    /// Returns true if no server is still at it: all have answered, or were not asked.
    pub(crate) fn is_over(&self) -> bool {
        self.0.failures.iter().all(|failure| failure.source.is_none() && !failure.code.is_retryable())
    }

    /// Combines several failures of one operation.
    ///
    /// # Panics
    /// If `failures` is empty.
    pub fn combined(failures: Vec<Failure>) -> Error {
        assert!(!failures.is_empty(), "an error without a failure");
        Error(Arc::new(Inner { operation: None, failures }))
    }

    /// Returns all values, or all failures combined.
    pub(crate) fn unless_all<V>(results: Vec<Result<V, Failure>>) -> Result<Vec<V>, Error> {
        let (mut values, mut failures) = (Vec::with_capacity(results.len()), Vec::new());
        for result in results {
            match result {
                Ok(value) => values.push(value),
                Err(failure) => failures.push(failure),
            }
        }
        if failures.is_empty() { Ok(values) } else { Err(Error::combined(failures)) }
    }

    /// Names the operation that failed, such as `"write"` or `"mkdir /a"`, unless it has a name
    /// already.
    #[must_use]
    pub fn during(mut self, operation: impl Into<String>) -> Error {
        if self.0.operation.is_none() {
            Arc::make_mut(&mut self.0).operation = Some(operation.into());
        }
        self
    }

    /// Returns the code, which tells a caller what it can do. Of several failures, one that cannot
    /// be cured by repeating the call takes precedence: a full disk before a lost connection.
    pub fn code(&self) -> ErrorCode {
        let failures = &self.0.failures;
        failures.iter().find(|failure| !failure.code.is_retryable()).unwrap_or(&failures[0]).code
    }

    /// Returns true if the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.code().is_retryable()
    }

    /// Returns the operation that failed.
    pub fn operation(&self) -> Option<&str> {
        self.0.operation.as_deref()
    }

    /// Returns all failures.
    pub fn failures(&self) -> &[Failure] {
        &self.0.failures
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::combined(vec![failure])
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operation = self.0.operation.as_deref();
        if let [failure] = self.0.failures.as_slice() {
            return fmt_one(f, operation, failure);
        }
        write!(f, "{} at {} servers failed: ", operation.unwrap_or("operation"), self.0.failures.len())?;
        for (index, failure) in self.0.failures.iter().enumerate() {
            f.write_str(if index > 0 { "; " } else { "" })?;
            if let Some(server) = &failure.server {
                write!(f, "{server}")?;
                f.write_str(if failure.ranges.is_empty() { ": " } else { ", " })?;
            }
            if !failure.ranges.is_empty() {
                failure.fmt_ranges(f)?;
                f.write_str(": ")?;
            }
            failure.fmt_reason(f)?;
        }
        Ok(())
    }
}

fn fmt_one(f: &mut fmt::Formatter<'_>, operation: Option<&str>, failure: &Failure) -> fmt::Result {
    match (operation, &failure.server) {
        (None, None) => {}
        (operation, server) => {
            f.write_str(operation.unwrap_or("request"))?;
            if let Some(server) = server {
                write!(f, " at {server}")?;
            }
            if !failure.ranges.is_empty() {
                f.write_str(" of ")?;
                failure.fmt_ranges(f)?;
            }
            f.write_str(" failed: ")?;
        }
    }
    failure.fmt_reason(f)
}

/// The failures are part of the text, so there is no `source` to print behind it;
/// [`Failure::source`] has the transport's errors.
impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    fn iod(number: u32) -> ServerName {
        ServerName { addr: Addr::tcp("10.0.0.3", 7001), iod: Some(number) }
    }

    #[test]
    fn one_failure_names_server_and_ranges() {
        let failure = Failure::at(iod(2), ErrorCode::NoSpace, "").of_ranges(std::iter::once(131072..196608));
        assert_eq!(
            Error::from(failure).during("write").to_string(),
            "write at tcp://10.0.0.3:7001 (iod 2) of bytes 131072..196608 failed: no space left"
        );
        let error = Error::new(ErrorCode::Invalid, "a path begins with '/'");
        assert_eq!(error.to_string(), "invalid request: a path begins with '/'");
    }

    #[test]
    fn several_failures_are_all_there() {
        let lost = bmi::Error::new(bmi::ErrorKind::PeerLost, "connection reset").during("send");
        let error = Error::combined(vec![
            Failure::transport(iod(1), lost).of_ranges(std::iter::once(0..10)),
            Failure::at(iod(2), ErrorCode::NoSpace, "store full").of_ranges([10..20, 30..40]),
        ])
        .during("write");
        assert_eq!(
            error.to_string(),
            "write at 2 servers failed: tcp://10.0.0.3:7001 (iod 1), bytes 0..10: send: peer lost: connection reset; \
             tcp://10.0.0.3:7001 (iod 2), bytes 10..20, 30..40: no space left: store full"
        );
        assert_eq!(error.code(), ErrorCode::NoSpace);
        assert!(!error.is_retryable());
        assert!(error.failures()[0].source.is_some());
    }

    #[test]
    fn ranges_are_joined_and_bounded() {
        let failure = Failure::at(iod(0), ErrorCode::Io, "").of_ranges([20..30, 0..10, 10..20, 50..50]);
        assert_eq!(failure.ranges, std::slice::from_ref(&(0..30)));
        let many = Failure::at(iod(0), ErrorCode::Io, "").of_ranges((0..100).map(|n| n * 10..n * 10 + 5));
        assert_eq!(many.ranges.len(), Failure::MAX_RANGES);
        assert_eq!(many.ranges.last(), Some(&(70..995)));
    }
}
