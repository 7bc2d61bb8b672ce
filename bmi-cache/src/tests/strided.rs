//! Lists of many small pieces in few units: what they cost whoever has the cache's lock, and that
//! every piece is where it belongs.

use std::cell::RefCell;
use std::pin::pin;

use async_trait::async_trait;
use bmi_core::MemList;
use futures_util::FutureExt;

use crate::ranges::steps_of;
use crate::*;

/// The most pieces that a request may have (`fs_proto::limits::MAX_REGIONS`).
const PIECES: u64 = 16_384;

/// The most steps for each piece. A search takes 15 of them in so many pieces.
const STEPS: u64 = 150;

const FILE: u64 = 7;

/// A disk that takes no time. Each byte of a file that nobody has written is known.
#[derive(Default)]
struct Prompt {
    writes: RefCell<Vec<(Extent, Vec<u8>)>>,
}

fn on_disk(offset: u64) -> u8 {
    (offset % 251) as u8
}

#[async_trait(?Send)]
impl Disk for Prompt {
    type Error = String;

    async fn read(&self, _file: u64, extents: &[Extent], into: &MemList) -> Result<(), String> {
        let bytes: Vec<u8> = extents.iter().flat_map(|extent| extent.offset..extent.end()).map(on_disk).collect();
        assert_eq!(into.copy_from(0, &bytes), into.len());
        Ok(())
    }

    async fn end(&self, _file: u64) -> Result<u64, String> {
        Ok(u64::MAX)
    }

    async fn write(&self, _file: u64, extents: &[Extent], from: &MemList) -> Result<(), String> {
        let (bytes, mut at) = (from.to_vec(), 0);
        for extent in extents {
            self.writes.borrow_mut().push((*extent, bytes[at..at + extent.len as usize].to_vec()));
            at += extent.len as usize;
        }
        Ok(())
    }
}

/// A cache in which an operation may have as many pieces in as many units.
fn cache() -> Cache<Prompt> {
    let bytes = 8 * PIECES * BLOCK as u64;
    let frames = Frames::anonymous(ArenaSettings::new(bytes)).unwrap();
    Cache::new(Prompt::default(), frames, Settings::for_bytes(bytes))
}

/// Pieces of one byte at a distance, the first one at `first`.
fn pieces(first: u64, distance: u64) -> Vec<Extent> {
    (0..PIECES).map(|piece| Extent::new(first + piece * distance, 1)).collect()
}

/// Runs something that waits for nothing but its turn, within the steps that the pieces may take.
fn within<F: Future>(what: &str, f: F) -> F::Output {
    let mut f = pin!(f);
    let mut turns = || (0..PIECES).find_map(|_| f.as_mut().now_or_never()).expect("nothing to wait for");
    let (result, steps) = steps_of(STEPS * PIECES, &mut turns);
    println!("{what}: {steps} steps, {} for each piece", steps / PIECES);
    result
}

fn write(cache: &Cache<Prompt>, extents: &[Extent], byte: u8) {
    within("write", async {
        let writing = cache.write(FILE, extents).await.unwrap();
        writing.list().copy_from(0, &vec![byte; writing.list().len()]);
        writing.commit().await.unwrap();
    });
    cache.0.with(|state| state.check());
}

fn read(cache: &Cache<Prompt>, extents: &[Extent]) -> Vec<u8> {
    let bytes = within("read", async { cache.read(FILE, extents).await.unwrap().list().to_vec() });
    cache.0.with(|state| state.check());
    bytes
}

/// Replays a defect: a unit was computed once for each of its pieces, and each time the search for
/// the smallest gap looked at all gaps for each of them. The server stood still for minutes.
#[test]
fn a_strided_list_write_does_not_stop_the_server() {
    // All pieces in one unit, and in 64 units; of a file of which nothing is cached, or all of it.
    for (distance, cached) in [(4, false), (4, true), (256, false), (256, true)] {
        let (cache, whole) = (cache(), Extent::new(0, PIECES * distance));
        if cached {
            read(&cache, &[whole]);
        }
        // The second write is beside dirty bytes, the third one is of dirty bytes.
        for (byte, first) in [(1, 0), (3, 2), (2, 0)] {
            write(&cache, &pieces(first, distance), byte);
        }
        let expected = |offset: u64| match offset % distance {
            0 => 2,
            2 => 3,
            _ => on_disk(offset),
        };
        let expected: Vec<u8> = (0..whole.len).map(expected).collect();
        assert!(read(&cache, &[whole]) == expected, "pieces at a distance of {distance}, {cached}");
        within("flush", cache.flush(FILE)).unwrap();
        check_writes(&cache.disk().writes.take(), &expected, distance);
    }
}

/// Checks that every piece was written to the disk, and only what a file contains.
fn check_writes(writes: &[(Extent, Vec<u8>)], expected: &[u8], distance: u64) {
    for (extent, bytes) in writes {
        assert!(*bytes == expected[extent.offset as usize..extent.end() as usize], "{extent:?}");
    }
    let mut extents: Vec<Extent> = writes.iter().map(|(extent, _)| *extent).collect();
    extents.sort();
    let covers = |piece: &Extent| {
        let next = extents.partition_point(|extent| extent.offset <= piece.offset);
        next > 0 && piece.end() <= extents[next - 1].end()
    };
    assert!(pieces(0, distance).iter().chain(&pieces(2, distance)).all(covers), "pieces at a distance of {distance}");
}

/// A write that is given up leaves holes in the unit, as many as there were pieces. Each use of the
/// unit would look at them, and their places would take more memory than the bytes.
#[test]
fn a_strided_list_write_that_is_given_up_does_not_stop_the_server() {
    let (cache, own) = (cache(), pieces(1, 4));
    let whole = Extent::new(0, PIECES * 4);
    read(&cache, &[whole]);
    let reader = within("lend", cache.read(FILE, &[Extent::new(0, 1)])).unwrap();
    within("given up", async {
        let writing = cache.write(FILE, &own).await.unwrap();
        writing.list().copy_from(0, &vec![9; writing.list().len()]);
        drop(writing);
    });
    // As long as somebody uses the unit, it has as many ranges of valid bytes as the list pieces.
    assert_eq!(cache.coverage(FILE, whole).cached, whole.len - PIECES);
    let between = pieces(2, 4);
    let lent = within("lend", async { cache.read_cached(FILE, &between) }).expect("it is cached");
    assert!(lent.list().to_vec().iter().zip(&between).all(|(byte, piece)| *byte == on_disk(piece.offset)));
    drop(lent);
    write(&cache, &[Extent::new(2, 1)], 8);
    within("end of the loan", async { drop(reader) });
    let ranges = cache.0.with(|state| {
        state.check();
        state.units.iter().map(|(_, unit)| unit.valid.ranges().len()).max()
    });
    assert_eq!((ranges, cache.coverage(FILE, whole)), (Some(16), Coverage { cached: 48, dirty: 1, ready: 48 }));
    assert!(read(&cache, &own).iter().zip(&own).all(|(byte, piece)| *byte == on_disk(piece.offset)));
    assert_eq!(cache.coverage(FILE, whole).cached, whole.len);
    assert_eq!(read(&cache, &[Extent::new(0, 4)]), [on_disk(0), on_disk(1), 8, on_disk(3)]);
}

/// Others read and write what is between the pieces of a writer. They can fill the unit only around
/// these, so that its bytes stay in as many places.
#[test]
fn strided_lists_beside_a_strided_writer_do_not_stop_the_server() {
    for distance in [4, 256] {
        let (cache, own) = (cache(), pieces(0, distance));
        let writing = within("write", cache.write(FILE, &own)).unwrap();
        writing.list().copy_from(0, &vec![9; writing.list().len()]);
        let between = pieces(1, distance);
        assert!(read(&cache, &between).iter().zip(&between).all(|(byte, piece)| *byte == on_disk(piece.offset)));
        write(&cache, &pieces(2, distance), 8);
        within("commit", writing.commit()).unwrap();
        cache.0.with(|state| state.check());
        assert!(read(&cache, &own).iter().all(|byte| *byte == 9), "pieces at a distance of {distance}");
        assert!(read(&cache, &pieces(2, distance)).iter().all(|byte| *byte == 8), "at a distance of {distance}");
    }
}
