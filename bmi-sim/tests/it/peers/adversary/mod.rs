//! An adversary among honest nodes: it hears all that they say, and says it again over connections
//! of its own, in every way.
//!
//! **Invariants**, which are checked for each seed
//! 1. Nothing panics. Every operation of the honest nodes succeeds, with the right bytes in the
//!    right place.
//! 2. Who is not let in is not connected.
//! 3. No secret of others comes to the adversary.
//! 4. Afterwards the honest nodes hold what they held before, and their connections work.
//! 5. The same seed is the same run.
//!
//! `BMI_SEEDS=0..1000` runs more of it.

mod honest;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bmi_core::{PeerIdentity, Time};
use bmi_sim::adversary::{Attack, Tally, Trick, Verb, hello};
use bmi_sim::check::seeds;
use bmi_sim::{SimConfig, World};
use futures_util::future::join;

use self::honest::{OWNERS, Town};

/// How long an attack lasts.
const ATTACK: Duration = Duration::from_millis(20);
/// How long the honest nodes go on afterwards.
const AFTERWARDS: Duration = Duration::from_millis(5);
/// Longer than honest nodes wait for memory that a peer does not give back.
const SETTLED: Duration = Duration::from_secs(3);
/// Registered buffers that an endpoint makes when it first needs so many, and keeps.
const POOLED: usize = 32;
/// Bytes that are enough to know a secret by.
const KNOWN: usize = 32;

fn world(seed: u64) -> World {
    let time_limit = Duration::from_secs(60);
    World::with(SimConfig { jitter_ns: 5_000, time_limit, ..SimConfig::drawn(seed) })
}

fn eve() -> PeerIdentity {
    PeerIdentity::named(["user:eve"])
}

/// What a run has come to.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    tally: Tally,
    asked: u64,
    violations: u64,
    digest: u64,
    events: u64,
}

fn run(seed: u64) -> Outcome {
    let world = world(seed);
    let eve = world.adversary("eve", eve()).unwrap();
    let town = Town::new(&world, seed);
    let peers = world.block_on(town.connect());
    world.block_on(town.live(&peers, Time::ZERO));
    world.run_for(SETTLED);
    let (idle, registered) = (town.held(), town.registrations());
    let until = world.now() + ATTACK;
    let attack = Attack::on(town.addrs()).every(Duration::from_micros(10));
    let (tally, ()) = world.block_on(join(eve.run(&attack, until), town.live(&peers, until)));
    world.run_for(SETTLED);
    for identity in town.newcomers(1) {
        assert!(OWNERS.iter().any(|owner| identity.is_named(owner)), "seed {seed}: {identity} is in the vault");
    }
    (0..4).for_each(|at| drop(town.newcomers(at)));
    assert_eq!(town.held(), idle, "seed {seed}");
    let more = town.registrations().into_iter().zip(registered).map(|(after, before)| after - before);
    assert!(more.max() <= Some(POOLED), "seed {seed}: {:?}", town.registrations());
    // More messages than a window of credits has.
    world.block_on(town.live(&peers, world.now() + AFTERWARDS));
    let secrets: Vec<Vec<u8>> = town.secrets().collect();
    let known: Vec<&[u8]> =
        secrets.iter().flat_map(|secret| [&secret[..KNOWN], &secret[secret.len() - KNOWN..]]).collect();
    let learned = eve.learned(&known);
    assert!(learned.is_empty(), "seed {seed}: {learned:?}");
    let (asked, violations) = (town.asked.get(), town.violations());
    Outcome { tally, asked, violations, digest: world.digest(), events: world.events() }
}

#[test]
fn an_adversary_harms_and_learns_nothing() {
    let (mut tricks, mut asked, mut violations) = (BTreeMap::<Trick, u64>::new(), 0, 0);
    let range = seeds(0..10);
    for seed in range.clone() {
        println!("BMI_SEED={seed} cargo test -p bmi-sim --test it an_adversary");
        let outcome = run(seed);
        let tally = outcome.tally;
        assert!(tally.refused["vault"] > 0 && !tally.lines.contains_key("vault"), "seed {seed}: {tally:?}");
        tally.tricks.iter().for_each(|(trick, times)| *tricks.entry(*trick).or_default() += times);
        (asked, violations) = (asked + outcome.asked, violations + outcome.violations);
    }
    let runs = range.end - range.start;
    println!("{runs} runs: {tricks:?}, {asked} requests for secrets of others, {violations} violations");
    assert!(Trick::ALL.iter().all(|trick| tricks.get(trick).is_some_and(|times| *times > runs)), "{tricks:?}");
    assert!(asked > runs && violations > runs, "{asked} requests for secrets of others, {violations} violations");
}

#[test]
fn the_same_attack_is_the_same_run() {
    for seed in 0..2 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// What the others do is the same whether somebody listens or not.
#[test]
fn listening_changes_nothing() {
    let run = |listens: bool| {
        let world = world(3);
        // Its place among the nodes is taken in either case.
        let node = world.node("eve");
        let eve = listens.then(|| world.adversary("eve", eve()).unwrap());
        let transport = (!listens).then(|| node.transport().unwrap());
        let town = Town::new(&world, 3);
        let peers = world.block_on(town.connect());
        world.block_on(town.live(&peers, Time::from_nanos(5_000_000)));
        drop(transport);
        (world.digest(), world.events(), eve.map_or(0, |eve| eve.heard().len()))
    };
    let (heard, not) = (run(true), run(false));
    assert_eq!((heard.0, heard.1), (not.0, not.1));
    assert!(heard.2 > 100, "{} messages", heard.2);
}

#[test]
fn a_request_in_another_name_gets_that_name_s_answer() {
    let world = world(0);
    let eve = world.adversary("eve", eve()).unwrap();
    let town = Town::new(&world, 0);
    let peers = world.block_on(town.connect());
    world.block_on(town.live(&peers, Time::from_nanos(10_000_000)));
    let heard = eve.heard();
    let requests: Vec<_> =
        heard.iter().filter(|heard| (&*heard.from, &*heard.to) == ("alice", "bank") && heard.is_request()).collect();
    // Inline, in fast-RDMA slots, and with the data in the client's memory.
    let lens: BTreeSet<_> = requests.iter().map(|request| request.bytes.len()).collect();
    assert!(lens.len() > 3 && requests.iter().any(|request| matches!(request.verb, Verb::Write(_))), "{lens:?}");
    let said = heard.iter().find(|heard| heard.verb == Verb::Connect).unwrap();
    let line = world.block_on(eve.connect(&town.addrs()[0], &said.bytes)).unwrap();
    world.run_for(SETTLED);
    for (number, request) in requests.into_iter().enumerate() {
        // Each secret is put, and then asked for.
        let answer = [&b"kept"[..], b"not yours"][number % 2];
        let before = line.received().len();
        line.replay(request).unwrap();
        world.run_for(SETTLED);
        let came = line.received();
        let is_there = |bytes: &[u8]| bytes.windows(answer.len()).any(|part| part == answer);
        let said = came[..].iter().rev().take(came.len() - before);
        assert!(said.clone().any(|came| came.from == "bank" && is_there(&came.bytes)), "request {number}: {came:?}");
    }
    assert!(line.is_open());
}

#[test]
fn who_is_not_let_in_is_told_why() {
    let world = world(0);
    let eve = world.adversary("eve", eve()).unwrap();
    let town = Town::new(&world, 0);
    assert!(world.block_on(eve.connect(&town.addrs()[1], &hello())).is_err());
    let why = String::from_utf8_lossy(&eve.received()[0].bytes).into_owned();
    assert!(why.contains("user:eve owns nothing here"), "{why}");
}
