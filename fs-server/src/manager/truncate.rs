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
//! If a server cannot prepare, or the manager is restarted before step 3, the maintenance loops
//! cancel what is prepared. After step 3 they carry it out, whenever the server is up. So a server
//! that fails in between makes the change before it serves the datafile again.
//!
//! **Source.** Two-phase commit with presumed abort.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;

use bmi_core::comm::Caller;
use bmi_core::{Time, Transport, mutated};
use fs_proto::limits::MAX_DATAFILES;
use fs_proto::{DatafileHandle, Entry, ErrorCode, FileHandle, FsError, IodRequest, Layout, handle_number};
use futures_util::future::join_all;
use tokio::sync::Mutex;

use super::maintenance::Link;
use super::namespace::{self, Change};
use super::{Fault, Manager};

/// Most changes of size in progress at one I/O server.
const MOST: usize = MAX_DATAFILES / 2;

/// The changes of size that this manager is preparing.
pub(super) struct Truncations<T: Transport> {
    /// A connection to each I/O server, once there is a change of size.
    links: OnceCell<Vec<Mutex<Link<T>>>>,
    /// Datafiles that are being prepared. The maintenance loops leave them alone.
    preparing: RefCell<BTreeSet<DatafileHandle>>,
    next: Cell<u64>,
}

impl<T: Transport> Truncations<T> {
    /// Creates the record of a start of the manager. Its numbers are higher than those of all
    /// earlier starts.
    pub(super) fn new(epoch: u64) -> Truncations<T> {
        let next = Cell::new(handle_number(epoch, 0));
        Truncations { links: OnceCell::new(), preparing: RefCell::default(), next }
    }

    /// Returns the number of the next change.
    pub(super) fn next_number(&self) -> u64 {
        self.next.get()
    }

    /// Returns true while a datafile is being prepared.
    pub(super) fn prepares(&self, datafile: DatafileHandle) -> bool {
        self.preparing.borrow().contains(&datafile)
    }
}

/// The datafiles of a file that is being prepared, until it is dropped.
struct Preparing<'a, T: Transport> {
    manager: &'a Manager<T>,
    layout: Layout,
}

impl<T: Transport> Drop for Preparing<'_, T> {
    fn drop(&mut self) {
        let mut preparing = self.manager.truncations.preparing.borrow_mut();
        for (_, datafile) in self.layout.datafiles() {
            preparing.remove(datafile);
        }
        drop(preparing);
        self.manager.maintenance.notify_waiters();
    }
}

impl<T: Transport> Manager<T> {
    /// Lets all servers of a file prepare a change of its size, then calls `decide`. Returns when
    /// the change was carried out, or at the deadline: it is then carried out later.
    ///
    /// # Errors
    /// Those of the I/O servers, and `Busy`. Nothing was changed then.
    pub(super) async fn truncate<R>(
        &self,
        file: FileHandle,
        size: u64,
        deadline: Time,
        decide: impl Future<Output = R>,
    ) -> Result<R, FsError> {
        let preparing = self.begin_truncate(file, deadline).await?;
        let layout = preparing.layout.clone();
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
            self.entry(file)?;
            return Err(error);
        }
        let decided = decide.await;
        drop(preparing);
        // It is decided, so a failure to look whether it was carried out changes nothing.
        if let Err(error) = self.await_truncated(&layout, deadline).await {
            tracing::warn!(%error, %file, "a change of size is carried out later");
        }
        Ok(decided)
    }

    async fn begin_truncate(&self, file: FileHandle, deadline: Time) -> Result<Preparing<'_, T>, FsError> {
        loop {
            let news = self.maintenance.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let begun =
                self.transact(|transaction| Change::open(transaction, (self.wall)())?.begin_truncate(file, MOST));
            if let Some(layout) = begun.map_err(|fault| self.settle(fault))? {
                let datafiles = layout.datafiles().iter().map(|(_, datafile)| *datafile);
                self.truncations.preparing.borrow_mut().extend(datafiles);
                return Ok(Preparing { manager: self, layout });
            }
            self.check_servers(file)?;
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
    fn check_servers(&self, file: FileHandle) -> Result<(), FsError> {
        let layout = self.entry(file)?.layout;
        let down = layout.iter().flat_map(Layout::datafiles).find(|(iod, _)| self.is_down(*iod));
        down.map_or(Ok(()), |(iod, _)| Err(FsError::new(ErrorCode::Unreachable, format!("iod {iod}: it is down"))))
    }

    fn entry(&self, file: FileHandle) -> Result<Entry, FsError> {
        let entry =
            self.store.read().map_err(Fault::from).and_then(|read| namespace::view(&read)?.getattr(file.into()));
        entry.map_err(|fault| self.settle(fault))
    }

    async fn prepare(&self, iod: u32, request: IodRequest, deadline: Time) -> Result<(), FsError> {
        let ask = async {
            let links = self.truncations.links.get_or_init(|| {
                let link = |(addr, iod)| Mutex::new(Link::new(Caller::new(self.towards(addr).clone()), iod));
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

    /// Waits until no datafile of a layout has a row any more, or for the deadline.
    async fn await_truncated(&self, layout: &Layout, deadline: Time) -> Result<(), FsError> {
        loop {
            let news = self.maintenance.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            let left = || {
                let read = self.store.read()?;
                for (iod, datafile) in layout.datafiles() {
                    let rows = namespace::truncates(&read, *iod)?;
                    if rows.decided.iter().any(|(decided, _)| decided == datafile) && self.is_up(*iod) {
                        return Ok::<bool, Fault>(true);
                    }
                }
                Ok(false)
            };
            if !left().map_err(|fault| self.settle(fault))? {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = news => {}
                () = self.endpoint.sleep_until(deadline) => return Ok(()),
            }
        }
    }
}
