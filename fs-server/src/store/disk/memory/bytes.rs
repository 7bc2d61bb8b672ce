//! The bytes of a file in memory, and what the disk has where that differs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fs_proto::{Allocation, Sought};

use crate::store::{Fates, SECTOR};

/// Size of one allocation, in bytes. Bytes that were never written cost no memory.
pub(super) const CHUNK: u64 = 64 << 10;
/// Bytes of a sector.
const SECTOR64: u64 = SECTOR as u64;
/// Bytes of a page, as a system keeps and writes them.
const PAGE: u64 = 4096;
/// Most contents of a sector that are kept while it is not synced.
const VERSIONS: usize = 4;

/// What is kept of the earlier contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Nothing: every change is on the disk at once.
    Nothing,
    /// What the disk has.
    Synced,
    /// That, and each content of a sector since.
    Each,
}

/// A file: what a program sees of it, and what a power failure may leave.
#[derive(Clone, Debug, Default)]
pub(super) struct Bytes {
    pub(super) len: u64,
    pub(super) mtime_ns: u64,
    pub(super) note: u64,
    chunks: BTreeMap<u64, Box<[u8]>>,
    /// What the disk has. `None` if that is what a program sees.
    before: Option<Before>,
}

/// What the disk has of a file, where it may differ.
#[derive(Clone, Debug)]
struct Before {
    len: u64,
    note: u64,
    /// The contents of a sector before its last change, the one of the disk first.
    sectors: BTreeMap<u64, Vec<Box<[u8]>>>,
    /// The sectors that a failed sync did not write, and that no sync will write.
    dropped: BTreeSet<u64>,
    /// The note was changed before the length.
    note_first: bool,
}

impl Bytes {
    /// Returns the space that it takes.
    pub(super) fn space(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK
    }

    fn sector(&self, sector: u64) -> Box<[u8]> {
        let at = sector * SECTOR64;
        let (chunk, within) = (at / CHUNK, (at % CHUNK) as usize);
        let bytes = self.chunks.get(&chunk).map_or(&[0; SECTOR][..], |bytes| &bytes[within..within + SECTOR]);
        bytes.into()
    }

    fn set_sector(&mut self, sector: u64, bytes: &[u8]) {
        let at = sector * SECTOR64;
        let chunk = self.chunks.entry(at / CHUNK).or_insert_with(|| vec![0; CHUNK as usize].into());
        chunk[(at % CHUNK) as usize..][..SECTOR].copy_from_slice(bytes);
    }

    fn before(&mut self) -> &mut Before {
        let (len, note) = (self.len, self.note);
        self.before.get_or_insert_with(|| Before {
            len,
            note,
            sectors: BTreeMap::new(),
            dropped: BTreeSet::new(),
            note_first: false,
        })
    }

    /// Keeps what is about to be changed: these bytes, and the length.
    fn keep(&mut self, bytes: Range<u64>, keep: Keep) {
        if keep == Keep::Nothing {
            return;
        }
        self.before();
        let Some(mut before) = self.before.take() else { return };
        for sector in bytes.start / SECTOR64..bytes.end.div_ceil(SECTOR64) {
            let contents = before.sectors.entry(sector).or_default();
            if contents.is_empty() || keep == Keep::Each && contents.len() < VERSIONS {
                contents.push(self.sector(sector));
            }
            before.dropped.remove(&sector);
        }
        self.before = Some(before);
    }

    /// Writes bytes, of which there is room for `room` new chunks. Returns how many were written.
    pub(super) fn write(&mut self, offset: u64, from: &[u8], mut room: u64, keep: Keep) -> usize {
        let mut done = 0;
        while done < from.len() {
            let at = offset + done as u64;
            let (chunk, within) = (at / CHUNK, (at % CHUNK) as usize);
            let len = (from.len() - done).min(CHUNK as usize - within);
            if !self.chunks.contains_key(&chunk) {
                if room == 0 {
                    break;
                }
                room -= 1;
            }
            self.keep(at..at + len as u64, keep);
            let bytes = self.chunks.entry(chunk).or_insert_with(|| vec![0; CHUNK as usize].into());
            bytes[within..within + len].copy_from_slice(&from[done..done + len]);
            done += len;
            self.len = self.len.max(at + len as u64);
        }
        done
    }

    /// Changes the space of a range, of which there is room for `room` new chunks. Returns false if
    /// that is not enough.
    pub(super) fn allocate(&mut self, range: Range<u64>, how: Allocation, mut room: u64, keep: Keep) -> bool {
        self.keep(0..0, keep);
        if !matches!(how, Allocation::Reserve { .. }) {
            let (first, last) = (range.start / CHUNK, range.end.div_ceil(CHUNK));
            let chunks: Vec<u64> = self.chunks.range(first..last).map(|(chunk, _)| *chunk).collect();
            for chunk in chunks {
                let (from, to) = (range.start.max(chunk * CHUNK), range.end.min((chunk + 1) * CHUNK));
                self.keep(from..to, keep);
                if to - from == CHUNK {
                    self.chunks.remove(&chunk);
                    room += 1;
                } else if let Some(bytes) = self.chunks.get_mut(&chunk) {
                    bytes[(from - chunk * CHUNK) as usize..(to - chunk * CHUNK) as usize].fill(0);
                }
            }
        }
        let (Allocation::Reserve { grows } | Allocation::Zeros { grows }) = how else { return true };
        let end = if grows { range.end.max(self.len) } else { self.len };
        // Space behind the end is not modelled.
        for chunk in range.start / CHUNK..range.end.min(end).div_ceil(CHUNK) {
            if self.chunks.contains_key(&chunk) {
                continue;
            }
            if room == 0 {
                return false;
            }
            room -= 1;
            self.chunks.insert(chunk, vec![0; CHUNK as usize].into());
        }
        self.len = end;
        true
    }

    /// Returns where the first chunk that exists begins, or the first one that does not, from
    /// `offset` on, before the end.
    pub(super) fn seek(&self, offset: u64, what: Sought) -> Option<u64> {
        let first = offset / CHUNK;
        let chunk = match what {
            Sought::Data => self.chunks.range(first..).next().map(|(chunk, _)| *chunk)?,
            Sought::Hole => {
                let exist = self.chunks.range(first..).zip(first..).take_while(|((chunk, _), next)| *chunk == next);
                first + exist.count() as u64
            }
        };
        let found = (chunk * CHUNK).max(offset);
        match what {
            Sought::Data => Some(found),
            Sought::Hole => Some(found.min(self.len)),
        }
        .filter(|_| offset < self.len)
    }

    /// Reads bytes. Returns how many there are.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let len = (into.len() as u64).min(self.len.saturating_sub(offset)) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % CHUNK) as usize;
            let part = &mut into[done..len.min(done + CHUNK as usize - within)];
            match self.chunks.get(&(at / CHUNK)) {
                Some(bytes) => part.copy_from_slice(&bytes[within..within + part.len()]),
                None => part.fill(0),
            }
            done += part.len();
        }
        len
    }

    /// Sets the length.
    pub(super) fn set_len(&mut self, len: u64, keep: Keep) {
        self.keep(len..self.len.min(self.end()).max(len), keep);
        self.len = len;
        self.cut();
    }

    pub(super) fn set_note(&mut self, note: u64, keep: Keep) {
        self.keep(0..0, keep);
        let len = self.len;
        if let Some(before) = &mut self.before {
            before.note_first |= before.len == len;
        }
        self.note = note;
    }

    /// Returns the end of the last chunk.
    fn end(&self) -> u64 {
        self.chunks.last_key_value().map_or(0, |(chunk, _)| (chunk + 1) * CHUNK)
    }

    /// Bytes behind the end are zeros, whatever the sectors contain.
    fn cut(&mut self) {
        self.chunks.split_off(&self.len.div_ceil(CHUNK));
        if let Some(last) = self.chunks.get_mut(&(self.len / CHUNK)) {
            last[(self.len % CHUNK) as usize..].fill(0);
        }
    }

    /// Writes everything to the disk, with the note if `whole` is set or the length has changed.
    pub(super) fn sync(&mut self, whole: bool) {
        let (len, note) = (self.len, self.note);
        let Some(before) = &mut self.before else { return };
        let Before { sectors, dropped, .. } = before;
        sectors.retain(|sector, _| dropped.contains(sector));
        if whole || before.len != len {
            (before.note, before.note_first) = (note, false);
        }
        before.len = len;
        if before.sectors.is_empty() && (before.len, before.note) == (len, note) {
            self.before = None;
        }
    }

    /// A sync has failed: the system forgets that it has bytes to write. It keeps the length, which
    /// is in its journal.
    pub(super) fn drop_unsynced(&mut self) {
        let Some(before) = &mut self.before else { return };
        before.dropped.extend(before.sectors.keys());
    }

    /// Reads from the disk again what a failed sync has dropped, page by page.
    pub(super) fn read_again(&mut self) {
        let Some(before) = &mut self.before else { return };
        let written = |sector: u64| before.sectors.contains_key(&sector) && !before.dropped.contains(&sector);
        let is_dirty = |sector: u64| {
            let first = sector * SECTOR64 / PAGE * (PAGE / SECTOR64);
            (first..first + PAGE / SECTOR64).any(written)
        };
        let again: Vec<u64> = before.dropped.iter().copied().filter(|sector| !is_dirty(*sector)).collect();
        if again.is_empty() {
            return;
        }
        for sector in again {
            let before = self.before();
            before.dropped.remove(&sector);
            if let Some(old) = before.sectors.remove(&sector) {
                self.set_sector(sector, &old[0]);
            }
        }
        self.cut();
    }

    /// Fails the power. `fates` decides what is left.
    pub(super) fn power_fails(&mut self, fates: &mut dyn Fates) {
        let Some(before) = self.before.take() else { return };
        let note_kept = self.note == before.note || fates.keeps();
        if !note_kept {
            self.note = before.note;
        }
        if self.len != before.len && (before.note_first && !note_kept || !fates.keeps()) {
            self.len = before.len;
        }
        for (sector, contents) in before.sectors {
            let mut now = self.sector(sector);
            let last = fates.content(contents.len() + 1);
            if let Some(earlier) = contents.get(last) {
                now.copy_from_slice(earlier);
            }
            if *now != *contents[0] {
                fates.sector(&contents[0], &mut now);
            }
            self.set_sector(sector, &now);
        }
        self.cut();
    }
}
