//! The store of files of an I/O server, with the cache of its service in front of it.
//!
//! **The cache of a killed server** is a file in memory, named after the store. It has what clients
//! were told is written and the disk does not have. The data directory has a note of it
//! (`cache_note`). So every start finds it, whatever its service is and wherever its own cache is
//! to be. With [`Service::Unifier`] and the same directory the new cache takes the bytes over.
//! Otherwise they are written to the disk before the server serves. If that fails the server does
//! not start, and the file stays.
//!
//! | note | file | what is done |
//! |---|---|---|
//! | names it | is there | taken over, or written to the disk; the note goes first if it holds nothing |
//! | names it | is gone, host not restarted | error: its bytes are lost, or elsewhere |
//! | names it | is gone, host restarted, or another host | logged as an error: what was only in memory is lost |
//! | none, or another one | holds something | error: the store has gone on without it |
//!
//! Nothing that was acknowledged is removed by itself. Only `pvfsd iod --discard-cache` goes on
//! after these errors. It prints what is lost, for each datafile.
//!
//! A server that stops on request writes everything to the disk, and removes the file. What it
//! cannot write in time stays there for the next start.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bmi_cache::{Arena, Frames, Owner};
use fs_proto::{DatafileHandle, ErrorCode, FsError, StoreId};
use futures_util::future::{Either, select};

use super::service::{CacheSettings, Service};
use super::unified::UnifiedStore;
use crate::host::{random_number, wall_clock};
use crate::store::DataStore;
use crate::store::files::FileStore;
use crate::store::label::CacheNote;
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
    /// left. The new cache is in `dir`. `discard` prints what is lost of a cache that cannot be
    /// taken over, which is an error without it.
    ///
    /// # Errors
    /// `Io`, `NoSpace`, `Permission`: the memory cannot be had, or the disk does not take what was
    /// left. `Invalid`: something was left that cannot be taken over, or it is gone.
    pub(crate) async fn open(
        files: Arc<FileStore>,
        service: &Service,
        dir: &Path,
        store: StoreId,
        discard: Option<fn(&str)>,
    ) -> Result<CachedFiles, FsError> {
        let dir = std::path::absolute(dir)
            .map_err(|error| FsError::new(ErrorCode::Invalid, format!("the cache {}: {error}", dir.display())))?;
        let mut noted = files.cache_note()?;
        if let Some(note) = &noted {
            let path = path_of(&note.dir, store);
            refuse(&path, store, Some(note.number), discard)?;
            if !path.exists() {
                lost(note, &path, discard)?;
                files.note_cache(None).await?;
                noted = None;
            } else if Frames::hold_nothing(&path, Owner { store: store.0, noted: Some(note.number), next: 0 })? {
                // They may be made anew. A start after that must not find a note of the old ones.
                let elsewhere = note.dir != dir;
                files.note_cache(None).await?;
                noted = None;
                if elsewhere {
                    remove_empty(&files, &path, store).await?;
                }
            } else if note.dir != dir || !service.has_cache() {
                let settings = CacheSettings::for_bytes(super::service::LEAST_CACHE);
                let (unified, frames) = open_cache(files.clone(), &path, &settings, store, Some(note.number)).await?;
                if frames.number() != note.number {
                    lost(note, &path, discard)?;
                }
                write_out(&files, &unified, frames, &path).await?;
                noted = None;
            }
        }
        let path = path_of(&dir, store);
        let number = noted.as_ref().map(|note| note.number);
        refuse(&path, store, number, discard)?;
        let Service::Unifier(settings) = service else {
            if path.exists() {
                remove_empty(&files, &path, store).await?;
            }
            return Ok(CachedFiles { files, cache: None });
        };
        let (mut unified, mut frames) = open_cache(files.clone(), &path, settings, store, number).await?;
        if let Some(note) = noted.filter(|note| note.number != frames.number()) {
            lost(&note, &path, discard)?;
        }
        if unified.statistics().counters.taken_over > 0 && frames.settings() != settings.arena {
            // It has the size of the cache that was left. Write everything, and make a new one.
            write_out(&files, &unified, frames, &path).await?;
            drop(unified);
            (unified, frames) = open_cache(files.clone(), &path, settings, store, None).await?;
        }
        // Before anything is acknowledged.
        let host = bmi::backend::host_id().unwrap_or_default();
        files.note_cache(Some(CacheNote { dir, number: frames.number(), host })).await?;
        Ok(CachedFiles { files, cache: Some((unified, frames)) })
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
            Ok(()) => remove(&files, frames).await,
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
    noted: Option<u128>,
) -> Result<(Arc<Unified>, Frames), FsError> {
    let (file, arena) = (path.to_owned(), settings.arena);
    let owner = Owner { store: store.0, noted, next: random_number()? };
    let opened = Workers::new("cache-opening", 1).run(move || Frames::open(&file, arena, owner)).await?;
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

/// Refuses the file of a cache that holds something and is not the one that was noted, or discards
/// it.
fn refuse(path: &Path, store: StoreId, noted: Option<u128>, discard: Option<fn(&str)>) -> Result<(), FsError> {
    let Some(frames) = Frames::refused(path, Owner { store: store.0, noted, next: 0 })? else { return Ok(()) };
    let (arena, left) = Arena::adopt(frames.clone());
    drop(arena);
    let mut datafiles: BTreeMap<u64, u64> = BTreeMap::new();
    for unit in left {
        let dirty = unit.record.dirty.iter().map(|range| u64::from(range.end - range.start));
        *datafiles.entry(unit.record.file).or_default() += dirty.sum::<u64>();
    }
    let (count, bytes) = (datafiles.len(), datafiles.values().sum::<u64>());
    let path = path.display();
    let Some(say) = discard else {
        let text = format!(
            "{path} holds {bytes} acknowledged bytes of {count} datafiles, from an earlier start: the store has gone \
             on without them since. Nothing was changed. `pvfsd iod INDEX --discard-cache` prints whose they are, \
             removes them, and starts"
        );
        return Err(FsError::new(ErrorCode::Invalid, text));
    };
    for (datafile, bytes) in datafiles {
        say(&format!("{path}: discarded {bytes} bytes of datafile {}", DatafileHandle(datafile)));
    }
    Ok(frames.discard()?)
}

/// Tells that a cache is gone that may have held what the disk does not have.
///
/// # Errors
/// `Invalid` if the host has not been restarted since, and the loss is not to be accepted.
fn lost(note: &CacheNote, path: &Path, discard: Option<fn(&str)>) -> Result<(), FsError> {
    let path = path.display();
    let what = format!("the last server was killed, and its cache {path} is gone: what it had not yet written is lost");
    if let Some(say) = discard {
        say(&what);
        return Ok(());
    }
    if note.host != bmi::backend::host_id().unwrap_or_default() {
        tracing::error!("{what}, because this host was restarted, or because that server ran on another host");
        return Ok(());
    }
    let text = format!(
        "{what}, unless another container has it, or it was moved: then start the server where it is. Nothing was \
         changed. `pvfsd iod INDEX --discard-cache` starts without it"
    );
    Err(FsError::new(ErrorCode::Invalid, text))
}

/// Removes the file of a cache that holds nothing and is not noted.
async fn remove_empty(files: &Arc<FileStore>, path: &Path, store: StoreId) -> Result<(), FsError> {
    let settings = CacheSettings::for_bytes(super::service::LEAST_CACHE);
    let (_, frames) = open_cache(files.clone(), path, &settings, store, None).await?;
    frames.remove().map_err(FsError::from)
}

/// Removes the file of a cache that holds nothing, and the note of it.
async fn remove(files: &FileStore, frames: Frames) -> Result<(), FsError> {
    if !frames.is_dirty() {
        // The note goes first: a file that it does not name and that holds nothing is no loss.
        files.note_cache(None).await?;
    }
    frames.remove().map_err(FsError::from)
}

/// Writes all dirty bytes to the disk, and removes the file of the cache.
async fn write_out(files: &FileStore, unified: &Unified, frames: Frames, path: &Path) -> Result<(), FsError> {
    unified.flush_all().await.map_err(|error| {
        let text = format!(
            "{} has {} bytes that a killed server had acknowledged, and the disk does not take them: {}",
            path.display(),
            unified.statistics().dirty,
            error.detail
        );
        FsError::new(error.code, text)
    })?;
    remove(files, frames).await
}
