//! The command line of `pvfsd`.
//!
//! Exit status: 0 if the command did what was requested, 1 if it or a server failed, 2 for a wrong
//! command line or configuration, 3 if `status` found a server that does not run.

use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bmi::driver::Waiting;
use bmi::{Addr, OpenOptions, Scheme};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use fs_proto::{ErrorCode, FsError};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, DEFAULT_OFFLOAD, MAX_THREADS, ServerAddrs};
use crate::control::{self, Cluster, Launch, Report, ServerName};
use crate::embedded::{Neighbours, Role, Server, format_manager_directory};
use crate::manager::{HEARTBEAT, ManagerSettings, backup};
use crate::scratch::Scratch;
use crate::store::others;

/// The servers of a small parallel file system.
///
/// A cluster is one manager (names, attributes, layouts) and one or more I/O servers (data). All
/// servers read the same configuration. A cluster on this machine is five commands:
///
///   pvfsd init --dir /srv/pvfs   write pvfs.toml
///   pvfsd format                 begin a new cluster, once
///   pvfsd start                  start all servers in the background
///   pvfsd status                 show which of them run, and where their logs are
///   pvfsd stop                   stop them
///
/// To try it, or to measure it, "pvfsd scratch" is enough: a cluster that leaves nothing behind.
///
/// Under a service manager, or on several machines, run each server on its own: "pvfsd manager",
/// "pvfsd iod 0". "pvfs servers" then shows how a client reaches each one.
///
/// A server may listen on several transports at once (tcp, ib, shm). The configuration lists its
/// addresses. An address whose device is missing is skipped with a warning. Only the address by
/// which clients know the server is required: its tcp address, if it has one.
///
/// A server has one event loop, and with "--threads N" or the setting "threads" several, each on a
/// thread of its own. Its connections are spread over them.
///
/// A data directory records which cluster and server it belongs to, and the manager records the
/// directory of each I/O server. A server does not start with the wrong directory, with an old copy
/// of it, or with an empty one in its place. Only "pvfsd format" begins a new cluster. After a disk
/// was lost for good, "pvfsd iod N --replace" begins with an empty one.
///
/// "pvfsd backup FILE" saves the metadata of the running manager. After its disk was lost:
///
///   pvfsd restore FILE           make the manager's directory from the backup
///   pvfsd manager --restored     ask the I/O servers how far they have come, then serve
///
/// A server prints "listening on ADDRESS" for each address, and "serving" when it serves: an I/O
/// server once the manager has confirmed its directory. It logs to standard
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
    /// Give each server this many event loops, each on a thread of its own. [default:
    /// limits.threads of the configuration]
    #[arg(long, global = true, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the manager in the foreground.
    Manager {
        /// Start over metadata that was restored: after "pvfsd restore", or after the manager's
        /// directory was copied back by hand.
        ///
        /// First waits until all I/O servers of the configuration have reported how far they have
        /// come, and prints for which it waits. Clients are told to wait. So no number is assigned
        /// again that was assigned after the copy. Then serves. Beside that it compares the
        /// metadata with what the I/O servers have, and writes restored-N.txt into the manager's
        /// directory: files whose datafiles are missing (reading them is an error), and datafiles
        /// that belong to no file (they are kept). Nothing is removed. The option may be given
        /// again.
        #[arg(long)]
        restored: bool,
    },
    /// Run an I/O server in the foreground.
    Iod {
        /// The server's position in the list `iods` of the configuration, from 0.
        index: usize,
        /// Use this directory in place of the one that the server had before: an empty one after
        /// its disk was lost, or an older copy. What only the other directory holds is lost;
        /// reading it is an error.
        #[arg(long)]
        replace: bool,
        /// Start without the cache of a killed server that cannot be taken over: it is gone, or the
        /// store has gone on without it. Prints for each datafile how many acknowledged bytes are
        /// lost, and removes them. A cache that can be taken over is taken over.
        #[arg(long)]
        discard_cache: bool,
    },
    /// Begin a new cluster: draw its number and prepare the manager's directory. Nothing else ever
    /// does that. I/O servers prepare their directories when the manager agrees.
    Format,
    /// Save the metadata of the running manager to a file, while it serves.
    ///
    /// Works from any machine that reaches the manager. The backup is of one moment: names,
    /// attributes, layouts, and which stores the I/O servers have. It does not contain the data of
    /// files. The file gets its name when it is complete and on the disk.
    Backup {
        /// The file.
        file: PathBuf,
        /// Write over an existing file.
        #[arg(long)]
        force: bool,
    },
    /// Make the manager's directory from a backup, on the manager's machine.
    ///
    /// The directory must be missing or empty: move what is left of the old one away. The whole
    /// backup is checked first. The cluster stays the same. Then "pvfsd manager --restored" starts
    /// the manager; without the option it does not start.
    Restore {
        /// A file that "pvfsd backup" has written.
        file: PathBuf,
    },
    /// Run several servers in the foreground, in one process.
    ///
    /// Prints "NAME: listening on ADDRESS" for each address. When one server fails, all stop.
    /// SIGTERM and SIGINT stop the manager first, then the I/O servers.
    Run(Servers),
    /// Start servers in the background, and wait until they are ready.
    ///
    /// Starts the manager, then the I/O servers. A server that runs already is left alone: it is
    /// recognised by the lock on its directory. Each server logs to NAME.log in the directory
    /// "storage.logs" of the configuration. If one does not become ready, the end of its log is
    /// shown, the servers after it are not started, and those that run are left running. Exit
    /// status: 0 if all run, 1 if not.
    Start {
        #[command(flatten)]
        servers: Servers,
        /// Run the servers in one process, which logs to pvfsd.log. It takes less memory. But they
        /// can only be stopped together, and all end when one fails.
        #[arg(long)]
        one_process: bool,
        #[command(flatten)]
        patience: Patience,
        #[command(flatten)]
        output: Output,
    },
    /// Stop servers on this machine, however they were started.
    ///
    /// Finds each process by the lock on its server's directory, and sends it SIGTERM. The manager
    /// stops first: it finishes its requests while the I/O servers still answer. A server that does
    /// not run is no error. Exit status: 0 if none runs any more, 1 otherwise.
    Stop {
        #[command(flatten)]
        servers: Servers,
        #[command(flatten)]
        patience: Patience,
        /// Kill a process that has not ended in time, as "kill -9" does. What was acknowledged
        /// stays stored.
        #[arg(long)]
        kill: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Show which servers run on this machine: process, addresses, data directory, log.
    ///
    /// A server runs if a process holds the lock on its directory. Exit status: 0 if all run, 3 if
    /// some do not, 1 if that cannot be found out.
    Status {
        #[command(flatten)]
        servers: Servers,
        #[command(flatten)]
        output: Output,
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
    /// Run a command with a new cluster on this machine, and leave nothing of it.
    ///
    /// Needs no configuration. The servers are threads of this process, on free ports of the
    /// loopback. Their data is in a new directory, in memory if possible, which is removed in the
    /// end. Without a command, the manager's addresses are printed, and the cluster lasts until the
    /// standard input ends, or SIGTERM or SIGINT comes. Exit status: that of the command.
    ///
    ///   pvfsd scratch -- pvfs bench all
    ///   pvfsd scratch --iods 1 --threads 2 --over tcp -- sh -c 'pvfs put a.bin / && pvfs ls -l'
    #[command(verbatim_doc_comment)]
    Scratch(Scratch),
    #[command(flatten)]
    Manual(cli_manual::Manual),
}

/// The servers that a command is about.
#[derive(Debug, Args)]
struct Servers {
    /// The servers: manager, iod0, iod1, … [default: all of the configuration]
    #[arg(value_name = "SERVER")]
    servers: Vec<ServerName>,
}

/// How long a command waits.
#[derive(Debug, Args)]
struct Patience {
    /// Longest wait, first for the manager and then for the I/O servers: 500ms, 30s, 2m.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = control::time)]
    timeout: Duration,
}

/// How a command prints its result.
#[derive(Debug, Args)]
struct Output {
    /// Print one JSON document instead of a line for each server.
    #[arg(long)]
    json: bool,
}

/// Parses a transport that servers on a real machine can listen on.
fn scheme(text: &str) -> Result<Scheme, String> {
    let known = [Scheme::Tcp, Scheme::Ib, Scheme::Shm].into_iter().find(|scheme| scheme.as_str() == text);
    known.ok_or_else(|| "the transports are tcp, ib and shm".to_owned())
}

/// Parses a number of event loops.
fn threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX_THREADS).contains(number));
    number.ok_or_else(|| format!("a server has from 1 to {MAX_THREADS} event loops"))
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
        // There was no request, and the text says what is wrong.
        let own = error.code == ErrorCode::Invalid && error.server.is_none() && !error.detail.is_empty();
        Failure::Runtime(if own { error.detail } else { error.to_string() })
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
        Ok(status) => return ExitCode::from(status),
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

/// Executes a command. Returns the exit status.
fn execute(arguments: Arguments) -> Result<u8, Failure> {
    let Arguments { config: path, busy, threads, command } = arguments;
    let waiting = if busy { Waiting::PAPER_SERVER } else { Waiting::default() };
    let load = || {
        let mut config = Config::load(&path).map_err(|error| Failure::Usage(error.to_string()))?;
        config.limits.threads = threads.unwrap_or(config.limits.threads);
        Ok::<_, Failure>(config)
    };
    // The configuration, and the servers that the command is about.
    let select = |servers: Servers| {
        let config = load()?;
        let cluster = Cluster::new(&config);
        let names = cluster.select(&servers.servers).map_err(Failure::Usage)?;
        Ok::<_, Failure>((config, cluster, names))
    };
    match command {
        Command::Init { dir, iods, port, over, force } => init(&path, &dir, iods.into(), port, &over, force)?,
        Command::Check => print(&describe(&load()?))?,
        Command::Manual(manual) => {
            manual.run(Arguments::command()).map_err(|error| Failure::Runtime(error.to_string()))?;
        }
        Command::Scratch(scratch) => {
            begin_log("warn", true);
            let settings = (waiting, threads.unwrap_or(1));
            return scratch.run(settings, announce, stop_signal()).map_err(Failure::Runtime);
        }
        Command::Format => format(&load()?)?,
        Command::Backup { file, force } => {
            let config = load()?;
            let summary = backup::backup(config.cluster.manager.primary(), &file, force)?;
            print(&format!("backed up {summary}\n"))?;
        }
        Command::Restore { file } => {
            let config = load()?;
            let dir = &config.storage.manager;
            let summary = backup::restore(&file, dir)?;
            print(&format!(
                "restored {summary}, into {}\nstart it with `pvfsd manager --restored`: it asks all I/O servers first \
                 how far they have come\n",
                dir.display()
            ))?;
        }
        Command::Manager { restored } => {
            let progress: fn(&str) = |line| announce(&format!("{line}\n"));
            let (server, neighbours) = manager(&load()?, restored.then_some(progress));
            serve(Server { waiting, ..server }, neighbours)?;
        }
        Command::Iod { index, replace, discard_cache } => {
            let say: fn(&str) = |line| announce(&format!("{line}\n"));
            let (server, neighbours) = iod(&load()?, index, replace, discard_cache.then_some(say))?;
            serve(Server { waiting, ..server }, neighbours)?;
        }
        Command::Run(servers) => {
            let (config, _, names) = select(servers)?;
            let of = |name| match name {
                ServerName::Manager => Ok(manager(&config, None)),
                ServerName::Iod(index) => iod(&config, index, false, None),
            };
            let server = |name| {
                let (server, neighbours) = of(name)?;
                Ok((name, Server { waiting, ..server }, neighbours))
            };
            run_all(names.into_iter().map(server).collect::<Result<_, Failure>>()?)?;
        }
        Command::Start { servers, one_process, patience, output } => {
            let (_, cluster, names) = select(servers)?;
            let config = std::path::absolute(&path).map_err(|error| Failure::Usage(error.to_string()))?;
            let options = if busy { vec!["--busy"] } else { Vec::new() };
            let launch = Launch { config, options, threads, one_process, timeout: patience.timeout };
            return show(&control::start(&cluster, &names, &launch), &output);
        }
        Command::Stop { servers, patience, kill, output } => {
            let (_, cluster, names) = select(servers)?;
            return show(&control::stop(&cluster, &names, patience.timeout, kill), &output);
        }
        Command::Status { servers, output } => {
            let (_, cluster, names) = select(servers)?;
            let report = control::status(&cluster, &names);
            let status = show(&report, &output)?;
            return Ok(if status == 0 && !report.all_run() { SOME_STOPPED } else { status });
        }
    }
    Ok(0)
}

/// The exit status of `status` if a server does not run. `systemctl status` has the same.
const SOME_STOPPED: u8 = 3;

/// Prints a report, and its errors on standard error. Returns the exit status.
fn show(report: &Report, output: &Output) -> Result<u8, Failure> {
    print(&if output.json { report.json() } else { report.text() })?;
    for error in &report.errors {
        // Standard error may be closed. The status still reports the failure.
        let _ = writeln!(io::stderr(), "pvfsd: {error}");
    }
    Ok(u8::from(!report.errors.is_empty()))
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
    text += &format!("logs     {}\n", config.logs_dir().display());
    text += &format!("strip size {}\n", config.cluster.strip_size);
    let servers = || config.cluster.iods.iter().chain([&config.cluster.manager]);
    for scheme in [Scheme::Tcp, Scheme::Ib, Scheme::Shm] {
        if servers().any(|addrs| addrs.all().iter().any(|addr| addr.scheme() == scheme)) {
            text += &match bmi::backend::open(scheme, &OpenOptions::default()) {
                Ok(_) => format!("{scheme}: can be opened on this machine\n"),
                Err(error) => format!("{scheme}: cannot be opened on this machine: {error}\n"),
            };
        }
    }
    text
}

/// Begins a new cluster.
fn format(config: &Config) -> Result<(), Failure> {
    let used = |dir: PathBuf| match others(&dir) {
        Ok(names) if names.is_empty() => None,
        Ok(_) => Some(format!("{} is in use", dir.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(format!("{}: {error}", dir.display())),
    };
    if let Some(why) = (0..config.cluster.iods.len()).find_map(|index| used(config.iod_dir(index))) {
        let text = format!("{why}; a new cluster needs empty directories. Nothing was changed");
        return Err(Failure::Runtime(text));
    }
    let cluster = format_manager_directory(&config.storage.manager)?;
    print(&format!("cluster {cluster}: the manager's directory is {}\n", config.storage.manager.display()))
}

fn manager(config: &Config, restored: Option<fn(&str)>) -> (Server, Neighbours) {
    let settings = ManagerSettings { strip_size: config.cluster.strip_size.0, ..ManagerSettings::new(Vec::new()) };
    let role = Role::Manager { dir: config.storage.manager.clone(), settings, restored };
    let iods: Neighbours = config.cluster.iods.iter().map(|addrs| addrs.primary().clone()).collect();
    (server(config, role, "manager".to_owned(), &config.cluster.manager, &iods), iods)
}

fn iod(
    config: &Config,
    index: usize,
    replace: bool,
    discard_cache: Option<fn(&str)>,
) -> Result<(Server, Neighbours), Failure> {
    let Some(listen) = config.cluster.iods.get(index) else {
        let text = format!("there is no I/O server {index}; the configuration has {}", config.cluster.iods.len());
        return Err(Failure::Usage(text));
    };
    let (settings, offload) = (config.limits.iod(), DEFAULT_OFFLOAD);
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    let role = Role::Iod {
        index: number,
        dir: config.iod_dir(index),
        settings,
        offload,
        heartbeat: HEARTBEAT,
        service: config.cache.service(),
        cache_dir: config.cache.dir.clone(),
        replace,
        discard_cache,
    };
    let manager = vec![config.cluster.manager.primary().clone()];
    Ok((server(config, role, format!("iod{index}"), listen, &manager), manager))
}

fn server(config: &Config, role: Role, name: String, listen: &ServerAddrs, neighbours: &[Addr]) -> Server {
    Server {
        role,
        listen: listen.all().to_vec(),
        connects: neighbours.iter().map(Addr::scheme).collect(),
        host: bmi::backend::host_id().unwrap_or_default(),
        transports: config.limits.transports(),
        endpoint: config.limits.endpoint(name),
        limits: config.limits.service(),
        threads: config.limits.threads,
        waiting: Waiting::default(),
        sharers: 1,
    }
}

/// Runs one server on this thread.
fn serve(server: Server, neighbours: Neighbours) -> Result<(), Failure> {
    begin_log("info", server.threads > 1);
    let ready = |addrs: &[Addr]| {
        announce_listening("", addrs);
        Ok(neighbours)
    };
    Ok(server.run(ready, || announce("serving\n"), stop_signal())?)
}

/// Runs servers on threads of their own.
fn run_all(servers: Vec<(ServerName, Server, Neighbours)>) -> Result<(), Failure> {
    begin_log("info", true);
    let listening = |name: ServerName, addrs: &[Addr]| announce_listening(&format!("{name}: "), addrs);
    let serving = |name: ServerName| announce(&format!("{name}: serving\n"));
    control::run(servers, listening, serving, stop_signal()).map_err(Failure::Runtime)
}

/// Logs to standard error, with the names of threads if several servers share the log. `usual` is
/// what is logged unless RUST_LOG says otherwise.
fn begin_log(usual: &str, shared: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    // A program that calls this function may have set a subscriber already.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let _ = log.with_ansi(io::stderr().is_terminal()).with_thread_names(shared).try_init();
}

/// Prints the addresses that a server listens on.
fn announce_listening(before: &str, addrs: &[Addr]) {
    announce(&addrs.iter().map(|addr| format!("{before}listening on {addr}\n")).collect::<String>());
}

/// Prints what a server has reached.
fn announce(lines: &str) {
    let mut out = io::stdout();
    // The parent process may not read this output. The server runs anyway.
    let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
}

/// Waits for SIGTERM or SIGINT. Catches the signal of the limit on file sizes (`ulimit -f`), which
/// would end the server: what exceeds the limit is an error of the request.
async fn stop_signal() {
    // Once caught, it remains so.
    let _ = signal(SignalKind::from_raw(libc::SIGXFSZ));
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
    fn pages_and_completions_have_every_command_and_option() {
        cli_manual::check(&Arguments::command(), tempfile::tempdir().unwrap().path());
    }

    #[test]
    fn every_option_is_parsed() {
        let options = testbed::cli::every_option::<Arguments>(&[
            ("servers", "manager"),
            ("threads", "2"),
            ("cache", "service=\"unifier\""),
        ]);
        assert!(options >= 50, "three global options with each of 11 commands, and others, not {options}");
    }

    #[test]
    fn a_bad_command_line_is_one_line() {
        for (line, why) in [
            ("pvfsd fly", "'fly'"),
            ("pvfsd iod", "<INDEX>"),
            ("pvfsd init --iods 0", "--iods"),
            ("pvfsd init --over tcp,sim", "tcp, ib and shm"),
            ("pvfsd start iod", "manager, iod0"),
            ("pvfsd stop --timeout soon", "30s"),
            ("pvfsd iod 0 --threads 0", "from 1 to 64"),
            ("pvfsd run --threads 65", "from 1 to 64"),
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
        for command in ["run", "start", "stop", "status"] {
            assert_eq!(status(&["-c", config, command, "iod2"]), two, "no such server");
        }
        assert_eq!(status(&["-c", config, "status"]), format!("{:?}", ExitCode::from(3)), "none runs");
        assert_eq!(status(&["-c", config, "stop", "--json"]), ok, "none runs");
        fs::write(&path, "[cluster").unwrap();
        assert_eq!(status(&["-c", config, "manager"]), two);
    }
}
