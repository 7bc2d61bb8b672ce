//! What is done while it is posted: short messages, announcements of in-place messages, and short
//! writes and reads of mapped memory.
//!
//! **Immediate transfers.** A short write or read on mapped memory is done while it is posted if
//! nothing is queued before it ([`write_now`], [`read_now`]). For posted work the limit is
//! [`POST_BUDGET`] bytes, and the next poll reports the completion. For
//! [`bmi_core::Transport::write_now`] and `read_now` the limit is [`NOW`] bytes, and there is no
//! completion. A claim covers such a transfer like any other.

use bmi_core::transport::WriteTarget;
use bmi_core::{Access, MemSlice, RemoteSlice, Segment};

use super::layout::{IN_PLACE, SEND, UNIT, begin, left_prefix, put_immediate, write_left, write_piece};
use super::link::{Link, copy};
use crate::config::{MAX_HEAD, MAX_SEGMENTS, MAX_WORK_LEN};
use crate::work::{Pen, QueuePair, Shortcut};

/// Bytes of a transfer that completes in the call that asks for it: as many as under one claim.
/// Posted work waits for its completion anyway, and there may be a queue of it, so its limit is
/// smaller.
const NOW: u64 = UNIT;

/// Sends a short message that is copied while it is posted. Nothing may be queued before it.
/// Returns whether there was room.
#[inline]
pub(crate) fn send_now(link: &mut Link, head: &[u8], slices: &[MemSlice]) -> bool {
    let len = slices.iter().fold(head.len(), |len, slice| len + slice.len());
    if head.len() > MAX_HEAD || len > link.short {
        return false; // the general path reports the error
    }
    let Some(reservation) = link.writer.reserve(len) else { return false };
    // SAFETY: as in `begin`.
    let mut pen = unsafe { Pen::new(link.writer.space().ptr(reservation.at), len) };
    pen.write(head);
    for slice in slices {
        // SAFETY: a slice lies in its memory, which it holds.
        unsafe { pen.write_shared(slice.as_ptr(), slice.len()) };
    }
    link.writer.publish(reservation, SEND);
    true
}

/// Announces an in-place message of `len` bytes while it is posted. It stays in the memory that the
/// peer has mapped under this number. Nothing may be queued before it. Returns whether there was
/// room.
pub(crate) fn leave_now(link: &mut Link, head: &[u8], segments: &[Segment], number: u32, len: u64) -> bool {
    let Some(base) = segments.first().map(|segment| segment.region().memory().as_ptr() as usize) else { return false };
    if head.len() > MAX_HEAD || len > MAX_WORK_LEN {
        return false; // the general path reports the error
    }
    let body = left_prefix(segments.len()) + head.len();
    let Some(reservation) = link.writer.reserve(body) else { return false };
    // SAFETY: as in `begin`.
    let mut pen = unsafe { Pen::new(link.writer.space().ptr(reservation.at), body) };
    write_left(&mut pen, len, head.len(), segments.len(), number);
    segments.iter().for_each(|segment| write_piece(&mut pen, segment.as_ptr(), segment.len(), base));
    pen.write(head);
    link.writer.publish(reservation, IN_PLACE);
    link.in_place += 1;
    true
}

/// Sends a message at once if it fits into one record and the ring has room.
pub(crate) struct Ring<'a>(pub(crate) &'a mut Link);

impl Shortcut for Ring<'_> {
    #[inline]
    fn send(&mut self, len: usize, fill: impl FnOnce(&mut Pen)) -> bool {
        if len > self.0.chunk {
            return false;
        }
        // A violation shows again when the queue is served, and ends the connection there.
        let Ok(Some((reservation, mut pen))) = begin(self.0, len) else { return false };
        fill(&mut pen);
        self.0.writer.publish(reservation, SEND);
        true
    }
}

/// A piece of this side's memory, which the piece holds.
pub(crate) trait Piece {
    /// Returns the address and the number of its bytes.
    fn place(&self) -> (*mut u8, usize);
}

impl Piece for Segment {
    #[inline]
    fn place(&self) -> (*mut u8, usize) {
        (self.as_ptr(), self.len())
    }
}

impl Piece for MemSlice {
    #[inline]
    fn place(&self) -> (*mut u8, usize) {
        (self.as_ptr(), self.len())
    }
}

/// Does a short write of `len` bytes, those of `head` and of all `pieces`, while it is posted. Does
/// it only if nothing is queued before it and the target is mapped. Returns whether it did.
#[inline]
pub(crate) fn write_now(
    link: &mut Link,
    queues: &QueuePair,
    head: &[u8],
    pieces: &[impl Piece],
    target: &WriteTarget,
    len: u64,
) -> bool {
    if queues.has_requests() || link.ring_writes_until > link.writer.consumed() {
        return false;
    }
    let record = match target.immediate.map(|_| link.reserve(8)) {
        None => None,
        Some(Ok(Some(record))) => Some(record),
        Some(_) => return false, // queue the write until there is room; a violation shows again there
    };
    let Some(to) = link.mapped(&target.remote, len, Access::WRITE) else { return false };
    // SAFETY: `mapped` has checked the target's bounds within a mapping that the link keeps.
    let mut pen = unsafe { Pen::new(to, len as usize) };
    pen.write(head);
    for piece in pieces {
        let (from, len) = piece.place();
        // SAFETY: a piece lies in memory that it holds.
        unsafe { pen.write_shared(from, len) };
    }
    link.done();
    if let Some(record) = record {
        put_immediate(link, record, target.immediate);
    }
    true
}

/// Does a short read while it is posted, like [`write_now`]. `len` is the length of all `pieces`
/// together.
#[inline]
pub(crate) fn read_now(
    link: &mut Link,
    queues: &QueuePair,
    pieces: &[impl Piece],
    remote: &RemoteSlice,
    len: u64,
) -> bool {
    if !queues.reads.is_empty() {
        return false;
    }
    let Some(mut from) = link.mapped(remote, len, Access::READ) else { return false };
    for piece in pieces {
        let (to, len) = piece.place();
        // SAFETY: `mapped` has checked the source's bounds within a mapping that the link keeps,
        // and `len` is the sum of all pieces. A piece lies in memory that it holds.
        unsafe { copy(to, from, len) };
        from = from.wrapping_add(len);
    }
    link.done();
    true
}

/// As [`len_now`], for pieces that are written to. Returns `None` also if one of them is read-only.
#[inline]
pub(crate) fn len_now_into(pieces: &[MemSlice], remote: &RemoteSlice) -> Option<u64> {
    if pieces.len() > MAX_SEGMENTS {
        return None;
    }
    let mut len = 0;
    for piece in pieces {
        if piece.memory().is_read_only() {
            return None;
        }
        len += piece.len() as u64;
    }
    (len <= remote.len.min(NOW)).then_some(len)
}

/// Returns the length of all `pieces` together. Returns `None` if there are more pieces than a work
/// request may have, or more bytes than `remote` or an immediate transfer may have.
#[inline]
pub(crate) fn len_now(pieces: &[MemSlice], remote: &RemoteSlice) -> Option<u64> {
    if pieces.len() > MAX_SEGMENTS {
        return None;
    }
    let len = pieces.iter().map(|piece| piece.len() as u64).sum();
    (len <= remote.len.min(NOW)).then_some(len)
}
