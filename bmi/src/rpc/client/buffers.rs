//! Memory that calls offer for the data of their replies. It is kept for later calls.

use std::sync::{Mutex, PoisonError};

use crate::{Bytes, Error, Memory};

/// Number of buffers that are kept.
const KEPT: usize = 64;
/// A reply that fills at least this part of a buffer takes the buffer with it. A shorter one is
/// copied, so that it does not hold much more memory than it needs.
const TAKES: usize = 4;

/// The buffers for the replies of one address.
pub(super) struct Buffers {
    len: usize,
    kept: Mutex<Vec<Memory>>,
}

impl Buffers {
    pub(super) fn new(len: usize) -> Buffers {
        Buffers { len, kept: Mutex::default() }
    }

    /// Returns a buffer.
    ///
    /// # Errors
    /// `Exhausted` if there is no memory.
    pub(super) fn take(&self) -> Result<Memory, Error> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.map_or_else(|| Memory::zeroed(self.len), Ok)
    }

    /// Returns the first `len` bytes of a buffer. The buffer is kept unless they take it with them.
    pub(super) fn contents(&self, buffer: Memory, len: usize) -> Bytes {
        if len * TAKES >= self.len && !buffer.is_retired() {
            let mut bytes = buffer.into_bytes();
            bytes.truncate(len);
            return bytes;
        }
        let bytes = buffer.slice(0, len).to_vec();
        self.keep(buffer);
        bytes.into()
    }

    /// Keeps a buffer that no call uses.
    pub(super) fn keep(&self, buffer: Memory) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // A server may still write to the memory of a call that was dropped.
        if kept.len() < KEPT && !buffer.is_retired() {
            kept.push(buffer);
        }
    }
}
