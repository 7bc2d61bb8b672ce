//! Memory of the cache that is lent to a transfer: bytes that are read, and room for those that are
//! written.

use async_trait::async_trait;
use bmi::MemList;
use bmi_cache::{Reading, Writing};
use fs_proto::{FsError, Region};

use super::behind::{Behind, fault};
use crate::store::{Lent, Receipt, StoreHandle};

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
