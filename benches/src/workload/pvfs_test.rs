//! `pvfs-test`: each client writes one contiguous region of a file, all at the same time, and reads
//! it back.
//!
//! **Source.** [PVFS-IB §6.3]: "each compute node writes and reads a single contiguous region of
//! size 2N MB, where N is the number of I/O nodes in use". The program is part of PVFS. Its buffer
//! is the same in every round, so it is registered in all rounds after the first.

use bmi::MemList;
use fs_client::{CreateOptions, Region};

use super::{Failed, Rank, Span, Workload, fill, pattern};

/// The program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PvfsTest {
    /// The bytes of each client's region.
    pub len: usize,
    /// The number of blocks of a region. The blocks of all clients alternate in the file. 1 is the
    /// program of [PVFS-IB]; [Quadrics-PVFS2] has blocks of 1 MB in one list.
    pub blocks: usize,
    /// The number of pieces of memory of each block, with gaps between them.
    pub pieces: usize,
    /// The number of rounds that are measured. One round before them is not measured.
    pub rounds: usize,
}

impl PvfsTest {
    /// Returns the program of [PVFS-IB] with `servers` I/O nodes: 2N MB, three rounds.
    pub fn paper(servers: usize) -> PvfsTest {
        PvfsTest { len: servers * (2 << 20), blocks: 1, pieces: 1, rounds: 3 }
    }
}

/// The duration of each round.
#[derive(Clone, Debug, Default)]
pub struct Took {
    /// The spans of writing.
    pub write: Vec<Span>,
    /// The spans of reading.
    pub read: Vec<Span>,
}

impl Workload for PvfsTest {
    type Out = Took;

    async fn run(&self, rank: Rank) -> Result<Took, Failed> {
        let PvfsTest { len, blocks, pieces, rounds } = *self;
        let path = "/pvfs-test".parse()?;
        let options = CreateOptions { exclusive: false, ..CreateOptions::default() };
        let file = rank.client().create(&path, options).await?;
        let block = len / blocks;
        let at = |index: usize| ((index * rank.count() + rank.number()) * block) as u64;
        let regions: Vec<Region> = (0..blocks).map(|index| Region::new(at(index), block as u64)).collect();
        // A page is between two pieces, so that they are not contiguous.
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
            // The first round creates connections, registrations and buffers.
            if round > 0 {
                took.write.push(write);
                took.read.push(read);
            }
        }
        rank.barrier().await?;
        Ok(took)
    }
}
