//! How one read or write is carried out: split by the file's distribution into requests to servers, each with the pieces of memory that
//! belong to its ranges of the datafile, and the path that its bytes take.
//!
//! **Why.** The memory and the file may both be lists, of shapes that have nothing to do with each other or with the strips. Working out
//! which byte goes where, once, without any I/O, makes it possible to test it against a model, to print it, and to send everything at once.
//!
//! **Invariants**
//! 1. Every byte of the memory list is in exactly one transfer, paired with the byte of the file at the same position of the file list.
//! 2. Within a transfer, memory and datafile ranges are in the order of the lists; neighbours are joined.
//! 3. A transfer's request fits into one unexpected message: the lists, encoded at their largest, and for an inline write the data.
//! 4. Transfers stand in turns, one of each server, so that all servers have work from the first request on.
//!
//! **Layout.** Memory `m`, file ranges `f`, strips of two servers:
//!
//! ```text
//!   memory   |--- m0 ---|-- m1 --|------ m2 ------|
//!   file     |------ f0 ------|-------- f1 -------|       (gaps between f0 and f1 left out)
//!   strips   |A  |B  |A  |B  |   A|B  |A  |B  |A  |
//!   extents  |A  |B  |A |A|B  |  |A|B |A  |B  |A  |       each within one m, one f, one strip
//! ```
//!
//! **Source.** Paper 000, sections 3.2.3 and 4.1 (inline up to 4 KiB, server-based above), section 5 (list I/O); PVFS's `io_req` by
//! distribution. Fast RDMA slots are not there yet, so the range up to 64 KiB goes server-based.

use std::fmt;
use std::ops::Range;

use bmi_core::extents::{Encoder, MAX_ENCODED};
use bmi_core::{MemList, MemSlice};
use fs_proto::{Distribution, Region};

use crate::error::Failure;

/// Largest encoding of a piece of a bulk descriptor, in bytes: key, address and length.
const PIECE_COST: usize = 30;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the servers into memory.
    Read,
    /// From memory to the servers.
    Write,
}

impl Direction {
    /// `read` or `write`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

/// The way that a transfer's bytes take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataPath {
    /// Behind the request (write) or the reply (read), copied once on either side.
    Inline,
    /// The request describes the client's memory, the server pulls or pushes.
    Bulk,
}

impl DataPath {
    /// `inline` or `bulk`.
    pub const fn as_str(self) -> &'static str {
        match self {
            DataPath::Inline => "inline",
            DataPath::Bulk => "bulk",
        }
    }
}

/// What bounds a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Most bytes that travel inline.
    pub inline: u64,
    /// Room for lists and inline data in a request, in bytes: the longest eager message less the request's fixed part.
    pub request: usize,
    /// Room for inline data in a reply, in bytes.
    pub reply: usize,
    /// Most ranges of the datafile in a request.
    pub regions: usize,
    /// Most pieces of memory in a request.
    pub pieces: usize,
    /// Most bytes in a request, so that one request never needs long enough to run into its deadline.
    pub transfer: u64,
}

impl PlanLimits {
    /// Whether `len` bytes can go inline beside a list of ranges that takes `lists` bytes: the data must fit where it travels.
    fn take_inline(&self, direction: Direction, lists: usize, len: u64) -> bool {
        let room = match direction {
            Direction::Write => self.request.saturating_sub(lists),
            Direction::Read => self.reply,
        };
        len <= self.inline && lists <= self.request && len <= room as u64
    }
}

/// One request to one server.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Which of the file's datafiles, and with it which server: an index into the layout.
    pub datafile: usize,
    /// How the bytes go.
    pub path: DataPath,
    /// Ranges of the datafile.
    pub regions: Vec<Region>,
    /// The memory, as long as the regions together.
    pub memory: MemList,
    /// Bytes.
    pub len: u64,
}

/// A read or write, split. Print it to see what goes where, and why.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which way.
    pub direction: Direction,
    /// The requests, in the order in which they are sent.
    pub transfers: Vec<Transfer>,
    /// Bytes, all together.
    pub len: u64,
    distribution: Distribution,
    limits: PlanLimits,
}

impl Plan {
    /// Pairs `memory` with `regions` of a file laid out as `layout`. Both must be equally long, and no region may reach beyond
    /// [`fs_proto::limits::MAX_OFFSET`] (the caller has checked).
    pub fn new(
        direction: Direction,
        distribution: Distribution,
        limits: PlanLimits,
        regions: &[Region],
        memory: &MemList,
    ) -> Plan {
        let mut builders: Vec<Builder> = Vec::new();
        builders.resize_with(distribution.servers(), Builder::default);
        let mut pieces = memory.pieces().iter().filter(|piece| !piece.is_empty());
        let (mut piece, mut used) = (pieces.next(), 0);
        for strip in regions.iter().flat_map(|region| distribution.strips(*region)) {
            let mut done = 0;
            while done < strip.len
                && let Some(slice) = piece
            {
                let left = usize::try_from(strip.len - done).unwrap_or(usize::MAX);
                let len = left.min(slice.len() - used);
                builders[strip.at.server].add(strip.at.physical + done, slice.slice(used, len), direction, &limits);
                done += len as u64;
                used += len;
                if used == slice.len() {
                    (piece, used) = (pieces.next(), 0);
                }
            }
        }
        let mut turns: Vec<_> = builders
            .into_iter()
            .enumerate()
            .map(|(datafile, builder)| builder.finish(datafile, direction, &limits).into_iter())
            .collect();
        let mut transfers = Vec::new();
        loop {
            let before = transfers.len();
            transfers.extend(turns.iter_mut().filter_map(Iterator::next));
            if transfers.len() == before {
                break;
            }
        }
        let len = transfers.iter().map(|transfer| transfer.len).sum();
        Plan { direction, transfers, len, distribution, limits }
    }

    /// The ranges of the file, in bytes from its beginning, that a transfer covers; the last one may reach over several.
    pub fn file_ranges(&self, transfer: &Transfer) -> Vec<Range<u64>> {
        file_ranges(&self.distribution, transfer.datafile, &transfer.regions)
    }

    fn why(&self, transfer: &Transfer) -> String {
        match transfer.path {
            DataPath::Inline => format!("at most {} bytes", self.limits.inline),
            DataPath::Bulk if transfer.len > self.limits.inline => format!("more than {} bytes", self.limits.inline),
            DataPath::Bulk => "data and lists do not fit one message".to_owned(),
        }
    }
}

/// The ranges of a file that `regions` of one of its datafiles hold: a few, as an error message names them.
pub(crate) fn file_ranges(distribution: &Distribution, datafile: usize, regions: &[Region]) -> Vec<Range<u64>> {
    let most = Failure::MAX_RANGES;
    let logical = regions.iter().flat_map(|region| distribution.logical_ranges(datafile, *region, most));
    logical.map(|region| region.offset..region.offset + region.len).collect()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, d) = (self.direction.as_str(), &self.distribution);
        let (strip, servers) = (d.strip_size(), d.servers());
        let requests = self.transfers.len();
        writeln!(f, "{verb} of {} bytes, strips of {strip} bytes on {servers} servers: {requests} requests", self.len)?;
        for transfer in &self.transfers {
            writeln!(
                f,
                "  datafile {:<3} {:>10} bytes  {:<6} ({}); {} ranges of the datafile, {} pieces of memory",
                transfer.datafile,
                transfer.len,
                transfer.path.as_str(),
                self.why(transfer),
                transfer.regions.len(),
                transfer.memory.pieces().len(),
            )?;
        }
        Ok(())
    }
}

/// What a client did so far, by path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PathCounters {
    /// Requests whose data went inline.
    pub inline_requests: u64,
    /// Their bytes.
    pub inline_bytes: u64,
    /// Requests whose data the server pulled or pushed.
    pub bulk_requests: u64,
    /// Their bytes.
    pub bulk_bytes: u64,
}

impl PathCounters {
    /// Counts a transfer.
    pub fn count(&mut self, transfer: &Transfer) {
        let (requests, bytes) = match transfer.path {
            DataPath::Inline => (&mut self.inline_requests, &mut self.inline_bytes),
            DataPath::Bulk => (&mut self.bulk_requests, &mut self.bulk_bytes),
        };
        *requests += 1;
        *bytes += transfer.len;
    }
}

/// Collects the extents of one server into transfers.
#[derive(Default)]
struct Builder {
    done: Vec<Part>,
    part: Part,
    /// The ranges before the last one, as they will travel.
    encoded: Encoder,
}

/// What will be a transfer.
#[derive(Default)]
struct Part {
    regions: Vec<Region>,
    pieces: Vec<MemSlice>,
    len: u64,
    /// Bytes of its ranges in the request, at most.
    lists: usize,
}

impl Builder {
    fn add(&mut self, mut offset: u64, mut slice: MemSlice, direction: Direction, limits: &PlanLimits) {
        while !slice.is_empty() {
            let part = &self.part;
            let joins_region = part.regions.last().is_some_and(|last| last.offset + last.len == offset);
            let joins_piece = part.pieces.last().is_some_and(|last| follows(last, &slice));
            let regions = part.regions.len() + usize::from(!joins_region);
            let pieces = part.pieces.len() + usize::from(!joins_piece);
            // The last range may grow, and a new one come behind it.
            let lists = self.encoded.len() + 2 * MAX_ENCODED;
            let described = lists + pieces * PIECE_COST <= limits.request;
            let room = regions <= limits.regions
                && pieces <= limits.pieces
                && (described || limits.take_inline(direction, lists, part.len + slice.len() as u64))
                && part.len < limits.transfer;
            if !room && part.len > 0 {
                self.flush();
                continue;
            }
            let take = slice.len().min(usize::try_from(limits.transfer - part.len).unwrap_or(usize::MAX));
            let part = &mut self.part;
            match part.regions.last_mut() {
                Some(last) if joins_region => last.len += take as u64,
                last => {
                    last.into_iter().for_each(|last| self.encoded.push((last.offset, last.len)));
                    part.regions.push(Region::new(offset, take as u64));
                }
            }
            match part.pieces.last_mut() {
                Some(last) if joins_piece => *last = last.memory().slice(last.offset(), last.len() + take),
                _ => part.pieces.push(slice.slice(0, take)),
            }
            part.len += take as u64;
            part.lists = self.encoded.len() + MAX_ENCODED;
            offset += take as u64;
            slice = slice.slice(take, slice.len() - take);
        }
    }

    fn flush(&mut self) {
        self.encoded = Encoder::default();
        if self.part.len > 0 {
            self.done.push(std::mem::take(&mut self.part));
        }
    }

    fn finish(mut self, datafile: usize, direction: Direction, limits: &PlanLimits) -> Vec<Transfer> {
        self.flush();
        let transfer = |Part { regions, pieces, len, lists }| {
            let inline = limits.take_inline(direction, lists, len);
            let path = if inline { DataPath::Inline } else { DataPath::Bulk };
            let memory = match <[MemSlice; 1]>::try_from(pieces) {
                Ok([only]) => MemList::from(only),
                Err(pieces) => pieces.into_iter().collect(),
            };
            Transfer { datafile, path, regions, memory, len }
        };
        self.done.into_iter().map(transfer).collect()
    }
}

/// Whether `next` stands right behind `last` in the same memory.
fn follows(last: &MemSlice, next: &MemSlice) -> bool {
    last.memory().id() == next.memory().id() && last.offset() + last.len() == next.offset()
}

#[cfg(test)]
mod tests {
    use bmi_core::{Memory, extents};
    use proptest::prelude::*;

    use super::*;

    const LIMITS: PlanLimits =
        PlanLimits { inline: 4096, request: 7900, reply: 8128, regions: 4096, pieces: 4096, transfer: 16 << 20 };

    /// Cuts a memory of `len` bytes into pieces at `cuts`, and hands them out in an order drawn from `keys`: lists of any shape.
    fn pieces(len: usize, cuts: &[usize], keys: &[u32]) -> MemList {
        let memory = Memory::zeroed(len).unwrap();
        let mut bounds: Vec<usize> = cuts.iter().map(|cut| cut % (len + 1)).chain([0, len]).collect();
        bounds.sort_unstable();
        let mut list: Vec<_> = bounds.windows(2).map(|pair| memory.slice(pair[0], pair[1] - pair[0])).collect();
        let key = |piece: &MemSlice| keys.get(piece.offset() % keys.len().max(1)).copied().unwrap_or(0);
        list.sort_by_key(key);
        list.into_iter().collect()
    }

    /// Each byte of a transfer as (server, physical offset, address).
    fn bytes(transfer: &Transfer) -> Vec<(usize, u64, usize)> {
        let physical = transfer.regions.iter().flat_map(|region| region.offset..region.offset + region.len);
        let addresses = transfer.memory.pieces().iter().flat_map(|p| (0..p.len()).map(|at| p.as_ptr() as usize + at));
        physical.zip(addresses).map(|(physical, address)| (transfer.datafile, physical, address)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_byte_of_memory_meets_its_byte_of_the_file(
            strip in prop::sample::select(vec![4096u64, 5000, 65536]),
            servers in 1u32..6,
            raw in prop::collection::vec((0..300_000u64, 0..30_000u64), 0..12),
            cuts in prop::collection::vec(0..400_000usize, 0..40),
            keys in prop::collection::vec(any::<u32>(), 1..8),
            write in any::<bool>(),
            request in 100..8000usize,
            transfer in 1000..200_000u64,
        ) {
            let distribution = Distribution::simple_stripe(strip, servers).unwrap();
            let regions: Vec<_> = raw.iter().map(|(offset, len)| Region::new(*offset, *len)).collect();
            let total: u64 = regions.iter().map(|region| region.len).sum();
            let memory = pieces(total as usize, &cuts, &keys);
            let direction = if write { Direction::Write } else { Direction::Read };
            let limits = PlanLimits { request, transfer, ..LIMITS };
            let plan = Plan::new(direction, distribution, limits, &regions, &memory);

            prop_assert_eq!(plan.len, total);
            let mut found: Vec<_> = plan.transfers.iter().flat_map(bytes).collect();
            let logical = regions.iter().flat_map(|region| region.offset..region.offset + region.len);
            let addresses = memory.pieces().iter().flat_map(|p| (0..p.len()).map(|at| p.as_ptr() as usize + at));
            let mut expected: Vec<_> = logical
                .zip(addresses)
                .map(|(logical, address)| {
                    let at = distribution.locate(logical);
                    (at.server, at.physical, address)
                })
                .collect();
            found.sort_unstable();
            expected.sort_unstable();
            prop_assert!(found == expected, "some byte is missing, doubled or misplaced");

            for step in &plan.transfers {
                let regions: u64 = step.regions.iter().map(|region| region.len).sum();
                prop_assert_eq!(regions, step.len);
                prop_assert_eq!(step.memory.len() as u64, step.len);
                prop_assert!(step.len > 0 && step.len <= transfer);
                let lists = extents::encode(Vec::new(), step.regions.iter().map(|r| (r.offset, r.len))).len();
                match step.path {
                    DataPath::Inline => prop_assert!(step.len <= limits.inline && (!write || lists as u64 + step.len <= request as u64)),
                    DataPath::Bulk => prop_assert!(lists + step.memory.pieces().len() * PIECE_COST <= request),
                }
            }
        }
    }

    #[test]
    fn servers_take_turns_and_pieces_are_joined() {
        let distribution = Distribution::simple_stripe(65536, 4).unwrap();
        let memory = MemList::from(Memory::zeroed(4 << 20).unwrap());
        let limits = PlanLimits { transfer: 512 << 10, ..LIMITS };
        let plan = Plan::new(Direction::Write, distribution, limits, &[Region::new(0, 4 << 20)], &memory);
        assert_eq!(plan.transfers.iter().map(|t| t.datafile).collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1, 2, 3]);
        for transfer in &plan.transfers {
            assert_eq!((transfer.regions.len(), transfer.memory.pieces().len()), (1, 8));
            assert_eq!((transfer.len, transfer.path), (512 << 10, DataPath::Bulk));
        }
        let one = Distribution::simple_stripe(65536, 1).unwrap();
        let plan = Plan::new(Direction::Read, one, LIMITS, &[Region::new(0, 4 << 20)], &memory);
        assert_eq!(plan.transfers.len(), 1);
        assert_eq!(plan.transfers[0].memory.pieces().len(), 1, "neighbouring strips are one piece");
        assert_eq!(plan.file_ranges(&plan.transfers[0]), std::slice::from_ref(&(0..4 << 20)));
    }

    #[test]
    fn the_plan_explains_itself() {
        let distribution = Distribution::simple_stripe(4096, 2).unwrap();
        let memory = MemList::from(Memory::zeroed(4096 + 100).unwrap());
        let plan = Plan::new(Direction::Read, distribution, LIMITS, &[Region::new(100, 4196)], &memory);
        let text = plan.to_string();
        assert!(text.starts_with("read of 4196 bytes, strips of 4096 bytes on 2 servers: 2 requests"), "{text}");
        assert!(text.contains("inline (at most 4096 bytes)"), "{text}");
        let small = PlanLimits { inline: 50, ..LIMITS };
        let text = Plan::new(Direction::Read, distribution, small, &[Region::new(100, 4196)], &memory).to_string();
        assert!(text.contains("bulk   (more than 50 bytes)"), "{text}");
        let mut counters = PathCounters::default();
        plan.transfers.iter().for_each(|transfer| counters.count(transfer));
        assert_eq!((counters.inline_requests, counters.inline_bytes, counters.bulk_requests), (2, 4196, 0));
    }
}
