//! Answers questions about the cache of the store. Each takes bounded work and a bounded reply.

use fs_proto::{CacheState, DatafileHandle, ErrorCode, FsError, IodReply, Region};

use super::Iod;
use crate::service::Context;
use crate::store::{DataStore, StoreHandle};

/// Most datafiles that one question about the busiest looks at, in some 0.15 ms.
const LOOK: usize = 1024;

impl<S: StoreHandle> Iod<S> {
    /// Returns the state of the cache, and the busiest of the datafiles behind `after`.
    pub(super) fn cache_state(
        &self,
        context: &Context,
        after: Option<DatafileHandle>,
        files: u32,
    ) -> Result<IodReply, FsError> {
        if context.room < CacheState::LONGEST {
            let text = format!("the state of a cache has {} bytes; a reply has {}", CacheState::LONGEST, context.room);
            return Err(FsError::new(ErrorCode::TooLarge, text));
        }
        let (asked, most) = (files as usize, CacheState::most_files(context.room));
        // All that are asked for must have room in the reply, or else all that are looked at.
        let (look, most) = if asked <= most { (LOOK, asked) } else { (most, most) };
        let (files, next) = if most == 0 { (Vec::new(), None) } else { self.store.busiest(after, look, most) };
        let (service, cache) = (self.store.service(), self.store.cache_stat());
        Ok(IodReply::CacheState(Box::new(CacheState { service, cache, files, next })))
    }

    /// Returns how much of a region of a datafile is in the cache.
    pub(super) fn cache_coverage(&self, datafile: DatafileHandle, region: Region) -> IodReply {
        match self.store.coverage(datafile, region) {
            Some((coverage, next)) => IodReply::CacheCoverage { coverage: Some(coverage), next },
            None => IodReply::CacheCoverage { coverage: None, next: None },
        }
    }
}
