//! Measures the four paths over real sockets, side by side: what each costs for each size, and
//! whether the plan chose well.
//!
//! A client and a server run on a thread each, over the loopback. A write brings the data to the
//! server, and a read brings it to the client. The server stores nothing. For each size all paths
//! take turns, round by round, so that other load on the machine affects all of them. A figure is
//! the median of the rounds. How much faster a path is than that of the plan is the ratio of the
//! two over the rounds, with its interval.

use bmi::Scheme;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use benches::limit::Limit;
use benches::net::endpoint;
use benches::report::{self, ReportArgs, SEED, begin, plans, steps};
use bmi_core::comm::{Body, Caller, Direction, Incoming, Path, Plan};
use bmi_core::driver::{Waiting, event};
use bmi_core::{Addr, AsyncEndpoint, Error, ErrorKind, MemList, Memory, Options, PeerId};
use bmi_report::stats::{self, Interval};
use bmi_report::table::Table;
use bmi_report::{Histogram, Kind, Unit, units};
use clap::{Parser, ValueEnum};

/// Measures what each of the four paths costs for each size over TCP, and compares it with the path
/// of the plan.
#[derive(Parser)]
struct Cli {
    /// How both sides wait.
    #[arg(long, value_enum, default_value_t = Wait::Poll)]
    waiting: Wait,
    /// The number of rounds; each makes a few calls by every path.
    #[arg(long, default_value_t = 41, value_parser = clap::value_parser!(u32).range(3..))]
    rounds: u32,
    /// Exit with status 1 if another path was faster than the plan's by more than this many per
    /// cent.
    #[arg(long, value_name = "PER CENT")]
    check: Option<f64>,
    /// Print a JSON object for each size and direction instead of the table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Wait {
    /// Poll without a pause; takes two processors.
    Poll,
    /// Wait in the kernel.
    Sleep,
    /// Poll for 50 µs, then wait in the kernel.
    Adaptive,
}

impl Wait {
    fn mode(self) -> Waiting {
        match self {
            Wait::Poll => Waiting::Busy,
            Wait::Sleep => Waiting::Event,
            Wait::Adaptive => Waiting::ADAPTIVE,
        }
    }
}

/// The sizes in bytes, on both sides of each threshold.
const SIZES: [usize; 10] =
    [512, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 512 << 10, 2 << 20];
/// The size of the server's staging buffers, in bytes.
const UNIT: usize = 256 << 10;
/// The number of calls of a path in a round.
const CALLS: usize = 3;
/// The deadline of one call.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the server: takes and gives data until the client is gone.
fn serve(ready: &mpsc::Sender<Addr>, waiting: Waiting) -> Result<(), Error> {
    let endpoint = endpoint(Scheme::Tcp, "server")?;
    let addr = endpoint.listen(&Addr::tcp("127.0.0.1", 0))?;
    // If the other thread has failed, the address is not needed any more.
    let _ = ready.send(addr);
    let staged = Memory::zeroed(*SIZES.last().expect("sizes"))?;
    let _region = endpoint.with(|e| e.register(&staged))?;
    event::block_on_with(endpoint.clone(), waiting, async {
        loop {
            let incoming = Incoming::new(&endpoint, endpoint.next_unexpected().await)?;
            if incoming.request() == b"end" {
                let client = incoming.peer();
                incoming.reply(b"", None, endpoint.within(PATIENCE)).await?;
                // Waits until what was sent has left. The client may end first.
                let _ = endpoint.disconnect(client, endpoint.within(PATIENCE)).await;
                return Ok(());
            }
            answer(&endpoint, incoming, &staged).await?;
        }
    })?
}

async fn answer(endpoint: &AsyncEndpoint, incoming: Incoming, staged: &Memory) -> Result<(), Error> {
    let options = endpoint.within(PATIENCE);
    let len = usize::try_from(incoming.len()).map_err(|_| Error::new(ErrorKind::TooLong, "a test's length"))?;
    let units = (0..len).step_by(UNIT).map(|at| (at as u64, staged.slice(at, UNIT.min(len - at))));
    match incoming.direction() {
        // A store takes the data from the place where it is.
        Some(Direction::Write) if incoming.data().is_some() => {}
        Some(Direction::Write) => {
            for (at, unit) in units {
                incoming.fetch(at, unit, options).await?;
            }
        }
        Some(Direction::Read) if incoming.replies_with_data() => {
            return incoming.reply(b"", Some(staged.slice(0, len).into()), options).await;
        }
        Some(Direction::Read) => {
            for (at, unit) in units {
                incoming.store(at, unit, options).await?;
            }
        }
        None => {}
    }
    incoming.reply(b"", None, options).await
}

/// What was measured of one path.
struct Taken {
    path: Path,
    /// The median of each round, in seconds.
    rounds: Vec<f64>,
    each: Histogram,
}

/// One size and direction. Paths that are impossible are missing.
struct Row {
    direction: Direction,
    size: usize,
    plan: Path,
    taken: Vec<Taken>,
}

impl Row {
    fn of(&self, path: Path) -> Option<&Taken> {
        self.taken.iter().find(|taken| taken.path == path)
    }

    /// Returns the median of the rounds, in seconds.
    fn seconds(&self, path: Path) -> Option<f64> {
        self.of(path).map(|taken| stats::middle(&mut taken.rounds.clone()))
    }

    /// Returns the fastest path, and by how much it is faster than the plan's, in per cent.
    fn best(&self) -> (Path, Interval) {
        let gain = |taken: &Taken| {
            let plan = self.of(self.plan).map_or(&[][..], |plan| &plan.rounds);
            let pairs: Vec<(f64, f64)> = taken.rounds.iter().copied().zip(plan.iter().copied()).collect();
            let ratio = stats::paired_ratio(&pairs, SEED);
            let per_cent = |ratio: f64| (ratio - 1.0) * 100.0;
            Interval { middle: per_cent(ratio.middle), low: per_cent(ratio.low), high: per_cent(ratio.high) }
        };
        let gains = self.taken.iter().map(|taken| (taken.path, gain(taken)));
        gains.max_by(|a, b| a.1.middle.total_cmp(&b.1.middle)).expect("every row has the plan's path")
    }

    /// Returns the rows of a report, whose first round has the number `first`.
    fn rows(&self, waiting: &str, first: usize) -> impl Iterator<Item = bmi_report::Row> {
        self.taken.iter().map(move |taken| bmi_report::Row {
            size: Some(self.size as u64),
            rounds: steps(first, taken.rounds.iter().copied()),
            histogram: Some(taken.each.clone()),
            notes: if taken.path == self.plan { vec!["the path of the plan".to_owned()] } else { Vec::new() },
            ..report::row(
                self.direction.as_str(),
                &format!("tcp {}", taken.path),
                Kind::Library,
                Unit::Seconds,
                &[("waiting", waiting)],
            )
        })
    }
}

struct Client {
    caller: Caller,
    server: PeerId,
    memory: Memory,
}

impl Client {
    /// Makes one call. Returns the path that it took, and its duration.
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures")]
    async fn once(&self, direction: Direction, size: usize, forced: Option<Path>) -> Result<(Path, f64), Error> {
        let data: MemList = self.memory.slice(0, size).into();
        let body = if direction == Direction::Write { Body::Out(data) } else { Body::In(data) };
        let options = self.caller.endpoint().within(PATIENCE);
        let begin = Instant::now();
        let reply = self.caller.call(self.server, b"x", body, forced, options)?.reply().await?;
        let path = reply.choice.map_or(Path::Inline, |choice| choice.path);
        Ok((path, begin.elapsed().as_secs_f64()))
    }

    async fn measure(&self, direction: Direction, size: usize, rounds: u32) -> Result<Row, Error> {
        let plan = self.once(direction, size, None).await?.0;
        let mut taken: Vec<Taken> = Vec::new();
        for path in Path::TAKEN {
            if self.once(direction, size, Some(path)).await?.0 == path {
                taken.push(Taken { path, rounds: Vec::new(), each: Histogram::new() });
            }
        }
        for _ in 0..rounds {
            for taken in &mut taken {
                // This call is not measured: it finds caches and credits as another path left them.
                self.once(direction, size, Some(taken.path)).await?;
                let mut calls = [0.0; CALLS];
                for seconds in &mut calls {
                    *seconds = self.once(direction, size, Some(taken.path)).await?.1;
                    taken.each.record((*seconds * 1e9) as u64);
                }
                taken.rounds.push(stats::middle(&mut calls));
            }
        }
        Ok(Row { direction, size, plan, taken })
    }
}

fn run(cli: &Cli) -> Result<(Vec<Row>, Plan), Error> {
    let (ready, listening) = mpsc::channel();
    let waiting = cli.waiting.mode();
    let server = thread::Builder::new().name("server".to_owned()).spawn(move || serve(&ready, waiting))?;
    let addr = listening.recv().map_err(|_| Error::new(ErrorKind::Io, "the server did not start"))?;
    let endpoint = endpoint(Scheme::Tcp, "client")?;
    let result = event::block_on_with(endpoint.clone(), waiting, async {
        let server = endpoint.connect(&addr, Options::default()).await?;
        while endpoint.limits(server).is_none_or(|limits| limits.fast == 0) {
            endpoint.sleep(Duration::from_millis(1)).await;
        }
        let memory = Memory::zeroed(*SIZES.last().expect("sizes"))?;
        let _region = endpoint.with(|e| e.register(&memory))?;
        let client = Client { caller: Caller::new(endpoint.clone()), server, memory };
        let plan = endpoint.with(|e| e.plan(Some(server)));
        let mut rows = Vec::new();
        for direction in Direction::ALL {
            for size in SIZES {
                rows.push(client.measure(direction, size, cli.rounds).await?);
            }
        }
        let options = endpoint.within(PATIENCE);
        client.caller.call(server, b"end", Body::None, None, options)?.reply().await?;
        Ok((rows, plan))
    })?;
    server.join().map_err(|_| Error::new(ErrorKind::Io, "the server panicked"))??;
    result
}

fn show(rows: &[Row], plan: &Plan) {
    println!("{plan}");
    let heading = [
        "direction",
        "plan",
        "size",
        "inline",
        "fast-rdma",
        "server-based",
        "client-based",
        "best",
        "faster by",
        "interval",
    ];
    let mut table = Table::new(2, heading);
    for row in rows {
        let cell = |path| row.seconds(path).map_or_else(|| "-".to_owned(), units::time);
        let (best, gain) = row.best();
        let [inline, fast, server, client] = Path::TAKEN.map(cell);
        let cells = [
            row.direction.to_string(),
            row.plan.to_string(),
            units::size(row.size),
            inline,
            fast,
            server,
            client,
            best.to_string(),
            format!("{:.1} %", gain.middle),
            format!("{:.1}..{:.1}", gain.low, gain.high),
        ];
        table.row(cells);
    }
    print!("{}", table.render());
}

fn show_json(rows: &[Row]) {
    for row in rows {
        let seconds: serde_json::Map<String, serde_json::Value> =
            Path::TAKEN.iter().filter_map(|path| Some((path.to_string(), row.seconds(*path)?.into()))).collect();
        let (best, gain) = row.best();
        let line = serde_json::json!({
            "direction": row.direction.as_str(), "bytes": row.size, "plan": row.plan.as_str(),
            "seconds": seconds, "best": best.as_str(), "faster_by_per_cent": gain.middle,
        });
        println!("{line}");
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut report = begin("paths", "the four paths of a request's data over TCP, for each size");
    let limit = Limit::new("paths: the whole run", Duration::from_secs(300), || {});
    let measured = limit.map_err(Error::from).and_then(|_limit| run(&cli));
    let (rows, plan) = match measured {
        Ok(measured) => measured,
        Err(error) => {
            eprintln!("paths: {error}");
            return ExitCode::from(2);
        }
    };
    if cli.json {
        show_json(&rows)
    } else {
        show(&rows, &plan)
    }
    let wait = cli.waiting.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let rounds = cli.rounds as usize;
    report.rows = rows.iter().enumerate().flat_map(|(number, row)| row.rows(&wait, number * rounds)).collect();
    report.plans = plans("tcp", &plan);
    let worst = rows.iter().map(|row| row.best().1.middle).fold(0.0, f64::max);
    report.summary.push(("another path faster than the plan's, most".to_owned(), worst, "%".to_owned()));
    if let Err(error) = cli.report.write(&report) {
        eprintln!("paths: {error}");
        return ExitCode::from(2);
    }
    match cli.check {
        Some(allowed) if worst > allowed => {
            eprintln!("paths: another path was faster than the plan's by {worst:.1} per cent; {allowed} are allowed");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_option_is_parsed() {
        assert_eq!(cli_check::every_option::<super::Cli>(&[("report", "a.json")]), 6);
    }
}
