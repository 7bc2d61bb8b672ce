//! The payload of a frame: where its bytes go, and what is done when they are in place.

use bmi_core::Segment;
use bmi_core::transport::WorkStatus;

use super::{Context, Inbound};
use crate::frame::{HEADER, LONG_HEADER};
use crate::queue_pair::{Cursor, Part, PartTarget, QueuePair};
use crate::vectored_io::{MAX_PIECES, Piece};

/// What the payload of the current frame belongs to.
pub(super) enum Owner {
    Message,
    /// The oldest read.
    Reply,
    Part(Part),
}

/// A SEND or WRITE whose pieces are arriving.
pub(super) struct Message {
    pub(super) left: u64,
    pub(super) target: Target,
}

pub(super) enum Target {
    Recv { cursor: Cursor, len: u64 },
    Write { segment: Segment, placed: usize, key: u64, immediate: Option<u32> },
}

impl Inbound {
    /// Lists the destinations of the next bytes. Returns how many bytes go directly to their
    /// target, and the total.
    #[inline]
    pub(super) fn aim(&mut self, context: &mut Context<'_>) -> (usize, usize) {
        context.pieces.clear();
        if self.here == 0 {
            self.buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let free = &mut self.buf[self.end..self.read_ahead];
            let asked = free.len();
            context.pieces.push(Piece::new(free.as_mut_ptr(), asked));
            return (0, asked);
        }
        debug_assert_eq!(self.start, self.end);
        (self.start, self.end) = (0, 0);
        let mut direct = 0;
        let pieces = &mut *context.pieces;
        let mut add = |segment: &Segment, offset: usize, len: usize| {
            if pieces.len() < MAX_PIECES - 1 {
                pieces.push(Piece::new(segment.as_ptr().wrapping_add(offset), len));
                direct += len;
            }
        };
        let mut tail = self.read_ahead;
        match (&self.owner, &self.message) {
            (Owner::Reply, _) => {
                let mut cursor = self.reply_cursor;
                context.queues.read_segments.walk(&mut cursor, self.here, &mut add);
                if context.queues.current_read().is_some_and(|read| read.left > self.here as u64) {
                    tail = HEADER;
                }
            }
            (Owner::Part(part), _) => {
                match &part.target {
                    PartTarget::Read(cursor) => {
                        context.queues.read_segments.walk(&mut cursor.clone(), self.here, &mut add);
                    }
                    PartTarget::Write { segment, placed } => add(segment, *placed, self.here),
                }
                tail = LONG_HEADER;
            }
            (Owner::Message, Some(Message { left, target })) => {
                match target {
                    Target::Recv { cursor, .. } => {
                        context.queues.recv_segments.walk(&mut cursor.clone(), self.here, &mut add);
                    }
                    Target::Write { segment, placed, .. } => add(segment, *placed, self.here),
                }
                if *left > self.here as u64 {
                    tail = HEADER;
                }
            }
            (Owner::Message, None) => {}
        }
        if direct < self.here {
            return (direct, direct); // more pieces than one call takes
        }
        context.pieces.push(Piece::new(self.buf[..tail].as_mut_ptr(), tail));
        (direct, direct + tail)
    }

    /// Advances the current payload's target by `len` bytes that are in place.
    #[inline(always)]
    pub(super) fn skip(&mut self, context: &mut Context<'_>, len: usize) {
        self.each(context.queues, len, |_, _, _| {});
    }

    /// Calls `each` with the pieces of the next `len` bytes of the target, and advances the target.
    #[inline(always)]
    fn each(&mut self, queues: &QueuePair, len: usize, mut each: impl FnMut(&Segment, usize, usize)) {
        let (segment, placed) = match (&mut self.owner, self.message.as_mut().map(|message| &mut message.target)) {
            (Owner::Reply, _) => return queues.read_segments.walk(&mut self.reply_cursor, len, each),
            (Owner::Part(Part { target: PartTarget::Read(cursor), .. }), _) => {
                return queues.read_segments.walk(cursor, len, each);
            }
            (Owner::Message, Some(Target::Recv { cursor, .. })) => {
                return queues.recv_segments.walk(cursor, len, each);
            }
            (Owner::Part(Part { target: PartTarget::Write { segment, placed }, .. }), _)
            | (Owner::Message, Some(Target::Write { segment, placed, .. })) => (segment, placed),
            (Owner::Message, None) => return,
        };
        each(segment, *placed, len);
        *placed += len;
    }

    /// Copies `len` buffered bytes to their target.
    #[inline]
    pub(super) fn copy(&mut self, context: &mut Context<'_>, len: usize) {
        let buf = std::mem::take(&mut self.buf);
        let mut from = self.start;
        self.each(context.queues, len, |segment, offset, len| {
            segment.region().memory().copy_from(segment.offset() + offset, &buf[from..from + len]);
            from += len;
        });
        self.buf = buf;
        self.start += len;
    }

    /// Notes that `len` bytes of the current payload are in place.
    #[inline(always)]
    pub(super) fn placed(&mut self, context: &mut Context<'_>, len: usize) {
        self.here -= len;
        match (&self.owner, &mut self.message) {
            (Owner::Reply, _) => {
                let done = context.queues.current_read().is_some_and(|read| {
                    read.left -= len as u64;
                    read.left == 0
                });
                if done {
                    context.events.extend(context.queues.complete_read(WorkStatus::Ok));
                }
            }
            (Owner::Part(part), _) if self.here == 0 => context.queues.part_placed(part.whole, context.events),
            (Owner::Part(_), _) | (Owner::Message, None) => {}
            (Owner::Message, Some(message)) => {
                message.left -= len as u64;
                if message.left == 0 {
                    self.finish_message(context);
                }
            }
        }
        if self.here == 0 && !matches!(self.owner, Owner::Message) {
            self.owner = Owner::Message;
        }
    }

    #[inline]
    pub(super) fn finish_message(&mut self, context: &mut Context<'_>) {
        let (len, immediate) = match self.message.take().map(|message| message.target) {
            Some(Target::Recv { len, .. }) => (len, None),
            Some(Target::Write { immediate: Some(value), .. }) => (0, Some(value)),
            _ => return,
        };
        if let Some(event) = context.queues.complete_recv(WorkStatus::Ok, len, immediate) {
            context.events.push(event);
        }
    }
}
