//! `pvfs bench` on several hosts that are reached with a real `ssh`. The hosts are names for this
//! one, where an `sshd` of the test listens.
//!
//! The tests need the programs `sshd`, `ssh` and `ssh-keygen`, and fail without. So `cargo test`
//! runs them only by name (`--test bench_ssh`), and `cargo xtask test` as a step of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

#[path = "../bench/bed.rs"]
mod bed;
mod sshd;

use std::fs;
use std::io::BufReader;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStderr};

use bed::{Bed, finish, interrupt, report, spawn};
use rustix::process::{Pid, Signal, kill_process};
use sshd::Sshd;

const PVFS: &str = env!("CARGO_BIN_EXE_pvfs");
const TOKEN: &str = "chosen-by-a-user";
const SMALL: [&str; 6] = ["-t", "1000", "-b", "10000", "--listen", "127.0.0.1:0"];

/// A cluster and two hosts, whose names no other test has.
struct Hosts {
    bed: Bed,
    ssh: String,
    b: String,
    c: String,
    _sshd: Sshd,
}

impl Hosts {
    fn new() -> Hosts {
        let bed = Bed::new();
        let sshd = Sshd::start(bed.dir.path());
        let unique = bed.dir.path().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned();
        Hosts { bed, ssh: sshd.ssh(), b: format!("b-{unique}"), c: format!("c-{unique}"), _sshd: sshd }
    }

    /// Starts a run on both hosts that does not end by itself. Returns when it has begun.
    fn begin(&self) -> (Child, BufReader<ChildStderr>) {
        let hosts = format!("{},{}", self.b, self.c);
        let args = ["--json", "bench", "io", "--rounds", "100000", "--hosts", &hosts, "--ssh", &self.ssh];
        let mut command = self.bed.command(&[&args[..], &SMALL, &["--remote-program", PVFS]].concat());
        let mut child = spawn(command.env("PVFS_BENCH_TOKEN", TOKEN));
        let errors = BufReader::new(child.stderr.take().unwrap());
        self.bed.await_files();
        (child, errors)
    }

    /// Returns when no follower of this test runs any more.
    fn await_end(&self) {
        while !followers(&self.b).is_empty() || !followers(&self.c).is_empty() {
            std::thread::yield_now();
        }
    }
}

/// Returns the processes with their command lines.
fn processes() -> Vec<(Pid, Vec<String>)> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let process = |entry: fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        // It may have ended meanwhile.
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some((pid, line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()))
    };
    entries.filter_map(process).collect()
}

/// Returns the processes of a program that are there for a host.
fn of(program: &str, host: &str) -> Vec<Pid> {
    let is_it = |line: &[String]| line[0] == program && line.iter().any(|word| word == host);
    processes().into_iter().filter(|(_, line)| is_it(line)).map(|(pid, _)| pid).collect()
}

fn followers(host: &str) -> Vec<Pid> {
    of(PVFS, host)
}

#[test]
fn hosts_are_started_measure_together_and_end() {
    let hosts = Hosts::new();
    let names = format!("{},{}", hosts.b, hosts.c);
    let args = ["io", "--verify", "--rounds", "2", "--hosts", &names, "--ssh", &hosts.ssh, "--remote-program", PVFS];
    let (report, _) = hosts.bed.report(&[&args[..], &SMALL].concat());
    for row in &report.rows {
        assert_eq!((&*row.setup["hosts"], &*row.setup["tasks"], row.rounds.len()), ("3", "3", 2));
        assert_eq!(row.histogram.as_ref().unwrap().len(), 3 * 10 * 2);
    }
    let clients = report.hosts.iter().filter(|host| host.role == "client");
    let mut found: Vec<&str> = clients.map(|host| &*host.name).skip(1).collect();
    found.sort_unstable();
    assert_eq!(found, [&*hosts.b, &*hosts.c]);
    assert_eq!(hosts.bed.names("/"), Vec::<String>::new());
    hosts.await_end();
}

#[test]
fn a_host_that_cannot_be_started_is_named_with_what_to_do() {
    let hosts = Hosts::new();
    // A version that has no tokens yet.
    let old = hosts.bed.dir.path().join("old-pvfs");
    let text = "#!/bin/sh\necho \"pvfs: unexpected argument '--token-file' found; see 'pvfs --help'\" >&2\nexit 2\n";
    fs::write(&old, text).unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
    let (old, ssh) = (old.to_str().unwrap(), &*hosts.ssh);
    for (host, program, what, advice) in [
        ("closed", PVFS, "port 1: Connection refused", format!("does '{ssh} closed' work by hand?")),
        ("unknown", PVFS, "Host key verification failed.", format!("say '{ssh} unknown' once by hand")),
        ("locked", PVFS, "Permission denied (", format!("'{ssh} locked' must not ask for a password")),
        ("b", "no-such-pvfs", "not found", "is 'no-such-pvfs' in its PATH? --remote-program".to_owned()),
        ("b", old, "unexpected argument '--token-file' found", "all hosts must have the same version".to_owned()),
        ("b", "exit 3 #", "ended with status 3 before it joined", String::new()),
    ] {
        let args = ["bench", "io", "--hosts", host, "--ssh", ssh, "--remote-program", program];
        let output = hosts.bed.run(&[&args[..], &SMALL].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        let last = errors.lines().last().unwrap();
        assert!(last.starts_with(&format!("pvfs: host {host}: ")), "{errors}");
        assert!(last.contains(what) && last.contains(&advice), "{errors}");
    }
    for bad in ["-oProxyCommand=false", "b,,c"] {
        let output = hosts.bed.run(&["bench", "io", &format!("--hosts={bad}")]);
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn a_follower_that_is_killed_ends_the_run_with_what_was_measured() {
    let hosts = Hosts::new();
    let (child, errors) = hosts.begin();
    for pid in followers(&hosts.b) {
        kill_process(pid, Signal::KILL).unwrap();
    }
    let (report, _) = report(&finish(child, errors), 1, &format!("host {}: it went away", hosts.b));
    assert!(report.interrupted.unwrap().contains(&hosts.b));
    assert_eq!(hosts.bed.names("/"), Vec::<String>::new());
    hosts.await_end();
}

#[test]
fn a_run_survives_the_end_of_an_ssh_and_ctrl_c_ends_all() {
    let hosts = Hosts::new();
    let (child, errors) = hosts.begin();
    let lines: Vec<String> = processes().into_iter().map(|(_, line)| line.join(" ")).collect();
    assert!(!lines.iter().any(|line| line.contains(TOKEN)), "the token is on no command line");
    let ssh = of("ssh", &hosts.b);
    assert_eq!((ssh.len(), followers(&hosts.b).len(), followers(&hosts.c).len()), (1, 1, 1));
    kill_process(ssh[0], Signal::KILL).unwrap();
    while !of("ssh", &hosts.b).is_empty() {
        std::thread::yield_now();
    }
    let before = hosts.bed.names("/");
    interrupt(&child);
    let (report, raw) = report(&finish(child, errors), 130, "pvfs: interrupted; this is what was measured so far");
    assert_eq!((report.interrupted.as_deref(), before.len()), (Some("interrupted by the user"), 1));
    assert!(raw["errors"].is_null(), "{raw}");
    assert_eq!(hosts.bed.names("/"), Vec::<String>::new());
    hosts.await_end();
}

#[test]
fn followers_end_with_a_leader_that_is_killed() {
    let hosts = Hosts::new();
    let (mut child, errors) = hosts.begin();
    child.kill().unwrap();
    drop(errors);
    child.wait().unwrap();
    hosts.await_end();
}
