//! A FUSE file system that shows a directory, and in which single operations stall until they are
//! let go. It speaks the kernel's protocol over `/dev/fuse`, only as much of it as a data directory
//! needs.
//!
//! **Source.** fuse(4), `linux/fuse.h`, version 7.31.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};

use rustix::fs::{CWD, RenameFlags, XattrFlags, lgetxattr, lsetxattr, renameat_with, statvfs};
use rustix::io::{FdFlags, fcntl_setfd};

/// An operation, by its number in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op(u32);

impl Op {
    pub(crate) const LOOKUP: Op = Op(1);
    const FORGET: Op = Op(2);
    pub(crate) const GETATTR: Op = Op(3);
    pub(crate) const SETATTR: Op = Op(4);
    const MKDIR: Op = Op(9);
    const UNLINK: Op = Op(10);
    const RENAME: Op = Op(12);
    pub(crate) const OPEN: Op = Op(14);
    pub(crate) const READ: Op = Op(15);
    pub(crate) const WRITE: Op = Op(16);
    pub(crate) const STATFS: Op = Op(17);
    const RELEASE: Op = Op(18);
    pub(crate) const FSYNC: Op = Op(20);
    const SETXATTR: Op = Op(21);
    const GETXATTR: Op = Op(22);
    const FLUSH: Op = Op(25);
    const INIT: Op = Op(26);
    const OPENDIR: Op = Op(27);
    const READDIR: Op = Op(28);
    const RELEASEDIR: Op = Op(29);
    const FSYNCDIR: Op = Op(30);
    pub(crate) const CREATE: Op = Op(35);
    const INTERRUPT: Op = Op(36);
    const BATCH_FORGET: Op = Op(42);
    const RENAME2: Op = Op(45);
}

/// Bytes of the header of a request.
const HEADER: usize = 40;
/// Longest data of a write.
const MAX_WRITE: u32 = 64 << 10;
/// Writes of more than a page.
const BIG_WRITES: u32 = 1 << 5;
/// The kernel keeps nothing of an open file in memory.
const DIRECT_IO: u32 = 1;
/// A change of attributes is one of the length.
const FATTR_SIZE: u32 = 1 << 3;

/// Which operations stall, and those that do.
#[derive(Default)]
struct Gate {
    stalls: Vec<Op>,
    waiting: Vec<Call>,
}

/// The files, by their inodes. That of the root is 1.
#[derive(Default)]
struct Nodes {
    paths: Vec<PathBuf>,
    known: BTreeMap<PathBuf, u64>,
}

impl Nodes {
    fn find(&mut self, path: &Path) -> u64 {
        if let Some(inode) = self.known.get(path) {
            return *inode;
        }
        self.paths.push(path.to_owned());
        let inode = self.paths.len() as u64;
        self.known.insert(path.to_owned(), inode);
        inode
    }
}

/// A request of the kernel.
struct Call {
    op: Op,
    id: u64,
    inode: u64,
    body: Vec<u8>,
}

impl Call {
    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.body[at..at + 4].try_into().unwrap())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.body[at..at + 8].try_into().unwrap())
    }

    /// Returns the names from `at` on, each of which ends with a zero.
    fn names(&self, at: usize) -> Vec<&OsStr> {
        self.body[at..].split(|byte| *byte == 0).map(OsStr::from_bytes).collect()
    }
}

/// The bytes of a reply.
#[derive(Default)]
struct Reply(Vec<u8>);

impl Reply {
    fn u16(mut self, value: u16) -> Reply {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Reply {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Reply {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn zeros(mut self, len: usize) -> Reply {
        self.0.resize(self.0.len() + len, 0);
        self
    }

    fn attr(self, inode: u64, metadata: &Metadata) -> Reply {
        let reply = self.u64(inode).u64(metadata.len()).u64(metadata.blocks());
        let reply = reply.u64(metadata.atime() as u64).u64(metadata.mtime() as u64).u64(metadata.ctime() as u64);
        let nanos = [metadata.atime_nsec(), metadata.mtime_nsec(), metadata.ctime_nsec()];
        let reply = nanos.into_iter().fold(reply, |reply, nanos| reply.u32(nanos as u32));
        let reply = reply.u32(metadata.mode()).u32(metadata.nlink() as u32).u32(metadata.uid()).u32(metadata.gid());
        reply.u32(0).u32(4096).u32(0)
    }
}

struct Mirror {
    device: File,
    gate: Mutex<Gate>,
    nodes: Mutex<Nodes>,
}

impl Mirror {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap()
    }

    fn path(&self, inode: u64) -> PathBuf {
        self.nodes.lock().unwrap().paths[inode as usize - 1].clone()
    }

    /// Serves until the file system is unmounted.
    fn serve(&self) {
        let mut bytes = vec![0; MAX_WRITE as usize + 4096];
        while let Ok(len) = (&self.device).read(&mut bytes) {
            let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let op = Op(u32::from_le_bytes(bytes[4..8].try_into().unwrap()));
            let call = Call { op, id: number(8), inode: number(16), body: bytes[HEADER..len].to_vec() };
            let mut gate = self.gate();
            if gate.stalls.contains(&op) {
                gate.waiting.push(call);
            } else {
                drop(gate);
                self.answer(&call);
            }
        }
    }

    /// Does what is requested, and answers. An interrupted request is answered all the same.
    fn answer(&self, call: &Call) {
        if [Op::FORGET, Op::BATCH_FORGET, Op::INTERRUPT].contains(&call.op) {
            return;
        }
        let (error, body) = match self.execute(call) {
            Ok(reply) => (0, reply.0),
            Err(error) => (-error.raw_os_error().unwrap_or(libc::EIO), Vec::new()),
        };
        let mut bytes = Reply::default().u32(16 + body.len() as u32).u32(error as u32).u64(call.id).0;
        bytes.extend(body);
        // It fails if nobody waits for the answer any more.
        let _ = (&self.device).write(&bytes);
    }

    fn execute(&self, call: &Call) -> io::Result<Reply> {
        let path = || self.path(call.inode);
        match call.op {
            Op::INIT => {
                let reply = Reply::default().u32(7).u32(31).u32(0).u32(BIG_WRITES).u16(64).u16(64);
                Ok(reply.u32(MAX_WRITE).u32(1).zeros(36))
            }
            Op::LOOKUP => self.entry(&path().join(call.names(0)[0])),
            Op::GETATTR => self.attr(call),
            Op::SETATTR => {
                if call.u32(0) & FATTR_SIZE != 0 {
                    File::options().write(true).open(path())?.set_len(call.u64(16))?;
                }
                self.attr(call)
            }
            Op::MKDIR => {
                let path = path().join(call.names(8)[0]);
                fs::DirBuilder::new().mode(call.u32(0)).create(&path)?;
                self.entry(&path)
            }
            Op::UNLINK => {
                let path = path().join(call.names(0)[0]);
                self.nodes.lock().unwrap().known.remove(&path);
                fs::remove_file(path).map(|()| Reply::default())
            }
            Op::RENAME => self.rename(call, RenameFlags::empty(), &call.names(8)),
            Op::RENAME2 => self.rename(call, RenameFlags::from_bits_retain(call.u32(8)), &call.names(16)),
            Op::OPEN => Ok(Reply::default().u64(0).u32(DIRECT_IO).u32(0)),
            Op::OPENDIR => Ok(Reply::default().zeros(16)),
            Op::CREATE => {
                let path = path().join(call.names(16)[0]);
                File::options().write(true).create(true).truncate(false).mode(call.u32(4)).open(&path)?;
                Ok(self.entry(&path)?.u64(0).u32(DIRECT_IO).u32(0))
            }
            Op::READ => {
                let mut bytes = vec![0; call.u32(16) as usize];
                let len = File::open(path())?.read_at(&mut bytes, call.u64(8))?;
                bytes.truncate(len);
                Ok(Reply(bytes))
            }
            Op::WRITE => {
                let bytes = &call.body[40..];
                File::options().write(true).open(path())?.write_all_at(bytes, call.u64(8))?;
                Ok(Reply::default().u32(bytes.len() as u32).u32(0))
            }
            Op::FLUSH | Op::FSYNC | Op::FSYNCDIR | Op::RELEASE | Op::RELEASEDIR => Ok(Reply::default()),
            Op::READDIR => self.readdir(call),
            Op::STATFS => {
                let stat = statvfs(path())?;
                let reply = Reply::default().u64(stat.f_blocks).u64(stat.f_bfree).u64(stat.f_bavail);
                let reply = reply.u64(stat.f_files).u64(stat.f_ffree).u32(stat.f_bsize as u32);
                Ok(reply.u32(255).u32(stat.f_frsize as u32).zeros(28))
            }
            Op::SETXATTR => {
                let name = call.names(8)[0];
                lsetxattr(path(), name, &call.body[9 + name.len()..], XattrFlags::empty())?;
                Ok(Reply::default())
            }
            Op::GETXATTR => {
                let mut value = vec![0; 256];
                let len = lgetxattr(path(), call.names(8)[0], &mut value[..])?;
                value.truncate(len);
                Ok(if call.u32(0) == 0 { Reply::default().u32(len as u32).u32(0) } else { Reply(value) })
            }
            _ => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        }
    }

    /// The kernel asks again every time, so that every operation gets here.
    fn entry(&self, path: &Path) -> io::Result<Reply> {
        let metadata = fs::symlink_metadata(path)?;
        let inode = self.nodes.lock().unwrap().find(path);
        Ok(Reply::default().u64(inode).zeros(32).attr(inode, &metadata))
    }

    fn attr(&self, call: &Call) -> io::Result<Reply> {
        let metadata = fs::symlink_metadata(self.path(call.inode))?;
        Ok(Reply::default().zeros(16).attr(call.inode, &metadata))
    }

    fn rename(&self, call: &Call, flags: RenameFlags, names: &[&OsStr]) -> io::Result<Reply> {
        let (from, to) = (self.path(call.inode).join(names[0]), self.path(call.u64(0)).join(names[1]));
        renameat_with(CWD, &from, CWD, &to, flags)?;
        let mut nodes = self.nodes.lock().unwrap();
        if let Some(inode) = nodes.known.remove(&from) {
            nodes.paths[inode as usize - 1].clone_from(&to);
            nodes.known.insert(to, inode);
        }
        Ok(Reply::default())
    }

    fn readdir(&self, call: &Call) -> io::Result<Reply> {
        let mut entries = fs::read_dir(self.path(call.inode))?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        let mut reply = Reply::default();
        for (entry, number) in entries.iter().zip(1u64..).skip(call.u64(8) as usize) {
            let (name, kind) = (entry.file_name(), entry.metadata()?.mode() >> 12);
            if reply.0.len() + 24 + name.len() + 8 > call.u32(16) as usize {
                break;
            }
            reply = reply.u64(u64::MAX).u64(number).u32(name.len() as u32).u32(kind);
            reply.0.extend(name.as_bytes());
            let padding = reply.0.len().next_multiple_of(8) - reply.0.len();
            reply = reply.zeros(padding);
        }
        Ok(reply)
    }
}

/// A mounted file system. Dropping it lets everything go and unmounts it.
pub(crate) struct Stalling {
    mirror: Arc<Mirror>,
    at: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Stalling {
    /// Shows the directory `shown` at `at`. Needs root, and `/dev/fuse`.
    pub(crate) fn mount(shown: &Path, at: &Path) -> Stalling {
        let need = "this test needs root and /dev/fuse, to mount a file system";
        let device = File::options().read(true).write(true).open("/dev/fuse").expect(need);
        // The command that mounts gets the descriptor.
        fcntl_setfd(&device, FdFlags::empty()).unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let mut mount = Command::new("mount");
        mount.args(["-i", "-t", "fuse", "-o", &options, "stalling"]).arg(at);
        let mounted = mount.output().expect(need);
        assert!(mounted.status.success(), "{need}: {}", String::from_utf8_lossy(&mounted.stderr));
        fcntl_setfd(&device, FdFlags::CLOEXEC).unwrap();
        let mirror = Arc::new(Mirror { device, gate: Mutex::default(), nodes: Mutex::default() });
        mirror.nodes.lock().unwrap().find(shown);
        let serving = mirror.clone();
        let thread = Builder::new().name("stalling".to_owned()).spawn(move || serving.serve()).unwrap();
        Stalling { mirror, at: at.to_owned(), thread: Some(thread) }
    }

    /// From now on these operations stall.
    pub(crate) fn stall(&self, ops: &[Op]) {
        self.mirror.gate().stalls = ops.to_vec();
    }

    /// Returns the number of operations that stall.
    pub(crate) fn waiting(&self) -> usize {
        self.mirror.gate().waiting.len()
    }

    /// Lets all operations go. No more stall.
    pub(crate) fn let_go(&self) {
        let waiting = {
            let mut gate = self.mirror.gate();
            gate.stalls.clear();
            std::mem::take(&mut gate.waiting)
        };
        waiting.iter().for_each(|call| self.mirror.answer(call));
    }
}

impl Drop for Stalling {
    fn drop(&mut self) {
        self.let_go();
        let unmounted = Command::new("umount").arg("-l").arg(&self.at).status();
        // The thread does not end as long as anybody uses the file system.
        if unmounted.is_ok_and(|status| status.success())
            && !std::thread::panicking()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}
