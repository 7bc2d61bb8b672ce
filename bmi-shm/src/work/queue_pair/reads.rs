//! Reads of the peer's memory, and replies to the peer's reads.

use bmi_backend::total_len;
use bmi_core::transport::{PostError, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{RemoteSlice, Segment};

use super::QueuePair;
use crate::config::{MAX_READS, WORK_LIMITS};
use crate::work::completions::Completions;
use crate::work::request::{Read, Reply};

impl QueuePair {
    /// Checks whether a read can be posted. Returns its length.
    #[inline]
    pub(crate) fn check_read(&mut self, segments: &[Segment], remote: &RemoteSlice) -> Result<u64, PostError> {
        let len = WORK_LIMITS.check_read(segments, remote)?;
        self.check_depth()?;
        Ok(len)
    }

    /// Queues a read that was checked.
    pub(crate) fn add_read(&mut self, work: WorkId, segments: &[Segment], remote: RemoteSlice, options: WorkOptions) {
        let len = total_len(segments);
        let cursor = self.read_segments.end();
        self.read_segments.push(segments);
        let id = self.next_read_id;
        self.next_read_id = id.wrapping_add(1);
        let segments = segments.len() as u32;
        self.reads.push_back(Read {
            work,
            signalled: options.signalled,
            remote,
            id,
            segments,
            cursor,
            len,
            remaining: len,
        });
    }

    /// Calls `each` with the places for the next `len` bytes of the oldest read.
    pub(crate) fn scatter(&self, len: usize, each: impl FnMut(*mut u8, usize)) {
        let Some(read) = self.reads.front() else { return };
        let mut cursor = read.cursor;
        self.read_segments.walk(&mut cursor, len, each);
    }

    /// Notes that the next `len` bytes of the oldest read have arrived.
    pub(crate) fn advance_read(&mut self, len: usize) {
        let Some(read) = self.reads.front_mut() else { return };
        read.remaining -= len as u64;
        self.read_segments.walk(&mut read.cursor, len, |_, _| {});
    }

    /// Ends the oldest read. Reports its completion if it is signalled.
    pub(crate) fn complete_read<C: Completions>(&mut self, done: &mut C) {
        let Some(read) = self.reads.pop_front() else { return };
        self.issued = self.issued.saturating_sub(1);
        self.fresh += usize::from(C::LATER);
        if read.signalled {
            done.report(self.event(read.work, WorkKind::Read, WorkStatus::Ok, read.len, None));
        }
        self.read_segments.pop(read.segments, |region| done.release(region));
    }

    /// Queues the reply to a read of the peer. Returns false if the peer has too many reads
    /// outstanding.
    pub(crate) fn add_reply(&mut self, id: u32, key: u64, segment: Segment) -> bool {
        if self.replies.len() >= MAX_READS {
            return false;
        }
        self.replies.push_back(Reply { id, key, segment, sent: 0 });
        true
    }

    /// Returns whether a queued reply reads from this exposure.
    pub(crate) fn replies_with(&self, key: u64) -> bool {
        self.replies.iter().any(|reply| reply.key == key)
    }
}
