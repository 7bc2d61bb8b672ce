//! The label of a store: whose it is, and how far it has come. In a data directory the label is the
//! file `identity.toml`.
//!
//! **Why.** A server that is started with the wrong directory looks like one that works. The wrong
//! directory could be another server's, the empty mount point of a disk that is not mounted, or an
//! old copy. So a directory says to which cluster and server it belongs, which store it is, and how
//! often it was started. The manager and the I/O servers compare this ([`crate::members`]).
//!
//! **Invariants**
//! 1. A directory without a label is used only if it is empty, and only after the manager has
//!    agreed (an I/O server) or `pvfsd format` was run (the manager).
//! 2. A directory with a label is used only for the role in it, by one server at a time.
//! 3. A label is replaced atomically and durably. Its store and cluster never change.
//! 4. A directory that is refused is left as it was.
//!
//! **Layout**
//!
//! ```text
//!   <dir>                 locked by the server that uses it (`flock` on the directory)
//!   <dir>/identity.toml   format, cluster, role, index, store; of an I/O server also how often it was
//!                         started, the starts that it has offered and that were confirmed, the newest
//!                         start of the manager that has accepted it, and its highest handle
//!   <dir>/cache.toml      of an I/O server: which cache it uses (`cache_note`)
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_proto::{ClusterId, DatafileHandle, ErrorCode, FsError, Role, Start, StoreId};
use rustix::fs::{Mode, OFlags, RenameFlags, openat, renameat, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::durable_dir;
use super::file::no_descriptor;
use super::lock::DirLock;
use super::steps::{self, step};

/// The format of data directories. It rises with every change of what is in one.
///
/// | format | what was new in it | now |
/// |---|---|---|
/// | 1 | | refused |
/// | 2 | labels with a cluster and starts; datafiles in 256 directories | refused for the manager |
/// | 3 | the manager's database keeps the size before a truncation; I/O servers note their caches | |
///
/// The metadata of an older manager comes over in a backup. Nothing in the directory of an I/O
/// server of format 2 has changed, so it is used as it is: its next label has the new number. The
/// cache that its killed server has left is refused, because nothing says whether it is the last.
pub(crate) const FORMAT: u32 = 3;
/// The oldest format of the directory of an I/O server that is used.
const OLDEST_OF_IOD: u32 = 2;
pub(crate) const IDENTITY: &str = "identity.toml";
/// Names that are ignored when checking for an empty directory: what a new file system has in its
/// root, and the file for the next label.
const NOTHING: [&str; 2] = ["lost+found", NEW];
/// The name of a label while it is written, and of the file that is kept for the next one.
const NEW: &str = "identity.new";
/// Size of a label's file, in bytes. A label takes about half of it.
const LABEL_BYTES: usize = 1024;

/// The label of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// The server that it belongs to.
    pub role: Role,
    /// The store.
    pub store: StoreId,
    /// How often the store was started. Not used for the manager, whose database counts.
    pub epoch: u64,
    /// The last start that an I/O server has offered to the manager.
    pub offered: Option<Start>,
    /// The last start of which an I/O server knows that the manager has recorded it.
    pub confirmed: Option<Start>,
    /// The last start of the manager that has accepted an I/O server's store.
    pub manager: Option<Start>,
    /// The highest handle of a datafile that an I/O server's store has seen.
    pub highest: DatafileHandle,
}

impl Label {
    /// Creates the label of a new store.
    pub fn new(cluster: ClusterId, role: Role, store: StoreId) -> Label {
        let (offered, confirmed, manager) = (None, None, None);
        Label { cluster, role, store, epoch: 0, offered, confirmed, manager, highest: DatafileHandle(0) }
    }
}

/// The contents of the identity file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityFile {
    format: u32,
    #[serde(default)]
    cluster: String,
    role: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    store: String,
    #[serde(default)]
    epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    offered: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    manager: Option<String>,
    #[serde(default)]
    highest: String,
}

impl IdentityFile {
    fn of(label: &Label) -> IdentityFile {
        let (role, index) = match label.role {
            Role::Manager => ("manager", None),
            Role::Iod(index) => ("iod", Some(index)),
        };
        IdentityFile {
            format: FORMAT,
            cluster: label.cluster.to_string(),
            role: role.to_owned(),
            index,
            store: label.store.to_string(),
            epoch: label.epoch,
            offered: label.offered.map(|start| start.to_string()),
            confirmed: label.confirmed.map(|start| start.to_string()),
            manager: label.manager.map(|start| start.to_string()),
            highest: format!("{:016x}", label.highest.0),
        }
    }

    fn label(&self) -> Result<Label, String> {
        let oldest = if self.role == "iod" { OLDEST_OF_IOD } else { FORMAT };
        match self.format {
            format if (oldest..=FORMAT).contains(&format) => {}
            format if format < FORMAT => {
                return Err(format!(
                    "the directory is of format {format}, and this program uses format {FORMAT}; write a backup with \
                     the program that made it (`pvfsd backup`), and restore that with this one (`pvfsd restore`)"
                ));
            }
            format => {
                return Err(format!(
                    "the directory is of format {format}, of a newer program; this one uses format {FORMAT}"
                ));
            }
        }
        let role = match (self.role.as_str(), self.index) {
            ("manager", None) => Role::Manager,
            ("iod", Some(index)) => Role::Iod(index),
            _ => return Err(format!("{:?} is not the role of a server", self.role)),
        };
        let start = |text: &Option<String>| text.as_deref().map(str::parse::<Start>).transpose();
        let highest = u64::from_str_radix(&self.highest, 16).map_err(|_| format!("highest: {:?}", self.highest))?;
        Ok(Label {
            cluster: self.cluster.parse()?,
            role,
            store: self.store.parse()?,
            epoch: self.epoch,
            offered: start(&self.offered)?,
            confirmed: start(&self.confirmed)?,
            manager: start(&self.manager)?,
            highest: DatafileHandle(highest),
        })
    }
}

/// Creates an error that names a data directory.
pub(crate) fn trouble(dir: &Path, error: &io::Error) -> FsError {
    let code = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorCode::Permission,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::NoSpace,
        io::ErrorKind::WouldBlock => ErrorCode::Busy,
        _ => ErrorCode::Io,
    };
    let text = match (code, no_descriptor(error)) {
        (_, Some(missing)) => missing.to_owned(),
        (ErrorCode::Busy, _) => "another server is at work on it".to_owned(),
        _ => error.to_string(),
    };
    FsError::new(code, format!("data directory {}: {text}", dir.display()))
}

/// Creates an error for a directory that cannot be used.
fn refusal(dir: &Path, why: impl std::fmt::Display) -> FsError {
    FsError::new(ErrorCode::Invalid, format!("data directory {}: {why}", dir.display()))
}

/// A data directory that this process may use. The lock lasts until it is dropped, or longer
/// ([`Directory::lock`]).
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    label: Option<Label>,
    lock: Option<Arc<DirLock>>,
    /// True if it was created here and has no label yet.
    made: bool,
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.made {
            // Only an empty directory can be removed.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

impl Directory {
    /// Opens a directory for a server, and locks it. A directory that is empty or does not exist
    /// has no label, and is not changed.
    ///
    /// # Errors
    /// `Busy` if another server uses it; `Invalid` if it is not this server's; `Io`, `Permission`.
    /// Each names the directory.
    pub(crate) fn open(path: &Path, role: Role) -> Result<Directory, FsError> {
        let fail = |error: io::Error| trouble(path, &error);
        if !path.try_exists().map_err(fail)? {
            return Ok(Directory { path: path.to_owned(), label: None, lock: None, made: false });
        }
        let lock = Arc::new(DirLock::take(path).map_err(fail)?);
        let label = match read_label(path).map_err(fail)? {
            Some(label) => Some(label.map_err(|why| refusal(path, why))?),
            None => {
                refuse_contents(path)?;
                None
            }
        };
        if let Some(label) = &label
            && label.role != role
        {
            let (is, not) = (label.role, role);
            let text = format!(
                "it belongs to {is} (cluster {}), not to {not}; see `storage` in the configuration",
                label.cluster
            );
            return Err(refusal(path, text));
        }
        Ok(Directory { path: path.to_owned(), label, lock: Some(lock), made: false })
    }

    /// Returns the label; `None` if the directory is empty or does not exist.
    pub(crate) fn label(&self) -> Option<&Label> {
        self.label.as_ref()
    }

    /// Returns true if the directory exists.
    pub(crate) fn exists(&self) -> bool {
        self.lock.is_some()
    }

    /// Returns the lock on the directory, if it exists. It lasts until the last handle is dropped.
    pub(crate) fn lock(&self) -> Option<Arc<DirLock>> {
        self.lock.clone()
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory if it does not exist, and locks it. A directory that was created and
    /// gets no label is removed again when this is dropped.
    ///
    /// # Errors
    /// As [`Directory::open`], and `NoSpace`.
    pub(crate) fn claim(&mut self) -> Result<(), FsError> {
        let fail = |error: io::Error| trouble(&self.path, &error);
        if self.lock.is_none() {
            durable_dir(&self.path).map_err(fail)?;
            self.made = true;
            self.lock = Some(Arc::new(DirLock::take(&self.path).map_err(fail)?));
            refuse_contents(&self.path)?;
        }
        Ok(())
    }

    /// Claims the directory, and writes its first label.
    ///
    /// # Errors
    /// As [`Directory::claim`].
    pub(crate) fn establish(&mut self, label: &Label) -> Result<(), FsError> {
        self.claim()?;
        let written = File::open(&self.path).and_then(|dir| write_label(&dir, label));
        written.map_err(|error| trouble(&self.path, &error))?;
        (self.label, self.made) = (Some(*label), false);
        Ok(())
    }
}

/// Refuses a directory without a label that is not empty.
fn refuse_contents(path: &Path) -> Result<(), FsError> {
    let others = others(path).map_err(|error| trouble(path, &error))?;
    let Some(first) = others.first() else { return Ok(()) };
    let more = if others.len() > 1 { " and more" } else { "" };
    Err(refusal(path, format!("it has {first}{more} in it, but no {IDENTITY}: it is no data directory of a server")))
}

/// Reads the label of a directory. Returns `None` if it has none, and the reason if it is not
/// valid.
pub(crate) fn read_label(dir: &Path) -> io::Result<Option<Result<Label, String>>> {
    let text = match fs::read_to_string(dir.join(IDENTITY)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => result?,
    };
    let parsed: Result<IdentityFile, _> = toml::from_str(&text);
    let label = parsed.map_err(|error| error.message().replace('\n', " ")).and_then(|file| file.label());
    Ok(Some(label.map_err(|why| format!("{IDENTITY}: {why}"))))
}

/// Writes the label of a directory atomically and durably. The directory is given as an open file,
/// so that it is the right one even if its path leads elsewhere by now.
pub(crate) fn write_label(dir: &File, label: &Label) -> io::Result<()> {
    let text = toml::to_string(&IdentityFile::of(label)).map_err(io::Error::other)?;
    let what = "# Which store this directory is. Written by pvfsd; do not edit or copy it.\n";
    replace_file(dir, IDENTITY, NEW, &format!("{what}{text}"))
}

/// Replaces the file `name`, atomically and durably, by `spare`, which is kept for the next time.
pub(super) fn replace_file(dir: &File, name: &str, spare: &str, text: &str) -> io::Result<()> {
    write_spare(dir, spare, text)?;
    let exchanged = step(|| Ok(renameat_with(dir, spare, dir, name, RenameFlags::EXCHANGE)?));
    match exchanged.as_ref().map_err(Errno::from_io_error) {
        Ok(()) => {}
        // The first label, or a file system that cannot exchange names.
        Err(Some(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)) => {
            step(|| Ok(renameat(dir, spare, dir, name)?))?;
            write_spare(dir, spare, text)?;
        }
        Err(_) => return exchanged,
    }
    steps::sync_all(dir)
}

/// Writes the file that becomes the label next. It has its full size from the beginning, so that a
/// label can also be written when the disk is full.
fn write_spare(dir: &File, spare: &str, text: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let file = step(|| Ok(File::from(openat(dir, spare, flags, Mode::from(0o644))?)))?;
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len().max(LABEL_BYTES), b'\n');
    steps::write_all_at(&file, &bytes, 0)?;
    step(|| file.set_len(bytes.len() as u64))?;
    steps::sync_all(&file)
}

/// Returns the names in a directory, without those that do not count.
pub(crate) fn others(dir: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<String>>>()?;
    names.retain(|name| !NOTHING.contains(&name.as_str()));
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(role: Role) -> Label {
        let start = |epoch| Some(Start { epoch, instance: 0xabc });
        let (offered, confirmed, manager) = (start(5), start(4), start(3));
        Label {
            epoch: 5,
            offered,
            confirmed,
            manager,
            highest: DatafileHandle(0x77),
            ..Label::new(ClusterId(9), role, StoreId(7))
        }
    }

    fn names(dir: &Path) -> Vec<String> {
        others(dir).unwrap()
    }

    #[test]
    fn a_directory_is_one_servers() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("made/here");
        let mut blank = Directory::open(&dir, Role::Iod(2)).unwrap();
        assert!(blank.label().is_none() && !blank.exists() && !dir.exists(), "asking changes nothing");
        blank.establish(&label(Role::Iod(2))).unwrap();
        let busy = Directory::open(&dir, Role::Iod(2)).unwrap_err();
        assert!(busy.code == ErrorCode::Busy && busy.detail.contains("another server"), "{busy}");
        drop(blank);
        let again = Directory::open(&dir, Role::Iod(2)).unwrap();
        assert_eq!(again.label(), Some(&label(Role::Iod(2))));
        drop(again);
        for (role, name) in [(Role::Iod(1), "iod 1"), (Role::Manager, "the manager")] {
            let other = Directory::open(&dir, role).unwrap_err();
            let both = other.detail.contains("iod 2") && other.detail.contains(name);
            assert!(other.code == ErrorCode::Invalid && both, "{other}");
        }
    }

    /// Replays a bug: on a full disk no label could be written, so the server could not start, and
    /// nothing could be removed. A label takes the place of a file that is there already.
    #[test]
    fn a_label_needs_no_more_space_than_the_first_one() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = File::open(temporary.path()).unwrap();
        let inode = |name: &str| {
            let file = fs::metadata(temporary.path().join(name)).unwrap();
            (std::os::unix::fs::MetadataExt::ino(&file), file.len())
        };
        write_label(&dir, &label(Role::Iod(1))).unwrap();
        let (first, spare) = (inode(IDENTITY), inode(NEW));
        assert_eq!((first.1, spare.1), (LABEL_BYTES as u64, LABEL_BYTES as u64));
        for epoch in [6, 7, 8] {
            let newer = Label { epoch, ..label(Role::Iod(1)) };
            write_label(&dir, &newer).unwrap();
            assert_eq!(read_label(temporary.path()).unwrap(), Some(Ok(newer)));
            let now = [inode(IDENTITY), inode(NEW)];
            assert!(now == [first, spare] || now == [spare, first], "no other file");
        }
    }

    /// Replays a bug: a directory that was refused had a file `lock` in it afterwards.
    #[test]
    fn a_directory_of_other_things_is_refused_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        assert!(Directory::open(dir.path(), Role::Manager).unwrap().label().is_none(), "a new file system is empty");
        fs::write(dir.path().join("metadata.redb"), "").unwrap();
        let error = Directory::open(dir.path(), Role::Manager).unwrap_err();
        assert!(error.code == ErrorCode::Invalid && error.detail.contains("metadata.redb"), "{error}");
        assert_eq!(names(dir.path()), ["metadata.redb"]);
    }

    #[test]
    fn a_label_that_cannot_be_read_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let digits = "0".repeat(31);
        for (text, why) in [
            ("".to_owned(), "missing field"),
            ("nonsense".to_owned(), "identity.toml"),
            ("format = 1\nrole = \"iod\"\nindex = 0\nstore = \"1\"\n".to_owned(), "format 1"),
            ("format = 1\nrole = \"manager\"\nstore = \"1\"\n".to_owned(), "pvfsd restore"),
            ("format = 2\nrole = \"manager\"\nstore = \"1\"\n".to_owned(), "pvfsd restore"),
            ("format = 4\nrole = \"iod\"\nindex = 0\nstore = \"1\"\n".to_owned(), "newer program"),
            (
                format!(
                    "format = 2\ncluster = \"{digits}1\"\nrole = \"iod\"\nindex = 0\nstore = \"x\"\nhighest = \"0\"\n"
                ),
                "32 hex",
            ),
            (
                format!(
                    "format = {FORMAT}\ncluster = \"{digits}1\"\nrole = \"x\"\nstore = \"{digits}1\"\nhighest = \"0\"\n"
                ),
                "role",
            ),
        ] {
            fs::write(dir.path().join(IDENTITY), &text).unwrap();
            let error = Directory::open(dir.path(), Role::Iod(0)).unwrap_err();
            assert!(error.detail.contains(why) && !error.detail.contains('\n'), "{error}");
            assert_eq!(fs::read_to_string(dir.path().join(IDENTITY)).unwrap(), text);
        }
    }
}
