//! What a command prints, and why it fails.

use std::io::{self, Write};

use bmi::Addr;
use fs_proto::{ErrorCode, FsError};

use crate::control::Report;

/// The reason why the command fails.
pub(super) enum Failure {
    /// The command line or the configuration is wrong.
    Usage(String),
    /// The server failed.
    Runtime(String),
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        // There was no request, and the text says what is wrong.
        let own = error.code == ErrorCode::Invalid && error.server.is_none() && !error.detail.is_empty();
        Failure::Runtime(if own { error.detail } else { error.to_string() })
    }
}

impl From<bmi::Error> for Failure {
    fn from(error: bmi::Error) -> Failure {
        FsError::from(error).into()
    }
}

/// Prints a report, and its errors on standard error. Returns the exit status.
pub(super) fn show(report: &Report, json: bool) -> Result<u8, Failure> {
    print(&if json { report.json() } else { report.text() })?;
    for error in &report.errors {
        // Standard error may be closed. The status still reports the failure.
        let _ = writeln!(io::stderr(), "pvfsd: {error}");
    }
    Ok(u8::from(!report.errors.is_empty()))
}

pub(super) fn print(text: &str) -> Result<(), Failure> {
    io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::Runtime(format!("standard output: {error}")))
}

/// Prints the addresses that a server listens on.
pub(super) fn announce_listening(before: &str, addrs: &[Addr]) {
    announce(&addrs.iter().map(|addr| format!("{before}listening on {addr}\n")).collect::<String>());
}

/// Prints what a server has reached.
pub(super) fn announce(lines: &str) {
    let mut out = io::stdout();
    // The parent process may not read this output. The server runs anyway.
    let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
}
