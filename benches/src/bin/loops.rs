//! Compares an I/O server with one event loop and one with several (`pvfsd --threads`): the rate at
//! which 1, 8 and 64 clients read and write.
//!
//! **How.** Two clusters run at the same time, each a manager and one I/O server, as processes,
//! with data in memory. Rounds of both alternate, in another order each time, so that other load on
//! the machine affects both. The ratio of a row is the median of its rounds' ratios. All clients
//! are in this process, on one thread, each with an endpoint of its own, so that the server's loops
//! share them. A read is compared with what was written.

use std::process::ExitCode;
use std::time::Duration;

use benches::limit::Limit;
use benches::processes::Processes;
use benches::sandbox::Sandbox;
use benches::{net, stats, units};
use bmi::{AnyTransport, Memory, Scheme};
use bmi_core::driver::event;
use clap::Parser;
use fs_client::{Client, ClientOptions, CreateOptions, File, RemoveKind};
use futures_util::future::try_join_all;

type Failed = Box<dyn std::error::Error>;

/// The length of each client's file, in bytes.
const FILE: u64 = 1 << 20;
const SIZES: [usize; 2] = [4 << 10, 64 << 10];
const CLIENTS: [usize; 3] = [1, 8, 64];
/// How long a cluster may take for a round.
const LIMIT: Duration = Duration::from_secs(60);

/// Compares an I/O server with one event loop and one with several: the rate at which 1, 8 and 64
/// clients read and write data in memory.
///
/// "ratio" is the rate with several loops to that with one, the median over the rounds. The clients
/// are one thread of this program. Close other programs first.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo build --release -p fs-server -p benches --bin pvfsd --bin loops\n  \
                        target/release/loops                    two loops, over TCP and shared memory\n  \
                        target/release/loops --loops 4 --over tcp")]
struct Cli {
    /// The number of loops to compare with one.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(2..=64))]
    loops: u8,
    /// The transports: tcp, shm.
    #[arg(long, value_delimiter = ',', default_value = "tcp,shm", value_name = "WHICH", value_parser = scheme)]
    over: Vec<Scheme>,
    /// The number of rounds of each row.
    #[arg(long, default_value_t = 7, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// The duration of a round, in milliseconds.
    #[arg(long, default_value_t = 200, value_name = "MS", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    round_ms: u16,
}

fn scheme(text: &str) -> Result<Scheme, String> {
    let known = [Scheme::Tcp, Scheme::Shm].into_iter().find(|scheme| scheme.as_str() == text);
    known.ok_or_else(|| "there are tcp and shm".to_owned())
}

fn main() -> ExitCode {
    match measure(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loops: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(cli: &Cli) -> Result<(), Failed> {
    println!("{:<34} {:>12} {:>12}  ratio  least..greatest", "", "1 loop", format!("{} loops", cli.loops));
    for scheme in &cli.over {
        let sandbox = Sandbox::new(&format!("loops-{}-", std::process::id()))?;
        sandbox.end_on_signals()?;
        let start = |loops: u8| -> std::io::Result<Processes<'_>> {
            let folder = sandbox.folder().join(format!("{loops}"));
            std::fs::create_dir(&folder)?;
            Processes::start(&sandbox, &folder, *scheme, 1, loops.into())
        };
        let clusters = [start(1)?, start(cli.loops)?];
        for clients in CLIENTS {
            let mut rates = [(); SIZES.len() * 2].map(|()| [Vec::new(), Vec::new()]);
            for round in 0..usize::from(cli.rounds) {
                for which in [round % 2, 1 - round % 2] {
                    let _limit = Limit::new(format!("{clients} clients over {scheme}"), LIMIT, || {})?;
                    let number = (clients * 1000 + round) as u128;
                    let time = Duration::from_millis(cli.round_ms.into());
                    let measured = run(*scheme, &clusters[which], clients, number, time)?;
                    for (row, rate) in rates.iter_mut().zip(measured) {
                        row[which].push(rate);
                    }
                }
            }
            for (at, [one, several]) in rates.into_iter().enumerate() {
                let what = if at % 2 == 0 { "write" } else { "read" };
                let name = format!("{scheme} {what} {}, {clients} clients", units::size(SIZES[at / 2]));
                print_row(&name, one, several);
            }
        }
        let [one, several] = clusters;
        one.stop()?;
        // Both are of one sandbox, which the first has stopped.
        drop(several);
    }
    Ok(())
}

fn print_row(name: &str, mut one: Vec<f64>, mut several: Vec<f64>) {
    let mut ratios: Vec<f64> = several.iter().zip(&one).map(|(several, one)| several / one).collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = ratios.iter().copied().fold(0.0, f64::max);
    println!(
        "{name:<34} {:>12} {:>12}  {:>5.2}  {least:.2}..{greatest:.2}",
        units::rate(stats::median(&mut one)),
        units::rate(stats::median(&mut several)),
        stats::median(&mut ratios),
    );
}

/// A client with a file of its own.
struct Lane {
    file: File<AnyTransport>,
    memory: Memory,
    seed: u8,
}

/// Measures one cluster. Returns the rates of writes and reads, for each size, in calls per second.
fn run(
    scheme: Scheme,
    cluster: &Processes<'_>,
    clients: usize,
    number: u128,
    time: Duration,
) -> Result<[f64; SIZES.len() * 2], Failed> {
    let open = |_| net::endpoint(scheme, "loops");
    let endpoints = (0..clients).map(open).collect::<Result<Vec<_>, _>>()?;
    event::block_on_all(&endpoints, async {
        let lanes = endpoints.iter().zip(0..).map(|(endpoint, at): (_, u128)| async move {
            let options = ClientOptions::new(number * 100 + at + 1);
            let client = Client::connect(endpoint.clone(), cluster.manager().clone(), options).await?;
            let path = format!("/{number}-{at}").parse()?;
            let file = client.create(&path, CreateOptions::default()).await?;
            let (memory, seed) = (client.memory(FILE as usize)?, at as u8);
            memory.copy_from(0, &vec![seed; FILE as usize]);
            file.write_at(0, &memory).await?;
            Ok::<_, Failed>((client, path, Lane { file, memory, seed }))
        });
        let lanes = try_join_all(lanes).await?;
        let mut rates = [0.0; SIZES.len() * 2];
        for (at, rate) in rates.iter_mut().enumerate() {
            let (size, writes) = (SIZES[at / 2], at % 2 == 0);
            let now = || endpoints[0].now();
            let begin = now();
            let end = begin + time;
            let work = lanes.iter().map(|(client, _, lane)| async move {
                let mut calls = 0u64;
                while client.endpoint().now() < end {
                    step(lane, size, writes, calls).await?;
                    calls += 1;
                }
                Ok::<u64, Failed>(calls)
            });
            let calls: u64 = try_join_all(work).await?.into_iter().sum();
            *rate = calls as f64 / now().since(begin).as_secs_f64();
        }
        for (client, path, lane) in lanes {
            drop(lane);
            client.remove(&path, RemoveKind::File).await?;
        }
        Ok(rates)
    })?
}

async fn step(lane: &Lane, size: usize, writes: bool, number: u64) -> Result<(), Failed> {
    let places = FILE / size as u64;
    let offset = number * 7 % places * size as u64;
    let memory = lane.memory.slice(offset as usize, size);
    if writes {
        lane.file.write_at(offset, &memory).await?;
        return Ok(());
    }
    lane.file.read_at(offset, &memory).await?;
    if memory.to_vec().iter().any(|byte| *byte != lane.seed) {
        return Err(format!("wrong bytes at {offset}").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_option_is_parsed() {
        assert!(cli_check::every_option::<super::Cli>(&[("over", "tcp")]) >= 4);
    }
}
