//! Runs a cluster of separate processes. Each server is a `pvfsd`, as on a real machine.
//!
//! **Why.** Servers that are threads of the client's process share its scheduler slots and its
//! address space. As processes, they show what a transport between processes costs, and memory is
//! really shared between processes.

use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use bmi_core::{Addr, Scheme};

use crate::sandbox::Sandbox;

/// The servers, which are children of a sandbox. Dropping it kills those that have not been
/// stopped.
#[derive(Debug)]
pub struct Processes<'a> {
    sandbox: &'a Sandbox,
    manager: Addr,
    iods: Vec<u32>,
}

impl Drop for Processes<'_> {
    fn drop(&mut self) {
        self.sandbox.kill();
    }
}

impl<'a> Processes<'a> {
    /// Starts a manager and `iods` I/O servers that listen over `scheme`, with their data in `dir`.
    /// An I/O server has so many event loops.
    ///
    /// # Errors
    /// If there is no program `pvfsd`, or a server does not start.
    pub fn start(
        sandbox: &'a Sandbox,
        dir: &Path,
        scheme: Scheme,
        iods: usize,
        loops: usize,
    ) -> io::Result<Processes<'a>> {
        Processes::start_with(sandbox, dir, scheme, iods, loops, "")
    }

    /// As [`Processes::start`], with more sections of the servers' configuration.
    ///
    /// # Errors
    /// As [`Processes::start`].
    pub fn start_with(
        sandbox: &'a Sandbox,
        dir: &Path,
        scheme: Scheme,
        iods: usize,
        loops: usize,
        sections: &str,
    ) -> io::Result<Processes<'a>> {
        let (program, config) = (pvfsd()?, dir.join("pvfs.toml"));
        let addrs = addresses(dir, scheme, iods + 1)?;
        let data = |name: &str| dir.join(name).display().to_string();
        let quoted = |addr: &Addr| format!("{:?}", addr.to_string());
        let list = addrs[1..].iter().map(quoted).collect::<Vec<_>>().join(", ");
        let text = format!(
            "[cluster]\nmanager = {}\niods = [{list}]\n[storage]\nmanager = {:?}\niod = {:?}\n{sections}",
            quoted(&addrs[0]),
            data("manager"),
            data("iod{index}"),
        );
        std::fs::write(&config, text)?;
        let format = Command::new(&program).arg("--config").arg(&config).arg("format").output()?;
        if !format.status.success() {
            let why = String::from_utf8_lossy(&format.stderr);
            let text = format!("server 0 did not come up over {scheme}: {}", why.trim_end());
            return Err(io::Error::other(text));
        }
        let mut cluster = Processes { sandbox, manager: addrs[0].clone(), iods: Vec::new() };
        for index in 0..=iods {
            let mut command = Command::new(&program);
            command.arg("--config").arg(&config);
            command.env("RUST_LOG", std::env::var_os("RUST_LOG").unwrap_or_else(|| "warn".into()));
            match index {
                0 => command.arg("manager"),
                _ => command.args(["iod", &(index - 1).to_string(), "--threads", &loops.to_string()]),
            };
            let (process, stdout) = sandbox.spawn(&mut command)?;
            if index > 0 {
                cluster.iods.push(process);
            }
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            if !lines.any(|line| line == "serving") {
                let text = format!("server {index} did not come up over {scheme}; it has said why");
                return Err(io::Error::other(text));
            }
        }
        Ok(cluster)
    }

    /// Returns the manager's address.
    pub fn manager(&self) -> &Addr {
        &self.manager
    }

    /// Returns the process of an I/O server.
    ///
    /// # Errors
    /// If there is none of this index.
    pub fn iod(&self, index: usize) -> io::Result<u32> {
        self.iods.get(index).copied().ok_or_else(|| io::Error::other(format!("there is no I/O server {index}")))
    }

    /// Stops all servers in an orderly way, also those of other clusters of the sandbox.
    ///
    /// # Errors
    /// If a server ends with an error.
    pub fn stop(self) -> io::Result<()> {
        self.sandbox.stop()
    }
}

/// Returns the path of the server's program. It is the value of the environment variable `PVFSD`,
/// or else the file beside this program.
///
/// # Errors
/// If there is none. The text says what to build.
pub fn pvfsd() -> io::Result<PathBuf> {
    let program = match std::env::var_os("PVFSD") {
        Some(given) => given.into(),
        None => std::env::current_exe()?.with_file_name("pvfsd"),
    };
    if program.is_file() {
        return Ok(program);
    }
    let text = "is not there: build it with `cargo build --release -p fs-server` (without --release for a debug build)";
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{} {text}", program.display())))
}

/// Returns `count` free addresses of this machine.
fn addresses(dir: &Path, scheme: Scheme, count: usize) -> io::Result<Vec<Addr>> {
    if scheme == Scheme::Shm {
        let socket = |number: usize| format!("shm://{}", dir.join("sockets").join(number.to_string()).display());
        return (0..count).map(|number| socket(number).parse().map_err(io::Error::other)).collect();
    }
    let here = if scheme == Scheme::Tcp { own_address() } else { Ipv4Addr::LOCALHOST };
    // All ports are held at once, so that they differ.
    let held = (0..count).map(|_| TcpListener::bind((here, 0))).collect::<Result<Vec<_>, _>>()?;
    let port = |listener: &TcpListener| listener.local_addr().map(|addr| addr.port());
    let ports = held.iter().map(port).collect::<Result<Vec<_>, _>>()?;
    let here = here.to_string();
    let addr = |port| if scheme == Scheme::Ib { Addr::ib(None, &here, port) } else { Addr::tcp(&here, port) };
    Ok(ports.into_iter().map(addr).collect())
}

/// Returns an address of the loopback for this process alone; Linux has all of 127.0.0.0/8.
///
/// A server binds its port a moment after this program has released it. On 127.0.0.1 a second run,
/// or any connection, could take the port in between.
fn own_address() -> Ipv4Addr {
    // Process ids are below 2^22.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 + high % 64, middle, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_differ_and_are_of_the_loopback() {
        for scheme in [Scheme::Tcp, Scheme::Shm] {
            let mut addrs: Vec<String> =
                addresses(Path::new("/run"), scheme, 5).unwrap().iter().map(Addr::to_string).collect();
            assert!(scheme != Scheme::Tcp || addrs.iter().all(|addr| addr.starts_with("tcp://127.")), "{addrs:?}");
            addrs.sort();
            addrs.dedup();
            assert_eq!(addrs.len(), 5);
        }
        assert!(own_address().is_loopback());
    }
}
