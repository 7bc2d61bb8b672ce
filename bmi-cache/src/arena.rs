//! stub
use bmi_core::{Error, MemSlice, Memory};
use std::ops::Range;
use std::sync::{Arc, Mutex};
/// x
pub const FRAME: usize = 4096;
/// x
pub const BLOCK: usize = 64 << 10;
/// x
pub const MOST_RANGES: usize = 3;
/// x
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaSettings {
    /// x
    pub bytes: u64,
    /// x
    pub chunk: usize,
}
/// x
#[derive(Clone)]
pub struct Frames(Arc<Mutex<(Vec<Memory>, std::collections::BTreeMap<Place, Record>)>>, ArenaSettings);
impl Frames {
    /// x
    pub fn anonymous(settings: ArenaSettings) -> Result<Frames, Error> {
        Ok(Frames(Arc::default(), settings))
    }
}
/// x
pub struct Arena(Frames, Vec<Memory>);
/// x
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// x
    pub frame: u32,
    /// x
    pub frames: u8,
}
/// x
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges(Vec<Range<u32>>);
impl Ranges {
    pub(crate) fn of(ranges: &[Range<u32>]) -> Ranges {
        Ranges(ranges.to_vec())
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u32>> {
        self.0.iter().cloned()
    }
}
/// x
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// x
    pub file: u64,
    /// x
    pub at: u64,
    /// x
    pub dirty: Ranges,
}
/// x
pub struct Recovered {
    /// x
    pub place: Place,
    /// x
    pub record: Record,
}
impl Arena {
    /// x
    pub fn adopt(frames: Frames) -> (Arena, Vec<Recovered>) {
        let known = frames.0.lock().unwrap().0.clone();
        let rec = frames.0.lock().unwrap().1.iter().map(|(p, r)| Recovered { place: *p, record: r.clone() }).collect();
        (Arena(frames, known), rec)
    }
    /// x
    pub fn max_blocks(&self) -> u32 {
        (self.0.1.bytes / BLOCK as u64) as u32
    }
    /// x
    pub fn chunk_bytes(&self) -> usize {
        self.0.1.chunk
    }
    /// x
    pub fn blocks(&self) -> u32 {
        (self.1.len() * self.0.1.chunk / BLOCK) as u32
    }
    /// x
    pub fn grow(&mut self) -> Result<bool, Error> {
        if self.blocks() >= self.max_blocks() {
            return Ok(false);
        }
        let m = Memory::sparse(self.0.1.chunk)?;
        self.0.0.lock().unwrap().0.push(m.clone());
        self.1.push(m);
        Ok(true)
    }
    /// x
    pub fn chunk_of(&self, place: Place) -> usize {
        place.frame as usize * FRAME / self.0.1.chunk
    }
    /// x
    pub fn chunk(&self, index: usize) -> &Memory {
        &self.1[index]
    }
    /// x
    pub fn slice(&self, place: Place, at: u32, len: u32) -> MemSlice {
        let c = self.0.1.chunk;
        self.1[self.chunk_of(place)].slice(place.frame as usize * FRAME % c + at as usize, len as usize)
    }
    /// x
    pub fn record(&mut self, place: Place, record: Option<&Record>) {
        let mut g = self.0.0.lock().unwrap();
        match record {
            Some(r) => {
                g.1.insert(place, r.clone());
            }
            None => {
                g.1.remove(&place);
            }
        }
    }
}
