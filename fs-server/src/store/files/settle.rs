//! The checksums of a store of files ([`Sums`](crate::store::sums)): changes say that they do not
//! hold, reads are compared with them, and datafiles that are not changed any more are settled.
//!
//! **How datafiles are settled.** Every [`LOOK`] a worker looks for those that nobody has changed
//! for some seconds. They are synced together, as for a client. Then the sums of each are made, by
//! workers that make way for all others, in steps of 16 MiB. A change meanwhile ends the attempt.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bmi::MemSlice;
use bmi::hooks::mutated;
use fs_proto::{DatafileHandle, ErrorCode, FsError, Region};

use super::direct_io::opened_directly;
use super::store::{FileStore, Unmoved};
use crate::store::disk::DiskFile;
use crate::store::disk::steps::step;
use crate::store::open::{DirectFile, OpenFile};
use crate::store::sums::{Attempt, BLOCK, Change, Check, FileSums, Part, Settling, Sums, What};
use crate::store::sys::{fault, trouble};
use crate::store::transfer::{Job, len, read_all};
use crate::store::{Scrubbed, no_sums};

/// Time between two looks for datafiles to settle.
const LOOK: Duration = Duration::from_secs(1);

/// Most datafiles that are settled after a look.
const TOGETHER: usize = 128;

/// Most regions whose bytes the event loop compares itself.
const FEW: usize = 32;

/// Returns how many bytes were read at once: none unless all were, and were compared.
pub(super) fn verified_at_once(
    check: Option<&Check>,
    file: &OpenFile,
    jobs: &[Job],
    moved: u64,
) -> Result<u64, (u64, io::Error)> {
    let Some(check) = check else { return Ok(moved) };
    if moved < len(jobs) || jobs.len() > FEW {
        return Ok(0);
    }
    match check.verify(file.file(), jobs, false) {
        Ok(()) => Ok(moved),
        Err((_, error)) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(failed) => Err(failed),
    }
}

/// Reads past the system's page cache, which has what the disk has returned before. Without direct
/// I/O the system decides. Behind the end of the file there are zeros.
fn read_past_cache(file: &OpenFile, direct: Option<&DirectFile>, at: u64, into: &MemSlice) -> io::Result<()> {
    let done = match direct.map(|direct| step(|| DiskFile::read_at(&direct.file, at, into))) {
        Some(Err(error)) if error.kind() != io::ErrorKind::InvalidInput => return Err(error),
        Some(Ok(done)) => done,
        _ => 0,
    };
    let rest = into.slice(done, into.len() - done);
    let rest = (Region::new(at + done as u64, rest.len() as u64), vec![rest]);
    read_all(file.file(), &[rest]).map_err(|(_, error)| error)
}

impl FileStore {
    /// Keeps checksums of the datafiles if `on` is set. Otherwise ends what an earlier start has
    /// kept, durably. Without this call it stays as it is. Call it before the store is used.
    ///
    /// # Errors
    /// `Permission`, `NoSpace` or `Io`, naming the directory.
    pub fn checksums(mut self, on: bool) -> Result<FileStore, FsError> {
        let sums = Sums::open(self.core.dir.clone(), on).map_err(|error| trouble(&self.path, &error))?;
        if let Some(core) = Arc::get_mut(&mut self.core) {
            core.sums = sums;
        }
        Ok(self)
    }

    /// Begins a change of a datafile, which lasts until the result is dropped.
    pub(super) async fn begin_change(
        &self,
        datafile: DatafileHandle,
        file: &OpenFile,
        what: What<'_>,
    ) -> Result<Option<Change>, FsError> {
        let Some(sums) = file.sums() else { return Ok(None) };
        loop {
            if let Some(change) = sums.change(&what) {
                return Ok(Some(change));
            }
            let sums = sums.clone();
            let unsettled = self.short(move |core| core.sums.as_ref().map_or(Ok(()), |all| all.unsettle(&sums)));
            unsettled.await?.map_err(|error| fault("noting a change of", datafile, &error))?;
        }
    }

    /// Begins a check of bytes that are about to be read, if there are sums that hold.
    pub(super) fn begin_check(&self, file: &OpenFile) -> Option<Check> {
        self.core.sums.as_ref()?.check(file.sums()?)
    }

    /// Compares bytes that were read.
    pub(super) async fn verify(&self, check: Check, file: Arc<OpenFile>, jobs: Vec<Job>) -> Result<(), (u64, Unmoved)> {
        let waits = |error| (0, Unmoved::Worker(error));
        let failed = |(done, error)| (done, Unmoved::Disk(error));
        let len = len(&jobs);
        if len >= self.offload {
            let verified = self.bulk(move || check.verify(file.file(), &jobs, true)).await;
            return verified.map_err(waits)?.map_err(failed);
        }
        if verified_at_once(Some(&check), &file, &jobs, len).map_err(failed)? == len {
            return Ok(());
        }
        let verified = self.short(move |_| check.verify(file.file(), &jobs, true)).await;
        verified.map_err(waits)?.map_err(failed)
    }

    /// As [`DataStore::scrub`](crate::store::DataStore::scrub).
    pub(super) async fn scrub_datafile(
        &self,
        datafile: DatafileHandle,
        from: u64,
        most: u64,
    ) -> Result<Scrubbed, FsError> {
        if self.core.sums.is_none() {
            return Err(no_sums());
        }
        let Some(file) = self.file(datafile, false).await? else { return Ok(Scrubbed::default()) };
        let Some(check) = self.begin_check(&file) else {
            file.sums().inspect(|sums| sums.want());
            return Ok(Scrubbed::default());
        };
        let (core, own) = (self.core.clone(), check.clone());
        let part = self.bulk(move || {
            let direct = opened_directly(&core, datafile, &file).unwrap_or(None);
            let unit = direct.as_ref().map_or(BLOCK, |direct| direct.alignment.unit);
            own.scrub(file.file(), unit, |at, into| read_past_cache(&file, direct.as_ref(), at, into), from, most)
        });
        let failed = |error: &io::Error| fault("reading", datafile, error);
        let Part { read, damage, next } = part.await?.map_err(|error| failed(&error))?;
        let damage =
            damage.map(|(region, error)| FsError { detail: error.to_string(), ..failed(&error) }.with_ranges([region]));
        Ok(Scrubbed { is_summed: check.still_holds(), read, damage, next })
    }

    /// Settles datafiles from time to time. Only the first caller does; the others wait forever.
    pub(super) async fn keep_settling(&self, sleep: &dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()>>>) {
        if self.core.sums.as_ref().is_some_and(|sums| !sums.is_tended.swap(true, Ordering::Relaxed)) {
            loop {
                sleep(LOOK).await;
                self.settle(false).await;
            }
        }
        std::future::pending().await
    }

    /// Settles all datafiles that are unsettled, as far as they can be.
    pub(crate) async fn settle_all(&self) {
        while self.settle(true).await {}
    }

    /// Settles datafiles: at once if `now` is set, else those that were not changed for some time.
    /// Returns false if there was nothing to do, or all of them were changed meanwhile.
    async fn settle(&self, now: bool) -> bool {
        let due = self.long(move |core| core.sums.as_ref().map(|sums| sums.due(now, TOGETHER)));
        let due = due.await.ok().flatten().unwrap_or_default();
        let (mut files, mut named, mut done) = (Vec::new(), Vec::new(), false);
        for sums in due {
            let Some(attempt) = sums.attempt() else { continue };
            match self.file(sums.datafile(), false).await {
                Ok(Some(file)) => {
                    named.push((sums.datafile(), file.clone()));
                    files.push((sums, attempt, file));
                }
                _ => {
                    sums.give_up(&attempt);
                    done = true;
                }
            }
        }
        let failed = match mutated("store/sums-settled-before-data") {
            true => Ok(Vec::new()),
            false => self.sync_files(named, false).await,
        };
        for (sums, attempt, file) in files {
            let is_synced =
                failed.as_ref().is_ok_and(|failed| failed.iter().all(|(datafile, _)| *datafile != sums.datafile()));
            let settled = match is_synced {
                true => self.settle_one(&sums, attempt.clone(), file).await,
                false => Err(FsError::new(ErrorCode::Io, "it could not be synced")),
            };
            done |= settled.unwrap_or_else(|error| {
                tracing::warn!(datafile = %sums.datafile(), %error, "its checksums cannot be made");
                sums.give_up(&attempt);
                true
            });
        }
        done
    }

    /// Makes the sums of a datafile that was synced. Returns false if it was changed meanwhile.
    async fn settle_one(&self, sums: &Arc<FileSums>, attempt: Attempt, file: Arc<OpenFile>) -> Result<bool, FsError> {
        let Some(all) = self.core.sums.clone() else { return Ok(false) };
        let failed = |error: io::Error| fault("summing", sums.datafile(), &error);
        let (own, data) = (sums.clone(), file.clone());
        let begun = self.bulk(move || Settling::begin(&all, &own, attempt, data.file())).await?.map_err(failed)?;
        let Some(mut settling) = begun else { return Ok(false) };
        loop {
            let data = file.clone();
            let step = self.bulk(move || {
                let made = settling.step(data.file());
                (settling, made)
            });
            let made;
            (settling, made) = step.await?;
            match made.map_err(failed)? {
                Some(true) => break,
                Some(false) => {}
                None => return Ok(false),
            }
        }
        self.bulk(move || settling.end()).await?.map_err(failed)?;
        Ok(true)
    }
}
