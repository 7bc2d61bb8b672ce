//! Objects with the buffer protocol as memory of the transport, without a copy.
//!
//! **Why declared here.** `PyObject_GetBuffer` and `Py_buffer` entered the stable ABI with Python
//! 3.11. Every interpreter from 3.3 on exports the function, and the structure has not changed
//! since. 3.9 and 3.10 get no new releases that could change it, and from 3.11 on the stable ABI
//! forbids it. So one extension for all of them may declare both.
//!
//! **Invariant.** A view is held until the engine has let go of the memory. Meanwhile the exporter
//! neither frees nor resizes it: `bytearray.append` raises `BufferError`.
//!
//! An engine may drop its last handle of a memory on the thread of a driver, which must not wait
//! for the interpreter. The view is put aside there, and released by the next operation of any
//! thread.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, PoisonError};

use bmi::Memory;
use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::sync::oneshot;

/// `Py_buffer` of `Include/cpython/object.h`, and of `Include/pybuffer.h` since 3.11.
#[repr(C)]
struct RawView {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

/// `PyBUF_SIMPLE`: contiguous bytes, read-only or not. `PyBUF_WRITABLE`.
const SIMPLE: c_int = 0;
const WRITABLE: c_int = 1;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut RawView, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawView);
}

/// A view of an object's bytes, that was taken and not released.
struct View(Box<RawView>);

// SAFETY: only its pointers are moved. They are used with the interpreter's lock held, except for
// `buf`, whose bytes any thread may access while the view is held.
unsafe impl Send for View {}
// SAFETY: nothing is done with a shared reference.
unsafe impl Sync for View {}

/// The views that the engines have let go of.
static RETURNED: Mutex<Vec<View>> = Mutex::new(Vec::new());

/// Puts a view aside when the engine lets go, and then ends the wait of its [`Lease`].
struct Keep(Option<View>, #[expect(dead_code, reason = "it is dropped")] oneshot::Sender<()>);

/// Ends when the engine has let go of a buffer: as a rule just after the operation, and on any
/// thread.
pub(crate) type Lease = oneshot::Receiver<()>;

impl Drop for Keep {
    fn drop(&mut self) {
        RETURNED.lock().unwrap_or_else(PoisonError::into_inner).extend(self.0.take());
    }
}

/// Releases the views that engines have let go of.
pub(crate) fn release(_: Python<'_>) {
    // Released outside of the lock: an exporter may run any code.
    let returned = std::mem::take(&mut *RETURNED.lock().unwrap_or_else(PoisonError::into_inner));
    for mut view in returned {
        // SAFETY: `PyObject_GetBuffer` has filled it, and it is released once, with the
        // interpreter's lock held.
        unsafe { PyBuffer_Release(&mut *view.0) };
    }
}

/// Returns the bytes of an object as memory.
///
/// # Errors
/// `TypeError` if it has none, `BufferError` if they are not contiguous, or read-only and to be
/// written.
fn memory(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<(Memory, Lease)> {
    let empty = RawView {
        buf: null_mut(),
        obj: null_mut(),
        len: 0,
        itemsize: 0,
        readonly: 0,
        ndim: 0,
        format: null_mut(),
        shape: null_mut(),
        strides: null_mut(),
        suboffsets: null_mut(),
        internal: null_mut(),
    };
    // In a box, because an exporter may keep pointers into it.
    let mut view = Box::new(empty);
    // SAFETY: a live object, a view to be filled, and the interpreter's lock is held.
    if unsafe { PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let len = usize::try_from(view.len).map_err(|_| PyBufferError::new_err("a buffer of negative length"))?;
    let (returns, lease) = oneshot::channel();
    let ptr = NonNull::new(view.buf.cast::<u8>()).filter(|_| len > 0);
    let keep = Box::new(Keep(Some(View(view)), returns));
    let Some(ptr) = ptr else {
        return Ok((Memory::from(Vec::new()), lease));
    };
    // SAFETY: the exporter keeps `len` bytes at `ptr` valid until the view is released, which is
    // after `keep` is dropped. This crate makes no reference to them. That the program does not
    // write them meanwhile is its part: the documentation of each operation says so.
    let memory = unsafe {
        match flags {
            WRITABLE => Memory::from_raw_parts(ptr, len, keep),
            _ => Memory::from_raw_parts_read_only(ptr, len, keep),
        }
    };
    Ok((memory, lease))
}

/// Memory to be read: of any object with contiguous bytes.
pub(crate) struct Source(pub(crate) Memory, pub(crate) Lease);

/// Memory to be written.
pub(crate) struct Sink(pub(crate) Memory, pub(crate) Lease);

impl<'py> FromPyObject<'_, 'py> for Source {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Source> {
        memory(&object, SIMPLE).map(|(memory, lease)| Source(memory, lease))
    }
}

impl<'py> FromPyObject<'_, 'py> for Sink {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Sink> {
        memory(&object, WRITABLE).map(|(memory, lease)| Sink(memory, lease))
    }
}

/// Makes a `bytes` of `len` bytes that an operation is to fill, and memory that is its content.
/// Nobody else has the object until the operation has ended.
///
/// # Errors
/// `MemoryError`.
pub(crate) fn unfilled(py: Python<'_>, len: usize) -> PyResult<(Py<PyBytes>, Memory)> {
    let bytes = PyBytes::new_with(py, len, |_| Ok(()))?;
    let Some(ptr) = NonNull::new(bytes.as_bytes().as_ptr().cast_mut()).filter(|_| len > 0) else {
        return Ok((bytes.unbind(), Memory::from(Vec::new())));
    };
    let bytes = bytes.unbind();
    let keep = Box::new(bytes.clone_ref(py));
    // SAFETY: the object keeps its bytes at their place, and it is not shared yet: neither the
    // program nor this crate reads them before the operation has ended. Dropped without the
    // interpreter's lock, the reference is given back later.
    Ok((bytes, unsafe { Memory::from_raw_parts(ptr, len, keep) }))
}

/// Copies bytes into a new `bytes`, with the interpreter's lock held.
pub(crate) fn copied(py: Python<'_>, bytes: &[u8]) -> Py<PyBytes> {
    PyBytes::new(py, bytes).unbind()
}

/// Returns the error for a length that this machine cannot have.
pub(crate) fn too_long() -> PyErr {
    PyMemoryError::new_err("more bytes than this machine can address")
}
