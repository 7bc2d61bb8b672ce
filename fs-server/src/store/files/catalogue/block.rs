//! A block of the record: the datafiles of one range that were never written.
//!
//! **Layout** of `<dir>/catalogue`: blocks of 144 bytes, little-endian. A block whose bits are all
//! zero is free, and is used again, unless it crosses a sector: 8 of every 32 do.
//!
//! ```text
//!   ┌──────────────┬───────┬───────┬──────────────────────────────────────────┐
//!   │ first handle │ count │ check │ a bit for each handle: never written     │
//!   │ 8            │ 4     │ 4     │ 128                                      │
//!   └──────────────┴───────┴───────┴──────────────────────────────────────────┘
//! ```

use fs_proto::limits::MAX_DATAFILES;

use crate::store::SECTOR;

pub(super) const HEADER: usize = 16;
pub(super) const BITS: usize = MAX_DATAFILES / 8;
pub(super) const BLOCK: usize = HEADER + BITS;

/// The datafiles of a range.
#[derive(Debug)]
pub(super) struct Block {
    /// The place in the file.
    pub(super) number: u64,
    pub(super) count: u32,
    pub(super) bits: [u8; BITS],
    /// A bit for each handle that is on the record and has a file. It is not on the disk.
    pub(super) made: [u8; BITS],
}

/// Returns true if the block with this number is in two sectors. After a power failure it may be
/// half old and half new.
pub(super) fn crosses(number: u64) -> bool {
    number * BLOCK as u64 % SECTOR as u64 > (SECTOR - BLOCK) as u64
}

/// Returns the check value of a block's header.
fn check(first: u64, count: u32) -> u32 {
    let bytes = first.to_le_bytes().into_iter().chain(count.to_le_bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Gives each whole block the right check value.
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(in crate::store) fn fuzz_repair(bytes: &mut [u8]) {
    for block in bytes.as_chunks_mut::<BLOCK>().0 {
        let first = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
        let count = u32::from_le_bytes(block[8..12].try_into().expect("four bytes"));
        block[12..HEADER].copy_from_slice(&check(first, count).to_le_bytes());
    }
}

impl Block {
    pub(super) fn decode(number: u64, bytes: &[u8; BLOCK]) -> Option<(u64, Block)> {
        let (header, bits) = bytes.split_at(HEADER);
        let first = u64::from_le_bytes(header[..8].try_into().ok()?);
        let count = u32::from_le_bytes(header[8..12].try_into().ok()?);
        let checked = u32::from_le_bytes(header[12..].try_into().ok()?);
        let exists = count as usize <= MAX_DATAFILES && first.checked_add(count.into()).is_some();
        if !exists || checked != check(first, count) {
            return None;
        }
        let mut bits: [u8; BITS] = bits.try_into().ok()?;
        // The check value does not cover the bits. Those beyond the count belong to no datafile.
        (count as usize..MAX_DATAFILES).for_each(|at| bits[at / 8] &= !(1 << (at % 8)));
        let block = Block { number, count, bits, made: [0; BITS] };
        (!block.is_empty()).then_some((first, block))
    }

    pub(super) fn encode(&self, first: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK);
        bytes.extend(first.to_le_bytes());
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(check(first, self.count).to_le_bytes());
        bytes.extend(self.bits);
        bytes
    }

    /// Returns the number of handles on the record.
    pub(super) fn len(&self) -> u64 {
        self.bits.iter().map(|bits| u64::from(bits.count_ones())).sum()
    }

    /// Returns the last handle, if this is the first one.
    pub(super) fn last(&self, first: u64) -> u64 {
        first.saturating_add(u64::from(self.count)).saturating_sub(1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bits.iter().all(|bits| *bits == 0)
    }
}
