//! Changes of real bytes, drawn from a seed.
//!
//! **Why these.** A flipped bit tests each check of a field. Extreme words test lengths and counts.
//! A repeated, missing or cut part moves the boundaries of frames.

use bmi_report::stats::Random;

use crate::hostile::spec::Stream;

/// Words that lengths and numbers are replaced by.
const EXTREMES: [u64; 9] = [0, 1, 0x7fff_ffff, 0xffff_ffff, 1 << 32, 1 << 40, i64::MAX as u64, u64::MAX - 7, u64::MAX];

/// Changes `bytes` in one to three ways. Bytes that become none are left as none.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
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

/// Returns a stream with one to four changes of its parts and lines.
pub(super) fn changed(stream: &Stream, random: &mut Random) -> Stream {
    let mut stream = stream.clone();
    for _ in 0..1 + random.below(4) {
        let (part, lines) = (random.below(stream.parts.len()), stream.lines.len());
        match random.below(10) {
            0 => stream.parts.insert(part, stream.parts[part].clone()),
            1 if stream.parts.len() > 1 => drop(stream.parts.remove(part)),
            2 => {
                stream.area_len = [0, 4096, stream.area_len.saturating_sub(1), stream.area_len + 4096][random.below(4)]
            }
            4 if lines > 0 => stream.lines.truncate(1 + random.below(lines)),
            5 if lines > 0 => {
                let (from, to) = (random.below(lines), random.below(lines));
                stream.lines[to].1 = stream.lines[from].1.clone();
            }
            6.. if lines > 0 => mutate(&mut stream.lines[random.below(lines)].1, random),
            // Most changes of a handshake are refused at once, so it is one part of many.
            _ => mutate(&mut stream.parts[part].sent, random),
        }
    }
    stream
}

/// Returns a stream that ends in the middle of a part, and after any line.
pub(super) fn cut(stream: &Stream, random: &mut Random) -> Stream {
    let mut stream = stream.clone();
    stream.lines.truncate(random.below(stream.lines.len() + 1));
    stream.parts.truncate(1 + random.below(stream.parts.len()));
    if let Some(last) = stream.parts.last_mut() {
        last.sent.truncate(random.below(last.sent.len().max(1)));
        last.answered = 0;
    }
    stream
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
