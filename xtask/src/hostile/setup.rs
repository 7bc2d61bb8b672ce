//! The scene of a run: the cluster, the recorded streams, the honest clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::attackers::ENDLESS;
use super::clock::until;
use super::honest::Honest;
use super::process::Shared;
use super::recording::{ShmRelay, TcpRelay};
use super::spec::{Over, Recording, Target};
use crate::storm::cluster::Cluster;
use crate::storm::guard::Guard;

/// Longest wait for the servers, and for the honest clients to be at work.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Operations of an honest client before the first attack, so that what is used first is there.
const WARM: usize = 300;

/// The cluster and those who work with it.
pub(super) struct Scene {
    // Dropped in this order: the clients, then the servers, then the guard.
    honest: Vec<(Over, Honest)>,
    pub(super) cluster: Cluster,
    pub(super) guard: Shared,
    pub(super) dir: PathBuf,
    pub(super) pvfs: PathBuf,
    panics: usize,
}

impl Scene {
    /// Begins a cluster, records real streams, and starts the honest clients.
    pub(super) fn new(programs: &Path, iods: usize, keep: bool) -> Result<Scene, String> {
        let dir = std::env::temp_dir().join(format!("pvfs-hostile-{}", std::process::id()));
        // Not a directory that is there already, because the guard removes it.
        fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let servers = Guard::start((!keep).then_some(&dir))?;
        let cluster = Cluster::begin(&dir, &programs.join("pvfsd"), iods, true, servers)?;
        let guard = Arc::new(Mutex::new(Guard::start(None)?));
        let pvfs = programs.join("pvfs");
        let mut scene = Scene { honest: Vec::new(), cluster, guard, dir, pvfs, panics: 0 };
        match scene.prepare(programs) {
            Ok(()) => Ok(scene),
            Err(why) => Err(scene.failed(&why)),
        }
    }

    fn prepare(&mut self, programs: &Path) -> Result<(), String> {
        self.record()?;
        for over in [Over::Tcp, Over::Shm] {
            let honest = Honest::start(programs, &self.addr(0, over), over, &self.guard)?;
            self.honest.push((over, honest));
        }
        let are_warm = || {
            self.honest.iter().try_for_each(|(_, client)| client.check())?;
            Ok(self.honest.iter().all(|(_, client)| client.len() >= WARM))
        };
        if !until(START_LIMIT, are_warm)? {
            return Err("the honest clients do not come to work".to_owned());
        }
        match self.honest_failures((0, u64::MAX)) {
            (0, _) => Ok(()),
            (failed, why) => {
                let first = why.into_iter().next().unwrap_or_default();
                Err(format!("before any attack {failed} operations failed, such as {first}"))
            }
        }
    }

    /// Returns the error `why` with the directory, which is kept.
    pub(super) fn failed(&mut self, why: &str) -> String {
        let _ = self.cluster.keep();
        format!("{why}\nkept: {}", self.dir.display())
    }

    /// Ends the run. Returns the directory if it is kept.
    pub(super) fn end(mut self, is_kept: bool) -> Result<Option<String>, String> {
        if is_kept {
            self.cluster.keep()?;
        }
        Ok(is_kept.then(|| self.dir.display().to_string()))
    }

    /// Returns an address of a server: `tcp://…` or `shm://…`.
    fn addr(&self, index: usize, over: Over) -> String {
        self.cluster.addrs(index)[match over {
            Over::Tcp => 0,
            Over::Shm => 1,
        }]
        .clone()
    }

    /// Returns a server's address without the scheme.
    fn place(&self, index: usize, over: Over) -> String {
        let addr = self.addr(index, over);
        addr.split_once("://").map_or(addr.clone(), |(_, place)| place.to_owned())
    }

    fn recording(&self, index: usize) -> PathBuf {
        self.dir.join(format!("recording-{}.json", Cluster::name(index)))
    }

    /// Returns what the attackers attack.
    pub(super) fn targets(&self, over: Over) -> Vec<Target> {
        let of = |index| Target { addr: self.place(index, over), recording: self.recording(index) };
        (0..self.cluster.len()).map(of).collect()
    }

    /// Returns the honest client over a transport.
    pub(super) fn honest(&self, over: Over) -> &Honest {
        let found = self.honest.iter().find(|(of, _)| *of == over);
        &found.expect("there is one over each transport").1
    }

    /// Returns the failures of the honest clients in a time, and their reasons in words.
    pub(super) fn honest_failures(&self, window: (u64, u64)) -> (u64, Vec<String>) {
        let latencies = self.honest.iter().map(|(over, client)| (*over, client.latency(window)));
        let (mut failed, mut reasons) = (0, Vec::new());
        for (over, latency) in latencies {
            failed += latency.failed;
            let each = latency.reasons.iter();
            reasons.extend(each.map(|(why, count)| format!("the honest client over {over}: {count} of {why}")));
        }
        (failed, reasons)
    }

    /// Looks for servers that have ended or panicked since the last time. Starts them again.
    pub(super) fn check(&mut self) -> Result<Vec<String>, String> {
        let mut wrong = Vec::new();
        for index in 0..self.cluster.len() {
            if let Some(status) = self.cluster.ended(index)? {
                let (name, last) = (Cluster::name(index), self.cluster.last_line(index));
                wrong.push(format!("{name} has ended, {status}: {last}"));
                self.cluster.start_server(index)?;
            }
        }
        if !wrong.is_empty() {
            self.await_servers()?;
        }
        let panics = self.cluster.panics();
        wrong.extend(panics.iter().skip(self.panics).cloned());
        self.panics = panics.len();
        self.honest.iter().try_for_each(|(_, client)| client.check())?;
        Ok(wrong)
    }

    /// Starts the servers, with relays before them, records commands, and removes the relays.
    fn record(&mut self) -> Result<(), String> {
        let servers = self.cluster.len();
        let failed = |error: std::io::Error| format!("relay: {error}");
        let relays = (0..servers).map(|index| TcpRelay::start(&self.place(index, Over::Tcp)).map_err(failed));
        let relays = relays.collect::<Result<Vec<_>, _>>()?;
        // The manager tells clients the addresses of the I/O servers, which are those of relays.
        let relayed = |index: usize| match index {
            0 => self.cluster.addrs(0).to_vec(),
            _ => vec![format!("tcp://{}", relays[index].addr), self.addr(index, Over::Shm)],
        };
        self.cluster.configure(relayed)?;
        self.cluster.start_server(0)?;
        self.await_manager()?;
        self.configure_truly()?;
        (1..servers).try_for_each(|index| self.cluster.start_server(index))?;
        self.await_servers()?;
        let skipped: Vec<usize> = relays.iter().map(TcpRelay::connections).collect();
        self.commands(&format!("tcp://{}", relays[0].addr), "tcp")?;
        let sockets: Vec<_> = (0..servers).map(|index| PathBuf::from(self.place(index, Over::Shm))).collect();
        let shm = sockets.iter().map(|path| ShmRelay::start(path).map_err(failed)).collect::<Result<Vec<_>, _>>()?;
        let recorded = self.commands(&self.addr(0, Over::Shm), "shm");
        let shm = shm.into_iter().map(|relay| relay.end().map_err(failed)).collect::<Result<Vec<_>, _>>()?;
        recorded?;
        for (index, shm) in shm.into_iter().enumerate() {
            let recording = Recording { tcp: relays[index].streams(skipped[index]), shm };
            if recording.tcp.is_empty() || recording.shm.is_empty() {
                return Err(format!("no stream to {} was recorded", Cluster::name(index)));
            }
            let text = serde_json::to_vec(&recording).map_err(|error| error.to_string())?;
            fs::write(self.recording(index), text).map_err(failed)?;
        }
        // With the true addresses of the I/O servers.
        self.cluster.kill(0)?;
        self.cluster.start_server(0)?;
        self.await_servers()?;
        self.pvfs(&self.cluster.manager, "auto", &["truncate", "/recorded/tcp-small", &ENDLESS.to_string()])?;
        self.pvfs(&self.cluster.manager, "auto", &["mv", "/recorded/tcp-small", "/endless"])
    }

    fn configure_truly(&self) -> Result<(), String> {
        self.cluster.configure(|index| self.cluster.addrs(index).to_vec())
    }

    /// Runs the commands that are recorded.
    fn commands(&self, manager: &str, over: &str) -> Result<(), String> {
        for (name, len) in [("small", 3000), ("large", 150_000)] {
            let bytes: Vec<u8> = (0..len).map(|at: u32| (at * 7 % 251) as u8).collect();
            fs::write(self.dir.join(name), bytes).map_err(|error| format!("{name}: {error}"))?;
        }
        let local = |name: &str| self.dir.join(name).display().to_string();
        let path = |name: &str| format!("/recorded/{over}-{name}");
        let commands: [&[&str]; 8] = [
            &["mkdir", "-p", "/recorded"],
            &["put", &local("small"), &path("small")],
            &["put", &local("large"), &path("large")],
            &["get", &path("small"), "/dev/null"],
            &["get", &path("large"), "/dev/null"],
            &["ls", "-l", "/recorded"],
            &["mv", &path("large"), &path("moved")],
            &["rm", &path("moved")],
        ];
        commands.into_iter().try_for_each(|args| self.pvfs(manager, over, args))
    }

    fn pvfs(&self, manager: &str, over: &str, args: &[&str]) -> Result<(), String> {
        let mut command = Command::new(&self.pvfs);
        command.args(["--manager", manager, "--over", over, "--timeout", "10s", "-q"]).args(args);
        command.env_remove("PVFS_LOG").env_remove("BMI_MUTANT").stdin(Stdio::null());
        let output = command.output().map_err(|error| format!("{}: {error}", self.pvfs.display()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("pvfs {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
    }

    fn await_manager(&self) -> Result<(), String> {
        match until(START_LIMIT, || Ok(self.pvfs(&self.cluster.manager, "tcp", &["ls"]).is_ok()))? {
            true => Ok(()),
            false => Err("the manager does not come up".to_owned()),
        }
    }

    /// Waits until all servers serve.
    fn await_servers(&self) -> Result<(), String> {
        match until(START_LIMIT, || Ok(self.pvfs(&self.cluster.manager, "tcp", &["ping", "-c", "1"]).is_ok()))? {
            true => Ok(()),
            false => Err("the servers do not come up".to_owned()),
        }
    }
}
