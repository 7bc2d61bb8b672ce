//! Network namespaces: their names, their processes, and their end.
//!
//! **Names.** `bmi-pair-PID-N-server` and `bmi-pair-PID-N-client`, with the id of the process that
//! made them. If that process has ended, they are leftovers of a run that was killed together with
//! its guard, and [`sweep`] removes them. Namespaces that the user keeps are named `bmi-kept-…`,
//! and nothing here removes them.
//!
//! **Invariants**
//! 1. Only processes inside of a namespace are ended. Each is opened by its id (`pidfd_open`), and
//!    then looked at again, so that an id that was given to another process harms nothing.
//! 2. A namespace is removed after its processes have ended.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};

use crate::setup;

/// The network device at each end of the cable.
pub(super) const DEVICE: &str = "cable";
/// Where `ip netns` has the names.
const FOLDER: &str = "/run/netns";
/// How a name begins that belongs to the process whose id follows.
const OWNED: &str = "bmi-pair-";
/// How a name begins that is kept.
const KEPT: &str = "bmi-kept-";
/// How long processes may take to end by themselves.
const GRACE: Duration = Duration::from_secs(1);
/// How often processes are looked for that others started while these were killed.
const ROUNDS: usize = 20;

/// The names of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) server: String,
    pub(super) client: String,
}

impl Names {
    /// Returns names that no other pair has.
    pub(super) fn new(keep: bool) -> Names {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let stem = format!("{}{}-{number}", if keep { KEPT } else { OWNED }, std::process::id());
        Names { server: format!("{stem}-server"), client: format!("{stem}-client") }
    }

    /// Returns both names.
    pub(super) fn both(&self) -> [&str; 2] {
        [&self.server, &self.client]
    }
}

/// Runs `ip` or `tc` with the words of `args`. The error is what it says.
pub(super) fn run(program: &str, args: &str) -> Result<(), String> {
    let path = setup::program(program).ok_or_else(|| format!("there is no program `{program}` (iproute2)"))?;
    let output = Command::new(path).args(args.split_whitespace()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(format!("`{program} {args}`: {said}"))
}

/// Makes a namespace, with its loopback device.
pub(super) fn make(name: &str) -> Result<(), String> {
    run("ip", &format!("netns add {name}"))?;
    run("ip", &format!("-n {name} link set lo up"))
}

/// Returns a command that runs a program inside of a namespace, under the id of the child.
pub(super) fn inside(name: &str, program: &str, args: &[String]) -> Command {
    let mut command = Command::new(setup::program("ip").unwrap_or_else(|| "ip".into()));
    command.args(["netns", "exec", name, program]).args(args);
    command
}

/// Ends the processes of a namespace and removes it. It may be there in part, or not at all.
pub(super) fn remove(name: &str) -> Result<(), String> {
    end_processes(name);
    // The relay ends with its device. Without this it would be there until the kernel clears the
    // namespace, which happens later.
    let _ = run("ip", &format!("-n {name} link delete {DEVICE}"));
    match Path::new(FOLDER).join(name).exists() {
        true => run("ip", &format!("netns delete {name}")),
        false => Ok(()),
    }
}

/// Removes what runs left behind that were killed together with their guards. Returns the names.
pub(super) fn sweep() -> Result<Vec<String>, String> {
    let entries = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let left: Vec<String> = names.filter(|name| owner(name).is_some_and(|pid| !is_alive(pid))).collect();
    left.iter().try_for_each(|name| remove(name))?;
    Ok(left)
}

/// Returns the process that a name belongs to.
fn owner(name: &str) -> Option<Pid> {
    let (pid, _) = name.strip_prefix(OWNED)?.split_once('-')?;
    Pid::from_raw(pid.parse().ok()?)
}

fn is_alive(pid: Pid) -> bool {
    // A process of another user counts too.
    !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH))
}

/// Returns what tells one namespace from another.
fn identity(path: impl AsRef<Path>) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Returns true if a process is inside of a namespace. One that has ended is in none.
pub(super) fn is_inside(pid: u32, name: &str) -> bool {
    let own = identity(format!("/proc/{pid}/ns/net"));
    own.is_some() && own == identity(Path::new(FOLDER).join(name))
}

/// Counts the sockets that serve in the namespace of a process: listeners of TCP, and all of UDP.
pub(super) fn listeners(pid: u32) -> usize {
    let table = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let tcp: usize = ["tcp", "tcp6"].iter().map(|name| count_listeners(&table(name))).sum();
    let udp = ["udp", "udp6"].iter().map(|name| table(name).lines().skip(1).count());
    tcp + udp.sum::<usize>()
}

/// Reads a table of proc(5), *net/tcp*: the fourth field is the state, and 0A means LISTEN.
fn count_listeners(table: &str) -> usize {
    table.lines().skip(1).filter(|line| line.split_whitespace().nth(3) == Some("0A")).count()
}

pub(super) fn processes(name: &str) -> Vec<OwnedFd> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let open = |pid: u32| {
        let process = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
        // The id is this process's as long as it is inside.
        is_inside(pid, name).then_some(process)
    };
    pids.filter(|pid| is_inside(*pid, name)).filter_map(open).collect()
}

/// Ends all processes of a namespace: first politely, then by force.
fn end_processes(name: &str) {
    let mut signal = Signal::TERM;
    for _ in 0..ROUNDS {
        let processes = processes(name);
        if processes.is_empty() {
            return;
        }
        for process in &processes {
            // It may have ended by itself.
            let _ = pidfd_send_signal(process, signal);
        }
        await_ends(&processes);
        signal = Signal::KILL;
    }
}

/// Waits for the ends of processes, [`GRACE`] for all together.
fn await_ends(processes: &[OwnedFd]) {
    let end = super::clock::now_ns() + GRACE.as_nanos() as u64;
    for process in processes {
        let left = end.saturating_sub(super::clock::now_ns());
        let limit = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
        let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_process_unless_it_is_kept() {
        let names = Names::new(false);
        let own = Pid::from_raw(std::process::id().cast_signed());
        assert_eq!(names.both().map(owner), [own, own]);
        assert_ne!(names, Names::new(false));
        assert_eq!(Names::new(true).both().map(owner), [None, None]);
        for name in ["bmi-pair-", "bmi-pair-x-0-server", "bmi-pair-0-0-server", "bmi-pair-7", "other-7-0-server"] {
            assert_eq!(owner(name), None, "{name}");
        }
        assert!(own.is_some_and(is_alive));
    }

    #[test]
    fn a_process_that_has_ended_is_not_alive() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(is_alive(pid), "it was not reaped");
        child.wait().unwrap();
        assert!(!is_alive(pid));
    }

    #[test]
    fn listeners_are_counted_in_the_table_of_the_system() {
        const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue\n";
        let connected = "   0: 0100007F:1F90 0100007F:0A0A 01 00000000:00000000\n";
        let listener = "   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n";
        assert_eq!(count_listeners(&format!("{HEAD}{connected}")), 0);
        assert_eq!(count_listeners(&format!("{HEAD}{connected}{listener}{listener}")), 2);
    }

    #[test]
    fn what_ip_refuses_is_told() {
        let why = run("ip", "no-such-object").unwrap_err();
        assert!(why.starts_with("`ip no-such-object`: ") || why.contains("iproute2"), "{why}");
    }
}
