//! The replicated block store of this crate (`examples/src/replicated`) as a program.
//!
//! ```text
//! cargo run -p examples --bin replicated -- --help
//! ```

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bmi::driver::{MonotonicClock, event};
use bmi::{Addr, Config, Endpoint, Error, ErrorKind, OpenOptions};
use clap::{Args, Parser, Subcommand};
use examples::replicated::{Client, Folder, MAX_BLOCK, run};

/// A replicated block store. Replicas keep blocks; put and get use a majority of them, so the store
/// goes on while most replicas are up.
///
/// The scheme of an address selects the transport: tcp://HOST:PORT, shm:///PATH (processes of one
/// host; the directory must have mode 0700) or ib://DEVICE/HOST:PORT. All replicas of a store have
/// the same scheme.
#[derive(Parser)]
#[command(
    name = "replicated",
    after_help = "Example, with three replicas on one host:
  replicated replica tcp://127.0.0.1:7001 /tmp/a &
  replicated replica tcp://127.0.0.1:7002 /tmp/b &
  replicated replica tcp://127.0.0.1:7003 /tmp/c &
  REPLICAS='tcp://127.0.0.1:7001 tcp://127.0.0.1:7002 tcp://127.0.0.1:7003'
  replicated put greeting 'Hello, block!' $REPLICAS
  kill %1                               # one replica is lost
  replicated get greeting $REPLICAS     # two of three still answer"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a replica until it is killed. Prints the address that it listens at.
    Replica {
        /// Address to listen at. Port 0 means any free port.
        addr: Addr,
        /// Directory of the blocks. It is created if it does not exist. Replicas do not share one.
        dir: PathBuf,
    },
    /// Write a block. Succeeds once a majority of the replicas has it on disk.
    Put {
        /// Name of the block.
        key: String,
        /// Contents of the block.
        value: String,
        #[command(flatten)]
        store: Store,
    },
    /// Read a block and print it. Fails if it was never written.
    Get {
        /// Name of the block.
        key: String,
        #[command(flatten)]
        store: Store,
    },
}

#[derive(Args)]
struct Store {
    /// Addresses of all replicas.
    #[arg(required = true)]
    replicas: Vec<Addr>,
    /// Milliseconds after which a call to a replica has failed.
    #[arg(long, default_value_t = 2000)]
    patience_ms: u64,
}

fn open(addr: &Addr, name: &str) -> Result<Endpoint, Error> {
    let config = Config::named(name).max_message(MAX_BLOCK);
    bmi::endpoint(addr.scheme(), &OpenOptions::default().at(addr), config, MonotonicClock::new())
}

impl Store {
    #[expect(clippy::disallowed_methods, reason = "a number that no other client has")]
    fn client(self) -> Result<(Endpoint, Client), Error> {
        let endpoint = open(&self.replicas[0], "client")?;
        let writer = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let patience = Duration::from_millis(self.patience_ms);
        Ok((endpoint.clone(), Client::new(endpoint, self.replicas, writer, patience)))
    }
}

fn main() -> Result<(), Error> {
    match Cli::parse().command {
        Command::Replica { addr, dir } => {
            let (endpoint, blocks) = (open(&addr, "replica")?, Folder::open(dir)?);
            println!("{}", endpoint.listen(&addr)?);
            event::block_on(endpoint.clone(), run(&endpoint, blocks)).map(|never| match never {})
        }
        Command::Put { key, value, store } => {
            let (endpoint, mut client) = store.client()?;
            event::block_on(endpoint, async {
                let version = client.put(&key, value.into_bytes()).await?;
                println!("version {}", version.number);
                client.close().await;
                Ok(())
            })?
        }
        Command::Get { key, store } => {
            let (endpoint, mut client) = store.client()?;
            event::block_on(endpoint, async {
                let missing = || Error::new(ErrorKind::Invalid, format!("there is no block {key}"));
                let (_, bytes) = client.get(&key).await?.ok_or_else(missing)?;
                println!("{}", String::from_utf8_lossy(&bytes));
                client.close().await;
                Ok(())
            })?
        }
    }
}
