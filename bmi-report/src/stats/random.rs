//! A seeded generator, for the order of runs, the bootstrap, and bytes that look random.
//!
//! **Source.** ChaCha (Bernstein 2008) with 8 rounds, by the crate `rand_chacha`. The seed is the
//! first 8 bytes of the key, and all others are zero.

use std::time::{SystemTime, UNIX_EPOCH};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// Creates a generator. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Random {
        Random::stream(seed, 0)
    }

    /// Creates one of many generators for a seed. [`Random::new`] creates number 0.
    pub fn stream(seed: u64, number: u64) -> Random {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut random = ChaCha8Rng::from_seed(key);
        random.set_stream(number);
        Random(random)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Fills `bytes` with those from `offset` on of the sequence, whatever was drawn before. The
    /// numbers are the same bytes, little-endian.
    pub fn fill(&mut self, offset: u64, bytes: &mut [u8]) {
        const WORD: usize = size_of::<u32>();
        self.0.set_word_pos(u128::from(offset) / WORD as u128);
        let start = offset as usize % WORD;
        let (head, rest) = bytes.split_at_mut(bytes.len().min((WORD - start) % WORD));
        if !head.is_empty() {
            head.copy_from_slice(&self.0.next_u32().to_le_bytes()[start..][..head.len()]);
        }
        self.0.fill_bytes(rest);
    }

    /// Returns a number below `end`, which is above 0. The bias is `end` in 2^64.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.number()) * end as u128) >> 64) as usize
    }

    /// Returns two numbers below `end`, which is above 0, for the time of one. The bias is `end` in
    /// 2^32, which is nothing for the few thousand values of a bootstrap.
    pub fn two_below(&mut self, end: u32) -> [u32; 2] {
        let number = self.number();
        [number >> 32, number & u64::from(u32::MAX)].map(|half| ((half * u64::from(end)) >> 32) as u32)
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// Returns a seed from the clock.
#[expect(clippy::disallowed_methods, reason = "the order of real runs; the seed is printed, and can be given")]
pub fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_secs() ^ u64::from(now.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_pinned_and_its_bytes_can_be_had_from_anywhere() {
        // ChaCha8 with a key of zeros begins with 3e00ef2f895f40d6 7f5bb8e81f09a5a1 (eSTREAM's test
        // vector).
        let mut random = Random::new(0);
        let numbers: Vec<u64> = (0..100).map(|_| random.number()).collect();
        assert_eq!(numbers[..2], [0xd640_5f89_2fef_003e, 0xa1a5_091f_e8b8_5b7f]);
        let whole: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        for (offset, len) in (0..20).flat_map(|offset| [0, 1, 2, 3, 8, 300, 780].map(|len| (offset, len))) {
            let mut part = vec![0; len];
            random.fill(offset as u64, &mut part);
            assert_eq!(part, whole[offset..offset + len], "{len} bytes at {offset}");
        }
        assert_ne!(Random::stream(0, 1).number(), numbers[0]);
    }

    #[test]
    fn draws_are_even_and_shuffles_lose_nothing() {
        let mut random = Random::new(7);
        let mut counts = [0; 5];
        (0..5000).for_each(|_| counts[random.below(5)] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        let mut pairs = [[0; 5]; 5];
        for [a, b] in (0..25_000).map(|_| random.two_below(5)) {
            pairs[a as usize][b as usize] += 1;
        }
        assert!(pairs.iter().flatten().all(|count| (800..1200).contains(count)), "{pairs:?}");
        let mut items: Vec<u32> = (0..100).collect();
        random.shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
