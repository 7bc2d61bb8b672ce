//! Random reads and writes of one file, and lists.
//!
//! ```text
//!   in the file     [4K]............[4K]............[4K] …     a piece each 16 KiB, on all servers
//!   in memory       [4K]....[4K]....[4K] …                     a piece each 8 KiB
//! ```

use std::cell::Cell;

use benches::workload::Failed;
use bmi_core::comm::Direction;
use bmi_core::{MemList, Memory};
use fs_client::{Client, CreateOptions, File, Region};

use crate::content::{self, BLOCK, Checker, Generation};
use crate::line::{ALL, Random, What};
use crate::load::{Offsets, repeat};
use crate::round::Round;

/// The number of pieces of a list.
pub(crate) const LIST_PIECES: usize = 64;
/// The bytes of a piece.
pub(crate) const LIST_PIECE: usize = BLOCK;
/// The distance from the beginning of a piece to the beginning of the next one.
const LIST_STRIDE_IN_FILE: u64 = 4 * BLOCK as u64;
const LIST_STRIDE_IN_MEMORY: usize = 2 * BLOCK;
/// The distance from the beginning of a list's first piece to the next place for a list.
const LIST_SPAN: u64 = LIST_PIECES as u64 * LIST_STRIDE_IN_FILE;

/// The bytes of one request when the file is filled and when it is checked.
const UNIT: usize = 4 << 20;

/// Measures the chosen lines.
///
/// # Errors
/// If an operation fails, or the data that is read is not what was written.
pub(crate) async fn measure(round: &mut Round<'_>) -> Result<(), Failed> {
    let is_data = |what: &What| matches!(what, What::Random(_) | What::List(_));
    let wanted: Vec<What> = ALL.into_iter().filter(is_data).filter(|what| round.wants_any(&[*what])).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let client = round.client.clone();
    let mut target = Target::fill(&client, round.settings.file).await?;
    for what in wanted {
        match what {
            What::Random(random) => target.random(round, what, random).await?,
            What::List(direction) => target.list(round, what, direction).await?,
            _ => {}
        }
    }
    target.check_all().await
}

/// The file, and the expected content of each of its blocks.
struct Target<'a> {
    client: &'a Client,
    file: File,
    len: u64,
    generations: Vec<Cell<Generation>>,
    newest: Generation,
    checker: Checker,
}

/// A sequence of calls that use the same memory.
struct Lane {
    memory: Memory,
    offsets: Offsets,
    /// The offset of the last read.
    last: Option<u64>,
}

/// As [`Lane`], for lists.
struct ListLane {
    memory: Memory,
    pieces: MemList,
    regions: Vec<Region>,
    offsets: Offsets,
    last: Option<u64>,
}

impl<'a> Target<'a> {
    /// Creates a file of `len` bytes, a multiple of [`UNIT`].
    async fn fill(client: &'a Client, len: u64) -> Result<Target<'a>, Failed> {
        let file = client.create(&"/data".parse()?, CreateOptions::default()).await?;
        let memory = client.memory(UNIT)?;
        memory.copy_from(0, &content::blanks(UNIT / BLOCK));
        for offset in (0..len).step_by(UNIT) {
            content::place(&memory, 0, UNIT / BLOCK, offset, 0);
            file.write_at(offset, &memory).await?;
        }
        let generations = vec![Cell::new(0); usize::try_from(len)? / BLOCK];
        Ok(Target { client, file, len, generations, newest: 0, checker: Checker::new() })
    }

    fn generation(&self, offset: u64) -> &Cell<Generation> {
        &self.generations[(offset / BLOCK as u64) as usize]
    }

    /// Compares the bytes at `at` of a memory with those of the file from `offset` on.
    fn check(&self, memory: &Memory, at: usize, len: usize, offset: u64) -> Result<(), Failed> {
        let bytes = memory.slice(at, len).to_vec();
        self.checker.check(&bytes, offset, |offset| self.generation(offset).get())?;
        Ok(())
    }

    /// Compares the whole file.
    async fn check_all(&self) -> Result<(), Failed> {
        let memory = self.client.memory(UNIT)?;
        for offset in (0..self.len).step_by(UNIT) {
            full(self.file.read_at(offset, &memory).await?, UNIT)?;
            self.check(&memory, 0, UNIT, offset)?;
        }
        Ok(())
    }

    async fn random(&mut self, round: &mut Round<'_>, what: What, random: Random) -> Result<(), Failed> {
        let Random { direction, size, in_flight } = random;
        let lane = |number: usize| {
            let memory = self.client.memory(size)?;
            memory.copy_from(0, &content::blanks(size / BLOCK));
            Ok(Lane { memory, offsets: Offsets::new(number as u64, self.len, size as u64), last: None })
        };
        let mut lanes = (0..in_flight).map(lane).collect::<Result<Vec<_>, Failed>>()?;
        self.newest += 1;
        let step = async |lane: &mut Lane| {
            let offset = lane.offsets.draw();
            match direction {
                Direction::Read => {
                    full(self.file.read_at(offset, &lane.memory).await?, size)?;
                    lane.last = Some(offset);
                }
                Direction::Write => {
                    content::place(&lane.memory, 0, size / BLOCK, offset, self.newest);
                    self.file.write_at(offset, &lane.memory).await?;
                    for block in (offset..offset + size as u64).step_by(BLOCK) {
                        self.generation(block).set(self.newest);
                    }
                }
            }
            Ok(true)
        };
        repeat(self.client, round.warm_up(), &mut lanes, step).await?;
        round.begin(what);
        let times = repeat(self.client, round.time(), &mut lanes, step).await?;
        round.note(what, times.figure());
        for lane in &lanes {
            if let Some(offset) = lane.last {
                self.check(&lane.memory, 0, size, offset)?;
            }
        }
        Ok(())
    }

    async fn list(&mut self, round: &mut Round<'_>, what: What, direction: Direction) -> Result<(), Failed> {
        let memory = self.client.memory(LIST_PIECES * LIST_STRIDE_IN_MEMORY)?;
        memory.copy_from(0, &content::blanks(memory.len() / BLOCK));
        let piece = |number: usize| memory.slice(number * LIST_STRIDE_IN_MEMORY, LIST_PIECE);
        let pieces = (0..LIST_PIECES).map(piece).collect();
        let regions = vec![Region::new(0, LIST_PIECE as u64); LIST_PIECES];
        let offsets = Offsets::new(0, self.len, LIST_SPAN);
        let mut lanes = [ListLane { memory: memory.clone(), pieces, regions, offsets, last: None }];
        self.newest += 1;
        let step = async |lane: &mut ListLane| {
            let offset = lane.offsets.draw();
            for (region, offset) in lane.regions.iter_mut().zip(list_offsets(offset)) {
                region.offset = offset;
            }
            match direction {
                Direction::Read => {
                    let read = self.file.read_list(&lane.regions, lane.pieces.clone()).await?;
                    full(read, LIST_PIECES * LIST_PIECE)?;
                    lane.last = Some(offset);
                }
                Direction::Write => {
                    for (number, region) in lane.regions.iter().enumerate() {
                        content::place(&lane.memory, number * LIST_STRIDE_IN_MEMORY, 1, region.offset, self.newest);
                        self.generation(region.offset).set(self.newest);
                    }
                    self.file.write_list(&lane.regions, lane.pieces.clone()).await?;
                }
            }
            Ok(true)
        };
        repeat(self.client, round.warm_up(), &mut lanes, step).await?;
        round.begin(what);
        let times = repeat(self.client, round.time(), &mut lanes, step).await?;
        round.note(what, (LIST_PIECES * LIST_PIECE) as f64 / times.figure());
        if let Some(offset) = lanes[0].last {
            for (number, offset) in list_offsets(offset).enumerate() {
                self.check(&memory, number * LIST_STRIDE_IN_MEMORY, LIST_PIECE, offset)?;
            }
        }
        Ok(())
    }
}

/// Returns the offsets in the file of the pieces of a list that begins at `offset`.
fn list_offsets(offset: u64) -> impl Iterator<Item = u64> {
    (0..LIST_PIECES as u64).map(move |number| offset + number * LIST_STRIDE_IN_FILE)
}

/// Checks that a read is not short. A read within the file never is.
fn full(read: u64, size: usize) -> Result<(), Failed> {
    if read == size as u64 { Ok(()) } else { Err(format!("a read of {size} bytes brought {read}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_list_lie_within_the_file_and_apart() {
        for len in [LIST_SPAN, 16 << 20, 256 << 20] {
            let mut offsets = Offsets::new(7, len, LIST_SPAN);
            for _ in 0..1000 {
                let pieces: Vec<u64> = list_offsets(offsets.draw()).collect();
                assert_eq!(pieces.len(), LIST_PIECES);
                assert!(pieces.windows(2).all(|two| two[0] + LIST_PIECE as u64 <= two[1]));
                assert!(pieces[LIST_PIECES - 1] + LIST_PIECE as u64 <= len);
            }
        }
    }
}
