//! Converts the database of a manager of version 0.1.
//!
//! **Layout** of version 0.1, where it differs
//!
//! ```text
//!   objects   without the recorded size; the oldest ones also without the time of the last change
//!   counters  without "epoch" and "created"
//!   stores    I/O server → number of its store           now `members`
//! ```
//!
//! Handles stay as they are: those of epoch 0.

use fs_proto::{Attr, ClusterId, FsError, Layout, StoreId};
use redb::{ReadableTable, TableDefinition, TableError};
use serde::Deserialize;

use super::members::MEMBERS;
use super::namespace::{COUNTERS, OBJECTS, Object};
use super::{Fault, IDENTITY};
use crate::store::MetaStore;

const STORES: TableDefinition<'static, u32, u128> = TableDefinition::new("stores");
const TURNS: TableDefinition<'static, u64, u128> = TableDefinition::new("turns");
const REPLIES: TableDefinition<'static, (u128, u64), &'static [u8]> = TableDefinition::new("replies");
const CLIENTS: TableDefinition<'static, u128, (u64, u64)> = TableDefinition::new("clients");

/// Number of objects that are converted at a time.
const STEP: usize = 1024;

/// The stored form of version 0.1.
#[derive(Deserialize)]
struct OldObject {
    parent: u64,
    attr: Attr,
    layout: Option<Layout>,
    touched_ns: u64,
}

/// The stored form before that, without the time of the last change.
#[derive(Deserialize)]
struct OlderObject {
    parent: u64,
    attr: Attr,
    layout: Option<Layout>,
}

fn decode(raw: u64, bytes: &[u8]) -> Result<Object, Fault> {
    if let Ok(OldObject { parent, attr, layout, touched_ns }) = postcard::from_bytes(bytes) {
        return Ok(Object { parent, attr, layout, touched_ns, recorded_size: None });
    }
    let OlderObject { parent, attr, layout } =
        postcard::from_bytes(bytes).map_err(|error| Fault::Corrupt(format!("object {raw}: {error}")))?;
    Ok(Object { parent, attr, layout, touched_ns: attr.mtime_ns, recorded_size: None })
}

/// Converts a database of version 0.1, in one transaction. Returns its cluster: `cluster`, or the
/// one that it was converted with before.
///
/// # Errors
/// `Io`, `NoSpace`.
pub(crate) fn convert(store: &MetaStore, cluster: ClusterId, number: StoreId) -> Result<ClusterId, FsError> {
    let convert = || {
        let transaction = store.write()?;
        if let Some((cluster, _)) = super::identity(&transaction)? {
            return Ok(cluster);
        }
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut from = Some(0);
            while let Some(first) = from {
                let mut step = Vec::new();
                for row in objects.range(first..)?.take(STEP) {
                    let (raw, bytes) = row?;
                    step.push((raw.value(), decode(raw.value(), bytes.value())?));
                }
                from = step.last().and_then(|(raw, _)| raw.checked_add(1));
                for (raw, object) in step {
                    let bytes = postcard::to_stdvec(&object)
                        .map_err(|error| Fault::Corrupt(format!("object {raw}: {error}")))?;
                    objects.insert(raw, bytes.as_slice())?;
                }
            }
            // Start 0, which the conversion of the I/O server writes into its label.
            let mut members = transaction.open_table(MEMBERS)?;
            for row in transaction.open_table(STORES)?.iter()? {
                let (iod, store) = row?;
                members.insert(iod.value(), (store.value(), 0, 0))?;
            }
            transaction.open_table(COUNTERS)?.insert("epoch", 0)?;
            let mut identity = transaction.open_table(IDENTITY)?;
            identity.insert("cluster", cluster.0)?;
            identity.insert("store", number.0)?;
        }
        transaction.delete_table(STORES)?;
        // The clients of version 0.1 speak another protocol.
        transaction.delete_table(TURNS)?;
        transaction.delete_table(REPLIES)?;
        transaction.delete_table(CLIENTS)?;
        transaction.commit()?;
        Ok(cluster)
    };
    convert().map_err(Fault::into_error)
}

/// Returns the number of objects, and the datafiles of all layouts with their I/O servers. The
/// database may be of either version.
///
/// # Errors
/// `Io`.
pub(crate) fn layouts(store: &MetaStore) -> Result<(u64, Vec<(u32, u64)>), FsError> {
    let collect = || {
        let read = store.read()?;
        let old = match read.open_table(IDENTITY) {
            Ok(_) => false,
            Err(TableError::TableDoesNotExist(_)) => true,
            Err(error) => return Err(error.into()),
        };
        let (mut objects, mut datafiles) = (0, Vec::new());
        for row in read.open_table(OBJECTS)?.iter()? {
            let (raw, bytes) = row?;
            let raw = raw.value();
            let object = match old {
                true => decode(raw, bytes.value())?,
                false => {
                    Object::decode(bytes.value()).map_err(|error| Fault::Corrupt(format!("object {raw}: {error}")))?
                }
            };
            objects += 1;
            let named = object.layout.iter().flat_map(Layout::datafiles);
            datafiles.extend(named.map(|(iod, handle)| (*iod, handle.0)));
        }
        Ok((objects, datafiles))
    };
    collect().map_err(|fault: Fault| fault.into_error())
}
