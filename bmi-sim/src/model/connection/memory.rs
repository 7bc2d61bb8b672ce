//! Registered and exposed memory of a simulated adapter, and the copies that model its DMA.

use std::collections::BTreeMap;
use std::sync::Arc;

use bmi_core::mem::{LocalKey, ReleaseQueue};
use bmi_core::{Access, RemoteKey, RemoteSlice, Segment};

use crate::rng::Rng;

/// The memory that one connection's peer may access.
#[derive(Debug, Default)]
pub(crate) struct Exposures(BTreeMap<u64, (Segment, Access)>);

impl Exposures {
    /// Exposes `segment` under a fresh key. Addresses count from the beginning of the region.
    pub(crate) fn insert(&mut self, keys: &mut Rng, segment: &Segment, access: Access) -> RemoteSlice {
        let mut key = keys.next_u64();
        while self.0.contains_key(&key) {
            key = keys.next_u64();
        }
        self.0.insert(key, (segment.clone(), access));
        RemoteSlice { key: RemoteKey(key), addr: segment.offset() as u64, len: segment.len() as u64 }
    }

    pub(crate) fn remove(&mut self, key: RemoteKey) {
        self.0.remove(&key.0);
    }

    /// Returns the bytes that a peer asks for, if it may access them.
    ///
    /// # Errors
    /// The reason for the refusal, in words.
    pub(crate) fn check(&self, remote: RemoteSlice, len: u64, write: bool) -> Result<(&Segment, usize), &'static str> {
        let (segment, access) = self.0.get(&remote.key.0).ok_or("unknown key")?;
        if !(if write { access.remote_write } else { access.remote_read }) {
            return Err(if write { "no right to write" } else { "no right to read" });
        }
        let start = remote.addr.checked_sub(segment.offset() as u64).ok_or("out of bounds")?;
        let end = start.checked_add(len).ok_or("out of bounds")?;
        if end > segment.len() as u64 {
            return Err("out of bounds");
        }
        // The range is within a segment, so it fits.
        Ok((segment, start as usize))
    }

    /// Returns where a message names memory that is exposed here, and up to which address that
    /// reaches.
    pub(crate) fn keys_in(&self, message: &[u8]) -> Vec<(usize, usize)> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let words = message.windows(8).enumerate();
        let keys = words.filter_map(|(at, word)| {
            let (segment, _) = self.0.get(&u64::from_le_bytes(word.try_into().ok()?))?;
            Some((at, segment.offset() + segment.len()))
        });
        keys.collect()
    }
}

/// The registrations of one transport.
#[derive(Debug)]
pub(crate) struct Registrations {
    pub(crate) owner: Arc<ReleaseQueue>,
    pub(crate) live: usize,
    pub(crate) next_key: u64,
    /// Number of registrations that fail before the next one succeeds.
    pub(crate) failing: usize,
}

impl Registrations {
    pub(crate) fn new() -> Registrations {
        Registrations { owner: Arc::new(ReleaseQueue::default()), live: 0, next_key: 1, failing: 0 }
    }

    /// Returns a key that no other region has. The key contains the number of pages of its region,
    /// so that releasing needs no table.
    pub(crate) fn fresh_key(&mut self, pages: u64) -> LocalKey {
        self.next_key += 1;
        LocalKey(self.next_key << Self::PAGE_BITS | pages.min((1 << Self::PAGE_BITS) - 1))
    }

    /// Returns the number of pages of the region with that key.
    pub(crate) fn pages(key: LocalKey) -> u64 {
        key.0 & ((1 << Self::PAGE_BITS) - 1)
    }

    /// Enough for regions of 4 TiB and 2^34 registrations.
    const PAGE_BITS: u32 = 30;

    /// Collects the released registrations. The caller empties `released`.
    pub(crate) fn collect(&mut self, released: &mut Vec<LocalKey>) {
        self.owner.drain(released);
        self.live -= released.len();
    }
}

/// The position of a scatter: a list of segments, filled from the front.
struct Scatter<'a> {
    segments: &'a [Segment],
    offset: usize,
}

impl Scatter<'_> {
    /// Returns the next piece of at most `len` bytes: its segment, its offset in the segment, its
    /// length. Empty segments are skipped.
    fn next(&mut self, len: usize) -> Option<(&Segment, usize, usize)> {
        while self.segments.first().is_some_and(|first| self.offset == first.len()) {
            self.segments = &self.segments[1..];
            self.offset = 0;
        }
        let first = self.segments.first()?;
        let at = self.offset;
        let piece = len.min(first.len() - at);
        self.offset += piece;
        Some((first, at, piece))
    }
}

/// Copies `head`, then the bytes of `from`, to the segments `to`, beginning at `skip` bytes of the
/// first. Bytes that do not fit are left out; the caller has checked the lengths.
pub(crate) fn copy(head: &[u8], from: &[Segment], to: &[Segment], skip: usize) {
    let mut scatter = Scatter { segments: to, offset: skip };
    let mut rest = head;
    while !rest.is_empty() {
        let Some((segment, at, len)) = scatter.next(rest.len()) else { return };
        segment.region().memory().copy_from(segment.offset() + at, &rest[..len]);
        rest = &rest[len..];
    }
    for source in from {
        let mut done = 0;
        while done < source.len() {
            let Some((segment, at, len)) = scatter.next(source.len() - done) else { return };
            let target = segment.region().memory().slice(segment.offset() + at, len);
            target.copy_from_slice_of(&source.region().memory().slice(source.offset() + done, len));
            done += len;
        }
    }
}

/// Copies the `len` bytes at `at` of `from` to `to`.
pub(crate) fn copy_out_of(from: &Segment, at: usize, len: usize, to: &[Segment]) {
    copy(&[], std::slice::from_ref(&from.slice(at, len)), to, 0);
}

#[cfg(test)]
mod tests {
    use bmi_core::{Memory, MemoryRegion};
    use proptest::prelude::*;

    use super::*;
    use crate::rng::Rng;

    fn region(bytes: Vec<u8>) -> MemoryRegion {
        MemoryRegion::new(Memory::from(bytes), LocalKey(0), Arc::new(ReleaseQueue::default()))
    }

    /// Returns segments of the given lengths, with a gap of one byte between them.
    fn segments(region: &MemoryRegion, lens: &[usize]) -> Vec<Segment> {
        let mut at = 0;
        lens.iter()
            .map(|len| {
                let segment = region.segment(at, *len);
                at += len + 1;
                segment
            })
            .collect()
    }

    proptest! {
        #[test]
        fn any_gather_fills_any_scatter(
            head in proptest::collection::vec(any::<u8>(), 0..20),
            from in proptest::collection::vec(0usize..20, 0..6),
            to in proptest::collection::vec(0usize..20, 0..6),
        ) {
            let source = region((0..=255).collect());
            let target = region(vec![0xee; 256]);
            let (from, to) = (segments(&source, &from), segments(&target, &to));
            copy(&head, &from, &to, 0);
            let mut message: Vec<u8> = head.clone();
            message.extend(from.iter().flat_map(|segment| segment.to_slice().to_vec()));
            let got: Vec<u8> = to.iter().flat_map(|segment| segment.to_slice().to_vec()).collect();
            let fits = message.len().min(got.len());
            prop_assert_eq!(&got[..fits], &message[..fits]);
            prop_assert!(got[fits..].iter().all(|byte| *byte == 0xee));
        }
    }

    #[test]
    fn exposures_check_key_rights_and_bounds() {
        let memory = region(vec![0; 100]);
        let mut exposures = Exposures::default();
        let slice = exposures.insert(&mut Rng::new(1), &memory.segment(10, 50), Access::READ);
        assert!(exposures.check(slice, 50, false).is_ok());
        assert!(exposures.check(slice, 0, true).is_err(), "a zero-length access is checked like any other");
        for (addr, len) in
            [(slice.addr - 1, 1), (slice.addr, 51), (slice.addr + 50, 1), (u64::MAX, 2), (slice.addr, u64::MAX)]
        {
            assert_eq!(exposures.check(RemoteSlice { addr, ..slice }, len, false).unwrap_err(), "out of bounds");
        }
        exposures.remove(slice.key);
        assert_eq!(exposures.check(slice, 0, false).unwrap_err(), "unknown key");
    }
}
