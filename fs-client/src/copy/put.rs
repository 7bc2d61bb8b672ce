//! Stores files, local ones and those of the cluster.
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
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bmi::Time;
use bmi::threading::Threading;
use fs_proto::limits::DEFAULT_STRIP;
use fs_proto::{ErrorCode, Handle, SetAttr};
use futures_util::future::join_all;

use super::blocks::Block;
use super::source::{Bytes, Input, Kind, Source};
use super::{Copied, Copier, Progress, Step};
use crate::client::CreateOptions;
use crate::error::Error;
use crate::file::{File, sync_files};
use crate::local;
use crate::names::{Draft, Publish};
use crate::path::FsPath;

/// Most times that a file is stored.
const MOST_TRIES: u32 = 10;

/// A file that is to be stored.
pub(super) struct Task {
    source: Source,
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
    pub(super) fn new(source: Source, target: FsPath) -> Task {
        Task { source, target, tries: 0, failed: None, error: None, reported: AtomicU64::new(0), rereadable: true }
    }
}

/// A draft that was written and is to be synced and published.
pub(super) struct Written<S: Threading> {
    pub(super) task: Task,
    draft: Draft<S>,
    pub(super) bytes: u64,
    attr: SetAttr,
}

/// What became of a task.
pub(super) enum Outcome<S: Threading> {
    /// It is there already.
    Skipped,
    Written(Written<S>),
    Failed(Task, Error),
}

impl<S: Threading> Copier<S> {
    /// Stores what is at `source` as `target`: a file, or a directory with everything below it. If
    /// links are kept, a symbolic link too. An existing file is replaced in one step once the new
    /// one is complete and synced. A file with no known size, such as a named pipe, is read to its
    /// end.
    ///
    /// Symbolic links below a directory are stored as they are. Special files there are not copied,
    /// and count as failed. What fails there is reported as [`Progress::Failed`] and counted, and
    /// the rest is copied all the same. If the manager cannot be reached, nothing more is begun.
    ///
    /// # Errors
    /// `Io` naming the local file; those of [`crate::Client::draft`], [`File::write_at`],
    /// [`File::sync`] and [`Draft::publish`]. An existing file is then as before, unless the
    /// manager did not answer the last request.
    pub async fn put(&self, source: &Path, target: &FsPath) -> Result<Copied, Error> {
        self.store(Source::Local(source.to_owned()), target).await
    }

    /// Copies what is at `source` within the cluster, like [`Copier::put`].
    ///
    /// # Errors
    /// `Invalid` if `target` is the same file, or is in the directory `source`; those of
    /// [`Copier::put`].
    pub async fn copy(&self, source: &FsPath, target: &FsPath) -> Result<Copied, Error> {
        let refuse = |text| Err(Error::new(ErrorCode::Invalid, text).during(format!("copy {source} to {target}")));
        let from = self.client.lookup(source).await?.handle;
        if self.client.lookup(target).await.is_ok_and(|there| there.handle == from) {
            return refuse("they are the same; give the copy another name");
        }
        if source.contains(target) {
            return refuse("a directory cannot be copied into itself; choose a target outside of it");
        }
        self.store(Source::Remote(source.clone()), target).await
    }

    async fn store(&self, source: Source, target: &FsPath) -> Result<Copied, Error> {
        match self.kind(&source).await? {
            Kind::Dir => Ok(self.put_tree(source, target).await),
            Kind::Symlink => self.put_link(&source, target).await,
            Kind::File | Kind::Other => self.put_file(source, target).await,
        }
    }

    async fn put_file(&self, source: Source, target: &FsPath) -> Result<Copied, Error> {
        let store = async {
            let mut task = Task::new(source, target.clone());
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
    /// As [`Copier::put`].
    pub async fn put_stream(&self, input: fs::File, target: &FsPath) -> Result<Copied, Error> {
        let source = Source::Local("standard input".into());
        let task = Task { rereadable: false, ..Task::new(source, target.clone()) };
        let attr = SetAttr { mode: Some(self.create.mode), ..SetAttr::default() };
        let input = Input { bytes: Bytes::Local(Arc::new(input)), size: 0, attr };
        let store = async {
            match self.write_input(task, input).await {
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
        let input = match self.input(&task.source).await {
            Ok(input) => input,
            Err(error) => return Outcome::Failed(task, error),
        };
        task.rereadable = input.attr.mtime_ns.is_some();
        if self.resume && self.is_stored(&task.target, &input).await {
            return Outcome::Skipped;
        }
        self.write_input(task, input).await
    }

    /// Returns true if the target has the size and the modification time of a file.
    async fn is_stored(&self, target: &FsPath, input: &Input<S>) -> bool {
        let Ok(entry) = self.client.lookup(target).await else { return false };
        let same_time = input.attr.mtime_ns == Some(entry.attr.mtime_ns);
        // A file of this command has a recorded size.
        same_time && matches!(entry.handle, Handle::File(_)) && entry.recorded_size() == Some(input.size)
    }

    /// Writes a file to a new draft. The draft is abandoned if that fails.
    async fn write_input(&self, task: Task, input: Input<S>) -> Outcome<S> {
        if task.tries == 0 {
            (self.progress)(Progress::File { name: &task.target, bytes: input.size });
        }
        let kept = if self.archive { 0o7777 } else { 0o777 };
        let mode = self.mode.unwrap_or(input.attr.mode.unwrap_or(self.create.mode) & kept);
        let owner = if self.archive { input.attr.uid.zip(input.attr.gid) } else { self.create.owner };
        let strip = if self.create.strip_size == 0 { DEFAULT_STRIP } else { self.create.strip_size };
        // A number of servers that was asked for is met in any case.
        let small = self.create.servers == 0 && input.size <= strip;
        let options = CreateOptions { mode, owner, hints: self.hints, small, ..self.create };
        let draft = match self.client.draft(&task.target, options).await {
            Ok(draft) => draft,
            Err(error) => return Outcome::Failed(task, error),
        };
        let written = match &input.bytes {
            Bytes::Local(file) if input.size == 0 => self.write_to_end(&task, file, draft.file()).await,
            bytes => self.write_sized(&task, bytes, input.size, draft.file()).await,
        };
        match written {
            Ok(bytes) => Outcome::Written(Written { task, draft, bytes, attr: input.attr }),
            Err(error) => {
                self.abandon(draft).await;
                Outcome::Failed(task, error)
            }
        }
    }

    async fn write_sized(&self, task: &Task, bytes: &Bytes<S>, size: u64, remote: &File<S>) -> Result<u64, Error> {
        self.in_lanes(|offset| async move {
            if offset >= size {
                return Ok(None);
            }
            let block = self.blocks.take().await?;
            let want = usize::try_from(size - offset).unwrap_or(usize::MAX).min(self.blocks.block_size);
            let len = self.read_input(&task.source, bytes, offset, block.slice(want)).await?;
            // If the file became shorter meanwhile, it ends here.
            self.write(task, remote, offset, block, len).await
        })
        .await
    }

    async fn write_to_end(&self, task: &Task, input: &Arc<fs::File>, remote: &File<S>) -> Result<u64, Error> {
        let position = Arc::new(AtomicU64::new(0));
        self.in_lanes(|_| {
            let (input, position) = (input.clone(), position.clone());
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
                let (offset, len) = read.map_err(|error| Error::local(&task.source, &error))?;
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
            let Written { task, draft, bytes, attr } = written;
            let result = if failures.is_empty() {
                self.publish(&draft, bytes, &attr).await
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

    async fn publish(&self, draft: &Draft<S>, bytes: u64, attr: &SetAttr) -> Result<(), Error> {
        let atime_ns = attr.atime_ns.filter(|_| self.archive);
        if atime_ns.is_some() {
            let set = SetAttr { atime_ns, ..SetAttr::default() };
            self.client.setattr(&FsPath::of(draft.file().handle()), set).await?;
        }
        let (inherit, mode, mtime_ns) = (!self.archive, self.mode, attr.mtime_ns);
        draft.publish(Publish { inherit, mode, mtime_ns, size: Some(bytes), ..Publish::default() }).await
    }

    /// Abandons a draft. If that fails, the manager removes it later.
    async fn abandon(&self, draft: Draft<S>) {
        if let Err(error) = draft.abandon().await {
            tracing::debug!(%error, "the manager removes the file later");
        }
    }
}
