//! Types that a program or a peer must not have its way with.

use proptest::collection::vec;
use proptest::prelude::*;

use super::model::spec;
use super::{decoded, encoded};
use crate::limits::{MAX_TYPE_DEPTH, MAX_TYPE_ENTRIES, MAX_TYPE_NODES};
use crate::{Datatype, ErrorCode, FsError, Region, fuzz};

/// A type as it is on the wire, whatever its nodes say.
#[derive(serde::Serialize)]
struct Sent {
    marks: Option<(i64, i64)>,
    origin: i64,
    nodes: Vec<Node>,
    root: u64,
}

#[derive(serde::Serialize)]
enum Node {
    Loop(u64, i64, u64),
    #[expect(dead_code, reason = "keeps the number of the next one")]
    Ranges(Vec<u8>),
    List(Vec<u8>),
}

/// The part that is the node before.
const LAST: u64 = 3;

fn receive(nodes: Vec<Node>) -> Result<Datatype, postcard::Error> {
    let sent = Sent { marks: None, origin: 0, nodes, root: LAST };
    decoded(&postcard::to_extend(&sent, Vec::new()).unwrap())
}

fn list(entries: impl IntoIterator<Item = (u64, u64)>) -> Node {
    Node::List(bmi::bulk::extents::encode(Vec::new(), entries))
}

proptest! {
    #[test]
    fn mutated_types_never_panic(
        spec in spec(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let Some((datatype, _)) = spec.build() else { return Ok(()) };
        let mut bytes = encoded(&datatype);
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        fuzz::datatype(&bytes);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in vec(prop_oneof![any::<u8>(), 0..4u8], 0..40)) {
        fuzz::datatype(&bytes);
    }
}

#[test]
fn what_was_sent_is_brought_to_the_normal_form() {
    let ints = vec![Node::Loop(3, 4, 8), Node::Loop(2, 12, LAST), list([(0, LAST), (24, 2 << 1)])];
    assert_eq!(receive(ints).unwrap(), Datatype::bytes(26).unwrap());
    assert_eq!(receive(vec![Node::Loop(0, 4, 8)]).unwrap(), Datatype::bytes(0).unwrap());
    assert!(receive(vec![]).is_err(), "the root is no node");
    assert!(receive(vec![Node::Loop(2, 4, 5)]).is_err(), "a node that is not before");
    assert!(receive(vec![Node::Loop(2, 4, 1)]).is_err(), "the node itself");
}

#[test]
fn depth_nodes_and_entries_are_bounded() {
    let level = |level| Node::Loop(2, 3i64.pow(level + 1), if level == 0 { 2 } else { LAST });
    let deepest = MAX_TYPE_DEPTH as u32;
    assert!(receive((0..deepest).map(level).collect()).is_ok());
    assert!(receive((0..=deepest).map(level).collect()).is_err());
    let many = |count| (0..count).map(|n| Node::Loop(2, n as i64 + 5, 2)).collect();
    assert!(receive(many(MAX_TYPE_NODES)).is_ok());
    assert!(receive(many(MAX_TYPE_NODES + 1)).is_err());
    let irregular = |count: usize| (0..count as u64).map(|n| (n * 10 + n * n % 7, 2)).collect::<Vec<_>>();
    assert!(receive(vec![list(irregular(MAX_TYPE_ENTRIES))]).is_ok());
    assert!(receive(vec![list(irregular(MAX_TYPE_ENTRIES + 1))]).is_err());
    assert!(receive(vec![list(irregular(9000)), list(irregular(9000))]).is_err());
    // 2^60 entries in some 15 bytes.
    let mut run = bmi::bulk::extents::encode(Vec::new(), [(0, 2), (9, 2)]);
    assert_eq!(run[2], 1, "one more range of the run");
    run.splice(2..3, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    assert!(receive(vec![Node::List(run)]).is_err());
}

/// A list that is one entry of another one becomes part of it. Thousands of lists with the same one
/// would copy it thousands of times.
#[test]
fn a_list_in_thousands_of_lists_is_not_copied_into_each() {
    let long = (0..8000u64).map(|n| (n * 10 + n * n % 7, 2));
    let mut nodes = vec![list(long)];
    for n in 1..4000u64 {
        nodes.push(list([(0, n << 1 | 1), (100_000 + n, 2)]));
    }
    assert!(receive(nodes).is_err());
}

#[test]
fn numbers_that_overflow_are_refused() {
    let int = &Datatype::INT32;
    let far = &Datatype::resized(0, i64::MAX / 2, int).unwrap();
    let calls: [(&str, Result<Datatype, FsError>); 14] = [
        ("bytes", Datatype::bytes(u64::MAX)),
        ("contiguous", Datatype::contiguous(u64::MAX, int)),
        ("contiguous, far", Datatype::contiguous(3, far)),
        ("vector", Datatype::vector(2, 1, i64::MAX, far)),
        ("vector, rounds", Datatype::vector(u64::MAX, 1, i64::MIN, int)),
        ("vector, blocks", Datatype::vector(1 << 40, 1 << 40, 1 << 40, int)),
        ("hvector", Datatype::hvector(2, 1, i64::MIN, int)),
        ("indexed", Datatype::indexed(&[(1, i64::MAX)], far)),
        ("hindexed", Datatype::hindexed(&[(1, i64::MIN)], int)),
        ("hindexed, apart", Datatype::hindexed(&[(1, i64::MAX / 2 - 4), (1, -i64::MAX / 2), (1, 0)], far)),
        ("structure", Datatype::structure(&[(1 << 60, 0, int), (1 << 60, 0, int), (1 << 60, 5, int)])),
        ("resized, low", Datatype::resized(i64::MIN, 0, int)),
        ("resized, high", Datatype::resized(i64::MAX / 2, 1, int)),
        ("regions", Datatype::from_regions(&[Region::new(u64::MAX, u64::MAX)])),
    ];
    for (name, result) in calls {
        assert_eq!(result.map_err(|error| error.code), Err(ErrorCode::TooLarge), "{name}");
    }
}
