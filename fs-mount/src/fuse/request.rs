//! Requests of the kernel.
//!
//! **Layout.** A header of [`HEADER`] bytes: length, operation, number, node, user, group, process,
//! extensions. Then a structure that depends on the operation, then names, each ended by a zero.
//! All numbers have the byte order of the machine.

use bmi::Memory;
use rustix::io::Errno;

/// Bytes of the header.
pub(super) const HEADER: usize = 40;
/// Bytes of the header and the structure of a write. Its data follows.
pub(super) const WRITE_HEAD: usize = HEADER + 40;

/// The numbers of the operations.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
}

/// Bits of requests and replies.
pub(crate) mod flags {
    /// What a SETATTR changes.
    pub(crate) const SET_MODE: u32 = 1;
    pub(crate) const SET_UID: u32 = 1 << 1;
    pub(crate) const SET_GID: u32 = 1 << 2;
    pub(crate) const SET_SIZE: u32 = 1 << 3;
    pub(crate) const SET_ATIME: u32 = 1 << 4;
    pub(crate) const SET_MTIME: u32 = 1 << 5;
    /// The number of an open file comes with it.
    pub(crate) const SET_BY_FILE: u32 = 1 << 6;
    pub(crate) const SET_ATIME_NOW: u32 = 1 << 7;
    pub(crate) const SET_MTIME_NOW: u32 = 1 << 8;
    pub(crate) const SET_CTIME: u32 = 1 << 10;
    pub(crate) const SET_KILL_SUIDGID: u32 = 1 << 11;
    /// The kernel writes back bytes that it has kept.
    pub(crate) const WRITE_CACHE: u32 = 1;
    /// The set-id bits go with a WRITE, or with an OPEN that cuts the file off.
    pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
    pub(crate) const OPEN_KILL_SUIDGID: u32 = 1;
    /// The kernel keeps no bytes of an open file.
    pub(crate) const OPENED_DIRECT_IO: u32 = 1;
    /// It keeps those that it has.
    pub(crate) const OPENED_KEEP_CACHE: u32 = 1 << 1;
    /// `renameat2`.
    pub(crate) const RENAME_NOREPLACE: u32 = 1;
    pub(crate) const RENAME_EXCHANGE: u32 = 1 << 1;
    /// `lseek`.
    pub(crate) const SEEK_DATA: u32 = 3;
    pub(crate) const SEEK_HOLE: u32 = 4;
    /// `setxattr`: it must not be there, or must be.
    pub(crate) const XATTR_CREATE: u32 = 1;
    pub(crate) const XATTR_REPLACE: u32 = 1 << 1;
}

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) op: u32,
    /// Its number, which the reply and an INTERRUPT name.
    pub(crate) unique: u64,
    /// The node that it is about.
    pub(crate) node: u64,
    /// Who asks. The process, or thread, is 0 if it is in another namespace.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    /// What follows the header, without the data of a write.
    body: Vec<u8>,
    /// The memory with the data of a write, and its length.
    pub(crate) data: Option<(Memory, usize)>,
}

impl Request {
    /// Takes a request apart. `head` and `payload` have its bytes, one behind the other, `len`
    /// together. Returns the memory if it is not needed. `None` if this is no request.
    pub(super) fn new(head: &[u8; WRITE_HEAD], mut payload: Memory, len: usize) -> Option<(Request, Option<Memory>)> {
        let (header, rest) = head.get(..len.min(WRITE_HEAD))?.split_at_checked(HEADER)?;
        let mut args = Args(header);
        let (size, op) = (args.u32().ok()?, args.u32().ok()?);
        let (unique, node) = (args.u64().ok()?, args.u64().ok()?);
        let (uid, gid, pid) = (args.u32().ok()?, args.u32().ok()?, args.u32().ok()?);
        let beyond = len.saturating_sub(WRITE_HEAD);
        if size as usize != len || beyond > payload.len() {
            return None;
        }
        let mut request = Request { op, unique, node, uid, gid, pid, body: rest.to_vec(), data: None };
        if op == op::WRITE {
            request.data = Some((payload, beyond));
            return Some((request, None));
        }
        request.body.extend_from_slice(&payload.get_mut()?[..beyond]);
        Some((request, Some(payload)))
    }

    /// Returns the nodes that the kernel forgets with a FORGET or BATCH_FORGET, and how often it
    /// was told of each. The error is that the list is too short.
    pub(crate) fn forgotten(&self) -> Result<Vec<(u64, u64)>, Errno> {
        let mut args = self.args();
        if self.op == op::FORGET {
            return Ok(vec![(self.node, args.u64()?)]);
        }
        let (count, _) = (args.u32()?, args.u32()?);
        (0..count).map(|_| Ok((args.u64()?, args.u64()?))).collect()
    }

    /// Returns what follows the header.
    pub(crate) fn args(&self) -> Args<'_> {
        Args(&self.body)
    }
}

/// Reads numbers and names one after the other. Each fails with `EINVAL` if there are no more.
pub(crate) struct Args<'a>(&'a [u8]);

impl<'a> Args<'a> {
    fn take<const LEN: usize>(&mut self) -> Result<[u8; LEN], Errno> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    /// Returns all that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Returns a name without its zero.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::INVAL)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: u32, op: u32, body: &[u8]) -> [u8; WRITE_HEAD] {
        let mut bytes = [0; WRITE_HEAD];
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..8].copy_from_slice(&op.to_ne_bytes());
        bytes[HEADER..HEADER + body.len()].copy_from_slice(body);
        bytes
    }

    #[test]
    fn what_is_no_request_is_none() {
        let memory = || Memory::zeroed(64).unwrap();
        for (len, written) in [(0, 0), (39, 39), (44, 43), (200, 200)] {
            assert!(Request::new(&bytes(len, op::LOOKUP, b""), memory(), written).is_none(), "{len} {written}");
        }
        let (request, left) = Request::new(&bytes(44, op::LOOKUP, b"abc\0"), memory(), 44).unwrap();
        assert_eq!((request.args().name(), left.is_some()), (Ok(&b"abc"[..]), true));
        assert_eq!(request.args().u64(), Err(Errno::INVAL));
        let (request, left) = Request::new(&bytes(90, op::WRITE, b""), memory(), 90).unwrap();
        assert_eq!((request.data.map(|(_, len)| len), left.is_some()), (Some(10), false));
    }
}
