//! Which datafiles must exist at which I/O server, for the machines without the manager.
//!
//! **Layout.** Text, a line for each datafile. The last line counts them, so that a file that was
//! cut off is refused.
//!
//! ```text
//!   # Layouts of a cluster of version 0.1, for `pvfsd upgrade --layouts`.
//!   cluster 0123456789abcdef0123456789abcdef
//!   iod 0 000000000000e100
//!   iod 1 000000000000e101
//!   end 2
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use fs_proto::{ClusterId, ErrorCode, FsError};

/// The datafiles of all layouts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layouts {
    pub(super) cluster: ClusterId,
    handles: BTreeMap<u32, Vec<u64>>,
}

impl Layouts {
    /// Sorts the datafiles by I/O server.
    pub(super) fn new(cluster: ClusterId, datafiles: impl IntoIterator<Item = (u32, u64)>) -> Layouts {
        let mut handles = BTreeMap::<u32, Vec<u64>>::new();
        for (iod, handle) in datafiles {
            handles.entry(iod).or_default().push(handle);
        }
        for list in handles.values_mut() {
            list.sort_unstable();
            list.dedup();
        }
        Layouts { cluster, handles }
    }

    /// Returns the datafiles of an I/O server, sorted.
    pub(super) fn of(&self, iod: u32) -> &[u64] {
        self.handles.get(&iod).map_or(&[], Vec::as_slice)
    }

    /// Writes the file, atomically and durably.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        let mut out = BufWriter::new(File::create(&new)?);
        writeln!(out, "# Layouts of a cluster of version 0.1, for `pvfsd upgrade --layouts`.")?;
        writeln!(out, "cluster {}", self.cluster)?;
        for (iod, handles) in &self.handles {
            for handle in handles {
                writeln!(out, "iod {iod} {handle:016x}")?;
            }
        }
        writeln!(out, "end {}", self.handles.values().map(Vec::len).sum::<usize>())?;
        out.flush()?;
        out.get_ref().sync_all()?;
        fs::rename(&new, path)?;
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }

    /// Reads the file.
    ///
    /// # Errors
    /// `Invalid` if it is not such a file or is cut off; `NotFound`, `Io`.
    pub(super) fn read(path: &Path) -> Result<Layouts, FsError> {
        let fail = |error: io::Error| {
            let code = if error.kind() == io::ErrorKind::NotFound { ErrorCode::NotFound } else { ErrorCode::Io };
            FsError::new(code, format!("{}: {error}", path.display()))
        };
        let (mut cluster, mut datafiles, mut end) = (None, Vec::new(), None);
        for (line, at) in BufReader::new(File::open(path).map_err(fail)?).lines().zip(1..) {
            let line = line.map_err(fail)?;
            let words: Vec<&str> = line.split(' ').collect();
            let understood = match words[..] {
                _ if end.is_some() => None,
                ["#", ..] => Some(()),
                ["cluster", number] => number.parse().ok().map(|number| cluster = Some(number)),
                ["iod", iod, handle] => {
                    let parsed = iod.parse().ok().zip(u64::from_str_radix(handle, 16).ok());
                    parsed.map(|datafile| datafiles.push(datafile))
                }
                ["end", count] => count.parse::<usize>().ok().map(|count| end = Some(count)),
                _ => None,
            };
            if understood.is_none() {
                let text = format!("{}, line {at}: not a line of a file of `pvfsd upgrade`", path.display());
                return Err(FsError::new(ErrorCode::Invalid, text));
            }
        }
        match cluster {
            Some(cluster) if end == Some(datafiles.len()) => Ok(Layouts::new(cluster, datafiles)),
            _ => Err(FsError::new(ErrorCode::Invalid, format!("{}: it is cut off; copy it again", path.display()))),
        }
    }
}

/// A file of layouts, for the fuzz target of this name. What is read comes back when it is written.
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub fn fuzz_layouts(bytes: &[u8]) {
    crate::fuzz::scratch(|dir| {
        let path = dir.join("layouts");
        fs::write(&path, bytes).expect("a file");
        let Ok(layouts) = Layouts::read(&path) else { return };
        layouts.write(&path).expect("room");
        assert_eq!(Layouts::read(&path), Ok(layouts));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_read_as_they_were_written_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("layouts.txt");
        let layouts = Layouts::new(ClusterId(7), [(1, 0xe101), (0, 0xe100), (0, 5), (0, 5)]);
        layouts.write(&path).unwrap();
        assert_eq!(Layouts::read(&path).unwrap(), layouts);
        assert_eq!((layouts.of(0), layouts.of(1), layouts.of(2)), (&[5, 0xe100][..], &[0xe101][..], &[][..]));
        let text = fs::read_to_string(&path).unwrap();
        for cut in 0..text.len() - 1 {
            fs::write(&path, &text[..cut]).unwrap();
            assert_eq!(Layouts::read(&path).unwrap_err().code, ErrorCode::Invalid, "{cut} bytes");
        }
        fs::write(&path, text.replace("iod 1", "iod x")).unwrap();
        assert!(Layouts::read(&path).unwrap_err().detail.contains("line 5"));
    }
}
