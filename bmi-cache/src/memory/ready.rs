//! Which chunks of the arena stay registered with the adapters (*Ready*), and which are registered
//! when an operation needs them (*Raw*).
//!
//! An endpoint keeps the registrations of Raw chunks in its pin-down cache, and ends them in
//! batches. Chunks that are used much become Ready; if there is no room, they take the place of
//! Ready chunks that are used little.
//!
//! **Source.** [Unifier-PVFS §4.4.3]. There the two groups are fixed.

use std::collections::BTreeMap;

use bmi_core::{Memory, MemoryRegion};

use super::arena::{Arena, BLOCK};
use crate::ranges::steps;

/// Uses between two ticks that make a chunk Ready if there is room.
const WARM: u32 = 8;

/// The chunks of an arena.
#[derive(Debug)]
pub(crate) struct Readiness {
    chunks: Vec<ChunkUse>,
    /// Most chunks that are Ready.
    most: usize,
    /// Changes whenever a chunk becomes Ready or Raw, or is new.
    version: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct ChunkUse {
    ready: bool,
    /// Uses, halved at every tick.
    heat: u32,
}

impl Readiness {
    pub(crate) fn new(arena: &Arena, bytes: u64) -> Readiness {
        let chunk = arena.chunk_bytes();
        let all = (u64::from(arena.max_blocks()) * BLOCK as u64 / chunk as u64) as usize;
        let most = ((bytes / chunk as u64) as usize).min(all);
        let mut chunks = vec![ChunkUse::default(); all];
        chunks[..most].iter_mut().for_each(|chunk| chunk.ready = true);
        Readiness { chunks, most, version: 1 }
    }

    pub(crate) fn used(&mut self, chunk: usize) {
        let heat = &mut self.chunks[chunk].heat;
        *heat = heat.saturating_add(1);
    }

    pub(crate) fn is_ready(&self, chunk: usize) -> bool {
        self.chunks[chunk].ready
    }

    /// The arena has grown.
    pub(crate) fn grown(&mut self) {
        self.version += 1;
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Exchanges at most one chunk, and forgets older uses.
    pub(crate) fn tick(&mut self) {
        let by = |ready: bool| self.chunks.iter().enumerate().filter(move |(_, chunk)| chunk.ready == ready);
        let heat = |found: Option<(usize, &ChunkUse)>| found.map(|(at, chunk)| (at, chunk.heat));
        let hottest = heat(by(false).max_by_key(|(_, chunk)| chunk.heat));
        let coldest = heat(by(true).min_by_key(|(_, chunk)| chunk.heat));
        let has_room = by(true).count() < self.most;
        match (hottest, coldest) {
            (Some((hot, heat)), _) if has_room && heat >= WARM => self.exchange(hot, None),
            (Some((hot, heat)), Some((cold, least))) if heat >= WARM && heat / 2 > least => {
                self.exchange(hot, Some(cold));
            }
            _ => {}
        }
        steps(4 * self.chunks.len());
        self.chunks.iter_mut().for_each(|chunk| chunk.heat /= 2);
    }

    fn exchange(&mut self, hot: usize, cold: Option<usize>) {
        self.chunks[hot].ready = true;
        if let Some(cold) = cold {
            self.chunks[cold].ready = false;
        }
        self.version += 1;
    }
}

/// The registrations of the Ready chunks with one adapter. Keep one for each endpoint.
#[derive(Debug, Default)]
pub struct ReadyRegions {
    version: u64,
    regions: BTreeMap<usize, MemoryRegion>,
    refused: bool,
}

impl ReadyRegions {
    /// Registers and deregisters chunks until they are those that are Ready now. Does nothing if
    /// nothing has changed. If the adapter refuses one, the rest stay Raw: endpoints register them
    /// when they need them.
    pub(crate) fn update<E: std::fmt::Display>(
        &mut self,
        version: u64,
        ready: impl FnOnce() -> Vec<(usize, Memory)>,
        mut register: impl FnMut(&Memory) -> Result<MemoryRegion, E>,
    ) {
        if self.version == version {
            return;
        }
        self.version = version;
        let ready: BTreeMap<usize, Memory> = ready().into_iter().collect();
        self.regions.retain(|chunk, _| ready.contains_key(chunk));
        for (chunk, memory) in ready {
            if self.regions.contains_key(&chunk) {
                continue;
            }
            match register(&memory) {
                Ok(region) => {
                    self.regions.insert(chunk, region);
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.refused, true) {
                        tracing::warn!(%error, registered = self.regions.len(), "an adapter registers no more of the cache");
                    }
                    break;
                }
            }
        }
    }

    /// Returns the number of chunks that are registered.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns true if none is.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::arena::{ArenaSettings, Frames};

    fn readiness(chunks: u64, ready: u64) -> Readiness {
        let settings = ArenaSettings { bytes: chunks << 20, chunk: 1 << 20 };
        let (arena, _) = Arena::adopt(Frames::anonymous(settings).unwrap());
        Readiness::new(&arena, ready << 20)
    }

    #[test]
    fn a_hot_chunk_takes_the_place_of_a_cold_one() {
        let mut readiness = readiness(4, 2);
        let ready = |readiness: &Readiness| [0, 1, 2, 3].map(|chunk| readiness.is_ready(chunk));
        assert_eq!(ready(&readiness), [true, true, false, false]);
        (0..WARM).for_each(|_| readiness.used(0));
        (0..WARM - 1).for_each(|_| readiness.used(3));
        readiness.tick();
        assert_eq!((ready(&readiness), readiness.version()), ([true, true, false, false], 1), "not hot enough");
        (0..3 * WARM).for_each(|_| readiness.used(3));
        readiness.tick();
        assert_eq!((ready(&readiness), readiness.version()), ([true, false, false, true], 2));
        readiness.tick();
        assert_eq!(readiness.version(), 2, "nothing else is used");
    }
}
