//! The sums of a datafile as they are on the disk.
//!
//! **Layout** of `<dir>/sums/e1/000001000000e100`, little-endian:
//!
//! ```text
//!   ┌──────┬───────┬──────────┬─────┬────────┐
//!   │ kind │ check │ datafile │ era │ length │    kind 1: settled, 2: unsettled; the rest of 4 KiB is zero
//!   │ 4    │ 4     │ 8        │ 8   │ 8      │
//!   └──────┴───────┴──────────┴─────┴────────┘
//!   ┌───────┬─────────────────────────────────┐
//!   │ check │ 1023 sums                       │    a page for each 1023 blocks of the datafile
//!   │ 4     │ 4 each                          │
//!   └───────┴─────────────────────────────────┘
//! ```
//!
//! A sum is the CRC-32 of a block, with zeros behind the end of the datafile, exclusive or that of
//! a block of zeros. So a page that was never written, a hole, has the sums of blocks of zeros. The
//! check value of any other page covers the datafile, the number of the page and its sums.
//!
//! **Eras.** The length of `<dir>/sums/era` is the number of the era: odd while the store keeps
//! sums, even while it does not. A header of another era says nothing. It is a length because a
//! power failure leaves the old one or the new one.

use std::io;
use std::sync::{Arc, OnceLock};

use fs_proto::{DatafileHandle, Sought};

use crate::store::disk::steps::{self, step};
use crate::store::disk::{DiskDir, DiskFile};

/// Bytes of a block, the unit of which there is a sum.
pub(in crate::store) const BLOCK: u64 = 4096;
/// Blocks of a page of sums.
pub(super) const BLOCKS: u64 = 1023;
/// Bytes of a datafile whose sums are in a page.
pub(in crate::store) const CHUNK: u64 = BLOCKS * BLOCK;

const PAGE: usize = 4096;
const HEADER: usize = 32;
/// The directory of the sums.
const DIR: &str = "sums";
const ERA: &str = "sums/era";

fn subdir_of(datafile: DatafileHandle) -> String {
    format!("{DIR}/{:02x}", (datafile.0 >> 8) as u8)
}

fn name(datafile: DatafileHandle) -> String {
    format!("{}/{:016x}", subdir_of(datafile), datafile.0)
}

/// Returns the sum of a block.
pub(super) fn sum(block: &[u8]) -> u32 {
    crc32fast::hash(block)
}

/// Returns the sum of a block of zeros.
fn sum_of_zeros() -> u32 {
    static SUM: OnceLock<u32> = OnceLock::new();
    *SUM.get_or_init(|| sum(&[0; BLOCK as usize]))
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The length for which the sums hold. `None` if they say nothing.
    pub(super) settled: Option<u64>,
    pub(super) era: u64,
}

impl Header {
    fn encode(self, datafile: DatafileHandle) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let kind: u32 = if self.settled.is_some() { 1 } else { 2 };
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&datafile.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.era.to_le_bytes());
        bytes[24..].copy_from_slice(&self.settled.unwrap_or(0).to_le_bytes());
        let check = check(&[&bytes[..4], &bytes[8..]]);
        bytes[4..8].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn decode(datafile: DatafileHandle, bytes: &[u8; HEADER]) -> Option<Header> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let settled = if bytes[0] == 1 { Some(number(24)?) } else { None };
        let header = Header { settled, era: number(16)? };
        (header.encode(datafile) == *bytes).then_some(header)
    }
}

fn check(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// The sums of a chunk of a datafile.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::store) struct Page(Box<[u8; PAGE]>);

impl Page {
    /// Returns the sums of blocks of zeros.
    pub(in crate::store) fn zeros() -> Page {
        Page(Box::new([0; PAGE]))
    }

    /// Returns the sum of the block with this number in the chunk.
    pub(super) fn sum(&self, number: u64) -> u32 {
        let at = 4 + 4 * number as usize;
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]]) ^ sum_of_zeros()
    }

    pub(super) fn set(&mut self, number: u64, sum: u32) {
        let at = 4 + 4 * number as usize;
        self.0[at..at + 4].copy_from_slice(&(sum ^ sum_of_zeros()).to_le_bytes());
    }

    fn is_zero(&self) -> bool {
        self.0[4..].iter().all(|byte| *byte == 0)
    }

    fn check(&self, datafile: DatafileHandle, number: u64) -> [u8; 4] {
        check(&[&datafile.0.to_le_bytes(), &number.to_le_bytes(), &self.0[4..]]).to_le_bytes()
    }
}

/// The file of the sums of a datafile.
#[derive(Debug)]
pub(in crate::store) struct SumsFile {
    datafile: DatafileHandle,
    file: Arc<dyn DiskFile>,
}

impl SumsFile {
    /// Opens the file, and makes it if `make` is true.
    pub(super) fn open(dir: &dyn DiskDir, datafile: DatafileHandle, make: bool) -> io::Result<Option<SumsFile>> {
        let open = || step(|| dir.open(&name(datafile), make));
        let opened = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && make => {
                // The names need not survive: without them there are no sums.
                step(|| dir.make_dir(DIR))?;
                step(|| dir.make_dir(&subdir_of(datafile)))?;
                open()
            }
            opened => opened,
        };
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !make => Ok(None),
            opened => Ok(Some(SumsFile { datafile, file: opened? })),
        }
    }

    /// Removes the file, if there is one.
    pub(super) fn remove(dir: &dyn DiskDir, datafile: DatafileHandle) -> io::Result<()> {
        match step(|| dir.remove(&name(datafile))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Fills `into` from `offset` on. Returns false if the file ends before.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<bool> {
        Ok(read_whole(&*self.file, offset, into)? == into.len())
    }

    /// Returns what the header says; `None` if there is none that holds.
    pub(super) fn header(&self) -> io::Result<Option<Header>> {
        let mut bytes = [0; HEADER];
        Ok(if self.read(0, &mut bytes)? { Header::decode(self.datafile, &bytes) } else { None })
    }

    pub(super) fn set_header(&self, header: Header) -> io::Result<()> {
        steps::write_all_at(&*self.file, &header.encode(self.datafile), 0)
    }

    /// Returns a page; `None` if it is damaged or not there.
    pub(super) fn page(&self, number: u64) -> io::Result<Option<Page>> {
        let mut page = Page::zeros();
        if !self.read(PAGE as u64 * (number + 1), &mut page.0[..])? {
            return Ok(None);
        }
        let is_whole = page == Page::zeros() || page.0[..4] == page.check(self.datafile, number);
        Ok(is_whole.then_some(page))
    }

    /// Returns the first page from this number on that is not a hole.
    pub(super) fn next_page(&self, number: u64) -> io::Result<Option<u64>> {
        let at = step(|| self.file.seek(PAGE as u64 * (number + 1), Sought::Data))?;
        Ok(at.map(|at| at / PAGE as u64 - 1))
    }

    pub(super) fn set_page(&self, number: u64, mut page: Page) -> io::Result<()> {
        let check = if page.is_zero() { [0; 4] } else { page.check(self.datafile, number) };
        page.0[..4].copy_from_slice(&check);
        steps::write_all_at(&*self.file, &page.0[..], PAGE as u64 * (number + 1))
    }

    /// Cuts off all pages from this number on, or adds holes up to it.
    pub(super) fn set_pages(&self, count: u64) -> io::Result<()> {
        step(|| self.file.set_len(PAGE as u64 * (count + 1)))
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        steps::sync_file(&*self.file, false)
    }
}

/// Reads until `into` is full or the file ends. Returns how many bytes.
pub(super) fn read_whole(file: &dyn DiskFile, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_record(offset + done as u64, &mut into[done..])? {
            0 => break,
            more => done += more,
        }
    }
    Ok(done)
}

/// Begins an era, durably, unless it has begun: one in which sums are kept, or one in which they
/// are not. Returns its number.
pub(super) fn begin_era(dir: &dyn DiskDir, keeps: bool) -> io::Result<u64> {
    let era = match step(|| dir.len_of(ERA)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        len => len?,
    };
    if (era % 2 == 1) == keeps {
        return Ok(era);
    }
    step(|| dir.make_dir(DIR))?;
    let file = step(|| dir.open(ERA, true))?;
    step(|| file.set_len(era + 1))?;
    steps::sync_file(&*file, true)?;
    steps::sync_dir(&*dir.dir(DIR)?)?;
    steps::sync_dir(dir)?;
    Ok(era + 1)
}
