//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use bmi::paths::Path;
use bmi_report::stats::Stop;
use clap::{Args, Parser, Subcommand};

use crate::calibrate;
use crate::case::{Over, Test, Waiting};
use crate::model::Model;
use crate::plan::{self, Wanted};
use crate::run;
use crate::serve;

/// Measures transports between two hosts: TCP, RDMA verbs and shared memory, beside plain sockets.
///
/// Start `bmi-perf serve ADDRESS` on one host and `bmi-perf run ADDRESS` on the other one. All
/// transports that both hosts have are measured in turns, in random order, so that other load
/// affects all alike. A difference is claimed only if the interval of the ratio excludes 1.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Exit status: 0 if all was measured, 1 if a comparison or --self-check fails, 2 if something went wrong, 130 if the run
was interrupted. What was measured until then is reported in any case.

Example: bmi-perf run 198.18.0.1 --test latency,bandwidth --size 8..1M*8 --html report.html"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Listen, and measure with one client at a time.
    Serve(Serve),
    /// Measure with a server.
    Run(Box<Run>),
    /// Print a report that was written with --json, or write it in another form.
    Show(Show),
    /// Say what changed between two reports.
    Compare(Compare),
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The address of this host to listen at, with a port if it is not 7470. 0.0.0.0 means all.
    /// Anybody who reaches it can make this host work.
    #[arg(default_value = "127.0.0.1")]
    at: String,
    /// The processors that threads run on, one after the other: 0,2-3.
    #[arg(long, value_name = "LIST")]
    cpu_list: Option<String>,
    /// The device of the verbs adapter, with its port: mlx5_0:1.
    #[arg(long)]
    device: Option<String>,
    /// End after one run.
    #[arg(long)]
    once: bool,
}

impl Serve {
    pub(crate) fn options(&self) -> Result<serve::Options, String> {
        Ok(serve::Options {
            at: self.at.clone(),
            processors: self.cpu_list.as_deref().map_or(Ok(Vec::new()), plan::processors)?,
            device: self.device.clone(),
            once: self.once,
        })
    }
}

/// What to measure over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    /// The library over TCP.
    Tcp,
    /// The library over RDMA verbs.
    Ib,
    /// The library over shared memory; the server is on this host.
    Shm,
    /// Plain sockets that do not block.
    Sockets,
    /// Copies of memory, and cache lines that two threads hand over.
    Memory,
}

impl Transport {
    fn over(self) -> Over {
        match self {
            Transport::Tcp => Over::Tcp,
            Transport::Ib => Over::Ib,
            Transport::Shm => Over::Shm,
            Transport::Sockets => Over::Sockets,
            Transport::Memory => Over::Memory,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The host on which `bmi-perf serve` runs, with a port if it is not 7470.
    host: String,
    /// What to measure over. The default is every transport that both hosts have.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    over: Vec<Transport>,
    /// Do not measure plain sockets and memory beside the library.
    #[arg(long)]
    no_baseline: bool,
    /// What to measure.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST",
          default_values_t = [Test::Latency, Test::Bandwidth, Test::Rate])]
    test: Vec<Test>,
    /// Sizes of messages: 64K, or 8..1M for powers of two, or 8..1M*8 for every third of them. The
    /// end of a range is one of its sizes. The default depends on the test.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    size: Vec<String>,
    /// Messages in flight on each connection, for bandwidths and rates.
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "16",
          value_parser = clap::value_parser!(u32).range(1..4097))]
    depth: Vec<u32>,
    /// Number of connections.
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..1025))]
    connections: Vec<u32>,
    /// Number of threads of each side; at most one for each connection.
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..257))]
    threads: Vec<u32>,
    /// How both sides wait.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST", default_value = "polling")]
    waiting: Vec<Waiting>,
    /// Pieces of a list.
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "64",
          value_parser = clap::value_parser!(u32).range(1..4097))]
    pieces: Vec<u32>,
    /// Messages per second of latency-at-rate, over all connections.
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_values_t = [1000, 10_000, 50_000],
          value_parser = clap::value_parser!(u32).range(1..100_000_000))]
    rate: Vec<u32>,
    /// Paths of calls: inline, fast-rdma, server-based, client-based, or chosen for the library's
    /// own choice. The default is all of them.
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = path)]
    path: Vec<PathChoice>,
    /// Seconds after which no further round begins.
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..864_001))]
    time: u64,
    /// Milliseconds of a round of one row.
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..60_001))]
    round_ms: u64,
    /// Messages of a round on each connection, instead of a time.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..67_108_865))]
    count: Option<u64>,
    /// Most rounds.
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u32).range(1..100_001))]
    rounds: u32,
    /// Least rounds.
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..100_001))]
    least_rounds: u32,
    /// Rounds are added until the interval of each ratio is so narrow: its upper end divided by its
    /// lower end.
    #[arg(long, default_value_t = 1.04)]
    width: f64,
    /// The seed of the order of rounds. The default is drawn, and is in the report.
    #[arg(long)]
    seed: Option<u64>,
    /// The processors that this side's threads run on, one after the other: 0,2-3.
    #[arg(long, value_name = "LIST")]
    cpu_list: Option<String>,
    /// The device of this side's verbs adapter, with its port: mlx5_0:1.
    #[arg(long)]
    device: Option<String>,
    /// The device of the server's verbs adapter.
    #[arg(long)]
    server_device: Option<String>,
    /// Find out whether differences of 5 % are found on these hosts: measure one transport three
    /// times, as it is, once more, and slowed by 5 %. The exit status is 1 if a verdict is wrong.
    #[arg(long)]
    pub(crate) self_check: bool,
    /// A few seconds: short rounds, and few of them.
    #[arg(long)]
    quick: bool,
    /// Write a timeline of a few messages of each row, for ui.perfetto.dev. The page has it, too.
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Where a report goes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Output {
    /// Write everything that was measured; - is the standard output, instead of the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a page with pictures.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write a line for each row.
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Put the medians and the ratios to the baseline into a file of figures, from which documents
    /// quote. What the file has of other names stays.
    #[arg(long, value_name = "FILE")]
    pub(crate) figures: Option<PathBuf>,
    /// Profiles of the simulator, by name or file: vapi-2003, mine.toml+nvme. What the library does
    /// on such machines is predicted, and drawn beside what was measured.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Model::parse)]
    pub(crate) model: Vec<Model>,
    /// Write the measurements that the program `calibrate` fits a profile to.
    #[arg(long, value_name = "FILE")]
    pub(crate) calibrate: Option<PathBuf>,
    /// The transport of --calibrate. The default is the first one of the library in the report.
    #[arg(long, value_enum, value_name = "TRANSPORT", requires = "calibrate")]
    calibrate_over: Option<Transport>,
}

impl Output {
    /// Returns the name of the transport whose measurements `calibrate` needs.
    pub(crate) fn calibrate_over(&self) -> Option<&'static str> {
        self.calibrate_over.map(|transport| transport.over().name())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The report.
    pub(crate) report: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The report before.
    pub(crate) a: PathBuf,
    /// The report after.
    pub(crate) b: PathBuf,
    /// Exit with status 1 if a row has become worse by more than this, and surely so: slower:5%.
    #[arg(long, value_name = "slower:PERCENT%")]
    pub(crate) fail_if: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Also write a page: all rows with their intervals, worst first.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// A path that was named.
#[derive(Clone, Copy, Debug)]
struct PathChoice(Option<u8>);

fn path(text: &str) -> Result<PathChoice, String> {
    if text == "chosen" {
        return Ok(PathChoice(None));
    }
    let name = |path: &Path| path.to_string().to_lowercase().replace(' ', "-");
    let index = Path::TAKEN.iter().position(|path| name(path) == text);
    let names = || Path::TAKEN.iter().map(name).collect::<Vec<_>>().join(", ");
    index.map(|index| PathChoice(Some(index as u8))).ok_or_else(|| format!("no such path: chosen, {}", names()))
}

impl Run {
    pub(crate) fn options(&self, command: Vec<String>) -> Result<run::Options, String> {
        if !(self.width.is_finite() && self.width > 1.0) {
            return Err(format!("--width {}: a number above 1, such as 1.04", self.width));
        }
        let mut sizes = Vec::new();
        for text in &self.size {
            sizes.extend(plan::sizes(text)?);
        }
        let wanted = Wanted {
            overs: unique(self.over.iter().map(|transport| transport.over())),
            tests: unique(self.test.iter().copied()),
            sizes: unique(sizes),
            depths: unique(self.depth.iter().copied()),
            connections: unique(self.connections.iter().copied()),
            threads: unique(self.threads.iter().copied()),
            waiting: unique(self.waiting.iter().copied()),
            pieces: unique(self.pieces.iter().copied()),
            rates: unique(self.rate.iter().copied()),
            paths: unique(self.path.iter().map(|path| path.0)),
            self_check: self.self_check,
        };
        if self.self_check && (wanted.overs.len() > 1 || wanted.tests.contains(&Test::LatencyAtRate)) {
            let text = "--self-check measures one transport (--over tcp), and cannot slow latency-at-rate";
            return Err(text.to_owned());
        }
        if self.output.calibrate.is_some() {
            calibrate::check(&wanted, self.output.calibrate_over())?;
        }
        // Which transports there are is not known yet, and does not matter to the bounds.
        let any = Wanted { overs: vec![Over::Tcp], ..wanted.clone() };
        for case in any.groups().iter().flatten() {
            case.check().map_err(|why| format!("{}: {why}", case.row().what()))?;
        }
        let least = if self.quick { 8 } else { self.least_rounds };
        let most = if self.quick { 8 } else { self.rounds };
        Ok(run::Options {
            host: self.host.clone(),
            wanted,
            baseline: !self.no_baseline && !self.self_check,
            enough: Stop { width: self.width, least: least.min(most) as usize, most: most as usize },
            round: Duration::from_millis(if self.quick { 10 } else { self.round_ms }),
            count: self.count,
            time: Duration::from_secs(self.time),
            seed: self.seed.unwrap_or_else(bmi_report::stats::seed),
            processors: self.cpu_list.as_deref().map_or(Ok(Vec::new()), plan::processors)?,
            device: self.device.clone(),
            server_device: self.server_device.clone(),
            timeline: self.timeline.is_some(),
            command,
        })
    }
}

/// Returns the items in their order, each once.
fn unique<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut list = Vec::new();
    for item in items {
        if !list.contains(&item) {
            list.push(item);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
        assert!(
            cli_check::every_option::<Cli>(&[
                ("size", "64K"),
                ("cpu-list", "0"),
                ("path", "chosen"),
                ("model", "vapi-2003"),
                ("calibrate-over", "tcp --calibrate a")
            ]) >= 20
        );
    }

    fn options(line: &str) -> Result<run::Options, String> {
        let words = ["bmi-perf", "run", "host"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Run(run) => run.options(Vec::new()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_runs() {
        assert!(options("--size 8..64,8 --test latency").is_ok_and(|options| options.wanted.sizes == [8, 16, 32, 64]));
        for (line, why) in [
            ("--size 0", "no size"),
            ("--size 4G --depth 1", "at most"),
            ("--width 1", "above 1"),
            ("--path nowhere", "no such path"),
            ("--cpu-list x", "no list"),
            ("--test list-write --size 8 --pieces 9", "pieces"),
            ("--depth 5000", "5000"),
            ("--over carrier-pigeon", "carrier-pigeon"),
            ("--self-check --over tcp,shm", "one transport"),
            ("--calibrate a --over tcp --test latency", "bandwidth --size 8,256K --waiting sleeping"),
            ("--calibrate a --calibrate-over shm --over tcp", "over shm there is no"),
            ("--self-check --test latency-at-rate", "latency-at-rate"),
        ] {
            let refused = options(line).unwrap_err();
            assert!(refused.contains(why), "{line}: {refused}");
        }
        assert!(options("--calibrate a --over tcp --size 8,256K --waiting sleeping").is_ok());
        assert_eq!(options("--path chosen,inline").unwrap().wanted.paths.len(), 2);
    }
}
