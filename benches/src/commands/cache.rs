//! The services of an I/O server side by side: `normal`, through the system's page cache and the
//! server's buffers; `mmap`, through mapped files; and `unifier`, through a cache whose memory is
//! that of the transport.
//!
//! **How.** For each service a process runs with a manager and one I/O server. One client
//! reads and writes a file of each. Rounds of the services alternate, in another order each time,
//! so that other load on the machine affects both. A line is measured in each round; the ratios are
//! those of the same round.
//!
//! **Shared reads** ask for the servers' own pages. Over shared memory `unifier` lends them; in all
//! other cases the line shows an ordinary read into new memory.
//!
//! **What is checked.** Every block of 4 KiB begins with its number in the file. The first and the
//! last block of each read are compared with that, outside of nothing: it costs both services the
//! same.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::limit::Limit;
use crate::net;
use crate::report::{self, ReportArgs, SEED, begin, steps};
use crate::tasks::Usage;
use bmi::driver::event;
use bmi::{Memory, Scheme};
use bmi_report::stats::{self, Random, middle};
use bmi_report::table::Table;
use bmi_report::{Cost, Kind, Unit, units};
use clap::Parser;
use fs_client::{Client, ClientOptions, CreateOptions, File, Region};
use futures_util::future::try_join_all;
use serde::Serialize;

use super::Failed;
use super::services::{self, BLOCK, SERVICES, mark};
use super::sizes;

/// Compares the services of an I/O server: through the page cache, through mapped files, and
/// through a cache of its own.
///
/// One client of one I/O server, on this machine, in a process of its own. "cpu" is the processor
/// time of the server's process for a byte, with its manager, which has nothing to do. The ratios
/// are those to the service `normal`, over the rounds, with their intervals. Build the servers
/// first: cargo build --release
/// -p fs-server.
#[derive(Parser)]
pub(crate) struct Cache {
    /// The transports: tcp, shm, ib.
    #[arg(long, value_delimiter = ',', default_value = "tcp,shm", value_name = "WHICH")]
    over: Vec<String>,
    /// The directory of the data [default: in memory]. On a disk the cache bypasses the page cache.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Instead of the lines, read files of 60 to 150 % of the cache's memory a second time, over
    /// TCP, with servers whose memory is limited (cgroups, so as root). Needs --dir on a disk.
    #[arg(long)]
    sizes: bool,
    /// Measure only lines whose names contain this.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure for a short time.
    #[arg(long)]
    quick: bool,
    /// The number of rounds [default: 7, with --quick 2].
    #[arg(long, value_name = "N")]
    rounds: Option<u16>,
    /// The time for which a line is measured in a round, in milliseconds [default: 200, with
    /// --quick 20].
    #[arg(long, value_name = "MS")]
    line_ms: Option<u16>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportArgs,
}

/// The file: it fits into both caches.
const FILE: u64 = 64 << 20;
/// Memory of the cache, and the part of it that clients on its host may read in place. The file
/// fits into either part.
const MEMORY: &str = "192M";
const VIEWS: &str = "64M";
/// Time limit of a round.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Read,
    ReadOne,
    ReadShared,
    Zipf,
    List,
    WriteNext,
    Write,
    WriteSync,
}

/// The lines: what is done, with how many bytes, by how many streams.
const LINES: [(&str, What, usize, usize); 21] = [
    ("read, 4 at once", What::Read, 4 << 10, 4),
    ("read, 4 at once", What::Read, 16 << 10, 4),
    ("read, 4 at once", What::Read, 64 << 10, 4),
    ("read, 4 at once", What::Read, 256 << 10, 4),
    ("read, 4 at once", What::Read, 1 << 20, 4),
    ("read, 4 at once", What::Read, 4 << 20, 4),
    ("read, 1 at once", What::ReadOne, 4 << 10, 1),
    ("read, 1 at once", What::ReadOne, 64 << 10, 1),
    ("read, 1 at once", What::ReadOne, 1 << 20, 1),
    ("read shared, 1 at once", What::ReadShared, 64 << 10, 1),
    ("read shared, 1 at once", What::ReadShared, 256 << 10, 1),
    ("read shared, 1 at once", What::ReadShared, 1 << 20, 1),
    ("read shared, 1 at once", What::ReadShared, 4 << 20, 1),
    ("read, Zipf, 4 at once", What::Zipf, 16 << 10, 4),
    ("list of 64 x 4 KiB, 4 at once", What::List, 256 << 10, 4),
    ("write in order, 4 at once", What::WriteNext, 64 << 10, 4),
    ("write in order, 4 at once", What::WriteNext, 1 << 20, 4),
    ("write, 4 at once", What::Write, 4 << 10, 4),
    ("write, 4 at once", What::Write, 64 << 10, 4),
    ("write, 1 at once", What::Write, 64 << 10, 1),
    ("write and sync, 1 at once", What::WriteSync, 64 << 10, 1),
];

/// The figures of a line with a service, one for each round.
#[derive(Debug, Default, Serialize)]
struct Row {
    name: String,
    service: &'static str,
    /// Bytes per second.
    rate: Vec<f64>,
    /// Seconds of a call.
    latency: Vec<f64>,
    /// Seconds of processor time of the server for a byte.
    cpu: Vec<f64>,
    /// Context switches of the server for a call.
    switches: Vec<f64>,
    /// Bytes of a call.
    len: usize,
    /// Bytes of memory that the server has, at the end.
    resident: u64,
}

/// A client and its file.
struct Bed {
    client: Client,
    file: File,
    server: u32,
    random: RefCell<Random>,
    next: Cell<u64>,
}

impl Bed {
    fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound as usize) as u64
    }

    fn place(&self, what: What, len: usize) -> u64 {
        let places = FILE / len as u64;
        match what {
            What::WriteNext => {
                let next = self.next.get();
                self.next.set(next + 1);
                next % places
            }
            // Half of the accesses go to a tenth of the places, and so on.
            What::Zipf => {
                let mut bound = places;
                while bound > 10 && self.below(2) == 0 {
                    bound /= 10;
                }
                self.below(bound)
            }
            _ => self.below(places),
        }
    }

    async fn step(&self, what: What, memory: &Memory, len: usize) -> Result<(), Failed> {
        let at = self.place(what, len) * len as u64;
        match what {
            What::Write | What::WriteNext | What::WriteSync => {
                mark(memory, at, len);
                self.file.write_at(at, &memory.slice(0, len)).await?;
                if what == What::WriteSync {
                    self.file.sync().await?;
                }
            }
            What::List => {
                // Each fourth block, over a part of the file.
                let at = self.below(FILE / len as u64 - 4) * len as u64;
                let region = |piece: u64| Region::new(at + piece * 4 * BLOCK as u64, BLOCK as u64);
                let regions: Vec<Region> = (0..64).map(region).collect();
                self.file.read_list(&regions, &memory.slice(0, len)).await?;
                check(memory, 0, at)?;
                check(memory, 63, at + 63 * 4 * BLOCK as u64)?;
            }
            What::ReadShared => {
                let view = self.file.read_shared(at, len as u64).await?;
                for block in [0, len / BLOCK - 1] {
                    let mut found = [0; 8];
                    view.copy_to(block * BLOCK, &mut found)?;
                    compare(u64::from_le_bytes(found), at + (block * BLOCK) as u64)?;
                }
            }
            What::Read | What::ReadOne | What::Zipf => {
                self.file.read_at(at, &memory.slice(0, len)).await?;
                check(memory, 0, at)?;
                check(memory, len / BLOCK - 1, at + (len - BLOCK) as u64)?;
            }
        }
        Ok(())
    }

    /// Works for some time. Returns the number of calls and the time.
    async fn work(&self, what: What, len: usize, streams: usize, time: Duration) -> Result<(u64, f64), Failed> {
        let now = || self.client.endpoint().now();
        let begin = now();
        let end = begin + time;
        let lanes = (0..streams).map(async |_| {
            let memory = self.client.memory(len)?;
            let mut calls = 0;
            while calls == 0 || now() < end {
                self.step(what, &memory, len).await?;
                calls += 1;
            }
            Ok::<u64, Failed>(calls)
        });
        let calls = try_join_all(lanes).await?.into_iter().sum();
        Ok((calls, now().since(begin).as_secs_f64()))
    }
}

fn check(memory: &Memory, block: usize, at: u64) -> Result<(), Failed> {
    let mut found = [0; 8];
    memory.copy_to(block * BLOCK, &mut found);
    compare(u64::from_le_bytes(found), at)
}

fn compare(found: u64, at: u64) -> Result<(), Failed> {
    if found == at { Ok(()) } else { Err(format!("the block at {at} says that it is at {found}").into()) }
}

/// Returns the memory of a process that is resident, in bytes.
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

impl Cache {
    pub(crate) fn run(&self) -> Result<bool, Failed> {
        let mut report = begin("benches cache", "the services of an I/O server, side by side");
        if self.sizes {
            let dir = self.dir.as_ref().ok_or("--sizes needs --dir, a directory on a disk")?;
            let rows = sizes::measure(dir, self.rounds.unwrap_or(3))?;
            if self.json {
                println!("{}", serde_json::to_string_pretty(&rows)?);
            } else {
                print!("{}", sizes::render(&rows));
            }
            report.rows = sizes::recorded(&rows);
            self.report.write(&report)?;
            return Ok(true);
        }
        let mut rows = Vec::new();
        for name in &self.over {
            let scheme = [Scheme::Tcp, Scheme::Shm, Scheme::Ib].into_iter().find(|scheme| scheme.as_str() == name);
            let scheme = scheme.ok_or_else(|| format!("{name}: there are tcp, shm and ib"))?;
            rows.extend(self.over_scheme(scheme)?);
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&rows)?);
        } else {
            print!("{}", render(&rows));
        }
        report.rows = recorded(&rows);
        self.report.write(&report)?;
        Ok(true)
    }

    fn lines(&self, scheme: Scheme) -> Vec<(String, What, usize, usize)> {
        let named = LINES.map(|(text, what, len, streams)| {
            let size = if what == What::List { String::new() } else { format!(" {}", units::size(len)) };
            (format!("{scheme}{size} {text}"), what, len, streams)
        });
        let only = self.only.as_deref().unwrap_or_default();
        named.into_iter().filter(|(name, ..)| name.contains(only)).collect()
    }

    fn over_scheme(&self, scheme: Scheme) -> Result<Vec<Row>, Failed> {
        let lines = self.lines(scheme);
        if lines.is_empty() {
            return Err(format!("no line has {:?} in its name", self.only).into());
        }
        let (rounds, line_ms) = if self.quick { (2, 20) } else { (7, 200) };
        let (rounds, line_ms) = (self.rounds.unwrap_or(rounds), self.line_ms.unwrap_or(line_ms));
        let time = Duration::from_millis(line_ms.into());
        let clusters = services::start(scheme, self.dir.as_deref(), MEMORY, VIEWS)?;
        let endpoints = SERVICES.iter().map(|_| net::endpoint(scheme, "cache")).collect::<Result<Vec<_>, _>>()?;
        let mut rows: Vec<Row> = Vec::new();
        for (name, _, len, _) in &lines {
            rows.extend(SERVICES.map(|service| Row { name: name.clone(), service, len: *len, ..Row::default() }));
        }
        event::block_on_all(&endpoints, async {
            let mut beds = Vec::new();
            for (cluster, endpoint) in clusters.iter().zip(&endpoints) {
                let options = ClientOptions::new(1);
                let client = Client::connect(endpoint.clone(), cluster.manager().clone(), options).await?;
                let file = client.create(&"/file".parse()?, CreateOptions::default()).await?;
                let (random, next) = (RefCell::new(Random::new(1)), Cell::new(0));
                let bed = Bed { client, file, server: cluster.process(), random, next };
                let memory = bed.client.memory(4 << 20)?;
                for at in (0..FILE).step_by(4 << 20) {
                    mark(&memory, at, 4 << 20);
                    bed.file.write_at(at, &memory).await?;
                }
                bed.file.sync().await?;
                beds.push(bed);
            }
            for round in 0..usize::from(rounds) {
                let _limit = Limit::new("a round", LIMIT, || {})?;
                for (number, (_, what, len, streams)) in lines.iter().enumerate() {
                    for turn in 0..SERVICES.len() {
                        let service = (turn + round + number) % SERVICES.len();
                        let bed = &beds[service];
                        bed.work(*what, *len, *streams, time / 10).await?;
                        let before = Usage::of([bed.server]);
                        let (calls, seconds) = bed.work(*what, *len, *streams, time).await?;
                        let used = Usage::of([bed.server]).since(before);
                        let (row, bytes) = (&mut rows[number * SERVICES.len() + service], calls as f64 * *len as f64);
                        row.rate.push(bytes / seconds);
                        row.latency.push(seconds * *streams as f64 / calls as f64);
                        row.cpu.push(used.ran.as_secs_f64() / bytes);
                        row.switches.push(used.switches as f64 / calls as f64);
                        row.resident = resident(bed.server);
                    }
                }
            }
            Ok::<(), Failed>(())
        })??;
        services::stop(clusters)?;
        Ok(rows)
    }
}

/// Returns the ratio of figures of the same rounds, with its interval.
fn ratio(of: &[f64], to: &[f64]) -> String {
    let pairs: Vec<(f64, f64)> = to.iter().copied().zip(of.iter().copied()).collect();
    let ratio = stats::paired_ratio(&pairs, SEED);
    format!("{:.2} {:.2}..{:.2}", ratio.middle, ratio.low, ratio.high)
}

/// Returns the rows of a report. The services of a line were measured side by side.
fn recorded(rows: &[Row]) -> Vec<bmi_report::Row> {
    let median = |values: &[f64]| middle(&mut values.to_vec());
    let cost =
        |row: &Row| Cost { cpu: median(&row.cpu) * row.len as f64, switches: median(&row.switches), calls: None };
    let row = |(number, row): (usize, &Row)| bmi_report::Row {
        rounds: steps(number / SERVICES.len() * row.rate.len(), row.rate.iter().copied()),
        cost: BTreeMap::from([("server".to_owned(), cost(row))]),
        notes: vec![format!("{} of memory in the end", units::amount(row.resident))],
        ..report::row(&row.name, row.service, Kind::Library, Unit::BytesPerSecond, &[])
    };
    rows.iter().enumerate().map(row).collect()
}

fn render(rows: &[Row]) -> String {
    let mut table = Table::new(2, ["line", "service", "MB/s", "ratio", "us a call", "cpu ns/KiB", "ratio", "resident"]);
    for pair in rows.chunks(SERVICES.len()) {
        for row in pair {
            let middle = |values: &[f64]| middle(&mut values.to_vec());
            table.row([
                row.name.clone(),
                row.service.to_owned(),
                format!("{:.0}", middle(&row.rate) / 1e6),
                ratio(&row.rate, &pair[0].rate),
                format!("{:.1}", middle(&row.latency) * 1e6),
                format!("{:.0}", middle(&row.cpu) * 1024e9),
                ratio(&row.cpu, &pair[0].cpu),
                units::amount(row.resident),
            ]);
        }
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_side_by_side_with_the_cost_of_a_call() {
        let of = |service| Row {
            name: "tcp 4 KiB read".to_owned(),
            service,
            rate: vec![3e6, 1e6, 2e6],
            cpu: vec![3e-9, 1e-9, 2e-9],
            switches: vec![0.5; 3],
            len: 1000,
            ..Row::default()
        };
        let rows = recorded(&SERVICES.map(of));
        assert!(rows.iter().all(|row| row.is_beside(&rows[0]) && row.pairs(&rows[0]).len() == 3));
        let Cost { cpu, switches, calls } = rows[2].cost["server"];
        assert!((cpu - 2e-6).abs() < 1e-12 && switches == 0.5 && calls.is_none(), "{cpu}");
    }
}
