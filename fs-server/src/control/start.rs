//! Starts servers as processes in the background.
//!
//! **How.** The processes are this program with other arguments. Each is in a process group of its
//! own, so that the keys of a terminal (Ctrl-C, Ctrl-Z) do not reach it. A new session is not
//! needed: without standard streams on the terminal, all that is left of one is SIGHUP. A terminal
//! that closes sends it to its foreground group, and a shell to the groups that it knows. This
//! group is neither. Their directory is `/`, so that no file system is kept in use.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;

use bmi::driver::MonotonicClock;
use bmi::{Clock, Time};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::log::{self, Log};
use super::report::{Report, State};
use super::stop::ends_within;
use super::{Cluster, Member, ServerName, list};
use crate::store::Holder;

/// The pause between two looks at whether a server is ready.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How servers are started.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The configuration file, by an absolute path.
    pub(crate) config: PathBuf,
    /// Options of this command that the servers have too.
    pub(crate) options: Vec<&'static str>,
    /// Number of event loops of each server, if it is not that of the configuration.
    pub(crate) threads: Option<usize>,
    /// Run all servers in one process.
    pub(crate) one_process: bool,
    /// Longest time until the manager is ready, and then until all I/O servers are.
    pub(crate) timeout: Duration,
}

/// A process that was started, and its servers.
struct Process<'a> {
    servers: Vec<&'a Member>,
    /// True if it is the one process for all servers. It then prints their names.
    shared: bool,
    child: Child,
    pidfd: OwnedFd,
    log: Log,
}

/// How waiting for a process ended.
enum Outcome {
    Ready,
    Ended(ExitStatus),
    /// These servers are not ready in time.
    Late(Vec<ServerName>),
}

/// Starts those of the servers that do not run, the manager first, and waits until they are ready.
/// When one fails, the rest is not started, and what runs is left running.
pub(crate) fn start(cluster: &Cluster, names: &[ServerName], launch: &Launch) -> Report {
    let mut report = Report::default();
    let mut missing = Vec::new();
    for member in cluster.members(names) {
        let (state, pid) = match member.holder() {
            Ok(Holder::Nobody) => {
                missing.push(member);
                continue;
            }
            Ok(Holder::Process(pid)) => (State::AlreadyRunning, Some(pid)),
            Ok(Holder::Unknown) => (State::AlreadyRunning, None),
            Err(error) => {
                report.errors.push(error);
                (State::Unknown, None)
            }
        };
        report.servers.push(cluster.entry(member, state, pid));
    }
    let iods = missing.split_off(missing.iter().filter(|member| member.name == ServerName::Manager).count());
    let waves: Vec<Vec<Vec<&Member>>> = match launch.one_process {
        true => vec![vec![missing.into_iter().chain(iods).collect()]],
        false => [missing, iods].map(|wave| wave.into_iter().map(|member| vec![member]).collect()).into(),
    };
    for wave in waves {
        start_wave(cluster, wave, launch, &mut report);
    }
    // A manager ends later if an I/O server finds that it has gone back in time.
    for server in report.servers.iter_mut().filter(|server| server.state == State::Started) {
        let member = cluster.members.iter().find(|member| member.name.to_string() == server.name);
        if member.is_some_and(|member| matches!(member.holder(), Ok(Holder::Nobody))) {
            (server.state, server.pid) = (State::Failed, None);
            let log = server.log.as_deref().unwrap_or_default();
            report.errors.push(format!("{}: it was ready, but has ended since; its log {log} says why", server.name));
        }
    }
    // As the configuration lists them.
    report.servers.sort_by_key(|server| server.name.parse::<ServerName>().ok());
    let left = report.servers.iter().filter(|server| matches!(server.state, State::Started | State::NotReady));
    let left: Vec<ServerName> = left.filter_map(|server| server.name.parse().ok()).collect();
    if !report.errors.is_empty() && !left.is_empty() {
        let names = list(left.iter().copied(), ", ");
        let stop = list(left, " ");
        report.errors.push(format!("left running: {names}; correct the cause and start again, or pvfsd stop {stop}"));
    }
    report
}

/// Starts processes with these servers at the same time, and waits for them. Does not start them if
/// the report has an error.
fn start_wave<'a>(cluster: &'a Cluster, wave: Vec<Vec<&'a Member>>, launch: &Launch, report: &mut Report) {
    let clock = MonotonicClock::new();
    let mut processes = Vec::new();
    for servers in wave.into_iter().filter(|servers| !servers.is_empty()) {
        let spawned = match report.errors.is_empty() {
            true => spawn(cluster, servers.clone(), launch).map_err(|error| report.errors.push(error)).ok(),
            false => None,
        };
        match spawned {
            Some(process) => processes.push(process),
            None => {
                report.servers.extend(servers.iter().map(|member| cluster.entry(member, State::NotStarted, None)));
            }
        }
    }
    let deadline = clock.now() + launch.timeout;
    for process in &mut processes {
        let outcome = wait(process, &clock, deadline).unwrap_or_else(|error| {
            report.errors.push(error);
            Outcome::Late(process.servers.iter().map(|member| member.name).collect())
        });
        let (names, log) = (list(process.servers.iter().map(|member| member.name), ", "), process.log.path.display());
        match &outcome {
            Outcome::Ready => {}
            Outcome::Ended(status) => report.errors.push(format!(
                "{names}: the process ended ({status}) and was not ready; the end of its log {log}:{}",
                process.log.tail()
            )),
            Outcome::Late(late) => report.errors.push(format!(
                "{}: not ready within {:?}; process {} is left running; the end of its log {log}:{}",
                list(late.iter().copied(), ", "),
                launch.timeout,
                process.child.id(),
                process.log.tail()
            )),
        }
        for member in &process.servers {
            let (state, pid) = match &outcome {
                Outcome::Ended(_) => (State::Failed, None),
                Outcome::Late(late) if late.contains(&member.name) => (State::NotReady, Some(process.child.id())),
                Outcome::Ready | Outcome::Late(_) => (State::Started, Some(process.child.id())),
            };
            report.servers.push(cluster.entry(member, state, pid));
        }
    }
}

/// Starts a process with these servers.
fn spawn<'a>(cluster: &Cluster, servers: Vec<&'a Member>, launch: &Launch) -> Result<Process<'a>, String> {
    let names = list(servers.iter().map(|member| member.name), ", ");
    let fail = |error: &dyn std::fmt::Display| format!("{names}: cannot be started: {error}");
    let program = std::env::current_exe().map_err(|error| fail(&format!("this program's path: {error}")))?;
    let mut command = Command::new(&program);
    command.arg("--config").arg(&launch.config).args(&launch.options);
    if let Some(threads) = launch.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    let path = match (launch.one_process, &servers[..]) {
        (false, [server]) => {
            match server.name {
                ServerName::Manager => command.arg("manager"),
                ServerName::Iod(index) => command.args(["iod", &index.to_string()]),
            };
            log::own(&cluster.logs, server.name)
        }
        _ => {
            command.arg("run").args(servers.iter().map(|member| member.name.to_string()));
            cluster.logs.join(log::ONE_PROCESS)
        }
    };
    let (log, output) = Log::open(path).map_err(|error| fail(&error))?;
    let errors = output.try_clone().map_err(|error| fail(&error))?;
    command.stdin(Stdio::null()).stdout(output).stderr(errors).current_dir("/").process_group(0);
    let child = command.spawn().map_err(|error| fail(&format!("{}: {error}", program.display())))?;
    // The child is not waited for yet, so its number is not given to another process.
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).map_err(|error| fail(&error))?;
    Ok(Process { servers, shared: launch.one_process, child, pidfd, log })
}

/// Waits until all servers of a process are ready, its end, or the deadline.
fn wait(process: &mut Process<'_>, clock: &MonotonicClock, deadline: Time) -> Result<Outcome, String> {
    loop {
        let mut late = Vec::new();
        for member in &process.servers {
            if !ready(member, process)? {
                late.push(member.name);
            }
        }
        if late.is_empty() {
            return Ok(Outcome::Ready);
        }
        if let Some(status) = process.child.try_wait().map_err(|error| error.to_string())? {
            return Ok(Outcome::Ended(status));
        }
        if clock.now() >= deadline {
            return Ok(Outcome::Late(late));
        }
        // Not a sleep, so that the end of the process is noticed at once.
        ends_within(&process.pidfd, LOOK_AGAIN).map_err(|error| error.to_string())?;
    }
}

/// Returns true if a server serves requests: it has logged that it does, and its process holds the
/// lock on its directory.
fn ready(member: &Member, process: &Process<'_>) -> Result<bool, String> {
    if member.holder()? != Holder::Process(process.child.id()) {
        return Ok(false);
    }
    let line = if process.shared { format!("{}: serving", member.name) } else { "serving".to_owned() };
    let text = process.log.text().map_err(|error| format!("log {}: {error}", process.log.path.display()))?;
    Ok(text.lines().any(|logged| logged == line))
}
