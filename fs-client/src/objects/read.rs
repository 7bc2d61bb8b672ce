//! Gets: one lookup, and reads of the file that it found.

use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

use bmi::{MemList, Memory};
use bytes::Bytes;
use fs_proto::limits::MAX_OFFSET;
use fs_proto::{Attr, Entry, ErrorCode, FileHandle, Handle, Region};
use futures_util::future::ready;
use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{Attributes, GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, Result};

use super::{MOST_TRIES, PvfsStore, etag, generic, is_replaced, missing, refused};
use crate::error::Error;
use crate::file::SharedFile;

/// Bytes of a part of a stream.
pub(super) const CHUNK: u64 = 8 << 20;
/// Parts of a stream that are moved at the same time.
pub(super) const WINDOW: usize = 2;

impl PvfsStore {
    /// Looks up an object.
    pub(super) async fn find(&self, location: &Path) -> Result<(FileHandle, Entry), Error> {
        let path = self.path(location)?;
        let entry = self.client().lookup(&path).await?;
        match entry.handle {
            Handle::File(file) => Ok((file, entry)),
            Handle::Dir(_) | Handle::Symlink(_) => {
                Err(Error::new(ErrorCode::IsDirectory, format!("{path} is no object")))
            }
        }
    }

    /// Returns what is known of an object that was looked up. Asks the I/O servers only for a file
    /// without a recorded size: one that is written in place.
    pub(super) async fn meta(&self, location: Path, file: FileHandle, entry: Entry) -> Result<ObjectMeta, Error> {
        let recorded = entry.recorded_size();
        let attr = match recorded {
            Some(size) => Attr { size, ..entry.attr },
            None => self.client().stat_of(&self.path(&location)?, entry).await?.attr,
        };
        let last_modified = (UNIX_EPOCH + Duration::from_nanos(attr.mtime_ns)).into();
        Ok(ObjectMeta { location, last_modified, size: attr.size, e_tag: recorded.map(|_| etag(file)), version: None })
    }

    /// Opens an object.
    pub(super) async fn open(&self, location: &Path) -> Result<(SharedFile, ObjectMeta), Error> {
        let (handle, entry) = self.find(location).await?;
        let file = self.client().file(&self.path(location)?, entry.clone()).await?;
        Ok((file, self.meta(location.clone(), handle, entry).await?))
    }

    pub(super) async fn get(&self, location: &Path, options: &GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            return Err(refused("get of a version"));
        }
        for tried in 1.. {
            let opened = self.open(location).await;
            if is_replaced(&opened) && tried < MOST_TRIES {
                continue;
            }
            let (file, meta) = opened.map_err(|error| missing(location, error))?;
            options.check_preconditions(&meta)?;
            let range = match &options.range {
                Some(range) => range.as_range(meta.size).map_err(generic)?,
                None => 0..meta.size,
            };
            let mut stream = stream::empty().boxed();
            if !options.head && !range.is_empty() {
                // The first part is read now. Then an object of one part is one publication even if
                // it is replaced meanwhile.
                let middle = range.end.min(range.start.saturating_add(CHUNK));
                let first = read(&file, range.start..middle).await;
                if is_replaced(&first) && tried < MOST_TRIES {
                    continue;
                }
                let first = first.map_err(|error| missing(location, error))?;
                stream = stream::once(ready(Ok(first))).chain(parts(file, location, middle..range.end)).boxed();
            }
            let (payload, attributes) = (GetResultPayload::Stream(stream), Attributes::default());
            return Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() });
        }
        unreachable!("the last try returns")
    }

    /// Reads ranges of one publication together.
    pub(super) async fn read_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        for tried in 1.. {
            let opened = self.open(location).await;
            if is_replaced(&opened) && tried < MOST_TRIES {
                continue;
            }
            let (file, meta) = opened.map_err(|error| missing(location, error))?;
            let clip = |range: &Range<u64>| GetRange::Bounded(range.clone()).as_range(meta.size);
            let ranges = ranges.iter().map(clip).collect::<Result<Vec<_>, _>>().map_err(generic)?;
            let regions: Vec<_> =
                ranges.iter().map(|range| Region::new(range.start, range.end - range.start)).collect();
            let read = read_regions(&file, &regions).await;
            if is_replaced(&read) && tried < MOST_TRIES {
                continue;
            }
            let mut bytes = read.map_err(|error| missing(location, error))?;
            return Ok(regions.iter().map(|region| bytes.split_to(region.len as usize)).collect());
        }
        unreachable!("the last try returns")
    }
}

/// Returns the parts of a range, in order.
fn parts(file: SharedFile, location: &Path, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
    let (end, location) = (range.end, location.clone());
    let part = move |start: u64| {
        let (file, location) = (file.clone(), location.clone());
        async move {
            let part = read(&file, start..end.min(start.saturating_add(CHUNK))).await;
            part.map_err(|error| missing(&location, error))
        }
    };
    stream::iter(range.step_by(CHUNK as usize)).map(part).buffered(WINDOW).boxed()
}

pub(super) async fn read(file: &SharedFile, range: Range<u64>) -> Result<Bytes, Error> {
    read_regions(file, &[Region::new(range.start, range.end - range.start)]).await
}

/// Reads regions that are within the size of the file.
async fn read_regions(file: &SharedFile, regions: &[Region]) -> Result<Bytes, Error> {
    let wanted = regions.iter().try_fold(0u64, |sum, region| sum.checked_add(region.len));
    let wanted = wanted.filter(|wanted| *wanted <= MAX_OFFSET).and_then(|wanted| usize::try_from(wanted).ok());
    let Some(wanted) = wanted else { return Err(Error::new(ErrorCode::TooLarge, "the ranges together")) };
    if wanted == 0 {
        return Ok(Bytes::new());
    }
    let memory = Memory::zeroed(wanted).map_err(|error| Error::new(ErrorCode::TooLarge, error.to_string()))?;
    let read = file.read_list(regions, MemList::from(&memory)).await?;
    if read != wanted as u64 {
        return Err(Error::new(ErrorCode::Stale, "the file was truncated while it was read"));
    }
    Ok(memory.into_bytes())
}
