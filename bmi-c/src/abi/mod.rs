//! The functions that C calls. Each checks its pointers, lengths and numbers. A panic inside, which
//! is a defect of the library, becomes an error number.

mod completion;
mod info;
mod message;
mod setup;

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::number::{Number, Outcome};

/// Calls `act`, and returns its result or its error as a number below 0.
#[inline]
fn guard(act: impl FnOnce() -> Outcome<c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(value)) => value,
        Ok(Err(number)) => -number.0,
        Err(_) => -Number::EIO.0,
    }
}

/// Calls `act`, and returns its pointer, or null.
fn guard_pointer<T>(act: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    catch_unwind(AssertUnwindSafe(act)).ok().and_then(Result::ok).unwrap_or(std::ptr::null_mut())
}

/// The places of an array that the caller gives, checked.
struct Out<T>(*mut T);

impl<T> Out<T> {
    /// An argument that must be there.
    fn new(ptr: *mut T) -> Outcome<Out<T>> {
        if ptr.is_null() || !ptr.is_aligned() { Err(Number::EINVAL) } else { Ok(Out(ptr)) }
    }

    /// An argument that may be null.
    fn maybe(ptr: *mut T) -> Outcome<Option<Out<T>>> {
        if ptr.is_null() { Ok(None) } else { Out::new(ptr).map(Some) }
    }

    /// Writes an element.
    ///
    /// # Safety
    /// The array of the caller has that many elements, and nothing else uses it.
    unsafe fn set(&self, index: usize, value: T) {
        // SAFETY: the caller of this function says so.
        unsafe { self.0.add(index).write(value) }
    }
}

/// Returns a text of the caller, or `None` for null.
///
/// # Safety
/// The text ends with a zero byte.
unsafe fn text<'a>(ptr: *const c_char) -> Outcome<Option<&'a str>> {
    if ptr.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller of this function says so.
    let text = unsafe { CStr::from_ptr(ptr) };
    text.to_str().map(Some).map_err(|_| Number::EINVAL)
}
