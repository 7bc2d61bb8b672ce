//! Flushes what was written to the disks, of one file or of many.
//!
//! **Why.** A write is acknowledged when it is in the server's memory. If the server is restarted
//! before a sync, the bytes may be gone, and no reply tells so. So each write is recorded with the
//! start of the server that took it, and a sync compares.
//!
//! **Invariants**
//! 1. A sync succeeds only if every byte that was written through the handle before it is on the
//!    disk of the start that took it.
//! 2. What a failed sync did not cover remains recorded.
//! 3. Several syncs of a file may run at the same time. Each one also checks what the others have
//!    taken from the record and not confirmed yet.

use std::collections::BTreeMap;

use bmi::hooks::mutated;
use bmi::threading::Threading;
use fs_proto::limits::MAX_DATAFILES;
use fs_proto::{DatafileHandle, ErrorCode, IodReply, IodRequest, ReplyBody};
use futures_util::future::join_all;

use super::handle::{File, REQUEST_ROOM};
use super::unsynced::{Taken, Written};
use crate::client::Client;
use crate::error::{Error, Failure, ServerName};
use crate::net::{Resend, unexpected};

/// Longest encoded handle, in bytes.
const HANDLE_ROOM: usize = 10;

/// A datafile that is to be synced: its file's place in the list, its own place in the file.
#[derive(Clone, Copy)]
struct Item {
    file: usize,
    datafile: usize,
    handle: DatafileHandle,
}

impl<S: Threading> File<S> {
    /// Flushes written bytes to the disks of all servers. They then survive a crash.
    ///
    /// So do bytes that others have written, with one exception: another client has let a small
    /// file ([`CreateOptions::small`](crate::CreateOptions::small)) grow, and this one has not
    /// heard of it. The servers that it does not know are not asked.
    ///
    /// # Errors
    /// Those of every request; the error names the servers that failed. `Io` if a server took bytes
    /// through this handle and was restarted before they were synced: the bytes may be lost and
    /// must be written again. This error is reported once.
    pub async fn sync(&self) -> Result<(), Error> {
        let failures = sync_files(self.client(), &[self], true).await.remove(0);
        if failures.is_empty() {
            return Ok(());
        }
        Err(Error::combined(failures).during(format!("sync {}", self.path())))
    }
}

/// Syncs several files with one request for each server, as far as the datafiles fit into it. With
/// `all`, syncs all their datafiles, otherwise those that were written through these handles.
/// Returns the failures of each file, in the order of the files.
pub(crate) async fn sync_files<S: Threading>(client: &Client<S>, files: &[&File<S>], all: bool) -> Vec<Vec<Failure>> {
    // Later writes are not covered.
    let taken: Vec<Taken<'_>> = files.iter().map(|file| Taken::new(file.unsynced())).collect();
    let (mut latest, mut failures) = (Vec::with_capacity(files.len()), vec![Vec::new(); files.len()]);
    for (file, failures) in files.iter().zip(&mut failures) {
        latest.push(file.told().await.unwrap_or_else(|error| {
            failures.extend_from_slice(error.failures());
            file.latest()
        }));
    }
    let mut servers: BTreeMap<&ServerName, Vec<Item>> = BTreeMap::new();
    for (file, taken) in taken.iter().enumerate() {
        let datafiles = latest[file].striping.servers.iter().zip(latest[file].datafile_handles());
        for (datafile, (server, handle)) in datafiles.enumerate() {
            let skipped = datafile > 0 && mutated("client/syncs-the-first-server-only");
            if (all || taken.covered[datafile] != Written::Nothing) && !skipped {
                servers.entry(server).or_default().push(Item { file, datafile, handle });
            }
        }
    }
    let asked = servers.into_iter().map(async |(server, items)| {
        let room = client
            .inner()
            .connections
            .room(&server.addr)
            .map_or(MAX_DATAFILES, |room| room.saturating_sub(REQUEST_ROOM) / HANDLE_ROOM);
        let mut answers = Vec::with_capacity(items.len());
        for items in items.chunks(room.clamp(1, MAX_DATAFILES)) {
            answers.extend(sync_at(client, server, items).await);
        }
        (server, answers)
    });
    let mut taken = taken;
    for (server, answers) in join_all(asked).await {
        for (item, answer) in answers {
            let taken = &mut taken[item.file];
            let failure = match answer {
                Ok(start) => {
                    let is_safe = taken.synced(item.datafile, start);
                    (!is_safe && !mutated("client/start-not-compared-by-a-sync")).then(|| restarted(server))
                }
                Err(failure) => {
                    // The server failed to sync. This error reports the possible loss.
                    if matches!(failure.code, ErrorCode::Io | ErrorCode::Lost) {
                        taken.before[item.datafile] = Written::Nothing;
                    }
                    Some(failure)
                }
            };
            failures[item.file].extend(failure);
        }
    }
    failures
}

/// Syncs datafiles of one server. Returns the start of the server for each, or its failure.
async fn sync_at<S: Threading>(
    client: &Client<S>,
    server: &ServerName,
    items: &[Item],
) -> Vec<(Item, Result<u64, Failure>)> {
    let ask = async |items: &[Item]| {
        let datafiles = items.iter().map(|item| item.handle).collect();
        let inner = client.inner();
        match inner.ask(server, inner.deadline(), Resend::Repeat, IodRequest::Sync { datafiles }).await? {
            ReplyBody::Iod(IodReply::Synced { start }) => Ok(start),
            other => Err(unexpected(server, &other)),
        }
    };
    let together = ask(items).await;
    // One datafile that cannot be synced does not concern the others.
    if matches!(&together, Err(failure) if items.len() > 1 && failure.source.is_none()) {
        return join_all(items.iter().map(async |item| (*item, ask(&[*item]).await))).await;
    }
    items.iter().map(|item| (*item, together.clone())).collect()
}

/// Returns the failure for bytes that were taken by an earlier start of a server.
fn restarted(server: &ServerName) -> Failure {
    let text = "the server was started anew after it took bytes and before they were synced: they may be lost";
    Failure { restarted: true, ..Failure::at(server.clone(), ErrorCode::Io, text) }
}
