//! Runs the command `pvfs` once, as a process with a time limit.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Time limit of one request of a client.
const REQUEST_LIMIT: &str = "5s";
/// Time limit of a command. It is much longer than all requests and repetitions of one.
const COMMAND_LIMIT: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };

/// Microseconds since the storm began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the storm runs real processes in real time")]
    pub(super) fn start() -> Clock {
        Clock(Instant::now())
    }

    pub(super) fn now_us(&self) -> u64 {
        self.0.elapsed().as_micros() as u64
    }

    #[expect(clippy::disallowed_methods, reason = "the storm runs real processes in real time")]
    pub(super) fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// How a command ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    /// The command line, for messages.
    pub(super) line: String,
    pub(super) verdict: Verdict,
    /// Its standard error.
    pub(super) errors: String,
    pub(super) begin_us: u64,
    pub(super) end_us: u64,
}

/// What the exit status says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Exit status 0.
    Acknowledged,
    /// Exit status 1.
    Failed,
    /// A command must not end in this way: another status, a signal, the time limit.
    Broken(String),
}

impl Ended {
    pub(super) fn is_acknowledged(&self) -> bool {
        self.verdict == Verdict::Acknowledged
    }

    /// Returns true if the command failed because the name does not exist.
    pub(super) fn is_absent(&self) -> bool {
        self.verdict == Verdict::Failed && self.errors.contains("no such file or directory")
    }

    /// Returns the error without what differs from file to file, to count errors of one kind.
    pub(super) fn reason(&self) -> String {
        let first = self.errors.lines().next().unwrap_or("no message");
        // The system's name of the error follows ours.
        let first = first.split(" (Connection").next().unwrap_or(first);
        let known = |word: &&str| !word.starts_with('/') && !word.contains(|c: char| c.is_ascii_digit());
        let words: Vec<&str> = first.trim_start_matches("pvfs: ").split_whitespace().filter(known).collect();
        words.join(" ").chars().take(100).collect()
    }
}

/// Runs commands, one at a time.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) pvfs: PathBuf,
    pub(super) manager: String,
    pub(super) clock: Clock,
    /// The directory in which it keeps the output of the last command.
    pub(super) dir: PathBuf,
}

impl Client {
    /// Runs a command and returns how it ended. The error is one of this machine.
    pub(super) fn run(&self, args: &[&str]) -> Result<Ended, String> {
        let file = |name: &str| File::create(self.dir.join(name)).map_err(|error| format!("{name}: {error}"));
        let mut command = Command::new(&self.pvfs);
        command.args(["--manager", &self.manager, "--timeout", REQUEST_LIMIT, "-q"]).args(args);
        command.env_remove("PVFS_LOG").current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(file("stdout")?).stderr(file("stderr")?);
        let failed = |error: std::io::Error| format!("{}: {error}", self.pvfs.display());
        let begin_us = self.clock.now_us();
        let mut child = command.spawn().map_err(failed)?;
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
        let in_time = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&COMMAND_LIMIT));
        let end_us = self.clock.now_us();
        let hangs = in_time.map_err(|error| failed(error.into()))? == 0;
        if hangs {
            child.kill().map_err(failed)?;
        }
        let status = child.wait().map_err(failed)?;
        let verdict = match status.code() {
            _ if hangs => Verdict::Broken(format!("it was killed after {} s", COMMAND_LIMIT.tv_sec)),
            Some(0) => Verdict::Acknowledged,
            Some(1) => Verdict::Failed,
            _ => Verdict::Broken(status.to_string()),
        };
        let errors = String::from_utf8_lossy(&self.read("stderr")?).trim().to_owned();
        Ok(Ended { line: format!("pvfs {}", args.join(" ")), verdict, errors, begin_us, end_us })
    }

    /// Runs a command that prints JSON. Returns `None` if it failed.
    pub(super) fn json(&self, args: &[&str]) -> Result<(Ended, Option<serde_json::Value>), String> {
        let ended = self.run(&[&["--json"], args].concat())?;
        let value = if ended.is_acknowledged() { serde_json::from_slice(&self.read("stdout")?).ok() } else { None };
        Ok((ended, value))
    }

    /// Returns true if `pvfs` has a command of this name.
    pub(super) fn has_command(&self, name: &str) -> Result<bool, String> {
        self.run(&["--help"])?;
        let help = self.read("stdout")?;
        Ok(String::from_utf8_lossy(&help).lines().any(|line| line.split_whitespace().next() == Some(name)))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, String> {
        let path: &Path = &self.dir.join(name);
        fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn verdicts_follow_from_the_exit_status() {
        let dir = std::env::temp_dir().join(format!("storm-client-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        // A program that takes the global options of `pvfs` and runs the rest as a script.
        let pvfs = dir.join("pvfs");
        fs::write(&pvfs, "#!/bin/sh\nshift 5\neval \"$1\"\n").unwrap();
        fs::set_permissions(&pvfs, fs::Permissions::from_mode(0o755)).unwrap();
        let client = Client { pvfs, manager: "m".into(), clock: Clock::start(), dir: dir.clone() };
        let run = |script: &str| client.run(&[script]).unwrap();
        assert!(run("exit 0").is_acknowledged());
        let failed = run("echo 'pvfs: lookup /a to tcp://h:1 (manager) failed: no such file or directory' >&2; exit 1");
        assert_eq!((failed.verdict.clone(), failed.is_absent()), (Verdict::Failed, true));
        assert_eq!(failed.reason(), "lookup to (manager) failed: no such file or directory");
        assert!(failed.begin_us <= failed.end_us);
        for script in ["exit 2", "exit 101", "kill -9 $$"] {
            let ended = run(script);
            assert!(matches!(ended.verdict, Verdict::Broken(_)) && !ended.is_absent(), "{script}: {ended:?}");
        }
        let refused =
            run("echo 'pvfs: connect: refused: nobody answers (Connection refused (os error 111))' >&2; exit 1");
        assert_eq!((refused.is_absent(), refused.reason().as_str()), (false, "connect: refused: nobody answers"));
        fs::remove_dir_all(dir).unwrap();
    }
}
