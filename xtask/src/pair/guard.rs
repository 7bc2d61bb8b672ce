//! A process that removes a pair when the process that made it has ended, however it ended: at its
//! end, by a panic, by Ctrl-C, by `kill -9`.
//!
//! **How.** `cargo xtask pair` starts its own program again with the hidden command `pair-guard`,
//! in a process group of its own, which Ctrl-C does not reach. The kernel closes the guard's
//! standard input with the process that made it. Then the guard ends all processes in the two
//! namespaces and removes these. A line on standard input tells it to keep them.

use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use super::namespaces::{Names, remove};

/// This program, even if its file was replaced since it started.
pub(super) const OWN_PROGRAM: &str = "/proc/self/exe";
/// The line that lets the pair be kept.
const KEEP: &str = "keep";

/// The side of the process that made the pair.
pub(super) struct Guard {
    child: Child,
    to: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard, before there is anything to remove.
    pub(super) fn start(names: &Names) -> Result<Guard, String> {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg0("xtask").arg("pair-guard").args(names.both()).process_group(0);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut child = child.map_err(|error| format!("the guard of the pair cannot be started: {error}"))?;
        let to = child.stdin.take();
        Ok(Guard { child, to })
    }

    /// Lets the pair be kept.
    pub(super) fn keep(&mut self) -> Result<(), String> {
        let written = self.to.as_mut().map_or(Ok(()), |to| writeln!(to, "{KEEP}"));
        written.map_err(|error| format!("the guard of the pair has ended: {error}"))
    }

    /// Lets the guard do its work, and waits for that.
    pub(super) fn finish(&mut self) {
        drop(self.to.take());
        let _ = self.child.wait();
    }
}

/// The guard's program.
pub(crate) fn main(server: &str, client: &str) -> ExitCode {
    if std::io::stdin().lock().lines().map_while(Result::ok).any(|line| line == KEEP) {
        return ExitCode::SUCCESS;
    }
    let results = [client, server].map(remove);
    for why in results.iter().filter_map(|result| result.as_ref().err()) {
        eprintln!("error: {why}");
    }
    ExitCode::from(u8::from(results.iter().any(Result::is_err)))
}
