//! The command line: from arguments to an exit status.
//!
//! **Invariants**
//! 1. Exit status 0: done; 1: an operation failed; 2: the command line is wrong, and nothing was done.
//! 2. Every error is one line on standard error that begins with `pvfs: `. Standard output has results only; with `--json`, one document.
//! 3. A reader that goes away (`pvfs cat … | head`) ends the command quietly.

mod args;
mod namespace;
mod output;
mod size;
mod transfer;
mod view;

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use bmi_core::{Addr, AsyncEndpoint, Clock, Config, Endpoint, driver};
use bmi_tcp::{TcpConfig, TcpTransport};
use clap::Parser;
use fs_client::{Client, ClientOptions};

use args::{Cli, Command, Global};
use output::{Output, complain, one_line};

const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Why a command ended early; the status and the line to print.
struct Stop(u8, String);

impl Stop {
    fn failed(error: impl std::fmt::Display) -> Stop {
        Stop(FAILED, error.to_string())
    }

    fn usage(text: impl Into<String>) -> Stop {
        Stop(USAGE, text.into())
    }
}

impl From<fs_client::Error> for Stop {
    fn from(error: fs_client::Error) -> Stop {
        Stop::failed(error)
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::failed(error)
    }
}

/// Parses the command line, runs the command, prints what there is to print.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // `--help` and `--version` are no mistakes.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(USAGE);
        }
        Err(error) => {
            complain(&format!("{}; see 'pvfs --help'", one_line(&error.to_string())));
            return ExitCode::from(USAGE);
        }
    };
    log_to_stderr();
    match run(cli) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(FAILED),
        Err(Stop(status, line)) => {
            complain(&one_line(&line));
            ExitCode::from(status)
        }
    }
}

/// `PVFS_LOG=debug` shows what the library does; without it, only errors are printed, and those by us.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("PVFS_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(std::io::stderr().is_terminal()).init();
}

/// Returns how many of the command's parts failed; their errors have been printed.
fn run(cli: Cli) -> Result<usize, Stop> {
    let mut output = Output::new(&cli.global);
    if let Command::Viewdist { size: Some(size), layout, rows, .. } = &cli.command {
        view::imagined(*size, layout, *rows, &mut output)?;
        return output.finish();
    }
    let manager = manager(&cli.global)?;
    let clock = driver::MonotonicClock::new();
    let transport = TcpTransport::new(TcpConfig::default()).map_err(Stop::failed)?;
    let endpoint = Endpoint::new(transport, Config::named("pvfs"), clock.now()).map_err(Stop::failed)?;
    let endpoint = AsyncEndpoint::new(endpoint, clock);
    let options = ClientOptions {
        timeout: cli.global.timeout,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        ..ClientOptions::new(random_id()?)
    };
    let busy = cli.global.busy;
    let work = command(endpoint.clone(), manager, options, cli, &mut output);
    let result = if busy {
        driver::busy::block_on(&[endpoint], work)
    } else {
        driver::event::block_on(endpoint, work).map_err(Stop::failed)?
    };
    result?;
    output.finish()
}

fn manager(global: &Global) -> Result<Addr, Stop> {
    if let Some(addr) = &global.manager {
        return Ok(addr.clone());
    }
    match std::env::var("PVFS_MANAGER") {
        Ok(text) => text.parse().map_err(|error| Stop::usage(format!("PVFS_MANAGER: {error}"))),
        Err(_) => Err(Stop::usage("no manager; say --manager tcp://host:port or set PVFS_MANAGER")),
    }
}

/// A number that no other client has.
fn random_id() -> Result<u128, Stop> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Stop::failed(format!("/dev/urandom: {error}")))?;
    Ok(u128::from_le_bytes(bytes))
}

async fn command(
    endpoint: AsyncEndpoint<TcpTransport>,
    manager: Addr,
    options: ClientOptions,
    cli: Cli,
    output: &mut Output,
) -> Result<(), Stop> {
    let client = Client::connect(endpoint, manager, options).await?;
    match cli.command {
        Command::Ping { count } => namespace::ping(&client, count, output).await,
        Command::Ls { path, long, recursive } => namespace::ls(&client, &path, long, recursive, output).await,
        Command::Mkdir { paths, parents } => namespace::mkdir(&client, &paths, parents, output).await,
        Command::Put { sources, target, layout, transfer } => {
            transfer::put(&client, &sources, &target, &layout, &transfer, output).await
        }
        Command::Get { source, target, transfer } => transfer::get(&client, &source, &target, &transfer, output).await,
        Command::Cat { paths } => transfer::cat(&client, &paths, output).await,
        Command::Stat { paths } => namespace::stat(&client, &paths, output).await,
        Command::Rm { paths, recursive, force } => namespace::rm(&client, &paths, recursive, force, output).await,
        Command::Mv { from, to } => namespace::mv(&client, &from, &to, output).await,
        Command::Statfs => namespace::statfs(&client, output).await,
        Command::Viewdist { path, rows, .. } => {
            let path = path.ok_or_else(|| Stop::usage("viewdist needs a path or --size"))?;
            view::file(&client, &path, rows, output).await
        }
    }
}
