//! A file that grows is read twice, from its beginning to its end. The second time is measured.
//!
//! **Source.** [Unifier-PVFS §6.2, Figure 5]: "a file whose size varies from 300 MBytes to 400
//! MBytes", "sequentially with the block size of 128 KBytes", "then, it reads the same file again".
//! There each file is another one. Here one file grows, so that its first bytes are written once.
//!
//! **What is checked.** Each page of 4 KiB begins with its number in the file. All others of its
//! bytes are the same, so that writing hundreds of MB takes little time of this machine. The first
//! and the last page of each block are compared.

use std::time::Duration;

use bmi::Memory;
use fs_client::CreateOptions;

use super::{Failed, Rank, Workload};

/// Bytes of a page.
const PAGE: usize = 4 << 10;

/// The program. Each process has a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reread {
    /// The sizes of the file, in bytes: multiples of `block`, each more than the one before.
    pub sizes: Vec<u64>,
    /// The bytes of each access, a multiple of 4 KiB.
    pub block: usize,
}

impl Reread {
    /// Returns the program of the paper: blocks of 128 KiB.
    pub fn paper(sizes: Vec<u64>) -> Reread {
        Reread { sizes, block: 128 << 10 }
    }
}

/// Writes the number of each page of a block at `offset`.
fn stamp(block: &Memory, offset: u64) {
    for page in 0..block.len() / PAGE {
        let number = offset / PAGE as u64 + page as u64;
        block.copy_from(page * PAGE, &number.to_le_bytes());
    }
}

/// Checks the first and the last page of a block.
fn check(block: &Memory, offset: u64) -> Result<(), Failed> {
    for page in [0, block.len() / PAGE - 1] {
        let mut found = [0; 8];
        block.slice(page * PAGE, 8).copy_to(&mut found);
        let number = offset / PAGE as u64 + page as u64;
        if u64::from_le_bytes(found) != number {
            return Err(format!("page {number}: what was read is not what was written").into());
        }
    }
    Ok(())
}

impl Workload for Reread {
    /// The time of the second reading, for each size.
    type Out = Vec<Duration>;

    async fn run(&self, rank: Rank) -> Result<Vec<Duration>, Failed> {
        if self.block == 0 || !self.block.is_multiple_of(PAGE) {
            return Err(format!("blocks of {} bytes; they must be multiples of {PAGE}", self.block).into());
        }
        let path = format!("/reread{}", rank.number()).parse()?;
        let file = rank.client().create(&path, CreateOptions { exclusive: false, ..CreateOptions::default() }).await?;
        let block = rank.client().memory(self.block)?;
        // Each access uses the same memory.
        let _registered = rank.client().endpoint().with(|engine| engine.register(&block))?;
        let (mut written, mut times) = (0, Vec::new());
        for &size in &self.sizes {
            while written < size {
                stamp(&block, written);
                file.write_at(written, &block).await?;
                written += self.block as u64;
            }
            file.sync().await?;
            let once = async || {
                for offset in (0..size).step_by(self.block) {
                    file.read_at(offset, &block).await?;
                    check(&block, offset)?;
                }
                Ok::<_, Failed>(())
            };
            once().await?;
            times.push(rank.timed(once()).await?.time);
        }
        rank.barrier().await?;
        Ok(times)
    }
}
