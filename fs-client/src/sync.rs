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

use crate::client::Client;
use crate::connection::{Resend, unexpected};
use crate::error::{Error, Failure, ServerName};
use crate::file::{File, REQUEST_ROOM};
use crate::locked::Locked;

/// Longest encoded handle, in bytes.
const HANDLE_ROOM: usize = 10;

/// What was written to a datafile and may not be on the disk yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Written {
    #[default]
    Nothing,
    /// Written to this start of the server only.
    At(u64),
    /// Written to a server that has been restarted since.
    Doubtful,
}

impl Written {
    /// Adds a write to the start `start` of the server.
    fn and(self, start: u64) -> Written {
        match self {
            Written::Nothing => Written::At(start),
            Written::At(before) if before == start => self,
            Written::At(_) | Written::Doubtful => Written::Doubtful,
        }
    }

    /// Adds the writes of a later period.
    fn merge(self, other: Written) -> Written {
        match other {
            Written::Nothing => self,
            Written::At(start) => self.and(start),
            Written::Doubtful => other,
        }
    }
}

/// By datafile of a file: what was written and not synced since.
#[derive(Debug)]
pub(crate) struct Unsynced(Locked<Record>);

/// Every write is in `written`, or in what one of the running syncs has taken. A sync takes and
/// looks at the others in one step, so it misses none that was recorded before.
#[derive(Debug)]
struct Record {
    /// What no running sync has taken.
    written: Vec<Written>,
    /// What each running sync has taken.
    running: BTreeMap<u64, Vec<Written>>,
    /// The number of the next sync.
    next: u64,
}

impl Unsynced {
    pub(crate) fn new(datafiles: usize) -> Unsynced {
        Unsynced(Locked::new(Record { written: nothing(datafiles), running: BTreeMap::new(), next: 0 }))
    }

    /// Bytes were written to a datafile under this start of its server.
    pub(crate) fn note(&self, datafile: usize, start: u64) {
        self.0.with(|record| record.written[datafile] = record.written[datafile].and(start));
    }
}

fn nothing(datafiles: usize) -> Vec<Written> {
    vec![Written::Nothing; datafiles]
}

/// Adds the writes of a later period, by datafile.
fn merge(earlier: &[Written], later: &mut [Written]) {
    for (later, earlier) in later.iter_mut().zip(earlier) {
        *later = earlier.merge(*later);
    }
}

/// The unsynced writes that a running sync covers. Everything that is still in it when it is
/// dropped goes back into the file's record, even if the sync's future is dropped early.
struct Taken<'a> {
    unsynced: &'a Unsynced,
    /// The number of the sync.
    number: u64,
    /// What this sync has taken from the record.
    before: Vec<Written>,
    /// All that was written before this sync, including what other running syncs have taken.
    covered: Vec<Written>,
}

impl<'a> Taken<'a> {
    fn new(unsynced: &'a Unsynced) -> Taken<'a> {
        unsynced.0.with(|record| {
            let none = nothing(record.written.len());
            let before = std::mem::replace(&mut record.written, none);
            let mut covered = before.clone();
            record.running.values().rev().for_each(|earlier| merge(earlier, &mut covered));
            let number = record.next;
            record.next += 1;
            record.running.insert(number, before.clone());
            Taken { unsynced, number, before, covered }
        })
    }

    /// A datafile was synced under this start of its server. Returns whether all bytes that were
    /// written to it before are on the disk.
    fn synced(&mut self, datafile: usize, start: u64) -> bool {
        self.before[datafile] = Written::Nothing;
        self.covered[datafile].and(start) == Written::At(start)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.unsynced.0.with(|record| {
            record.running.remove(&self.number);
            merge(&self.before, &mut record.written);
        });
    }
}

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
    let mut servers: BTreeMap<&ServerName, Vec<Item>> = BTreeMap::new();
    for (file, taken) in taken.iter().enumerate() {
        for (datafile, (server, handle)) in files[file].servers().iter().zip(files[file].datafile_handles()).enumerate()
        {
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
    let mut failures = vec![Vec::new(); files.len()];
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

#[cfg(test)]
mod tests {
    use super::*;

    fn record(unsynced: &Unsynced) -> Vec<Written> {
        unsynced.0.with(|record| record.written.clone())
    }

    /// A sync that began while another one ran did not look at what that one had taken. It
    /// succeeded after a restart of the server, although bytes may have been lost.
    #[test]
    fn a_sync_beside_another_one_notices_a_restart_too() {
        let unsynced = Unsynced::new(2);
        unsynced.note(0, 1);
        let mut first = Taken::new(&unsynced);
        let mut second = Taken::new(&unsynced);
        assert!(!first.synced(0, 2) && !second.synced(0, 2), "the write was taken by start 1");
        assert!(first.synced(1, 2) && second.synced(1, 2));
        drop((first, second));
        assert!(Taken::new(&unsynced).synced(0, 2), "it was reported");
    }

    #[test]
    fn what_was_taken_and_not_synced_goes_back_once() {
        let unsynced = Unsynced::new(1);
        unsynced.note(0, 1);
        let first = Taken::new(&unsynced);
        let mut second = Taken::new(&unsynced);
        assert!(second.synced(0, 1));
        drop(second);
        assert_eq!(record(&unsynced), [Written::Nothing]);
        drop(first);
        assert_eq!(record(&unsynced), [Written::At(1)]);
        unsynced.note(0, 2);
        assert_eq!(record(&unsynced), [Written::Doubtful]);
        assert!(unsynced.0.with(|record| record.running.is_empty()));
    }
}
