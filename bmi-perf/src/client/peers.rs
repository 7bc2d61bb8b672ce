//! Programs of other libraries, measured beside this one on the same host: `ucx_perftest`,
//! `fi_pingpong`, and the programs of `perftest`, where they are installed; `bmi-perf-tonic`, where
//! it was built (`bmi-perf/tonic`); `bmi-perf-python`, which comes with the Python package. A
//! program is looked for beside this one, and in the `PATH`.
//!
//! **How.** A program runs as a server and as a client. That takes most of a second, so it is done
//! only in every [`EVERY`]th round. Where a library has several settings, the best of them counts.
//!
//! **Other conditions.** These programs use one buffer again and again, and do not write it. Over
//! shared memory its lines stay in the receiver's cache, so they look too good. Each counts what is
//! in flight in its own way. So their rows are baselines of which little is claimed. The calls over
//! tonic are those of [`crate::work`]'s tasks; a process warms up for a part of its time. Python
//! has calls and no messages: a reply comes for each of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bmi_report::{Cost, Kind, Row, Step, Unit};
use clap::ValueEnum;

use crate::case::{Case, Over, Test, Waiting};

/// The rounds in which the programs run, and in how many of them at most.
const EVERY: u32 = 8;
const MOST: u32 = 3;
/// Seconds after which a program has hung.
const LIMIT: &str = "60";
const HOST: &str = "127.0.0.1";
const PORT: &str = "13377";
/// How often a client tries to reach its server, and how long it waits between.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);
const MIB: f64 = 1_048_576.0;
/// How long calls over tonic are measured, without their warm-up.
const TONIC_MS: u32 = 500;

/// Another library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Peer {
    /// `ucx_perftest`, over TCP and shared memory.
    Ucx,
    /// `fi_pingpong`, over TCP and shared memory; it has messages only.
    Libfabric,
    /// `ib_send_lat` and the others of perftest, over verbs.
    Perftest,
    /// `bmi-perf-tonic`: calls of programs on tokio, over TCP.
    Tonic,
    /// `bmi-perf-python`: calls of this library's Python package.
    Python,
}

type Settings = &'static [(&'static str, &'static str)];

/// A program with its arguments, and how its figure is found in what it prints.
struct Run {
    program: &'static str,
    args: Vec<String>,
    settings: Vec<Settings>,
    figure: fn(&str, &Case) -> Option<f64>,
    /// What a message takes of the client and of the server.
    cost: fn(&str) -> Option<[Cost; 2]>,
}

/// What a program measured.
struct Figure {
    value: f64,
    cost: Option<[Cost; 2]>,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Peer::Ucx => "ucx",
            Peer::Libfabric => "libfabric",
            Peer::Perftest => "perftest",
            Peer::Tonic => "tonic",
            Peer::Python => "python",
        }
    }

    /// Returns what measures a case, or `None` if this library has nothing of the kind.
    fn run(self, case: &Case) -> Option<Run> {
        let over = case.station.over;
        let is_alone = (case.station.connections, case.station.threads) == (1, 1);
        let is_plain = case.waiting == Waiting::Polling && is_alone;
        match self {
            Peer::Tonic if is_alone && case.test.has_tasks() && case.station.over == Over::Tcp => Some(tonic(case)),
            Peer::Python if is_alone && over != Over::Ib => python(case),
            _ if !is_plain => None,
            Peer::Ucx if over != Over::Ib => ucx(case),
            Peer::Libfabric if over != Over::Ib => libfabric(case),
            Peer::Perftest if over == Over::Ib => perftest(case),
            _ => None,
        }
    }
}

/// Returns as many operations as take some tenths of a second.
fn number(case: &Case) -> u64 {
    match case.test.unit() {
        Unit::Seconds => (100_000_000 / (case.size + 400)).clamp(16, 100_000),
        _ => ((1 << 30) / case.size).clamp(16, 1_000_000),
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn ucx(case: &Case) -> Option<Run> {
    // Its own choice; without the kernel; everything eager. Each is the best for some sizes.
    const SHM: [Settings; 3] = [
        &[("UCX_TLS", "shm,self")],
        &[("UCX_TLS", "posix,self")],
        &[("UCX_TLS", "posix,cma,self"), ("UCX_RNDV_THRESH", "inf")],
    ];
    const TCP: [Settings; 1] = [&[("UCX_TLS", "tcp,self")]];
    let test = match case.test {
        Test::Latency => "tag_lat",
        Test::WriteSeen => "ucp_put_lat",
        Test::Bandwidth | Test::Rate => "tag_bw",
        Test::WriteBandwidth => "ucp_put_bw",
        Test::ReadBandwidth => "ucp_get",
        _ => return None,
    };
    // Iterations; the median latency, that of now, and overall in us; bandwidth now and overall in
    // MiB/s; rate now and overall.
    let figure = |printed: &str, case: &Case| {
        let numbers = |line: &str| line.split(',').filter_map(|cell| cell.trim().parse().ok()).collect::<Vec<f64>>();
        let all = printed.lines().map(numbers).rfind(|cells| cells.len() >= 8)?;
        Some(match case.test.unit() {
            Unit::Seconds => all[1] * 1e-6,
            Unit::PerSecond => all[7],
            _ => all[5] * MIB,
        })
    };
    let args = words(&format!("-t {test} -f -v -p {PORT} -s {} -n {} -w 100", case.size, number(case)));
    let settings = if case.station.over == Over::Shm { SHM.to_vec() } else { TCP.to_vec() };
    Some(Run { program: "ucx_perftest", args, settings, figure, cost: unknown })
}

fn libfabric(case: &Case) -> Option<Run> {
    if ![Test::Latency, Test::Bandwidth].contains(&case.test) {
        return None;
    }
    let provider = if case.station.over == Over::Shm { "shm" } else { "tcp" };
    // Bytes, sent, acknowledged, total, time, MB/s, us of a transfer.
    let figure = |printed: &str, case: &Case| {
        let seconds = 1e-6 * printed.lines().next_back()?.split_whitespace().nth(6)?.parse::<f64>().ok()?;
        Some(if case.test == Test::Latency { seconds } else { case.size as f64 / seconds })
    };
    let args = words(&format!("-p {provider} -e rdm -S {} -I {}", case.size, number(case) / 4 + 16));
    let settings: Vec<Settings> = vec![&[], &[("FI_SHM_DISABLE_CMA", "1")]];
    Some(Run { program: "fi_pingpong", args, settings, figure, cost: unknown })
}

fn perftest(case: &Case) -> Option<Run> {
    let depth = case.depth;
    let (program, more) = match case.test {
        Test::Latency => ("ib_send_lat", String::new()),
        Test::WriteSeen => ("ib_write_lat", String::new()),
        Test::ReadLatency => ("ib_read_lat", "-o 1".to_owned()),
        Test::Bandwidth => ("ib_send_bw", format!("-t {depth} -Q 1")),
        Test::WriteBandwidth => ("ib_write_bw", format!("-t {depth} -Q 1")),
        Test::ReadBandwidth => ("ib_read_bw", format!("-t {depth} -o {} -Q 1", depth.min(16))),
        _ => return None,
    };
    // The size first; the typical latency in us, or the average bandwidth in MiB/s.
    let figure = |printed: &str, case: &Case| {
        let size = case.size.to_string();
        let line = printed.lines().find(|line| line.split_whitespace().next() == Some(&size))?;
        let (column, scale) = if case.test.unit() == Unit::Seconds { (4, 1e-6) } else { (3, MIB) };
        Some(scale * line.split_whitespace().nth(column)?.parse::<f64>().ok()?)
    };
    // Without "-F" it does not report if its clock and its processor disagree.
    let args = words(&format!("-F -s {} -n {} {more}", case.size, number(case).min(5000)));
    Some(Run { program, args, settings: vec![&[]], figure, cost: unknown })
}

fn tonic(case: &Case) -> Run {
    let test = if case.test == Test::TokioWrite { "write" } else { "read" };
    let args = words(&format!("{test} {PORT} {} {} {TONIC_MS}", case.size, case.depth));
    // "RATE calls/s CLIENT SERVER us CLIENT SERVER switches".
    fn word(printed: &str, at: usize) -> Option<f64> {
        printed.split_whitespace().nth(at)?.parse().ok()
    }
    let figure = |printed: &str, _: &Case| word(printed, 0);
    let cost = |printed: &str| {
        let of = |at| Some(Cost { cpu: 1e-6 * word(printed, at)?, switches: word(printed, at + 3)?, calls: None });
        Some([of(2)?, of(3)?])
    };
    Run { program: "bmi-perf-tonic", args, settings: vec![&[]], figure, cost }
}

fn python(case: &Case) -> Option<Run> {
    let test = match case.test {
        Test::Latency => "latency",
        Test::Rate => "rate",
        _ => return None,
    };
    let over = if case.station.over == Over::Shm { "shm" } else { "tcp" };
    let figure = |printed: &str, case: &Case| {
        let scale = if case.test == Test::Latency { 1e-6 } else { 1.0 };
        Some(scale * printed.trim().parse::<f64>().ok()?)
    };
    let args = words(&format!("{test} {over} {} {} {}", case.size, case.depth, number(case).min(5000)));
    Some(Run { program: "bmi-perf-python", args, settings: vec![&[]], figure, cost: unknown })
}

fn unknown(_: &str) -> Option<[Cost; 2]> {
    None
}

/// A server that is ended after its client, even if the client failed.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It ends after one client. Kill it in case it did not.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Run {
    /// Runs the program with each of its settings. Returns the best figure.
    fn best(&self, program: &Path, case: &Case) -> Option<Figure> {
        let is_better = |a: &Figure, b: &Figure| (a.value < b.value) == (case.test.unit() == Unit::Seconds);
        let figures = self.settings.iter().filter_map(|settings| self.once(program, settings, case));
        figures.reduce(|a, b| if is_better(&a, &b) { a } else { b })
    }

    #[expect(clippy::disallowed_methods, reason = "a benchmark waits for another program to listen")]
    fn once(&self, program: &Path, settings: Settings, case: &Case) -> Option<Figure> {
        let start = |more: &[&str]| {
            let mut command = Command::new("timeout");
            command.arg(LIMIT).arg(program).args(&self.args).args(more);
            command.env("UCX_WARN_UNUSED_ENV_VARS", "n").envs(settings.iter().copied());
            command.stdin(Stdio::null()).stderr(Stdio::null());
            command
        };
        let _server = Server(start(&[]).stdout(Stdio::null()).spawn().ok()?);
        for _ in 0..TRIES {
            std::thread::sleep(PAUSE);
            let output = start(&[HOST]).output().ok()?;
            if output.status.success() {
                let printed = String::from_utf8_lossy(&output.stdout);
                return Some(Figure { value: (self.figure)(&printed, case)?, cost: (self.cost)(&printed) });
            }
        }
        None
    }
}

/// What is measured with other libraries.
pub(super) struct Peers {
    wanted: Vec<Peer>,
    rows: BTreeMap<(Case, Peer), Row>,
    missing: Vec<String>,
}

impl Peers {
    pub(super) fn new(wanted: &[Peer]) -> Peers {
        Peers { wanted: wanted.to_vec(), rows: BTreeMap::new(), missing: Vec::new() }
    }

    /// Measures a case with all of them, if it is their turn.
    pub(super) fn measure(&mut self, round: u32, case: &Case) {
        let is_due = round.is_multiple_of(EVERY) && round < MOST * EVERY;
        for peer in self.wanted.iter().copied().filter(|_| is_due) {
            let Some(run) = peer.run(case) else { continue };
            let Some(program) = found(run.program) else {
                self.missing.push(format!("{} is not installed: {} is left out", run.program, peer.name()));
                continue;
            };
            let Some(figure) = run.best(&program, case) else {
                self.missing.push(format!("{} did not measure {}", run.program, case.row().what()));
                continue;
            };
            let row = self.rows.entry((*case, peer)).or_insert_with(|| Row {
                over: format!("{} {}", peer.name(), case.station.over),
                kind: Kind::Baseline,
                ..case.row()
            });
            row.rounds.push(Step { round, value: figure.value });
            // Of the rounds, the last one's.
            let roles = ["client", "server"].map(str::to_owned);
            row.cost.extend(roles.into_iter().zip(figure.cost.into_iter().flatten()));
        }
    }

    /// Takes the rows that are beside a case.
    pub(super) fn rows(&mut self, case: &Case) -> Vec<Row> {
        self.wanted.iter().filter_map(|peer| self.rows.remove(&(*case, *peer))).collect()
    }

    /// Returns what is not there, and why.
    pub(super) fn missing(mut self) -> Vec<String> {
        self.missing.sort();
        self.missing.dedup();
        self.missing
    }
}

/// Returns the cases of a group that other libraries are measured beside: one for each transport.
pub(super) fn beside(group: &[Case]) -> impl Iterator<Item = Case> {
    let is_first = |at: &usize| !group[..*at].iter().any(|case| case.station.over == group[*at].station.over);
    (0..group.len()).filter(is_first).map(|at| group[at]).filter(|case| case.station.over.is_library())
}

/// Looks for a program beside this one, and in the `PATH`.
fn found(program: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.iter().filter_map(|own| own.parent()).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside.chain(std::env::split_paths(&path)).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::tests::case;
    use crate::case::{Interface, Station};

    fn over(over: Over, test: Test) -> Case {
        Case { test, station: Station { over, interface: Interface::Endpoint, ..case().station }, size: 64, ..case() }
    }

    /// What the programs print, shortened.
    #[test]
    fn the_figures_of_the_other_programs_are_found() {
        let figure = |peer: Peer, case: &Case, printed: &str| {
            (peer.run(case).unwrap().figure)(printed, case).map(|value| (value * 1e9).round() / 1e9)
        };
        let latency = over(Over::Shm, Test::Latency);
        let ucx = "[thread 0]\n1000,0.25,0.2,0.3,10.0,20.0,300,400\n";
        assert_eq!(figure(Peer::Ucx, &latency, ucx), Some(250e-9));
        assert_eq!(figure(Peer::Ucx, &over(Over::Shm, Test::Rate), ucx), Some(400.0));
        assert_eq!(figure(Peer::Ucx, &over(Over::Tcp, Test::Bandwidth), ucx), Some(20.0 * MIB));
        let pingpong = "bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec\n64 10 =10 1k 0.1s 10.1 4.00 0.2\n";
        assert_eq!(figure(Peer::Libfabric, &latency, pingpong), Some(4e-6));
        let lat = " #bytes #iterations t_min t_max t_typical\n 64 500 10.08 135.24 13.00 15.26\n";
        assert_eq!(figure(Peer::Perftest, &over(Over::Ib, Test::ReadLatency), lat), Some(13e-6));
        let bw = " #bytes #iterations peak average\n 64 1000 49.10 48.00 0.78\n";
        assert_eq!(figure(Peer::Perftest, &over(Over::Ib, Test::WriteBandwidth), bw), Some(48.0 * MIB));
        assert_eq!(figure(Peer::Perftest, &over(Over::Ib, Test::Latency), "nothing"), None);
        assert_eq!(figure(Peer::Python, &over(Over::Shm, Test::Latency), "27.50\n"), Some(27.5e-6));
        assert_eq!(figure(Peer::Python, &over(Over::Tcp, Test::Rate), "9100\n"), Some(9100.0));
        let calls = Case { waiting: Waiting::Sleeping, ..over(Over::Tcp, Test::TokioWrite) };
        let printed = "7945.5 calls/s 74.5 51 us 2 1.5 switches\n";
        assert_eq!(figure(Peer::Tonic, &calls, printed), Some(7945.5));
        let tonic = Peer::Tonic.run(&calls).unwrap();
        let [client, server] = (tonic.cost)(printed).unwrap();
        assert_eq!((client.cpu, client.switches, server.cpu, server.switches), (74.5e-6, 2.0, 51e-6, 1.5));
        assert_eq!(((tonic.cost)("7945.5 calls/s 74.5 51 us\n"), (tonic.cost)("")), (None, None));
        assert_eq!(tonic.args, ["write", PORT, "64", &calls.depth.to_string(), &TONIC_MS.to_string()]);
    }

    #[test]
    fn a_library_is_measured_only_where_it_has_the_same() {
        assert!(Peer::Ucx.run(&over(Over::Ib, Test::Latency)).is_none());
        assert!(Peer::Perftest.run(&over(Over::Shm, Test::Latency)).is_none());
        assert!(Peer::Libfabric.run(&over(Over::Shm, Test::ReadBandwidth)).is_none());
        assert!(Peer::Tonic.run(&over(Over::Tcp, Test::Latency)).is_none());
        assert!(Peer::Python.run(&over(Over::Tcp, Test::Bandwidth)).is_none());
        assert!(Peer::Tonic.run(&over(Over::Shm, Test::TokioRead)).is_none());
        let sleeping = Case { waiting: Waiting::Sleeping, ..over(Over::Shm, Test::Latency) };
        assert!(Peer::Ucx.run(&sleeping).is_none());
    }
}
