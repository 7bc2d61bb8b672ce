//! The honest client of `cargo xtask hostile`: small operations, one after the other, each with its
//! time and its result on a line of standard output.
//!
//! **Why** a program of its own: attackers are measured by what an honest program notices of them,
//! and `xtask` is built without the file system.
//!
//! **How.** A session opens endpoints, connects a client, and repeats a round of operations. The
//! next session begins with new endpoints, so that connecting is measured too. All data that is
//! read is compared with what was written.
//!
//! **Layout** of a line. The time is `CLOCK_MONOTONIC`, which all processes share.
//!
//! ```text
//!   <begin in µs> <duration in µs> <operation> ok
//!   <begin in µs> <duration in µs> <operation> failed <reason>
//! ```

use std::future::Future;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use bmi::driver::event;
use bmi::{Addr, Memory, Scheme};
use clap::Parser;
use fs_client::{Client, ClientOptions, CreateOptions, Endpoints, FsPath, Publish, TransportChoice};
use rustix::time::{ClockId, clock_gettime};

use crate::net;
use crate::workload::Failed;

/// Repeats small operations on a file system, and prints the time and the result of each.
///
/// The line of an operation has the time of its beginning (`CLOCK_MONOTONIC`) and its duration in
/// microseconds, its name, and `ok` or `failed` with the reason. The program ends when its standard
/// input or its standard output is closed.
#[derive(Debug, Parser)]
#[command(name = "honest", after_help = "Example:\n  honest tcp://localhost:7000 /honest --count 100")]
struct Cli {
    /// The manager's address. Its transport is used for all servers.
    #[arg(value_name = "MANAGER")]
    manager: Addr,
    /// The directory for its files, which no other client uses.
    #[arg(value_name = "DIR")]
    dir: FsPath,
    /// The pause between two operations, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    pause: u32,
    /// Time limit of one request, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=3600))]
    timeout: u16,
    /// The number of sessions [default: without end].
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// Rounds of one session.
const ROUNDS: u64 = 25;
/// The sizes of the files: one goes with its request, the other is moved apart, in two strips.
const SMALL: usize = 4 << 10;
const LARGE: usize = 96 << 10;
/// The number of names that are written.
const NAMES: u64 = 8;

/// Runs the program `honest`.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    end_with_input();
    let sessions = 0..cli.count.unwrap_or(u64::MAX);
    match sessions.into_iter().try_for_each(|number| session(&cli, number)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Ends the process when its standard input is closed.
fn end_with_input() {
    let watch = || {
        // Nothing is sent. A byte, the end and an error are the same here.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    };
    // Without the thread the program ends when it writes to a closed output.
    let _ = std::thread::Builder::new().name("input".into()).spawn(watch);
}

/// Runs a session. The error is one of this machine; a failed operation is a line.
fn session(cli: &Cli, number: u64) -> Result<(), Failed> {
    let scheme = cli.manager.scheme();
    let first = net::endpoint(scheme, "honest")?;
    let mut endpoints = Endpoints::one(scheme, first);
    if scheme != Scheme::Tcp {
        // I/O servers are known by their TCP addresses.
        endpoints = endpoints.and(Scheme::Tcp, net::endpoint(Scheme::Tcp, "honest")?);
    }
    let driven: Vec<_> = endpoints.endpoints().cloned().collect();
    let id = u128::from(std::process::id()) << 64 | u128::from(now_us()) << 16 | u128::from(number & 0xffff);
    let options = ClientOptions {
        timeout: Duration::from_secs(cli.timeout.into()),
        over: TransportChoice::Only(scheme),
        host: bmi::backend::host_id(),
        ..ClientOptions::new(id)
    };
    event::block_on_all(&driven, async {
        let connecting = Client::connect_over(endpoints, cli.manager.clone(), options);
        let Some(client) = timed("connect", async { Ok(connecting.await?) }).await? else { return Ok(()) };
        let rounds = Rounds { client, dir: &cli.dir.to_string(), pause: Duration::from_micros(cli.pause.into()) };
        for round in 0..ROUNDS {
            rounds.run(number * ROUNDS + round).await?;
        }
        Ok(())
    })?
}

/// Returns `CLOCK_MONOTONIC` in microseconds.
fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Runs an operation and prints its line. Returns `None` if it failed.
async fn timed<R>(name: &str, operation: impl Future<Output = Result<R, Failed>>) -> Result<Option<R>, Failed> {
    let begin_us = now_us();
    let result = operation.await;
    let took_us = now_us() - begin_us;
    let mut out = std::io::stdout().lock();
    match result {
        Ok(result) => {
            writeln!(out, "{begin_us} {took_us} {name} ok")?;
            Ok(Some(result))
        }
        Err(error) => {
            writeln!(out, "{begin_us} {took_us} {name} failed {}", error.to_string().replace('\n', "; "))?;
            Ok(None)
        }
    }
}

/// The operations of a session.
struct Rounds<'a> {
    client: Client,
    dir: &'a str,
    pause: Duration,
}

impl Rounds<'_> {
    async fn run(&self, number: u64) -> Result<(), Failed> {
        let path = |name: u64| -> Result<FsPath, Failed> { Ok(format!("{}/{name}", self.dir).parse()?) };
        if number == 0 {
            let dir: FsPath = self.dir.parse()?;
            timed("mkdir", async { Ok(self.client.mkdir_all(&dir).await?) }).await?;
        }
        let (name, len) = (number % NAMES, if number.is_multiple_of(2) { SMALL } else { LARGE });
        let (put, get) = if len == SMALL { ("put", "get") } else { ("put-large", "get-large") };
        let target = path(name)?;
        timed(put, self.put(&target, number, len)).await?;
        self.rest().await;
        timed(get, self.get(&target, number, len)).await?;
        self.rest().await;
        for _ in 0..4 {
            timed("stat", self.stat(&target, len)).await?;
            self.rest().await;
        }
        Ok(())
    }

    async fn rest(&self) {
        if !self.pause.is_zero() {
            self.client.endpoint().sleep(self.pause).await;
        }
    }

    /// Stores a file as `pvfs put` does, without the sync: a disk would hide what attackers cost.
    async fn put(&self, path: &FsPath, number: u64, len: usize) -> Result<(), Failed> {
        let draft = self.client.draft(path, CreateOptions::default()).await?;
        draft.file().write_at(0, Memory::from(content(number, len))).await?;
        draft.publish(Publish { size: Some(len as u64), ..Publish::default() }).await?;
        Ok(())
    }

    async fn get(&self, path: &FsPath, number: u64, len: usize) -> Result<(), Failed> {
        let file = self.client.open(path).await?;
        let memory = self.client.memory(len)?;
        let read = file.read_at(0, &memory).await?;
        if (read, memory.to_vec()) == (len as u64, content(number, len)) {
            return Ok(());
        }
        Err(format!("{path}: the bytes are not those that were written").into())
    }

    async fn stat(&self, path: &FsPath, len: usize) -> Result<(), Failed> {
        match self.client.stat(path).await?.attr.size {
            size if size == len as u64 => Ok(()),
            size => Err(format!("{path}: {size} bytes, {len} were written").into()),
        }
    }
}

/// Returns the bytes of a file, which differ from round to round.
fn content(number: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).map(|at| (number << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
        let values = [("manager", "tcp://h:1"), ("dir", "/d")];
        assert!(testbed::cli::every_option::<Cli>(&values) >= 3);
    }

    #[test]
    fn contents_of_rounds_differ_and_have_their_length() {
        assert_eq!((content(1, 13).len(), content(1, 8), content(2, 8) == content(1, 8)), (13, content(1, 8), false));
    }
}
