//! Hints for the caches of the I/O servers, and questions to these caches.
//!
//! **Hints.** A program tells how it will use a file: when it opens it, or with [`File::advise`].
//! Hints that are given with an open travel beside the first data that is read or written at each
//! server, just ahead of it on the same connection:
//!
//! ```text
//!   client                                  server
//!     Advise(datafile, hints)        ────▶  the hints count from here on
//!     Read or Write                  ────▶
//!                                    ◀────  Done
//!                                    ◀────  Read or Written     the access ends here in any case
//! ```
//!
//! So opening a file costs no round trip more, and neither does an access to it.
//!
//! **Invariants**
//! 1. Hints are of a datafile, not of an open file: whoever gives some replaces those of others.
//! 2. A failure to give hints fails no access. They are given again with the next access, unless
//!    the server has answered.
//! 3. Nothing is stored: a server that is restarted does not know the hints any more.
//! 4. A server cannot make a question endless: each answer must be about what follows.
//!
//! **Source.** [Unifier-PVFS §4.2], [Unifier-PVFS §4.4.1].
//!
//! **Tests.** `tests/it/simulated/caches.rs`, with real I/O servers that have a cache.

use bmi::threading::Threading;
use fs_proto::limits::MAX_OFFSET;
use fs_proto::{
    CacheCoverage, CacheHints, CacheState, CachedFile, DatafileHandle, ErrorCode, IodReply, IodRequest, ReplyBody,
};
use futures_util::future::{Either, join_all, select};

use super::handle::File;
use crate::client::Client;
use crate::error::{Error, Failure, ServerName};
use crate::net::{Answer, Outgoing, Resend, unexpected};

/// Most answers to one question about the busiest files of a server. An answer is about 1,024
/// files, or about fewer if more are asked for than a reply has room for.
const MOST_PAGES: usize = 4096;

/// The cache of one I/O server.
#[derive(Clone, Debug)]
pub struct ServerCache {
    /// The server.
    pub server: ServerName,
    /// The state of its cache, with the busiest files, or the reason why it is not known. `next` is
    /// set if the server has so many files that not all were looked at.
    pub result: Result<CacheState, Error>,
}

/// How much of a range of a file is in the caches of its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// All servers together.
    pub total: CacheCoverage,
    /// Each server, in the order of the distribution.
    pub servers: Vec<ServerCoverage>,
}

/// How much of a range of a file is in the cache of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerCoverage {
    /// The server.
    pub server: ServerName,
    /// The server's handle for its share of the file.
    pub datafile: DatafileHandle,
    /// Bytes of the range that are on this server.
    pub len: u64,
    /// What is in its cache; `None` if it has no cache of its own.
    pub coverage: Option<CacheCoverage>,
}

impl<S: Threading> File<S> {
    /// Tells the file's servers how it will be used, by this client and others, in place of what
    /// they were told before. Servers without a cache of their own do nothing with it. The others
    /// ignore what makes no sense, and may overrule the rest. They forget it when they are
    /// restarted, and when hints were given for very many other files since.
    ///
    /// # Errors
    /// Those of every request. A server that could not be told is told with the next access to it.
    pub async fn advise(&self, hints: CacheHints) -> Result<(), Error> {
        let file = self.latest();
        file.advice().set(hints);
        let told = join_all((0..file.striping.servers.len()).map(|datafile| file.tell(datafile, Resend::Repeat))).await;
        Error::unless_all(told).map(drop).map_err(|error| error.during(format!("advise {}", self.path())))
    }

    /// Tells one server, unless it was told already.
    async fn tell(&self, datafile: usize, resend: Resend) -> Result<(), Failure> {
        let Some(telling) = self.advice().take(datafile) else { return Ok(()) };
        let (inner, server) = (self.client().inner(), &self.striping.servers[datafile]);
        let request = IodRequest::Advise { datafile: self.datafile_handle(datafile), hints: telling.hints };
        let result = self.ask(server, inner.deadline(), resend, request).await;
        telling.ended(&result);
        result.map(drop)
    }

    /// Sends a request with data to a server that must still be told. The hints go first, and are
    /// not waited for.
    pub(super) async fn tell_and_call(
        &self,
        datafile: usize,
        resend: Resend,
        outgoing: &Outgoing,
    ) -> Result<Answer, Failure> {
        let inner = self.client().inner();
        let told = std::pin::pin!(self.tell(datafile, Resend::Never));
        let call = inner.connections.call(&self.striping.servers[datafile], inner.deadline(), resend, outgoing);
        match select(told, std::pin::pin!(call)).await {
            Either::Left((_, call)) => call.await,
            Either::Right((answer, _)) => answer,
        }
    }

    /// Returns how much of `len` bytes from `offset` on is in the caches of the file's servers. A
    /// cache has whole units, so bytes beyond the end of the file may count.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn cached(&self, offset: u64, len: u64) -> Result<Cached, Error> {
        let (from, to) = (offset.min(MAX_OFFSET), offset.saturating_add(len).min(MAX_OFFSET));
        // A range of the file is one range on each server.
        let file = &self.latest();
        let bound = |datafile: usize, offset: u64| file.striping.distribution.datafile_size(datafile, offset);
        let asked = (0..file.striping.servers.len()).map(async |datafile| {
            let (first, end) = (bound(datafile, from), bound(datafile, to));
            let coverage = file.coverage(datafile, first, end).await?;
            let (server, handle) = (file.striping.servers[datafile].clone(), file.datafile_handle(datafile));
            Ok::<_, Failure>(ServerCoverage { server, datafile: handle, len: end - first, coverage })
        });
        let servers = Error::unless_all(join_all(asked).await);
        let servers = servers.map_err(|error| error.during(format!("cache of {}", self.path())))?;
        let mut total = CacheCoverage::default();
        servers.iter().filter_map(|server| server.coverage).for_each(|coverage| total += coverage);
        Ok(Cached { total, servers })
    }

    /// Returns how much of a range of one datafile is in its server's cache.
    async fn coverage(&self, datafile: usize, first: u64, end: u64) -> Result<Option<CacheCoverage>, Failure> {
        let (inner, server) = (self.client().inner(), &self.striping.servers[datafile]);
        let (mut sum, mut at) = (CacheCoverage::default(), first);
        loop {
            let (datafile, len) = (self.datafile_handle(datafile), end - at);
            let request = IodRequest::CacheCoverage { datafile, offset: at, len };
            match self.ask(server, inner.deadline(), Resend::Repeat, request).await? {
                ReplyBody::Iod(IodReply::CacheCoverage { coverage: None, .. }) => return Ok(None),
                ReplyBody::Iod(IodReply::CacheCoverage { coverage: Some(part), next }) => {
                    sum += part;
                    match next {
                        None => return Ok(Some(sum)),
                        Some(next) if at < next && next < end => at = next,
                        Some(_) => return Err(disorder(server)),
                    }
                }
                other => return Err(unexpected(server, &other)),
            }
        }
    }
}

impl<S: Threading> Client<S> {
    /// Returns the state of each I/O server's cache, and the `files` datafiles of each that were
    /// read and written most since they are in the cache, the busiest one first.
    pub async fn cache_state(&self, files: usize) -> Vec<ServerCache> {
        let ask = async |server: ServerName| {
            let result = self.cache_of(&server, files).await;
            ServerCache { server, result: result.map_err(|failure| Error::from(failure).during("cache")) }
        };
        join_all(self.iods().into_iter().map(ask)).await
    }

    async fn cache_of(&self, server: &ServerName, files: usize) -> Result<CacheState, Failure> {
        let inner = self.inner();
        let (mut after, mut busiest) = (None, Vec::<CachedFile>::new());
        let wanted = u32::try_from(files).unwrap_or(u32::MAX);
        for page in 1.. {
            let request = IodRequest::CacheState { after, files: wanted };
            let reply = inner.ask(server, inner.deadline(), Resend::Repeat, request).await?;
            let ReplyBody::Iod(IodReply::CacheState(state)) = reply else { return Err(unexpected(server, &reply)) };
            busiest.extend(&state.files);
            busiest.sort_by_key(|file| (std::cmp::Reverse(file.moved()), file.datafile));
            busiest.truncate(files);
            match state.next {
                Some(next) if after.is_some_and(|after| next <= after) => return Err(disorder(server)),
                Some(_) if page < MOST_PAGES => after = state.next,
                _ => return Ok(CacheState { files: busiest, ..*state }),
            }
        }
        unreachable!("the last page ends it")
    }
}

fn disorder(server: &ServerName) -> Failure {
    Failure::at(server.clone(), ErrorCode::Protocol, "a page about its cache out of its order")
}
