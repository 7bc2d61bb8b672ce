//! Data: opening, reading, writing, syncing and closing files.

use bmi::Memory;
use fs_client::{Allocation, Entry, FsPath, Region, SharedFile, Sought};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::Served;
use super::names::{O_APPEND, O_TRUNC, O_WRITES};
use crate::errors::errno;
use crate::fuse::{Args, Coherence, MOST_DATA, Reply, flags};

impl Served {
    /// Returns the file of a node. Opens it if nobody has it open.
    pub(super) async fn file_of(&self, node: u64) -> Result<SharedFile, Errno> {
        if let Some(file) = self.nodes.file(node) {
            return Ok(file);
        }
        let path = self.nodes.path(node)?;
        let entry = self.ask(|| self.client.lookup(&path)).await?;
        self.file_as_told(&path, &entry).await
    }

    /// Opens a file as the manager has told of it.
    pub(super) async fn file_as_told(&self, path: &FsPath, entry: &Entry) -> Result<SharedFile, Errno> {
        let file = self.ask(|| self.client.file(path, entry.clone())).await?;
        Ok(self.coherent(file))
    }

    /// Returns a file that is as coherent as this mount.
    pub(super) fn coherent(&self, file: SharedFile) -> SharedFile {
        if self.settings.coherence == Coherence::Strict { file } else { file.close_to_open() }
    }

    /// Returns what the kernel is to do with an open file. It drops the bytes that it has, unless
    /// it keeps nothing, or nobody else changes them. Where bytes are appended, it does not know
    /// where they go, so it must not keep them; if nobody else appends, it knows.
    pub(super) fn opened_flags(&self, how: u32) -> u32 {
        match self.settings.coherence {
            Coherence::Exclusive => flags::OPENED_KEEP_CACHE,
            Coherence::Open if how & O_APPEND == 0 => 0,
            Coherence::Open | Coherence::Strict => flags::OPENED_DIRECT_IO,
        }
    }

    /// Opens a file. If the kernel knows its name from a listing only, it is told to look at the
    /// name: with `ESTALE`, after which it opens again. So an open finds what has the name now. An
    /// exclusive mount knows that.
    pub(super) async fn open(&self, node: u64, how: u32, more: u32) -> Result<Reply, Errno> {
        if !self.is_exclusive() && self.nodes.was_listed(node) {
            return Err(Errno::STALE);
        }
        let path = self.nodes.path(node)?;
        let held = self.ask(|| self.client.hold(&path)).await;
        // The node is not there under any name. The kernel looks at the name again.
        let (held, entry) = held.map_err(|errno| if errno == Errno::NOENT { Errno::STALE } else { errno })?;
        let file = match self.nodes.file(node) {
            Some(file) => {
                self.ask(|| file.update(&entry)).await?;
                file
            }
            None => self.file_as_told(&path, &entry).await?,
        };
        self.begin_write(&file, how).await?;
        if how & O_TRUNC != 0 && more & flags::OPEN_KILL_SUIDGID != 0 {
            self.drop_set_id(node).await?;
        }
        self.nodes.opened(node, file, held)?;
        Ok(Reply::opened(0, self.opened_flags(how)))
    }

    /// Says to the manager that a file is opened for writing: it can then be written while the
    /// manager does not answer. Cuts it off, if that is wanted.
    pub(super) async fn begin_write(&self, file: &SharedFile, how: u32) -> Result<(), Errno> {
        match (how & O_TRUNC, how & O_WRITES) {
            (0, 0) => Ok(()),
            (0, _) => self.ask(|| file.begin_write()).await,
            _ => self.ask(|| file.set_len(0)).await,
        }
    }

    pub(super) async fn read(&self, node: u64, mut args: Args<'_>) -> Result<Reply, Errno> {
        let (_, offset, len) = (args.u64()?, args.u64()?, args.u32()? as usize);
        if len > MOST_DATA {
            return Err(Errno::INVAL);
        }
        let file = self.file_of(node).await?;
        let memory = self.buffers.take()?;
        let read = self.ask(|| file.read_at(offset, memory.slice(0, len))).await?;
        Ok(Reply::Memory(memory, len.min(read as usize)))
    }

    pub(super) async fn write(
        &self,
        node: u64,
        mut args: Args<'_>,
        (memory, read): (Memory, usize),
    ) -> Result<Reply, Errno> {
        let (_, offset, len, how) = (args.u64()?, args.u64()?, args.u32()?, args.u32()?);
        let (_, opened) = (args.u64()?, args.u32()?);
        if len as usize != read {
            return Err(Errno::INVAL);
        }
        if self.is_exclusive() {
            self.nodes.begin_write(node);
        }
        let written = self.write_at(node, offset, (memory, read), (how, opened)).await;
        match written {
            Ok(()) if self.is_exclusive() => self.nodes.written(node, offset.saturating_add(len.into())),
            // The process that wrote them may be gone.
            Err(errno) if how & flags::WRITE_CACHE != 0 => {
                tracing::warn!(node, offset, len, %errno, "bytes that the kernel has kept are not written");
            }
            _ => {}
        }
        written.map(|()| Reply::written(len))
    }

    /// Writes bytes. `how` are the flags of the request, `opened` those of the open file, if it is
    /// known which one that is.
    async fn write_at(
        &self,
        node: u64,
        offset: u64,
        (memory, len): (Memory, usize),
        (how, opened): (u32, u32),
    ) -> Result<(), Errno> {
        let file = self.file_of(node).await?;
        if how & flags::WRITE_KILL_SUIDGID != 0 {
            self.drop_set_id(node).await?;
        }
        if opened & O_APPEND == 0 || self.is_exclusive() {
            self.ask(|| file.write_at(offset, memory.slice(0, len))).await?;
        } else {
            // Once: if no server answers, it is not known whether the bytes were appended.
            file.append(memory.slice(0, len)).await.map_err(|error| errno(&error))?;
        }
        self.buffers.give_back(memory);
        Ok(())
    }

    /// Has all servers of a file write it to their disks. Fails with `EIO` if one was restarted
    /// since it took bytes.
    pub(super) async fn sync(&self, node: u64) -> Result<Reply, Errno> {
        let file = self.file_of(node).await?;
        self.ask(|| file.sync()).await?;
        Ok(Reply::done())
    }

    /// Gives a range of a file space, or takes it away: `fallocate`.
    pub(super) async fn allocate(&self, node: u64, mut args: Args<'_>) -> Result<Reply, Errno> {
        let (_, offset, len, mode) = (args.u64()?, args.u64()?, args.u64()?, args.u32()?);
        let mode = FallocateFlags::from_bits_retain(mode);
        let grows = !mode.contains(FallocateFlags::KEEP_SIZE);
        let how = match mode - FallocateFlags::KEEP_SIZE {
            FallocateFlags::PUNCH_HOLE => Allocation::Hole,
            FallocateFlags::ZERO_RANGE => Allocation::Zeros { grows },
            mode if mode.is_empty() => Allocation::Reserve { grows },
            _ => return Err(Errno::OPNOTSUPP),
        };
        let file = self.file_of(node).await?;
        self.ask(|| file.allocate(Region::new(offset, len), how)).await?;
        Ok(Reply::done())
    }

    /// Looks for data or a hole: `lseek`.
    pub(super) async fn seek(&self, node: u64, mut args: Args<'_>) -> Result<Reply, Errno> {
        let (_, offset, whence) = (args.u64()?, args.u64()?, args.u32()?);
        let what = match whence {
            flags::SEEK_DATA => Sought::Data,
            flags::SEEK_HOLE => Sought::Hole,
            _ => return Err(Errno::INVAL),
        };
        let file = self.file_of(node).await?;
        let found = self.ask(|| file.seek(offset, what)).await?;
        Ok(Reply::found(found.ok_or(Errno::NXIO)?))
    }

    /// Closes a file. The manager learns of it later.
    pub(super) fn close(&self, node: u64) -> Result<Reply, Errno> {
        self.nodes.closed(node);
        Ok(Reply::done())
    }
}
