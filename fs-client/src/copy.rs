//! Copies whole files to and from the local machine in a pipeline. While some blocks are on the
//! network, others are read from or written to the local disk.
//!
//! **Why.** If blocks were copied one at a time, the disk would wait for the network and the
//! network for the disk. Several lanes keep both busy. Each lane has a block of registered memory
//! that is reused. No other copy is made: the kernel moves the bytes between the page cache and
//! registered memory, and the adapter moves them between registered memory and the servers.
//!
//! ```text
//!   lane 0   read block 0 | write to servers ........ | read block 4 | …
//!   lane 1                | read block 1 | write to servers ........ | …
//!   lane 2                               | read block 2 | write …
//! ```
//!
//! **Invariants**
//! 1. A lane needs exactly one block, and holds nothing while it waits for it. So lanes cannot
//!    deadlock.
//! 2. All blocks come from one [`Blocks`], so any number of concurrent copies uses a bounded amount
//!    of memory.
//! 3. After an error no further block is begun. The lanes of a regular file first end the blocks in
//!    progress.
//!
//! **Source.** Pipelined transfer [PVFS-IB §4.2], seen from the client.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bmi_core::{AsyncEndpoint, MemSlice, Memory, MemoryRegion, Transport};
use fs_proto::{ErrorCode, Handle};
use futures_util::stream::{self, FuturesUnordered, StreamExt, TryStreamExt};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::client::{Client, CreateOptions};
use crate::error::Error;
use crate::file::File;
use crate::landing::Landing;
use crate::local::{self, LocalIo};
use crate::path::FsPath;

/// Blocks of memory for copies. They are registered once and reused.
pub struct Blocks<T: Transport> {
    client: Client<T>,
    block_size: usize,
    free: Semaphore,
    spare: RefCell<Vec<(Memory, Vec<MemoryRegion>)>>,
}

impl<T: Transport + 'static> Blocks<T> {
    /// Creates a pool of at most `count` blocks of `block_size` bytes, registered with each
    /// endpoint of the client. A block is allocated when it is first needed.
    pub fn new(client: Client<T>, block_size: usize, count: usize) -> Blocks<T> {
        Blocks { client, block_size, free: Semaphore::new(count.max(1)), spare: RefCell::default() }
    }

    /// Waits for a free block.
    async fn take(&self) -> Result<Block<'_, T>, Error> {
        let closed = |_| Error::new(ErrorCode::Io, "no more blocks");
        let permit = self.free.acquire().await.map_err(closed)?;
        let spare = self.spare.borrow_mut().pop();
        let (memory, regions) = match spare {
            Some(block) => block,
            None => {
                let exhausted = |error: bmi_core::Error| Error::new(ErrorCode::Busy, error.to_string());
                let memory = self.client.memory(self.block_size).map_err(exhausted)?;
                // An adapter that can register no more memory may still move it piece by piece. So
                // a failure to register is not an error yet.
                let register = |endpoint: &AsyncEndpoint<T>| endpoint.with(|endpoint| endpoint.register(&memory)).ok();
                let regions = self.client.endpoints().filter_map(register).collect();
                (memory, regions)
            }
        };
        Ok(Block { blocks: self, memory, regions, _permit: permit })
    }
}

/// A block in use. When it is dropped, its memory is not reused, because an adapter or a server may
/// still access it after a failed operation. After success the block is [recycled](Block::recycle).
struct Block<'a, T: Transport> {
    blocks: &'a Blocks<T>,
    memory: Memory,
    regions: Vec<MemoryRegion>,
    _permit: SemaphorePermit<'a>,
}

impl<T: Transport> Block<'_, T> {
    fn slice(&self, len: usize) -> MemSlice {
        self.memory.slice(0, len)
    }

    fn recycle(self) {
        self.blocks.spare.borrow_mut().push((self.memory, self.regions));
    }
}

/// The result of a lane's step: its bytes and whether they were the last, or `None` if none were
/// left.
type Step = Option<(u64, bool)>;

/// Progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A file begins.
    File {
        /// The file's name, as the user would write it.
        name: &'a str,
        /// Its size in bytes; 0 if it is not known.
        bytes: u64,
    },
    /// This many more bytes have been copied.
    Bytes(u64),
    /// A file is complete.
    Done {
        /// The file's name.
        name: &'a str,
    },
}

/// Copies files and trees.
pub struct Copier<T: Transport> {
    client: Client<T>,
    blocks: Blocks<T>,
    io: LocalIo,
    lanes: usize,
    files: usize,
    /// Options for creating files. A local file's permissions override those here.
    pub create: CreateOptions,
    /// If true, each file is synced before it counts as done.
    pub sync: bool,
    progress: Box<dyn Fn(Progress<'_>)>,
}

/// Counts of what was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Copied {
    /// Number of files.
    pub files: u64,
    /// Number of directories.
    pub directories: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl std::ops::AddAssign for Copied {
    fn add_assign(&mut self, more: Copied) {
        self.files += more.files;
        self.directories += more.directories;
        self.bytes += more.bytes;
    }
}

impl<T: Transport + 'static> Copier<T> {
    /// Creates a copier with `lanes` blocks of `block_size` bytes in progress for each file, and at
    /// most twice as many over all files. `progress` is called as bytes arrive.
    ///
    /// # Errors
    /// If the thread for local files cannot be started.
    pub fn new(
        client: Client<T>,
        block_size: usize,
        lanes: usize,
        progress: impl Fn(Progress<'_>) + 'static,
    ) -> Result<Copier<T>, Error> {
        let io = LocalIo::start().map_err(|error| Error::local("thread for local files", &error))?;
        let lanes = lanes.max(1);
        let blocks = Blocks::new(client.clone(), block_size.max(4096), lanes * 2);
        let create = CreateOptions::default();
        Ok(Copier { client, blocks, io, lanes, files: lanes * 2, create, sync: false, progress: Box::new(progress) })
    }

    // ---- to the servers -------------------------------------------------------------------------

    /// Stores one local file as `target`, replacing an existing file. If the source has no known
    /// size, such as a named pipe, it is read to its end.
    ///
    /// # Errors
    /// `Io` naming the local file; those of [`Client::create`] and [`File::write_at`].
    pub async fn put_file(&self, source: &Path, target: &FsPath) -> Result<Copied, Error> {
        let local = |error: io::Error| Error::local(source.display(), &error);
        let path = source.to_owned();
        let (file, size, mode) = self
            .io
            .run(move || {
                let file = fs::File::open(path)?;
                let metadata = file.metadata()?;
                if metadata.is_dir() {
                    return Err(io::Error::from(io::ErrorKind::IsADirectory));
                }
                // Only a regular file has a size. The kernel's own files (such as those in `/proc`)
                // report 0, however many bytes they contain.
                let (len, mode) = match metadata.is_file() {
                    true => (metadata.len(), metadata.permissions().mode() & 0o777),
                    false => (0, CreateOptions::default().mode),
                };
                Ok((Arc::new(file), len, mode))
            })
            .await
            .map_err(local)?;
        if size == 0 {
            return self.put_open(file, &source.display().to_string(), target, mode).await;
        }
        let name = target.as_str();
        (self.progress)(Progress::File { name, bytes: size });
        let (remote, fresh) = self.create_or_empty(target, mode).await?;
        let read = |block: MemSlice, offset: u64| {
            let file = file.clone();
            async move { self.io.run(move || local::read_at(&file, offset, &block)).await.map_err(local) }
        };
        let bytes = self
            .in_lanes(|offset| {
                let (remote, read) = (&remote, &read);
                async move {
                    if offset >= size {
                        return Ok(None);
                    }
                    let block = self.blocks.take().await?;
                    let want = usize::try_from(size - offset).unwrap_or(usize::MAX).min(self.blocks.block_size);
                    let len = read(block.slice(want), offset).await?;
                    // If the local file became shorter meanwhile, it ends here.
                    self.write(remote, offset, block, len).await
                }
            })
            .await?;
        self.finish(&remote, fresh, bytes).await?;
        (self.progress)(Progress::Done { name });
        Ok(Copied { files: 1, directories: 0, bytes })
    }

    /// Stores the bytes of `input`, for instance a pipe, until its end.
    ///
    /// # Errors
    /// As [`Copier::put_file`].
    pub async fn put_stream(&self, input: fs::File, target: &FsPath) -> Result<Copied, Error> {
        self.put_open(Arc::new(input), "standard input", target, self.create.mode).await
    }

    /// Stores the bytes of `input` until its end. Errors name it `from`.
    async fn put_open(&self, input: Arc<fs::File>, from: &str, target: &FsPath, mode: u32) -> Result<Copied, Error> {
        let local = |error: io::Error| Error::local(from, &error);
        let name = target.as_str();
        (self.progress)(Progress::File { name, bytes: 0 });
        let (remote, fresh) = self.create_or_empty(target, mode).await?;
        let position = Arc::new(AtomicU64::new(0));
        let bytes = self
            .in_lanes(|_| {
                let (input, remote, position) = (input.clone(), &remote, position.clone());
                async move {
                    let block = self.blocks.take().await?;
                    let slice = block.slice(self.blocks.block_size);
                    // The thread reads one block after the other. The offset of a block is known
                    // only after it has been read, whichever lane asked for it.
                    let read = move || {
                        let len = local::read_stream(&*input, &slice)?;
                        Ok((position.fetch_add(len as u64, Ordering::Relaxed), len))
                    };
                    let (offset, len) = self.io.run(read).await.map_err(local)?;
                    self.write(remote, offset, block, len).await
                }
            })
            .await?;
        self.finish(&remote, fresh, bytes).await?;
        (self.progress)(Progress::Done { name });
        Ok(Copied { files: 1, directories: 0, bytes })
    }

    /// Writes the first `len` bytes of a block. This is the step of a lane.
    async fn write(&self, remote: &File<T>, offset: u64, block: Block<'_, T>, len: usize) -> Result<Step, Error> {
        if len > 0 {
            remote.write_at(offset, block.slice(len)).await?;
            (self.progress)(Progress::Bytes(len as u64));
        }
        block.recycle();
        Ok((len > 0).then_some((len as u64, len < self.blocks.block_size)))
    }

    /// Completes a file of `size` bytes. The size of a new one is recorded.
    async fn finish(&self, remote: &File<T>, fresh: bool, size: u64) -> Result<(), Error> {
        if self.sync {
            remote.sync().await?;
        }
        if fresh && let Err(error) = remote.record_size(size).await {
            // The file is complete without it.
            tracing::debug!(%error, "not recorded");
        }
        Ok(())
    }

    /// Creates a file, or empties an existing one. Replaces an existing file if its striping
    /// differs from the requested one. Also returns whether the file is new.
    async fn create_or_empty(&self, target: &FsPath, mode: u32) -> Result<(File<T>, bool), Error> {
        match self.client.create(target, CreateOptions { exclusive: true, mode, ..self.create }).await {
            Err(error) if error.code() == ErrorCode::Exists => {}
            result => return Ok((result?, true)),
        }
        let file = self.client.open(target).await?;
        let (strip, servers) = (file.distribution().strip_size(), file.servers().len() as u32);
        let fits = |asked: u64, is: u64| asked == 0 || asked == is;
        if fits(self.create.strip_size, strip) && fits(self.create.servers.into(), servers.into()) {
            file.set_len(0).await?;
            return Ok((file, false));
        }
        self.client.remove(target, fs_proto::RemoveKind::File).await?;
        Ok((self.client.create(target, CreateOptions { exclusive: false, mode, ..self.create }).await?, true))
    }

    /// Runs `step` for block after block, in all lanes, until one reports the end. Returns the
    /// number of bytes.
    async fn in_lanes<F>(&self, step: impl Fn(u64) -> F) -> Result<u64, Error>
    where
        F: Future<Output = Result<Step, Error>>,
    {
        let (next, total, over) = (Cell::new(0u64), Cell::new(0u64), Cell::new(false));
        let lane = async || {
            while !over.get() {
                let offset = next.get();
                next.set(offset + self.blocks.block_size as u64);
                match step(offset).await {
                    Ok(Some((bytes, last))) => {
                        total.set(total.get() + bytes);
                        over.set(over.get() || last);
                    }
                    Ok(None) => over.set(true),
                    Err(error) => {
                        over.set(true);
                        return Err(error);
                    }
                }
            }
            Ok(())
        };
        let mut lanes: FuturesUnordered<_> = (0..self.lanes).map(|_| lane()).collect();
        let mut first = Ok(());
        while let Some(result) = lanes.next().await {
            first = first.and(result);
        }
        first.map(|()| total.get())
    }

    // ---- from the servers -----------------------------------------------------------------------

    /// Fetches one file to the local `target`. An existing file is replaced once the new one is
    /// complete. A target that is not a regular file, such as a pipe, gets its bytes in order.
    ///
    /// # Errors
    /// `Io` naming the local file; those of [`Client::open`] and [`File::read_at`].
    pub async fn get_file(&self, source: &FsPath, target: &Path) -> Result<Copied, Error> {
        let local = |error: io::Error| Error::local(target.display(), &error);
        let (remote, mode) = self.open(source).await?;
        let path = target.to_owned();
        let landing = self.io.run(move || Landing::open(&path, mode)).await.map_err(local)?;
        if !landing.is_file() {
            return self.get_open(source, &remote, landing.file().clone(), &target.display().to_string()).await;
        }
        let size = remote.size().await?;
        let name = source.as_str();
        (self.progress)(Progress::File { name, bytes: size });
        let file = landing.file().clone();
        let bytes = self
            .in_lanes(|offset| {
                let (remote, file) = (&remote, file.clone());
                async move {
                    if offset >= size {
                        return Ok(None);
                    }
                    let block = self.blocks.take().await?;
                    let len = self.read(remote, offset, size, &block).await?;
                    if len > 0 {
                        let slice = block.slice(len);
                        self.io.run(move || local::write_at(&file, offset, &slice)).await.map_err(local)?;
                        (self.progress)(Progress::Bytes(len as u64));
                    }
                    block.recycle();
                    Ok((len > 0).then_some((len as u64, false)))
                }
            })
            .await?;
        check_whole(source, bytes, size)?;
        self.io.run(move || landing.settle()).await.map_err(local)?;
        (self.progress)(Progress::Done { name });
        Ok(Copied { files: 1, directories: 0, bytes })
    }

    /// Opens a file for reading. Returns its permission bits with it.
    async fn open(&self, source: &FsPath) -> Result<(File<T>, u32), Error> {
        let during = |error: Error| error.during(format!("open {source}"));
        let entry = self.client.lookup(source).await.map_err(during)?;
        let mode = entry.attr.mode & 0o777;
        Ok((self.client.file(source, entry).await.map_err(during)?, mode))
    }

    /// Writes one file to `output`, for instance a pipe, in order.
    ///
    /// # Errors
    /// As [`Copier::get_file`].
    pub async fn get_stream(&self, source: &FsPath, output: fs::File) -> Result<Copied, Error> {
        let (remote, _) = self.open(source).await?;
        self.get_open(source, &remote, Arc::new(output), "standard output").await
    }

    /// Writes a file to `output`, in order. Errors name it `to`.
    async fn get_open(
        &self,
        source: &FsPath,
        remote: &File<T>,
        output: Arc<fs::File>,
        to: &str,
    ) -> Result<Copied, Error> {
        let local = |error: io::Error| Error::local(to, &error);
        let size = remote.size().await?;
        let name = source.as_str();
        (self.progress)(Progress::File { name, bytes: size });
        let block_size = self.blocks.block_size as u64;
        let offsets = (0..size.div_ceil(block_size)).map(|index| index * block_size);
        let fetch = async |offset: u64| {
            let block = self.blocks.take().await?;
            let len = self.read(remote, offset, size, &block).await?;
            Ok::<_, Error>((block, len))
        };
        // Blocks are fetched in order. The oldest one gets its memory first, so later ones cannot
        // block it.
        let mut blocks = stream::iter(offsets).map(fetch).buffered(self.lanes);
        let mut bytes = 0;
        while let Some((block, len)) = blocks.try_next().await? {
            let (slice, output) = (block.slice(len), output.clone());
            self.io.run(move || local::write_stream(&*output, &slice)).await.map_err(local)?;
            block.recycle();
            (self.progress)(Progress::Bytes(len as u64));
            bytes += len as u64;
        }
        check_whole(source, bytes, size)?;
        (self.progress)(Progress::Done { name });
        Ok(Copied { files: 1, directories: 0, bytes })
    }

    async fn read(&self, remote: &File<T>, offset: u64, size: u64, block: &Block<'_, T>) -> Result<usize, Error> {
        let want = usize::try_from(size - offset).unwrap_or(usize::MAX).min(self.blocks.block_size);
        let len = remote.read_at(offset, block.slice(want)).await?;
        Ok(usize::try_from(len).unwrap_or(want).min(want))
    }

    // ---- trees ----------------------------------------------------------------------------------

    /// Stores a local directory with everything below it as the directory `target`. Links and
    /// special files are not copied. They are reported as an error after everything else has been
    /// copied.
    ///
    /// # Errors
    /// `Io` naming the local file; those of the file system. After the first error no further file
    /// is begun.
    pub async fn put_tree(&self, source: &Path, target: &FsPath) -> Result<Copied, Error> {
        let mut copied = Copied::default();
        let mut special: Vec<PathBuf> = Vec::new();
        let mut dirs = vec![(source.to_owned(), target.clone())];
        while let Some((dir, into)) = dirs.pop() {
            self.client.mkdir_all(&into).await?;
            copied.directories += 1;
            let mut files = Vec::new();
            for (path, kind) in self.list_local(&dir).await? {
                let name = path.file_name().and_then(|name| name.to_str());
                let name = name.ok_or_else(|| not_utf8(&path))?;
                let to = into.join(name)?;
                match kind {
                    LocalKind::Dir => dirs.push((path, to)),
                    LocalKind::File => files.push((path, to)),
                    LocalKind::Other => special.push(path),
                }
            }
            let put = async |(path, to): (PathBuf, FsPath)| self.put_file(&path, &to).await;
            let mut results = stream::iter(files).map(put).buffer_unordered(self.files);
            while let Some(one) = results.try_next().await? {
                copied += one;
            }
        }
        match special.first() {
            None => Ok(copied),
            Some(first) => {
                let text =
                    format!("{}: neither a file nor a directory ({} such left out)", first.display(), special.len());
                Err(Error::new(ErrorCode::Invalid, text))
            }
        }
    }

    /// Fetches the directory `source` with everything below it as the local directory `target`.
    ///
    /// # Errors
    /// As [`Copier::put_tree`].
    pub async fn get_tree(&self, source: &FsPath, target: &Path) -> Result<Copied, Error> {
        let mut copied = Copied::default();
        let mut dirs = vec![(source.clone(), target.to_owned())];
        while let Some((dir, into)) = dirs.pop() {
            let path = into.clone();
            let made = self.io.run(move || fs::create_dir_all(path)).await;
            made.map_err(|error| Error::local(into.display(), &error))?;
            copied.directories += 1;
            let mut files = Vec::new();
            for entry in self.client.readdir(&dir).await? {
                let (from, to) = (dir.join(&entry.name)?, into.join(&entry.name));
                match entry.handle {
                    Handle::Dir(_) => dirs.push((from, to)),
                    Handle::File(_) => files.push((from, to)),
                }
            }
            let get = async |(from, to): (FsPath, PathBuf)| self.get_file(&from, &to).await;
            let mut results = stream::iter(files).map(get).buffer_unordered(self.files);
            while let Some(one) = results.try_next().await? {
                copied += one;
            }
        }
        Ok(copied)
    }

    async fn list_local(&self, dir: &Path) -> Result<Vec<(PathBuf, LocalKind)>, Error> {
        let path = dir.to_owned();
        let list = self.io.run(move || {
            let mut entries = Vec::new();
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                let kind = entry.file_type()?;
                let kind = match () {
                    () if kind.is_dir() => LocalKind::Dir,
                    () if kind.is_file() => LocalKind::File,
                    () => LocalKind::Other,
                };
                entries.push((entry.path(), kind));
            }
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(entries)
        });
        list.await.map_err(|error| Error::local(dir.display(), &error))
    }
}

enum LocalKind {
    File,
    Dir,
    Other,
}

/// Checks that a fetched file has the size that it had when the fetch began.
fn check_whole(source: &FsPath, bytes: u64, size: u64) -> Result<(), Error> {
    if bytes == size {
        return Ok(());
    }
    let text = format!("{source} had {size} bytes, and {bytes} of them were read: it was changed meanwhile");
    Err(Error::new(ErrorCode::Stale, text).during(format!("read of {source}")))
}

fn not_utf8(path: &Path) -> Error {
    Error::new(ErrorCode::Invalid, format!("{}: the name is not UTF-8", path.display()))
}
