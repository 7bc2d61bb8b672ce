//! Measures operations of the file system through its client library, over TCP and shared memory.
//!
//! **How.** A round over one transport starts a manager and four I/O servers, each a process
//! (`pvfsd`) with its data in memory. It connects one client, measures each line once, and stops
//! the servers. The client is this process. Its main thread sleeps on an event descriptor.
//! `--sample` runs one round, for `cargo xtask compare`. Otherwise rounds of all transports
//! alternate, and the table has the median of each line.
//!
//! **What is timed.** The calls of the client library, and the few words that mark a block before a
//! write. Preparing a line and comparing data are not timed. Each line is warmed up first, except
//! `put`, with and without waiting for the disks, and `get`. Their buffers are new, as in the
//! command `pvfs`.
//!
//! **What is checked.** Every block of 4 KiB contains its place and the generation of its write
//! ([`content`]). The data of the last timed reads, the whole file after the writes, and the copy
//! that `get` created are compared with that, outside the timed sections. Listings of directories
//! show that created files exist, and that removed files do not.
//!
//! | module | what |
//! |---|---|
//! | `line` | the names of the lines, their units, and the chosen lines |
//! | `round` | one round: the servers, the client, each line once |
//! | `namespace` | create, stat, remove |
//! | `data` | random reads and writes, lists |
//! | `copies` | put and get |
//! | `clients` | many clients of an I/O server with one event loop or several (`--clients`) |
//! | `load` | calls in flight and their times; random offsets |
//! | `content` | bytes that contain their place |
//! | `report` | the rows of the report, progress |

mod clients;
mod content;
mod copies;
mod data;
mod line;
mod load;
mod namespace;
mod report;
mod round;

use std::process::ExitCode;
use std::time::Duration;

use benches::limit::Limit;
use benches::report::{ReportArgs, begin};
use benches::sandbox::Sandbox;
use benches::workload::Failed;
use benches::{lines, net, processes, sample};
use bmi_core::Scheme;
use bmi_report::{Report, units};
use clap::Parser;
use fs_server::config::Size;
use tracing_subscriber::EnvFilter;

use crate::clients::Plan;
use crate::line::Selection;
use crate::report::{Progress, Series};
use crate::round::Settings;

/// Measures the file system: create, stat, remove, random reads and writes, lists, put and get.
///
/// One client, a manager and four I/O servers run on this machine, each as a process, with data in
/// memory. "1 in flight" is one call after the other, and the figure is the median of the times of
/// the calls. "16 in flight" is that many calls of one client at any time, and the figure is calls
/// per second. A list is 64 pieces of 4 KiB in one call, with gaps in the file (16 KiB from one to
/// the next) and in memory (8 KiB). put and get are those of the command `pvfs`, from and to a file
/// in memory. All data that is read is compared with what was written; after a difference the exit
/// status is not zero.
///
/// With --clients, other lines are measured: so many clients, each with one call in flight, of a
/// manager and one I/O server, which has so many event loops. A second table has what a call takes
/// of the server and of the clients. All clients are one thread of this program.
///
/// "interval" contains the true median, or the true ratio, in 99 of 100 runs. "cost" is the cost of
/// a line divided by that of the first transport, or of the first number of loops; below 1 is
/// faster. Nothing is claimed of fewer than 8 rounds.
///
/// Close other programs first: other load on the machine widens the intervals.
#[derive(Debug, Parser)]
#[command(
    name = "fs_bench",
    after_help = "The servers' program is `pvfsd` beside this one, or the one that the environment variable PVFSD names.\n\n\
                  Examples:\n  cargo build --release -p fs-server -p benches --bin pvfsd --bin fs_bench\n  \
                  target/release/fs_bench                        everything, about a minute and a half\n  \
                  target/release/fs_bench --quick                some seconds, rough\n  \
                  target/release/fs_bench --only create          the lines with create in their names\n  \
                  target/release/fs_bench --over shm --size 64M  one transport, smaller files to put and get\n  \
                  target/release/fs_bench --clients 1,8,64       many clients of an I/O server with one loop and two\n  \
                  target/release/fs_bench --sample               each line once, as JSON: for cargo xtask compare"
)]
struct Cli {
    /// The transports: tcp, shm, ib.
    #[arg(long, value_delimiter = ',', default_value = "tcp,shm", value_name = "WHICH", value_parser = scheme)]
    over: Vec<Scheme>,
    /// Measure only lines whose names contain this: create, tcp, "64 KiB", get …
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// The bytes of the file to put and get: 64M, 1G [default: 1G, with --quick 64M].
    #[arg(long, value_name = "SIZE", value_parser = file_size)]
    size: Option<u64>,
    /// Measure so many clients of one I/O server, instead of the other lines: 1,8,64.
    #[arg(long, value_delimiter = ',', value_name = "N", conflicts_with = "size", value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: Vec<u16>,
    /// The numbers of event loops of that I/O server.
    #[arg(long, value_delimiter = ',', value_name = "N", default_value = "1,2", requires = "clients", value_parser = clap::value_parser!(u8).range(1..=64))]
    loops: Vec<u8>,
    /// Measure for a short time, with small files.
    #[arg(long)]
    quick: bool,
    /// The number of rounds of each line [default: 5, with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// The approximate time for which a line is measured in a round, in milliseconds [default: 250,
    /// with --quick 30].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    line_ms: Option<u16>,
    /// Time limit of a round over one transport, in seconds.
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..))]
    limit: u16,
    /// Print the report as JSON instead of a table, with the figures of all rounds.
    #[arg(long, conflicts_with = "sample")]
    json: bool,
    #[command(flatten)]
    report: ReportArgs,
    /// Measure each line once for a short time, and print only a JSON array.
    #[arg(long, conflicts_with_all = ["rounds", "files"])]
    sample: bool,
}

fn scheme(text: &str) -> Result<Scheme, String> {
    let known = [Scheme::Tcp, Scheme::Shm, Scheme::Ib].into_iter().find(|scheme| scheme.as_str() == text);
    known.ok_or_else(|| "there are tcp, shm and ib".to_owned())
}

fn file_size(text: &str) -> Result<u64, String> {
    match text.parse::<Size>()?.0 {
        0 => Err("a file to copy has at least 1 byte".to_owned()),
        size => Ok(size),
    }
}

fn each_once<V: Copy + PartialEq>(values: &[V]) -> Vec<V> {
    let mut once = Vec::new();
    for value in values {
        if !once.contains(value) {
            once.push(*value);
        }
    }
    once
}

impl Cli {
    /// Returns the transports, each once.
    fn schemes(&self) -> Vec<Scheme> {
        each_once(&self.over)
    }

    /// Returns what to measure with many clients, if that is wanted.
    fn plan(&self) -> Option<Plan> {
        let plan = || Plan {
            schemes: self.schemes(),
            clients: each_once(&self.clients),
            loops: each_once(&self.loops),
            only: self.only.clone(),
            rounds: self.rounds(),
            line: self.settings().line,
            limit: self.limit(),
        };
        (!self.clients.is_empty()).then(plan)
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.limit.into())
    }

    fn settings(&self) -> Settings {
        let (line_ms, file, copy) = if self.quick { (30, 16 << 20, 64 << 20) } else { (250, 256 << 20, 1 << 30) };
        Settings {
            line: Duration::from_millis(self.line_ms.unwrap_or(line_ms).into()),
            file,
            copy: self.size.unwrap_or(copy),
        }
    }

    fn rounds(&self) -> u16 {
        match self.rounds {
            _ if self.sample => 1,
            Some(rounds) => rounds,
            None if self.quick => 3,
            None => 5,
        }
    }
}

fn main() -> ExitCode {
    // Messages of servers and clients; RUST_LOG=debug shows more.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures, prints and writes the report.
fn run(cli: &Cli) -> Result<(), Failed> {
    let report = |title| begin("fs_bench", title);
    let (report, names): (Report, Vec<String>) = match cli.plan() {
        Some(plan) => {
            let mut report = report("many clients of an I/O server, by its number of event loops");
            let rows = measure_clients(&plan)?;
            report.rows = rows.iter().map(clients::Row::recorded).collect();
            (report, rows.into_iter().map(|row| row.name).collect())
        }
        None => {
            let mut report = report("operations of the file system, over several transports");
            report.rows = measure(cli)?.into_iter().map(Series::row).collect();
            let names = report.rows.iter().map(bmi_report::Row::name).collect();
            (report, names)
        }
    };
    if cli.sample {
        return Ok(sample::print(&lines::sample(names.into_iter().zip(&report.rows)))?);
    }
    if cli.json {
        println!("{}", report.to_json());
    } else {
        print!("{}", lines::render(&report));
    }
    Ok(cli.report.write(&report)?)
}

/// Fails if the servers' program is missing, or a transport cannot be opened. This is called before
/// anything is created, so that it is reported once and clearly.
fn prepare(schemes: &[Scheme]) -> Result<(), Failed> {
    processes::pvfsd()?;
    for scheme in schemes {
        net::endpoint(*scheme, "fs_bench")?;
    }
    Ok(())
}

fn measure_clients(plan: &Plan) -> Result<Vec<clients::Row>, Failed> {
    prepare(&plan.schemes)?;
    plan.measure()
}

/// Returns the chosen lines, each with the figures of all rounds.
fn measure(cli: &Cli) -> Result<Vec<Series>, Failed> {
    let (settings, mut schemes) = (cli.settings(), cli.schemes());
    let selection = Selection::new(&schemes, cli.only.as_deref(), settings.copy)?;
    schemes.retain(|scheme| selection.lines().iter().any(|line| line.scheme == *scheme));
    prepare(&schemes)?;
    let room = settings.room(&selection);
    let folder = net::data_folder();
    let space = rustix::fs::statvfs(&folder)?;
    if space.f_bavail.saturating_mul(space.f_frsize) < room {
        let (room, folder) = (units::amount(room), folder.display());
        return Err(format!("{folder} has no room for {room}: free some, or take less with --size").into());
    }

    let mut series: Vec<Series> = selection.lines().iter().cloned().map(Series::new).collect();
    let sandbox = Sandbox::new(&format!("fs-bench-{}-", std::process::id()))?;
    sandbox.end_on_signals()?;
    let progress = Progress::new(u64::from(cli.rounds()) * series.len() as u64);
    let source = match selection.wants_copies() {
        true => Some(copies::Source::make(&sandbox.folder().join("source"), settings.copy)?),
        false => None,
    };
    for _ in 0..cli.rounds() {
        for scheme in &schemes {
            let remains = sandbox.remains();
            let _limit = Limit::new(format!("a round over {scheme}"), cli.limit(), move || remains.clear_and_hold())?;
            let figures = round::run(&sandbox, *scheme, &selection, &settings, source.as_ref(), &progress)?;
            for one in series.iter_mut().filter(|one| one.line.scheme == *scheme) {
                let figure = figures.iter().find(|(what, _)| *what == one.line.what);
                let (_, value) = figure.ok_or_else(|| format!("{} was not measured", one.line.name))?;
                one.values.push(*value);
            }
        }
        // Rotate the order, so that other load on the machine affects all transports.
        let next = 1 % schemes.len();
        schemes.rotate_left(next);
    }
    Ok(series)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
        assert!(cli_check::every_option::<Cli>(&[("loops", "2 --clients 8"), ("report", "a.json")]) >= 7);
    }

    #[test]
    fn without_options_it_measures_both_transports() {
        let cli = parse("fs_bench").unwrap();
        assert_eq!(cli.schemes(), [Scheme::Tcp, Scheme::Shm]);
        assert_eq!((cli.rounds(), cli.settings().copy), (5, 1 << 30));
    }

    #[test]
    fn options_are_taken() {
        let cli = parse("fs_bench --over shm,shm --only stat --size 64M --rounds 7 --line-ms 20 --json").unwrap();
        assert_eq!((cli.schemes(), cli.rounds()), (vec![Scheme::Shm], 7));
        assert_eq!((cli.settings().copy, cli.settings().line), (64 << 20, Duration::from_millis(20)));
        assert_eq!((cli.only.as_deref(), cli.json, cli.sample), (Some("stat"), true, false));
        let cli = parse("fs_bench --sample --quick").unwrap();
        assert_eq!((cli.rounds(), cli.settings().copy), (1, 64 << 20));
    }

    #[test]
    fn clients_and_loops_are_taken_each_once() {
        assert!(parse("fs_bench").unwrap().plan().is_none());
        let plan = parse("fs_bench --clients 1,8,8 --quick").unwrap().plan().unwrap();
        assert_eq!((plan.clients, plan.loops, plan.rounds), (vec![1, 8], vec![1, 2], 3));
        let plan = parse("fs_bench --clients 64 --loops 4,1 --over shm").unwrap().plan().unwrap();
        assert_eq!((plan.loops, plan.schemes), (vec![4, 1], vec![Scheme::Shm]));
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        for (line, why) in [
            ("fs_bench --over udp", "there are tcp, shm and ib"),
            ("fs_bench --over sim", "there are tcp, shm and ib"),
            ("fs_bench --size 64X", "\"64X\" is not a size"),
            ("fs_bench --size 0", "at least 1 byte"),
            ("fs_bench --size 99999999999T", "too large"),
            ("fs_bench --rounds 0", "not in 1..=1000"),
            ("fs_bench --line-ms 0", "not in 1..=10000"),
            ("fs_bench --sample --rounds 2", "cannot be used with"),
            ("fs_bench --sample --json", "cannot be used with"),
            ("fs_bench --sample --report a.json", "cannot be used with"),
            ("fs_bench create", "unexpected argument"),
            ("fs_bench --loops 2", "--clients"),
            ("fs_bench --clients 0", "not in 1..=256"),
            ("fs_bench --clients 8 --loops 65", "not in 1..=64"),
            ("fs_bench --clients 8 --size 1M", "cannot be used with"),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn a_text_that_no_line_has_is_an_error_that_names_the_lines() {
        let error = Selection::new(&[Scheme::Tcp], Some("mkdir"), 1 << 30).unwrap_err().to_string();
        assert!(error.contains("mkdir") && error.contains("create, 1 in flight"), "{error}");
        let error = measure(&parse("fs_bench --only mkdir").unwrap()).unwrap_err().to_string();
        assert!(error.contains("mkdir"), "{error}");
    }

    #[test]
    fn lines_are_those_of_the_table_and_the_sample() {
        for what in line::ALL {
            let line = line::Line::new(Scheme::Tcp, what, 1 << 30);
            let name = line.name.clone();
            let row = Series { values: vec![0.5], ..Series::new(line) }.row();
            assert_eq!((row.name(), row.values()), (name, vec![0.5]));
        }
    }
}
