//! Messages that are taken whole: complete in their record, or one piece of mapped memory. Anything
//! else goes the general way (`inbound`).
//!
//! **Invariant.** A message is shown to a receiver before any byte of it is copied. It is shown
//! only if it is complete in one record, this poll has reported nothing of its connection, and the
//! receive at the front has room (C16).

use std::ops::Range;

use bmi_core::mem::copy;
use bmi_core::transport::{ConnId, Event, InlineMessage, InlineReceiver, WorkStatus};

use super::layout::IN_PLACE_WORDS;
use super::link::Link;
use crate::config::MAX_HEAD;
use crate::shared::ring::Record;
use crate::work::{Cursor, QueuePair, Recv};

/// State shared by the turns of one poll.
pub(crate) struct Pass<'a> {
    pub(crate) events: &'a mut Vec<Event>,
    /// Most events that there may be.
    pub(crate) limit: usize,
    /// Events of this poll that may include some of the connection whose turn is next.
    pub(crate) early: Range<usize>,
    /// Set if messages are shown to the receiver.
    pub(crate) shows: bool,
    pub(crate) receiver: &'a mut dyn InlineReceiver,
    /// Set if anything has moved.
    pub(crate) moved: bool,
}

impl Pass<'_> {
    /// Returns the number of events now. Returns `None` if no message of this connection may be
    /// shown, because this poll has already reported one of its events.
    #[inline]
    pub(super) fn shown_at(&self, conn: ConnId) -> Option<usize> {
        let none = self.early.is_empty() || self.events[self.early.clone()].iter().all(|event| conn_of(event) != conn);
        (self.shows && none).then_some(self.events.len())
    }
}

fn conn_of(event: &Event) -> ConnId {
    match event {
        Event::Work(work) => work.conn,
        Event::ConnectRequest { conn, .. }
        | Event::Established { conn, .. }
        | Event::Rejected { conn, .. }
        | Event::Disconnected { conn, .. } => *conn,
    }
}

/// Hands over a message that is complete in its record. The receiver gets it if it may be shown and
/// the receiver takes it; otherwise the receive at the front does. Returns false if there is no
/// such receive, or it has no room.
#[inline]
pub(super) fn hand_over(
    link: &Link,
    queues: &mut QueuePair,
    pass: &mut Pass<'_>,
    shown_at: Option<usize>,
    record: Record,
) -> bool {
    let Some(recv) = queues.receives.front().filter(|recv| recv.room() >= record.len as u64) else { return false };
    let from = link.reader.space().ptr(record.at);
    if shown_at == Some(pass.events.len()) {
        // SAFETY: the record was checked to lie in the ring, which the link keeps mapped. Of the
        // processes that have the ring mapped, only the peer's can write it.
        let message = unsafe { InlineMessage::new(from, record.len) };
        if pass.receiver.take(queues.conn(), message) {
            return true;
        }
    }
    if let Some(to) = recv.ptr() {
        // SAFETY: the source was checked to lie in the ring, and the receive holds its segment.
        // Others write both only through `mem::copy`, through the kernel, or from another process.
        unsafe { copy::copy_between(to, from, record.len) };
    } else {
        let mut from = from;
        queues.receives.walk(&mut Cursor::default(), record.len, |to, len| {
            // SAFETY: as above; the parts together are as long as the record.
            unsafe { copy::copy_between(to, from, len) };
            from = from.wrapping_add(len);
        });
    }
    queues.complete_recv(WorkStatus::Ok, record.len as u64, None, pass.events)
}

/// Copies an in-place message in the common case: one piece in mapped memory, within the budget,
/// for a receive of one segment that has room. Returns false in any other case, and has then
/// completed nothing. Any violation shows again on the general path.
#[inline(never)]
pub(super) fn fetch(
    link: &mut Link,
    queues: &mut QueuePair,
    pass: &mut Pass<'_>,
    record: Record,
    budget: &mut u64,
) -> bool {
    const BODY: usize = (IN_PLACE_WORDS + 2) * 8;
    if record.len < BODY {
        return false;
    }
    let mut body = [0; BODY];
    // SAFETY: the record was checked to lie in the ring, which the link keeps mapped.
    unsafe { copy::copy_out(&mut body, link.reader.space().ptr(record.at)) };
    let mut words = [0; IN_PLACE_WORDS + 2];
    for (word, bytes) in words.iter_mut().zip(body.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let [len, shape, pages, offset, piece] = words;
    let head = record.len - BODY;
    let Some(to) = queues.receives.front().filter(|recv| recv.room() >= len).and_then(Recv::ptr) else { return false };
    let usual = shape == 1 << 32 | head as u64 && head <= MAX_HEAD && piece <= *budget && piece + head as u64 == len;
    let Some(memory) = u32::try_from(pages).ok().filter(|_| usual).and_then(|pages| link.mapped.find(pages)) else {
        return false;
    };
    let all = memory.len() as u64;
    if offset > all || piece > all - offset {
        return false;
    }
    let from = memory.as_ptr().wrapping_add(offset as usize);
    // SAFETY: the head lies in the record, and the piece in the mapping, which the link keeps. The
    // receive, of one segment, has room for both. Others write all of these only through
    // `mem::copy`, through the kernel, or from another process.
    unsafe {
        copy::copy_between(to, link.reader.space().ptr(record.at + BODY), head);
        copy::copy_between(to.wrapping_add(head), from, piece as usize);
    }
    if link.peer.is_gone() {
        return false; // the copied bytes may not be the message any more
    }
    *budget -= piece;
    link.has_copied();
    queues.complete_recv(WorkStatus::Ok, len, None, pass.events)
}
