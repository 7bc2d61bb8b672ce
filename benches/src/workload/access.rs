//! Single accesses, one after the other. Measures an access of each size, with memory that is
//! registered or not.
//!
//! **Source.** [PVFS-IB §6.5, Figure 11]: access times of 128 B to 64 KiB by scheme, with all or
//! none of the buffers in the pin-down cache. [PVFS-IB §6.6, Figure 12]: one access of 32 MB.
//! [Unifier-PVFS §6.2]: reads of one size after the other, with the data in memory.

use std::time::Duration;

use bmi::memory::MemoryRegion;
use bmi::paths::{Direction, Thresholds};
use fs_client::CreateOptions;

use super::{Failed, Rank, Workload, pattern};

/// The program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The direction of the accesses.
    pub direction: Direction,
    /// The sizes of an access, in bytes.
    pub sizes: Vec<usize>,
    /// True if the memory is registered in advance. If false, each access has memory that the
    /// adapter has never seen.
    pub registered: bool,
    /// The number of accesses of each size that are measured, at consecutive offsets. One access
    /// before them is not measured.
    pub rounds: usize,
}

impl Workload for Access {
    /// The times of the accesses of each size.
    type Out = Vec<Vec<Duration>>;

    async fn run(&self, rank: Rank) -> Result<Vec<Vec<Duration>>, Failed> {
        let path = format!("/access{}", rank.number()).parse()?;
        let file = rank.client().create(&path, CreateOptions { exclusive: false, ..CreateOptions::default() }).await?;
        let mut times = Vec::new();
        for &size in &self.sizes {
            let rounds = self.rounds + 1;
            let bytes = |round: usize| pattern((round * size) as u64, size);
            if self.direction == Direction::Read {
                let memory = rank.client().memory(size)?;
                for round in 0..rounds {
                    memory.copy_from(0, &bytes(round));
                    file.write_at((round * size) as u64, &memory).await?;
                }
            }
            let mut took = Vec::with_capacity(self.rounds);
            let mut kept = None;
            for round in 0..rounds {
                let memory = match kept.take() {
                    Some((memory, _)) if self.registered => memory,
                    _ => rank.client().memory(size)?,
                };
                let register = || rank.client().endpoint().with(|engine| engine.register(&memory));
                let region: Option<MemoryRegion> = self.registered.then(register).transpose()?;
                let (offset, expected) = ((round * size) as u64, bytes(round));
                if self.direction == Direction::Write {
                    memory.copy_from(0, &expected);
                }
                let span = match self.direction {
                    Direction::Write => rank.timed(file.write_at(offset, &memory)).await?,
                    Direction::Read => rank.timed(async { file.read_at(offset, &memory).await.map(drop) }).await?,
                };
                if self.direction == Direction::Read && memory.to_vec() != expected {
                    return Err(format!("{size} bytes: what was read is not what was written").into());
                }
                if round > 0 {
                    took.push(span.time);
                }
                kept = Some((memory, region));
            }
            times.push(took);
        }
        rank.barrier().await?;
        Ok(times)
    }
}

/// Returns the mean of some times.
pub fn mean(times: &[Duration]) -> Duration {
    times.iter().sum::<Duration>() / times.len().max(1) as u32
}

/// Makes the client of each rank measure where the paths cross.
#[derive(Clone, Copy, Debug)]
pub struct Crossings;

impl Workload for Crossings {
    type Out = Thresholds;

    async fn run(&self, rank: Rank) -> Result<Thresholds, Failed> {
        for (_, plan) in rank.client().plans(true).await {
            plan?;
        }
        rank.barrier().await?;
        Ok(rank.client().endpoint().with(|engine| engine.policy().thresholds))
    }
}
