//! Packs the data of a call into one piece, if that costs less than moving its pieces one by one.
//!
//! **Why.** The server sees as many pieces as the client exposes. It needs a request for each, and
//! each must be described in the call's request. The client reduces both by copying: the pieces of
//! a write into one before it is exposed, and the pieces of a read out of one when the reply is
//! here ([`crate::lists`]).
//!
//! **Memory.** Packed data is in buffers that are kept for later calls, together with their
//! registrations. The buffer of a dropped call is not used again, because the server may still
//! access it. A buffer for a read holds nothing that another server has sent: it is zeroed if it
//! does. So a server that moves less than it says does not show the program what another server
//! sent.

use super::call::Caller;
use super::path::Direction;
use super::wire::CALL_HEAD;
use crate::error::Error;
use crate::lists::Lists;
use crate::mem::{MemList, MemSlice, Memory};
use crate::mutated;
use crate::op::PeerId;
use crate::threading::{Slot, Threading};
use crate::transport::HostWork;

/// Number of buffers kept: enough for a few requests to each of a few servers.
const KEPT: usize = 16;
/// Length of the longest buffer kept, in bytes. A file system client's requests are this long by
/// default.
const LONGEST: usize = 16 << 20;
/// Largest number of bytes for a piece in a descriptor: key, index, length and range.
const PIECE: usize = 8 + 3 + 1 + crate::extents::MAX_ENCODED;

/// A buffer, and the only server whose data it may hold. `None` if there may be several.
#[derive(Debug)]
pub(super) struct PackingBuffer {
    memory: Memory,
    server: Option<PeerId>,
}

/// The user's list, and the buffer that its data is packed into.
#[derive(Debug)]
pub(super) struct Packed {
    buffer: PackingBuffer,
    list: MemList,
    direction: Direction,
}

impl<S: Threading> Caller<S> {
    /// Packs `data` if its pieces should not be moved one by one, either by the server or by this
    /// side as the server grants. `front` is the length of the request so far.
    ///
    /// # Errors
    /// `Exhausted` if there is no memory.
    pub(super) fn pack(
        &self,
        peer: PeerId,
        direction: Direction,
        front: usize,
        data: &MemList,
        lists: Lists,
    ) -> Result<Option<Packed>, Error> {
        let (pieces, bytes) = (data.pieces().len(), data.len());
        if pieces < 2 || bytes == 0 {
            return Ok(None);
        }
        let room = self.room(peer);
        let packs = self.endpoint().with(|endpoint| match lists.or(endpoint.config().memory.lists) {
            Lists::Chain => false,
            Lists::Pack => true,
            Lists::Auto => {
                let described = front - CALL_HEAD + pieces * PIECE <= room;
                !described || Lists::packing_pays(bytes as u64, pieces as u64, pieces as u64 - 1, 0)
            }
        });
        if !packs {
            return Ok(None);
        }
        let buffer = self.take_packing(peer, direction, bytes)?;
        let packed = Packed { buffer, list: data.clone(), direction };
        if direction == Direction::Write {
            let mut at = 0;
            for piece in packed.list.pieces() {
                at += packed.buffer.memory.slice(at, piece.len()).copy_from_slice_of(piece);
            }
            self.charge(&packed.list);
        }
        Ok(Some(packed))
    }

    /// Copies the `len` bytes of data of a read to the user's pieces, after the reply. After a
    /// failed read the contents of the pieces are unspecified.
    pub(super) fn unpack(&self, packed: Packed, len: u64) {
        if packed.direction == Direction::Read && !mutated("call/reply-not-unpacked") {
            // What is behind the data belongs to an earlier call.
            let len = usize::try_from(len).expect("within memory");
            let mut at = 0;
            for piece in packed.list.range(0, len) {
                at += piece.copy_from_slice_of(&packed.buffer.memory.slice(at, piece.len()));
            }
            self.charge(&packed.list);
        }
        self.keep_packing(packed.buffer);
    }

    fn charge(&self, list: &MemList) {
        let work = HostWork::Copy { bytes: list.len() as u64, pieces: list.pieces().len() as u64 };
        self.endpoint().look(|engine| engine.transport_mut().charge(work));
    }

    /// Returns the smallest kept buffer that is long enough, if possible one that was used for the
    /// same server, or a new one. A new one has a rounded length, so that other calls can use it.
    fn take_packing(&self, peer: PeerId, direction: Direction, len: usize) -> Result<PackingBuffer, Error> {
        let best = self.packing.with(|kept| {
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

    fn keep_packing(&self, buffer: PackingBuffer) {
        // Dropped outside the lock, because memory of the program may run its code then.
        let _replaced = self.packing.with(|kept| {
            // The shortest buffer is the cheapest to replace.
            let shortest = (0..kept.len()).min_by_key(|at| kept[*at].memory.len()).filter(|_| kept.len() == KEPT);
            let replaced = shortest.map(|at| kept.swap_remove(at));
            if buffer.memory.len() > LONGEST {
                return Some(buffer);
            }
            kept.push(buffer);
            replaced
        });
    }
}

impl Packed {
    /// Returns the data in one piece.
    pub(super) fn data(&self) -> MemSlice {
        self.buffer.memory.slice(0, self.list.len())
    }
}
