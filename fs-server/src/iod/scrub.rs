//! Compares datafiles with their checksums, in steps of a bounded size.

use fs_proto::limits::REPLY_ROOM;
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodReply};

use super::{Iod, MAX_RESULT};
use crate::store::{DataStore, Scrubbed, StoreHandle};

/// Bytes that are read for a request.
const MOST: u64 = 16 << 20;

/// Bytes that could be read in the time that it takes to open a datafile.
const OPENING: u64 = 64 << 10;

/// Bytes of a range in a reply.
const RANGE: usize = 24;

impl<S: StoreHandle> Iod<S> {
    /// Compares datafiles, the first one from `offset` on, as far as a reply of `room` bytes has
    /// room for what is found.
    pub(super) async fn scrub(
        &self,
        datafiles: &[DatafileHandle],
        offset: u64,
        room: usize,
    ) -> Result<IodReply, FsError> {
        let (mut left, mut room, mut at) = (MOST, room.saturating_sub(REPLY_ROOM), offset);
        let (mut done, mut read, mut summed, mut damage) = (0, 0, 0, Vec::new());
        for datafile in datafiles {
            loop {
                if left == 0 || (room < MAX_RESULT + RANGE && !damage.is_empty()) {
                    return Ok(IodReply::Scrubbed { done, next: at, read, summed, damage });
                }
                let scrubbed = match self.store.scrub(*datafile, at, left).await {
                    Err(error) if error.code == ErrorCode::Unsupported => return Err(error),
                    Err(error) if matches!(error.code, ErrorCode::Lost | ErrorCode::Io) => {
                        Scrubbed { damage: Some(error), ..Scrubbed::default() }
                    }
                    // Its size is being changed, or the like.
                    scrubbed => scrubbed.unwrap_or_default(),
                };
                read += scrubbed.read;
                left = left.saturating_sub(scrubbed.read.max(OPENING));
                if let Some(error) = scrubbed.damage {
                    room = room.saturating_sub(error.detail.len() + 16 + RANGE);
                    damage.push((*datafile, error));
                }
                match scrubbed.next {
                    Some(next) => at = next,
                    None => {
                        summed += u32::from(scrubbed.is_summed);
                        break;
                    }
                }
            }
            (done, at) = (done + 1, 0);
        }
        Ok(IodReply::Scrubbed { done, next: 0, read, summed, damage })
    }
}
