//! The store of files of an I/O server, with the cache of its service in front of it.
//!
//! **The cache of a killed server** is a file in memory, named after the store. It has what clients
//! were told is written and the disk does not have. So every start looks for it, whatever its
//! service is. With [`Service::Unifier`] the new cache takes the bytes over. Otherwise they are
//! written to the disk before the server serves. If that fails the server does not start, and the
//! file stays.
//!
//! A server that stops on request writes everything to the disk, and removes the file. What it
//! cannot write in time stays there for the next start.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bmi_cache::Frames;
use fs_proto::{ErrorCode, FsError, StoreId};
use futures_util::future::{Either, select};

use super::{CacheSettings, DataStore, FileStore, Service, UnifiedStore};
use crate::embedded::wall_clock;
use crate::workers::Workers;

/// A store that is shared by the event loops of a server, with or without a cache.
pub(crate) type AnyStore = Arc<dyn DataStore + Send + Sync>;

type Unified = UnifiedStore<Arc<FileStore>, fn() -> u64>;

/// The store of an I/O server.
pub(crate) struct CachedFiles {
    files: Arc<FileStore>,
    cache: Option<(Arc<Unified>, Frames)>,
}

/// Returns the file of the cache of a store.
fn path_of(dir: &Path, store: StoreId) -> PathBuf {
    dir.join(format!("pvfs-{:032x}.cache", store.0))
}

impl CachedFiles {
    /// Puts the cache of a service in front of a store, and takes over what a killed server has
    /// left in `dir`.
    ///
    /// # Errors
    /// `Io`, `NoSpace`, `Permission`: the memory cannot be had, or the disk does not take what was
    /// left.
    pub(crate) async fn open(
        files: Arc<FileStore>,
        service: &Service,
        dir: &Path,
        store: StoreId,
    ) -> Result<CachedFiles, FsError> {
        let path = path_of(dir, store);
        match service {
            Service::Unifier(settings) => {
                let (unified, frames) = open_cache(files.clone(), &path, settings, store).await?;
                if unified.statistics().counters.taken_over > 0 && frames.settings() != settings.arena {
                    // It has the size of the cache that was left. Write everything, and make a new
                    // one.
                    write_out(&unified, frames, &path).await?;
                    drop(unified);
                    let (unified, frames) = open_cache(files.clone(), &path, settings, store).await?;
                    return Ok(CachedFiles { files, cache: Some((unified, frames)) });
                }
                Ok(CachedFiles { files, cache: Some((unified, frames)) })
            }
            Service::Normal | Service::Mmap => {
                if path.exists() {
                    let settings = CacheSettings::for_bytes(super::LEAST_CACHE);
                    let (unified, frames) = open_cache(files.clone(), &path, &settings, store).await?;
                    write_out(&unified, frames, &path).await?;
                }
                Ok(CachedFiles { files, cache: None })
            }
        }
    }

    /// Returns the store, for the event loops.
    pub(crate) fn store(&self) -> AnyStore {
        match &self.cache {
            Some((unified, _)) => unified.clone(),
            None => self.files.clone(),
        }
    }

    /// Writes everything to the disk, as far as that is done before `patience` ends. Call it when
    /// the server has ended. Returns the store of files.
    pub(crate) async fn close(self, patience: impl Future) -> Arc<FileStore> {
        let CachedFiles { files, cache } = self;
        let Some((unified, frames)) = cache else { return files };
        let written = unified.flush_all();
        let written = match select(std::pin::pin!(written), std::pin::pin!(patience)).await {
            Either::Left((written, _)) => written,
            Either::Right(_) => Err(FsError::new(ErrorCode::Timeout, "the disk has not answered")),
        };
        let removed = match written {
            Ok(()) => frames.remove().map_err(FsError::from),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            let bytes = unified.statistics().dirty;
            tracing::warn!(%error, bytes, "the next start of this server on this machine writes these bytes to the disk");
        }
        files
    }
}

/// Opens the cache of a store.
async fn open_cache(
    files: Arc<FileStore>,
    path: &Path,
    settings: &CacheSettings,
    store: StoreId,
) -> Result<(Arc<Unified>, Frames), FsError> {
    let (file, arena) = (path.to_owned(), settings.arena);
    let opened = Workers::new("cache-opening", 1).run(move || Frames::open(&file, arena, store.0)).await?;
    let frames = opened.map_err(|error| {
        let FsError { code, .. } = FsError::from(error.clone());
        FsError::new(code, format!("the cache {}: {}", path.display(), error.detail()))
    })?;
    let unified = UnifiedStore::new(files, frames.clone(), settings.cache.clone(), wall_clock as fn() -> u64);
    let unified = unified.with_views(settings.views);
    let taken = unified.statistics().counters.taken_over;
    if taken > 0 {
        tracing::info!(bytes = taken, "took over what the server before had not written to the disk");
    }
    unified.reconcile().await?;
    Ok((Arc::new(unified), frames))
}

/// Writes all dirty bytes to the disk, and removes the file of the cache.
async fn write_out(unified: &Unified, frames: Frames, path: &Path) -> Result<(), FsError> {
    unified.flush_all().await.map_err(|error| {
        let text = format!(
            "{} has {} bytes that a killed server had acknowledged, and the disk does not take them: {}",
            path.display(),
            unified.statistics().dirty,
            error.detail
        );
        FsError::new(error.code, text)
    })?;
    frames.remove().map_err(FsError::from)
}
