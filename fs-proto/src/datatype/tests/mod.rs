//! Types against a model that has each byte, examples of the standard, and hostile encodings.

mod hostile;
mod model;
mod standard;

use proptest::prelude::*;

use self::model::{Model, ascending, spec};
use crate::{Cursor, Datatype, FileView, Region};

/// Where the first instance is, so that no byte of a small type is below 0.
const BASE: u64 = 1 << 40;

fn encoded(datatype: &Datatype) -> Vec<u8> {
    postcard::to_extend(datatype, Vec::new()).unwrap()
}

fn decoded(bytes: &[u8]) -> Result<Datatype, postcard::Error> {
    postcard::take_from_bytes(bytes).map(|(datatype, _)| datatype)
}

/// Takes all that a cursor has left, in batches, each with room for the next of `rooms` pieces and
/// the next of `mosts` bytes. Checks what each batch promises.
fn walk(mut cursor: Cursor, rooms: &[usize], mosts: &[u64]) -> Vec<Region> {
    let mut all: Vec<Region> = Vec::new();
    let (mut was_cut, mut round) = (true, 0);
    while cursor.remaining() > 0 {
        let mut out = vec![Region::new(0, 0); rooms[round % rooms.len()]];
        let most = mosts[round % mosts.len()];
        let before = cursor.position();
        let count = cursor.next_batch(&mut out, most);
        let taken: u64 = out[..count].iter().map(|piece| piece.len).sum();
        assert_eq!(cursor.position(), before + taken);
        assert!(count > 0 && taken <= most, "{count} pieces of {taken} bytes, at most {most}");
        for piece in &out[..count] {
            assert!(piece.len > 0);
            match all.last_mut() {
                Some(last) if last.offset + last.len == piece.offset => {
                    assert!(was_cut, "adjacent pieces for no reason: {last} and {piece}");
                    last.len += piece.len;
                }
                _ => all.push(*piece),
            }
            was_cut = false;
        }
        was_cut = taken == most;
        round += 1;
    }
    assert_eq!(cursor.next_batch(&mut [Region::new(0, 0); 4], u64::MAX), 0);
    all
}

/// Rooms and bounds that change with each batch.
fn batches() -> impl Strategy<Value = (Vec<usize>, Vec<u64>)> {
    let most = prop_oneof![1..40u64, Just(u64::MAX)];
    (proptest::collection::vec(1..9usize, 1..4), proptest::collection::vec(most, 1..4))
}

/// The places of the bytes of `count` instances at `BASE`.
fn places(model: &Model, count: u64) -> Vec<i64> {
    model.repeat(count, model.extent()).bytes.iter().map(|byte| byte + BASE as i64).collect()
}

proptest! {
    #[test]
    fn a_type_has_the_bytes_and_bounds_of_its_model(spec in spec()) {
        let Some((datatype, model)) = spec.build() else { return Ok(()) };
        prop_assert_eq!(datatype.size(), model.bytes.len() as u64);
        let (lb, ub) = model.bounds();
        prop_assert_eq!((datatype.lb(), datatype.ub(), datatype.extent() as i64), (lb, ub, ub - lb));
        let (low, high) = Model { marks: None, ..model.clone() }.bounds();
        let true_bounds = (datatype.true_lb(), datatype.true_ub(), datatype.true_extent() as i64);
        prop_assert_eq!(true_bounds, (low, high, high - low));
        let pieces = walk(datatype.cursor(1, BASE).unwrap(), &[64], &[u64::MAX]);
        prop_assert_eq!(&pieces, &Model::pieces(places(&model, 1)));
        prop_assert_eq!(datatype.pieces(), pieces.len() as u64);
        let is_run = model.bytes.iter().enumerate().all(|(n, byte)| n as i64 == *byte);
        prop_assert_eq!(datatype.is_contiguous(), is_run && (lb, ub) == (0, model.bytes.len() as i64));
        let is_ascending = model.bytes.windows(2).all(|pair| pair[0] < pair[1]);
        prop_assert!(is_ascending || !datatype.is_ascending(), "it is said to be in order");
        let mut sorted = model.bytes;
        sorted.sort_unstable();
        let is_disjoint = sorted.windows(2).all(|pair| pair[0] != pair[1]);
        prop_assert!(is_disjoint || datatype.may_overlap(), "it is said to be disjoint");
        prop_assert!(!datatype.is_ascending() || !datatype.may_overlap(), "in order, but not disjoint");
    }

    #[test]
    fn instances_in_any_batches_are_those_of_the_model(
        spec in spec(), count in 0..5u64, (rooms, mosts) in batches(),
    ) {
        let Some((datatype, model)) = spec.build() else { return Ok(()) };
        let all = places(&model, count);
        let cursor = datatype.cursor(count, BASE).unwrap();
        prop_assert_eq!(cursor.remaining(), all.len() as u64);
        prop_assert_eq!(walk(cursor, &rooms, &mosts), Model::pieces(all));
    }

    #[test]
    fn a_cursor_begins_and_ends_at_any_byte(spec in spec(), count in 1..4u64, len in 0..50u64) {
        let Some((datatype, model)) = spec.build() else { return Ok(()) };
        let all = places(&model, count);
        let mut cursor = datatype.cursor(count, BASE).unwrap();
        // Backwards, and all of a small type.
        for at in (0..=all.len()).rev().step_by(1 + all.len() / 500) {
            cursor.seek(at as u64);
            prop_assert_eq!(cursor.position(), at as u64);
            let mut short = cursor.clone();
            short.truncate(at as u64 + len);
            let bytes = all[at..].iter().copied().take(len as usize);
            prop_assert_eq!(walk(short, &[3], &[u64::MAX]), Model::pieces(bytes));
        }
    }

    #[test]
    fn a_type_comes_back_equal(spec in spec()) {
        let Some((datatype, _)) = spec.build() else { return Ok(()) };
        prop_assert_eq!(decoded(&encoded(&datatype)).unwrap(), datatype);
    }

    #[test]
    fn a_view_counts_as_its_model(spec in ascending(), displacement in 0..50u64, gap in 0..9i64) {
        let Some((datatype, model)) = spec.build() else { return Ok(()) };
        let extent = datatype.true_ub() + gap;
        let filetype = Datatype::resized(0, extent, &datatype).unwrap();
        let view = FileView::new(displacement, Datatype::BYTE, filetype).unwrap();
        let model = Model { marks: Some((0, extent)), ..model };
        let bytes = model.repeat(3, model.extent()).bytes;
        let offsets: Vec<u64> = bytes.iter().map(|byte| *byte as u64 + displacement).collect();
        for (position, offset) in offsets.iter().enumerate() {
            prop_assert_eq!(view.offset_of(position as u64), Some(*offset));
        }
        let mut below = 0;
        for offset in 0..=*offsets.last().unwrap() {
            prop_assert_eq!(view.size_below(offset), below, "below {}", offset);
            below += u64::from(offsets.get(below as usize) == Some(&offset));
        }
        let half = offsets.len() / 2;
        let pieces = walk(view.cursor(half as u64, 40).unwrap(), &[4], &[u64::MAX]);
        let model = Model::pieces(offsets[half..].iter().map(|offset| *offset as i64).take(40));
        prop_assert_eq!(pieces.iter().map(|piece| piece.len).sum::<u64>(), 40);
        prop_assert!(offsets.len() - half < 40 || pieces == model);
        let bytes = postcard::to_extend(&view, Vec::new()).unwrap();
        prop_assert_eq!(postcard::from_bytes::<FileView>(&bytes).unwrap(), view);
    }

    /// A view that is accepted has its bytes in order, and no two at the same place.
    #[test]
    fn only_ordered_types_are_views(spec in spec()) {
        let Some((datatype, model)) = spec.build() else { return Ok(()) };
        if FileView::new(0, Datatype::BYTE, datatype).is_ok() {
            let bytes = model.repeat(3, model.extent()).bytes;
            prop_assert!(bytes[0] >= 0 && bytes.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", bytes);
        }
    }
}
