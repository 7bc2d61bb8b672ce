//! Which changes were made already, and what was answered.
//!
//! **Why.** A client that loses its connection does not know whether its `rename` happened. It
//! connects again and sends the request once more, under the same id. The table remembers the
//! reply, in the same transaction as the change, so it survives the manager's crash too.
//!
//! **Invariants**
//! 1. A reply is remembered in the transaction of its change: both are there or neither.
//! 2. Bounded: at most [`WINDOW`] replies for each client and [`CLIENTS`] clients; the client says
//!    up to where it has its replies, and those are dropped. Of the clients that are not connected,
//!    the one that has been silent longest is forgotten first.
//! 3. A connection speaks for one client (`Context::speaks_for`), so a peer cannot push others out
//!    by inventing names.
//!
//! A client that was forgotten, and then sends again a request from before, would have it executed
//! again. It must have been silent and without a connection while [`CLIENTS`] others connected and
//! made changes. Clients that are connected are remembered beyond that number, and bounded by the
//! connections that there can be.
//!
//! **Layout**
//!
//! ```text
//!   clients   client → (turn of its last change, lowest number not yet answered)
//!   turns     turn → client                  the order in which clients are forgotten
//!   replies   (client, number) → encoded reply
//! ```

use fs_proto::{ErrorCode, FsError, RequestId};
use redb::{ReadableTable, ReadableTableMetadata, Table, TableDefinition, WriteTransaction};

use super::Fault;

const TURNS: TableDefinition<'static, u64, u128> = TableDefinition::new("turns");
const REPLIES: TableDefinition<'static, (u128, u64), &'static [u8]> = TableDefinition::new("replies");
const WHO: TableDefinition<'static, u128, (u64, u64)> = TableDefinition::new("clients");

/// Replies kept for one client: more changes than it can have under way at once, given the credits
/// of a connection.
pub(super) const WINDOW: u64 = 256;
/// Clients remembered.
pub(super) const CLIENTS: u64 = 4096;

/// The tables in a transaction for writing.
pub(super) struct Dedup<'t> {
    clients: Table<'t, u128, (u64, u64)>,
    turns: Table<'t, u64, u128>,
    replies: Table<'t, (u128, u64), &'static [u8]>,
    keep: u64,
}

impl<'t> Dedup<'t> {
    /// Opens the tables, making them if they are not there. At most `keep` clients are remembered.
    pub(super) fn open(transaction: &'t WriteTransaction, keep: u64) -> Result<Dedup<'t>, Fault> {
        Ok(Dedup {
            clients: transaction.open_table(WHO)?,
            turns: transaction.open_table(TURNS)?,
            replies: transaction.open_table(REPLIES)?,
            keep,
        })
    }

    /// What was answered to this request, if it came before. `unanswered` is what the request
    /// confirms: it counts before the window is looked at, because a client whose window is full
    /// could not confirm anything else.
    pub(super) fn recall(&self, id: RequestId, unanswered: u64) -> Result<Option<Vec<u8>>, Fault> {
        if let Some(reply) = self.replies.get((id.client, id.seq))? {
            return Ok(Some(reply.value().to_vec()));
        }
        let floor = self.clients.get(id.client)?.map_or(0, |client| client.value().1);
        if id.seq < floor {
            let text = format!("request {} came again after the client had its answer", id.seq);
            return Err(Fault::Refused(FsError::new(ErrorCode::Invalid, text)));
        }
        let floor = floor.max(unanswered.min(id.seq));
        if id.seq >= floor.saturating_add(WINDOW) && self.pending(id.client, floor)? >= WINDOW {
            let text = format!("{WINDOW} changes whose answers the client has not confirmed");
            return Err(Fault::Refused(FsError::new(ErrorCode::Busy, text)));
        }
        Ok(None)
    }

    fn pending(&self, client: u128, floor: u64) -> Result<u64, Fault> {
        Ok(self.replies.range((client, floor)..=(client, u64::MAX))?.count() as u64)
    }

    /// Remembers an answer, and drops those below `unanswered`; and clients, beyond those that may
    /// be kept, that are not connected.
    pub(super) fn remember(
        &mut self,
        id: RequestId,
        unanswered: u64,
        reply: &[u8],
        is_connected: impl Fn(u128) -> bool,
    ) -> Result<(), Fault> {
        let turn = self.turns.last()?.map_or(0, |(turn, _)| turn.value()) + 1;
        let known = self.clients.get(id.client)?.map(|client| client.value());
        // A client that confirms more than it has asked confirms up to this request.
        let floor = known.map_or(0, |(_, floor)| floor).max(unanswered.min(id.seq));
        if let Some((turn, _)) = known {
            self.turns.remove(turn)?;
        }
        self.replies.retain_in((id.client, 0)..(id.client, floor), |_, _| false)?;
        self.replies.insert((id.client, id.seq), reply)?;
        self.turns.insert(turn, id.client)?;
        self.clients.insert(id.client, (turn, floor))?;
        while self.clients.len()? > self.keep {
            let mut oldest = None;
            for row in self.turns.iter()? {
                let (turn, client) = row?;
                if client.value() != id.client && !is_connected(client.value()) {
                    oldest = Some((turn.value(), client.value()));
                    break;
                }
            }
            let Some((turn, oldest)) = oldest else { break };
            self.turns.remove(turn)?;
            self.clients.remove(oldest)?;
            self.replies.retain_in((oldest, 0)..=(oldest, u64::MAX), |_, _| false)?;
        }
        Ok(())
    }

    /// Answers and clients remembered.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> Result<(u64, u64), Fault> {
        Ok((self.replies.len()?, self.clients.len()?))
    }
}
