//! The rows of a backup.
//!
//! **Layout.** A row is its length, four bytes, little-endian, and its encoding in postcard.
//!
//! **Invariant.** Whatever the bytes are, reading them never panics and allocates nothing.

use bmi::hooks::step;
use serde::{Deserialize, Serialize};

/// Longest encoded row, in bytes. The longest that exists is a file over 256 servers: below 5 KiB.
pub(super) const MAX_ROW: usize = 64 << 10;

/// A row of one of the manager's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Row<'a> {
    /// A counter and its value.
    Counter(&'a str, u64),
    /// An I/O server: its number, its store, epoch and instance of the store's last start.
    Member(u32, u128, u64, u128),
    /// An object: its number and its stored form.
    Object(u64, &'a [u8]),
    /// A name: its directory, the name, the number of the object, and the number of its kind.
    Name(u64, &'a [u8], u64, u8),
    /// A datafile that waits to be removed from an I/O server.
    Orphan(u32, u64),
    /// A datafile whose change of size was decided and not carried out: its I/O server, its handle,
    /// where to cut it off and its size then, in bytes, and the encoded error of the server, if
    /// there is one.
    Truncate(u32, u64, (u64, u64), Option<&'a [u8]>),
    /// An extended attribute: the number of its object, its name, and its value.
    Xattr(u64, &'a [u8], &'a [u8]),
}

/// Appends a row to `page`, unless the page would then be longer than `room`. Returns whether it
/// did.
pub(super) fn push_row(page: &mut Vec<u8>, row: &Row<'_>, room: usize) -> postcard::Result<bool> {
    step();
    let before = page.len();
    page.extend_from_slice(&[0; 4]);
    let mut longer = postcard::to_extend(row, std::mem::take(page))?;
    let len = longer.len() - before - 4;
    let fits = longer.len() <= room && len <= MAX_ROW;
    if fits {
        longer[before..before + 4].copy_from_slice(&(len as u32).to_le_bytes());
    } else {
        longer.truncate(before);
    }
    *page = longer;
    Ok(fits)
}

/// Decodes a row without its length.
pub(super) fn decode(bytes: &[u8]) -> Option<Row<'_>> {
    match postcard::take_from_bytes(bytes) {
        Ok((row, [])) => Some(row),
        _ => None,
    }
}

/// The rows of a page. Ends with `None` in place of a row if the page is malformed.
pub(super) struct Rows<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Rows<'a> {
    /// The encoded row with its length, and the row.
    type Item = Option<(&'a [u8], Row<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let split = || {
            let (len, _) = self.0.split_first_chunk::<4>()?;
            let len = u32::from_le_bytes(*len) as usize;
            let (bytes, rest) = self.0.split_at_checked(len.checked_add(4)?)?;
            Some((bytes, rest, decode(&bytes[4..])?))
        };
        match split() {
            Some((bytes, rest, row)) => {
                self.0 = rest;
                Some(Some((bytes, row)))
            }
            None => {
                self.0 = &[];
                Some(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_takes_rows_while_there_is_room() {
        let rows = [
            Row::Counter("next", 7),
            Row::Member(1, 2, 3, 4),
            Row::Object(1, b"stored"),
            Row::Name(1, b"name", 9, 0),
            Row::Xattr(9, b"user.name", b"value"),
            Row::Orphan(2, 77),
            Row::Truncate(2, 78, (8, 9), Some(b"stored")),
        ];
        let mut page = Vec::new();
        assert!(rows.iter().all(|row| push_row(&mut page, row, 200).unwrap()));
        assert_eq!(Rows(&page).map(|row| row.unwrap().1).collect::<Vec<_>>(), rows);
        let before = page.clone();
        assert!(!push_row(&mut page, &Row::Object(3, &[0; 100]), 150).unwrap());
        assert_eq!(page, before, "a row that does not fit leaves the page as it was");
    }

    proptest! {
        #[test]
        fn garbage_ends_the_rows(bytes in vec(any::<u8>(), 0..100)) {
            prop_assert!(Rows(&bytes).count() <= bytes.len());
        }
    }
}
