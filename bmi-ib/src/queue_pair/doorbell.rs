//! Handing posted requests over to the adapter, and asking the peer before some of them.
//!
//! **Doorbells.** The first request after a poll is handed over at once, so a single message never
//! waits. Requests that are posted after it, before the next poll, are collected. The next poll
//! hands them over as one linked list: one doorbell, on Soft-RoCE one system call. The backend asks
//! the adapter to signal one of the unsignalled requests per quarter of the queue or of the staging
//! ring. So it learns that there is room again.
//!
//! **Zero-length accesses.** Adapters do not check the key of an access of no bytes (InfiniBand
//! specification, C9-88), but the contract requires it (C7). So the peer's program is asked over
//! the side channel before such a request. It is also asked before a request with a key that no
//! adapter can have. Requests posted later wait for the answer. Such requests are rare, so their
//! low speed does not matter.

use std::io;

use bmi_core::transport::{WorkId, WorkKind};

use super::ids::tag;
use super::{Planned, QueuePair, Request};
use crate::config::MAX_SEGMENTS;
use crate::greeting::Message;
use crate::verbs::{Chain, Opcode, SendWork, Sge};

/// The result of a flush.
pub(crate) enum Flushed {
    /// All requests that may go have been handed over.
    Done,
    /// The peer must be asked this before more requests may go.
    Ask(Message),
}

impl QueuePair {
    /// Returns whether a flush would find something that may go.
    pub(crate) fn has_waiting(&self) -> bool {
        (!self.waiting.is_empty() && !self.asked) || self.may_read()
    }

    fn may_read(&self) -> bool {
        !self.reads.is_empty() && self.reads_out < self.max_reads
    }

    /// Notes that a poll has begun.
    pub(crate) fn begin_poll(&mut self) {
        self.rang = false;
    }

    /// Lets the first waiting request go, because the peer allows it. Returns false if the peer was
    /// not asked.
    pub(crate) fn allow(&mut self) -> bool {
        let asked = std::mem::take(&mut self.asked);
        if let (true, Some(first)) = (asked, self.waiting.front_mut()) {
            first.unchecked = false;
        }
        asked
    }

    /// Hands over the requests that may go.
    pub(crate) fn flush(&mut self, chain: &mut Chain) -> io::Result<Flushed> {
        let mut outcome = Flushed::Done;
        while !self.asked
            && let Some(first) = self.waiting.front()
        {
            if first.unchecked {
                let (addr, key) = first.remote.unwrap_or_default();
                self.asked = true;
                outcome = Flushed::Ask(Message::Check { key, addr, write: first.kind == WorkKind::Write });
                break;
            }
            let planned = self.waiting.pop_front().expect("looked at above");
            let count = planned.segments as usize;
            if planned.kind == WorkKind::Read && (!self.reads.is_empty() || self.reads_out >= self.max_reads) {
                self.read_segments.extend(self.waiting_segments.drain(..count));
                self.reads.push_back(planned);
                continue;
            }
            self.request_segments.extend(self.waiting_segments.drain(..count));
            self.issue(planned, chain)?;
        }
        while self.may_read() {
            let planned = self.reads.pop_front().expect("there is one");
            self.request_segments.extend(self.read_segments.drain(..planned.segments as usize));
            self.issue(planned, chain)?;
        }
        self.ring(chain)?;
        Ok(outcome)
    }

    /// Adds a request to the chain. Its segments must be the last of `request_segments`.
    fn issue(&mut self, planned: Planned, chain: &mut Chain) -> io::Result<()> {
        let Planned { work, kind, signalled, len, place, segments, remote, immediate, .. } = planned;
        if kind == WorkKind::Read {
            self.reads_out += 1;
        }
        (self.silent, self.silent_bytes) = (self.silent + 1, self.silent_bytes + place.taken);
        let due = self.silent * 4 >= self.depth || self.silent_bytes * 4 >= self.staging.len();
        let told = signalled || kind == WorkKind::Read || due;
        if told {
            (self.silent, self.silent_bytes) = (0, 0);
        }
        let mut entries = [Sge::new(0, 0, 0); MAX_SEGMENTS + 1];
        let mut count = 0;
        if place.len > 0 {
            entries[0] = self.staging.entry(place);
            count = 1;
        }
        let first = self.request_segments.len() - segments as usize;
        for segment in self.request_segments.range(first..).filter(|segment| !segment.is_empty()) {
            // Not truncated: it is no longer than `max_work_len`.
            entries[count] = self.entry(segment, segment.len() as u32);
            count += 1;
        }
        // Not truncated: a key that no adapter has was asked for and refused before.
        let (addr, key) = remote.map_or((0, 0), |(addr, key)| (addr, key as u32));
        let opcode = match (kind, immediate) {
            (WorkKind::Read, _) => Opcode::Read(addr, key),
            (WorkKind::Write, Some(immediate)) => Opcode::WriteWithImmediate(addr, key, immediate),
            (WorkKind::Write, None) => Opcode::Write(addr, key),
            _ => Opcode::Send,
        };
        let inline = kind != WorkKind::Read && len <= u64::from(self.verbs.limits().inline);
        let id = tag(self.conn) | u64::from(self.next_send);
        self.next_send = self.next_send.wrapping_add(1);
        self.requests.push_back(Request { work, kind: Some(kind), signalled, len, taken: place.taken, segments });
        chain.push(&SendWork { id, opcode, segments: &entries[..count], signalled: told, inline });
        if chain.is_full() { self.ring(chain) } else { Ok(()) }
    }

    fn ring(&mut self, chain: &mut Chain) -> io::Result<()> {
        if chain.is_empty() {
            return Ok(());
        }
        self.rang = true;
        // SAFETY: segments and staged bytes are held until their request has ended (invariant 1),
        // or until the queue pair is gone.
        unsafe { self.verbs.post_send(chain) }.map_err(|(_, error)| error)
    }

    /// Returns whether all posted requests have left and ended.
    pub(crate) fn all_sent(&self) -> bool {
        self.requests.is_empty() && self.waiting.is_empty()
    }

    /// Posts a signalled request without effect behind all others, unless it was already posted.
    /// When it has ended, all others have.
    pub(crate) fn mark(&mut self, chain: &mut Chain) -> io::Result<()> {
        if std::mem::replace(&mut self.marked, true) || self.requests.is_empty() {
            return Ok(());
        }
        let id = tag(self.conn) | u64::from(self.next_send);
        self.next_send = self.next_send.wrapping_add(1);
        let marker = WorkId(0);
        self.requests.push_back(Request { work: marker, kind: None, signalled: false, len: 0, taken: 0, segments: 0 });
        chain.push(&SendWork { id, opcode: Opcode::Write(0, 0), segments: &[], signalled: true, inline: false });
        self.ring(chain)
    }

    /// Puts the queue pair into the error state, so that all requests of the adapter are flushed.
    pub(crate) fn fail(&mut self, chain: &mut Chain) -> io::Result<()> {
        self.verbs.fail()?;
        self.marked = false;
        self.mark(chain)
    }
}
