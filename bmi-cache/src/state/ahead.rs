//! Recognises readers that go through a file in order, and says what to read ahead of them.
//!
//! A file may have several readers at once. Each read continues one of the last streams, or begins
//! a new one in place of the stream that was idle longest. A stream has a stride: the distance from
//! one read to the next. That of a sequential reader is the length of its reads. After two reads at
//! the same distance the stream is trusted, and what follows is read ahead: first as much as one
//! read, then twice as much each time, up to a limit.

use crate::interface::Pattern;
use crate::ranges::Extent;

/// Streams that a file can have.
const STREAMS: usize = 4;

/// Reads at the same distance that make a stream trusted.
const TRUSTED: u32 = 2;

/// Longest stride, in lengths of a read.
const MOST_STRIDE: u64 = 64;

/// Something to read ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) file: u64,
    pub(crate) extents: Vec<Extent>,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The last read.
    last: Extent,
    /// The distance from the read before it.
    stride: u64,
    /// Reads at that distance.
    run: u32,
    /// The next offset that is to be read ahead, and how many reads are read ahead at once.
    next: u64,
    window: u64,
}

/// The streams of a file, the one used last at the end.
#[derive(Debug, Default)]
pub(crate) struct Streams(Vec<Stream>);

impl Streams {
    /// Notes a read. Returns what to read ahead because of it: at most `most` bytes.
    pub(crate) fn note(&mut self, read: Extent, pattern: Pattern, most: u64) -> Vec<Extent> {
        if read.len == 0 || pattern == Pattern::Random {
            return Vec::new();
        }
        let continues = |stream: &Stream| {
            let distance = read.offset.wrapping_sub(stream.last.offset);
            distance == stream.stride || read.offset == stream.last.end()
        };
        let found = self.0.iter().rposition(continues);
        // A stream that is not trusted yet takes another step forward as its stride, if it is near.
        let near = |stream: &Stream| {
            let step = read.offset.checked_sub(stream.last.offset);
            stream.run < TRUSTED && step.is_some_and(|step| step > 0 && step / MOST_STRIDE <= read.len)
        };
        let found = found.or_else(|| self.0.iter().rposition(near));
        let mut stream = match found {
            Some(at) => {
                let mut stream = self.0.remove(at);
                let distance = read.offset - stream.last.offset;
                let same = distance == stream.stride || read.offset == stream.last.end();
                stream.run = if same { stream.run + 1 } else { 1 };
                (stream.stride, stream.last) = (distance, read);
                stream
            }
            None => {
                if self.0.len() == STREAMS {
                    self.0.remove(0);
                }
                let run = if pattern == Pattern::Sequential { TRUSTED } else { 0 };
                Stream { last: read, stride: read.len, run, next: 0, window: 1 }
            }
        };
        let ahead = if stream.run >= TRUSTED { stream.ahead(most) } else { Vec::new() };
        self.0.push(stream);
        ahead
    }
}

impl Stream {
    /// Returns what to read ahead, once the reader has come half way to the end of what was.
    fn ahead(&mut self, most: u64) -> Vec<Extent> {
        let following = self.last.offset.saturating_add(self.stride);
        let from = self.next.max(following);
        let ahead = (from - following) / self.stride.max(1);
        if ahead > self.window / 2 {
            return Vec::new();
        }
        let reads = (self.window * 2).min(most / self.last.len.max(1));
        if reads == 0 {
            return Vec::new();
        }
        self.window = reads;
        let first = from;
        let count = reads - ahead.min(reads);
        self.next = first.saturating_add(count.saturating_mul(self.stride));
        if self.stride == self.last.len {
            return vec![Extent::new(first, count * self.stride)].into_iter().filter(|extent| extent.len > 0).collect();
        }
        (0..count).map(|read| Extent::new(first + read * self.stride, self.last.len)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that were read ahead before they were read, of reads at these offsets.
    fn hits(reads: impl Iterator<Item = u64>, len: u64, pattern: Pattern) -> (u64, u64) {
        let (mut streams, mut ahead, mut hits) = (Streams::default(), Vec::<Extent>::new(), 0);
        for offset in reads {
            let read = Extent::new(offset, len);
            hits += u64::from(ahead.iter().any(|known| known.offset <= offset && read.end() <= known.end()));
            ahead.extend(streams.note(read, pattern, 64 * len));
        }
        (hits, ahead.iter().map(|extent| extent.len).sum::<u64>() / len)
    }

    #[test]
    fn a_sequential_reader_is_read_ahead_of_after_two_reads() {
        let (found, read) = hits((0..200).map(|at| at * 100), 100, Pattern::Unknown);
        assert!(found >= 197 && read <= found + 64, "{found} of 200, {read} were read");
        let (found, _) = hits((0..200).map(|at| at * 100), 100, Pattern::Sequential);
        assert_eq!(found, 199);
    }

    #[test]
    fn a_strided_reader_is_recognised() {
        let (found, read) = hits((0..200).map(|at| at * 1000), 100, Pattern::Unknown);
        assert!(found >= 196 && read <= found + 64, "{found} of 200, {read} were read");
    }

    #[test]
    fn several_readers_do_not_disturb_each_other() {
        let reads = (0..600).map(|at| (at % 3) * 1_000_000 + at / 3 * 100);
        let (found, _) = hits(reads, 100, Pattern::Unknown);
        assert!(found >= 580, "{found} of 600");
    }

    #[test]
    fn nothing_is_read_ahead_of_a_random_reader() {
        let random = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) * 100;
        let (_, read) = hits((1..500).map(random), 100, Pattern::Unknown);
        assert!(read < 25, "{read} of 500 were read for nothing");
        assert_eq!(hits((0..200).map(|at| at * 100), 100, Pattern::Random), (0, 0));
    }
}
