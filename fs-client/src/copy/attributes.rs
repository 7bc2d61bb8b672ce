//! The attributes that copies keep, and how they are set on local files.

use std::fs::{File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown, lchown};
use std::path::Path;
use std::time::{Duration, SystemTime};

use bmi::threading::Threading;
use fs_proto::{Attr, Entry, ErrorCode, SetAttr};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT, utimensat};

use crate::client::Client;
use crate::error::Error;
use crate::path::FsPath;

/// The set-user and set-group bits.
const SET_ID: u32 = 0o6000;

/// Returns the attributes of something of the cluster.
pub(super) fn of_remote(attr: &Attr) -> SetAttr {
    let Attr { mode, uid, gid, atime_ns, mtime_ns, .. } = *attr;
    let (atime_ns, mtime_ns) = (Some(atime_ns), Some(mtime_ns));
    SetAttr { mode: Some(mode), uid: Some(uid), gid: Some(gid), atime_ns, mtime_ns }
}

/// Returns the attributes of something local. Times before 1970 count as 1970.
pub(super) fn of_local(metadata: &Metadata) -> SetAttr {
    let ns = |seconds: i64, ns: i64| {
        let ns = i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Some(u64::try_from(ns.max(0)).unwrap_or(u64::MAX))
    };
    SetAttr {
        mode: Some(metadata.mode() & 0o7777),
        uid: Some(metadata.uid()),
        gid: Some(metadata.gid()),
        atime_ns: ns(metadata.atime(), metadata.atime_nsec()),
        mtime_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
    }
}

/// Sets attributes of a local file or directory. An owner that the system refuses is left out, and
/// so are the bits that would give the rights of another one.
pub(super) fn set(file: &File, set: &SetAttr) -> io::Result<()> {
    let is_owned = owned(set, |uid, gid| fchown(file, uid, gid))?;
    if let Some(mode) = set.mode {
        file.set_permissions(Permissions::from_mode(if is_owned { mode } else { mode & !SET_ID }))?;
    }
    let time = |ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(ns);
    let times = FileTimes::new();
    let times = set.atime_ns.map_or(times, |ns| times.set_accessed(time(ns)));
    let times = set.mtime_ns.map_or(times, |ns| times.set_modified(time(ns)));
    if set.atime_ns.or(set.mtime_ns).is_some() { file.set_times(times) } else { Ok(()) }
}

/// Sets owner and times of a local symbolic link.
pub(super) fn set_link(path: &Path, set: &SetAttr) -> io::Result<()> {
    owned(set, |uid, gid| lchown(path, uid, gid))?;
    let time = |ns: Option<u64>| match ns.map(Duration::from_nanos) {
        Some(time) => Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() },
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
    };
    let times = Timestamps { last_access: time(set.atime_ns), last_modification: time(set.mtime_ns) };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Sets the owner by `chown`, or else only the group. Returns false if the system refuses that.
fn owned(set: &SetAttr, chown: impl Fn(Option<u32>, Option<u32>) -> io::Result<()>) -> io::Result<bool> {
    match chown(set.uid, set.gid) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            // Users may give a file to another group that they are in.
            let _ = chown(None, set.gid);
            Ok(false)
        }
        result => result.map(|()| true),
    }
}
/// Sets the attributes of what was copied into the cluster. Only root gives things to others: an
/// owner that is refused is left out, and the set-id bits too.
pub(super) async fn set_copied<S: Threading>(client: &Client<S>, path: &FsPath, set: SetAttr) -> Result<Entry, Error> {
    match client.setattr(path, set).await {
        Err(error) if error.code() == ErrorCode::Permission && (set.uid.is_some() || set.gid.is_some()) => {
            let mode = set.mode.map(|mode| mode & 0o1777);
            client.setattr(path, SetAttr { uid: None, gid: None, mode, ..set }).await
        }
        other => other,
    }
}
