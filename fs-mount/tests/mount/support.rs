//! A cluster, mounts of it, and programs that are run on them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use testbed::cluster::Cluster;
use testbed::process::{Process, until};

/// What takes longer has failed. A machine may be busy.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Returns the server program: that of `PVFSD`, or the one beside the program that is tested.
fn pvfsd() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| std::env::var_os("PVFSD").map_or_else(|| beside("fs-server", "pvfsd"), PathBuf::from))
}

/// Returns the command `pvfs`.
pub(crate) fn pvfs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| beside("fs-client", "pvfs"))
}

/// Returns a program beside the one that is tested. Builds it if it is not there.
fn beside(package: &str, program: &str) -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_pvfs-mount")).with_file_name(program);
    if !beside.exists() {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "-p", package, "--bin", program, "--target-dir"]);
        assert!(build.arg(beside.parent().unwrap().parent().unwrap()).status().unwrap().success());
    }
    beside
}

/// A cluster of two I/O servers, and mounts of it.
pub(crate) struct World {
    // Dropped in this order: the mounts, the servers, their directory.
    pub(crate) mounts: Vec<Mount>,
    pub(crate) cluster: Cluster,
    dir: tempfile::TempDir,
}

/// A mount, and the process that serves it.
pub(crate) struct Mount {
    pub(crate) at: PathBuf,
    pub(crate) process: Process,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = self.process.kill();
        while rustix::mount::unmount(&self.at, UnmountFlags::DETACH).is_ok() {}
    }
}

impl World {
    /// Starts a cluster without mounts.
    pub(crate) fn unmounted() -> World {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::begin(dir.path(), pvfsd(), 2).unwrap();
        let mut world = World { mounts: Vec::new(), cluster, dir };
        (0..=2).for_each(|server| world.start_server(server));
        world
    }

    /// Starts a cluster and mounts it with these options.
    pub(crate) fn with(options: &str) -> World {
        let mut world = World::unmounted();
        world.mount(options);
        world
    }

    /// Starts a server and waits until it serves.
    pub(crate) fn start_server(&mut self, server: usize) {
        let _ = std::fs::remove_file(self.cluster.log(server));
        self.cluster.start_server(server).unwrap();
        let log = self.cluster.log(server);
        wait("the server serves", || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("serving")));
    }

    /// Returns `pvfs-mount` for a new directory.
    pub(crate) fn command(&self, options: &str) -> (PathBuf, Command) {
        let at = self.dir.path().join(format!("mount{}", self.mounts.len()));
        std::fs::create_dir_all(&at).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pvfs-mount"));
        command.arg(&self.cluster.tcp[0]).arg(&at).args(["-f", "-o", &format!("over=tcp,{options}")]);
        (at, command)
    }

    /// Mounts it once more. Returns where.
    pub(crate) fn mount(&mut self, options: &str) -> PathBuf {
        let (at, mut command) = self.command(options);
        let process = Process::start(&mut command).unwrap();
        self.mounts.push(Mount { at: at.clone(), process });
        wait("it is mounted", || is_mounted(&at));
        at
    }

    /// Returns where it was mounted first.
    pub(crate) fn at(&self) -> &Path {
        &self.mounts[0].at
    }

    /// Returns a directory beside the mounts.
    pub(crate) fn beside(&self) -> &Path {
        self.dir.path()
    }

    /// Sends a signal to all I/O servers.
    pub(crate) fn signal_iods(&self, signal: Signal) {
        (1..=2).for_each(|server| self.cluster.signal(server, signal));
    }
}

pub(crate) fn is_mounted(at: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == at.to_str() && line.contains("fuse.pvfs"))
}

/// Waits until `is` is true.
pub(crate) fn wait(what: &str, mut is: impl FnMut() -> bool) {
    assert!(until(LONG, || Ok(is())).unwrap(), "{what}: not in {LONG:?}");
}

/// Runs a line of the shell in a directory.
pub(crate) fn try_shell(dir: &Path, line: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-ec", line]).current_dir(dir).stdin(Stdio::null()).env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.output().unwrap()
}

/// Runs a line of the shell, which must succeed. Returns what it prints.
pub(crate) fn shell(dir: &Path, line: &str) -> String {
    let output = try_shell(dir, line);
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{line}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Returns true if the machine has a program. If not, says what is left out.
pub(crate) fn has(program: &str) -> bool {
    let is_there = try_shell(Path::new("/"), &format!("command -v {program}")).status.success();
    if !is_there {
        eprintln!("SKIPPED: this machine has no {program}");
    }
    is_there
}
