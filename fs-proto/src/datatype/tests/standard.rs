//! Examples of the standard, calculated by hand, and types that are equal in their normal form.

use super::{BASE, Model, encoded, walk};
use crate::limits::{MAX_DISPLACEMENT, MAX_OFFSET};
use crate::{Cursor, Datatype, Distribute, ErrorCode, FileView, GridDimension, Order, Region};

/// The type of the standard's examples: a double and, 8 bytes behind it, a character, of extent 16.
fn double_and_char() -> Datatype {
    let both = Datatype::structure(&[(1, 0, &Datatype::DOUBLE), (1, 8, &Datatype::BYTE)]).unwrap();
    Datatype::resized(0, 16, &both).unwrap()
}

/// Returns the pieces of one instance, as displacement and length.
fn pieces(datatype: &Datatype) -> Vec<(i64, u64)> {
    let all = walk(datatype.cursor(1, BASE).unwrap(), &[1000], &[u64::MAX]);
    all.iter().map(|piece| (piece.offset as i64 - BASE as i64, piece.len)).collect()
}

/// Returns the pieces of doubles and characters at the given displacements of doubles.
fn doubles_and_chars(places: &[i64]) -> Vec<(i64, u64)> {
    places.iter().map(|at| (*at, 9)).collect()
}

#[test]
fn vectors_of_the_standard() {
    let old = double_and_char();
    let vector = Datatype::vector(2, 3, 4, &old).unwrap();
    assert_eq!(pieces(&vector), doubles_and_chars(&[0, 16, 32, 64, 80, 96]));
    assert_eq!((vector.size(), vector.extent(), vector.true_extent()), (54, 112, 105));
    let backwards = Datatype::vector(3, 1, -2, &old).unwrap();
    assert_eq!(pieces(&backwards), doubles_and_chars(&[0, -32, -64]));
    assert_eq!((backwards.lb(), backwards.ub(), backwards.true_lb(), backwards.true_ub()), (-64, 16, -64, 9));
    assert_eq!(Datatype::hvector(2, 3, 64, &old).unwrap(), vector);
}

#[test]
fn lists_of_the_standard() {
    let old = double_and_char();
    let indexed = Datatype::indexed(&[(3, 4), (1, 0)], &old).unwrap();
    assert_eq!(pieces(&indexed), doubles_and_chars(&[64, 80, 96, 0]));
    assert_eq!(Datatype::hindexed(&[(3, 64), (1, 0)], &old).unwrap(), indexed);
    assert!(!indexed.is_ascending() && !indexed.may_overlap());
    let floats = (2, 0, &Datatype::FLOAT);
    let structure = Datatype::structure(&[floats, (1, 16, &old), (3, 26, &Datatype::BYTE)]).unwrap();
    assert_eq!(pieces(&structure), [(0, 8), (16, 9), (26, 3)]);
    assert_eq!(Datatype::indexed_block(2, &[5, 1], &Datatype::INT32).unwrap().pieces(), 2);
    assert_eq!(pieces(&Datatype::hindexed_block(2, &[50, 10], &Datatype::INT32).unwrap()), [(50, 8), (10, 8)]);
}

#[test]
fn bounds_of_the_standard() {
    let wide = Datatype::resized(-3, 9, &Datatype::INT32).unwrap();
    assert_eq!((wide.lb(), wide.extent(), wide.true_lb(), wide.true_extent()), (-3, 9, 0, 4));
    let two = Datatype::contiguous(2, &wide).unwrap();
    assert_eq!(pieces(&two), [(0, 4), (9, 4)]);
    assert_eq!((two.lb(), two.ub()), (-3, 15));
    // Bounds that were set overrule the bytes of other fields.
    let fields = Datatype::structure(&[(1, 0, &wide), (1, 100, &Datatype::INT32)]).unwrap();
    assert_eq!((fields.lb(), fields.ub(), fields.true_ub()), (-3, 6, 104));
    // So they do if their type has no bytes, but a type without both has no place.
    let nothing = Datatype::contiguous(0, &Datatype::INT32).unwrap();
    let gap = Datatype::resized(0, 50, &nothing).unwrap();
    let padded = Datatype::structure(&[(1, 8, &Datatype::INT32), (1, 0, &gap), (3, -999, &nothing)]).unwrap();
    assert_eq!((padded.size(), padded.lb(), padded.ub()), (4, 0, 50));
    assert_eq!((nothing.size(), nothing.extent(), nothing.pieces()), (0, 0, 0));
    assert_eq!(Datatype::resized(0, -1, &wide).unwrap_err().code, ErrorCode::Invalid);
}

/// Columns of a matrix of 100 by 100 doubles over four processes.
#[test]
fn a_subarray_in_both_orders() {
    let of = |order| Datatype::subarray(&[100, 100], &[100, 25], &[0, 75], order, &Datatype::DOUBLE).unwrap();
    let rows = of(Order::C);
    let expected: Vec<_> = (0..100).map(|row| (row * 800 + 600, 200)).collect();
    assert_eq!(pieces(&rows), expected);
    let columns = of(Order::Fortran);
    assert_eq!(pieces(&columns), [(60_000, 20_000)]);
    for whole in [&rows, &columns] {
        assert_eq!((whole.size(), whole.lb(), whole.extent()), (20_000, 0, 80_000));
    }
    let cube = Datatype::subarray(&[4, 4, 4], &[2, 2, 2], &[1, 2, 0], Order::C, &Datatype::INT32).unwrap();
    assert_eq!(pieces(&cube), [(96, 8), (112, 8), (160, 8), (176, 8)]);
}

/// `DISTRIBUTE FILEARRAY(CYCLIC(10), *, BLOCK)`: 100 by 200 by 300 elements, 2 by 3 processes.
#[test]
fn a_distributed_array_of_the_standard() {
    let dimension = |elements, distribute, processes| GridDimension { elements, distribute, processes };
    let grid = [
        dimension(100, Distribute::Cyclic(Some(10)), 2),
        dimension(200, Distribute::None, 1),
        dimension(300, Distribute::Block(None), 3),
    ];
    let mut seen = vec![0u8; 100 * 200 * 300];
    for rank in 0..6 {
        let share = Datatype::darray(rank, &grid, Order::Fortran, &Datatype::BYTE).unwrap();
        assert_eq!((share.size(), share.pieces(), share.extent()), (1_000_000, 100_000, 6_000_000));
        assert_eq!(share.true_lb() as u64, rank / 3 * 10 + rank % 3 * 100 * 100 * 200);
        assert!(share.is_ascending());
        let mut cursor = share.cursor(1, 0).unwrap();
        let mut out = [Region::new(0, 0); 100];
        while cursor.next_batch(&mut out, u64::MAX) > 0 {
            for piece in out {
                assert_eq!((piece.offset / 10 % 2, piece.offset / 2_000_000), (rank / 3, rank % 3));
                seen[piece.offset as usize..][..piece.len as usize].iter_mut().for_each(|count| *count += 1);
            }
        }
    }
    assert!(seen.iter().all(|count| *count == 1));
}

#[test]
fn arrays_that_make_no_sense_are_refused() {
    let subarray = |sizes: &[u64], subsizes: &[u64], starts: &[u64]| {
        Datatype::subarray(sizes, subsizes, starts, Order::C, &Datatype::BYTE).unwrap_err().code
    };
    assert_eq!(subarray(&[], &[], &[]), ErrorCode::Invalid);
    assert_eq!(subarray(&[4], &[1, 2], &[0]), ErrorCode::Invalid);
    assert_eq!(subarray(&[4], &[2], &[3]), ErrorCode::Invalid);
    assert_eq!(subarray(&[4], &[0], &[0]), ErrorCode::Invalid);
    assert_eq!(subarray(&[4], &[2], &[u64::MAX]), ErrorCode::Invalid);
    assert_eq!(subarray(&[u64::MAX; 2], &[1; 2], &[0; 2]), ErrorCode::TooLarge);
    let darray = |rank, elements, distribute, processes| {
        let grid = [GridDimension { elements, distribute, processes }];
        Datatype::darray(rank, &grid, Order::C, &Datatype::BYTE).unwrap_err().code
    };
    assert_eq!(darray(2, 10, Distribute::Block(None), 2), ErrorCode::Invalid);
    assert_eq!(darray(0, 10, Distribute::Block(Some(4)), 2), ErrorCode::Invalid);
    assert_eq!(darray(0, 10, Distribute::Cyclic(Some(0)), 2), ErrorCode::Invalid);
    assert_eq!(darray(0, 10, Distribute::Cyclic(None), 0), ErrorCode::Invalid);
    assert_eq!(darray(0, 10, Distribute::None, 2), ErrorCode::Invalid);
    assert_eq!(darray(0, 10, Distribute::Cyclic(Some(u64::MAX)), 2), ErrorCode::TooLarge);
}

#[test]
fn the_normal_form_is_the_simplest() {
    let int = &Datatype::INT32;
    let contiguous = |count, old: &Datatype| Datatype::contiguous(count, old).unwrap();
    let vector = |count, len, stride, old: &Datatype| Datatype::vector(count, len, stride, old).unwrap();
    assert_eq!(contiguous(3, &contiguous(4, int)), Datatype::bytes(48).unwrap());
    assert_eq!(vector(4, 2, 2, int), Datatype::bytes(32).unwrap());
    assert!(vector(4, 2, 2, int).is_contiguous());
    // Rows of tiles that continue where the last one ends are one vector.
    let row = Datatype::resized(0, 32, &vector(4, 1, 2, int)).unwrap();
    assert_eq!(Datatype::resized(0, 160, &vector(20, 1, 2, int)).unwrap(), contiguous(5, &row));
    let regular = Datatype::indexed_block(2, &[0, 4, 8], int).unwrap();
    assert_eq!(regular, vector(3, 2, 4, int));
    let regions = [Region::new(0, 8), Region::new(16, 8), Region::new(9, 0), Region::new(32, 8)];
    assert_eq!(Datatype::from_regions(&regions).unwrap(), regular);
    let adjacent = Datatype::hindexed(&[(1, 0), (1, 4), (0, 99), (2, 8)], int).unwrap();
    assert_eq!(adjacent, Datatype::bytes(16).unwrap());
    let column = vector(4, 1, 8, int);
    let fields = Datatype::structure(&[(1, 0, &column), (1, 4, &column.clone()), (1, 12, &vector(4, 1, 8, int))]);
    assert_eq!(fields.unwrap(), Datatype::hindexed_block(1, &[0, 4, 12], &column).unwrap());
    // A list in a list is one list.
    let inner = Datatype::hindexed(&[(1, 0), (1, 10), (1, 15)], int).unwrap();
    let outer = Datatype::structure(&[(1, 0, &inner), (2, 19, int), (1, 40, int)]).unwrap();
    assert_eq!(outer, Datatype::hindexed(&[(1, 0), (1, 10), (3, 15), (1, 40)], int).unwrap());
    assert_eq!((outer.table().nodes.len(), outer.pieces()), (1, 4));
    // But one that is there several times is not copied.
    let several = Datatype::hindexed_block(1, &[0, 100, 300], &inner).unwrap();
    assert_eq!((several.table().nodes.len(), several.table().entries.len(), several.pieces()), (2, 6, 9));
    // A list may be long if it is regular. Neighbours are one entry.
    let long: Vec<(u64, i64)> = (0..100_000).map(|n| (1, 2 * n)).collect();
    assert_eq!(Datatype::indexed(&long, int).unwrap(), vector(100_000, 1, 2, int));
    let regions: Vec<Region> = (0..100_000).map(|n| Region::new(5 * n, 5)).collect();
    assert_eq!(Datatype::from_regions(&regions).unwrap(), Datatype::bytes(500_000).unwrap());
    // What is different stays different.
    assert_ne!(vector(3, 2, 4, int), Datatype::resized(0, 40, &vector(3, 2, 4, int)).unwrap());
}

#[test]
fn interleaved_columns_are_disjoint_but_not_in_order() {
    let column = Datatype::resized(0, 4, &Datatype::vector(100, 1, 100, &Datatype::INT32).unwrap()).unwrap();
    let transposed = Datatype::contiguous(100, &column).unwrap();
    assert!(!transposed.is_ascending() && !transposed.may_overlap());
    let too_many = Datatype::contiguous(101, &column).unwrap();
    assert!(too_many.may_overlap());
    let model = Model { bytes: (0..4).collect(), ..Model::default() };
    let expected = Model::pieces(model.repeat(100, 400).repeat(100, 4).bytes);
    assert_eq!(walk(transposed.cursor(1, 0).unwrap(), &[7], &[u64::MAX]), expected);
}

/// A walk over the elements would not come to the end of this test.
#[test]
fn a_type_of_many_elements_costs_no_more_than_one_of_few() {
    let of = |count: u64| {
        let line = Datatype::resized(0, count as i64 * 16, &Datatype::vector(count, 1, 3, &Datatype::INT32).unwrap());
        Datatype::contiguous(count, &line.unwrap()).unwrap()
    };
    let (few, many) = (of(1000), of(100_000_000));
    for datatype in [&few, &many] {
        assert_eq!((datatype.table().nodes.len(), datatype.table().entries.len()), (2, 0));
        assert!(encoded(datatype).len() <= 32, "{} bytes", encoded(datatype).len());
    }
    assert!(size_of::<Cursor>() <= 1024, "{} bytes", size_of::<Cursor>());
    assert_eq!((many.size(), many.pieces()), (40_000_000_000_000_000, 10_000_000_000_000_000));
    let mut cursor = many.cursor(1, 0).unwrap();
    let mut out = [Region::new(0, 0); 2];
    for row in (0..100_000_000).step_by(999_999) {
        let column = 99_999_999 - row;
        cursor.seek((row * 100_000_000 + column) * 4 + 1);
        assert_eq!(cursor.next_batch(&mut out, 4), 1 + usize::from(row < 99_999_999));
        assert_eq!(out[0], Region::new(row * 1_600_000_000 + column * 12 + 1, 3));
    }
}

#[test]
fn pieces_are_within_the_offsets() {
    let backwards = Datatype::vector(3, 1, -2, &Datatype::INT32).unwrap();
    assert_eq!(backwards.cursor(1, 15).unwrap_err().code, ErrorCode::TooLarge);
    assert_eq!(
        walk(backwards.cursor(1, 16).unwrap(), &[4], &[u64::MAX]),
        Model::pieces([16, 17, 18, 19, 8, 9, 10, 11, 0, 1, 2, 3])
    );
    let byte = Datatype::BYTE;
    assert!(byte.cursor(1, MAX_OFFSET - 1).is_ok());
    assert!(byte.cursor(1, MAX_OFFSET).is_err() && byte.cursor(2, MAX_OFFSET - 1).is_err());
    assert!(byte.cursor(u64::MAX, 0).is_err() && byte.cursor(1, u64::MAX).is_err());
    let sparse = Datatype::resized(0, MAX_DISPLACEMENT - 1, &byte).unwrap();
    assert!(sparse.cursor(u64::MAX, 0).is_err() && sparse.cursor(2, 0).is_ok());
    assert_eq!(byte.cursor(0, MAX_OFFSET).unwrap().remaining(), 0);
    assert_eq!(backwards.true_bounds(2).unwrap(), (-16, 24));
    assert_eq!(sparse.true_bounds(3).unwrap_err().code, ErrorCode::TooLarge);
}

#[test]
fn a_view_knows_its_part_of_a_strip() {
    // Every third integer of 10^9, behind a header of 100 bytes, in strips of 64 KiB.
    let filetype = Datatype::resized(0, 12, &Datatype::INT32).unwrap();
    let view = FileView::new(100, Datatype::INT32, Datatype::contiguous(1_000_000_000, &filetype).unwrap()).unwrap();
    let strip = 65_536;
    let (from, to) = (view.size_below(7 * strip), view.size_below(8 * strip));
    assert_eq!((from, to), ((7 * strip - 100).div_ceil(12) * 4, (8 * strip - 100) / 12 * 4 + 4));
    let pieces = walk(view.cursor(from, to - from).unwrap(), &[100], &[u64::MAX]);
    assert!(pieces.iter().all(|piece| piece.offset / strip == 7 && piece.offset % 12 == 100 % 12));
    assert_eq!(view.offset_of(4_000_000_000), Some(100 + 12_000_000_000));
    assert_eq!((view.offset_of(u64::MAX), view.size_below(0), view.size_below(101)), (None, 0, 1));
    assert!(view.cursor(u64::MAX, 1).is_err() && view.cursor(MAX_OFFSET / 3, 1).is_err());
    let all = FileView::default();
    assert_eq!((all.offset_of(17), all.size_below(17), all.size_below(u64::MAX)), (Some(17), 17, MAX_OFFSET));
    assert_eq!(walk(all.cursor(5, 10).unwrap(), &[1], &[u64::MAX]), [Region::new(5, 10)]);
    assert_eq!(walk(all.cursor(MAX_OFFSET - 1, 1).unwrap(), &[1], &[u64::MAX]), [Region::new(MAX_OFFSET - 1, 1)]);
}

#[test]
fn views_of_other_types_are_refused() {
    let int = Datatype::INT32;
    let refused = |etype: &Datatype, filetype: &Datatype| {
        FileView::new(0, etype.clone(), filetype.clone()).unwrap_err().to_string()
    };
    let list = |blocks: &[(u64, i64)]| Datatype::hindexed(blocks, &int).unwrap();
    assert!(refused(&int, &Datatype::bytes(6).unwrap()).contains("6 bytes"));
    assert!(refused(&Datatype::bytes(0).unwrap(), &int).contains("elementary type of 0"));
    assert!(refused(&int, &list(&[])).contains("filetype of 0"));
    assert!(refused(&int, &list(&[(1, -4)])).contains("at -4"));
    assert!(refused(&int, &list(&[(1, 8), (1, 0)])).contains("ascending"));
    assert!(refused(&int, &list(&[(2, 0), (2, 4)])).contains("overlap"));
    assert!(refused(&int, &Datatype::resized(0, 3, &int).unwrap()).contains("extent 3"));
    assert_eq!(FileView::new(u64::MAX, int.clone(), int).unwrap_err().code, ErrorCode::TooLarge);
}
