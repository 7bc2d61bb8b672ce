//! The node table of a type: what is on the stack of a cursor points into it.
//!
//! **Invariants**
//! 1. A node's children come before it. So a walk from any node ends.
//! 2. The first byte of a node, in stream order, is at displacement 0 of the node. So the place of
//!    an instance of a node is always the place of one of its bytes. If all bytes of a type have
//!    valid offsets, no sum of displacements on the way to a byte overflows.
//! 3. Every part has at least one byte. A loop has at least two rounds, and a list two entries.

/// What a loop repeats, and what an entry of a list has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// So many contiguous bytes.
    Bytes(u64),
    /// A node, by its number.
    Node(u32),
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `count` instances of a part, each `stride` bytes after the one before.
    Loop { count: u64, stride: i64, part: Part },
    /// `count` entries of the table, beginning with `first`.
    List { first: u32, count: u32 },
}

/// An entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where its first byte is, relative to the first byte of the list.
    pub(super) displacement: i64,
    /// Number of stream bytes of the list that are before this entry.
    pub(super) before: u64,
    pub(super) part: Part,
}

/// What is known about the bytes of a part. Displacements are relative to its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Info {
    /// Number of bytes.
    pub(super) size: u64,
    /// The lowest displacement of a byte, and the first one above the highest.
    pub(super) low: i64,
    pub(super) high: i64,
    /// The end of the last piece in stream order.
    pub(super) tail: i64,
    /// Number of contiguous pieces. A piece continues where the one before it ends.
    pub(super) pieces: u64,
    /// Number of frames that a cursor needs below a parent.
    pub(super) depth: usize,
    /// Each byte is behind all bytes before it in the stream.
    pub(super) ascending: bool,
    /// No two bytes are at the same place, as far as the structure proves.
    pub(super) disjoint: bool,
}

impl Info {
    /// Returns what is known about `len` contiguous bytes; at most `i64::MAX` of them.
    pub(super) const fn bytes(len: u64) -> Info {
        let end = len as i64;
        Info { size: len, low: 0, high: end, tail: end, pieces: 1, depth: 0, ascending: true, disjoint: true }
    }
}

/// A node: what it is, and what is known about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) shape: Shape,
    pub(super) info: Info,
}

/// The nodes of a type and the entries of their lists.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) nodes: Vec<Node>,
    pub(super) entries: Vec<Entry>,
}

/// One step down from a node to a byte of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// The round of the loop or the entry of the list.
    pub(super) index: u64,
    /// Where the part begins in the node.
    pub(super) displacement: i64,
    pub(super) part: Part,
    /// How many stream bytes of the part are before the byte.
    pub(super) rest: u64,
}

impl Table {
    /// Returns the number of bytes of a part.
    pub(super) fn size(&self, part: Part) -> u64 {
        match part {
            Part::Bytes(len) => len,
            Part::Node(id) => self.nodes[id as usize].info.size,
        }
    }

    /// Returns the entries of a list.
    pub(super) fn list(&self, first: u32, count: u32) -> &[Entry] {
        &self.entries[first as usize..][..count as usize]
    }

    /// Finds the part that has the byte `at` of a shape. There must be such a byte.
    pub(super) fn step(&self, shape: Shape, at: u64) -> Step {
        match shape {
            Shape::Loop { stride, part, .. } => {
                // Most steps go to the beginning of a part, without a division.
                let size = self.size(part);
                let (index, rest) = if at < size { (0, at) } else { (at / size, at % size) };
                Step { index, displacement: index as i64 * stride, part, rest }
            }
            Shape::List { first, count } => {
                let entries = self.list(first, count);
                let index = match at {
                    0 => 0,
                    _ => entries.partition_point(|entry| entry.before <= at) - 1,
                };
                let entry = entries[index];
                let (displacement, part) = (entry.displacement, entry.part);
                Step { index: index as u64, displacement, part, rest: at - entry.before }
            }
        }
    }

    /// Returns where the byte `at` of a part is, relative to the part's first byte.
    pub(super) fn displacement(&self, mut part: Part, mut at: u64) -> i64 {
        let mut displacement = 0;
        while let Part::Node(id) = part {
            let step = self.step(self.nodes[id as usize].shape, at);
            displacement += step.displacement;
            (part, at) = (step.part, step.rest);
        }
        displacement + at as i64
    }

    /// Returns how many bytes of an ascending part are below a displacement.
    pub(super) fn size_below(&self, mut part: Part, mut displacement: i64) -> u64 {
        let mut below = 0;
        loop {
            let Part::Node(id) = part else { return below + self.size(part).min(displacement.max(0) as u64) };
            let Node { shape, info } = self.nodes[id as usize];
            if displacement <= 0 || displacement >= info.high {
                return below + if displacement > 0 { info.size } else { 0 };
            }
            // Its first byte is below, and its last one is not. Rounds do not interleave.
            match shape {
                Shape::Loop { stride, part: inner, .. } => {
                    let round = displacement / stride;
                    below += round as u64 * self.size(inner);
                    displacement -= round * stride;
                    part = inner;
                }
                Shape::List { first, count } => {
                    let entries = self.list(first, count);
                    let entry = entries[entries.partition_point(|entry| entry.displacement <= displacement) - 1];
                    below += entry.before;
                    displacement -= entry.displacement;
                    part = entry.part;
                }
            }
        }
    }
}
