//! A small seeded generator, for the order of runs and the bootstrap.
//!
//! **Source.** Steele, Lea, Flood: Fast splittable pseudorandom number generators (OOPSLA 2014),
//! figure 17, `mix64variant13`.

use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator. The same seed gives the same numbers.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
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
