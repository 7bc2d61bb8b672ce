//! Registered memory, and how this side and the peer name it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{MemSlice, Memory, MemoryId};
use crate::proto::one_or_many::OneOrMany;
use crate::returns::Returns;

/// How the adapter that registered a region names it; of no meaning to anybody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalKey(pub u64);

/// How a peer names memory that was exposed to it: unguessable, and valid on one connection only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteKey(pub u64);

impl fmt::Debug for RemoteKey {
    /// Says nothing: keys are secrets and do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteKey(..)")
    }
}

/// What a peer may do with exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The peer may RDMA-read it.
    pub remote_read: bool,
    /// The peer may RDMA-write it.
    pub remote_write: bool,
}

impl Access {
    /// Only this side.
    pub const LOCAL: Access = Access { remote_read: false, remote_write: false };
    /// The peer may read.
    pub const READ: Access = Access { remote_read: true, remote_write: false };
    /// The peer may write.
    pub const WRITE: Access = Access { remote_read: false, remote_write: true };
    /// The peer may read and write.
    pub const READ_WRITE: Access = Access { remote_read: true, remote_write: true };
}

/// A piece of a peer's memory, as it stands on the wire: 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteSlice {
    /// Names the exposure.
    pub key: RemoteKey,
    /// Where it begins; only the adapter that made it knows what it counts, but adding bytes moves
    /// it by bytes.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl RemoteSlice {
    /// Bytes that it takes on the wire.
    pub const WIRE_LEN: usize = 24;

    /// The `len` bytes at `offset`; `None` if they do not lie within it.
    pub fn slice(&self, offset: u64, len: u64) -> Option<RemoteSlice> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then_some(RemoteSlice { key: self.key, addr: self.addr.checked_add(offset)?, len })
    }

    /// Little-endian key, address, length.
    pub fn to_wire(&self) -> [u8; Self::WIRE_LEN] {
        let mut wire = [0; Self::WIRE_LEN];
        wire[0..8].copy_from_slice(&self.key.0.to_le_bytes());
        wire[8..16].copy_from_slice(&self.addr.to_le_bytes());
        wire[16..24].copy_from_slice(&self.len.to_le_bytes());
        wire
    }

    /// The inverse of [`RemoteSlice::to_wire`]. Nothing is checked but the form; the adapter that
    /// owns the memory checks the rest.
    pub fn from_wire(wire: &[u8; Self::WIRE_LEN]) -> RemoteSlice {
        let word = |at: usize| u64::from_le_bytes(wire[at..at + 8].try_into().expect("eight bytes"));
        RemoteSlice { key: RemoteKey(word(0)), addr: word(8), len: word(16) }
    }
}

/// The keys of remote slices, each once.
pub(crate) fn keys_of(slices: &[RemoteSlice]) -> OneOrMany<RemoteKey> {
    if let [slice] = slices {
        return OneOrMany::One(slice.key);
    }
    let mut keys: Vec<RemoteKey> = slices.iter().map(|slice| slice.key).collect();
    keys.sort_unstable_by_key(|key| key.0);
    keys.dedup();
    OneOrMany::Many(keys.into())
}

/// Who is told when the last handle of a region is gone.
pub trait RegionOwner: Send + Sync {
    /// The region may be deregistered. Called from whatever thread dropped the handle; must not
    /// block.
    fn release(&self, key: LocalKey);
}

/// Memory that a transport has registered, in use: whoever holds one may post work on it. Holds a
/// handle of its [`Memory`], so the bytes stay.
///
/// Handles are counted. A registration ends when its last handle is gone, those of the pin-down
/// cache included: then it is released, and its transport deregisters it at the next poll. The
/// cache's handles hold no memory, so a registration may outlive the bytes it was made for. That
/// harms nobody: only a work request or an exposure reaches memory, and each of them holds a
/// `MemoryRegion`. A backend must not keep the [`Memory`] itself for a registration, or
/// [`Memory::get_mut`] would find it.
#[derive(Clone)]
pub struct MemoryRegion {
    // First, so that it is released before the memory is.
    registration: Arc<Registered>,
    memory: Memory,
}

/// A registration with its adapter.
struct Registered {
    id: MemoryId,
    key: LocalKey,
    owner: Arc<dyn RegionOwner>,
}

impl MemoryRegion {
    /// For backends: `owner` is told when the last handle is gone.
    pub fn new(memory: Memory, key: LocalKey, owner: Arc<dyn RegionOwner>) -> MemoryRegion {
        MemoryRegion { registration: Arc::new(Registered { id: memory.id(), key, owner }), memory }
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The adapter's name for it.
    pub fn local_key(&self) -> LocalKey {
        self.registration.key
    }

    /// Whether the region was registered by the transport with this owner.
    pub fn is_owned_by(&self, owner: &Arc<dyn RegionOwner>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.registration.owner), Arc::as_ptr(owner))
    }

    /// Whether `other` is a handle of the same registration.
    #[inline]
    pub fn is_same(&self, other: &MemoryRegion) -> bool {
        Arc::ptr_eq(&self.registration, &other.registration)
    }

    /// The `len` bytes at `offset` as an entry of a work request.
    ///
    /// # Panics
    /// If the range does not lie within the region.
    pub fn segment(&self, offset: usize, len: usize) -> Segment {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.memory.len()), "segment outside its region");
        Segment { region: self.clone(), offset, len }
    }

    /// As [`MemoryRegion::segment`], for a caller that needs the region no more: nothing is
    /// counted.
    ///
    /// # Panics
    /// As there.
    pub(crate) fn into_segment(self, offset: usize, len: usize) -> Segment {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.memory.len()), "segment outside its region");
        Segment { region: self, offset, len }
    }

    /// What the pin-down cache keeps of it.
    pub(crate) fn to_cached(&self) -> CachedRegion {
        CachedRegion(Arc::clone(&self.registration))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.owner.release(self.key);
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({:?})", self.memory)
    }
}

/// A registration without its memory: nobody can post work on it until he brings a handle of the
/// memory along.
pub(crate) struct CachedRegion(Arc<Registered>);

impl CachedRegion {
    /// The region, for somebody who holds the memory.
    ///
    /// # Panics
    /// If it is another memory: ids are never used twice, so this would be a bug of the cache.
    pub(crate) fn with(&self, memory: &Memory) -> MemoryRegion {
        assert!(self.0.id == memory.id(), "a registration of another memory");
        MemoryRegion { registration: Arc::clone(&self.0), memory: memory.clone() }
    }

    /// Whether an operation, an exposure or the program holds the region.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// A scatter/gather entry: a piece of registered memory. Holds its region.
#[derive(Clone, Debug)]
pub struct Segment {
    region: MemoryRegion,
    offset: usize,
    len: usize,
}

impl Segment {
    /// The region that it lies in.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Where in the region it begins, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes stand; see [`Memory::as_ptr`].
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.memory().as_ptr().wrapping_add(self.offset)
    }

    /// This segment and `next` as one, if that begins where this ends.
    pub(crate) fn joined(&self, next: &Segment) -> Option<Segment> {
        let adjacent = self.region.is_same(&next.region) && self.offset + self.len == next.offset;
        adjacent.then(|| Segment { region: self.region.clone(), offset: self.offset, len: self.len + next.len })
    }

    /// Returns whether the bytes must not be written ([`Memory::is_read_only`]).
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.region.memory().is_read_only()
    }

    /// The same bytes without the registration.
    pub fn to_slice(&self) -> MemSlice {
        self.region.memory().slice(self.offset, self.len)
    }

    /// The `len` bytes at `offset` of this segment.
    ///
    /// # Panics
    /// If the range does not lie within it.
    pub fn slice(&self, offset: usize, len: usize) -> Segment {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "range outside its segment");
        Segment { region: self.region.clone(), offset: self.offset + offset, len }
    }
}

/// Keys that were released and wait for their transport: the usual [`RegionOwner`].
pub type ReleaseQueue = Returns<LocalKey>;

impl RegionOwner for ReleaseQueue {
    fn release(&self, key: LocalKey) {
        self.push(key);
    }
}
