//! What an error of the system means to the user: for a datafile, and for a data directory.

use std::io;
use std::path::Path;

use fs_proto::{DatafileHandle, ErrorCode, FsError};

/// Converts an error of the system to an error for a datafile.
pub(in crate::store) fn fault(what: &str, datafile: DatafileHandle, error: &io::Error) -> FsError {
    if let Some(missing) = no_descriptor(error) {
        return FsError::new(ErrorCode::Busy, format!("{what} {datafile}: {missing}"));
    }
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::NoSpace,
        io::ErrorKind::FileTooLarge => ErrorCode::TooLarge,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorCode::Permission,
        // A checksum: what is there is not what was stored.
        io::ErrorKind::InvalidData => ErrorCode::Lost,
        _ if error.raw_os_error() == Some(libc::EOPNOTSUPP) => ErrorCode::Unsupported,
        _ => ErrorCode::Io,
    };
    FsError::new(code, format!("{what} {datafile}: {error}"))
}

/// Returns what is missing, and the remedy, if no descriptor was free. The operation was not begun.
pub(in crate::store) fn no_descriptor(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EMFILE => {
            Some("no file descriptor is free: this process may open no more files; raise its limit (`ulimit -n`)")
        }
        libc::ENFILE => {
            Some("no file descriptor is free: this machine may open no more files; raise its limit (`fs.file-max`)")
        }
        _ => None,
    }
}

/// Creates an error that names a data directory.
pub(in crate::store) fn trouble(dir: &Path, error: &io::Error) -> FsError {
    let code = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorCode::Permission,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::NoSpace,
        io::ErrorKind::WouldBlock => ErrorCode::Busy,
        _ => ErrorCode::Io,
    };
    let text = match (code, no_descriptor(error)) {
        (_, Some(missing)) => missing.to_owned(),
        (ErrorCode::Busy, _) => "another server is at work on it".to_owned(),
        _ => error.to_string(),
    };
    FsError::new(code, format!("data directory {}: {text}", dir.display()))
}
