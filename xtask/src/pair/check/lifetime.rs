//! What a run of `cargo xtask pair` leaves behind, whatever ends it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::report::Row;
use crate::command::descendants;
use crate::pair::clock;
use crate::pair::isolation::{OWN_PROGRAM, is_running};

/// How long a run may take to begin, and to end.
const LIMIT: Duration = Duration::from_secs(20);
/// The name of the program in the table.
const PROGRAM: &str = "xtask";

/// Runs pairs that end in different ways, each over a cable that is a process.
pub(super) fn rows() -> Vec<Row> {
    let nothing_left = |what, is| Row::fact(what, PROGRAM, "nothing is left", is);
    vec![
        Row::fact("exit status of the command", PROGRAM, "passed on", passes_status_on()),
        nothing_left("after SIGTERM", leaves_nothing(Signal::TERM, false)),
        nothing_left("after SIGINT", leaves_nothing(Signal::INT, false)),
        nothing_left("after SIGKILL", leaves_nothing(Signal::KILL, false)),
        nothing_left("after SIGKILL, also of the first process", leaves_nothing(Signal::KILL, true)),
    ]
}

/// Starts a run with a command.
fn start(words: &[&str]) -> Result<Child, String> {
    let mut command = Command::new(OWN_PROGRAM);
    command.arg0("xtask").args(["pair", "--cable", "relay", "--"]).args(words).process_group(0);
    command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|error| error.to_string())
}

fn passes_status_on() -> Result<bool, String> {
    let status = start(&["sh", "-c", "exit 7"])?.wait().map_err(|error| error.to_string())?;
    Ok(status.code() == Some(7))
}

/// Starts a run whose command takes long and does not end when it is asked to, and kills it, also
/// the first process of its namespace if `both` is true. Returns true if all processes have ended;
/// then the kernel has removed all that only they held.
fn leaves_nothing(signal: Signal, both: bool) -> Result<bool, String> {
    let mut child = start(&["sh", "-c", "trap '' TERM INT; sleep 1000 & wait"])?;
    let runs = |pid: &u32, word| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(word);
    let mut family = Vec::new();
    let has_begun = clock::until(LIMIT, || {
        family = descendants(child.id());
        family.iter().any(|pid| runs(pid, b"sleep\0"))
    });
    let first = family.first().filter(|_| both);
    for pid in first.copied().into_iter().chain([child.id()]).filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
        kill_process(pid, signal).map_err(|error| error.to_string())?;
    }
    child.wait().map_err(|error| error.to_string())?;
    // The first process, the relay, the shell and its child.
    let is_whole = has_begun && family.len() >= 4;
    Ok(is_whole && clock::until(LIMIT, || !family.iter().any(|pid| is_running(*pid))))
}
