//! Initialise and finalise, contexts, addresses, error numbers.

use std::ffi::{CStr, CString, c_char, c_int};

use super::{Out, guard, guard_pointer, text};
use crate::address;
use crate::handle::Key;
use crate::library::{LIBRARY, SCHEMES};
use crate::number::{self, Number, Outcome};

/// The longest text of an address, with its end.
const MAX_ADDR_LEN: usize = 2048;

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_initialize(
    method_list: *const c_char,
    listen_addr: *const c_char,
    flags: c_int,
    _options: *mut c_char,
) -> c_int {
    guard(|| {
        // SAFETY: the caller passes texts.
        let (methods, listen) = unsafe { (text(method_list)?, text(listen_addr)?) };
        LIBRARY.initialize(methods, listen, flags).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn BMI_finalize() -> c_int {
    guard(|| LIBRARY.finalize().map(|()| 0))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_open_context(context_id: *mut i64) -> c_int {
    guard(|| {
        let out = Out::new(context_id)?;
        LIBRARY.parts()?;
        let context = LIBRARY.contexts.open().ok_or(Number::EBUSY)?;
        // SAFETY: the caller's variable.
        unsafe { out.set(0, context) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn BMI_close_context(context_id: i64) {
    guard(|| {
        let turn = &LIBRARY.parts()?.turn;
        let context = LIBRARY.contexts.close(context_id).ok_or(Number::EINVAL)?;
        // Operations that have not ended end now: their memory may be freed when this returns.
        LIBRARY.wait(CLOSE_MS, || {
            let mut left = false;
            for index in LIBRARY.open_ports() {
                left |= LIBRARY.with(index, |port| Ok(port.end_context(turn, context)))?;
            }
            Ok(!left)
        })?;
        Ok(0)
    });
}

/// An operation that was cancelled ends within the grace of a fence, a second.
const CLOSE_MS: c_int = 5000;

/// Returns a text that the program has passed.
///
/// # Safety
/// It is null or ends with a zero byte.
unsafe fn address_text(id_string: *const c_char) -> Outcome<CString> {
    if id_string.is_null() {
        return Err(Number::EINVAL);
    }
    // SAFETY: the caller of this function says so.
    let text = unsafe { CStr::from_ptr(id_string) };
    if text.count_bytes() >= MAX_ADDR_LEN {
        return Err(Number::ENAMETOOLONG);
    }
    Ok(text.to_owned())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_addr_lookup(new_addr: *mut i64, id_string: *const c_char, _options: *mut c_char) -> c_int {
    guard(|| {
        let out = Out::new(new_addr)?;
        // SAFETY: the caller's variable and text.
        unsafe { out.set(0, 0) };
        LIBRARY.parts()?;
        // SAFETY: as above.
        let id = LIBRARY.look_up(unsafe { address_text(id_string)? })?;
        // SAFETY: as above.
        unsafe { out.set(0, id) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn BMI_addr_rev_lookup(addr: i64) -> *const c_char {
    guard_pointer(|| {
        LIBRARY.parts()?;
        LIBRARY.with_address(addr, |addresses, key| Ok(addresses.get(key)?.text.as_ptr().cast_mut()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn BMI_addr_rev_lookup_unexpected(addr: i64) -> *const c_char {
    let host = guard_pointer(|| {
        LIBRARY.parts()?;
        LIBRARY.with_address(addr, |addresses, key| Ok(addresses.get(key)?.host.as_ptr().cast_mut()))
    });
    if host.is_null() { c"UNKNOWN".as_ptr() } else { host }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_query_addr_range(addr: i64, id_string: *const c_char, netmask: c_int) -> c_int {
    guard(|| {
        LIBRARY.parts()?;
        // SAFETY: the caller's text.
        let text = unsafe { address_text(id_string)? };
        let text = text.to_str().map_err(|_| Number::EINVAL)?;
        let (scheme, range) = text.split_once("://").ok_or(Number::EINVAL)?;
        let (index, _) = Key::of_id(addr).ok_or(Number::EPROTO)?;
        LIBRARY.with(index, |port| {
            let address = port.addresses.get(Key::of_id(addr).ok_or(Number::EPROTO)?.1)?;
            if scheme != SCHEMES[index].as_str() {
                return Err(Number::EPROTO);
            }
            address::in_range(address.addr.host(), range, netmask).map(c_int::from)
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn bmi_errno_to_pvfs(error: c_int) -> c_int {
    let found = number::of_errno(error.wrapping_abs());
    found.map_or(error, |number| if error < 0 { -number.0 } else { number.0 })
}

#[unsafe(no_mangle)]
extern "C" fn bmi_status_string(status: c_int) -> *const c_char {
    number::name(status).as_ptr()
}

versioned!(
    BMI_initialize,
    BMI_finalize,
    BMI_open_context,
    BMI_close_context,
    BMI_addr_lookup,
    BMI_addr_rev_lookup,
    BMI_addr_rev_lookup_unexpected,
    BMI_query_addr_range,
    bmi_errno_to_pvfs,
    bmi_status_string,
);
