//! A generator of pseudo-random numbers. A plan of faults depends only on its seed.
//!
//! **Source.** ChaCha (Bernstein 2008) with 8 rounds, by the crate `rand_chacha`. The seed is the
//! first 8 bytes of the key, a name is in the others.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

/// A generator that gives the same numbers for the same seed on every machine.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// Returns the sequence of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng::named(seed, "")
    }

    /// Returns the sequence of `seed` and a name, so that one seed gives several users a sequence
    /// each.
    pub fn named(seed: u64, name: &str) -> Rng {
        let mut key = [0; 32];
        let (number, rest) = key.split_at_mut(8);
        number.copy_from_slice(&seed.to_le_bytes());
        for (at, byte) in name.bytes().enumerate() {
            rest[at % 24] ^= byte;
        }
        Rng(ChaCha8Rng::from_seed(key))
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// Returns an index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns true `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // ChaCha8 with a key of zeros begins with 3e00ef2f895f40d6 7f5bb8e81f09a5a1 (eSTREAM's test
        // vector).
        let mut rng = Rng::new(0);
        assert_eq!([rng.next_u64(), rng.next_u64()], [0xd640_5f89_2fef_003e, 0xa1a5_091f_e8b8_5b7f]);
        assert_ne!(Rng::named(0, "a").next_u64(), Rng::named(0, "b").next_u64());
    }
}
