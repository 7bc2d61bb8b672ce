//! `pvfsd scratch`: a cluster that lasts as long as a command.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::cluster::pvfsd;

const PVFS: &str = env!("CARGO_BIN_EXE_pvfs");

fn scratch(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(pvfsd());
    command.args(["scratch", "--iods", "2", "--dir"]).arg(dir).args(args);
    command.env_remove("RUST_LOG").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().count() == 0
}

fn run(dir: &Path, args: &[&str]) -> Output {
    scratch(dir, args).output().unwrap()
}

#[test]
fn a_command_has_a_cluster_that_leaves_nothing_and_gives_its_status() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!("{PVFS} mkdir /a && {PVFS} ls && exit 7");
    let output = run(dir.path(), &["--over", "tcp", "--", "sh", "-c", &script]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stdout)), (Some(7), "a/\n"), "{errors}");
    assert!(is_empty(dir.path()));
    let missing = run(dir.path(), &["--", "/no/such/program"]);
    let errors = String::from_utf8_lossy(&missing.stderr);
    assert!(missing.status.code() == Some(1) && errors.contains("/no/such/program"), "{errors}");
    let cache = run(dir.path(), &["--cache", "service = \"none\""]);
    assert_eq!(cache.status.code(), Some(2));
    assert!(is_empty(dir.path()));
}

/// Starts a cluster without a command, and returns it with its manager when it serves.
fn start(dir: &Path) -> (Child, String) {
    let mut child =
        scratch(dir, &["--cache", "service = \"unifier\", memory = \"16M\"", "--threads", "2"]).spawn().unwrap();
    let lines: Vec<String> = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .take_while(|line| line != "serving")
        .collect();
    assert_eq!(lines.len(), 2, "over tcp and shm: {lines:?}");
    (child, lines[0].strip_prefix("manager ").unwrap().to_owned())
}

#[test]
fn without_a_command_it_ends_with_its_input_or_by_a_signal() {
    for signal in [None, Some(Signal::TERM)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut child, manager) = start(dir.path());
        let ping = Command::new(PVFS).args(["-m", &manager, "ping"]).output().unwrap();
        assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stderr));
        match signal {
            Some(signal) => kill_process(Pid::from_child(&child), signal).unwrap(),
            None => drop(child.stdin.take()),
        }
        assert!(child.wait().unwrap().success());
        assert!(is_empty(dir.path()));
    }
}
