//! The files of datafiles: their names in the directory of a store.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use fs_proto::DatafileHandle;
use rustix::fs::{Mode, OFlags, openat};

use crate::store::sys::steps::step;

/// Returns the number of the subdirectory of a datafile.
pub(super) fn subdir_of(datafile: DatafileHandle) -> u8 {
    (datafile.0 >> 8) as u8
}

pub(super) fn subdir(number: u8) -> String {
    format!("{number:02x}")
}

/// Returns the name of a datafile's file, relative to the store's directory.
pub(super) fn name(datafile: DatafileHandle) -> String {
    format!("{:02x}/{:016x}", subdir_of(datafile), datafile.0)
}

pub(super) fn open_at(dir: &File, name: &str, flags: OFlags) -> io::Result<File> {
    step(|| Ok(File::from(openat(dir, name, flags | OFlags::CLOEXEC, Mode::from(0o644))?)))
}

/// Returns the handles from `first` on.
pub(super) fn range(first: DatafileHandle, count: u32) -> impl Iterator<Item = DatafileHandle> {
    (first.0..first.0.saturating_add(count.into())).map(DatafileHandle)
}

/// Returns the handles of the files in a subdirectory, in order.
pub(super) fn handles_in(subdir: impl AsFd, number: u8) -> io::Result<Vec<DatafileHandle>> {
    let mut handles = Vec::new();
    for entry in rustix::fs::Dir::read_from(subdir)? {
        let entry = entry?;
        let parsed = entry.file_name().to_str().ok().and_then(|name| u64::from_str_radix(name, 16).ok());
        handles.extend(parsed.map(DatafileHandle).filter(|handle| subdir_of(*handle) == number));
    }
    handles.sort();
    Ok(handles)
}
