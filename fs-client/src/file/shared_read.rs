//! Shared reads: a view of the servers' own pages, where client and server are on one host.
//!
//! **Protocol.**
//!
//! ```text
//!   client                                         server
//!     ReadShared(datafile, offset, len)   ────▶    fills the granules that are not in the segment
//!                                         ◀────    Shared(key of the segment, size, lease)
//!     maps the segment, the first time
//!     versions, bytes, versions
//!       … as long as the lease holds, no message is needed for the same granules …
//! ```
//!
//! **Invariants**
//! 1. A view is lent for the whole range, or not at all. Otherwise the bytes are read as usual.
//! 2. Without asking, a range is lent only if its granules have a version, the lease holds, and all
//!    of its bytes are before the end of the datafile as long as that version is unchanged. A
//!    truncation changes it.
//! 3. Mappings that a file keeps are bounded. All mappings of the client are bounded by its
//!    transport.
//!
//! **Tests.** `tests/it/views.rs`.

use std::time::Duration;

use bmi::bulk::{RemoteKey, RemoteSlice};
use bmi::memory::RemoteView;
use bmi::threading::Threading;
use fs_proto::limits::MAX_OFFSET;
use fs_proto::{
    ErrorCode, IodReply, IodRequest, Region, ReplyBody, VIEW_HEADER, VIEW_SEGMENT, VIEW_WINDOW, ViewGrant, ViewRange,
    ViewRefusal,
};
use futures_util::future::join_all;

use super::handle::File;
use crate::error::{Error, Failure};
use crate::net::{Resend, unexpected};
use crate::shared::{Loan, Part, SharedPlan, SharedView, versions};

/// Longest range that is lent, in bytes.
const LONGEST: u64 = 64 << 20;
/// How often the client looks whether the pages of a segment have arrived, each time after a
/// millisecond.
const LOOKS: usize = 100;

/// A range of a datafile within one window.
struct Wanted {
    datafile: usize,
    range: ViewRange,
}

impl Wanted {
    fn begin(&self) -> u64 {
        self.range.window * VIEW_WINDOW + self.range.offset
    }

    fn end(&self) -> u64 {
        self.begin() + self.range.len
    }
}

/// What a server has lent, and the size of its datafile if it was asked.
struct Lent {
    loan: Loan,
    size: Option<u64>,
}

impl<S: Threading> File<S> {
    /// Returns a view of `len` bytes from `offset` on, which the servers lend where they can: the
    /// bytes are then read in the servers' own pages, and nothing is copied. Where they cannot, the
    /// bytes are read into memory of the view; [`SharedView::why_copied`] tells why.
    ///
    /// The first view of a range costs a round trip, and the server a copy of what others have not
    /// asked for yet. Later ones cost no message as long as the lease holds and nobody changes the
    /// bytes. The server never waits for a client: before the bytes change, or when it needs the
    /// memory, it takes them back, and [`SharedView::check`] fails from then on. So look at the
    /// bytes first, then check, and only then use what was found:
    ///
    /// ```no_run
    /// # use bmi::threading::OneThread;
    /// # use fs_client::{Error, File, Stale};
    /// # async fn example(file: &File<OneThread>) -> Result<(), Error> {
    /// let mut bytes = vec![0; 1 << 20];
    /// loop {
    ///     let view = file.read_shared(0, bytes.len() as u64).await?;
    ///     let len = view.len();
    ///     match view.copy_to(0, &mut bytes[..len]) {
    ///         Ok(()) => break bytes.truncate(len),
    ///         Err(Stale) => continue, // it was changed in between
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`File::read_at`]; `TooLarge` if the range ends beyond the largest offset.
    pub async fn read_shared(&self, offset: u64, len: u64) -> Result<SharedView, Error> {
        let during = |error: Error| error.during(format!("shared read of {}", self.path()));
        let region = Region::new(offset, len);
        if region.end().is_none() {
            let text = format!("bytes {region} reach beyond the largest offset, {MAX_OFFSET}");
            return Err(during(Error::new(ErrorCode::TooLarge, text)));
        }
        self.check_readable().map_err(during)?;
        let file = &self.latest();
        let wanted = file.wanted(region);
        let why = match file.reason_against(len, &wanted) {
            Some(why) => why,
            None => match file.lend(region, &wanted).await {
                Ok(Ok(view)) => return Ok(view),
                Ok(Err(why)) => why,
                Err(error) => return Err(during(self.explain(error).await)),
            },
        };
        let too_large = || during(Error::new(ErrorCode::TooLarge, format!("no memory for {len} bytes")));
        let bytes = usize::try_from(len).map_err(|_| too_large())?;
        let memory = self.client().memory(bytes).map_err(|_| too_large())?;
        let read = self.read_at(offset, &memory).await?;
        Ok(SharedView::own(memory, read as usize, why))
    }

    /// Returns whether a shared read of a range lends the servers' pages, as far as this client
    /// knows. It asks nobody.
    pub fn plan_shared(&self, offset: u64, len: u64) -> SharedPlan {
        let region = Region::new(offset, len);
        if region.end().is_none() {
            return SharedPlan { lends: false, why: format!("bytes {region} reach beyond the largest offset") };
        }
        let file = self.latest();
        let wanted = file.wanted(region);
        if let Some(why) = file.reason_against(len, &wanted) {
            return SharedPlan { lends: false, why };
        }
        let now = self.client().endpoint().now();
        let known = wanted.iter().all(|wanted| self.views().held(wanted.datafile, &wanted.range, now).is_some());
        let why = if known {
            "they are mapped and unchanged, and no server is asked"
        } else {
            "the servers are asked for them, and may have reasons not to"
        };
        SharedPlan { lends: true, why: why.to_owned() }
    }

    /// Returns why a range is not lent, as far as that is known without asking.
    fn reason_against(&self, len: u64, wanted: &[Wanted]) -> Option<String> {
        if len == 0 {
            return Some("there is nothing to lend".to_owned());
        }
        if len > LONGEST {
            return Some(format!("{len} bytes at once; at most {LONGEST} are lent"));
        }
        if self.limit().is_some() {
            return Some("the file is small, and may grow".to_owned());
        }
        if wanted.is_empty() {
            return Some("it reaches to the largest offset".to_owned());
        }
        let now = self.client().endpoint().now();
        wanted.iter().find_map(|wanted| {
            let server = &self.striping.servers[wanted.datafile];
            let lends = match self.client().inner().connections.connected(&server.addr) {
                Some(peer) => peer.endpoint().with(|engine| engine.transport().capabilities().shares_pages),
                None => true, // it is connected first
            };
            if !lends {
                return Some(format!("the transport to {server} shares no pages"));
            }
            self.views().refusal(wanted.datafile, now).map(|why| format!("{server}: {why}"))
        })
    }

    /// Cuts a range of the file into ranges of datafiles, each within a window. Returns none if a
    /// part of it cannot be lent.
    fn wanted(&self, region: Region) -> Vec<Wanted> {
        let bound = |datafile: usize, offset: u64| self.striping.distribution.datafile_size(datafile, offset);
        let mut wanted = Vec::new();
        if region.len > LONGEST {
            return wanted;
        }
        for datafile in 0..self.striping.servers.len() {
            let (mut at, end) = (bound(datafile, region.offset), bound(datafile, region.offset + region.len));
            while at < end {
                let len = (VIEW_WINDOW - at % VIEW_WINDOW).min(end - at);
                let Some(range) = ViewRange::of(at, len) else { return Vec::new() };
                wanted.push(Wanted { datafile, range });
                at += len;
            }
        }
        wanted
    }

    /// Borrows a range from all its servers. Returns the reason if one of them does not lend.
    async fn lend(&self, region: Region, wanted: &[Wanted]) -> Result<Result<SharedView, String>, Error> {
        let now = self.client().endpoint().now();
        let mut lent = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            let held = self.views().held(wanted.datafile, &wanted.range, now);
            lent.push(held.map(|loan| Lent { loan, size: None }));
        }
        let lent: Result<Vec<Lent>, String> = if lent.iter().all(Option::is_some) {
            Ok(lent.into_iter().flatten().collect())
        } else {
            let asked = lent.into_iter().zip(wanted).map(async |(lent, wanted)| match lent {
                Some(lent) => Ok(Ok(lent)),
                None => self.ask_for(wanted).await,
            });
            Error::unless_all(join_all(asked).await)?.into_iter().collect()
        };
        let lent = match lent {
            Ok(lent) => lent,
            Err(why) => return Ok(Err(why)),
        };
        let len = self.lent_len(region, wanted, &lent).await?;
        let parts = self.parts(region, wanted);
        Ok(Ok(SharedView::lent(lent.into_iter().map(|lent| lent.loan).collect(), parts, len as usize)))
    }

    /// Returns how many bytes of a range are before the end of the file.
    async fn lent_len(&self, region: Region, wanted: &[Wanted], lent: &[Lent]) -> Result<u64, Error> {
        let mut sizes = vec![None; self.striping.servers.len()];
        let mut least = vec![0; self.striping.servers.len()];
        for (wanted, lent) in wanted.iter().zip(lent) {
            let (size, known) = (&mut sizes[wanted.datafile], &mut least[wanted.datafile]);
            *size = lent.size.max(*size);
            *known = lent.size.unwrap_or(wanted.end()).max(*known);
        }
        self.check_lengths(&sizes).await?;
        let last = region.offset + region.len;
        if self.striping.distribution.file_size(&least) >= last {
            return Ok(region.len);
        }
        Ok(self.end_of(&sizes, last).await?.saturating_sub(region.offset).min(region.len))
    }

    /// Returns where the bytes of a range are in the segments, in the order of the file.
    fn parts(&self, region: Region, wanted: &[Wanted]) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for strip in self.striping.distribution.strips(region) {
            let (mut at, end) = (strip.at.physical, strip.at.physical + strip.len);
            while at < end {
                let is_there = |wanted: &Wanted| {
                    wanted.datafile == strip.at.server && (wanted.begin()..wanted.end()).contains(&at)
                };
                let loan = wanted.iter().position(is_there).expect("every strip is in what is wanted");
                let len = (end.min(wanted[loan].end()) - at) as usize;
                let place = (VIEW_HEADER + at % VIEW_WINDOW) as usize;
                match parts.last_mut() {
                    Some(last) if last.loan == loan && last.at + last.len == place => last.len += len,
                    _ => parts.push(Part { loan, at: place, len }),
                }
                at += len as u64;
            }
        }
        parts
    }

    /// Asks a server for a range. Returns the reason if it does not lend it.
    async fn ask_for(&self, wanted: &Wanted) -> Result<Result<Lent, String>, Failure> {
        let inner = self.client().inner();
        let (server, datafile) = (&self.striping.servers[wanted.datafile], self.datafile_handle(wanted.datafile));
        let now = || self.client().endpoint().now();
        let request = || IodRequest::ReadShared { datafile, offset: wanted.begin(), len: wanted.range.len };
        for _ in 0..2 {
            // A key is one of the connection over which it came.
            let before = inner.connections.peer(server, inner.deadline()).await?;
            let asked = now();
            let grant = match self.ask(server, inner.deadline(), Resend::Repeat, request()).await? {
                ReplyBody::Iod(IodReply::Shared(Ok(grant))) => grant,
                ReplyBody::Iod(IodReply::Shared(Err(why))) => {
                    return Ok(Err(self.refused(wanted, why)));
                }
                other => return Err(unexpected(server, &other)),
            };
            if inner.connections.peer(server, inner.deadline()).await? != before {
                continue;
            }
            let Some(view) = self.mapped(wanted, &grant).await else {
                return Ok(Err(self.refused(wanted, ViewRefusal::NotLocal)));
            };
            self.views().keep(
                wanted.datafile,
                &wanted.range,
                &view,
                asked + Duration::from_millis(grant.lease_ms.into()),
            );
            if let Some(versions) = versions(&view, &wanted.range, false) {
                return Ok(Ok(Lent { loan: Loan { view, versions }, size: Some(grant.size) }));
            }
            // It was changed meanwhile.
        }
        Ok(Err(self.refused(wanted, ViewRefusal::Changing)))
    }

    /// Remembers that a server does not lend a range now. Returns the reason for the reader.
    fn refused(&self, wanted: &Wanted, why: ViewRefusal) -> String {
        self.views().refused(wanted.datafile, why, self.client().endpoint().now());
        format!("{}: {why}", self.striping.servers[wanted.datafile])
    }

    /// Returns the segment of a grant, as soon as it is mapped here.
    async fn mapped(&self, wanted: &Wanted, grant: &ViewGrant) -> Option<RemoteView> {
        let remote = RemoteSlice { key: RemoteKey(grant.key), addr: grant.addr, len: VIEW_SEGMENT };
        let server = &self.striping.servers[wanted.datafile];
        for _ in 0..LOOKS {
            let peer = self.client().inner().connections.connected(&server.addr)?;
            let endpoint = peer.endpoint();
            if !endpoint.with(|engine| engine.transport().capabilities().shares_pages) {
                return None;
            }
            if let Some(view) = endpoint.with(|engine| engine.view(peer.id(), remote)) {
                return Some(view);
            }
            // The pages come beside the reply.
            endpoint.sleep(Duration::from_millis(1)).await;
        }
        None
    }
}
