//! The files that are stored: a real directory tree, and some large generated files.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bmi_report::stats::Random;

/// Directories and files, by their paths in the store. The paths are relative, with `/` between the
/// parts. A directory comes before its entries.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) folders: Vec<String>,
    pub(crate) files: Vec<File>,
    /// The number of entries that are not stored: links, sockets and the like, and names that are
    /// not UTF-8.
    pub(crate) left_out: usize,
}

/// A file to store.
#[derive(Debug)]
pub(crate) struct File {
    /// Its path in the store.
    pub(crate) path: String,
    /// Its length in bytes.
    pub(crate) len: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Disk(PathBuf),
    /// Bytes from a generator with this seed.
    Made(u64),
}

impl File {
    /// Opens the file for reading.
    ///
    /// # Errors
    /// If it cannot be opened. The error names it.
    pub(crate) fn open(&self) -> io::Result<Bytes> {
        Ok(match &self.source {
            Source::Disk(path) => Bytes::Disk(fs::File::open(path).map_err(|error| with_path(path, &error))?),
            Source::Made(seed) => Bytes::Made(made(*seed, self.len as usize)),
        })
    }
}

/// An open file.
pub(crate) enum Bytes {
    Disk(fs::File),
    Made(Vec<u8>),
}

impl Bytes {
    /// Reads the `len` bytes at `offset`.
    ///
    /// # Errors
    /// The error of the read; `UnexpectedEof` if the file has become shorter.
    pub(crate) fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        match self {
            Bytes::Disk(file) => {
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            }
            Bytes::Made(bytes) => Ok(bytes[offset as usize..][..len].to_vec()),
        }
    }
}

impl Tree {
    /// Lists everything below `root`, in the order of names, except the entries of `root` itself
    /// that `skip` names.
    ///
    /// # Errors
    /// If a directory cannot be read. The error names it.
    pub(crate) fn read(root: &Path, skip: &[&str]) -> io::Result<Tree> {
        let mut tree = Tree::default();
        tree.walk(root, "", skip)?;
        Ok(tree)
    }

    fn walk(&mut self, folder: &Path, prefix: &str, skip: &[&str]) -> io::Result<()> {
        let mut entries = fs::read_dir(folder)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(|error| with_path(folder, &error))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let Ok(name) = entry.file_name().into_string() else {
                self.left_out += 1;
                continue;
            };
            if skip.contains(&name.as_str()) {
                continue;
            }
            let path = format!("{prefix}{name}");
            // Do not follow links: one may lead out of the tree, or form a cycle.
            let kind = entry.file_type().map_err(|error| with_path(&entry.path(), &error))?;
            if kind.is_dir() {
                self.folders.push(path.clone());
                self.walk(&entry.path(), &format!("{path}/"), &[])?;
            } else if kind.is_file() {
                let len = entry.metadata().map_err(|error| with_path(&entry.path(), &error))?.len();
                self.files.push(File { path, len, source: Source::Disk(entry.path()) });
            } else {
                self.left_out += 1;
            }
        }
        Ok(())
    }

    /// Keeps every nth file, so that at most `most` are left, and only the directories of these
    /// files.
    pub(crate) fn thin_out(&mut self, most: usize) {
        let step = self.files.len().div_ceil(most.max(1)).max(1);
        let mut number = 0;
        self.files.retain(|_| {
            number += 1;
            (number - 1) % step == 0
        });
        let files = &self.files;
        self.folders.retain(|folder| {
            files.iter().any(|file| file.path.strip_prefix(folder.as_str()).is_some_and(|rest| rest.starts_with('/')))
        });
    }

    /// Adds `count` generated files of `len` bytes in a directory of their own.
    pub(crate) fn add_made(&mut self, count: u64, len: u64) {
        let folder = format!("made-{}", bmi_report::units::size(len as usize).replace(' ', ""));
        for number in 0..count {
            let path = format!("{folder}/{number}");
            self.files.push(File { path, len, source: Source::Made(len ^ (number + 1)) });
        }
        self.folders.push(folder);
    }

    /// Returns the bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }
}

/// Returns bytes that look random and are the same for the same seed.
fn made(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(0, &mut bytes);
    bytes
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(tree: &Tree) -> Vec<&str> {
        tree.files.iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn a_tree_is_found_whole_and_in_order() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["b/c", "target", "b/target"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        for file in ["z", "b/c/x", "b/y", "target/no", "b/target/yes"] {
            fs::write(root.path().join(file), file).unwrap();
        }
        std::os::unix::fs::symlink("/", root.path().join("link")).unwrap();
        let tree = Tree::read(root.path(), &["target"]).unwrap();
        assert_eq!(tree.folders, ["b", "b/c", "b/target"]);
        assert_eq!(names(&tree), ["b/c/x", "b/target/yes", "b/y", "z"]);
        assert_eq!(tree.left_out, 1);
        assert_eq!(tree.files[0].open().unwrap().read(2, 3).unwrap(), b"c/x");
    }

    #[test]
    fn thinning_out_keeps_the_folders_that_are_needed() {
        let mut tree = Tree::default();
        tree.add_made(5, 10);
        tree.add_made(5, 20);
        tree.thin_out(2);
        assert_eq!(names(&tree), ["made-10B/0", "made-20B/0"]);
        assert_eq!(tree.folders.len(), 2);
        tree.thin_out(1);
        assert_eq!(tree.folders, ["made-10B"]);
    }

    #[test]
    fn a_file_that_shrank_is_noticed() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "1234").unwrap();
        let tree = Tree::read(root.path(), &[]).unwrap();
        fs::write(root.path().join("a"), "1").unwrap();
        let error = tree.files[0].open().unwrap().read(0, 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn made_bytes_differ_by_seed_only() {
        assert_eq!(made(2, 1001), made(2, 1001));
        assert_ne!(made(2, 1001), made(4, 1001));
        assert_eq!(made(2, 1001).len(), 1001);
    }
}
