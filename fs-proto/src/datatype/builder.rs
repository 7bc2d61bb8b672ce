//! Builds the node table of a type, and brings it to its normal form on the way.
//!
//! **Why.** What a cursor and a server pay for a type depends on its structure. So a type is made
//! simple once, when it is built, by its program or by a decoder, and not where it is used.
//!
//! **Invariants.** The rules, each of which keeps the bytes and their order:
//! 1. What has no bytes vanishes. It leaves its marks (bounds that were set), if it has any.
//! 2. Loops of one round and lists of one entry are their part. Offsets move up to the root.
//! 3. A loop that continues where its part ends becomes one with its part: bytes become longer, a
//!    loop gets more rounds.
//! 4. In a list, bytes that continue where those before them end become one entry. A list that is
//!    an entry of another one, and no other entry of it, becomes part of it.
//! 5. A list of equal parts at equal distances is a loop.
//! 6. Equal nodes are one node. Nodes that are not used are removed, and the others are in the
//!    order in which a walk from the root leaves them.
//!
//! A type in normal form comes out as it went in: it is built from its nodes again when it is
//! decoded. A type that is one contiguous piece has no nodes in this form.
//!
//! A list that comes from a peer could become part of many others. So the entries that all lists of
//! a peer's type together have on the way are bounded as well. A program may name as many blocks as
//! it likes, if the normal form has few.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use bmi::hooks::steps;

use super::table::{Entry, Info, Node, Part, Shape, Table};
use super::{Datatype, too_large};
use crate::error::FsError;
use crate::limits::{MAX_DISPLACEMENT, MAX_TYPE_DEPTH, MAX_TYPE_ENTRIES, MAX_TYPE_NODES};

/// Most entries that lists of a peer's type have on the way. In normal form they have at most
/// [`MAX_TYPE_ENTRIES`], and none becomes part of another one.
const MAX_WORK: usize = 4 * MAX_TYPE_ENTRIES;

/// A node whose entries have no place in a table yet.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Loop { count: u64, stride: i64, part: Part },
    List(Vec<(i64, Part)>),
}

/// A type while it is built.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Body {
    /// Lower and upper bound, if they were set.
    pub(super) marks: Option<(i64, i64)>,
    /// The displacement of the first byte, and all bytes; `None` if there are none.
    pub(super) place: Option<(i64, Part)>,
}

/// Builds a type from others.
#[derive(Debug, Default)]
pub(super) struct Builder {
    nodes: Vec<(Rc<Form>, Info)>,
    known: BTreeMap<Rc<Form>, u32>,
    /// The parts that the nodes of a table have become.
    imported: BTreeMap<*const Table, Vec<u32>>,
    /// How many more entries lists may have on the way, if that is bounded.
    left: Option<usize>,
}

fn checked(value: Option<i64>) -> Result<i64, FsError> {
    let in_range = |value: &i64| value.unsigned_abs() <= MAX_DISPLACEMENT as u64;
    value.filter(in_range).ok_or_else(|| too_large("a displacement in a type exceeds 2^62"))
}

/// Checks a displacement.
pub(super) fn displacement(value: Option<i128>) -> Result<i64, FsError> {
    checked(value.and_then(|value| i64::try_from(value).ok()))
}

fn sum(a: i64, b: i64) -> Result<i64, FsError> {
    checked(a.checked_add(b))
}

fn size(value: Option<u64>) -> Result<u64, FsError> {
    value.filter(|value| *value <= MAX_DISPLACEMENT as u64).ok_or_else(|| too_large("a type of more than 2^62 bytes"))
}

/// Returns the lowest and highest displacement of `count` instances, `stride` apart, of something
/// that has `low` and `high`.
pub(super) fn spread((low, high): (i64, i64), count: u64, stride: i128) -> Result<(i64, i64), FsError> {
    let shift = displacement(stride.checked_mul(i128::from(count) - 1))?;
    Ok((sum(low, shift.min(0))?, sum(high, shift.max(0))?))
}

impl Builder {
    /// Returns a builder of a peer's type.
    pub(super) fn of_peer() -> Builder {
        Builder { left: Some(MAX_WORK), ..Builder::default() }
    }

    /// Brings in a type that was built before.
    pub(super) fn import(&mut self, datatype: &Datatype) -> Result<Body, FsError> {
        let place = match datatype.root {
            Part::Bytes(0) => None,
            Part::Bytes(len) => Some(Part::Bytes(len)),
            Part::Node(id) => Some(Part::Node(self.table(datatype.table())?[id as usize])),
        };
        Ok(Body { marks: datatype.marks, place: place.map(|part| (datatype.origin, part)) })
    }

    fn table(&mut self, table: &Table) -> Result<&[u32], FsError> {
        let key: *const Table = table;
        if !self.imported.contains_key(&key) {
            let mut ids: Vec<u32> = Vec::with_capacity(table.nodes.len());
            for node in &table.nodes {
                let moved = |part| match part {
                    Part::Node(id) => Part::Node(ids[id as usize]),
                    bytes => bytes,
                };
                let form = match node.shape {
                    Shape::Loop { count, stride, part } => Form::Loop { count, stride, part: moved(part) },
                    Shape::List { first, count } => {
                        let entries = table.list(first, count).iter();
                        Form::List(entries.map(|entry| (entry.displacement, moved(entry.part))).collect())
                    }
                };
                ids.push(self.intern(form)?);
            }
            self.imported.insert(key, ids);
        }
        Ok(&self.imported[&key])
    }

    /// Returns lower and upper bound. Both are 0 for a type without bytes and without marks.
    pub(super) fn bounds(&self, body: Body) -> (i64, i64) {
        let of_bytes = body.place.map(|(origin, part)| {
            let info = self.info(part);
            (origin + info.low, origin + info.high)
        });
        body.marks.or(of_bytes).unwrap_or_default()
    }

    /// Returns the extent: the distance at which instances follow each other.
    pub(super) fn extent(&self, body: Body) -> i128 {
        let (lb, ub) = self.bounds(body);
        i128::from(ub) - i128::from(lb)
    }

    /// Returns `count` instances of a type, each `stride` bytes after the one before.
    pub(super) fn repeat(&mut self, body: Body, count: u64, stride: i128) -> Result<Body, FsError> {
        if count < 2 {
            return Ok(if count == 1 { body } else { Body::default() });
        }
        let marks = body.marks.map(|marks| spread(marks, count, stride)).transpose()?;
        let place = match body.place {
            Some((origin, part)) => Some((origin, self.repeat_part(part, count, displacement(Some(stride))?)?)),
            None => None,
        };
        Ok(Body { marks, place })
    }

    fn repeat_part(&mut self, part: Part, count: u64, stride: i64) -> Result<Part, FsError> {
        match part {
            Part::Bytes(len) if i64::try_from(len) == Ok(stride) => {
                return Ok(Part::Bytes(size(len.checked_mul(count))?));
            }
            Part::Node(id) => match *self.nodes[id as usize].0 {
                Form::Loop { count: rounds, stride: step, part: inner }
                    if i128::from(rounds) * i128::from(step) == i128::from(stride) =>
                {
                    let count = size(rounds.checked_mul(count))?;
                    return Ok(Part::Node(self.intern(Form::Loop { count, stride: step, part: inner })?));
                }
                _ => {}
            },
            Part::Bytes(_) => {}
        }
        Ok(Part::Node(self.intern(Form::Loop { count, stride, part })?))
    }

    /// Returns types at displacements, one after the other.
    pub(super) fn list(
        &mut self,
        items: impl ExactSizeIterator<Item = Result<(i64, Body), FsError>>,
    ) -> Result<Body, FsError> {
        let mut marks: Option<(i64, i64)> = None;
        let mut entries = Vec::with_capacity(items.len());
        for item in items {
            let (at, body) = item?;
            if let Some((lb, ub)) = body.marks {
                let (lb, ub) = (sum(at, lb)?, sum(at, ub)?);
                marks = Some(marks.map_or((lb, ub), |(low, high)| (low.min(lb), high.max(ub))));
            }
            if let Some((origin, part)) = body.place {
                entries.push((sum(at, origin)?, part));
            }
        }
        let mut entries = joined(self.flat(entries)?)?;
        let place = match entries[..] {
            [] => None,
            [single] => Some(single),
            [(origin, part), (second, _), ..] => {
                // Differences of displacements fit.
                let step = second - origin;
                let is_regular = entries.iter().all(|entry| entry.1 == part)
                    && entries.windows(2).all(|pair| pair[1].0 - pair[0].0 == step);
                let whole = if is_regular {
                    self.repeat_part(part, entries.len() as u64, step)?
                } else {
                    entries.iter_mut().for_each(|(at, _)| *at -= origin);
                    Part::Node(self.intern(Form::List(entries))?)
                };
                Some((origin, whole))
            }
        };
        Ok(Body { marks, place })
    }

    /// Replaces each list that is one entry of a list, and only one, by its entries.
    fn flat(&mut self, entries: Vec<(i64, Part)>) -> Result<Vec<(i64, Part)>, FsError> {
        let mut uses: BTreeMap<u32, usize> = BTreeMap::new();
        let mut len = entries.len();
        for (_, part) in &entries {
            if let Part::Node(id) = part
                && let Form::List(inner) = &*self.nodes[*id as usize].0
            {
                *uses.entry(*id).or_default() += 1;
                len += inner.len();
            }
        }
        steps(len);
        if let Some(left) = &mut self.left {
            *left =
                left.checked_sub(len).ok_or_else(|| too_large(format!("over {MAX_WORK} entries to build a type")))?;
        }
        if uses.is_empty() {
            return Ok(entries);
        }
        let mut flat = Vec::with_capacity(len);
        for (at, part) in entries {
            if let Part::Node(id) = part
                && uses.get(&id) == Some(&1)
                && let Form::List(inner) = &*self.nodes[id as usize].0
            {
                for (displacement, part) in inner {
                    flat.push((sum(at, *displacement)?, *part));
                }
            } else {
                flat.push((at, part));
            }
        }
        Ok(flat)
    }

    fn intern(&mut self, form: Form) -> Result<u32, FsError> {
        if let Some(id) = self.known.get(&form) {
            return Ok(*id);
        }
        let info = match &form {
            Form::Loop { count, stride, part } => self.loop_info(*count, *stride, *part)?,
            Form::List(entries) => self.list_info(entries)?,
        };
        if info.depth > MAX_TYPE_DEPTH {
            return Err(too_large(format!("a type of more than {MAX_TYPE_DEPTH} levels")));
        }
        let (id, form) = (self.nodes.len() as u32, Rc::new(form));
        self.known.insert(Rc::clone(&form), id);
        self.nodes.push((form, info));
        Ok(id)
    }

    fn info(&self, part: Part) -> Info {
        match part {
            Part::Bytes(len) => Info::bytes(len),
            Part::Node(id) => self.nodes[id as usize].1,
        }
    }

    fn loop_info(&self, count: u64, stride: i64, part: Part) -> Result<Info, FsError> {
        let one = self.info(part);
        let size = size(one.size.checked_mul(count))?;
        let (low, high) = spread((one.low, one.high), count, stride.into())?;
        // A piece has a byte at least, so there are fewer pieces than bytes.
        let joints = if one.tail == stride { count - 1 } else { 0 };
        Ok(Info {
            size,
            low,
            high,
            tail: one.tail + stride * (count as i64 - 1),
            pieces: one.pieces * count - joints,
            depth: one.depth + 1,
            ascending: one.ascending && stride >= one.high,
            disjoint: self.is_disjoint(count, stride, part),
        })
    }

    /// Loops in loops give the same bytes in any order of the loops. So they are disjoint if each
    /// stride, beginning with the shortest, leaves room for all that has shorter ones.
    fn is_disjoint(&self, count: u64, stride: i64, mut part: Part) -> bool {
        let mut loops = vec![(stride.unsigned_abs(), count)];
        while let Part::Node(id) = part
            && let Form::Loop { count, stride, part: inner } = *self.nodes[id as usize].0
        {
            loops.push((stride.unsigned_abs(), count));
            part = inner;
        }
        loops.sort_unstable();
        let one = self.info(part);
        let mut room = u128::from(one.high.abs_diff(one.low));
        one.disjoint
            && loops.into_iter().all(|(stride, count)| {
                let fits = u128::from(stride) >= room;
                room += u128::from(stride) * u128::from(count - 1);
                fits
            })
    }

    fn list_info(&self, entries: &[(i64, Part)]) -> Result<Info, FsError> {
        let mut whole = Info { pieces: 0, ..Info::bytes(0) };
        for (at, part) in entries {
            let one = self.info(*part);
            let (low, high) = (sum(*at, one.low)?, sum(*at, one.high)?);
            whole.size = size(whole.size.checked_add(one.size))?;
            whole.ascending &= one.ascending && low >= whole.high;
            whole.disjoint &= one.disjoint;
            whole.pieces += one.pieces - u64::from(whole.pieces > 0 && *at == whole.tail);
            whole.depth = whole.depth.max(one.depth);
            (whole.low, whole.high) = (whole.low.min(low), whole.high.max(high));
            whole.tail = at + one.tail;
        }
        whole.depth += 1;
        if !whole.ascending {
            let hull = |(at, part): &(i64, Part)| (at + self.info(*part).low, at + self.info(*part).high);
            let mut hulls: Vec<_> = entries.iter().map(hull).collect();
            hulls.sort_unstable();
            whole.disjoint &= hulls.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        }
        Ok(whole)
    }

    /// Returns the finished type.
    pub(super) fn finish(self, body: Body) -> Result<Datatype, FsError> {
        let (origin, part) = body.place.unwrap_or((0, Part::Bytes(0)));
        let info = self.info(part);
        sum(origin, info.low)?;
        sum(origin, info.high)?;
        let mut table = Table::default();
        let root = self.copy(part, &mut table, &mut vec![None; self.nodes.len()]);
        if table.nodes.len() > MAX_TYPE_NODES {
            return Err(too_large(format!(
                "a type of {} nodes; at most {MAX_TYPE_NODES} are allowed",
                table.nodes.len()
            )));
        }
        if table.entries.len() > MAX_TYPE_ENTRIES {
            let count = table.entries.len();
            return Err(too_large(format!(
                "{count} entries in the lists of a type; at most {MAX_TYPE_ENTRIES} are allowed"
            )));
        }
        let table = (!table.nodes.is_empty()).then(|| Arc::new(table));
        Ok(Datatype { marks: body.marks, origin, root, info, table })
    }

    /// Copies a part to a table, its children first. The depth is bounded.
    fn copy(&self, part: Part, table: &mut Table, moved: &mut [Option<u32>]) -> Part {
        let Part::Node(id) = part else { return part };
        if let Some(id) = moved[id as usize] {
            return Part::Node(id);
        }
        let (form, info) = &self.nodes[id as usize];
        let shape = match &**form {
            Form::Loop { count, stride, part } => {
                Shape::Loop { count: *count, stride: *stride, part: self.copy(*part, table, moved) }
            }
            Form::List(entries) => {
                for (_, part) in entries {
                    self.copy(*part, table, moved);
                }
                let first = table.entries.len() as u32;
                table.entries.reserve(entries.len());
                let mut before = 0;
                for (displacement, part) in entries {
                    let part = self.copy(*part, table, moved);
                    table.entries.push(Entry { displacement: *displacement, before, part });
                    before += table.size(part);
                }
                Shape::List { first, count: entries.len() as u32 }
            }
        };
        let new = table.nodes.len() as u32;
        table.nodes.push(Node { shape, info: *info });
        moved[id as usize] = Some(new);
        Part::Node(new)
    }
}

/// Joins bytes that continue where those before them end.
fn joined(mut entries: Vec<(i64, Part)>) -> Result<Vec<(i64, Part)>, FsError> {
    let mut kept = 0;
    for index in 0..entries.len() {
        let (at, part) = entries[index];
        if kept > 0
            && let (start, Part::Bytes(len)) = entries[kept - 1]
            && let Part::Bytes(more) = part
            && i128::from(start) + i128::from(len) == i128::from(at)
        {
            entries[kept - 1].1 = Part::Bytes(size(len.checked_add(more))?);
            continue;
        }
        entries[kept] = (at, part);
        kept += 1;
    }
    entries.truncate(kept);
    Ok(entries)
}
