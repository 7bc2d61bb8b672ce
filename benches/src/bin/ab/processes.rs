//! A cluster of separate processes: each server a `pvfsd`, as on a real machine.
//!
//! **Why.** Servers that are threads of the client's process share its scheduler slots and its address space. As processes they show what a transport
//! between processes costs, and memory that is shared is really shared.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use bmi_core::{Addr, Scheme};
use rustix::process::{Pid, Signal, kill_process};

use crate::job::Failed;

/// The servers; dropping it kills what has not been stopped.
pub(crate) struct Processes {
    manager: Addr,
    servers: Servers,
}

/// Processes that somebody else can kill, too: who gives up on a run that hangs.
#[derive(Clone, Default)]
pub(crate) struct Servers(Arc<Mutex<Vec<Child>>>);

impl Servers {
    /// Kills them all.
    pub(crate) fn kill(&self) {
        let mut servers = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for mut server in servers.drain(..) {
            // It may have ended by itself.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.servers.kill();
    }
}

impl Processes {
    /// Starts a manager and `iods` I/O servers that listen over `scheme`, data under `dir`. They are in `servers` from when they are started.
    ///
    /// # Errors
    /// If there is no program `pvfsd` beside this one, or a server does not come up.
    pub(crate) fn start(dir: &Path, scheme: Scheme, iods: usize, servers: Servers) -> Result<Processes, Failed> {
        let (program, config) = (pvfsd()?, dir.join("pvfs.toml"));
        let addrs = addresses(dir, scheme, iods + 1)?;
        let data = |name: &str| dir.join(name).display().to_string();
        let quoted = |addr: &Addr| format!("{:?}", addr.to_string());
        let list = addrs[1..].iter().map(quoted).collect::<Vec<_>>().join(", ");
        let text = format!(
            "[cluster]\nmanager = {}\niods = [{list}]\n[storage]\nmanager = {:?}\niod = {:?}\n",
            quoted(&addrs[0]),
            data("manager"),
            data("iod{index}"),
        );
        std::fs::write(&config, text)?;
        let cluster = Processes { manager: addrs[0].clone(), servers };
        for index in 0..=iods {
            let mut command = Command::new(&program);
            command.arg("--config").arg(&config).stdout(Stdio::piped());
            command.env("RUST_LOG", std::env::var_os("RUST_LOG").unwrap_or_else(|| "warn".into()));
            match index {
                0 => command.arg("manager"),
                _ => command.args(["iod", &(index - 1).to_string()]),
            };
            let mut child = command.spawn()?;
            let stdout = child.stdout.take();
            cluster.servers.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(child);
            let mut line = String::new();
            BufReader::new(stdout.ok_or("the server has no standard output")?).read_line(&mut line)?;
            if !line.starts_with("listening on") {
                return Err(format!("server {index} did not come up over {scheme}; it has said why").into());
            }
        }
        Ok(cluster)
    }

    /// The manager's address.
    pub(crate) fn manager(&self) -> &Addr {
        &self.manager
    }

    /// Stops all servers in good order.
    ///
    /// # Errors
    /// If one of them ends with an error.
    pub(crate) fn stop(self) -> Result<(), Failed> {
        let mut servers = self.servers.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for server in servers.iter() {
            kill_process(Pid::from_child(server), Signal::TERM)?;
        }
        for mut server in servers.drain(..) {
            let status = server.wait()?;
            if !status.success() {
                return Err(format!("a server ended with {status}").into());
            }
        }
        Ok(())
    }
}

/// The server's program, built together with this one.
fn pvfsd() -> Result<PathBuf, Failed> {
    let program = std::env::current_exe()?.with_file_name("pvfsd");
    if program.is_file() {
        return Ok(program);
    }
    let text = "is not there: build it with `cargo build --release -p fs-server` (without --release for a debug build)";
    Err(format!("{} {text}", program.display()).into())
}

/// `count` addresses on this machine that nobody has.
fn addresses(dir: &Path, scheme: Scheme, count: usize) -> Result<Vec<Addr>, Failed> {
    let here = "127.0.0.1";
    if scheme == Scheme::Shm {
        let socket = |number: usize| format!("shm://{}", dir.join("sockets").join(number.to_string()).display());
        return Ok((0..count).map(|number| socket(number).parse()).collect::<Result<_, bmi_core::Error>>()?);
    }
    // Held all at once, so that they differ.
    let held = (0..count).map(|_| TcpListener::bind((here, 0))).collect::<Result<Vec<_>, _>>()?;
    let port = |listener: &TcpListener| listener.local_addr().map(|addr| addr.port());
    let ports = held.iter().map(port).collect::<Result<Vec<_>, _>>()?;
    let addr = |port| if scheme == Scheme::Ib { Addr::ib(None, here, port) } else { Addr::tcp(here, port) };
    Ok(ports.into_iter().map(addr).collect())
}
