//! An open file: what it is, what is known about it here, and accesses that exclude others.

use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bmi::Time;
use bmi::hooks::mutated;
use bmi::paths::Direction;
use bmi::threading::{AnyThread, OneThread, Threading};
use fs_proto::{
    Access, CacheHints, Content, DatafileHandle, Distribution, Entry, ErrorCode, FileHandle, IodReply, IodRequest,
    Layout, Region, ReplyBody,
};
use futures_util::future::{Either, select};

use super::advice::Advice;
use super::unsynced::Unsynced;
use crate::client::{Client, Striping, Writing};
use crate::error::{Error, Failure, ServerName};
use crate::locked::Locked;
use crate::net::{Outgoing, Resend, unexpected};
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
            other => Err(unexpected(&file.striping.servers[0], &other)),
        }
    }

    async fn give_back(&self) -> Result<(), Failure> {
        let datafile = self.file.datafile_handle(0);
        self.send(IodRequest::Unlock { datafile, number: self.number }).await.map(drop)
    }

    async fn send(&self, request: IodRequest) -> Result<ReplyBody, Failure> {
        let deadline = self.file.client.inner().deadline();
        self.file.ask(&self.file.striping.servers[0], deadline, Resend::Repeat, request).await
    }
}

/// An open file. A clone is another handle to it. A file need not be closed.
pub struct File<S: Threading = OneThread> {
    pub(super) client: Client<S>,
    pub(super) inner: Arc<OpenFile<S>>,
    /// Where its bytes are, as this handle knows it.
    pub(super) striping: Arc<Striping>,
    is_atomic: bool,
    is_close_to_open: bool,
}

/// An open file that any thread can use, if the transport is `Send`.
pub type SharedFile = File<AnyThread>;

pub(super) struct OpenFile<S: Threading> {
    client: Client<S>,
    path: FsPath,
    handle: FileHandle,
    /// Where its bytes are since it has grown.
    grown: OnceLock<Arc<Striping>>,
    /// By datafile: what was written and not synced since.
    pub(super) unsynced: Unsynced,
    /// By datafile: its size after the last write through this handle.
    pub(super) written_sizes: Locked<Vec<u64>>,
    pub(super) advice: Advice,
    views: ViewCache,
}

impl<S: Threading> Drop for OpenFile<S> {
    fn drop(&mut self) {
        let inner = self.client.inner();
        if !inner.files.closed(self.handle) {
            inner.connections.tickets.forget(self.handle);
        }
    }
}

impl<S: Threading> Clone for File<S> {
    fn clone(&self) -> File<S> {
        let (client, inner, striping) = (self.client.clone(), self.inner.clone(), self.striping.clone());
        File { client, inner, striping, is_atomic: self.is_atomic, is_close_to_open: self.is_close_to_open }
    }
}

impl<S: Threading> File<S> {
    pub(crate) fn new(
        client: Client<S>,
        path: FsPath,
        handle: FileHandle,
        striping: Striping,
        told: (Content, Access),
    ) -> File<S> {
        let striping = Arc::new(striping);
        // Also those that it gets when it grows.
        let datafiles = striping.layout.most_servers() as usize;
        let unsynced = Unsynced::new(datafiles);
        let written_sizes = Locked::new(vec![0; datafiles]);
        client.inner().files.opened(handle, told, &striping.layout, client.inner().options.id);
        let advice = Advice::new(datafiles);
        let views = ViewCache::default();
        let (own, grown) = (client.clone(), OnceLock::new());
        let inner = OpenFile { client: own, path, handle, grown, unsynced, written_sizes, advice, views };
        File { client, inner: Arc::new(inner), striping, is_atomic: false, is_close_to_open: false }
    }

    /// Sends a request about a datafile, without data.
    pub(super) async fn ask(
        &self,
        server: &ServerName,
        deadline: Time,
        resend: Resend,
        request: IodRequest,
    ) -> Result<ReplyBody, Failure> {
        let outgoing = self.outgoing(request);
        Ok(self.client.inner().connections.call(server, deadline, resend, &outgoing).await?.body)
    }

    /// Returns a request about a datafile, without data.
    pub(super) fn outgoing(&self, request: IodRequest) -> Outgoing {
        Outgoing::plain(request).about(self.handle()).by(self.client.named_caller())
    }

    /// Checks that this client may read the file: servers in the clear do not.
    pub(super) fn check_readable(&self) -> Result<(), Error> {
        if self.client.inner().files.access(self.handle()).has(Access::READ) {
            return Ok(());
        }
        let text = format!("{} may not read {}", self.client.caller(), self.inner.path);
        Err(Error::new(ErrorCode::Permission, text))
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

    /// Returns a handle that may believe what was known of the file when it was opened: that
    /// another client has written behind the first strip of a small file
    /// ([`CreateOptions::small`](crate::CreateOptions::small)) is noticed when it is opened the
    /// next time. Other handles ask the manager at the end of a small file.
    #[must_use]
    pub fn close_to_open(&self) -> File<S> {
        File { is_close_to_open: true, ..self.clone() }
    }

    /// Returns a handle that believes nothing of before.
    pub(super) fn strict(&self) -> File<S> {
        File { is_close_to_open: false, ..self.clone() }
    }

    /// Takes what the manager has told of this file, as if it was opened anew.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn update(&self, entry: &Entry) -> Result<(), Error> {
        match &entry.layout {
            Some(layout) => self.adopt(layout).await.map(drop),
            None => Ok(()),
        }
    }

    /// Takes a layout. Returns a handle with the one that was told last.
    async fn adopt(&self, layout: &Layout) -> Result<File<S>, Error> {
        let latest = self.latest();
        if latest.limit().is_none() || layout.limit().is_some() {
            return Ok(latest);
        }
        if layout.most_servers() > latest.striping.layout.most_servers() {
            return Err(Error::new(ErrorCode::Protocol, "the file has grown to more servers than it may"));
        }
        let striping = Arc::new(self.client.striping(layout.clone()).await?);
        self.client.inner().files.has_grown(self.handle(), layout);
        // A file grows once.
        let striping = self.inner.grown.get_or_init(|| striping).clone();
        Ok(File { striping, ..self.clone() })
    }

    /// Returns a handle that knows what was told last.
    pub(crate) fn latest(&self) -> File<S> {
        File { striping: self.inner.grown.get().unwrap_or(&self.striping).clone(), ..self.clone() }
    }

    /// Returns a handle that knows what this client was told last, also through other handles.
    pub(super) async fn told(&self) -> Result<File<S>, Error> {
        match self.client.inner().files.layout(self.handle()) {
            Some(layout) => self.adopt(&layout).await,
            None => Ok(self.latest()),
        }
    }

    /// Returns the number of bytes up to which the file is small, as far as this handle knows;
    /// `None` if it has all its datafiles.
    pub(super) fn limit(&self) -> Option<u64> {
        self.striping.layout.limit()
    }

    /// Asks the manager whether a small file has grown.
    pub(super) async fn look(&self) -> Result<File<S>, Error> {
        let entry = self.client.confirm(self.handle()).await?;
        match &entry.layout {
            Some(layout) => self.adopt(layout).await,
            None => Ok(self.latest()),
        }
    }

    /// Lets a small file grow, before anything is written behind its limit.
    pub(crate) async fn grown(&self) -> Result<File<S>, Error> {
        let latest = self.latest();
        if latest.limit().is_none() {
            return Ok(latest);
        }
        let layout = self.client.grow(self.handle()).await?;
        let grown = self.adopt(&layout).await?;
        match grown.limit() {
            None => Ok(grown),
            Some(_) => Err(Error::new(ErrorCode::Protocol, "the manager let the file grow, and it is small")),
        }
    }

    pub(super) fn is_close_to_open(&self) -> bool {
        self.is_close_to_open
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

    /// Returns the distribution of the file. Of one that is small, as far as is known here, that
    /// over its first server.
    pub fn distribution(&self) -> &Distribution {
        &self.inner.grown.get().unwrap_or(&self.striping).distribution
    }

    /// Returns the servers that the file is striped over, in the order of the distribution.
    pub fn servers(&self) -> &[ServerName] {
        &self.inner.grown.get().unwrap_or(&self.striping).servers
    }

    /// Returns true if the file began small ([`CreateOptions::small`](crate::CreateOptions::small))
    /// and has not grown, as far as is known here.
    pub fn is_small(&self) -> bool {
        self.latest().limit().is_some()
    }

    /// Returns the record of what was written and not synced.
    pub(crate) fn unsynced(&self) -> &Unsynced {
        &self.inner.unsynced
    }

    /// Returns the handles of the datafiles, in the order of the distribution.
    pub(super) fn datafile_handles(&self) -> impl Iterator<Item = DatafileHandle> {
        self.striping.layout.datafiles().iter().map(|(_, handle)| *handle)
    }

    /// Returns the handle of a datafile, by its place in the distribution.
    pub(super) fn datafile_handle(&self, datafile: usize) -> DatafileHandle {
        self.striping.layout.datafiles()[datafile].1
    }
}
