//! Makes files and their names durable.
//!
//! **How.** The writeback of all files is started first, so that the disk has all of it to do at
//! once. Then each file is synced, several at the same time, because a sync mostly waits. Then the
//! subdirectories with new names and the catalogue are synced, once for all files.

use std::fs::File;
use std::io;
use std::sync::{Arc, PoisonError};

use fs_proto::{DatafileHandle, FsError};
use futures_util::future::join_all;

use super::catalogue::Catalogue;
use super::file::{OpenFile, offload, subdir_of, sync_subdirs};
use super::sys;

/// Most syncs at the same time.
const AT_ONCE: usize = 8;

type Named = (DatafileHandle, Arc<OpenFile>);

/// Syncs files. Returns those that are not durable, each with its error.
pub(super) async fn sync(
    dir: &Arc<File>,
    catalogue: &Arc<Catalogue>,
    files: Vec<Named>,
) -> Result<Vec<(DatafileHandle, io::Error)>, FsError> {
    let (dir, catalogue) = (dir.clone(), catalogue.clone());
    if files.len() < 2 {
        return offload(move || {
            let synced = files.into_iter().map(sync_data).collect();
            sync_names(&dir, &catalogue, synced)
        })
        .await;
    }
    let files = offload(move || {
        // The sync that follows reports its errors.
        files.iter().for_each(|(_, file)| drop(sys::start_writeback(&file.file)));
        files
    })
    .await?;
    let mut shares: Vec<Vec<Named>> = (0..AT_ONCE.min(files.len())).map(|_| Vec::new()).collect();
    let count = shares.len();
    files.into_iter().enumerate().for_each(|(at, file)| shares[at % count].push(file));
    let shares = shares.into_iter().map(|share| offload(move || share.into_iter().map(sync_data).collect::<Vec<_>>()));
    let mut synced = Vec::new();
    for share in join_all(shares).await {
        synced.extend(share?);
    }
    offload(move || sync_names(&dir, &catalogue, synced)).await
}

/// A file whose data was synced, and its length before that; or the error.
type Synced = (Named, io::Result<u64>);

fn sync_data((datafile, file): Named) -> Synced {
    let sync = || {
        let len = file.file.metadata()?.len();
        file.file.sync_data()?;
        Ok(len)
    };
    let result = sync();
    ((datafile, file), result)
}

/// Makes the names of files durable whose data is, and remembers their lengths. Returns the files
/// that are not durable.
fn sync_names(dir: &File, catalogue: &Catalogue, synced: Vec<Synced>) -> Vec<(DatafileHandle, io::Error)> {
    let is_new = |(datafile, _): &Named| catalogue.is_new(*datafile);
    let new: Vec<DatafileHandle> = synced
        .iter()
        .filter(|(file, result)| result.is_ok() && is_new(file))
        .map(|((datafile, _), _)| *datafile)
        .collect();
    let named = sync_subdirs(dir, new.iter().map(|datafile| subdir_of(*datafile)))
        .and_then(|()| catalogue.take_off(new.iter().copied()));
    let mut failed = Vec::new();
    for ((datafile, file), result) in synced {
        let result = result.and_then(|len| match &named {
            Err(error) if new.contains(&datafile) => Err(again(error)),
            _ => remember(&file, len),
        });
        failed.extend(result.err().map(|error| (datafile, error)));
    }
    failed
}

/// Remembers the length that was synced. Only now, so that a crash in between does not leave a
/// datafile that looks cut off.
fn remember(file: &OpenFile, len: u64) -> io::Result<()> {
    let _guard = file.length.lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have cut the datafile off meanwhile.
    file.remember(len.min(file.file.metadata()?.len()));
    Ok(())
}

/// Returns the same error once more.
fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
