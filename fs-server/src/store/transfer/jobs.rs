//! Moves bytes between memory and the regions of a file.

use std::fs::File;
use std::io;

use bmi::{MemList, MemSlice};
use fs_proto::Region;

use super::lists::Rest;
use crate::store::disk::DiskFile;
use crate::store::disk::steps::step;
use crate::store::sys;

/// One region and the memory for its bytes.
pub(in crate::store) type Job = (Region, Vec<MemSlice>);

/// Pairs each region with its part of the memory.
pub(in crate::store) fn jobs(regions: &[Region], memory: &MemList) -> Vec<Job> {
    debug_assert_eq!(regions.iter().map(|region| region.len).sum::<u64>(), memory.len() as u64);
    // From the beginning for each region would be quadratic: both may have 16,384 pieces.
    let mut rest = Rest::of(memory);
    regions.iter().map(|region| (*region, rest.take(region.len as usize))).collect()
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
                bmi::hooks::step();
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

/// Returns the number of bytes of all jobs.
pub(in crate::store) fn len(jobs: &[Job]) -> u64 {
    jobs.iter().map(|(region, _)| region.len).sum()
}

/// Returns what is left of the jobs after their first `done` bytes.
pub(in crate::store) fn rest(jobs: Vec<Job>, done: u64) -> Vec<Job> {
    if done == 0 {
        return jobs;
    }
    let mut skip = done;
    let mut left = Vec::new();
    for (region, pieces) in jobs {
        bmi::hooks::step();
        let start = skip.min(region.len);
        skip -= start;
        if start == region.len {
            continue;
        }
        let memory: MemList = pieces.into_iter().collect();
        let len = region.len - start;
        left.push((region.part(start, len), memory.range(start as usize, len as usize).collect()));
    }
    left
}

/// One step of writing.
fn written(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result? {
        0 => Err(io::Error::from(io::ErrorKind::WriteZero)),
        len => Ok(Some(len)),
    }
}

/// One step of reading into `piece`.
fn read(piece: &MemSlice, result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result? {
        0 => {
            piece.zero();
            Ok(None)
        }
        len => Ok(Some(len)),
    }
}

/// Writes all bytes of all jobs. On failure, also returns how many were written.
pub(in crate::store) fn write_all(file: &dyn DiskFile, jobs: &[Job]) -> Result<(), (u64, io::Error)> {
    transfer(jobs, |offset, piece| written(step(|| file.write_at(offset, piece))))
}

/// Reads all bytes of all jobs. On failure, also returns how many were read.
pub(in crate::store) fn read_all(file: &dyn DiskFile, jobs: &[Job]) -> Result<(), (u64, io::Error)> {
    transfer(jobs, |offset, piece| read(piece, file.read_at(offset, piece)))
}

/// As [`write_all`], but stops with `WouldBlock` where it would wait for the disk.
pub(in crate::store) fn write_at_once(file: &File, jobs: &[Job]) -> Result<(), (u64, io::Error)> {
    transfer(jobs, |offset, piece| written(step(|| sys::write_at_once(file, offset, piece))))
}

/// As [`read_all`], but stops with `WouldBlock` where it would wait for the disk.
pub(in crate::store) fn read_at_once(file: &File, jobs: &[Job]) -> Result<(), (u64, io::Error)> {
    transfer(jobs, |offset, piece| read(piece, sys::read_at_once(file, offset, piece)))
}
