//! A cluster of `pvfsd` processes, and the command `pvfs` against it.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use testbed::process::Process;

/// Returns the server program. `PVFSD` names one; otherwise it is the one beside `pvfs` if that is
/// up to date. That is the case in a run of the whole workspace, which builds both. Otherwise it is
/// built there. Cargo is not run in every case, for two reasons. Each test process of nextest would
/// wait for cargo's lock. And the server would be built again whenever the surrounding run uses
/// other features.
pub(crate) fn pvfsd() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(given) = std::env::var_os("PVFSD") {
            return given.into();
        }
        let beside = Path::new(env!("CARGO_BIN_EXE_pvfs")).parent().unwrap();
        let program = beside.join("pvfsd");
        if is_current(&program) {
            return program;
        }
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // Use the features of this test's own dependencies, so that they are not compiled again.
        build.args(["build", "-p", "fs-server", "--features", "sim", "--bin", "pvfsd", "--target-dir"]);
        build.arg(beside.parent().unwrap());
        build.args((beside.file_name().unwrap() == "release").then_some("--release"));
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        program
    })
}

/// Returns true if a program is newer than all its sources. Cargo lists them in a file beside it,
/// in the syntax of make.
fn is_current(program: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let (Ok(built), Ok(rule)) = (changed(program), fs::read_to_string(program.with_extension("d"))) else {
        return false;
    };
    let sources = rule.split_once(": ").map_or("", |(_, sources)| sources).replace("\\ ", "\0");
    let sources = sources.split_whitespace().map(|source| PathBuf::from(source.replace('\0', " ")));
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
    let older = |path: PathBuf| changed(&path).is_ok_and(|changed| changed <= built);
    let mut all = sources.chain([lock]).peekable();
    all.peek().is_some() && all.all(older)
}

/// The cluster in a temporary directory, with its servers.
pub(crate) struct Cluster {
    // Dropped in this order: the servers, then their directory.
    inner: testbed::cluster::Cluster,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) manager: String,
}

impl Deref for Cluster {
    type Target = testbed::cluster::Cluster;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.inner
    }
}

impl Cluster {
    pub(crate) fn start(iods: usize) -> Cluster {
        Cluster::start_with(iods, |addr, _, _| format!("{addr:?}"))
    }

    /// Starts a cluster. `addrs` returns a server's addresses as written in the configuration, from
    /// its TCP address, its number (0 is the manager) and the directory.
    pub(crate) fn start_with(iods: usize, addrs: impl Fn(&str, usize, &Path) -> String) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let addrs = |number: usize, tcp: &str| addrs(tcp, number, dir.path());
        let inner = testbed::cluster::Cluster::begin_with(dir.path(), pvfsd(), iods, addrs).unwrap();
        let mut cluster = Cluster { manager: inner.tcp[0].clone(), inner, dir };
        (0..=iods).for_each(|index| cluster.start_server(index));
        cluster
    }

    /// Runs `pvfsd` to its end.
    pub(crate) fn pvfsd(&self, args: &[&str]) -> Output {
        self.inner.pvfsd().args(args).output().unwrap()
    }

    /// Starts a server and waits until it serves. 0 is the manager, the others are I/O servers.
    pub(crate) fn start_server(&mut self, index: usize) {
        self.start_server_with(index, &[]);
    }

    /// Starts a server like [`Cluster::start_server`], with additional options.
    pub(crate) fn start_server_with(&mut self, index: usize, options: &[&str]) {
        self.try_start_server(index, options).unwrap();
    }

    /// Starts a server, and waits until it serves or has ended. Returns what it logged if it ended.
    /// What it printed until then is in the file `said-INDEX`.
    pub(crate) fn try_start_server(&mut self, index: usize, options: &[&str]) -> Result<(), String> {
        self.try_start_server_after("true", index, options)
    }

    /// Starts a server like [`Cluster::try_start_server`], after a line of the shell, which for
    /// instance sets limits.
    pub(crate) fn try_start_server_after(&mut self, line: &str, index: usize, options: &[&str]) -> Result<(), String> {
        let log = self.path(&format!("log-{index}"));
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{line}; exec \"$0\" \"$@\"")).arg(pvfsd());
        command.arg("--config").arg(self.path("pvfs.toml")).args(testbed::cluster::Cluster::role(index)).args(options);
        command.stderr(fs::File::create(&log).unwrap());
        let (mut server, said) = Process::start_until(&mut command, |line| line == "serving").unwrap();
        fs::write(self.path(&format!("said-{index}")), said.join("\n")).unwrap();
        if said.last().is_none_or(|line| line != "serving") {
            let status = server.wait().unwrap();
            return Err(format!("{status}: {}", fs::read_to_string(log).unwrap()));
        }
        self.servers[index] = Some(server);
        Ok(())
    }

    /// Kills a server as `kill -9` does.
    pub(crate) fn kill_server(&mut self, index: usize) {
        drop(self.servers[index].take().unwrap());
    }

    /// Returns a command of `pvfs`. It does not wait for servers that are down, unless `args` say
    /// so.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pvfs"));
        command.env("PVFS_MANAGER", &self.manager).env_remove("PVFS_LOG").current_dir(self.dir.path());
        if !args.contains(&"--retry-for") {
            command.args(["--retry-for", "0s"]);
        }
        command.args(args);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed and print nothing on standard error.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "pvfs {args:?}: {}, {errors}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[&["--json"], args].concat())).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Returns the one line on standard error, after checking the exit status.
pub(crate) fn complaint(output: &Output, status: i32) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{errors}");
    assert!(errors.starts_with("pvfs: ") && errors.lines().count() == 1, "one clear line: {errors}");
    errors
}

/// Enough for servers that come back on a busy machine.
pub(crate) const PATIENT: &str = "60s";

/// Runs a command that may wait for servers and print that it does. It must succeed.
pub(crate) fn patient(cluster: &Cluster, args: &[&str]) {
    let output = cluster.run(&[args, &["--retry-for", PATIENT]].concat());
    assert!(output.status.success(), "pvfs {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the bytes of a file of the cluster.
pub(crate) fn content(cluster: &Cluster, name: &str) -> Vec<u8> {
    let output = cluster.run(&["cat", name, "--retry-for", PATIENT]);
    assert!(output.status.success(), "cat {name}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

pub(crate) fn count(cluster: &Cluster, field: &str) -> u64 {
    cluster.json(&["statfs"])[field].as_u64().unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Starts a command whose input and output are pipes.
pub(crate) fn piped(cluster: &Cluster, args: &[&str]) -> Child {
    let mut command = cluster.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}
