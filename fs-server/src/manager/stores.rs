//! Records the store of each I/O server.
//!
//! **Why.** Bytes that were never written are zeros. If an I/O server were started over an empty
//! directory because its disk is not mounted, it would answer zeros for every file. It would also
//! take new bytes, which would be gone when the disk is mounted again. So each I/O server reports
//! its store's number when it is started, and is rejected if it had another store before. If a disk
//! is lost for good, the administrator says so (`pvfsd --adopt`).
//!
//! **Layout**
//!
//! ```text
//!   stores    I/O server → number of its store
//! ```

use fs_proto::{ErrorCode, FsError};
use redb::{ReadableTable, TableDefinition, WriteTransaction};

use super::Fault;

const STORES: TableDefinition<'static, u32, u128> = TableDefinition::new("stores");

/// Records the store of I/O server `iod` of `iods`. `used` is true if the store already contained
/// datafiles. With `adopt`, the store is accepted whatever was recorded before.
pub(super) fn register(
    transaction: &WriteTransaction,
    iod: u32,
    iods: u32,
    store: u128,
    used: bool,
    adopt: bool,
) -> Result<(), Fault> {
    let refuse = |why: String| Err(Fault::Refused(FsError::new(ErrorCode::Invalid, why)));
    if iod >= iods {
        return refuse(format!("there is no I/O server {iod}; the manager's configuration has {iods}"));
    }
    let mut stores = transaction.open_table(STORES)?;
    let known = stores.get(iod)?.map(|known| known.value());
    if known == Some(store) {
        return Ok(());
    }
    if !adopt {
        for row in stores.iter()? {
            let (other, number) = row?;
            if number.value() == store {
                return refuse(format!(
                    "the data directory of I/O server {iod} is a copy of that of {}",
                    other.value()
                ));
            }
        }
        match known {
            Some(_) => {
                let what = if used { "another one" } else { "a new one" };
                return refuse(format!(
                    "the data directory of I/O server {iod} is not the one that it had before, but {what}; is its disk mounted? \
                     --adopt takes it all the same"
                ));
            }
            None if used => {
                return refuse(format!(
                    "the data directory of I/O server {iod} holds files that this manager does not know; \
                     --adopt takes it, if they are its own from before stores had numbers; else it needs an empty one"
                ));
            }
            None => {}
        }
    }
    stores.insert(iod, store)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MetaStore;

    #[test]
    fn another_store_than_before_is_refused_until_it_is_adopted() {
        let store = MetaStore::in_memory().unwrap();
        let register = |iod, number, used, adopt| {
            let transaction = store.write().unwrap();
            let result = register(&transaction, iod, 2, number, used, adopt);
            transaction.commit().unwrap();
            result.map_err(|fault| fault.into_error().detail)
        };
        assert_eq!(register(0, 7, false, false), Ok(()));
        assert_eq!(register(0, 7, true, false), Ok(()), "the same again");
        assert!(register(0, 8, false, false).unwrap_err().contains("is its disk mounted?"));
        assert!(register(1, 7, true, false).unwrap_err().contains("copy of that of 0"));
        assert!(register(1, 9, true, false).unwrap_err().contains("does not know"));
        assert!(register(2, 9, false, false).unwrap_err().contains("no I/O server 2"));
        assert_eq!(register(0, 8, false, true), Ok(()));
        assert_eq!(register(0, 8, true, false), Ok(()));
        assert!(register(0, 7, true, false).is_err());
    }
}
