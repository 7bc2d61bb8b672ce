//! The encoding of a type: its normal form, a few bytes for each node.
//!
//! **Invariants**
//! 1. Decoding builds the type as a program would, so all checks are those of [`Builder`], and the
//!    result is in normal form whatever was sent. What it costs is bounded by the limits.
//! 2. A type comes back equal. The order of the nodes is that of the table.
//!
//! **Layout**, in postcard. All numbers are varints. A part is a number: twice its length for
//! bytes, or twice the distance back to its node and 1. The node behind the last one would be the
//! root's parent. Lists are ranges as encoded by [`bmi::bulk::extents`], so that regular ones are
//! short:
//!
//! ```text
//!   type   marks [lb, ub]   origin   number of nodes, nodes   root: part
//!   node   0  count  stride  part
//!          1  length  (displacement, bytes) …          a list with bytes only
//!          2  length  (displacement, part) …           another list
//! ```

use std::borrow::Cow;

use bmi::bulk::extents;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::builder::{Body, Builder};
use super::table::{Part, Shape};
use super::{Datatype, invalid, too_large};
use crate::error::FsError;
use crate::limits::{self, MAX_DISPLACEMENT, MAX_TYPE_ENTRIES, MAX_TYPE_NODES};

#[derive(Serialize, Deserialize)]
struct WireType<'a> {
    marks: Option<(i64, i64)>,
    origin: i64,
    #[serde(borrow, deserialize_with = "limits::bounded::<MAX_TYPE_NODES, _, _>")]
    nodes: Vec<WireNode<'a>>,
    root: u64,
}

#[derive(Serialize, Deserialize)]
enum WireNode<'a> {
    Loop { count: u64, stride: i64, part: u64 },
    Ranges(#[serde(borrow, serialize_with = "as_bytes")] Cow<'a, [u8]>),
    List(#[serde(borrow, serialize_with = "as_bytes")] Cow<'a, [u8]>),
}

fn as_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// Returns the number of a part of the node `at`.
fn number(part: Part, at: usize) -> u64 {
    match part {
        Part::Bytes(len) => len << 1,
        Part::Node(id) => (at as u64 - u64::from(id)) << 1 | 1,
    }
}

/// Returns the part with a number, of the node behind `built`.
fn part(number: u64, built: &[Body]) -> Result<Body, FsError> {
    let value = number >> 1;
    if number & 1 == 0 {
        let place = (value > 0).then_some((0, Part::Bytes(value)));
        return if value > MAX_DISPLACEMENT as u64 {
            Err(too_large("bytes in a type"))
        } else {
            Ok(Body { marks: None, place })
        };
    }
    let back = usize::try_from(value).ok().filter(|back| *back > 0);
    let node = back.and_then(|back| built.len().checked_sub(back)).map(|id| built[id]);
    node.ok_or_else(|| invalid("a type with a node that is not before its parent"))
}

impl Serialize for Datatype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let table = self.table();
        let mut nodes = Vec::with_capacity(table.nodes.len());
        for (at, node) in table.nodes.iter().enumerate() {
            nodes.push(match node.shape {
                Shape::Loop { count, stride, part } => WireNode::Loop { count, stride, part: number(part, at) },
                Shape::List { first, count } => {
                    let entries = table.list(first, count);
                    let is_flat = entries.iter().all(|entry| matches!(entry.part, Part::Bytes(_)));
                    let numbers = entries.iter().map(|entry| {
                        let number = number(entry.part, at);
                        (entry.displacement as u64, if is_flat { number >> 1 } else { number })
                    });
                    let bytes = Cow::Owned(extents::encode(Vec::new(), numbers));
                    if is_flat { WireNode::Ranges(bytes) } else { WireNode::List(bytes) }
                }
            });
        }
        let root = number(self.root, table.nodes.len());
        WireType { marks: self.marks, origin: self.origin, nodes, root }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Datatype {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Datatype, D::Error> {
        decode(&WireType::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

fn decode(wire: &WireType<'_>) -> Result<Datatype, FsError> {
    let mut builder = Builder::of_peer();
    let mut built = Vec::with_capacity(wire.nodes.len());
    let mut left = MAX_TYPE_ENTRIES;
    for node in &wire.nodes {
        let body = match node {
            WireNode::Loop { count, stride, part: number } => {
                builder.repeat(part(*number, &built)?, *count, (*stride).into())?
            }
            WireNode::Ranges(bytes) | WireNode::List(bytes) => {
                let is_flat = matches!(node, WireNode::Ranges(_));
                let mut entries = Vec::new();
                extents::decode(bytes, left, |entry| entries.push(entry))?;
                left -= entries.len();
                builder.list(entries.into_iter().map(|(at, number)| {
                    // Too many bytes stay too many.
                    let number = if is_flat { number.min(u64::MAX >> 1) << 1 } else { number };
                    Ok((at as i64, part(number, &built)?))
                }))?
            }
        };
        built.push(body);
    }
    let root = builder.list([Ok((wire.origin, part(wire.root, &built)?))].into_iter())?;
    let datatype = builder.finish(root)?;
    let Some((lb, ub)) = wire.marks else { return Ok(datatype) };
    Datatype::resized(lb, ub.checked_sub(lb).ok_or_else(|| too_large("the extent of a type"))?, &datatype)
}
