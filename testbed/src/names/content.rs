//! The bytes of a file, computed from its name, a version and a length.
//!
//! **Why.** A file that was fetched must be one version as a whole. Each block of 4 KiB begins with
//! its version, and all other bytes depend on the name, the version, the length and the offset. So
//! a mixture of two versions, zeros and exchanged blocks differ from every whole version, and the
//! blocks show which versions were mixed.
//!
//! **Layout**
//!
//! ```text
//!   block of 4 KiB:  version (8) │ random bytes from the seed, of the same offset
//!   seed:            from name, version, length
//! ```
//!
//! Versions are unique in a storm. A file can have zeros at its end, if it was truncated.

use std::ops::Range;

use bmi_report::stats::Random;
use serde::Serialize;

/// Bytes in a block.
const BLOCK: u64 = 4096;

/// What a file contains: the first `kept` bytes of a version, and zeros up to `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Content {
    /// The number of the version.
    pub version: u64,
    seed: u64,
    kept: u64,
    /// The length of the file.
    pub size: u64,
}

impl Content {
    /// Returns the content of a file that is put as `name`, with `len` bytes.
    pub fn new(name: &str, version: u64, len: u64) -> Content {
        let named = name.bytes().fold(len, |seed, byte| Random::new(seed ^ u64::from(byte)).number());
        Content { version, seed: Random::new(named ^ version).number(), kept: len, size: len }
    }

    /// Returns the content after the file was truncated or extended.
    pub fn truncated(self, size: u64) -> Content {
        Content { kept: self.kept.min(size), size, ..self }
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> Vec<u8> {
        self.part(0..self.size)
    }

    /// Returns the bytes of a range, as far as the file has them. The range begins with a block.
    fn part(&self, range: Range<u64>) -> Vec<u8> {
        let (begin, end) = (range.start.min(self.size), range.end.min(self.size));
        let kept = end.min(self.kept).max(begin) - begin;
        let mut bytes = vec![0; (end - begin) as usize];
        let written = &mut bytes[..kept as usize];
        Random::new(self.seed).fill(begin, written);
        for block in written.chunks_mut(BLOCK as usize) {
            block.iter_mut().zip(self.version.to_le_bytes()).for_each(|(byte, of_version)| *byte = of_version);
        }
        bytes
    }

    /// Returns true if `bytes` are exactly this content.
    pub fn is(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == self.size && bytes == self.bytes()
    }

    /// Describes the content in a few words.
    pub fn name(&self) -> String {
        let cut = if self.kept < self.size { format!(", zeros from {}", self.kept) } else { String::new() };
        format!("version {} ({} bytes{cut})", self.version, self.size)
    }
}

/// Describes a state, where `None` is an absent file.
pub fn state_name(state: Option<Content>) -> String {
    state.map_or("absent".to_owned(), |content| content.name())
}

/// Describes bytes that are not what they must be: which ranges are of which version. `version`
/// returns the content that was put as a version.
pub fn describe(bytes: &[u8], version: impl Fn(u64) -> Option<Content>) -> String {
    let mut runs: Vec<(Range<usize>, String)> = Vec::new();
    for (index, block) in bytes.chunks(BLOCK as usize).enumerate() {
        let begin = index * BLOCK as usize;
        let (end, kind) = (begin + block.len(), kind(block, begin, &version));
        match runs.last_mut() {
            Some((range, last)) if *last == kind => range.end = end,
            _ => runs.push((begin..end, kind)),
        }
    }
    let runs: Vec<String> =
        runs.into_iter().map(|(range, kind)| format!("{}..{} {kind}", range.start, range.end)).collect();
    format!("{} bytes: {}", bytes.len(), runs.join(", "))
}

/// Describes one block.
fn kind(block: &[u8], begin: usize, version: impl Fn(u64) -> Option<Content>) -> String {
    if block.iter().all(|byte| *byte == 0) {
        return "zeros".to_owned();
    }
    let mut first = [0; size_of::<u64>()];
    let len = block.len().min(first.len());
    first[..len].copy_from_slice(&block[..len]);
    let number = u64::from_le_bytes(first);
    let Some(content) = version(number) else { return "unknown".to_owned() };
    let right = content.part(begin as u64..(begin + block.len()) as u64);
    if right == block {
        return format!("version {number}");
    }
    let same = right.iter().zip(block).take_while(|(a, b)| a == b).count();
    format!("version {number}, different from {} on", begin + same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_depends_on_name_version_and_length_and_can_be_computed_again() {
        let content = Content::new("/a", 1, 70_000);
        assert_eq!(content.bytes().len(), 70_000);
        assert!(content.is(&Content::new("/a", 1, 70_000).bytes()));
        for other in [Content::new("/b", 1, 70_000), Content::new("/a", 2, 70_000), Content::new("/a", 1, 70_001)] {
            assert!(!other.is(&content.bytes()), "{other:?}");
            let (these, those) = (content.bytes(), other.bytes());
            for block in 0..17 {
                let range = block * 4096 + 8..(block + 1) * 4096;
                let same = these[range.clone()].iter().zip(&those[range]).filter(|(a, b)| a == b).count();
                assert!(same < 100, "block {block} has {same} equal bytes, by chance it is 16");
            }
        }
    }

    #[test]
    fn every_length_is_exact_and_no_block_is_zero() {
        for len in [0, 1, 7, 8, 9, 4095, 4096, 4097] {
            let bytes = Content::new("/a", 9, len).bytes();
            assert_eq!(bytes.len() as u64, len);
            assert!(bytes.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
        }
    }

    #[test]
    fn truncation_keeps_the_beginning_and_extends_with_zeros() {
        let content = Content::new("/a", 3, 10_000);
        let cut = content.truncated(5000).truncated(7000);
        assert_eq!(cut.bytes()[..5000], content.bytes()[..5000]);
        assert_eq!(cut.bytes()[5000..], [0; 2000]);
        assert_ne!(cut, content.truncated(7000));
        assert_eq!(content.truncated(10_000), content);
    }

    #[test]
    fn mixtures_are_no_version_and_are_described() {
        let (old, new) = (Content::new("/a", 1, 20_000), Content::new("/a", 2, 20_000));
        let find = |version| [old, new].into_iter().find(|content| content.version == version);
        let mut mixed = old.bytes();
        mixed[4096..8192].copy_from_slice(&new.bytes()[4096..8192]);
        mixed[8192..12_288].fill(0);
        mixed[12_400] ^= 1;
        mixed[16_384] = 99;
        assert!(!old.is(&mixed) && !new.is(&mixed));
        assert_eq!(
            describe(&mixed, find),
            "20000 bytes: 0..4096 version 1, 4096..8192 version 2, 8192..12288 zeros, \
             12288..16384 version 1, different from 12400 on, 16384..20000 unknown"
        );
        assert!(!old.is(&old.bytes()[..19_999]));
    }
}
