//! A server of the client's own: another process of this program on this host.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use crate::control::Trouble;
use crate::work::tls;

/// The server, which ends with this.
#[derive(Debug)]
pub(crate) struct Here {
    process: Child,
    /// What it says, which is not read. It would fail if nobody could.
    _lines: Option<BufReader<ChildStdout>>,
    /// Where it listens.
    pub(crate) at: String,
    /// Its temporary files. It is killed at the end, and would leave them.
    _temporary: TempDir,
}

impl Here {
    /// Starts the server. It serves one client, at a port of the loopback that the system draws.
    ///
    /// # Errors
    /// If it does not start, or cannot listen.
    pub(crate) fn start(options: &[String], secure: bool) -> Result<Here, Trouble> {
        let io = |error: std::io::Error| Trouble::new(format!("the server on this host: {error}"));
        let program = std::env::current_exe().map_err(io)?;
        let temporary = tempfile::tempdir().map_err(io)?;
        let certificates = if secure { tls::make(temporary.path()) } else { Ok(Vec::new()) };
        let mut command = Command::new(program);
        command.envs(certificates.map_err(|error| Trouble::new(error.to_string()))?);
        command.args(["serve", "127.0.0.1:0", "--once"]).args(options).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.env("TMPDIR", temporary.path()).spawn().map_err(io)?;
        let mut lines = process.stdout.take().map(BufReader::new);
        let mut line = String::new();
        // One that cannot listen has ended, and its output with it.
        let read = lines.as_mut().map_or(Ok(0), |lines| lines.read_line(&mut line));
        let mut here = Here { process, _lines: lines, at: String::new(), _temporary: temporary };
        read.map_err(io)?;
        let at = line.strip_prefix("listening at ").and_then(|rest| rest.split(';').next());
        let ended = || Trouble::new("the server on this host has ended; it has said why");
        here.at = at.ok_or_else(ended)?.to_owned();
        Ok(here)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
