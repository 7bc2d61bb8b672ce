//! The program's buffers: memory for one operation.
//!
//! **Why an operation waits for its memory.** The program may free a buffer when its operation has
//! ended. As a rule nothing can access it then. But a server of this host that stalls in the middle
//! of an access still can, and the backend keeps the memory until that is over. So each buffer says
//! when its last handle is gone, and the operation waits for it.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use bmi::{MemList, Memory};
use tokio::sync::oneshot;

use crate::boundary::{Outcome, invalid};

/// A piece of memory.
#[repr(C)]
pub struct pvfs_piece {
    /// Its first byte.
    pub base: *mut c_void,
    /// Its length in bytes.
    pub len: usize,
}

/// Buffers of an operation.
pub(crate) struct Lent {
    keep: Arc<oneshot::Sender<()>>,
    back: oneshot::Receiver<()>,
}

impl Lent {
    pub(crate) fn new() -> Lent {
        let (keep, back) = oneshot::channel();
        Lent { keep: Arc::new(keep), back }
    }

    /// Returns a buffer as memory.
    ///
    /// # Safety
    /// It is NULL, or may be read, and written if `is_written`, until [`Lent::until_back`] has
    /// ended. Nothing conflicts with that meanwhile.
    pub(crate) unsafe fn memory(&self, base: *const c_void, len: usize, is_written: bool) -> Outcome<Memory> {
        let fits = base.addr().checked_add(len).is_some_and(|_| isize::try_from(len).is_ok());
        if !fits || (base.is_null() && len > 0) {
            return Err(invalid(format!("a buffer of {len} bytes at {base:?}")));
        }
        let first = NonNull::new(base.cast_mut().cast()).unwrap_or(NonNull::dangling());
        let keep = Box::new(self.keep.clone());
        // SAFETY: the caller's promise: `keep` is dropped before `until_back` ends. Of no bytes,
        // any pointer will do.
        Ok(unsafe {
            match is_written {
                true => Memory::from_raw_parts(first, len, keep),
                false => Memory::from_raw_parts_read_only(first, len, keep),
            }
        })
    }

    /// Returns pieces as memory.
    ///
    /// # Safety
    /// As [`Lent::memory`], for each.
    pub(crate) unsafe fn list(&self, pieces: &[pvfs_piece], is_written: bool) -> Outcome<MemList> {
        // SAFETY: the caller's promise.
        let slice = |piece: &pvfs_piece| Ok(unsafe { self.memory(piece.base, piece.len, is_written) }?.all());
        pieces.iter().map(slice).collect()
    }

    /// Runs an operation on the memory, and waits until nothing can access it any more.
    pub(crate) async fn until_back<R>(self, operation: impl Future<Output = R>) -> R {
        let result = operation.await;
        drop(self.keep);
        // The sender is dropped, and sends nothing.
        let _ = self.back.await;
        result
    }
}
