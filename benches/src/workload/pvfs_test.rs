//! `pvfs-test`: all clients write one contiguous region each of one file, at once, and read it
//! back.
//!
//! **Source.** [PVFS-IB §6.3]: "each compute node writes and reads a single contiguous
//! region of size 2N MB, where N is the number of I/O nodes in use"; the program comes with PVFS.
//! Its buffer is the same in every round, so that the rounds after the first find it registered.

use bmi_core::{MemList, Transport};
use fs_client::{CreateOptions, Region};

use super::{Failed, Rank, Span, Workload, fill, pattern};

/// The program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PvfsTest {
    /// Bytes of each client's region.
    pub len: usize,
    /// Into how many blocks the region is cut; those of all clients alternate in the file. 1 is the
    /// program of [PVFS-IB]; [Quadrics-PVFS2] has blocks of 1 MB in one list.
    pub blocks: usize,
    /// Into how many pieces of memory, with gaps between them, each block is cut.
    pub pieces: usize,
    /// Rounds that are measured, after one that is not.
    pub rounds: usize,
}

impl PvfsTest {
    /// The program of [PVFS-IB] with `servers` I/O nodes: 2N MB, three rounds.
    pub fn paper(servers: usize) -> PvfsTest {
        PvfsTest { len: servers * (2 << 20), blocks: 1, pieces: 1, rounds: 3 }
    }
}

/// What each round took.
#[derive(Clone, Debug, Default)]
pub struct Took {
    /// Writing.
    pub write: Vec<Span>,
    /// Reading.
    pub read: Vec<Span>,
}

impl Workload for PvfsTest {
    type Out = Took;

    async fn run<T: Transport + 'static>(&self, rank: Rank<T>) -> Result<Took, Failed> {
        let PvfsTest { len, blocks, pieces, rounds } = *self;
        let path = "/pvfs-test".parse()?;
        let options = CreateOptions { exclusive: false, ..CreateOptions::default() };
        let file = rank.client().create(&path, options).await?;
        let block = len / blocks;
        let at = |index: usize| ((index * rank.count() + rank.number()) * block) as u64;
        let regions: Vec<Region> = (0..blocks).map(|index| Region::new(at(index), block as u64)).collect();
        // A page lies between two pieces, so that they are not one.
        let total = blocks * pieces;
        let (piece, gap) = (block / pieces, if total == 1 { 0 } else { 4096 });
        let buffer = rank.client().memory(total * (piece + gap))?;
        let list: MemList = (0..total).map(|index| buffer.slice(index * (piece + gap), piece)).collect();
        let expected: Vec<u8> = (0..blocks).flat_map(|index| pattern(at(index), block)).collect();
        let nothing = vec![0; len];
        let mut took = Took::default();
        for round in 0..=rounds {
            fill(&list, &expected);
            let write = rank.timed(file.write_list(&regions, list.clone())).await?;
            fill(&list, &nothing);
            let read = rank.timed(async { file.read_list(&regions, list.clone()).await.map(drop) }).await?;
            if list.to_vec() != expected {
                return Err(format!("round {round}: what was read is not what was written").into());
            }
            // The first makes connections, registrations and buffers.
            if round > 0 {
                took.write.push(write);
                took.read.push(read);
            }
        }
        rank.barrier().await?;
        Ok(took)
    }
}
