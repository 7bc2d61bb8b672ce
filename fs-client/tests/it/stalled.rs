//! Commands that are stopped in the middle (`SIGSTOP`), and others that go on meanwhile.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::bodies::pattern;
use crate::cluster::Cluster;

/// Number of commands that are stopped.
const STOPPED: usize = 12;
/// Size of the file that they move. It has no bytes on a disk, and no command comes to its end.
const ENDLESS: u64 = 1 << 40;
/// A command that has moved this many bytes is in the middle.
const MIDDLE: u64 = 8 << 20;
/// Time limit of the requests of the other commands.
const TIMEOUT: &str = "8s";

/// A command in the background.
struct Running(Child);

impl Running {
    /// Returns how many bytes the command has read from files and written to files.
    fn bytes(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/io", self.0.id())).unwrap();
        let value = |line: &str| line.split_once(": ").unwrap().1.parse::<u64>().unwrap();
        text.lines().filter(|line| line.starts_with("rchar") || line.starts_with("wchar")).map(value).sum()
    }

    /// Waits until the command has moved `more` bytes.
    #[expect(clippy::disallowed_methods, reason = "waits for other processes")]
    fn moves(&mut self, more: u64) {
        let until = self.bytes() + more;
        while self.bytes() < until {
            assert_eq!(self.0.try_wait().unwrap(), None, "it goes on without end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts commands, and stops all of them when each is in the middle of its file.
fn stopped(cluster: &Cluster, args: impl Fn(usize) -> Vec<String>) -> Vec<Running> {
    let start = |index| {
        let args = args(index);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Running(cluster.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    };
    let mut all: Vec<_> = (0..STOPPED).map(start).collect();
    all.iter_mut().for_each(|one| one.moves(MIDDLE));
    all.iter().for_each(|one| one.signal(Signal::STOP));
    all
}

/// Stores and fetches files. No request of it waits for [`TIMEOUT`].
fn others_go_on(cluster: &Cluster) {
    fs::write(cluster.path("f"), pattern(9_000_000, 1)).unwrap();
    for round in 0..4 {
        let (name, copy) = (format!("/f{round}"), format!("copy{round}"));
        cluster.ok(&["--timeout", TIMEOUT, "put", "f", &name]);
        cluster.ok(&["--timeout", TIMEOUT, "get", &name, &copy]);
        assert!(fs::read(cluster.path(&copy)).unwrap() == pattern(9_000_000, 1));
    }
}

/// Replays a bug: the stopped commands kept the buffers of the I/O server, and its places for
/// requests, for 10 to 30 s.
#[test]
fn gets_that_are_stopped_do_not_stop_others() {
    let cluster = Cluster::start(1);
    cluster.ok(&["put", "pvfs.toml", "/endless"]);
    cluster.ok(&["truncate", "/endless", &ENDLESS.to_string()]);
    let get = ["get", "--window", "64", "/endless", "/dev/null"];
    let mut all = stopped(&cluster, |_| get.map(String::from).to_vec());
    others_go_on(&cluster);
    // One that goes on connects again.
    all[0].signal(Signal::CONT);
    all[0].moves(MIDDLE);
}

/// The same bug, with commands whose data the server reads.
#[test]
fn puts_that_are_stopped_do_not_stop_others() {
    let cluster = Cluster::start(1);
    fs::File::create(cluster.path("endless")).unwrap().set_len(ENDLESS).unwrap();
    let put = |index| ["put", "--window", "64", "endless", &format!("/put{index}")].map(String::from).to_vec();
    let _all = stopped(&cluster, put);
    others_go_on(&cluster);
}
