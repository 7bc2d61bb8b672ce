//! Compares each pattern with plain loops over its bytes.

use super::bt_io::{GHOSTS, POINT};
use super::flash::{GUARDS, NUMBER, VARIABLES, ZONES};
use super::*;

/// A byte: its place in memory, and in the file.
type Byte = (u64, u64);

/// Returns the bytes of a piece.
fn piece(memory: u64, file: u64, len: u64) -> impl Iterator<Item = Byte> {
    (0..len).map(move |byte| (memory + byte, file + byte))
}

/// Checks the shares of all ranks against a walk. If `covers`, the file has no holes.
fn compare(name: &str, size: Size, covers: bool, walk: impl Fn(u64) -> Vec<Byte>) {
    let known = ALL.iter().find(|known| known.name == name).unwrap();
    let pattern = (known.of)(size);
    let mut all = Vec::new();
    for rank in 0..size.ranks {
        let what = format!("{name}, {pattern:?}, rank {rank} of {}", size.ranks);
        let share = pattern.share(rank, size.ranks).unwrap();
        let found = share.pieces().unwrap();
        let bytes: Vec<Byte> = found.iter().flat_map(|one| piece(one.memory, one.file, one.len)).collect();
        assert_eq!(bytes, walk(rank), "{what}");
        assert_eq!(share.bytes(), bytes.len() as u64, "{what}");
        assert_eq!(share.memory_len().unwrap() as u64, bytes.iter().map(|byte| byte.0).max().unwrap() + 1, "{what}");
        assert!(!share.datatype.may_overlap(), "{what}: memory that may be read into");
        let mut memory: Vec<u64> = bytes.iter().map(|byte| byte.0).collect();
        memory.sort_unstable();
        assert!(memory.windows(2).all(|pair| pair[0] < pair[1]), "{what}: a byte of memory for two of the file");
        all.extend(bytes.iter().map(|byte| byte.1));
    }
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{name}: a byte of the file for two ranks");
    let holes = all.last().unwrap() + 1 - all.len() as u64;
    assert_eq!(holes == 0, covers, "{name}: {holes} holes");
}

const SIZES: [Size; 4] = [
    Size { piece: 4, bytes: 64, ranks: 1 },
    Size { piece: 3, bytes: 20, ranks: 2 },
    Size { piece: 8, bytes: 4, ranks: 4 },
    Size { piece: 5, bytes: 100, ranks: 6 },
];

#[test]
fn noncontig_has_every_other_block_of_memory_and_the_ranks_in_turns() {
    for size @ Size { piece: len, bytes, ranks } in SIZES {
        compare("noncontig", size, true, |rank| {
            (0..(bytes / len).max(1)).flat_map(|n| piece(2 * n * len, (n * ranks + rank) * len, len)).collect()
        });
    }
}

#[test]
fn hpio_has_spaces_between_regions_where_it_is_noncontiguous() {
    for size @ Size { piece: len, bytes, ranks } in SIZES {
        let count = (bytes / len).max(1);
        for (name, memory, file) in [("c-c", 1, 1), ("c-nc", 1, 2), ("nc-c", 2, 1), ("nc-nc", 2, 2)] {
            compare(&format!("hpio-{name}"), size, file == 1, |rank| {
                let place = |n| if file == 1 { (rank * count + n) * len } else { 2 * (n * ranks + rank) * len };
                (0..count).flat_map(|n| piece(memory * n * len, place(n), len)).collect()
            });
        }
    }
}

#[test]
fn interleaved_elements_of_four_bytes_are_dealt_to_the_ranks() {
    for size @ Size { bytes, ranks, .. } in SIZES {
        compare("interleaved", size, true, |rank| {
            (0..bytes / 4).flat_map(|n| piece(4 * n, 4 * (n * ranks + rank), 4)).collect()
        });
    }
}

#[test]
fn tiles_are_rows_of_an_array() {
    assert_eq!([1, 2, 4, 6, 7, 9].map(tile::grid), [(1, 1), (2, 1), (2, 2), (3, 2), (7, 1), (3, 3)]);
    for size @ Size { piece: row, bytes, ranks } in SIZES {
        let ((across, _), rows) = (tile::grid(ranks), (bytes / row).max(1));
        compare("tile", size, true, |rank| {
            let (x, y) = (rank % across, rank / across);
            (0..rows).flat_map(|n| piece(n * row, ((y * rows + n) * across + x) * row, row)).collect()
        });
    }
}

/// Finds the cells as the benchmark does, in turns from the one before, and each cell's points by
/// the cells in front of it.
#[test]
fn bt_io_gives_each_rank_a_cell_in_each_layer() {
    // In each direction; 5 points are not dealt out evenly to 2 and 3 cells.
    for (ranks, points) in [(1, 1), (1, 3), (4, 4), (4, 5), (9, 5)] {
        let p = [0, 1, 0, 0, 2, 0, 0, 0, 0, 3][ranks as usize];
        let size = Size { piece: 1, bytes: (points * points * points * POINT).div_ceil(ranks), ranks };
        compare("bt-io", size, true, |rank| {
            let len = |cell: u64| points / p + u64::from(cell < points % p);
            let low = |cell: u64| (0..cell).map(len).sum::<u64>();
            let side = points / p + 1 + 2 * GHOSTS;
            let (mut x, mut y) = (rank % p, rank / p);
            let mut bytes = Vec::new();
            for layer in 0..p {
                for (k, j) in (0..len(layer)).flat_map(|k| (0..len(y)).map(move |j| (k, j))) {
                    for i in 0..len(x) {
                        let place = ((low(layer) + k) * points + low(y) + j) * points + low(x) + i;
                        let here = ((layer * side + GHOSTS + k) * side + GHOSTS + j) * side + GHOSTS + i;
                        bytes.extend(piece(here * POINT, place * POINT, POINT));
                    }
                }
                (x, y) = ((x + 1) % p, (y + p - 1) % p);
            }
            bytes
        });
    }
    let pattern = bt_io::of(Size { piece: 1, bytes: 1000, ranks: 4 });
    assert!(pattern.share(0, 3).unwrap_err().to_string().contains("square"));
}

#[test]
fn flash_puts_variables_one_after_the_other() {
    let zones = ZONES.pow(3);
    for (ranks, blocks) in [(1, 1), (2, 2)] {
        let size = Size { piece: 1, bytes: blocks * VARIABLES * zones * NUMBER, ranks };
        compare("flash", size, true, |rank| {
            let all = ZONES + 2 * GUARDS;
            let mut bytes = Vec::new();
            for (variable, block) in (0..VARIABLES).flat_map(|v| (0..blocks).map(move |b| (v, b))) {
                for zone in 0..zones {
                    let (z, y, x) = (zone / ZONES / ZONES, zone / ZONES % ZONES, zone % ZONES);
                    let here = ((block * all + GUARDS + z) * all + GUARDS + y) * all + GUARDS + x;
                    let place = ((variable * ranks + rank) * blocks + block) * zones + zone;
                    bytes.extend(piece((here * VARIABLES + variable) * NUMBER, place * NUMBER, NUMBER));
                }
            }
            bytes
        });
    }
}

#[test]
fn an_image_has_the_content_of_the_file_and_leaves_gaps() {
    let share = (ALL[0].of)(SIZES[1]).share(1, 2).unwrap();
    let pieces = share.pieces().unwrap();
    let image = share.image(&pieces, 7).unwrap();
    assert_eq!((pieces[1].memory, pieces[1].file), (6, 9));
    assert_eq!((&image[3..6], &image[6..9]), (&[7; 3][..], &pattern(9, 3)[..]));
}
