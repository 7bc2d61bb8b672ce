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
use std::fs;
use std::time::Duration;

use benches::limit::Limit;
use benches::net;
use benches::processes::Processes;
use benches::sandbox::Sandbox;
use benches::tasks::Usage;
use benches::workload::Failed;
use bmi::{AnyTransport, Memory};
use bmi_core::Scheme;
use bmi_core::comm::Direction::{self, Read, Write};
use bmi_core::driver::event;
use bmi_report::units;
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
    pub(crate) figures: Vec<Figure>,
}

/// The result of a round of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    /// Calls per second.
    pub(crate) rate: f64,
    /// The I/O server's use of the machine, for a call.
    pub(crate) server: PerCall,
    /// That of this process.
    pub(crate) client: PerCall,
}

/// The use of the machine by a process, for a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PerCall {
    /// Seconds of processor time.
    pub(crate) ran: f64,
    /// Seconds for which threads were ready to run and had no processor.
    pub(crate) queued: f64,
    /// How often a thread went to sleep.
    pub(crate) sleeps: f64,
}

impl PerCall {
    fn new(usage: Usage, calls: u64) -> PerCall {
        let calls = calls as f64;
        PerCall {
            ran: usage.ran.as_secs_f64() / calls,
            queued: usage.queued.as_secs_f64() / calls,
            sleeps: usage.sleeps as f64 / calls,
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
        let plural = |number: u64, what| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
        let verb = if access.direction == Read { "read" } else { "write" };
        let (many, ways) = (plural(clients.into(), "client"), plural(loops.into(), "loop"));
        let name = format!("{scheme} {verb} {}, {many}, {ways}", units::size(access.size));
        Row { scheme, clients, loops, access, name, figures: Vec::new() }
    }

    /// Returns true if the lines differ at most in the number of loops.
    pub(crate) fn is_beside(&self, other: &Row) -> bool {
        (self.scheme, self.clients, self.access) == (other.scheme, other.clients, other.access)
    }
}

/// A client with a file of its own.
struct Lane {
    client: Client<AnyTransport>,
    path: fs_client::FsPath,
    file: File<AnyTransport>,
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
    fn lines_are_named_and_chosen_by_their_names() {
        let rows = plan(None).rows().unwrap();
        assert_eq!(rows.iter().map(|row| &row.name).collect::<BTreeSet<_>>().len(), 2 * 2 * 2 * 4);
        assert_eq!(rows[0].name, "tcp write 4 KiB, 1 client, 1 loop");
        assert_eq!(rows[1].name, "tcp write 4 KiB, 1 client, 2 loops");
        assert!(rows[1].is_beside(&rows[0]) && !rows[2].is_beside(&rows[0]));
        let rows = plan(Some("SHM read 64 KiB, 8 clients")).rows().unwrap();
        assert_eq!(rows.iter().map(|row| row.loops).collect::<Vec<_>>(), [1, 2]);
        let error = plan(Some("mkdir")).rows().unwrap_err().to_string();
        assert!(error.contains("mkdir") && error.contains("tcp read 64 KiB, 1 client, 1 loop"), "{error}");
    }
}
