//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use bmi::paths::Path;
use bmi_report::stats::Stop;
use bmi_sim::Profile;
use clap::{Args, Parser, Subcommand};

use crate::calibrate;
use crate::case::{Interface, Over, Test, Waiting};
use crate::client::{self, Peer};
use crate::model::Model;
use crate::selection::{self, Wanted};
use crate::serve;

/// Measures transports on this host or between two: TCP, RDMA verbs and shared memory, beside plain
/// sockets and copies of memory.
///
/// `bmi-perf here` measures between two processes of this host. For two hosts, start `bmi-perf
/// serve ADDRESS` on one and `bmi-perf run ADDRESS` on the other one. All transports that both have
/// are measured in turns, in random order, so that other load affects all alike. A difference is
/// claimed only if the interval of the ratio excludes 1.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "\
Exit status: 0 if all was measured, 1 if a comparison fails or a profile does not fit, 2 if something went wrong, 130
if the run was interrupted. What was measured until then is reported in any case.

Examples:
  bmi-perf here                                            the transports of this host, about a minute
  bmi-perf here --over shm --interface polled,backend      what the library adds to a backend
  bmi-perf here --over tcp,shm --interface polled,c        what the interface for C adds to the library
  bmi-perf here --over shm --interface endpoint,polled     what tasks and an executor add to that
  bmi-perf here --over tcp --interface endpoint,runtime    what a runtime costs, a task of which drives
  bmi-perf here --over tcp --interface endpoint,thread     what a handle for several threads costs
  bmi-perf here --over tcp --test call-write,call-read     the four paths, and the one that is chosen
  bmi-perf here --test tokio-read,tokio-write              programs on tokio, beside plain sockets
  bmi-perf here --test tokio-read,tokio-write --peers tonic    and beside tonic
  bmi-perf here --over shm --peers ucx,libfabric           beside programs of other libraries
  bmi-perf here --interface polled,c --test latency,rate --peers python    in Rust, in C and in Python
  bmi-perf here --sample                                   one line a row: what `cargo xtask compare` reads
  bmi-perf run 198.18.0.1 --test latency,bandwidth --size 8..1M*8 --html report.html"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Listen, and measure with one client at a time.
    Serve(Serve),
    /// Measure with a server on another host.
    Run(Box<Run>),
    /// Measure between two processes of this host: starts a server of its own.
    Here(Box<Here>),
    /// Print a report that was written with --json, or write it in another form.
    Show(Show),
    /// Say what changed between two reports.
    Compare(Compare),
    /// Fit a profile of the simulator to a report, or to a file of measurements.
    Calibrate(Box<Calibrate>),
    #[command(flatten)]
    Manual(cli_manual::Manual),
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
            processors: self.cpu_list.as_deref().map_or(Ok(Vec::new()), selection::processors)?,
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
    /// The library over TCP, behind TLS. The certificates are those of BMI_CERTIFICATE, BMI_KEY and
    /// BMI_AUTHORITIES; if the environment names none, `here` makes some.
    Tls,
    /// The library over RDMA verbs.
    Ib,
    /// The library over shared memory; the server is on this host.
    Shm,
    /// Plain sockets that do not block.
    Sockets,
    /// Plain sockets over io_uring, compared with the others.
    Uring,
    /// Copies of memory, and cache lines that two threads hand over.
    Memory,
}

impl Transport {
    fn over(self) -> Over {
        match self {
            Transport::Tcp => Over::Tcp,
            Transport::Tls => Over::Tls,
            Transport::Ib => Over::Ib,
            Transport::Shm => Over::Shm,
            Transport::Sockets => Over::Sockets,
            Transport::Uring => Over::Uring,
            Transport::Memory => Over::Memory,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The host on which `bmi-perf serve` runs, with a port if it is not 7470.
    pub(crate) host: String,
    #[command(flatten)]
    pub(crate) measure: Measure,
}

#[derive(Debug, Args)]
pub(crate) struct Here {
    /// The processors that the server's threads run on, one after the other: 0,2-3.
    #[arg(long, value_name = "LIST")]
    server_cpu_list: Option<String>,
    /// Programs of other libraries to measure beside, if they are installed. Calls over tonic are
    /// measured if its program is in PATH or beside this one: cargo build --release
    /// --manifest-path bmi-perf/tonic/Cargo.toml --target-dir target.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    peers: Vec<Peer>,
    /// Measure each row briefly, without baselines. Print JSON: a name, a value and a unit for
    /// each.
    #[arg(long, conflicts_with_all = ["peers", "quick", "rounds", "least_rounds", "json", "html", "csv", "figures"])]
    pub(crate) sample: bool,
    #[command(flatten)]
    pub(crate) measure: Measure,
}

impl Here {
    /// Returns the options of the server.
    pub(crate) fn server(&self) -> Vec<String> {
        let list = self.server_cpu_list.iter().flat_map(|list| ["--cpu-list".to_owned(), list.clone()]);
        list.collect()
    }

    pub(crate) fn options(&self, command: Vec<String>) -> Result<client::Options, String> {
        let options = self.measure.options(command)?;
        let options = client::Options { peers: self.peers.clone(), ..options };
        Ok(if self.sample { options.of_a_sample() } else { options })
    }
}

#[derive(Debug, Args)]
pub(crate) struct Measure {
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
    /// Messages in flight on each connection, for bandwidths and rates. The default is 16, and 1,32
    /// for programs on tokio.
    #[arg(long, value_delimiter = ',', value_name = "LIST",
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
    /// How both sides wait. The default is polling; programs on tokio sleep.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
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
    /// Interfaces through which the client uses a transport. All of them are compared in turns.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST", default_value = "endpoint")]
    interface: Vec<Interface>,
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
    /// TCP connections (streams) for each connection over TCP: 1 to 16. The default is 1.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=16))]
    streams: Option<u8>,
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
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The report.
    pub(crate) report: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Turns the prices of a base profile until the simulator measures what the machine did.
///
/// What was not measured stays as in the base, so choose one that is similar to the machine. The
/// profile is written to the standard output as TOML, for every option that takes a profile. A
/// table of what was measured, and of what the profile gives, is written to the standard error.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bmi-perf here --over tcp --test latency,bandwidth --size 8,256K --waiting sleeping --json tcp.json
  bmi-perf calibrate tcp.json > profile.toml
  bmi-perf calibrate --example > mine.toml                 what can be measured, to fill in
  bmi-perf calibrate mine.toml --base cx7-400+nvme         from another base, with another disk
  bmi-perf calibrate --show cx7-400                        what the simulator measures")]
pub(crate) struct Calibrate {
    /// A report that was written with --json, or a file of measurements.
    #[arg(required_unless_present_any = ["example", "show"])]
    file: Option<PathBuf>,
    /// The profile to start from, a name or a file; +NAME or +FILE gives it another disk. The
    /// default is gige-2008 for a report over TCP, cx7-400 for another one, and vapi-2003 for a
    /// file of measurements.
    #[arg(long, value_name = "NAME|FILE", value_parser = Profile::from_name_or_file)]
    pub(crate) base: Option<Profile>,
    /// The transport of the report. The default is its first one of the library.
    #[arg(long, value_enum, value_name = "TRANSPORT")]
    over: Option<Transport>,
    /// The error of the profile above which the exit status is 1.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    pub(crate) tolerance: f64,
    /// Print the measurements of the report as a file, to add others, and do not fit.
    #[arg(long, conflicts_with = "base")]
    pub(crate) measured: bool,
    /// Print a file of measurements to fill in.
    #[arg(long, conflicts_with_all = ["file", "show", "base"])]
    pub(crate) example: bool,
    /// Print what the simulator measures of a profile.
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "file", value_parser = Profile::from_name_or_file)]
    pub(crate) show: Option<Profile>,
}

impl Calibrate {
    /// Returns where the measurements come from.
    pub(crate) fn input(&self) -> calibrate::Input {
        let over = self.over.map(|transport| transport.over().name());
        match &self.file {
            Some(file) => calibrate::Input::File(file.clone(), over),
            None => calibrate::Input::Example,
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "a number of percent, as in 5 or 2.5".to_owned())
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

impl Measure {
    pub(crate) fn options(&self, command: Vec<String>) -> Result<client::Options, String> {
        if !(self.width.is_finite() && self.width > 1.0) {
            return Err(format!("--width {}: a number above 1, such as 1.04", self.width));
        }
        let mut sizes = Vec::new();
        for text in &self.size {
            sizes.extend(selection::sizes(text)?);
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
            interfaces: unique(self.interface.iter().copied()),
        };
        // Which transports there are is not known yet, and does not matter to the bounds.
        let any = Wanted { overs: vec![Over::Tcp], ..wanted.clone() };
        let groups = any.groups();
        for case in groups.iter().flatten() {
            case.check().map_err(|why| format!("{}: {why}", case.row().what()))?;
        }
        if groups.is_empty() {
            let text = "nothing fits: backend and polled are for one connection, and have no calls or lists; only a \
                        backend has write-seen (--interface backend); programs on tokio sleep";
            return Err(text.to_owned());
        }
        let least = if self.quick { 8 } else { self.least_rounds };
        let most = if self.quick { 8 } else { self.rounds };
        Ok(client::Options {
            wanted,
            baseline: !self.no_baseline,
            enough: Stop { width: self.width, least: least.min(most) as usize, most: most as usize },
            round: Duration::from_millis(if self.quick { 10 } else { self.round_ms }),
            count: self.count,
            time: Duration::from_secs(self.time),
            seed: self.seed.unwrap_or_else(bmi_report::stats::seed),
            processors: self.cpu_list.as_deref().map_or(Ok(Vec::new()), selection::processors)?,
            device: self.device.clone(),
            server_device: self.server_device.clone(),
            streams: self.streams,
            timeline: self.timeline.is_some(),
            is_sample: false,
            peers: Vec::new(),
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
    fn every_option_is_parsed() {
        assert!(
            testbed::cli::every_option::<Cli>(&[
                ("size", "64K"),
                ("cpu-list", "0"),
                ("path", "chosen"),
                ("model", "vapi-2003"),
                ("base", "vapi-2003"),
                ("show", "vapi-2003"),
                ("tolerance", "2"),
            ]) >= 25
        );
    }

    #[test]
    fn pages_and_completions_have_every_command_and_option() {
        cli_manual::check(&Cli::command(), tempfile::tempdir().unwrap().path());
    }

    fn options(line: &str) -> Result<client::Options, String> {
        let words = ["bmi-perf", "run", "host"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Run(run) => run.measure.options(Vec::new()),
            other => panic!("{other:?}"),
        }
    }

    /// `cargo xtask compare` knows the rows of a sample by their names, so nothing changes them.
    #[test]
    fn a_sample_takes_no_options_that_change_what_its_lines_mean() {
        for other in ["--quick", "--json=a", "--rounds=3", "--peers=ucx", "--figures=a.json"] {
            assert!(Cli::try_parse_from(["bmi-perf", "here", "--sample", other]).is_err(), "{other}");
        }
        assert!(Cli::try_parse_from(["bmi-perf", "here", "--sample", "--test=rate"]).is_ok());
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
            ("--interface backend --test call-read", "nothing fits"),
            ("--interface backend --connections 2", "nothing fits"),
            ("--test write-seen", "--interface backend"),
            ("--test tokio-read --waiting polling", "sleep"),
            ("--interface tasks", "tasks"),
        ] {
            let refused = options(line).unwrap_err();
            assert!(refused.contains(why), "{line}: {refused}");
        }
        assert!(options("--test write-seen,call-read --interface endpoint,backend").is_ok());
        assert_eq!(options("--path chosen,inline").unwrap().wanted.paths.len(), 2);
    }
}
