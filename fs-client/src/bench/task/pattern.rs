//! The bytes of a file: they depend on the file, the offset and a seed.
//!
//! **Why.** A read that returns bytes of another place, of another file or of an earlier run
//! returns bytes that look right unless each place has its own.
//!
//! **Layout.** The byte at offset `o` is byte `o` of `bmi_report::stats::Random::stream` for the
//! seed and the number of the file.

use bmi_report::stats::Random;

/// A byte that is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// Its offset in the file.
    pub(crate) offset: u64,
    pub(crate) found: u8,
    pub(crate) expected: u8,
    /// The number of wrong bytes that were checked with it, itself included.
    pub(crate) bytes: u64,
}

/// The contents of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    seed: u64,
    file: u32,
}

impl Pattern {
    pub(crate) fn new(seed: u64, file: u32) -> Pattern {
        Pattern { seed, file }
    }

    /// Fills `bytes` with those of the file from `offset` on.
    pub(crate) fn fill(self, offset: u64, bytes: &mut [u8]) {
        Random::stream(self.seed, self.file.into()).fill(offset, bytes);
    }

    /// Compares `found`, read at `offset`, with what was written. `spare` has the same length.
    pub(crate) fn check(self, offset: u64, found: &[u8], spare: &mut [u8]) -> Option<Wrong> {
        self.fill(offset, spare);
        if found == spare {
            return None;
        }
        let mut different =
            found.iter().zip(spare.iter()).enumerate().filter(|(_, (found, expected))| found != expected);
        let (place, (&found, &expected)) = different.next()?;
        let bytes = 1 + different.count() as u64;
        Some(Wrong { offset: offset + place as u64, found, expected, bytes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(pattern: Pattern, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        pattern.fill(offset, &mut bytes);
        bytes
    }

    #[test]
    fn seeds_files_and_places_differ() {
        let one = bytes(Pattern::new(1, 0), 0, 64);
        for other in
            [bytes(Pattern::new(2, 0), 0, 64), bytes(Pattern::new(1, 1), 0, 64), bytes(Pattern::new(1, 0), 8, 64)]
        {
            let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(same < 8, "{same} of 64 bytes agree");
        }
    }

    #[test]
    fn a_wrong_byte_is_found_with_its_offset() {
        let (pattern, mut spare) = (Pattern::new(1, 2), vec![0; 100]);
        let mut found = bytes(pattern, 1003, 100);
        assert_eq!(pattern.check(1003, &found, &mut spare), None);
        found[41] ^= 1;
        found[99] ^= 1;
        let wrong = pattern.check(1003, &found, &mut spare).unwrap();
        assert_eq!((wrong.offset, wrong.bytes, wrong.found ^ wrong.expected), (1044, 2, 1));
    }

    proptest! {
        #[test]
        fn a_range_is_a_part_of_the_whole(offset in 0usize..200, len in 0usize..50) {
            let pattern = Pattern::new(3, 4);
            prop_assert_eq!(&bytes(pattern, offset as u64, len)[..], &bytes(pattern, 0, 250)[offset..][..len]);
        }
    }
}
