//! Stops the processes of servers.
//!
//! **Protocol**, for each process:
//!
//! 1. The lock on the server's directory leads to the process id.
//! 2. The process is opened (`pidfd_open`). The descriptor always means this process, even if its
//!    id is used again.
//! 3. The lock is looked at again. If this process does not hold it, it is not the server, and is
//!    left alone.
//! 4. It gets SIGTERM, and its end is waited for; on request SIGKILL after the time limit.
//!
//! The manager goes first, then all I/O servers at the same time. The module's documentation
//! ([`super`]) says why.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use bmi::Clock;
use bmi::driver::MonotonicClock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::report::{Entry, Report, State};
use super::{Cluster, Member, ServerName, list, log};
use crate::store::Holder;

/// Longest wait for the end of a process after SIGKILL. It lasts only while the kernel waits for a
/// device.
const KILL: Duration = Duration::from_secs(10);

/// A process, and those of the servers in it that are to be stopped.
struct Process<'a> {
    pid: u32,
    servers: Vec<&'a Member>,
    log: Option<PathBuf>,
}

/// A process that was signalled.
struct Signalled<'a> {
    process: Process<'a>,
    pidfd: OwnedFd,
}

/// Stops those of the servers that run: the manager first, then the I/O servers. Waits for the end
/// of each process for at most `timeout`. With `kill`, a process that has not ended by then is
/// killed.
///
/// If a process also runs other servers, nothing is stopped, and the report has the error.
pub(crate) fn stop(cluster: &Cluster, names: &[ServerName], timeout: Duration, kill: bool) -> Report {
    let mut report = Report::default();
    let mut processes: Vec<Process<'_>> = Vec::new();
    for member in cluster.members(names) {
        match member.holder() {
            Ok(Holder::Nobody) => report.servers.push(cluster.entry(member, State::NotRunning, None)),
            Ok(Holder::Process(pid)) => match processes.iter_mut().find(|process| process.pid == pid) {
                Some(process) => process.servers.push(member),
                None => processes.push(Process { pid, servers: vec![member], log: log::of_process(pid) }),
            },
            Ok(Holder::Unknown) => {
                report.errors.push(format!(
                    "{}: a process holds the lock on {}, but it cannot be seen; stop it as its user or as root",
                    member.name,
                    member.dir.display()
                ));
                report.servers.push(cluster.entry(member, State::Running, None));
            }
            Err(error) => {
                report.errors.push(error);
                report.servers.push(cluster.entry(member, State::Unknown, None));
            }
        }
    }
    if let Err(error) = refuse_parts(cluster, names, &processes) {
        report.errors.push(error);
        for process in processes {
            let running = |member| cluster.entry(member, State::Running, Some(process.pid));
            report.servers.extend(process.servers.iter().copied().map(running));
        }
        report.servers.sort_by_key(|server| server.name.parse::<ServerName>().ok());
        return report;
    }
    // The first process has the manager if any has: servers are in order.
    let manager = |process: &Process<'_>| process.servers[0].name == ServerName::Manager;
    let iods = processes.split_off(processes.iter().filter(|process| manager(process)).count());
    for wave in [processes, iods] {
        stop_wave(cluster, wave, timeout, kill, &mut report);
    }
    report.servers.sort_by_key(|server| server.name.parse::<ServerName>().ok());
    report
}

/// Fails if one of the processes also runs a server that is not to be stopped.
fn refuse_parts(cluster: &Cluster, names: &[ServerName], processes: &[Process<'_>]) -> Result<(), String> {
    let others = cluster.members.iter().filter(|member| !names.contains(&member.name));
    let others: Vec<_> = others.map(|member| (member.name, member.holder())).collect();
    for process in processes {
        let here = others.iter().filter(|(_, holder)| *holder == Ok(Holder::Process(process.pid)));
        let here: Vec<ServerName> = here.map(|(name, _)| *name).collect();
        if !here.is_empty() {
            return Err(format!(
                "process {} runs {} and also {}; nothing was stopped; name these too, or no server to stop all",
                process.pid,
                list(process.servers.iter().map(|member| member.name), ", "),
                list(here, ", ")
            ));
        }
    }
    Ok(())
}

/// Stops these processes at the same time.
fn stop_wave(cluster: &Cluster, wave: Vec<Process<'_>>, timeout: Duration, kill: bool, report: &mut Report) {
    let clock = MonotonicClock::new();
    let mut record = |process: &Process<'_>, state, pid| {
        // The process may have ended. Its log was looked up before.
        let log = process.log.as_ref().map(|log| log.display().to_string());
        let entry = |member| Entry { log: log.clone(), ..cluster.entry(member, state, pid) };
        report.servers.extend(process.servers.iter().copied().map(entry));
    };
    let mut signalled = Vec::new();
    for process in wave {
        match signal(&process) {
            Ok(Some(pidfd)) => signalled.push(Signalled { process, pidfd }),
            Ok(None) => record(&process, State::Stopped, None),
            Err(error) => {
                report.errors.push(failure(&process, &error));
                record(&process, State::Running, Some(process.pid));
            }
        }
    }
    let deadline = clock.now() + timeout;
    for Signalled { process, pidfd } in signalled {
        let late =
            || format!("has not ended within {timeout:?} after SIGTERM; --kill ends it at once, as a crash does");
        let outcome = match ends_within(&pidfd, deadline.since(clock.now())) {
            Ok(true) => Ok(State::Stopped),
            Ok(false) if kill => match killed(&pidfd) {
                Ok(true) => Ok(State::Killed),
                Ok(false) => Err(format!("has not ended within {KILL:?} after SIGKILL")),
                Err(error) => Err(error.to_string()),
            },
            Ok(false) => Err(late()),
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(state) => record(&process, state, None),
            Err(error) => {
                report.errors.push(failure(&process, &error));
                record(&process, State::Running, Some(process.pid));
            }
        }
    }
}

/// Returns a message that names the servers, the process and its log.
fn failure(process: &Process<'_>, error: &str) -> String {
    let names = list(process.servers.iter().map(|member| member.name), ", ");
    let log = process.log.as_ref().map_or(String::new(), |log| format!("; its log is {}", log.display()));
    format!("{names}: process {} {error}{log}", process.pid)
}

/// Sends SIGTERM to a process that still holds the lock of its server. Returns `None` if it has
/// ended meanwhile.
fn signal(process: &Process<'_>) -> Result<Option<OwnedFd>, String> {
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).ok_or("has no valid number")?;
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(None),
        opened => opened.map_err(|error| format!("cannot be opened: {error}"))?,
    };
    match process.servers[0].holder()? {
        Holder::Process(pid) if pid == process.pid => {}
        Holder::Nobody => return Ok(None),
        Holder::Process(_) | Holder::Unknown => {
            return Err("ended, and another one has started in its place; stop again".to_owned());
        }
    }
    match pidfd_send_signal(&pidfd, Signal::TERM) {
        Err(Errno::SRCH) => Ok(None),
        sent => sent.map(|()| Some(pidfd)).map_err(|error| format!("cannot be signalled: {error}")),
    }
}

/// Kills a process. Returns true if it has ended.
fn killed(pidfd: &OwnedFd) -> io::Result<bool> {
    match pidfd_send_signal(pidfd, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => ends_within(pidfd, KILL),
        Err(error) => Err(error.into()),
    }
}

/// Waits for the end of a process. Returns true if it has ended.
pub(super) fn ends_within(pidfd: &OwnedFd, timeout: Duration) -> io::Result<bool> {
    let clock = MonotonicClock::new();
    let deadline = clock.now() + timeout;
    loop {
        let limit = Timespec::try_from(deadline.since(clock.now())).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&limit)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
