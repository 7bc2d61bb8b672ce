//! The log of a node, for openraft.

use std::fmt::Debug;
use std::ops::RangeBounds;
use std::time::Duration;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{Entry, EntryPayload, LogId, LogState, OptionalSend, RaftLogReader, StorageError, Vote};

use super::disk::{Bug, Disk};
use crate::Types;

/// How late an entry is on a disk with [`Bug::EarlyAcknowledgement`].
const LATE: Duration = Duration::from_millis(20);
/// Bytes of values that one call to a follower has, about.
const MOST_BYTES: usize = 4 << 20;

type Result<T> = std::result::Result<T, StorageError<u64>>;

/// The log on a disk.
#[derive(Clone)]
pub struct LogStore(Disk);

impl LogStore {
    /// Opens the log on a disk.
    pub fn open(disk: Disk) -> LogStore {
        let mut files = disk.files();
        match disk.bug {
            Bug::None | Bug::ShortSnapshot => {}
            Bug::VoteInMemory => files.vote = None,
            Bug::EarlyAcknowledgement => {
                let late_from = files.late_from;
                files.entries.split_off(&late_from);
                files.committed = None;
            }
        }
        drop(files);
        LogStore(disk)
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R>(&mut self, range: R) -> Result<Vec<Entry<Types>>>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        Ok(self.0.files().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry<Types>>> {
        let mut bytes = 0;
        let fits = |entry: &&Entry<Types>| {
            let fits = bytes < MOST_BYTES;
            if let EntryPayload::Normal(put) = &entry.payload {
                bytes += put.value.len();
            }
            fits
        };
        let files = self.0.files();
        Ok(files.entries.range(start..end).map(|(_, entry)| entry).take_while(fits).cloned().collect())
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>> {
        let files = self.0.files();
        let last_log_id = files.entries.values().next_back().map(|entry| entry.log_id).or(files.purged);
        Ok(LogState { last_purged_log_id: files.purged, last_log_id })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<()> {
        self.0.files().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>> {
        Ok(self.0.files().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Result<()> {
        self.0.files().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>> {
        Ok(self.0.files().committed)
    }

    async fn append<I>(&mut self, entries: I, flushed: LogFlushed<Types>) -> Result<()>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.0.files().entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        if self.0.bug == Bug::EarlyAcknowledgement {
            let (disk, end) = (self.0.clone(), self.0.files().entries.keys().next_back().map_or(0, |last| last + 1));
            bmi::spawn(async move {
                bmi::sleep(LATE).await;
                let mut files = disk.files();
                files.late_from = files.late_from.max(end);
            });
        }
        flushed.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Result<()> {
        self.0.files().entries.split_off(&from.index);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId<u64>) -> Result<()> {
        let mut files = self.0.files();
        files.entries = files.entries.split_off(&(upto.index + 1));
        files.purged = Some(upto);
        Ok(())
    }
}
