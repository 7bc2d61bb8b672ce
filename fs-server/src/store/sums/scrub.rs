//! Reads a datafile from the disk, and compares all of it with its sums.
//!
//! Holes that have the sums of zeros are passed over.

use std::io;

use bmi::{MemSlice, Memory};
use fs_proto::{Region, Sought};

use super::check::{Check, Damage};
use super::record::{BLOCK, CHUNK, SumsFile};
use crate::store::disk::DiskFile;
use crate::store::disk::steps::step;

/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;

/// A part of a datafile that was read.
#[derive(Debug, Default)]
pub(in crate::store) struct Part {
    /// Number of bytes.
    pub(in crate::store) read: u64,
    /// Bytes that are wrong, or that cannot be read, and why.
    pub(in crate::store) damage: Option<(Region, io::Error)>,
    /// Where to go on; `None` if nothing follows.
    pub(in crate::store) next: Option<u64>,
}

impl Check {
    /// Compares a datafile from an offset on, until `most` bytes were read, and the rest of the
    /// last piece, or there is damage. Ends if the sums do not hold any more. `read_piece` reads
    /// multiples of `unit` from such ones on, with zeros behind the end of the datafile. A unit is
    /// one or several blocks.
    ///
    /// # Errors
    /// Those of the disk, where it is not known which bytes are concerned.
    pub(in crate::store) fn scrub(
        &self,
        file: &dyn DiskFile,
        unit: u64,
        read_piece: impl Fn(u64, &MemSlice) -> io::Result<()>,
        from: u64,
        most: u64,
    ) -> io::Result<Part> {
        let memory =
            Memory::zeroed(PIECE as usize).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
        let Some(record) = SumsFile::open(&*self.sums.dir, self.file.datafile, false)? else {
            return Ok(Part::default());
        };
        let (mut at, mut read) = (from - from % BLOCK, 0);
        while self.still_holds() {
            let Some(found) = self.next_to_read(file, &record, at)? else { break };
            if read >= most {
                return Ok(Part { read, damage: None, next: Some(at) });
            }
            at = at.max(found - found % BLOCK);
            let start = at - at % unit;
            // What is behind the end is zeros, and so are its sums.
            let len = PIECE.min((self.settled.len - start).next_multiple_of(unit));
            let end = start + len;
            read += len;
            if let Err(error) = read_piece(start, &memory.slice(0, len as usize)) {
                return Ok(Part { read, damage: Some((Region::new(at, end - at), error)), next: Some(end) });
            }
            let compare = |from: u64, to: u64| {
                let piece = memory.slice((from - start) as usize, (to - from) as usize);
                self.compare(file, &[(Region::new(from, to - from), vec![piece])], true)
            };
            if let Err((right, error)) = compare(at, end) {
                let first = at + right;
                let is_right = |block: &u64| compare(*block, block + BLOCK).is_ok();
                let last = (first + BLOCK..end).step_by(BLOCK as usize).find(is_right).unwrap_or(end);
                let damage = Region::new(first, last - first);
                if !self.still_holds() {
                    break;
                }
                let error =
                    if error.kind() == io::ErrorKind::InvalidData { self.damaged(Damage(damage)) } else { error };
                return Ok(Part { read, damage: Some((damage, error)), next: Some(last) });
            }
            at = end;
        }
        Ok(Part { read, ..Part::default() })
    }

    /// Returns where data begins, or sums of data, from an offset on.
    fn next_to_read(&self, file: &dyn DiskFile, record: &SumsFile, at: u64) -> io::Result<Option<u64>> {
        if at >= self.settled.len {
            return Ok(None);
        }
        let data = step(|| file.seek(at, Sought::Data))?;
        let sums = record.next_page(at / CHUNK)?.map(|page| at.max(page.saturating_mul(CHUNK)));
        Ok(data.into_iter().chain(sums).min().filter(|found| *found < self.settled.len))
    }
}
