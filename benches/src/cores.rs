//! An I/O server on several cores: what the simulator predicts for 1, 2, 4 and 8 event loops, each
//! on a core of its own.
//!
//! **Why.** It shows how far a server gains from more cores before something else is the limit, on
//! machines with known prices. The workload below and the prices of `bmi-sim/profiles` were fixed
//! before the first run. docs/performance.md has the result.
//!
//! **How.** All data is in the server's memory. Each client has a file with a region for each of
//! its streams of requests. A stream reads or writes its region over and over. After a time that is
//! not counted, requests are counted for a fixed time of the world, and [`Load`] gives how busy
//! each resource of the server's machine was.
//!
//! **Invariants**
//! 1. Every read is compared with what was written.
//! 2. The limit of a row is the resource with the highest utilisation that was counted.
//! 3. The same scale gives the same figures.
//!
//! **Tests.** `tests/it/cores.rs` runs the reduced scale.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi::Memory;
use bmi::driver::Waiting;
use bmi::paths::Direction;
use bmi_sim::{DiskProfile, JoinHandle, Load, Node, Profile, SimConfig, World};
use fs_client::{Client, ClientOptions, CreateOptions, File};
use fs_server::embedded::{ClusterOptions, SimCluster};
use serde::Serialize;

use crate::workload::{Failed, pattern};

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// As in docs/performance.md.
    Full,
    /// One and eight cores, and half of the times.
    Reduced,
}

const CLIENTS: usize = 64;
/// Requests that each client has in flight.
const STREAMS: usize = 4;
/// Time after which all loops that are needed take part: it doubles their number every 50 ms.
const JOINED: Duration = Duration::from_millis(300);
const SMALL: usize = 4 << 10;
const LARGE: usize = 64 << 10;

/// The machines: profile, and how the clients wait.
const MACHINES: [(&str, Waiting); 2] = [("vapi-2003", Waiting::PAPER_CLIENT), ("ibnice-uncached-2003", Waiting::Event)];
/// The files are in memory, and the server's buffers in no cache.
const DISK: &str = "ramfs-uncached-2003";

impl Scale {
    fn cores(self) -> &'static [usize] {
        match self {
            Scale::Full => &[1, 2, 4, 8],
            Scale::Reduced => &[1, 8],
        }
    }

    /// Returns the times for which requests are not counted at first, and then counted.
    fn times(self, bytes: usize) -> (Duration, Duration) {
        let counted = if bytes == SMALL { 50 } else { 500 };
        let parts = if self == Scale::Full { 1 } else { 2 };
        (JOINED, Duration::from_millis(counted) / parts)
    }
}

/// The result for one machine, one number of cores and one kind of requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The profile.
    pub machine: &'static str,
    /// `read` or `write`.
    pub direction: &'static str,
    /// Bytes of a request.
    pub bytes: usize,
    /// Cores and event loops of the server.
    pub cores: usize,
    /// Requests per second.
    pub requests_per_s: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// The rate divided by that of one core.
    pub speed_up: f64,
    /// The resource of the server's machine that was busiest.
    pub limit: String,
    /// How busy each resource was, from 0 to 1.
    pub utilisations: Vec<(String, f64)>,
    /// The part of the cores' time in which they waited for locks, from 0 to 1.
    pub lock_waiting: f64,
}

impl Row {
    /// Returns how busy the limit was.
    pub fn limit_utilisation(&self) -> f64 {
        self.utilisations.iter().find(|(name, _)| *name == self.limit).map_or(0.0, |(_, part)| *part)
    }
}

/// Runs the experiment.
///
/// # Errors
/// The first error of a client, a wrong byte, or the error of a server that does not start.
pub fn rows(scale: Scale) -> Result<Vec<Row>, Failed> {
    let mut rows = Vec::new();
    for machine in MACHINES {
        for bytes in [SMALL, LARGE] {
            for direction in [Direction::Read, Direction::Write] {
                rows.extend(rows_of(scale, machine, bytes, direction)?);
            }
        }
    }
    Ok(rows)
}

/// Runs the first part of the experiment: one machine, and small reads.
///
/// # Errors
/// Those of [`rows`].
pub fn first_rows(scale: Scale) -> Result<Vec<Row>, Failed> {
    rows_of(scale, MACHINES[0], SMALL, Direction::Read)
}

fn rows_of(
    scale: Scale,
    (machine, waiting): (&'static str, Waiting),
    bytes: usize,
    direction: Direction,
) -> Result<Vec<Row>, Failed> {
    let mut rows: Vec<Row> = Vec::new();
    for &cores in scale.cores() {
        let one = One { machine, waiting, direction, bytes, cores };
        let (requests, load) = one.run(scale.times(bytes))?;
        let row = one.row(requests, &load, scale.times(bytes).1);
        let alone = rows.first().map_or(row.requests_per_s, |first| first.requests_per_s);
        rows.push(Row { speed_up: row.requests_per_s / alone, ..row });
    }
    Ok(rows)
}

/// One run.
#[derive(Clone, Copy)]
struct One {
    machine: &'static str,
    waiting: Waiting,
    direction: Direction,
    bytes: usize,
    cores: usize,
}

type SimFile = File;

impl One {
    /// Returns the number of counted requests, and the load of the server's machine meanwhile.
    fn run(self, (before, counted): (Duration, Duration)) -> Result<(u64, Load), Failed> {
        let profile = Profile::named(self.machine)?.with_disk(DiskProfile::named(DISK)?);
        let world = World::with(SimConfig::with_profile(profile));
        let server = world.node("iod0");
        server.set_cores(self.cores);
        let options = ClusterOptions { disk_costs: true, ..ClusterOptions::with_iods(1) };
        let cluster = SimCluster::start_on_cores(&world, options, self.cores)?;
        cluster.manager_node().limit_cores(1);
        let done = Rc::new(Cell::new(0));
        let clients = (0..CLIENTS).map(|number| self.client(&world, &cluster, number));
        let clients = clients.collect::<Result<Vec<_>, Failed>>()?;
        let mut prepared = Vec::new();
        for (node, client) in clients {
            let (file, client) = world.try_block_on(client)???;
            prepared.push((node, file, client));
        }
        let mut streams = Vec::new();
        for (node, file, client) in prepared {
            for stream in 0..STREAMS {
                let (file, client, done) = (file.clone(), client.clone(), done.clone());
                streams.push(node.spawn(async move { self.stream(&client, &file, stream, &done).await }));
            }
        }
        world.run_for(before);
        let (requests, load) = (done.get(), server.load());
        world.run_for(counted);
        // A stream ends only with an error.
        for stream in streams.into_iter().filter(JoinHandle::is_finished) {
            world.try_block_on(stream)???;
        }
        Ok((done.get() - requests, server.load().since(&load)))
    }

    /// Starts a client that connects and fills its file.
    #[expect(clippy::type_complexity, reason = "a node, and the task that prepares its client")]
    fn client(
        self,
        world: &World,
        cluster: &SimCluster,
        number: usize,
    ) -> Result<(Node, JoinHandle<Result<(SimFile, Client), Failed>>), Failed> {
        let node = world.node(&format!("client{number}"));
        node.limit_cores(1);
        let config = bmi::Config::default().name(node.name());
        let endpoint = node.endpoint_waiting(config, self.waiting)?;
        let (manager, options) = (cluster.manager(), ClientOptions::new(number as u128 + 1));
        let task = node.spawn(async move {
            let client = Client::connect(endpoint, manager, options).await?;
            let file = client.create(&format!("/file{number}").parse()?, CreateOptions::default()).await?;
            file.write_at(0, Memory::from(pattern(0, STREAMS * self.bytes))).await?;
            Ok((file, client))
        });
        Ok((node, task))
    }

    /// Reads or writes one region over and over.
    async fn stream(self, client: &Client, file: &SimFile, stream: usize, done: &Cell<u64>) -> Result<(), Failed> {
        let offset = (stream * self.bytes) as u64;
        let (memory, expected) = (client.memory(self.bytes)?, pattern(offset, self.bytes));
        let _region = client.endpoint().with(|engine| engine.register(&memory))?;
        memory.copy_from(0, &expected);
        loop {
            if self.direction == Direction::Write {
                file.write_at(offset, &memory).await?;
            } else {
                file.read_at(offset, &memory).await?;
                if memory.to_vec() != expected {
                    return Err(format!("{} bytes at {offset}: not what was written", self.bytes).into());
                }
            }
            done.set(done.get() + 1);
        }
    }

    fn row(self, requests: u64, load: &Load, counted: Duration) -> Row {
        let seconds = counted.as_secs_f64();
        let utilisations = load.utilisations(counted);
        let busiest = utilisations.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        Row {
            machine: self.machine,
            direction: self.direction.as_str(),
            bytes: self.bytes,
            cores: self.cores,
            requests_per_s: requests as f64 / seconds,
            bytes_per_s: (requests * self.bytes as u64) as f64 / seconds,
            speed_up: 1.0,
            limit: busiest.map(|(name, _)| name.clone()).unwrap_or_default(),
            utilisations,
            lock_waiting: load.lock_waiting.as_secs_f64() / (seconds * self.cores as f64),
        }
    }
}
