//! The datafiles of the I/O servers, compared with the files of the manager.

use std::collections::{BTreeMap, BTreeSet};

use bmi::threading::Threading;
use fs_proto::{
    CheckRow, Content, DatafileHandle, ErrorCode, FileHandle, Fix, IodReply, IodRequest, Layout, ReplyBody,
};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};

use super::finding::{Finding, Report};
use super::repair::LOST_FOUND;
use super::tables::Tables;
use crate::client::Client;
use crate::error::{Error, Failure, ServerName};
use crate::net::Resend;

/// Datafiles whose sizes are asked for before the progress is told.
const STEP: usize = 1024;
/// Files that are looked at again at the same time.
const AT_ONCE: usize = 16;
/// How often a file is looked at again that changes meanwhile. Who changes it reads and writes it,
/// and would notice.
const LOOKS: usize = 3;

/// Why a datafile is lost of which the I/O server still knows the size.
const OPEN: &str = "it was removed behind the server's back, which still has it open";

/// A datafile, as its I/O server has it.
#[derive(Clone, Debug)]
enum Seen {
    Size(u64),
    /// It cannot be read, and why.
    Lost(String),
    /// The server has not said.
    Unknown,
}

/// What an I/O server has.
struct Store {
    /// Sizes of datafiles of files and of nobody, where the server could tell.
    sizes: BTreeMap<u64, Option<u64>>,
    /// Datafiles of files that it has not listed. It has some of them open, and then knows a size.
    unlisted: BTreeSet<u64>,
    /// Datafiles that belong to nobody, or whose handles were not assigned when the rows were read.
    others: Vec<u64>,
    count: u64,
}

/// What is wrong with a file: the index of a datafile, the kind of damage, and the text.
type Problem = (Option<usize>, &'static str, String);

/// Compares a file with its datafiles.
fn problems(layout: &Layout, content: Content, seen: &[Seen]) -> Vec<Problem> {
    let (mut found, distribution) = (Vec::new(), layout.distribution());
    for (index, seen) in seen.iter().enumerate() {
        match (seen, content) {
            (Seen::Lost(why), _) => found.push((Some(index), "lost", why.clone())),
            (Seen::Size(len), Content::Recorded(size)) => {
                let must = distribution.datafile_size(index, size);
                let text = || format!("{len} bytes; the recorded size of the file, {size}, requires {must}");
                match len {
                    len if *len < must => found.push((Some(index), "short", text())),
                    len if *len > must => found.push((Some(index), "long", text())),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    let size = |seen: &Seen| if let Seen::Size(size) = seen { Some(*size) } else { None };
    let sizes: Option<Vec<u64>> = seen.iter().map(size).collect();
    if let (Content::Closed { last: Some(extent), .. }, Some(sizes)) = (content, sizes) {
        let size = distribution.file_size(&sizes);
        if size != extent.size {
            found.push((None, "size", format!("{size} bytes; it had {} when it was closed", extent.size)));
        }
    }
    found
}

impl<S: Threading> Client<S> {
    pub(super) async fn check_datafiles(
        &self,
        tables: &Tables,
        progress: &impl Fn(u64),
        report: &mut Report,
    ) -> Result<(), Error> {
        let servers = self.iods();
        let is_checked = |server: &&ServerName| !report.unchecked.iter().any(|(unchecked, _)| unchecked == *server);
        let checked: Vec<ServerName> = servers.iter().filter(is_checked).cloned().collect();
        let looked = checked.into_iter().map(async |server| (self.look_at(&server, tables, progress).await, server));
        let mut stores = BTreeMap::new();
        for (result, server) in join_all(looked).await {
            match result {
                Ok(store) => drop(stores.insert(server.iod.unwrap_or_default(), (server, store))),
                Err(failure) => report.unchecked.push((server, Error::from(failure).during("check"))),
            }
        }
        let is_unlisted = |iod: u32, datafile: DatafileHandle| {
            stores.get(&iod).is_some_and(|(_, store): &(_, Store)| store.unlisted.contains(&datafile.0))
        };
        let seen = |iod: u32, datafile: DatafileHandle| match stores.get(&iod).map(|(_, store)| &store.sizes) {
            Some(sizes) => match sizes.get(&datafile.0) {
                Some(Some(size)) if !is_unlisted(iod, datafile) => Seen::Size(*size),
                _ => Seen::Lost(String::new()),
            },
            None => Seen::Unknown,
        };
        let suspicious = tables.objects.iter().filter_map(|(raw, object)| {
            let layout = object.layout.as_ref()?;
            let seen: Vec<Seen> = layout.datafiles().iter().map(|(iod, datafile)| seen(*iod, *datafile)).collect();
            (!problems(layout, object.content, &seen).is_empty()).then_some(*raw)
        });
        let suspicious: Vec<u64> = suspicious.collect();
        let again =
            suspicious.into_iter().map(async |raw| (raw, self.look_at_file_again(FileHandle(raw), &is_unlisted).await));
        let mut again = stream::iter(again).buffer_unordered(AT_ONCE);
        while let Some((raw, result)) = again.next().await {
            for (at, kind, text) in result? {
                let finding = Finding::new(kind, tables.path(raw), text);
                report.findings.push(
                    match at.and_then(|(iod, datafile)| Some((servers.get(iod as usize)?, datafile))) {
                        Some((server, datafile)) => finding.of(server, datafile),
                        None => finding,
                    },
                );
            }
        }
        for (iod, (server, store)) in &stores {
            report.datafiles += store.count;
            self.check_others(*iod, server, store, tables, report).await?;
        }
        Ok(())
    }

    /// Lists the datafiles of an I/O server, and asks for the sizes of those that are in use.
    async fn look_at(&self, server: &ServerName, tables: &Tables, progress: &impl Fn(u64)) -> Result<Store, Failure> {
        let iod = server.iod.unwrap_or_default();
        let owned = || tables.owners.range((iod, 0)..=(iod, u64::MAX)).map(|((_, datafile), _)| *datafile);
        let (mut others, mut count, mut after) = (Vec::new(), 0, None);
        let mut unlisted: BTreeSet<u64> = owned().collect();
        loop {
            let (handles, more) = self.datafiles_of(server, after).await?;
            count += handles.len() as u64;
            progress(handles.len() as u64);
            after = handles.last().copied();
            for handle in &handles {
                unlisted.remove(&handle.0);
            }
            let is_other =
                |handle: &u64| !tables.owners.contains_key(&(iod, *handle)) && !tables.is_spare(iod, *handle);
            others.extend(handles.iter().map(|handle| handle.0).filter(is_other));
            if !more {
                break;
            }
        }
        let asked: Vec<DatafileHandle> = owned().chain(others.iter().copied()).map(DatafileHandle).collect();
        let mut sizes = BTreeMap::new();
        for some in asked.chunks(STEP) {
            let (found, failure) = self.sizes_at(iod, some).await;
            if let Some(failure) = failure {
                return Err(failure);
            }
            progress(some.len() as u64);
            let found = found.into_iter().map(|extent| extent.map(|extent| extent.size));
            sizes.extend(some.iter().map(|datafile| datafile.0).zip(found));
        }
        Ok(Store { sizes, unlisted, others, count })
    }

    /// Asks an I/O server for a datafile.
    async fn see(&self, server: &ServerName, datafile: DatafileHandle) -> Seen {
        let (inner, request) = (self.inner(), IodRequest::Getsize { datafile });
        match inner.ask(server, inner.deadline(), Resend::Repeat, request).await {
            Ok(ReplyBody::Iod(IodReply::Held { size, .. })) => Seen::Size(size),
            Err(failure) if matches!(failure.code, ErrorCode::Lost | ErrorCode::Io) => Seen::Lost(failure.detail),
            // Its size is being changed, or the server does not answer.
            _ => Seen::Unknown,
        }
    }

    /// Looks at a file that seems to be damaged. Returns what is wrong with it, and with which
    /// datafile.
    async fn look_at_file_again(
        &self,
        file: FileHandle,
        is_unlisted: &impl Fn(u32, DatafileHandle) -> bool,
    ) -> Result<Vec<(Option<(u32, DatafileHandle)>, &'static str, String)>, Error> {
        let servers = self.iods();
        let entry = async || match self.look_again(file).await {
            Ok(entry) => Ok(entry.layout.map(|layout| (layout, entry.content))),
            Err(error) if matches!(error.code(), ErrorCode::Stale | ErrorCode::NotFound) => Ok(None),
            Err(error) => Err(error),
        };
        for _ in 0..LOOKS {
            let Some((layout, content)) = entry().await? else { break };
            let seen = layout.datafiles().iter().map(async |(iod, datafile)| match servers.get(*iod as usize) {
                Some(server) => match self.see(server, *datafile).await {
                    // The file of the manager is there, so it was there when it was not listed.
                    Seen::Size(_) if is_unlisted(*iod, *datafile) => Seen::Lost(OPEN.to_owned()),
                    seen => seen,
                },
                None => Seen::Unknown,
            });
            let found = problems(&layout, content, &join_all(seen).await);
            if found.is_empty() {
                break;
            }
            if entry().await? == Some((layout.clone(), content)) {
                let of = |at: usize| layout.datafiles()[at];
                return Ok(found.into_iter().map(|(at, kind, text)| (at.map(of), kind, text)).collect());
            }
        }
        Ok(Vec::new())
    }

    /// Adds the datafiles of an I/O server that belong to nobody.
    async fn check_others(
        &self,
        iod: u32,
        server: &ServerName,
        store: &Store,
        tables: &Tables,
        report: &mut Report,
    ) -> Result<(), Error> {
        let mut next = None;
        for raw in &store.others {
            let datafile = DatafileHandle(*raw);
            if *raw >= tables.next {
                // Those that were assigned meanwhile are of the cluster, and only these.
                let next = match next {
                    Some(next) => next,
                    None => *next.insert(self.next_handle().await?),
                };
                if *raw >= next {
                    let text = "the manager has not assigned this number";
                    report.findings.push(Finding::new("unassigned", None, text).of(server, datafile));
                }
                continue;
            }
            let finding = match store.sizes.get(raw).copied().flatten() {
                Some(0) => {
                    report.empty += 1;
                    continue;
                }
                Some(size) if tables.has_unreadable() => {
                    let text = format!("{size} bytes that belong to no file, or to an object that cannot be read");
                    Finding::new("unowned", None, text)
                }
                Some(size) => {
                    let remedy = format!("it becomes {LOST_FOUND}/{}", Fix::name_of_datafile(iod, datafile));
                    let text = format!("{size} bytes that belong to no file");
                    Finding::new("unowned", None, text).mended(Fix::Datafile { iod, datafile }, remedy)
                }
                None => match self.see(server, datafile).await {
                    Seen::Lost(why) => Finding::new("unowned", None, format!("it belongs to no file; {why}")),
                    _ => continue,
                },
            };
            report.findings.push(finding.of(server, datafile));
        }
        Ok(())
    }

    /// Returns the handle from which on none were assigned.
    async fn next_handle(&self) -> Result<u64, Error> {
        let (rows, _) = self.check_page(0).await?;
        let next = rows.first().map(|row| if let CheckRow::Begin { next, .. } = row { *next } else { 0 });
        Ok(next.unwrap_or(u64::MAX))
    }
}
