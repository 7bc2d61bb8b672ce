//! Moves bytes between memory and the regions of a file.

use std::fs::File;
use std::io;

use bmi_core::{MemList, MemSlice};
use fs_proto::Region;

use super::steps::step;
use super::sys;

/// One region and the memory for its bytes.
pub(super) type Job = (Region, Vec<MemSlice>);

/// Pairs each region with its part of the memory.
pub(super) fn jobs(regions: &[Region], memory: &MemList) -> Vec<Job> {
    debug_assert_eq!(regions.iter().map(|region| region.len).sum::<u64>(), memory.len() as u64);
    let mut at = 0;
    let job = |region: &Region| {
        let pieces = memory.range(at, region.len as usize).collect();
        at += region.len as usize;
        (*region, pieces)
    };
    regions.iter().map(job).collect()
}

/// Moves all bytes of all jobs. On failure, also returns how many were moved.
fn transfer(
    jobs: &[Job],
    mut step: impl FnMut(u64, &MemSlice) -> io::Result<Option<usize>>,
) -> Result<(), (u64, io::Error)> {
    let mut total = 0;
    for (region, pieces) in jobs {
        let mut offset = region.offset;
        for piece in pieces {
            let mut done = 0;
            while done < piece.len() {
                match step(offset, &piece.slice(done, piece.len() - done)) {
                    Ok(Some(len)) => {
                        done += len;
                        offset += len as u64;
                        total += len as u64;
                    }
                    // The end of the file: the rest of this piece is zeros already.
                    Ok(None) => {
                        let rest = piece.len() - done;
                        (done, offset, total) = (piece.len(), offset + rest as u64, total + rest as u64);
                    }
                    Err(error) => return Err((total, error)),
                }
            }
        }
    }
    Ok(())
}

/// Writes all bytes of all jobs. On failure, also returns how many were written.
pub(super) fn write_all(file: &File, jobs: &[Job]) -> Result<(), (u64, io::Error)> {
    transfer(jobs, |offset, piece| match step(|| sys::write_at(file, offset, piece))? {
        0 => Err(io::Error::from(io::ErrorKind::WriteZero)),
        len => Ok(Some(len)),
    })
}

/// Reads all bytes of all jobs. On failure, also returns how many were read.
pub(super) fn read_all(file: &File, jobs: &[Job]) -> Result<(), (u64, io::Error)> {
    transfer(jobs, |offset, piece| match sys::read_at(file, offset, piece)? {
        0 => {
            piece.zero();
            Ok(None)
        }
        len => Ok(Some(len)),
    })
}
