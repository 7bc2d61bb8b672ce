//! Arrays of the crate `ndarray` as types: where the elements of an array are in memory, and where
//! those of a slice are in a dataset.
//!
//! **Why.** A program that slices and turns its arrays has shapes and strides, and not the
//! arguments of MPI's constructors.
//!
//! **Layout.** Each axis is a vector, with the last one innermost. So a type has its elements in
//! the order in which `ndarray` iterates over them. The normal form joins axes that are contiguous.
//! Displacements count from the first element of an array, and from the beginning of a dataset.

use fs_proto::{Datatype, ErrorCode, FsError};
use ndarray::{ArrayView, Dimension, LayoutRef, SliceArg, SliceInfoElem, StrideShape};

use crate::error::Error;

mod sealed {
    pub trait Sealed {}
}

/// A plain number, or an array of them: an element whose bytes are all there is to it. Its bytes
/// are in a file as they are in memory.
pub trait Number: sealed::Sealed {}

macro_rules! numbers {
    ($($number:ty)*) => { $(
        impl sealed::Sealed for $number {}
        impl Number for $number {}
    )* };
}

numbers!(i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64);

impl<T: Number, const LEN: usize> sealed::Sealed for [T; LEN] {}
impl<T: Number, const LEN: usize> Number for [T; LEN] {}

/// Returns the elements of an array in the order of their indices, whatever its strides, and how
/// many bytes the first one is behind the lowest one. Those are not 0 if an axis is reversed.
///
/// The array itself is not accessed. It may be a view of any type of `ndarray`. A memory with the
/// bytes from its lowest element on holds the array:
///
/// ```
/// use fs_client::{TypedMemory, array_type};
/// use ndarray::{Array2, s};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let all = Array2::from_shape_fn((3, 4), |(row, column)| (10 * row + column) as u16);
/// let memory = bmi::Memory::from(all.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<_>>());
/// // Columns as rows, from the last row to the first. The lowest element is that of the memory.
/// let view = all.slice(s![..;-1, ..]).reversed_axes();
/// let (datatype, base) = array_type(&view)?;
/// assert_eq!((datatype.size(), datatype.pieces(), base), (24, 12, 16));
/// let typed = TypedMemory::new(&memory, &datatype, 1).at(base);
/// # Ok(())
/// # }
/// ```
///
/// An array that repeats elements, as a broadcast one, can be written to a file but not read into.
///
/// # Errors
/// `TooLarge` if the elements extend over 2^62 bytes or more, or for more axes than a type may have
/// levels.
pub fn array_type<T: Number, D: Dimension>(array: &LayoutRef<T, D>) -> Result<(Datatype, u64), Error> {
    let axes = array.shape().iter().copied().zip(array.strides().iter().copied());
    let datatype = elements(axes, size_of::<T>())?;
    let base = datatype.true_lb().min(0).unsigned_abs();
    Ok((datatype, base))
}

/// Returns the elements of a slice of an array that has a shape, in the order of their indices. The
/// bounds are those of the whole array, and displacements count from its lowest byte. The array may
/// be a dataset of a file, or in memory. A shape has C order, unless it has other strides:
///
/// ```
/// use bmi::Memory;
/// use fs_client::{Datatype, FileView, TypedMemory, slice_type};
/// use ndarray::{ShapeBuilder, s};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Rows 100 to 149, and of columns 200 to 299 every second one, of a dataset of 1000 by 1000.
/// let part = slice_type::<f64, _>((1000, 1000), s![100..150, 200..300;2])?;
/// let view = FileView::new(0, Datatype::DOUBLE, part)?;
///
/// // Memory that holds such a part with a margin of one element, in columns of 64 elements each.
/// let memory = Memory::zeroed(64 * 52 * 8)?;
/// let inner = slice_type::<f64, _>((52, 52).strides((1, 64)), s![1..51, 1..51])?;
/// assert_eq!(inner.size(), view.filetype().size());
/// let typed = TypedMemory::new(&memory, &inner, 1);
/// # Ok(())
/// # }
/// ```
///
/// The elements of a [`FileView`](crate::FileView) ascend. So steps are positive there, and a
/// dataset in Fortran order has its axes in reverse.
///
/// # Errors
/// `Invalid` if the slice is not within the shape, or has other axes or a step of 0. `TooLarge` as
/// [`array_type`].
pub fn slice_type<T: Number, D: Dimension>(
    shape: impl Into<StrideShape<D>>,
    slice: impl SliceArg<D>,
) -> Result<Datatype, Error> {
    let invalid = |what: String| FsError::new(ErrorCode::Invalid, what);
    // Only `ndarray` knows the strides of a shape. This array has them, and no bytes.
    let whole =
        ArrayView::from_shape(shape, NO_BYTES).map_err(|error| invalid(format!("the shape of an array: {error}")))?;
    let (lens, strides) = (whole.shape(), whole.strides());
    let selected: Vec<_> = slice.as_ref().iter().copied().filter(|one| *one != SliceInfoElem::NewAxis).collect();
    if selected.len() != lens.len() {
        return Err(invalid(format!("a slice of {} axes of an array of {}", selected.len(), lens.len())).into());
    }
    let (mut axes, mut start) = (Vec::with_capacity(lens.len()), 0);
    for ((len, stride), one) in lens.iter().zip(strides).zip(selected) {
        let (first, count, step) =
            select(*len, one).ok_or_else(|| invalid(format!("the slice {one} of an axis of {len}")))?;
        start += first as i128 * *stride as i128;
        axes.push((count, stride.saturating_mul(step)));
    }
    let unit = size_of::<T>();
    let part = elements(axes.into_iter(), unit)?;
    let all = elements(lens.iter().copied().zip(strides.iter().copied()), unit)?;
    let start = if part.size() == 0 { 0 } else { in_bytes(start, unit)? - all.true_lb() };
    Ok(Datatype::resized(0, all.true_ub() - all.true_lb(), &Datatype::hindexed_block(1, &[start], &part)?)?)
}

/// More elements than any array has.
const NO_BYTES: &[()] = &[(); usize::MAX];

/// Returns the first index of an axis that a slice selects, the number of indices and their step,
/// or `None` if they are not on the axis.
fn select(len: usize, slice: SliceInfoElem) -> Option<(usize, usize, isize)> {
    let place = |index: isize| {
        let from_end = if index < 0 { len } else { 0 };
        from_end.checked_add_signed(index).filter(|index| *index <= len)
    };
    match slice {
        SliceInfoElem::Index(index) => Some((place(index).filter(|index| *index < len)?, 1, 1)),
        SliceInfoElem::Slice { start, end, step } => {
            let start = place(start)?;
            let end = end.map_or(Some(len), place)?.max(start);
            let count = (step != 0).then(|| (end - start).div_ceil(step.unsigned_abs()))?;
            // With a negative step, the last element of the range is the first one.
            Some((if step < 0 { end.saturating_sub(1) } else { start }, count, step))
        }
        SliceInfoElem::NewAxis => None,
    }
}

/// Returns elements of `unit` bytes, on axes of so many elements, each so many elements after the
/// one before. The first element of all is at displacement 0.
fn elements(axes: impl DoubleEndedIterator<Item = (usize, isize)>, unit: usize) -> Result<Datatype, FsError> {
    let mut datatype = Datatype::bytes(unit as u64)?;
    for (len, stride) in axes.rev() {
        // The stride of a single element is undefined.
        let stride = if len > 1 { in_bytes(stride as i128, unit)? } else { 0 };
        datatype = Datatype::hvector(len as u64, 1, stride, &datatype)?;
    }
    Ok(datatype)
}

fn in_bytes(elements: i128, unit: usize) -> Result<i64, FsError> {
    let bytes = elements.checked_mul(unit as i128).and_then(|bytes| i64::try_from(bytes).ok());
    bytes.ok_or_else(|| FsError::new(ErrorCode::TooLarge, "an array of more bytes than there are displacements"))
}

#[cfg(test)]
mod tests {
    use fs_proto::Region;
    use ndarray::{Array, ArrayD, Axis, IxDyn, ShapeBuilder, SliceInfo, s};
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    /// Returns where all bytes of a type are, in its order.
    fn places(datatype: &Datatype, base: u64) -> Vec<u64> {
        let (mut cursor, mut places) = (datatype.cursor(1, base).unwrap(), Vec::new());
        let mut pieces = [Region::new(0, 0); 7];
        while cursor.remaining() > 0 {
            let found = cursor.next_batch(&mut pieces, u64::MAX);
            places.extend(pieces[..found].iter().flat_map(|piece| piece.offset..piece.offset + piece.len));
        }
        places
    }

    /// Returns the bytes of elements with these numbers.
    fn bytes_of<'a>(elements: impl IntoIterator<Item = &'a u32>, low: u32) -> Vec<u64> {
        elements
            .into_iter()
            .flat_map(|number| (u64::from(number - low) * 4)..(u64::from(number - low) * 4 + 4))
            .collect()
    }

    /// What is selected of an axis: two places, a step, and whether it is one index instead.
    type Chosen = (Index, Index, isize, bool, bool);

    fn chosen() -> impl Strategy<Value = Chosen> {
        (any::<Index>(), any::<Index>(), (1..4isize, any::<bool>()), prop::bool::weighted(0.2), any::<bool>()).prop_map(
            |(one, other, (step, back), index, ends)| (one, other, if back { -step } else { step }, index, ends),
        )
    }

    fn slice_of(len: usize, (one, other, step, is_index, from_end): Chosen) -> SliceInfoElem {
        let back = if from_end { len as isize } else { 0 };
        if is_index && len > 0 {
            return SliceInfoElem::Index(one.index(len) as isize - back);
        }
        let (one, other) = (one.index(len + 1) as isize, other.index(len + 1) as isize);
        // The end of an axis has no number from the end.
        let start = if one == len as isize { one } else { one - back };
        let end = if other == len as isize { None } else { Some(other - back) };
        SliceInfoElem::Slice { start, end, step }
    }

    type Slices = SliceInfo<Vec<SliceInfoElem>, IxDyn, IxDyn>;

    fn slices(shape: &[usize], chosen: &[Chosen]) -> Slices {
        let mut all: Vec<_> = shape.iter().zip(chosen).map(|(len, one)| slice_of(*len, *one)).collect();
        all.insert(all.len() / 2, SliceInfoElem::NewAxis);
        Slices::try_from(all).unwrap()
    }

    fn shapes() -> impl Strategy<Value = (Vec<usize>, Vec<Chosen>)> {
        prop::collection::vec((prop_oneof![1 => Just(0), 20 => 1..6usize], chosen()), 0..5)
            .prop_map(|axes| axes.into_iter().unzip())
    }

    proptest! {
        #[test]
        fn an_array_has_its_elements_in_the_order_of_indices(
            (shape, chosen) in shapes(),
            swaps in prop::collection::vec(any::<(Index, Index)>(), 3),
            repeat in prop::option::weighted(0.2, 1..4usize),
        ) {
            let mut count = 0u32..;
            let array = ArrayD::from_shape_simple_fn(shape.clone(), || count.next().unwrap());
            let mut view = array.slice(slices(&shape, &chosen));
            for (one, other) in swaps {
                view.swap_axes(one.index(view.ndim()), other.index(view.ndim()));
            }
            let wide: Vec<_> = repeat.into_iter().chain(view.shape().iter().copied()).collect();
            let view = view.broadcast(wide).unwrap();
            let (datatype, base) = array_type(&view).unwrap();
            let low = view.iter().min().copied().unwrap_or(0);
            prop_assert_eq!(places(&datatype, base), bytes_of(&view, low));
            prop_assert_eq!(base, view.first().map_or(0, |first| u64::from(first - low) * 4));
        }

        #[test]
        fn a_slice_is_where_it_is_in_the_whole(
            (shape, chosen) in shapes(),
            (columns, gap, reversed) in (any::<bool>(), 1..5isize, any::<[bool; 4]>()),
        ) {
            // An array in one of both orders, with gaps, and with axes that run down.
            let whole = match columns {
                true => ArrayD::<u32>::zeros(shape.clone().f()),
                false => ArrayD::<u32>::zeros(shape.clone()),
            };
            let strides = whole.strides().iter().zip(reversed).map(|(stride, down)| stride * if down { -gap } else { gap });
            let shape = IxDyn(&shape).strides(IxDyn(&strides.map(|stride| stride as usize).collect::<Vec<_>>()));
            let numbers = Array::from_iter(0..20_000u32);
            let whole = ArrayView::from_shape(shape.clone(), numbers.as_slice().unwrap()).unwrap();
            let slices = slices(whole.shape(), &chosen);
            let datatype = slice_type::<u32, _>(shape, &slices).unwrap();
            let part = whole.slice(&slices);
            prop_assert_eq!(places(&datatype, 0), bytes_of(&part, 0));
            let end = whole.iter().max().map_or(0, |last| u64::from(last + 1) * 4);
            prop_assert_eq!((datatype.lb(), datatype.extent()), (0, end));
        }
    }

    #[test]
    fn elements_may_be_short_arrays() {
        let vectors = ArrayD::from_elem(vec![2, 3], [0f32; 3]);
        let (datatype, _) = array_type(&vectors.index_axis(Axis(1), 1)).unwrap();
        assert_eq!(datatype, Datatype::hvector(2, 1, 36, &Datatype::bytes(12).unwrap()).unwrap());
    }

    #[test]
    fn what_is_not_in_the_array_is_refused() {
        let code = |slice: &[SliceInfoElem]| slice_type::<f64, _>(IxDyn(&[4, 5]), slice).map_err(|error| error.code());
        let all = SliceInfoElem::from(..);
        let with = |start, end, step| code(&[all, SliceInfoElem::Slice { start, end, step }]);
        assert!(with(0, Some(5), 1).is_ok() && with(-5, Some(-1), 1).is_ok() && code(&[all, 4.into()]).is_ok());
        for (start, end, step) in [(6, None, 1), (-6, None, 1), (0, Some(6), 1), (0, None, 0)] {
            assert_eq!(with(start, end, step), Err(ErrorCode::Invalid), "{start}, {end:?}, {step}");
        }
        for slice in [&[all][..], &[all; 3], &[all, 5.into()], &[all, (-6).into()]] {
            assert_eq!(code(slice), Err(ErrorCode::Invalid), "{slice:?}");
        }
        let large = slice_type::<f64, _>((1 << 31, 1 << 31), s![0..1, 0..1]);
        assert_eq!(large.unwrap_err().code(), ErrorCode::TooLarge);
    }
}
