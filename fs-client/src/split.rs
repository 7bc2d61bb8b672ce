//! Splits one read or write into requests to servers, by the file's distribution. Each request has
//! the pieces of memory that belong to its ranges of the datafile.
//!
//! **Why.** Both the memory and the file may be lists, and their shapes are unrelated to each other
//! and to the strips. The plan pairs the bytes once, without any I/O. So it can be tested against a
//! model, printed, and all requests can be sent at once.
//!
//! **Invariants**
//! 1. Every byte of the memory list is in exactly one transfer. It is paired with the byte at the
//!    same position of the file list.
//! 2. Within a transfer, the ranges of the memory and of the datafile are in the order of the
//!    lists. Adjacent ranges are joined.
//! 3. A transfer's request fits into one message to any of the servers, whichever path its data
//!    takes. This counts the ranges as encoded and the description of the memory at its largest.
//! 4. Transfers are ordered round robin, one per server in turn, so that all servers have work from
//!    the beginning.
//!
//! The path of a transfer's data is not part of the split. The endpoint's policy chooses it when
//! the request is sent ([`bmi::paths`]). A printed plan shows the path that is taken if slots and
//! credits are not short. The plan does decide, for the whole access, whether the pieces of memory
//! are moved one by one or packed first. It uses the rule of [`bmi::config::Lists`], with the
//! extents below as the pieces.
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
//! **Source.** [PVFS-IB §5] (list I/O), [PVFS-IB §6.7] (128 ranges in a request); PVFS's `io_req`
//! by distribution.

use std::fmt;
use std::ops::Range;

use bmi::bulk::extents::{Encoder, MAX_ENCODED};
use bmi::config::Lists;
use bmi::paths::{self, Direction, Path, Rule};
use bmi::{MemList, MemSlice};
use fs_proto::{Distribution, Region};

use crate::error::Failure;

/// Largest description of a piece of memory, in bytes: its own key in the table, the index there,
/// the length of its ranges, address and length.
pub(crate) const PIECE_COST: usize = 8 + 3 + 1 + MAX_ENCODED;
/// Size of the number of keys, which precedes the table.
pub(crate) const TABLE_COST: usize = 3;

/// The limits that a plan uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Room for ranges and the description of memory in a request, in bytes. It is the longest
    /// message minus the request's fixed part.
    pub request: usize,
    /// Most ranges of the datafile in a request.
    pub regions: usize,
    /// Most pieces of memory in a request.
    pub pieces: usize,
    /// Most bytes in a request. It prevents a request from taking so long that it exceeds its
    /// deadline.
    pub transfer: u64,
    /// How lists of memory are moved.
    pub lists: Lists,
}

impl PlanLimits {
    /// Returns how the memory of an access is moved: `total` bytes in `pieces` pieces, in strips of
    /// `strip` bytes.
    fn lists(&self, total: u64, pieces: u64, strip: u64) -> Lists {
        if self.lists != Lists::Auto {
            return self.lists;
        }
        let extents = pieces + total / strip;
        if Lists::packing_pays(total, extents, extents.saturating_sub(1), 0) { Lists::Pack } else { Lists::Chain }
    }
}

/// The known properties of the connection to a server: which path data of each size takes, and
/// whether the memory at hand counts as registered.
#[derive(Clone, Debug)]
pub(crate) struct ServerPaths {
    pub(crate) plan: paths::Plan,
    pub(crate) registered: bool,
}

/// One request to one server.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The datafile of the request, as an index into the layout. It also determines the server.
    pub datafile: usize,
    /// Ranges of the datafile.
    pub regions: Vec<Region>,
    /// The memory. It is as long as all regions together.
    pub memory: MemList,
    /// Number of bytes.
    pub len: u64,
}

/// A read or write, split into requests. Print it to see which bytes go where, and why.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Read or write.
    pub direction: Direction,
    /// The requests, in the order in which they are sent.
    pub transfers: Vec<Transfer>,
    /// Total number of bytes.
    pub len: u64,
    /// How its lists of memory are moved: `Chain` or `Pack`.
    pub lists: Lists,
    distribution: Distribution,
    /// By server; filled in only for printing.
    paths: Vec<ServerPaths>,
}

impl Plan {
    /// Pairs `memory` with `regions` of a file that has the given distribution. The caller has
    /// checked that both have the same length and that no region reaches beyond
    /// [`fs_proto::limits::MAX_OFFSET`].
    pub fn new(
        direction: Direction,
        distribution: Distribution,
        limits: PlanLimits,
        regions: &[Region],
        memory: &MemList,
    ) -> Plan {
        let all = memory.pieces().len() as u64;
        let lists = limits.lists(memory.len() as u64, all, distribution.strip_size());
        let mut builders: Vec<Builder> = Vec::new();
        builders.resize_with(distribution.servers(), || Builder::new(lists));
        let mut pieces = memory.pieces().iter().filter(|piece| !piece.is_empty());
        let (mut piece, mut used) = (pieces.next(), 0);
        for strip in regions.iter().flat_map(|region| distribution.strips(*region)) {
            let mut done = 0;
            while done < strip.len
                && let Some(slice) = piece
            {
                let left = usize::try_from(strip.len - done).unwrap_or(usize::MAX);
                let len = left.min(slice.len() - used);
                builders[strip.at.server].add(strip.at.physical + done, slice.slice(used, len), &limits);
                done += len as u64;
                used += len;
                if used == slice.len() {
                    (piece, used) = (pieces.next(), 0);
                }
            }
        }
        let mut turns: Vec<_> =
            builders.into_iter().enumerate().map(|(datafile, builder)| builder.finish(datafile).into_iter()).collect();
        let mut transfers = Vec::new();
        loop {
            let before = transfers.len();
            transfers.extend(turns.iter_mut().filter_map(Iterator::next));
            if transfers.len() == before {
                break;
            }
        }
        let len = transfers.iter().map(|transfer| transfer.len).sum();
        Plan { direction, transfers, len, lists, distribution, paths: Vec::new() }
    }

    /// Returns the plan with the known properties of the connections to the servers.
    pub(crate) fn with_paths(self, paths: Vec<ServerPaths>) -> Plan {
        Plan { paths, ..self }
    }

    /// Returns the ranges of the file, in bytes from its beginning, that a transfer covers. The
    /// last one may cover several.
    pub fn file_ranges(&self, transfer: &Transfer) -> Vec<Range<u64>> {
        file_ranges(&self.distribution, transfer.datafile, &transfer.regions)
    }

    /// Returns the path that a transfer's data takes if slots and credits are not short, and the
    /// reason. Returns `None` if the plan has no information about its servers.
    pub fn path(&self, transfer: &Transfer) -> Option<(Path, &str)> {
        let ServerPaths { plan, registered } = self.paths.get(transfer.datafile)?;
        // If registration costs nothing, there is only one table.
        let ours = |rule: &&Rule| rule.direction == self.direction && rule.to.is_none_or(|to| transfer.len <= to);
        let mut rules = plan.rules.iter().filter(ours);
        let first = rules.clone().next();
        let rule = rules.find(|rule| rule.registered == *registered).or(first)?;
        Some((rule.path, &rule.why))
    }
}

/// Returns the ranges of a file that are stored in `regions` of one of its datafiles. There are
/// only a few, for error messages.
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
            write!(f, "  datafile {:<3} {:>10} bytes  ", transfer.datafile, transfer.len)?;
            if let Some((path, why)) = self.path(transfer) {
                write!(f, "{path:<12} ({why}); ")?;
            }
            let (regions, pieces) = (transfer.regions.len(), transfer.memory.pieces().len());
            let packed =
                if matches!(self.lists, Lists::Pack | Lists::PackExposed) && pieces > 1 { ", packed" } else { "" };
            writeln!(f, "{regions} ranges of the datafile, {pieces} pieces of memory{packed}")?;
        }
        Ok(())
    }
}

/// Collects the extents of one server into transfers.
struct Builder {
    lists: Lists,
    done: Vec<Part>,
    part: Part,
    /// The encoding of all ranges before the last one.
    encoded: Encoder,
}

/// A transfer under construction.
#[derive(Default)]
struct Part {
    regions: Vec<Region>,
    pieces: Vec<MemSlice>,
    len: u64,
}

impl Builder {
    fn new(lists: Lists) -> Builder {
        Builder { lists, done: Vec::new(), part: Part::default(), encoded: Encoder::default() }
    }

    fn add(&mut self, mut offset: u64, mut slice: MemSlice, limits: &PlanLimits) {
        while !slice.is_empty() {
            let part = &self.part;
            let joins_region = part.regions.last().is_some_and(|last| last.offset + last.len == offset);
            let joins_piece = part.pieces.last().is_some_and(|last| follows(last, &slice));
            let regions = part.regions.len() + usize::from(!joins_region);
            let pieces = part.pieces.len() + usize::from(!joins_piece);
            // The last range may grow, and a new one may follow it.
            let ranges = self.encoded.len() + 2 * MAX_ENCODED;
            let described = if matches!(self.lists, Lists::Pack | Lists::PackExposed) { 1 } else { pieces };
            let room = regions <= limits.regions
                && pieces <= limits.pieces
                && ranges + TABLE_COST + described * PIECE_COST <= limits.request
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

    fn finish(mut self, datafile: usize) -> Vec<Transfer> {
        self.flush();
        let transfer = |Part { regions, pieces, len }| {
            let memory = match <[MemSlice; 1]>::try_from(pieces) {
                Ok([only]) => MemList::from(only),
                Err(pieces) => pieces.into_iter().collect(),
            };
            Transfer { datafile, regions, memory, len }
        };
        self.done.into_iter().map(transfer).collect()
    }
}

/// Returns true if `next` directly follows `last` in the same memory.
fn follows(last: &MemSlice, next: &MemSlice) -> bool {
    last.memory().id() == next.memory().id() && last.offset() + last.len() == next.offset()
}

#[cfg(test)]
mod tests {
    use bmi::Memory;
    use bmi::bulk::extents;
    use proptest::prelude::*;

    use super::*;

    const LIMITS: PlanLimits =
        PlanLimits { request: 7900, regions: 4096, pieces: 4096, transfer: 16 << 20, lists: Lists::Chain };

    /// Cuts a memory of `len` bytes into pieces at `cuts`, and returns them in an order drawn from
    /// `keys`. So the lists have any shape.
    fn pieces(len: usize, cuts: &[usize], keys: &[u32]) -> MemList {
        let memory = Memory::zeroed(len).unwrap();
        let mut bounds: Vec<usize> = cuts.iter().map(|cut| cut % (len + 1)).chain([0, len]).collect();
        bounds.sort_unstable();
        let mut list: Vec<_> = bounds.windows(2).map(|pair| memory.slice(pair[0], pair[1] - pair[0])).collect();
        let key = |piece: &MemSlice| keys.get(piece.offset() % keys.len().max(1)).copied().unwrap_or(0);
        list.sort_by_key(key);
        list.into_iter().collect()
    }

    /// Returns each byte of a transfer as (server, physical offset, address).
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
            request in 200..8000usize,
            transfer in 1000..200_000u64,
            packs in any::<bool>(),
        ) {
            let distribution = Distribution::simple_stripe(strip, servers).unwrap();
            let regions: Vec<_> = raw.iter().map(|(offset, len)| Region::new(*offset, *len)).collect();
            let total: u64 = regions.iter().map(|region| region.len).sum();
            let memory = pieces(total as usize, &cuts, &keys);
            let direction = if write { Direction::Write } else { Direction::Read };
            let lists = if packs { Lists::Pack } else { Lists::Chain };
            let limits = PlanLimits { request, transfer, lists, ..LIMITS };
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
                let ranges = extents::encode(Vec::new(), step.regions.iter().map(|r| (r.offset, r.len))).len();
                let pieces = if packs { 1 } else { step.memory.pieces().len() };
                prop_assert!(ranges + pieces * PIECE_COST <= request);
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
            assert_eq!(transfer.len, 512 << 10);
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
        let memory = Memory::zeroed(8192).unwrap();
        let list: MemList = (0..42).map(|row| memory.slice(row * 190, 100)).collect();
        let limits = PlanLimits { lists: Lists::Auto, ..LIMITS };
        let plan = Plan::new(Direction::Read, distribution, limits, &[Region::new(100, 4200)], &list);
        let text = plan.to_string();
        assert!(text.starts_with("read of 4200 bytes, strips of 4096 bytes on 2 servers: 2 requests"), "{text}");
        assert!(text.contains("1 ranges of the datafile, 40 pieces of memory, packed\n"), "{text}");
        assert!(plan.path(&plan.transfers[0]).is_none());
        let rule = |registered, to, path| Rule {
            direction: Direction::Read,
            registered,
            from: 0,
            to,
            path,
            why: "so".to_owned(),
        };
        let rules = vec![
            rule(false, Some(1000), Path::Inline),
            rule(false, None, Path::FastRdma),
            rule(true, None, Path::ServerBased),
        ];
        let known = |registered| ServerPaths {
            plan: paths::Plan { rules: rules.clone(), thresholds: "", ways: Vec::new() },
            registered,
        };
        let plan = plan.with_paths(vec![known(false), known(true)]);
        let paths: Vec<_> = plan.transfers.iter().map(|transfer| plan.path(transfer).unwrap().0).collect();
        assert_eq!(paths, [Path::FastRdma, Path::ServerBased]);
        assert!(plan.to_string().contains("fast-rdma    (so); 1 ranges"), "{plan}");
    }

    #[test]
    fn large_pieces_are_left_where_they_are() {
        let distribution = Distribution::simple_stripe(65536, 4).unwrap();
        let memory = Memory::zeroed(2 << 20).unwrap();
        let rows = |len: usize| (0..16).map(|row| memory.slice(row * (128 << 10), len)).collect::<MemList>();
        let lists = |len: usize| {
            let limits = PlanLimits { lists: Lists::Auto, ..LIMITS };
            Plan::new(Direction::Write, distribution, limits, &[Region::new(0, 16 * len as u64)], &rows(len)).lists
        };
        assert_eq!(
            [lists(64), lists(1024), lists(8192), lists(65536)],
            [Lists::Pack, Lists::Pack, Lists::Chain, Lists::Chain]
        );
    }
}
