//! Processes that the guard knows, and what the system says about a process.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

use super::spec::{Done, Spec};
use crate::storm::guard::Guard;

/// The guard of all processes of a run, except the servers, which have their own.
pub(super) type Shared = Arc<Mutex<Guard>>;

/// A process that is killed when it is dropped.
pub(super) struct Process {
    child: Child,
    guard: Shared,
}

impl Process {
    pub(super) fn start(command: &mut Command, guard: &Shared) -> Result<Process, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        guard.lock().unwrap_or_else(PoisonError::into_inner).add(&child)?;
        Ok(Process { child, guard: guard.clone() })
    }

    /// Starts an attacking process: this program once more.
    pub(super) fn attacker(spec: &Spec, guard: &Shared) -> Result<Process, String> {
        let spec = serde_json::to_string(spec).map_err(|error| error.to_string())?;
        // This program, even if its file was replaced since it started.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("xtask").args(["hostile-attacker", &spec]);
        Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()), guard)
    }

    pub(super) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(super) fn signal(&self, signal: Signal) {
        // It is not reaped, so that its id is its own. It may have ended.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Returns true if it has ended, without reaping it.
    pub(super) fn has_ended(&self) -> bool {
        stat(self.child.id()).is_none_or(|stat| stat.is_zombie)
    }

    /// Returns the microseconds of processor time that it has used, also after its end.
    pub(super) fn cpu_us(&self) -> u64 {
        stat(self.child.id()).map_or(0, |stat| stat.cpu_us)
    }

    /// Returns the bytes that it has read and written.
    pub(super) fn moved(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/io", self.child.id())).unwrap_or_default();
        let value = |line: &str| line.split_once(": ").and_then(|(_, value)| value.parse::<u64>().ok());
        text.lines().filter(|line| line.starts_with("rchar") || line.starts_with("wchar")).filter_map(value).sum()
    }

    /// Waits until an attacker has opened all its connections once, and says so with an empty line.
    pub(super) fn await_line(&mut self) -> Result<(), String> {
        // Byte by byte, because the rest of the output is read elsewhere.
        let out = self.child.stdout.as_mut().ok_or("an attacker has no output")?;
        out.read_exact(&mut [0]).map_err(|_| "an attacker ended before its time".to_owned())
    }

    /// Tells an attacker to end, waits for that, and returns what it has done.
    pub(super) fn finish(mut self) -> Result<Done, String> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        if let Some(out) = &mut self.child.stdout {
            out.read_to_string(&mut text).map_err(|error| format!("attacker: {error}"))?;
        }
        serde_json::from_str(text.trim()).map_err(|_| "an attacker ended before its time".to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.guard.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.child);
        let _ = self.child.wait();
    }
}

/// What the system says about a process.
struct Stat {
    is_zombie: bool,
    cpu_us: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the state, utime and stime: fields 3, 14 and 15 in the table of proc(5).
fn parse(stat: &str) -> Option<Stat> {
    // The second field is the program's name, in parentheses. It may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let ticks: u64 = fields.skip(10).take(2).map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Stat { is_zombie, cpu_us: ticks * 1_000_000 / rustix::param::clock_ticks_per_second() })
}

/// Returns the resident memory of a process in bytes, and the part of it that no other process can
/// have mapped. Both are 0 if the process has ended.
pub(super) fn resident(pid: u32) -> (u64, u64) {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    (value("VmRSS:").unwrap_or(0) << 10, value("RssAnon:").unwrap_or(0) << 10)
}

/// Returns the number of open descriptors of a process, or 0 if it has ended.
pub(super) fn descriptors(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_system_are_read() {
        let zombie = parse("7 (a) b) Z 1 7 7 0 -1 4194304 100 200 0 0 11 22 33 44 20 0 1 0 5").unwrap();
        let second = rustix::param::clock_ticks_per_second();
        assert_eq!((zombie.is_zombie, zombie.cpu_us), (true, 33 * 1_000_000 / second));
        let own = std::process::id();
        assert!(parse("").is_none() && stat(own).is_some_and(|stat| !stat.is_zombie));
        let (all, private) = resident(own);
        assert!(private > 64 << 10 && all > private && descriptors(own) >= 3);
    }
}
