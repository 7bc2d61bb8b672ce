//! The root file system of the machine: an archive that the kernel unpacks into memory when it
//! starts.
//!
//! **Why not compressed.** The emulated processor would take longer to unpack it than the host
//! takes to copy it. For the same reason, programs are copied without their debug sections.
//! Backtraces still have the names of functions.
//!
//! **Invariants**
//! 1. A directory comes before its entries: entries are sorted by path.
//! 2. A program comes with all shared libraries that `ldd` lists, at the same paths. If one is
//!    missing, writing the image fails, so that no program fails in the machine for that reason.
//!
//! **Layout.** The `newc` form of cpio, with one record for each entry:
//!
//! ```text
//! "070701" │ 13 fields of 8 hexadecimal digits │ path, NUL │ pad to 4 │ content │ pad to 4
//!           inode mode uid gid links mtime size devmajor devminor rdevmajor rdevminor pathlen 0
//! … last record: "TRAILER!!!"
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::Failure;

/// A root file system, not yet written.
#[derive(Default)]
pub(crate) struct Image {
    /// The entries by their path in the machine, without the leading slash.
    entries: BTreeMap<String, Entry>,
    /// The programs whose libraries are still to be found.
    programs: Vec<PathBuf>,
}

enum Entry {
    Folder,
    File {
        content: Content,
        mode: u32,
    },
    /// The console, which the kernel opens before it starts any program.
    Console,
}

enum Content {
    Bytes(Vec<u8>),
    File(PathBuf),
}

const FOLDER: u32 = 0o040_755;
const REGULAR: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_600;

impl Image {
    /// Adds an empty directory.
    pub(crate) fn folder(&mut self, inside: &str) {
        self.insert(inside, Entry::Folder);
    }

    /// Adds a text file; `mode` has only the permissions.
    pub(crate) fn text(&mut self, inside: &str, text: impl Into<Vec<u8>>, mode: u32) {
        self.insert(inside, Entry::File { content: Content::Bytes(text.into()), mode });
    }

    /// Adds a copy of a file of the host.
    pub(crate) fn file(&mut self, inside: &str, from: &Path) {
        self.insert(inside, Entry::File { content: Content::File(from.to_owned()), mode: 0o644 });
    }

    /// Adds the device `/dev/console`.
    pub(crate) fn console(&mut self) {
        self.insert("/dev/console", Entry::Console);
    }

    /// Adds a program or a shared object of the host, with the libraries that it needs.
    pub(crate) fn program(&mut self, inside: &str, from: &Path) {
        self.insert(inside, Entry::File { content: Content::File(from.to_owned()), mode: 0o755 });
        self.programs.push(from.to_owned());
    }

    fn insert(&mut self, inside: &str, entry: Entry) {
        let inside = inside.trim_start_matches('/');
        for (end, _) in inside.match_indices('/') {
            self.entries.entry(inside[..end].to_owned()).or_insert(Entry::Folder);
        }
        self.entries.insert(inside.to_owned(), entry);
    }

    /// Adds the libraries and writes the archive.
    pub(crate) fn write(mut self, to: &Path) -> Result<(), Failure> {
        let programs = std::mem::take(&mut self.programs);
        for library in libraries(&programs)? {
            let inside = library.to_string_lossy().into_owned();
            self.insert(&inside, Entry::File { content: Content::File(library), mode: 0o755 });
        }
        let failed = |error: io::Error| Failure::new(format!("{}: {error}", to.display()));
        let mut out = BufWriter::new(File::create(to).map_err(failed)?);
        for (inode, (path, entry)) in self.entries.iter().enumerate() {
            let bytes;
            let (mode, content): (u32, &[u8]) = match entry {
                Entry::Folder => (FOLDER, &[]),
                Entry::Console => (CHARACTER_DEVICE, &[]),
                Entry::File { content: Content::Bytes(content), mode } => (REGULAR | mode, content),
                Entry::File { content: Content::File(from), mode } => {
                    bytes = fs::read(from).map_err(|error| Failure::new(format!("{}: {error}", from.display())))?;
                    (REGULAR | mode, &bytes)
                }
            };
            record(&mut out, inode + 1, mode, path, content).map_err(failed)?;
        }
        record(&mut out, 0, 0, "TRAILER!!!", &[]).and_then(|()| out.flush()).map_err(failed)
    }
}

/// Writes one record of the archive.
fn record(out: &mut impl Write, inode: usize, mode: u32, path: &str, content: &[u8]) -> io::Result<()> {
    let size = u32::try_from(content.len()).map_err(|_| io::Error::other(format!("{path} is larger than 4 GiB")))?;
    // The console is the character device 5, 1.
    let (major, minor) = if mode == CHARACTER_DEVICE { (5, 1) } else { (0, 0) };
    write!(out, "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}{0:08x}{0:08x}", 0, 1)?;
    write!(out, "{major:08x}{minor:08x}{:08x}{:08x}{path}\0", path.len() + 1, 0)?;
    // The header has 110 bytes. Header, path and NUL are padded to a multiple of 4.
    const HEADER: usize = 110;
    out.write_all(padding(HEADER + path.len() + 1))?;
    out.write_all(content)?;
    out.write_all(padding(content.len()))
}

/// Returns the zeros that pad `len` to a multiple of 4.
fn padding(len: usize) -> &'static [u8] {
    &[0; 3][..len.wrapping_neg() % 4]
}

/// Returns the shared libraries of all `programs`, with one call of `ldd`.
fn libraries(programs: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let output = Command::new("ldd")
        .args(programs)
        .output()
        .map_err(|error| Failure::new(format!("ldd cannot be started: {error}")))?;
    // A bad status only says that one of the programs is static.
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(missing) = text.lines().find(|line| line.contains("=> not found")) {
        return Err(Failure::new(format!("a library of the programs for the machine is missing: {}", missing.trim())));
    }
    let mut libraries: Vec<PathBuf> = text.lines().filter_map(library).map(PathBuf::from).collect();
    libraries.sort();
    libraries.dedup();
    Ok(libraries)
}

/// Returns the path in a line of `ldd`: `libc.so.6 => /lib/…/libc.so.6 (0x…)` or
/// `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn library(line: &str) -> Option<&str> {
    let (path, _) = line.rsplit_once(" (0x")?;
    let path = path.rsplit_once("=> ").map_or(path, |(_, path)| path).trim();
    path.starts_with('/').then_some(path)
}

/// Returns the path of a copy of `program` without its debug sections, `name` in `folder`. It is
/// copied again only if the program is newer.
pub(crate) fn stripped(program: &Path, folder: &Path, name: &str) -> Result<PathBuf, Failure> {
    let failed = |error: io::Error| Failure::new(format!("{}: {error}", program.display()));
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let copy = folder.join(name);
    let built = changed(program).map_err(failed)?;
    if changed(&copy).is_ok_and(|copied| copied > built) {
        return Ok(copy);
    }
    fs::create_dir_all(folder).map_err(failed)?;
    // Write under another name first, because another run may be reading the old copy.
    let fresh = folder.join(format!("{name}.{}", std::process::id()));
    let status = Command::new("strip")
        .arg("--strip-debug")
        .arg("-o")
        .args([&fresh, program])
        .status()
        .map_err(|error| Failure::new(format!("strip cannot be started: {error}")))?;
    if !status.success() {
        // A script, or an object that strip does not know, is copied unchanged.
        fs::copy(program, &fresh).map_err(failed)?;
    }
    fs::rename(&fresh, &copy).map_err(failed)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_both_kinds_of_lines() {
        assert_eq!(library("\tlibc.so.6 => /lib/libc.so.6 (0x00007f)"), Some("/lib/libc.so.6"));
        assert_eq!(library("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)"), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(library("\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(library("\tnot a dynamic executable"), None);
    }

    #[test]
    fn a_record_is_padded_after_its_path_and_after_its_content() {
        for (path, content) in [("a", &b"12345"[..]), ("ab", b""), ("abc", b"1234"), ("abcd", b"1")] {
            let mut bytes = Vec::new();
            record(&mut bytes, 1, REGULAR, path, content).unwrap();
            assert_eq!(bytes.len() % 4, 0, "{path}");
            assert_eq!(&bytes[54..62], format!("{:08x}", content.len()).as_bytes(), "size");
            assert_eq!(&bytes[94..102], format!("{:08x}", path.len() + 1).as_bytes(), "length of the path");
            assert_eq!(&bytes[110..110 + path.len()], path.as_bytes());
        }
    }

    #[test]
    fn folders_stand_before_what_lies_in_them() {
        let mut image = Image::default();
        image.text("/etc/conf.d/one", "1", 0o644);
        image.text("/bin/sh", "", 0o755);
        let order: Vec<_> = image.entries.keys().map(String::as_str).collect();
        assert_eq!(order, ["bin", "bin/sh", "etc", "etc/conf.d", "etc/conf.d/one"]);
    }
}
