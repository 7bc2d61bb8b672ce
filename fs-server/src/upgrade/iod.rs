//! Converts the directory of an I/O server.
//!
//! **Layout.** In version 0.1 a datafile was in the subdirectory of its handle's last byte; now it
//! is in that of the second byte (`store/file.rs`). A file that is in either place is that
//! datafile. `removed` was a list of datafiles that were removed not long ago.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use fs_proto::{ClusterId, DatafileHandle, FsError, Start};

use super::directory::{OldDirectory, remove};
use crate::manager::invalid_directory;
use crate::store::{Label, datafile_name};

const REMOVED: &str = "removed";

/// Number of datafiles that were moved and created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) moved: u64,
    pub(super) created: u64,
}

/// Calls `visit` with each datafile and the number of its subdirectory.
fn datafiles(dir: &Path, mut visit: impl FnMut(u8, u64) -> io::Result<()>) -> io::Result<()> {
    for number in 0..=0xffu8 {
        let entries = match fs::read_dir(dir.join(format!("{number:02x}"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            let name = name.to_str().filter(|name| name.len() == 16);
            let Some(handle) = name.and_then(|name| u64::from_str_radix(name, 16).ok()) else { continue };
            if number == handle as u8 || number == (handle >> 8) as u8 {
                visit(number, handle)?;
            }
        }
    }
    Ok(())
}

/// Returns the handles that were found, sorted, and the number of datafiles in the old place.
fn look(dir: &Path, mut at_old: impl FnMut(u8, u64) -> io::Result<()>) -> io::Result<(Vec<u64>, u64)> {
    let (mut found, mut moved) = (Vec::new(), 0);
    datafiles(dir, |number, handle| {
        found.push(handle);
        if number != (handle >> 8) as u8 {
            moved += 1;
            at_old(number, handle)?;
        }
        Ok(())
    })?;
    found.sort_unstable();
    found.dedup();
    Ok((found, moved))
}

fn missing<'a>(handles: &'a [u64], found: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
    handles.iter().copied().filter(|handle| found.binary_search(handle).is_err())
}

/// Returns what is to do. Changes nothing.
pub(super) fn inspect(old: &OldDirectory, handles: &[u64]) -> Result<Work, FsError> {
    let (found, moved) = look(&old.path, |_, _| Ok(())).map_err(|error| old.trouble(&error))?;
    Ok(Work { moved, created: missing(handles, &found).count() as u64 })
}

/// Converts the directory. `handles` are the datafiles that layouts name, sorted.
pub(super) fn convert(mut old: OldDirectory, cluster: ClusterId, handles: &[u64]) -> Result<Work, FsError> {
    old.mark()?;
    let dir = old.path.clone();
    let path = |handle: u64| dir.join(datafile_name(DatafileHandle(handle)));
    let mut twice = None;
    let mut convert = || -> io::Result<(Work, u64)> {
        for number in 0..=0xffu8 {
            match fs::create_dir(dir.join(format!("{number:02x}"))) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let (found, moved) = look(&dir, |number, handle| {
            if path(handle).try_exists()? {
                twice.get_or_insert(handle);
                return Ok(());
            }
            fs::rename(dir.join(format!("{number:02x}/{handle:016x}")), path(handle))
        })?;
        let mut created = 0;
        for handle in missing(handles, &found) {
            File::create_new(path(handle))?;
            created += 1;
        }
        for number in 0..=0xffu8 {
            File::open(dir.join(format!("{number:02x}")))?.sync_all()?;
        }
        remove(&dir.join(REMOVED))?;
        File::open(&dir)?.sync_all()?;
        let highest = found.last().max(handles.last()).copied().unwrap_or(0);
        Ok((Work { moved, created }, highest))
    };
    let (work, highest) = convert().map_err(|error| old.trouble(&error))?;
    if let Some(handle) = twice {
        let text = format!("datafile {handle:016x} is there twice, under its last and under its second byte; keep one");
        return Err(invalid_directory(&old.path, &text));
    }
    // The start that the manager's conversion has recorded (`manager/convert.rs`).
    let (highest, confirmed) = (DatafileHandle(highest), Some(Start::default()));
    let label = Label { highest, confirmed, ..Label::new(cluster, old.role, old.store) };
    old.finish(&label)?;
    Ok(work)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fs_proto::Role;

    use super::super::directory::{Found, find};
    use super::*;
    use crate::store::identity::read_label;

    fn old_directory(dir: &Path) {
        let text = format!("format = 1\nrole = \"iod\"\nindex = 1\nstore = \"{:032x}\"\n", 77);
        fs::write(dir.join("identity.toml"), text).unwrap();
        fs::write(dir.join("lock"), "").unwrap();
        fs::write(dir.join(REMOVED), "12345678").unwrap();
        for (place, contents) in
            [("34/0000000000001234", "abc"), ("07/0000000000000507", ""), ("05/0000000000000505", "x")]
        {
            fs::create_dir_all(dir.join(place).parent().unwrap()).unwrap();
            fs::write(dir.join(place), contents).unwrap();
        }
    }

    fn old(dir: &Path) -> OldDirectory {
        match find(dir, Role::Iod(1)).unwrap() {
            Found::Old(old) => old,
            other => panic!("{other:?}"),
        }
    }

    fn files(dir: &Path) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        for sub in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
            for file in fs::read_dir(sub).unwrap().map(|entry| entry.unwrap().path()) {
                let name = file.strip_prefix(dir).unwrap().display().to_string();
                files.insert(name, fs::read_to_string(&file).unwrap());
            }
        }
        files
    }

    #[test]
    fn datafiles_move_and_missing_ones_are_created_also_after_a_crash() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        old_directory(dir);
        let handles = [0x505, 0x1234, 0x1235];
        assert_eq!(inspect(&old(dir), &handles).unwrap(), Work { moved: 2, created: 1 });
        // A run that was cut off: one datafile was moved.
        old(dir).mark().unwrap();
        fs::create_dir(dir.join("12")).unwrap();
        fs::rename(dir.join("34/0000000000001234"), dir.join("12/0000000000001234")).unwrap();
        assert_eq!(convert(old(dir), ClusterId(9), &handles).unwrap(), Work { moved: 1, created: 1 });
        let expected = [
            ("05/0000000000000505", "x"),
            ("05/0000000000000507", ""),
            ("12/0000000000001234", "abc"),
            ("12/0000000000001235", ""),
        ];
        assert_eq!(files(dir), expected.map(|(name, text)| (name.to_owned(), text.to_owned())).into());
        let label = read_label(dir).unwrap().unwrap().unwrap();
        assert_eq!((label.cluster, label.role, label.highest), (ClusterId(9), Role::Iod(1), DatafileHandle(0x1235)));
        assert!(!dir.join(REMOVED).exists() && !dir.join("lock").exists());
        assert!(matches!(find(dir, Role::Iod(1)), Ok(Found::Current)));
    }

    #[test]
    fn a_datafile_in_both_places_is_not_overwritten() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        old_directory(dir);
        fs::create_dir(dir.join("12")).unwrap();
        fs::write(dir.join("12/0000000000001234"), "other").unwrap();
        let error = convert(old(dir), ClusterId(9), &[]).unwrap_err();
        assert!(error.detail.contains("0000000000001234 is there twice"), "{error}");
        assert_eq!(files(dir)["12/0000000000001234"], "other");
        assert_eq!(files(dir)["34/0000000000001234"], "abc");
        assert!(matches!(find(dir, Role::Iod(1)), Ok(Found::Old(_))));
    }
}
