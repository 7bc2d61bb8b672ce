//! `pvfsd scratch`: a cluster that lasts as long as a command.
//!
//! **Why.** Whoever tries the file system, or measures it on one machine, wants a cluster now and
//! nothing of it afterwards: no configuration, no ports to choose, no directories to remove.
//!
//! **How.** All servers are threads of this process ([`EmbeddedCluster`]), with their data in a new
//! directory, in memory if the machine has such a file system. It ends with the command that it was
//! given. Without a command it ends with its standard input: so a program that started it and was
//! killed leaves no servers.
//!
//! **Tests.** `fs-client/tests/it/bench/scratch.rs`.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread::Builder;

use bmi::Scheme;
use bmi::driver::Waiting;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::config::CacheSection;
use crate::embedded::{ClusterOptions, EmbeddedCluster};

/// A file system in memory.
const MEMORY: &str = "/dev/shm";

/// Which cluster, and how long it lasts.
#[derive(Debug, Args)]
pub(crate) struct Scratch {
    /// The number of I/O servers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    iods: u16,
    /// The transports that each server listens on: tcp, ib, shm, or several of them.
    #[arg(long, value_delimiter = ',', default_value = "tcp,shm")]
    over: Vec<Scheme>,
    /// Where the directory of the data is made, and removed in the end [default: in memory].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Settings of the section [cache] of a configuration: 'service = "unifier", memory = "1G"'.
    #[arg(long, value_name = "SETTINGS", value_parser = cache)]
    cache: Option<CacheSection>,
    /// The I/O servers keep checksums of what they store.
    #[arg(long)]
    checksums: bool,
    /// The command, which finds the manager in the variable PVFS_MANAGER. The cluster ends with it.
    #[arg(last = true)]
    command: Vec<String>,
}

fn cache(text: &str) -> Result<CacheSection, String> {
    toml::from_str(&text.replace(',', "\n")).map_err(|error| error.message().to_owned())
}

impl Scratch {
    /// Runs the cluster. `say` gets the lines that tell where it is, and without a command
    /// `stopped` ends it. Returns the exit status: that of the command, if there is one.
    ///
    /// # Errors
    /// If a server does not start or fails, or the command cannot be run. The text says why.
    pub(crate) fn run(
        self,
        (waiting, threads): (Waiting, usize),
        say: impl Fn(&str),
        stopped: impl Future<Output = ()>,
    ) -> Result<u8, String> {
        let Scratch { iods, over, dir, cache, checksums, command } = self;
        let service = cache.unwrap_or_default().service();
        over.iter().try_for_each(|scheme| service.check_over(*scheme)).map_err(|error| error.detail)?;
        let data = directory(dir.as_deref())?;
        let iods = iods.into();
        let options = ClusterOptions { iods, over, service, checksums, threads, waiting, ..ClusterOptions::default() };
        let cluster = EmbeddedCluster::start(data.path(), options).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let status = runtime.block_on(async {
            if command.is_empty() {
                cluster.manager_addrs().iter().for_each(|addr| say(&format!("manager {addr}\n")));
                say("serving\n");
                return until_the_end(stopped).await.map(|()| 0).map_err(|error| error.to_string());
            }
            let mut begun = Command::new(&command[0]);
            begun.args(&command[1..]).env("PVFS_MANAGER", cluster.manager().to_string());
            let failed = |error: io::Error| format!("{}: {error}", command[0]);
            let status = until_it_ends(begun.spawn().map_err(failed)?).await.map_err(failed)?;
            // A command that a signal ended has the status that a shell gives it.
            Ok(status.code().map_or(1, |code| code as u8))
        });
        let stopped = cluster.stop().map_err(|error| error.to_string());
        status.and_then(|status| stopped.map(|()| status))
    }
}

/// Makes the directory of the data.
fn directory(dir: Option<&Path>) -> Result<tempfile::TempDir, String> {
    let new = |dir: &Path| {
        let made = tempfile::Builder::new().prefix("pvfs-").tempdir_in(dir);
        made.map_err(|error| format!("{}: {error}", dir.display()))
    };
    match dir {
        Some(dir) => new(&std::path::absolute(dir).map_err(|error| format!("{}: {error}", dir.display()))?),
        None => new(Path::new(MEMORY)).or_else(|_| new(&std::env::temp_dir())),
    }
}

/// Waits for `stopped`, or for the end of the standard input.
async fn until_the_end(stopped: impl Future<Output = ()>) -> io::Result<()> {
    let (ended, end) = oneshot::channel();
    let body = move || {
        let mut input = io::stdin().lock();
        while matches!(input.read(&mut [0; 256]), Ok(1..)) {}
        // A signal may have come first.
        let _ = ended.send(());
    };
    Builder::new().name("input".into()).spawn(body)?;
    tokio::select! {
        _ = end => {}
        () = stopped => {}
    }
    Ok(())
}

/// Waits for the end of a command. SIGTERM is handed on. SIGINT is not: a terminal sends it to
/// both.
async fn until_it_ends(mut child: Child) -> io::Result<ExitStatus> {
    let pid = Pid::from_child(&child);
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (ended, mut end) = oneshot::channel();
    Builder::new().name("command".into()).spawn(move || ended.send(child.wait()))?;
    loop {
        tokio::select! {
            status = &mut end => return status.unwrap_or_else(|error| Err(io::Error::other(error))),
            _ = term.recv() => {
                // It may have ended.
                let _ = kill_process(pid, Signal::TERM);
            }
            _ = int.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServiceName;

    #[test]
    fn settings_of_a_cache_are_those_of_a_configuration() {
        let section = cache("service = \"unifier\", memory = \"64M\", views = \"0\"").unwrap();
        assert_eq!((section.service, section.memory.map(|size| size.0)), (ServiceName::Unifier, Some(64 << 20)));
        assert!(cache("servise = \"mmap\"").is_err_and(|why| why.contains("servise")));
    }
}
