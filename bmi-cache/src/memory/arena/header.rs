//! The header of a unit: two slots for its record, written alternately.
//!
//! **Why.** A server may be killed between any two stores. What it acknowledged must be there
//! afterwards, and nothing that never was. A kill only stops the stores: those before it, in the
//! order of the program, are all in memory, and those after it are not. Each store here is a
//! release store, so the compiler keeps their order. So no checksum and no log is needed.
//!
//! **Layout** of a slot, four words. A header is two slots, 64 bytes, a line of the processor's
//! cache.
//!
//! ```text
//!    0  sequence (32 bits; 0: the slot is empty) | first range (32 bits)
//!    8  file
//!   16  at, a multiple of 4096 | number of ranges (bits 3 and 4) | binary logarithm of the frames (bits 0 to 2)
//!   24  second range (32 bits) | third range (32 bits)
//!
//!   range: first byte (16 bits) | last byte (16 bits); zeros if there is no such range
//! ```
//!
//! **Protocol.** Numbers succeed each other: 1, 2, … 2³² - 1, 1. The *newest* slot is the only one
//! that is not empty, or the one whose number succeeds the other's.
//! - [`write`] stores into the slot that is not the newest: first zero as its sequence, then the
//!   other words, then the sequence that succeeds the newest. Until the last store the slot is
//!   empty or the older one, so the old record is in force. The last store is one word. Because of
//!   the first one, a slot that has a number is whole, also if it is looked at alone.
//! - [`erase`] empties the slot that is not the newest, then the newest. Between the two stores the
//!   old record is in force. In the other order, the record before it would come back.
//!
//! **Invariants**
//! 1. After a kill anywhere in [`write`] the old or the new record is in force. After one in
//!    [`erase`] it is the old record or none.
//! 2. *Nothing stale comes back.* After [`erase`] both slots are empty. So a header that is not
//!    empty describes the unit that was recorded last at its frame, and that is still recorded. A
//!    frame in the middle of a recorded unit has an empty header. The arena lets a unit be recorded
//!    only where it shares no frame with another recorded one. So whatever was recorded there
//!    before was erased.
//! 3. What [`read`] returns is sane, whatever bytes it finds: a slot is valid only if it is exactly
//!    what [`write`] stores for the record that it decodes to.
//!
//! **Tests** cut the stores everywhere, and read random words.

use super::layout::HEADER;
use super::mapping::Mapping;
use super::ranges::MAX_RANGES;
use super::{FRAME, MAX_FRAMES_OF_UNIT, Ranges, Record};

const SLOT: usize = HEADER / 2;
/// Bits of the third word that are not part of the position.
const LOW: u64 = FRAME as u64 - 1;

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The unit has nothing dirty, or no unit begins there.
    Empty,
    /// A unit of so many frames, and its record.
    Unit(u8, Record),
    /// Words that no server stored.
    Damaged,
}

type Words = [u64; SLOT / 8];

/// Returns what the header at an offset says.
pub(super) fn read(mapping: &Mapping, header: usize) -> Found {
    let slots = [load(mapping, header), load(mapping, header + SLOT)];
    match newest(slots.map(|slot| sequence(&slot))) {
        Newest::None => Found::Empty,
        Newest::Unknown => Found::Damaged,
        Newest::Slot(slot) => {
            decode(&slots[slot]).map_or(Found::Damaged, |(frames, record)| Found::Unit(frames, record))
        }
    }
}

/// Returns false if the header at an offset is not empty.
pub(super) fn is_empty(mapping: &Mapping, header: usize) -> bool {
    [header, header + SLOT].iter().all(|slot| mapping.load(*slot) as u32 == 0)
}

/// Puts a record into force, of a unit of `frames` frames. The header must not be damaged.
///
/// # Panics
/// If the record in force is one of another unit.
pub(super) fn write(mapping: &Mapping, header: usize, frames: u8, record: &Record) {
    let slots = [mapping.load(header), mapping.load(header + SLOT)].map(|word| word as u32);
    let (other, number) = match newest(slots) {
        Newest::Slot(slot) => {
            let old = load(mapping, header + slot * SLOT);
            let is_same = old[1] == record.file && old[2] & !LOW == record.at;
            assert!(is_same, "{record:?} replaces the record of another unit, which was not erased");
            (1 - slot, successor(slots[slot]))
        }
        Newest::None | Newest::Unknown => (0, 1),
    };
    let slot = header + other * SLOT;
    let words = encode(number, frames, record);
    mapping.store(slot, 0);
    for (index, word) in words.iter().enumerate().skip(1) {
        mapping.store(slot + index * 8, *word);
    }
    mapping.store(slot, words[0]);
}

/// Puts the record in force, if there is one, out of force.
pub(super) fn erase(mapping: &Mapping, header: usize) {
    let slots = [mapping.load(header), mapping.load(header + SLOT)].map(|word| word as u32);
    let last = if let Newest::Slot(slot) = newest(slots) { slot } else { 0 };
    mapping.store(header + (1 - last) * SLOT, 0);
    mapping.store(header + last * SLOT, 0);
}

fn load(mapping: &Mapping, slot: usize) -> Words {
    std::array::from_fn(|index| mapping.load(slot + index * 8))
}

fn sequence(words: &Words) -> u32 {
    words[0] as u32
}

/// Returns the number that follows. 0 means empty, so it is left out.
fn successor(number: u32) -> u32 {
    number.checked_add(1).unwrap_or(1)
}

enum Newest {
    None,
    Slot(usize),
    /// Both slots have a number, and neither succeeds the other.
    Unknown,
}

fn newest(numbers: [u32; 2]) -> Newest {
    match numbers {
        [0, 0] => Newest::None,
        [_, 0] => Newest::Slot(0),
        [0, _] => Newest::Slot(1),
        [one, two] if one == successor(two) => Newest::Slot(0),
        [one, two] if two == successor(one) => Newest::Slot(1),
        _ => Newest::Unknown,
    }
}

fn encode(number: u32, frames: u8, record: &Record) -> Words {
    let mut parts = [0u64; MAX_RANGES];
    let ranges = record.dirty.iter();
    let mut count = 0;
    for (part, range) in parts.iter_mut().zip(ranges) {
        *part = u64::from(range.start) | u64::from(range.end - 1) << 16;
        count += 1;
    }
    let shape = u64::from(frames.trailing_zeros()) | count << 3;
    [u64::from(number) | parts[0] << 32, record.file, record.at | shape, parts[1] | parts[2] << 32]
}

/// Returns the frames and the record of a slot, if it is what [`encode`] makes of them.
fn decode(words: &Words) -> Option<(u8, Record)> {
    let (shape, at) = (words[2] & LOW, words[2] & !LOW);
    let frames = 1u8.checked_shl((shape & 7) as u32).filter(|frames| *frames <= MAX_FRAMES_OF_UNIT)?;
    let parts = [words[0] >> 32, words[3] & u64::from(u32::MAX), words[3] >> 32];
    let dirty = parts.into_iter().take((shape >> 3 & 3) as usize).try_fold(Ranges::NONE, |all, part| {
        let (first, last) = (part as u32 & 0xffff, (part >> 16) as u32);
        all.with(first..last + 1)
    })?;
    let record = Record { file: words[1], at, dirty };
    (record.fits(frames) && encode(sequence(words), frames, &record) == *words).then_some((frames, record))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is meant")]
mod tests {
    use std::sync::atomic::Ordering;

    use proptest::prelude::*;

    use super::*;

    fn mapping() -> Mapping {
        Mapping::private(4096, 4096).unwrap()
    }

    fn record(file: u64, at: u64, dirty: &[std::ops::Range<u32>]) -> Record {
        let dirty = dirty.iter().fold(Ranges::NONE, |all, range| all.with(range.clone()).unwrap());
        Record { file, at, dirty }
    }

    fn copy(mapping: &Mapping) -> Mapping {
        let copy = self::mapping();
        (0..HEADER).step_by(8).for_each(|at| copy.store(at, mapping.load(at)));
        copy
    }

    /// Carries out `change` up to each of its stores. The header must then say what it said before
    /// or what it says in the end, and each must happen. It must work on from there as well.
    fn cut_everywhere(before: &Mapping, change: impl Fn(&Mapping)) {
        let after = copy(before);
        change(&after);
        let (old, new) = (read(before, 0), read(&after, 0));
        assert!(old != Found::Damaged && new != Found::Damaged);
        let mut seen = Vec::new();
        loop {
            let cut = copy(before);
            cut.stores_left.store(seen.len() as u64, Ordering::Relaxed);
            change(&cut);
            let is_whole = cut.stores_left.swap(u64::MAX, Ordering::Relaxed) > 0;
            let found = read(&cut, 0);
            assert!(found == old || found == new, "after {} stores: {found:?}, {old:?}, {new:?}", seen.len());
            assert_eq!(is_empty(&cut, 0), found == Found::Empty);
            for slot in [load(&cut, 0), load(&cut, SLOT)] {
                assert!(sequence(&slot) == 0 || decode(&slot).is_some(), "half a record has a number: {slot:x?}");
            }
            seen.push(found.clone());
            if let Found::Unit(frames, mut record) = found {
                record.dirty = record.dirty.with(0..1).unwrap();
                write(&cut, 0, frames, &record);
                assert_eq!(read(&cut, 0), Found::Unit(frames, record));
            }
            erase(&cut, 0);
            assert_eq!(read(&cut, 0), Found::Empty);
            assert!((0..2).all(|slot| cut.load(slot * SLOT) == 0), "something is left that could come back");
            if is_whole {
                break;
            }
        }
        assert_eq!((&seen[0], &seen[seen.len() - 1]), (&old, &new));
        assert!(old == new || seen.len() > 2, "no store was cut: {seen:?}");
    }

    #[test]
    fn a_kill_between_two_stores_leaves_the_old_or_the_new_record() {
        let (file, at) = (u64::MAX, u64::MAX << 14);
        let records =
            [record(file, at, &[0..8192]), record(file, at, &[1..2, 4..5, 8190..8192]), record(file, at, &[7..9])];
        for rounds in 0..5 {
            // The numbers wrap in the middle.
            for first in [0, 1, u32::MAX - 2, u32::MAX - 1, u32::MAX] {
                let before = mapping();
                if first > 0 {
                    encode(first, 2, &records[0])
                        .into_iter()
                        .enumerate()
                        .for_each(|(at, word)| before.store(at * 8, word));
                }
                (0..rounds).for_each(|round| write(&before, 0, 2, &records[round % 3]));
                records.iter().for_each(|next| cut_everywhere(&before, |cut| write(cut, 0, 2, next)));
                cut_everywhere(&before, |cut| erase(cut, 0));
            }
        }
    }

    #[test]
    fn numbers_that_do_not_follow_each_other_are_damage() {
        let mapping = mapping();
        write(&mapping, 0, 1, &record(1, 0, &[0..1]));
        write(&mapping, 0, 1, &record(1, 0, &[0..2]));
        assert_eq!(read(&mapping, 0), Found::Unit(1, record(1, 0, &[0..2])));
        mapping.store(SLOT, mapping.load(SLOT) + 1);
        assert_eq!(read(&mapping, 0), Found::Damaged);
        assert!(!is_empty(&mapping, 0));
        erase(&mapping, 0);
        assert_eq!(read(&mapping, 0), Found::Empty);
    }

    #[test]
    fn a_slot_that_is_not_what_would_be_written_is_damage() {
        let good = record(5, 3 << 16, &[0..10, 20..30]);
        let words = encode(1, 16, &good);
        assert_eq!(decode(&words), Some((16, good)));
        let changes: [(usize, u64); 9] = [
            (0, 1 << 32),       // first range 1..10: sane, so it is another record
            (0, 16 << 48),      // it ends behind the beginning of the second one
            (2, 1 << 5),        // a bit without a meaning
            (2, 5),             // 2^(4^5) frames is one of two
            (2, 1 << 12),       // not aligned to 16 frames
            (2, 1 << 3),        // three ranges, and the third one is byte 0
            (2, 3 << 3),        // one range, and a second one that is not counted
            (3, 20 << 16 | 30), // the second range ends before it begins
            (3, 1 << 63),       // a third range that is not counted
        ];
        for (number, (word, flip)) in changes.into_iter().enumerate() {
            let mut changed = words;
            changed[word] ^= flip;
            assert_eq!(decode(&changed).is_some(), number == 0 || number == 3, "change {number}");
        }
        assert_eq!(decode(&encode(1, 1, &record(5, 0, &[0..4097]))), None, "beyond the unit");
        assert_eq!(decode(&encode(1, 1, &record(5, 0, &[]))), None, "nothing dirty");
        assert_eq!(decode(&encode(1, 1, &record(5, !LOW, &[0..1]))), None, "it ends beyond all numbers");
    }

    #[test]
    #[should_panic(expected = "was not erased")]
    fn a_record_does_not_replace_one_of_another_unit() {
        let mapping = mapping();
        write(&mapping, 0, 1, &record(1, 0, &[0..1]));
        write(&mapping, 0, 1, &record(2, 0, &[0..1]));
    }

    fn any_record() -> impl Strategy<Value = (u8, Record)> {
        (0..5u32, any::<u64>(), any::<u32>(), prop::collection::vec((0..65_536u32, 1..9000u32), 1..4)).prop_map(
            |(log, file, at, parts)| {
                let len = (FRAME as u32) << log;
                let dirty = parts.into_iter().fold(Ranges::NONE, |all, (start, many)| {
                    let start = start % len;
                    all.with(start..(start + many).min(len)).unwrap()
                });
                (1 << log, Record { file, at: u64::from(at) * u64::from(len), dirty })
            },
        )
    }

    proptest! {
        #[test]
        fn a_record_comes_back_as_it_was(number in 1..=u32::MAX, (frames, record) in any_record()) {
            let words = encode(number, frames, &record);
            prop_assert_eq!(sequence(&words), number);
            prop_assert_eq!(decode(&words), Some((frames, record)));
        }

        #[test]
        fn random_words_are_a_sane_record_or_none(
            (frames, record) in any_record(),
            flips in prop::collection::vec((0..8usize, any::<u64>(), 0..64u32), 0..6),
        ) {
            let mapping = mapping();
            write(&mapping, 0, frames, &record);
            for (word, value, bit) in flips {
                let flip = if value & 1 == 0 { value } else { 1 << bit };
                mapping.store(word * 8, mapping.load(word * 8) ^ flip);
            }
            if let Found::Unit(frames, record) = read(&mapping, 0) {
                prop_assert!(record.fits(frames) && frames.is_power_of_two() && frames <= MAX_FRAMES_OF_UNIT);
                prop_assert!(!record.dirty.is_empty());
                erase(&mapping, 0);
                write(&mapping, 0, frames, &record);
                prop_assert_eq!(read(&mapping, 0), Found::Unit(frames, record));
            }
        }
    }
}
