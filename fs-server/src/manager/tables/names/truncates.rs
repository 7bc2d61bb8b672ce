//! Changes of a file's size that are in progress at several I/O servers.
//!
//! **Why.** If a client told each server itself and one of them failed, some datafiles would have
//! the new length and others the old one. So the manager lets all servers prepare, decides in one
//! transaction, and then lets them carry it out (two-phase commit). A prepared datafile is not
//! served. So nobody sees a part of the change, and no later write is cut off by it.
//!
//! **Protocol** of a datafile's row
//!
//! ```text
//!   (no row) ── begin ──> none ── decide ──> size ── the server has carried it out ──> (no row)
//!                          │                  │ ▲
//!                          │                  │ └─ it fails again and again: size, with the error
//!                          │                  └─── begin, if there is an error: size, again ── decide ──> size
//!                          └──── not prepared, or the manager was restarted: cancel ──> (no row)
//! ```
//!
//! **Invariants**
//! 1. All datafiles of a file get their rows in one transaction, and are decided in one.
//! 2. A row without a size is cancelled, unless the manager that inserted it still asks the servers
//!    (`manager/commit/truncate.rs`).
//! 3. A row with a size stays until its server has carried it out, or another size is decided, or
//!    the file is removed. So a change that fails can be mended by another change: until that one
//!    is decided, the row keeps the size that was decided before.
//! 4. What a server answers counts only if no other change was begun since it was asked.

use bmi::hooks::step;
use fs_proto::{DatafileHandle, ErrorCode, FileHandle, FsError, Handle, Layout, PendingTruncate, RequestId};
use redb::{ReadTransaction, ReadableTable};

use super::change::Change;
use super::object::{TRUNCATES, refuse};
use super::view::view;
use crate::manager::Fault;

/// A change of a datafile's size that was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manager) struct Decided {
    pub(in crate::manager) datafile: DatafileHandle,
    /// Where the datafile is cut off first, in bytes. Less than the size if an earlier change has
    /// failed: bytes behind that must not come back.
    pub(in crate::manager) cut: u64,
    /// In bytes.
    pub(in crate::manager) size: u64,
    /// Another change was begun since.
    pub(in crate::manager) again: bool,
}

/// The changes of size in progress at one I/O server.
#[derive(Debug, Default)]
pub(in crate::manager) struct Truncates {
    /// Datafiles that may be prepared there.
    pub(in crate::manager) undecided: Vec<DatafileHandle>,
    pub(in crate::manager) decided: Vec<Decided>,
}

/// Returns the changes in progress at an I/O server.
pub(in crate::manager) fn truncates(transaction: &ReadTransaction, iod: u32) -> Result<Truncates, Fault> {
    let mut found = Truncates::default();
    for row in transaction.open_table(TRUNCATES)?.range((iod, 0)..=(iod, u64::MAX))? {
        step();
        let (key, row) = row?;
        let (datafile, (size, _, again)) = (DatafileHandle(key.value().1), row.value());
        match size {
            Some((cut, size)) => found.decided.push(Decided { datafile, cut, size, again }),
            None => found.undecided.push(datafile),
        }
    }
    Ok(found)
}

/// Returns the changes of the datafiles of a layout that were decided and not carried out yet.
pub(super) fn pending(transaction: &ReadTransaction, layout: &Layout) -> Result<Vec<PendingTruncate>, Fault> {
    let (table, mut found) = (transaction.open_table(TRUNCATES)?, Vec::new());
    for (iod, datafile) in layout.datafiles() {
        step();
        let Some(row) = table.get((*iod, datafile.0))? else { continue };
        let (Some((_, size)), error, _) = row.value() else { continue };
        let error = error.map(postcard::from_bytes).transpose();
        let error = error.map_err(|error| Fault::Corrupt(format!("the change of size of {datafile}: {error}")))?;
        found.push(PendingTruncate { iod: *iod, datafile: *datafile, size, error });
    }
    Ok(found)
}

/// Returns what of the last change of a file's size is decided and not carried out, first what has
/// failed, as much as fits into `room` bytes.
pub(in crate::manager) fn truncation(
    transaction: &ReadTransaction,
    file: FileHandle,
    room: usize,
) -> Result<Vec<PendingTruncate>, Fault> {
    let layout = view(transaction)?.getattr(Handle::File(file))?.layout;
    let mut found = layout.map_or(Ok(Vec::new()), |layout| pending(transaction, &layout))?;
    found.sort_by_key(|pending| pending.error.is_none());
    let mut left = room;
    let fits = found.iter().take_while(|pending| {
        // Beside the text: three numbers, and lengths.
        let needed = 32 + pending.error.as_ref().map_or(0, |error| error.detail.len());
        let fits = needed <= left;
        left = left.saturating_sub(needed);
        fits
    });
    let fits = fits.count().max(1);
    found.truncate(fits);
    Ok(found)
}

impl Change<'_> {
    /// Begins to change the size of a file. Returns its layout; `None` while another change of its
    /// size is in progress, or as many as may be at one of its servers.
    pub(in crate::manager) fn begin_truncate(
        &mut self,
        file: FileHandle,
        size: u64,
        most: usize,
    ) -> Result<Option<Layout>, Fault> {
        self.view.getattr(Handle::File(file))?;
        let Some(layout) = self.view.object(file.0)?.layout else {
            return Err(Fault::Corrupt(format!("{file} has no layout")));
        };
        if layout.limit().is_some_and(|limit| size > limit) {
            return refuse(ErrorCode::Invalid, format!("{size} bytes of {file}, which has to grow before"));
        }
        // The rows of changes that have failed.
        let mut failed = Vec::new();
        for (iod, datafile) in layout.datafiles() {
            let others = self.truncates.range((*iod, 0)..=(*iod, u64::MAX))?.take(most).inspect(|_| step()).count();
            let row = self.truncates.get((*iod, datafile.0))?;
            failed.push(match row.as_ref().map(|row| row.value()) {
                None if others < most => None,
                Some((Some(size), Some(error), false)) => Some((size, error.to_vec())),
                _ => return Ok(None),
            });
        }
        for ((iod, datafile), failed) in layout.datafiles().iter().zip(failed) {
            let row =
                failed.as_ref().map_or((None, None, false), |(size, error)| (Some(*size), Some(&error[..]), true));
            self.truncates.insert((*iod, datafile.0), row)?;
        }
        Ok(Some(layout))
    }

    /// Decides that all datafiles of a file, which are prepared, get their new sizes.
    pub(in crate::manager) fn truncate(&mut self, by: RequestId, file: FileHandle, size: u64) -> Result<(), Fault> {
        self.view.getattr(Handle::File(file))?;
        let mut object = self.view.object(file.0)?;
        let Some(layout) = object.layout.clone() else {
            return Err(Fault::Corrupt(format!("{file} has no layout")));
        };
        for (iod, datafile) in layout.datafiles() {
            let row = self.truncates.get((*iod, datafile.0))?;
            if !row.is_some_and(|row| matches!(row.value(), (None, ..) | (.., true))) {
                return refuse(ErrorCode::Busy, format!("the size of {file} is being changed"));
            }
        }
        for (index, (iod, datafile)) in layout.datafiles().iter().enumerate() {
            let size = layout.distribution().datafile_size(index, size);
            let failed = self.truncates.get((*iod, datafile.0))?.and_then(|row| row.value().0);
            let cut = failed.map_or(size, |(cut, _)| cut.min(size));
            self.truncates.insert((*iod, datafile.0), (Some((cut, size)), None, false))?;
        }
        object.content = object.content.begun(by, self.view.starts);
        (object.attr.mtime_ns, object.attr.ctime_ns, object.touched_ns) = (self.now_ns, self.now_ns, self.now_ns);
        self.store(file.0, &object)
    }

    /// Removes the rows of datafiles whose change was carried out or cancelled, each with whether
    /// another change had been begun when the server was asked.
    pub(in crate::manager) fn end_truncates(
        &mut self,
        iod: u32,
        datafiles: impl IntoIterator<Item = (DatafileHandle, bool)>,
    ) -> Result<(), Fault> {
        for (datafile, again) in datafiles {
            let key = (iod, datafile.0);
            let is_it = self.truncates.get(key)?.is_some_and(|row| row.value().2 == again);
            if is_it {
                self.truncates.remove(key)?;
            }
        }
        Ok(())
    }

    /// Records why an I/O server cannot carry out a change. From now on another one may begin.
    pub(in crate::manager) fn fail_truncate(&mut self, iod: u32, one: Decided, error: &FsError) -> Result<(), Fault> {
        let (key, Decided { datafile, cut, size, again }) = ((iod, one.datafile.0), one);
        let row = self.truncates.get(key)?.map(|row| (row.value().0, row.value().2));
        if row == Some((Some((cut, size)), again)) {
            let bytes = postcard::to_stdvec(error)
                .map_err(|error| Fault::Corrupt(format!("the change of size of {datafile}: {error}")))?;
            self.truncates.insert(key, (Some((cut, size)), Some(&bytes[..]), false))?;
        }
        Ok(())
    }
}
