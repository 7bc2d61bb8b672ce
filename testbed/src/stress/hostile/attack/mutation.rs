//! Changes of real bytes, drawn from a seed.
//!
//! **Why these.** A flipped bit tests each check of a field. Extreme words test lengths and counts.
//! A repeated, missing or cut part moves the boundaries of frames.

use bmi_report::stats::Random;

/// Words that lengths and numbers are replaced by.
const EXTREMES: [u64; 9] = [0, 1, 0x7fff_ffff, 0xffff_ffff, 1 << 32, 1 << 40, i64::MAX as u64, u64::MAX - 7, u64::MAX];

/// Changes `bytes` in one to three ways. Bytes that become none are left as none.
pub(super) fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        change(bytes, random);
    }
}

fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    let len = bytes.len();
    if len == 0 {
        return;
    }
    // Headers are short and at the front of what is sent.
    let at = if random.below(2) == 0 { random.below(len.min(96)) } else { random.below(len) };
    let some = |random: &mut Random| 1 + random.below((len - at).min(64));
    match random.below(6) {
        0 | 1 => bytes[at] ^= 1 << random.below(8),
        2 => bytes[at] = random.number() as u8,
        3 => {
            // A word of a field, aligned as the fields are.
            let at = at & !7;
            let word = EXTREMES[random.below(EXTREMES.len())].to_le_bytes();
            let width = [2, 4, 8][random.below(3)].min(len - at);
            bytes[at..at + width].copy_from_slice(&word[..width]);
        }
        4 => {
            let part = bytes[at..at + some(random)].to_vec();
            bytes.splice(at..at, part);
        }
        _ if random.below(2) == 0 => drop(bytes.drain(at..at + some(random))),
        _ => bytes.truncate(at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_changes_and_most_change_something() {
        let original: Vec<u8> = (0..200).collect();
        let mutated = |seed| {
            let mut bytes = original.clone();
            mutate(&mut bytes, &mut Random::new(seed));
            bytes
        };
        assert!((0..50).all(|seed| mutated(seed) == mutated(seed)));
        assert!((0..1000).filter(|seed| mutated(*seed) != original).count() > 900);
        for seed in 0..1000 {
            mutate(&mut Vec::new(), &mut Random::new(seed));
            mutate(&mut vec![7], &mut Random::new(seed));
        }
    }
}
