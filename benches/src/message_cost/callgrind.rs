//! Runs one line under `valgrind --tool=callgrind`. The program is this one, started again to play
//! the line.
//!
//! **How it counts.** Callgrind counts in windows ([`super::window`]), and writes a file at the end
//! of each. It has the number of instructions, of system calls (`--collect-systime`) and of misses
//! of simulated caches (`--cache-sim`). (Its option `--toggle-collect` does not restrict the system
//! calls.) The list of system calls (`--trace-syscalls`) tells their kinds. To read a clock is a
//! system call only under valgrind, and is not counted. The child opens several windows. All counts
//! of a line are equal, or nearly so. The figure is the least, because a disturbance, such as a
//! packet that the kernel delivers late, adds to the count.
//!
//! **The caches** are the same on every machine: 32 KiB for instructions and for data, 8 ways each,
//! and behind them 8 MiB with 16 ways, with lines of 64 bytes. What the kernel touches is not seen.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, Result};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::line::Line;
use super::window::{CLOSED, MARK, OPENED, PROCESSOR};

/// The number of windows of a line.
pub(crate) const WINDOWS: usize = 3;
/// Time limit. A line takes some seconds.
const LIMIT: Duration = Duration::from_secs(60);
/// What is a system call only under valgrind.
const CLOCK: &str = "clock_gettime";
/// The simulated caches: bytes, ways, bytes of a line.
const CACHES: [&str; 4] = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64"];

/// The counts of one window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) instructions: u64,
    pub(crate) system_calls: u64,
    /// Misses of the first level, of instructions and data.
    pub(crate) misses: u64,
    /// Misses of the last level.
    pub(crate) last_misses: u64,
    /// The number of calls that sleep until something comes, if there is nothing.
    pub(crate) sleeps: u64,
    /// The system calls by their names.
    pub(crate) kinds: BTreeMap<String, u64>,
}

/// Fails if there is no valgrind, and tells the user what to do.
///
/// # Errors
/// If there is none, or it does not start.
pub(crate) fn check() -> Result<()> {
    match Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::other(format!("valgrind --version: {status}"))),
        Err(error) => Err(Error::other(format!("cannot start valgrind: {error}; on Debian: apt-get install valgrind"))),
    }
}

/// Returns the processor time in seconds that both sides take in all windows, without valgrind.
///
/// # Errors
/// If the child fails.
pub(crate) fn processor_time(line: &Line, count: usize) -> Result<f64> {
    let output = child(Command::new(std::env::current_exe()?), line, count).output()?;
    if !output.status.success() {
        return Err(Error::other(format!("{}: {}", line.name(), String::from_utf8_lossy(&output.stderr))));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let nanos = text.lines().filter_map(|line| line.strip_prefix(PROCESSOR)?.parse::<f64>().ok());
    Ok(nanos.sum::<f64>() / 1e9)
}

/// Tells the child what to play.
fn child(mut command: Command, line: &Line, count: usize) -> Command {
    command.args(["--play", &line.name(), "--count", &count.to_string()]).stdin(Stdio::null());
    command
}

/// Plays `count` operations of the line in each of [`WINDOWS`] windows. Caches are simulated only
/// if
/// `caches` is true, because that takes longer.
///
/// # Errors
/// If the child fails, takes longer than the limit, or valgrind's files are not as expected.
pub(crate) fn run(line: &Line, count: usize, caches: bool) -> Result<[Count; WINDOWS]> {
    let folder = tempfile::Builder::new().prefix("message-cost-").tempdir()?;
    let (profile, log) = (folder.path().join("profile"), folder.path().join("log"));
    let out = File::create(&log)?;
    let mut valgrind = Command::new("valgrind");
    valgrind
        // Threads take turns, so that counts repeat.
        .args(["--tool=callgrind", "--collect-systime=yes", "--trace-syscalls=yes", "--fair-sched=try"])
        .args(CACHES.iter().filter(|_| caches))
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(format!("--zero-before={OPENED}"))
        .arg(format!("--dump-after={CLOSED}"))
        .arg(std::env::current_exe()?)
        // If the child is killed, its files are removed with this directory.
        .env("TMPDIR", folder.path())
        .stdout(out.try_clone()?)
        .stderr(out);
    let ended = wait(&mut child(valgrind, line, count).spawn()?);
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    let counted = ended.and_then(|()| read_all(&profile)).and_then(|mut counts| {
        add_kinds(&mut counts, &log).ok_or_else(|| Error::other("valgrind's list of system calls has no marks"))?;
        Ok(counts)
    });
    counted.map_err(|error| {
        // The list of system calls tells nobody anything.
        let listed = ["SYSCALL[", " --> ", "sys_"];
        let said: Vec<&str> = log.lines().filter(|line| !listed.iter().any(|mark| line.contains(mark))).collect();
        Error::other(format!("{}: {error}\n{}", line.name(), said.join("\n").trim_end()))
    })
}

/// Waits for the child to succeed, and kills it at the limit.
fn wait(child: &mut Child) -> Result<()> {
    let ended = wait_for_end(child);
    if !matches!(ended, Ok(true)) {
        child.kill()?;
    }
    let status = child.wait()?;
    match ended {
        Ok(true) if status.success() => Ok(()),
        Ok(true) => Err(Error::other(format!("valgrind: {status}"))),
        Ok(false) => Err(Error::other(format!("killed after {} s", LIMIT.as_secs()))),
        Err(error) => Err(error),
    }
}

/// Waits for the end of the child. Returns false if it still runs at the limit.
fn wait_for_end(child: &Child) -> Result<bool> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let limit = Timespec::try_from(LIMIT).map_err(Error::other)?;
    loop {
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// Reads the counts of all windows. Callgrind numbers its files from 1.
fn read_all(profile: &Path) -> Result<[Count; WINDOWS]> {
    let mut counts: [Count; WINDOWS] = Default::default();
    for (count, number) in counts.iter_mut().zip(1..) {
        let path = profile.with_extension(number.to_string());
        let text = std::fs::read_to_string(&path)
            .map_err(|error| Error::other(format!("callgrind did not see the counted function: {error}")))?;
        *count = parse(&text).ok_or_else(|| Error::other("callgrind's file has no events or no summary"))?;
    }
    Ok(counts)
}

/// Adds the kinds of the system calls in each window, from lines as `SYSCALL[7,1](232)
/// sys_epoll_wait ( 3, 0x4037380, 256, 0 ) --> [async] ...`. Returns `None` if a mark is missing.
fn add_kinds(counts: &mut [Count; WINDOWS], log: &str) -> Option<()> {
    let calls = log.lines().filter_map(|line| line.split_once("SYSCALL[")?.1.split_once(") sys_"));
    let mut calls = calls.map(|(_, call)| call.split_at(call.find([' ', '[', '(']).unwrap_or(call.len())));
    for count in counts {
        calls.find(|(name, _)| *name == MARK)?;
        loop {
            let (name, arguments) = calls.next()?;
            if name == MARK {
                break;
            }
            if name == CLOCK {
                count.system_calls = count.system_calls.saturating_sub(1);
                continue;
            }
            *count.kinds.entry(name.to_owned()).or_default() += 1;
            let sleeps = match name {
                // The fourth argument is the timeout.
                "epoll_wait" | "epoll_pwait" => {
                    arguments.split([',', ')']).nth(3).is_some_and(|timeout| timeout.trim() != "0")
                }
                // Its timeout is not shown. Nothing here calls it only to look.
                "poll" | "ppoll" => true,
                _ => false,
            };
            count.sleeps += u64::from(sleeps);
        }
    }
    Some(())
}

/// Parses the lines "events: Ir sysCount sysTime" and "summary: 1811 100". Zeros at the end of the
/// summary are left out.
fn parse(text: &str) -> Option<Count> {
    let rest_of = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
    let events: Vec<&str> = rest_of("events")?.split_whitespace().collect();
    let summary: Vec<u64> =
        rest_of("summary")?.split_whitespace().map(|cell| cell.parse().ok()).collect::<Option<_>>()?;
    let value = |name: &str| {
        let at = events.iter().position(|event| *event == name)?;
        Some(summary.get(at).copied().unwrap_or(0))
    };
    let sum = |names: [&str; 3]| names.into_iter().filter_map(value).sum();
    Some(Count {
        instructions: value("Ir")?,
        system_calls: value("sysCount")?,
        misses: sum(["I1mr", "D1mr", "D1mw"]),
        last_misses: sum(["ILmr", "DLmr", "DLmw"]),
        ..Count::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_read_by_the_names_of_its_events() {
        let file =
            |events: &str, summary: &str| format!("version: 1\nevents: {events}\nsummary: {summary}\n\nfn=(1) f\n");
        let count = Count { instructions: 1811, system_calls: 100, ..Count::default() };
        assert_eq!(parse(&file("Ir sysCount sysTime", "1811 100 7")), Some(count.clone()));
        assert_eq!(parse(&file("sysCount Ir", "100 1811")), Some(count.clone()));
        let events = "Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw sysCount sysTime";
        let counted = parse(&file(events, "1811 9 9 1 2 4 8 16 32 100"));
        assert_eq!(counted, Some(Count { misses: 7, last_misses: 56, ..count }));
    }

    #[test]
    fn system_calls_are_told_apart_within_the_windows() {
        let mark = "SYSCALL[7,1](110) sys_getppid ( )[sync] --> Success(0x6) \n";
        let window = "SYSCALL[7,1](232) sys_epoll_wait ( 3, 0x40, 256, 0 ) --> [async] ... \n\
                      SYSCALL[7,1](232) ... [async] --> Success(0x0) \n\
                      SYSCALL[7,2](232) sys_epoll_wait ( 3, 0x40, 256, 4294967295 ) --> [async] ... \n\
                      SYSCALL[7,1](271) sys_ppoll ( 0x1f, 2, 0x1f, 0x0, 8 )\n\
                      sys_ppoll ( 0x1f, 2, 0x1f, 0x0, 8 )\n --> [async] ... \n\
                      SYSCALL[7,1](281) sys_epoll_pwait ( 3, 0x40, 2, 10000, 0x0, 8 ) --> [async] ... \n\
                      SYSCALL[7,1](228) sys_clock_gettime ( 1, 0x40 )[sync] --> Success(0x0) \n\
                      SYSCALL[7,1](16) sys_ioctl[ARG=x] ( 1 )[sync] --> Success(0x0) \n";
        let outside = "SYSCALL[7,1](3) sys_close ( 9 )[sync] --> Success(0x0) \n";
        let log = format!("{outside}{mark}{window}{mark}{outside}").repeat(WINDOWS);
        let mut counts: [Count; WINDOWS] = std::array::from_fn(|_| Count { system_calls: 6, ..Count::default() });
        assert_eq!(add_kinds(&mut counts, &log), Some(()));
        for count in &counts {
            let kinds: Vec<(&str, u64)> = count.kinds.iter().map(|(name, count)| (&**name, *count)).collect();
            assert_eq!(kinds, [("epoll_pwait", 1), ("epoll_wait", 2), ("ioctl", 1), ("ppoll", 1)]);
            assert_eq!((count.system_calls, count.sleeps), (5, 3), "without the clock, and without the look");
        }
        assert_eq!(add_kinds(&mut counts, &log.replacen(mark, "", 1)), None);
    }

    #[test]
    fn zeros_that_callgrind_leaves_out_are_read() {
        let text = "events: Ir sysCount sysTime\nsummary: 12\n";
        assert_eq!(parse(text), Some(Count { instructions: 12, ..Count::default() }));
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        for text in [
            "",
            "events: Ir sysCount\n",
            "summary: 1 2\n",
            "events: Ir\nsummary: 1\n",
            "events: Ir sysCount\nsummary: 1 x\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
