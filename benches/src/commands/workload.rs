//! `workload`: the programs of the papers over any transport, simulated or real.

use std::str::FromStr;
use std::time::Duration;

use crate::limit::Limit;
use crate::report::{self, ReportArgs, begin, steps};
use crate::workload::access::Access;
use crate::workload::pvfs_test::PvfsTest;
use crate::workload::tile::{Tile, TileMemory};
use crate::workload::{Bed, Setup, Span, bed, slowest};
use bmi::Scheme;
use bmi::config::Lists;
use bmi::paths::{Direction, Path};
use bmi_report::{Kind, Row, Unit};
use bmi_sim::Profile;
use clap::{Args, Subcommand};

use super::Failed;

/// Runs a program of the papers over transports of this machine, or in the simulator on other
/// machines.
///
/// The program is the same everywhere. Over tcp, shm and ib, servers and processes are threads of
/// this machine, and time is the clock's. In the simulator they are nodes, and time and processor
/// time are those of the model. All data that is read is compared with the data that was written;
/// after a difference the exit status is not zero.
///
/// A figure is the median of the rounds, of all processes together. In each round the slowest
/// process counts. The places are measured one after the other, so nothing is said about how they
/// differ. "processor" is the processor time of the first process, with what it polls in vain.
#[derive(Args)]
#[command(
    // So that it may also be given after the name of the program.
    mut_arg("reports", |arg| arg.global(true)),
    after_help = "Examples:\n  cargo run --release -p benches -- workload pvfs-test --over tcp,shm,vapi-2003\n  \
                        cargo run --release -p benches -- workload tile --over tcp --rows-a-call 1\n  \
                        cargo run --release -p benches -- workload access --sizes 1024,65536 --path inline --over vapi-2003"
)]
pub(crate) struct Run {
    #[command(subcommand)]
    program: Program,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Args)]
struct Place {
    /// Where to run: tcp, shm, ib, sim (a present-day machine), or a profile of the simulator (a
    /// name or a file), with or without a disk: vapi-2003, ibnice-2003+ramfs-2003, cx7-400+nvme,
    /// mine.toml, mine.toml+nvme …
    // The ids of all global arguments begin with `workload-`. clap hands global values to and from
    // the other commands by id alone. With an id that another command has, too, an argument would
    // get a value of the wrong type.
    #[arg(id = "workload-over", long = "over", value_name = "PLACE", value_delimiter = ',', default_value = "tcp", value_parser = over, global = true)]
    over: Vec<Target>,
    /// The number of processes of the program; mpi-tile-io has one for each tile.
    #[arg(id = "workload-clients", long = "clients", value_name = "CLIENTS", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64), global = true)]
    clients: u16,
    /// The number of I/O servers.
    #[arg(id = "workload-servers", long = "servers", value_name = "SERVERS", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64), global = true)]
    servers: u16,
    /// The path that data must take: inline, fast-rdma, server-based, client-based, hybrid
    /// [default: as the library chooses].
    #[arg(id = "workload-path", long = "path", value_name = "PATH", value_parser = path, global = true)]
    path: Option<Path>,
    /// How lists of memory are transferred on both sides: auto, chain, pack, pack-exposed (packed
    /// only by clients, which expose them).
    #[arg(id = "workload-lists", long = "lists", value_name = "LISTS", default_value = "auto", value_parser = lists, global = true)]
    lists: Lists,
    /// The number of rounds that are measured. Below 8 the intervals are too narrow.
    #[arg(id = "workload-rounds", long = "rounds", value_name = "ROUNDS", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..), global = true)]
    rounds: u16,
    /// Time limit of a run, in seconds.
    #[arg(id = "workload-limit", long = "limit", value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..), global = true)]
    limit: u64,
}

#[derive(Subcommand)]
enum Program {
    /// Each process writes a region, all at the same time, and reads it back.
    PvfsTest {
        /// The MB of each region [default: twice the number of servers].
        #[arg(long)]
        mb: Option<u16>,
        /// The number of blocks of each region. Those of all processes alternate in the file.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
        blocks: u16,
    },
    /// Single accesses of some sizes, one after the other.
    Access {
        /// The sizes of an access, in bytes.
        #[arg(long, value_delimiter = ',', default_value = "1024,4096,16384,65536,1048576")]
        sizes: Vec<usize>,
        /// Read instead of write.
        #[arg(long)]
        read: bool,
        /// Use memory that is registered in advance, instead of new memory for each access.
        #[arg(long)]
        registered: bool,
    },
    /// mpi-tile-io: each process writes and reads one tile of an array.
    Tile {
        /// The number of tiles, across and down.
        #[arg(long, default_value = "2x2", value_parser = pair)]
        tiles: (usize, usize),
        /// The number of elements of a tile, across and down.
        #[arg(long, default_value = "1024x768", value_parser = pair)]
        size: (usize, usize),
        /// The bytes of an element.
        #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u16).range(1..))]
        element: u16,
        /// The number of rows in a call; 1 is without list I/O.
        #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
        rows_a_call: u16,
        /// The memory of a tile: contiguous; array (rows of a larger array, declared as one
        /// allocation); rows (the same, not declared).
        #[arg(long, default_value = "contiguous", value_parser = memory)]
        memory: TileMemory,
        /// Use new memory for each access.
        #[arg(long)]
        fresh: bool,
    },
}

/// A place to run, with its name.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) bed: Bed,
}

impl Target {
    /// Returns the kind of figures that are measured there.
    pub(super) fn kind(&self) -> Kind {
        if matches!(self.bed, Bed::Real(_)) { Kind::Library } else { Kind::Model }
    }
}

pub(super) fn over(text: &str) -> Result<Target, String> {
    let real = [Scheme::Tcp, Scheme::Shm, Scheme::Ib].into_iter().find(|scheme| scheme.as_str() == text);
    let bed = match real {
        Some(scheme) => Bed::Real(scheme),
        None if text == "sim" => Bed::sim(Profile::default()),
        None => Bed::sim(
            Profile::from_name_or_file(text)
                .map_err(|error| format!("there are tcp, shm, ib, sim, and profiles: {error}"))?,
        ),
    };
    Ok(Target { name: text.to_owned(), bed })
}

/// Parses one of the values that have names.
pub(super) fn one_of<T: Copy, const N: usize>(text: &str, known: [(&str, T); N]) -> Result<T, String> {
    let found = known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| format!("there are {}", known.map(|(name, _)| name).join(", ")))
}

fn path(text: &str) -> Result<Path, String> {
    let known = Path::TAKEN.into_iter().chain([Path::Hybrid]).find(|path| path.as_str() == text);
    known.ok_or_else(|| format!("there are {} and {}", Path::TAKEN.map(Path::as_str).join(", "), Path::Hybrid))
}

/// The methods for lists, by name.
const LISTS: [(&str, Lists); 4] =
    [("auto", Lists::Auto), ("chain", Lists::Chain), ("pack", Lists::Pack), ("pack-exposed", Lists::PackExposed)];

fn lists(text: &str) -> Result<Lists, String> {
    one_of(text, LISTS)
}

fn memory(text: &str) -> Result<TileMemory, String> {
    one_of(text, [("contiguous", TileMemory::Contiguous), ("array", TileMemory::Array), ("rows", TileMemory::Rows)])
}

fn pair(text: &str) -> Result<(usize, usize), String> {
    let number = |text: &str| usize::from_str(text).ok().filter(|number| (1..=1 << 16).contains(number));
    let both = text.split_once('x').and_then(|(x, y)| Some((number(x)?, number(y)?)));
    both.ok_or_else(|| "two numbers as in 2x2".into())
}

impl Run {
    /// Runs the program over each transport, and prints a line for each.
    pub(crate) fn run(&self) -> Result<bool, Failed> {
        let Place { clients, servers, path, lists, limit, .. } = self.place;
        let clients = match self.program {
            Program::Tile { tiles: (x, y), .. } => x * y,
            _ => clients.into(),
        };
        let setup = Setup { path, lists, ..Setup::new(clients, servers.into()) };
        let mut report = begin("benches workload", "a program of the papers");
        for over in &self.place.over {
            if report.rows.iter().any(|row| row.over == over.name) {
                continue;
            }
            let _limit = Limit::new(format!("the run over {}", over.name), Duration::from_secs(limit), || {})?;
            // The places are not measured side by side, so each has rounds of its own.
            let first = report.rows.iter().flat_map(|row| &row.rounds).map(|step| step.round as usize + 1).max();
            let measured = self.measure(&over.bed, &setup).map_err(|error| -> Failed { error })?;
            let row = |one: Measured| one.row(over, &self.setup(&setup), first.unwrap_or(0));
            report.rows.extend(measured.into_iter().map(row));
        }
        print!("{}", bmi_report::text::render(&report));
        self.report.write(&report)?;
        Ok(true)
    }

    /// Returns in what runs of the same program may differ.
    fn setup(&self, setup: &Setup) -> Vec<(&'static str, String)> {
        let mut all = vec![("clients", setup.clients.to_string()), ("servers", setup.servers.to_string())];
        all.extend(setup.path.map(|path| ("path", path.to_string())));
        let named = LISTS.iter().find(|(_, lists)| *lists == setup.lists && *lists != Lists::Auto);
        all.extend(named.map(|(name, _)| ("lists", (*name).to_owned())));
        match &self.program {
            Program::PvfsTest { blocks, .. } => all.push(("blocks", blocks.to_string())),
            Program::Access { registered, .. } => {
                all.push(("memory", if *registered { "registered memory" } else { "new memory" }.to_owned()));
            }
            Program::Tile { tiles, size, element, rows_a_call, memory, fresh } => {
                let memory = match memory {
                    TileMemory::Contiguous => "contiguous",
                    TileMemory::Array => "array",
                    TileMemory::Rows => "rows",
                };
                all.push(("tiles", format!("{}x{} tiles of {}x{} x {element} B", tiles.0, tiles.1, size.0, size.1)));
                all.push(("rows a call", rows_a_call.to_string()));
                all.push(("memory", format!("{memory}{}", if *fresh { ", new" } else { "" })));
            }
        }
        all
    }

    /// Returns what was done.
    fn measure(&self, bed: &Bed, setup: &Setup) -> Result<Vec<Measured>, crate::workload::Failed> {
        let rounds = usize::from(self.place.rounds);
        /// The rounds in which a process wrote, and in which it read.
        type Took = (Vec<Span>, Vec<Span>);
        let both = |test: &str, len: u64, ranks: Vec<Took>| {
            let one = |direction: &str, of: fn(&Took) -> &[Span]| Measured {
                test: format!("{test} {direction}"),
                size: len,
                times: slowest(ranks.iter().map(|rank| of(rank).iter().map(|span| span.time))),
                bytes: Some(len * setup.clients as u64),
                first: ranks.iter().map(|rank| of(rank).iter().sum()).next(),
            };
            vec![one("write", |rank| &rank.0), one("read", |rank| &rank.1)]
        };
        Ok(match &self.program {
            Program::PvfsTest { mb, blocks } => {
                let len = mb.map_or(2 * setup.servers, usize::from) << 20;
                let program = PvfsTest { len, blocks: usize::from(*blocks), pieces: 1, rounds };
                let ranks = bed::run(bed, setup, &program)?;
                both("pvfs-test", len as u64, ranks.into_iter().map(|took| (took.write, took.read)).collect())
            }
            Program::Access { sizes, read, registered } => {
                let direction = if *read { Direction::Read } else { Direction::Write };
                let mut sizes = sizes.clone();
                sizes.sort_unstable();
                sizes.dedup();
                let program = Access { direction, sizes: sizes.clone(), registered: *registered, rounds };
                let ranks = bed::run(bed, setup, &program)?;
                let one = |(at, size): (usize, &usize)| Measured {
                    test: format!("access {direction}"),
                    size: *size as u64,
                    times: slowest(ranks.iter().map(|times| times[at].iter().copied())),
                    bytes: None,
                    first: None,
                };
                sizes.iter().enumerate().map(one).collect()
            }
            Program::Tile { tiles, size, element, rows_a_call, memory, fresh } => {
                let program = Tile {
                    tiles_x: tiles.0,
                    tiles_y: tiles.1,
                    size_x: size.0,
                    size_y: size.1,
                    element: usize::from(*element),
                    rows_a_call: usize::from(*rows_a_call),
                    memory: *memory,
                    rounds,
                    fresh: *fresh,
                };
                let ranks = bed::run(bed, setup, &program)?;
                both("tile", program.tile_bytes(), ranks.into_iter().map(|took| (took.write, took.read)).collect())
            }
        })
    }
}

/// What the processes of a program have done over one transport.
struct Measured {
    test: String,
    /// The bytes of one process in a round.
    size: u64,
    /// The time of the slowest process in each round.
    times: Vec<Duration>,
    /// The bytes of all processes in a round, where bandwidth is of interest and not time.
    bytes: Option<u64>,
    /// The first process in all rounds.
    first: Option<Span>,
}

impl Measured {
    /// Returns the row of a report, whose first round has the number `first`.
    fn row(self, over: &Target, setup: &[(&'static str, String)], first: usize) -> Row {
        let setup: Vec<(&str, &str)> = setup.iter().map(|(name, value)| (*name, &**value)).collect();
        let unit = if self.bytes.is_some() { Unit::BytesPerSecond } else { Unit::Seconds };
        // In the simulator an operation may take no time at all.
        let seconds = |time: &Duration| time.as_secs_f64().max(1e-12);
        let value = |time| self.bytes.map_or_else(|| seconds(time), |bytes| bytes as f64 / seconds(time));
        Row {
            size: Some(self.size),
            rounds: steps(first, self.times.iter().map(value)),
            notes: self.first.iter().map(|span| format!("processor {:.1} %", span.utilisation())).collect(),
            ..report::row(&self.test, &over.name, over.kind(), unit, &setup)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Cli;
    use super::*;

    #[test]
    fn a_report_may_be_named_before_and_after_the_program() {
        let is_given = |line: &str| match Cli::parse_from(line.split(' ')) {
            Cli::Workload(run) => run.report.is_given(),
            _ => panic!("{line}"),
        };
        assert!(is_given("benches workload tile --report a.json") && is_given("benches workload --report a.json tile"));
        assert!(!is_given("benches workload tile"));
    }

    #[test]
    fn a_row_has_the_rounds_of_the_slowest_process() {
        let over = over("sim").unwrap();
        let ms = Duration::from_millis;
        let span = Span { time: ms(4), busy: ms(1), spinning: ms(1) };
        let measured = |bytes| Measured {
            test: "tile read".to_owned(),
            size: 1000,
            times: slowest([[ms(1), ms(4)], [ms(2), ms(3)]]),
            bytes,
            first: bytes.map(|_| span),
        };
        let setup = [("clients", "2".to_owned())];
        let row = measured(Some(2000)).row(&over, &setup, 3);
        assert_eq!((row.name().as_str(), row.kind), ("sim tile read 1000 B, clients 2", Kind::Model));
        assert_eq!((row.values(), row.rounds[0].round), (vec![1e6, 5e5], 3));
        assert_eq!((row.unit, row.notes), (Unit::BytesPerSecond, vec!["processor 50.0 %".to_owned()]));
        let row = measured(None).row(&over, &setup, 0);
        assert_eq!((row.values(), row.unit), (vec![2e-3, 4e-3], Unit::Seconds));
    }
}
