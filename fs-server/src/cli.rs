//! The command line of `pvfsd`.
//!
//! Exit status: 0 after a requested stop, 1 if the server failed, 2 for a wrong command line or
//! configuration.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bmi::{Addr, OpenOptions, Scheme};
use bmi_core::driver::Waiting;
use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use fs_proto::FsError;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, ServerAddrs};
use crate::embedded::{Role, Server};
use crate::manager::ManagerSettings;

/// The servers of a small parallel file system.
///
/// A cluster is one manager (names, attributes, layouts) and one or more I/O servers (data). All
/// servers read the same configuration:
///
///   pvfsd init --dir /srv/pvfs         write pvfs.toml, for a cluster on this machine
///   pvfsd manager &                    start the manager
///   pvfsd iod 0 & pvfsd iod 1 & …      start the I/O servers of the configuration
///   pvfs servers                       show the transport over which each one is reached
///
/// A server may listen on several transports at once (tcp, ib, shm). The configuration lists its
/// addresses. An address whose device is missing is skipped with a warning. Only the address by
/// which clients know the server is required: its tcp address, if it has one.
///
/// A data directory records which server it belongs to, and the manager records the data directory
/// of each I/O server. A server does not start with the wrong directory, or with an empty one in
/// its place. With --adopt, it accepts the directory anyway, for instance an empty one after a disk
/// was lost.
///
/// A server prints "listening on ADDRESS" for each address when it is ready. It logs to standard
/// error (RUST_LOG=debug shows more), and stops cleanly on SIGTERM or SIGINT.
#[derive(Debug, Parser)]
#[command(name = "pvfsd", version, verbatim_doc_comment)]
struct Arguments {
    /// The configuration file.
    #[arg(long, short, global = true, default_value = "pvfs.toml")]
    config: PathBuf,
    /// Wait for requests by polling continuously: lowest latency, but each server uses a whole
    /// core.
    #[arg(long, global = true)]
    busy: bool,
    /// Accept the data directory even if the server had another one before, or if it belongs to
    /// another server. Data that was only in the other directory then reads as zeros.
    #[arg(long, global = true)]
    adopt: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the manager.
    Manager,
    /// Run an I/O server.
    Iod {
        /// The server's position in the list `iods` of the configuration, from 0.
        index: usize,
    },
    /// Write a commented configuration for a cluster on this machine.
    Init {
        /// The directory for the servers' data.
        #[arg(long, default_value = "pvfs-data")]
        dir: PathBuf,
        /// The number of I/O servers.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
        iods: u16,
        /// The manager's port; the I/O servers use the following ones.
        #[arg(long, default_value_t = 7000, value_parser = clap::value_parser!(u16).range(1..=65000))]
        port: u16,
        /// The transports that each server listens on: tcp, ib, shm, or several of them.
        #[arg(long, value_delimiter = ',', default_value = "tcp", value_parser = scheme)]
        over: Vec<Scheme>,
        /// Overwrite an existing configuration.
        #[arg(long)]
        force: bool,
    },
    /// Check the configuration and print a summary.
    Check,
}

/// Parses a transport that servers on a real machine can listen on.
fn scheme(text: &str) -> Result<Scheme, String> {
    let known = [Scheme::Tcp, Scheme::Ib, Scheme::Shm].into_iter().find(|scheme| scheme.as_str() == text);
    known.ok_or_else(|| "the transports are tcp, ib and shm".to_owned())
}

/// The reason why the command fails.
enum Failure {
    /// The command line or the configuration is wrong.
    Usage(String),
    /// The server failed.
    Runtime(String),
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        Failure::Runtime(error.to_string())
    }
}

/// Runs the command with these arguments. The first argument is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = writeln!(io::stderr(), "pvfsd: {}; see 'pvfsd --help'", one_line(&error.to_string()));
            return ExitCode::from(2);
        }
        Err(error) => {
            // Help and version also arrive here, with status 0.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let (status, text) = match execute(arguments) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(text)) => (2, text),
        Err(Failure::Runtime(text)) => (1, text),
    };
    // Standard error may be closed. The status still reports the failure.
    let _ = writeln!(io::stderr(), "pvfsd: {text}");
    ExitCode::from(status)
}

/// Returns the error of a command line, without the hints that follow it.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let joined = lines.filter(|line| !line.is_empty() && !line.starts_with("For more")).collect::<Vec<_>>().join(" ");
    joined.strip_prefix("error: ").unwrap_or(&joined).to_owned()
}

fn execute(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { config: path, busy, adopt, command } = arguments;
    let waiting = if busy { Waiting::PAPER_SERVER } else { Waiting::default() };
    let load = || Config::load(&path).map_err(|error| Failure::Usage(error.to_string()));
    match command {
        Command::Init { dir, iods, port, over, force } => init(&path, &dir, iods.into(), port, &over, force),
        Command::Check => print(&describe(&load()?)),
        Command::Manager => start(Server { waiting, adopt, ..manager(&load()?) }),
        Command::Iod { index } => start(Server { waiting, adopt, ..iod(&load()?, index)? }),
    }
}

fn print(text: &str) -> Result<(), Failure> {
    io::stdout().write_all(text.as_bytes()).map_err(|error| Failure::Runtime(format!("standard output: {error}")))
}

fn init(path: &Path, dir: &Path, iods: usize, port: u16, over: &[Scheme], force: bool) -> Result<(), Failure> {
    if path.exists() && !force {
        return Err(Failure::Usage(format!("{} is there already; --force writes over it", path.display())));
    }
    // Make the path absolute, so that the servers may be started in any directory.
    let dir = std::path::absolute(dir).map_err(|error| Failure::Usage(format!("{}: {error}", dir.display())))?;
    let mut once: Vec<Scheme> = Vec::new();
    over.iter().for_each(|scheme| {
        if !once.contains(scheme) {
            once.push(*scheme)
        }
    });
    let text = Config::template(&dir, iods, port, &once).map_err(|error| Failure::Usage(error.to_string()))?;
    fs::write(path, text).map_err(|error| Failure::Runtime(format!("{}: {error}", path.display())))?;
    print(&format!("wrote {}: a manager and {iods} I/O servers, data under {}\n", path.display(), dir.display()))
}

fn describe(config: &Config) -> String {
    let mut text = format!("manager  {}  {}\n", config.cluster.manager, config.storage.manager.display());
    for (index, addrs) in config.cluster.iods.iter().enumerate() {
        text += &format!("iod {index}    {addrs}  {}\n", config.iod_dir(index).display());
    }
    text += &format!("strip size {}\n", config.cluster.strip_size);
    let servers = || config.cluster.iods.iter().chain([&config.cluster.manager]);
    for scheme in [Scheme::Tcp, Scheme::Ib, Scheme::Shm] {
        if servers().any(|addrs| addrs.all().iter().any(|addr| addr.scheme() == scheme)) {
            text += &match bmi::open(scheme, &OpenOptions::default()) {
                Ok(_) => format!("{scheme}: can be opened on this machine\n"),
                Err(error) => format!("{scheme}: cannot be opened on this machine: {error}\n"),
            };
        }
    }
    text
}

fn manager(config: &Config) -> Server {
    let iods = config.cluster.iods.iter().map(|addrs| addrs.primary().clone()).collect();
    let settings = ManagerSettings { iods, strip_size: config.cluster.strip_size.0 };
    let role = Role::Manager { dir: config.storage.manager.clone(), settings };
    server(config, role, "manager".to_owned(), &config.cluster.manager)
}

fn iod(config: &Config, index: usize) -> Result<Server, Failure> {
    let Some(listen) = config.cluster.iods.get(index) else {
        let text = format!("there is no I/O server {index}; the configuration has {}", config.cluster.iods.len());
        return Err(Failure::Usage(text));
    };
    let (settings, offload) = (config.limits.iod(), config.limits.offload.0);
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    let manager = Some(config.cluster.manager.primary().clone());
    let role = Role::Iod { index: number, dir: config.iod_dir(index), settings, offload, manager };
    Ok(server(config, role, format!("iod{index}"), listen))
}

fn server(config: &Config, role: Role, name: String, listen: &ServerAddrs) -> Server {
    Server {
        role,
        adopt: false,
        listen: listen.all().to_vec(),
        host: bmi::host_id().unwrap_or_default(),
        transports: OpenOptions::default(),
        endpoint: bmi_core::Config::named(name),
        limits: config.limits.service(),
        waiting: Waiting::default(),
    }
}

fn start(server: Server) -> Result<(), Failure> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // A program that calls this function may have set a subscriber already.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let _ = log.with_ansi(io::stderr().is_terminal()).try_init();
    let ready = |addrs: &[Addr]| {
        let lines: String = addrs.iter().map(|addr| format!("listening on {addr}\n")).collect();
        let mut out = io::stdout();
        // The parent process may not read this output. The server runs anyway.
        let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
    };
    Ok(server.run(ready, stop_signal())?)
}

/// Waits for SIGTERM or SIGINT.
async fn stop_signal() {
    let (term, int) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    match (term, int) {
        (Ok(mut term), Ok(mut int)) => {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        }
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "no signal handler; only SIGKILL stops this server");
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn status(arguments: &[&str]) -> String {
        let arguments = std::iter::once("pvfsd").chain(arguments.iter().copied()).map(OsString::from);
        format!("{:?}", run(arguments))
    }

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_option_is_parsed() {
        assert!(
            cli_check::every_option::<Arguments>(&[]) >= 20,
            "three global options with each of 4 commands, and others"
        );
    }

    #[test]
    fn a_bad_command_line_is_one_line() {
        for (line, why) in [
            ("pvfsd fly", "'fly'"),
            ("pvfsd iod", "<INDEX>"),
            ("pvfsd init --iods 0", "--iods"),
            ("pvfsd init --over tcp,sim", "tcp, ib and shm"),
        ] {
            let error = Arguments::try_parse_from(line.split(' ')).unwrap_err();
            let text = one_line(&error.to_string());
            assert!(text.contains(why) && !text.contains('\n') && !text.contains("Usage"), "{text}");
        }
    }

    #[test]
    fn bad_command_lines_and_configurations_end_with_status_2() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pvfs.toml");
        let config = path.to_str().unwrap();
        let two = format!("{:?}", ExitCode::from(2));
        assert_eq!(status(&["fly"]), two);
        assert_eq!(status(&["--config", config, "check"]), two, "no such file");
        assert_eq!(status(&["-c", config, "init", "--iods", "0"]), two);
        let ok = format!("{:?}", ExitCode::SUCCESS);
        assert_eq!(status(&["-c", config, "init", "--iods", "2"]), ok);
        assert_eq!(status(&["-c", config, "init", "--iods", "2"]), two, "there already");
        assert_eq!(status(&["-c", config, "check"]), ok);
        assert_eq!(status(&["-c", config, "iod", "2"]), two, "no such server");
        fs::write(&path, "[cluster").unwrap();
        assert_eq!(status(&["-c", config, "manager"]), two);
    }
}
