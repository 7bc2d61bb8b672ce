//! The room that the mappings of all connections share.
//!
//! **Why.** A process may have some 65,000 mappings, and a peer may make any number of connections.
//! So the limit of a connection is not enough.
//!
//! **Invariant.** What is taken comes back when its [`Taken`] is dropped, on whatever thread.
//!
//! **Tests**: in `pages`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The room that a transport has left for mappings of peers' memory.
pub(crate) struct Room {
    pieces: AtomicU64,
    bytes: AtomicU64,
}

impl Room {
    pub(crate) fn new((pieces, bytes): (usize, u64)) -> Arc<Room> {
        Arc::new(Room { pieces: AtomicU64::new(pieces as u64), bytes: AtomicU64::new(bytes) })
    }

    /// Takes room for a mapping of `len` bytes. Only the transport's owner takes room, but any
    /// thread may give it back.
    pub(crate) fn take(self: &Arc<Room>, len: u64) -> Option<Taken> {
        if self.pieces.load(Ordering::Acquire) == 0 || self.bytes.load(Ordering::Acquire) < len {
            return None;
        }
        self.pieces.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(len, Ordering::Relaxed);
        Some(Taken { room: self.clone(), len })
    }

    /// Returns how many mappings, and how many bytes, may still be taken.
    #[cfg(test)]
    pub(crate) fn left(&self) -> (u64, u64) {
        (self.pieces.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// The room of a mapping, given back when it is dropped.
pub(crate) struct Taken {
    room: Arc<Room>,
    len: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.bytes.fetch_add(self.len, Ordering::Release);
        self.room.pieces.fetch_add(1, Ordering::Release);
    }
}
