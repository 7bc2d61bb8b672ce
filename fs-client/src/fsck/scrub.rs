//! Lets I/O servers compare what their disks have with its checksums.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use bmi::threading::Threading;
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodReply, IodRequest, ReplyBody};
use futures_util::future::join_all;

use super::finding::Finding;
use super::tables::Tables;
use crate::client::Client;
use crate::error::{Error, Failure, ServerName};
use crate::net::{Resend, unexpected};
use crate::split::file_ranges;

/// Most datafiles in a request. A server reads no more of them for one.
const AT_ONCE: usize = 256;

/// Most bytes that a server may have read for a request. It ends one after some 16 MiB.
const MOST_READ: u64 = 32 << 20;

/// What is scrubbed, and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubOptions {
    /// The I/O server; `None` for all of them, at the same time.
    pub server: Option<u32>,
    /// Most bytes that each server reads in a second, as an average over a few seconds.
    pub rate: u64,
}

impl Default for ScrubOptions {
    fn default() -> Self {
        ScrubOptions { server: None, rate: 64 << 20 }
    }
}

/// The result of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Damage, sorted by path: `damaged` if bytes do not match their checksums, `unreadable` if the
    /// disk has not returned them, `lost` if a datafile is missing or was cut off.
    pub findings: Vec<Finding>,
    /// The servers that could not be scrubbed, or not to the end, and why.
    pub unchecked: Vec<(ServerName, Error)>,
    /// Number of datafiles that were looked at, with those that were created in advance.
    pub datafiles: u64,
    /// Of these, the number that has checksums and was compared.
    pub summed: u64,
    /// Number of bytes that were read.
    pub read: u64,
}

/// What an I/O server has compared.
#[derive(Default)]
struct Seen {
    damage: BTreeMap<u64, FsError>,
    datafiles: u64,
    summed: u64,
    read: u64,
}

impl<S: Threading> Client<S> {
    /// Lets the I/O servers read all datafiles from their disks, and compare them with their
    /// checksums, where these hold. Calls `progress` with the number of datafiles and of bytes
    /// since the last call. Changes nothing, except that datafiles without checksums get some.
    ///
    /// # Errors
    /// `Invalid` if there is no such server; those of the first requests to the manager. I/O
    /// servers that do not answer, or keep no checksums, are in the report. So is the manager if it
    /// cannot tell the names of what is damaged.
    pub async fn scrub(&self, options: ScrubOptions, progress: impl Fn(u64, u64)) -> Result<ScrubReport, Error> {
        let mut report = ScrubReport { unchecked: self.absent().await?, ..ScrubReport::default() };
        let is_asked = |server: &ServerName| options.server.is_none() || server.iod == options.server;
        report.unchecked.retain(|(server, _)| is_asked(server));
        let mut servers: Vec<ServerName> = self.iods().into_iter().filter(is_asked).collect();
        if let (Some(number), true) = (options.server, servers.is_empty()) {
            let text = format!("there is no I/O server {number}; there are {}", self.iods().len());
            return Err(Error::from(Failure::here(ErrorCode::Invalid, text)).during("scrub"));
        }
        servers.retain(|server| !report.unchecked.iter().any(|(unchecked, _)| unchecked == server));
        let all = servers.into_iter().map(async |server| {
            let mut seen = Seen::default();
            let result = self.scrub_server(&server, options.rate, &progress, &mut seen).await;
            (server, seen, result)
        });
        let mut damaged = Vec::new();
        for (server, seen, result) in join_all(all).await {
            report.datafiles += seen.datafiles;
            report.summed += seen.summed;
            report.read += seen.read;
            damaged.extend(seen.damage.into_iter().map(|(raw, error)| (server.clone(), DatafileHandle(raw), error)));
            if let Err(failure) = result {
                report.unchecked.push((server, Error::from(failure).during("scrub")));
            }
        }
        if !damaged.is_empty() {
            // Now: what was removed meanwhile is in no row.
            let tables = self.tables(&|_| ()).await;
            let found = damaged.into_iter().filter_map(|damage| found(tables.as_ref().ok(), damage));
            report.findings = found.collect();
            report.findings.sort_by(|one, other| (&one.path, &one.text).cmp(&(&other.path, &other.text)));
            // What was found stays, without names.
            report.unchecked.extend(tables.err().map(|error| (self.manager().clone(), error)));
        }
        Ok(report)
    }

    async fn scrub_server(
        &self,
        server: &ServerName,
        rate: u64,
        progress: &impl Fn(u64, u64),
        seen: &mut Seen,
    ) -> Result<(), Failure> {
        let (inner, endpoint) = (self.inner(), self.endpoint());
        let (mut after, mut more, mut due) = (None, true, endpoint.now());
        while more {
            let handles;
            (handles, more) = self.datafiles_of(server, after).await?;
            after = handles.last().copied();
            let (mut rest, mut offset) = (&handles[..], 0);
            while !rest.is_empty() {
                let datafiles = rest[..rest.len().min(AT_ONCE)].to_vec();
                let (asked, begun) = (datafiles.len(), endpoint.now());
                let request = IodRequest::Scrub { datafiles, offset };
                let answer = inner.ask(server, inner.deadline(), Resend::Repeat, request).await?;
                let ReplyBody::Iod(IodReply::Scrubbed { done, next, read, summed, damage }) = answer else {
                    return Err(unexpected(server, &answer));
                };
                if done as usize > asked || (done == 0 && next <= offset) || summed > done || read > MOST_READ {
                    let text = "it does not say what it has compared";
                    return Err(Failure::at(server.clone(), ErrorCode::Protocol, text));
                }
                for (datafile, error) in damage {
                    match seen.damage.entry(datafile.0) {
                        Entry::Vacant(entry) => drop(entry.insert(error)),
                        Entry::Occupied(mut entry) => {
                            let ranges = [entry.get().ranges.clone(), error.ranges].concat();
                            let known = entry.get().clone();
                            entry.insert(known.with_ranges(ranges));
                        }
                    }
                }
                seen.datafiles += u64::from(done);
                seen.summed += u64::from(summed);
                seen.read += read;
                progress(done.into(), read);
                (rest, offset) = (&rest[done as usize..], next);
                due = due.max(begun) + Duration::from_secs_f64(read as f64 / rate.max(1) as f64);
                endpoint.sleep(due.since(endpoint.now())).await;
            }
        }
        Ok(())
    }

    /// Returns a page of the datafiles of an I/O server, and whether more follow.
    pub(super) async fn datafiles_of(
        &self,
        server: &ServerName,
        after: Option<DatafileHandle>,
    ) -> Result<(Vec<DatafileHandle>, bool), Failure> {
        let inner = self.inner();
        match inner.ask(server, inner.deadline(), Resend::Repeat, IodRequest::List { after }).await? {
            ReplyBody::Iod(IodReply::Datafiles { handles, more }) if !more || !handles.is_empty() => {
                Ok((handles, more))
            }
            other => Err(unexpected(server, &other)),
        }
    }
}

/// Returns what is found; `None` if the datafile was removed meanwhile. Without tables, nobody
/// knows whose datafile it is.
fn found(tables: Option<&Tables>, (server, datafile, error): (ServerName, DatafileHandle, FsError)) -> Option<Finding> {
    let place = (server.iod.unwrap_or_default(), datafile);
    let kind = match error.code {
        ErrorCode::Lost if error.ranges.is_empty() => "lost",
        ErrorCode::Lost => "damaged",
        _ => "unreadable",
    };
    let Some(tables) = tables else { return Some(Finding::new(kind, None, error.detail).of(&server, datafile)) };
    let Some(raw) = tables.owners.get(&(place.0, datafile.0)) else {
        let text = format!("{}; it belongs to no file", error.detail);
        return (!error.ranges.is_empty()).then(|| Finding::new(kind, None, text).of(&server, datafile));
    };
    let layout = tables.objects.get(raw).and_then(|object| object.layout.as_ref());
    let index = layout.and_then(|layout| layout.datafiles().iter().position(|found| *found == place));
    let ranges = match (layout, index) {
        (Some(layout), Some(index)) => file_ranges(&layout.distribution(), index, &error.ranges),
        _ => Vec::new(),
    };
    let mut text = error.detail;
    if !ranges.is_empty() {
        let list: Vec<String> = ranges.iter().map(|range| format!("{} to {}", range.start, range.end)).collect();
        text = format!("{text}; of the file: {}", list.join(", "));
    }
    Some(Finding::new(kind, tables.path(*raw), text).of(&server, datafile))
}
