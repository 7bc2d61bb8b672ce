//! Compares restored metadata with the datafiles that the I/O servers have.
//!
//! **Why.** The metadata is of the copy's time, the datafiles are of now. A file that was removed
//! since is back, but its datafiles are gone: reading it is an error. A file that was created since
//! is gone, but its datafiles are there. Both are listed, and nothing is changed.
//!
//! **How.** This runs beside the service. One I/O server after the other is asked for its
//! datafiles. Only handles of earlier starts of the manager are compared, because those of the
//! current start come and go meanwhile. A datafile that seems to be missing is looked for in the
//! metadata again at the end: its file may have been removed meanwhile.
//!
//! Many of the datafiles without a file are empty: the manager had them created in advance.
//!
//! Memory is needed for the handles of one I/O server, nine bytes each, and for what is found.
//!
//! **Layout** of the report: a line for each finding.
//!
//! ```text
//!   missing  iod0  000001000000e100  "/a/b"         the file's datafile is not there
//!   unowned  iod1  000001000000e1ff  4096 bytes     no file has this datafile
//!   # complete: 1 datafiles missing, 1 datafiles without a file, 0 of them empty
//! ```

use std::collections::BTreeMap;
use std::io::{self, Write};

use bstr::{BStr, BString, ByteSlice};
use fs_proto::{COUNT_BITS, DatafileHandle, DirHandle, ErrorCode, FsError, IodReply, IodRequest, Kind, ReplyBody};
use redb::{ReadTransaction, ReadableTable};

use super::maintenance::Link;
use crate::call;
use crate::manager::Manager;
use crate::manager::tables::{NAMES, OBJECTS, Object, kind_number, objects_from};

/// Number of objects that are looked at before other work is done.
const STEP: usize = 256;

/// Datafiles and their sizes.
type WithSizes = Vec<(u64, Option<u64>)>;

/// Number of findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inventory {
    pub(crate) missing: u64,
    pub(crate) unowned: u64,
    /// How many of `unowned` are empty.
    pub(crate) empty: u64,
}

impl std::fmt::Display for Inventory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} datafiles missing, {} datafiles without a file, {} of them empty",
            self.missing, self.unowned, self.empty
        )
    }
}

impl Manager {
    /// Compares the metadata with the datafiles of all I/O servers, and writes the report to `out`.
    /// Waits for servers that are down.
    ///
    /// # Errors
    /// `Io` if the report cannot be written, or the store fails.
    pub(crate) async fn take_inventory(&self, out: &mut impl Write) -> Result<Inventory, FsError> {
        let failed = |error: io::Error| FsError::new(ErrorCode::Io, format!("the report: {error}"));
        let mut total = Inventory::default();
        for iod in 0..self.iods() {
            let mut link = Link::new(self.towards(&self.settings.iods[iod as usize]).clone(), iod);
            let (owned, there, unowned) = loop {
                let owned = self.owned(iod).await?;
                match self.compare(&mut link, &owned).await {
                    Ok((there, unowned)) => break (owned, there, unowned),
                    Err(error) => tracing::debug!(iod, %error, "the inventory is tried again"),
                }
                link.close().await;
                self.endpoint.sleep(self.settings.heartbeat).await;
            };
            link.close().await;
            let absent = owned.iter().zip(&there).filter(|(_, there)| !**there).map(|(handle, _)| *handle).collect();
            let missing = self.files_of(iod, absent).await?;
            for (handle, path) in &missing {
                writeln!(out, "missing  iod{iod}  {handle:016x}  {path:?}").map_err(failed)?;
            }
            for (handle, size) in &unowned {
                let size = size.map_or("size unknown".to_owned(), |size| format!("{size} bytes"));
                writeln!(out, "unowned  iod{iod}  {handle:016x}  {size}").map_err(failed)?;
            }
            let empty = unowned.iter().filter(|(_, size)| *size == Some(0)).count() as u64;
            let found = Inventory { missing: missing.len() as u64, unowned: unowned.len() as u64, empty };
            writeln!(out, "# iod{iod}: {found}").and_then(|()| out.flush()).map_err(failed)?;
            total.missing += found.missing;
            total.unowned += found.unowned;
            total.empty += found.empty;
        }
        writeln!(out, "# complete: {total}").and_then(|()| out.flush()).map_err(failed)?;
        Ok(total)
    }

    /// Returns true for a handle of an earlier start of the manager.
    fn is_earlier(&self, handle: u64) -> bool {
        handle >> COUNT_BITS < self.identity.start.epoch
    }

    /// Calls `visit` with every object and its number.
    async fn visit(&self, mut visit: impl FnMut(u64, &Object)) -> Result<(), FsError> {
        let mut from = Some(0);
        while let Some(first) = from.take() {
            let page = |read: &ReadTransaction| objects_from(&read.open_table(OBJECTS)?, first, STEP + 1);
            let page = self.read(page).await?;
            from = page.get(STEP).map(|(raw, _)| *raw);
            page.iter().take(STEP).for_each(|(raw, object)| visit(*raw, object));
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Returns the datafiles of files that an I/O server must have, sorted.
    async fn owned(&self, iod: u32) -> Result<Vec<u64>, FsError> {
        let mut owned = Vec::new();
        self.visit(|_, object| owned.extend(datafiles(object, iod).filter(|handle| self.is_earlier(*handle)))).await?;
        owned.sort_unstable();
        Ok(owned)
    }

    /// Lists the datafiles of an I/O server. Returns which of `owned` are there, and those that are
    /// not in `owned`, with their sizes where the server could tell.
    async fn compare(&self, link: &mut Link, owned: &[u64]) -> Result<(Vec<bool>, WithSizes), FsError> {
        if !self.is_up(link.iod()) {
            return Err(FsError::new(ErrorCode::Unreachable, "the I/O server has not registered"));
        }
        self.connect(link).await?;
        let (mut there, mut unowned) = (vec![false; owned.len()], Vec::new());
        let mut after = None;
        loop {
            let reply = link.ask(IodRequest::List { after }).await?;
            let ReplyBody::Iod(IodReply::Datafiles { handles, more }) = reply else { return Err(call::unexpected()) };
            for DatafileHandle(handle) in &handles {
                match owned.binary_search(handle) {
                    Ok(at) => there[at] = true,
                    Err(_) if self.is_earlier(*handle) => unowned.push(*handle),
                    Err(_) => {}
                }
            }
            if !more {
                break;
            }
            // A server that lists nothing and promises more would keep this loop forever.
            after = Some(*handles.last().ok_or_else(call::unexpected)?);
        }
        unowned.sort_unstable();
        unowned.dedup();
        let mut sized = Vec::with_capacity(unowned.len());
        for handle in unowned {
            let size = match link.ask(IodRequest::Getsize { datafile: DatafileHandle(handle) }).await {
                Ok(ReplyBody::Iod(IodReply::Held { size, .. })) => Some(size),
                Ok(_) => return Err(call::unexpected()),
                Err(error) if error.is_retryable() => return Err(error),
                Err(_) => None,
            };
            sized.push((handle, size));
        }
        Ok((there, sized))
    }

    /// Returns those of `datafiles` that belong to a file now, with the file's path.
    async fn files_of(&self, iod: u32, absent: Vec<u64>) -> Result<Vec<(u64, BString)>, FsError> {
        if absent.is_empty() {
            return Ok(Vec::new());
        }
        let mut files = BTreeMap::new();
        let belongs = |handle: &u64| absent.binary_search(handle).is_ok();
        self.visit(|raw, object| {
            for handle in datafiles(object, iod).filter(belongs) {
                files.insert(handle, raw);
            }
        })
        .await?;
        let wanted: std::collections::BTreeSet<u64> = files.values().copied().collect();
        let named = |read: &ReadTransaction| {
            let mut named = BTreeMap::new();
            for row in read.open_table(NAMES)?.iter()? {
                let (key, value) = row?;
                let ((dir, name), (raw, kind)) = (key.value(), value.value());
                if kind == kind_number(Kind::Dir) || wanted.contains(&raw) {
                    named.insert(raw, (dir, BString::from(name)));
                }
            }
            Ok(named)
        };
        let named = self.read(named).await?;
        // Ends also if the names of a damaged store are in a circle. A path has at most 4096 bytes.
        let depth = 4096;
        let path = |mut raw: u64| {
            let mut parts = Vec::new();
            while let Some((dir, name)) = named.get(&raw) {
                parts.push(name.as_bstr());
                raw = *dir;
                if raw == DirHandle::ROOT.0 || parts.len() > depth {
                    break;
                }
            }
            parts.push(BStr::new(""));
            parts.reverse();
            BString::from(bstr::join("/", parts))
        };
        // A file without a name was removed meanwhile.
        let found = files.into_iter().filter(|(_, raw)| named.contains_key(raw));
        Ok(found.map(|(handle, raw)| (handle, path(raw))).collect())
    }
}

/// Returns an object's datafiles on an I/O server.
fn datafiles(object: &Object, iod: u32) -> impl Iterator<Item = u64> {
    let all = object.layout.iter().flat_map(fs_proto::Layout::datafiles);
    all.filter(move |(server, _)| *server == iod).map(|(_, handle)| handle.0)
}
