//! Replaces a file of a data directory, also when the disk is full.

use std::io;

use bmi::hooks::mutated;

use crate::store::disk::DiskDir;
use crate::store::disk::steps::{self, step};

/// Size of a label's file, in bytes. A label takes about half of it.
pub(super) const LABEL_BYTES: usize = 1024;

/// Replaces the file `name`, atomically and durably, by `spare`, which is kept for the next time.
pub(super) fn replace_file(dir: &dyn DiskDir, name: &str, spare: &str, text: &str) -> io::Result<()> {
    write_spare(dir, spare, text)?;
    let exchanged = step(|| dir.exchange(spare, name));
    match exchanged.as_ref().map_err(io::Error::kind) {
        Ok(()) => {}
        // The first label, or a file system that cannot exchange names.
        Err(io::ErrorKind::NotFound | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            step(|| dir.rename(spare, name))?;
            write_spare(dir, spare, text)?;
        }
        Err(_) => return exchanged,
    }
    steps::sync_dir(dir)
}

/// Writes the file that becomes the label next. It has its full size from the beginning, so that a
/// label can also be written when the disk is full.
fn write_spare(dir: &dyn DiskDir, spare: &str, text: &str) -> io::Result<()> {
    let file = step(|| dir.open(spare, true))?;
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len().max(LABEL_BYTES), b'\n');
    steps::write_all_at(&*file, &bytes, 0)?;
    step(|| file.set_len(bytes.len() as u64))?;
    if mutated("store/label-exchanged-before-it-is-durable") {
        return Ok(());
    }
    steps::sync_file(&*file, true)
}
