//! Buffers of the calls of an endpoint that are kept for later ones, with their registrations.

use crate::endpoint::threading::{Slot, Threading};
use crate::error::Error;
use crate::mem::Memory;
use crate::op::PeerId;
use crate::paths::Direction;

/// Number of reply buffers kept.
const REPLIES: usize = 256;
/// Number of buffers for packed data kept: enough for a few requests to each of a few servers.
const PACKED: usize = 16;
/// Length of the longest buffer kept for packed data, in bytes. A file system client's requests are
/// this long by default.
const LONGEST: usize = 16 << 20;

pub(crate) struct CallBuffers<S: Threading> {
    replies: S::Slot<Vec<Memory>>,
    packed: S::Slot<Vec<PackingBuffer>>,
}

/// A buffer for packed data, and the only server whose data it may hold. `None` if there may be
/// several.
#[derive(Debug)]
pub(crate) struct PackingBuffer {
    pub(crate) memory: Memory,
    server: Option<PeerId>,
}

impl<S: Threading> Default for CallBuffers<S> {
    fn default() -> Self {
        CallBuffers { replies: S::Slot::new(Vec::new()), packed: S::Slot::new(Vec::new()) }
    }
}

impl<S: Threading> CallBuffers<S> {
    /// Returns a buffer of at least `len` bytes for a server's messages.
    ///
    /// # Errors
    /// `Exhausted` if there is no memory.
    pub(crate) fn take_reply(&self, len: usize) -> Result<Memory, Error> {
        let kept = self.replies.with(|kept| {
            let at = kept.iter().rposition(|buffer| buffer.len() >= len)?;
            Some(kept.swap_remove(at))
        });
        kept.map_or_else(|| Memory::zeroed(len), Ok)
    }

    pub(crate) fn keep_reply(&self, buffer: Memory) {
        self.replies.with(|kept| {
            if kept.len() < REPLIES {
                kept.push(buffer);
            }
        });
    }

    /// Returns the smallest kept buffer that is long enough, if possible one that was used for the
    /// same server, or a new one. A new one has a rounded length, so that other calls can use it.
    ///
    /// # Errors
    /// `Exhausted` if there is no memory.
    pub(crate) fn take_packing(&self, peer: PeerId, direction: Direction, len: usize) -> Result<PackingBuffer, Error> {
        let best = self.packed.with(|kept| {
            let fits = kept.iter().enumerate().filter(|(_, buffer)| buffer.memory.len() >= len);
            let best = fits.min_by_key(|(_, buffer)| (buffer.server != Some(peer), buffer.memory.len()));
            best.map(|(at, _)| at).map(|at| kept.swap_remove(at))
        });
        let Some(PackingBuffer { memory, server }) = best else {
            let memory = Memory::zeroed(if len <= LONGEST { len.next_power_of_two() } else { len })?;
            return Ok(PackingBuffer { memory, server: Some(peer) });
        };
        let server = match direction {
            _ if server == Some(peer) => server,
            Direction::Write => None,
            Direction::Read => {
                memory.all().zero();
                Some(peer)
            }
        };
        Ok(PackingBuffer { memory, server })
    }

    pub(crate) fn keep_packing(&self, buffer: PackingBuffer) {
        // Dropped outside the lock, because memory of the program may run its code then.
        let _replaced = self.packed.with(|kept| {
            // The shortest buffer is the cheapest to replace.
            let shortest = (0..kept.len()).min_by_key(|at| kept[*at].memory.len()).filter(|_| kept.len() == PACKED);
            let replaced = shortest.map(|at| kept.swap_remove(at));
            if buffer.memory.len() > LONGEST {
                return Some(buffer);
            }
            kept.push(buffer);
            replaced
        });
    }
}
