//! The servers of a machine as a whole: `pvfsd run`, `start`, `stop` and `status`, with real
//! processes.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::bodies::eventually;
use crate::support::cluster::pvfsd;

/// A configuration with directories of its own. Dropping it ends every server that it started.
pub(crate) struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new(iods: usize) -> Machine {
        Machine::with(iods, &[])
    }

    /// Writes the configuration with `pvfsd init`, and gives each server a free port. The machine
    /// is the home of its user, too.
    pub(crate) fn with(iods: usize, options: &[&str]) -> Machine {
        let machine = Machine { dir: tempfile::tempdir().unwrap() };
        let data = machine.path("data").display().to_string();
        machine.ok(&[&["init", "--dir", &data, "--iods", &iods.to_string()], options].concat());
        // All ports are held at the same time, so that they differ.
        let held: Vec<_> = (0..=iods).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let mut config = fs::read_to_string(machine.path("pvfs.toml")).unwrap();
        for (number, free) in held.iter().enumerate() {
            // The quotation mark keeps a port from being found again in a longer address.
            let (from, to) = (format!("127.0.0.1:{}\"", 7000 + number), format!("{}\"", free.local_addr().unwrap()));
            assert!(config.contains(&from));
            config = config.replace(&from, &to);
        }
        fs::write(machine.path("pvfs.toml"), config).unwrap();
        machine.ok(&["format"]);
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(pvfsd());
        command.arg("--config").arg(self.path("pvfs.toml")).args(args).env_remove("RUST_LOG").stdin(Stdio::null());
        self.at_home(command)
    }

    /// Returns the command with this machine as its user's home.
    fn at_home(&self, mut command: Command) -> Command {
        command.env("HOME", self.dir.path()).env("USER", "anna").env_remove("XDG_CONFIG_HOME");
        command
    }

    /// Returns a command of a user of the file system.
    pub(crate) fn pvfs(&self, args: &[&str]) -> Command {
        let config = fs::read_to_string(self.path("pvfs.toml")).unwrap();
        let manager = config.lines().find_map(|line| line.strip_prefix("manager = \"tcp")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pvfs"));
        command.args(args).env("PVFS_MANAGER", format!("tcp{}", manager.trim_end_matches('"')));
        self.at_home(command)
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed, and returns its output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "pvfsd {args:?}: {}, {errors}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail with this status, and returns its errors.
    pub(crate) fn fails(&self, args: &[&str], status: i32) -> String {
        let output = self.run(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "pvfsd {args:?}: {errors}");
        errors
    }

    /// Returns the servers in the document of a command, after checking the exit status.
    fn servers(&self, args: &[&str], status: i32) -> Vec<Value> {
        let output = self.run(&[args, &["--json"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "pvfsd {args:?}: {errors}");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["errors"].as_array().unwrap().is_empty(), errors.is_empty(), "{document}");
        document["servers"].as_array().unwrap().clone()
    }

    /// Returns the states of all servers.
    fn states(&self) -> Vec<String> {
        let document: Value = serde_json::from_slice(&self.run(&["status", "--json"]).stdout).unwrap();
        states(document["servers"].as_array().unwrap()).into_iter().map(str::to_owned).collect()
    }

    /// Returns the processes of all servers, which must run.
    pub(crate) fn pids(&self) -> Vec<u64> {
        self.servers(&["status"], 0).iter().map(|server| server["pid"].as_u64().unwrap()).collect()
    }

    /// Returns the processes with the path of this configuration in their command line. They are
    /// found without the program that is tested.
    fn processes(&self) -> Vec<u32> {
        let config = self.path("pvfs.toml").display().to_string();
        let mine = |pid: u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            line.split(|byte| *byte == 0).any(|word| word == config.as_bytes()).then_some(pid)
        };
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries.filter_map(|entry| mine(entry.file_name().to_str()?.parse().ok()?)).collect()
    }

    /// Takes the address of a server that does not run.
    fn occupy(&self, server: usize) -> TcpListener {
        let servers = self.servers(&["status"], 3);
        TcpListener::bind(servers[server]["addresses"][0].as_str().unwrap().replace("tcp://", "")).unwrap()
    }

    /// Makes a command of the file system, so that the servers are known to serve.
    fn serves(&self) {
        let addr = self.servers(&["status"], 0)[0]["addresses"][0].as_str().unwrap().to_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pvfs"));
        let output = command.env("PVFS_MANAGER", addr).args(["ping", "-c", "1"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for pid in self.processes() {
            kill(pid);
        }
    }
}

fn kill(pid: u32) {
    // It may have ended already.
    let _ = kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::KILL);
}

fn states(servers: &[Value]) -> Vec<&str> {
    servers.iter().map(|server| server["state"].as_str().unwrap()).collect()
}

fn file(server: &Value, key: &str) -> PathBuf {
    PathBuf::from(server[key].as_str().unwrap())
}

#[test]
fn a_cluster_of_processes_is_started_once_repaired_and_stopped() {
    let machine = Machine::new(2);
    let before = machine.servers(&["status"], 3);
    assert_eq!(states(&before), ["stopped"; 3]);
    assert!(before.iter().all(|server| server["pid"].is_null() && server["log"].is_null()), "{before:?}");
    assert!(!file(&before[1], "directory").exists(), "to look creates nothing");
    assert_eq!(states(&machine.servers(&["stop"], 0)), ["not_running"; 3]);

    let started = machine.servers(&["start"], 0);
    assert_eq!(states(&started), ["started"; 3]);
    for (server, name) in started.iter().zip(["manager", "iod0", "iod1"]) {
        assert!(server["name"] == name && file(server, "log") == machine.path(&format!("data/logs/{name}.log")));
        let addr = server["addresses"][0].as_str().unwrap();
        let log = fs::read_to_string(file(server, "log")).unwrap();
        assert!(log.contains(&format!("listening on {addr}\n")), "{log}");
        assert!(!file(server, "directory").join("lock").exists(), "the directory is locked, not a file in it");
    }
    machine.serves();
    let pids = machine.pids();
    assert!(pids[0] != pids[1] && pids[1] != pids[2]);
    let text = machine.ok(&["status", "iod1"]);
    assert!(text.starts_with("iod1  running  pid ") && text.lines().count() == 1, "{text}");

    // Nothing is started twice.
    assert_eq!(states(&machine.servers(&["start"], 0)), ["already_running"; 3]);
    assert_eq!(machine.pids(), pids);
    assert_eq!(machine.processes().len(), 3);

    kill(pids[1].try_into().unwrap());
    eventually("the killed server's lock is released", || machine.states() == ["running", "stopped", "running"]);
    machine.fails(&["status"], 3);
    machine.ok(&["status", "manager", "iod1"]);
    assert_eq!(states(&machine.servers(&["start"], 0)), ["already_running", "started", "already_running"]);
    let repaired = machine.pids();
    assert!(repaired[0] == pids[0] && repaired[1] != pids[1] && repaired[2] == pids[2]);
    machine.serves();

    assert_eq!(states(&machine.servers(&["stop", "iod1"], 0)), ["stopped"]);
    assert_eq!(states(&machine.servers(&["stop"], 0)), ["stopped", "stopped", "not_running"]);
    let after = machine.servers(&["status"], 3);
    assert_eq!(states(&after), ["stopped"; 3]);
    assert!(after.iter().all(|server| file(server, "log").is_file()), "the last log can still be found");
}

#[test]
fn a_cluster_in_one_process_is_stopped_as_a_whole() {
    let machine = Machine::new(2);
    assert_eq!(states(&machine.servers(&["start", "--one-process"], 0)), ["started"; 3]);
    machine.serves();
    let pids = machine.pids();
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
    let status = machine.servers(&["status"], 0);
    assert!(status.iter().all(|server| file(server, "log") == machine.path("data/logs/pvfsd.log")), "{status:?}");
    assert_eq!(states(&machine.servers(&["start"], 0)), ["already_running"; 3]);
    assert_eq!(machine.processes().len(), 1);

    let error = machine.fails(&["stop", "iod1"], 1);
    assert!(error.contains("runs iod1 and also manager, iod0; nothing was stopped"), "{error}");
    assert_eq!(machine.pids(), pids);
    kill(pids[0].try_into().unwrap());
    eventually("the locks of the killed process are released", || machine.states() == ["stopped"; 3]);
    assert_eq!(states(&machine.servers(&["start", "--one-process"], 0)), ["started"; 3]);
    machine.serves();
    assert_eq!(states(&machine.servers(&["stop"], 0)), ["stopped"; 3]);
    assert_eq!(states(&machine.servers(&["status"], 3)), ["stopped"; 3]);
}

#[test]
fn a_server_that_cannot_start_is_named_with_the_end_of_its_log() {
    let machine = Machine::new(2);
    // The second I/O server's address is in use.
    let other = machine.occupy(2);
    let error = machine.fails(&["start"], 1);
    let log = machine.path("data/logs/iod1.log").display().to_string();
    assert!(error.contains("pvfsd: iod1: the process ended (exit status: 1)") && error.contains(&log), "{error}");
    assert!(error.contains("in use") && error.contains("left running: manager, iod0"), "{error}");
    assert_eq!(states(&machine.servers(&["status"], 3)), ["running", "running", "stopped"]);
    let servers = machine.servers(&["start"], 1);
    assert_eq!(states(&servers), ["already_running", "already_running", "failed"]);
    drop(other);
    assert_eq!(states(&machine.servers(&["start"], 0)), ["already_running", "already_running", "started"]);
    machine.ok(&["stop"]);

    // Without the manager, nothing else is started.
    let other = machine.occupy(0);
    let servers = machine.servers(&["start"], 1);
    assert_eq!(states(&servers), ["failed", "not_started", "not_started"]);
    let error = machine.fails(&["start", "--one-process"], 1);
    assert!(error.contains("manager, iod0, iod1: the process ended") && error.contains("pvfsd.log"), "{error}");
    assert_eq!(states(&machine.servers(&["status"], 3)), ["stopped"; 3]);
    drop(other);
}

#[test]
fn servers_in_the_foreground_of_one_process_end_together() {
    let machine = Machine::new(2);
    let run = |args: &[&str]| -> (Child, Vec<String>) {
        let mut command = machine.command(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().take(2 * (args.len() - 1));
        let lines = lines.map(Result::unwrap).collect();
        (child, lines)
    };
    let (child, mut lines) = run(&["run", "iod0", "manager"]);
    lines.sort();
    assert!(lines[0].starts_with("iod0: listening on tcp://") && lines[1] == "iod0: serving", "{lines:?}");
    assert!(lines[2].starts_with("manager: listening on tcp://") && lines[3] == "manager: serving", "{lines:?}");
    assert_eq!(states(&machine.servers(&["status"], 3)), ["running", "running", "stopped"]);
    // It was not started by `start`, and is stopped all the same.
    let stopped = std::thread::scope(|scope| {
        let stop = scope.spawn(|| machine.servers(&["stop"], 0));
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        stop.join().unwrap()
    });
    assert_eq!(states(&stopped), ["stopped", "stopped", "not_running"]);

    // One that fails ends the others.
    let other = machine.occupy(2);
    let error = machine.fails(&["run"], 1);
    assert!(error.contains("iod1: ") && error.contains("in use"), "{error}");
    assert_eq!(states(&machine.servers(&["status"], 3)), ["stopped"; 3]);
    drop(other);
}

#[test]
fn a_server_that_does_not_end_is_named_and_killed_on_request() {
    let machine = Machine::new(1);
    machine.ok(&["start"]);
    let pids = machine.pids();
    // A stopped process does not handle SIGTERM.
    let iod = Pid::from_raw(pids[1].try_into().unwrap()).unwrap();
    kill_process(iod, Signal::STOP).unwrap();
    let error = machine.fails(&["stop", "iod0", "--timeout", "50ms"], 1);
    let log = machine.path("data/logs/iod0.log").display().to_string();
    assert!(error.contains(&format!("iod0: process {} has not ended within 50ms", pids[1])), "{error}");
    assert!(error.contains("--kill") && error.contains(&log), "{error}");
    assert_eq!(machine.pids(), pids, "it still runs");
    assert_eq!(states(&machine.servers(&["stop", "--timeout", "100ms", "--kill", "iod0"], 0)), ["killed"]);
    assert_eq!(states(&machine.servers(&["stop"], 0)), ["stopped", "not_running"]);
}

/// A process id in a file goes stale. There is none, and a process that merely uses a directory is
/// not its server.
#[test]
fn only_a_lock_makes_a_process_the_server() {
    let machine = Machine::new(1);
    machine.ok(&["start"]);
    let pids = machine.pids();
    let mut files = vec![machine.path("data")];
    while let Some(path) = files.pop() {
        assert!(path.extension().is_none_or(|extension| extension != "pid"), "{}", path.display());
        if path.is_dir() {
            files.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_none_or(|extension| extension != "log") {
            let text = fs::read(&path).unwrap().trim_ascii().to_vec();
            assert!(pids.iter().all(|pid| text != pid.to_string().as_bytes()), "{}", path.display());
        }
    }
    machine.ok(&["stop", "--kill"]);

    // Another program has the directory open, as its standard input, and works in it.
    let dir = machine.path("data/iod0");
    let other = |stdin: File| Command::new("sleep").arg("600").current_dir(&dir).stdin(stdin).spawn().unwrap();
    let mut foreign = other(File::open(&dir).unwrap());
    assert_eq!(states(&machine.servers(&["status"], 3)), ["stopped"; 2]);
    assert_eq!(states(&machine.servers(&["stop"], 0)), ["not_running"; 2]);
    assert_eq!(states(&machine.servers(&["start"], 0)), ["started"; 2]);
    assert!(!machine.pids().contains(&foreign.id().into()));
    machine.ok(&["stop"]);
    assert!(foreign.try_wait().unwrap().is_none(), "the other program was left alone");
    foreign.kill().unwrap();
    foreign.wait().unwrap();

    // The lock of a program that inherited it leads to that program, not to the one that took it.
    let lock = File::open(&dir).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let mut holder = other(lock);
    let status = machine.servers(&["status", "iod0"], 0);
    assert_eq!(status[0]["pid"], holder.id());
    assert!(status[0]["log"].is_null() || file(&status[0], "log").is_file());
    holder.kill().unwrap();
    holder.wait().unwrap();
    // Until it runs another program, a process that another test starts has this lock too.
    eventually("the lock is released", || machine.states() == ["stopped"; 2]);
}

#[test]
fn directories_that_depend_on_the_place_of_the_start_are_refused() {
    let machine = Machine::new(1);
    let config = fs::read_to_string(machine.path("pvfs.toml")).unwrap();
    let data = machine.path("data").display().to_string();
    for (from, to, expected) in [
        (format!("{data}/manager"), "manager".to_owned(), "storage.manager is the relative path"),
        (format!("{data}/iod{{index}}"), format!("{data}/manager"), "have one directory"),
        (format!("{data}/logs"), format!("{data}/iod0/logs"), "inside the directory of I/O server 0"),
    ] {
        fs::write(machine.path("pvfs.toml"), config.replace(&from, &to)).unwrap();
        for command in ["check", "start", "status", "stop"] {
            let error = machine.fails(&[command], 2);
            assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
        }
    }
}

#[test]
fn systemd_gets_units_and_hears_of_the_server() {
    let machine = Machine::new(1);
    let units = machine.dir.path().to_str().unwrap().to_owned();
    let init = ["init", "--systemd", &units];
    assert!(machine.ok(&init).contains("systemctl enable --now pvfs-iod@0"));
    let unit = fs::read_to_string(machine.path("pvfs-manager.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    // The same units may be written again, others are left alone.
    machine.ok(&init);
    fs::write(machine.path("pvfs-iod@.service"), "mine").unwrap();
    assert!(machine.fails(&init, 2).contains("--force"));
    machine.ok(&[&init[..], &["--force"]].concat());

    // As systemd starts it.
    let socket = UnixDatagram::bind(machine.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut words = start.split(' ').map(|word| word.trim_matches('"'));
    let mut command = Command::new(words.next().unwrap());
    command.args(words).env("NOTIFY_SOCKET", machine.path("notify")).stdout(Stdio::null());
    let mut server = command.spawn().unwrap();
    let said = || {
        let mut text = [0; 256];
        let len = socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..len]).into_owned()
    };
    assert!(said().starts_with("READY=1\n"));
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert_eq!(said(), "STOPPING=1\n");
    assert!(server.wait().unwrap().success());
}
