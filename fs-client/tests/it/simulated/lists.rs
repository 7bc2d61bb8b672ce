//! Lists on both sides: of memory, of the file, and the allocations that contain the memory.

use std::time::Duration;

use bmi::Memory;
use bmi::config::Lists;
use fs_client::{ClientOptions, Direction, ErrorCode, Extended, ExtendedRaw, Path, Region};
use fs_server::embedded::ClusterOptions;

use super::file_system::setting;
use crate::support::bodies::{self, code, path, pattern, striped};

/// Any two lists, over each forced path, moved piece by piece or packed.
#[test]
fn lists_move_by_every_path_and_in_every_way() {
    let paths = Path::TAKEN.into_iter().chain([Path::Hybrid]).map(Some).chain([None]);
    let ways = [Lists::Auto, Lists::Chain, Lists::Pack, Lists::PackExposed];
    for (seed, (path_taken, lists)) in (20..).zip(paths.flat_map(|path| ways.map(|lists| (path, lists)))) {
        let setting = setting(seed, ClusterOptions::with_iods(3));
        setting.world.block_on(async {
            let options = ClientOptions { path: path_taken, lists, ..ClientOptions::new(1) };
            let client = setting.client_with(options).await;
            let file = client.create(&path("/f"), striped(4096, 3)).await.unwrap();
            bodies::list_io(&file, &bodies::hard_steps()).await;
            let paths = client.stats().paths;
            let path = path_taken.unwrap_or(Path::ServerBased).resolve(Direction::Write);
            assert!(paths.requests(Direction::Write, path) > 0, "{path_taken:?}, {lists:?}: {paths}");
            // Exposures that were dropped are revoked at the next poll.
            setting.world.sim().sleep(Duration::from_millis(1)).await;
            let left = client.endpoint().with(|engine| engine.resource_usage());
            assert_eq!(
                (left.operations, left.exposures, left.parked),
                (0, 0, 0),
                "{path_taken:?}, {lists:?}: {left:?}"
            );
        });
    }
}

/// The experiment of [PVFS-IB §6.8]: the upper left 1024 x 768 tile of a 2048 x 1536 array of
/// 64-byte elements, noncontiguous in memory and in the file. Its rows are registered one by one,
/// unless the program passes the allocation that contains them.
#[test]
fn a_tile_needs_one_registration_with_hints_and_one_for_each_row_without() {
    const ELEMENT: usize = 64;
    const ROW: usize = 1024 * ELEMENT;
    const LINE: usize = 2048 * ELEMENT;
    const ROWS: usize = 768;
    let mut array = vec![0u8; LINE * 1536];
    let base = array.as_mut_ptr();
    let mem_offsets: Vec<*mut u8> = (0..ROWS).map(|row| base.wrapping_add(row * LINE)).collect();
    let (mem_lengths, whole) = (vec![ROW; ROWS], LINE * (ROWS - 1) + ROW);
    let file_offsets: Vec<u64> = (0..ROWS as u64).map(|row| row * (ROW + 5000) as u64).collect();
    let file_lengths = vec![ROW as u64; ROWS];
    let (parents, lengths) = (vec![base; ROWS], vec![whole; ROWS]);
    let access = |hints: bool| ExtendedRaw {
        mem_offsets: &mem_offsets,
        mem_lengths: &mem_lengths,
        allocation_offsets: if hints { &parents } else { &[] },
        allocation_lengths: if hints { &lengths } else { &[] },
        file_offsets: &file_offsets,
        file_lengths: &file_lengths,
    };
    let tile = pattern(ROW * ROWS, 3);
    for hints in [true, false] {
        array.fill(0xEE);
        let setting = setting(7, ClusterOptions::with_iods(4));
        setting.world.block_on(async {
            let client = setting.client(1).await;
            let file = client.create(&path("/tile"), striped(65536, 4)).await.unwrap();
            let regions: Vec<_> = file_offsets.iter().map(|offset| Region::new(*offset, ROW as u64)).collect();
            file.write_list(&regions, tile.clone()).await.unwrap();
            let before = client.endpoint().counters();
            // SAFETY: the array lives until the end of the test, and nothing accesses it before the
            // client and its world are gone.
            let read = unsafe { file.read_extended_raw(access(hints)) }.await.unwrap();
            assert_eq!(read, tile.len() as u64);
            let registered = client.endpoint().counters().pin_misses - before.pin_misses;
            assert_eq!(registered, if hints { 1 } else { ROWS as u64 }, "hints: {hints}");
            let before = client.endpoint().counters();
            // SAFETY: as above.
            unsafe { file.write_extended_raw(access(hints)) }.await.unwrap();
            assert_eq!(client.endpoint().counters().pin_misses, before.pin_misses, "all are registered still");
            assert!(bodies::read(&file, 5 * (ROW as u64 + 5000), ROW).await == tile[5 * ROW..6 * ROW]);
            client.foreign().forget_all();
        });
        for row in 0..ROWS {
            assert!(array[row * LINE..][..ROW] == tile[row * ROW..][..ROW], "row {row}, hints: {hints}");
            assert!(array[row * LINE + ROW..(row + 1) * LINE].iter().all(|byte| *byte == 0xEE), "behind row {row}");
        }
    }
}

/// The safe form: the allocations belong to the library.
#[test]
fn extended_lists_of_our_own_memory() {
    let setting = setting(8, ClusterOptions::with_iods(2));
    setting.world.block_on(async {
        let client = setting.client(1).await;
        let file = client.create(&path("/f"), striped(4096, 2)).await.unwrap();
        let (one, other) = (Memory::from(pattern(30_000, 1)), Memory::from(pattern(20_000, 2)));
        let access = Extended {
            allocations: &[one.clone(), other.clone(), one.clone()],
            mem_offsets: &[20_000, 0, 5],
            mem_lengths: &[10_000, 20_000, 7],
            file_offsets: &[100, 50_000],
            file_lengths: &[30_000, 7],
        };
        file.write_extended(access).await.unwrap();
        let written = [&one.to_vec()[20_000..], &other.to_vec()[..]].concat();
        assert_eq!(bodies::read(&file, 100, 30_000).await, written);
        assert_eq!(bodies::read(&file, 50_000, 100).await, &one.to_vec()[5..12]);
        let target = Memory::zeroed(30_007).unwrap();
        let allocations = vec![target.clone(); 2];
        let back = Extended { allocations: &allocations, mem_offsets: &[7, 0], mem_lengths: &[30_000, 7], ..access };
        assert_eq!(file.read_extended(back).await.unwrap(), 30_007);
        assert_eq!(target.to_vec()[7..], written);
        for wrong in [
            Extended { mem_lengths: &[1], ..access },
            Extended { mem_offsets: &[20_001, 0, 5], ..access },
            Extended { file_lengths: &[1, 7], ..access },
            Extended { allocations: &[], ..access },
        ] {
            assert_eq!(code(file.write_extended(wrong)).await, ErrorCode::Invalid);
        }
    });
}
