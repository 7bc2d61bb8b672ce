//! Holders of certificates who were shut out, until they are let in again.
//!
//! **Layout.** Each is a counter, `revoked:` and the name, with the time at which it was shut out,
//! in nanoseconds since 1970. So a backup has them, and restored metadata lets nobody in who was
//! not.

use std::collections::BTreeMap;

use fs_proto::{ErrorCode, FsError, MAX_REVOKED};
use redb::{ReadTransaction, ReadableTable};

use super::names::{COUNTERS, Change};
use crate::manager::Fault;

const PREFIX: &str = "revoked:";
/// The first name behind all of these.
const END: &str = "revoked;";

/// Returns the holders who were shut out, and when.
pub(in crate::manager) fn revoked(read: &ReadTransaction) -> Result<BTreeMap<String, u64>, Fault> {
    all(&read.open_table(COUNTERS)?)
}

fn all(counters: &impl ReadableTable<&'static str, u64>) -> Result<BTreeMap<String, u64>, Fault> {
    let row = |row: Result<(redb::AccessGuard<'_, &'static str>, redb::AccessGuard<'_, u64>), redb::StorageError>| {
        let (name, since) = row?;
        Ok((name.value().trim_start_matches(PREFIX).to_owned(), since.value()))
    };
    counters.range(PREFIX..END)?.map(row).collect()
}

impl Change<'_> {
    /// Shuts a holder out, or lets him in again.
    pub(in crate::manager) fn revoke(&mut self, holder: &str, back: bool) -> Result<(), Fault> {
        let known = all(&self.counters)?;
        let name = format!("{PREFIX}{holder}");
        let refuse = |code, text: String| Err(FsError::new(code, text).into());
        if back {
            if !known.contains_key(holder) {
                return refuse(ErrorCode::NotFound, format!("{holder} was not shut out"));
            }
            self.counters.remove(name.as_str())?;
        } else if known.len() >= MAX_REVOKED && !known.contains_key(holder) {
            let text = format!("{MAX_REVOKED} are shut out; revoke their certificates, and let them in again");
            return refuse(ErrorCode::NoSpace, text);
        } else {
            self.counters.insert(name.as_str(), self.now_ns)?;
        }
        Ok(())
    }
}
