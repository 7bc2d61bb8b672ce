//! The extended list interface: accesses that are noncontiguous in memory and in the file, with
//! hints about the allocations that contain the pieces of memory.
//!
//! **Why.** A program's buffers are often parts of one allocation, such as the rows of a tile in an
//! array. Registering each piece costs one registration per piece. Only the program knows that the
//! pieces belong together. So it passes the allocation, which is registered as a whole (group
//! registration):
//!
//! ```text
//!   allocation   |--------------- array ---------------|   allocation_offsets, allocation_lengths (one per piece)
//!   pieces           [ row 0 ]   [ row 1 ]   [ row 2 ]     mem_offsets, mem_lengths
//!   file         [ region 0 ][ region 1 ]  …               file_offsets, file_lengths
//! ```
//!
//! Bytes are paired in order: the first byte of the pieces with the first byte of the regions,
//! whatever their shapes.
//!
//! **Source.** [PVFS-IB §5], `pvfs_read_list` with `allocation_offsets` and `allocation_lengths`;
//! [PVFS-IB §6.8] (768 registrations without, one with). The paper's library trusts the hint. This
//! one checks that each piece is within its allocation.
//!
//! **Tests.** `tests/it/simulated/lists.rs` runs the tile of [PVFS-IB §6.8], counts its
//! registrations and compares its bytes.

use std::ptr::NonNull;

use bmi::memory::Extent;
use bmi::threading::Threading;
use bmi::{MemList, Memory};
use fs_proto::{ErrorCode, Region};

use super::handle::File;
use crate::error::Error;

/// A noncontiguous access to memory that this library owns. The arrays of one group must have the
/// same length.
#[derive(Clone, Copy, Debug)]
pub struct Extended<'a> {
    /// The allocation that contains each piece.
    pub allocations: &'a [Memory],
    /// Offset of each piece in its allocation, in bytes.
    pub mem_offsets: &'a [usize],
    /// Length of each piece, in bytes.
    pub mem_lengths: &'a [usize],
    /// Offset of each region in the file, in bytes.
    pub file_offsets: &'a [u64],
    /// Length of each region, in bytes.
    pub file_lengths: &'a [u64],
}

/// A noncontiguous access to the program's own memory. The arrays of one group must have the same
/// length. Those of the allocations may be empty; then each piece is registered separately.
#[derive(Clone, Copy, Debug)]
pub struct ExtendedRaw<'a> {
    /// First byte of each piece of memory.
    pub mem_offsets: &'a [*mut u8],
    /// Length of each piece, in bytes.
    pub mem_lengths: &'a [usize],
    /// First byte of the allocation that contains each piece, or of the part of it that should be
    /// registered.
    pub allocation_offsets: &'a [*mut u8],
    /// Length of that range, in bytes.
    pub allocation_lengths: &'a [usize],
    /// Offset of each region in the file, in bytes.
    pub file_offsets: &'a [u64],
    /// Length of each region, in bytes.
    pub file_lengths: &'a [u64],
}

fn same(what: &str, one: usize, other: usize) -> Result<(), Error> {
    if one == other {
        return Ok(());
    }
    Err(Error::new(ErrorCode::Invalid, format!("{one} offsets and {other} lengths of {what}")))
}

fn regions(offsets: &[u64], lengths: &[u64]) -> Result<Vec<Region>, Error> {
    same("regions of the file", offsets.len(), lengths.len())?;
    Ok(offsets.iter().zip(lengths).map(|(offset, len)| Region::new(*offset, *len)).collect())
}

impl Extended<'_> {
    fn lists(&self) -> Result<(Vec<Region>, MemList), Error> {
        same("pieces of memory", self.mem_offsets.len(), self.mem_lengths.len())?;
        same("pieces of memory, by their allocations,", self.allocations.len(), self.mem_lengths.len())?;
        let pieces = self.allocations.iter().zip(self.mem_offsets).zip(self.mem_lengths);
        let slices = pieces.map(|((memory, offset), len)| {
            let within = offset.checked_add(*len).is_some_and(|end| end <= memory.len());
            let text = || format!("{len} bytes at {offset} of an allocation of {}", memory.len());
            if within { Ok(memory.slice(*offset, *len)) } else { Err(Error::new(ErrorCode::Invalid, text())) }
        });
        Ok((regions(self.file_offsets, self.file_lengths)?, slices.collect::<Result<MemList, Error>>()?))
    }
}

impl ExtendedRaw<'_> {
    /// Returns the pieces, each with its allocation.
    fn pieces(&self) -> Result<Vec<(Extent, Option<Extent>)>, Error> {
        same("pieces of memory", self.mem_offsets.len(), self.mem_lengths.len())?;
        same("allocations", self.allocation_offsets.len(), self.allocation_lengths.len())?;
        if !self.allocation_offsets.is_empty() {
            same("pieces of memory, by their allocations,", self.allocation_offsets.len(), self.mem_lengths.len())?;
        }
        let extent = |ptr: *mut u8, len: usize| {
            let null = || Error::new(ErrorCode::Invalid, format!("{len} bytes at a null pointer"));
            NonNull::new(ptr).map(|ptr| Extent::new(ptr, len)).ok_or_else(null)
        };
        let mut parents = self.allocation_offsets.iter().zip(self.allocation_lengths);
        let pieces = self.mem_offsets.iter().zip(self.mem_lengths).map(|(ptr, len)| {
            let parent = parents.next().map(|(ptr, len)| extent(*ptr, *len)).transpose()?;
            Ok((extent(*ptr, *len)?, parent))
        });
        pieces.collect()
    }
}

impl<S: Threading> File<S> {
    /// Reads the regions into the pieces of memory. Otherwise like [`File::read_list`].
    ///
    /// # Errors
    /// As [`File::read_list`]; `Invalid` for arrays of different lengths, or a piece outside its
    /// allocation.
    pub async fn read_extended(&self, access: Extended<'_>) -> Result<u64, Error> {
        let (regions, memory) = access.lists()?;
        self.read_list(&regions, memory).await
    }

    /// Writes the pieces of memory to the regions. Otherwise like [`File::write_list`].
    ///
    /// # Errors
    /// As [`File::read_extended`].
    pub async fn write_extended(&self, access: Extended<'_>) -> Result<(), Error> {
        let (regions, memory) = access.lists()?;
        self.write_list(&regions, memory).await
    }

    /// Reads the regions into the program's own memory. Otherwise like [`File::read_list`].
    ///
    /// # Errors
    /// As [`File::read_extended`].
    ///
    /// # Safety
    /// The requirements of [`Foreign::slice`](bmi::memory::Foreign::slice) apply, with
    /// [`Client::foreign`](crate::Client::foreign) as the record. The bytes of all pieces and
    /// allocations must stay mapped, readable and writable until they are
    /// [forgotten](bmi::memory::Foreign::forget) there. Until the future has ended, nothing else
    /// may access the bytes of the pieces. A future that was *dropped* has not ended: an adapter
    /// may access the memory until the client's endpoints hold no operation and no exposure any
    /// more ([`Endpoint::resource_usage`](bmi::Endpoint::resource_usage)).
    pub unsafe fn read_extended_raw(&self, access: ExtendedRaw<'_>) -> impl Future<Output = Result<u64, Error>> {
        // SAFETY: the caller makes the same promise.
        let lists = unsafe { self.foreign_lists(&access) };
        async move {
            let (regions, memory) = lists?;
            self.read_list(&regions, memory).await
        }
    }

    /// Writes the program's own memory to the regions. Otherwise like [`File::write_list`].
    ///
    /// # Errors
    /// As [`File::read_extended`].
    ///
    /// # Safety
    /// As [`File::read_extended_raw`].
    pub unsafe fn write_extended_raw(&self, access: ExtendedRaw<'_>) -> impl Future<Output = Result<(), Error>> {
        // SAFETY: as in `read_extended_raw`.
        let lists = unsafe { self.foreign_lists(&access) };
        async move {
            let (regions, memory) = lists?;
            self.write_list(&regions, memory).await
        }
    }

    /// Returns the regions, and the pieces as a list. The pointers are used here and not in the
    /// future, so any thread may run the future.
    unsafe fn foreign_lists(&self, access: &ExtendedRaw<'_>) -> Result<(Vec<Region>, MemList), Error> {
        let regions = regions(access.file_offsets, access.file_lengths)?;
        let invalid = |error: bmi::Error| Error::new(ErrorCode::Invalid, error.detail().to_owned());
        // SAFETY: the caller's promise.
        let memory = unsafe { self.client().foreign().list(access.pieces()?) }.map_err(invalid)?;
        Ok((regions, memory))
    }
}
