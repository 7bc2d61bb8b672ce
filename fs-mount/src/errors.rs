//! Errors of the file system as error numbers of programs. docs/operating.md has the table.

use fs_client::{Error, ErrorCode};
use rustix::io::Errno;

/// Returns what a program is told. What it could do nothing about is `EIO`.
pub(crate) fn errno(error: &Error) -> Errno {
    match error.code() {
        ErrorCode::Timeout
        | ErrorCode::Unreachable
        | ErrorCode::Busy
        | ErrorCode::Protocol
        | ErrorCode::WrongServer
        | ErrorCode::Lost
        | ErrorCode::Unfinished => Errno::IO,
        code => Errno::from_raw_os_error(code.errno()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_see_the_numbers_that_they_know() {
        let number = |code| errno(&Error::new(code, ""));
        assert_eq!(number(ErrorCode::NotFound), Errno::NOENT);
        assert_eq!(number(ErrorCode::NoSpace), Errno::NOSPC);
        assert_eq!(number(ErrorCode::OutOfDate), Errno::STALE);
        assert_eq!(number(ErrorCode::Unreachable), Errno::IO);
        assert_eq!(number(ErrorCode::Permission), Errno::ACCESS);
    }
}
