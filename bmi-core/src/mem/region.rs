//! Registered memory, and the keys by which this side and the peer name it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{MemSlice, Memory, MemoryId};
use crate::mem::OneOrMany;
use crate::sync::Returns;

/// The adapter's name for a region that it registered. It has no meaning elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalKey(pub u64);

/// A peer's name for memory that was exposed to it. Unguessable, and valid on one connection only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteKey(pub u64);

impl fmt::Debug for RemoteKey {
    /// Prints no digits. Keys are secrets and do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteKey(..)")
    }
}

/// The access that a peer has to exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The peer may RDMA-read it.
    pub remote_read: bool,
    /// The peer may RDMA-write it.
    pub remote_write: bool,
}

impl Access {
    /// Only this side may access it.
    pub const LOCAL: Access = Access { remote_read: false, remote_write: false };
    /// The peer may read.
    pub const READ: Access = Access { remote_read: true, remote_write: false };
    /// The peer may write.
    pub const WRITE: Access = Access { remote_read: false, remote_write: true };
    /// The peer may read and write.
    pub const READ_WRITE: Access = Access { remote_read: true, remote_write: true };
}

/// A piece of a peer's memory. Takes 24 bytes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteSlice {
    /// Identifies the exposure.
    pub key: RemoteKey,
    /// Start of the piece. Only the adapter that made it knows the meaning, but adding a number of
    /// bytes advances it by that many bytes.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
}

impl RemoteSlice {
    /// Length on the wire, in bytes.
    pub const WIRE_LEN: usize = 24;

    /// Returns the `len` bytes at `offset`, or `None` if they do not lie within the piece.
    pub fn slice(&self, offset: u64, len: u64) -> Option<RemoteSlice> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then_some(RemoteSlice { key: self.key, addr: self.addr.checked_add(offset)?, len })
    }

    /// Encodes key, address and length in little-endian order.
    pub fn to_wire(&self) -> [u8; Self::WIRE_LEN] {
        let mut wire = [0; Self::WIRE_LEN];
        wire[0..8].copy_from_slice(&self.key.0.to_le_bytes());
        wire[8..16].copy_from_slice(&self.addr.to_le_bytes());
        wire[16..24].copy_from_slice(&self.len.to_le_bytes());
        wire
    }

    /// Decodes the result of [`RemoteSlice::to_wire`]. It checks nothing. The adapter that owns the
    /// memory checks the values.
    pub fn from_wire(wire: &[u8; Self::WIRE_LEN]) -> RemoteSlice {
        let word = |at: usize| u64::from_le_bytes(wire[at..at + 8].try_into().expect("eight bytes"));
        RemoteSlice { key: RemoteKey(word(0)), addr: word(8), len: word(16) }
    }
}

/// Returns the distinct keys of remote slices.
pub(crate) fn keys_of(slices: &[RemoteSlice]) -> OneOrMany<RemoteKey> {
    if let [slice] = slices {
        return OneOrMany::One(slice.key);
    }
    let mut keys: Vec<RemoteKey> = slices.iter().map(|slice| slice.key).collect();
    keys.sort_unstable_by_key(|key| key.0);
    keys.dedup();
    OneOrMany::Many(keys.into())
}

/// Receives a notification when the last handle of a region is dropped.
pub trait RegionOwner: Send + Sync {
    /// Allows the region to be deregistered. Called on the thread that dropped the handle. Must not
    /// block.
    fn release(&self, key: LocalKey);
}

/// Memory that a transport has registered, in use. Code that holds one may post work on it. It
/// holds a handle of its [`Memory`], so the bytes stay.
///
/// Handles are counted. A registration ends when its last handle is dropped, those of the pin-down
/// cache included. It is then released, and its transport deregisters it at the next poll. The
/// cache's handles hold no memory, so a registration may outlive its bytes. This is harmless: only
/// work requests and exposures access memory, and each of them holds a `MemoryRegion`. A backend
/// must not keep the [`Memory`] itself for a registration, because [`Memory::get_mut`] would see
/// that handle.
#[derive(Clone)]
pub struct MemoryRegion {
    // First field, so that the registration is released before the memory.
    registration: Arc<Registered>,
    memory: Memory,
}

/// A registration with its adapter.
struct Registered {
    id: MemoryId,
    key: LocalKey,
    owner: Arc<dyn RegionOwner>,
    /// A copy of [`Memory::is_read_only`], beside what each post reads anyway.
    read_only: bool,
}

impl MemoryRegion {
    /// Creates a region. For backends. `owner` is notified when the last handle is dropped.
    pub fn new(memory: Memory, key: LocalKey, owner: Arc<dyn RegionOwner>) -> MemoryRegion {
        let read_only = memory.is_read_only();
        MemoryRegion { registration: Arc::new(Registered { id: memory.id(), key, owner, read_only }), memory }
    }

    /// Returns the memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the adapter's name for the region.
    pub fn local_key(&self) -> LocalKey {
        self.registration.key
    }

    /// Returns true if the region was registered by the transport with this owner.
    pub fn is_owned_by(&self, owner: &Arc<dyn RegionOwner>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.registration.owner), Arc::as_ptr(owner))
    }

    /// Returns true if `other` is a handle of the same registration.
    #[inline]
    pub fn is_same(&self, other: &MemoryRegion) -> bool {
        Arc::ptr_eq(&self.registration, &other.registration)
    }

    /// Returns the `len` bytes at `offset` as a scatter/gather entry of a work request.
    ///
    /// # Panics
    /// If the range does not lie within the region.
    pub fn segment(&self, offset: usize, len: usize) -> Segment {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.memory.len()), "segment outside its region");
        Segment { region: self.clone(), offset, len }
    }

    /// As [`MemoryRegion::segment`], but consumes the region, so that no count changes.
    ///
    /// # Panics
    /// As [`MemoryRegion::segment`].
    pub(crate) fn into_segment(self, offset: usize, len: usize) -> Segment {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.memory.len()), "segment outside its region");
        Segment { region: self, offset, len }
    }

    /// Returns the handle that the pin-down cache keeps.
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

/// A registration without its memory. Posting work on it requires a handle of the memory.
pub(crate) struct CachedRegion(Arc<Registered>);

impl CachedRegion {
    /// Returns the region, for a caller that holds the memory.
    ///
    /// # Panics
    /// If `memory` is a different memory. Ids are never reused, so this would be a bug of the
    /// cache.
    pub(crate) fn with(&self, memory: &Memory) -> MemoryRegion {
        assert!(self.0.id == memory.id(), "a registration of another memory");
        MemoryRegion { registration: Arc::clone(&self.0), memory: memory.clone() }
    }

    /// Returns true if an operation, an exposure or the program holds the region.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// A scatter/gather entry: a piece of registered memory. It holds its region.
#[derive(Clone, Debug)]
pub struct Segment {
    region: MemoryRegion,
    offset: usize,
    len: usize,
}

impl Segment {
    /// Returns the region that the segment lies in.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Returns the offset in the region, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the segment has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the bytes; see [`Memory::as_ptr`].
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.memory().as_ptr().wrapping_add(self.offset)
    }

    /// Returns this segment and `next` joined into one, if `next` begins where this one ends.
    pub(crate) fn joined(&self, next: &Segment) -> Option<Segment> {
        let adjacent = self.region.is_same(&next.region) && self.offset + self.len == next.offset;
        adjacent.then(|| Segment { region: self.region.clone(), offset: self.offset, len: self.len + next.len })
    }

    /// Returns true if the bytes must not be written ([`Memory::is_read_only`]).
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.region.registration.read_only
    }

    /// Returns the same bytes without the registration.
    pub fn to_slice(&self) -> MemSlice {
        self.region.memory().slice(self.offset, self.len)
    }

    /// Returns the `len` bytes at `offset` of this segment.
    ///
    /// # Panics
    /// If the range does not lie within this segment.
    pub fn slice(&self, offset: usize, len: usize) -> Segment {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "range outside its segment");
        Segment { region: self.region.clone(), offset: self.offset + offset, len }
    }
}

/// Released keys that wait for their transport. This is the usual [`RegionOwner`].
pub type ReleaseQueue = Returns<LocalKey>;

impl RegionOwner for ReleaseQueue {
    fn release(&self, key: LocalKey) {
        self.push(key);
    }
}
