//! A database from the rows of a backup.

use fs_proto::{DirHandle, FsError};
use redb::{ReadableTable, ReadableTableMetadata, WriteTransaction};

use super::file::Header;
use super::row::Row;
use crate::manager::Fault;
use crate::manager::fleet::MEMBERS;
use crate::manager::tables::{
    COUNTERS, Change, IDENTITY, NAMES, OBJECTS, ORPHANS, Object, RESTORED, TRUNCATES, XATTRS,
};
use crate::store::MetaStore;

/// A database that is being made, and what reads the objects of the backup.
pub(in crate::manager) struct Import(WriteTransaction, fn(&[u8]) -> postcard::Result<Object>);

impl Import {
    /// Begins with an empty database, for a backup with this header.
    ///
    /// # Errors
    /// `Io`, `NoSpace`.
    pub(super) fn begin(store: &MetaStore, header: &Header) -> Result<Import, FsError> {
        let begin = || {
            let transaction = store.write()?;
            {
                let mut table = transaction.open_table(IDENTITY)?;
                table.insert("cluster", header.cluster.0)?;
                table.insert("store", header.store.0)?;
            }
            Ok(transaction)
        };
        let decode = if header.format == 1 { Object::decode_first } else { Object::decode };
        begin().map(|transaction| Import(transaction, decode)).map_err(Fault::into_error)
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
                Row::Object(raw, bytes) => match (self.1)(bytes) {
                    Err(_) => return Ok(false),
                    // It may have been published since.
                    Ok(object) if object.is_nameless() => {}
                    Ok(object) => {
                        let bytes = object.encode(raw)?;
                        self.0.open_table(OBJECTS)?.insert(raw, bytes.as_slice())?;
                    }
                },
                Row::Name(dir, name, raw, kind) => drop(self.0.open_table(NAMES)?.insert((dir, name), (raw, kind))?),
                Row::Xattr(raw, name, value) => drop(self.0.open_table(XATTRS)?.insert((raw, name), value)?),
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
        let Import(transaction, _) = self;
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

#[cfg(test)]
mod tests {
    use fs_proto::{Attr, ClusterId, Kind, StoreId};

    use super::*;

    #[test]
    fn an_object_of_the_first_format_comes_over() {
        let attr = Attr {
            kind: Kind::Dir,
            mode: 0o755,
            uid: 1,
            gid: 2,
            size: 0,
            atime_ns: 3,
            mtime_ns: 4,
            ctime_ns: 5,
            nlink: 2,
        };
        let old = postcard::to_stdvec(&(1u64, attr, None::<fs_proto::Layout>, 7u64, None::<u64>)).unwrap();
        let header = Header { format: 1, cluster: ClusterId(1), store: StoreId(2), epoch: 3, time_ns: 4 };
        let store = MetaStore::in_memory().unwrap();
        let mut import = Import::begin(&store, &header).unwrap();
        for row in [Row::Counter("next", 9), Row::Object(1, &old), Row::Name(1, b"a", 1, 1)] {
            assert!(import.add(&row).unwrap());
        }
        assert_eq!(import.finish(&store).unwrap(), Some(1));
        let read = store.read().unwrap();
        let object = Object::decode(read.open_table(OBJECTS).unwrap().get(1).unwrap().unwrap().value()).unwrap();
        assert_eq!((object.attr, object.touched_ns, object.target), (attr, 7, None));
    }
}
