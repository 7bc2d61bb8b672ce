//! Put and get of one large file: the library's copies, with the settings of the command `pvfs`.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use benches::workload::Failed;
use bmi_core::Memory;
use fs_client::copy::{Copied, Copier};
use fs_client::{ErrorCode, FsPath};

use crate::content::{self, BLOCK, Checker};
use crate::line::What;
use crate::round::Round;

/// The defaults of `pvfs put` and `pvfs get`: the bytes of a request, and the number of requests in
/// flight.
const BLOCK_SIZE: usize = 4 << 20;
const WINDOW: usize = 4;

/// The bytes that are generated or compared at a time.
const UNIT: usize = 4 << 20;

/// The local file to put.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    len: u64,
}

impl Source {
    /// Creates the file, `len` bytes long.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn make(path: &Path, len: u64) -> io::Result<Source> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let (mut file, memory) = (File::create_new(path).map_err(failed)?, Memory::from(content::blanks(UNIT / BLOCK)));
        for offset in (0..len).step_by(UNIT) {
            content::place(&memory, 0, UNIT / BLOCK, offset, 0);
            let bytes = memory.slice(0, UNIT.min((len - offset) as usize)).to_vec();
            file.write_all(&bytes).map_err(failed)?;
        }
        Ok(Source { path: path.to_owned(), len })
    }

    /// Compares a copy with the file.
    fn check(&self, copy: &Path) -> Result<(), Failed> {
        let (mut file, mut buffer, checker) = (File::open(copy)?, vec![0; UNIT], Checker::new());
        let mut offset = 0;
        loop {
            let unit = &mut buffer[..UNIT.min((self.len - offset) as usize)];
            file.read_exact(unit)?;
            checker.check(unit, offset, |_| 0)?;
            offset += unit.len() as u64;
            if offset == self.len {
                break;
            }
        }
        match file.read(&mut buffer)? {
            0 => Ok(()),
            _ => Err("the copy is longer than the file".into()),
        }
    }
}

/// Measures put and get, if they are chosen. `target` is the path of the copy that get creates.
///
/// # Errors
/// If one of them fails, or the copy differs from the file.
pub(crate) async fn measure(round: &mut Round<'_>, source: &Source, target: &Path) -> Result<(), Failed> {
    if !round.wants_any(&[What::Put, What::PutSynced, What::Get]) {
        return Ok(());
    }
    let (client, path): (_, FsPath) = (round.client.clone(), "/copy".parse()?);
    let endpoint = client.endpoint();
    // Each has buffers of its own, as each run of the command has.
    let copier = || Copier::new(client.clone(), BLOCK_SIZE, WINDOW, |_| {});
    let mut put = Copied::default();
    for (what, sync) in [(What::Put, false), (What::PutSynced, true)] {
        // Otherwise the servers would remove the file that is replaced while the next line is
        // measured.
        client.remove_all(&path).await.or_else(absent)?;
        while client.statfs().await?.manager.orphans > 0 {
            endpoint.sleep(Duration::from_millis(5)).await;
        }
        round.begin(what);
        warm(target, source.len);
        let begin = endpoint.now();
        let mut copier = copier()?;
        copier.sync = sync;
        put = copier.put_file(&source.path, &path).await?;
        round.note(what, source.len as f64 / endpoint.now().since(begin).as_secs_f64());
    }

    round.begin(What::Get);
    warm(target, source.len);
    let begin = endpoint.now();
    let got = copier()?.get_file(&path, target).await?;
    round.note(What::Get, source.len as f64 / endpoint.now().since(begin).as_secs_f64());
    if [put.bytes, got.bytes] != [source.len; 2] {
        return Err(format!("put copied {} bytes and get {}, of {}", put.bytes, got.bytes, source.len).into());
    }
    source.check(target)?;
    Ok(())
}

/// A file that does not exist needs no removal.
fn absent(error: fs_client::Error) -> Result<(), fs_client::Error> {
    if error.code() == ErrorCode::NotFound { Ok(()) } else { Err(error) }
}

/// Allocates `len` bytes of a file in memory, then removes the file, so that the next file gets
/// pages that the machine already has.
///
/// The host of a virtual machine provides a page when it is first touched, and may take it away
/// when it has been free for a while. A file of pages that the host had to provide took more than
/// twice as long to write. There is no file at `path` before or after.
fn warm(path: &Path, len: u64) {
    // A file system that is not in memory may not support this. It does not need it, because it has
    // no such pages.
    if let Ok(file) = File::create_new(path) {
        let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len);
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_compared_whatever_its_length() {
        let folder = tempfile::tempdir().unwrap();
        for len in [1, 4095, 4097, UNIT as u64, UNIT as u64 + 9] {
            let path = folder.path().join(len.to_string());
            let source = Source::make(&path, len).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), len);
            source.check(&path).unwrap();
            let mut bytes = fs::read(&path).unwrap();
            let (copy, last) = (folder.path().join("copy"), bytes.len() - 1);
            fs::write(&copy, &bytes[..last]).unwrap();
            assert!(source.check(&copy).is_err(), "too short: {len}");
            bytes[last] ^= 1;
            fs::write(&copy, &bytes).unwrap();
            assert!(source.check(&copy).is_err(), "another byte: {len}");
            bytes[last] ^= 1;
            bytes.push(0);
            fs::write(&copy, &bytes).unwrap();
            assert!(source.check(&copy).is_err(), "too long: {len}");
        }
    }
}
