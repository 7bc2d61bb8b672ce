//! Runs a program: passes its output on line by line, limits its time, and collects the totals that
//! it prints.
//!
//! **Invariants**
//! 1. Standard input is closed, so no program can wait for an answer.
//! 2. Every run ends. At the limit the program and all processes that it started are killed, and
//!    the run has failed.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::totals::Totals;

/// A program with its arguments, not yet run.
pub(crate) struct Invocation {
    command: Command,
}

/// Why a run failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The reason, as text.
    pub(crate) reason: String,
    /// The totals that the program had counted by then.
    pub(crate) totals: Totals,
    /// True if this machine cannot run the program, and nothing is wrong with the project. Such a
    /// failure is printed, and counted as skipped.
    pub(crate) is_skip: bool,
}

impl Failure {
    /// Creates a failure before anything was counted.
    pub(crate) fn new(reason: impl Into<String>) -> Failure {
        Failure::counted(reason, Totals::NONE)
    }

    /// Creates a failure with totals.
    pub(crate) fn counted(reason: impl Into<String>, totals: Totals) -> Failure {
        Failure { reason: reason.into(), totals, is_skip: false }
    }

    /// Creates a failure for a program that this machine cannot run.
    pub(crate) fn skip(reason: impl Into<String>) -> Failure {
        Failure { reason: reason.into(), totals: Totals::SKIPPED, is_skip: true }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Invocation {
    /// Creates an invocation of `program` with the words of `args`, in the directory `root`.
    pub(crate) fn new(root: &Path, program: impl Into<OsString>, args: &str) -> Invocation {
        let mut command = Command::new(program.into());
        command.args(args.split_whitespace()).current_dir(root).stdin(Stdio::null());
        Invocation { command }
    }

    /// Creates an invocation of `cargo` with the words of `args`. It is the cargo that runs this
    /// program.
    pub(crate) fn cargo(root: &Path, args: &str) -> Invocation {
        Invocation::new(root, std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), args)
    }

    /// Adds arguments. They are not split into words.
    pub(crate) fn args(mut self, args: &[String]) -> Invocation {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Invocation {
        self.command.env(name, value);
        self
    }

    /// Returns the command line, for messages.
    fn line(&self) -> String {
        let program = Path::new(self.command.get_program()).file_name().unwrap_or_default().to_string_lossy();
        let args = self.command.get_args().map(|arg| format!(" {}", arg.to_string_lossy())).collect::<String>();
        format!("{program}{args}")
    }

    /// Runs the program with this program's own output streams.
    pub(crate) fn hand_over(mut self, limit: Duration) -> Result<(), Failure> {
        let line = self.line();
        let mut child = self.spawn()?;
        // This channel never carries anything. Only the limit ends the wait.
        let (_alive, nothing) = channel();
        let status = wait(&mut child, &nothing, limit, &mut |_| {});
        verdict(&line, status, limit, Totals::default())
    }

    /// Runs the program, passes its output on, and returns the totals that its test runners
    /// printed.
    pub(crate) fn run(self, limit: Duration) -> Result<Totals, Failure> {
        self.run_to(std::io::stdout(), std::io::stderr(), limit)
    }

    /// Runs the program and passes all of its output on to standard error, because standard output
    /// is for results.
    pub(crate) fn run_aside(self, limit: Duration) -> Result<(), Failure> {
        self.run_to(std::io::stderr(), std::io::stderr(), limit).map(drop)
    }

    fn run_to(
        mut self,
        out: impl Write + Send + 'static,
        err: impl Write + Send + 'static,
        limit: Duration,
    ) -> Result<Totals, Failure> {
        let line = self.line();
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.spawn()?;
        let (sender, receiver) = channel();
        let readers = [
            child.stdout.take().map(|from| pass_on(from, out, sender.clone())),
            child.stderr.take().map(|from| pass_on(from, err, sender)),
        ];
        let mut totals = Totals::default();
        let status = wait(&mut child, &receiver, limit, &mut |more| totals += more);
        for reader in readers.into_iter().flatten().flatten() {
            let _ = reader.join();
        }
        receiver.try_iter().for_each(|more| totals += more);
        verdict(&line, status, limit, totals)?;
        Ok(totals)
    }

    /// Runs the program and returns its standard output. Its standard error is passed on.
    pub(crate) fn output(self, limit: Duration) -> Result<String, Failure> {
        let kept = Kept::default();
        self.run_to(kept.clone(), std::io::stderr(), limit)?;
        Ok(kept.text())
    }

    /// Runs the program and returns how it ended, and what it printed on both streams.
    pub(crate) fn captured(self, limit: Duration) -> (Result<(), Failure>, String) {
        let kept = Kept::default();
        let result = self.run_to(kept.clone(), kept.clone(), limit).map(drop);
        (result, kept.text())
    }

    /// Returns true if the program runs and ends with success. Its output is discarded.
    pub(crate) fn succeeds(mut self) -> bool {
        self.command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    fn spawn(&mut self) -> Result<Child, Failure> {
        let line = self.line();
        self.command.spawn().map_err(|error| Failure::new(format!("`{line}` cannot be started: {error}")))
    }
}

/// A buffer that keeps output.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Copies `from` to `to` line by line on a thread of its own, and sends the totals that it finds.
fn pass_on(
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
    totals: Sender<Totals>,
) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name("output".into()).spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            // Go on if the terminal is closed: the totals are still needed.
            let _ = to.write_all(&line).and_then(|()| to.flush());
            if let Some(more) = Totals::from_line(&String::from_utf8_lossy(&line)) {
                let _ = totals.send(more);
            }
            line.clear();
        }
    })
}

/// Waits for the end of `child`, for at most `limit`. Returns `None` if it had to be killed.
#[expect(clippy::disallowed_methods, reason = "a time limit on a real process")]
fn wait(
    child: &mut Child,
    totals: &Receiver<Totals>,
    limit: Duration,
    count: &mut dyn FnMut(Totals),
) -> Option<std::io::Result<ExitStatus>> {
    const LOOK_AGAIN: Duration = Duration::from_millis(20);
    let end = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => return Some(Ok(status)),
            Err(error) => return Some(Err(error)),
        }
        if Instant::now() >= end {
            // Kill the child first, so that it starts no more processes. Look up its children
            // before, while it is still their parent.
            let family = descendants(child.id());
            let _ = child.kill();
            // Use the system call: a bare machine has no program `kill`.
            for process in family.into_iter().filter_map(|id| Pid::from_raw(id.cast_signed())) {
                let _ = kill_process(process, Signal::KILL);
            }
            let _ = child.wait();
            return None;
        }
        match totals.recv_timeout(LOOK_AGAIN) {
            Ok(more) => count(more),
            Err(RecvTimeoutError::Timeout) => {}
            // The output is closed, so the program ends soon.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Returns the processes that `process` started, and those that they started.
///
/// A process group would not do, because a key press that interrupts this program must reach them
/// too.
pub(crate) fn descendants(process: u32) -> Vec<u32> {
    let mut family = vec![process];
    let mut next = 0;
    while let Some(parent) = family.get(next) {
        let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        let children: Vec<u32> = threads
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
            .flat_map(|line| line.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>())
            .collect();
        family.extend(children);
        next += 1;
    }
    family.split_off(1)
}

fn verdict(
    line: &str,
    status: Option<std::io::Result<ExitStatus>>,
    limit: Duration,
    totals: Totals,
) -> Result<(), Failure> {
    let reason = match status {
        Some(Ok(status)) if status.success() => return Ok(()),
        Some(Ok(status)) => format!("`{line}` failed: {status}"),
        Some(Err(error)) => format!("`{line}` cannot be waited for: {error}"),
        None => format!("`{line}` was killed: it took longer than {} s", limit.as_secs()),
    };
    Err(Failure::counted(reason, totals))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Runs a shell script. Its output is discarded, because its totals must not be counted as
    /// totals of this test.
    fn shell(script: &str, limit: Duration) -> Result<Totals, Failure> {
        let mut invocation = Invocation::new(Path::new("."), "sh", "-c");
        invocation.command.arg(script);
        invocation.run_to(std::io::sink(), std::io::sink(), limit)
    }

    #[test]
    fn totals_of_both_streams_are_added_up() {
        let script = "echo 'test result: ok. 2 passed; 0 failed'; echo '  Summary [ 0.1s] 3 tests run: 3 passed' >&2";
        assert_eq!(shell(script, LONG).unwrap(), Totals { passed: 5, ..Totals::NONE });
    }

    #[test]
    fn a_failure_names_the_command_and_keeps_the_totals() {
        let failure = shell("echo 'test result: FAILED. 2 passed; 1 failed'; exit 3", LONG).unwrap_err();
        assert_eq!(failure.totals, Totals { passed: 2, failed: 1, skipped: 0 });
        assert!(failure.to_string().contains("exit status: 3"), "{failure}");
    }

    #[test]
    fn what_hangs_is_killed_with_its_children() {
        let failure = shell("sleep 1000 & wait", Duration::from_millis(100)).unwrap_err();
        assert!(failure.to_string().contains("was killed"), "{failure}");
    }

    #[test]
    fn a_missing_program_is_one_clear_line() {
        let failure = Invocation::new(Path::new("."), "no-such-program", "").run(LONG).unwrap_err();
        assert!(failure.to_string().contains("`no-such-program` cannot be started"), "{failure}");
    }
}
