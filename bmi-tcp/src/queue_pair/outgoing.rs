//! What goes on the wire, a round at a time, and what completes when it has left.

use bmi_core::RemoteSlice;
use bmi_core::transport::{Event, WorkStatus};

use super::{QueuePair, Request};
use crate::config::MAX_READS;
use crate::frame::{Frame, PIECE, Whole, piece};
use crate::vectored_io::Piece;
use crate::wire::Wire;

/// The longest round of work.
const LONGEST_ROUND: u64 = 4 * PIECE;

impl QueuePair {
    /// Puts a round of work on the wire, once everything put there before has left. Requests and
    /// replies have their turns of a frame's length. With `requests_only`, reads and replies stay:
    /// the connection is being closed, and they are no longer needed.
    pub(crate) fn commit(&mut self, requests_only: bool) {
        if self.wire.backlog() > 0 {
            return;
        }
        if !requests_only {
            self.commit_reads();
        }
        loop {
            let turn = self.wire.backlog() + PIECE;
            while self.wire.backlog() < turn && self.commit_request() {}
            // Otherwise no request is left.
            let requests_left = self.wire.backlog() >= turn;
            let replies = !requests_only && self.next_reply < self.replies.len();
            let replied = replies && self.commit_reply(None).is_some();
            if !(requests_left || replied) || self.wire.backlog() >= self.round {
                return;
            }
        }
    }

    /// Returns the bytes to send if they are all in the ring: requests that were copied whole when
    /// they were posted, at most a frame's length of them, and nothing else. The pieces are valid
    /// until the wire is modified.
    ///
    /// This is the usual case of small messages. They leave without a round of work: the queue
    /// needs no entry for each run of bytes, and all of its requests end at once.
    #[inline]
    pub(crate) fn only_staged(&self) -> Option<[Piece; 2]> {
        let staged = self.wire.backlog() == 0
            && self.request_segments.is_empty()
            && self.next_reply == self.replies.len()
            && (self.issued == self.reads.len() || self.issued == MAX_READS)
            && (1..=PIECE).contains(&(self.wire.staged() as u64));
        staged.then(|| self.wire.uncommitted())
    }

    /// Completes what [`QueuePair::only_staged`] returned, which the kernel has taken.
    #[inline]
    pub(crate) fn complete_staged(&mut self) {
        self.wire.sent_uncommitted();
        self.next_request = self.requests.len();
        let sent = self.wire.sent();
        for request in &mut self.requests {
            (request.staged, request.end) = (0, sent);
        }
    }

    /// Learns from a system call how long the next round should be. The system took `taken` of the
    /// `asked` bytes.
    ///
    /// A call has a price, so a round is as long as what the system takes at once. What it leaves
    /// over is before everything that is posted later: a read or a reply must not wait behind more
    /// of it than a frame.
    ///
    /// With several streams it is one frame always, because others may have room for the next.
    pub(crate) fn adapt(&mut self, asked: usize, taken: usize) {
        if self.spread.is_some() {
            return;
        }
        let (asked, taken) = (asked as u64, taken as u64);
        if taken < asked {
            self.round = taken.next_multiple_of(PIECE).clamp(PIECE, LONGEST_ROUND);
        } else if taken >= self.round {
            self.round = (2 * self.round).min(LONGEST_ROUND);
        }
    }

    /// Returns true if requests are waiting for their turn.
    pub(crate) fn has_uncommitted_requests(&self) -> bool {
        self.next_request < self.requests.len()
    }

    /// Returns true if [`QueuePair::commit`] would find something.
    pub(crate) fn has_uncommitted(&self) -> bool {
        self.has_uncommitted_requests()
            || self.next_reply < self.replies.len()
            || (self.issued < self.reads.len() && self.issued < MAX_READS)
    }

    fn commit_reads(&mut self) {
        while self.issued < MAX_READS
            && let Some(read) = self.reads.get(self.issued)
        {
            let RemoteSlice { key, addr, .. } = read.remote;
            self.wire.commit_header(&Frame::Read { len: read.len, key: key.0, addr, id: read.id });
            self.issued += 1;
        }
    }

    /// Commits the next frame of the oldest request that has one. Returns false if there is none.
    pub(super) fn commit_request(&mut self) -> bool {
        let Some(request) = self.requests.get_mut(self.next_request) else { return false };
        if request.bulk.is_some() {
            return self.commit_part_of_request(None).is_some();
        }
        let here = if request.staged > 0 {
            // The first frame. `here` is the part of its payload that is not staged with the
            // header.
            self.wire.commit_staged(request.staged as usize);
            let staged_payload = request.len - request.left;
            request.staged = 0;
            u64::from(piece(request.len)) - staged_payload
        } else {
            let here = piece(request.left);
            self.wire.commit_header(&Frame::Data { here });
            u64::from(here)
        };
        self.request_segments.walk(&mut request.cursor, here as usize, |segment, offset, len| {
            self.wire.commit_memory(Piece::new(segment.as_ptr().wrapping_add(offset), len));
        });
        request.left -= here;
        if request.left == 0 {
            request.end = self.wire.committed();
            self.next_request += 1;
        }
        true
    }

    /// Commits the next frame of the oldest reply that has one, to a further stream or to the first
    /// one. Returns `None` if there is none.
    pub(super) fn commit_reply(&mut self, further: Option<&mut Wire>) -> Option<Whole> {
        let reply = self.replies.get_mut(self.next_reply)?;
        let (id, whole) = (reply.id, Whole::Reply(reply.id));
        let here = piece((reply.segment.len() - reply.committed) as u64);
        let part = Frame::Part { here, offset: reply.committed as u64, whole };
        reply.pending += u32::from(further.is_some());
        let wire = further.unwrap_or(&mut self.wire);
        wire.commit_header(&if self.spread.is_some() { part } else { Frame::Reply { here, id } });
        if here > 0 {
            wire.commit_memory(Piece::new(reply.segment.as_ptr().wrapping_add(reply.committed), here as usize));
            reply.committed += here as usize;
        }
        if reply.committed == reply.segment.len() {
            reply.end = self.wire.committed();
            self.next_reply += 1;
        }
        Some(whole)
    }

    /// Completes requests and replies whose bytes the kernel has taken, until `events` has `limit`
    /// entries. Returns false if more are waiting.
    pub(crate) fn complete_sent(&mut self, events: &mut Vec<Event>, limit: usize) -> bool {
        let sent = self.wire.sent();
        while self.replies.front().is_some_and(|reply| reply.end <= sent && reply.pending == 0) {
            self.replies.pop_front();
            self.next_reply -= 1;
        }
        let has_left = |request: &&Request| request.end <= sent && request.pending == 0;
        while let Some(request) = self.requests.front().filter(has_left) {
            if events.len() >= limit {
                return false;
            }
            if request.signalled {
                events.push(self.event(request.work, request.kind, WorkStatus::Ok, request.len, None));
            }
            self.request_segments.pop(request.segments);
            self.requests.pop_front();
            self.next_request -= 1;
        }
        if self.requests.is_empty() {
            self.requests.clear(); // begins at the front
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use bmi_core::transport::ConnId;

    use super::*;
    use crate::config::TcpConfig;

    #[test]
    fn a_round_is_as_long_as_what_the_system_takes_at_once() {
        let mut queues = QueuePair::new(ConnId { slot: 0, generation: 0 }, &TcpConfig::default());
        let mut after = |asked: u64, taken: u64| {
            queues.adapt(asked as usize, taken as usize);
            queues.round / PIECE
        };
        let rounds = [(100, 100), (PIECE, PIECE), (2 * PIECE + 40, 2 * PIECE + 40), (4 * PIECE, 4 * PIECE)];
        assert_eq!(rounds.map(|(asked, taken)| after(asked, taken)), [1, 2, 4, 4]);
        assert_eq!(
            [0, 100, PIECE, PIECE + 1, 3 * PIECE + 1].map(|taken| after(4 * PIECE + 16, taken)),
            [1, 1, 1, 2, 4]
        );
        // Small messages do not make it longer or shorter.
        assert_eq!(after(64, 64), 4);
    }
}
