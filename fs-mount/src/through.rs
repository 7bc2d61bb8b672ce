//! A directory of this machine, served through the same protocol code and nothing else. `pvfs bench
//! mount` measures it beside a mount: what both take is the kernel's and `fuse`'s, and the rest is
//! that of the client library and the servers.
//!
//! **Invariants**
//! 1. The kernel may keep as much as it may of a mount ([`times`]). So it asks as often.
//! 2. Each request has a task, as in a mount. What it does blocks its thread: the directory is
//!    meant to be in memory.
//! 3. Only what the benchmark does is here. Names are not moved, so a node is a path.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, DirEntryExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bmi::Memory;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, utimensat};
use rustix::io::Errno;

use crate::fuse::{Args, Attr, Buffers, Coherence, Device, Listing, Reply, Request, flags, op};
use crate::served::{O_TRUNC, O_WRITES, times};

/// The node of the root.
const ROOT: u64 = 1;

/// What is open: a file, or the names and nodes of a directory.
enum Open {
    File(Arc<File>),
    Dir(Arc<Vec<(Vec<u8>, u64)>>),
}

/// A directory that is served.
pub(crate) struct Through {
    buffers: Buffers,
    /// The path of each node, and how often the kernel was told of it.
    nodes: Mutex<BTreeMap<u64, (PathBuf, u64)>>,
    open: Mutex<BTreeMap<u64, Open>>,
    next: AtomicU64,
}

/// Serves a directory until it is unmounted.
///
/// # Errors
/// Those of the device.
pub(crate) async fn serve(device: Device, source: PathBuf) -> io::Result<()> {
    let (device, through) = (Arc::new(device), Arc::new(Through::new(source)));
    while let Some(request) = device.next(&through.buffers).await? {
        match request.op {
            op::INIT => device.begin(&request, Coherence::Open)?,
            op::FORGET | op::BATCH_FORGET => through.forget(&request)?,
            // Nothing here waits.
            op::INTERRUPT => {}
            _ => {
                let (device, through) = (Arc::clone(&device), Arc::clone(&through));
                tokio::spawn(async move {
                    let unique = request.unique;
                    device.answer(unique, through.serve(request), Some(&through.buffers));
                });
            }
        }
    }
    Ok(())
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn attr_of(node: u64, of: &fs::Metadata) -> Attr {
    let ns = |seconds: i64, part: i64| seconds.max(0) as u64 * 1_000_000_000 + part as u64;
    Attr {
        node,
        mode: of.mode(),
        size: of.size(),
        nlink: of.nlink() as u32,
        uid: of.uid(),
        gid: of.gid(),
        atime_ns: ns(of.atime(), of.atime_nsec()),
        mtime_ns: ns(of.mtime(), of.mtime_nsec()),
        ctime_ns: ns(of.ctime(), of.ctime_nsec()),
    }
}

impl Through {
    fn new(source: PathBuf) -> Through {
        let nodes = Mutex::new(BTreeMap::from([(ROOT, (source, 1))]));
        Through { buffers: Buffers::new(None), nodes, open: Mutex::default(), next: AtomicU64::new(1) }
    }

    fn serve(&self, mut request: Request) -> Result<Reply, Errno> {
        let data = request.data.take();
        let (node, mut args) = (request.node, request.args());
        match request.op {
            op::LOOKUP => self.found(&self.place(node, args.name()?)?),
            op::GETATTR => self.attributes(node),
            op::SETATTR => self.set_attributes(node, args),
            op::MKDIR => {
                let (mode, _, name) = (args.u32()?, args.u32()?, args.name()?);
                let place = self.place(node, name)?;
                fs::DirBuilder::new().mode(mode & 0o7777).create(&place).map_err(errno)?;
                self.found(&place)
            }
            op::UNLINK => fs::remove_file(self.place(node, args.name()?)?).map_err(errno).map(|()| Reply::done()),
            op::RMDIR => fs::remove_dir(self.place(node, args.name()?)?).map_err(errno).map(|()| Reply::done()),
            op::OPEN => {
                let how = args.u32()?;
                let file = opening(how).open(self.path(node)?).map_err(errno)?;
                Ok(Reply::opened(self.keep(Open::File(Arc::new(file))), 0))
            }
            op::CREATE => self.create(node, args),
            op::READ => self.read(args),
            op::WRITE => self.write(args, data.ok_or(Errno::INVAL)?),
            op::FSYNC => self.file(args.u64()?)?.sync_all().map_err(errno).map(|()| Reply::done()),
            op::OPENDIR => self.open_dir(node),
            op::READDIR | op::READDIRPLUS => self.read_dir(node, args, request.op == op::READDIRPLUS),
            op::RELEASE | op::RELEASEDIR => {
                let closed = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&args.u64()?);
                drop(closed);
                Ok(Reply::done())
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn forget(&self, request: &Request) -> Result<(), Errno> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        for (node, count) in request.forgotten()? {
            if let Some(known) = nodes.get_mut(&node).filter(|_| node != ROOT) {
                known.1 = known.1.saturating_sub(count);
                if known.1 == 0 {
                    nodes.remove(&node);
                }
            }
        }
        Ok(())
    }

    fn path(&self, node: u64) -> Result<PathBuf, Errno> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.get(&node).map(|(path, _)| path.clone()).ok_or(Errno::STALE)
    }

    fn place(&self, dir: u64, name: &[u8]) -> Result<PathBuf, Errno> {
        Ok(self.path(dir)?.join(std::ffi::OsStr::from_bytes(name)))
    }

    /// The kernel is told of a node.
    fn learn(&self, path: &Path, of: &fs::Metadata) -> Attr {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.entry(of.ino()).or_insert_with(|| (path.to_owned(), 0)).1 += 1;
        attr_of(of.ino(), of)
    }

    fn found(&self, place: &Path) -> Result<Reply, Errno> {
        let attr = self.learn(place, &fs::symlink_metadata(place).map_err(errno)?);
        Ok(Reply::entry(&attr, times(&attr, false)))
    }

    fn keep(&self, open: Open) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(number, open);
        number
    }

    fn file(&self, number: u64) -> Result<Arc<File>, Errno> {
        match self.open.lock().unwrap_or_else(PoisonError::into_inner).get(&number) {
            Some(Open::File(file)) => Ok(Arc::clone(file)),
            _ => Err(Errno::BADF),
        }
    }

    fn attributes(&self, node: u64) -> Result<Reply, Errno> {
        let attr = attr_of(node, &fs::symlink_metadata(self.path(node)?).map_err(errno)?);
        Ok(Reply::attr(&attr, times(&attr, false)))
    }

    fn set_attributes(&self, node: u64, mut args: Args<'_>) -> Result<Reply, Errno> {
        let path = self.path(node)?;
        let (changed, _, _) = (args.u32()?, args.u32()?, args.u64()?);
        let (size, _, atime, mtime, _) = (args.u64()?, args.u64()?, args.u64()?, args.u64()?, args.u64()?);
        let (atime_part, mtime_part, _, mode) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?);
        let has = |flag: u32| changed & flag != 0;
        if has(flags::SET_SIZE) {
            OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(size)).map_err(errno)?;
        }
        if has(flags::SET_MODE) {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777)).map_err(errno)?;
        }
        let time = |set, now, seconds: u64, part: u32| match (has(now), has(set)) {
            (true, _) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            (false, true) => Timespec { tv_sec: seconds as i64, tv_nsec: part.into() },
            (false, false) => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        };
        let last_access = time(flags::SET_ATIME, flags::SET_ATIME_NOW, atime, atime_part);
        let last_modification = time(flags::SET_MTIME, flags::SET_MTIME_NOW, mtime, mtime_part);
        utimensat(CWD, &path, &Timestamps { last_access, last_modification }, AtFlags::SYMLINK_NOFOLLOW)?;
        self.attributes(node)
    }

    fn create(&self, dir: u64, mut args: Args<'_>) -> Result<Reply, Errno> {
        let (how, mode, _, _, name) = (args.u32()?, args.u32()?, args.u32()?, args.u32()?, args.name()?);
        let place = self.place(dir, name)?;
        let file = opening(how).create(true).mode(mode & 0o7777).open(&place).map_err(errno)?;
        let attr = self.learn(&place, &file.metadata().map_err(errno)?);
        Ok(Reply::created(&attr, times(&attr, false), self.keep(Open::File(Arc::new(file))), 0))
    }

    fn read(&self, mut args: Args<'_>) -> Result<Reply, Errno> {
        let (number, offset, len) = (args.u64()?, args.u64()?, args.u32()? as usize);
        let (file, mut memory) = (self.file(number)?, self.buffers.take()?);
        let bytes = memory.get_mut().and_then(|bytes| bytes.get_mut(..len)).ok_or(Errno::INVAL)?;
        let read = file.read_at(bytes, offset).map_err(errno)?;
        Ok(Reply::Memory(memory, read))
    }

    fn write(&self, mut args: Args<'_>, (mut memory, len): (Memory, usize)) -> Result<Reply, Errno> {
        let (number, offset) = (args.u64()?, args.u64()?);
        let bytes = memory.get_mut().and_then(|bytes| bytes.get(..len)).ok_or(Errno::INVAL)?;
        self.file(number)?.write_all_at(bytes, offset).map_err(errno)?;
        self.buffers.give_back(memory);
        Ok(Reply::written(len as u32))
    }

    fn open_dir(&self, node: u64) -> Result<Reply, Errno> {
        let entries = fs::read_dir(self.path(node)?).map_err(errno)?;
        let named = entries.map(|entry| entry.map(|entry| (entry.file_name().as_bytes().to_vec(), entry.ino())));
        let entries = named.collect::<io::Result<_>>().map_err(errno)?;
        Ok(Reply::opened(self.keep(Open::Dir(Arc::new(entries))), 0))
    }

    /// Lists entries from a place on, without the directory itself and the one above.
    fn read_dir(&self, dir: u64, mut args: Args<'_>, is_plus: bool) -> Result<Reply, Errno> {
        let (number, from, room) = (args.u64()?, args.u64()? as usize, args.u32()?);
        let entries = match self.open.lock().unwrap_or_else(PoisonError::into_inner).get(&number) {
            Some(Open::Dir(entries)) => Arc::clone(entries),
            _ => return Err(Errno::BADF),
        };
        let mut listing = Listing::new(room);
        for ((name, node), next) in entries.iter().skip(from).zip(from as u64 + 1..) {
            let place = self.place(dir, name)?;
            let Ok(of) = fs::symlink_metadata(&place) else { continue };
            let attr = attr_of(*node, &of);
            let is_added = match is_plus {
                true => listing.add_with(name, (*node, of.mode()), Some((&attr, times(&attr, true))), next),
                false => listing.add(name, *node, of.mode(), next),
            };
            match (is_added, is_plus) {
                (true, true) => drop(self.learn(&place, &of)),
                (true, false) => {}
                (false, _) => break,
            }
        }
        Ok(listing.reply())
    }
}

/// Returns how a file is opened. The kernel may read pages of one that a program only writes.
fn opening(how: u32) -> OpenOptions {
    let writes = how & O_WRITES != 0;
    let mut options = OpenOptions::new();
    options.read(true).write(writes).truncate(writes && how & O_TRUNC != 0);
    options
}
