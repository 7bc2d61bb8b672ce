//! Whose a database is, its starts, and whether it was restored.

use fs_proto::{ClusterId, ErrorCode, FsError, StoreId};
use redb::{ReadableTable, TableDefinition, WriteTransaction};

use crate::manager::Fault;

/// The cluster and the store of a manager's database.
pub(in crate::manager) const IDENTITY: TableDefinition<'static, &'static str, u128> = TableDefinition::new("identity");

/// The counter that marks a database that was made from a backup, until the I/O servers were asked
/// (`roll_call`).
pub(in crate::manager) const RESTORED: &str = "restored";
/// The counter of the newest start up to which the I/O servers were asked (`roll_call`).
pub(in crate::manager) const ASKED: &str = "asked";

/// The starts of a manager's database: epoch and instance of each.
pub(in crate::manager) const STARTS: TableDefinition<'static, u64, u128> = TableDefinition::new("starts");

/// Returns the cluster and the store of a database; `None` if it is not formatted.
pub(in crate::manager) fn identity(transaction: &WriteTransaction) -> Result<Option<(ClusterId, StoreId)>, Fault> {
    let table = transaction.open_table(IDENTITY)?;
    let number = |name: &str| Ok::<_, Fault>(table.get(name)?.map(|number| number.value()));
    Ok(number("cluster")?.zip(number("store")?).map(|(cluster, store)| (ClusterId(cluster), StoreId(store))))
}

pub(in crate::manager) fn not_formatted() -> FsError {
    FsError::new(ErrorCode::Invalid, "the database is not formatted; a new cluster begins with `pvfsd format`")
}
