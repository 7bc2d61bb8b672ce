//! Checksums at rest: what a disk has changed is an error, and never data; what clients change is
//! none.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use bmi_cache::{ArenaSettings, Frames, Settings};

use super::modes::{MODES, Mode, each_mode};
use super::*;

/// The name of the file of the datafile, and of its sums.
const DATA: &str = "00/0000000000ab00cd";
const SUMS: &str = "sums/00/0000000000ab00cd";

/// Changes a byte behind the back of a store.
fn damage(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

fn open(mode: Mode, dir: &Path, offload: u64) -> FileStore {
    mode.open(dir, offload).checksums(true).unwrap()
}

/// Opens a store with a datafile of 20,000 bytes whose sums hold.
async fn settled(mode: Mode, dir: &Path, offload: u64) -> FileStore {
    let store = open(mode, dir, offload);
    store.create(FILE, 1).await.unwrap();
    store.write(FILE, &[region(0, 20_000)], &placed(0, &[7; 20_000])).await.unwrap();
    store.settle_all().await;
    store
}

#[test]
fn what_the_disk_has_changed_is_an_error_and_never_data() {
    for (mode, offload) in MODES.into_iter().flat_map(|mode| [(mode, 0), (mode, 8000), (mode, u64::MAX)]) {
        let dir = disk_dir();
        run(async {
            drop(settled(mode, dir.path(), offload).await);
            damage(&dir.path().join(DATA), 9000);
            // One that was opened after that, and has none of the sums in memory.
            let store = open(mode, dir.path(), offload);
            for part in [region(0, 20_000), region(8192, 4096), region(8000, 400), region(9000, 1), region(8192, 5)] {
                let error = read(&store, &[part]).await.unwrap_err();
                assert_eq!(error.code, ErrorCode::Lost, "{mode:?}, {offload}, {part}: {error}");
                assert!(error.detail.contains("from 8192 to 12288") && error.detail.contains("data:"), "{error}");
                assert_eq!(
                    error.ranges,
                    [Region::new(part.offset.max(8192), part.len - 8192u64.saturating_sub(part.offset))]
                );
            }
            for part in [region(0, 8192), region(12_288, 7712), region(3, 8000), region(19_999, 1)] {
                assert_eq!(read(&store, &[part]).await.unwrap(), vec![7; part.len as usize], "{mode:?}, {part}");
            }
            assert_eq!(read(&store, &[region(19_990, 9000)]).await.unwrap()[10..], [0; 8990]);
            // What is written over is right again, and what is not stays damaged.
            damage(&dir.path().join(DATA), 100);
            store.write(FILE, &[region(8192, 4096)], &placed(0, &[8; 4096])).await.unwrap();
            assert_eq!(read(&store, &[region(8192, 4096)]).await.unwrap(), [8; 4096]);
            store.settle_all().await;
            assert_eq!(read(&store, &[region(8192, 4096)]).await.unwrap(), [8; 4096]);
            assert!(read(&store, &[region(0, 10)]).await.is_err());
            store.truncate(FILE, 0).await.unwrap();
            store.truncate(FILE, 20_000).await.unwrap();
            store.settle_all().await;
            assert_eq!(read(&store, &[region(0, 20_000)]).await.unwrap(), [0; 20_000]);
        });
    }
}

#[test]
fn sums_that_do_not_hold_are_not_believed() {
    each_mode(async |mode, dir| {
        drop(settled(mode, dir, 0).await);
        // One that keeps no sums changes the datafile.
        let plain = mode.open(dir, 0).checksums(false).unwrap();
        plain.write(FILE, &[region(0, 10)], &vec![1; 10].into()).await.unwrap();
        plain.sync(&[FILE]).await.unwrap();
        drop(plain);
        let store = open(mode, dir, 0);
        assert_eq!(read(&store, &[region(0, 11)]).await.unwrap(), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7]);
        // They are made when the datafile is changed, and hold for the next server.
        store.write(FILE, &[region(10, 1)], &vec![2].into()).await.unwrap();
        store.settle_all().await;
        drop(store);
        let store = open(mode, dir, 0);
        damage(&dir.join(DATA), 0);
        read(&store, &[region(0, 11)]).await.unwrap_err();
        // Without the file, or with a damaged page, nothing is checked.
        drop(store);
        damage(&dir.join(SUMS), 4096 + 100);
        read(&open(mode, dir, 0), &[region(0, 11)]).await.unwrap();
        let store = open(mode, dir, 0);
        store.remove(&[FILE]).await.unwrap();
        assert!(!dir.join(SUMS).exists(), "the sums go with the datafile");
    });
}

/// A server is killed while a datafile is unsettled: its sums are made from what is there.
#[test]
fn sums_of_an_unsettled_datafile_are_made_anew_by_the_next_server() {
    each_mode(async |mode, dir| {
        let store = settled(mode, dir, 0).await;
        store.write(FILE, &[region(5000, 10)], &vec![1; 10].into()).await.unwrap();
        drop(store);
        let store = open(mode, dir, 0);
        assert_eq!(read(&store, &[region(5000, 11)]).await.unwrap(), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7]);
        store.settle_all().await;
        damage(&dir.join(DATA), 5005);
        read(&store, &[region(5000, 1)]).await.unwrap_err();
        assert_eq!(read(&store, &[region(0, 4096)]).await.unwrap(), [7; 4096]);
    });
}

/// Writers, readers and the work in the background are at a datafile at the same time. No read
/// fails, and in the end the sums hold.
#[test]
fn a_read_beside_a_write_finds_no_damage() {
    const LOOPS: u64 = 2;
    for mode in MODES {
        let dir = disk_dir();
        let store = run(settled(mode, dir.path(), 3000));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let loops: Vec<_> = (0..LOOPS)
                .map(|own| {
                    let store = &store;
                    scope.spawn(move || {
                        run(async {
                            for round in 0..150u64 {
                                let at = region(own * 8192 + round % 3 * 1000, 4096);
                                store.write(FILE, &[at], &placed(0, &[round as u8; 4096])).await.unwrap();
                                // Of the other loop's bytes, too.
                                let all = read(store, &[region(0, 20_000)]).await.unwrap();
                                let own = &all[at.offset as usize..][..4096];
                                assert!(own.iter().all(|byte| u64::from(*byte) == round));
                            }
                        });
                    })
                })
                .collect();
            let settles = scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    run(store.settle_all());
                }
            });
            loops.into_iter().for_each(|each| each.join().unwrap());
            ended.store(true, Ordering::Relaxed);
            settles.join().unwrap();
        });
        run(store.settle_all());
        damage(&dir.path().join(DATA), 19_000);
        run(read(&store, &[region(19_000, 1)])).unwrap_err();
        run(read(&store, &[region(0, 16_384)])).unwrap();
    }
}

/// A datafile of more than one page of sums, with a hole.
#[test]
fn each_part_of_a_long_datafile_has_sums() {
    let dir = disk_dir();
    run(async {
        let store = settled(Mode::Cached, dir.path(), 0).await;
        let far = [region(10 << 20, 5000), region(30 << 20, 10)];
        store.write(FILE, &far, &placed(0, &[9; 5010])).await.unwrap();
        store.settle_all().await;
        for at in [5 << 20, (10 << 20) + 4999, 30 << 20] {
            read(&store, &[region(at - 5000, 10_000)]).await.unwrap();
            damage(&dir.path().join(DATA), at);
            read(&store, &[region(at - 5000, 10_000)]).await.unwrap_err();
            damage(&dir.path().join(DATA), at);
        }
        store.truncate(FILE, 12 << 20).await.unwrap();
        store.truncate(FILE, 40 << 20).await.unwrap();
        store.settle_all().await;
        assert_eq!(read(&store, &[region((30 << 20) - 10, 20)]).await.unwrap(), [0; 20]);
        assert_eq!(read(&store, &[region((10 << 20) + 4998, 4)]).await.unwrap(), [9, 9, 0, 0]);
    });
}

/// Scrubs the datafile in small steps. Returns whether it has sums, what was read, and the damage.
async fn scrub(store: &dyn DataStore) -> (bool, u64, Vec<Region>) {
    let (mut at, mut read, mut damaged) = (0, 0, FsError::new(ErrorCode::Lost, ""));
    loop {
        let scrubbed = store.scrub(FILE, at, 1).await.unwrap();
        read += scrubbed.read;
        if let Some(error) = scrubbed.damage {
            assert!(error.code == ErrorCode::Lost && error.detail.contains("checksum"), "{error}");
            // Joins neighbours.
            let ranges = [damaged.ranges.clone(), error.ranges].concat();
            damaged = damaged.with_ranges(ranges);
        }
        match scrubbed.next {
            Some(next) => at = next,
            None => return (scrubbed.is_summed, read, damaged.ranges),
        }
    }
}

#[test]
fn a_scrub_finds_what_nobody_reads() {
    each_mode(async |mode, dir| {
        const FAR: u64 = 40 << 20;
        let plain = mode.open(dir, 0);
        plain.create(FILE, 1).await.unwrap();
        plain.write(FILE, &[region(FAR, 5000)], &placed(0, &[9; 5000])).await.unwrap();
        plain.write(FILE, &[region(10_000, 3 << 20)], &placed(0, &[8; 3 << 20])).await.unwrap();
        assert_eq!(plain.scrub(FILE, 0, 1).await.unwrap_err().code, ErrorCode::Unsupported);
        drop(plain);
        let store = open(mode, dir, 0);
        assert_eq!(scrub(&store).await, (false, 0, vec![]), "but it asks for sums");
        store.settle_all().await;
        let (is_summed, read, damaged) = scrub(&store).await;
        assert!(is_summed && damaged.is_empty(), "{mode:?}: {damaged:?}");
        assert!(((3 << 20)..(8 << 20)).contains(&read), "{mode:?}: {read} bytes, with the hole");
        // The last two are neighbours, in two pieces that are read at once.
        for at in [0, 9000, 12_288, (1 << 20) + 16_383, (1 << 20) + 16_384] {
            damage(&dir.join(DATA), at);
        }
        // The file system has lost data, has got some from elsewhere, and has cut the file off.
        let file = File::options().write(true).open(dir.join(DATA)).unwrap();
        file.write_all_at(&[1], 20 << 20).unwrap();
        file.set_len(FAR).unwrap();
        let blocks = [(0, 1), (2, 2), (259, 2), (20 << 8, 1), (FAR >> 12, 2)];
        let blocks = blocks.map(|(first, count)| region(first << 12, count << 12));
        let (is_summed, _, damaged) = scrub(&store).await;
        assert_eq!((is_summed, damaged), (true, blocks.to_vec()), "{mode:?}");
        assert_eq!(store.scrub(FILE, u64::MAX, 1).await.unwrap().next, None);
        store.truncate(FILE, 1).await.unwrap();
        assert_eq!(scrub(&store).await, (false, 0, vec![]), "it was changed");
    });
}

/// Takes no turn.
struct AtOnce;

#[async_trait(?Send)]
impl DiskTurn for AtOnce {
    async fn take(&self) -> Result<Box<dyn Any>, FsError> {
        Ok(Box::new(()))
    }
}

#[test]
fn nothing_damaged_is_lent_or_taken_into_a_cache() {
    let dir = disk_dir();
    run(async {
        let store = settled(Mode::Cached, dir.path(), 0).await.mapped(true).unwrap();
        damage(&dir.path().join(DATA), 9000);
        let lend = async |part| store.lend(FILE, &[part], &AtOnce).await.unwrap();
        assert!(lend(region(0, 16_384)).await.is_none(), "whoever reads it is told why");
        assert_eq!(lend(region(0, 8192)).await.unwrap().list.to_vec(), [7; 8192]);
        drop(store);
        let (mode, frames) = (Mode::Threads, Frames::anonymous(ArenaSettings::new(256 << 10)).unwrap());
        let files = std::rc::Rc::new(open(mode, dir.path(), 0));
        let cached = UnifiedStore::new(files, frames, Settings::for_bytes(256 << 10), || 0);
        let error = read(&cached, &[region(0, 20_000)]).await.unwrap_err();
        assert!(error.code == ErrorCode::Lost && error.detail.contains("from 8192 to 12288"), "{error}");
        assert_eq!(cached.sums_stat().map(|stat| stat.damaged > 0), Some(true));
    });
}
