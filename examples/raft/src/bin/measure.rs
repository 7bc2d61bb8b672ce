//! Measures the network over bmi and over tonic: three nodes in three processes, a client in a
//! fourth, tokio's default runtime in all. The ways alternate, round by round.
//!
//! `measure [ROUNDS]` prints a line for each way and round, and then the medians.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bmi::Instant;
use bmi_raft_example::node::{Answer, Node};
use bmi_raft_example::store::Disk;
use bmi_raft_example::{Members, Types, network, over_tonic};
use bytes::Bytes;
use openraft::error::NetworkError;
use openraft::network::{RPCOption, RaftNetwork};
use openraft::{BasicNode, Config, Snapshot, SnapshotMeta, SnapshotPolicy, Vote};

type Outcome<T> = Result<T, Box<dyn Error>>;

const WAYS: [&str; 3] = ["bmi-tcp", "tonic", "bmi-shm"];
/// Time for writes one at a time, and for those in flight.
const PHASE: Duration = Duration::from_secs(3);
const IN_FLIGHT: u64 = 64;
const SNAPSHOT: usize = 64 << 20;
const SNAPSHOTS: usize = 5;
/// The time for a call.
const LIMIT: Duration = Duration::from_secs(20);

/// Another node, over one network or the other.
#[derive(Clone)]
enum Peer {
    Bmi(network::Peer),
    Tonic(over_tonic::Peer),
}

impl Peer {
    fn new(way: &str, addr: &str) -> Peer {
        match way {
            "tonic" => Peer::Tonic(over_tonic::Peer::new(addr)),
            _ => Peer::Bmi(network::Peer::new(addr)),
        }
    }

    async fn put(&self, key: u64) -> Result<Answer, NetworkError> {
        let value = Bytes::from_static(&[7; 64]);
        match self {
            Peer::Bmi(peer) => peer.put(key, value, LIMIT).await,
            Peer::Tonic(peer) => peer.put(key, value, LIMIT).await,
        }
    }

    /// Sends a snapshot, which the node has no use for: it is of no leader.
    async fn snapshot(&mut self, bytes: Bytes) -> Outcome<()> {
        let snapshot = Snapshot::<Types> { meta: SnapshotMeta::default(), snapshot: Box::new(bytes) };
        let (vote, never, option) = (Vote::new(0, 0), std::future::pending(), RPCOption::new(LIMIT));
        match self {
            Peer::Bmi(peer) => peer.full_snapshot(vote, snapshot, never, option).await?,
            Peer::Tonic(peer) => peer.full_snapshot(vote, snapshot, never, option).await?,
        };
        Ok(())
    }
}

/// What a round has measured.
#[derive(Clone, Copy)]
struct Figures {
    /// Of a write, one at a time, in µs.
    median_us: f64,
    tail_us: f64,
    per_second: f64,
    /// Processor time of all four processes for a write, in µs.
    cpu_one_us: f64,
    cpu_many_us: f64,
    /// MiB in a second, and processor time for a MiB of the client and the node, in µs.
    snapshot_rate: f64,
    snapshot_cpu_us: f64,
}

/// Nodes that end with this.
struct Nodes(Vec<Child>);

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in &mut self.0 {
            // They may have ended.
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

impl Nodes {
    fn start(way: &str, addrs: &[String]) -> Outcome<Nodes> {
        let program = std::env::current_exe()?;
        let mut nodes = Nodes(Vec::new());
        for id in 1..=addrs.len() {
            let mut command = Command::new(&program);
            command.args(["node", way, &id.to_string()]).args(addrs).stdin(Stdio::piped());
            nodes.0.push(command.spawn()?);
        }
        Ok(nodes)
    }

    /// Returns the processor time of the nodes and of this process so far, in µs.
    fn cpu_us(&self) -> Outcome<f64> {
        let mut sum = 0;
        for id in self.0.iter().map(Child::id).chain([std::process::id()]) {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
            let (_, after) = stat.rsplit_once(')').ok_or("no name in stat")?;
            // utime and stime, in ticks of 10 ms.
            let ticks = after.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
            sum += ticks.sum::<Result<u64, _>>()?;
        }
        Ok(sum as f64 * 10_000.0)
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("node") => node(&args[1], args[2].parse()?, &args[3..]).await,
        Some(rounds) => compare(rounds.parse()?).await,
        None => compare(5).await,
    }
}

/// Is a node until its parent ends.
async fn node(way: &str, id: u64, addrs: &[String]) -> Outcome<()> {
    std::thread::Builder::new().spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    })?;
    let members: Members = (1..).zip(addrs.iter().map(BasicNode::new)).collect();
    let config = Config {
        heartbeat_interval: 200,
        election_timeout_min: 1000,
        election_timeout_max: 2000,
        snapshot_policy: SnapshotPolicy::Never,
        ..Config::default()
    };
    let addr = members[&id].addr.clone();
    if way == "tonic" {
        let network = over_tonic::Network::default();
        let node = Node::start(id, members, config, network, Disk::default(), None).await?;
        return Ok(over_tonic::serve(addr.parse()?, node).await?);
    }
    let server = network::bind(&addr).await?;
    let node = Node::start(id, members, config, network::Network::default(), Disk::default(), None).await?;
    Ok(network::serve(&server, node).await?)
}

async fn compare(rounds: usize) -> Outcome<()> {
    println!("one: a write at a time; many: {IN_FLIGHT} in flight; cpu: of all processes, for a write");
    println!("way       one p50    p99  cpu one      many/s  cpu many  snapshot MiB/s  cpu for a MiB   (times in µs)");
    let mut all: BTreeMap<&str, Vec<Figures>> = BTreeMap::new();
    for round in 0..rounds {
        for turn in 0..WAYS.len() {
            let way = WAYS[(round + turn) % WAYS.len()];
            let figures = measure(way).await?;
            print(way, &figures);
            all.entry(way).or_default().push(figures);
        }
    }
    println!("medians:");
    for (way, rounds) in &all {
        let median = |of: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let figures = Figures {
            median_us: median(|figures| figures.median_us),
            tail_us: median(|figures| figures.tail_us),
            per_second: median(|figures| figures.per_second),
            cpu_one_us: median(|figures| figures.cpu_one_us),
            cpu_many_us: median(|figures| figures.cpu_many_us),
            snapshot_rate: median(|figures| figures.snapshot_rate),
            snapshot_cpu_us: median(|figures| figures.snapshot_cpu_us),
        };
        print(way, &figures);
    }
    Ok(())
}

fn print(way: &str, of: &Figures) {
    println!(
        "{way:<8} {:>8.0} {:>6.0} {:>8.0}  {:>10.0} {:>9.0}  {:>14.0} {:>14.0}",
        of.median_us, of.tail_us, of.cpu_one_us, of.per_second, of.cpu_many_us, of.snapshot_rate, of.snapshot_cpu_us
    );
}

async fn measure(way: &str) -> Outcome<Figures> {
    let folder = std::env::temp_dir().join(format!("bmi-raft-{}", std::process::id()));
    let addrs = addrs(way, &folder)?;
    let nodes = Nodes::start(way, &addrs)?;
    let peers: Vec<Peer> = addrs.iter().map(|addr| Peer::new(way, addr)).collect();
    let leader = leader(&peers).await?;
    let mut follower = peers[(leader + 1) % peers.len()].clone();
    let leader = peers[leader].clone();

    let (mut times, cpu, begin) = (Vec::new(), nodes.cpu_us()?, Instant::now());
    while begin.elapsed() < PHASE {
        let begun = Instant::now();
        leader.put(times.len() as u64 % 1000).await?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    let cpu_one_us = (nodes.cpu_us()? - cpu) / times.len() as f64;
    times.sort_by(f64::total_cmp);

    let (cpu, begin) = (nodes.cpu_us()?, Instant::now());
    let writers = (0..IN_FLIGHT).map(|key| {
        let leader = leader.clone();
        tokio::spawn(async move {
            let mut count = 0_u64;
            while begin.elapsed() < PHASE {
                leader.put(key).await?;
                count += 1;
            }
            Ok::<_, NetworkError>(count)
        })
    });
    let mut count = 0;
    for writer in writers.collect::<Vec<_>>() {
        count += writer.await??;
    }
    let (many, cpu_many_us) = (begin.elapsed(), (nodes.cpu_us()? - cpu) / count as f64);

    let bytes = Bytes::from(vec![7; SNAPSHOT]);
    follower.snapshot(bytes.clone()).await?;
    let (cpu, begin) = (nodes.cpu_us()?, Instant::now());
    for _ in 0..SNAPSHOTS {
        follower.snapshot(bytes.clone()).await?;
    }
    let mib = ((SNAPSHOTS * SNAPSHOT) >> 20) as f64;
    let figures = Figures {
        median_us: times[times.len() / 2],
        tail_us: times[times.len() * 99 / 100],
        per_second: count as f64 / many.as_secs_f64(),
        cpu_one_us,
        cpu_many_us,
        snapshot_rate: mib / begin.elapsed().as_secs_f64(),
        snapshot_cpu_us: (nodes.cpu_us()? - cpu) / mib,
    };
    drop(nodes);
    let _ = std::fs::remove_dir_all(folder);
    Ok(figures)
}

fn addrs(way: &str, folder: &std::path::Path) -> Outcome<Vec<String>> {
    if way == "bmi-shm" {
        std::fs::create_dir_all(folder)?;
        return Ok((1..=3).map(|id| format!("shm://{}/n{id}/socket", folder.display())).collect());
    }
    let listeners: Vec<_> = (0..3).map(|_| std::net::TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let scheme = if way == "tonic" { "" } else { "tcp://" };
    listeners.iter().map(|listener| Ok(format!("{scheme}{}", listener.local_addr()?))).collect()
}

/// Waits until there is a leader, and returns which peer it is.
async fn leader(peers: &[Peer]) -> Outcome<usize> {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        for (index, peer) in peers.iter().enumerate() {
            if let Ok(Answer::Done { .. }) = peer.put(0).await {
                return Ok(index);
            }
        }
        bmi::sleep(Duration::from_millis(50)).await;
    }
    Err("no leader".into())
}
