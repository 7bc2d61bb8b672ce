//! Memory that calls offer for the data of their replies. It is used again.
//!
//! **Why.** The pages of fresh memory cost as much as the transfer of what they hold.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Bytes, Error, ErrorKind, Memory};

/// Number of buffers that are kept: of the usual length, and of others.
const KEPT: usize = 64;
const KEPT_LONG: usize = 32;
/// Bytes of longer buffers that are kept.
const KEPT_BYTES: usize = 32 << 20;
/// A reply that fills at least this part of a buffer is used in the buffer. A shorter one is
/// copied, so that it does not hold much more memory than it needs.
const FILLS: usize = 4;
/// Longer buffers have a multiple of this length.
const STEP: usize = 64 << 10;

/// The buffers for the replies of one address.
pub(super) struct Buffers {
    usual: usize,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    usual: Vec<Memory>,
    long: Vec<Memory>,
    /// Bytes of the long ones.
    bytes: usize,
}

impl Buffers {
    /// Makes a pool of buffers of the usual length, and of longer ones.
    pub(super) fn new(usual: usize) -> Buffers {
        Buffers { usual, kept: Arc::default() }
    }

    /// Returns the usual length.
    pub(super) fn usual(&self) -> usize {
        self.usual
    }

    /// Returns a buffer of at least `len` bytes.
    ///
    /// # Errors
    /// `Exhausted` if there is no memory.
    pub(super) fn take(&self, len: usize) -> Result<Memory, Error> {
        let mut kept = lock(&self.kept);
        if len <= self.usual {
            let buffer = kept.usual.pop();
            drop(kept);
            return buffer.map_or_else(|| Memory::zeroed(self.usual), Ok);
        }
        let long = len.checked_next_multiple_of(STEP).filter(|len| *len <= isize::MAX as usize / 2);
        let long = long.ok_or_else(|| Error::new(ErrorKind::Exhausted, format!("no memory for {len} bytes")))?;
        let fits = |buffer: &Memory| (long..=2 * long).contains(&buffer.len());
        if let Some(at) = kept.long.iter().rposition(fits) {
            let buffer = kept.long.swap_remove(at);
            kept.bytes -= buffer.len();
            return Ok(buffer);
        }
        drop(kept);
        Memory::zeroed(long)
    }

    /// Returns the first `len` bytes of a buffer. It comes back when they are dropped.
    pub(super) fn contents(&self, buffer: Memory, len: usize) -> Bytes {
        let usual = self.usual;
        let lent = match len * FILLS >= buffer.len() {
            true => {
                let kept = Arc::downgrade(&self.kept);
                buffer.lend(move |buffer| _ = kept.upgrade().map(|kept| keep(&kept, usual, buffer)))
            }
            false => Err(buffer),
        };
        match lent {
            Ok(mut bytes) => {
                bytes.truncate(len);
                bytes
            }
            Err(buffer) => {
                let bytes = buffer.slice(0, len).to_vec();
                self.keep(buffer);
                bytes.into()
            }
        }
    }

    /// Keeps a buffer that no call uses.
    pub(super) fn keep(&self, buffer: Memory) {
        keep(&self.kept, self.usual, buffer);
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(kept: &Mutex<Kept>, usual: usize, buffer: Memory) {
    // A server may still write to the memory of a call that was dropped.
    if buffer.is_retired() {
        return;
    }
    let mut kept = lock(kept);
    if buffer.len() == usual {
        if kept.usual.len() < KEPT {
            kept.usual.push(buffer);
        }
    } else if kept.long.len() < KEPT_LONG && kept.bytes + buffer.len() <= KEPT_BYTES {
        kept.bytes += buffer.len();
        kept.long.push(buffer);
    }
}
