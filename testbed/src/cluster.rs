//! A cluster of `pvfsd` processes on this machine, whose servers can be killed and stopped.
//!
//! **Addresses.** The servers listen on an address of the loopback network that follows from this
//! process's id, such as `127.35.7.1`. Connections from clients have the source 127.0.0.1, so none
//! can take the port of a server that is down. Clusters of several processes do not meet.

use std::fs::{self, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::Signal;

use crate::process::Process;
use crate::{Outcome, named};

/// A cluster. Its server 0 is the manager, the others are I/O servers.
#[derive(Debug)]
pub struct Cluster {
    /// The directory with its configuration `pvfs.toml`, its logs and its data.
    dir: PathBuf,
    pvfsd: PathBuf,
    /// The address of each server over TCP.
    pub tcp: Vec<String>,
    /// The servers that run.
    pub servers: Vec<Option<Process>>,
}

impl Cluster {
    /// Begins a cluster over TCP in `dir`. Starts no server.
    pub fn begin(dir: &Path, pvfsd: &Path, iods: usize) -> Outcome<Cluster> {
        Cluster::begin_with(dir, pvfsd, iods, |_, tcp| format!("{tcp:?}"))
    }

    /// Begins a cluster in `dir`: finds addresses, writes the configuration, and has `pvfsd format`
    /// prepare the storage.
    ///
    /// `addrs` returns the addresses of a server as a value of the configuration, from its number
    /// and its address over TCP.
    pub fn begin_with(
        dir: &Path,
        pvfsd: &Path,
        iods: usize,
        addrs: impl Fn(usize, &str) -> String,
    ) -> Outcome<Cluster> {
        let servers = (0..=iods).map(|_| None).collect();
        let cluster = Cluster { dir: dir.to_owned(), pvfsd: pvfsd.to_owned(), tcp: free_addresses(iods + 1)?, servers };
        cluster.configure(addrs, "")?;
        let output = cluster.pvfsd().arg("format").output().map_err(named(pvfsd.display()))?;
        match output.status.success() {
            true => Ok(cluster),
            false => Err(format!("pvfsd format: {}", String::from_utf8_lossy(&output.stderr)).into()),
        }
    }

    /// Writes a configuration for the servers that are started from now on, with `more` at its end.
    pub fn configure(&self, addrs: impl Fn(usize, &str) -> String, more: &str) -> Outcome {
        let addrs: Vec<String> = self.tcp.iter().enumerate().map(|(index, tcp)| addrs(index, tcp)).collect();
        let config = format!(
            "[cluster]\nmanager = {}\niods = [{}]\n[storage]\nmanager = {:?}\niod = {:?}\n{more}",
            addrs[0],
            addrs[1..].join(", "),
            self.dir.join("manager"),
            format!("{}/iod{{index}}", self.dir.display()),
        );
        // Another server may read it at this moment.
        let (new, file) = (self.dir.join("pvfs.new"), self.dir.join("pvfs.toml"));
        fs::write(&new, config).and_then(|()| fs::rename(&new, &file)).map_err(named(file.display()))
    }

    /// Returns the name of a server, as `pvfsd` has it.
    pub fn name(index: usize) -> String {
        if index == 0 { "manager".to_owned() } else { format!("iod{}", index - 1) }
    }

    /// Returns the process of a server, or 0 if it does not run.
    pub fn pid(&self, index: usize) -> u32 {
        self.servers[index].as_ref().map_or(0, |server| server.id())
    }

    /// Returns `pvfsd` with this cluster's configuration.
    pub fn pvfsd(&self) -> Command {
        let mut command = Command::new(&self.pvfsd);
        command.arg("--config").arg(self.dir.join("pvfs.toml")).env_remove("BMI_MUTANT").stdin(Stdio::null());
        command
    }

    /// Returns the arguments with which `pvfsd` is a server.
    pub fn role(index: usize) -> Vec<String> {
        match index {
            0 => vec!["manager".to_owned()],
            _ => vec!["iod".to_owned(), (index - 1).to_string()],
        }
    }

    /// Returns the file with all that a server has printed.
    pub fn log(&self, index: usize) -> PathBuf {
        self.dir.join(format!("{}.log", Cluster::name(index)))
    }

    /// Starts a server, and does not wait until it serves.
    pub fn start_server(&mut self, index: usize) -> Outcome {
        let path = self.log(index);
        let log = OpenOptions::new().create(true).append(true).open(&path).map_err(named(path.display()))?;
        let mut command = self.pvfsd();
        command.args(Cluster::role(index)).stdout(log.try_clone()?).stderr(log);
        self.servers[index] = Some(Process::start(&mut command)?);
        Ok(())
    }

    /// Kills a server as `kill -9` does.
    pub fn kill(&mut self, index: usize) {
        self.servers[index] = None;
    }

    /// Sends a signal to a server that runs.
    pub fn signal(&self, index: usize, signal: Signal) {
        self.servers[index].iter().for_each(|server| server.signal(signal));
    }

    /// Returns how a server has ended, if it has ended by itself. It can be started again then.
    pub fn ended(&mut self, index: usize) -> Outcome<Option<ExitStatus>> {
        let Some(server) = &mut self.servers[index] else { return Ok(None) };
        let status = server.try_wait()?;
        if status.is_some() {
            self.servers[index] = None;
        }
        Ok(status)
    }

    fn log_lines(&self, index: usize) -> Vec<String> {
        let log = fs::read(self.log(index)).unwrap_or_default();
        String::from_utf8_lossy(&log).lines().map(str::to_owned).collect()
    }

    /// Returns the last line that a server printed.
    pub fn last_line(&self, index: usize) -> String {
        self.log_lines(index).pop().unwrap_or_default()
    }

    /// Returns the lines of all logs that report a panic, with the line after each.
    pub fn panics(&self) -> Vec<String> {
        let of = |index: usize| {
            let log = self.log_lines(index);
            let places: Vec<usize> = (0..log.len()).filter(|line| log[*line].contains("panicked")).collect();
            let text =
                |line: usize| format!("{}: {}", Cluster::name(index), log[line..log.len().min(line + 2)].join(" "));
            places.into_iter().map(text).collect::<Vec<_>>()
        };
        (0..self.servers.len()).flat_map(of).collect()
    }
}

/// Returns addresses whose ports are free.
fn free_addresses(count: usize) -> Outcome<Vec<String>> {
    let process = std::process::id();
    let host =
        format!("127.{}.{}.{}", 1 + (process >> 15 & 0x7f), 1 + (process >> 7 & 0xff).min(253), 1 + (process & 0x7f));
    // All are held at the same time, so that they differ.
    let held = (0..count).map(|_| TcpListener::bind((host.as_str(), 0))).collect::<Result<Vec<_>, _>>();
    let held = held.map_err(named(&host))?;
    held.iter().map(|listener| Ok(format!("tcp://{}", listener.local_addr()?))).collect()
}
