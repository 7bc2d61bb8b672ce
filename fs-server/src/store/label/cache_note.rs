//! The note in a data directory of the cache that the store uses.
//!
//! **Why.** Bytes that a client was told are written may be only in the frames of a cache, in a
//! directory that is not the store's. A start must find these frames, wherever its own cache is to
//! be. It must not take frames of an earlier start for them: what they hold is older than the disk.
//! And it must tell if they are gone.
//!
//! **Invariants**
//! 1. The note is durable before anything is acknowledged that only the frames hold, and it goes
//!    only when they hold nothing, or when a person discards them.
//! 2. It is replaced atomically, in a file that is there already. So a full disk keeps no server
//!    from starting that has had a cache before.
//!
//! **Layout** of `<dir>/cache.toml`: a comment, and with a cache in use the directory of its
//! frames, their number, and the name of the host as it was started ([`bmi::backend::host_id`]).

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::replace::replace_file;
use crate::store::disk::{DiskDir, read_file};

const NAME: &str = "cache.toml";
/// The name of a note while it is written, and of the file that is kept for the next one.
const SPARE: &str = "cache.new";
/// Most bytes of a note.
const MOST: u64 = 64 << 10;

/// The cache that a store uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct CacheNote {
    /// The directory of its frames.
    pub(in crate::store) dir: PathBuf,
    /// Their number.
    pub(in crate::store) number: u128,
    /// The start of the host that they are on. Empty if the system has no name for it.
    pub(in crate::store) host: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoteFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    dir: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
}

/// Reads the note of a data directory. Returns `None` if no cache is in use.
pub(in crate::store) fn read(dir: &dyn DiskDir) -> io::Result<Option<CacheNote>> {
    let text = match read_file(dir, NAME, MOST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => String::from_utf8(result?).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?,
    };
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{NAME}: {why}"));
    let file: NoteFile = toml::from_str(&text).map_err(|error| invalid(error.message().replace('\n', " ")))?;
    let NoteFile { dir: Some(dir), number: Some(number), host } = file else { return Ok(None) };
    let number = u128::from_str_radix(&number, 16).map_err(|_| invalid(format!("number {number:?}")))?;
    Ok(Some(CacheNote { dir, number, host: host.unwrap_or_default() }))
}

/// Replaces the note of a data directory, atomically and durably.
pub(in crate::store) fn write(dir: &dyn DiskDir, note: Option<&CacheNote>) -> io::Result<()> {
    let file = note.map_or_else(NoteFile::default, |note| NoteFile {
        dir: Some(note.dir.clone()),
        number: Some(format!("{:032x}", note.number)),
        host: Some(note.host.clone()),
    });
    let text = toml::to_string(&file).map_err(io::Error::other)?;
    let what = "# The cache that this store uses. Written by pvfsd; do not edit or copy it.\n";
    replace_file(dir, NAME, SPARE, &format!("{what}{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::disk::SystemDir;

    #[test]
    fn a_note_comes_back_until_it_is_cleared() {
        let path = tempfile::tempdir().unwrap();
        let dir = SystemDir::open(path.path()).unwrap();
        assert_eq!(read(&dir).unwrap(), None);
        let long = PathBuf::from(format!("/{}", "\"x\\ ".repeat(1000)));
        for place in ["/dev/shm".into(), long, "/b".into()] {
            let note = CacheNote { dir: place, number: 7 << 100 | 3, host: "boot".into() };
            write(&dir, Some(&note)).unwrap();
            assert_eq!(read(&dir).unwrap(), Some(note));
        }
        write(&dir, None).unwrap();
        assert_eq!(read(&dir).unwrap(), None);
    }

    #[test]
    fn a_damaged_note_is_an_error() {
        let path = tempfile::tempdir().unwrap();
        for (text, why) in
            [("dir = 1", "cache.toml"), ("dir = \"/a\"\nnumber = \"x\"\n", "number"), ("x = 1", "unknown")]
        {
            std::fs::write(path.path().join(NAME), text).unwrap();
            let error = read(&SystemDir::open(path.path()).unwrap()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
