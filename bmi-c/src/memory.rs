//! The program's buffers, as memory that operations take.
//!
//! A buffer that comes with an operation is memory for that operation alone. It is registered for
//! it, if the transport registers, and the registration goes with it. So the program may free the
//! buffer once the operation has ended. Memory of `BMI_memalloc` stays registered until
//! `BMI_memfree`; an operation finds it if it is posted with `BMI_PRE_ALLOC`.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;

use bmi::memory::MemoryRegion;
use bmi::{MemList, MemSlice, Memory};

use crate::number::{Number, Outcome};

/// A piece of a program's buffer.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    ptr: *mut c_void,
    len: usize,
}

impl Piece {
    /// Checks a pointer and a length.
    pub(crate) fn new(ptr: *const c_void, len: i64) -> Outcome<Piece> {
        let len = usize::try_from(len).map_err(|_| Number::EINVAL)?;
        let wraps = ptr.addr().checked_add(len).is_none_or(|end| isize::try_from(end).is_err());
        if wraps || (ptr.is_null() && len > 0) {
            return Err(Number::EINVAL);
        }
        Ok(Piece { ptr: ptr.cast_mut(), len })
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }
}

/// What `BMI_memalloc` has given for the peers of one transport.
#[derive(Default)]
pub(crate) struct Allocations(BTreeMap<usize, (Memory, Option<MemoryRegion>)>);

impl Allocations {
    pub(crate) const fn new() -> Allocations {
        Allocations(BTreeMap::new())
    }

    pub(crate) fn add(&mut self, memory: Memory, region: Option<MemoryRegion>) -> *mut c_void {
        let ptr = memory.as_ptr();
        self.0.insert(ptr.addr(), (memory, region));
        ptr.cast()
    }

    /// Removes memory. Operations that still use it keep it.
    pub(crate) fn remove(&mut self, ptr: *mut c_void, len: i64) -> Outcome<()> {
        let fits = self.0.get(&ptr.addr()).is_some_and(|(memory, _)| i64::try_from(memory.len()) == Ok(len));
        let removed = if fits { self.0.remove(&ptr.addr()) } else { None };
        removed.map(|_| ()).ok_or(Number::EINVAL)
    }

    /// Takes over the memory of a transport that ends, without its registrations.
    pub(crate) fn take_over(&mut self, ended: Allocations) {
        self.0.extend(ended.0.into_iter().map(|(ptr, (memory, _))| (ptr, (memory, None))));
    }

    fn find(&self, piece: Piece) -> Option<MemSlice> {
        let (start, (memory, _)) = self.0.range(..=piece.ptr.addr()).next_back()?;
        let offset = piece.ptr.addr() - start;
        let fits = offset.checked_add(piece.len).is_some_and(|end| end <= memory.len());
        fits.then(|| memory.slice(offset, piece.len))
    }

    /// Returns the memory of pieces.
    ///
    /// # Safety
    /// The pieces stay valid for reads, and for writes if `is_written`, until the operation that
    /// gets the list has ended. No other access conflicts with that meanwhile.
    pub(crate) unsafe fn list(&self, pieces: &[Piece], is_pre_alloc: bool, is_written: bool) -> MemList {
        let slice = |piece: &Piece| {
            let found = if is_pre_alloc { self.find(*piece) } else { None };
            found.unwrap_or_else(|| {
                let ptr = NonNull::new(piece.ptr.cast()).unwrap_or(NonNull::dangling());
                // SAFETY: the caller vouches for the bytes. Of none, any pointer will do.
                let memory = unsafe {
                    match is_written {
                        true => Memory::from_raw_parts(ptr, piece.len, Box::new(())),
                        false => Memory::from_raw_parts_read_only(ptr, piece.len, Box::new(())),
                    }
                };
                memory.all()
            })
        };
        match pieces {
            [one] => slice(one).into(),
            many => many.iter().map(slice).collect(),
        }
    }
}
