//! From the peer's ring to the receives and exposures of this side.
//!
//! **Invariants**
//! 1. A record's word and prefix are copied once, then checked; a body is copied out of the ring once, to where it belongs. What the
//!    peer changes meanwhile changes the bytes that arrive, and nothing else.
//! 2. The place of a record is given back after its bytes were copied.
//! 3. One call handles a bounded number of records, whatever stands in the ring.

use bmi_backend::software::Exposures;
use bmi_core::mem::copy;
use bmi_core::transport::{Event, WorkKind, WorkStatus};
use bmi_core::{Access, Segment};

use crate::error::{Fault, Violation};
use crate::link::Link;
use crate::outbound::{CLOSE, FIRST, MORE, READ, REPLY, SEND, WRITE, WRITTEN};
use crate::queue_pair::QueuePair;
use crate::ring::Record;
use crate::segments::Cursor;

/// Records handled in one call: a batch of events, and what needs no event.
const RECORDS: usize = 512;

/// What arrives in parts.
enum Current {
    Message { len: u64, left: u64, cursor: Cursor },
    Write { key: u64, to: Segment, done: usize, immediate: Option<u32> },
}

/// What stands between records.
#[derive(Default)]
pub(crate) struct Inbound {
    current: Option<Current>,
}

/// What one call came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    pub(crate) moved: bool,
    /// There may be more.
    pub(crate) more: bool,
}

/// One connection's parts.
pub(crate) struct Context<'a> {
    pub(crate) link: &'a mut Link,
    pub(crate) queues: &'a mut QueuePair,
    pub(crate) exposures: &'a Exposures,
    pub(crate) events: &'a mut Vec<Event>,
    pub(crate) limit: usize,
}

impl Context<'_> {
    fn at(&self, record: Record, offset: usize) -> *mut u8 {
        self.link.reader.space().ptr(record.at + offset)
    }

    /// Word `index` of the body, which is long enough.
    fn word(&self, record: Record, index: usize) -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: the record was checked to lie in the ring, the caller checked that it has this word.
        unsafe { copy::copy_out(&mut bytes, self.at(record, index * 8)) };
        u64::from_le_bytes(bytes)
    }

    fn words<const N: usize>(&self, record: Record) -> Result<[u64; N], Violation> {
        if record.len < N * 8 {
            return Err(Violation::Record);
        }
        Ok(std::array::from_fn(|index| self.word(record, index)))
    }

    /// Copies `len` bytes of the body, from `offset` on, to the receive at the front, and moves `cursor` behind them.
    #[inline]
    fn deliver(&self, record: Record, mut offset: usize, len: usize, cursor: &mut Cursor) {
        self.queues.recv_segments.walk(cursor, len, |to, len| {
            // SAFETY: the ring's part was checked, the receive holds its segments, both are written by others only through
            // `mem::copy`, by the kernel or by another process.
            unsafe { copy::copy_between(to, self.at(record, offset), len) };
            offset += len;
        });
    }
}

impl Inbound {
    /// Whether a write under way goes to this exposure.
    pub(crate) fn writes_with(&self, key: u64) -> bool {
        matches!(&self.current, Some(Current::Write { key: current, .. }) if *current == key)
    }

    /// Handles what stands in the ring.
    pub(crate) fn receive(&mut self, context: &mut Context<'_>) -> Result<Received, Fault> {
        let mut received = Received::default();
        for _ in 0..RECORDS {
            if context.events.len() >= context.limit {
                received.more = true;
                return Ok(received);
            }
            let Some(record) = context.link.reader.next().map_err(|_| Violation::Ring)? else {
                return Ok(received);
            };
            received.moved = true;
            self.handle(context, record)?;
            context.link.reader.consume(record);
        }
        received.more = true;
        Ok(received)
    }

    #[inline]
    fn handle(&mut self, context: &mut Context<'_>, record: Record) -> Result<(), Fault> {
        match record.kind {
            SEND => self.message(context, record, record.len as u64, 0),
            FIRST => {
                let [len] = context.words(record)?;
                // What fits one record comes in one; and a length that no sender may have is no reason to count on it.
                if len <= (record.len - 8) as u64 || len > crate::config::MAX_WORK_LEN {
                    return Err(Violation::Record.into());
                }
                self.message(context, record, len, 8)
            }
            MORE => self.more(context, record),
            WRITE => self.write(context, record),
            WRITTEN => {
                let [immediate] = context.words(record)?;
                self.no_current()?;
                let immediate = decode_immediate(immediate)?.ok_or(Violation::Record)?;
                self.written(context, Some(immediate))
            }
            READ => {
                let [key, addr, len, id] = context.words(record)?;
                let id = u32::try_from(id).map_err(|_| Violation::Record)?;
                let segment = context.exposures.check(key, addr, len, Access::READ);
                let segment = segment.ok_or(Violation::Access(WorkKind::Read, id))?;
                if context.queues.add_reply(id, key, segment) { Ok(()) } else { Err(Violation::TooManyReads.into()) }
            }
            REPLY => self.reply(context, record),
            CLOSE => Err(Fault::Closed),
            _ => Err(Violation::Record.into()),
        }
    }

    fn no_current(&self) -> Result<(), Violation> {
        if self.current.is_some() { Err(Violation::Record) } else { Ok(()) }
    }

    /// A message begins, and ends here if all of it stands in this record, from `offset` of the body on.
    #[inline]
    fn message(&mut self, context: &mut Context<'_>, record: Record, len: u64, offset: usize) -> Result<(), Fault> {
        self.no_current()?;
        let recv = context.queues.next_recv().ok_or(Violation::NotReady(WorkKind::Send))?;
        if recv.room < len {
            context.events.extend(context.queues.complete_recv(WorkStatus::TooLong, 0, None));
            return Err(Violation::TooLong.into());
        }
        let mut cursor = context.queues.recv_segments.front();
        let here = record.len - offset;
        context.deliver(record, offset, here, &mut cursor);
        if here as u64 == len {
            context.events.extend(context.queues.complete_recv(WorkStatus::Ok, len, None));
        } else {
            self.current = Some(Current::Message { len, left: len - here as u64, cursor });
        }
        Ok(())
    }

    fn more(&mut self, context: &mut Context<'_>, record: Record) -> Result<(), Fault> {
        match &mut self.current {
            Some(Current::Message { len, left, cursor }) => {
                *left = left.checked_sub(record.len as u64).ok_or(Violation::Record)?;
                context.deliver(record, 0, record.len, cursor);
                if *left == 0 {
                    let len = *len;
                    self.current = None;
                    context.events.extend(context.queues.complete_recv(WorkStatus::Ok, len, None));
                }
                Ok(())
            }
            Some(Current::Write { .. }) => self.write_part(context, record, 0),
            None => Err(Violation::Record.into()),
        }
    }

    fn write(&mut self, context: &mut Context<'_>, record: Record) -> Result<(), Fault> {
        let [key, addr, len, immediate] = context.words(record)?;
        self.no_current()?;
        let immediate = decode_immediate(immediate)?;
        let to = context.exposures.check(key, addr, len, Access::WRITE);
        let to = to.ok_or(Violation::Access(WorkKind::Write, 0))?;
        if immediate.is_some() && context.queues.next_recv().is_none() {
            return Err(Violation::NotReady(WorkKind::Write).into());
        }
        self.current = Some(Current::Write { key, to, done: 0, immediate });
        self.write_part(context, record, 32)
    }

    /// The bytes of a record, from `offset` of its body on, go where the write under way goes.
    fn write_part(&mut self, context: &mut Context<'_>, record: Record, offset: usize) -> Result<(), Fault> {
        let Some(Current::Write { to, done, immediate, .. }) = &mut self.current else {
            return Err(Violation::Record.into());
        };
        let len = record.len - offset;
        if len > to.len() - *done {
            return Err(Violation::Record.into());
        }
        // SAFETY: the ring's part and the target's were checked; the segment holds its memory.
        unsafe { copy::copy_between(to.as_ptr().wrapping_add(*done), context.at(record, offset), len) };
        *done += len;
        if *done < to.len() {
            return Ok(());
        }
        let immediate = *immediate;
        self.current = None;
        if immediate.is_some() { self.written(context, immediate) } else { Ok(()) }
    }

    /// Immediate data consumes a receive.
    fn written(&mut self, context: &mut Context<'_>, immediate: Option<u32>) -> Result<(), Fault> {
        let event = context.queues.complete_recv(WorkStatus::Ok, 0, immediate);
        context.events.push(event.ok_or(Violation::NotReady(WorkKind::Write))?);
        Ok(())
    }

    fn reply(&mut self, context: &mut Context<'_>, record: Record) -> Result<(), Fault> {
        let [id] = context.words(record)?;
        let here = record.len - 8;
        let asked = context.queues.issued > 0;
        let read = context.queues.reads.front().filter(|read| asked && u64::from(read.id) == id);
        let left = read.ok_or(Violation::Record)?.left;
        if here as u64 > left || here == 0 && left > 0 {
            return Err(Violation::Record.into());
        }
        let mut offset = 8;
        let queues = &*context.queues;
        queues.scatter(here, |to, len| {
            // SAFETY: the ring's part was checked; the queue holds the segments.
            unsafe { copy::copy_between(to, context.at(record, offset), len) };
            offset += len;
        });
        context.queues.advance_read(here);
        if here as u64 == left {
            context.events.extend(context.queues.complete_read());
        }
        Ok(())
    }
}

fn decode_immediate(word: u64) -> Result<Option<u32>, Violation> {
    match word >> 32 {
        0 if word == 0 => Ok(None),
        1 => Ok(Some(word as u32)),
        _ => Err(Violation::Record),
    }
}
