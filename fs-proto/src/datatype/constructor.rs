//! MPI's constructors of types. Each has MPI's name and the meaning and order of its arguments.

use super::builder::{Body, Builder, displacement};
use super::table::Part;
use super::{Datatype, invalid};
use crate::error::FsError;
use crate::region::Region;

/// # Errors
/// All constructors return `TooLarge` for a type with more nodes, entries of lists or levels than
/// [`limits`](crate::limits) allows, or with a size or displacement of 2^62 or more. They return
/// `Invalid` for arguments that make no sense, where the constructor says so.
impl Datatype {
    /// Returns `len` contiguous bytes.
    pub fn bytes(len: u64) -> Result<Datatype, FsError> {
        Datatype::contiguous(len, &Datatype::BYTE)
    }

    /// Returns `count` instances, each at the extent of the one before.
    pub fn contiguous(count: u64, old: &Datatype) -> Result<Datatype, FsError> {
        build(old, |builder, old| {
            let extent = builder.extent(old);
            builder.repeat(old, count, extent)
        })
    }

    /// Returns `count` blocks of `blocklength` instances. A block begins `stride` extents after the
    /// one before.
    pub fn vector(count: u64, blocklength: u64, stride: i64, old: &Datatype) -> Result<Datatype, FsError> {
        blocks(count, blocklength, i128::from(stride) * i128::from(old.extent()), old)
    }

    /// Returns `count` blocks of `blocklength` instances. A block begins `stride` bytes after the
    /// one before.
    pub fn hvector(count: u64, blocklength: u64, stride: i64, old: &Datatype) -> Result<Datatype, FsError> {
        blocks(count, blocklength, stride.into(), old)
    }

    /// Returns blocks, each with its number of instances and its displacement in extents.
    pub fn indexed(blocks: &[(u64, i64)], old: &Datatype) -> Result<Datatype, FsError> {
        list(blocks.iter().copied(), old.extent(), old)
    }

    /// Returns blocks, each with its number of instances and its displacement in bytes.
    pub fn hindexed(blocks: &[(u64, i64)], old: &Datatype) -> Result<Datatype, FsError> {
        list(blocks.iter().copied(), 1, old)
    }

    /// Returns blocks of `blocklength` instances each, at displacements in extents.
    pub fn indexed_block(blocklength: u64, displacements: &[i64], old: &Datatype) -> Result<Datatype, FsError> {
        list(displacements.iter().map(|at| (blocklength, *at)), old.extent(), old)
    }

    /// Returns blocks of `blocklength` instances each, at displacements in bytes.
    pub fn hindexed_block(blocklength: u64, displacements: &[i64], old: &Datatype) -> Result<Datatype, FsError> {
        list(displacements.iter().map(|at| (blocklength, *at)), 1, old)
    }

    /// Returns blocks of types, each with its number of instances and its displacement in bytes.
    /// MPI's `MPI_Type_create_struct`. If any of the types has bounds that were set, those without
    /// do not count for the bounds, as in MPI.
    pub fn structure(fields: &[(u64, i64, &Datatype)]) -> Result<Datatype, FsError> {
        let mut builder = Builder::default();
        let mut items = Vec::with_capacity(fields.len());
        for (blocklength, at, datatype) in fields {
            let body = builder.import(datatype)?;
            items.push((*at, builder.repeat(body, *blocklength, datatype.extent().into())?));
        }
        let whole = builder.list(items.into_iter().map(Ok))?;
        builder.finish(whole)
    }

    /// Returns a type with other bounds.
    ///
    /// # Errors
    /// Also `Invalid` for a negative extent.
    pub fn resized(lb: i64, extent: i64, old: &Datatype) -> Result<Datatype, FsError> {
        if extent < 0 {
            return Err(invalid(format!("a type of extent {extent}; extents are not negative")));
        }
        let ub = displacement(Some(i128::from(lb) + i128::from(extent)))?;
        Ok(Datatype { marks: Some((displacement(Some(lb.into()))?, ub)), ..old.clone() })
    }

    /// Returns the bytes of regions, in order.
    pub fn from_regions(regions: &[Region]) -> Result<Datatype, FsError> {
        let mut items = Vec::with_capacity(regions.len());
        for region in regions.iter().filter(|region| !region.is_empty()) {
            let at = displacement(Some(region.offset.into()))?;
            displacement(Some(region.len.into()))?;
            items.push((0, Body { marks: None, place: Some((at, Part::Bytes(region.len))) }));
        }
        let mut builder = Builder::default();
        let whole = builder.list(items.into_iter().map(Ok))?;
        builder.finish(whole)
    }
}

/// Builds a type of one other.
pub(super) fn build(
    old: &Datatype,
    change: impl FnOnce(&mut Builder, Body) -> Result<Body, FsError>,
) -> Result<Datatype, FsError> {
    let mut builder = Builder::default();
    let old = builder.import(old)?;
    let new = change(&mut builder, old)?;
    builder.finish(new)
}

fn blocks(count: u64, blocklength: u64, stride: i128, old: &Datatype) -> Result<Datatype, FsError> {
    build(old, |builder, old| {
        let extent = builder.extent(old);
        let block = builder.repeat(old, blocklength, extent)?;
        builder.repeat(block, count, stride)
    })
}

fn list(blocks: impl Iterator<Item = (u64, i64)>, unit: u64, old: &Datatype) -> Result<Datatype, FsError> {
    build(old, |builder, old| {
        let extent = builder.extent(old);
        let mut items = Vec::with_capacity(blocks.size_hint().0);
        for (blocklength, at) in blocks {
            let block = builder.repeat(old, blocklength, extent)?;
            // What has no bytes may be anywhere.
            if block.place.is_some() || block.marks.is_some() {
                items.push((displacement(Some(i128::from(at) * i128::from(unit)))?, block));
            }
        }
        builder.list(items.into_iter().map(Ok))
    })
}
