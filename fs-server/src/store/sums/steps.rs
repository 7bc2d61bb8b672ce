//! Makes the sums of a datafile, in steps. Each may wait for the disk.
//!
//! The header says *unsettled* meanwhile, so pages are written in any order. The caller has synced
//! the datafile after the attempt was begun.

use std::io;
use std::sync::Arc;

use fs_proto::Sought;

use super::Sums;
use super::record::{BLOCK, BLOCKS, CHUNK, Header, Page, SumsFile, read_whole, sum};
use super::state::{Attempt, FileSums};
use crate::lock::lock;
use crate::store::disk::DiskFile;
use crate::store::disk::steps::step;

/// Most bytes of a datafile that are read in a step.
const STEP: u64 = 16 << 20;

/// A datafile that is being settled.
pub(in crate::store) struct Settling {
    sums: Arc<Sums>,
    file: Arc<FileSums>,
    attempt: Attempt,
    record: SumsFile,
    /// Its length.
    len: u64,
    /// The next chunk to look at.
    next: u64,
}

impl Settling {
    /// Begins, unless the attempt is void.
    pub(in crate::store) fn begin(
        sums: &Arc<Sums>,
        file: &Arc<FileSums>,
        mut attempt: Attempt,
        data: &dyn DiskFile,
    ) -> io::Result<Option<Settling>> {
        let len = data.held()?.size;
        let record = {
            // A removal takes the file away under the same lock, and voids the attempt.
            let _noting = lock(&file.noting);
            if !file.holds(&attempt) {
                return Ok(None);
            }
            SumsFile::open(&*sums.dir, file.datafile, true)?.ok_or(io::ErrorKind::NotFound)?
        };
        let unsettled = Header { settled: None, era: sums.era };
        if record.header()? != Some(unsettled) {
            attempt.changed.all = true;
            record.set_header(unsettled)?;
        }
        let chunks = len.div_ceil(CHUNK);
        let kept = if attempt.changed.all { 0 } else { attempt.changed.least.div_ceil(CHUNK) };
        if kept < chunks {
            record.set_pages(kept)?;
        }
        record.set_pages(chunks)?;
        Ok(Some(Settling { sums: sums.clone(), file: file.clone(), attempt, record, len, next: 0 }))
    }

    /// Makes some of the sums. Returns true when all are made. `None` if the datafile was changed
    /// meanwhile.
    pub(in crate::store) fn step(&mut self, data: &dyn DiskFile) -> io::Result<Option<bool>> {
        let mut read = 0;
        while read < STEP {
            if !self.file.holds(&self.attempt) {
                return Ok(None);
            }
            let Some((chunk, bits)) = self.next_chunk(data)? else { return Ok(Some(true)) };
            read += self.make_page(data, chunk, bits)?;
            self.next = chunk + 1;
        }
        Ok(Some(false))
    }

    /// Returns the next chunk with blocks to sum, and these blocks.
    fn next_chunk(&self, data: &dyn DiskFile) -> io::Result<Option<(u64, [u64; 16])>> {
        let found = if self.attempt.changed.all {
            // A chunk without data has the sums of zeros.
            step(|| data.seek(self.next * CHUNK, Sought::Data))?.map(|at| (at / CHUNK, [u64::MAX; 16]))
        } else {
            self.attempt.changed.chunks.range(self.next..).next().map(|(chunk, bits)| (*chunk, *bits))
        };
        Ok(found.filter(|(chunk, _)| chunk * CHUNK < self.len))
    }

    /// Makes the sums of blocks of a chunk. Returns how many bytes were read.
    fn make_page(&self, data: &dyn DiskFile, chunk: u64, mut bits: [u64; 16]) -> io::Result<u64> {
        let known = if self.attempt.changed.all { None } else { self.record.page(chunk)? };
        let mut page = known.unwrap_or_else(|| {
            bits = [u64::MAX; 16];
            Page::zeros()
        });
        let (mut bytes, mut read) = ([0; BLOCK as usize], 0);
        for block in (0..BLOCKS).filter(|block| bits[*block as usize / 64] & 1 << (block % 64) != 0) {
            let at = chunk * CHUNK + block * BLOCK;
            let filled = if at < self.len { step(|| read_whole(data, at, &mut bytes))? } else { 0 };
            bytes[filled..].fill(0);
            page.set(block, sum(&bytes));
            read += filled as u64;
        }
        self.record.set_page(chunk, page)?;
        Ok(read)
    }

    /// The sums hold from now on, unless the datafile was changed meanwhile.
    pub(in crate::store) fn end(self) -> io::Result<()> {
        let Settling { sums, file, attempt, record, len, .. } = self;
        record.sync()?;
        let _noting = lock(&file.noting);
        if file.close(&attempt) {
            record.set_header(Header { settled: Some(len), era: sums.era })?;
            file.settle(sums.settled(len));
        }
        Ok(())
    }
}
