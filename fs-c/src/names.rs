//! Names: attributes, directories, moving and removing.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::sync::{Mutex, PoisonError};

use bmi::Handle;
use bmi::threading::AnyThread;
use fs_client::{DirEntry, FsPath, Kind, ReadDir, RemoveKind, Stat};

use crate::boundary::{Out, Outcome, call, call_int, given, invalid, path};
use crate::client::pvfs_client;
use crate::queue::{pvfs_async, run};

/// A file.
pub const PVFS_FILE: u32 = 1;
/// A directory.
pub const PVFS_DIR: u32 = 2;
/// A symbolic link.
pub const PVFS_SYMLINK: u32 = 3;

fn number(kind: Kind) -> u32 {
    match kind {
        Kind::File => PVFS_FILE,
        Kind::Dir => PVFS_DIR,
        Kind::Symlink => PVFS_SYMLINK,
    }
}

/// Attributes. Times are in nanoseconds since 1970.
#[repr(C)]
pub struct pvfs_attr {
    /// A number that no other object of the cluster has or will have.
    pub handle: u64,
    /// The bytes of a file, or the entries of a directory.
    pub size: u64,
    /// `PVFS_FILE`, `PVFS_DIR` or `PVFS_SYMLINK`.
    pub kind: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub nlink: u32,
    /// Number of I/O servers of a file.
    pub servers: u32,
    /// Strip size of a file, in bytes.
    pub strip_size: u64,
    /// Last access.
    pub atime_ns: u64,
    /// Last change of the content.
    pub mtime_ns: u64,
    /// Last change of the attributes.
    pub ctime_ns: u64,
}

impl From<Stat> for pvfs_attr {
    fn from(stat: Stat) -> pvfs_attr {
        let attr = stat.attr;
        pvfs_attr {
            handle: stat.handle.raw(),
            size: attr.size,
            kind: number(attr.kind),
            mode: attr.mode,
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink,
            servers: stat.datafiles.len() as u32,
            strip_size: stat.distribution.map_or(0, |distribution| distribution.strip_size()),
            atime_ns: attr.atime_ns,
            mtime_ns: attr.mtime_ns,
            ctime_ns: attr.ctime_ns,
        }
    }
}

/// An entry of a directory.
#[repr(C)]
pub struct pvfs_entry {
    /// As in `pvfs_attr`.
    pub handle: u64,
    /// `PVFS_FILE`, `PVFS_DIR` or `PVFS_SYMLINK`.
    pub kind: u32,
    /// The name, with a NUL at its end.
    pub name: [c_char; 256],
}

impl From<DirEntry> for pvfs_entry {
    fn from(entry: DirEntry) -> pvfs_entry {
        let mut name = [0; 256];
        // A name has at most 255 bytes. The last one stays NUL whatever a server sends.
        name[..255].iter_mut().zip(entry.name.iter()).for_each(|(to, from)| *to = *from as c_char);
        pvfs_entry { handle: entry.handle.raw(), kind: number(entry.handle.kind()), name }
    }
}

/// Returns the attributes of a path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_stat(
    client: Option<&pvfs_client>,
    path: *const c_char,
    attr: *mut pvfs_attr,
    later: Option<&pvfs_async>,
) -> c_int {
    call_int(|| {
        // SAFETY: C's promise, here and below.
        let (path, attr) = unsafe { (self::path(path)?, Out::new(attr, "attr")?) };
        let stat = async move |client: fs_client::SharedClient| {
            attr.set(client.stat(&path).await?.into());
            Ok(0)
        };
        // SAFETY: as above.
        unsafe { with(client, later, stat) }
    })
}

/// Creates a directory. Its parent must exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_mkdir(
    client: Option<&pvfs_client>,
    path: *const c_char,
    later: Option<&pvfs_async>,
) -> c_int {
    call_int(|| {
        // SAFETY: C's promise, here and below.
        let path = unsafe { self::path(path) }?;
        // SAFETY: as above.
        unsafe { with(client, later, async move |client| Ok(client.mkdir(&path).await.map(|_| 0)?)) }
    })
}

/// Removes a name: `kind` is `PVFS_FILE` for anything but a directory, `PVFS_DIR` for an empty
/// directory, or 0 for either.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_remove(
    client: Option<&pvfs_client>,
    path: *const c_char,
    kind: u32,
    later: Option<&pvfs_async>,
) -> c_int {
    call_int(|| {
        // SAFETY: C's promise, here and below.
        let path = unsafe { self::path(path) }?;
        let kind = match kind {
            PVFS_FILE => RemoveKind::File,
            PVFS_DIR => RemoveKind::Dir,
            0 => RemoveKind::Any,
            other => return Err(invalid(format!("kind is {other}"))),
        };
        // SAFETY: as above.
        unsafe { with(client, later, async move |client| Ok(client.remove(&path, kind).await.map(|()| 0)?)) }
    })
}

/// Moves a name. A file or an empty directory at `to` is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_rename(
    client: Option<&pvfs_client>,
    from: *const c_char,
    to: *const c_char,
    later: Option<&pvfs_async>,
) -> c_int {
    call_int(|| {
        // SAFETY: C's promise, here and below.
        let (from, to) = unsafe { (path(from)?, path(to)?) };
        // SAFETY: as above.
        unsafe { with(client, later, async move |client| Ok(client.rename(&from, &to).await.map(|()| 0)?)) }
    })
}

/// Waits for an operation of a client, or posts it.
///
/// # Safety
/// As [`run`].
unsafe fn with<F: Future<Output = Outcome<i64>> + Send + 'static>(
    client: Option<&pvfs_client>,
    later: Option<&pvfs_async>,
    operation: impl FnOnce(fs_client::SharedClient) -> F,
) -> Outcome<i64> {
    let pvfs_client { handle, client } = given(client, "client")?;
    // SAFETY: the caller's promise.
    unsafe { run(handle, later, operation(client.clone())) }
}

/// A directory that is being listed.
pub struct pvfs_dir {
    handle: Handle,
    list: Mutex<(ReadDir<AnyThread>, VecDeque<DirEntry>)>,
}

/// Begins to list a directory. Waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_opendir(
    client: Option<&pvfs_client>,
    path: *const c_char,
    dir: *mut *mut pvfs_dir,
) -> c_int {
    call_int(|| {
        // SAFETY: C's promise.
        let (path, place): (FsPath, _) = unsafe { (self::path(path)?, Out::new(dir, "dir")?) };
        let pvfs_client { handle, client } = given(client, "client")?;
        let list = Mutex::new((handle.block_on(client.read_dir(&path))?, VecDeque::new()));
        place.set(Box::into_raw(Box::new(pvfs_dir { handle: handle.clone(), list })));
        Ok(0)
    })
}

/// Takes the next entry, in the order of the names. Returns 1, or 0 at the end. Waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_readdir(dir: Option<&pvfs_dir>, entry: *mut pvfs_entry) -> c_int {
    call_int(|| {
        // SAFETY: C's promise.
        let (dir, place) = (given(dir, "dir")?, unsafe { Out::new(entry, "entry") }?);
        let mut list = dir.list.lock().unwrap_or_else(PoisonError::into_inner);
        let (pages, entries) = &mut *list;
        if entries.is_empty() {
            entries.extend(dir.handle.block_on(pages.next_page())?.unwrap_or_default());
        }
        let Some(entry) = entries.pop_front() else { return Ok(0) };
        place.set(entry.into());
        Ok(1)
    })
}

/// Ends a listing. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn pvfs_closedir(dir: Option<Box<pvfs_dir>>) {
    call(|| {
        drop(dir);
        Ok(0)
    });
}

versioned!(pvfs_stat, pvfs_mkdir, pvfs_remove, pvfs_rename, pvfs_opendir, pvfs_readdir, pvfs_closedir);
