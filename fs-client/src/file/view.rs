//! Reads and writes of types in memory through a view of the file, as in MPI-IO.
//!
//! **Why.** A list of pieces is as long on the wire as the program's data is scattered. A view has
//! a few bytes, and both sides find the pieces in it when they need them.
//!
//! **Protocol.** The stream of the view is cut into windows, of which [`WINDOWS`] are in progress
//! at the same time. In a window, each server has one request: the view, the range of the stream,
//! and how many bytes of it are on that server. If a server's share is in few pieces of memory,
//! they are moved from and to where they are. Otherwise they are packed into a buffer by this side.
//!
//! **Invariants**
//! 1. Memory and buffers do not grow with the number of pieces: one buffer of a window for each
//!    that is in progress.
//! 2. Bytes of the file and of memory that the view and the type do not have stay as they are.
//!
//! **Source.** MPI-4.1, *File Views*; [ECIO-IB §4.1] (the view goes to the server); [PVFS-IB §5].

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bmi::paths::Direction;
use bmi::threading::Threading;
use bmi::{Body, MemList, Memory};
use fs_proto::{
    Cursor, Datatype, Distribution, ErrorCode, FileView, FsError, IodRequest, Joined, Region, ViewPart, gather, scatter,
};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};

use super::handle::File;
use super::transfer::{add_failure, is_over};
use crate::error::{Error, Failure};
use crate::locked::Locked;
use crate::split::{PIECE_COST, PlanLimits, TABLE_COST, file_ranges};

/// Bytes of the stream in a window, and windows in progress.
const WINDOW: u64 = 4 << 20;
const WINDOWS: usize = 2;
/// Pieces that a cursor returns at once.
const BATCH: usize = 256;
/// Pieces in a window of a view that is too long for a request.
const LISTED: usize = 4096;
/// A request of a view without the view, at its longest.
const PART_COST: usize = 64;

/// Instances of a type in memory.
#[derive(Clone, Debug)]
pub struct TypedMemory {
    memory: Memory,
    datatype: Datatype,
    count: u64,
    base: u64,
}

impl TypedMemory {
    /// Returns `count` instances of a type, of which the first begins with the memory.
    pub fn new(memory: &Memory, datatype: &Datatype, count: u64) -> TypedMemory {
        TypedMemory { memory: memory.clone(), datatype: datatype.clone(), count, base: 0 }
    }

    /// Returns the same instances, of which the first begins `base` bytes into the memory. Types
    /// may have bytes in front of where they begin.
    #[must_use]
    pub fn at(self, base: u64) -> TypedMemory {
        TypedMemory { base, ..self }
    }

    /// Returns the pieces of the memory for an access.
    ///
    /// # Errors
    /// `Invalid` if they are not all in it, or a read may write one twice.
    pub(crate) fn pieces_for(&self, direction: Direction) -> Result<Cursor, FsError> {
        if direction == Direction::Read && self.datatype.may_overlap() {
            return Err(FsError::new(ErrorCode::Invalid, "a read into a type whose parts may overlap"));
        }
        self.pieces()
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the pieces of the memory, if they are all in it.
    fn pieces(&self) -> Result<Cursor, FsError> {
        let cursor = self.datatype.cursor(self.count, self.base)?;
        let (_, high) = self.datatype.true_bounds(self.count)?;
        let end = self.base.saturating_add_signed(high);
        if cursor.remaining() > 0 && end > self.memory.len() as u64 {
            let text = format!("a type that ends with byte {end} of a memory of {} bytes", self.memory.len());
            return Err(FsError::new(ErrorCode::Invalid, text));
        }
        Ok(cursor)
    }
}

impl From<&Memory> for TypedMemory {
    /// All bytes of the memory.
    fn from(memory: &Memory) -> TypedMemory {
        TypedMemory::new(memory, &Datatype::BYTE, memory.len() as u64)
    }
}

/// How the requests of an access are joined with those of others at the servers.
pub(crate) trait Joining: Sync {
    /// Returns the range of the file around a byte of it that is accessed at once by all.
    fn window(&self, offset: u64) -> Range<u64>;

    /// Returns what the requests to a server in a window have in common, if there are several.
    fn joined(&self, server: usize, window: &Range<u64>) -> Option<Joined>;
}

/// Returns the range of a view's stream that begins with an element and has `total` bytes.
///
/// # Errors
/// `TooLarge` if it ends beyond the largest offset of a file.
pub(crate) fn stream_range(view: &FileView, offset: u64, total: u64) -> Result<Range<u64>, FsError> {
    let beyond = || FsError::new(ErrorCode::TooLarge, format!("a view from its element {offset} on"));
    let first = offset.checked_mul(view.etype().size()).ok_or_else(beyond)?;
    view.cursor(first, total)?;
    Ok(first..first + total)
}

/// Returns the range of the file that contains all bytes of an access; an empty one if there is no
/// such access.
fn hull(direction: Direction, view: &FileView, offset: u64, memory: &TypedMemory) -> Range<u64> {
    let stream = memory.pieces_for(direction).and_then(|pieces| stream_range(view, offset, pieces.remaining()));
    let stream = stream.ok().filter(|stream| !stream.is_empty());
    let ends = stream.and_then(|stream| Some((view.offset_of(stream.start)?, view.offset_of(stream.end - 1)?)));
    ends.map_or(0..0, |(first, last)| first..last + 1)
}

/// A view and memory, paired byte by byte.
struct Paired<'a> {
    view: &'a FileView,
    memory: Cursor,
    distribution: Distribution,
    /// The position of the first byte in the stream of the view.
    first: u64,
}

impl Paired<'_> {
    /// Calls `f` with a server and the next pieces of memory for it, for `span` bytes from
    /// `position` of the stream on. Takes steps for the strips of the file and the pieces of
    /// memory. How many pieces the file has costs nothing.
    fn for_each(&self, position: u64, span: u64, mut f: impl FnMut(usize, &[Region])) {
        let (strip_size, servers) = (self.distribution.strip_size(), self.distribution.servers() as u64);
        let mut memory = self.memory.clone();
        memory.seek(position - self.first);
        let mut pieces = [Region::new(0, 0); BATCH];
        let (mut at, end) = (position, position + span);
        while at < end {
            let Some(offset) = self.view.offset_of(at) else { return };
            let strip = offset / strip_size;
            let next = match servers {
                1 => end,
                _ => self.view.size_below((strip + 1).saturating_mul(strip_size)).min(end),
            };
            while at < next {
                let found = memory.next_batch(&mut pieces, next - at);
                if found == 0 {
                    return;
                }
                f((strip % servers) as usize, &pieces[..found]);
                at = memory.position() + self.first;
            }
        }
    }
}

/// A server's share of a window.
#[derive(Clone, Default)]
struct Share {
    len: u64,
    /// Its pieces of memory, joined where they are adjacent, unless there are too many.
    pieces: Vec<Region>,
    many: bool,
}

impl Share {
    fn add(&mut self, pieces: &[Region], most: usize) {
        self.len += pieces.iter().map(|piece| piece.len).sum::<u64>();
        if !self.many {
            join(&mut self.pieces, pieces);
            self.many = self.pieces.len() > most;
        }
    }
}

/// Adds pieces of memory to a list. What is adjacent becomes one piece.
fn join(all: &mut Vec<Region>, pieces: &[Region]) {
    for piece in pieces {
        match all.last_mut() {
            Some(last) if last.offset + last.len == piece.offset => last.len += piece.len,
            _ => all.push(*piece),
        }
    }
}

/// A read or write of a view.
struct Access<'a> {
    direction: Direction,
    view: &'a FileView,
    typed: &'a TypedMemory,
    paired: Paired<'a>,
    /// The pieces of the file.
    file: Cursor,
    limits: PlanLimits,
    /// Most pieces of memory that are moved from where they are.
    direct: usize,
    /// The others that a server may carry the requests out with.
    joining: Option<&'a dyn Joining>,
    /// Buffers that no window uses.
    buffers: Locked<Vec<Memory>>,
}

impl<S: Threading> File<S> {
    /// Reads through a view into typed memory, from `offset` on, which counts elements of the view.
    /// Returns how many of the bytes are before the end of the file. The others are zero.
    ///
    /// # Errors
    /// As [`File::read_at`]; `Invalid` if the type is not within the memory, or its parts may
    /// overlap. `TooLarge` if the view reaches beyond the largest offset of a file.
    pub async fn read_view(&self, view: &FileView, offset: u64, memory: impl Into<TypedMemory>) -> Result<u64, Error> {
        let during = |error: Error| error.during(format!("read of {}", self.path()));
        let (direction, memory) = (Direction::Read, memory.into());
        let read = self.read_with(view, offset, &memory, None);
        if !self.is_atomic() {
            return read.await.map_err(during);
        }
        Box::pin(self.excluding(direction, hull(direction, view, offset, &memory), read)).await.map_err(during)
    }

    /// Reads through a view, perhaps together with others.
    pub(crate) async fn read_with(
        &self,
        view: &FileView,
        offset: u64,
        memory: &TypedMemory,
        joining: Option<&dyn Joining>,
    ) -> Result<u64, Error> {
        self.check_readable()?;
        let mut file = self.latest();
        let (range, sizes) = loop {
            if file.limit().is_some() {
                file = file.look().await?;
            }
            let (range, sizes) = file.move_view(Direction::Read, view, offset, memory, joining).await?;
            match file.limit() {
                Some(limit) if is_over(&sizes, limit) => file = file.look().await?,
                _ => break (range, sizes),
            }
            if file.limit().is_some() {
                return Err(file.too_long());
            }
        };
        file.check_lengths(&sizes).await?;
        let last = range.end.checked_sub(1).and_then(|last| view.offset_of(last)).map_or(0, |last| last + 1);
        let size = file.end_of(&sizes, last).await?;
        Ok(view.size_below(size).clamp(range.start, range.end) - range.start)
    }

    /// Writes typed memory through a view, from `offset` on, which counts elements of the view. The
    /// bytes reach the disk with [`File::sync`].
    ///
    /// # Errors
    /// As [`File::write_at`]; those of [`File::read_view`].
    pub async fn write_view(&self, view: &FileView, offset: u64, memory: impl Into<TypedMemory>) -> Result<(), Error> {
        let during = |error: Error| error.during(format!("write of {}", self.path()));
        let (direction, memory) = (Direction::Write, memory.into());
        let write = self.write_with(view, offset, &memory, None);
        if !self.is_atomic() {
            return write.await.map_err(during);
        }
        Box::pin(self.excluding(direction, hull(direction, view, offset, &memory), write)).await.map_err(during)
    }

    /// Writes through a view, perhaps together with others.
    pub(crate) async fn write_with(
        &self,
        view: &FileView,
        offset: u64,
        memory: &TypedMemory,
        joining: Option<&dyn Joining>,
    ) -> Result<(), Error> {
        let file = self.grown().await?;
        let writing = self.client.begin_write(self.handle()).await?;
        let written = file.move_view(Direction::Write, view, offset, memory, joining).await;
        writing.end(&written);
        written.map(drop)
    }

    /// Returns the most bytes of the stream in a window.
    pub(crate) fn largest_window(&self) -> u64 {
        WINDOW.min(self.limits().transfer)
    }

    /// Moves all bytes. Returns the range of the stream, and the sizes of the datafiles that were
    /// accessed.
    async fn move_view(
        &self,
        direction: Direction,
        view: &FileView,
        offset: u64,
        typed: &TypedMemory,
        joining: Option<&dyn Joining>,
    ) -> Result<(Range<u64>, Vec<Option<u64>>), Error> {
        let memory = typed.pieces_for(direction)?;
        let Range { start: first, end } = stream_range(view, offset, memory.remaining())?;
        let file = view.cursor(first, end - first)?;
        self.connect(|_| true).await;
        let (limits, encoded) = (self.limits(), view.encoded_len());
        let room = limits.request.checked_sub(encoded.saturating_add(PART_COST + TABLE_COST + PIECE_COST));
        let paired = Paired { view, memory, distribution: self.striping.distribution, first };
        let direct = room.map_or(0, |room| (1 + room / PIECE_COST).min(limits.pieces));
        let buffers = Locked::new(Vec::new());
        let access = &Access { direction, view, typed, paired, file, limits, direct, joining, buffers };
        let span = self.largest_window();
        // No window is begun after a failure.
        let (begun, failed) = (AtomicU64::new(first), AtomicBool::new(false));
        let cuts = std::iter::from_fn(|| {
            let start = begun.load(Ordering::Relaxed);
            if start == end || failed.load(Ordering::Relaxed) {
                return None;
            }
            // With others, the windows are those of the file, and the same for all.
            let window = joining.and_then(|joining| Some(joining.window(view.offset_of(start)?)));
            let next = match &window {
                Some(window) => view.size_below(window.end).min(end),
                None => end.min(start + span),
            };
            begun.store(next, Ordering::Relaxed);
            Some((start, next - start, window))
        });
        let one = async |(start, span, window): (u64, u64, Option<Range<u64>>)| match room {
            Some(_) => self.window(access, (start, span), window).await,
            None => self.listed(access, start, span).await,
        };
        let mut windows = stream::iter(cuts).map(one).buffer_unordered(WINDOWS);
        let mut sizes = vec![None; self.striping.servers.len()];
        let mut failures: Vec<Failure> = Vec::new();
        while let Some(window) = windows.next().await {
            let results =
                window.unwrap_or_else(|error| error.failures().iter().map(|one| (0, Err(one.clone()))).collect());
            for (index, result) in results {
                match result {
                    Ok(size) => sizes[index] = sizes[index].max(Some(size)),
                    Err(failure) => {
                        failed.store(true, Ordering::Relaxed);
                        add_failure(&mut failures, failure);
                    }
                }
            }
        }
        drop(windows);
        let Some(failure) = failures.pop() else { return Ok((first..end, sizes)) };
        let next = begun.into_inner();
        let rest = view.offset_of(next).zip(view.offset_of(end - 1)).filter(|_| next < end);
        failures.push(failure.of_ranges(rest.map(|(from, last)| from..last + 1)));
        Err(self.explain(Error::combined(failures)).await)
    }

    /// Moves a window. Returns the size of each datafile that has a share of it.
    async fn window(
        &self,
        access: &Access<'_>,
        (position, span): (u64, u64),
        window: Option<Range<u64>>,
    ) -> Result<Vec<(usize, Result<u64, Failure>)>, Error> {
        let mut shares = vec![Share::default(); self.striping.servers.len()];
        access.paired.for_each(position, span, |server, pieces| shares[server].add(pieces, access.direct));
        let packed = shares.iter().any(|share| share.many);
        let buffer = match packed {
            true => Some(match access.buffers.with(Vec::pop) {
                Some(buffer) => buffer,
                None => {
                    Memory::zeroed(WINDOW as usize).map_err(|error| Error::new(ErrorCode::Io, error.to_string()))?
                }
            }),
            false => None,
        };
        // Where the share of each server is in the buffer, if it is packed.
        let mut places = vec![0; shares.len()];
        let mut end = 0;
        for (place, share) in places.iter_mut().zip(&shares).filter(|(_, share)| share.many) {
            (*place, end) = (end, end + share.len as usize);
        }
        let copy = |buffer: &Memory, moves: &[bool]| {
            let (mut places, memory, mut copied) = (places.clone(), &access.typed.memory, (0, 0));
            access.paired.for_each(position, span, |server, pieces| {
                if moves[server] {
                    let place = buffer.slice(places[server], buffer.len() - places[server]);
                    let len = match access.direction {
                        Direction::Write => gather(memory, &place, pieces, 0),
                        Direction::Read => scatter(memory, &place, pieces, 0),
                    };
                    places[server] += len;
                    copied = (copied.0 + len as u64, copied.1 + pieces.len() as u64);
                }
            });
            self.client.endpoint().copied(copied.0, copied.1);
        };
        if let (Direction::Write, Some(buffer)) = (access.direction, &buffer) {
            copy(buffer, &shares.iter().map(|share| share.many).collect::<Vec<_>>());
        }
        let one = async |(index, share): (usize, &Share)| {
            let memory: MemList = match &buffer {
                Some(buffer) if share.many => MemList::from(buffer.slice(places[index], share.len as usize)),
                _ => {
                    let slice = |piece: &Region| access.typed.memory.slice(piece.offset as usize, piece.len as usize);
                    share.pieces.iter().map(slice).collect()
                }
            };
            let joined =
                access.joining.zip(window.as_ref()).and_then(|(joining, window)| joining.joined(index, window));
            let result = self.share(access, index, (position, span), memory, joined).await;
            (index, result)
        };
        let concerned = shares.iter().enumerate().filter(|(_, share)| share.len > 0);
        let results = join_all(concerned.map(one)).await;
        if let Some(buffer) = buffer {
            if access.direction == Direction::Read {
                // What the others have sent is not named by the error.
                let mut came = vec![false; shares.len()];
                results.iter().for_each(|(index, result)| came[*index] = shares[*index].many && result.is_ok());
                copy(&buffer, &came);
            }
            access.buffers.with(|buffers| buffers.push(buffer));
        }
        Ok(results)
    }

    /// Moves a server's share of a window.
    async fn share(
        &self,
        access: &Access<'_>,
        index: usize,
        (position, span): (u64, u64),
        memory: MemList,
        joined: Option<Joined>,
    ) -> Result<u64, Failure> {
        let (_, datafile) = self.striping.layout.datafiles()[index];
        let view = access.view.clone();
        let part = ViewPart::new(view, self.striping.distribution, index as u32, (position, span), memory.len() as u64)
            .map_err(|error| Failure::at(self.striping.servers[index].clone(), error.code, error.detail))?;
        let hull = part.hull();
        let (body, data) = match access.direction {
            Direction::Read => (IodRequest::ReadView { datafile, part, joined }, Body::In(memory)),
            Direction::Write => (IodRequest::WriteView { datafile, part, joined }, Body::Out(memory)),
        };
        self.request(access.direction, index, body, data, access.limits.lists).await.map_err(|failure| {
            let ranges = if failure.physical.is_empty() { vec![hull] } else { failure.physical.clone() };
            failure.of_ranges(file_ranges(&self.striping.distribution, index, &ranges))
        })
    }

    /// Moves a window by lists, for a view that is too long for a request.
    async fn listed(
        &self,
        access: &Access<'_>,
        position: u64,
        span: u64,
    ) -> Result<Vec<(usize, Result<u64, Failure>)>, Error> {
        let (mut file, end) = (access.file.clone(), position + span);
        file.seek(position);
        let mut ranges = vec![Region::new(0, 0); LISTED];
        while file.position() < end {
            let at = file.position();
            let found = file.next_batch(&mut ranges, end - at);
            let mut pieces: Vec<Region> = Vec::new();
            access.paired.for_each(at, file.position() - at, |_, some| join(&mut pieces, some));
            let slice = |piece: &Region| access.typed.memory.slice(piece.offset as usize, piece.len as usize);
            let memory: MemList = pieces.iter().map(slice).collect();
            let done = match access.direction {
                Direction::Read => self.read_list(&ranges[..found], memory).await.map(drop),
                Direction::Write => self.write_list(&ranges[..found], memory).await,
            };
            if let Err(error) = done {
                // The rest of the window was not tried.
                let (next, view) = (file.position(), access.view);
                let rest = view.offset_of(next).zip(view.offset_of(end - 1)).filter(|_| next < end);
                let rest = rest.map(|(from, last)| from..last + 1);
                return Ok(error.failures().iter().map(|one| (0, Err(one.clone().of_ranges(rest.clone())))).collect());
            }
        }
        Ok(Vec::new())
    }
}
