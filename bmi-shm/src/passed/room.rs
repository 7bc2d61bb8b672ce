//! The room that the mappings of all connections share.
//!
//! **Why.** A process may have some 65,000 mappings, and a peer may make any number of connections.
//! So the limit of a connection is not enough. And the system charges a page to the process that
//! touches it first. So what is mapped of peers is also the most that they can make this process
//! pay for at a time, even if they have never touched it.
//!
//! **Invariant.** What is taken comes back when its [`Taken`] is dropped, on whatever thread.
//!
//! **Tests** are here and in `pages`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The room that a transport, or a group of transports behind one address, has left for mappings of
/// peers' memory.
pub(crate) struct Room {
    pieces: AtomicU64,
    bytes: AtomicU64,
    /// Most bytes of one connection: half of all.
    half: u64,
}

impl Room {
    pub(crate) fn new((pieces, bytes): (usize, u64)) -> Arc<Room> {
        Arc::new(Room { pieces: AtomicU64::new(pieces as u64), bytes: AtomicU64::new(bytes), half: bytes / 2 })
    }

    /// Returns the most bytes that one connection may have mapped.
    pub(super) fn most_of_one(&self) -> u64 {
        self.half
    }

    /// Takes room for a mapping of `len` bytes.
    pub(crate) fn take(self: &Arc<Room>, len: u64) -> Option<Taken> {
        let take = |left: &AtomicU64, n| {
            left.fetch_update(Ordering::Acquire, Ordering::Relaxed, |left: u64| left.checked_sub(n)).ok()
        };
        take(&self.pieces, 1)?;
        if take(&self.bytes, len).is_none() {
            self.pieces.fetch_add(1, Ordering::Release);
            return None;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Transports behind one address take room at the same time. Taking it was not one step while a
    /// room had one owner.
    #[test]
    fn threads_take_no_more_than_there_is() {
        const PIECES: u64 = 10_000;
        let room = Room::new((PIECES as usize, 8 * PIECES));
        let take = |room: Arc<Room>| move || std::iter::from_fn(|| room.take(8)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..2).map(|_| std::thread::Builder::new().spawn(take(room.clone())).unwrap()).collect();
        let taken: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!((taken.len() as u64, room.left()), (PIECES, (0, 0)));
        drop(taken);
        assert_eq!(room.left(), (PIECES, 8 * PIECES));
        assert!(room.take(8 * PIECES + 1).is_none());
        assert_eq!(room.left(), (PIECES, 8 * PIECES), "what is refused takes nothing");
    }
}
