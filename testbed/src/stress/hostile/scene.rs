//! The scene of a run: the cluster, the recorded streams, the honest clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use testbed::cluster::Cluster;
use testbed::command::Pvfs;
use testbed::process::{Usage, until};
use testbed::{Outcome, named};

use super::honest::Honest;
use super::recording::{Relay, put_back};
use super::report::Latency;
use super::spec::{ENDLESS, Over, Target};
use crate::Common;

/// Longest wait for the servers, and for the honest clients to be at work.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Operations of an honest client before the first attack, so that what is used first is there.
const WARM: u64 = 300;
const OVERS: [Over; 2] = [Over::Tcp, Over::Shm];

/// The cluster and those who work with it.
pub(super) struct Scene {
    // Dropped in this order: the clients, then the servers.
    honest: Vec<(Over, Honest)>,
    cluster: Cluster,
    pub(super) dir: PathBuf,
    program: PathBuf,
    panics: usize,
}

impl Scene {
    /// Begins a cluster in `dir`, records real streams, and starts the honest clients.
    pub(super) fn new(dir: &Path, common: &Common, iods: usize) -> Outcome<Scene> {
        let addrs = |index: usize, tcp: &str| format!("{:?}", [tcp, &shm_addr(dir, index)]);
        let cluster = Cluster::begin_with(dir, &common.program("pvfsd")?, iods, addrs)?;
        let (dir, program) = (dir.to_owned(), common.program("pvfs")?);
        let mut scene = Scene { honest: Vec::new(), cluster, dir, program, panics: 0 };
        scene.record()?;
        for over in OVERS {
            let honest = Honest::start(&common.program("honest")?, &scene.addr(0, over), over)?;
            scene.honest.push((over, honest));
        }
        let are_warm = || {
            scene.honest.iter().try_for_each(|(_, client)| client.check())?;
            Ok(OVERS.iter().all(|over| scene.latency(*over, ALWAYS).operations >= WARM))
        };
        if !until(START_LIMIT, are_warm)? {
            return Err("the honest clients do not come to work".into());
        }
        match scene.honest_failures(ALWAYS) {
            (0, _) => Ok(scene),
            (failed, why) => Err(format!("before any attack {failed} operations failed, such as {}", why[0]).into()),
        }
    }

    /// Returns an address of a server: `tcp://…` or `shm://…`.
    fn addr(&self, index: usize, over: Over) -> String {
        match over {
            Over::Tcp => self.cluster.tcp[index].clone(),
            Over::Shm => shm_addr(&self.dir, index),
        }
    }

    /// Returns a server's address without the scheme.
    fn place(&self, index: usize, over: Over) -> String {
        self.addr(index, over).split("://").skip(1).collect()
    }

    fn recording(&self, index: usize, over: Over) -> PathBuf {
        self.dir.join(format!("recording-{}-{over}.json", Cluster::name(index)))
    }

    /// Returns what the attackers attack.
    pub(super) fn targets(&self, over: Over) -> Vec<Target> {
        let of = |index| Target { addr: self.place(index, over), recording: self.recording(index, over) };
        (0..self.cluster.servers.len()).map(of).collect()
    }

    /// Returns the processes of the servers.
    pub(super) fn pids(&self) -> Vec<u32> {
        (0..self.cluster.servers.len()).map(|index| self.cluster.pid(index)).collect()
    }

    /// Returns what each server uses.
    pub(super) fn usages(&self) -> Vec<Usage> {
        self.pids().into_iter().map(Usage::of).collect()
    }

    /// Returns the bytes of the logs of all servers.
    pub(super) fn log_bytes(&self) -> u64 {
        (0..self.cluster.servers.len())
            .map(|index| fs::metadata(self.cluster.log(index)).map_or(0, |log| log.len()))
            .sum()
    }

    /// Returns what the honest client over a transport noticed in a window of time.
    pub(super) fn latency(&self, over: Over, window: (u64, u64)) -> Latency {
        let client = self.honest.iter().find(|(own, _)| *own == over);
        client.map_or(Latency::default(), |(_, client)| client.latency(window))
    }

    /// Returns how many operations of the honest clients failed in a window of time, and why.
    pub(super) fn honest_failures(&self, window: (u64, u64)) -> (u64, Vec<String>) {
        let (mut failed, mut reasons) = (0, Vec::new());
        for over in OVERS {
            let latency = self.latency(over, window);
            failed += latency.failed;
            let each = latency.reasons.iter();
            reasons.extend(each.map(|(why, count)| format!("the honest client over {over}: {count} of {why}")));
        }
        (failed, reasons)
    }

    /// Looks for servers that have ended or panicked since the last time. Starts them again.
    pub(super) fn check(&mut self) -> Outcome<Vec<String>> {
        let mut wrong = Vec::new();
        for index in 0..self.cluster.servers.len() {
            if let Some(status) = self.cluster.ended(index)? {
                let (name, last) = (Cluster::name(index), self.cluster.last_line(index));
                wrong.push(format!("{name} has ended, {status}: {last}"));
                self.cluster.start_server(index)?;
            }
        }
        if !wrong.is_empty() {
            self.await_command(&["ping", "-c", "1"])?;
        }
        let panics = self.cluster.panics();
        wrong.extend(panics.iter().skip(self.panics).cloned());
        self.panics = panics.len();
        self.honest.iter().try_for_each(|(_, client)| client.check())?;
        Ok(wrong)
    }

    /// Starts the servers, with relays before them, records commands, and removes the relays.
    fn record(&mut self) -> Outcome {
        let servers = self.cluster.servers.len();
        let relays = (0..servers).map(|index| Relay::tcp(&self.place(index, Over::Tcp)));
        let relays = relays.collect::<Result<Vec<_>, _>>().map_err(named("relay"))?;
        // The manager tells clients the addresses of the I/O servers, which are those of relays.
        let both = |index: usize, tcp: &str| format!("{:?}", [tcp, &shm_addr(&self.dir, index)]);
        let relayed = |index: usize, tcp: &str| match index {
            0 => both(index, tcp),
            _ => both(index, &format!("tcp://{}", relays[index].1)),
        };
        self.cluster.configure(relayed, "")?;
        self.cluster.start_server(0)?;
        self.await_command(&["ls"])?;
        self.cluster.configure(both, "")?;
        (1..servers).try_for_each(|index| self.cluster.start_server(index))?;
        self.await_command(&["ping", "-c", "1"])?;
        let skipped: Vec<usize> = relays.iter().map(|(relay, _)| relay.connections()).collect();
        self.commands(&format!("tcp://{}", relays[0].1), Over::Tcp)?;
        for (index, (relay, _)) in relays.iter().enumerate() {
            self.store(index, Over::Tcp, relay, skipped[index])?;
        }
        let sockets: Vec<_> = (0..servers).map(|index| PathBuf::from(self.place(index, Over::Shm))).collect();
        let relays =
            sockets.iter().map(|path| Relay::shm(path)).collect::<Result<Vec<_>, _>>().map_err(named("relay"))?;
        self.commands(&self.addr(0, Over::Shm), Over::Shm)?;
        for (index, path) in sockets.iter().enumerate() {
            put_back(path).map_err(named(path.display()))?;
            self.store(index, Over::Shm, &relays[index], 0)?;
        }
        // With the true addresses of the I/O servers.
        self.cluster.kill(0);
        self.cluster.start_server(0)?;
        self.await_command(&["ping", "-c", "1"])?;
        let pvfs = self.pvfs(&self.cluster.tcp[0], "auto");
        pvfs.run(&["truncate", "/recorded/tcp-small", &ENDLESS.to_string()])?.ok()?;
        pvfs.run(&["mv", "/recorded/tcp-small", "/endless"])?.ok()
    }

    /// Writes what a relay has recorded.
    fn store(&self, index: usize, over: Over, relay: &Relay, skipped: usize) -> Outcome {
        let streams = relay.streams(skipped)?;
        if streams.is_empty() || streams.iter().any(|stream| over == Over::Shm && stream.area_len == 0) {
            return Err(format!("no stream to {} over {over} was recorded", Cluster::name(index)).into());
        }
        fs::write(self.recording(index, over), serde_json::to_vec(&streams)?).map_err(named("recording"))
    }

    /// Runs the commands that are recorded.
    fn commands(&self, manager: &str, over: Over) -> Outcome {
        for (name, len) in [("small", 3000), ("large", 150_000)] {
            let bytes: Vec<u8> = (0..len).map(|at: u32| (at * 7 % 251) as u8).collect();
            fs::write(self.dir.join(name), bytes).map_err(named(name))?;
        }
        let path = |name: &str| format!("/recorded/{over}-{name}");
        let commands: [&[&str]; 8] = [
            &["mkdir", "-p", "/recorded"],
            &["put", "small", &path("small")],
            &["put", "large", &path("large")],
            &["get", &path("small"), "/dev/null"],
            &["get", &path("large"), "/dev/null"],
            &["ls", "-l", "/recorded"],
            &["mv", &path("large"), &path("moved")],
            &["rm", &path("moved")],
        ];
        let pvfs = self.pvfs(manager, &over.to_string());
        commands.into_iter().try_for_each(|args| pvfs.run(args)?.ok())
    }

    /// Returns `pvfs` with the manager's address over TCP.
    pub(super) fn pvfs_over(&self, over: Over) -> Pvfs {
        self.pvfs(&self.cluster.tcp[0], &over.to_string())
    }

    fn pvfs(&self, manager: &str, over: &str) -> Pvfs {
        let options = ["--manager", manager, "--over", over, "--timeout", "10s", "-q"];
        Pvfs { program: self.program.clone(), options: options.map(str::to_owned).to_vec(), dir: self.dir.clone() }
    }

    /// Waits until the servers that a command needs serve.
    fn await_command(&self, args: &[&str]) -> Outcome {
        let pvfs = self.pvfs_over(Over::Tcp);
        match until(START_LIMIT, || Ok(pvfs.run(args)?.is_acknowledged()))? {
            true => Ok(()),
            false => Err(format!("the servers do not come up for pvfs {}", args[0]).into()),
        }
    }
}

/// All times.
const ALWAYS: (u64, u64) = (0, u64::MAX);

fn shm_addr(dir: &Path, index: usize) -> String {
    format!("shm://{}/sockets/{}", dir.display(), Cluster::name(index))
}
