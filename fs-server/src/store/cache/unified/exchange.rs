//! What the cache exchanges with others: the store behind it, as its disk; regions and errors as
//! the one or the other has them; memory that is lent to transfers.

use async_trait::async_trait;
use bmi::MemList;
use bmi_cache::{CacheError, Disk, Extent, Reading, Writing};
use fs_proto::{DatafileHandle, ErrorCode, FsError, Region};

use crate::store::{DataStore, Lent, Receipt, StoreHandle};

/// The datafiles of a store, as the disk of a cache.
pub(super) struct Behind<S>(pub(super) S);

#[async_trait(?Send)]
impl<S: StoreHandle> Disk for Behind<S> {
    type Error = FsError;

    async fn read(&self, file: u64, extents: &[Extent], into: &MemList) -> Result<(), FsError> {
        self.0.read(DatafileHandle(file), &regions(extents), into).await
    }

    async fn end(&self, file: u64) -> Result<u64, FsError> {
        self.0.size(DatafileHandle(file)).await
    }

    async fn write(&self, file: u64, extents: &[Extent], from: &MemList) -> Result<(), FsError> {
        self.0.write(DatafileHandle(file), &regions(extents), from).await
    }
}

fn regions(extents: &[Extent]) -> Vec<Region> {
    extents.iter().map(|extent| Region::new(extent.offset, extent.len)).collect()
}

pub(super) fn extents(regions: &[Region]) -> Vec<Extent> {
    regions.iter().map(|region| Extent::new(region.offset, region.len)).collect()
}

/// Converts an error of the cache. `regions` are those of the operation.
pub(super) fn fault(error: CacheError<FsError>, regions: &[Region]) -> FsError {
    let error = match error {
        CacheError::Disk { error, .. } => error,
        CacheError::TooLong { bytes, most } => FsError::new(
            ErrorCode::TooLarge,
            format!("{bytes} bytes of the cache at once; an operation may have {most}"),
        ),
        CacheError::Overlapping => FsError::new(ErrorCode::Invalid, "the regions of a write overlap"),
        CacheError::Abandoned => FsError::new(ErrorCode::Io, "a transfer of the disk was given up"),
    };
    error.with_ranges(regions.iter().copied())
}

/// Bytes of the cache that are lent. Their range lock keeps them as they are.
impl<S: StoreHandle> Lent for Reading<Behind<S>> {}

/// A write whose bytes arrive in the cache.
pub(super) struct Arriving<S: StoreHandle> {
    pub(super) writing: Writing<Behind<S>>,
    pub(super) regions: Vec<Region>,
}

#[async_trait(?Send)]
impl<S: StoreHandle> Receipt for Arriving<S> {
    fn list(&self) -> &MemList {
        self.writing.list()
    }

    async fn commit(self: Box<Self>) -> Result<(), FsError> {
        let Arriving { writing, regions } = *self;
        writing.commit().await.map_err(|error| fault(error, &regions))
    }
}
