//! Bodies of fuzz targets: the files of a store that say what its datafiles are.

use std::path::Path;

use fs_proto::DatafileHandle;

use super::disk::MemDisk;
use super::files::catalogue::{self, Catalogue};
use super::files::marks::{self, Mark, Marks};
use super::label::identity::{self, IDENTITY};

/// Calls `body` with an empty directory, in memory if there is such a place.
pub(crate) fn scratch<R>(body: impl FnOnce(&Path) -> R) -> R {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.expect("a directory");
    body(dir.path())
}

/// The records of marks and of new datafiles, as a store finds them when it is opened. The first
/// byte says which. If it is odd, each block gets the right check value first, so that the rest of
/// it counts.
///
/// What is found once is found again, with a change that was made meanwhile. Each datafile that is
/// listed is found by itself.
pub fn records(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let mut bytes = bytes.to_vec();
    let disk = MemDisk::default();
    match kind & 3 {
        0 | 1 => {
            if kind & 1 == 1 {
                marks::fuzz_repair(&mut bytes);
            }
            disk.put(marks::NAME, &bytes);
            check_marks(&disk);
        }
        _ => {
            if kind & 1 == 1 {
                catalogue::fuzz_repair(&mut bytes);
            }
            disk.put(catalogue::NAME, &bytes);
            check_catalogue(&disk);
        }
    }
}

fn check_marks(dir: &MemDisk) {
    let found = |marks: &Marks| -> Vec<(DatafileHandle, Option<Mark>)> {
        marks.list(|_| true).into_iter().map(|datafile| (datafile, marks.find(datafile))).collect()
    };
    let marks = Marks::open(dir).expect("a record");
    let before = found(&marks);
    assert!(before.iter().all(|(_, mark)| mark.is_some()));
    let new = DatafileHandle(before.last().map_or(7, |(last, _)| last.0 / 2));
    marks.set(new, Mark::Truncating(5)).expect("room");
    drop(marks);
    let marks = Marks::open(dir).expect("a record");
    let others = |all: Vec<(DatafileHandle, Option<Mark>)>| all.into_iter().filter(|(datafile, _)| *datafile != new);
    assert!(others(found(&marks)).eq(others(before)), "other marks have changed");
    assert_eq!(marks.find(new), Some(Mark::Truncating(5)));
    marks.clear(marks.list(|_| true), |_| true).expect("a change");
    drop(marks);
    assert!(found(&Marks::open(dir).expect("a record")).is_empty(), "marks come back");
}

fn check_catalogue(dir: &MemDisk) {
    let catalogue = Catalogue::open(dir).expect("a record");
    let listed = catalogue.list(|_| true);
    assert!(listed.iter().all(|datafile| catalogue.is_new(*datafile)));
    assert_eq!(catalogue.datafiles(), listed.len() as u64);
    drop(catalogue);
    let catalogue = Catalogue::open(dir).expect("a record");
    assert_eq!(catalogue.list(|_| true), listed);
    catalogue.take_off(listed).expect("a change");
    assert_eq!((catalogue.list(|_| true), catalogue.datafiles()), (vec![], 0));
    drop(catalogue);
    assert_eq!(Catalogue::open(dir).expect("a record").list(|_| true), [], "datafiles come back");
}

/// The label of a data directory.
///
/// A label that is read comes back when it is written.
pub fn label(bytes: &[u8]) {
    let disk = MemDisk::default();
    disk.put(IDENTITY, bytes);
    let Ok(Some(Ok(label))) = identity::read_label(&disk) else { return };
    identity::write_label(&disk, &label).expect("room");
    assert_eq!(identity::read_label(&disk).expect("a file"), Some(Ok(label)));
}
