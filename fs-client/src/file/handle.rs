//! An open file: what it is, what is known about it here, and accesses that exclude others.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bmi::hooks::mutated;
use bmi::paths::Direction;
use bmi::threading::{AnyThread, OneThread, Threading};
use fs_proto::{
    CacheHints, Content, DatafileHandle, Distribution, ErrorCode, FileHandle, IodReply, IodRequest, Layout, Region,
    ReplyBody,
};
use futures_util::future::{Either, select};

use super::advice::Advice;
use super::unsynced::Unsynced;
use crate::client::{Client, Writing};
use crate::error::{Error, Failure, ServerName};
use crate::locked::Locked;
use crate::net::{Resend, unexpected};
use crate::path::FsPath;
use crate::shared::ViewCache;

/// Size of a request without its lists, in bytes: version, ids, time limit, kind, handle and
/// lengths, each at its longest.
pub(super) const REQUEST_ROOM: usize = 128;

/// How often a lock is asked for that is held, and the pauses while it is waited for.
const ASKED_AGAIN: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// A lock of bytes of a file that is held or waited for.
struct RangeLock<'a, S: Threading> {
    file: &'a File<S>,
    range: Region,
    is_exclusive: bool,
    number: u64,
}

impl<S: Threading> RangeLock<'_, S> {
    /// Returns how many locks of others are ahead.
    async fn ask(&self, held: bool) -> Result<u32, Failure> {
        let RangeLock { file, range, is_exclusive, number } = *self;
        let datafile = file.datafile_handle(0);
        match self.send(IodRequest::Lock { datafile, range, exclusive: is_exclusive, number, held }).await? {
            ReplyBody::Iod(IodReply::Locked { ahead }) => Ok(ahead),
            other => Err(unexpected(&file.inner.servers[0], &other)),
        }
    }

    async fn give_back(&self) -> Result<(), Failure> {
        let datafile = self.file.datafile_handle(0);
        self.send(IodRequest::Unlock { datafile, number: self.number }).await.map(drop)
    }

    async fn send(&self, request: IodRequest) -> Result<ReplyBody, Failure> {
        let inner = self.file.client.inner();
        inner.ask(&self.file.inner.servers[0], inner.deadline(), Resend::Repeat, request).await
    }
}

/// An open file. A clone is another handle to it. A file need not be closed.
pub struct File<S: Threading = OneThread> {
    pub(super) client: Client<S>,
    pub(super) inner: Arc<OpenFile<S>>,
    is_atomic: bool,
}

/// An open file that any thread can use, if the transport is `Send`.
pub type SharedFile = File<AnyThread>;

pub(super) struct OpenFile<S: Threading> {
    client: Client<S>,
    path: FsPath,
    handle: FileHandle,
    pub(super) layout: Layout,
    pub(super) servers: Vec<ServerName>,
    /// By datafile: what was written and not synced since.
    pub(super) unsynced: Unsynced,
    /// By datafile: its size after the last write through this handle.
    pub(super) written_sizes: Locked<Vec<u64>>,
    pub(super) advice: Advice,
    views: ViewCache,
}

impl<S: Threading> Drop for OpenFile<S> {
    fn drop(&mut self) {
        self.client.inner().files.closed(self.handle);
    }
}

impl<S: Threading> Clone for File<S> {
    fn clone(&self) -> File<S> {
        File { client: self.client.clone(), inner: self.inner.clone(), is_atomic: self.is_atomic }
    }
}

impl<S: Threading> File<S> {
    /// Creates a file. `servers` are those of the layout, in its order.
    pub(crate) fn new(
        client: Client<S>,
        path: FsPath,
        handle: FileHandle,
        layout: Layout,
        servers: Vec<ServerName>,
        content: Content,
    ) -> File<S> {
        let unsynced = Unsynced::new(servers.len());
        let written_sizes = Locked::new(vec![0; servers.len()]);
        client.inner().files.opened(handle, content, &layout, client.inner().options.id);
        let advice = Advice::new(servers.len());
        let views = ViewCache::default();
        let own = client.clone();
        let inner = OpenFile { client: own, path, handle, layout, servers, unsynced, written_sizes, advice, views };
        File { client, inner: Arc::new(inner), is_atomic: false }
    }

    /// Gives hints, which the servers are told with the first access to each.
    pub(crate) fn hinting(self, hints: CacheHints) -> File<S> {
        if hints != CacheHints::default() {
            self.inner.advice.set(hints);
        }
        self
    }

    /// Returns a handle whose reads and writes are atomic, or not: of two accesses through atomic
    /// handles that have a byte in common, one comes after the other as a whole, whichever clients
    /// and servers they concern. This costs two requests to one server for each access, and what it
    /// waits for others. Accesses through other handles do not wait.
    ///
    /// An access fails with `Stale` if others may have come in between, because the server was
    /// restarted, or this client was silent for ten seconds. Its bytes may be written then. If a
    /// client ends in the middle of an access, or drops its future, others wait for ten seconds.
    ///
    /// **Source.** MPI-4.1, *Consistency and Semantics* (`MPI_File_set_atomicity`).
    #[must_use]
    pub fn atomic(&self, is_atomic: bool) -> File<S> {
        File { is_atomic, ..self.clone() }
    }

    pub(crate) fn is_atomic(&self) -> bool {
        self.is_atomic
    }

    /// Runs an access of a range of the file. No access of others that conflicts, and is through an
    /// atomic handle, runs meanwhile.
    pub(crate) async fn excluding<R>(
        &self,
        direction: Direction,
        range: Range<u64>,
        access: impl Future<Output = Result<R, Error>>,
    ) -> Result<R, Error> {
        if range.is_empty() {
            return access.await;
        }
        let lock = self.lock(direction, range).await?;
        let kept = pin!(async {
            loop {
                self.client.endpoint().sleep(ASKED_AGAIN).await;
                if let Err(failure) = lock.ask(true).await {
                    return failure;
                }
            }
        });
        // It goes on without the lock, so that it ends in order. Giving it back then fails.
        let result = match select(pin!(access), kept).await {
            Either::Left((result, _)) => result,
            Either::Right((_, access)) => access.await,
        };
        let given_back = lock.give_back().await;
        let result = result?;
        given_back.map(|()| result).map_err(Error::from)
    }

    /// Waits for a lock.
    async fn lock(&self, direction: Direction, range: Range<u64>) -> Result<RangeLock<'_, S>, Error> {
        let inner = self.client.inner();
        let lock = RangeLock {
            file: self,
            range: Region::new(range.start, range.end - range.start),
            is_exclusive: direction == Direction::Write,
            number: inner.connections.draw_number(),
        };
        let (deadline, mut pause) = (inner.deadline(), FIRST_PAUSE);
        loop {
            match lock.ask(false).await? {
                0 => return Ok(lock),
                ahead if inner.connections.endpoint().now() >= deadline => {
                    // It is forgotten in any case.
                    let _ = lock.give_back().await;
                    let text = format!("bytes {} are locked by others, {ahead} of them are ahead", lock.range);
                    return Err(Error::new(ErrorCode::Timeout, text));
                }
                _ => {
                    self.client.endpoint().sleep(pause).await;
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Says to the manager that this client is going to write, as its first write does. Afterwards
    /// the file can be written while the manager does not answer. A size that is recorded stays:
    /// only a write withdraws it.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn begin_write(&self) -> Result<(), Error> {
        if self.client.recorded_size(self.handle()).is_some() && !mutated("client/size-withdrawn-by-an-open") {
            return Ok(());
        }
        let begun = self.client.begin_write(self.handle()).await;
        begun.map(Writing::ended).map_err(|error| error.during(format!("open {} for writing", self.path())))
    }

    pub(crate) fn client(&self) -> &Client<S> {
        &self.client
    }

    pub(crate) fn advice(&self) -> &Advice {
        &self.inner.advice
    }

    pub(crate) fn views(&self) -> &ViewCache {
        &self.inner.views
    }

    /// Returns the path that the file was opened by.
    pub fn path(&self) -> &FsPath {
        &self.inner.path
    }

    /// Returns the file's handle.
    pub fn handle(&self) -> FileHandle {
        self.inner.handle
    }

    /// Returns the distribution of the file.
    pub fn distribution(&self) -> &Distribution {
        self.inner.layout.distribution()
    }

    /// Returns the servers that the file is striped over, in the order of the distribution.
    pub fn servers(&self) -> &[ServerName] {
        &self.inner.servers
    }

    /// Returns the record of what was written and not synced.
    pub(crate) fn unsynced(&self) -> &Unsynced {
        &self.inner.unsynced
    }

    /// Returns the handles of the datafiles, in the order of the distribution.
    pub(super) fn datafile_handles(&self) -> impl Iterator<Item = DatafileHandle> {
        self.inner.layout.datafiles().iter().map(|(_, handle)| *handle)
    }

    /// Returns the handle of a datafile, by its place in the distribution.
    pub(super) fn datafile_handle(&self, datafile: usize) -> DatafileHandle {
        self.inner.layout.datafiles()[datafile].1
    }
}
