//! A database from the rows of a backup.

use fs_proto::{ClusterId, DirHandle, FsError, StoreId};
use redb::{ReadableTable, ReadableTableMetadata, WriteTransaction};

use super::row::Row;
use crate::manager::Fault;
use crate::manager::fleet::MEMBERS;
use crate::manager::tables::{COUNTERS, Change, IDENTITY, NAMES, OBJECTS, ORPHANS, Object, RESTORED, TRUNCATES};
use crate::store::MetaStore;

/// A database that is being made.
pub(in crate::manager) struct Import(WriteTransaction);

impl Import {
    /// Begins with an empty database.
    ///
    /// # Errors
    /// `Io`, `NoSpace`.
    pub(crate) fn begin(store: &MetaStore, cluster: ClusterId, number: StoreId) -> Result<Import, FsError> {
        let begin = || {
            let transaction = store.write()?;
            {
                let mut table = transaction.open_table(IDENTITY)?;
                table.insert("cluster", cluster.0)?;
                table.insert("store", number.0)?;
            }
            Ok(transaction)
        };
        begin().map(Import).map_err(Fault::into_error)
    }

    /// Adds a row. Returns false if it cannot be one of a manager.
    ///
    /// # Errors
    /// `Io`, `NoSpace`.
    pub(crate) fn add(&mut self, row: &Row<'_>) -> Result<bool, FsError> {
        let add = || {
            match *row {
                Row::Counter(name, value) => drop(self.0.open_table(COUNTERS)?.insert(name, value)?),
                Row::Member(iod, store, epoch, instance) => {
                    self.0.open_table(MEMBERS)?.insert(iod, (store, epoch, instance))?;
                }
                Row::Object(raw, bytes) => match Object::decode(bytes) {
                    Err(_) => return Ok(false),
                    // It may have been published since.
                    Ok(object) if object.is_nameless() => {}
                    Ok(_) => drop(self.0.open_table(OBJECTS)?.insert(raw, bytes)?),
                },
                Row::Name(dir, name, raw, is_dir) => {
                    self.0.open_table(NAMES)?.insert((dir, name), (raw, is_dir))?;
                }
                Row::Orphan(iod, datafile) => drop(self.0.open_table(ORPHANS)?.insert((iod, datafile), ())?),
                Row::Truncate(_, _, _, Some(error)) if postcard::from_bytes::<FsError>(error).is_err() => {
                    return Ok(false);
                }
                Row::Truncate(iod, datafile, size, error) => {
                    self.0.open_table(TRUNCATES)?.insert((iod, datafile), (Some(size), error, false))?;
                }
            }
            Ok(true)
        };
        add().map_err(Fault::into_error)
    }

    /// Completes the database. It is marked: the manager must ask the I/O servers first
    /// (`roll_call`). Returns the number of objects; `None` if there is no root.
    ///
    /// # Errors
    /// `Io`, `NoSpace`.
    pub(crate) fn finish(self, store: &MetaStore) -> Result<Option<u64>, FsError> {
        let Import(transaction) = self;
        let finish = || {
            let objects = {
                let mut counters = transaction.open_table(COUNTERS)?;
                let objects = transaction.open_table(OBJECTS)?;
                if counters.get("next")?.is_none() || objects.get(DirHandle::ROOT.0)?.is_none() {
                    return Ok(None);
                }
                counters.insert(RESTORED, 1)?;
                objects.len()?
            };
            // The tables that are not in a backup.
            drop(Change::open(&transaction, 0)?);
            transaction.commit()?;
            Ok(Some(objects))
        };
        finish().map_err(|fault: Fault| {
            store.close_failed();
            fault.into_error()
        })
    }
}
