//! Several hosts: they begin together, their results are merged, and the loss of one ends the run.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr};

use bmi_report::Report;
use serde_json::{Value, json};

use super::SMALL;
use super::bed::{Bed, finish, interrupt, report, spawn};

impl Bed {
    /// Starts a leader that waits for one host. Returns also its address, and the rest of its
    /// standard error.
    pub(crate) fn leader(&self, args: &[&str]) -> (Child, String, BufReader<ChildStderr>) {
        self.leader_of(1, &[&IO[..], args].concat())
    }

    /// The same with this many hosts and any benchmark.
    fn leader_of(&self, count: u32, args: &[&str]) -> (Child, String, BufReader<ChildStderr>) {
        let (child, line, errors) = self.begin(count, "", args);
        (child, line.rsplit_once("pvfs bench join ").unwrap().1.to_owned(), errors)
    }

    /// Starts a leader with a token that the user has chosen. Returns also the line that tells how
    /// to join.
    pub(crate) fn leader_with(&self, token: &str, args: &[&str]) -> (Child, String, BufReader<ChildStderr>) {
        self.begin(1, token, &[&IO[..], args].concat())
    }

    /// An empty token is none.
    fn begin(&self, count: u32, token: &str, args: &[&str]) -> (Child, String, BufReader<ChildStderr>) {
        let count = count.to_string();
        let waits = ["--wait-for", &count, "--listen", "127.0.0.1:0"];
        let mut command = self.command(&[&["--json", "bench"], args, &waits].concat());
        let mut child = spawn(command.env("PVFS_BENCH_TOKEN", token));
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        (child, line.trim().to_owned(), errors)
    }

    /// Starts a host that joins. It has no address of the manager: the leader's is used.
    fn join(&self, address: &str, name: &str) -> Child {
        spawn(self.command(&["bench", "join", address, "--name", name]).env_remove("PVFS_MANAGER"))
    }

    /// Runs a benchmark on this host and on `b` and `c`. All must succeed, and their connections
    /// end in order.
    fn measure_on_three(&self, args: &[&str]) -> Report {
        let (leader, address, errors) = self.leader_of(2, args);
        for child in ["b", "c"].map(|name| self.join(&address, name)) {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        report(&finish(leader, errors), 0, "").0
    }
}

const IO: [&str; 5] = ["io", "-t", "1000", "-b", "10000"];

/// A follower that the test plays.
pub(crate) struct Played {
    pub(crate) stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Played {
    pub(crate) fn connect(address: &str) -> Played {
        let stream = TcpStream::connect(address).unwrap();
        Played { lines: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    pub(crate) fn say(&mut self, message: &Value) {
        self.stream.write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    pub(crate) fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

#[test]
fn hosts_begin_together_and_their_results_are_merged() {
    let bed = Bed::new();
    let more = ["--tasks", "2", "--rounds", "2"];
    let report = bed.measure_on_three(&[&["io", "--verify"], &SMALL[..], &more].concat());
    let clients = report.hosts.iter().filter(|host| host.role == "client");
    let mut names: Vec<&str> = clients.map(|host| &*host.name).skip(1).collect();
    names.sort_unstable();
    assert_eq!(names, ["b", "c"]);
    for row in &report.rows {
        assert_eq!((&*row.setup["hosts"], &*row.setup["tasks"]), ("3", "6"));
        assert_eq!((row.histogram.as_ref().unwrap().len(), row.rounds.len()), (6 * 6 * 2, 2));
    }
    bed.measure_on_three(&[&["meta", "--files", "10"], &more[..]].concat());
    assert_eq!(bed.names("/"), Vec::<String>::new());
}

#[test]
fn a_host_that_goes_away_ends_the_run_with_what_was_measured() {
    let bed = Bed::new();
    let (child, address, errors) = bed.leader(&["--rounds", "5", "--write"]);
    let mut played = Played::connect(&address);
    played.say(&json!({"pvfs_bench": 5, "program": "0", "name": "other"}));
    assert_eq!(played.hear(), json!("welcome"));
    assert_eq!(played.hear()["job"]["first"], 1);
    let host = json!({"role": "client", "name": "other", "facts": []});
    played.say(&json!({"ready": {"host": host, "labels": [["tcp"]], "servers": []}}));
    let mut writes = 0;
    while writes < 3 {
        let order = played.hear();
        writes += u32::from(order["do"]["phase"] == "write");
        if writes < 3 {
            let part = json!({"operations": [[1000, 5]], "amount": 1, "cpu": 0.0, "switches": 0.0,
                "complaints": [], "wrong": 0, "stopped": false});
            played.say(&json!({"done": part}));
        }
    }
    drop(played);
    let (report, _) = report(&finish(child, errors), 1, "host other: it went away");
    assert_eq!(report.rows[0].rounds.len(), 2);
    assert_eq!(report.rows[0].histogram.as_ref().unwrap().len(), 2 * (10 + 5));
    assert!(report.interrupted.unwrap().contains("other"));
    assert_eq!(bed.names("/"), Vec::<String>::new());
}

#[test]
fn a_host_that_is_killed_ends_the_run_on_all_others() {
    let bed = Bed::new();
    let (child, address, errors) = bed.leader_of(2, &[&IO[..], &["--rounds", "100000"]].concat());
    let [mut other, third] = ["other", "third"].map(|name| bed.join(&address, name));
    bed.await_files();
    other.kill().unwrap();
    other.wait().unwrap();
    let (report, _) = report(&finish(child, errors), 1, "host other: it went away");
    assert!(report.interrupted.unwrap().contains("other"));
    let third = third.wait_with_output().unwrap();
    assert!(third.status.success(), "{}", String::from_utf8_lossy(&third.stderr));
    assert_eq!(bed.names("/"), Vec::<String>::new());
}

#[test]
fn hosts_end_with_a_leader_that_is_killed() {
    let bed = Bed::new();
    let (mut child, address, _errors) = bed.leader_of(2, &[&IO[..], &["--rounds", "100000"]].concat());
    let others = ["b", "c"].map(|name| bed.join(&address, name));
    bed.await_files();
    child.kill().unwrap();
    child.wait().unwrap();
    for other in others {
        // Its status depends on what it has heard of the last phase.
        assert!(other.wait_with_output().unwrap().status.code().is_some());
    }
}

/// With `ssh`, the output of a host ends with the `ssh` that has started it.
#[test]
fn ctrl_c_shows_what_was_measured_and_cleans_up_and_a_host_that_nobody_hears_stays_until_then() {
    let bed = Bed::new();
    let (child, address, errors) = bed.leader_of(2, &[&IO[..], &["--rounds", "100000"]].concat());
    let [other, mut unheard] = ["other", "unheard"].map(|name| bed.join(&address, name));
    drop((unheard.stdout.take(), unheard.stderr.take()));
    bed.await_files();
    interrupt(&child);
    let (report, raw) = report(&finish(child, errors), 130, "pvfs: interrupted; this is what was measured so far");
    assert_eq!(report.interrupted.as_deref(), Some("interrupted by the user"));
    assert!(raw["errors"].is_null(), "{raw}");
    let other = other.wait_with_output().unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
    unheard.wait().unwrap();
    assert_eq!(bed.names("/"), Vec::<String>::new());
}
