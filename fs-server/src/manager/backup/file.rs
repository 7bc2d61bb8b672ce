//! The file of a backup.
//!
//! **Layout.** All numbers are little-endian.
//!
//! ```text
//!   header    "PVFSBACK", format u32, cluster u128, store u128, epoch u64, time u64 (ns since 1970)
//!   rows      length u32, encoding in postcard             each row, see `row`
//!   trailer   ff ff ff ff, number of rows u64, CRC-32 u32  the checksum is of everything before it
//! ```
//!
//! **Invariants**
//! 1. The file has its name only once it is complete and on the disk.
//! 2. A file that was cut off or damaged is refused. The checksum finds every change within 32
//!    consecutive bits, and others with a probability of 1 − 2⁻³².
//! 3. Reading needs memory for one row.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crc32fast::Hasher;
use fs_proto::{ClusterId, ErrorCode, FsError, StoreId};

use super::row::{MAX_ROW, Row, decode};

const MAGIC: [u8; 8] = *b"PVFSBACK";
/// The format of the file.
pub(super) const FORMAT: u32 = 2;
/// The oldest format that can be restored.
const OLDEST: u32 = 1;
/// In place of the length of a row: the trailer follows.
const END: u32 = u32::MAX;
const HEADER_LEN: usize = 60;

/// Whose metadata a backup has, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The format of the file.
    pub(super) format: u32,
    pub(super) cluster: ClusterId,
    pub(super) store: StoreId,
    /// The manager's start.
    pub(super) epoch: u64,
    /// When the backup was begun, in nanoseconds since 1970.
    pub(super) time_ns: u64,
}

/// Creates an error that names a file.
fn trouble(path: &Path, error: &io::Error) -> FsError {
    let code = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorCode::NoSpace,
        io::ErrorKind::PermissionDenied => ErrorCode::Permission,
        io::ErrorKind::NotFound => ErrorCode::NotFound,
        _ => ErrorCode::Io,
    };
    FsError::new(code, format!("{}: {error}", path.display()))
}

/// A backup that is being written. If it is dropped before it is finished, nothing is left of it.
pub(super) struct Writer {
    path: PathBuf,
    new: PathBuf,
    out: BufWriter<File>,
    checksum: Hasher,
    rows: u64,
    bytes: u64,
    force: bool,
}

impl Writer {
    /// Begins a backup that will be the file at `path`. `unique` distinguishes its temporary name.
    ///
    /// # Errors
    /// `Exists` if there is such a file, unless `force` is set; `Io`, `NoSpace`, `Permission`.
    pub(super) fn create(path: &Path, header: &Header, unique: u128, force: bool) -> Result<Writer, FsError> {
        refuse_existing(path, force)?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".new-{unique:032x}"));
        let new = path.with_file_name(name);
        let file = File::create_new(&new).map_err(|error| trouble(&new, &error))?;
        let (out, checksum) = (BufWriter::new(file), Hasher::new());
        let mut writer = Writer { path: path.to_owned(), new, out, checksum, rows: 0, bytes: 0, force };
        let mut head = Vec::with_capacity(HEADER_LEN);
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&FORMAT.to_le_bytes());
        head.extend_from_slice(&header.cluster.0.to_le_bytes());
        head.extend_from_slice(&header.store.0.to_le_bytes());
        head.extend_from_slice(&header.epoch.to_le_bytes());
        head.extend_from_slice(&header.time_ns.to_le_bytes());
        writer.write(&head)?;
        Ok(writer)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), FsError> {
        self.checksum.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|error| trouble(&self.path, &error))
    }

    /// Adds a row, encoded, with its length.
    pub(super) fn add(&mut self, row: &[u8]) -> Result<(), FsError> {
        self.rows += 1;
        self.write(row)
    }

    /// Completes the file, and gives it its name. Returns its size in bytes.
    pub(super) fn finish(mut self) -> Result<u64, FsError> {
        self.write(&END.to_le_bytes())?;
        self.write(&self.rows.to_le_bytes())?;
        let checksum = self.checksum.clone().finalize();
        self.write(&checksum.to_le_bytes())?;
        let synced = self.out.flush().and_then(|()| self.out.get_ref().sync_all());
        synced.map_err(|error| trouble(&self.path, &error))?;
        // Another process may have made such a file meanwhile.
        refuse_existing(&self.path, self.force)?;
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let named = fs::rename(&self.new, &self.path).and_then(|()| File::open(dir)?.sync_all());
        named.map_err(|error| trouble(&self.path, &error))?;
        Ok(self.bytes)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After `finish` there is no such file.
        let _ = fs::remove_file(&self.new);
    }
}

fn refuse_existing(path: &Path, force: bool) -> Result<(), FsError> {
    if path.is_dir() {
        return Err(FsError::new(ErrorCode::IsDirectory, format!("{}; name a file in it", path.display())));
    }
    if path.exists() && !force {
        return Err(FsError::new(ErrorCode::Exists, format!("{}; --force writes over it", path.display())));
    }
    Ok(())
}

/// A backup that is being read.
pub(super) struct Reader {
    path: PathBuf,
    input: BufReader<File>,
    checksum: Hasher,
    row: Vec<u8>,
    rows: u64,
    bytes: u64,
}

impl Reader {
    /// Opens a backup, and reads its header.
    ///
    /// # Errors
    /// `Invalid` if it is not a backup, is of another format, or is cut off; `NotFound`, `Io`,
    /// `Permission`.
    pub(super) fn open(path: &Path) -> Result<(Reader, Header), FsError> {
        let file = File::open(path).map_err(|error| trouble(path, &error))?;
        let (input, checksum) = (BufReader::new(file), Hasher::new());
        let mut reader = Reader { path: path.to_owned(), input, checksum, row: Vec::new(), rows: 0, bytes: 0 };
        let magic: [u8; 8] = reader.take().map_err(|_| reader.refusal("it is not a backup of `pvfsd backup`"))?;
        if magic != MAGIC {
            return Err(reader.refusal("it is not a backup of `pvfsd backup`"));
        }
        let format = u32::from_le_bytes(reader.take()?);
        if !(OLDEST..=FORMAT).contains(&format) {
            let known = format!("formats {OLDEST} to {FORMAT} are known here");
            return Err(reader.refusal(&format!("it is of format {format}; {known}")));
        }
        let header = Header {
            format,
            cluster: ClusterId(u128::from_le_bytes(reader.take()?)),
            store: StoreId(u128::from_le_bytes(reader.take()?)),
            epoch: u64::from_le_bytes(reader.take()?),
            time_ns: u64::from_le_bytes(reader.take()?),
        };
        Ok((reader, header))
    }

    /// Returns an error that names the file.
    pub(super) fn refusal(&self, why: &str) -> FsError {
        FsError::new(ErrorCode::Invalid, format!("backup {}: {why}", self.path.display()))
    }

    /// Returns the number of bytes read so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), FsError> {
        match self.input.read_exact(bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(self.refusal("it is cut off; take another backup"));
            }
            Err(error) => return Err(trouble(&self.path, &error)),
            Ok(()) => {}
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], FsError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        self.checksum.update(&bytes);
        Ok(bytes)
    }

    /// Returns the next row; `None` after the last one, when the trailer has been checked.
    ///
    /// # Errors
    /// `Invalid` if the file is cut off or damaged; `Io`.
    pub(super) fn next(&mut self) -> Result<Option<Row<'_>>, FsError> {
        let len = u32::from_le_bytes(self.take()?);
        if len == END {
            return self.check_trailer().map(|()| None);
        }
        let len = len as usize;
        if len > MAX_ROW {
            return Err(self.damaged());
        }
        let mut row = std::mem::take(&mut self.row);
        row.resize(len, 0);
        self.fill(&mut row)?;
        self.checksum.update(&row);
        self.row = row;
        self.rows += 1;
        // The row is looked at again, because an error may not keep it borrowed.
        if decode(&self.row).is_none() {
            return Err(self.damaged());
        }
        Ok(decode(&self.row))
    }

    fn check_trailer(&mut self) -> Result<(), FsError> {
        let rows = u64::from_le_bytes(self.take()?);
        let expected = self.checksum.clone().finalize();
        let found = u32::from_le_bytes(self.take()?);
        let more = self.input.read(&mut [0]).map_err(|error| trouble(&self.path, &error))?;
        if rows != self.rows || found != expected || more != 0 {
            return Err(self.damaged());
        }
        Ok(())
    }

    pub(super) fn damaged(&self) -> FsError {
        self.refusal("it is damaged; take another backup")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::backup::row::push_row;

    const HEADER: Header = Header { format: FORMAT, cluster: ClusterId(7), store: StoreId(8), epoch: 3, time_ns: 99 };

    fn write(path: &Path, force: bool) -> Result<u64, FsError> {
        let mut writer = Writer::create(path, &HEADER, 1, force)?;
        for number in 0..3 {
            let mut row = Vec::new();
            push_row(&mut row, &Row::Object(number, b"an object"), 100).unwrap();
            writer.add(&row)?;
        }
        writer.finish()
    }

    fn read(path: &Path) -> Result<u64, FsError> {
        let (mut reader, header) = Reader::open(path)?;
        assert_eq!(header, HEADER);
        let mut rows = 0;
        while let Some(row) = reader.next()? {
            assert_eq!(row, Row::Object(rows, b"an object"));
            rows += 1;
        }
        Ok(rows)
    }

    #[test]
    fn a_backup_is_read_as_it_was_written_and_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        let bytes = write(&path, false).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
        assert_eq!(read(&path).unwrap(), 3);
        assert_eq!(write(&path, false).unwrap_err().code, ErrorCode::Exists);
        write(&path, true).unwrap();
        drop(Writer::create(&dir.path().join("other"), &HEADER, 1, false).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left of what was not finished");
        assert_eq!(write(dir.path(), true).unwrap_err().code, ErrorCode::IsDirectory);
    }

    #[test]
    fn every_cut_and_every_damaged_byte_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        write(&path, false).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(read(&path).unwrap_err().code, ErrorCode::Invalid, "{cut} bytes");
        }
        for at in HEADER_LEN..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x40;
            fs::write(&path, &damaged).unwrap();
            let error = std::panic::catch_unwind(|| read(&path));
            assert!(!matches!(error, Ok(Ok(_))), "byte {at}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(read(&path).unwrap_err().detail.contains("damaged"));
    }
}
