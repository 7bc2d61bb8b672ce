//! The program: the connection to the servers, the mount, the daemon, the end.
//!
//! ```text
//!   pvfs-mount ──▶ pvfs-mount --daemon ──▶ connects, mounts, prints READY ──▶ serves
//!       │ waits for the line               (its errors go to the terminal until then)
//!       └──▶ exit status
//! ```

use std::fs::OpenOptions as FileOptions;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bmi::config::TcpConfig;
use bmi::threading::AnyThread;
use bmi::{Config, Scheme, driver};
use clap::{CommandFactory, Parser};
use fs_client::{Caller, Client, ClientOptions, Endpoints, ServerName, SharedClient, TransportChoice};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::fuse::{self, Coherence, Device, Mounted};
use crate::options::{Cli, Mount};
use crate::served::{Served, Settings};
use crate::{session, through};

/// How long the manager is told at the end which files are closed.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a daemon prints when it has mounted.
const READY: &str = "mounted";
const FAILED: u8 = 1;
const USAGE: u8 = 2;

fn complain(line: impl std::fmt::Display) {
    // If that fails, the exit status still tells it.
    let _ = writeln!(io::stderr(), "pvfs-mount: {line}");
}

/// Parses the command line and does what it says.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    if let Some(manual) = &cli.manual {
        return done(manual.run(Cli::command()));
    }
    let first = Path::new(cli.manager.as_deref().unwrap_or_default());
    if cli.unmount {
        return done(unmount(first));
    }
    if cli.write_back {
        let text = |error| io::Error::other(format!("not all that was written is at the servers: {error}"));
        return done(fuse::write_back(first).map_err(text));
    }
    if let (true, Some(dir)) = (cli.through, &cli.dir) {
        return done(serve_through(first, dir));
    }
    let mount = match cli.mount() {
        Ok(mount) => mount,
        Err(line) => {
            complain(line);
            return ExitCode::from(USAGE);
        }
    };
    if !cli.foreground && !cli.daemon {
        return start_daemon();
    }
    log_to_stderr();
    done(run(&mount, cli.daemon))
}

fn done(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(error);
            ExitCode::from(FAILED)
        }
    }
}

/// Shows what happens, with `PVFS_LOG=debug`; without, what is not as it should be.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("PVFS_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off,fs_mount=warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    log.with_ansi(io::stderr().is_terminal()).init();
}

fn unmount(dir: &Path) -> io::Result<()> {
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("no pvfs is mounted at {}", dir.display()));
    let Mounted { at, .. } = fuse::mounted_at(dir)?.ok_or_else(none)?;
    fuse::unmount(&at, false).map_err(|error| match error {
        Errno::BUSY => io::Error::other(format!("{} is in use; fuser -m {0} tells by whom", at.display())),
        other => other.into(),
    })
}

fn read_ahead(mounted: &Mounted) {
    if let Err(error) = fuse::raise_read_ahead(mounted) {
        complain(format!("the kernel reads ahead less than 1 MiB: {error}"));
    }
}

/// Mounts a directory of this machine, and serves it until standard input ends: whoever started it
/// is gone then.
fn serve_through(source: &Path, dir: &Path) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let fd = Device::open().map_err(|error| io::Error::other(format!("/dev/fuse: {error}")))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        let mounted = fuse::mount(&fd, &source.display().to_string(), dir, flags, "")?;
        let serving = tokio::spawn(through::serve(Device::new(fd)?, source.to_owned()));
        read_ahead(&mounted);
        writeln!(io::stdout(), "{READY}")?;
        tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink())).await??;
        fuse::unmount(&mounted.at, true)?;
        serving.await?
    });
    runtime.shutdown_background();
    result
}

/// Starts a daemon with the same arguments, and waits until it has mounted.
fn start_daemon() -> ExitCode {
    let start = || -> io::Result<ExitCode> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--daemon").args(std::env::args_os().skip(1)).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut daemon = command.spawn()?;
        let mut lines = BufReader::new(daemon.stdout.take().expect("it is piped")).lines();
        if lines.next().transpose()?.is_some_and(|line| line == READY) {
            return Ok(ExitCode::SUCCESS);
        }
        let status = daemon.wait()?.code().and_then(|code| u8::try_from(code).ok());
        Ok(ExitCode::from(status.filter(|code| *code > 0).unwrap_or(FAILED)))
    };
    start().unwrap_or_else(|error| {
        complain(error);
        ExitCode::from(FAILED)
    })
}

/// Tells the parent that it has mounted, and leaves its terminal.
fn leave_parent(log: Option<&Path>) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{READY}")?;
    out.flush()?;
    // The parent may be the leader of a session. Then this is a member of it for good.
    let _ = rustix::process::setsid();
    let null = FileOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    match log {
        Some(log) => rustix::stdio::dup2_stderr(FileOptions::new().create(true).append(true).open(log)?)?,
        None => rustix::stdio::dup2_stderr(&null)?,
    }
    std::env::set_current_dir("/")
}

/// Mounts, and serves until it is unmounted.
fn run(mount: &Mount, is_daemon: bool) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        // Before there is anything to clean up.
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let ended = async {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        };
        let mut ended = std::pin::pin!(ended);
        let (client, is_secure) = tokio::select! {
            client = connect(mount) => client?,
            () = &mut ended => return Ok(()),
        };
        let fd = Device::open().map_err(|error| io::Error::other(format!("/dev/fuse: {error}")))?;
        let source = mount.manager.to_string();
        let mounted = fuse::mount(&fd, &source, &mount.dir, mount.flags, &mount.kernel)?;
        let settings = Settings { is_hard: mount.is_hard, coherence: mount.coherence, is_secure };
        let (holding, keeping) = (client.clone(), client.clone());
        let served = Arc::new(Served::new(client, settings));
        tokio::spawn(async move { keeping.keep_held().await });
        let (begun, has_begun) = oneshot::channel();
        let mut serving = tokio::spawn(session::serve(Device::new(fd)?, served, begun));
        // If it has ended before that, it tells why.
        if let Ok(Err(error)) = has_begun.await {
            fuse::unmount(&mounted.at, true)?;
            return Err(error);
        }
        read_ahead(&mounted);
        if is_daemon {
            leave_parent(mount.log.as_deref())?;
        }
        let result = tokio::select! {
            ended = &mut serving => ended.map_err(io::Error::other)?,
            () = ended => {
                let written_back = async {
                    if mount.coherence == Coherence::Exclusive {
                        write_back(&mounted.at, holding.endpoint().sleep(mount.timeout)).await;
                    }
                };
                end(&mounted, serving, written_back).await
            }
        };
        // So that what was removed and is closed goes now.
        tokio::select! {
            _ = holding.release_held() => {}
            _ = holding.endpoint().sleep(LAST_WORDS) => {}
        }
        result
    });
    // Nobody waits for an answer any more.
    runtime.shutdown_background();
    result
}

/// Unmounts after a signal, when what is kept is written back. While files are open, it goes on to
/// serve these, until a second signal.
async fn end(
    mounted: &Mounted,
    mut serving: tokio::task::JoinHandle<io::Result<()>>,
    written_back: impl Future<Output = ()>,
) -> io::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let at = mounted.at.clone();
    // What was written to a mapping is written to the servers before it ends, and they are asked
    // by this process.
    let unmount = move || match fuse::unmount(&at, false) {
        Err(Errno::BUSY) => {
            complain(format!("{} is in use, and is served until it is not; a second signal ends that", at.display()));
            fuse::unmount(&at, true)
        }
        other => other,
    };
    let ended = async {
        written_back.await;
        match tokio::task::spawn_blocking(unmount).await.map_err(io::Error::other)? {
            // Another has unmounted it.
            Ok(()) | Err(Errno::INVAL) => (&mut serving).await.map_err(io::Error::other)?,
            Err(error) => Err(error.into()),
        }
    };
    tokio::select! {
        ended = ended => ended,
        _ = term.recv() => fuse::unmount(&mounted.at, true).or(Ok(())),
        _ = int.recv() => fuse::unmount(&mounted.at, true).or(Ok(())),
    }
}

/// Has the kernel write back what it has kept of files that are open. Waits for that no longer than
/// `limit`: they are served until they are closed.
///
/// Another process does it. A thread of this one would wait in the kernel for an answer of this
/// one, and would keep the device open if this one is killed: both would be there for ever.
async fn write_back(at: &Path, limit: impl Future<Output = ()>) {
    let at = at.to_owned();
    let written = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--write-back").arg(at).stdin(Stdio::null()).stdout(Stdio::null()).status()
    });
    tokio::select! {
        written = written => match written.map_err(io::Error::other).flatten() {
            // Else it has told why.
            Ok(_) => {}
            Err(error) => complain(format!("what is kept is written later: {error}")),
        },
        () = limit => complain("not all that is kept was written in time; the rest is written later"),
    }
}

/// Connects to the servers. If the mount is hard, waits until the manager is up.
async fn connect(mount: &Mount) -> io::Result<(SharedClient, bool)> {
    let mut id = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut id)?;
    let options = ClientOptions {
        timeout: mount.timeout,
        retry_for: mount.timeout,
        hard: mount.is_hard,
        caller: Caller::of_process(),
        over: mount.over,
        host: bmi::backend::host_id(),
        ..ClientOptions::new(u128::from_le_bytes(id))
    };
    loop {
        let waiting = |server: &ServerName, _, why: &str| complain(format!("waiting for {server}: {why}"));
        let (endpoints, mut drivers, is_secure) = open(mount)?;
        let connected = Client::connect_waiting(endpoints, mount.manager.clone(), options.clone(), waiting).await;
        match connected {
            Err(error) if mount.is_hard && error.is_retryable() => complain(format!("{error}; waiting on")),
            other => {
                drivers.detach_all();
                return other.map(|client| (client, is_secure)).map_err(io::Error::other);
            }
        }
    }
}

/// The tasks that drive endpoints. They end with this, unless they are detached.
type Drivers = tokio::task::JoinSet<Result<std::convert::Infallible, bmi::Error>>;

/// Opens an endpoint for each transport that may be used, and drives them.
fn open(mount: &Mount) -> io::Result<(Endpoints<AnyThread>, Drivers, bool)> {
    let mut drivers = Drivers::new();
    let clock = driver::MonotonicClock::new();
    let mut options = fs_proto::user_transports().map_err(io::Error::other)?.at(&mount.manager);
    let is_secure = options.tcp.security.is_some();
    // The server's setting decides.
    options.tcp.streams = TcpConfig::MAX_STREAMS;
    let mut endpoint = |scheme| -> Result<bmi::SharedEndpoint, bmi::Error> {
        let endpoint = bmi::shared_endpoint(scheme, &options, Config::named("pvfs-mount"), clock)?;
        drivers.spawn(driver::event::drive(endpoint.clone()));
        Ok(endpoint)
    };
    let own = mount.manager.scheme();
    let mut endpoints = Endpoints::one(own, endpoint(own).map_err(io::Error::other)?);
    for scheme in [Scheme::Tcp, Scheme::Shm, Scheme::Ib].into_iter().filter(|scheme| *scheme != own) {
        let is_asked = mount.over == TransportChoice::Only(scheme);
        if is_asked || mount.over == TransportChoice::Auto || scheme == Scheme::Tcp {
            endpoints = match endpoint(scheme) {
                Ok(endpoint) => endpoints.and(scheme, endpoint),
                Err(error) if is_asked => return Err(io::Error::other(error)),
                Err(error) => endpoints.without(scheme, error.to_string()),
            };
        }
    }
    Ok((endpoints, drivers, is_secure))
}
