//! Stores and fetches trees.
//!
//! **How.** Several files are written at the same time. Those that are written wait in a batch,
//! which is synced with one request to each server and then published. Meanwhile the next files are
//! written.
//!
//! **Invariants**
//! 1. A file that fails does not stop the others. It is reported and counted.
//! 2. If the manager cannot be reached, nothing more is begun.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use bmi::threading::Threading;
use fs_proto::{BString, ErrorCode, Kind, RemoveKind};
use futures_util::future::{join_all, ready};
use futures_util::stream::{self, StreamExt};
use tokio::sync::Notify;

use super::put::{Outcome, Task, Written};
use super::{Copied, Copier, Progress};
use crate::error::Error;
use crate::locked::Locked;
use crate::path::FsPath;

/// Most files in a batch: as many changes as the manager commits at once.
const BATCH_FILES: usize = 128;
/// A batch is synced when it has this many bytes.
const BATCH_BYTES: u64 = 64 << 20;

/// A tree that is being stored.
struct Work<S: Threading> {
    state: Locked<State<S>>,
    news: Notify,
}

struct State<S: Threading> {
    /// Number of lanes that do something, and may add more to do.
    busy: usize,
    dirs: Vec<(PathBuf, FsPath)>,
    files: VecDeque<Task>,
    batch: Vec<Written<S>>,
    batch_bytes: u64,
    copied: Copied,
    /// The manager cannot be reached, so nothing more is begun.
    over: bool,
}

/// The next thing to do.
enum Job<S: Threading> {
    File(Task),
    Dir(PathBuf, FsPath),
    Batch(Vec<Written<S>>),
}

impl<S: Threading> State<S> {
    fn take_batch(&mut self) -> Job<S> {
        self.batch_bytes = 0;
        Job::Batch(std::mem::take(&mut self.batch))
    }

    /// Begins the next job, if there is one.
    fn begin(&mut self) -> Option<Job<S>> {
        // If no other lane is busy, none can add to the batch.
        let job = self.next(self.busy == 0);
        self.busy += usize::from(job.is_some());
        job
    }

    /// Returns the next job. `last` is true if no other lane can add to the batch.
    fn next(&mut self, last: bool) -> Option<Job<S>> {
        let full = self.batch.len() >= BATCH_FILES || self.batch_bytes >= BATCH_BYTES;
        if full {
            return Some(self.take_batch());
        }
        if !self.over {
            if let Some(task) = self.files.pop_front() {
                return Some(Job::File(task));
            }
            if let Some((dir, into)) = self.dirs.pop() {
                return Some(Job::Dir(dir, into));
            }
        }
        (last && !self.batch.is_empty()).then(|| self.take_batch())
    }
}

impl<S: Threading> Copier<S> {
    /// Stores a local directory with everything below it as the directory `target`. Symbolic links
    /// are stored as they are. Special files are not copied, and count as failed. What fails is reported as
    /// [`Progress::Failed`] and counted, and the rest is copied all the same. If the manager cannot
    /// be reached, nothing more is begun.
    #[must_use = "it has the number of failures"]
    pub async fn put_tree(&self, source: &Path, target: &FsPath) -> Copied {
        let state = State {
            busy: 0,
            dirs: vec![(source.to_owned(), target.clone())],
            files: VecDeque::new(),
            batch: Vec::new(),
            batch_bytes: 0,
            copied: Copied::default(),
            over: false,
        };
        let work = Work { state: Locked::new(state), news: Notify::new() };
        self.connected(join_all((0..self.files).map(|_| self.put_lane(&work)))).await;
        // Files that were to be stored once more when the manager could not be reached any more.
        let left = work.state.with(|state| std::mem::take(&mut state.files));
        for error in left.into_iter().filter_map(|task| task.error) {
            self.report(&work, error);
        }
        work.state.into_inner().copied
    }

    /// Does one job after the other, until there are no more.
    async fn put_lane(&self, work: &Work<S>) {
        loop {
            let news = work.news.notified();
            let (job, last) = work.state.with(|state| (state.begin(), state.busy == 0));
            let Some(job) = job else {
                if last {
                    break;
                }
                news.await;
                continue;
            };
            match job {
                Job::Dir(dir, into) => self.put_dir(work, &dir, &into).await,
                Job::File(task) => match self.write_draft(task).await {
                    Outcome::Skipped => work.state.with(|state| state.copied.skipped += 1),
                    Outcome::Failed(task, error) => self.failed(work, task, error),
                    Outcome::Written(written) => work.state.with(|state| {
                        state.batch_bytes += written.bytes;
                        state.batch.push(written);
                    }),
                },
                Job::Batch(batch) => {
                    for result in self.complete(batch).await {
                        match result {
                            Ok(copied) => work.state.with(|state| state.copied += copied),
                            Err((task, error)) => self.failed(work, task, error),
                        }
                    }
                }
            }
            work.state.with(|state| state.busy -= 1);
            work.news.notify_waiters();
        }
        work.news.notify_waiters();
    }

    /// A file failed: it is tried again later, or reported.
    fn failed(&self, work: &Work<S>, task: Task, error: Error) {
        match self.again(task, error) {
            Ok(task) => work.state.with(|state| state.files.push_back(task)),
            Err(error) => self.report(work, error),
        }
    }

    fn report(&self, work: &Work<S>, error: Error) {
        (self.progress)(Progress::Failed { error: &error });
        work.state.with(|state| {
            state.copied.failed += 1;
            state.over |= ends_all(&error);
        });
    }

    /// Makes a directory, and adds what is in the local one to the work.
    async fn put_dir(&self, work: &Work<S>, dir: &Path, into: &FsPath) {
        let listed = match self.client.mkdir_all(into).await {
            Ok(()) => self.list_local(dir).await,
            Err(error) => Err(error),
        };
        let entries = match listed {
            Ok(entries) => entries,
            Err(error) => return self.report(work, error),
        };
        work.state.with(|state| state.copied.directories += 1);
        for (path, kind) in entries {
            let to = match into.join(path.file_name().unwrap_or_default().as_bytes()) {
                Ok(to) => to,
                Err(error) => {
                    self.report(work, error);
                    continue;
                }
            };
            match kind {
                LocalKind::Dir => work.state.with(|state| state.dirs.push((path, to))),
                LocalKind::File => work.state.with(|state| state.files.push_back(Task::new(path, to))),
                LocalKind::Symlink(target) => match self.put_link(&to, target).await {
                    Ok(copied) => work.state.with(|state| state.copied += copied),
                    Err(error) => self.report(work, error),
                },
                LocalKind::Other => {
                    let text = format!("{}: neither file, directory nor link; it is left out", path.display());
                    self.report(work, Error::new(ErrorCode::Invalid, text));
                }
            }
        }
    }

    /// Stores a symbolic link. It replaces anything but a directory.
    async fn put_link(&self, to: &FsPath, target: BString) -> Result<Copied, Error> {
        let stored = Copied { files: 1, ..Copied::default() };
        let make = async || self.client.symlink(to, target.clone(), self.client.owner()).await;
        match make().await {
            Err(error) if error.code() == ErrorCode::Exists => {}
            made => return made.map(|_| stored),
        }
        if self.client.lookup(to).await?.target.as_ref() == Some(&target) {
            return Ok(Copied { skipped: 1, ..Copied::default() });
        }
        self.client.remove(to, RemoveKind::File).await?;
        make().await.map(|_| stored)
    }

    /// Fetches a symbolic link. It replaces another one.
    async fn get_link(&self, from: &FsPath, to: PathBuf) -> Result<Copied, Error> {
        let target = self.client.read_link(from).await?;
        let path = to.clone();
        let make = move || {
            if path.is_symlink() {
                fs::remove_file(&path)?;
            }
            symlink(OsStr::from_bytes(&target), path)
        };
        let made = self.io.run(make).await.map_err(|error| Error::local(to.display(), &error));
        made.map(|()| Copied { files: 1, ..Copied::default() })
    }

    /// Fetches the directory `source` with everything below it as the local directory `target`.
    /// What fails is reported as [`Progress::Failed`] and counted, and the rest is fetched all the
    /// same. If the manager cannot be reached, nothing more is begun.
    #[must_use = "it has the number of failures"]
    pub async fn get_tree(&self, source: &FsPath, target: &Path) -> Copied {
        let (mut copied, over) = (Copied::default(), AtomicBool::new(false));
        let mut dirs = vec![(source.clone(), target.to_owned())];
        let failed = |copied: &mut Copied, error: Error| {
            (self.progress)(Progress::Failed { error: &error });
            copied.failed += 1;
            over.fetch_or(ends_all(&error), Ordering::Relaxed);
        };
        while !over.load(Ordering::Relaxed)
            && let Some((dir, into)) = dirs.pop()
        {
            let path = into.clone();
            let made = self.io.run(move || fs::create_dir_all(path)).await;
            let listed = match made {
                Ok(()) => self.client.readdir(&dir).await,
                Err(error) => Err(Error::local(into.display(), &error)),
            };
            let mut files = Vec::new();
            match listed {
                Ok(entries) => {
                    copied.directories += 1;
                    for entry in entries {
                        let to = into.join(OsStr::from_bytes(&entry.name));
                        match (dir.join(&entry.name), entry.handle.kind()) {
                            (Ok(from), Kind::Dir) => dirs.push((from, to)),
                            (Ok(from), kind) => files.push((from, to, kind)),
                            (Err(error), _) => failed(&mut copied, error),
                        }
                    }
                }
                Err(error) => failed(&mut copied, error),
            }
            let get = async |(from, to, kind): (FsPath, PathBuf, Kind)| match kind {
                Kind::Symlink => self.get_link(&from, to).await,
                _ => self.get_file(&from, &to).await,
            };
            // Those that have begun are ended and reported.
            let begun = stream::iter(files).take_while(|_| ready(!over.load(Ordering::Relaxed)));
            let mut results = pin!(begun.map(get).buffer_unordered(self.files));
            while let Some(result) = results.next().await {
                match result {
                    Ok(one) => copied += one,
                    Err(error) => failed(&mut copied, error),
                }
            }
        }
        copied
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
                    () if kind.is_symlink() => {
                        LocalKind::Symlink(fs::read_link(entry.path())?.into_os_string().into_vec().into())
                    }
                    () => LocalKind::Other,
                };
                entries.push((entry.path(), kind));
            }
            entries.sort_by(|a: &(PathBuf, _), b| a.0.cmp(&b.0));
            Ok(entries)
        });
        list.await.map_err(|error| Error::local(dir.display(), &error))
    }
}

/// Returns true if nothing else can succeed either.
fn ends_all(error: &Error) -> bool {
    error.is_retryable() && error.concerns_manager()
}

enum LocalKind {
    File,
    Dir,
    Symlink(BString),
    Other,
}
