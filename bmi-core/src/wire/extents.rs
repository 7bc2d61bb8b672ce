//! Encodes lists of ranges in few bytes: pieces of memory in a descriptor, regions of a file in a
//! request.
//!
//! **Why.** A request for a noncontiguous access names thousands of ranges ([PVFS-IB §6.7] had room
//! for 128). The request must travel before the first byte of data. Ranges are close to each other,
//! and often equally long and equally far apart. A tile of an array is a single run.
//!
//! **Invariants**
//! 1. Decoding never panics, whatever the bytes, and produces no more ranges than the caller
//!    allows. A run of a few bytes can represent many ranges. The bound is therefore checked before
//!    a run is expanded, and nothing is allocated in advance.
//! 2. Decoding returns the encoded ranges in the same order. Any 64-bit values are allowed.
//!
//! **Layout.** A sequence of runs. Varints have 7 bits in each byte, lowest first. `zigzag` maps
//! small negative numbers to small numbers:
//!
//! ```text
//!   run     head = zigzag(start - end of the range before) << 2 | same length << 1 | repeated   varint, up to 66 bits
//!           [length]              unless equal to the length of the range before                 varint
//!           [count, zigzag(gap)]  if repeated: count more ranges, each `gap` after the last end  varints
//! ```
//!
//! The first range is encoded relative to end 0 and length 0. The round trips and mutations below
//! test this.

use crate::error::{Error, ErrorKind};
use crate::hooks::steps;

/// A range: its start and its length.
pub type Extent = (u64, u64);

/// Longest encoding of a range, in bytes.
pub const MAX_ENCODED: usize = 10 + 10;

/// Writes ranges, and joins them into runs as they are added.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
    at: Position,
    run: Option<Run>,
}

/// End and length of the last range. The next range is encoded relative to them.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    end: u64,
    len: u64,
}

/// A range and its repetitions.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    len: u64,
    more: u64,
    /// Distance from the end of a range to the start of the next, modulo 2^64.
    gap: u64,
}

impl Run {
    /// Returns the end of the last range.
    fn end(&self) -> u64 {
        let step = self.len.wrapping_add(self.gap);
        self.start.wrapping_add(step.wrapping_mul(self.more)).wrapping_add(self.len)
    }

    /// Adds the range to the run and returns true, if it has the run's length and gap.
    fn takes(&mut self, (start, len): Extent) -> bool {
        let gap = start.wrapping_sub(self.end());
        if len != self.len || (self.more > 0 && gap != self.gap) {
            return false;
        }
        (self.gap, self.more) = (gap, self.more + 1);
        true
    }
}

impl Encoder {
    /// Returns an encoder that appends to `bytes`.
    pub fn behind(bytes: Vec<u8>) -> Encoder {
        Encoder { bytes, at: Position::default(), run: None }
    }

    /// Adds a range.
    pub fn push(&mut self, extent: Extent) {
        if self.run.as_mut().is_some_and(|run| run.takes(extent)) {
            return;
        }
        self.flush();
        self.run = Some(Run { start: extent.0, len: extent.1, more: 0, gap: 0 });
    }

    /// Returns an upper bound on the encoded length so far, in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() + if self.run.is_some() { 2 * MAX_ENCODED } else { 0 }
    }

    /// Returns true if nothing was added.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.run.is_none()
    }

    /// Returns the encoded bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.flush();
        self.bytes
    }

    fn flush(&mut self) {
        let Some(run) = self.run.take() else { return };
        let delta = zigzag(run.start.wrapping_sub(self.at.end));
        let same = run.len == self.at.len;
        let head = u128::from(delta) << 2 | u128::from(same) << 1 | u128::from(run.more > 0);
        put_varint(&mut self.bytes, head);
        if !same {
            put_varint(&mut self.bytes, run.len.into());
        }
        if run.more > 0 {
            put_varint(&mut self.bytes, run.more.into());
            put_varint(&mut self.bytes, zigzag(run.gap).into());
        }
        self.at = Position { end: run.end(), len: run.len };
    }
}

/// Appends the encoding of `extents` to `bytes`.
pub fn encode(bytes: Vec<u8>, extents: impl IntoIterator<Item = Extent>) -> Vec<u8> {
    let mut encoder = Encoder::behind(bytes);
    extents.into_iter().for_each(|extent| encoder.push(extent));
    encoder.finish()
}

/// Decodes at most `max` ranges and passes each to `take`.
///
/// # Errors
/// `Protocol` if the bytes are not a valid list, or if it has more than `max` ranges.
pub fn decode(mut bytes: &[u8], max: usize, mut take: impl FnMut(Extent)) -> Result<(), Error> {
    let (mut at, mut left) = (Position::default(), max as u64);
    while !bytes.is_empty() {
        let run = take_run(&mut bytes, at)?;
        left = run.more.checked_add(1).and_then(|count| left.checked_sub(count)).ok_or_else(|| too_many(max))?;
        let step = run.len.wrapping_add(run.gap);
        for n in 0..=run.more {
            steps(1);
            take((run.start.wrapping_add(step.wrapping_mul(n)), run.len));
        }
        at = Position { end: run.end(), len: run.len };
    }
    Ok(())
}

fn take_run(bytes: &mut &[u8], at: Position) -> Result<Run, Error> {
    let head = take_varint(bytes)?;
    let delta = u64::try_from(head >> 2).map_err(|_| malformed())?;
    let start = at.end.wrapping_add(unzigzag(delta));
    let len = if head & 2 == 0 { take_u64(bytes)? } else { at.len };
    let (more, gap) = if head & 1 == 0 { (0, 0) } else { (take_u64(bytes)?, unzigzag(take_u64(bytes)?)) };
    Ok(Run { start, len, more, gap })
}

fn malformed() -> Error {
    Error::new(ErrorKind::Protocol, "malformed list of ranges")
}

fn too_many(max: usize) -> Error {
    Error::new(ErrorKind::Protocol, format!("a list of more than {max} ranges"))
}

/// Maps numbers near zero, modulo 2^64 and of either sign, to small numbers.
fn zigzag(value: u64) -> u64 {
    let sign = if value >> 63 == 1 { u64::MAX } else { 0 };
    value << 1 ^ sign
}

fn unzigzag(value: u64) -> u64 {
    let sign = if value & 1 == 1 { u64::MAX } else { 0 };
    value >> 1 ^ sign
}

/// Appends a number of at most 70 bits.
pub(crate) fn put_varint(bytes: &mut Vec<u8>, mut value: u128) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Result<u128, Error> {
    let mut value = 0u128;
    for place in 0..10 {
        let (byte, rest) = bytes.split_first().ok_or_else(malformed)?;
        *bytes = rest;
        value |= u128::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(malformed())
}

/// Reads a number of at most 64 bits.
pub(crate) fn take_u64(bytes: &mut &[u8]) -> Result<u64, Error> {
    u64::try_from(take_varint(bytes)?).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn decoded(bytes: &[u8], max: usize) -> Result<Vec<Extent>, Error> {
        let mut extents = Vec::new();
        decode(bytes, max, |extent| extents.push(extent))?;
        Ok(extents)
    }

    /// Ranges of every kind: close together, far apart, backwards, periodic, wrapping.
    fn extents() -> impl Strategy<Value = Vec<Extent>> {
        let wild = (any::<u64>(), any::<u64>()).prop_map(|extent| vec![extent]);
        let near = vec((0..1u64 << 20, 0..5000u64), 0..20);
        let rhythm = (any::<u64>(), 0..3000u64, any::<u64>(), 0..50u64).prop_map(|(start, len, step, count)| {
            (0..count).map(|n| (start.wrapping_add(step.wrapping_mul(n)), len)).collect()
        });
        vec(prop_oneof![wild, near, rhythm], 0..8).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn any_list_comes_back(extents in extents()) {
            let mut encoder = Encoder::default();
            for (count, extent) in extents.iter().enumerate() {
                prop_assert!(encoder.len() <= (count + 1) * MAX_ENCODED * 2);
                encoder.push(*extent);
            }
            let most = encoder.len();
            let bytes = encoder.finish();
            prop_assert!(bytes.len() <= most && bytes.len() <= extents.len() * MAX_ENCODED);
            prop_assert_eq!(decoded(&bytes, extents.len()).unwrap(), extents.clone());
            if let Some(fewer) = extents.len().checked_sub(1) {
                prop_assert!(decoded(&bytes, fewer).is_err(), "one more than allowed");
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..60)) {
            if let Ok(extents) = decoded(&bytes, 1000) {
                prop_assert!(extents.len() <= 1000);
                let again = encode(Vec::new(), extents.iter().copied());
                prop_assert_eq!(decoded(&again, 1000).unwrap(), extents);
            }
        }
    }

    #[test]
    fn a_tile_is_one_run_and_neighbours_cost_few_bytes() {
        // [PVFS-IB, Figure 6]: 768 rows of 1024 elements in lines of 2048.
        let rows = (0..768u64).map(|row| ((1 << 40) | (row * 2048), 1024));
        assert!(encode(Vec::new(), rows).len() <= 16);
        let ragged: Vec<Extent> = (0..1000u64).map(|n| (n * 5000 + n * n % 977, 3000 + n * 7 % 501)).collect();
        assert!(encode(Vec::new(), ragged).len() <= 5 * 1000);
    }

    #[test]
    fn a_run_without_end_is_refused_before_it_is_spread_out() {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, 1);
        for value in [8, u64::MAX, 0] {
            put_varint(&mut bytes, value.into());
        }
        assert_eq!(decoded(&bytes, 16_384).unwrap_err().kind(), ErrorKind::Protocol);
    }
}
