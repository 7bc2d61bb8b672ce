//! The table of changes that were already made, with their replies.
//!
//! **Why.** A client that loses its connection does not know whether its `rename` happened. It
//! reconnects and sends the request again, under the same id. The table stores the reply in the
//! same transaction as the change, so it also survives a crash of the manager.
//!
//! **Invariants**
//! 1. A reply is stored in the transaction of its change: either both exist or neither. So is a
//!    refusal, unless it may pass. Then the client sends the request again, under its id.
//! 2. The table is bounded: at most [`WINDOW`] replies for each client, and [`CLIENTS`] clients.
//!    The client reports up to where it has its replies, and those are dropped. Of the clients that
//!    are not connected, the one that has been silent longest is forgotten first. Those that made a
//!    change in the last minute are not forgotten, and count beyond [`CLIENTS`] (`changes`).
//! 3. A connection has one client (`Context::speaks_for`), so a peer cannot displace others by
//!    inventing clients.
//!
//! If a client is forgotten and then resends an earlier request, the request is executed again. For
//! that, the client must have been silent and without a connection for a minute, while [`CLIENTS`]
//! others connected and made changes. Connected clients are remembered beyond that number. Their
//! number is bounded by the number of possible connections.
//!
//! **Layout**
//!
//! ```text
//!   clients   client → (turn of its last change, lowest number not yet answered)
//!   turns     turn → client                  the order in which clients are forgotten
//!   replies   (client, number) → encoded reply
//! ```

use fs_proto::{ErrorCode, FsError, RequestId};
use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata, Table, TableDefinition, WriteTransaction};

use crate::manager::Fault;

const TURNS: TableDefinition<'static, u64, u128> = TableDefinition::new("turns");
const REPLIES: TableDefinition<'static, (u128, u64), &'static [u8]> = TableDefinition::new("replies");
const WHO: TableDefinition<'static, u128, (u64, u64)> = TableDefinition::new("clients");

/// Most replies kept for one client. A client cannot have that many changes in progress, given the
/// credits of a connection.
pub(in crate::manager) const WINDOW: u64 = 256;
/// Most clients remembered.
pub(in crate::manager) const CLIENTS: u64 = 4096;
/// Most clients that are forgotten at a change. Very many may have made one in the same minute.
const FORGOTTEN: u64 = 8;

/// Returns the reply to a change that was made before.
pub(in crate::manager) fn answer(transaction: &ReadTransaction, id: RequestId) -> Result<Option<Vec<u8>>, Fault> {
    let replies = transaction.open_table(REPLIES)?;
    Ok(replies.get((id.client, id.seq))?.map(|reply| reply.value().to_vec()))
}

/// The tables in a transaction for writing.
pub(in crate::manager) struct Dedup<'t> {
    clients: Table<'t, u128, (u64, u64)>,
    turns: Table<'t, u64, u128>,
    replies: Table<'t, (u128, u64), &'static [u8]>,
    keep: u64,
}

impl<'t> Dedup<'t> {
    /// Opens the tables, and creates them if they do not exist. At most `keep` clients are
    /// remembered.
    pub(in crate::manager) fn open(transaction: &'t WriteTransaction, keep: u64) -> Result<Dedup<'t>, Fault> {
        Ok(Dedup {
            clients: transaction.open_table(WHO)?,
            turns: transaction.open_table(TURNS)?,
            replies: transaction.open_table(REPLIES)?,
            keep,
        })
    }

    /// Returns the reply to this request if it came before. `unanswered` is the request's
    /// confirmation. It is applied before the window is checked, because a client whose window is
    /// full could not confirm in any other way.
    pub(in crate::manager) fn recall(&self, id: RequestId, unanswered: u64) -> Result<Option<Vec<u8>>, Fault> {
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

    /// Stores a reply, and drops the client's replies below `unanswered`. Also drops clients that
    /// are not connected and whose last turn is at most `before`, if there are more than may be
    /// kept.
    pub(in crate::manager) fn remember(
        &mut self,
        id: RequestId,
        unanswered: u64,
        reply: &[u8],
        before: u64,
        is_connected: impl Fn(u128) -> bool,
    ) -> Result<(), Fault> {
        let turn = self.turn()? + 1;
        let known = self.clients.get(id.client)?.map(|client| client.value());
        // The confirmation is limited to this request, even if the client confirms more.
        let floor = known.map_or(0, |(_, floor)| floor).max(unanswered.min(id.seq));
        if let Some((turn, _)) = known {
            self.turns.remove(turn)?;
        }
        self.replies.retain_in((id.client, 0)..(id.client, floor), |_, _| false)?;
        self.replies.insert((id.client, id.seq), reply)?;
        self.turns.insert(turn, id.client)?;
        self.clients.insert(id.client, (turn, floor))?;
        let surplus = self.clients.len()?.saturating_sub(self.keep).min(FORGOTTEN);
        let mut oldest = Vec::new();
        if surplus > 0 {
            for row in self.turns.range(..=before)? {
                let (turn, client) = row?;
                if client.value() != id.client && !is_connected(client.value()) {
                    oldest.push((turn.value(), client.value()));
                    if oldest.len() as u64 == surplus {
                        break;
                    }
                }
            }
        }
        for (turn, oldest) in oldest {
            self.turns.remove(turn)?;
            self.clients.remove(oldest)?;
            self.replies.retain_in((oldest, 0)..=(oldest, u64::MAX), |_, _| false)?;
        }
        Ok(())
    }

    /// Returns the last turn.
    pub(in crate::manager) fn turn(&self) -> Result<u64, Fault> {
        Ok(self.turns.last()?.map_or(0, |(turn, _)| turn.value()))
    }

    /// Returns the number of clients remembered.
    pub(in crate::manager) fn clients(&self) -> Result<u64, Fault> {
        Ok(self.clients.len()?)
    }

    /// Returns the number of replies and of clients remembered.
    #[cfg(test)]
    pub(in crate::manager) fn sizes(&self) -> Result<(u64, u64), Fault> {
        Ok((self.replies.len()?, self.clients()?))
    }
}
