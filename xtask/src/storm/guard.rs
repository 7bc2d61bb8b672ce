//! A process that ends the servers when the storm's process has ended, however it ended: at its
//! end, by a panic, by Ctrl-C, by `kill -9`.
//!
//! **How.** The storm starts its own program again with the hidden command `storm-guard`, in a
//! process group of its own, which Ctrl-C does not reach. It writes what it starts to the guard's
//! standard input. The kernel closes that pipe with the storm's process. Then the guard kills what
//! is left and removes the directory.
//!
//! **Invariants**
//! 1. Only the named processes are killed. The guard opens each by its id (`pidfd_open`) while it
//!    is a child of the storm, which reaps it only after `-`. So no other process can have the id.
//! 2. The directory is removed after the processes have ended.
//!
//! **Protocol.** One line for each fact:
//!
//! ```text
//!   +PID      the storm has started this process
//!   -PID      the storm has killed it
//!   dir PATH  remove this directory at the end
//!   keep      do not
//! ```

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Longest wait for the end of a process that was killed.
const END_LIMIT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// This program, even if its file was replaced since it started: a build does that to `xtask`, and
/// its path then names nothing, or another program.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The storm's side.
pub(crate) struct Guard {
    child: Child,
    to: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard. It removes `dir` at the end if there is one.
    pub(crate) fn start(dir: Option<&Path>) -> Result<Guard, String> {
        let failed = |error: std::io::Error| format!("the guard of the servers cannot be started: {error}");
        let mut command = Command::new(OWN_PROGRAM);
        command.arg0("xtask").arg("storm-guard").process_group(0).stdin(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let to = child.stdin.take();
        let mut guard = Guard { child, to };
        if let Some(dir) = dir {
            guard.write(&format!("dir {}", dir.display()))?;
        }
        Ok(guard)
    }

    /// Names a process that was started.
    pub(crate) fn add(&mut self, child: &Child) -> Result<(), String> {
        self.write(&format!("+{}", child.id()))
    }

    /// Names a process that was killed and not yet reaped.
    pub(crate) fn remove(&mut self, child: &Child) -> Result<(), String> {
        self.write(&format!("-{}", child.id()))
    }

    /// Lets the directory be kept.
    pub(crate) fn keep(&mut self) -> Result<(), String> {
        self.write("keep")
    }

    fn write(&mut self, line: &str) -> Result<(), String> {
        let written = self.to.as_mut().map_or(Ok(()), |to| writeln!(to, "{line}"));
        written.map_err(|error| format!("the guard of the servers has ended: {error}"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.to.take());
        let _ = self.child.wait();
    }
}

/// The guard's program.
pub(crate) fn main() -> ExitCode {
    serve(std::io::stdin().lock());
    ExitCode::SUCCESS
}

/// Reads the facts up to the end, then kills and removes.
fn serve(from: impl BufRead) {
    let (mut processes, mut remove) = (BTreeMap::new(), None);
    for line in from.lines().map_while(Result::ok) {
        if let Some(pid) = line.strip_prefix('+').and_then(|text| text.parse().ok()) {
            if let Some(Ok(process)) = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
                processes.insert(pid, process);
            }
        } else if let Some(pid) = line.strip_prefix('-').and_then(|text| text.parse::<i32>().ok()) {
            processes.remove(&pid);
        } else if let Some(dir) = line.strip_prefix("dir ") {
            remove = Some(PathBuf::from(dir));
        } else if line == "keep" {
            remove = None;
        }
    }
    for process in processes.values() {
        // It may have ended by itself.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
    processes.values().for_each(await_end);
    if let Some(dir) = remove {
        let _ = std::fs::remove_dir_all(dir);
    }
}

fn await_end(process: &OwnedFd) {
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&END_LIMIT));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_taken_back_is_killed_even_if_it_is_stopped_and_the_directory_removed() {
        let dir = std::env::temp_dir().join(format!("storm-guard-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("below")).unwrap();
        let sleep = || Command::new("sleep").arg("1000").spawn().unwrap();
        let (mut ends, mut stays) = (sleep(), sleep());
        rustix::process::kill_process(Pid::from_child(&ends), Signal::STOP).unwrap();
        serve(format!("dir {}\n+{}\n+{}\n-{2}\n", dir.display(), ends.id(), stays.id()).as_bytes());
        assert!(!ends.wait().unwrap().success());
        assert!(stays.try_wait().unwrap().is_none(), "it was taken back");
        stays.kill().unwrap();
        stays.wait().unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn a_directory_that_is_kept_stays() {
        let dir = std::env::temp_dir().join(format!("storm-kept-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        serve(format!("dir {}\nkeep\nnonsense\n+0\n", dir.display()).as_bytes());
        assert!(dir.exists());
        std::fs::remove_dir(&dir).unwrap();
    }
}
