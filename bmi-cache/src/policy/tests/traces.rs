//! Traces, and a simulator of a cache, to measure hit rates of the policies.
//!
//! **Why.** A policy is as good as its hit rate, and that can be had without any I/O.
//!
//! **Traces.** A trace is a list of names of units of one size. Each is made from a seed, so it is
//! the same in every run. Let C be the units that the cache can hold, and n all units.
//!
//! | trace | what |
//! |---|---|
//! | `zipf s` | the i-th most frequent of n units has the weight i^-s |
//! | `zipf, scans` | after 10 C requests of `zipf 0.9`, 2 C units that are never used again |
//! | `zipf, scans by pieces` | the same, and each of these units is used 4 times in a row |
//! | `zipf, long scans` | the same as `zipf, scans`, with 10 C units |
//! | `loop x` | x C units, in turn |
//! | `zipf and loop` | every other request, by chance, is of a loop of C units |
//! | `zipf and readers` | every other request is of one of 32 readers, each of which reads units of its own, 16 times each |
//! | `zipf, moving` | `zipf 0.9`; all ranks are dealt anew each 5 n requests |
//! | `zipf, drifting` | `zipf 0.9`; all units move one rank down each 10 requests |
//! | `zipf, then loop x` | in turn 20 C requests of `zipf 0.9`, and 50 C of `loop x`; each turn has units of its own |
//! | `short lives` | C/2 units, used by chance; each is replaced after 4 uses |

#![expect(clippy::disallowed_types, reason = "a map whose hasher is the same in every run")]

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

use super::super::ghosts::KeyHasher;
use super::super::{Policies, Policy, Search};

/// The size of all units of the simulator, in bytes.
const UNIT_BYTES: u32 = 64 << 10;

/// Returns which part of the requests of a trace find their unit in a cache of `capacity` units.
pub(super) fn hits(policy: Policy, capacity: usize, trace: &[u64]) -> f64 {
    let mut policies = Policies::new(policy, capacity as u64 * u64::from(UNIT_BYTES));
    let mut resident: HashMap<u64, usize, BuildHasherDefault<KeyHasher>> = HashMap::default();
    let mut names = Vec::new();
    let mut hits = 0_u64;
    for name in trace {
        if let Some(id) = resident.get(name) {
            policies.touch(*id, Policy::Default);
            hits += 1;
            continue;
        }
        let id = if names.len() < capacity {
            names.push(*name);
            names.len() - 1
        } else {
            let Search::Found(victim) = policies.search(0, &mut |_| true) else { unreachable!("each unit is free") };
            policies.evicted(victim);
            resident.remove(&std::mem::replace(&mut names[victim], *name));
            victim
        };
        resident.insert(*name, id);
        policies.insert(id, mixed(*name), UNIT_BYTES, Policy::Default);
    }
    hits as f64 / trace.len().max(1) as f64
}

/// A named list of units.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    /// What the table of the module calls it.
    pub(super) name: &'static str,
    /// The unit of each request.
    pub(super) units: Vec<u64>,
}

/// Returns all traces, for a cache of `capacity` out of `objects` units. Each has at least
/// `requests` requests, and few more.
pub(super) fn traces(objects: usize, capacity: usize, requests: usize) -> Vec<Trace> {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(1));
    let zipf = |skew| Zipf::new(objects, skew);
    let mut traces = Vec::new();
    let mut add = |name, units| traces.push(Trace { name, units });
    for (name, skew) in [("zipf 0.6", 0.6), ("zipf 0.8", 0.8), ("zipf 1.0", 1.0), ("zipf 1.2", 1.2)] {
        let zipf = zipf(skew);
        add(name, (0..requests).map(|_| zipf.rank(&mut draw)).collect());
    }
    let zipf = zipf(0.9);
    add("zipf, scans", scans(&zipf, &mut draw, requests, capacity, (2, 1)));
    add("zipf, scans by pieces", scans(&zipf, &mut draw, requests, capacity, (2, 4)));
    add("zipf, long scans", scans(&zipf, &mut draw, requests, capacity, (10, 1)));
    for (name, percent) in [("loop 1.05", 105), ("loop 1.25", 125), ("loop 2", 200)] {
        let units = (capacity * percent / 100) as u64;
        add(name, (0..requests as u64).map(|at| at % units).collect());
    }
    let mut position = 0;
    let mut next = |parts: u64| {
        position += 1;
        OTHERS + position % parts
    };
    let half = |draw: &mut Draw| draw.next().is_multiple_of(2);
    let units = (0..requests).map(|_| if half(&mut draw) { zipf.rank(&mut draw) } else { next(capacity as u64) });
    add("zipf and loop", units.collect());
    add("zipf and readers", readers(&zipf, &mut draw, requests));
    let moved = |at: usize, rank: u64| mixed(rank + ((at / (5 * objects)) as u64) * OTHERS);
    add("zipf, moving", (0..requests).map(|at| moved(at, zipf.rank(&mut draw))).collect());
    add("zipf, drifting", (0..requests).map(|at| zipf.rank(&mut draw) + (at / 10) as u64).collect());
    for (name, percent) in [("zipf, then loop 1.2", 120), ("zipf, then loop 3", 300)] {
        add(name, phases(&zipf, &mut draw, requests, capacity, (capacity * percent / 100) as u64));
    }
    add("short lives", short_lives(&mut draw, requests, capacity / 2));
    traces
}

/// The first name of units that are not of a Zipf distribution.
const OTHERS: u64 = 1 << 40;

/// `scan` is the units of a scan in parts of the capacity, and how many times each is used.
fn scans(zipf: &Zipf, draw: &mut Draw, requests: usize, capacity: usize, scan: (usize, usize)) -> Vec<u64> {
    let mut units = Vec::new();
    let mut next = OTHERS;
    while units.len() < requests {
        units.extend((0..10 * capacity).map(|_| zipf.rank(draw)));
        for _ in 0..scan.0 * capacity {
            units.extend(std::iter::repeat_n(next, scan.1));
            next += 1;
        }
    }
    units
}

fn readers(zipf: &Zipf, draw: &mut Draw, requests: usize) -> Vec<u64> {
    const READERS: u64 = 32;
    const PIECES: u64 = 16;
    let read = |at: u64| OTHERS * (1 + at % READERS) + at / READERS / PIECES;
    (0..requests as u64).map(|at| if at.is_multiple_of(2) { zipf.rank(draw) } else { read(at / 2) }).collect()
}

fn phases(zipf: &Zipf, draw: &mut Draw, requests: usize, capacity: usize, turn: u64) -> Vec<u64> {
    let mut units = Vec::new();
    let mut first = 0;
    while units.len() < requests {
        units.extend((0..20 * capacity).map(|_| first + zipf.rank(draw)));
        units.extend((0..50 * capacity as u64).map(|at| first + OTHERS + at % turn));
        first += 2 * OTHERS;
    }
    units
}

fn short_lives(draw: &mut Draw, requests: usize, alive: usize) -> Vec<u64> {
    const USES: u64 = 4;
    let mut next = 0;
    let mut units = vec![(0, 0); alive];
    let mut used = |unit: &mut (u64, u64)| {
        if unit.1 == 0 {
            *unit = (next, USES);
            next += 1;
        }
        unit.1 -= 1;
        unit.0
    };
    (0..requests).map(|_| used(&mut units[draw.next() as usize % alive])).collect()
}

/// A random sequence from a seed.
struct Draw(ChaCha8Rng);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number from 0 to 1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The step and the mix of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a hash of a word,
/// different for different words.
fn mixed(word: u64) -> u64 {
    let word = word.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// A Zipf distribution: the sums of the weights of all ranks up to each one.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(objects: usize, skew: f64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=objects).map(|rank| {
            sum += (rank as f64).powf(-skew);
            sum
        });
        Zipf(sums.collect())
    }

    fn rank(&self, draw: &mut Draw) -> u64 {
        let at = draw.part() * self.0.last().copied().unwrap_or_default();
        self.0.partition_point(|sum| *sum < at) as u64
    }
}
