//! A file that is read a second time, by its size in relation to the memory of the server: at which
//! size does each service fall back to the speed of the disk?
//!
//! **How.** For each service an I/O server runs, which may have the same amount of memory, with the
//! files that the system caches for it. A file is written, synced and read twice, from its
//! beginning to its end. The second time counts.
//!
//! **Source.** [Unifier-PVFS §6.2, Figure 5].

use std::path::Path;
use std::time::Duration;

use crate::limit::Limit;
use crate::memory_limit::MemoryLimit;
use crate::net;
use crate::report::{self, steps};
use bmi::driver::event;
use bmi::{Memory, Scheme};
use bmi_report::stats::middle;
use bmi_report::table::Table;
use bmi_report::{Kind, Unit};
use fs_client::{Client, ClientOptions, CreateOptions, File, RemoveKind};
use futures_util::future::try_join_all;
use serde::Serialize;

use super::Failed;
use super::services::{self, SERVICES, mark};

/// The sizes of the file, in percent of the cache's memory.
const SIZES: [u64; 6] = [60, 75, 90, 100, 125, 150];
/// Memory of the cache.
const MEMORY: u64 = 128 << 20;
/// What the server may have besides: its program, the manager in its process, and buffers for
/// messages and transfers.
const BESIDES: u64 = 24 << 20;
/// Bytes of a read, and reads at the same time.
const STEP: usize = 1 << 20;
const AHEAD: usize = 4;
/// Time limit of a round.
const LIMIT: Duration = Duration::from_secs(600);

/// The rates of a size of the file with a service.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    percent: u64,
    service: &'static str,
    /// Bytes per second of the second time, one for each round.
    rate: Vec<f64>,
}

/// Calls `step` for each part of a file, in order, a few at a time.
async fn in_order(
    len: u64,
    client: &Client,
    step: impl AsyncFn(u64, &Memory) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let next = std::cell::Cell::new(0);
    let lanes = (0..AHEAD).map(async |_| {
        let memory = client.memory(STEP)?;
        while next.get() < len {
            let at = next.replace(next.get() + STEP as u64);
            step(at, &memory).await?;
        }
        Ok::<(), Failed>(())
    });
    try_join_all(lanes).await.map(drop)
}

/// Returns the bytes per second of the second time that a file of `len` bytes is read.
async fn second_time(client: &Client, file: &File, len: u64) -> Result<f64, Failed> {
    in_order(len, client, async |at, memory| {
        mark(memory, at, STEP);
        Ok(file.write_at(at, memory).await.map(drop)?)
    })
    .await?;
    file.sync().await?;
    let mut seconds = 0.0;
    for _ in 0..2 {
        let begin = client.endpoint().now();
        in_order(len, client, async |at, memory| Ok(file.read_at(at, memory).await.map(drop)?)).await?;
        seconds = client.endpoint().now().since(begin).as_secs_f64();
    }
    Ok(len as f64 / seconds)
}

/// Measures over TCP, with the data in `dir`, which should be on a disk.
pub(crate) fn measure(dir: &Path, rounds: u16) -> Result<Vec<Row>, Failed> {
    let clusters = services::start(Scheme::Tcp, Some(dir), &MEMORY.to_string(), "0")?;
    let mut limits = Vec::new();
    for (service, cluster) in SERVICES.iter().zip(&clusters) {
        let limit = MemoryLimit::new(&format!("pvfs-{service}"), MEMORY + BESIDES)?;
        limit.add(cluster.process())?;
        limits.push(limit);
    }
    let endpoints = SERVICES.iter().map(|_| net::endpoint(Scheme::Tcp, "sizes")).collect::<Result<Vec<_>, _>>()?;
    let new = |percent| SERVICES.map(|service| Row { percent, service, rate: Vec::new() });
    let mut rows: Vec<Row> = SIZES.into_iter().flat_map(new).collect();
    event::block_on_all(&endpoints, async {
        let mut clients = Vec::new();
        for (cluster, endpoint) in clusters.iter().zip(&endpoints) {
            clients.push(Client::connect(endpoint.clone(), cluster.manager().clone(), ClientOptions::new(1)).await?);
        }
        for round in 0..usize::from(rounds) {
            let _limit = Limit::new("a round", LIMIT, || {})?;
            for (number, percent) in SIZES.into_iter().enumerate() {
                let len = MEMORY / 100 * percent / STEP as u64 * STEP as u64;
                for turn in 0..SERVICES.len() {
                    let service = (turn + round + number) % SERVICES.len();
                    let client = &clients[service];
                    let path = "/file".parse()?;
                    let file = client.create(&path, CreateOptions::default()).await?;
                    let rate = second_time(client, &file, len).await?;
                    rows[number * SERVICES.len() + service].rate.push(rate);
                    client.remove(&path, RemoveKind::File).await?;
                }
                eprint!("\rround {} of {rounds}, {percent} %  ", round + 1);
            }
        }
        eprintln!();
        Ok::<(), Failed>(())
    })??;
    // Before the limits, which their processes are in.
    services::stop(clusters)?;
    drop(limits);
    Ok(rows)
}

/// Returns the rows of a report. The services were measured one right after the other.
pub(crate) fn recorded(rows: &[Row]) -> Vec<bmi_report::Row> {
    let row = |(number, row): (usize, &Row)| bmi_report::Row {
        rounds: steps(number / SERVICES.len() * row.rate.len(), row.rate.iter().copied()),
        ..report::row(
            "second read of a file",
            row.service,
            Kind::Library,
            Unit::BytesPerSecond,
            &[("file / cache, %", &row.percent.to_string())],
        )
    };
    rows.iter().enumerate().map(row).collect()
}

pub(crate) fn render(rows: &[Row]) -> String {
    let mut table = Table::new(1, ["file / cache", SERVICES[0], SERVICES[1], SERVICES[2]]);
    for services in rows.chunks(SERVICES.len()) {
        let rate = |row: &Row| format!("{:.0} MB/s", middle(&mut row.rate.clone()) / 1e6);
        table.row([format!("{} %", services[0].percent), rate(&services[0]), rate(&services[1]), rate(&services[2])]);
    }
    table.render()
}
