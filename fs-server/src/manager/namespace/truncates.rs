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
//!                          └──── not prepared, or the manager was restarted: cancel ──> (no row)
//! ```
//!
//! **Invariants**
//! 1. All datafiles of a file get their rows in one transaction, and are decided in one.
//! 2. A row without a size is cancelled, unless the manager that inserted it still asks the servers
//!    (`manager/truncate.rs`).

use fs_proto::{DatafileHandle, ErrorCode, FileHandle, Handle, Layout};
use redb::{ReadTransaction, ReadableTable, TableDefinition};

use super::super::Fault;
use super::{Change, refuse};

pub(in super::super) const TRUNCATES: TableDefinition<'static, (u32, u64), Option<u64>> =
    TableDefinition::new("truncates");

/// The changes of size in progress at one I/O server.
#[derive(Debug, Default)]
pub(in super::super) struct Truncates {
    /// Datafiles that may be prepared there.
    pub(in super::super) undecided: Vec<DatafileHandle>,
    /// Datafiles with their new sizes in bytes.
    pub(in super::super) decided: Vec<(DatafileHandle, u64)>,
}

/// Returns the changes in progress at an I/O server.
pub(in super::super) fn truncates(transaction: &ReadTransaction, iod: u32) -> Result<Truncates, Fault> {
    let mut found = Truncates::default();
    for row in transaction.open_table(TRUNCATES)?.range((iod, 0)..=(iod, u64::MAX))? {
        let (key, size) = row?;
        let datafile = DatafileHandle(key.value().1);
        match size.value() {
            Some(size) => found.decided.push((datafile, size)),
            None => found.undecided.push(datafile),
        }
    }
    Ok(found)
}

impl Change<'_> {
    /// Begins to change the size of a file. Returns its layout; `None` while another change of its
    /// size is in progress, or as many as may be at one of its servers.
    pub(in super::super) fn begin_truncate(&mut self, file: FileHandle, most: usize) -> Result<Option<Layout>, Fault> {
        self.view.getattr(Handle::File(file))?;
        let Some(layout) = self.view.object(file.0)?.layout else {
            return Err(Fault::Corrupt(format!("{file} has no layout")));
        };
        for (iod, datafile) in layout.datafiles() {
            let others = self.truncates.range((*iod, 0)..=(*iod, u64::MAX))?.take(most).count();
            if others == most || self.truncates.get((*iod, datafile.0))?.is_some() {
                return Ok(None);
            }
        }
        for (iod, datafile) in layout.datafiles() {
            self.truncates.insert((*iod, datafile.0), None)?;
        }
        Ok(Some(layout))
    }

    /// Decides that all datafiles of a file, which are prepared, get their new sizes.
    pub(in super::super) fn truncate(&mut self, file: FileHandle, size: u64) -> Result<(), Fault> {
        self.view.getattr(Handle::File(file))?;
        let mut object = self.view.object(file.0)?;
        let Some(layout) = object.layout.clone() else {
            return Err(Fault::Corrupt(format!("{file} has no layout")));
        };
        for (iod, datafile) in layout.datafiles() {
            if self.truncates.get((*iod, datafile.0))?.is_none_or(|row| row.value().is_some()) {
                return refuse(ErrorCode::Busy, format!("the size of {file} is being changed"));
            }
        }
        for (index, (iod, datafile)) in layout.datafiles().iter().enumerate() {
            let size = layout.distribution().datafile_size(index, size);
            self.truncates.insert((*iod, datafile.0), Some(size))?;
        }
        object.recorded_size = None;
        (object.attr.mtime_ns, object.attr.ctime_ns, object.touched_ns) = (self.now_ns, self.now_ns, self.now_ns);
        self.store(file.0, &object)
    }

    /// Removes the rows of datafiles whose change was carried out or cancelled.
    pub(in super::super) fn end_truncates(&mut self, iod: u32, datafiles: &[DatafileHandle]) -> Result<(), Fault> {
        for datafile in datafiles {
            self.truncates.remove((iod, datafile.0))?;
        }
        Ok(())
    }
}
