//! Stores and fetches trees.
//!
//! **How.** Several files are written at the same time. Those that are written wait in a batch,
//! which is synced with one request to each server and then published. Meanwhile the next files are
//! written.
//!
//! **Invariants**
//! 1. A file that fails does not stop the others. It is reported and counted.
//! 2. If the manager cannot be reached, nothing more is begun.
//! 3. Further names of a file, and the attributes of directories, come last: when the file is there
//!    and nothing more is put into the directories.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use bmi::threading::Threading;
use fs_proto::{ErrorCode, Handle, SetAttr};
use futures_util::future::{join_all, ready};
use futures_util::stream::{self, StreamExt};
use tokio::sync::Notify;

use super::put::{Outcome, Task, Written};
use super::source::{Found, Kind, Source};
use super::{Copied, Copier, Progress, attributes};
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
    dirs: Vec<(Source, FsPath)>,
    files: VecDeque<Task>,
    /// The first name of each file that may have several.
    first: BTreeMap<(u64, u64), FsPath>,
    /// A first name and another one.
    names: Vec<(FsPath, FsPath)>,
    attributes: Vec<(FsPath, SetAttr)>,
    batch: Vec<Written<S>>,
    batch_bytes: u64,
    copied: Copied,
    /// The manager cannot be reached, so nothing more is begun.
    over: bool,
}

/// The next thing to do.
enum Job<S: Threading> {
    File(Task),
    Dir(Source, FsPath),
    Batch(Vec<Written<S>>),
}

impl<S: Threading> State<S> {
    fn take_batch(&mut self) -> Job<S> {
        self.batch_bytes = 0;
        Job::Batch(std::mem::take(&mut self.batch))
    }

    /// Adds a file, or one more name of a file that was added before.
    fn add_file(&mut self, source: Source, to: FsPath, id: Option<(u64, u64)>) {
        match id.and_then(|id| self.first.get(&id)) {
            Some(first) => self.names.push((first.clone(), to)),
            None => {
                self.first.extend(id.map(|id| (id, to.clone())));
                self.files.push_back(Task::new(source, to));
            }
        }
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
    /// Stores a directory with everything below it as the directory `target`.
    pub(super) async fn put_tree(&self, source: Source, target: &FsPath) -> Copied {
        let state = State {
            busy: 0,
            dirs: vec![(source, target.clone())],
            files: VecDeque::new(),
            first: BTreeMap::new(),
            names: Vec::new(),
            attributes: Vec::new(),
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
        self.finish(&work).await;
        work.state.into_inner().copied
    }

    /// Makes the further names, and sets the attributes of the directories.
    async fn finish(&self, work: &Work<S>) {
        let (names, attributes) =
            work.state.with(|state| (std::mem::take(&mut state.names), std::mem::take(&mut state.attributes)));
        let name = async |(first, to): (FsPath, FsPath)| self.put_name(&first, &to).await;
        self.each(work, names, name).await;
        let set = async |(dir, set): (FsPath, SetAttr)| {
            attributes::set_copied(&self.client, &dir, set).await.map(|_| Copied::default())
        };
        self.each(work, attributes, set).await;
    }

    /// Does something for each item, several at the same time.
    async fn each<T, F>(&self, work: &Work<S>, all: Vec<T>, one: impl Fn(T) -> F)
    where
        F: Future<Output = Result<Copied, Error>>,
    {
        // Those that have begun are ended and reported.
        let begun = stream::iter(all).take_while(|_| ready(!work.state.with(|state| state.over)));
        let mut results = pin!(begun.map(one).buffer_unordered(self.files));
        while let Some(result) = results.next().await {
            match result {
                Ok(copied) => work.state.with(|state| state.copied += copied),
                Err(error) => self.report(work, error),
            }
        }
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

    /// Makes a directory, and adds what is in its source to the work.
    async fn put_dir(&self, work: &Work<S>, dir: &Source, into: &FsPath) {
        let made = async {
            self.client.mkdir_all(into).await?;
            let set = if self.archive { Some(self.attributes(dir).await?) } else { None };
            Ok((self.list(dir).await?, set))
        };
        let (entries, set) = match made.await {
            Ok(made) => made,
            Err(error) => return self.report(work, error),
        };
        work.state.with(|state| {
            state.copied.directories += 1;
            state.attributes.extend(set.map(|set| (into.clone(), set)));
        });
        for Found { source, name, kind, id } in entries {
            let to = match into.join(&name) {
                Ok(to) => to,
                Err(error) => {
                    self.report(work, error);
                    continue;
                }
            };
            match kind {
                Kind::Dir => work.state.with(|state| state.dirs.push((source, to))),
                Kind::File => work.state.with(|state| state.add_file(source, to, id)),
                Kind::Symlink => match self.put_link(&source, &to).await {
                    Ok(copied) => work.state.with(|state| state.copied += copied),
                    Err(error) => self.report(work, error),
                },
                Kind::Other => {
                    let text = format!("{source}: neither file, directory nor link; it is left out");
                    self.report(work, Error::new(ErrorCode::Invalid, text));
                }
            }
        }
    }

    /// Fetches the directory `source` with everything below it as the local directory `target`.
    /// What fails is reported as [`Progress::Failed`] and counted, and the rest is fetched all the
    /// same. If the manager cannot be reached, nothing more is begun.
    #[must_use = "it has the number of failures"]
    pub async fn get_tree(&self, source: &FsPath, target: &Path) -> Copied {
        let (mut copied, over) = (Copied::default(), AtomicBool::new(false));
        let mut dirs = vec![(source.clone(), target.to_owned())];
        let (mut first, mut names, mut attributes) = (BTreeMap::new(), Vec::new(), Vec::new());
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
            if self.archive && listed.is_ok() {
                attributes.push((dir.clone(), into.clone()));
            }
            let mut files = Vec::new();
            match listed {
                Ok(entries) => {
                    copied.directories += 1;
                    for entry in entries {
                        let to = into.join(OsStr::from_bytes(&entry.name));
                        match (dir.join(&entry.name), entry.handle) {
                            (Ok(from), Handle::Dir(_)) => dirs.push((from, to)),
                            (Ok(from), handle) => match first.get(&handle) {
                                Some(first) => names.push((PathBuf::clone(first), to)),
                                None => {
                                    first.extend(self.archive.then(|| (handle, to.clone())));
                                    files.push((from, to, handle));
                                }
                            },
                            (Err(error), _) => failed(&mut copied, error),
                        }
                    }
                }
                Err(error) => failed(&mut copied, error),
            }
            let get = async |(from, to, handle): (FsPath, PathBuf, Handle)| match handle {
                Handle::Symlink(_) => self.get_link(&from, &to).await,
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
        for (first, to) in names.iter().take_while(|_| !over.load(Ordering::Relaxed)) {
            match self.get_name(first, to).await {
                Ok(one) => copied += one,
                Err(error) => failed(&mut copied, error),
            }
        }
        // Those below come first: perhaps they cannot be reached any more afterwards.
        for (dir, into) in attributes.iter().rev().take_while(|_| !over.load(Ordering::Relaxed)) {
            if let Err(error) = self.get_attributes(dir, into).await {
                failed(&mut copied, error);
            }
        }
        copied
    }

    /// Sets the attributes of a local directory.
    async fn get_attributes(&self, dir: &FsPath, into: &Path) -> Result<(), Error> {
        let (set, path) = (attributes::of_remote(&self.client.lookup(dir).await?.attr), into.to_owned());
        let done = self.io.run(move || attributes::set(&fs::File::open(path)?, &set)).await;
        done.map_err(|error| Error::local(into.display(), &error))
    }
}

/// Returns true if nothing else can succeed either.
fn ends_all(error: &Error) -> bool {
    error.is_retryable() && error.concerns_manager()
}
