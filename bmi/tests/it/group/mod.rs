//! Groups of processes.

mod failures;
mod hostile;
mod lanes;
mod meetings;
mod operations;
mod outside;

use std::time::Duration;

use bmi::group::{Group, GroupError, GroupOptions, Groups};
use bmi::{Addr, Config, MemList};
use bmi_sim::{Node, Rng, SimConfig, World};
use futures_util::future::join_all;

/// The limit of operations in these tests.
const LIMIT: Duration = Duration::from_secs(4);

fn options() -> GroupOptions {
    GroupOptions::default().limit(LIMIT)
}

/// A world with a node for each rank.
struct Cluster {
    world: World,
    nodes: Vec<Node>,
}

impl Cluster {
    fn new(seed: u64, size: u32) -> Cluster {
        let world = World::with(SimConfig { jitter_ns: 20_000, ..SimConfig::drawn(seed) });
        let nodes = (0..size).map(|rank| world.node(&format!("n{rank}"))).collect();
        Cluster { world, nodes }
    }

    /// The place of the meeting.
    fn place(&self) -> Addr {
        self.nodes[0].addr(1)
    }

    /// Runs a program at each node. Returns the results of those that were not killed.
    fn run<F, T>(&self, member: impl Fn(u32, Node) -> F) -> Vec<Option<T>>
    where
        F: Future<Output = T> + 'static,
        T: 'static,
    {
        let running = (0u32..).zip(&self.nodes).map(|(rank, node)| node.spawn(member(rank, node.clone())));
        let running: Vec<_> = running.collect();
        self.world.block_on(join_all(running)).into_iter().map(Result::ok).collect()
    }

    /// Meets at each node, runs a program there, and leaves.
    fn run_group<F, T>(&self, member: impl Fn(Group, Node, Rng) -> F + Clone + 'static) -> Vec<T>
    where
        F: Future<Output = (Group, T)> + 'static,
        T: 'static,
    {
        let (place, size) = (self.place(), self.nodes.len() as u32);
        let results = self.run(|rank, node| {
            let (place, member) = (place.clone(), member.clone());
            async move {
                let group = groups(&node).meet(&place, rank, size, options()).await.expect("they meet");
                assert_eq!((group.rank(), group.size()), (rank, size));
                let (group, result) = member(group, node, Rng::new(u64::from(rank) + 7)).await;
                group.leave().await.expect("they leave");
                result
            }
        });
        // Nothing is left of the group.
        self.world.run_for(2 * LIMIT);
        assert_eq!(self.world.leaks(), Vec::<String>::new());
        results.into_iter().map(|result| result.expect("nobody was killed")).collect()
    }
}

/// An endpoint with groups.
fn groups(node: &Node) -> Groups {
    let endpoint = node.endpoint(Config::named("member")).expect("the node is up");
    let groups = Groups::new(&endpoint);
    groups.listen(&node.addr(1)).expect("the port is free");
    groups
}

/// The part that `from` sends to `to` in a round, as long as the seed says.
fn part(seed: u64, from: u32, to: u32) -> Vec<u8> {
    let mut rng = Rng::new(seed << 20 | u64::from(from) << 10 | u64::from(to));
    let len = match rng.below(6) {
        0 => 0,
        1 => rng.below(100),
        2 => 1020 + rng.below(10),
        3 => rng.below(9000),
        4 => rng.below(70_000),
        _ => rng.below(300_000),
    };
    (0..len).map(|at| (at ^ seed ^ u64::from(from) ^ u64::from(to) << 3) as u8).collect()
}

fn parts(seed: u64, from: u32, size: u32) -> Vec<MemList> {
    (0..size).map(|to| part(seed, from, to).into()).collect()
}

/// The rank that an error names.
fn named(error: &GroupError) -> Option<u32> {
    match error {
        GroupError::Member { rank, .. } => Some(*rank),
        _ => None,
    }
}
