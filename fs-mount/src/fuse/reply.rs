//! Replies to the kernel.
//!
//! **Layout.** A header: length, error, number of the request. Then a structure that depends on the
//! operation.

use std::time::Duration;

use bmi::Memory;
use rustix::io::Errno;

/// Bytes of an entry of a directory before its name, and of the attributes before that.
const ENTRY: usize = 24;
const ENTRY_PLUS: usize = 128;

/// What is answered to a request.
pub(crate) enum Reply {
    /// A structure, or bytes that were read.
    Bytes(Vec<u8>),
    /// The first bytes of memory, so many.
    Memory(Memory, usize),
}

/// The attributes of a node. Times are in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attr {
    /// The number of the node, which programs see as that of the inode.
    pub(crate) node: u64,
    /// The kind and the permission bits, as `st_mode` has them.
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime_ns: u64,
    pub(crate) mtime_ns: u64,
    pub(crate) ctime_ns: u64,
}

/// How long the kernel may believe what it is told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EntryTimes {
    /// That a name leads to the node.
    pub(crate) name: Duration,
    /// The attributes of the node.
    pub(crate) attr: Duration,
    /// Blocks of 512 bytes that it has at least.
    pub(crate) least_blocks: u64,
}

/// The space of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) bytes: u64,
    pub(crate) free: u64,
    pub(crate) objects: u64,
}

/// Unit of space, and of an access that is fast, in bytes.
const BLOCK: u32 = 4096;
const FAST_ACCESS: u32 = 1 << 20;
/// Longest name, in bytes.
const LONGEST_NAME: u32 = 255;

/// Writes numbers one after the other.
#[derive(Default)]
struct Fields(Vec<u8>);

impl Fields {
    fn u16(mut self, value: u16) -> Fields {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Fields {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Fields {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn zeros(mut self, count: usize) -> Fields {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    fn attr(self, attr: &Attr, least_blocks: u64) -> Fields {
        let blocks = attr.size.div_ceil(512).max(least_blocks);
        let times = [attr.atime_ns, attr.mtime_ns, attr.ctime_ns];
        let head = self.u64(attr.node).u64(attr.size).u64(blocks);
        let seconds = times.iter().fold(head, |fields, ns| fields.u64(ns / 1_000_000_000));
        let both = times.iter().fold(seconds, |fields, ns| fields.u32((ns % 1_000_000_000) as u32));
        // It is no device, and has no flags.
        both.u32(attr.mode).u32(attr.nlink).u32(attr.uid).u32(attr.gid).u32(0).u32(FAST_ACCESS).u32(0)
    }

    fn entry(self, attr: &Attr, times: EntryTimes) -> Fields {
        let EntryTimes { name, attr: known, least_blocks } = times;
        // A node is never another object, so all are of one generation.
        let valid = self.u64(attr.node).u64(0).u64(name.as_secs()).u64(known.as_secs());
        valid.u32(name.subsec_nanos()).u32(known.subsec_nanos()).attr(attr, least_blocks)
    }
}

impl Reply {
    /// Returns the answer without a structure.
    pub(crate) fn done() -> Reply {
        Reply::Bytes(Vec::new())
    }

    pub(crate) fn attr(attr: &Attr, times: EntryTimes) -> Reply {
        let valid = Fields::default().u64(times.attr.as_secs()).u32(times.attr.subsec_nanos()).u32(0);
        Reply::Bytes(valid.attr(attr, times.least_blocks).0)
    }

    pub(crate) fn entry(attr: &Attr, times: EntryTimes) -> Reply {
        Reply::Bytes(Fields::default().entry(attr, times).0)
    }

    /// Returns the answer that a name leads to nothing, and how long that may be believed.
    pub(crate) fn nothing(believed: Duration) -> Reply {
        let times = EntryTimes { name: believed, ..EntryTimes::default() };
        Reply::Bytes(Fields::default().entry(&Attr::default(), times).0)
    }

    pub(crate) fn opened(number: u64, flags: u32) -> Reply {
        Reply::Bytes(Fields::default().u64(number).u32(flags).u32(0).0)
    }

    pub(crate) fn created(attr: &Attr, times: EntryTimes, number: u64, flags: u32) -> Reply {
        Reply::Bytes(Fields::default().entry(attr, times).u64(number).u32(flags).u32(0).0)
    }

    pub(crate) fn written(len: u32) -> Reply {
        Reply::Bytes(Fields::default().u32(len).u32(0).0)
    }

    pub(crate) fn found(offset: u64) -> Reply {
        Reply::Bytes(Fields::default().u64(offset).0)
    }

    /// Returns a value that the program asked for with so much room; its length if that is 0. The
    /// error is that there is not enough.
    pub(crate) fn value(value: Vec<u8>, room: u32) -> Result<Reply, Errno> {
        match room as usize {
            0 => Ok(Reply::Bytes(Fields::default().u32(value.len() as u32).u32(0).0)),
            room if room < value.len() => Err(Errno::RANGE),
            _ => Ok(Reply::Bytes(value)),
        }
    }

    pub(crate) fn space(space: Space) -> Reply {
        let blocks = |bytes: u64| bytes / u64::from(BLOCK);
        let counts = Fields::default().u64(blocks(space.bytes)).u64(blocks(space.free)).u64(blocks(space.free));
        // There is room for as many files as there are handles.
        let files = counts.u64(space.objects.saturating_add(1 << 40)).u64(1 << 40);
        Reply::Bytes(files.u32(BLOCK).u32(LONGEST_NAME).u32(BLOCK).zeros(28).0)
    }

    pub(super) fn init(settings: &super::settings::Settings) -> Reply {
        let versions = Fields::default().u32(7).u32(super::settings::MINOR);
        let limits = versions.u32(settings.read_ahead).u32(settings.flags).u16(settings.in_background);
        let more = limits.u16(settings.in_background / 4 * 3).u32(settings.most_data).u32(1).u16(settings.pages);
        Reply::Bytes(more.u16(0).zeros(32).0)
    }
}

/// Entries of a directory, as many as the kernel has room for.
pub(crate) struct Listing {
    bytes: Vec<u8>,
    room: usize,
}

impl Listing {
    pub(crate) fn new(room: u32) -> Listing {
        Listing { bytes: Vec::new(), room: room as usize }
    }

    /// Adds an entry. `next` is where the listing goes on behind it. Returns false if there is no
    /// room.
    pub(crate) fn add(&mut self, name: &[u8], node: u64, mode: u32, next: u64) -> bool {
        self.fits(ENTRY, name) && self.add_name(name, node, mode, next)
    }

    /// Adds an entry with its attributes, or without if they are not known.
    pub(crate) fn add_with(
        &mut self,
        name: &[u8],
        (node, mode): (u64, u32),
        known: Option<(&Attr, EntryTimes)>,
        next: u64,
    ) -> bool {
        if !self.fits(ENTRY + ENTRY_PLUS, name) {
            return false;
        }
        let fields = Fields(std::mem::take(&mut self.bytes));
        self.bytes = match known {
            Some((attr, times)) => fields.entry(attr, times).0,
            // The kernel takes no node from zeros.
            None => fields.zeros(ENTRY_PLUS).0,
        };
        self.add_name(name, node, mode, next)
    }

    fn fits(&self, head: usize, name: &[u8]) -> bool {
        self.bytes.len() + (head + name.len()).next_multiple_of(8) <= self.room
    }

    fn add_name(&mut self, name: &[u8], node: u64, mode: u32, next: u64) -> bool {
        let fields = Fields(std::mem::take(&mut self.bytes));
        let mut bytes = fields.u64(node).u64(next).u32(name.len() as u32).u32(mode >> 12).0;
        bytes.extend_from_slice(name);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        self.bytes = bytes;
        true
    }

    pub(crate) fn reply(self) -> Reply {
        Reply::Bytes(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::Coherence;

    fn len(reply: Reply) -> usize {
        let Reply::Bytes(bytes) = reply else { panic!("memory") };
        bytes.len()
    }

    #[test]
    fn structures_have_the_lengths_of_the_kernel() {
        let (attr, times) = (Attr::default(), EntryTimes::default());
        assert_eq!(len(Reply::attr(&attr, times)), 104);
        assert_eq!(len(Reply::entry(&attr, times)), 128);
        assert_eq!(len(Reply::nothing(Duration::from_secs(1))), 128);
        assert_eq!(len(Reply::created(&attr, times, 0, 0)), 144);
        assert_eq!(len(Reply::opened(0, 0)), 16);
        assert_eq!(len(Reply::space(Space::default())), 80);
        assert_eq!(len(Reply::init(&crate::fuse::settings::Settings::new(Coherence::Open))), 64);
    }

    #[test]
    fn a_listing_ends_before_the_entry_that_has_no_room() {
        let mut listing = Listing::new(70);
        assert!(listing.add(b"a", 2, 0o100_644, 1) && listing.add(b"bcdefghi", 3, 0o100_644, 2));
        assert!(!listing.add(b"c", 4, 0o100_644, 3));
        assert_eq!(len(listing.reply()), 64);
        let mut listing = Listing::new(160);
        assert!(listing.add_with(b"a", (2, 0o040_755), None, 1) && !listing.add(b"b", 3, 0, 2));
        assert_eq!(len(listing.reply()), 160);
    }
}
