//! Posts and cancel.

use std::ffi::{c_int, c_void};

use super::{Out, guard};
use crate::handle::Key;
use crate::library::LIBRARY;
use crate::memory::Piece;
use crate::number::{Number, Outcome};
use crate::port::Kind;

/// The most pieces of a list.
const MAX_PIECES: usize = 4096;

/// `BMI_PRE_ALLOC` and `BMI_EXT_ALLOC`.
const BUFFER_TYPES: [c_int; 2] = [1, 2];

/// What all posts have.
struct Post {
    id: *mut i64,
    addr: i64,
    kind: Kind,
    buffer_type: c_int,
    tag: i32,
    class: u8,
    user: *mut c_void,
    context: i64,
}

impl Post {
    /// Posts an operation with one buffer or more.
    ///
    /// # Safety
    /// `pieces` and the pointers are those of the program's call, which keeps the rules of the
    /// header.
    unsafe fn run(&self, pieces: Outcome<&[Piece]>, actual: *mut i64) -> Outcome<c_int> {
        let id = Out::new(self.id)?;
        // SAFETY: the caller's variable.
        unsafe { id.set(0, 0) };
        let turn = &LIBRARY.parts()?.turn;
        let actual = Out::maybe(actual)?;
        let pieces = pieces?;
        let buffer_type = BUFFER_TYPES.iter().position(|known| *known == self.buffer_type).ok_or(Number::EINVAL)?;
        let context = LIBRARY.contexts.index(self.context).ok_or(Number::EINVAL)?;
        let (index, address) = Key::of_id(self.addr).ok_or(Number::EPROTO)?;
        let is_written = self.kind == Kind::Receive;
        let tag = u64::from(self.class) << 32 | u64::from(self.tag.cast_unsigned());
        let user = self.user.expose_provenance();
        let posted = LIBRARY.with(index, |port| {
            // SAFETY: the program leaves the buffers alone until the operation has ended.
            let list = unsafe { port.allocations.list(pieces, buffer_type == 0, is_written) };
            port.post(turn, self.kind, (address, tag), list, (context, user))
        })?;
        match posted {
            Ok(key) => {
                // SAFETY: as above.
                unsafe { id.set(0, key.to_id(index)) };
                Ok(0)
            }
            Err(len) => {
                if let Some(actual) = actual {
                    // SAFETY: as above.
                    unsafe { actual.set(0, len.cast_signed()) };
                }
                Ok(1)
            }
        }
    }

    /// As [`Post::run`], for lists.
    ///
    /// # Safety
    /// As [`Post::run`]. Both lists have `count` elements.
    unsafe fn run_list(
        &self,
        buffers: *const *const c_void,
        sizes: *const i64,
        count: c_int,
        total: i64,
        actual: *mut i64,
    ) -> c_int {
        guard(|| {
            // SAFETY: the caller of this function says so.
            let pieces = unsafe { list(buffers, sizes, count, total) };
            // SAFETY: as above.
            unsafe { self.run(pieces.as_deref().map_err(|number| *number), actual) }
        })
    }

    /// As [`Post::run`], for one buffer.
    ///
    /// # Safety
    /// As [`Post::run`].
    unsafe fn run_one(&self, buffer: *const c_void, size: i64, actual: *mut i64) -> c_int {
        guard(|| {
            let piece = Piece::new(buffer, size).map(|piece| [piece]);
            // SAFETY: the caller of this function says so.
            unsafe { self.run(piece.as_ref().map(|piece| &piece[..]).map_err(|number| *number), actual) }
        })
    }
}

/// Checks a list of buffers. Its sizes must make the total.
///
/// # Safety
/// Both lists have `count` elements.
unsafe fn list(buffers: *const *const c_void, sizes: *const i64, count: c_int, total: i64) -> Outcome<Vec<Piece>> {
    let count = usize::try_from(count).map_err(|_| Number::EINVAL)?;
    let is_bad = |null: bool, aligned: bool| null || !aligned;
    if is_bad(buffers.is_null(), buffers.is_aligned()) || is_bad(sizes.is_null(), sizes.is_aligned()) {
        return Err(Number::EINVAL);
    }
    if count == 0 {
        return Err(Number::EINVAL);
    }
    if count > MAX_PIECES {
        return Err(Number::EMSGSIZE);
    }
    // SAFETY: the caller of this function says so.
    let (buffers, sizes) =
        unsafe { (std::slice::from_raw_parts(buffers, count), std::slice::from_raw_parts(sizes, count)) };
    let pieces: Vec<Piece> =
        buffers.iter().zip(sizes).map(|(buffer, size)| Piece::new(*buffer, *size)).collect::<Outcome<_>>()?;
    let sum = pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.len()));
    if sum.and_then(|sum| i64::try_from(sum).ok()) == Some(total) { Ok(pieces) } else { Err(Number::EINVAL) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_post_send(
    id: *mut i64,
    addr: i64,
    buffer: *const c_void,
    size: i64,
    buffer_type: c_int,
    tag: i32,
    user: *mut c_void,
    context: i64,
    _hints: *mut c_void,
) -> c_int {
    let post = Post { id, addr, kind: Kind::Send, buffer_type, tag, class: 0, user, context };
    // SAFETY: the program's own arguments.
    unsafe { post.run_one(buffer, size, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_post_sendunexpected(
    id: *mut i64,
    addr: i64,
    buffer: *const c_void,
    size: i64,
    buffer_type: c_int,
    tag: i32,
    user: *mut c_void,
    context: i64,
    _hints: *mut c_void,
) -> c_int {
    let post = Post { id, addr, kind: Kind::Unexpected, buffer_type, tag, class: 0, user, context };
    // SAFETY: the program's own arguments.
    unsafe { post.run_one(buffer, size, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_post_sendunexpected_class(
    id: *mut i64,
    addr: i64,
    buffer: *const c_void,
    size: i64,
    buffer_type: c_int,
    tag: i32,
    class: u8,
    user: *mut c_void,
    context: i64,
    _hints: *mut c_void,
) -> c_int {
    let post = Post { id, addr, kind: Kind::Unexpected, buffer_type, tag, class, user, context };
    // SAFETY: the program's own arguments.
    unsafe { post.run_one(buffer, size, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_post_recv(
    id: *mut i64,
    addr: i64,
    buffer: *mut c_void,
    size: i64,
    actual: *mut i64,
    buffer_type: c_int,
    tag: i32,
    user: *mut c_void,
    context: i64,
    _hints: *mut c_void,
) -> c_int {
    let post = Post { id, addr, kind: Kind::Receive, buffer_type, tag, class: 0, user, context };
    // SAFETY: the program's own arguments.
    unsafe { post.run_one(buffer, size, actual) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_post_send_list(
    id: *mut i64,
    addr: i64,
    buffers: *const *const c_void,
    sizes: *const i64,
    count: c_int,
    total: i64,
    buffer_type: c_int,
    tag: i32,
    user: *mut c_void,
    context: i64,
    _hints: *mut c_void,
) -> c_int {
    let post = Post { id, addr, kind: Kind::Send, buffer_type, tag, class: 0, user, context };
    // SAFETY: the program's own arguments.
    unsafe { post.run_list(buffers, sizes, count, total, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_post_recv_list(
    id: *mut i64,
    addr: i64,
    buffers: *const *mut c_void,
    sizes: *const i64,
    count: c_int,
    total: i64,
    actual: *mut i64,
    buffer_type: c_int,
    tag: i32,
    user: *mut c_void,
    context: i64,
    _hints: *mut c_void,
) -> c_int {
    let post = Post { id, addr, kind: Kind::Receive, buffer_type, tag, class: 0, user, context };
    // SAFETY: the program's own arguments.
    unsafe { post.run_list(buffers.cast(), sizes, count, total, actual) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_post_sendunexpected_list(
    id: *mut i64,
    addr: i64,
    buffers: *const *const c_void,
    sizes: *const i64,
    count: c_int,
    total: i64,
    buffer_type: c_int,
    tag: i32,
    user: *mut c_void,
    context: i64,
    _hints: *mut c_void,
) -> c_int {
    let post = Post { id, addr, kind: Kind::Unexpected, buffer_type, tag, class: 0, user, context };
    // SAFETY: the program's own arguments.
    unsafe { post.run_list(buffers, sizes, count, total, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn BMI_post_sendunexpected_list_class(
    id: *mut i64,
    addr: i64,
    buffers: *const *const c_void,
    sizes: *const i64,
    count: c_int,
    total: i64,
    buffer_type: c_int,
    tag: i32,
    class: u8,
    user: *mut c_void,
    context: i64,
    _hints: *mut c_void,
) -> c_int {
    let post = Post { id, addr, kind: Kind::Unexpected, buffer_type, tag, class, user, context };
    // SAFETY: the program's own arguments.
    unsafe { post.run_list(buffers, sizes, count, total, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
extern "C" fn BMI_cancel(id: i64, context_id: i64) -> c_int {
    guard(|| {
        let turn = &LIBRARY.parts()?.turn;
        let context = LIBRARY.contexts.index(context_id).ok_or(Number::EINVAL)?;
        let (index, key) = Key::of_id(id).ok_or(Number::EINVAL)?;
        LIBRARY.with(index, |port| port.cancel(turn, key, context)).map(|()| 0)
    })
}

versioned!(
    BMI_post_send,
    BMI_post_sendunexpected,
    BMI_post_sendunexpected_class,
    BMI_post_recv,
    BMI_post_send_list,
    BMI_post_recv_list,
    BMI_post_sendunexpected_list,
    BMI_post_sendunexpected_list_class,
    BMI_cancel,
);
