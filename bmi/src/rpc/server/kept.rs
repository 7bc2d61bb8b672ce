//! Replies whose data was too long for the memory of their calls. They wait to be fetched.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bmi_core::AnyThread;
use tokio::sync::oneshot;

use super::answers::{fail, in_memory};
use crate::{Error, ErrorKind, Incoming, MemList, Options, PeerId};

/// Data that waits, and how its handler is told of the end.
struct Kept {
    data: MemList,
    done: oneshot::Sender<Result<(), Error>>,
}

/// The data that waits to be fetched: for each peer, by its number.
#[derive(Default)]
pub(super) struct KeptReplies {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    kept: BTreeMap<(PeerId, u64), Kept>,
}

/// Removes the data when its handler waits no more.
pub(super) struct Waiting<'a> {
    replies: &'a KeptReplies,
    key: (PeerId, u64),
    done: oneshot::Receiver<Result<(), Error>>,
}

impl KeptReplies {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps data for a peer until the value that is returned is dropped.
    pub(super) fn keep(&self, peer: PeerId, data: MemList) -> Waiting<'_> {
        let (done, waits) = oneshot::channel();
        let mut table = self.table();
        table.next += 1;
        let key = (peer, table.next);
        table.kept.insert(key, Kept { data, done });
        Waiting { replies: self, key, done: waits }
    }

    /// Returns true if this data of a peer waits to be fetched.
    pub(super) fn has(&self, peer: PeerId, number: u64) -> bool {
        self.table().kept.contains_key(&(peer, number))
    }

    /// Answers a fetch.
    pub(super) async fn fetch(&self, call: Incoming<AnyThread>, number: u64, options: Options) {
        let kept = self.table().kept.remove(&(call.peer().id(), number));
        let Some(Kept { data, done }) = kept else {
            let text = "the data of the reply is not kept any more: its time is over";
            return fail(call, Error::new(ErrorKind::TimedOut, text), false).await;
        };
        // Its handler may be gone.
        let _ = done.send(in_memory(call, &[], data, options).await);
    }
}

impl Waiting<'_> {
    /// Returns the number by which the client fetches the data.
    pub(super) fn number(&self) -> u64 {
        self.key.1
    }

    /// Waits until the client has the data.
    ///
    /// # Errors
    /// Those of the transfer.
    pub(super) async fn fetched(&mut self) -> Result<(), Error> {
        let dropped = |_| Err(Error::new(ErrorKind::Cancelled, "the server was closed").during("reply"));
        (&mut self.done).await.unwrap_or_else(dropped)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.replies.table().kept.remove(&self.key);
    }
}
