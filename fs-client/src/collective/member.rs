//! What the members of a collective operation want, and what follows from it for all: each computes
//! the same from the same.

use std::ops::Range;

use fs_proto::limits::MAX_JOINED;
use fs_proto::{Coverage, Cursor, Distribution, FileView, Joined, Region};

use crate::file::Joining;

/// Pieces from which on it does not pay to join them, in bytes.
const LONG_PIECE: u64 = 4 << 10;

/// What one member reads or writes: a range of the stream of its view.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) view: FileView,
    pub(super) stream: Range<u64>,
}

impl Member {
    /// Returns the range of the stream that is within a range of the file.
    pub(super) fn within(&self, file: &Range<u64>) -> Range<u64> {
        let below = |offset| self.view.size_below(offset).clamp(self.stream.start, self.stream.end);
        below(file.start)..below(file.end)
    }

    /// Returns the pieces of the file of a range of the stream.
    pub(super) fn pieces(&self, stream: &Range<u64>) -> Cursor {
        self.view.cursor(stream.start, stream.end - stream.start).expect("a part of what was checked")
    }

    /// Returns the first byte of the file from `offset` on.
    pub(super) fn next(&self, offset: u64) -> Option<u64> {
        let position = self.view.size_below(offset).max(self.stream.start);
        self.view.offset_of(position).filter(|_| position < self.stream.end)
    }

    /// Returns the smallest range of the file that contains all bytes of a range of the stream.
    pub(super) fn hull(&self, stream: &Range<u64>) -> Option<Range<u64>> {
        let last = stream.end.checked_sub(1).filter(|_| !stream.is_empty())?;
        Some(self.view.offset_of(stream.start)?..self.view.offset_of(last)? + 1)
    }

    /// Returns true if a server has bytes of the member in a range of the file.
    fn uses(&self, distribution: &Distribution, server: usize, file: &Range<u64>) -> bool {
        let (strip_size, servers) = (distribution.strip_size(), distribution.servers() as u64);
        let first = file.start / strip_size;
        let ahead = (server as u64 + servers - first % servers) % servers;
        let mut strips = (first + ahead..).step_by(servers as usize).map(|strip| {
            let start = strip.saturating_mul(strip_size);
            start.max(file.start)..start.saturating_add(strip_size).min(file.end)
        });
        strips.find_map(|strip| match strip.is_empty() {
            true => Some(false),
            false => (!self.within(&strip).is_empty()).then_some(true),
        }) == Some(true)
    }
}

/// Returns the smallest range of the file that contains all bytes of all members.
pub(super) fn hull(members: &[Member]) -> Range<u64> {
    let hulls = members.iter().filter_map(|member| member.hull(&member.stream));
    hulls.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
}

/// How the requests of the members of an operation are joined at the servers.
#[derive(Clone, Debug)]
pub(super) struct Together<'a> {
    members: &'a [Member],
    operation: (u64, u64),
    distribution: Distribution,
    hull: Range<u64>,
    /// Bytes of the file in a window.
    window: u64,
}

impl<'a> Together<'a> {
    /// Joins the requests of an operation in windows of at most `most` bytes. In each, a server has
    /// no more than it takes as one unit.
    pub(super) fn new(
        members: &'a [Member],
        operation: (u64, u64),
        distribution: &Distribution,
        most: u64,
    ) -> Together<'a> {
        let (strip, servers) = (distribution.strip_size(), distribution.servers() as u64);
        let strips = (MAX_JOINED / strip).saturating_mul(servers).min(most / strip);
        // Whole stripes, or at least whole strips.
        let window = match strips {
            0 => most.min(MAX_JOINED),
            _ if strips >= servers => strips / servers * servers * strip,
            _ => strips * strip,
        };
        Together { members, operation, distribution: *distribution, hull: hull(members), window }
    }
}

impl Joining for Together<'_> {
    fn window(&self, offset: u64) -> Range<u64> {
        let start = offset / self.window * self.window;
        start.max(self.hull.start)..start.saturating_add(self.window).min(self.hull.end)
    }

    fn joined(&self, server: usize, window: &Range<u64>) -> Option<Joined> {
        let requests = self.members.iter().filter(|member| member.uses(&self.distribution, server, window)).count();
        let below = |offset| self.distribution.datafile_size(server, offset);
        let (start, end) = (below(window.start), below(window.end));
        let requests = u32::try_from(requests).ok().filter(|requests| *requests > 1)?;
        Joined::new(self.operation, requests, Region::new(start, end - start)).ok()
    }
}

/// What a look at some places of the file says about an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    /// Bytes and pieces of all members there.
    pub(super) bytes: u64,
    pub(super) pieces: u64,
    /// Ranges of the file when all are put together.
    pub(super) runs: u64,
}

impl Sample {
    /// Bytes of a place, and their number.
    const PLACE: u64 = 16 << 10;
    const PLACES: u64 = 4;

    /// Looks at some places. Takes a bounded number of steps for each member.
    pub(super) fn of(members: &[Member]) -> Sample {
        let (hull, mut sample) = (hull(members), Sample::default());
        let mut seen = hull.start;
        for place in 0..Sample::PLACES {
            let from = (hull.start + (hull.end - hull.start) / Sample::PLACES * place).max(seen);
            let Some(from) = members.iter().filter_map(|member| member.next(from)).min() else { break };
            let window = from..(from + Sample::PLACE).min(hull.end);
            let mut coverage = Coverage::new(window.end - window.start);
            for member in members {
                let stream = member.within(&window);
                let (mut cursor, mut found) = (member.pieces(&stream), [Region::new(0, 0); 64]);
                loop {
                    let count = cursor.next_batch(&mut found, u64::MAX);
                    if count == 0 {
                        break;
                    }
                    sample.pieces += count as u64;
                    for piece in &found[..count] {
                        coverage.mark(piece.offset - window.start, piece.len);
                        sample.bytes += piece.len;
                    }
                }
            }
            sample.runs += coverage.runs().count() as u64;
            seen = window.end;
        }
        sample
    }

    /// Returns true if the pieces are so short that it pays to join them.
    pub(super) fn is_short(&self) -> bool {
        self.piece() < LONG_PIECE
    }

    /// Returns the mean length of a piece in bytes.
    pub(super) fn piece(&self) -> u64 {
        self.bytes.checked_div(self.pieces).unwrap_or(0).max(1)
    }
}
