//! What each function does first and last: it checks its arguments, and turns errors and panics
//! into numbers.
//!
//! **Safety.** A function trusts C in three things. A pointer that is not NULL leads to what its
//! type says, and to as many elements as the argument beside it. A handle came from this library,
//! and was not closed. What an operation reads or writes stays until it has ended.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fs_client::{ErrorCode, FsPath};
use fs_proto::FsError;

/// `EINVAL`, `EILSEQ` and `EIO` of Linux.
pub(crate) const INVALID: i32 = ErrorCode::Invalid.errno();
const NOT_TEXT: i32 = 84;
const BROKEN: i32 = ErrorCode::Io.errno();

/// Why an operation failed.
pub(crate) struct Failure {
    pub(crate) number: i32,
    pub(crate) text: String,
}

pub(crate) type Outcome<R> = Result<R, Failure>;

impl Failure {
    pub(crate) fn new(number: i32, text: impl Display) -> Failure {
        Failure { number, text: text.to_string() }
    }

    pub(crate) fn panicked() -> Failure {
        Failure::new(BROKEN, "a defect of this library: it panicked")
    }
}

impl From<fs_client::Error> for Failure {
    fn from(error: fs_client::Error) -> Failure {
        Failure::new(error.code().errno(), &error)
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        Failure::new(error.code.errno(), &error)
    }
}

/// Converts an error that says what is wrong with an argument.
pub(crate) fn invalid(error: impl Display) -> Failure {
    Failure::new(INVALID, error)
}

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Returns a C string of a text. What is behind a NUL is cut off.
pub(crate) fn c_text(text: String) -> CString {
    let mut bytes = text.into_bytes();
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    CString::new(bytes).expect("no NUL is left")
}

/// Returns the text of the last error of a call of this thread. It stays until the next call fails.
/// It never returns NULL.
#[unsafe(no_mangle)]
pub extern "C" fn pvfs_error() -> *const c_char {
    TEXT.try_with(|text| text.borrow().as_ptr()).unwrap_or(c"the thread ends".as_ptr())
}

versioned!(pvfs_error);

/// Runs a function for C. Returns what it returned, or the negative number of its error.
pub(crate) fn call(f: impl FnOnce() -> Outcome<i64>) -> i64 {
    let outcome = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| Err(Failure::panicked()));
    outcome.unwrap_or_else(|Failure { number, text }| {
        let _ = TEXT.try_with(|last| *last.borrow_mut() = c_text(text));
        -i64::from(number)
    })
}

/// Runs a function that returns nothing but whether it failed.
pub(crate) fn call_int(f: impl FnOnce() -> Outcome<i64>) -> c_int {
    call(f) as c_int
}

/// Checks a handle.
pub(crate) fn given<'a, T>(handle: Option<&'a T>, name: &str) -> Outcome<&'a T> {
    handle.ok_or_else(|| invalid(format!("{name} is NULL")))
}

/// Reads a path.
///
/// # Safety
/// It is NULL or a string.
pub(crate) unsafe fn path(text: *const c_char) -> Outcome<FsPath> {
    // SAFETY: the caller's promise.
    Ok(unsafe { self::text(text, "path") }?.parse()?)
}

/// Reads a text.
///
/// # Safety
/// It is NULL or a string, which stays as it is for as long as the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Failure::new(NOT_TEXT, format!("{name} is not UTF-8")))
}

/// Reads a list.
///
/// # Safety
/// `first` is NULL, or leads to `count` elements, which stay as they are for as long as the result
/// is used.
pub(crate) unsafe fn list<'a, T>(first: *const T, count: usize, name: &str) -> Outcome<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if first.is_null() || !first.is_aligned() || !fits {
        return Err(invalid(format!("{name}: {count} elements at {first:?}")));
    }
    // SAFETY: the caller's promise, and what was checked.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Where C wants a result.
pub(crate) struct Out<T>(*mut T);

// SAFETY: the memory is the operation's until it has ended, on whichever thread that is.
unsafe impl<T> Send for Out<T> {}

impl<T> Out<T> {
    /// Checks the place of a result.
    ///
    /// # Safety
    /// It is NULL or a place for the result, until the result is set.
    pub(crate) unsafe fn new(place: *mut T, name: &str) -> Outcome<Out<T>> {
        if place.is_null() || !place.is_aligned() {
            return Err(invalid(format!("{name} is {place:?}")));
        }
        Ok(Out(place))
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: the promise of `new`.
        unsafe { self.0.write(value) };
    }
}
