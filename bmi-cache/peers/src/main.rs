//! Prints the hit rates of the policies of `bmi-cache` beside those of other caches.
//!
//! **Why.** Whether a policy is good can only be said beside others. These caches are in wide use,
//! and each has a policy that is known to be good.
//!
//! **Rules.** All caches see the same traces, those of `bmi_cache::bench`. They have room for the
//! same number of units, in one shard. Each is used in the same way: look a unit up, and insert it
//! if it is not there. Work that a cache leaves for later is done before the next request.
//!
//! The exit status is 1 if `ScanResistant` is more than [`MOST_BEHIND`] percentage points behind
//! the best of the other caches, on one of the traces that [`REQUIRED`] names.

mod s3_fifo;

use std::process::ExitCode;

use bmi_cache::{Policy, bench};
use foyer_memory::{EvictionConfig, LfuConfig, S3FifoConfig};

const OBJECTS: usize = 20_000;
const REQUESTS: usize = 1_000_000;
/// Percentage points.
const MOST_BEHIND: f64 = 3.0;
/// Traces whose name begins like this count for the exit status. The others are there to show where
/// the limits are.
const REQUIRED: [&str; 4] = ["zipf 0", "zipf 1", "zipf, ", "loop "];

/// A cache as a trace sees it. Returns true if the unit was there, and inserts it otherwise.
type Cache = Box<dyn FnMut(u64) -> bool>;

/// The name of a column, and how to make a cache for a number of units.
type Peer = (&'static str, fn(usize) -> Cache);

/// The other caches.
const PEERS: [Peer; 6] = [
    ("S3-FIFO", s3_fifo),
    ("moka", moka),
    ("quick_cache", quick_cache),
    ("foyer lfu", |units| foyer(units, LfuConfig::default().into())),
    ("foyer s3fifo", |units| foyer(units, S3FifoConfig::default().into())),
    ("foyer lru", |units| foyer(units, foyer_memory::LruConfig::default().into())),
];

fn s3_fifo(units: usize) -> Cache {
    let mut cache = s3_fifo::S3Fifo::new(units);
    Box::new(move |unit| cache.request(unit))
}

fn moka(units: usize) -> Cache {
    let cache = moka::sync::Cache::new(units as u64);
    Box::new(move |unit| {
        let hit = cache.get(&unit).is_some();
        if !hit {
            cache.insert(unit, ());
        }
        cache.run_pending_tasks();
        hit
    })
}

fn quick_cache(units: usize) -> Cache {
    let mut cache = quick_cache::unsync::Cache::new(units);
    Box::new(move |unit| {
        let hit = cache.get(&unit).is_some();
        if !hit {
            cache.insert(unit, ());
        }
        hit
    })
}

fn foyer(units: usize, policy: EvictionConfig) -> Cache {
    let builder = foyer_memory::CacheBuilder::new(units).with_shards(1).with_eviction_config(policy);
    let cache: foyer_memory::Cache<u64, ()> = builder.build();
    Box::new(move |unit| {
        let hit = cache.get(&unit).is_some();
        if !hit {
            cache.insert(unit, ());
        }
        hit
    })
}

fn percent(hits: usize, requests: usize) -> f64 {
    100.0 * hits as f64 / requests as f64
}

fn main() -> ExitCode {
    let names = PEERS.map(|(name, _)| format!(" {name} |")).concat();
    println!("| trace | of all units | ours | our Lru |{names} ours and the best |");
    println!("|---|--:|--:|--:|{}--:|", "--:|".repeat(PEERS.len()));
    let mut worst: f64 = 0.0;
    for part in [1, 10] {
        let capacity = OBJECTS * part / 100;
        for trace in bench::traces(OBJECTS, capacity, REQUESTS) {
            let ours = |policy| 100.0 * bench::hits(policy, capacity, &trace.units);
            let (resistant, lru) = (ours(Policy::ScanResistant), ours(Policy::Lru));
            let peers = PEERS.map(|(_, make)| {
                let mut cache = make(capacity);
                percent(trace.units.iter().filter(|unit| cache(**unit)).count(), trace.units.len())
            });
            let best = peers.iter().copied().fold(lru, f64::max);
            let rates = peers.map(|rate| format!(" {rate:.1} |")).concat();
            let ahead = resistant - best;
            println!("| {} | {part} % | {resistant:.1} | {lru:.1} |{rates} {ahead:+.1} |", trace.name);
            if REQUIRED.iter().any(|start| trace.name.starts_with(start)) {
                worst = worst.min(ahead);
            }
        }
    }
    println!("\nat worst: {worst:+.1} points");
    ExitCode::from(u8::from(worst < -MOST_BEHIND))
}
