//! A cluster for `pvfs bench`, and the command.

use std::io::{BufReader, Read};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock};

use bmi::{Addr, Scheme};
use bmi_report::Report;
use fs_client::{Client, FsPath};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};
use serde_json::Value;

use crate::support::bodies::{options, with_client};

/// A process that is just being made has the locks of all data directories of this process. So no
/// cluster starts meanwhile.
static FORKS: RwLock<()> = RwLock::new(());

pub(crate) fn spawn(command: &mut Command) -> Child {
    let _held = FORKS.read().unwrap_or_else(PoisonError::into_inner);
    command.spawn().unwrap()
}

/// A cluster with two I/O servers that listen over TCP and shared memory.
pub(crate) struct Bed {
    pub(crate) dir: tempfile::TempDir,
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
    pub(crate) fn new() -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let _held = FORKS.write().unwrap_or_else(PoisonError::into_inner);
        let options = ClusterOptions { over: vec![Scheme::Tcp, Scheme::Shm], ..ClusterOptions::with_iods(2) };
        let cluster = EmbeddedCluster::start(dir.path().join("data"), options).unwrap();
        let manager = cluster.manager().clone();
        Bed { dir, cluster: Some(cluster), manager }
    }

    pub(crate) fn manager(&self) -> &Addr {
        &self.manager
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pvfs"));
        command.env("PVFS_MANAGER", self.manager.to_string()).current_dir(self.dir.path());
        command.env_remove("PVFS_LOG").env_remove("PVFS_BENCH_TOKEN");
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        spawn(&mut self.command(args)).wait_with_output().unwrap()
    }

    /// Runs a benchmark that must succeed and print nothing on standard error.
    pub(crate) fn report(&self, args: &[&str]) -> (Report, Value) {
        report(&self.run(&[&["--json", "bench"], args].concat()), 0, "")
    }

    /// Does something with a client of the cluster.
    pub(crate) fn with<R>(&self, body: impl AsyncFnOnce(Client) -> R) -> R {
        with_client(Scheme::Tcp, &self.manager, options(), body)
    }

    /// Returns the names in a directory.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let path: FsPath = path.parse().unwrap();
        let entries = self.with(async |client| client.readdir(&path).await).unwrap();
        entries.into_iter().map(|entry| entry.name.to_string()).collect()
    }

    /// Returns when a benchmark that runs has made its files.
    pub(crate) fn await_files(&self) {
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
pub(crate) fn report(output: &Output, status: i32, error: &str) -> (Report, Value) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{errors}");
    assert!(if error.is_empty() { errors.is_empty() } else { errors.contains(error) }, "{errors}");
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (Report::from_json(&text).unwrap(), serde_json::from_str(&text).unwrap())
}

/// Waits for the end of a leader.
pub(crate) fn finish(mut child: Child, mut errors: BufReader<ChildStderr>) -> Output {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    errors.read_to_end(&mut stderr).unwrap();
    Output { status: child.wait().unwrap(), stdout, stderr }
}

/// Interrupts a process, as Ctrl-C does.
pub(crate) fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}
