//! The tickets of a client: what it shows to the I/O servers of the files that it has open.
//!
//! **Protocol.** The manager gives them with the answer that opens a file. A ticket goes with the
//! requests for its datafile until the server has answered one over this connection. A server that
//! wants one again, because it was restarted or the ticket has become old, has done nothing: the
//! client shows what it has, then asks the manager for another one, and sends the request again.
//!
//! **Invariants**
//! 1. A ticket is shown to the server of its datafile alone.
//! 2. What is kept is that of open files, and of some whose opening was given up: a bounded number.
//!    What was forgotten is asked for again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bmi::PeerId;
use fs_proto::{DatafileHandle, FileHandle, Grant, Layout, Ticket};

use crate::locked::Locked;

/// Most datafiles of which tickets are kept.
const MOST: usize = 1 << 17;

/// The tickets of a client.
#[derive(Default)]
pub(crate) struct Tickets {
    /// There was one.
    is_used: AtomicBool,
    table: Locked<Table>,
}

#[derive(Default)]
struct Table {
    held: BTreeMap<DatafileHandle, Held>,
    files: BTreeMap<FileHandle, Vec<DatafileHandle>>,
}

struct Held {
    ticket: Ticket,
    /// The connection over which a server has accepted it.
    shown: Option<PeerId>,
}

impl Tickets {
    /// The manager has opened a file.
    pub(crate) fn learn(&self, file: FileHandle, layout: &Layout, grant: &Grant) {
        self.is_used.store(true, Ordering::Release);
        self.table.with(|table| {
            if table.held.len() >= MOST {
                *table = Table::default();
            }
            for (datafile, ticket) in grant.tickets(layout) {
                // What was accepted stays good, unless this one allows more.
                let held = table.held.entry(datafile).or_insert(Held { ticket, shown: None });
                if !held.ticket.access.has(ticket.access) {
                    held.shown = None;
                }
                held.ticket = ticket;
            }
            let datafiles = layout.datafiles().iter().map(|(_, datafile)| *datafile);
            table.files.insert(file, datafiles.collect());
        });
    }

    /// A file is not open any more.
    pub(crate) fn forget(&self, file: FileHandle) {
        if self.is_used.load(Ordering::Acquire) {
            self.table.with(|table| {
                for datafile in table.files.remove(&file).unwrap_or_default() {
                    table.held.remove(&datafile);
                }
            });
        }
    }

    /// Returns the ticket to show with a request for a datafile over a connection, if one is to be
    /// shown.
    pub(super) fn to_show(&self, datafile: DatafileHandle, over: PeerId) -> Option<Ticket> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        self.table
            .with(|table| table.held.get(&datafile).filter(|held| held.shown != Some(over)).map(|held| held.ticket))
    }

    /// A server has accepted a ticket.
    pub(super) fn accepted(&self, datafile: DatafileHandle, ticket: &Ticket, over: PeerId) {
        self.table.with(|table| {
            let held = table.held.get_mut(&datafile).filter(|held| held.ticket == *ticket);
            held.into_iter().for_each(|held| held.shown = Some(over));
        });
    }

    /// A server wants to see the ticket of a datafile. Returns true if it was not shown with this
    /// request, and is from now on.
    pub(super) fn show_again(&self, datafile: DatafileHandle) -> bool {
        self.table.with(|table| table.held.get_mut(&datafile).is_some_and(|held| held.shown.take().is_some()))
    }
}
