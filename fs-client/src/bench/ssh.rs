//! Starts `pvfs bench join` on other hosts, with `ssh` or another command.
//!
//! **Invariants**
//! 1. A command that was started is ended, at the latest when its [`Starter`] is dropped.
//! 2. It has a process group of its own: Ctrl-C goes to the leader, which ends the run in order.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread::Builder;

use super::leader::Event;

/// How other hosts are started.
#[derive(Clone, Debug)]
pub(crate) struct Ssh {
    /// The command that runs a command on a host: `ssh -o BatchMode=yes`.
    pub(crate) command: String,
    /// The program there.
    pub(crate) program: String,
}

/// The command that has started a host.
pub(crate) struct Starter {
    child: Child,
    host: String,
    /// The connection of the host has ended.
    pub(crate) leaves: bool,
}

impl Ssh {
    /// Starts `host`, which is to join at `address`. What it writes to standard error is seen by
    /// the user.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub(crate) fn start(&self, host: &str, address: &str, events: Sender<Event>) -> Result<Starter, String> {
        let failed = |error: io::Error| format!("{}: {error}", self.command);
        let mut words = self.command.split_whitespace();
        let mut command = Command::new(words.next().ok_or("--ssh names no command")?);
        command.args(words).arg(host).args(self.program.split_whitespace());
        command.args(["bench", "join", address, "--name", host]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let stdout = child.stdout.take();
        let starter = Starter { child, host: host.to_owned(), leaves: false };
        let host = host.to_owned();
        let body = move || {
            if let Some(mut stdout) = stdout {
                // It ends when the command does. What it says does not matter.
                let _ = io::copy(&mut stdout.by_ref(), &mut io::sink());
            }
            let _ = events.send(Event::StarterEnded(host));
        };
        Builder::new().name("starter".into()).spawn(body).map_err(failed)?;
        Ok(starter)
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        if !self.leaves {
            // It may have ended.
            let _ = self.child.kill();
        }
        if let Err(error) = self.child.wait() {
            tracing::debug!(%error, host = self.host, "a command was not waited for");
        }
    }
}
