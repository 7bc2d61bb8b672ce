//! Moves records from the peer's ring to the receives and exposures of this side.
//!
//! **Invariants**
//! 1. A record's word and prefix are copied once, then checked. A body is copied out of the ring
//!    once, to its destination. If the peer changes them in the meantime, only the bytes that
//!    arrive differ.
//! 2. A record's room is given back only after its bytes were copied.
//! 3. One call handles a bounded number of records and copies a bounded number of bytes of in-place
//!    messages, whatever the ring holds.
//! 4. An in-place message is delivered only if the peer had not ended when its last byte was
//!    copied. Until then its bytes belonged to the message.

use bmi_backend::software::Exposures;
use bmi_core::mem::copy;
use bmi_core::transport::{WorkKind, WorkStatus};
use bmi_core::{Access, Segment};

use super::layout::{BUDGET, CLOSE, FIRST, IN_PLACE, IN_PLACE_WORDS, MORE, READ, REPLY, SEND, WRITE, WRITTEN};
use super::link::Link;
use super::whole::{Pass, fetch, hand_over};
use crate::config::{MAX_HEAD, MAX_IN_PLACE_PIECES, MAX_WORK_LEN};
use crate::error::{BAD_RECORD, BAD_RING, BadRequest, Fault, Violation};
use crate::shared::ring::Record;
use crate::work::{Cursor, QueuePair};

/// Most records handled in one call: a batch of events, plus records that make no event.
const RECORDS: usize = 512;

/// Work that arrives in parts.
enum Current {
    Message { len: u64, remaining: u64, cursor: Cursor },
    Write { key: u64, to: Segment, done: usize, immediate: Option<u32> },
    InPlace(InPlace),
}

/// An in-place message of the peer.
struct InPlace {
    len: u64,
    cursor: Cursor,
    /// The number under which its pages were passed.
    pages: u32,
    /// Offset and length of each piece that is left to copy.
    pieces: [(u64, u64); MAX_IN_PLACE_PIECES],
    at: usize,
}

/// How far an in-place message was copied.
#[derive(PartialEq)]
enum CopyProgress {
    Done,
    /// The budget is spent.
    Spent,
    /// The pages are not mapped; they were asked for.
    Missing,
}

/// The state between records.
#[derive(Default)]
pub(crate) struct Inbound {
    current: Option<Current>,
    /// Set if the previous call found a record, so there may be a stream of them.
    streaming: bool,
}

/// The result of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    pub(crate) moved: bool,
    /// Set if there may be more.
    pub(crate) more: bool,
    /// Set if there is more that the ring does not show, or a bound was reached.
    pub(crate) spent: bool,
}

/// The parts of one connection.
pub(crate) struct Context<'a, 'b> {
    pub(crate) link: &'a mut Link,
    pub(crate) queues: &'a mut QueuePair,
    pub(crate) exposures: &'a Exposures,
    pub(crate) pass: &'a mut Pass<'b>,
}

impl Context<'_, '_> {
    fn at(&self, record: Record, offset: usize) -> *mut u8 {
        self.link.reader.space().ptr(record.at + offset)
    }

    /// Returns word `index` of the body, which must be long enough.
    fn word(&self, record: Record, index: usize) -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: the record was checked to lie in the ring, and the caller checked that it has
        // this word.
        unsafe { copy::copy_out(&mut bytes, self.at(record, index * 8)) };
        u64::from_le_bytes(bytes)
    }

    fn words<const N: usize>(&self, record: Record) -> Result<[u64; N], Violation> {
        if record.len < N * 8 {
            return Err(BAD_RECORD);
        }
        Ok(std::array::from_fn(|index| self.word(record, index)))
    }

    /// Checks that the receive at the front has room for a message of `len` bytes. Returns where
    /// that message goes.
    fn receive_for(&mut self, len: u64) -> Result<Cursor, Violation> {
        let recv = self.queues.receives.front().ok_or(BadRequest::NotReady(WorkKind::Send))?;
        if recv.room() < len {
            self.queues.complete_recv(WorkStatus::TooLong, 0, None, self.pass.events);
            return Err(BadRequest::TooLong.into());
        }
        Ok(Cursor::default())
    }

    /// Copies `len` bytes of the body, from `offset` on, to the receive at the front, and moves
    /// `cursor` behind them.
    fn deliver(&self, record: Record, mut offset: usize, len: usize, cursor: &mut Cursor) {
        self.queues.receives.walk(cursor, len, |to, len| {
            // SAFETY: the source was checked to lie in the ring, and the receive holds its
            // segments. Others write both only through `mem::copy`, through the kernel, or from
            // another process.
            unsafe { copy::copy_between(to, self.at(record, offset), len) };
            offset += len;
        });
    }
}

impl InPlace {
    /// Copies the rest of the message, as far as the budget allows.
    fn take(&mut self, context: &mut Context<'_, '_>, budget: &mut u64) -> Result<CopyProgress, Violation> {
        while let Some((offset, len)) = self.pieces.get_mut(self.at) {
            let here = (*len).min(*budget);
            if here == 0 && *len > 0 {
                return Ok(CopyProgress::Spent);
            }
            if here > 0 {
                let Some(memory) = context.link.mapped.find(self.pages) else {
                    context.link.mapped.insist(self.pages);
                    return Ok(CopyProgress::Missing);
                };
                let begin = usize::try_from(*offset).ok().filter(|begin| {
                    usize::try_from(here)
                        .ok()
                        .and_then(|here| begin.checked_add(here))
                        .is_some_and(|end| end <= memory.len())
                });
                let mut from = memory.as_ptr().wrapping_add(begin.ok_or(BAD_RECORD)?);
                context.queues.receives.walk(&mut self.cursor, here as usize, |to, len| {
                    // SAFETY: the source was checked to lie in the mapping, which the link keeps,
                    // and the receive holds its segments. Others write both only through
                    // `mem::copy`, through the kernel, or from another process.
                    unsafe { copy::copy_between(to, from, len) };
                    from = from.wrapping_add(len);
                });
                (*offset, *len, *budget) = (*offset + here, *len - here, *budget - here);
            }
            if *len == 0 {
                self.at += 1;
            }
        }
        Ok(CopyProgress::Done)
    }
}

impl Inbound {
    /// Returns true if no message or write has arrived in part.
    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_none()
    }

    /// Returns whether a write in progress goes to this exposure.
    pub(crate) fn writes_with(&self, key: u64) -> bool {
        matches!(&self.current, Some(Current::Write { key: current, .. }) if *current == key)
    }

    /// Returns whether the connection waits for these pages before it goes on.
    pub(crate) fn waits_for(&self, number: u32) -> bool {
        matches!(&self.current, Some(Current::InPlace(message)) if message.pages == number)
    }

    /// Notes that the ring is empty.
    #[inline]
    pub(crate) fn pause(&mut self) {
        self.streaming = false;
    }

    /// Receives complete messages from the ring, like [`Inbound::receive`]. Returns false if there
    /// is anything else to do.
    #[inline]
    pub(crate) fn take_in(&mut self, link: &mut Link, queues: &mut QueuePair, pass: &mut Pass<'_>) -> bool {
        if self.current.is_some() {
            return false;
        }
        let shown_at = pass.shown_at(queues.conn());
        let mut budget = BUDGET;
        for _ in 0..RECORDS {
            if pass.events.len() >= pass.limit {
                return false;
            }
            let record = match link.reader.next() {
                Ok(Some(record)) => record,
                Ok(None) => return true,
                Err(_) => return false,
            };
            let handed_over = match record.kind {
                SEND => hand_over(link, queues, pass, shown_at, record),
                IN_PLACE => fetch(link, queues, pass, record, &mut budget),
                _ => false,
            };
            if !handed_over {
                return false;
            }
            link.reader.consume(record);
            pass.moved = true;
            if !self.streaming {
                self.streaming = true;
                return true;
            }
        }
        false
    }

    /// Handles the records in the ring. The first record after a call that found none is handled
    /// alone. A look for a second record loads the line behind it, which the peer's processor
    /// holds. No store becomes visible before the loads ahead of it are done, so the reply would
    /// wait for that line.
    pub(crate) fn receive(&mut self, context: &mut Context<'_, '_>) -> Result<Received, Fault> {
        let mut received = Received::default();
        let mut budget = BUDGET;
        let shown_at = context.pass.shown_at(context.queues.conn());
        for _ in 0..RECORDS {
            if context.pass.events.len() >= context.pass.limit {
                (received.more, received.spent) = (true, true);
                return Ok(received);
            }
            if let Some(Current::InPlace(_)) = &self.current {
                if !self.take_left(context, &mut budget, &mut received)? {
                    return Ok(received);
                }
                continue;
            }
            let Some(record) = context.link.reader.next().map_err(|_| BAD_RING)? else {
                self.streaming = received.moved;
                return Ok(received);
            };
            received.moved = true;
            let Context { link, queues, pass, .. } = &mut *context;
            let whole = record.kind == SEND && self.current.is_none();
            if !whole || !hand_over(link, queues, pass, shown_at, record) {
                self.handle(context, record)?;
            }
            context.link.reader.consume(record);
            if !self.streaming && self.current.is_none() {
                self.streaming = true;
                received.more = true;
                return Ok(received);
            }
        }
        self.streaming = true;
        (received.more, received.spent) = (true, true);
        Ok(received)
    }

    /// Continues with the in-place message. Returns whether it is done.
    #[inline(never)]
    fn take_left(
        &mut self,
        context: &mut Context<'_, '_>,
        budget: &mut u64,
        received: &mut Received,
    ) -> Result<bool, Fault> {
        let Some(Current::InPlace(message)) = &mut self.current else { return Ok(true) };
        let before = *budget;
        let (progress, len) = (message.take(context, budget)?, message.len);
        received.moved |= *budget < before;
        if progress != CopyProgress::Done {
            received.more = progress == CopyProgress::Spent;
            received.spent = received.more;
            return Ok(false);
        }
        self.current = None;
        if context.link.peer.is_gone() {
            return Err(Fault::Closed); // the copied bytes may not be the message any more
        }
        context.queues.complete_recv(WorkStatus::Ok, len, None, context.pass.events);
        context.link.has_copied();
        Ok(true)
    }

    /// Handles any record other than a complete message that has a receive.
    #[inline(never)]
    fn handle(&mut self, context: &mut Context<'_, '_>, record: Record) -> Result<(), Fault> {
        match record.kind {
            SEND => self.message(context, record, record.len as u64, 0),
            FIRST => {
                let [len] = context.words(record)?;
                // A message that fits into one record must come in one. A length above the limit is
                // refused, so the rest of the code need not handle it.
                if len <= (record.len - 8) as u64 || len > MAX_WORK_LEN {
                    return Err(BAD_RECORD.into());
                }
                self.message(context, record, len, 8)
            }
            MORE => self.more(context, record),
            WRITE => self.write(context, record),
            WRITTEN => {
                let [immediate] = context.words(record)?;
                self.no_current()?;
                let immediate = decode_immediate(immediate)?.ok_or(BAD_RECORD)?;
                self.written(context, Some(immediate))
            }
            READ => {
                let [key, addr, len, id] = context.words(record)?;
                let id = u32::try_from(id).map_err(|_| BAD_RECORD)?;
                let segment = context.exposures.check(key, addr, len, Access::READ);
                let segment = segment.ok_or(BadRequest::Access(WorkKind::Read, id))?;
                if context.queues.add_reply(id, key, segment) { Ok(()) } else { Err(BadRequest::TooManyReads.into()) }
            }
            REPLY => self.reply(context, record),
            IN_PLACE => self.in_place(context, record),
            CLOSE => Err(Fault::Closed),
            _ => Err(BAD_RECORD.into()),
        }
    }

    fn no_current(&self) -> Result<(), Violation> {
        if self.current.is_some() { Err(BAD_RECORD) } else { Ok(()) }
    }

    /// Begins a message. Ends it here if all of it is in this record, from `offset` of the body on.
    fn message(&mut self, context: &mut Context<'_, '_>, record: Record, len: u64, offset: usize) -> Result<(), Fault> {
        self.no_current()?;
        let mut cursor = context.receive_for(len)?;
        let here = record.len - offset;
        context.deliver(record, offset, here, &mut cursor);
        if here as u64 == len {
            context.queues.complete_recv(WorkStatus::Ok, len, None, context.pass.events);
        } else {
            self.current = Some(Current::Message { len, remaining: len - here as u64, cursor });
        }
        Ok(())
    }

    /// Begins an in-place message. Only its head is in the record.
    fn in_place(&mut self, context: &mut Context<'_, '_>, record: Record) -> Result<(), Fault> {
        let words: [u64; IN_PLACE_WORDS] = context.words(record)?;
        self.no_current()?;
        let (len, head, count) = (words[0], words[1] as u32 as usize, (words[1] >> 32) as usize);
        let pages = u32::try_from(words[2]).map_err(|_| BAD_RECORD)?;
        let prefix = (IN_PLACE_WORDS + 2 * count.min(MAX_IN_PLACE_PIECES)) * 8;
        if count > MAX_IN_PLACE_PIECES || head > MAX_HEAD || record.len != prefix + head || len > MAX_WORK_LEN {
            return Err(BAD_RECORD.into());
        }
        let mut pieces = [(0, 0); MAX_IN_PLACE_PIECES];
        let mut sum = head as u64;
        for (index, piece) in pieces[..count].iter_mut().enumerate() {
            let at = IN_PLACE_WORDS + 2 * index;
            *piece = (context.word(record, at), context.word(record, at + 1));
            sum = sum.checked_add(piece.1).ok_or(BAD_RECORD)?;
        }
        if sum != len {
            return Err(BAD_RECORD.into());
        }
        let mut cursor = context.receive_for(len)?;
        context.deliver(record, prefix, head, &mut cursor);
        self.current = Some(Current::InPlace(InPlace { len, cursor, pages, pieces, at: 0 }));
        Ok(())
    }

    fn more(&mut self, context: &mut Context<'_, '_>, record: Record) -> Result<(), Fault> {
        match &mut self.current {
            Some(Current::Message { len, remaining, cursor }) => {
                *remaining = remaining.checked_sub(record.len as u64).ok_or(BAD_RECORD)?;
                context.deliver(record, 0, record.len, cursor);
                if *remaining == 0 {
                    let len = *len;
                    self.current = None;
                    context.queues.complete_recv(WorkStatus::Ok, len, None, context.pass.events);
                }
                Ok(())
            }
            Some(Current::Write { .. }) => self.write_part(context, record, 0),
            Some(Current::InPlace(_)) | None => Err(BAD_RECORD.into()),
        }
    }

    fn write(&mut self, context: &mut Context<'_, '_>, record: Record) -> Result<(), Fault> {
        let [key, addr, len, immediate] = context.words(record)?;
        self.no_current()?;
        let immediate = decode_immediate(immediate)?;
        let to = context.exposures.check(key, addr, len, Access::WRITE);
        let to = to.ok_or(BadRequest::Access(WorkKind::Write, 0))?;
        if immediate.is_some() && context.queues.receives.front().is_none() {
            return Err(BadRequest::NotReady(WorkKind::Write).into());
        }
        self.current = Some(Current::Write { key, to, done: 0, immediate });
        self.write_part(context, record, 32)
    }

    /// Copies the bytes of a record, from `offset` of its body on, to the target of the current
    /// write.
    fn write_part(&mut self, context: &mut Context<'_, '_>, record: Record, offset: usize) -> Result<(), Fault> {
        let Some(Current::Write { to, done, immediate, .. }) = &mut self.current else {
            return Err(BAD_RECORD.into());
        };
        let len = record.len - offset;
        if len > to.len() - *done {
            return Err(BAD_RECORD.into());
        }
        // SAFETY: source and target were checked; the segment holds its memory.
        unsafe { copy::copy_between(to.as_ptr().wrapping_add(*done), context.at(record, offset), len) };
        *done += len;
        if *done < to.len() {
            return Ok(());
        }
        let immediate = *immediate;
        self.current = None;
        if immediate.is_some() { self.written(context, immediate) } else { Ok(()) }
    }

    /// Completes the oldest receive with the immediate data of a write.
    fn written(&mut self, context: &mut Context<'_, '_>, immediate: Option<u32>) -> Result<(), Fault> {
        let completed = context.queues.complete_recv(WorkStatus::Ok, 0, immediate, context.pass.events);
        if completed { Ok(()) } else { Err(BadRequest::NotReady(WorkKind::Write).into()) }
    }

    fn reply(&mut self, context: &mut Context<'_, '_>, record: Record) -> Result<(), Fault> {
        let [id] = context.words(record)?;
        let here = record.len - 8;
        let asked = context.queues.issued > 0;
        let read = context.queues.reads.front().filter(|read| asked && u64::from(read.id) == id);
        let remaining = read.ok_or(BAD_RECORD)?.remaining;
        if here as u64 > remaining || here == 0 && remaining > 0 {
            return Err(BAD_RECORD.into());
        }
        let mut offset = 8;
        let queues = &*context.queues;
        queues.scatter(here, |to, len| {
            // SAFETY: the source was checked to lie in the ring; the queue holds the segments.
            unsafe { copy::copy_between(to, context.at(record, offset), len) };
            offset += len;
        });
        context.queues.advance_read(here);
        if here as u64 == remaining {
            context.queues.complete_read(context.pass.events);
        }
        Ok(())
    }
}

fn decode_immediate(word: u64) -> Result<Option<u32>, Violation> {
    match word >> 32 {
        0 if word == 0 => Ok(None),
        1 => Ok(Some(word as u32)),
        _ => Err(BAD_RECORD),
    }
}
