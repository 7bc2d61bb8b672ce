//! Removes trees, with many requests in flight.
//!
//! **How.** Directories are listed page by page, and what is found is removed. A directory is
//! removed when everything below it was tried. The newest job is done first, so few are kept at any
//! time: those of one page for each level, not those of the whole tree.
//!
//! **Invariants**
//! 1. At most [`IN_FLIGHT`] requests are in progress.
//! 2. Nothing recurses: a tree may be as deep as a path can be long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bmi::threading::Threading;
use fs_proto::{ErrorCode, Handle, RemoveKind};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::namespace::ReadDir;
use crate::client::Client;
use crate::error::Error;
use crate::path::FsPath;

/// Most requests in progress at the same time. The manager commits up to 128 changes at once.
const IN_FLIGHT: usize = 128;

/// A directory that is being removed.
struct Dir {
    path: FsPath,
    /// The directory that it is in; `None` at the top.
    parent: Option<Arc<Dir>>,
    /// Number of entries that were found and not tried yet, and one more until it is listed.
    left: AtomicUsize,
}

/// The next request.
enum Job<S: Threading> {
    /// Begin to list a directory.
    List(Arc<Dir>),
    /// List the next page of a directory.
    Page(Arc<Dir>, ReadDir<S>),
    /// Remove a file of a directory.
    File(Arc<Dir>, FsPath),
    /// Remove a directory that should be empty now.
    Dir(Arc<Dir>),
}

impl<S: Threading> Client<S> {
    /// Removes a file, or a directory with everything below it. After an error it goes on with the
    /// rest.
    ///
    /// # Errors
    /// The first of [`Client::remove`] and [`Client::readdir`]. What others have removed meanwhile
    /// is not an error, unless `path` does not exist at the beginning.
    pub async fn remove_all(&self, path: &FsPath) -> Result<(), Error> {
        let Handle::Dir(_) = self.lookup(path).await?.handle else {
            return self.remove(path, RemoveKind::Any).await;
        };
        let mut jobs = vec![Job::List(Dir::new(path.clone(), None))];
        let (mut running, mut first) = (FuturesUnordered::new(), Ok(()));
        loop {
            while running.len() < IN_FLIGHT
                && let Some(job) = jobs.pop()
            {
                running.push(self.remove_step(job));
            }
            let Some((next, result)) = running.next().await else { break };
            jobs.extend(next);
            first = first.and(result);
        }
        first
    }

    /// Does one job. Returns those that follow from it.
    async fn remove_step(&self, job: Job<S>) -> (Vec<Job<S>>, Result<(), Error>) {
        match job {
            Job::List(dir) => match self.read_dir(&dir.path).await {
                Ok(pages) => (vec![Job::Page(dir, pages)], Ok(())),
                Err(error) => (Dir::tried(dir), unless_gone(error)),
            },
            Job::Page(dir, mut pages) => match pages.next_page().await {
                Ok(Some(page)) => {
                    let (mut jobs, mut result) = (vec![Job::Page(dir.clone(), pages)], Ok(()));
                    for entry in page {
                        let job = dir.path.join(&entry.name).map(|child| match entry.handle {
                            Handle::File(_) | Handle::Symlink(_) => Job::File(dir.clone(), child),
                            Handle::Dir(_) => Job::List(Dir::new(child, Some(dir.clone()))),
                        });
                        match job {
                            Ok(job) => {
                                dir.left.fetch_add(1, Ordering::Relaxed);
                                jobs.push(job);
                            }
                            Err(error) => result = result.and(Err(error)),
                        }
                    }
                    (jobs, result)
                }
                Ok(None) => (Dir::tried(dir), Ok(())),
                Err(error) => (Dir::tried(dir), unless_gone(error)),
            },
            Job::File(dir, path) => {
                let removed = self.remove(&path, RemoveKind::File).await;
                (Dir::tried(dir), removed.or_else(unless_gone))
            }
            Job::Dir(dir) => {
                let removed = self.remove(&dir.path, RemoveKind::Dir).await;
                (dir.parent.clone().map_or_else(Vec::new, Dir::tried), removed.or_else(unless_gone))
            }
        }
    }
}

impl Dir {
    fn new(path: FsPath, parent: Option<Arc<Dir>>) -> Arc<Dir> {
        Arc::new(Dir { path, parent, left: AtomicUsize::new(1) })
    }

    /// One thing less is left to do in a directory. Returns the directory's removal after the last.
    fn tried<S: Threading>(dir: Arc<Dir>) -> Vec<Job<S>> {
        if dir.left.fetch_sub(1, Ordering::Relaxed) == 1 { vec![Job::Dir(dir)] } else { Vec::new() }
    }
}

/// What does not exist any more need not be removed.
fn unless_gone(error: Error) -> Result<(), Error> {
    if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) { Ok(()) } else { Err(error) }
}
