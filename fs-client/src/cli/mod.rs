//! The command line: runs a command and returns its exit status.
//!
//! **Invariants**
//! 1. The exit status is 0 if the command is done, 1 if an operation failed or `fsck` has found
//!    damage, and 2 if the command line is wrong and nothing was done. 130 if `bench` was
//!    interrupted.
//! 2. Every error is one line on standard error that begins with `pvfs: `. Standard output has only
//!    results. With `--json` it is one document. Its field `errors` also has those lines, even if
//!    the command ended early.
//! 3. If the reader of the output goes away (`pvfs cat … | head`), the command ends silently.

mod args;
mod bench;
mod cache;
mod fsck;
mod names;
mod output;
mod plan;
mod servers;
mod size;
mod time;
mod transfer;
mod view;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, ExitCode};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::{Caller, Client, ClientOptions, Endpoints, ScrubOptions, ServerName, TransportChoice};
use bmi::{Addr, driver};
use clap::{CommandFactory, Parser};

use crate::program::{FAILED, INTERRUPTED, Stop, USAGE, complain, mount_program, open, random_id};
use args::names::Names;
use args::{Cli, Command, Global};
use output::{Output, one_line};

/// Parses the command line, runs the command and prints the output.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // `--help` and `--version` are not errors.
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
        Ok(status) => ExitCode::from(status),
        Err(Stop(status, line)) => {
            complain(&one_line(&line));
            ExitCode::from(status)
        }
    }
}

/// Enables logging of the library with `PVFS_LOG=debug`. Without it, only the command's own errors
/// are printed.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("PVFS_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    log.with_ansi(std::io::stderr().is_terminal()).init();
}

/// Runs the command. Returns its status. The errors of its parts have been printed.
fn run(cli: Cli) -> Result<u8, Stop> {
    let mut output = Output::new(&cli.global);
    match execute(cli, &mut output) {
        Ok(()) => {
            let interrupted = output.is_interrupted();
            let failed = output.finish()? > 0;
            Ok(if interrupted { INTERRUPTED } else { u8::from(failed) * FAILED })
        }
        Err(stop) => {
            output.give_up(&stop.1);
            Err(stop)
        }
    }
}

fn execute(cli: Cli, output: &mut Output) -> Result<(), Stop> {
    if let Command::Viewdist { size: Some(size), layout, rows, .. } = &cli.command {
        return view::imagined(*size, layout, *rows, output);
    }
    if matches!(cli.command, Command::Cache { watch: Some(_), .. }) && cli.global.json {
        return Err(Stop::usage("--watch prints text again and again, but --json is one document; leave one out"));
    }
    match cli.command {
        Command::Fsck { repair: true, yes: false } if cli.global.json => {
            return Err(Stop::usage("--repair asks before it changes anything, and --json does not; add --yes"));
        }
        Command::Fsck { repair: false, yes: true } => {
            return Err(Stop::usage("--yes answers what --repair asks; add --repair"));
        }
        _ => {}
    }
    if let Command::Manual(manual) = &cli.command {
        return match cli.global.json {
            true => Err(Stop::usage("what this command prints is no JSON; leave --json out")),
            false => manual.run(Cli::command()).map_err(Stop::failed),
        };
    }
    match &cli.command {
        Command::Mount { dir, options, foreground } => return Err(mount(&cli.global, dir, options, *foreground)),
        Command::Umount { dir } => return Err(become_mount([OsStr::new("--unmount"), dir.as_os_str()])),
        _ => {}
    }
    if let Command::Bench { what } = &cli.command {
        return bench::bench(&cli.global, what, output);
    }
    let manager = manager(&cli.global)?;
    let [over] = cli.global.over[..] else {
        return Err(Stop::usage("--over takes one transport here; only bench compares several"));
    };
    let endpoints = open(&manager, over)?;
    let driven: Vec<_> = endpoints.endpoints().cloned().collect();
    // Whoever asks how the servers are does not want to wait for them.
    let asks = matches!(cli.command, Command::Ping { .. } | Command::Servers | Command::Plan { .. })
        || matches!(cli.command, Command::Names(Names::Df { .. }) | Command::Cache { .. });
    let options = ClientOptions {
        timeout: cli.global.timeout,
        retry_for: if asks { Duration::ZERO } else { cli.global.retry_for },
        caller: Caller::of_process(),
        over,
        host: bmi::backend::host_id(),
        ..ClientOptions::new(random_id()?)
    };
    let busy = cli.global.busy;
    let work = command(endpoints, manager, options, cli, output);
    if busy {
        driver::busy::block_on(&driven, work)
    } else {
        driver::event::block_on_all(&driven, work).map_err(Stop::failed)?
    }
}

/// Becomes the program that mounts.
fn mount(global: &Global, dir: &Path, options: &str, foreground: bool) -> Stop {
    let manager = match manager(global) {
        Ok(manager) => manager.to_string(),
        Err(stop) => return stop,
    };
    let over = match &global.over[..] {
        [TransportChoice::Only(scheme)] => scheme.as_str(),
        _ => "auto",
    };
    let options = format!("timeo={}ms,over={over},{options}", global.timeout.as_millis());
    let foreground = foreground.then_some("--foreground").map(OsStr::new);
    become_mount([OsStr::new(&manager), dir.as_os_str(), "-o".as_ref(), options.as_ref()].into_iter().chain(foreground))
}

/// Becomes the program of the crate `fs-mount`. Returns why it cannot.
fn become_mount<'a>(args: impl IntoIterator<Item = &'a OsStr>) -> Stop {
    let program = mount_program();
    let error = process::Command::new(&program).args(args).exec();
    let text = "install it beside pvfs or on the PATH; `cargo build --release -p fs-mount` builds it";
    Stop::failed(format!("{}: {error}; {text}", program.display()))
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

async fn command(
    endpoints: Endpoints,
    manager: Addr,
    options: ClientOptions,
    cli: Cli,
    output: &mut Output,
) -> Result<(), Stop> {
    // A busy file may keep many requests waiting, one after the other.
    let told = Mutex::new(BTreeSet::new());
    let waiting = move |server: &ServerName, at_most: Duration, why: &str| {
        if told.lock().unwrap_or_else(PoisonError::into_inner).insert((server.clone(), why.to_owned())) {
            complain(&format!("waiting up to {:.1} s for {server}: {why}", at_most.as_secs_f32()));
        }
    };
    let client = Client::connect_waiting(endpoints, manager, options, waiting).await?;
    match cli.command {
        Command::Ping { count } => servers::ping(&client, count, output).await,
        Command::Plan { calibrate } => plan::plan(&client, calibrate, output).await,
        Command::Servers => servers::servers(&client, output).await,
        Command::Names(command) => names::run(&client, command, output).await,
        Command::Put { sources, target, layout, transfer, mode, no_sync } => {
            let how = transfer::Store { layout, transfer, mode, no_sync };
            transfer::put(&client, &sources, &target, &how, output).await
        }
        Command::Cp { sources, target, layout, transfer, no_sync } => {
            let how = transfer::Store { layout, transfer, mode: None, no_sync };
            transfer::cp(&client, &sources, &target, &how, output).await
        }
        Command::Get { source, target, transfer } => transfer::get(&client, &source, &target, &transfer, output).await,
        Command::Cat { paths } => transfer::cat(&client, &paths, output).await,
        Command::Cache { path, files, watch } => {
            cache::cache(&client, &cache::Show { path, files, watch }, output).await
        }
        Command::Scrub { rate, server } => fsck::scrub(&client, ScrubOptions { server, rate }, output).await,
        Command::Fsck { repair, yes } => fsck::fsck(&client, fsck::How { repair, yes }, output).await,
        // They have clients of their own, or need none.
        Command::Bench { .. } | Command::Manual(_) | Command::Mount { .. } | Command::Umount { .. } => Ok(()),
        Command::Viewdist { path, rows, .. } => {
            let path = path.ok_or_else(|| Stop::usage("viewdist needs a path or --size"))?;
            view::file(&client, &path, rows, output).await
        }
    }
}
