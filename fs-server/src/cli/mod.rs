//! The command line of `pvfsd`.
//!
//! Exit status: 0 if the command did what was requested, 1 if it or a server failed, 2 for a wrong
//! command line or configuration, 3 if `status` found a server that does not run.
//!
//! `arguments` has the options and their help, `configuration` and `servers` carry the commands
//! out, `ca` is the authority's, `units` has what is for systemd, and `output` prints. The commands
//! for the servers of a machine are in `control`.

mod arguments;
mod ca;
mod configuration;
mod output;
mod revoke;
mod servers;
mod units;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use bmi::driver::Waiting;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use self::arguments::{Arguments, Command, Servers};
use self::output::{Failure, announce, print, show};
use self::servers::{begin_log, iod, manager, run_all, serve, stop_signal};
use crate::config::Config;
use crate::control::{self, Cluster, Launch, ServerName};
use crate::embedded::Server;
use crate::manager::backup;

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
        Command::Init { dir, iods, port, over, checksums, secure, systemd, force } => {
            // Units may be for a cluster that there is.
            if systemd.is_none() || !path.exists() {
                configuration::init(&path, &dir, iods.into(), port, &over, checksums, secure, force)?;
            }
            if let Some(units) = systemd {
                load()?;
                print(&units::write(&units, &path, force)?)?;
            }
        }
        Command::Ca { command } => command.run()?,
        Command::Check => print(&configuration::describe(&load()?))?,
        Command::Manual(manual) => {
            manual.run(Arguments::command()).map_err(|error| Failure::Runtime(error.to_string()))?;
        }
        Command::Scratch(scratch) => {
            begin_log("warn", true);
            let settings = (waiting, threads.unwrap_or(1));
            return scratch.run(settings, announce, stop_signal(Vec::new())).map_err(Failure::Runtime);
        }
        Command::Format => configuration::format(&load()?)?,
        Command::Backup { file, force } => {
            let config = load()?;
            let summary = backup::backup(config.cluster.manager.primary(), &file, force)?;
            print(&format!("backed up {summary}\n"))?;
        }
        Command::Revoke { name, undo, list: _, json } => {
            let config = load()?;
            let manager = config.cluster.manager.primary();
            match name {
                Some(name) => revoke::revoke(manager, &name, undo)?,
                None => revoke::list(manager, json)?,
            }
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
            let config = load()?;
            let (server, neighbours) = manager(&config, restored.then_some(progress))?;
            serve(Server { waiting, ..server }, neighbours, config.metrics_of(None))?;
        }
        Command::Iod { index, replace, discard_cache } => {
            let say: fn(&str) = |line| announce(&format!("{line}\n"));
            let config = load()?;
            let (server, neighbours) = iod(&config, index, replace, discard_cache.then_some(say))?;
            serve(Server { waiting, ..server }, neighbours, config.metrics_of(Some(index)))?;
        }
        Command::Run(servers) => {
            let (config, _, names) = select(servers)?;
            let of = |name| match name {
                ServerName::Manager => manager(&config, None),
                ServerName::Iod(index) => iod(&config, index, false, None),
            };
            let server = |name| {
                let (server, neighbours) = of(name)?;
                Ok((name, Server { waiting, ..server }, neighbours))
            };
            let metrics = names.iter().min().and_then(|first| match *first {
                ServerName::Manager => config.metrics_of(None),
                ServerName::Iod(index) => config.metrics_of(Some(index)),
            });
            run_all(names.into_iter().map(server).collect::<Result<_, Failure>>()?, metrics)?;
        }
        Command::Start { servers, one_process, patience, output } => {
            let (_, cluster, names) = select(servers)?;
            let config = std::path::absolute(&path).map_err(|error| Failure::Usage(error.to_string()))?;
            let options = if busy { vec!["--busy"] } else { Vec::new() };
            let launch = Launch { config, options, threads, one_process, timeout: patience.timeout };
            return show(&control::start(&cluster, &names, &launch), output.json);
        }
        Command::Stop { servers, patience, kill, output } => {
            let (_, cluster, names) = select(servers)?;
            return show(&control::stop(&cluster, &names, patience.timeout, kill), output.json);
        }
        Command::Status { servers, output } => {
            let (_, cluster, names) = select(servers)?;
            let report = control::status(&cluster, &names);
            let status = show(&report, output.json)?;
            return Ok(if status == 0 && !report.all_run() { SOME_STOPPED } else { status });
        }
    }
    Ok(0)
}

/// The exit status of `status` if a server does not run. `systemctl status` has the same.
const SOME_STOPPED: u8 = 3;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

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
            ("pvfsd ca issue", "<ROLE>"),
            ("pvfsd ca issue --dir d iod 0 --at tcp://a:7001", "without scheme and port"),
            ("pvfsd ca issue --dir d user anna --may all", "metrics"),
            ("pvfsd ca issue --dir d user anna --days 0", "--days"),
            ("pvfsd ca revoke --dir d", "<HOLDER>"),
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
        let ca = dir.path().join("ca");
        let ca = ca.to_str().unwrap();
        assert_eq!(status(&["ca", "list", "--dir", ca]), two, "no authority");
        assert_eq!(status(&["ca", "init", ca]), ok);
        assert_eq!(status(&["ca", "init", ca]), two, "there already");
        assert_eq!(status(&["ca", "issue", "--dir", ca, "iod", "0"]), two, "without --at");
        assert_eq!(status(&["ca", "issue", "--dir", ca, "user", "../anna"]), two, "no name");
        assert_eq!(status(&["ca", "issue", "--dir", ca, "user", "anna", "--may", "backup"]), ok);
        assert_eq!(status(&["ca", "revoke", "--dir", ca, "user-bob"]), two, "unknown");
        assert_eq!(status(&["ca", "revoke", "--dir", ca, "user-anna"]), ok);
        assert_eq!(status(&["ca", "list", "--dir", ca, "--json"]), ok);
        fs::remove_file(Path::new(ca).join("authority.key")).unwrap();
        assert_eq!(status(&["ca", "issue", "--dir", ca, "user", "bob"]), format!("{:?}", ExitCode::FAILURE));
        fs::write(&path, "[cluster").unwrap();
        assert_eq!(status(&["-c", config, "manager"]), two);
    }
}
