//! The records of the ring: their kinds and how they are written.
//!
//! **Protocol** of the records. A record's body is everything behind its first word.
//!
//! ```text
//!   SEND     message                             a message that fits into one record
//!   FIRST    length (8), its first bytes         a longer message; MORE records follow until it is complete
//!   WRITE    key, address, length, immediate (8 each), bytes   a write that the owner carries out; MORE records follow
//!   MORE     bytes                               of the current message or write
//!   WRITTEN  immediate (8)                       a write with immediate data that its sender has carried out
//!   READ     key, address, length, id (8 each)   a read that the owner answers
//!   REPLY    id (8), bytes                       a piece of the reply; replies come in the order of the reads
//!   CLOSE    nothing                             nothing follows
//!   IN_PLACE length, head length + 2^32 * pieces,   a message that stays in the sender's memory, except its head.
//!            number of pages (8 each);              The receiver copies it from there, once, and counts it
//!            offset, length of each (8 each); head  in its area (`taken`). The sender waits for that.
//! ```
//!
//! `immediate` is 2^32 plus the 32 bits, or 0 for none. Records of replies may come between those
//! of a message in parts.
//!
//! **In-place messages** (IN_PLACE) are those of [`LEFT_LEN`] bytes and more whose pages the peer
//! has mapped. They cost one copy instead of two, and the sender copies nothing. Later messages
//! follow at once. Only completions wait, because they come in order. The acknowledgement of an
//! in-place copy is sent in the receiver's next poll, after the reply if there is one. The sender
//! has read that word, so a store to it waits for its cache line, and later stores would wait
//! behind it.

use super::link::Link;
use crate::error::Violation;
use crate::shared::ring::Reservation;
use crate::work::Pen;

pub(super) const SEND: u8 = 1;
pub(super) const FIRST: u8 = 2;
pub(super) const WRITE: u8 = 3;
pub(super) const MORE: u8 = 4;
pub(super) const WRITTEN: u8 = 5;
pub(super) const READ: u8 = 6;
pub(super) const REPLY: u8 = 7;
pub(super) const CLOSE: u8 = 8;
pub(super) const IN_PLACE: u8 = 9;

/// From this length on, in bytes, a message may be sent in place.
pub(crate) const LEFT_LEN: u64 = 4 << 10;
/// Words of an IN_PLACE record before its pieces. Each piece takes two more, and the head follows.
pub(super) const IN_PLACE_WORDS: usize = 3;

/// Bytes copied under one claim. A revocation waits for at most that much, some 20 µs.
pub(super) const UNIT: u64 = 256 << 10;
/// Bytes copied directly in one turn of a connection.
pub(crate) const BUDGET: u64 = 1 << 20;
/// Bytes copied directly while posting.
pub(crate) const POST_BUDGET: u64 = 64 << 10;

/// Encodes immediate data.
pub(super) fn encode_immediate(immediate: Option<u32>) -> u64 {
    immediate.map_or(0, |bits| 1 << 32 | u64::from(bits))
}

/// Returns a pen over a new record's body, or `None` if there is no room.
pub(super) fn begin(link: &mut Link, len: usize) -> Result<Option<(Reservation, Pen)>, Violation> {
    let Some(reservation) = link.reserve(len)? else { return Ok(None) };
    // SAFETY: the body of a reserved record lies in this side's ring, which the link keeps mapped.
    // It is not read before it is published, and the peer cannot write it.
    let pen = unsafe { Pen::new(link.writer.space().ptr(reservation.at), len) };
    Ok(Some((reservation, pen)))
}

/// Returns how many bytes of an IN_PLACE record come before its head.
#[inline]
pub(super) fn left_prefix(pieces: usize) -> usize {
    (IN_PLACE_WORDS + 2 * pieces) * 8
}

/// Writes the first words of an IN_PLACE record.
#[inline]
pub(super) fn write_left(pen: &mut Pen, len: u64, head: usize, pieces: usize, number: u32) {
    for word in [len, head as u64 | (pieces as u64) << 32, u64::from(number)] {
        pen.write(&word.to_le_bytes());
    }
}

/// Writes a piece of an IN_PLACE record, in the memory that begins at `base`.
#[inline]
pub(super) fn write_piece(pen: &mut Pen, at: *mut u8, len: usize, base: usize) {
    // The piece is within the memory, so the offset is never negative.
    pen.write(&((at as usize - base) as u64).to_le_bytes());
    pen.write(&(len as u64).to_le_bytes());
}

/// Tells the peer that a write with immediate data is done.
pub(super) fn put_immediate(link: &mut Link, record: Reservation, immediate: Option<u32>) {
    // SAFETY: as in `begin`; the record has eight bytes.
    let mut pen = unsafe { Pen::new(link.writer.space().ptr(record.at), record.len) };
    pen.write(&encode_immediate(immediate).to_le_bytes());
    link.writer.publish(record, WRITTEN);
}

pub(super) fn encode_words(words: [u64; 4]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
