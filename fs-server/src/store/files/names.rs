//! The files of datafiles: their names in the directory of a store.

use std::io;

use fs_proto::DatafileHandle;

use crate::store::disk::DiskDir;

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

/// Returns the name of the file of a datafile on the disk of a store.
#[cfg(any(test, feature = "sim"))]
pub fn name_of(datafile: DatafileHandle) -> String {
    name(datafile)
}

/// Returns the datafile whose file has this name on the disk of a store.
#[cfg(any(test, feature = "sim"))]
pub fn datafile_of(name: &str) -> Option<DatafileHandle> {
    let datafile = DatafileHandle(u64::from_str_radix(name.split_once('/')?.1, 16).ok()?);
    (self::name(datafile) == name).then_some(datafile)
}

/// Returns the handles from `first` on.
pub(super) fn range(first: DatafileHandle, count: u32) -> impl Iterator<Item = DatafileHandle> {
    (first.0..first.0.saturating_add(count.into())).map(DatafileHandle)
}

/// Returns the handles of the files in a subdirectory, in order.
pub(super) fn handles_in(subdir: &dyn DiskDir, number: u8) -> io::Result<Vec<DatafileHandle>> {
    let parsed = subdir.names()?.into_iter().filter_map(|name| u64::from_str_radix(&name, 16).ok());
    let mut handles: Vec<_> = parsed.map(DatafileHandle).filter(|handle| subdir_of(*handle) == number).collect();
    handles.sort();
    Ok(handles)
}
