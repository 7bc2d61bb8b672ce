//! Where the file system is mounted: mounting, unmounting, what the system tells about a mount.
//!
//! **Invariant.** Only a mount of this kind ([`TYPE`]) is ever detached, and before a new one is
//! made only if the process that served it is gone.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::Builder;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getgid, getuid};

use super::device::Device;
use super::settings::MOST_DATA;

/// The type of the file system, as the system shows it.
const TYPE: &str = "fuse.pvfs";
/// How long a mount is asked whether its process is there. One whose process is gone answers at
/// once.
const STALE_ANSWERS_IN: Duration = Duration::from_secs(1);

/// A mount of this kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) at: PathBuf,
    /// The number of its device: `0:54`.
    pub(crate) device: String,
    /// The manager.
    pub(crate) source: String,
}

/// Returns the path without links. The last name is kept as it is, because a mount whose process is
/// gone cannot be looked at.
fn resolved(dir: &Path) -> io::Result<PathBuf> {
    match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(parent.canonicalize()?.join(name))
        }
        _ => dir.canonicalize(),
    }
}

/// Returns the last mount at `dir`, if it is one of this kind.
pub(crate) fn mounted_at(dir: &Path) -> io::Result<Option<Mounted>> {
    let at = resolved(dir)?;
    let table = std::fs::read("/proc/self/mountinfo")?;
    let mut mounts = table.split(|byte| *byte == b'\n').filter_map(parse);
    Ok(mounts.rfind(|(mounted, _)| mounted.at == at).filter(|(_, kind)| kind == TYPE).map(|(mounted, _)| mounted))
}

/// Reads a line of mountinfo, in proc(5). Returns the mount and its type.
fn parse(line: &[u8]) -> Option<(Mounted, String)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    let at = PathBuf::from(std::ffi::OsString::from_vec(unescaped(fields.nth(1)?)));
    fields.find(|field| *field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescaped(fields.next()?)).into_owned();
    Some((Mounted { at, device, source }, kind))
}

/// Replaces `\040` and the like, in octal digits, by the byte.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

/// Returns true if the process that served the mount is gone.
fn is_stale(at: &Path) -> io::Result<bool> {
    let (tell, told) = mpsc::channel();
    let at = at.to_owned();
    // The process may be there, and its server not: then nobody answers.
    Builder::new().name("stale".to_owned()).spawn(move || tell.send(rustix::fs::statfs(&at).err()))?;
    Ok(told.recv_timeout(STALE_ANSWERS_IN).is_ok_and(|answer| answer == Some(Errno::NOTCONN)))
}

/// Mounts the file system whose requests are read from `device`. `options` are those of the kernel.
///
/// # Errors
/// `AlreadyExists` if it is mounted there, and the process that serves it is alive; those of
/// mount(2).
pub(crate) fn mount(
    device: &OwnedFd,
    source: &str,
    dir: &Path,
    flags: MountFlags,
    options: &str,
) -> io::Result<Mounted> {
    if let Some(Mounted { at, source, .. }) = mounted_at(dir)? {
        if !is_stale(&at)? {
            let text = format!("{} is mounted there already; pvfs umount {} ends that", source, at.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        unmount(&at, true)?;
    }
    let number = Device::number(device);
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let data = format!(
        "fd={number},rootmode=40000,user_id={uid},group_id={gid},default_permissions,max_read={MOST_DATA}{options}"
    );
    let data = CString::new(data)?;
    rustix::mount::mount(source, resolved(dir)?.as_os_str().as_bytes(), TYPE, flags, Some(data.as_c_str()))?;
    mounted_at(dir)?.ok_or_else(|| io::Error::other("it was unmounted at once"))
}

/// Unmounts what is at `dir`. If `detach`, processes that use it may go on to do so, and it ends
/// with the last.
pub(crate) fn unmount(dir: &Path, detach: bool) -> Result<(), Errno> {
    let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    rustix::mount::unmount(dir.as_os_str().as_bytes(), flags | UnmountFlags::NOFOLLOW)
}

/// Has the kernel write back what it has kept of all files of the mount at `dir`. Some versions
/// wait until that is done, others only begin it.
pub(crate) fn write_back(dir: &Path) -> Result<(), Errno> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::syncfs(rustix::fs::open(dir, how, Mode::empty())?)
}

/// Has the kernel read ahead as much as one read may have.
pub(crate) fn raise_read_ahead(mounted: &Mounted) -> io::Result<()> {
    std::fs::write(format!("/sys/class/bdi/{}/read_ahead_kb", mounted.device), (MOST_DATA >> 10).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_system_is_read() {
        let line = br"36 35 0:54 / /mnt/a\040b\134 rw,noatime shared:1 - fuse.pvfs tcp://host:7000 rw,user_id=0";
        let (mounted, kind) = parse(line).unwrap();
        let expected =
            Mounted { at: r"/mnt/a b\".into(), device: "0:54".to_owned(), source: "tcp://host:7000".to_owned() };
        assert_eq!((mounted, kind.as_str()), (expected, TYPE));
        assert!(parse(b"").is_none() && parse(b"36 35 0:54 / /mnt rw").is_none());
    }

    #[test]
    fn nothing_of_this_kind_is_mounted_at_the_root() {
        assert_eq!(mounted_at(Path::new("/")).unwrap(), None);
        assert_eq!(mounted_at(Path::new("/proc")).unwrap(), None);
    }
}
