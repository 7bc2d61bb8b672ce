//! Two-phase collective I/O: members exchange their pieces, so that a few of them read and write
//! long ranges.
//!
//! ```text
//!   write   step 1  [ exchange ][ order ][  file  ]
//!           step 2              [ exchange ][ order ][  file  ]
//!   read    step 1  [  file  ][ order ][ exchange ]
//!           step 2            [  file  ][ order ][ exchange ]
//! ```
//!
//! Each aggregator has a *domain*: a range of the file, of whole stripes if there are as many. In
//! each step it has a window of its domain, of the length of its buffer. All members know all
//! views, so each knows what it sends and gets in each step, and nobody is asked. Windows in which
//! nobody has a byte are left out.
//!
//! **Invariants**
//! 1. Bytes that no member has are not written.
//! 2. Where members write the same byte, that of the highest rank remains.
//! 3. *Bounded memory.* A window is shorter where the members' pieces in it have more than twice
//!    its bytes, because they overlap. An aggregator has two buffers for a window and two for what
//!    the members send; a member has two for what it sends, if its memory is not contiguous.
//! 4. After a failure of its own, a member does its part of the exchanges, so that the others need
//!    not be stopped. Its bytes then mean nothing, and all are told in the end.
//!
//! **Source.** [ECIO-IB §3.1]; Thakur, Gropp, Lusk: "Data Sieving and Collective I/O in ROMIO",
//! Frontiers '99. Differences: the exchange has no step in which lengths are told, and overlaps
//! with the file.

use std::ops::Range;

use bmi::group::Lane;
use bmi::threading::Threading;
use bmi::{MemList, MemSlice, Memory};
use fs_proto::{Coverage, Cursor, Distribution, ErrorCode, Region, gather, scatter};
use futures_util::future::join;

use super::error::CollectiveError;
use super::member::{Member, hull};
use crate::error::Error;
use crate::file::{File, TypedMemory};
use crate::locked::Locked;

/// Pieces that are looked at together.
const BATCH: usize = 256;
/// Ranges that are written together.
const RANGES: usize = 4096;
/// The smallest buffer, in bytes.
const SMALLEST: usize = 64 << 10;

/// Which member has which part of the file.
pub(super) struct Domains<'a> {
    members: &'a [Member],
    /// The ranks of the aggregators, and what each has left of its domain.
    parts: Vec<(usize, Range<u64>)>,
    buffer: u64,
    strip: u64,
}

/// The window of an aggregator in a step.
#[derive(Clone, Debug)]
struct Window {
    aggregator: usize,
    file: Range<u64>,
    /// The part of each member's stream that is in it.
    parts: Vec<Range<u64>>,
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

impl<'a> Domains<'a> {
    pub(super) fn new(members: &'a [Member], distribution: &Distribution, count: u32, buffer: u64) -> Domains<'a> {
        let (hull, count) = (hull(members), u64::from(count.max(1)));
        let (strip, servers) = (distribution.strip_size(), distribution.servers() as u64);
        // Whole stripes for each, or whole strips if there are fewer.
        let each = len(&hull).div_ceil(count);
        let unit = if each >= strip * servers { strip * servers } else { strip };
        let begin = hull.start / unit * unit;
        let domain = (hull.end - begin).div_ceil(unit).div_ceil(count).saturating_mul(unit);
        let at = |index: u64| begin.saturating_add(domain.saturating_mul(index)).clamp(hull.start, hull.end);
        let parts = (0..count).map(|index| {
            let rank = index * members.len() as u64 / count;
            (rank as usize, at(index)..at(index + 1))
        });
        Domains { members, parts: parts.collect(), buffer, strip }
    }

    /// Returns the number of steps, at least if the members' bytes are everywhere.
    pub(super) fn steps(&self) -> u64 {
        self.parts.iter().map(|(_, domain)| len(domain).div_ceil(self.buffer)).max().unwrap_or(0)
    }

    /// Returns the windows of the next step. There are none at the end.
    fn step(&mut self) -> Vec<Window> {
        let Domains { members, parts, buffer, strip } = self;
        let mut windows = Vec::new();
        for (aggregator, domain) in parts {
            let first = members.iter().filter_map(|member| member.next(domain.start)).min();
            let Some(start) = first.filter(|first| *first < domain.end) else {
                domain.start = domain.end;
                continue;
            };
            let mut most = *buffer;
            loop {
                // To the end of a strip, if there is one.
                let end = start.saturating_add(most);
                let whole = end / *strip * *strip;
                let end = if whole > start { whole } else { end }.min(domain.end);
                let file = start..end;
                let parts: Vec<Range<u64>> = members.iter().map(|member| member.within(&file)).collect();
                if most > 1 && parts.iter().map(len).sum::<u64>() > 2 * *buffer {
                    most /= 2;
                    continue;
                }
                domain.start = end;
                windows.push(Window { aggregator: *aggregator, file, parts });
                break;
            }
        }
        windows
    }
}

/// One member's side of an operation.
pub(super) struct TwoPhase<'a, S: Threading> {
    pub(super) file: &'a File<S>,
    pub(super) lane: &'a Lane<S>,
    pub(super) members: &'a [Member],
    pub(super) typed: &'a TypedMemory,
    /// The pieces of the memory.
    pub(super) memory: Cursor,
    pub(super) rooms: Rooms,
}

/// Buffers that are used again.
#[derive(Default)]
pub(super) struct Rooms(Locked<Vec<Memory>>);

impl Rooms {
    /// Returns a buffer of at least `len` bytes.
    fn take(&self, len: u64) -> Result<Memory, Error> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let fits = |rooms: &mut Vec<Memory>| {
            let index = rooms.iter().position(|room| room.len() >= len)?;
            Some(rooms.swap_remove(index))
        };
        if let Some(room) = self.0.with(fits) {
            return Ok(room);
        }
        let len = len.max(SMALLEST).checked_next_power_of_two().unwrap_or(len);
        Memory::zeroed(len).map_err(|error| Error::new(ErrorCode::Io, error.to_string()))
    }

    fn put(&self, room: Memory) {
        self.0.with(|rooms| rooms.push(room));
    }
}

/// What an aggregator has of a step: the window, and the members' parts one after the other.
struct Held {
    window: Window,
    sent: Memory,
}

impl<S: Threading> TwoPhase<'_, S> {
    fn rank(&self) -> usize {
        self.lane.rank() as usize
    }

    /// Writes. The inner result is that of this member's own work.
    pub(super) async fn write(&self, mut domains: Domains<'_>) -> Result<Result<(), Error>, CollectiveError> {
        let (mut own, mut before): (_, Option<Held>) = (Ok(()), None);
        loop {
            let windows = domains.step();
            let held = self.held(&windows)?;
            let exchange = async {
                if windows.is_empty() {
                    return Ok::<_, CollectiveError>(());
                }
                let mut parts = self.nothing();
                for window in &windows {
                    parts[window.aggregator] = self.packed(&window.parts[self.rank()])?;
                }
                let into = held.as_ref().map_or_else(|| self.nothing(), Held::places);
                self.lane.exchange(parts.clone(), into).await?;
                self.give_back(&windows, parts);
                Ok(())
            };
            let write = async {
                let Some(held) = before.take() else { return Ok(()) };
                let written = self.write_window(&held).await;
                self.rooms.put(held.sent);
                written
            };
            let (exchanged, written) = join(exchange, write).await;
            exchanged?;
            own = own.and(written);
            if windows.is_empty() {
                return Ok(own);
            }
            before = held.filter(|_| own.is_ok());
        }
    }

    /// Reads. The inner result is that of this member's own work, with the size of the file if that
    /// was seen.
    pub(super) async fn read(&self, mut domains: Domains<'_>) -> Result<Result<Option<u64>, Error>, CollectiveError> {
        let (mut own, mut before): (_, Option<(Vec<Window>, Option<Held>)>) = (Ok(None), None);
        loop {
            let windows = domains.step();
            let held = self.held(&windows)?;
            let read = async {
                match held.as_ref().filter(|_| own.is_ok()) {
                    Some(held) => self.read_window(held).await,
                    None => Ok(None),
                }
            };
            let exchange = async {
                let Some((windows, held)) = before.take() else { return Ok::<_, CollectiveError>(()) };
                let parts = held.as_ref().map_or_else(|| self.nothing(), Held::places);
                let mut into = self.nothing();
                for window in &windows {
                    into[window.aggregator] = self.landing(&window.parts[self.rank()])?;
                }
                self.lane.exchange(parts, into.clone()).await?;
                for window in &windows {
                    self.unpack(&window.parts[self.rank()], &into[window.aggregator]);
                }
                self.give_back(&windows, into);
                held.into_iter().for_each(|held| self.rooms.put(held.sent));
                Ok(())
            };
            let (exchanged, came) = join(exchange, read).await;
            exchanged?;
            own = own.and_then(|known: Option<u64>| Ok(known.into_iter().chain(came?).min()));
            if windows.is_empty() {
                return Ok(own);
            }
            before = Some((windows, held));
        }
    }

    /// Returns room for what the members have in this member's window, if it has one.
    fn held(&self, windows: &[Window]) -> Result<Option<Held>, Error> {
        let Some(window) = windows.iter().find(|window| window.aggregator == self.rank()) else { return Ok(None) };
        let sent = self.rooms.take(window.parts.iter().map(len).sum())?;
        Ok(Some(Held { window: window.clone(), sent }))
    }

    /// Takes the buffers back that this member has packed its parts in.
    fn give_back(&self, windows: &[Window], lists: Vec<MemList>) {
        for window in windows {
            let part = &window.parts[self.rank()];
            if !part.is_empty() && self.piece(part).is_none() {
                lists[window.aggregator].pieces().iter().for_each(|piece| self.rooms.put(piece.memory().clone()));
            }
        }
    }

    /// Returns an empty list for each member.
    fn nothing(&self) -> Vec<MemList> {
        vec![MemList::default(); self.members.len()]
    }

    /// Copies by `f`, which gets the pieces of this member's memory for a part of its stream, some
    /// at a time.
    fn copy_own(&self, part: &Range<u64>, mut f: impl FnMut(&[Region])) {
        let (mut cursor, mut found) = (self.memory.clone(), [Region::new(0, 0); BATCH]);
        cursor.seek(part.start - self.members[self.rank()].stream.start);
        let (mut left, mut copied) = (len(part), 0);
        while left > 0 {
            let count = cursor.next_batch(&mut found, left);
            left -= found[..count].iter().map(|piece| piece.len).sum::<u64>();
            copied += count as u64;
            f(&found[..count]);
        }
        self.file.client().endpoint().copied(len(part), copied);
    }

    /// Copies by `f`, which gets what this member has of the members' parts, and the pieces of the
    /// file for it. It returns how many bytes it has copied.
    fn copy_held(&self, held: &Held, f: impl FnMut(&MemSlice, &[Region]) -> usize) {
        let (bytes, pieces) = held.for_each(self.members, f);
        self.file.client().endpoint().copied(bytes as u64, pieces as u64);
    }

    /// Returns this member's memory for a part of its stream, if that is in one piece.
    fn piece(&self, part: &Range<u64>) -> Option<MemList> {
        let (mut cursor, mut found) = (self.memory.clone(), [Region::new(0, 0); 1]);
        cursor.seek(part.start - self.members[self.rank()].stream.start);
        cursor.next_batch(&mut found, len(part));
        let piece = found[0];
        let slice = || self.typed.memory().slice(piece.offset as usize, piece.len as usize);
        (piece.len == len(part)).then(|| MemList::from(slice()))
    }

    /// Returns a part of what this member writes, in one piece.
    fn packed(&self, part: &Range<u64>) -> Result<MemList, CollectiveError> {
        if part.is_empty() {
            return Ok(MemList::default());
        }
        if let Some(piece) = self.piece(part) {
            return Ok(piece);
        }
        let packed = self.rooms.take(len(part))?.slice(0, len(part) as usize);
        let mut at = 0;
        self.copy_own(part, |pieces| {
            at += gather(self.typed.memory(), &packed.slice(at, packed.len() - at), pieces, 0);
        });
        Ok(MemList::from(packed))
    }

    /// Returns memory for a part of what this member reads, in one piece.
    fn landing(&self, part: &Range<u64>) -> Result<MemList, CollectiveError> {
        if part.is_empty() {
            return Ok(MemList::default());
        }
        match self.piece(part) {
            Some(piece) => Ok(piece),
            None => Ok(MemList::from(self.rooms.take(len(part))?.slice(0, len(part) as usize))),
        }
    }

    /// Copies what has come to the pieces of this member's memory, unless it came there.
    fn unpack(&self, part: &Range<u64>, came: &MemList) {
        let Some(from) = came.pieces().first().filter(|_| self.piece(part).is_none()) else { return };
        let mut at = 0;
        self.copy_own(part, |pieces| {
            at += scatter(self.typed.memory(), &from.slice(at, from.len() - at), pieces, 0);
        });
    }

    /// Puts what the members have sent in order, and writes it.
    async fn write_window(&self, held: &Held) -> Result<(), Error> {
        let file = &held.window.file;
        let (buffer, mut coverage) = (self.rooms.take(len(file))?, Coverage::new(len(file)));
        self.copy_held(held, |rest, pieces| {
            coverage.mark_all(pieces, file.start);
            scatter(&buffer, rest, pieces, file.start)
        });
        let mut runs = coverage.runs().peekable();
        while runs.peek().is_some() {
            let some: Vec<Region> = runs.by_ref().take(RANGES).collect();
            let list: MemList = some.iter().map(|run| buffer.slice(run.offset as usize, run.len as usize)).collect();
            let ranges: Vec<Region> = some.iter().map(|run| Region::new(file.start + run.offset, run.len)).collect();
            self.file.write_list(&ranges, list).await?;
        }
        self.rooms.put(buffer);
        Ok(())
    }

    /// Reads a window, and puts it in order for the members. Returns the size of the file if it
    /// ends before.
    async fn read_window(&self, held: &Held) -> Result<Option<u64>, Error> {
        let start = held.window.file.start;
        let hulls = self.members.iter().zip(&held.window.parts).filter_map(|(member, part)| member.hull(part));
        let all = hulls.map(|hull| hull.end).max().unwrap_or(start) - start;
        let buffer = self.rooms.take(all)?;
        let came = self.file.read_at(start, buffer.slice(0, all as usize)).await?;
        self.copy_held(held, |rest, pieces| gather(&buffer, rest, pieces, start));
        self.rooms.put(buffer);
        Ok((came < all).then_some(start + came))
    }
}

impl Held {
    /// Returns the place of each member's part.
    fn places(&self) -> Vec<MemList> {
        let mut at = 0;
        let place = |part: &Range<u64>| {
            let slice = self.sent.slice(at, len(part) as usize);
            at += slice.len();
            if part.is_empty() { MemList::default() } else { MemList::from(slice) }
        };
        self.window.parts.iter().map(place).collect()
    }

    /// Calls `f` with the members' parts from their next byte on and the next pieces of the file.
    /// It returns how many bytes these have. Returns the bytes and pieces of all.
    fn for_each(&self, members: &[Member], mut f: impl FnMut(&MemSlice, &[Region]) -> usize) -> (usize, usize) {
        let (mut at, mut all, mut found) = (0, 0, [Region::new(0, 0); BATCH]);
        for (member, part) in members.iter().zip(&self.window.parts).filter(|(_, part)| !part.is_empty()) {
            let mut pieces = member.pieces(part);
            loop {
                let count = pieces.next_batch(&mut found, u64::MAX);
                if count == 0 {
                    break;
                }
                at += f(&self.sent.slice(at, self.sent.len() - at), &found[..count]);
                all += count;
            }
        }
        (at, all)
    }
}
