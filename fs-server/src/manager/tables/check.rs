//! What the manager tells for a check: all rows of its tables about objects, names and datafiles,
//! in pages.
//!
//! **Invariant.** Each handle below that of the first row is in one of these tables, or nobody has
//! it any more. An I/O server has removed a datafile before it leaves the last of them. So what an
//! I/O server lists after these rows were read, and is in none of them, belongs to nobody.

use std::ops::ControlFlow;

use bmi::hooks::step;
use bstr::BString;
use fs_proto::limits::MAX_CHECKED;
use fs_proto::{CheckRow, Entry, Kind, Ties, handle_number};
use redb::ReadTransaction;

use super::names::{COUNTERS, NAMELESS, NAMES, OBJECTS, ORPHANS, Object, REPAIRS, STARTED, kind_number};
use super::pools::{DISCARDS, POOLS};
use crate::manager::Fault;

/// Bytes of a row in a reply, beside a name and datafiles.
const ROW_ROOM: usize = 96;
/// Bytes of a datafile of a layout in a reply.
const DATAFILE_ROOM: usize = 15;

/// The first row that was not told yet.
#[derive(Clone, Debug, Default)]
pub(in crate::manager) enum CheckFrom {
    #[default]
    Begin,
    Objects(u64),
    Names(u64, BString),
    Nameless(u128, u64),
    Orphans(u32, u64),
    Pools(u32, u64),
    Discards(u32, u64),
    End,
}

/// A page of rows that is being filled.
struct Page {
    rows: Vec<CheckRow>,
    left: usize,
}

impl Page {
    /// Adds a row, or breaks with the position of a row for which there is no room.
    fn push(&mut self, row: CheckRow, at: impl FnOnce() -> CheckFrom) -> ControlFlow<CheckFrom> {
        step();
        let needed = match &row {
            CheckRow::Object { layout: Some(layout), .. } => ROW_ROOM + DATAFILE_ROOM * layout.datafiles().len(),
            CheckRow::Name { name, .. } => ROW_ROOM + name.len(),
            _ => ROW_ROOM,
        };
        if self.rows.len() == MAX_CHECKED || (needed > self.left && !self.rows.is_empty()) {
            return ControlFlow::Break(at());
        }
        self.left = self.left.saturating_sub(needed);
        self.rows.push(row);
        ControlFlow::Continue(())
    }
}

/// Returns rows from a position on, as many as fit into `room` bytes, and where it goes on.
pub(in crate::manager) fn check_page(
    read: &ReadTransaction,
    from: CheckFrom,
    room: usize,
) -> Result<(Vec<CheckRow>, CheckFrom), Fault> {
    let mut page = Page { rows: Vec::new(), left: room };
    let end = match fill(read, from, &mut page)? {
        ControlFlow::Break(at) => at,
        ControlFlow::Continue(()) => CheckFrom::End,
    };
    Ok((page.rows, end))
}

/// Adds a row, and returns if there is no room.
macro_rules! push {
    ($page:ident, $row:expr, $at:expr) => {
        if let ControlFlow::Break(at) = $page.push($row, || $at) {
            return Ok(ControlFlow::Break(at));
        }
    };
}

fn fill(read: &ReadTransaction, from: CheckFrom, page: &mut Page) -> Result<ControlFlow<CheckFrom>, Fault> {
    let counters = read.open_table(COUNTERS)?;
    let counter = |name: &str| Ok::<u64, Fault>(counters.get(name)?.map_or(0, |value| value.value()));
    let mut at = from;
    if let CheckFrom::Begin = at {
        let next = handle_number(counter("epoch")?, counter("next")?);
        let (repairs, files, dirs) = (counter(REPAIRS)?, counter("files")?, counter("dirs")?);
        push!(page, CheckRow::Begin { next, repairs, files, dirs }, CheckFrom::Begin);
        at = CheckFrom::Objects(0);
    }
    if let CheckFrom::Objects(first) = at {
        let starts = counter(STARTED)?;
        for row in read.open_table(OBJECTS)?.range(first..)? {
            let (raw, bytes) = row?;
            let raw = raw.value();
            let row = Object::decode(bytes.value()).map_or(CheckRow::Unreadable { raw }, |object| {
                let parent = object.parent;
                let Entry { attr, layout, content, .. } = object.entry(raw, starts, None);
                let ties = Ties { parent, size: attr.size, nlink: attr.nlink };
                CheckRow::Object { raw, kind: attr.kind, ties, layout, content }
            });
            push!(page, row, CheckFrom::Objects(raw));
        }
        at = CheckFrom::Names(0, BString::default());
    }
    if let CheckFrom::Names(dir, name) = &at {
        for row in read.open_table(NAMES)?.range((*dir, name.as_slice())..)? {
            let (key, value) = row?;
            let ((dir, name), (raw, number)) = (key.value(), value.value());
            let name = BString::from(name);
            let kind = [Kind::File, Kind::Dir, Kind::Symlink].into_iter().find(|kind| kind_number(*kind) == number);
            push!(page, CheckRow::Name { dir, name: name.clone(), raw, kind }, CheckFrom::Names(dir, name));
        }
        at = CheckFrom::Nameless(0, 0);
    }
    if let CheckFrom::Nameless(client, file) = at {
        for row in read.open_table(NAMELESS)?.range((client, file)..)? {
            let (client, raw) = row?.0.value();
            push!(page, CheckRow::Nameless { raw }, CheckFrom::Nameless(client, raw));
        }
        at = CheckFrom::Orphans(0, 0);
    }
    if let CheckFrom::Orphans(iod, first) = at {
        for row in read.open_table(ORPHANS)?.range((iod, first)..)? {
            let (iod, first) = row?.0.value();
            push!(page, CheckRow::Spare { iod, first, count: 1 }, CheckFrom::Orphans(iod, first));
        }
        at = CheckFrom::Pools(0, 0);
    }
    if let CheckFrom::Pools(iod, end) = at {
        for row in read.open_table(POOLS)?.range((iod, end)..)? {
            let (key, first) = row?;
            let ((iod, end), first) = (key.value(), first.value());
            let count = u32::try_from(end.saturating_sub(first)).unwrap_or(u32::MAX);
            push!(page, CheckRow::Spare { iod, first, count }, CheckFrom::Pools(iod, end));
        }
        at = CheckFrom::Discards(0, 0);
    }
    if let CheckFrom::Discards(iod, first) = at {
        for row in read.open_table(DISCARDS)?.range((iod, first)..)? {
            let (key, count) = row?;
            let ((iod, first), count) = (key.value(), count.value());
            push!(page, CheckRow::Spare { iod, first, count }, CheckFrom::Discards(iod, first));
        }
    }
    Ok(ControlFlow::Continue(()))
}
