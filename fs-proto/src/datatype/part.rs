//! The part of a view that is in one datafile.
//!
//! **Why.** A request names a range of a view's stream, whatever number of pieces that has. A
//! server finds its own pieces when it needs them, a batch at a time, and never walks over what
//! lies in other servers' strips. So the request has a few bytes, and memory for it does not grow
//! with its pieces.
//!
//! **Invariants**
//! 1. The pieces of all parts of a range are the pieces of the range, each once, and those of one
//!    part are in the order of the stream.
//! 2. A batch takes a bounded number of steps, also if the part has no byte for long.

use bmi::hooks::step;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::file_view::FileView;
use super::{Cursor, invalid};
use crate::distribution::Distribution;
use crate::error::FsError;
use crate::region::Region;

/// Most strips that are looked at for one batch.
const LOOKS: usize = 1024;

/// The bytes of a range of a view's stream that one datafile has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ViewPart {
    view: FileView,
    distribution: Distribution,
    datafile: u32,
    position: u64,
    span: u64,
    len: u64,
}

impl ViewPart {
    /// Returns the part that the datafile with this number in the layout has of `span` bytes of the
    /// view's stream, beginning with `position`. The part has `len` bytes.
    ///
    /// # Errors
    /// `Invalid` for a datafile that the file does not have, or for more bytes than the range has.
    /// `TooLarge` if the range ends beyond the largest offset.
    pub fn new(
        view: FileView,
        distribution: Distribution,
        datafile: u32,
        (position, span): (u64, u64),
        len: u64,
    ) -> Result<ViewPart, FsError> {
        let servers = distribution.servers();
        if datafile as usize >= servers || len > span {
            return Err(invalid(format!("{len} of {span} bytes in datafile {datafile} of {servers}")));
        }
        view.cursor(position, span)?;
        Ok(ViewPart { view, distribution, datafile, position, span, len })
    }

    /// Returns the number of bytes.
    pub fn total(&self) -> u64 {
        self.len
    }

    /// Returns the ranges of the datafile, in order.
    pub fn pieces(&self) -> PartCursor<'_> {
        let cursor = self.view.cursor(self.position, self.span).expect("it was checked by the constructor");
        PartCursor { part: self, cursor, left: self.len }
    }

    /// Returns a range of the datafile that contains all bytes of the part.
    pub fn hull(&self) -> Region {
        let at = |position| self.view.offset_of(position).map_or(0, |offset| offset);
        let (first, last) = (at(self.position), at((self.position + self.span).saturating_sub(1)));
        let stripe = self.distribution.strip_size() * self.distribution.servers() as u64;
        let strip = self.distribution.strip_size();
        let (from, to) = (first / stripe * strip, (last / stripe + 1) * strip);
        Region::new(from, to - from)
    }
}

impl<'de> Deserialize<'de> for ViewPart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ViewPart, D::Error> {
        let (view, distribution, datafile, position, span, len) = Deserialize::deserialize(deserializer)?;
        ViewPart::new(view, distribution, datafile, (position, span), len).map_err(D::Error::custom)
    }
}

/// The pieces of a [`ViewPart`], as ranges of its datafile.
#[derive(Clone, Debug)]
pub struct PartCursor<'a> {
    part: &'a ViewPart,
    cursor: Cursor,
    left: u64,
}

impl PartCursor<'_> {
    /// Returns the number of bytes that are left.
    pub fn remaining(&self) -> u64 {
        self.left
    }

    /// Writes the next pieces to `out`, of at most `most` bytes together, and returns their number.
    /// Returns 0 also if none was found in a bounded number of steps; then call it again.
    ///
    /// # Errors
    /// `Invalid` if the range has fewer bytes in the datafile than were announced.
    pub fn next_batch(&mut self, out: &mut [Region], most: u64) -> Result<usize, FsError> {
        let (distribution, view) = (&self.part.distribution, &self.part.view);
        let (strip_size, servers) = (distribution.strip_size(), distribution.servers() as u64);
        let (most, mut taken, mut found) = (most.min(self.left), 0, 0);
        for _ in 0..LOOKS {
            if taken == most || found == out.len() {
                break;
            }
            step();
            let position = self.cursor.position();
            let offset = view.offset_of(position).filter(|_| self.cursor.remaining() > 0);
            let Some(offset) = offset else {
                let text = format!("{} bytes more are announced than the view has in the datafile", self.left - taken);
                return Err(invalid(text));
            };
            let strip = offset / strip_size;
            let ahead = (u64::from(self.part.datafile) + servers - strip % servers) % servers;
            if ahead > 0 {
                self.cursor.seek(view.size_below((strip + ahead).saturating_mul(strip_size)));
                continue;
            }
            let (strip_end, shift) = match servers {
                1 => (u64::MAX, 0),
                _ => ((strip + 1).saturating_mul(strip_size), (strip - strip / servers) * strip_size),
            };
            let within = view.size_below(strip_end) - position;
            let first = found;
            found += self.cursor.next_batch(&mut out[found..], within.min(most - taken));
            for piece in &mut out[first..found] {
                piece.offset -= shift;
                taken += piece.len;
            }
            if first > 0 && first < found && out[first - 1].offset + out[first - 1].len == out[first].offset {
                out[first - 1].len += out[first].len;
                out.copy_within(first + 1..found, first);
                found -= 1;
            }
        }
        self.left -= taken;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::datatype::Datatype;
    use crate::error::ErrorCode;

    fn view(blocks: &[(u64, u64)]) -> FileView {
        let mut end = 0;
        let blocks: Vec<(u64, i64)> = blocks
            .iter()
            .map(|(gap, len)| {
                let at = end + *gap as i64;
                end = at + *len as i64;
                (*len, at)
            })
            .collect();
        FileView::new(blocks[0].0, Datatype::BYTE, Datatype::hindexed(&blocks, &Datatype::BYTE).unwrap()).unwrap()
    }

    /// Returns the place of each byte of a part, from batches of `room` pieces and `most` bytes.
    fn places(part: &ViewPart, room: usize, most: u64) -> Vec<u64> {
        let (mut cursor, mut out, mut all) = (part.pieces(), vec![Region::new(0, 0); room], Vec::new());
        while cursor.remaining() > 0 {
            let found = cursor.next_batch(&mut out, most).unwrap();
            all.extend(out[..found].iter().flat_map(|piece| piece.offset..piece.offset + piece.len));
        }
        all
    }

    proptest! {
        #[test]
        fn the_parts_of_all_datafiles_are_the_range(
            blocks in proptest::collection::vec((0..9000u64, 1..9000u64), 1..6), servers in 1..5u32,
            (position, span) in (0..20_000u64, 1..60_000u64), (room, most) in (1..9usize, 1..20_000u64),
        ) {
            let (view, distribution) = (view(&blocks), Distribution::simple_stripe(4096, servers).unwrap());
            let mut shares: Vec<Vec<u64>> = vec![Vec::new(); servers as usize];
            for at in position..position + span {
                let location = distribution.locate(view.offset_of(at).unwrap());
                shares[location.server].push(location.physical);
            }
            for (index, share) in shares.iter().enumerate() {
                let new = |len| ViewPart::new(view.clone(), distribution, index as u32, (position, span), len);
                let part = new(share.len() as u64).unwrap();
                prop_assert!(places(&part, room, most) == *share);
                let hull = part.hull();
                prop_assert!(share.iter().all(|at| (hull.offset..hull.offset + hull.len).contains(at)));
                if (share.len() as u64) < span {
                    let (more, mut out) = (new(share.len() as u64 + 1).unwrap(), [Region::new(0, 0); 64]);
                    let mut cursor = more.pieces();
                    let error = std::iter::from_fn(|| Some(cursor.next_batch(&mut out, u64::MAX))).find_map(Result::err);
                    prop_assert_eq!(error.unwrap().code, ErrorCode::Invalid);
                }
            }
            prop_assert!(ViewPart::new(view.clone(), distribution, servers, (position, span), 0).is_err());
            prop_assert!(ViewPart::new(view, distribution, 0, (position, span), span + 1).is_err());
        }
    }

    /// A batch ends although all bytes are in the strips of the other datafile, and the others are
    /// not looked at one by one if there is none.
    #[test]
    fn a_search_has_breaks_and_jumps_over_what_has_no_bytes() {
        let distribution = Distribution::simple_stripe(4096, 2).unwrap();
        let other = view(&[(0, 1), (8191, 1)]);
        let part = ViewPart::new(other, distribution, 1, (0, 1_000_000), 1).unwrap();
        let (mut cursor, mut out) = (part.pieces(), [Region::new(0, 0); 4]);
        assert_eq!(cursor.next_batch(&mut out, 1), Ok(0), "not yet");
        let sparse = view(&[(0, 1), (1 << 50, 1)]);
        let part = ViewPart::new(sparse, distribution, 0, (0, 2), 2).unwrap();
        assert_eq!(part.pieces().next_batch(&mut out, 2), Ok(2));
    }
}
