//! Makes datafiles and their names durable, and records the failures.
//!
//! **How.** The writeback of all files is started first, so that the disk has all of it to do at
//! once. Then each file is synced, several at the same time, because a sync mostly waits. Then the
//! subdirectories with new names and the catalogue are synced, once for all files.
//!
//! **Failures.** After a failed sync the system keeps in memory what it could not write, but counts
//! it as written, and reports the error only once. So the datafile is marked (`marks.rs`): from
//! then on operations on it fail, in later starts too, until it is removed. If the mark itself, the
//! catalogue or a subdirectory cannot be made durable, the store has failed for good. The server
//! stops, and its next start has a new number. From this clients learn that unsynced data may be
//! lost. Errors before a sync was tried, such as a file that cannot be opened, leave no doubt and
//! no mark.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use bmi::hooks::mutated;
use fs_proto::{DatafileHandle, ErrorCode, FsError};
use futures_util::future::join_all;

use super::catalogue::Catalogue;
use super::failure::Failure;
use super::marks::{Mark, Marks};
use super::names::{name, subdir, subdir_of};
use super::space::Space;
use crate::store::disk::DiskDir;
use crate::store::disk::steps::{self, step};
use crate::store::label::DirLock;
use crate::store::open::{Named, OpenFile};
use crate::store::sums::Sums;
use crate::workers::Workers;

/// Most syncs at the same time.
const AT_ONCE: usize = 8;

/// The part of a store of files that its worker threads use as well.
pub(in crate::store) struct StoreCore {
    pub(in crate::store) dir: Arc<dyn DiskDir>,
    /// Does what is short, if the disk answers.
    pub(in crate::store) short: Arc<Workers>,
    /// Does what takes long, so that nothing short waits for it.
    pub(in crate::store) long: Workers,
    /// Does long transfers. They make way for all others where processors are taken.
    pub(in crate::store) bulk: Workers,
    pub(super) space: Space,
    /// As long as anything uses the disk, no other server may.
    pub(in crate::store) lock: Option<Arc<DirLock>>,
    pub(in crate::store) catalogue: Catalogue,
    pub(in crate::store) marks: Marks,
    pub(in crate::store) failure: Failure,
    /// The checksums, if the store keeps any.
    pub(super) sums: Option<Arc<Sums>>,
}

/// Why a datafile is not durable.
pub(super) enum Trouble {
    /// The sync was not tried.
    Before(io::Error),
    /// The sync failed.
    Failed(io::Error),
}

/// A file whose data was synced, and its length before that; or the error.
type Synced = (Named, Result<u64, Trouble>);

/// Syncs files, with their attributes if `whole` is set. Returns those that are not durable.
pub(in crate::store) async fn sync(
    core: &Arc<StoreCore>,
    files: Vec<Named>,
    whole: bool,
) -> Result<Vec<(DatafileHandle, Trouble)>, FsError> {
    let (core, workers) = (core.clone(), &core.long);
    if files.len() < 2 {
        let all = move || {
            let synced = files.into_iter().map(|file| core.sync_data(file, whole)).collect();
            core.sync_names(synced)
        };
        return workers.run(all).await;
    }
    let started = move || {
        start_writeback(&files);
        files
    };
    let files = workers.run(started).await?;
    let mut shares: Vec<Vec<Named>> = (0..AT_ONCE.min(files.len())).map(|_| Vec::new()).collect();
    let count = shares.len();
    files.into_iter().enumerate().for_each(|(at, file)| shares[at % count].push(file));
    let shares = shares.into_iter().map(|share| {
        let core = core.clone();
        workers.run(move || share.into_iter().map(|file| core.sync_data(file, whole)).collect::<Vec<_>>())
    });
    let mut synced = Vec::new();
    for share in join_all(shares).await {
        synced.extend(share?);
    }
    workers.run(move || core.sync_names(synced)).await
}

fn start_writeback(files: &[Named]) {
    files.iter().for_each(|(_, file)| file.file().start_writeback());
}

/// What opening the file of a datafile has found.
pub(super) enum Found {
    File(OpenFile),
    /// There is none.
    Nothing,
    /// Its length, and the length that was synced.
    CutOff(u64, u64),
}

impl StoreCore {
    /// Opens the file of a datafile. Makes it if `create` is true and the datafile was never
    /// written.
    pub(super) fn open_file(&self, datafile: DatafileHandle, create: bool) -> io::Result<Found> {
        let open = |make| step(|| self.dir.open(&name(datafile), make));
        let file = match open(false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && create => {
                self.catalogue.make_file(datafile, || open(true))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened?),
        };
        let Some(file) = file else { return Ok(Found::Nothing) };
        let sums = self.sums.as_ref().map(|sums| sums.attach(datafile)).transpose()?;
        let file = OpenFile::new(file, Arc::downgrade(&self.short)).with_sums(sums);
        let synced = file.synced();
        if synced > 0 {
            let size = file.file().held()?.size;
            if size < synced && !mutated("store/datafile-cut-off-not-noticed") {
                return Ok(Found::CutOff(size, synced));
            }
        }
        Ok(Found::File(file))
    }

    /// Writes files, so that they can be closed.
    pub(in crate::store) fn write_out(&self, files: &[Named]) {
        start_writeback(files);
        for (datafile, file) in files {
            if let Err(error) = file.write_out() {
                self.mark_failed(*datafile, &error);
            }
        }
    }

    fn sync_data(&self, (datafile, file): Named, whole: bool) -> Synced {
        let result = match file.file().held() {
            Err(error) => Err(Trouble::Before(error)),
            Ok(held) => file.sync(whole).map(|()| held.size).map_err(|error| {
                self.mark_failed(datafile, &error);
                Trouble::Failed(error)
            }),
        };
        ((datafile, file), result)
    }

    /// Makes the names of files durable whose data is, and remembers their lengths. Returns the
    /// files that are not durable.
    fn sync_names(&self, synced: Vec<Synced>) -> Vec<(DatafileHandle, Trouble)> {
        let data = synced.iter().filter(|(_, result)| result.is_ok()).map(|((datafile, _), _)| *datafile);
        let new: Vec<DatafileHandle> = data.filter(|datafile| self.catalogue.is_new(*datafile)).collect();
        let named = match mutated("store/taken-off-before-the-name-is-durable") {
            true => self.take_off(new.iter().copied()).and_then(|()| self.sync_subdirs(new.iter().copied())),
            false => self.sync_subdirs(new.iter().copied()).and_then(|()| self.take_off(new.iter().copied())),
        };
        let mut failed = Vec::new();
        for ((datafile, file), result) in synced {
            let result = result.and_then(|len| match &named {
                Err(error) if new.contains(&datafile) => Err(Trouble::Before(again(error))),
                _ => file.remember_synced(len).map_err(Trouble::Before),
            });
            failed.extend(result.err().map(|trouble| (datafile, trouble)));
        }
        failed
    }

    /// Makes the names of datafiles durable, in their subdirectories.
    pub(super) fn sync_subdirs(&self, datafiles: impl Iterator<Item = DatafileHandle>) -> io::Result<()> {
        let once: BTreeSet<u8> = datafiles.map(subdir_of).collect();
        for number in once {
            if mutated("store/names-not-synced") {
                break;
            }
            let directory = step(|| self.dir.dir(&subdir(number)))?;
            steps::sync_dir(&*directory)
                .inspect_err(|error| self.fail(&format!("the subdirectory {}", subdir(number)), error))?;
        }
        Ok(())
    }

    /// Takes datafiles off the catalogue, durably.
    pub(in crate::store) fn take_off(&self, datafiles: impl Iterator<Item = DatafileHandle>) -> io::Result<()> {
        self.catalogue.take_off(datafiles).inspect_err(|error| self.examine(error))
    }

    /// Adds datafiles to the catalogue, durably.
    pub(in crate::store) fn create(&self, first: DatafileHandle, count: u32) -> io::Result<()> {
        let has_file = |datafile| self.dir.len_of(&name(datafile)).is_ok();
        self.catalogue.create(first, count, has_file).inspect_err(|error| self.examine(error))
    }

    /// Changes the marks, durably.
    pub(in crate::store) fn mark(&self, change: impl FnOnce(&Marks) -> io::Result<()>) -> io::Result<()> {
        change(&self.marks).inspect_err(|error| self.examine(error))
    }

    /// Marks a datafile whose data could not be written. Operations on it fail from then on.
    fn mark_failed(&self, datafile: DatafileHandle, error: &io::Error) {
        tracing::error!(%datafile, %error, "a sync failed");
        if let Err(error) = self.marks.set(datafile, Mark::FailedSync) {
            self.fail("the mark of a datafile whose sync failed", &error);
        }
    }

    /// Ends the store if an error leaves in doubt what the disk has of its own records.
    fn examine(&self, error: &io::Error) {
        if self.catalogue.has_failed() {
            self.fail("the file `catalogue`", error);
        }
        if self.marks.has_failed() {
            self.fail("the file `marks`", error);
        }
    }

    /// Ends the store.
    fn fail(&self, what: &str, error: &io::Error) {
        let text = format!(
            "{what} could not be made durable ({error}), so the I/O server stops. Check the disk and the file system (the \
             system's log says more), then start the server again"
        );
        self.failure.note(FsError::new(ErrorCode::Io, text));
    }
}

/// Returns the same error once more.
fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
