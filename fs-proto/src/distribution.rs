//! Maps the bytes of a file to I/O servers.
//!
//! **Why.** A file is striped over I/O servers, so that they work in parallel. Only clients
//! translate between file offsets and datafile offsets. The manager just stores a distribution with
//! each file, and the I/O servers know only their own datafiles.
//!
//! **Invariants**
//! 1. Every logical offset of a file maps to exactly one pair (server, physical offset), and every
//!    such pair maps to exactly one logical offset.
//! 2. Splitting regions keeps every byte exactly once. On each server, the bytes keep the order of
//!    the request.
//!
//! **Layout** of `simple_stripe` with three servers. The numbers are those of the strips:
//!
//! ```text
//!   file      0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 …         strip k: server k mod n, its (k div n)th strip there
//!   server 0  0 │ 3 │ 6 …
//!   server 1  1 │ 4 …                             0, 1, 2 together are one stripe
//!   server 2  2 │ 5 …
//! ```
//!
//! **Source.** PVFS's `simple_stripe`. The property tests below check the invariants.

use bmi::hooks::mutated;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{ErrorCode, FsError};
use crate::handle::DatafileHandle;
use crate::limits::{self, MAX_OFFSET, MAX_SERVERS, MAX_STRIP, MIN_STRIP};
use crate::region::Region;

/// The way in which the bytes of a file are distributed over its servers. Servers are numbered from
/// 0 within the file's [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub enum Distribution {
    /// Strips of equal size, assigned round robin.
    SimpleStripe {
        /// Size of a strip, in bytes.
        strip_size: u64,
        /// Number of servers that the file is striped over.
        servers: u32,
    },
}

/// The location of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Index into [`Layout::datafiles`].
    pub server: usize,
    /// Offset in that server's datafile.
    pub physical: u64,
}

/// A contiguous piece of a file that is also contiguous on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strip {
    /// Where the piece begins on its server.
    pub at: Location,
    /// Where the piece begins in the file.
    pub logical: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// One server's part of a request for a list of regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Ranges of the server's datafile, in the order of the request. Adjacent ranges are joined.
    pub physical: Vec<Region>,
    /// The bytes of the request that belong to this share. Offsets count over all regions of the
    /// request, in the order in which their bytes are in the caller's buffer. Adjacent ranges are
    /// joined. The byte count is that of `physical`, but the number of pieces may differ.
    pub stream: Vec<Region>,
    /// Number of bytes in this share.
    pub len: u64,
}

impl Share {
    fn push(&mut self, physical: Region, stream: Region) {
        self.len += physical.len;
        for (list, region) in [(&mut self.physical, physical), (&mut self.stream, stream)] {
            match list.last_mut() {
                Some(last) if last.offset + last.len == region.offset => last.len += region.len,
                _ => list.push(region),
            }
        }
    }
}

impl Distribution {
    /// Creates a distribution of strips of `strip_size` bytes over `servers` servers.
    ///
    /// # Errors
    /// `Invalid` unless the strip size is from [`MIN_STRIP`] to [`MAX_STRIP`] and there are 1 to
    /// [`MAX_SERVERS`] servers.
    pub fn simple_stripe(strip_size: u64, servers: u32) -> Result<Distribution, FsError> {
        let invalid = |what: String| Err(FsError::new(ErrorCode::Invalid, what));
        if !(MIN_STRIP..=MAX_STRIP).contains(&strip_size) {
            return invalid(format!("strip size {strip_size}; it must be from {MIN_STRIP} to {MAX_STRIP} bytes"));
        }
        if servers == 0 || servers as usize > MAX_SERVERS {
            return invalid(format!("a file on {servers} servers; it must be from 1 to {MAX_SERVERS}"));
        }
        Ok(Distribution::SimpleStripe { strip_size, servers })
    }

    /// Returns the number of servers that the file is striped over.
    pub fn servers(&self) -> usize {
        let Distribution::SimpleStripe { servers, .. } = *self;
        servers as usize
    }

    /// Returns the size of a strip, in bytes.
    pub fn strip_size(&self) -> u64 {
        let Distribution::SimpleStripe { strip_size, .. } = *self;
        strip_size
    }

    /// Returns the location of the byte at the file offset `logical`.
    pub fn locate(&self, logical: u64) -> Location {
        let Distribution::SimpleStripe { strip_size, servers } = *self;
        let (strip, within) = (logical / strip_size, logical % strip_size);
        let servers = u64::from(servers);
        Location { server: (strip % servers) as usize, physical: strip / servers * strip_size + within }
    }

    /// Returns the file offset of the byte at a location. Returns `None` if the offset is beyond
    /// [`MAX_OFFSET`] or if the file is not striped over that server.
    pub fn logical(&self, at: Location) -> Option<u64> {
        let Distribution::SimpleStripe { strip_size, servers } = *self;
        let (stripe, within) = (at.physical / strip_size, at.physical % strip_size);
        if at.server >= servers as usize {
            return None;
        }
        let strip = stripe.checked_mul(u64::from(servers))?.checked_add(at.server as u64)?;
        strip.checked_mul(strip_size)?.checked_add(within).filter(|logical| *logical <= MAX_OFFSET)
    }

    /// Returns the strips, or parts of strips, that make up a region, in order. `viewdist` prints
    /// them.
    pub fn strips(&self, region: Region) -> impl Iterator<Item = Strip> + use<> {
        let this = *self;
        let (mut logical, end) = (region.offset, region.offset.saturating_add(region.len));
        std::iter::from_fn(move || {
            if logical >= end {
                return None;
            }
            let len = (this.strip_size() - logical % this.strip_size()).min(end - logical);
            let shift = if mutated("stripe/long-regions-shifted") && len < end - logical { 1 } else { 0 };
            let strip = Strip { at: this.locate(logical + shift), logical, len };
            logical += len;
            Some(strip)
        })
    }

    /// Splits a list of logical regions into one share per server, indexed by server. A server
    /// without any bytes has an empty share.
    pub fn split(&self, regions: &[Region]) -> Vec<Share> {
        let mut shares = vec![Share::default(); self.servers()];
        let mut stream = 0;
        for region in regions {
            for strip in self.strips(*region) {
                shares[strip.at.server].push(Region::new(strip.at.physical, strip.len), Region::new(stream, strip.len));
                stream += strip.len;
            }
        }
        shares
    }

    /// Translates a range of a server's datafile to ranges of the file, for error messages. Returns
    /// at most `max` ranges. The last one covers the rest.
    pub fn logical_ranges(&self, server: usize, physical: Region, max: usize) -> Vec<Region> {
        let mut ranges: Vec<Region> = Vec::new();
        let (mut at, end) = (physical.offset, physical.offset.saturating_add(physical.len));
        while at < end {
            // On a single server all strips are adjacent, so one step is enough. Otherwise a range
            // from the wire would be walked strip by strip.
            let full = ranges.len() >= max.max(1) || self.servers() == 1;
            // With no room left, take one last step to the end of the range.
            let next =
                if full { end } else { (at - at % self.strip_size()).saturating_add(self.strip_size()).min(end) };
            let first = self.logical(Location { server, physical: at });
            let last = self.logical(Location { server, physical: next - 1 });
            let (Some(first), Some(last)) = (first, last) else { break };
            let range = Region::new(first, last - first + 1);
            match ranges.last_mut() {
                Some(previous) if full || previous.offset + previous.len == range.offset => {
                    *previous = previous.hull(range);
                }
                _ => ranges.push(range),
            }
            at = next;
        }
        ranges
    }

    /// Returns the size of a file from the sizes of its datafiles. The sizes are indexed by server;
    /// missing ones count as empty. The result is one more than the largest file offset of any byte
    /// in the datafiles.
    pub fn file_size(&self, datafiles: &[u64]) -> u64 {
        let end = |(server, size): (usize, &u64)| {
            let last = size.checked_sub(1)?;
            Some(self.logical(Location { server, physical: last }).unwrap_or(MAX_OFFSET - 1) + 1)
        };
        datafiles.iter().take(self.servers()).enumerate().filter_map(end).max().unwrap_or(0)
    }

    /// Returns the size of `server`'s datafile when the file has `file_size` bytes. A truncation
    /// sets each datafile to this size.
    pub fn datafile_size(&self, server: usize, file_size: u64) -> u64 {
        let Distribution::SimpleStripe { strip_size, servers } = *self;
        let stripe = strip_size * u64::from(servers);
        let before = server as u64 * strip_size;
        file_size / stripe * strip_size + (file_size % stripe).saturating_sub(before).min(strip_size)
    }
}

impl<'de> Deserialize<'de> for Distribution {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Distribution, D::Error> {
        /// The same shape, not checked.
        #[derive(Deserialize)]
        #[serde(rename = "Distribution")]
        enum Unchecked {
            SimpleStripe { strip_size: u64, servers: u32 },
        }
        let Unchecked::SimpleStripe { strip_size, servers } = Unchecked::deserialize(deserializer)?;
        Distribution::simple_stripe(strip_size, servers).map_err(D::Error::custom)
    }
}

/// The location of a file's bytes: its distribution and its datafiles. For each server of the
/// distribution it has the I/O server of the cluster and the handle of the datafile there.
///
/// A file may begin *small*: with its first datafile alone, which has all bytes up to
/// [`Layout::limit`]. Before anything is written behind that, the manager gives it the others
/// ([`crate::ManagerRequest::Grow`]). No byte moves then, because the first strip stays where it
/// is. A layout that has grown stays so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// How the bytes are distributed when the file has all its datafiles.
    whole: Distribution,
    /// The I/O server (an index into [`crate::ClusterInfo::iods`] of the whole cluster) and the
    /// datafile, in the order of the distribution. Of a small file, the first one.
    datafiles: Vec<(u32, DatafileHandle)>,
}

impl Layout {
    /// Creates a layout.
    ///
    /// # Errors
    /// `Invalid` unless there is one datafile for each server of the distribution.
    pub fn new(distribution: Distribution, datafiles: Vec<(u32, DatafileHandle)>) -> Result<Layout, FsError> {
        if datafiles.len() != distribution.servers() {
            let text = format!("{} datafiles for a file on {} servers", datafiles.len(), distribution.servers());
            return Err(FsError::new(ErrorCode::Invalid, text));
        }
        Ok(Layout { whole: distribution, datafiles })
    }

    /// Creates the layout of a file that begins small, unless it is on one server anyway. `whole`
    /// is its distribution when it has grown.
    pub fn small(whole: Distribution, first: (u32, DatafileHandle)) -> Layout {
        Layout { whole, datafiles: vec![first] }
    }

    /// Returns the layout with further datafiles. There may be fewer than was planned.
    ///
    /// # Errors
    /// `Invalid` if there are more.
    pub fn grown(mut self, others: Vec<(u32, DatafileHandle)>) -> Result<Layout, FsError> {
        let most = self.whole.servers();
        self.datafiles.extend(others);
        if self.datafiles.len() > most {
            let text = format!("{} datafiles for a file on {most} servers", self.datafiles.len());
            return Err(FsError::new(ErrorCode::Invalid, text));
        }
        self.whole = self.distribution();
        Ok(self)
    }

    /// Returns the distribution of the bytes over the datafiles that the file has now.
    pub fn distribution(&self) -> Distribution {
        let Distribution::SimpleStripe { strip_size, .. } = self.whole;
        Distribution::SimpleStripe { strip_size, servers: self.datafiles.len() as u32 }
    }

    /// Returns the number of servers that the file is striped over when it has grown.
    pub fn most_servers(&self) -> u32 {
        self.whole.servers() as u32
    }

    /// Returns the number of bytes up to which a small file needs no other datafile. `None` if the
    /// file has all its datafiles.
    pub fn limit(&self) -> Option<u64> {
        (self.datafiles.len() < self.whole.servers()).then(|| self.whole.strip_size())
    }

    /// Returns the I/O server of the cluster (from 0) and the datafile there, for each server of
    /// the distribution, in its order.
    pub fn datafiles(&self) -> &[(u32, DatafileHandle)] {
        &self.datafiles
    }
}

impl<'de> Deserialize<'de> for Layout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Layout, D::Error> {
        /// The same shape, not checked.
        #[derive(Deserialize)]
        #[serde(rename = "Layout")]
        struct Unchecked {
            whole: Distribution,
            #[serde(deserialize_with = "limits::bounded::<MAX_SERVERS, _, _>")]
            datafiles: Vec<(u32, DatafileHandle)>,
        }
        let Unchecked { whole, datafiles } = Unchecked::deserialize(deserializer)?;
        match datafiles[..] {
            [first] => Ok(Layout::small(whole, first)),
            _ => Layout::new(whole, datafiles).map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn distributions() -> impl Strategy<Value = Distribution> {
        (MIN_STRIP..MIN_STRIP * 5, 1u32..9)
            .prop_map(|(strip, servers)| Distribution::simple_stripe(strip, servers).unwrap())
    }

    proptest! {
        #[test]
        fn logical_and_physical_are_a_bijection(d in distributions(), logical in 0..1u64 << 40, physical in 0..1u64 << 36) {
            let at = d.locate(logical);
            prop_assert!(at.server < d.servers());
            prop_assert_eq!(d.logical(at), Some(logical));
            for server in 0..d.servers() {
                let at = Location { server, physical };
                prop_assert_eq!(d.locate(d.logical(at).unwrap()), at);
            }
        }

        #[test]
        fn splitting_keeps_every_byte_once_and_in_order(
            d in distributions(),
            regions in prop::collection::vec((0..200_000u64, 0..50_000u64), 0..5),
        ) {
            let regions: Vec<_> = regions.into_iter().map(|(offset, len)| Region::new(offset, len)).collect();
            let total: u64 = regions.iter().map(|region| region.len).sum();
            // The logical offset of every byte of the request's stream, computed from the regions
            // and from the shares.
            let expected: Vec<u64> = regions.iter().flat_map(|region| region.offset..region.offset + region.len).collect();
            let mut found = vec![None; total as usize];
            for (server, share) in d.split(&regions).iter().enumerate() {
                let bytes = |list: &[Region]| list.iter().flat_map(|r| r.offset..r.offset + r.len).collect::<Vec<_>>();
                let (physical, stream) = (bytes(&share.physical), bytes(&share.stream));
                prop_assert_eq!(physical.len(), stream.len());
                prop_assert_eq!(physical.len() as u64, share.len);
                prop_assert!(stream.is_sorted());
                for (physical, stream) in physical.into_iter().zip(stream) {
                    prop_assert!(found[stream as usize].is_none());
                    found[stream as usize] = d.logical(Location { server, physical });
                }
            }
            prop_assert_eq!(found, expected.into_iter().map(Some).collect::<Vec<_>>());
        }

        #[test]
        fn sizes_agree(d in distributions(), size in 0..1u64 << 40) {
            let datafiles: Vec<u64> = (0..d.servers()).map(|server| d.datafile_size(server, size)).collect();
            prop_assert_eq!(datafiles.iter().sum::<u64>(), size);
            prop_assert_eq!(d.file_size(&datafiles), size);
        }

        #[test]
        fn one_byte_written_far_out_makes_the_size(d in distributions(), logical in 0..1u64 << 40) {
            let at = d.locate(logical);
            let mut datafiles = vec![0; d.servers()];
            datafiles[at.server] = at.physical + 1;
            prop_assert_eq!(d.file_size(&datafiles), logical + 1);
        }

        #[test]
        fn ranges_of_a_datafile_translate_back(d in distributions(), offset in 0..100_000u64, len in 1..100_000u64, server in 0..8usize) {
            let server = server % d.servers();
            let ranges = d.logical_ranges(server, Region::new(offset, len), 1000);
            let back: Vec<u64> = ranges.iter().flat_map(|r| r.offset..r.offset + r.len).collect();
            let expected: Vec<u64> =
                (offset..offset + len).map(|physical| d.logical(Location { server, physical }).unwrap()).collect();
            prop_assert_eq!(back, expected);
            let few = d.logical_ranges(server, Region::new(offset, len), 2);
            prop_assert!(few.len() <= 2);
            prop_assert_eq!(few.last().map(|r| r.offset + r.len), ranges.last().map(|r| r.offset + r.len));
        }
    }

    #[test]
    fn a_range_as_long_as_can_be_is_not_walked_strip_by_strip() {
        for servers in [1, 2, 256] {
            let distribution = Distribution::simple_stripe(MIN_STRIP, servers).unwrap();
            let longest = Region::new(0, MAX_OFFSET / u64::from(servers));
            let ranges = distribution.logical_ranges(0, longest, 8);
            assert!((1..=8).contains(&ranges.len()), "{ranges:?}");
            assert_eq!(ranges[0].offset, 0);
        }
    }

    #[test]
    fn a_small_file_has_its_first_strip_where_it_is_when_it_has_grown() {
        let whole = Distribution::simple_stripe(MIN_STRIP, 3).unwrap();
        let small = Layout::small(whole, (7, DatafileHandle(1)));
        assert_eq!((small.limit(), small.most_servers(), small.distribution().servers()), (Some(MIN_STRIP), 3, 1));
        for at in [0, 1, MIN_STRIP - 1] {
            assert_eq!(small.distribution().locate(at), whole.locate(at));
        }
        let others = vec![(8, DatafileHandle(2)), (9, DatafileHandle(3))];
        let grown = small.clone().grown(others).unwrap();
        assert_eq!((grown.limit(), grown.distribution(), grown.datafiles()[0].0), (None, whole, 7));
        let fewer = small.clone().grown(vec![(8, DatafileHandle(2))]).unwrap();
        assert_eq!((fewer.limit(), fewer.distribution().servers()), (None, 2));
        assert_eq!(small.grown(Vec::new()).unwrap().limit(), None, "no other server is up");
        assert_eq!(Layout::small(fewer.distribution(), (0, DatafileHandle(4))).limit(), Some(MIN_STRIP));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Distribution::simple_stripe(0, 1).is_err());
        assert!(Distribution::simple_stripe(65536, 0).is_err());
        assert!(Distribution::simple_stripe(65536, 257).is_err());
        let distribution = Distribution::simple_stripe(65536, 2).unwrap();
        assert!(Layout::new(distribution, vec![(0, DatafileHandle(1))]).is_err());
        let small = Layout::small(distribution, (0, DatafileHandle(1)));
        assert!(small.grown(vec![(1, DatafileHandle(1)), (2, DatafileHandle(1))]).is_err());
        // A datafile of the largest possible length does not overflow the file's size.
        assert_eq!(distribution.file_size(&[u64::MAX, 3]), MAX_OFFSET);
    }
}
