//! Many clients of one I/O server, which has one event loop or several (`pvfsd --threads`).
//!
//! **How.** For each number of loops, a cluster of processes runs: a manager and one I/O server.
//! Rounds of the clusters alternate, in another order each time, so that other load on the machine
//! affects all of them. All clients are on one thread of this process, each with an endpoint of its
//! own, so that the server's loops share them. Each client has a file of its own and one call in
//! flight. What a read returns is compared with what was written.
//!
//! **What is counted.** The kernel counts for each thread how long it ran, how long it waited for a
//! processor, and how often it slept. The difference over a line, divided by its calls, tells why
//! one number of loops is faster than another.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use benches::limit::Limit;
use benches::processes::Processes;
use benches::report::steps;
use benches::sandbox::Sandbox;
use benches::tasks::Usage;
use benches::workload::Failed;
use benches::{net, report};
use bmi::Memory;
use bmi_core::Scheme;
use bmi_core::comm::Direction::{self, Read, Write};
use bmi_core::driver::event;
use bmi_report::stats::middle;
use bmi_report::{Cost, Kind, Unit, units};
use fs_client::{Client, ClientOptions, CreateOptions, File, RemoveKind};
use futures_util::future::try_join_all;

use crate::report::Progress;

/// The length of each client's file, in bytes.
const FILE: u64 = 1 << 20;

/// What the clients do, in the order of the lines.
const ACCESSES: [Access; 4] = [
    Access { direction: Write, size: 4 << 10 },
    Access { direction: Read, size: 4 << 10 },
    Access { direction: Write, size: 64 << 10 },
    Access { direction: Read, size: 64 << 10 },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    direction: Direction,
    size: usize,
}

/// A line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    scheme: Scheme,
    clients: u16,
    loops: u8,
    access: Access,
    pub(crate) name: String,
    /// In the order of the rounds.
    figures: Vec<Figure>,
}

/// The result of a round of a line.
#[derive(Clone, Copy, Debug)]
struct Figure {
    /// Calls per second.
    rate: f64,
    /// The I/O server's use of the machine, for a call.
    server: PerCall,
    /// That of this process.
    client: PerCall,
}

/// The use of the machine by a process, for a call.
#[derive(Clone, Copy, Debug)]
struct PerCall {
    /// Seconds of processor time.
    ran: f64,
    /// Seconds for which threads were ready to run and had no processor.
    queued: f64,
    /// How often a thread went to sleep.
    sleeps: f64,
    /// Context switches, voluntary and involuntary.
    switches: f64,
}

impl PerCall {
    fn new(usage: Usage, calls: u64) -> PerCall {
        let calls = calls as f64;
        PerCall {
            ran: usage.ran.as_secs_f64() / calls,
            queued: usage.queued.as_secs_f64() / calls,
            sleeps: usage.sleeps as f64 / calls,
            switches: usage.switches as f64 / calls,
        }
    }
}

/// What to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) schemes: Vec<Scheme>,
    pub(crate) clients: Vec<u16>,
    pub(crate) loops: Vec<u8>,
    pub(crate) only: Option<String>,
    pub(crate) rounds: u16,
    /// How long a line is measured in a round.
    pub(crate) line: Duration,
    /// Time limit of a round of one cluster.
    pub(crate) limit: Duration,
}

impl Plan {
    /// Returns the chosen lines, without figures.
    ///
    /// # Errors
    /// If no name contains the wanted text.
    fn rows(&self) -> Result<Vec<Row>, Failed> {
        let mut rows = Vec::new();
        for scheme in &self.schemes {
            for clients in &self.clients {
                for access in ACCESSES {
                    rows.extend(self.loops.iter().map(|loops| Row::new(*scheme, *clients, access, *loops)));
                }
            }
        }
        let only = self.only.as_deref().unwrap_or_default().to_lowercase();
        if !rows.iter().any(|row| row.name.to_lowercase().contains(&only)) {
            let names = rows.iter().map(|row| format!("\n  {}", row.name)).collect::<String>();
            return Err(format!("no line has {only:?} in its name; there are{names}").into());
        }
        rows.retain(|row| row.name.to_lowercase().contains(&only));
        Ok(rows)
    }

    /// Measures the chosen lines. Those that differ only in the number of loops follow each other.
    ///
    /// # Errors
    /// If a server does not start, an operation fails, or the data that is read is not what was
    /// written.
    pub(crate) fn measure(&self) -> Result<Vec<Row>, Failed> {
        let mut rows = self.rows()?;
        let progress = Progress::new(rows.len() as u64 * u64::from(self.rounds));
        let sandbox = Sandbox::new(&format!("fs-bench-{}-", std::process::id()))?;
        sandbox.end_on_signals()?;
        for scheme in &self.schemes {
            if !rows.iter().any(|row| row.scheme == *scheme) {
                continue;
            }
            progress.say(&format!("{scheme}: servers"));
            let mut clusters = Vec::new();
            for loops in &self.loops {
                let folder = sandbox.folder().join(format!("{scheme}-{loops}"));
                fs::create_dir(&folder)?;
                clusters.push((*loops, Processes::start(&sandbox, &folder, *scheme, 1, (*loops).into())?));
            }
            let numbers = Cell::new(0);
            for clients in &self.clients {
                for _ in 0..self.rounds {
                    for (loops, cluster) in &clusters {
                        let of_round =
                            |row: &&mut Row| row.scheme == *scheme && row.clients == *clients && row.loops == *loops;
                        let mut chosen: Vec<&mut Row> = rows.iter_mut().filter(of_round).collect();
                        if chosen.is_empty() {
                            continue;
                        }
                        let what = format!("{clients} clients over {scheme}");
                        progress.say(&what);
                        let remains = sandbox.remains();
                        let _limit = Limit::new(&what, self.limit, move || remains.clear_and_hold())?;
                        round(cluster, &mut chosen, &numbers, self.line)
                            .map_err(|error| format!("{what}, {loops} loops: {error}"))?;
                        chosen.iter().for_each(|_| progress.advance());
                    }
                    // Rotate the order, so that other load on the machine affects all of them.
                    clusters.rotate_left(1 % self.loops.len());
                }
            }
            // All are of one sandbox, so stopping one stops all.
            match clusters.pop() {
                Some((_, cluster)) => cluster.stop()?,
                None => sandbox.stop()?,
            }
        }
        Ok(rows)
    }
}

impl Row {
    fn new(scheme: Scheme, clients: u16, access: Access, loops: u8) -> Row {
        let mut row = Row { scheme, clients, loops, access, name: String::new(), figures: Vec::new() };
        let (size, clients) = (units::size(access.size), row.clients());
        row.name = format!("{scheme} {} {size}, {clients}, {}", row.verb(), row.loops());
        row
    }

    fn verb(&self) -> &'static str {
        if self.access.direction == Read { "read" } else { "write" }
    }

    fn clients(&self) -> String {
        plural(self.clients, "client")
    }

    fn loops(&self) -> String {
        plural(self.loops.into(), "loop")
    }

    /// Returns the row of a report, in which the numbers of loops are compared with each other.
    pub(crate) fn recorded(&self) -> bmi_report::Row {
        let median = |figure: &dyn Fn(&Figure) -> f64| middle(&mut self.figures.iter().map(figure).collect::<Vec<_>>());
        let cost = |of: &dyn Fn(&Figure) -> PerCall| Cost {
            cpu: median(&|figure| of(figure).ran),
            switches: median(&|figure| of(figure).switches),
            calls: None,
        };
        let queued = median(&|figure| figure.server.queued + figure.client.queued);
        let sleeps = median(&|figure| figure.server.sleeps);
        let (clients, transport) = (self.clients(), self.scheme.as_str());
        let setup = [("clients", &*clients), ("transport", transport)];
        bmi_report::Row {
            size: Some(self.access.size as u64),
            rounds: steps(0, self.figures.iter().map(|figure| figure.rate)),
            cost: BTreeMap::from([
                ("clients".to_owned(), cost(&|figure| figure.client)),
                ("server".to_owned(), cost(&|figure| figure.server)),
            ]),
            notes: vec![format!(
                "{} of a call waiting for a processor; the server sleeps {sleeps:.2} times",
                units::time(queued)
            )],
            ..report::row(self.verb(), &self.loops(), Kind::Library, Unit::PerSecond, &setup)
        }
    }
}

fn plural(number: u16, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A client with a file of its own.
struct Lane {
    client: Client,
    path: fs_client::FsPath,
    file: File,
    memory: Memory,
    seed: u8,
}

/// Measures each of `rows` once with new clients, whose numbers begin after `numbers`.
fn round(cluster: &Processes<'_>, rows: &mut [&mut Row], numbers: &Cell<u128>, time: Duration) -> Result<(), Failed> {
    let Some((scheme, clients)) = rows.first().map(|row| (row.scheme, row.clients)) else { return Ok(()) };
    let open = |_| net::endpoint(scheme, "fs_bench");
    let endpoints = (0..clients).map(open).collect::<Result<Vec<_>, _>>()?;
    let server = cluster.iod(0)?;
    event::block_on_all(&endpoints, async {
        let lanes = try_join_all(endpoints.iter().map(async |endpoint| {
            // The servers belong to this run, so the numbers of clients need not be random.
            let number = numbers.get() + 1;
            numbers.set(number);
            let client =
                Client::connect(endpoint.clone(), cluster.manager().clone(), ClientOptions::new(number)).await?;
            let path = format!("/{number}").parse()?;
            let file = client.create(&path, CreateOptions::default()).await?;
            let (memory, seed) = (client.memory(FILE as usize)?, number as u8);
            memory.copy_from(0, &vec![seed; FILE as usize]);
            file.write_at(0, &memory).await?;
            Ok::<_, Failed>(Lane { client, path, file, memory, seed })
        }));
        let lanes = lanes.await?;
        for row in rows {
            repeat(&lanes, row.access, time / 10).await?;
            let usage = || [Usage::of([server]), Usage::of([std::process::id()])];
            let before = usage();
            let (calls, rate) = repeat(&lanes, row.access, time).await?;
            let [server, client] = usage();
            let server = PerCall::new(server.since(before[0]), calls);
            let client = PerCall::new(client.since(before[1]), calls);
            row.figures.push(Figure { rate, server, client });
        }
        for Lane { client, path, file, .. } in lanes {
            drop(file);
            client.remove(&path, RemoveKind::File).await?;
        }
        Ok(())
    })?
}

/// Lets all clients work for `time`. Returns the number of their calls, and the calls per second.
async fn repeat(lanes: &[Lane], access: Access, time: Duration) -> Result<(u64, f64), Failed> {
    let Some(first) = lanes.first() else { return Err("there are no clients".into()) };
    let now = || first.client.endpoint().now();
    let begin = now();
    let end = begin + time;
    let work = lanes.iter().map(async |lane| {
        let mut calls = 0;
        while calls == 0 || now() < end {
            lane.step(access, calls).await?;
            calls += 1;
        }
        Ok::<u64, Failed>(calls)
    });
    let calls = try_join_all(work).await?.into_iter().sum::<u64>();
    Ok((calls, calls as f64 / now().since(begin).as_secs_f64()))
}

impl Lane {
    async fn step(&self, access: Access, number: u64) -> Result<(), Failed> {
        let Access { direction, size } = access;
        // Odd, so that all places are used.
        let offset = number * 7 % (FILE / size as u64) * size as u64;
        let memory = self.memory.slice(offset as usize, size);
        if direction == Write {
            self.file.write_at(offset, &memory).await?;
            return Ok(());
        }
        self.file.read_at(offset, &memory).await?;
        if memory.to_vec().iter().any(|byte| *byte != self.seed) {
            return Err(format!("wrong bytes at {offset} of {}", self.path).into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn plan(only: Option<&str>) -> Plan {
        Plan {
            schemes: vec![Scheme::Tcp, Scheme::Shm],
            clients: vec![1, 8],
            loops: vec![1, 2],
            only: only.map(str::to_owned),
            rounds: 1,
            line: Duration::from_millis(1),
            limit: Duration::from_secs(60),
        }
    }

    #[test]
    fn a_row_has_the_medians_of_both_sides() {
        let per_call = |ran| PerCall { ran, queued: 1e-6, sleeps: 0.5, switches: 2.0 };
        let figure = |rate, ran| Figure { rate, server: per_call(ran), client: per_call(2.0 * ran) };
        let mut row = Row::new(Scheme::Shm, 8, ACCESSES[1], 2);
        row.figures = vec![figure(3e3, 3e-6), figure(1e3, 1e-6), figure(2e3, 2e-6)];
        let recorded = row.recorded();
        assert_eq!((recorded.values(), recorded.unit), (vec![3e3, 1e3, 2e3], Unit::PerSecond));
        assert_eq!(recorded.cost["server"], Cost { cpu: 2e-6, switches: 2.0, calls: None });
        assert_eq!(recorded.cost["clients"].cpu, 4e-6);
        assert_eq!(recorded.notes, ["2.00 us of a call waiting for a processor; the server sleeps 0.50 times"]);
    }

    #[test]
    fn lines_are_named_and_chosen_by_their_names() {
        let rows = plan(None).rows().unwrap();
        assert_eq!(rows.iter().map(|row| &row.name).collect::<BTreeSet<_>>().len(), 2 * 2 * 2 * 4);
        assert_eq!(rows[0].name, "tcp write 4 KiB, 1 client, 1 loop");
        assert_eq!(rows[1].name, "tcp write 4 KiB, 1 client, 2 loops");
        let recorded: Vec<bmi_report::Row> = rows.iter().map(Row::recorded).collect();
        assert_eq!(recorded[1].name(), "2 loops write 4 KiB, 1 client, tcp");
        assert!(recorded[1].is_beside(&recorded[0]) && !recorded[2].is_beside(&recorded[0]));
        let rows = plan(Some("SHM read 64 KiB, 8 clients")).rows().unwrap();
        assert_eq!(rows.iter().map(|row| row.loops).collect::<Vec<_>>(), [1, 2]);
        let error = plan(Some("mkdir")).rows().unwrap_err().to_string();
        assert!(error.contains("mkdir") && error.contains("tcp read 64 KiB, 1 client, 1 loop"), "{error}");
    }
}
