//! Processes that end with their parent, what the system says about one, and the clock that all
//! processes share.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};

use crate::{Outcome, named};

/// A process that is killed when this is dropped, and by the kernel when the thread that started it
/// has ended, however that was.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a process.
    pub fn start(command: &mut Command) -> Outcome<Process> {
        let parent = rustix::process::getpid();
        let follow = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before the call.
            let is_alone = rustix::process::getppid() != Some(parent);
            if is_alone { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
        };
        // SAFETY: the closure runs in the child after `fork`, where only calls are sound that may
        // be made in a signal handler. It makes two system calls and touches no lock and no heap:
        // an `io::Error` of a kind or of a number is a plain value.
        unsafe { command.pre_exec(follow) };
        let child = command.spawn().map_err(named(command.get_program().display()))?;
        Ok(Process { child })
    }

    /// Starts a process and reads the lines that it prints, until `is_last` is true for one or it
    /// has closed its output. Returns the lines too. What it prints later is not read.
    pub fn start_until(command: &mut Command, is_last: impl Fn(&str) -> bool) -> Outcome<(Process, Vec<String>)> {
        let mut process = Process::start(command.stdout(Stdio::piped()))?;
        let mut lines = Vec::new();
        for line in process.stdout.iter_mut().flat_map(|out| BufReader::new(out).lines()) {
            lines.push(line?);
            if lines.last().is_some_and(|line| is_last(line)) {
                break;
            }
        }
        Ok((process, lines))
    }

    /// Sends a signal. That it has ended is no error.
    pub fn signal(&self, signal: Signal) {
        // It is not reaped, so that its id is its own.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Returns true if it has ended, without reaping it.
    pub fn has_ended(&self) -> bool {
        stat(self.id()).is_none_or(|(is_zombie, _)| is_zombie)
    }

    /// Returns the microseconds of processor time that it has used, also after its end.
    pub fn cpu_us(&self) -> u64 {
        stat(self.id()).map_or(0, |(_, cpu_us)| cpu_us)
    }

    /// Returns the bytes that it has read and written.
    pub fn moved(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/io", self.id())).unwrap_or_default();
        ["rchar:", "wchar:"].iter().filter_map(|name| number(&text, name)).sum()
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns true for a process that has ended and is not reaped, and its processor time in
/// microseconds.
fn stat(pid: u32) -> Option<(bool, u64)> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the state, utime and stime: fields 3, 14 and 15 in the table of proc(5).
fn parse(stat: &str) -> Option<(bool, u64)> {
    // The second field is the program's name, in parentheses. It may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let ticks: u64 = fields.skip(10).take(2).map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some((is_zombie, ticks * 1_000_000 / rustix::param::clock_ticks_per_second()))
}

/// Returns the number of a line `name number …`.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What a process uses at a moment. All is 0 if it has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory in bytes.
    pub resident: u64,
    /// The part of it that is no file and not shared with another process, in bytes.
    pub private: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

impl Usage {
    /// Reads what a process uses.
    pub fn of(pid: u32) -> Usage {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let bytes = |name| number(&text, name).unwrap_or(0) << 10;
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64);
        Usage { resident: bytes("VmRSS:"), private: bytes("RssAnon:"), descriptors }
    }

    /// Returns the larger of each number.
    pub fn max(self, other: Usage) -> Usage {
        Usage {
            resident: self.resident.max(other.resident),
            private: self.private.max(other.private),
            descriptors: self.descriptors.max(other.descriptors),
        }
    }
}

/// Returns the time in microseconds of `CLOCK_MONOTONIC`, which all processes share.
pub fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Waits.
#[expect(clippy::disallowed_methods, reason = "real processes work in real time")]
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until `is` returns true. Returns false if that takes longer than `limit`.
pub fn until(limit: Duration, mut is: impl FnMut() -> Outcome<bool>) -> Outcome<bool> {
    let end_us = now_us() + limit.as_micros() as u64;
    while !is()? {
        if now_us() >= end_us {
            return Ok(false);
        }
        sleep(Duration::from_millis(10));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_system_are_read() {
        let second = rustix::param::clock_ticks_per_second();
        let zombie = parse("7 (a) b) Z 1 7 7 0 -1 4194304 100 200 0 0 11 22 33 44 20 0 1 0 5");
        assert_eq!(zombie, Some((true, 33 * 1_000_000 / second)));
        let own = std::process::id();
        assert!(parse("").is_none() && stat(own).is_some_and(|(is_zombie, _)| !is_zombie));
        let usage = Usage::of(own);
        assert!(usage.private > 64 << 10 && usage.resident > usage.private && usage.descriptors >= 3);
    }

    #[test]
    fn a_process_ends_with_the_thread_that_started_it_even_if_it_is_stopped() {
        let start = || Process::start(Command::new("sleep").arg("1000").stdin(Stdio::null())).unwrap();
        let left = std::thread::Builder::new().spawn(start).unwrap().join().unwrap();
        left.signal(Signal::STOP);
        assert!(until(Duration::from_secs(10), || Ok(left.has_ended())).unwrap());
        let here = start();
        assert!(!here.has_ended());
    }
}
