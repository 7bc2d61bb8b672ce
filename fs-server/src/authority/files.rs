//! The files of an authority: each is written completely or not at all, and a secret is no one
//! else's.
//!
//! **Why.** Half a certificate, or a list of revoked ones that is cut off, would let nobody in. A
//! key that others can read, or could for a moment, is no secret any more.
//!
//! **Tests.** Those of the authority.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use super::Error;

/// Modes of a directory, of a key, and of what everybody may read.
const PRIVATE_DIR: u32 = 0o700;
const SECRET: u32 = 0o600;
const OPEN: u32 = 0o644;
/// What the group and others may do.
const OTHERS: u32 = 0o077;

/// Creates an error that names a file.
pub(super) fn trouble(path: &Path, error: &io::Error) -> Error {
    Error::Failed(format!("{}: {error}", path.display()))
}

/// Creates a directory that is no one else's. It may be there.
pub(super) fn make_dir(path: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(PRIVATE_DIR).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(trouble(path, &error)),
        _ => refuse_readable(path),
    }
}

/// Refuses a key or a directory that others can reach.
pub(super) fn refuse_readable(path: &Path) -> Result<(), Error> {
    let metadata = fs::metadata(path).map_err(|error| trouble(path, &error))?;
    if metadata.permissions().mode() & OTHERS == 0 {
        return Ok(());
    }
    let mode = if metadata.is_dir() { PRIVATE_DIR } else { SECRET };
    let path = path.display();
    Err(Error::Failed(format!("{path} is open to other users, and has secrets: chmod {mode:o} {path}")))
}

/// Returns the text of a file.
pub(super) fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|error| trouble(path, &error))
}

/// Writes a key, in place of one that is there.
pub(super) fn write_secret(path: &Path, text: &str) -> Result<(), Error> {
    write(path, text, SECRET)
}

/// Writes what everybody may read, in place of what is there.
pub(super) fn write_open(path: &Path, text: &str) -> Result<(), Error> {
    write(path, text, OPEN)
}

/// The file gets its name when it is complete and on the disk. A crash before that leaves a file
/// whose name begins with `.new-`.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let write = || {
        let dir = path.parent().unwrap_or(Path::new("."));
        let permissions = Permissions::from_mode(mode);
        let mut file = tempfile::Builder::new().prefix(".new-").permissions(permissions).tempfile_in(dir)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|error| trouble(path, &error))
}
