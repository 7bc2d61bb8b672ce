//! A cluster of `pvfsd` processes on this machine, whose servers can be killed and stopped.
//!
//! **Addresses.** The servers listen on an address of the loopback network that follows from this
//! process's id, such as `127.35.7.1`. Connections from clients have the source 127.0.0.1, so none
//! can take the port of a server that is down. Storms at the same time do not meet.
//!
//! **Invariant.** The [`Guard`] knows every server that runs.

use std::fs::{self, File, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::guard::Guard;

/// The ports that are tried for the manager. The I/O servers have the following ones.
const PORTS: [u16; 4] = [7000, 17_000, 27_000, 30_000];

/// A cluster. Its first server is the manager.
pub(crate) struct Cluster {
    dir: PathBuf,
    pvfsd: PathBuf,
    /// The manager's address over TCP.
    pub(crate) manager: String,
    /// Of each server, its address over TCP and, if there is one, over shared memory.
    addrs: Vec<Vec<String>>,
    servers: Vec<Option<Child>>,
    services: Services,
    /// How often I/O servers were started.
    starts: u32,
    guard: Guard,
}

impl Cluster {
    /// Begins a cluster over TCP in `dir` and starts its servers.
    pub(crate) fn start(
        dir: &Path,
        pvfsd: &Path,
        iods: usize,
        services: Services,
        guard: Guard,
    ) -> Result<Cluster, String> {
        let mut cluster = Cluster::begin(dir, pvfsd, iods, false, guard)?;
        cluster.services = services;
        (0..=iods).try_for_each(|index| cluster.start_server(index))?;
        Ok(cluster)
    }

    /// Writes the configuration to `dir` and begins a cluster, over TCP and perhaps also over
    /// shared memory. Starts no server.
    pub(crate) fn begin(
        dir: &Path,
        pvfsd: &Path,
        iods: usize,
        over_shm: bool,
        mut guard: Guard,
    ) -> Result<Cluster, String> {
        let tcp = addresses(iods + 1)?;
        let shm = |index| over_shm.then(|| format!("shm://{}/sockets/{}", dir.display(), Cluster::name(index)));
        let both = tcp.into_iter().enumerate().map(|(index, tcp)| [tcp].into_iter().chain(shm(index)).collect());
        let addrs: Vec<Vec<String>> = both.collect();
        write_config(dir, &addrs, Services::Normal.of(0))?;
        let mut format = Command::new(pvfsd);
        let formatted = format.arg("--config").arg(dir.join("pvfs.toml")).arg("format").output();
        let formatted = formatted.map_err(|error| format!("{}: {error}", pvfsd.display()))?;
        if !formatted.status.success() {
            let _ = guard.keep();
            return Err(format!("pvfsd format: {}", String::from_utf8_lossy(&formatted.stderr)));
        }
        let servers = (0..=iods).map(|_| None).collect();
        let manager = addrs[0][0].clone();
        let (services, starts) = (Services::Normal, 0);
        Ok(Cluster { dir: dir.to_owned(), pvfsd: pvfsd.to_owned(), manager, addrs, servers, services, starts, guard })
    }

    /// Returns the addresses of a server: over TCP and, if there is one, over shared memory.
    pub(crate) fn addrs(&self, index: usize) -> &[String] {
        &self.addrs[index]
    }

    /// Writes a configuration for the servers that are started from now on. The addresses of each
    /// server are those that `addrs_of` returns for its number.
    pub(crate) fn configure(&self, addrs_of: impl Fn(usize) -> Vec<String>) -> Result<(), String> {
        write_config(&self.dir, &(0..self.len()).map(addrs_of).collect::<Vec<_>>(), Services::Normal.of(0))
    }

    /// Returns the process of a server that runs.
    pub(crate) fn pid(&self, index: usize) -> Option<u32> {
        self.servers[index].as_ref().map(Child::id)
    }

    /// Returns the number of servers.
    pub(crate) fn len(&self) -> usize {
        self.servers.len()
    }

    /// Returns the name of a server, as `pvfsd` has it.
    pub(crate) fn name(index: usize) -> String {
        if index == 0 { "manager".to_owned() } else { format!("iod{}", index - 1) }
    }

    /// Returns the file with all that a server has printed.
    pub(crate) fn log(&self, index: usize) -> PathBuf {
        self.dir.join(format!("{}.log", Cluster::name(index)))
    }

    /// Starts a server, and does not wait until it serves.
    pub(crate) fn start_server(&mut self, index: usize) -> Result<(), String> {
        if self.services != Services::Normal && index > 0 {
            write_config(&self.dir, &self.addrs, self.services.of(self.starts))?;
            self.starts += 1;
        }
        let path = self.log(index);
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let log: File = OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?;
        let mut command = Command::new(&self.pvfsd);
        command.arg("--config").arg(self.dir.join("pvfs.toml")).env_remove("BMI_MUTANT").stdin(Stdio::null());
        command.stdout(log.try_clone().map_err(failed)?).stderr(log);
        match index {
            0 => command.arg("manager"),
            _ => command.args(["iod", &(index - 1).to_string()]),
        };
        let child = command.spawn().map_err(|error| format!("{}: {error}", self.pvfsd.display()))?;
        let child = self.servers[index].insert(child);
        self.guard.add(child)
    }

    /// Kills a server as `kill -9` does.
    pub(crate) fn kill(&mut self, index: usize) -> Result<(), String> {
        let Some(mut child) = self.servers[index].take() else { return Ok(()) };
        let killed = child.kill();
        self.guard.remove(&child)?;
        killed.and_then(|()| child.wait()).map(drop).map_err(|error| format!("{}: {error}", Cluster::name(index)))
    }

    /// Sends a signal to a server that runs.
    pub(crate) fn signal(&self, index: usize, signal: Signal) -> Result<(), String> {
        let Some(child) = &self.servers[index] else { return Ok(()) };
        // The child is not reaped, so that its id is its own.
        kill_process(Pid::from_child(child), signal).map_err(|error| format!("{}: {error}", Cluster::name(index)))
    }

    /// Returns how a server has ended, if it has ended by itself. It can be started again then.
    pub(crate) fn ended(&mut self, index: usize) -> Result<Option<ExitStatus>, String> {
        let Some(child) = &mut self.servers[index] else { return Ok(None) };
        let status = child.try_wait().map_err(|error| format!("{}: {error}", Cluster::name(index)))?;
        if status.is_some() {
            self.guard.remove(child)?;
            self.servers[index] = None;
        }
        Ok(status)
    }

    /// Returns the last line that a server printed.
    pub(crate) fn last_line(&self, index: usize) -> String {
        let log = fs::read(self.log(index)).unwrap_or_default();
        String::from_utf8_lossy(&log).lines().next_back().unwrap_or_default().to_owned()
    }

    /// Returns the lines of all logs that report a panic, with the line after each.
    pub(crate) fn panics(&self) -> Vec<String> {
        let of = |index: usize| {
            let log = fs::read(self.log(index)).unwrap_or_default();
            let log: Vec<String> = String::from_utf8_lossy(&log).lines().map(str::to_owned).collect();
            let places: Vec<usize> = (0..log.len()).filter(|line| log[*line].contains("panicked")).collect();
            let text =
                |line: usize| format!("{}: {}", Cluster::name(index), log[line..log.len().min(line + 2)].join(" "));
            places.into_iter().map(text).collect::<Vec<_>>()
        };
        (0..self.len()).flat_map(of).collect()
    }

    /// Lets the directory be kept when the storm ends.
    pub(crate) fn keep(&mut self) -> Result<(), String> {
        self.guard.keep()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for index in 0..self.servers.len() {
            // The guard ends what could not be killed here.
            let _ = self.kill(index);
        }
    }
}

/// How I/O servers move data, whenever they start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Services {
    /// Through the system's page cache.
    #[default]
    Normal,
    /// Through the system's page cache, from mapped files where that is possible.
    Mmap,
    /// Through a cache of their own.
    Unifier,
    /// The one or the other: a server also takes over what one with a cache has left.
    Mixed,
}

impl Services {
    /// Returns the name of the service for a start.
    fn of(self, start: u32) -> &'static str {
        match self {
            Services::Normal => "normal",
            Services::Mmap => "mmap",
            Services::Mixed if start % 3 == 2 => ["normal", "mmap"][(start / 3 % 2) as usize],
            Services::Unifier | Services::Mixed => "unifier",
        }
    }
}

fn write_config(dir: &Path, addrs: &[Vec<String>], service: &str) -> Result<(), String> {
    let config = format!(
        "[cluster]\nmanager = {:?}\niods = {:?}\n[storage]\nmanager = {:?}\niod = {:?}\n\
         [cache]\nservice = {service:?}\nmemory = \"8M\"\ndir = {:?}\n",
        addrs[0],
        &addrs[1..],
        dir.join("manager"),
        format!("{}/iod{{index}}", dir.display()),
        dir,
    );
    // Another server may read it at this moment.
    let (new, file) = (dir.join("pvfs.new"), dir.join("pvfs.toml"));
    let written = fs::write(&new, config).and_then(|()| fs::rename(&new, &file));
    written.map_err(|error| format!("{}: {error}", dir.display()))
}

/// Returns addresses whose ports are free.
fn addresses(count: usize) -> Result<Vec<String>, String> {
    let process = std::process::id();
    let host =
        format!("127.{}.{}.{}", 1 + (process >> 15 & 0x7f), 1 + (process >> 7 & 0xff).min(253), 1 + (process & 0x7f));
    let mut reason = String::new();
    for base in PORTS {
        let ports: Vec<u16> = (base..).take(count).collect();
        let held: Result<Vec<_>, _> = ports.iter().map(|port| TcpListener::bind((host.as_str(), *port))).collect();
        match held {
            Ok(_) => return Ok(ports.into_iter().map(|port| format!("tcp://{host}:{port}")).collect()),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(format!("no free ports at {host}: {reason}"))
}
