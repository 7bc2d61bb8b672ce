//! The body of a fuzz target: the file of a backup.

use std::fs;

use fs_proto::DirHandle;

use super::file::Reader;
use super::import::Import;
use super::row::{MAX_ROW, Rows, push_row};
use crate::manager::tables::fuzz_view;
use crate::store::MetaStore;
use crate::store::fuzz::scratch;

/// Length of the header of a backup.
const HEADER: usize = 60;

/// A backup. If the first byte is odd, the file gets the right trailer, so that its rows count.
///
/// A row comes back from its encoding. What can be imported is a database that can be read.
pub fn backup(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let rows: Vec<_> = Rows(bytes.get(HEADER..).unwrap_or_default()).map_while(|row| row).collect();
    for (_, row) in &rows {
        let mut page = Vec::new();
        assert!(push_row(&mut page, row, MAX_ROW + 4).expect("a row can be encoded"));
        assert_eq!(Rows(&page).map(|row| row.map(|(_, row)| row)).collect::<Vec<_>>(), [Some(*row)]);
    }
    let mut file = bytes.to_vec();
    if kind & 1 == 1 {
        let whole: usize = rows.iter().map(|(encoded, _)| encoded.len()).sum();
        file.truncate(HEADER + whole);
        file.extend(u32::MAX.to_le_bytes());
        file.extend((rows.len() as u64).to_le_bytes());
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&file);
        file.extend(checksum.finalize().to_le_bytes());
    }
    scratch(|dir| {
        let path = dir.join("backup");
        fs::write(&path, &file).expect("a file");
        let Ok((mut reader, header)) = Reader::open(&path) else { return };
        let store = MetaStore::in_memory().expect("a database");
        let mut import = Import::begin(&store, &header).expect("an empty database");
        let mut read = 0;
        loop {
            match reader.next() {
                Ok(Some(row)) => {
                    read += 1;
                    if !import.add(&row).expect("room") {
                        return;
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    let repaired = kind & 1 == 1 && bytes.len() >= HEADER;
                    assert!(!repaired, "a backup with the right trailer is refused");
                    return;
                }
            }
        }
        assert!(read <= file.len() / 5);
        if import.finish(&store).expect("room").is_some() {
            fuzz_view(&store, DirHandle::ROOT);
        }
    });
}
