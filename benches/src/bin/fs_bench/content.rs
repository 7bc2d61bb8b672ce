//! Blocks of bytes that contain their place, so that wrong data makes the benchmark fail.
//!
//! **Layout.** A file consists of blocks of 4 KiB. The first word of a block is its offset in the
//! file, plus the generation of the write that wrote it. The rest is the same in every block:
//!
//! ```text
//!   | offset + generation | word 1 | word 2 | … | word 511 |     words of 64 bits, little-endian
//! ```
//!
//! So the comparison finds a block that is missing, in the wrong place, or of an earlier write. A
//! write costs the caller one word for each block.

use bmi_core::Memory;

/// The bytes of a block.
pub(crate) const BLOCK: usize = 4096;

/// The number of the write that a block is from. It is below [`BLOCK`].
pub(crate) type Generation = u8;

const WORD: usize = size_of::<u64>();

fn stamp(offset: u64, generation: Generation) -> [u8; WORD] {
    (offset + u64::from(generation)).to_le_bytes()
}

/// Returns a block without a place.
fn blank() -> Vec<u8> {
    let word = |number: usize| (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..BLOCK / WORD).flat_map(word).collect()
}

/// Returns `blocks` blocks without a place. Their places are set before each write.
pub(crate) fn blanks(blocks: usize) -> Vec<u8> {
    blank().repeat(blocks)
}

/// Sets the places of the `blocks` blocks at `at` of a memory: those of the file from `offset` on.
pub(crate) fn place(memory: &Memory, at: usize, blocks: usize, offset: u64, generation: Generation) {
    for block in (0..blocks).map(|number| number * BLOCK) {
        memory.copy_from(at + block, &stamp(offset + block as u64, generation));
    }
}

/// Compares bytes with those of the file.
#[derive(Debug)]
pub(crate) struct Checker(Vec<u8>);

impl Checker {
    pub(crate) fn new() -> Checker {
        Checker(blank())
    }

    /// Checks that `bytes` are those of the file from `offset` on. The last block may be cut short.
    ///
    /// # Errors
    /// A description of the first block that differs.
    pub(crate) fn check(
        &self,
        bytes: &[u8],
        offset: u64,
        generation: impl Fn(u64) -> Generation,
    ) -> Result<(), String> {
        for (block, offset) in bytes.chunks(BLOCK).zip((offset..).step_by(BLOCK)) {
            let expected = stamp(offset, generation(offset));
            let head = WORD.min(block.len());
            if block[..head] != expected[..head] {
                let found = block.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
                let found = format!("offset {}, generation {}", found & !(BLOCK as u64 - 1), found % BLOCK as u64);
                return Err(format!("the block at {offset}, generation {}, has {found}", generation(offset)));
            }
            if block[head..] != self.0[head..block.len()] {
                return Err(format!("the block at {offset} has wrong bytes behind the first word"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(blocks: usize, generation: Generation) -> Vec<u8> {
        let memory = Memory::from(blanks(blocks));
        place(&memory, 0, blocks, 0, generation);
        memory.to_vec()
    }

    #[test]
    fn the_right_bytes_pass_also_from_the_middle_and_cut_short() {
        let (bytes, checker) = (file(4, 3), Checker::new());
        assert_eq!(checker.check(&bytes, 0, |_| 3), Ok(()));
        assert_eq!(checker.check(&bytes[BLOCK..], BLOCK as u64, |_| 3), Ok(()));
        for len in [0, 1, 8, 9, BLOCK + 3] {
            assert_eq!(checker.check(&bytes[..len], 0, |_| 3), Ok(()), "{len}");
        }
    }

    #[test]
    fn a_block_from_elsewhere_of_another_time_or_damaged_is_found() {
        let checker = Checker::new();
        let mut bytes = file(4, 3);
        assert!(checker.check(&bytes[BLOCK..], 0, |_| 3).is_err());
        let error = checker.check(&bytes, 0, |offset| if offset == 8192 { 4 } else { 3 }).unwrap_err();
        assert!(error.starts_with("the block at 8192, generation 4, has offset 8192, generation 3"), "{error}");
        bytes[BLOCK * 2 - 1] ^= 1;
        assert!(checker.check(&bytes, 0, |_| 3).unwrap_err().contains("4096"));
        assert!(checker.check(&[0; BLOCK], 4096, |_| 1).is_err());
    }
}
