//! Memory of the library, and options.

use std::ffi::{c_char, c_int, c_void};

use bmi::{Memory, Scheme};

use super::{Out, guard, guard_pointer};
use crate::handle::Key;
use crate::library::{LIBRARY, SCHEMES, locked};
use crate::number::{Number, Outcome};

/// Options of `BMI_set_info` and `BMI_get_info`.
const DROP_ADDR: c_int = 1;
const CHECK_INIT: c_int = 2;
const CHECK_MAXSIZE: c_int = 3;
const INC_ADDR_REF: c_int = 5;
const DEC_ADDR_REF: c_int = 6;
const FORCEFUL_CANCEL_MODE: c_int = 8;
const GET_UNEXP_SIZE: c_int = 10;
const TCP_BUFFER_SEND_SIZE: c_int = 11;
const TCP_BUFFER_RECEIVE_SIZE: c_int = 12;
const TCP_CLOSE_SOCKET: c_int = 13;
const OPTIMISTIC_BUFFER_REG: c_int = 14;
const TCP_CHECK_UNEXPECTED: c_int = 15;
const TRANSPORT_METHODS_STRING: c_int = 16;

/// `BMI_SEND` and `BMI_RECV`.
const OP_TYPES: [c_int; 2] = [1, 2];

fn check_op_type(op_type: c_int) -> Outcome<()> {
    if OP_TYPES.contains(&op_type) { Ok(()) } else { Err(Number::EINVAL) }
}

#[unsafe(no_mangle)]
extern "C" fn BMI_memalloc(addr: i64, size: i64, send_recv: c_int) -> *mut c_void {
    guard_pointer(|| {
        LIBRARY.parts()?;
        check_op_type(send_recv)?;
        let (index, key) = Key::of_id(addr).ok_or(Number::EINVAL)?;
        let len = usize::try_from(size).ok().filter(|len| *len > 0).ok_or(Number::EINVAL)?;
        // Processes of one host read and write such memory without the kernel.
        let memory = if SCHEMES[index] == Scheme::Shm { Memory::shareable(len)? } else { Memory::zeroed(len)? };
        LIBRARY.with(index, |port| {
            port.addresses.get(key)?;
            // What cannot be registered is copied by the operations.
            let region = port.engine.register(&memory).ok();
            Ok(port.allocations.add(memory, region))
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn BMI_memfree(_addr: i64, buffer: *mut c_void, size: i64, send_recv: c_int) -> c_int {
    guard(|| {
        LIBRARY.parts()?;
        check_op_type(send_recv)?;
        let remove = |index| LIBRARY.with(index, |port| port.allocations.remove(buffer, size));
        if LIBRARY.open_ports().any(|index| remove(index).is_ok()) {
            return Ok(0);
        }
        locked(&LIBRARY.orphans).remove(buffer, size).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_set_info(addr: i64, option: c_int, inout_parameter: *mut c_void) -> c_int {
    guard(|| {
        LIBRARY.parts()?;
        match option {
            INC_ADDR_REF => LIBRARY.with_address(addr, |addresses, key| addresses.count(key, 1))?,
            DEC_ADDR_REF => LIBRARY.with_address(addr, |addresses, key| addresses.count(key, -1))?,
            DROP_ADDR | TCP_CLOSE_SOCKET => {
                let (index, key) = Key::of_id(addr).ok_or(Number::EINVAL)?;
                LIBRARY.with(index, |port| port.drop_address(key))?;
            }
            OPTIMISTIC_BUFFER_REG | TCP_BUFFER_SEND_SIZE | TCP_BUFFER_RECEIVE_SIZE | TCP_CHECK_UNEXPECTED => {
                Out::new(inout_parameter.cast::<c_int>())?;
            }
            FORCEFUL_CANCEL_MODE => {}
            _ => return Err(Number::ENOSYS),
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_get_info(addr: i64, option: c_int, inout_parameter: *mut c_void) -> c_int {
    guard(|| {
        LIBRARY.parts()?;
        match option {
            CHECK_INIT => match LIBRARY.open_ports().next() {
                Some(_) => Ok(0),
                None => Err(Number::ENETDOWN),
            },
            CHECK_MAXSIZE => {
                // SAFETY: the caller passes an int for this option.
                unsafe { Out::new(inout_parameter.cast::<c_int>())?.set(0, c_int::MAX) };
                Ok(0)
            }
            GET_UNEXP_SIZE => {
                let out = Out::new(inout_parameter.cast::<c_int>())?;
                let (index, key) = Key::of_id(addr).ok_or(Number::EINVAL)?;
                let size = LIBRARY.with(index, |port| port.unexpected_size(key))?;
                // SAFETY: as above.
                unsafe { out.set(0, c_int::try_from(size).unwrap_or(c_int::MAX)) };
                Ok(0)
            }
            TRANSPORT_METHODS_STRING => {
                let out = Out::new(inout_parameter.cast::<*mut c_char>())?;
                let mut names: String = SCHEMES.iter().map(|scheme| format!("{scheme},")).collect();
                names.push('\0');
                // SAFETY: the text ends with a zero byte. The caller passes a pointer for this
                // option, and frees the copy.
                let copy = unsafe { libc::strdup(names.as_ptr().cast()) };
                if copy.is_null() {
                    return Err(Number::ENOMEM);
                }
                // SAFETY: as above.
                unsafe { out.set(0, copy) };
                Ok(SCHEMES.len() as c_int)
            }
            _ => Err(Number::ENOSYS),
        }
    })
}

versioned!(BMI_memalloc, BMI_memfree, BMI_set_info, BMI_get_info,);
