//! Data of a call packed into one piece, where that costs less than moving its pieces one by one.
//!
//! **Why.** The server sees as many pieces as the client exposes, and needs a request for each; and
//! each has to be described in the request. The client decides both by copying: a write's pieces
//! into one before it is exposed, a read's out of one when the reply is here ([`crate::lists`]).
//!
//! **Memory.** Packed data stands in buffers that are kept for the next calls, and with them their
//! registrations. A buffer whose call was dropped is not used again: the server may still be at it.

use super::call::Caller;
use super::path::Direction;
use super::wire::CALL_HEAD;
use crate::error::Error;
use crate::lists::Lists;
use crate::mem::{MemList, MemSlice, Memory};
use crate::mutated;
use crate::op::PeerId;
use crate::transport::{HostWork, Transport};

/// Buffers that are kept: a few requests to each of a few servers.
const KEPT: usize = 16;
/// Longest one, in bytes: as long as a file system client's requests are by default.
const LONGEST: usize = 16 << 20;
/// Most bytes that a piece takes in a descriptor: key, place, length, and the range.
const PIECE: usize = 8 + 3 + 1 + crate::extents::MAX_ENCODED;

/// The user's list of a call whose data is packed.
#[derive(Debug)]
pub(super) struct Packed {
    buffer: Memory,
    list: MemList,
    direction: Direction,
}

impl<T: Transport> Caller<T> {
    /// Packs `data` if its pieces are not to be moved one by one, by the server or by this side as
    /// the server grants; `front` is the length of the request so far.
    ///
    /// # Errors
    /// `Exhausted` without memory.
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
                let prices = endpoint.config().memory.list_prices;
                let described = front - CALL_HEAD + pieces * PIECE <= room;
                !described || prices.packing_pays(bytes as u64, pieces as u64, pieces as u64 - 1, 0)
            }
        });
        if !packs {
            return Ok(None);
        }
        let buffer = self.take_packing(bytes)?;
        let packed = Packed { buffer, list: data.clone(), direction };
        if direction == Direction::Write {
            let mut at = 0;
            for piece in packed.list.pieces() {
                at += packed.buffer.slice(at, piece.len()).copy_from_slice_of(piece);
            }
            self.charge(&packed.list);
        }
        Ok(Some(packed))
    }

    /// The reply is here: hands the data of a read to the user's pieces. Of a read that failed they
    /// then hold anything.
    pub(super) fn unpack(&self, packed: Packed) {
        if packed.direction == Direction::Read && !mutated("call/reply-not-unpacked") {
            let mut at = 0;
            for piece in packed.list.pieces() {
                at += piece.copy_from_slice_of(&packed.buffer.slice(at, piece.len()));
            }
            self.charge(&packed.list);
        }
        self.keep_packing(packed.buffer);
    }

    fn charge(&self, list: &MemList) {
        let work = HostWork::Copy { bytes: list.len() as u64, pieces: list.pieces().len() as u64 };
        self.endpoint().with(|endpoint| endpoint.transport_mut().charge(work));
    }

    /// The smallest of the kept buffers that is long enough, or a new one, of a length that others
    /// may want too.
    fn take_packing(&self, len: usize) -> Result<Memory, Error> {
        let mut kept = self.packing.borrow_mut();
        let fits = kept.iter().enumerate().filter(|(_, buffer)| buffer.len() >= len);
        match fits.min_by_key(|(_, buffer)| buffer.len()).map(|(at, _)| at) {
            Some(at) => Ok(kept.swap_remove(at)),
            None => Memory::zeroed(if len <= LONGEST { len.next_power_of_two() } else { len }),
        }
    }

    fn keep_packing(&self, buffer: Memory) {
        let mut kept = self.packing.borrow_mut();
        if kept.len() == KEPT {
            // The shortest is the soonest replaced.
            let shortest = (0..KEPT).min_by_key(|at| kept[*at].len()).expect("some are kept");
            kept.swap_remove(shortest);
        }
        if buffer.len() <= LONGEST {
            kept.push(buffer);
        }
    }
}

impl Packed {
    /// The data in one piece.
    pub(super) fn data(&self) -> MemSlice {
        self.buffer.slice(0, self.list.len())
    }
}
