//! Blocks of registered memory that copies use again and again.

use bmi::memory::MemoryRegion;
use bmi::threading::{OneThread, Threading};
use bmi::{Endpoint, MemSlice, Memory};
use fs_proto::ErrorCode;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::client::Client;
use crate::error::Error;
use crate::locked::Locked;

/// Blocks of memory for copies. They are registered once and reused.
pub struct Blocks<S: Threading = OneThread> {
    client: Client<S>,
    pub(super) block_size: usize,
    free: Semaphore,
    spare: Locked<Vec<(Memory, Vec<MemoryRegion>)>>,
}

impl<S: Threading> Blocks<S> {
    /// Creates a pool of at most `count` blocks of `block_size` bytes, registered with each
    /// endpoint of the client. A block is allocated when it is first needed.
    pub fn new(client: Client<S>, block_size: usize, count: usize) -> Blocks<S> {
        Blocks { client, block_size, free: Semaphore::new(count.max(1)), spare: Locked::default() }
    }

    /// Waits for a free block.
    pub(super) async fn take(&self) -> Result<Block<'_, S>, Error> {
        let closed = |_| Error::new(ErrorCode::Io, "no more blocks");
        let permit = self.free.acquire().await.map_err(closed)?;
        let spare = self.spare.with(Vec::pop);
        let (memory, regions) = match spare {
            Some(block) => block,
            None => {
                let exhausted = |error: bmi::Error| Error::new(ErrorCode::Busy, error.to_string());
                let memory = self.client.memory(self.block_size).map_err(exhausted)?;
                // An adapter that can register no more memory may still move it piece by piece. So
                // a failure to register is not an error yet.
                let register = |endpoint: &Endpoint<S>| endpoint.with(|engine| engine.register(&memory)).ok();
                let regions = self.client.endpoints().filter_map(register).collect();
                (memory, regions)
            }
        };
        Ok(Block { blocks: self, memory, regions, _permit: permit })
    }
}

/// A block in use. When it is dropped, its memory is not reused, because an adapter or a server may
/// still access it after a failed operation. After success the block is [recycled](Block::recycle).
pub(super) struct Block<'a, S: Threading> {
    blocks: &'a Blocks<S>,
    memory: Memory,
    regions: Vec<MemoryRegion>,
    _permit: SemaphorePermit<'a>,
}

impl<S: Threading> Block<'_, S> {
    pub(super) fn slice(&self, len: usize) -> MemSlice {
        self.memory.slice(0, len)
    }

    pub(super) fn recycle(self) {
        self.blocks.spare.with(|spare| spare.push((self.memory, self.regions)));
    }
}
