//! Enumerates the pieces of a type, in batches, from any byte of its stream on.
//!
//! **Why.** A client and a server move a request in units. Each unit needs the pieces of its own
//! part of the stream, after others have used the processor. So the state is small and has no
//! pointers into a list of pieces, and may be kept or made anew for each unit.
//!
//! **Invariants**
//! 1. The frames lead from the top to the part that has the next byte. Frame *n* + 1 is within the
//!    part that the index of frame *n* names. There are no frames at the end of the stream.
//! 2. All pieces are within the offsets that were checked when the cursor was made.
//! 3. Pieces of a batch are not empty and are not adjacent to each other. A batch ends between two
//!    pieces that are, only if it reached its bytes.
//! 4. A batch takes a bounded number of steps for each piece: each part that is a node has two
//!    pieces at least.

use bmi::hooks::{step, steps};

use super::table::{Entry, Part, Shape};
use super::{Datatype, too_large};
use crate::error::FsError;
use crate::limits::{MAX_OFFSET, MAX_TYPE_DEPTH};
use crate::region::Region;

/// The number of the loop over the instances of the type, which is in no table.
const TOP: u32 = u32::MAX;

/// A node on the way to the next byte.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    /// Where the node begins.
    base: i64,
    /// The round or entry that has the next byte.
    index: u64,
    node: u32,
}

/// The pieces of instances of a type at a base. A value of fixed size, without memory of its own.
#[derive(Clone, Debug)]
pub struct Cursor {
    datatype: Datatype,
    top: Shape,
    /// Where the first byte of the stream is.
    base: i64,
    frames: [Frame; MAX_TYPE_DEPTH + 1],
    depth: usize,
    /// How many bytes are used of the bytes that the last frame names.
    within: u64,
    position: u64,
    end: u64,
}

impl Datatype {
    /// Returns a cursor over `count` instances, of which the first one has displacement 0 at
    /// `base`. For memory, `base` is where MPI's buffer begins in the memory that the pieces index.
    ///
    /// # Errors
    /// `TooLarge` if a byte is below 0 or beyond [`MAX_OFFSET`], or if the stream is longer than
    /// that.
    pub fn cursor(&self, count: u64, base: u64) -> Result<Cursor, FsError> {
        let outside = || too_large(format!("{count} instances of a type at {base} exceed all offsets"));
        let (low, high) = self.true_bounds(count)?;
        let start = base.checked_add_signed(low).ok_or_else(outside)?;
        if start.checked_add(high.abs_diff(low)).is_none_or(|end| end > MAX_OFFSET) {
            return Err(outside());
        }
        let end = self.size().checked_mul(count).filter(|end| *end <= MAX_OFFSET).ok_or_else(outside)?;
        Ok(Cursor::new(self, count, base.wrapping_add_signed(self.origin) as i64, end))
    }
}

impl Cursor {
    /// Returns a cursor over the first `end` bytes of `count` instances. The first byte is at
    /// `base`. The caller has checked the places of the bytes.
    pub(super) fn new(datatype: &Datatype, count: u64, base: i64, end: u64) -> Cursor {
        let (table, extent) = (datatype.table(), datatype.extent() as i64);
        let nodes = |part: Part| match part {
            Part::Node(id) => Some(table.nodes[id as usize].shape),
            Part::Bytes(_) => None,
        };
        let top = match (datatype.root, nodes(datatype.root)) {
            (_, Some(shape)) if count == 1 => shape,
            (_, Some(Shape::Loop { count: rounds, stride, part }))
                if i128::from(rounds) * i128::from(stride) == i128::from(extent) =>
            {
                Shape::Loop { count: rounds * count, stride, part }
            }
            (Part::Bytes(len), _) if extent as u64 == len => {
                Shape::Loop { count: 1, stride: 0, part: Part::Bytes(len * count) }
            }
            (part, _) => Shape::Loop { count, stride: extent, part },
        };
        let frames = [Frame::default(); MAX_TYPE_DEPTH + 1];
        let mut cursor =
            Cursor { datatype: datatype.clone(), top, base, frames, depth: 0, within: 0, position: 0, end };
        cursor.seek(0);
        cursor
    }

    /// Returns how many bytes of the stream are before the next piece.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns how many bytes of the stream are left.
    pub fn remaining(&self) -> u64 {
        self.end - self.position
    }

    /// Continues at a byte of the stream, or at its end if there is no such byte.
    pub fn seek(&mut self, position: u64) {
        (self.position, self.depth, self.within) = (position.min(self.end), 0, 0);
        if self.position < self.end {
            self.descend(TOP, self.base, self.position);
        }
    }

    /// Lets the stream end at a byte, if it does not end before it.
    pub fn truncate(&mut self, end: u64) {
        self.end = self.end.min(end);
        if self.position >= self.end {
            self.seek(self.end);
        }
    }

    /// Writes the next pieces to `out`, of at most `most` bytes together, and returns their number.
    /// The last piece is cut where these end. Returns 0 only at the end of the stream, or if there
    /// is no room or no byte is asked for.
    pub fn next_batch(&mut self, out: &mut [Region], most: u64) -> usize {
        let asked = most.min(self.remaining());
        let mut batch = Batch { out, len: 0, left: asked };
        while batch.left > 0 {
            let frame = self.frames[self.depth - 1];
            let (index, within, is_done) = match self.shape(frame.node) {
                Shape::Loop { count, stride, part } => {
                    let len = self.datatype.table().size(part);
                    batch.rounds(frame, self.within, (count, stride, len))
                }
                Shape::List { first, count } => {
                    batch.entries(frame, self.within, self.datatype.table().list(first, count))
                }
            };
            (self.frames[self.depth - 1].index, self.within) = (index, within);
            if !is_done {
                break;
            }
            self.advance();
        }
        let len = batch.len;
        self.position += asked - batch.left;
        steps(len);
        len
    }

    fn shape(&self, node: u32) -> Shape {
        if node == TOP { self.top } else { self.datatype.table().nodes[node as usize].shape }
    }

    /// Adds the frames below a node that lead to the byte `at` of it.
    fn descend(&mut self, mut node: u32, mut base: i64, mut at: u64) {
        loop {
            let step = self.datatype.table().step(self.shape(node), at);
            self.frames[self.depth] = Frame { base, index: step.index, node };
            self.depth += 1;
            let Part::Node(inner) = step.part else {
                self.within = step.rest;
                return;
            };
            (node, base, at) = (inner, base + step.displacement, step.rest);
        }
    }

    /// Goes on where the index of the last frame is a node, or the end of its own.
    fn advance(&mut self) {
        loop {
            step();
            let Frame { base, index, node } = self.frames[self.depth - 1];
            let next = match self.shape(node) {
                Shape::Loop { count, stride, part } if index < count => Some((part, index as i64 * stride)),
                Shape::List { first, count } if index < count.into() => {
                    let entry = self.datatype.table().list(first, count)[index as usize];
                    Some((entry.part, entry.displacement))
                }
                _ => None,
            };
            match next {
                Some((Part::Node(inner), displacement)) => return self.descend(inner, base + displacement, 0),
                Some((Part::Bytes(_), _)) => return,
                None => self.depth -= 1,
            }
            let Some(parent) = self.depth.checked_sub(1) else { return };
            self.frames[parent].index += 1;
        }
    }
}

/// Pieces that are written one after the other.
#[derive(Debug)]
struct Batch<'a> {
    out: &'a mut [Region],
    len: usize,
    /// Bytes that may be added.
    left: u64,
}

impl Batch<'_> {
    /// Adds as much as it may of a piece, or makes the last one longer. Returns how much that was.
    fn push(&mut self, at: i64, len: u64) -> u64 {
        let len = len.min(self.left);
        match self.out[..self.len].last_mut() {
            Some(last) if last.offset + last.len == at as u64 => last.len += len,
            _ => {
                let Some(next) = self.out.get_mut(self.len).filter(|_| len > 0) else { return 0 };
                *next = Region::new(at as u64, len);
                self.len += 1;
            }
        }
        self.left -= len;
        len
    }

    /// Adds rounds of a loop over bytes. Returns the round and its used bytes to go on with, and
    /// true if all rounds are done.
    fn rounds(&mut self, frame: Frame, within: u64, (count, stride, len): (u64, i64, u64)) -> (u64, u64, bool) {
        let mut index = frame.index;
        let mut at = frame.base + index as i64 * stride;
        // Only the first piece can be a part of one, or continue the piece before it.
        let taken = self.push(at + within as i64, len - within);
        if within + taken < len {
            return (index, within + taken, false);
        }
        index += 1;
        at = at.wrapping_add(stride);
        let rounds = count - index;
        let whole = if self.left >= rounds * len { rounds } else { self.left / len };
        let room = self.out.len() - self.len;
        let whole = usize::try_from(whole).map_or(room, |whole| whole.min(room));
        for next in &mut self.out[self.len..][..whole] {
            *next = Region::new(at as u64, len);
            // Behind the last round there may be no offset.
            at = at.wrapping_add(stride);
        }
        self.len += whole;
        self.left -= whole as u64 * len;
        index += whole as u64;
        let within = if index < count && self.left > 0 { self.push(at, len) } else { 0 };
        (index, within, index == count)
    }

    /// Adds entries of a list up to the next node. Returns the entry and its used bytes to go on
    /// with, and true if that is a node or the end of the list.
    fn entries(&mut self, frame: Frame, mut within: u64, entries: &[Entry]) -> (u64, u64, bool) {
        for (index, entry) in entries.iter().enumerate().skip(frame.index as usize) {
            let Part::Bytes(len) = entry.part else { return (index as u64, 0, true) };
            let taken = self.push(frame.base + entry.displacement + within as i64, len - within);
            if within + taken < len {
                return (index as u64, within + taken, false);
            }
            within = 0;
        }
        (entries.len() as u64, 0, true)
    }
}
