//! Several hosts: they begin together, their results are merged, and the loss of one ends the run.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr};

use serde_json::{Value, json};

use super::SMALL;
use super::bed::{Bed, finish, interrupt, report, spawn};

impl Bed {
    /// Returns the path of a stand-in for `ssh`, which runs the command on this host.
    fn ssh(&self) -> PathBuf {
        let path = self.dir.path().join("stand-in");
        // It has no address of the manager: the leader's is used.
        fs::write(&path, "#!/bin/sh\n[ \"$1\" != broken ] || exit 7\nshift\nunset PVFS_MANAGER\nexec \"$@\"\n")
            .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Starts a leader that waits for one host. Returns also its address, and the rest of its
    /// standard error.
    pub(crate) fn leader(&self, args: &[&str]) -> (Child, String, BufReader<ChildStderr>) {
        let (child, line, errors) = self.leader_with("", args);
        (child, line.rsplit_once("pvfs bench join ").unwrap().1.to_owned(), errors)
    }

    /// Starts a leader with a token that the user has chosen, if it is not empty. Returns also the
    /// line that tells how to join.
    pub(crate) fn leader_with(&self, token: &str, args: &[&str]) -> (Child, String, BufReader<ChildStderr>) {
        let waits =
            ["--json", "bench", "io", "--wait-for", "1", "--listen", "127.0.0.1:0", "-t", "1000", "-b", "10000"];
        let mut child = spawn(self.command(&[&waits[..], args].concat()).env("PVFS_BENCH_TOKEN", token));
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        (child, line.trim().to_owned(), errors)
    }
}

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
    let ssh = bed.ssh();
    let hosts = ["--hosts", "b,c", "--ssh", ssh.to_str().unwrap(), "--remote-program", env!("CARGO_BIN_EXE_pvfs")];
    let near = ["--listen", "127.0.0.1:0", "--tasks", "2", "--rounds", "2"];
    let (report, _) = bed.report(&[&["io", "--verify"], &SMALL[..], &hosts, &near].concat());
    let clients = report.hosts.iter().filter(|host| host.role == "client");
    let mut names: Vec<&str> = clients.map(|host| &*host.name).skip(1).collect();
    names.sort_unstable();
    assert_eq!(names, ["b", "c"]);
    for row in &report.rows {
        assert_eq!((&*row.setup["hosts"], &*row.setup["tasks"]), ("3", "6"));
        assert_eq!((row.histogram.as_ref().unwrap().len(), row.rounds.len()), (6 * 6 * 2, 2));
    }
    bed.report(&[&["meta", "--files", "10"], &hosts[..], &near].concat());
    assert_eq!(bed.names("/"), Vec::<String>::new());
    let broken = bed.run(&[&["bench", "meta", "--hosts", "broken"], &hosts[2..], &near].concat());
    let errors = String::from_utf8_lossy(&broken.stderr).into_owned();
    assert!(
        broken.status.code() == Some(1)
            && errors.contains("host broken: the command that starts it ended with status 7 before it joined"),
        "{errors}"
    );
}

#[test]
fn a_host_that_goes_away_ends_the_run_with_what_was_measured() {
    let bed = Bed::new();
    let (child, address, errors) = bed.leader(&["--rounds", "5", "--write"]);
    let mut played = Played::connect(&address);
    played.say(&json!({"pvfs_bench": 2, "program": "0", "name": "other"}));
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
fn a_process_that_is_killed_ends_the_run() {
    let bed = Bed::new();
    let (child, address, errors) = bed.leader(&["--rounds", "100000"]);
    let mut other = spawn(&mut bed.command(&["bench", "join", &address, "--name", "other"]));
    bed.await_files();
    other.kill().unwrap();
    other.wait().unwrap();
    report(&finish(child, errors), 1, "host other: it went away");
    assert_eq!(bed.names("/"), Vec::<String>::new());
}

#[test]
fn ctrl_c_shows_what_was_measured_and_cleans_up() {
    let bed = Bed::new();
    let (child, address, errors) = bed.leader(&["--rounds", "100000"]);
    let other = spawn(&mut bed.command(&["bench", "join", &address]));
    bed.await_files();
    interrupt(&child);
    let (report, raw) = report(&finish(child, errors), 130, "pvfs: interrupted; this is what was measured so far");
    assert_eq!(report.interrupted.as_deref(), Some("interrupted by the user"));
    assert!(raw["errors"].is_null(), "{raw}");
    let other = other.wait_with_output().unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
    assert_eq!(bed.names("/"), Vec::<String>::new());
}
