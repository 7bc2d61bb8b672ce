//! Stores local files.
//!
//! **Why.** A file is written to a draft, synced, and published. So a failure at any point leaves
//! the old file, or nothing. A write whose reply was lost may still be on its way to the disk, and
//! is never sent again. The file is stored once more, in another draft.
//!
//! ```text
//!   draft ──> write ──> sync, many files at once ──> publish
//!     ^         │            │                          │
//!     └─────────┴── again ───┴──────────────────────────┘   if a server was lost or restarted
//! ```
//!
//! **Invariants**
//! 1. A file is published only after all its servers have synced it, under the start that took its
//!    bytes.
//! 2. A draft that is not published is abandoned.
//! 3. A file is stored again a bounded number of times, in bounded time.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bmi::threading::Threading;
use bmi::{MemSlice, Time};
use fs_proto::Handle;
use futures_util::future::join_all;

use super::blocks::Block;
use super::{Copied, Copier, Progress, Step};
use crate::client::CreateOptions;
use crate::error::Error;
use crate::file::{File, sync_files};
use crate::local;
use crate::names::{Draft, Publish};
use crate::path::FsPath;

/// Most times that a file is stored.
const MOST_TRIES: u32 = 10;

/// A local file that is to be stored.
pub(super) struct Task {
    source: PathBuf,
    pub(super) target: FsPath,
    tries: u32,
    /// When it failed first.
    failed: Option<Time>,
    /// Why it failed last.
    pub(super) error: Option<Error>,
    /// Bytes of this try that `progress` was told.
    reported: AtomicU64,
    /// True if the source can be read again.
    rereadable: bool,
}

impl Task {
    pub(super) fn new(source: PathBuf, target: FsPath) -> Task {
        Task { source, target, tries: 0, failed: None, error: None, reported: AtomicU64::new(0), rereadable: true }
    }
}

/// A draft that was written and is to be synced and published.
pub(super) struct Written<S: Threading> {
    pub(super) task: Task,
    draft: Draft<S>,
    pub(super) bytes: u64,
    mtime_ns: Option<u64>,
}

/// A local file that was opened.
struct Local {
    file: Arc<fs::File>,
    /// In bytes; 0 if it is not known.
    size: u64,
    mode: u32,
    /// `None` for a pipe or a device.
    mtime_ns: Option<u64>,
}

/// What became of a task.
pub(super) enum Outcome<S: Threading> {
    /// It is there already.
    Skipped,
    Written(Written<S>),
    Failed(Task, Error),
}

impl<S: Threading> Copier<S> {
    /// Stores one local file as `target`. An existing file is replaced in one step once the new one
    /// is complete and synced. If the source has no known size, such as a named pipe, it is read to
    /// its end.
    ///
    /// # Errors
    /// `Io` naming the local file; those of [`crate::Client::draft`], [`File::write_at`],
    /// [`File::sync`] and [`Draft::publish`]. An existing file is then as before, unless the
    /// manager did not answer the last request.
    pub async fn put_file(&self, source: &Path, target: &FsPath) -> Result<Copied, Error> {
        let store = async {
            let mut task = Task::new(source.to_owned(), target.clone());
            loop {
                let (failed, error) = match self.write_draft(task).await {
                    Outcome::Skipped => return Ok(Copied { skipped: 1, ..Copied::default() }),
                    Outcome::Failed(task, error) => (task, error),
                    Outcome::Written(written) => match self.complete(vec![written]).await.remove(0) {
                        Ok(copied) => return Ok(copied),
                        Err(failed) => failed,
                    },
                };
                task = self.again(failed, error)?;
            }
        };
        self.connected(store).await
    }

    /// Stores the bytes of `input`, for instance a pipe, until its end.
    ///
    /// # Errors
    /// As [`Copier::put_file`].
    pub async fn put_stream(&self, input: fs::File, target: &FsPath) -> Result<Copied, Error> {
        let task = Task { rereadable: false, ..Task::new(PathBuf::from("standard input"), target.clone()) };
        let local = Local { file: Arc::new(input), size: 0, mode: self.create.mode, mtime_ns: None };
        let store = async {
            match self.write_local(task, local).await {
                Outcome::Written(written) => match self.complete(vec![written]).await.remove(0) {
                    Ok(copied) => Ok(copied),
                    Err((_, error)) => Err(error),
                },
                Outcome::Failed(_, error) => Err(error),
                Outcome::Skipped => unreachable!("a stream is never there already"),
            }
        };
        self.connected(store).await
    }

    /// Decides whether a task that failed is tried again.
    pub(super) fn again(&self, mut task: Task, error: Error) -> Result<Task, Error> {
        let now = self.client.endpoint().now();
        let since = *task.failed.get_or_insert(now);
        task.tries += 1;
        // The first wait for a server may have used all its time.
        let in_time = now.since(since) < self.client.options().retry_for * 2;
        if !task.rereadable || !error.is_worth_another_file() || task.tries >= MOST_TRIES || !in_time {
            return Err(error);
        }
        tracing::debug!(target = %task.target, %error, "stored once more");
        (self.progress)(Progress::Again { name: &task.target, bytes: std::mem::take(task.reported.get_mut()) });
        task.error = Some(error);
        Ok(task)
    }

    /// Opens the source of a task and writes it to a draft, unless it is there already.
    pub(super) async fn write_draft(&self, mut task: Task) -> Outcome<S> {
        let path = task.source.clone();
        let opened = self.io.run(move || open(&path)).await;
        let local = match opened {
            Ok(local) => local,
            Err(error) => {
                let error = Error::local(task.source.display(), &error);
                return Outcome::Failed(task, error);
            }
        };
        task.rereadable = local.mtime_ns.is_some();
        if self.resume && self.is_stored(&task.target, &local).await {
            return Outcome::Skipped;
        }
        self.write_local(task, local).await
    }

    /// Returns true if the target has the size and the modification time of a local file.
    async fn is_stored(&self, target: &FsPath, local: &Local) -> bool {
        let Ok(entry) = self.client.lookup(target).await else { return false };
        let same_time = local.mtime_ns == Some(entry.attr.mtime_ns);
        // A file of this command has a recorded size.
        same_time && matches!(entry.handle, Handle::File(_)) && entry.recorded_size() == Some(local.size)
    }

    /// Writes a local file to a new draft. The draft is abandoned if that fails.
    async fn write_local(&self, task: Task, local: Local) -> Outcome<S> {
        if task.tries == 0 {
            (self.progress)(Progress::File { name: &task.target, bytes: local.size });
        }
        let mode = self.mode.unwrap_or(local.mode);
        let draft =
            match self.client.draft(&task.target, CreateOptions { mode, hints: self.hints, ..self.create }).await {
                Ok(draft) => draft,
                Err(error) => return Outcome::Failed(task, error),
            };
        let written = if local.size > 0 {
            self.write_sized(&task, &local, draft.file()).await
        } else {
            self.write_to_end(&task, &local, draft.file()).await
        };
        match written {
            Ok(bytes) => Outcome::Written(Written { task, draft, bytes, mtime_ns: local.mtime_ns }),
            Err(error) => {
                self.abandon(draft).await;
                Outcome::Failed(task, error)
            }
        }
    }

    async fn write_sized(&self, task: &Task, local: &Local, remote: &File<S>) -> Result<u64, Error> {
        let size = local.size;
        let read = |block: MemSlice, offset: u64| {
            let file = local.file.clone();
            async move { self.io.run(move || local::read_at(&file, offset, &block)).await }
        };
        self.in_lanes(|offset| {
            let read = &read;
            async move {
                if offset >= size {
                    return Ok(None);
                }
                let block = self.blocks.take().await?;
                let want = usize::try_from(size - offset).unwrap_or(usize::MAX).min(self.blocks.block_size);
                let len = read(block.slice(want), offset).await;
                let len = len.map_err(|error| Error::local(task.source.display(), &error))?;
                // If the local file became shorter meanwhile, it ends here.
                self.write(task, remote, offset, block, len).await
            }
        })
        .await
    }

    async fn write_to_end(&self, task: &Task, local: &Local, remote: &File<S>) -> Result<u64, Error> {
        let position = Arc::new(AtomicU64::new(0));
        self.in_lanes(|_| {
            let (input, position) = (local.file.clone(), position.clone());
            async move {
                let block = self.blocks.take().await?;
                let slice = block.slice(self.blocks.block_size);
                // The thread reads one block after the other. The offset of a block is known only
                // after it has been read, whichever lane asked for it.
                let read = move || {
                    let len = local::read_stream(&*input, &slice)?;
                    Ok((position.fetch_add(len as u64, Ordering::Relaxed), len))
                };
                let read = self.io.run(read).await;
                let (offset, len) = read.map_err(|error| Error::local(task.source.display(), &error))?;
                self.write(task, remote, offset, block, len).await
            }
        })
        .await
    }

    /// Writes the first `len` bytes of a block. This is the step of a lane.
    async fn write(
        &self,
        task: &Task,
        remote: &File<S>,
        offset: u64,
        block: Block<'_, S>,
        len: usize,
    ) -> Result<Step, Error> {
        if len > 0 {
            remote.write_at(offset, block.slice(len)).await?;
            task.reported.fetch_add(len as u64, Ordering::Relaxed);
            (self.progress)(Progress::Bytes(len as u64));
        }
        block.recycle();
        Ok((len > 0).then_some((len as u64, len < self.blocks.block_size)))
    }

    /// Syncs and publishes drafts. Returns the result of each, in order. Those that failed are
    /// abandoned.
    pub(super) async fn complete(&self, batch: Vec<Written<S>>) -> Vec<Result<Copied, (Task, Error)>> {
        let files: Vec<&File<S>> = batch.iter().map(|written| written.draft.file()).collect();
        let failures =
            if self.sync { sync_files(&self.client, &files, false).await } else { vec![Vec::new(); files.len()] };
        join_all(batch.into_iter().zip(failures).map(async |(written, failures)| {
            let Written { task, draft, bytes, mtime_ns } = written;
            let result = if failures.is_empty() {
                let (inherit, mode, size) = (true, self.mode, Some(bytes));
                let how = Publish { inherit, mode, mtime_ns, size, ..Publish::default() };
                draft.publish(how).await
            } else {
                Err(Error::combined(failures).during(format!("sync {}", task.target)))
            };
            if let Err(error) = result {
                self.abandon(draft).await;
                return Err((task, error));
            }
            (self.progress)(Progress::Done { name: &task.target });
            Ok(Copied { files: 1, bytes, ..Copied::default() })
        }))
        .await
    }

    /// Abandons a draft. If that fails, the manager removes it later.
    async fn abandon(&self, draft: Draft<S>) {
        if let Err(error) = draft.abandon().await {
            tracing::debug!(%error, "the manager removes the file later");
        }
    }
}

/// Opens a local file for reading.
fn open(path: &Path) -> io::Result<Local> {
    let file = fs::File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    // Only a regular file has a size. The kernel's own files (such as those in `/proc`) report 0,
    // however many bytes they contain.
    Ok(if metadata.is_file() {
        let mode = metadata.permissions().mode() & 0o777;
        Local { file: Arc::new(file), size: metadata.len(), mode, mtime_ns: Some(modified_ns(&metadata)) }
    } else {
        Local { file: Arc::new(file), size: 0, mode: CreateOptions::default().mode, mtime_ns: None }
    })
}

/// Returns the modification time of a local file, in nanoseconds since 1970. Earlier times count as
/// 1970.
pub(super) fn modified_ns(metadata: &fs::Metadata) -> u64 {
    let ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
}
