//! Changes the size of a file at all of its I/O servers, or at none.
//!
//! **Protocol**
//!
//! ```text
//!   1  begin     a row for each datafile, without a size           one transaction
//!   2  prepare   every server records the new length, durably, and stops serving the datafile
//!   3  decide    the rows get their sizes                          one transaction
//!   4  carry out each server, by its maintenance loop; then its row goes
//! ```
//!
//! What could make step 4 fail is tried in step 2. If it fails all the same, again and again, the
//! row gets the error, for everybody to see, and the server is asked again from time to time. From
//! then on another change of the file's size may begin, which replaces this one if it is decided.
//!
//! If a server cannot prepare, or the manager is restarted before step 3, the maintenance loops
//! cancel what is prepared. After step 3 they carry it out, whenever the server is up. So a server
//! that fails in between makes the change before it serves the datafile again.
//!
//! **Source.** Two-phase commit with presumed abort.

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use bmi::Time;
use bmi::hooks::mutated;
use fs_proto::limits::{MAX_DATAFILES, MAX_OFFSET};
use fs_proto::{
    DatafileHandle, Entry, ErrorCode, FileHandle, FsError, IodRequest, Layout, PendingTruncate, handle_number,
};
use futures_util::future::join_all;
use redb::WriteTransaction;
use tokio::sync::{Mutex, Notify};

use super::database::Shared;
use crate::manager::fleet::Link;
use crate::manager::tables::{Change, names};
use crate::manager::{Fault, Manager};

/// Most changes of size in progress at one I/O server.
const MOST: usize = MAX_DATAFILES / 2;

/// The changes of size that this manager is preparing.
pub(in crate::manager) struct Truncations {
    /// A connection to each I/O server, once there is a change of size.
    links: OnceCell<Vec<Mutex<Link>>>,
    /// Datafiles that are being prepared. The maintenance loops leave them alone.
    preparing: Shared<BTreeSet<DatafileHandle>>,
    /// Datafiles whose change could not be carried out, each with the pause that follows, and when
    /// it ends.
    pub(in crate::manager) failing: Shared<BTreeMap<(u32, DatafileHandle), (Duration, Time)>>,
    next: Cell<u64>,
}

impl Truncations {
    /// Creates the record of a start of the manager. Its numbers are higher than those of all
    /// earlier starts.
    pub(in crate::manager) fn new(epoch: u64) -> Truncations {
        let next = Cell::new(handle_number(epoch, 0));
        Truncations { links: OnceCell::new(), preparing: Rc::default(), failing: Rc::default(), next }
    }

    /// Returns the number of the next change.
    pub(in crate::manager) fn next_number(&self) -> u64 {
        self.next.get()
    }

    /// Returns true while a datafile is being prepared.
    pub(in crate::manager) fn prepares(&self, datafile: DatafileHandle) -> bool {
        self.preparing.borrow().contains(&datafile)
    }
}

/// The datafiles of a file that is being prepared, until it is dropped.
pub(in crate::manager) struct Preparing {
    preparing: Shared<BTreeSet<DatafileHandle>>,
    maintenance: Rc<Notify>,
    layout: Layout,
}

impl Preparing {
    fn new(preparing: Shared<BTreeSet<DatafileHandle>>, maintenance: Rc<Notify>, layout: Layout) -> Preparing {
        preparing.borrow_mut().extend(layout.datafiles().iter().map(|(_, datafile)| *datafile));
        Preparing { preparing, maintenance, layout }
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        let mut preparing = self.preparing.borrow_mut();
        for (_, datafile) in self.layout.datafiles() {
            preparing.remove(datafile);
        }
        drop(preparing);
        self.maintenance.notify_waiters();
    }
}

impl Manager {
    /// Lets all servers of a file prepare a change of its size, then calls `decide`. That must keep
    /// what it is given until it is known whether the change was decided.
    ///
    /// # Errors
    /// `TooLarge`, those of the I/O servers, and `Busy`. Nothing was changed then.
    pub(in crate::manager) async fn truncate<F: Future>(
        &self,
        file: FileHandle,
        size: u64,
        deadline: Time,
        decide: impl FnOnce(Preparing) -> F,
    ) -> Result<F::Output, FsError> {
        if size > MAX_OFFSET {
            return Err(FsError::new(ErrorCode::TooLarge, format!("a file of {size} bytes")));
        }
        let preparing = self.begin_truncate(file, size, deadline).await?;
        let layout = preparing.layout.clone();
        // One that has failed is tried at once, with whatever is decided then.
        for (iod, datafile) in layout.datafiles() {
            self.truncations.failing.borrow_mut().remove(&(*iod, *datafile));
        }
        let number = self.truncations.next.replace(self.truncations.next_number() + 1);
        let asked = layout.datafiles().iter().enumerate().map(|(index, (iod, datafile))| {
            let size = layout.distribution().datafile_size(index, size);
            self.prepare(*iod, IodRequest::PrepareTruncate { datafile: *datafile, size, number }, deadline)
        });
        let answers = join_all(asked).await;
        if let Some(error) = answers.into_iter().find_map(Result::err)
            && !mutated("manager/truncate-decided-although-not-prepared")
        {
            // If the file was removed meanwhile, its datafiles are gone, too.
            self.entry(file).await?;
            return Err(error);
        }
        Ok(decide(preparing).await)
    }

    async fn begin_truncate(&self, file: FileHandle, size: u64, deadline: Time) -> Result<Preparing, FsError> {
        loop {
            let news = self.maintenance.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let now_ns = (self.wall)();
            let begin = move |transaction: &WriteTransaction| {
                Change::open(transaction, now_ns)?.begin_truncate(file, size, MOST)
            };
            let (preparing, maintenance) = (self.truncations.preparing.clone(), self.maintenance.clone());
            // Before the maintenance loops see the rows.
            let note = |layout: Option<Layout>| Ok(layout.map(|layout| Preparing::new(preparing, maintenance, layout)));
            if let Some(preparing) = self.until(deadline, self.transact_then(begin, note)).await? {
                return Ok(preparing);
            }
            self.check_servers(file).await?;
            tokio::select! {
                biased;
                () = news => {}
                () = self.endpoint.sleep_until(deadline) => {
                    return Err(FsError::new(ErrorCode::Busy, format!("the size of {file} is being changed")));
                }
                // A server that was awaited may turn out to be down.
                () = self.endpoint.sleep(self.settings.heartbeat) => {}
            }
        }
    }

    /// Returns true if an I/O server is neither up nor expected back since the manager was started.
    fn is_down(&self, iod: u32) -> bool {
        !self.is_up(iod) && !self.members.borrow().is_awaited(iod, self.endpoint.now())
    }

    /// Waits for an I/O server that is expected back since the manager was started.
    ///
    /// # Errors
    /// `Unreachable` if it is down, or still expected at the deadline.
    async fn await_up(&self, iod: u32, deadline: Time) -> Result<(), FsError> {
        loop {
            let news = self.maintenance.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if self.is_up(iod) {
                return Ok(());
            }
            if self.is_down(iod) || self.endpoint.now() >= deadline {
                return Err(FsError::new(ErrorCode::Unreachable, "it is down"));
            }
            tokio::select! {
                biased;
                () = news => {}
                () = self.endpoint.sleep_until(deadline) => {}
                // It may turn out to be down.
                () = self.endpoint.sleep(self.settings.heartbeat) => {}
            }
        }
    }

    /// Fails if an I/O server of a file is down. A change that was not completed there is in the
    /// way.
    async fn check_servers(&self, file: FileHandle) -> Result<(), FsError> {
        let layout = self.entry(file).await?.layout;
        let down = layout.iter().flat_map(Layout::datafiles).find(|(iod, _)| self.is_down(*iod));
        down.map_or(Ok(()), |(iod, _)| Err(FsError::new(ErrorCode::Unreachable, format!("iod {iod}: it is down"))))
    }

    async fn entry(&self, file: FileHandle) -> Result<Entry, FsError> {
        self.read(|read| names::view(read)?.getattr(file.into())).await
    }

    async fn prepare(&self, iod: u32, request: IodRequest, deadline: Time) -> Result<(), FsError> {
        let ask = async {
            let links = self.truncations.links.get_or_init(|| {
                let link = |(addr, iod)| Mutex::new(Link::new(self.towards(addr).clone(), iod));
                self.settings.iods.iter().zip(0..).map(link).collect()
            });
            let Some(link) = links.get(iod as usize) else {
                return Err(FsError::new(ErrorCode::Invalid, "it is not in the configuration"));
            };
            let mut link = tokio::select! {
                biased;
                link = link.lock() => link,
                () = self.endpoint.sleep_until(deadline) => {
                    return Err(FsError::new(ErrorCode::Timeout, "it does not answer"));
                }
            };
            self.await_up(iod, deadline).await?;
            let asked = async {
                self.connect(&mut link).await?;
                link.ask_until(request, deadline).await
            };
            let result = asked.await;
            if result.is_err() {
                link.close().await;
            }
            result.map(drop)
        };
        let named = |error: FsError| FsError { detail: format!("iod {iod}: {}", error.detail), ..error };
        ask.await.map_err(named)
    }

    /// Waits until a change of size that was decided is carried out, or nothing more can be waited
    /// for: a server that has not done so is down, or has failed. Waits for most of the time until
    /// `deadline` at most. Returns what is left, as much as fits into `room` bytes.
    pub(super) async fn await_truncated(
        &self,
        file: FileHandle,
        deadline: Time,
        room: usize,
    ) -> Result<Vec<PendingTruncate>, FsError> {
        // The answer must arrive in time.
        let patience = deadline.since(self.endpoint.now()) / 8 * 7;
        let until = self.endpoint.now() + patience;
        loop {
            let news = self.maintenance.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let look = |read: &_| match names::truncation(read, file, room) {
                // The file was removed meanwhile.
                Err(Fault::Refused(_)) => Ok(Vec::new()),
                found => found,
            };
            let pending = self.read(look).await?;
            let is_awaited = |pending: &PendingTruncate| pending.error.is_none() && self.is_up(pending.iod);
            if mutated("manager/truncate-acknowledged-although-pending") {
                return Ok(Vec::new());
            }
            if !pending.iter().any(is_awaited) || self.endpoint.now() >= until {
                return Ok(pending);
            }
            tokio::select! {
                biased;
                () = news => {}
                () = self.endpoint.sleep_until(until) => {}
            }
        }
    }
}
