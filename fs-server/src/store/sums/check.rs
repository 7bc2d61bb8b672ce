//! Compares bytes that were read with the sums of their datafile.
//!
//! **How.** A block that was read whole is summed where it lies. Of a block that was read in part,
//! the whole is read once more, and what was read must be the same. What is behind the end of the
//! datafile is zeros.
//!
//! A difference counts only if the same sums held before the bytes were read and hold afterwards.
//! Otherwise somebody has changed the datafile meanwhile.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bmi::MemSlice;
use fs_proto::Region;
use rustix::io::{ReadWriteFlags, preadv2, retry_on_intr};

use super::Sums;
use super::record::{BLOCK, CHUNK, Page, read_whole, sum};
use super::state::{FileSums, Settled};
use crate::store::disk::DiskFile;

/// Bytes that are not those that were stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Damage(pub(super) Region);

impl std::error::Error for Damage {}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its bytes from {} to {} do not match their checksum", self.0.offset, self.0.offset + self.0.len)
    }
}

/// A check of bytes that are about to be read.
#[derive(Clone)]
pub(in crate::store) struct Check {
    pub(super) sums: Arc<Sums>,
    pub(super) file: Arc<FileSums>,
    pub(super) settled: Settled,
}

/// Reads a block, with zeros behind the end of the file. Without `waits`, fails with `WouldBlock`
/// if it is not in the system's memory.
fn read_block(file: &dyn DiskFile, offset: u64, waits: bool, into: &mut [u8]) -> io::Result<()> {
    let Some(system) = file.system().filter(|_| !waits) else {
        let done = read_whole(file, offset, into)?;
        into[done..].fill(0);
        return Ok(());
    };
    let mut done = 0;
    while done < into.len() {
        let rest = &mut [io::IoSliceMut::new(&mut into[done..])];
        match retry_on_intr(|| preadv2(system, rest, offset + done as u64, ReadWriteFlags::NOWAIT))? {
            0 => break,
            more => done += more,
        }
    }
    into[done..].fill(0);
    Ok(())
}

impl Check {
    /// Compares the bytes of regions, which were read into these pieces of memory, unless they were
    /// changed meanwhile. Without `waits`, fails with `WouldBlock` where it would wait for the
    /// disk.
    ///
    /// # Errors
    /// That of the disk, or `InvalidData`, with the number of bytes before it that are right.
    pub(in crate::store) fn verify(
        &self,
        file: &dyn DiskFile,
        jobs: &[(Region, Vec<MemSlice>)],
        waits: bool,
    ) -> Result<(), (u64, io::Error)> {
        match self.compare(file, jobs, waits) {
            Err((right, error)) if error.kind() == io::ErrorKind::InvalidData => {
                let damage = error.downcast().unwrap_or(Damage(Region::new(0, 0)));
                if self.still_holds() { Err((right, self.damaged(damage))) } else { Ok(()) }
            }
            result => result,
        }
    }

    /// Compares as [`Check::verify`], also bytes that were changed meanwhile.
    pub(super) fn compare(
        &self,
        file: &dyn DiskFile,
        jobs: &[(Region, Vec<MemSlice>)],
        waits: bool,
    ) -> Result<(), (u64, io::Error)> {
        let len = self.settled.len;
        let (mut given, mut whole) = ([0; BLOCK as usize], ([0; BLOCK as usize], u64::MAX));
        let mut page: (u64, Option<Arc<Page>>) = (u64::MAX, None);
        let mut right = 0;
        for (region, pieces) in jobs {
            let (mut at, end) = (region.offset, region.offset.saturating_add(region.len));
            let (mut pieces, mut skip) = (pieces.iter(), 0);
            let mut piece = pieces.next();
            while at < end {
                bmi::hooks::step();
                let start = at - at % BLOCK;
                let (from, to) = ((at - start) as usize, (end - start).min(BLOCK) as usize);
                // The bytes of the block that were read, out of one piece or several.
                let mut filled = from;
                while let Some(memory) = piece.filter(|_| filled < to) {
                    let part = (memory.len() - skip).min(to - filled);
                    memory.slice(skip, part).copy_to(&mut given[filled..filled + part]);
                    (filled, skip) = (filled + part, skip + part);
                    if skip == memory.len() {
                        (piece, skip) = (pieces.next(), 0);
                    }
                }
                let failed = |error| (right, error);
                if page.0 != start / CHUNK {
                    page = (start / CHUNK, self.sums.page(self, start / CHUNK, waits).map_err(failed)?);
                }
                let is_whole = (from == 0 || start >= len) && (to == BLOCK as usize || start + to as u64 >= len);
                let (found, is_same) = if is_whole {
                    given[..from].fill(0);
                    given[to..].fill(0);
                    (sum(&given), true)
                } else {
                    if whole.1 != start {
                        read_block(file, start, waits, &mut whole.0).map_err(failed)?;
                        whole.1 = start;
                    }
                    (sum(&whole.0), whole.0[from..to] == given[from..to])
                };
                let expected = page.1.as_ref().map(|page| page.sum(start % CHUNK / BLOCK));
                if expected.is_some_and(|expected| expected != found || !is_same) {
                    let damage = Damage(Region::new(start, BLOCK));
                    return Err((right, io::Error::new(io::ErrorKind::InvalidData, damage)));
                }
                right += (to - from) as u64;
                at = start + to as u64;
            }
        }
        self.sums.checked.fetch_add(right, Ordering::Relaxed);
        Ok(())
    }

    /// Returns true if nothing was changed since the check began.
    pub(in crate::store) fn still_holds(&self) -> bool {
        self.file.settled() == Some(self.settled)
    }

    /// Counts damage, and tells the log.
    pub(super) fn damaged(&self, damage: Damage) -> io::Error {
        self.sums.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::error!(datafile = %self.file.datafile, "what the disk has is not what was stored: {damage}");
        io::Error::new(io::ErrorKind::InvalidData, damage)
    }
}
