//! Types of parts of arrays: a box of an array, and the part of an array that one process of a grid
//! has. Both are loops and, where a cyclic distribution does not come out even, lists.
//!
//! **Source.** MPI-4.1, sections *Subarray Datatype Constructor* and *Distributed Array Datatype
//! Constructor*.

use super::builder::{Body, Builder, displacement};
use super::constructor::build;
use super::{Datatype, invalid, too_large};
use crate::error::FsError;

/// In which order the elements of an array follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The last index is the fastest: rows.
    C,
    /// The first index is the fastest: columns.
    Fortran,
}

/// How a dimension of an array is distributed over the processes of the same dimension of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribute {
    /// Not at all. That dimension of the grid has one process.
    None,
    /// One block for each process: of so many elements, or of as many as come out even.
    Block(Option<u64>),
    /// Blocks of so many elements, or of one, dealt to the processes in turn.
    Cyclic(Option<u64>),
}

/// A dimension of a distributed array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GridDimension {
    /// Number of elements of the array.
    pub elements: u64,
    /// How they are distributed.
    pub distribute: Distribute,
    /// Number of processes of the grid.
    pub processes: u64,
}

impl GridDimension {
    /// Returns the number of elements in a block.
    fn block(&self) -> Result<u64, FsError> {
        let even = self.elements.div_ceil(self.processes.max(1)).max(1);
        let block = match self.distribute {
            Distribute::None => self.elements.max(1),
            Distribute::Block(block) => block.unwrap_or(even),
            Distribute::Cyclic(block) => block.unwrap_or(1),
        };
        let whole = block.checked_mul(self.processes).ok_or_else(|| too_large("blocks of an array"))?;
        let is_one_round = matches!(self.distribute, Distribute::Cyclic(_)) || whole >= self.elements;
        let is_valid = match self.distribute {
            Distribute::None => self.processes == 1,
            _ => whole > 0 && is_one_round,
        };
        if is_valid { Ok(block) } else { Err(invalid(format!("{self:?} does not distribute all elements"))) }
    }

    /// Returns the elements of the process `coordinate`, each `stride` bytes after the one before.
    fn share(&self, builder: &mut Builder, old: Body, coordinate: u64, stride: i128) -> Result<Body, FsError> {
        let block = self.block()?;
        let round = block * self.processes;
        let start = coordinate * block;
        let behind = self.elements.saturating_sub(start);
        // Blocks that are whole, and what the array's end leaves of one more.
        let whole = behind / round + u64::from(behind % round >= block);
        let rest = if behind % round >= block { 0 } else { behind % round };
        let at = |element: u64| displacement(i128::from(element).checked_mul(stride));
        let mut items = Vec::with_capacity(2);
        if whole > 0 {
            let one = builder.repeat(old, block, stride)?;
            let distance = i128::from(round).checked_mul(stride).ok_or_else(|| too_large("an array"))?;
            items.push((at(start)?, builder.repeat(one, whole, distance)?));
        }
        if rest > 0 {
            items.push((at(start + whole * round)?, builder.repeat(old, rest, stride)?));
        }
        builder.list(items.into_iter().map(Ok))
    }
}

impl Datatype {
    /// Returns a box of an array of `sizes` elements in each dimension: `subsizes` elements in
    /// each, beginning with `starts`. The bounds are those of the whole array.
    ///
    /// # Errors
    /// `Invalid` unless all lists have the same length, which is not 0, and the box is not empty
    /// and within the array. `TooLarge` as all constructors.
    pub fn subarray(
        sizes: &[u64],
        subsizes: &[u64],
        starts: &[u64],
        order: Order,
        old: &Datatype,
    ) -> Result<Datatype, FsError> {
        if sizes.len() != subsizes.len() || sizes.len() != starts.len() {
            return Err(invalid("sizes, subsizes and starts of an array of different dimensions"));
        }
        array(sizes, order, old, |builder, old, dimension, stride| {
            let (size, subsize, start) = (sizes[dimension], subsizes[dimension], starts[dimension]);
            if subsize == 0 || start.checked_add(subsize).is_none_or(|end| end > size) {
                return Err(invalid(format!("{subsize} elements at {start} of a dimension of {size}")));
            }
            let line = builder.repeat(old, subsize, stride)?;
            let start = displacement(stride.checked_mul(start.into()))?;
            builder.list([Ok((start, line))].into_iter())
        })
    }

    /// Returns the elements of an array that the process `rank` has. Ranks count through the grid
    /// with the last dimension as the fastest, in either order of the array. The bounds are those
    /// of the whole array.
    ///
    /// # Errors
    /// `Invalid` if there is no dimension or no such rank, or if a dimension has no processes, does
    /// not distribute all its elements, or is distributed by `None` over several processes.
    /// `TooLarge` as all constructors.
    pub fn darray(rank: u64, grid: &[GridDimension], order: Order, old: &Datatype) -> Result<Datatype, FsError> {
        let mut coordinates = vec![0; grid.len()];
        let mut rest = rank;
        for (coordinate, dimension) in coordinates.iter_mut().zip(grid).rev() {
            dimension.block()?;
            (*coordinate, rest) = (rest % dimension.processes, rest / dimension.processes);
        }
        if rest > 0 {
            return Err(invalid(format!("rank {rank} is not in the grid")));
        }
        let sizes: Vec<u64> = grid.iter().map(|dimension| dimension.elements).collect();
        array(&sizes, order, old, |builder, old, dimension, stride| {
            grid[dimension].share(builder, old, coordinates[dimension], stride)
        })
    }
}

/// Builds a type of an array, from its fastest dimension to its slowest. `select` returns the part
/// of one dimension, whose elements are so many bytes apart.
fn array(
    sizes: &[u64],
    order: Order,
    old: &Datatype,
    mut select: impl FnMut(&mut Builder, Body, usize, i128) -> Result<Body, FsError>,
) -> Result<Datatype, FsError> {
    if sizes.is_empty() {
        return Err(invalid("an array without dimensions"));
    }
    build(old, |builder, old| {
        let mut stride = builder.extent(old);
        // The bounds of the array replace those of its elements.
        let mut part = Body { marks: None, ..old };
        for place in 0..sizes.len() {
            let dimension = if order == Order::Fortran { place } else { sizes.len() - 1 - place };
            part = select(builder, part, dimension, stride)?;
            let size = displacement(stride.checked_mul(sizes[dimension].into()))?;
            stride = size.into();
        }
        Ok(Body { marks: Some((0, displacement(Some(stride))?)), ..part })
    })
}
