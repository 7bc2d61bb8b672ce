//! What a run of `cargo xtask pair` leaves behind, whatever ends it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::clock;
use super::guard::OWN_PROGRAM;
use super::namespaces;
use super::report::Row;

/// How long a run may take to begin, and to end.
const LIMIT: Duration = Duration::from_secs(20);
/// The name of the program in the table.
const PROGRAM: &str = "xtask";

/// Runs pairs that end in different ways, each over a cable that is a process.
pub(super) fn rows() -> Vec<Row> {
    vec![
        Row::fact("exit status of the command", PROGRAM, "passed on", passes_status_on()),
        Row::fact("after SIGTERM", PROGRAM, "nothing is left", leaves_nothing(Signal::TERM)),
        Row::fact("after SIGINT", PROGRAM, "nothing is left", leaves_nothing(Signal::INT)),
        Row::fact("after SIGKILL", PROGRAM, "nothing is left", leaves_nothing(Signal::KILL)),
        Row::fact("after SIGKILL, also of the guard", PROGRAM, "the next run removes it", is_swept()),
    ]
}

/// Starts a run with a command that takes long and does not end when it is asked to.
fn start(words: &[&str]) -> Result<Child, String> {
    let mut command = Command::new(OWN_PROGRAM);
    command.arg0("xtask").args(["pair", "--cable", "relay", "--"]).args(words).process_group(0);
    command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|error| error.to_string())
}

fn passes_status_on() -> Result<bool, String> {
    let mut child = start(&["sh", "-c", "exit 7"])?;
    let status = child.wait().map_err(|error| error.to_string())?;
    Ok(status.code() == Some(7) && names(child.id()).is_empty())
}

/// Returns the namespaces of a run.
fn names(pid: u32) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&format!("bmi-pair-{pid}-"))).collect()
}

/// Starts a run and waits until its command is in the client. Returns the namespaces too.
fn begin() -> Result<(Child, Vec<String>), String> {
    let child = start(&["sh", "-c", "trap '' TERM INT; sleep 1000 & wait"])?;
    let is_there = || {
        let names = names(child.id());
        names.len() == 2 && names.iter().any(|name| namespaces::processes(name).len() >= 2)
    };
    if !clock::until(LIMIT, is_there) {
        return Err("the run did not begin".to_owned());
    }
    let names = names(child.id());
    Ok((child, names))
}

fn is_gone(names: &[String], relay: Option<Pid>) -> bool {
    let is_empty = names.iter().all(|name| namespaces::processes(name).is_empty());
    // The relay was a child of the run, so that its id is given back when it has ended.
    let has_relay = relay.is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok());
    is_empty && !has_relay && names.iter().all(|name| !fs::exists(format!("/run/netns/{name}")).unwrap_or(true))
}

fn leaves_nothing(signal: Signal) -> Result<bool, String> {
    let (mut child, names) = begin()?;
    let relay = process_of(child.id(), "pair-relay");
    let sent = kill_process(Pid::from_child(&child), signal);
    sent.map_err(|error| error.to_string())?;
    child.wait().map_err(|error| error.to_string())?;
    Ok(relay.is_some() && clock::until(LIMIT, || is_gone(&names, relay)))
}

fn is_swept() -> Result<bool, String> {
    let (mut child, names) = begin()?;
    let relay = process_of(child.id(), "pair-relay");
    let guard = process_of(child.id(), "pair-guard").ok_or("there is no guard")?;
    for process in [guard, Pid::from_child(&child)] {
        kill_process(process, Signal::KILL).map_err(|error| error.to_string())?;
    }
    child.wait().map_err(|error| error.to_string())?;
    let stays = names.len() == 2 && !is_gone(&names, relay);
    start(&["true"])?.wait().map_err(|error| error.to_string())?;
    Ok(stays && clock::until(LIMIT, || is_gone(&names, relay)))
}

/// Returns the child of a process whose first argument is a word.
fn process_of(parent: u32, word: &str) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let has_word = |pid: &&str| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(word.as_bytes())
    };
    let pid = children.split_whitespace().find(has_word)?;
    Pid::from_raw(pid.parse().ok()?)
}
