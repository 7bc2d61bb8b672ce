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

use crate::endpoint::threading::Threading;
use crate::endpoint::{PackingBuffer, Peer};
use crate::error::Error;
use crate::lists::Lists;
use crate::mem::{MemList, MemSlice};
use crate::mutated;
use crate::paths::Direction;
use crate::wire::call::CALL_HEAD;

/// Largest number of bytes for a piece in a descriptor: key, index, length and range.
const PIECE: usize = 8 + 3 + 1 + crate::wire::extents::MAX_ENCODED;

/// The user's list, and the buffer that its data is packed into.
#[derive(Debug)]
pub(super) struct Packed {
    buffer: PackingBuffer,
    list: MemList,
    direction: Direction,
}

impl<S: Threading> Peer<S> {
    /// Packs `data` if its pieces should not be moved one by one, either by the server, for which
    /// it is exposed, or by this side as the server grants. `front` is the length of the request so
    /// far.
    ///
    /// # Errors
    /// `Exhausted` if there is no memory.
    pub(super) fn pack(
        &self,
        direction: Direction,
        front: usize,
        data: &MemList,
        is_exposed: bool,
        lists: Lists,
    ) -> Result<Option<Packed>, Error> {
        let (pieces, bytes) = (data.pieces().len(), data.len());
        if pieces < 2 || bytes == 0 {
            return Ok(None);
        }
        let room = self.request_room();
        let packs = self.endpoint.look(|engine| match lists.or(engine.config().memory.lists) {
            Lists::Chain => false,
            Lists::Pack => true,
            Lists::PackExposed => is_exposed,
            Lists::Auto => {
                let described = front - CALL_HEAD + pieces * PIECE <= room;
                !described || Lists::packing_pays(bytes as u64, pieces as u64, pieces as u64 - 1, 0)
            }
        });
        if !packs {
            return Ok(None);
        }
        let buffer = self.endpoint.call_buffers().take_packing(self.id(), direction, bytes)?;
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
        self.endpoint.call_buffers().keep_packing(packed.buffer);
    }

    fn charge(&self, list: &MemList) {
        self.endpoint.copied(list.len() as u64, list.pieces().len() as u64);
    }
}

impl Packed {
    /// Returns the data in one piece.
    pub(super) fn data(&self) -> MemSlice {
        self.buffer.memory.slice(0, self.list.len())
    }
}
