//! Runs the command `pvfs` once, as a process with a time limit.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::process::{Process, now_us};
use crate::{Outcome, named};

/// Time limit of a command. It is much longer than all requests and repetitions of one.
const COMMAND_LIMIT: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The command line, for messages.
    pub line: String,
    /// What the exit status says.
    pub verdict: Verdict,
    /// Its standard error.
    pub errors: String,
    /// When it began, by [`now_us`].
    pub begin_us: u64,
    /// When it ended.
    pub end_us: u64,
}

/// What an exit status says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Exit status 0.
    Acknowledged,
    /// Exit status 1.
    Failed,
    /// A command must not end in this way: another status, a signal, the time limit.
    Broken(String),
}

impl Ended {
    /// Returns true if the command succeeded.
    pub fn is_acknowledged(&self) -> bool {
        self.verdict == Verdict::Acknowledged
    }

    /// Returns true if the command failed because the name does not exist.
    pub fn is_absent(&self) -> bool {
        self.verdict == Verdict::Failed && self.errors.contains("no such file or directory")
    }

    /// Returns the error without what differs from file to file, to count errors of one kind.
    pub fn reason(&self) -> String {
        let first = self.errors.lines().next().unwrap_or("no message");
        // The system's name of the error follows ours.
        let first = first.split(" (Connection").next().unwrap_or(first);
        let known = |word: &&str| !word.starts_with('/') && !word.contains(|c: char| c.is_ascii_digit());
        let words: Vec<&str> = first.trim_start_matches("pvfs: ").split_whitespace().filter(known).collect();
        words.join(" ").chars().take(100).collect()
    }

    /// Fails unless the command succeeded.
    pub fn ok(self) -> Outcome {
        if self.is_acknowledged() { Ok(()) } else { Err(format!("{}: {}", self.line, self.errors).into()) }
    }
}

/// Runs commands, one at a time.
#[derive(Clone, Debug)]
pub struct Pvfs {
    /// The program.
    pub program: PathBuf,
    /// The options before each command.
    pub options: Vec<String>,
    /// The directory in which it runs, and in which it keeps the output of the last command.
    pub dir: PathBuf,
}

impl Pvfs {
    /// Returns a command without an input.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.options).args(args).current_dir(&self.dir).stdin(Stdio::null());
        command.env_remove("PVFS_LOG").env_remove("BMI_MUTANT");
        command
    }

    /// Runs a command and returns how it ended. The error is one of this machine.
    pub fn run(&self, args: &[&str]) -> Outcome<Ended> {
        let file = |name: &str| File::create(self.dir.join(name)).map_err(named(name));
        let begin_us = now_us();
        let mut command = self.command(args);
        let mut process = Process::start(command.stdout(file("stdout")?).stderr(file("stderr")?))?;
        let descriptor = pidfd_open(Pid::from_child(&process), PidfdFlags::empty())?;
        let hangs = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&COMMAND_LIMIT))? == 0;
        let end_us = now_us();
        if hangs {
            process.kill()?;
        }
        let status = process.wait()?;
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
    pub fn json(&self, args: &[&str]) -> Outcome<(Ended, Option<serde_json::Value>)> {
        let ended = self.run(&[&["--json"], args].concat())?;
        let value = if ended.is_acknowledged() { serde_json::from_slice(&self.read("stdout")?).ok() } else { None };
        Ok((ended, value))
    }

    fn read(&self, name: &str) -> Outcome<Vec<u8>> {
        fs::read(self.dir.join(name)).map_err(named(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_follow_from_the_exit_status() {
        let dir = tempfile::tempdir().unwrap();
        let shell = Pvfs { program: "sh".into(), options: vec!["-c".to_owned()], dir: dir.path().to_owned() };
        let run = |script: &str| shell.run(&[script]).unwrap();
        assert!(run("exit 0").ok().is_ok());
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
    }
}
