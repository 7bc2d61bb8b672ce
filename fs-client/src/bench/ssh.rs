//! Starts `pvfs bench join` on other hosts, with `ssh` or another command.
//!
//! **Invariants**
//! 1. A command that still runs when its [`Starter`] is dropped is ended, with all processes of its
//!    group. At the end of a run, [`GRACE`] is given to all commands together.
//! 2. It has a process group of its own: Ctrl-C goes to the leader, which ends the run in order.
//!    It cannot ask the user for a password then, so `ssh` is told not to try.
//! 3. The token of the run goes through its standard input, and is in no list of processes.
//! 4. Of what it writes to standard error, the first [`MOST_LINES`] are kept. They are shown if
//!    the host is at fault, and the last of them is explained ([`Ssh::advice`]).
//!
//! **Why it is not reaped before the end.** The number of its process group stays its own until
//! then, so that no other group is ended in its place.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use bmi::driver::MonotonicClock;
use bmi_core::Clock;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::follower::UNREACHED;
use super::leader::Event;
use super::token::Token;

/// Options of `ssh` that a user's command may override: it never asks for a password, and gives up
/// a host that does not answer.
const OPTIONS: [&str; 4] = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"];
/// How long the commands may take to end after their hosts have left the run.
const GRACE: Duration = Duration::from_secs(5);
/// How long the end of a command's output is waited for, after the end of the command.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// The most lines of a command's standard error that are kept, and their length.
const MOST_LINES: usize = 32;
const LONGEST_LINE: u64 = 512;

/// How other hosts are started.
#[derive(Clone, Debug)]
pub(crate) struct Ssh {
    /// The command that runs a command on a host: `ssh`.
    pub(crate) command: String,
    /// The program there.
    pub(crate) program: String,
    pub(crate) token: Token,
}

/// The command that has started a host.
pub(crate) struct Starter {
    child: Child,
    /// Ends when the command does.
    ended: Receiver<()>,
    said: Said,
    /// The name of the host.
    pub(crate) host: String,
}

/// What a command has written to standard error.
#[derive(Clone, Debug, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exit(i32),
    Signal(i32),
}

impl Ssh {
    /// Starts `host`, which is to join at `address`.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub(crate) fn start(&self, host: &str, address: &str, events: Sender<Event>) -> Result<Starter, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.command);
        let mut command = self.command(host, address)?;
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // If it has ended already, its end says more than this error.
            let _ = writeln!(stdin, "{}", self.token.reveal());
        }
        let (said, stderr, pid) = (Said::default(), child.stderr.take(), Pid::from_child(&child));
        let (alive, ended) = mpsc::channel();
        let starter = Starter { child, ended, said: said.clone(), host: host.to_owned() };
        let heard = said.listen(stderr).map_err(failed)?;
        let (host, ssh, address) = (host.to_owned(), self.clone(), address.to_owned());
        let body = move || {
            let end = wait(pid);
            // A process in the background may have its standard error still.
            let _ = heard.recv_timeout(LAST_WORDS);
            let why = ssh.why(&host, &address, end, &said.lines());
            let _ = events.send(Event::StarterEnded(host, why));
            drop(alive);
        };
        Builder::new().name("starter".into()).spawn(body).map_err(failed)?;
        Ok(starter)
    }

    fn command(&self, host: &str, address: &str) -> Result<Command, String> {
        let mut words = self.command.split_whitespace();
        let first = words.next().ok_or("--ssh names no command")?;
        let mut command = Command::new(first);
        command.args(words);
        if Path::new(first).file_name().is_some_and(|name| name == "ssh") {
            command.args(OPTIONS);
        }
        command.arg(host).args(self.program.split_whitespace());
        command.args(["bench", "join", address, "--name", host, "--token-file", "-"]);
        Ok(command)
    }

    /// Says why a command ended before its host joined, and what the user can do.
    fn why(&self, host: &str, address: &str, end: End, said: &[String]) -> String {
        let last = said.last().map(|line| line.strip_prefix("pvfs: ").unwrap_or(line));
        let how = match end {
            End::Exit(status) => format!("with status {status}"),
            End::Signal(signal) => format!("by signal {signal}"),
        };
        let what = match last {
            Some(line) => line.to_owned(),
            None => format!("the command that starts it ended {how} before it joined"),
        };
        let advice = self.advice(host, address, end, last.unwrap_or_default());
        advice.map_or_else(|| what.clone(), |advice| format!("{what}; {advice}"))
    }

    fn advice(&self, host: &str, address: &str, end: End, line: &str) -> Option<String> {
        let Ssh { command, program, .. } = self;
        let says = |words: &[&str]| words.iter().any(|word| line.contains(word));
        let by_hand = format!("'{command} {host}'");
        match end {
            End::Exit(255) if says(&["Host key verification failed"]) => {
                Some(format!("say {by_hand} once by hand, to check and accept its key"))
            }
            End::Exit(255) if says(&["Permission denied"]) => {
                Some(format!("{by_hand} must not ask for a password: use a key, or an agent"))
            }
            End::Exit(255) if says(&["Could not resolve"]) => Some("is the name right?".to_owned()),
            End::Exit(255) => Some(format!("does {by_hand} work by hand?")),
            End::Exit(126 | 127) => Some(format!("is '{program}' in its PATH? --remote-program names another one")),
            // An older program does not know all options.
            End::Exit(2) => Some("all hosts must have the same version".to_owned()),
            _ if says(&["of the benchmark's protocol"]) => Some("all hosts must have the same version".to_owned()),
            _ if says(&[UNREACHED]) => {
                Some(format!("--listen names another address than {address}, which it can reach"))
            }
            _ => None,
        }
    }
}

impl Said {
    /// Starts to read what a command says. Returns a channel that ends with that.
    fn listen(&self, stderr: Option<ChildStderr>) -> std::io::Result<Receiver<()>> {
        let (open, heard) = mpsc::channel();
        let said = self.clone();
        let body = move || {
            let Some(stderr) = stderr else { return };
            let mut stderr = BufReader::new(stderr);
            let mut line = Vec::new();
            while let Ok(1..) = (&mut stderr).take(LONGEST_LINE).read_until(b'\n', &mut line) {
                said.note(String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
            drop::<Sender<()>>(open);
        };
        Builder::new().name("words".into()).spawn(body)?;
        Ok(heard)
    }

    fn note(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < MOST_LINES && !line.is_empty() {
            lines.push(line.to_owned());
        }
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Starter {
    /// Returns what the command, or a program beside `pvfs` there, has written to standard error.
    /// What `pvfs` writes about the run, the leader knows.
    pub(crate) fn words(&self) -> Vec<String> {
        let lines = self.said.lines().into_iter();
        lines.filter(|line| !line.starts_with("pvfs: ")).collect()
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        // Nothing is sent. The channel ends with the command.
        if self.ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
            // It may be ending.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
        if let Err(error) = self.child.wait() {
            tracing::debug!(%error, host = self.host, "a command was not waited for");
        }
    }
}

/// Waits until the commands have ended whose hosts have left the run, for [`GRACE`] at most.
pub(crate) fn await_ends(starters: &[Starter]) {
    let clock = MonotonicClock::new();
    let deadline = clock.now() + GRACE;
    for starter in starters {
        // Those that still run are ended when they are dropped.
        let _ = starter.ended.recv_timeout(deadline.since(clock.now()));
    }
}

/// Waits until a process has ended, and does not reap it.
fn wait(pid: Pid) -> End {
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) => {
                let signal = status.terminating_signal().map(End::Signal);
                return signal.unwrap_or(End::Exit(status.exit_status().unwrap_or_default()));
            }
            Ok(None) | Err(Errno::INTR) => {}
            // It was reaped meanwhile: nobody waits for it any more.
            Err(_) => return End::Exit(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh(command: &str) -> Ssh {
        Ssh { command: command.into(), program: "pvfs".into(), token: Token::draw().ok().unwrap() }
    }

    #[test]
    fn only_ssh_gets_options_and_no_command_line_has_the_token() {
        let words = |ssh: &Ssh| -> Vec<String> {
            let command = ssh.command("b", "a:7077").unwrap();
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
        };
        let real = ssh("/usr/bin/ssh -p 22");
        let line = words(&real).join(" ");
        assert!(line.starts_with("-p 22 -o BatchMode=yes -o ConnectTimeout=10 b pvfs bench join a:7077"), "{line}");
        assert!(!line.contains(real.token.reveal()));
        assert_eq!(words(&ssh("sudo ssh"))[..2], ["ssh", "b"]);
        assert!(ssh(" ").command("b", "a:7077").is_err());
    }

    #[test]
    fn the_end_of_a_command_is_explained() {
        let why =
            |end, said: &str| ssh("ssh").why("b", "a:7077", end, &said.lines().map(str::to_owned).collect::<Vec<_>>());
        for (end, said, expected) in [
            (End::Exit(7), "", "the command that starts it ended with status 7 before it joined"),
            (End::Signal(9), "", "the command that starts it ended by signal 9 before it joined"),
            (End::Exit(255), "ssh: connect to host b port 22: Connection refused", "does 'ssh b' work by hand?"),
            (End::Exit(255), "No key\nHost key verification failed.", "say 'ssh b' once by hand"),
            (End::Exit(255), "me@b: Permission denied (publickey).", "must not ask for a password"),
            (End::Exit(127), "sh: 1: pvfs: not found", "is 'pvfs' in its PATH?"),
            (End::Exit(2), "pvfs: unexpected argument '--token-file' found", "the same version"),
            (End::Exit(1), "pvfs: cannot reach the leader at a:7077: timed out", "another address than a:7077"),
            (End::Exit(1), "pvfs: out of memory", "out of memory"),
        ] {
            let text = why(end, said);
            assert!(text.contains(expected) && !text.contains("pvfs: un"), "{text}");
        }
    }
}
