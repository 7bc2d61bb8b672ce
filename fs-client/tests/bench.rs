//! `pvfs bench` against a real cluster over TCP and shared memory, from one host and from several.
//! Other hosts are processes on this one, started by a stand-in for `ssh`, by hand, or played by
//! the test.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock};

use bmi::{Addr, AnyTransport, Memory, OpenOptions};
use bmi_core::{Config, Scheme, driver};
use bmi_report::Report;
use bmi_report::stats::Random;
use fs_client::{Client, ClientOptions, FsPath};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};
use serde_json::{Value, json};

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A process that is just being made has the locks of all data directories of this process. So no
/// cluster starts meanwhile.
static FORKS: RwLock<()> = RwLock::new(());

fn spawn(command: &mut Command) -> Child {
    let _held = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    command.spawn().unwrap()
}

/// A cluster with two I/O servers that listen over TCP and shared memory.
struct Bed {
    dir: tempfile::TempDir,
    cluster: Option<EmbeddedCluster>,
    manager: Addr,
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.take() {
            cluster.stop().unwrap();
        }
    }
}

impl Bed {
    fn new() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let _held = FORKS.write().unwrap_or_else(PoisonError::into_inner);
        let options = ClusterOptions { over: vec![Scheme::Tcp, Scheme::Shm], ..ClusterOptions::with_iods(2) };
        let cluster = EmbeddedCluster::start(dir.path().join("data"), options).unwrap();
        let manager = cluster.manager().clone();
        Bed { dir, cluster: Some(cluster), manager }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pvfs"));
        command.env("PVFS_MANAGER", self.manager.to_string()).env_remove("PVFS_LOG").current_dir(self.dir.path());
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        spawn(&mut self.command(args)).wait_with_output().unwrap()
    }

    /// Runs a benchmark that must succeed and print nothing on standard error.
    fn report(&self, args: &[&str]) -> (Report, Value) {
        report(&self.run(&[&["--json", "bench"], args].concat()), 0, "")
    }

    /// Does something with a client of the cluster.
    fn with<R>(&self, body: impl AsyncFnOnce(Client<AnyTransport>) -> R) -> R {
        let clock = driver::MonotonicClock::new();
        let endpoint = bmi::endpoint(Scheme::Tcp, &OpenOptions::default(), Config::named("test"), clock).unwrap();
        let connect = Client::connect(endpoint.clone(), self.manager.clone(), ClientOptions::new(77));
        let work = async { body(connect.await.unwrap()).await };
        driver::event::block_on(endpoint.clone(), work).unwrap()
    }

    /// Returns the names in a directory.
    fn names(&self, path: &str) -> Vec<String> {
        let path: FsPath = path.parse().unwrap();
        let entries = self.with(async |client| client.readdir(&path).await).unwrap();
        entries.into_iter().map(|entry| entry.name).collect()
    }

    fn bytes(&self, path: &str) -> Vec<u8> {
        let path: FsPath = path.parse().unwrap();
        self.with(async |client| {
            let file = client.open(&path).await.unwrap();
            let memory = Memory::zeroed(file.size().await.unwrap() as usize).unwrap();
            file.read_at(0, &memory).await.unwrap();
            memory.to_vec()
        })
    }

    /// Returns when a benchmark that runs has made its files.
    fn await_files(&self) {
        loop {
            let Some(dir) = self.names("/").pop() else { continue };
            let path: FsPath = format!("/{dir}/shared").parse().unwrap();
            if self.with(async |client| client.lookup(&path).await.is_ok()) {
                return;
            }
        }
    }
}

/// Checks the exit status and standard error, and parses the report.
fn report(output: &Output, status: i32, error: &str) -> (Report, Value) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{errors}");
    assert!(if error.is_empty() { errors.is_empty() } else { errors.contains(error) }, "{errors}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (Report::from_json(&text).unwrap(), serde_json::from_str(&text).unwrap())
}

/// Returns the first `len` bytes of a file, as the documentation of the pattern defines them.
fn pattern(seed: u64, file: u64, len: usize) -> Vec<u8> {
    let start = Random::new(seed ^ file.wrapping_mul(GAMMA)).number();
    let mut words = Random::new(start);
    let words = std::iter::repeat_with(|| words.number().to_le_bytes());
    words.take(len.div_ceil(8)).flatten().take(len).collect()
}

const SMALL: [&str; 8] = ["-t", "1000", "-b", "3000", "-s", "2", "--seed", "7"];

#[test]
fn the_bytes_are_those_of_ior() {
    let bed = Bed::new();
    let write = [&["io"], &SMALL[..], &["--tasks", "3", "--write", "--keep", "--verify", "--rounds", "2"]].concat();
    for over in ["tcp", "shm"] {
        let (report, raw) = bed.report(&[&write[..], &["--over", over]].concat());
        let dir = raw["kept"].as_str().unwrap();
        assert_eq!(bed.names(dir), ["shared"]);
        assert!(bed.bytes(&format!("{dir}/shared")) == pattern(7, 0, 3 * 2 * 3000), "a shared file over {over}");
        let row = &report.rows[0];
        assert_eq!((&*row.test, &*row.over, row.size, row.rounds.len()), ("write", over, Some(1000), 2));
        assert_eq!(row.histogram.as_ref().unwrap().len(), 3 * 6 * 2);
        assert_eq!((&*row.setup["tasks"], &*row.setup["check"]), ("3", "verified"));
    }
    let (_, raw) = bed.report(&[&write[..], &["--file-per-task", "--random"]].concat());
    let dir = raw["kept"].as_str().unwrap();
    assert_eq!(bed.names(dir), ["task-000000", "task-000001", "task-000002"]);
    for file in 0..3 {
        assert!(bed.bytes(&format!("{dir}/task-{file:06}")) == pattern(7, file, 6000), "the file of task {file}");
    }
}

#[test]
fn a_byte_that_changed_is_found() {
    let bed = Bed::new();
    let (_, raw) = bed.report(&[&["io"], &SMALL[..], &["--tasks", "2", "-w", "-k", "-R", "-i", "1"]].concat());
    let dir = raw["kept"].as_str().unwrap().to_owned();
    let read =
        [&["--json", "bench", "io"], &SMALL[..], &["--tasks", "2", "-r", "-R", "-i", "2", "--path", &dir]].concat();
    let (good, _) = report(&bed.run(&read), 0, "");
    assert_eq!((good.rows.len(), &*good.rows[0].test, good.rows[0].rounds.len()), (1, "read", 2));
    let path: FsPath = format!("{dir}/shared").parse().unwrap();
    let right = pattern(7, 0, 5000)[4321];
    let wrong = !right;
    bed.with(async |client| client.open(&path).await.unwrap().write_at(4321, Memory::from(vec![wrong])).await).unwrap();
    for over in ["tcp", "shm"] {
        let output = bed.run(&[&read[..], &["--over", over]].concat());
        let (_, raw) = report(&output, 1, &format!("{path}: the byte at offset 4321 is {wrong:#04x} and must be"));
        assert!(raw["errors"][0].as_str().unwrap().contains("; wrong bytes in all: 1"), "{raw}");
    }
    // Cut off.
    bed.with(async |client| {
        client.open(&path).await.unwrap().write_at(4321, Memory::from(vec![right])).await.unwrap();
        client.truncate(&path, 10_500).await.unwrap();
    });
    report(&bed.run(&read), 1, &format!("{path} ends at offset 10500"));
    assert_eq!(bed.names(&dir), ["shared"], "a run that only reads removes nothing");
}

#[test]
fn nothing_is_left_behind_and_transports_take_turns() {
    let bed = Bed::new();
    let args = ["meta", "--files", "20", "--tasks", "2", "--depth", "2", "--rounds", "3", "--over", "tcp,shm"];
    for more in [&[][..], &["--unique-dir"]] {
        let (report, raw) = bed.report(&[&args[..], more].concat());
        assert_eq!(bed.names("/"), Vec::<String>::new());
        let names: Vec<String> = report.rows.iter().map(|row| format!("{} {}", row.test, row.over)).collect();
        let tests = ["create", "stat", "list", "remove"];
        let expected: Vec<String> =
            tests.iter().flat_map(|test| [format!("{test} tcp"), format!("{test} shm")]).collect();
        assert_eq!(names, expected);
        for row in &report.rows {
            let operations = if row.test == "list" { 2 * 3 } else { 20 * 2 * 3 };
            assert_eq!(row.histogram.as_ref().unwrap().len(), operations, "{}", row.name());
            assert_eq!(row.pairs(report.beside(row, "shm").unwrap()).len(), 3);
            assert!(row.cost["client"].cpu > 0.0);
        }
        assert!(raw["interrupted"].is_null() && raw["errors"].is_null());
    }
    let (report, _) = bed.report(&["io", "-t", "4K", "-b", "16K", "--tasks", "2", "--verify", "--sync"]);
    assert_eq!(report.overs(), ["shm"], "what the client would take");
    assert_eq!(report.rows.iter().map(|row| &*row.test).collect::<Vec<_>>(), ["write", "read"]);
    assert_eq!(bed.names("/"), Vec::<String>::new());
    let text = String::from_utf8(bed.run(&["bench", "io", "-b", "1M", "-i", "1"]).stdout).unwrap();
    assert!(
        text.contains("pvfs bench io: 1 task on 1 host")
            && text.contains("1 MiB")
            && text.contains("blocks of 1.0 MiB"),
        "{text}"
    );
    let files = ["--report", "r.json", "--html", "r.html", "--csv", "r.csv"];
    bed.run(&[&["bench", "io", "-b", "1M", "-i", "1"], &files[..]].concat());
    let path = |name| bed.dir.path().join(name);
    assert_eq!(Report::read(&path("r.json")).unwrap().rows.len(), 2);
    assert!(fs::read_to_string(path("r.html")).unwrap().contains("pvfs bench io: 1 task on 1 host"));
    assert!(fs::read_to_string(path("r.csv")).unwrap().contains("write"));
}

#[test]
fn an_operation_that_fails_ends_the_run_and_leaves_nothing() {
    let bed = Bed::new();
    let none = bed.run(&["--over", "ib", "bench", "io"]);
    assert_eq!((none.status.code(), none.stdout.len()), (Some(1), 0));
    let missing = bed.run(&["bench", "io", "--path", "/missing", "-i", "1"]);
    let errors = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(1) && errors.starts_with("pvfs: mkdir /missing/pvfs-bench-"), "{errors}");
    assert_eq!(bed.names("/"), Vec::<String>::new());
    for (line, why) in [
        ("io -t 3000 -b 4000", "whole transfers"),
        ("io --tasks 0", "1 to 1024 tasks"),
        ("io --tasks 4294967295", "1 to 1024 tasks"),
        ("io --read", "--path"),
        ("io --read --path /a --verify", "--seed"),
        ("io --write --verify", "--keep"),
        ("io --over tcp,tcp", "twice"),
    ] {
        let output = bed.run(&[&["bench"], &line.split(' ').collect::<Vec<_>>()[..]].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && errors.contains(why) && errors.lines().count() == 1,
            "{line}: {errors}"
        );
    }
    let ls = bed.run(&["ls", "--over", "tcp,shm"]);
    assert_eq!(ls.status.code(), Some(2));
}

// ---- several hosts ----------------------------------------------------------------------------

impl Bed {
    /// Returns the path of a stand-in for `ssh`, which runs the command on this host.
    fn ssh(&self) -> PathBuf {
        let path = self.dir.path().join("ssh");
        // It has no address of the manager: the leader's is used.
        fs::write(&path, "#!/bin/sh\n[ \"$1\" != broken ] || exit 7\nshift\nunset PVFS_MANAGER\nexec \"$@\"\n")
            .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Starts a leader that waits for one host. Returns also its address, and the rest of its
    /// standard error.
    fn leader(&self, args: &[&str]) -> (Child, String, BufReader<std::process::ChildStderr>) {
        let waits =
            ["--json", "bench", "io", "--wait-for", "1", "--listen", "127.0.0.1:0", "-t", "1000", "-b", "10000"];
        let mut child = spawn(&mut self.command(&[&waits[..], args].concat()));
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let address = line.trim().rsplit_once("pvfs bench join ").unwrap().1.to_owned();
        (child, address, errors)
    }
}

/// Waits for the end of a leader.
fn finish(mut child: Child, mut errors: BufReader<std::process::ChildStderr>) -> Output {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    errors.read_to_end(&mut stderr).unwrap();
    Output { status: child.wait().unwrap(), stdout, stderr }
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
    assert!(broken.status.code() == Some(1) && errors.contains("broken ended before broken joined"), "{errors}");
}

/// A follower that the test plays.
struct Played {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Played {
    fn connect(address: &str) -> Played {
        let stream = TcpStream::connect(address).unwrap();
        Played { lines: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    fn say(&mut self, message: &Value) {
        self.stream.write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

#[test]
fn a_host_that_goes_away_ends_the_run_with_what_was_measured() {
    let bed = Bed::new();
    let (child, address, errors) = bed.leader(&["--rounds", "5", "--write"]);
    let mut played = Played::connect(&address);
    played.say(&json!({"pvfs_bench": 1, "program": "0", "name": "other"}));
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
fn strangers_and_other_versions_are_told_and_hold_up_nobody() {
    let bed = Bed::new();
    let (child, address, mut errors) = bed.leader(&["--rounds", "1"]);
    // One that says nothing stays connected.
    let silent = Played::connect(&address);
    let mut newer = Played::connect(&address);
    newer.say(&json!({"pvfs_bench": 2, "anything": 1}));
    assert_eq!(newer.hear()["refused"], "version 2 of the benchmark's protocol, and this host has version 1");
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.contains("did not join: version 2"), "{line}");
    let mut stranger = Played::connect(&address);
    stranger.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(stranger.hear()["refused"], "this is no 'pvfs bench join'");
    // Another leader cannot have the same port.
    let second = bed.run(&["bench", "meta", "--wait-for", "1", "--listen", &address]);
    let second_errors = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(1) && second_errors.contains("cannot listen at"), "{second_errors}");
    let joined = bed.run(&["--json", "bench", "join", &address]);
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    let (report, _) = report(&finish(child, errors), 0, "no 'pvfs bench join'");
    assert_eq!(report.rows[0].setup["hosts"], "2");
    drop(silent);
}

#[test]
fn a_follower_says_whom_it_met() {
    let bed = Bed::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for (answer, why) in [
        ("{\"refused\":\"for a reason\"}\n", "refuses this host: for a reason"),
        ("220 mail.example.org ESMTP\n", "no 'pvfs bench' leads there"),
        ("\"welcome\"\n", "the run ended before it began"),
        ("", "the connection was closed"),
    ] {
        let child = spawn(&mut bed.command(&["bench", "join", &address]));
        let mut stream = listener.accept().unwrap().0;
        let mut hello = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut hello).unwrap();
        assert!(hello.contains("\"pvfs_bench\":1"), "{hello}");
        stream.write_all(answer.as_bytes()).unwrap();
        drop(stream);
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && errors.contains(why), "{answer}: {errors}");
    }
}

#[test]
fn ctrl_c_shows_what_was_measured_and_cleans_up() {
    let bed = Bed::new();
    let (child, address, errors) = bed.leader(&["--rounds", "100000"]);
    let other = spawn(&mut bed.command(&["bench", "join", &address]));
    bed.await_files();
    let leader = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(leader, rustix::process::Signal::INT).unwrap();
    let (report, raw) = report(&finish(child, errors), 130, "pvfs: interrupted; this is what was measured so far");
    assert_eq!(report.interrupted.as_deref(), Some("interrupted by the user"));
    assert!(raw["errors"].is_null(), "{raw}");
    let other = other.wait_with_output().unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
    assert_eq!(bed.names("/"), Vec::<String>::new());
}
