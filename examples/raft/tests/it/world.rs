//! In simulated worlds, under faults: nothing that was acknowledged is lost, and no two nodes apply
//! different entries at the same place of the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bmi_raft_example::Put;
use bmi_raft_example::store::Bug;
use bmi_sim::check::{self, Case, Failure, Report};
use bmi_sim::faults::{Kind, Swarm};
use openraft::LogId;

use super::*;

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const TESTER: &str = "test";
const SEEDS: u64 = 40;
/// The time in which faults begin, and the longest one. Several elections fit into it.
const FAULTS: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_millis(600);
/// Writes during that time, and the longest pause between two.
const WRITES: u64 = 100;
const LONGEST_PAUSE_MS: u64 = 50;
/// After the faults, a node has all entries within this time.
const CATCHES_UP: Duration = Duration::from_secs(10);

/// What was applied at each place of the log, by whichever node came first.
#[derive(Clone, Default)]
struct History(Arc<Mutex<BTreeMap<u64, Applied>>>);

type Applied = (LogId<u64>, Put);

impl History {
    fn observer(&self) -> Observer {
        let history = self.0.clone();
        Arc::new(move |at, put| {
            let mut history = history.lock().expect("no panic before");
            let (first, known) = history.entry(at.index).or_insert_with(|| (at, put.clone()));
            assert_eq!((&*first, &*known), (&at, put), "two nodes apply different entries at one place");
        })
    }
}

/// Runs a cluster through the faults of a world. Counts the snapshots that nodes take of others.
async fn cluster(world: Case, bug: Bug, installed: &AtomicU64) -> Result<(), Error> {
    let (history, nodes) = (History::default(), Arc::<Mutex<BTreeMap<u64, Node>>>::default());
    let members = members(NODES.map(|name| format!("tcp://{name}:7001")));
    for (id, name) in (1..).zip(NODES) {
        let (disk, members, history, nodes) = (Disk::with(bug), members.clone(), history.clone(), nodes.clone());
        world.boot(name, move || {
            let (disk, members, observer, nodes) = (disk.clone(), members.clone(), history.observer(), nodes.clone());
            async move {
                let running = Running::start(id, &members, disk, Some(observer)).await.expect("a node that is up");
                nodes.lock().expect("no panic before").insert(id, running.node.clone());
                network::serve(&running.server, running.node).await
            }
        });
    }
    let (store, mut random) = (client(&members), world.rng(1));
    for key in 0..WRITES {
        store.put(key, value(key)).await?;
        world.note(format!("acknowledged {key}"));
        assert_eq!(store.get(key).await?, Some(value(key)), "what a read returns after the write");
        bmi::sleep(Duration::from_millis(random.below(LONGEST_PAUSE_MS))).await;
    }
    world.calm().await;
    store.put(WRITES, value(WRITES)).await?;
    assert_eq!(store.get(WRITES).await?, Some(value(WRITES)));
    let all: BTreeMap<u64, Bytes> = (0..=WRITES).map(|key| (key, value(key))).collect();
    let nodes = nodes.lock().expect("no panic before").clone();
    for (id, node) in nodes {
        let has_last = async {
            while node.state.value(WRITES).is_none() {
                bmi::sleep(Duration::from_millis(20)).await;
            }
        };
        bmi::timeout(CATCHES_UP, has_last).await?;
        let has = node.state.values();
        let lost: Vec<&u64> = all.keys().filter(|key| has.get(key) != all.get(key)).collect();
        assert!(lost.is_empty(), "node {id} lost acknowledged writes {lost:?}");
        installed.fetch_add(node.state.installed(), Ordering::Relaxed);
    }
    // A cluster never comes to rest.
    NODES.iter().for_each(|name| world.node(name).kill());
    Ok(())
}

fn sweep(name: &str, bug: Bug, installed: &AtomicU64) -> Result<Report, Box<Failure>> {
    let names = [TESTER, NODES[0], NODES[1], NODES[2]];
    let faults = Swarm::all().within(FAULTS).lasting(LONGEST).sparing(Kind::Crash, TESTER);
    // To shrink a failure takes a hundred runs.
    let shrink = if bug == Bug::None { 200 } else { 0 };
    let sweep = check::sweep(name).named(&names).seeds(0..SEEDS).twice_every(4).shrink(shrink).faults(faults);
    sweep.try_run(|world| async move {
        let tester = world.node(TESTER);
        tester.run(cluster(world, bug, installed)).await
    })
}

#[test]
fn nothing_acknowledged_is_lost_whatever_fails() {
    let installed = AtomicU64::new(0);
    let report = sweep("raft", Bug::None, &installed).unwrap_or_else(|failure| panic!("{failure}"));
    let installed = installed.into_inner();
    println!("{report}; {installed} snapshots were taken");
    // There are fewer seeds if BMI_SEED or BMI_SEEDS is set.
    assert!(report.seeds < SEEDS || report.faults > 500 && installed > 5, "{report}; {installed} snapshots");
}

/// Returns what is found with a bug.
fn found(bug: Bug) -> String {
    sweep("raft-with-a-bug", bug, &AtomicU64::new(0)).expect_err("the bug").to_string()
}

/// Openraft's own assertions find it: two leaders have had the same term.
#[test]
fn a_vote_that_a_restart_forgets_is_found() {
    let failure = found(Bug::VoteInMemory);
    assert!(failure.contains("openraft"), "{failure}");
}

/// As above: a follower lacks what it has acknowledged.
#[test]
fn an_entry_that_is_acknowledged_before_it_is_durable_is_found() {
    let failure = found(Bug::EarlyAcknowledgement);
    assert!(failure.contains("openraft"), "{failure}");
}

/// Openraft cannot see it.
#[test]
fn a_snapshot_that_lacks_a_key_is_found() {
    let failure = found(Bug::ShortSnapshot);
    assert!(failure.contains("lost acknowledged writes"), "{failure}");
}
