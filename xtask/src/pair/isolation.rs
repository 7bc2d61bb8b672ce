//! Ends all processes of a run with the run, however it ends: at its end, by a panic, by Ctrl-C, by
//! `kill -9`.
//!
//! **How.** `cargo xtask pair` starts its own program again as the first process of a namespace of
//! processes (pid_namespaces(7)). When that process has ended, the kernel ends all others of the
//! namespace. The first process holds one end of a pipe, whose other end only the program holds
//! that started it. So it notices the end of that program, whatever was the cause. It then asks
//! the others to end, and ends itself.

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::UnshareFlags;

use super::hosts::run;
use super::{clock, tun};

/// This program, even if its file was replaced since it started.
pub(super) const OWN_PROGRAM: &str = "/proc/self/exe";
/// How long processes may take to end by themselves.
const GRACE: Duration = Duration::from_secs(1);

/// Runs this command again as the first process of a namespace, which calls [`follow`]. Returns
/// how it ended.
pub(super) fn lead() -> Result<ExitStatus, String> {
    let failed = |error: std::io::Error| format!("there is no namespace of processes: {error}");
    let (end, _held) = std::io::pipe().map_err(failed)?;
    let end = format!("/proc/{}/fd/{}", std::process::id(), end.as_raw_fd());
    let mut command = Command::new(OWN_PROGRAM);
    command.args(["pair", "--leader", &end]).args(std::env::args_os().skip(2));
    tun::leave(UnshareFlags::NEWPID | UnshareFlags::NEWNS).map_err(failed)?;
    command.status().map_err(failed)
}

/// Begins the first process of a namespace. It ends when the process has ended that holds the
/// other side of the pipe with this path.
pub(super) fn follow(end: &Path) -> Result<(), String> {
    // If that process has ended already, there is no such path.
    let mut end = fs::File::open(end).map_err(|error| format!("{}: {error}", end.display()))?;
    run("mount", "--make-rprivate /")?;
    run("mount", "-t proc proc /proc")?;
    let watch = std::thread::Builder::new().name("end".into()).spawn(move || {
        let _ = end.read(&mut [0]);
        end_others();
        std::process::exit(1)
    });
    watch.map(drop).map_err(|error| format!("no thread: {error}"))
}

/// Asks all other processes of the namespace to end, and waits a moment. The kernel ends the rest
/// with this process.
pub(super) fn end_others() {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let others: Vec<u32> = pids.filter(|pid| *pid != std::process::id()).collect();
    for pid in others.iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
        // It may have ended by itself.
        let _ = kill_process(pid, Signal::TERM);
    }
    clock::until(GRACE, || !others.iter().any(|pid| is_running(*pid)));
}

/// Asks a process to end, and ends it if it does not.
pub(super) fn end(child: &mut Child) {
    let is_over = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
    if !is_over(child) {
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
    }
    if !clock::until(GRACE, || is_over(child)) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Returns true if a process has not ended. One that nobody has waited for has.
pub(super) fn is_running(pid: u32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_nobody_has_waited_for_has_ended() {
        let mut child = Command::new("true").spawn().unwrap();
        assert!(is_running(std::process::id()));
        assert!(clock::until(Duration::from_secs(20), || !is_running(child.id())));
        child.wait().unwrap();
        assert!(!is_running(child.id()));
    }
}
