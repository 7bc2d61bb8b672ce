//! Datatypes and views of files, as in MPI.

use std::ffi::c_int;

use fs_client::{Datatype, FileView, Order};

use crate::boundary::{Out, Outcome, call, call_int, given, invalid, list};

/// A datatype. It never changes, and what was made of it does not need it any more.
pub struct pvfs_type(pub(crate) Datatype);

/// A view of a file.
pub struct pvfs_view(pub(crate) FileView);

/// The last index of an array is the fastest: rows.
pub const PVFS_ORDER_C: u32 = 0;
/// The first index of an array is the fastest: columns.
pub const PVFS_ORDER_FORTRAN: u32 = 1;

/// Stores a new type.
///
/// # Safety
/// As [`Out::new`].
unsafe fn made(place: *mut *mut pvfs_type, make: impl FnOnce() -> Outcome<Datatype>) -> c_int {
    call_int(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(place, "made") }?;
        place.set(Box::into_raw(Box::new(pvfs_type(make()?))));
        Ok(0)
    })
}

fn old(old: Option<&pvfs_type>) -> Outcome<&Datatype> {
    Ok(&given(old, "old")?.0)
}

/// Makes a type of `len` contiguous bytes, such as 8 for a double.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_type_bytes(len: u64, made: *mut *mut pvfs_type) -> c_int {
    // SAFETY: C's promise.
    unsafe { self::made(made, || Ok(Datatype::bytes(len)?)) }
}

/// Makes a type of `count` instances of another, one behind the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_type_contiguous(count: u64, old: Option<&pvfs_type>, made: *mut *mut pvfs_type) -> c_int {
    // SAFETY: C's promise.
    unsafe { self::made(made, || Ok(Datatype::contiguous(count, self::old(old)?)?)) }
}

/// Makes a type of `count` blocks of `blocklength` instances. A block begins `stride` extents
/// behind the beginning of the one before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_type_vector(
    count: u64,
    blocklength: u64,
    stride: i64,
    old: Option<&pvfs_type>,
    made: *mut *mut pvfs_type,
) -> c_int {
    // SAFETY: C's promise.
    unsafe { self::made(made, || Ok(Datatype::vector(count, blocklength, stride, self::old(old)?)?)) }
}

/// As `pvfs_type_vector`, with the stride in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_type_hvector(
    count: u64,
    blocklength: u64,
    stride: i64,
    old: Option<&pvfs_type>,
    made: *mut *mut pvfs_type,
) -> c_int {
    // SAFETY: C's promise.
    unsafe { self::made(made, || Ok(Datatype::hvector(count, blocklength, stride, self::old(old)?)?)) }
}

/// Makes a type of `count` blocks, each with its number of instances and its displacement in
/// extents.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_type_indexed(
    count: usize,
    blocklengths: *const u64,
    displacements: *const i64,
    old: Option<&pvfs_type>,
    made: *mut *mut pvfs_type,
) -> c_int {
    // SAFETY: C's promise.
    unsafe {
        self::made(made, || Ok(Datatype::indexed(&blocks(count, blocklengths, displacements)?, self::old(old)?)?))
    }
}

/// As `pvfs_type_indexed`, with the displacements in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_type_hindexed(
    count: usize,
    blocklengths: *const u64,
    displacements: *const i64,
    old: Option<&pvfs_type>,
    made: *mut *mut pvfs_type,
) -> c_int {
    // SAFETY: C's promise.
    unsafe {
        self::made(made, || Ok(Datatype::hindexed(&blocks(count, blocklengths, displacements)?, self::old(old)?)?))
    }
}

/// # Safety
/// As [`list`].
unsafe fn blocks(count: usize, lengths: *const u64, displacements: *const i64) -> Outcome<Vec<(u64, i64)>> {
    // SAFETY: the caller's promise.
    let lists = unsafe { (list(lengths, count, "blocklengths")?, list(displacements, count, "displacements")?) };
    Ok(lists.0.iter().copied().zip(lists.1.iter().copied()).collect())
}

/// Makes a type of `count` fields, each with its number of instances, its displacement in bytes and
/// its type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_type_struct(
    count: usize,
    blocklengths: *const u64,
    displacements: *const i64,
    types: *const Option<&pvfs_type>,
    made: *mut *mut pvfs_type,
) -> c_int {
    // SAFETY: C's promise.
    unsafe {
        self::made(made, || {
            let blocks = blocks(count, blocklengths, displacements)?.into_iter().zip(list(types, count, "types")?);
            let fields = blocks.map(|((len, at), field)| Ok((len, at, self::old(*field)?)));
            Ok(Datatype::structure(&fields.collect::<Outcome<Vec<_>>>()?)?)
        })
    }
}

/// Makes a type of a box of an array: `subsizes` elements of `sizes` in each of `dimensions`
/// dimensions, beginning with `starts`. `order` is `PVFS_ORDER_C` or `PVFS_ORDER_FORTRAN`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_type_subarray(
    dimensions: usize,
    sizes: *const u64,
    subsizes: *const u64,
    starts: *const u64,
    order: u32,
    old: Option<&pvfs_type>,
    made: *mut *mut pvfs_type,
) -> c_int {
    let order = match order {
        PVFS_ORDER_C => Ok(Order::C),
        PVFS_ORDER_FORTRAN => Ok(Order::Fortran),
        other => Err(invalid(format!("order is {other}"))),
    };
    // SAFETY: C's promise.
    unsafe {
        self::made(made, || {
            let (sizes, subsizes) = (list(sizes, dimensions, "sizes")?, list(subsizes, dimensions, "subsizes")?);
            Ok(Datatype::subarray(sizes, subsizes, list(starts, dimensions, "starts")?, order?, self::old(old)?)?)
        })
    }
}

/// Makes a type with other bounds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_type_resized(
    lower: i64,
    extent: i64,
    old: Option<&pvfs_type>,
    made: *mut *mut pvfs_type,
) -> c_int {
    // SAFETY: C's promise.
    unsafe { self::made(made, || Ok(Datatype::resized(lower, extent, self::old(old)?)?)) }
}

/// Returns the number of bytes of a type.
#[unsafe(no_mangle)]
pub extern "C" fn pvfs_type_size(of: Option<&pvfs_type>) -> i64 {
    call(|| Ok(old(of)?.size() as i64))
}

/// Returns how far the next instance of a type is, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn pvfs_type_extent(of: Option<&pvfs_type>) -> i64 {
    call(|| Ok(old(of)?.extent() as i64))
}

/// Frees a type. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn pvfs_type_free(of: Option<Box<pvfs_type>>) {
    drop(of);
}

/// Makes a view: from byte `displacement` of the file on, instances of `filetype`, one behind the
/// other, show the bytes of the view. Offsets in it count elements of `etype`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_view_new(
    displacement: u64,
    etype: Option<&pvfs_type>,
    filetype: Option<&pvfs_type>,
    view: *mut *mut pvfs_view,
) -> c_int {
    call_int(|| {
        // SAFETY: C's promise.
        let place = unsafe { Out::new(view, "view") }?;
        let (etype, filetype) = (given(etype, "etype")?.0.clone(), given(filetype, "filetype")?.0.clone());
        place.set(Box::into_raw(Box::new(pvfs_view(FileView::new(displacement, etype, filetype)?))));
        Ok(0)
    })
}

/// Frees a view. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn pvfs_view_free(view: Option<Box<pvfs_view>>) {
    drop(view);
}

versioned!(
    pvfs_type_bytes,
    pvfs_type_contiguous,
    pvfs_type_vector,
    pvfs_type_hvector,
    pvfs_type_indexed,
    pvfs_type_hindexed,
    pvfs_type_struct,
    pvfs_type_subarray,
    pvfs_type_resized,
    pvfs_type_size,
    pvfs_type_extent,
    pvfs_type_free,
    pvfs_view_new,
    pvfs_view_free,
);
