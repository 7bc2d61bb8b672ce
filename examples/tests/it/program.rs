//! Starts programs of this crate for a test.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

/// A server process. Dropping it kills the process.
pub(crate) struct Server {
    child: Child,
    /// The address that it printed.
    pub(crate) addr: String,
}

impl Server {
    /// Starts a server, and waits until it prints the address that it listens at.
    pub(crate) fn start(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut addr = String::new();
        // The pipe ends if the server does, so this ends too.
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut addr).unwrap();
        let addr = addr.trim().to_owned();
        let server = Server { child, addr };
        assert!(!server.addr.is_empty(), "the server ended before it listened");
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a directory that only this user can open, as shared memory needs it.
pub(crate) fn private_dir() -> tempfile::TempDir {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap()
}

/// Runs a program to its end, and returns what it printed. It must succeed.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program to its end, and returns the errors that it printed. It must fail.
pub(crate) fn fail(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{command:?} succeeded");
    errors
}
