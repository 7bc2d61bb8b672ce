//! Tests of mapped files. They use a directory of the machine's temporary files.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::store::files::FileStore;
use crate::store::files::names::name as datafile_name;
use crate::store::{DataStore, DiskTurn, Lends, Loan};

const FILE: DatafileHandle = DatafileHandle(0x100);

/// Counts the turns at the disk.
#[derive(Default)]
struct Turns(AtomicU32);

#[async_trait(?Send)]
impl DiskTurn for Turns {
    async fn take(&self) -> Result<Box<dyn std::any::Any>, FsError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(()))
    }
}

/// Runs what needs no event loop: without a runtime nothing waits.
fn run<R>(work: impl Future<Output = R>) -> R {
    work.now_or_never().expect("nothing waits")
}

struct Bed {
    dir: tempfile::TempDir,
    store: FileStore,
}

impl Bed {
    /// Makes a store with a datafile of these bytes.
    fn new(bytes: &[u8]) -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let store = FileStore::open(dir.path(), u64::MAX).unwrap().mapped(true).unwrap();
        run(store.create(DatafileHandle(0x100), 16)).unwrap();
        let bed = Bed { dir, store };
        bed.write(0, bytes);
        bed
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        run(self.store.write(FILE, &[Region::new(at, bytes.len() as u64)], &MemList::from(bytes.to_vec()))).unwrap();
    }

    fn lend(&self, regions: &[Region]) -> Option<Loan> {
        run(self.store.lend(FILE, regions, &Turns::default())).unwrap()
    }

    /// Returns the datafile's file, which somebody else has opened.
    fn file(&self) -> File {
        File::options().write(true).open(self.dir.path().join(datafile_name(FILE))).unwrap()
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 + 1).collect()
}

#[test]
fn it_is_a_service_for_reads() {
    let bed = Bed::new(&pattern(5000));
    assert_eq!((bed.store.lends(), bed.store.service()), (Lends::Reads, fs_proto::ServiceKind::Mmap));
    assert!(bed.lend(&[Region::new(0, 4095)]).is_none(), "a small piece is cheaper to copy");
    assert!(bed.lend(&[Region::new(0, 1); 4096]).is_none(), "so are many small ones");
    let never_written = run(bed.store.lend(DatafileHandle(0x101), &[Region::new(0, 8192)], &Turns::default()));
    assert!(never_written.unwrap().is_none());
    let missing = run(bed.store.lend(DatafileHandle(0x900), &[Region::new(0, 8192)], &Turns::default()));
    let Err(error) = missing else { panic!("it does not exist") };
    assert_eq!((error.code, error.ranges), (ErrorCode::Lost, vec![Region::new(0, 8192)]));
    assert!(bed.lend(&[Region::new(1 << 40, 8192)]).unwrap().list.to_vec() == [0; 8192], "behind the end");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Whatever is lent is what the file has, while it grows and is cut off.
    #[test]
    fn what_is_lent_is_what_the_file_has(
        steps in prop::collection::vec((0..4u8, 0..2_500_000u64, 1..400_000usize, 0..2_500_000u64), 1..10),
    ) {
        let mut model = pattern(1_200_000);
        let bed = Bed::new(&model);
        for (kind, at, len, other) in steps {
            match kind {
                0 => {
                    let bytes = pattern(len);
                    bed.write(at, &bytes);
                    model.resize(model.len().max(at as usize + len), 0);
                    model[at as usize..at as usize + len].copy_from_slice(&bytes);
                }
                1 => {
                    run(bed.store.truncate(FILE, at)).unwrap();
                    model.resize(at as usize, 0);
                }
                _ => {
                    let regions = [Region::new(at, len as u64), Region::new(other, 5000)];
                    let loan = bed.lend(&regions);
                    prop_assert_eq!(loan.is_some(), len + 5000 >= 2 * 4096);
                    let Some(loan) = loan else { continue };
                    let of = |at: u64| model.get(at as usize).copied().unwrap_or(0);
                    let expected: Vec<u8> =
                        regions.iter().flat_map(|region| region.offset..region.offset + region.len).map(of).collect();
                    prop_assert!(loan.list.to_vec() == expected);
                    prop_assert!(loan.owner.check().is_ok());
                }
            }
        }
    }
}

#[test]
fn what_is_read_again_is_not_mapped_again() {
    let bed = Bed::new(&pattern(3 << 20));
    let all = [Region::new(100, (3 << 20) - 100)];
    let first = bed.lend(&all).unwrap();
    let again = bed.lend(&all).unwrap();
    let of = |loan: &Loan| loan.list.pieces().iter().map(|piece| piece.memory().id()).collect::<Vec<_>>();
    assert_eq!((of(&first).len(), of(&first)), (3, of(&again)));
    assert!(first.list.is_read_only());
    // The last window is longer now.
    bed.write((3 << 20) - 5000, &pattern(100_000));
    let longer = bed.lend(&[Region::new(100, (3 << 20) + 90_000)]).unwrap();
    assert_eq!(of(&longer)[..3], of(&first)[..]);
    assert_eq!(of(&longer).len(), 4);
}

#[test]
fn the_number_of_windows_is_bounded() {
    let bed = Bed::new(&[1]);
    bed.file().set_len((KEPT as u64 + 100) * WINDOW).unwrap();
    for number in 0..KEPT as u64 + 100 {
        assert!(bed.lend(&[Region::new(number * WINDOW, 8192)]).is_some());
    }
    let mapped = bed.store.mapped.as_ref().unwrap();
    assert_eq!(mapped.table().windows.len(), KEPT);
    assert!(mapped.table().windows.contains_key(&(FILE, KEPT as u64 + 99)), "the oldest one goes");
    run(bed.store.remove(&[FILE])).unwrap();
    assert!(mapped.table().windows.is_empty());
}

/// The bytes are read by this process, as a transport does that copies.
#[test]
fn a_file_that_is_cut_off_while_it_is_lent_is_an_error_and_no_signal() {
    let bed = Bed::new(&pattern(100_000));
    let regions = [Region::new(0, 50_000), Region::new(60_000, 30_000)];
    let loan = bed.lend(&regions).unwrap();
    bed.file().set_len(70_000).unwrap();
    let found = loan.list.to_vec();
    assert!(found[..50_000] == pattern(50_000) && found[70_000..].iter().all(|byte| *byte == 0));
    let error = loan.owner.check().unwrap_err();
    assert_eq!((error.code, &error.ranges[..]), (ErrorCode::Io, &regions[..]));
    // The window is not used again.
    let loan = bed.lend(&regions).unwrap();
    assert!(loan.list.to_vec()[..50_000] == pattern(50_000) && loan.owner.check().is_ok());
}

/// A client that truncates a file must not harm those that read it.
#[test]
fn a_truncation_waits_for_what_is_lent() {
    let bed = Bed::new(&pattern(100_000));
    let region = [Region::new(0, 100_000)];
    let loan = bed.lend(&region).unwrap();
    let mut truncation = Box::pin(bed.store.truncate(FILE, 10));
    assert!(truncation.as_mut().now_or_never().is_none() && bed.store.any_waits());
    assert!(bed.lend(&region).is_none(), "nothing more is lent");
    assert!(loan.list.to_vec() == pattern(100_000) && loan.owner.check().is_ok());
    drop(loan);
    run(truncation).unwrap();
    let loan = bed.lend(&region).unwrap();
    assert!(loan.list.to_vec()[..10] == pattern(10) && loan.list.to_vec()[10..] == [0; 99_990]);
}

/// The kernel reads the bytes, as when they are sent to a socket.
#[test]
fn the_kernel_refuses_to_send_what_was_cut_off() {
    let bed = Bed::new(&pattern(100_000));
    let loan = bed.lend(&[Region::new(0, 100_000)]).unwrap();
    bed.file().set_len(0).unwrap();
    let sink = tempfile::tempfile().unwrap();
    let refused = crate::store::sys::write_at(&sink, 0, &loan.list.pieces()[0]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
}

#[test]
fn what_is_not_in_memory_takes_a_turn_at_the_disk() {
    let bed = Bed::new(&pattern(2 << 20));
    let regions = [Region::new(0, 2 << 20)];
    let ask = || {
        let turns = Turns::default();
        let loan = run(bed.store.lend(FILE, &regions, &turns)).unwrap().unwrap();
        assert!(loan.list.to_vec() == pattern(2 << 20));
        turns.0.into_inner()
    };
    assert_eq!(ask(), 0, "the system has it in memory");
    run(bed.store.sync(&[FILE])).unwrap();
    bed.store.mapped.as_ref().unwrap().forget(FILE);
    rustix::fs::fadvise(bed.file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    // A file system in memory has no disk to read it from.
    let cold = crate::store::sys::resident(&File::open(bed.dir.path().join(datafile_name(FILE))).unwrap(), 2 << 20);
    assert_eq!(ask(), u32::from(cold.unwrap() < 512));
}

/// The name of the test below, for the process that it starts.
const FOREIGN: &str = "store::files::mapped::tests::the_signal_of_somebody_else_still_ends_the_process";

#[test]
fn the_signal_of_somebody_else_still_ends_the_process() {
    if std::env::var_os("PVFS_TEST_FOREIGN_SIGBUS").is_some() {
        super::sys::guard().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let window = Window::map(&file, 0, 4096, &std::sync::Weak::new()).unwrap();
        file.set_len(0).unwrap();
        // It is in the table no more, as memory of somebody else.
        super::sys::tests::take_out(&window);
        window.memory().to_vec();
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", FOREIGN, "--nocapture"]).env("PVFS_TEST_FOREIGN_SIGBUS", "1");
    let ended = child.output().unwrap();
    assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
}
