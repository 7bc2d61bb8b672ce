//! The effect of each fault of a plan on the endpoints: on a connection, on a node and its disk,
//! and what remains of a fault when others begin or the plan ends.

mod connection;
mod node;
mod overlap;

use bmi_core::{Config, Endpoint, Options, Peer};
use bmi_sim::{Node, World};

/// Two nodes with a connection from the first to the second.
struct Pair {
    world: World,
    nodes: [Node; 2],
    ends: [Endpoint; 2],
    /// The second node.
    peer: Peer,
}

fn pair() -> Pair {
    let world = World::new(1);
    let nodes = [world.node("a"), world.node("b")];
    let ends = [nodes[0].endpoint(Config::default()).unwrap(), nodes[1].endpoint(Config::default()).unwrap()];
    let addr = ends[1].listen(&nodes[1].addr(1)).unwrap();
    let peer = world.block_on(ends[0].connect(&addr, Options::default())).unwrap();
    Pair { world, nodes, ends, peer }
}

fn names() -> (String, String) {
    ("a".to_owned(), "b".to_owned())
}
