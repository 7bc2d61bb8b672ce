//! Tests: what has ended, and what has come.

use std::ffi::{c_int, c_void};

use super::{Out, guard};
use crate::handle::Key;
use crate::library::{LIBRARY, locked};
use crate::number::{Number, Outcome};
use crate::port::Operation;

/// `struct BMI_unexpected_info`.
#[repr(C)]
struct UnexpectedInfo {
    error_code: c_int,
    addr: i64,
    buffer: *mut c_void,
    size: i64,
    tag: i32,
}

/// Where the results of operations go.
struct Results {
    errors: Out<c_int>,
    sizes: Option<Out<i64>>,
    users: Option<Out<*mut c_void>>,
}

impl Results {
    fn new(errors: *mut c_int, sizes: *mut i64, users: *mut *mut c_void) -> Outcome<Results> {
        Ok(Results { errors: Out::new(errors)?, sizes: Out::maybe(sizes)?, users: Out::maybe(users)? })
    }

    /// Writes the result of an operation.
    ///
    /// # Safety
    /// The arrays of the caller have such an element.
    unsafe fn set(&self, index: usize, operation: &Operation) {
        let Some((status, len)) = operation.ended else { return };
        let code = status.map_or_else(|kind| -Number::from(kind).0, |()| 0);
        // SAFETY: the caller of this function says so.
        unsafe {
            self.errors.set(index, code);
            if let Some(sizes) = &self.sizes {
                sizes.set(index, if code == 0 { len.cast_signed() } else { 0 });
            }
            if let Some(users) = &self.users {
                users.set(index, std::ptr::with_exposed_provenance_mut(operation.user));
            }
        }
    }
}

/// Returns the number of elements of an array.
fn count_of(count: c_int) -> Outcome<usize> {
    usize::try_from(count).ok().filter(|count| *count > 0).ok_or(Number::EINVAL)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_test(
    id: i64,
    outcount: *mut c_int,
    error_code: *mut c_int,
    actual_size: *mut i64,
    user_ptr: *mut *mut c_void,
    max_idle_time_ms: c_int,
    context_id: i64,
) -> c_int {
    guard(|| {
        let outcount = Out::new(outcount)?;
        // SAFETY: the caller's variable.
        unsafe { outcount.set(0, 0) };
        let results = Results::new(error_code, actual_size, user_ptr)?;
        let turn = &LIBRARY.parts()?.turn;
        let context = LIBRARY.contexts.index(context_id).ok_or(Number::EINVAL)?;
        let (index, key) = Key::of_id(id).ok_or(Number::EINVAL)?;
        let mut taken = None;
        LIBRARY.wait(max_idle_time_ms, || {
            for other in LIBRARY.open_ports().filter(|other| *other != index) {
                LIBRARY.with(other, |port| {
                    port.test(turn);
                    Ok(())
                })?;
            }
            taken = LIBRARY.with(index, |port| {
                port.test(turn);
                port.take(key, context)
            })?;
            Ok(taken.is_some())
        })?;
        let Some(operation) = taken else { return Ok(0) };
        // SAFETY: the caller's variables.
        unsafe {
            results.set(0, &operation);
            outcount.set(0, 1);
        }
        Ok(1)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_testsome(
    incount: c_int,
    id_array: *mut i64,
    outcount: *mut c_int,
    index_array: *mut c_int,
    error_code_array: *mut c_int,
    actual_size_array: *mut i64,
    user_ptr_array: *mut *mut c_void,
    max_idle_time_ms: c_int,
    context_id: i64,
) -> c_int {
    guard(|| {
        let outcount = Out::new(outcount)?;
        // SAFETY: the caller's variable.
        unsafe { outcount.set(0, 0) };
        let results = Results::new(error_code_array, actual_size_array, user_ptr_array)?;
        let (ids, indices, incount) = (Out::new(id_array)?, Out::new(index_array)?, count_of(incount)?);
        // SAFETY: the caller's array has that many elements.
        let ids = unsafe { std::slice::from_raw_parts(ids.0, incount) };
        let turn = &LIBRARY.parts()?.turn;
        let context = LIBRARY.contexts.index(context_id).ok_or(Number::EINVAL)?;
        // A number that names nothing is an error, before anything is taken. 0 is a place left out.
        for id in ids.iter().filter(|id| **id != 0) {
            let (index, key) = Key::of_id(*id).ok_or(Number::EINVAL)?;
            LIBRARY.with(index, |port| port.check(key, context).map(|_| ()))?;
        }
        let mut found = 0;
        LIBRARY.wait(max_idle_time_ms, || {
            for index in LIBRARY.open_ports() {
                LIBRARY.with(index, |port| {
                    port.test(turn);
                    Ok(())
                })?;
            }
            for (at, id) in (0..).zip(ids) {
                let Some((index, key)) = Key::of_id(*id) else { continue };
                // Another thread may have taken it since the check, or the number is there twice.
                if let Ok(Some(operation)) = LIBRARY.with(index, |port| port.take(key, context)) {
                    // SAFETY: the caller's arrays have `incount` elements.
                    unsafe {
                        results.set(found, &operation);
                        indices.set(found, at);
                    }
                    found += 1;
                }
            }
            Ok(found > 0)
        })?;
        // SAFETY: the caller's variable.
        unsafe { outcount.set(0, found as c_int) };
        Ok((found > 0).into())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_testcontext(
    incount: c_int,
    out_id_array: *mut i64,
    outcount: *mut c_int,
    error_code_array: *mut c_int,
    actual_size_array: *mut i64,
    user_ptr_array: *mut *mut c_void,
    max_idle_time_ms: c_int,
    context_id: i64,
) -> c_int {
    guard(|| {
        let outcount = Out::new(outcount)?;
        // SAFETY: the caller's variable.
        unsafe { outcount.set(0, 0) };
        let results = Results::new(error_code_array, actual_size_array, user_ptr_array)?;
        let (ids, incount) = (Out::new(out_id_array)?, count_of(incount)?);
        let turn = &LIBRARY.parts()?.turn;
        let context = LIBRARY.contexts.index(context_id).ok_or(Number::EINVAL)?;
        let mut found = 0;
        LIBRARY.wait(max_idle_time_ms, || {
            let mut unexpected = false;
            for index in LIBRARY.open_ports() {
                unexpected |= LIBRARY.with(index, |port| {
                    port.test(turn);
                    while found < incount
                        && let Some((key, operation)) = port.take_next(context)
                    {
                        // SAFETY: the caller's arrays have `incount` elements.
                        unsafe {
                            results.set(found, &operation);
                            ids.set(found, key.to_id(index));
                        }
                        found += 1;
                    }
                    Ok(!port.inbox.is_empty())
                })?;
            }
            Ok(found > 0 || unexpected)
        })?;
        // SAFETY: the caller's variable.
        unsafe { outcount.set(0, found as c_int) };
        Ok((found > 0).into())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_testunexpected(
    incount: c_int,
    outcount: *mut c_int,
    info_array: *mut UnexpectedInfo,
    max_idle_time_ms: c_int,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { BMI_testunexpected_class(incount, outcount, info_array, 0, max_idle_time_ms) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_testunexpected_class(
    incount: c_int,
    outcount: *mut c_int,
    info_array: *mut UnexpectedInfo,
    class: u8,
    max_idle_time_ms: c_int,
) -> c_int {
    guard(|| {
        let outcount = Out::new(outcount)?;
        // SAFETY: the caller's variable.
        unsafe { outcount.set(0, 0) };
        let (infos, incount) = (Out::new(info_array)?, count_of(incount)?);
        let turn = &LIBRARY.parts()?.turn;
        let mut found = 0;
        LIBRARY.wait(max_idle_time_ms, || {
            for index in LIBRARY.open_ports() {
                LIBRARY.with(index, |port| {
                    port.test(turn);
                    while found < incount
                        && let Some((key, message)) = port.take_unexpected(class, LIBRARY.counts())
                    {
                        let info = UnexpectedInfo {
                            error_code: 0,
                            addr: key.to_id(index),
                            buffer: copy(message.bytes())?,
                            size: message.len() as i64,
                            tag: (message.tag() as u32).cast_signed(),
                        };
                        // SAFETY: the caller's array has `incount` elements.
                        unsafe { infos.set(found, info) };
                        found += 1;
                    }
                    Ok(())
                })?;
            }
            Ok(found > 0)
        })?;
        // SAFETY: the caller's variable.
        unsafe { outcount.set(0, found as c_int) };
        Ok((found > 0).into())
    })
}

/// Returns a copy of a message for the program, which may also free it with `free`, as programs for
/// old versions of BMI do.
fn copy(bytes: &[u8]) -> Outcome<*mut c_void> {
    // SAFETY: the size is not 0, and the copy has room for the bytes.
    let buffer = unsafe { libc::malloc(bytes.len().max(1)) };
    if buffer.is_null() {
        return Err(Number::ENOMEM);
    }
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len()) };
    locked(&LIBRARY.messages).insert(buffer.addr());
    Ok(buffer)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_unexpected_free(_addr: i64, buffer: *mut c_void) -> c_int {
    guard(|| {
        LIBRARY.parts()?;
        if !locked(&LIBRARY.messages).remove(&buffer.addr()) {
            return Err(Number::EINVAL);
        }
        // SAFETY: `copy` has made it, and it was in the set, so that it was not freed before.
        unsafe { libc::free(buffer) };
        Ok(0)
    })
}

versioned!(BMI_test, BMI_testsome, BMI_testcontext, BMI_testunexpected, BMI_testunexpected_class, BMI_unexpected_free,);
