//! Copies whole files to and from the local machine, or within the cluster, in a pipeline. While
//! some blocks are on the network, others are read from or written to the local disk.
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
//! 4. A stored file has its name only when it is complete and synced (`put`). A fetched one has its
//!    name only when it is complete (`landing`).
//! 5. Modification times are kept in both directions, but those of directories, and other
//!    attributes, only with [`Copier::archive`].
//!
//! **Source.** Pipelined transfer [PVFS-IB §4.2], seen from the client.

mod attributes;
mod blocks;
mod get;
mod landing;
mod links;
mod put;
mod source;
mod tree;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bmi::threading::{OneThread, Threading};
use fs_proto::CacheHints;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::client::{Client, CreateOptions};
use crate::error::Error;
use crate::local::LocalIo;
use crate::path::FsPath;

pub use blocks::Blocks;

/// The result of a lane's step: its bytes and whether they were the last, or `None` if none were
/// left.
type Step = Option<(u64, bool)>;

/// Progress of a copy.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A file begins.
    File {
        /// The file in the file system.
        name: &'a FsPath,
        /// Its size in bytes; 0 if it is not known.
        bytes: u64,
    },
    /// This many more bytes have been copied.
    Bytes(u64),
    /// A file is stored once more from its beginning, because a server has failed. This many bytes
    /// that were counted do not count.
    Again {
        /// The file in the file system.
        name: &'a FsPath,
        /// Number of bytes.
        bytes: u64,
    },
    /// A file of a tree could not be copied. The others are copied all the same.
    Failed {
        /// The reason, which names the file.
        error: &'a Error,
    },
    /// A file is complete.
    Done {
        /// The file in the file system.
        name: &'a FsPath,
    },
}

/// Copies files and trees.
pub struct Copier<S: Threading = OneThread> {
    client: Client<S>,
    blocks: Blocks<S>,
    io: LocalIo,
    lanes: usize,
    files: usize,
    /// Options for creating files. A local file's permissions override those here.
    pub create: CreateOptions,
    /// Permission bits for stored files. `None` for those of the file that is replaced, or else of
    /// the local file.
    pub mode: Option<u32>,
    /// How the files will be used, for the caches of the servers, in both directions. Takes the
    /// place of the hints in `create`.
    pub hints: CacheHints,
    /// If true, a file is synced before it gets its name. True at first.
    pub sync: bool,
    /// If true, files that are there already with the same size and modification time are skipped.
    pub resume: bool,
    /// If true, copies keep modes with the set-id bits, owners, all times, also those of
    /// directories and links, and names of one file below a directory. Local owners are left out
    /// where the system refuses them.
    pub archive: bool,
    progress: Box<dyn Fn(Progress<'_>) + Send + Sync>,
}

/// Counts of what was copied. What failed is among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Copied {
    /// Number of files, and of symbolic links.
    pub files: u64,
    /// Number of directories.
    pub directories: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Number of files that were there already.
    pub skipped: u64,
    /// Number of files and directories that could not be copied.
    pub failed: u64,
}

impl std::ops::AddAssign for Copied {
    fn add_assign(&mut self, more: Copied) {
        self.files += more.files;
        self.directories += more.directories;
        self.bytes += more.bytes;
        self.skipped += more.skipped;
        self.failed += more.failed;
    }
}

impl<S: Threading> Copier<S> {
    /// Creates a copier with `lanes` blocks of `block_size` bytes in progress for each file, and at
    /// most twice as many over all files. `progress` is called as bytes arrive.
    ///
    /// # Errors
    /// If the thread for local files cannot be started.
    pub fn new(
        client: Client<S>,
        block_size: usize,
        lanes: usize,
        progress: impl Fn(Progress<'_>) + Send + Sync + 'static,
    ) -> Result<Copier<S>, Error> {
        let io = LocalIo::start().map_err(|error| Error::local("thread for local files", &error))?;
        let lanes = lanes.max(1);
        let blocks = Blocks::new(client.clone(), block_size.max(4096), lanes * 2);
        let create = CreateOptions::default();
        let (files, mode, hints, sync) = (lanes * 2, None, CacheHints::default(), true);
        let (resume, archive, progress) = (false, false, Box::new(progress));
        Ok(Copier { client, blocks, io, lanes, files, create, mode, hints, sync, resume, archive, progress })
    }

    /// Runs `work` with a connection to the manager, which keeps the files that have no name yet.
    async fn connected<R>(&self, work: impl Future<Output = R>) -> R {
        let (work, stay) = (std::pin::pin!(work), std::pin::pin!(self.client.stay_connected()));
        match select(work, stay).await {
            Either::Left((result, _)) => result,
            Either::Right(((), _)) => unreachable!("it never ends"),
        }
    }

    /// Runs `step` for block after block, in all lanes, until one reports the end. Returns the
    /// number of bytes.
    async fn in_lanes<F>(&self, step: impl Fn(u64) -> F) -> Result<u64, Error>
    where
        F: Future<Output = Result<Step, Error>>,
    {
        // The lanes are one task. So one lane runs at a time, and no order is needed between them.
        let (next, total, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let lane = async || {
            while !over.load(Ordering::Relaxed) {
                let offset = next.fetch_add(self.blocks.block_size as u64, Ordering::Relaxed);
                match step(offset).await {
                    Ok(Some((bytes, last))) => {
                        total.fetch_add(bytes, Ordering::Relaxed);
                        over.fetch_or(last, Ordering::Relaxed);
                    }
                    Ok(None) => over.store(true, Ordering::Relaxed),
                    Err(error) => {
                        over.store(true, Ordering::Relaxed);
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
        first.map(|()| total.load(Ordering::Relaxed))
    }
}
