//! What a store of files does with its datafiles: [`DataStore`], made of steps on its
//! [`StoreCore`].

use std::collections::BTreeSet;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bmi::hooks::mutated;
use bmi::{MemList, MemSlice};
use fs_proto::{Allocation, DatafileHandle, ErrorCode, FsError, IodStat, Region, ServiceKind, Sought};

use super::durability::{self, StoreCore, Trouble};
use super::mapped::Mapped;
use super::marks::{Mark, Marks};
use super::names::{handles_in, name, range, subdir, subdir_of};
use super::settle::verified_at_once;
use super::store::FileStore;
use crate::lock::lock;
use crate::store::disk::Room;
use crate::store::disk::steps::step;
use crate::store::label::{Label, write_label};
use crate::store::open::{Named, OpenFile, Way};
use crate::store::sums::What;
use crate::store::sys::{fault, no_descriptor, trouble};
use crate::store::transfer::{AtOnce, Direction, Job, jobs, read_all, write_all};
use crate::store::{DataStore, DiskTurn, Held, Lends, Loan, Scrubbed, SumsStat, remainder};

/// Most transfers on worker threads at the same time. The page cache and a flash disk can handle
/// several at once. Beyond a few, there are no more cores and channels.
const PLACES: usize = 8;

/// Most files that are synced together.
const SYNCED_TOGETHER: usize = 128;

/// The name under which a file is made to try a length. It is removed at once.
const TRIAL: &str = "trial";

/// The caller asked for a file to be created.
const MADE: &str = "a file that is to be created is there or an error";

/// Converts the reason why a datafile is not durable to an error.
fn sync_fault(datafile: DatafileHandle, trouble: &Trouble) -> FsError {
    match trouble {
        Trouble::Before(error) => fault("syncing", datafile, error),
        Trouble::Failed(error) => {
            let text = format!(
                "syncing {datafile}: {error}; the disk may not have what was written: remove the file and store it again"
            );
            FsError::new(ErrorCode::Io, text)
        }
    }
}

/// Fails if no file of this file system can have that length.
fn try_length(core: &StoreCore, size: u64) -> io::Result<()> {
    let file = step(|| core.dir.open(TRIAL, true))?;
    match core.dir.remove(TRIAL) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    step(|| file.set_len(size))
}

/// Removes the file of a datafile that is not on the catalogue. It is not an error if it does not
/// exist.
fn unlink(core: &StoreCore, datafile: DatafileHandle) -> io::Result<()> {
    if let Some(sums) = &core.sums {
        sums.remove(datafile)?;
    }
    match step(|| core.dir.remove(&name(datafile))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(()) => {
            core.catalogue.file_removed();
            Ok(())
        }
        result => result,
    }
}

/// Returns the datafiles of a subdirectory, in order: those with a file and those without.
fn datafiles_in(core: &StoreCore, number: u8) -> io::Result<Vec<DatafileHandle>> {
    let directory = step(|| core.dir.dir(&subdir(number)))?;
    // First the record: what is taken off meanwhile has a file by then.
    let mut handles = core.catalogue.list(|datafile| subdir_of(datafile) == number);
    handles.extend(handles_in(&*directory, number)?);
    handles.sort();
    handles.dedup();
    Ok(handles)
}

impl FileStore {
    /// Sets the length of a datafile, whether it is marked or not. Returns its file. It has none if
    /// it is empty and was never written.
    async fn set_length(&self, datafile: DatafileHandle, size: u64) -> Result<Option<Arc<OpenFile>>, FsError> {
        let Some(file) = self.marked_file(datafile, size > 0).await? else { return Ok(None) };
        let _cut = match &self.mapped {
            Some(mapped) => Some(mapped.cut(datafile).await),
            None => None,
        };
        let cut = file.clone();
        let change = self.begin_change(datafile, &file, What::Length(size)).await?;
        let result = self.long(move |_| (change, cut.set_len(size)).1);
        self.mapped.iter().for_each(|mapped| mapped.forget(datafile));
        result.await?.map_err(|error| fault("truncating", datafile, &error))?;
        Ok(Some(file))
    }

    /// Changes the length of a marked datafile, durably, and takes the mark off.
    async fn carry_out(&self, datafile: DatafileHandle, cut: u64, size: u64) -> Result<(), FsError> {
        let clear = move |marks: &Marks| marks.clear([datafile], Mark::is_prepared);
        let set = async {
            // Without a file there is nothing to cut off.
            if cut < size
                && let Some(file) = self.marked_file(datafile, false).await?
                && file.len().map_err(|error| fault("looking at", datafile, &error))? > cut
            {
                self.set_length(datafile, cut).await?;
            }
            self.set_length(datafile, size).await
        };
        let file = match set.await {
            Err(lost) if lost.code == ErrorCode::Lost => {
                self.mark(datafile, clear).await?;
                return Err(lost);
            }
            file => file?,
        };
        if let Some(file) = file
            && !mutated("store/truncate-not-synced")
        {
            // With its attributes, which have the length that was synced before.
            self.make_durable(datafile, file, true).await?;
        }
        if mutated("store/truncated-datafile-stays-prepared") {
            return Ok(());
        }
        self.mark(datafile, clear).await
    }

    /// Syncs some datafiles whose files can be open at the same time.
    async fn sync_some(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let (mut files, mut result) = (Vec::new(), Ok(()));
        for datafile in datafiles {
            match self.file(*datafile, false).await {
                Ok(file) => files.extend(file.map(|file| (*datafile, file))),
                Err(error) => result = result.and(Err(error)),
            }
        }
        for (datafile, trouble) in self.sync_files(files, false).await? {
            result = result.and(Err(sync_fault(datafile, &trouble)));
        }
        result
    }

    /// Syncs files, with their attributes if `whole` is set. Returns those that are not durable.
    pub(super) async fn sync_files(
        &self,
        files: Vec<Named>,
        whole: bool,
    ) -> Result<Vec<(DatafileHandle, Trouble)>, FsError> {
        let mut failed = Vec::new();
        let mut left = files;
        loop {
            let found = durability::sync(&self.core, left.clone(), whole).await?;
            let (again, done): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, trouble)| match trouble {
                Trouble::Before(error) => no_descriptor(error).is_some(),
                Trouble::Failed(_) => false,
            });
            failed.extend(done);
            if again.is_empty() || !self.close_unused().await? {
                failed.extend(again);
                return Ok(failed);
            }
            left.retain(|(datafile, _)| again.iter().any(|(other, _)| other == datafile));
        }
    }

    /// Syncs one file, with its attributes if `whole` is set.
    async fn make_durable(&self, datafile: DatafileHandle, file: Arc<OpenFile>, whole: bool) -> Result<(), FsError> {
        let failed = self.sync_files(vec![(datafile, file)], whole).await?;
        failed.first().map_or(Ok(()), |(_, trouble)| Err(sync_fault(datafile, trouble)))
    }

    /// Changes the marks of a datafile.
    async fn mark(
        &self,
        datafile: DatafileHandle,
        change: impl FnOnce(&Marks) -> io::Result<()> + Send + 'static,
    ) -> Result<(), FsError> {
        let result = self.long(move |core| core.mark(change)).await?;
        result.map_err(|error| fault("marking", datafile, &error))
    }

    fn stat_of(&self, Room { capacity, free }: Room) -> IodStat {
        IodStat { capacity, free, datafiles: self.core.catalogue.datafiles(), disk: self.disk_number }
    }
}

#[async_trait(?Send)]
impl DataStore for FileStore {
    fn label(&self) -> Option<Label> {
        *lock(&self.label)
    }

    async fn relabel(&self, label: &Label) -> Result<(), FsError> {
        let new = *label;
        let written = self.work(move |core| write_label(&*core.dir, &new)).await?;
        written.map_err(|error| trouble(&self.path, &error))?;
        *lock(&self.label) = Some(*label);
        Ok(())
    }

    fn places(&self) -> usize {
        PLACES
    }

    async fn create(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.core.failure.check()?;
        let result = self.long(move |core| core.create(first, count)).await?;
        result.map_err(|error| fault("creating datafiles from", first, &error))
    }

    async fn discard(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.core.failure.check()?;
        let result = self.long(move |core| -> io::Result<Vec<DatafileHandle>> {
            let mut empty = Vec::new();
            // One that is marked was in use.
            for datafile in range(first, count).filter(|datafile| core.marks.find(*datafile).is_none()) {
                match core.dir.len_of(&name(datafile)) {
                    Ok(len) if len > 0 => {}
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => empty.push(datafile),
                }
            }
            core.take_off(empty.iter().copied())?;
            Ok(empty)
        });
        let empty = result.await?.map_err(|error| fault("discarding datafiles from", first, &error))?;
        self.remove(&empty).await
    }

    async fn remove(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let Some(first) = datafiles.first().copied() else { return Ok(()) };
        self.core.failure.check()?;
        let (gone, removed) = (datafiles.to_vec(), Arc::new(AtomicUsize::new(0)));
        let so_far = removed.clone();
        let result = self.work(move |core| {
            // First, so that no late write makes the file again.
            core.take_off(gone.iter().copied())?;
            for (datafile, count) in gone.iter().zip(1..) {
                unlink(core, *datafile)?;
                so_far.store(count, Ordering::Relaxed);
            }
            // Those that were removed before a crash are made durable too.
            core.sync_subdirs(gone.iter().copied())?;
            // Last, so that a marked datafile is never found without its mark.
            core.mark(|marks| marks.clear(gone.iter().copied(), |_| true))
        });
        let result = result.await?;
        // One that could not be removed may have unsynced data.
        let removed = &datafiles[..removed.load(Ordering::Relaxed)];
        let forget = |datafile: &DatafileHandle| {
            self.openings.removed(*datafile);
            self.mapped.iter().for_each(|mapped| mapped.forget(*datafile));
            self.open_files().forget(*datafile)
        };
        // The space of a removed file is given back when it is closed.
        let closed: Vec<Arc<OpenFile>> = removed.iter().filter_map(forget).collect();
        if !closed.is_empty() {
            self.long(move |_| drop(closed)).await?;
        }
        result.map_err(|error| fault("removing datafiles from", first, &error))
    }

    async fn list(&self, after: Option<DatafileHandle>, max: usize) -> Result<(Vec<DatafileHandle>, bool), FsError> {
        let listed = self.work(move |core| {
            let mut found = Vec::new();
            for number in after.map_or(0, subdir_of)..=0xff {
                let handles = datafiles_in(core, number)?;
                let is_next =
                    |handle: &DatafileHandle| after.is_none_or(|after| (subdir_of(after), after) < (number, *handle));
                for handle in handles.into_iter().filter(is_next) {
                    if found.len() == max {
                        return Ok((found, true));
                    }
                    found.push(handle);
                }
            }
            Ok((found, false))
        });
        listed.await?.map_err(|error| trouble(&self.path, &error))
    }

    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError> {
        let all = |error: FsError| error.with_ranges(regions.iter().copied());
        let (file, jobs) = (self.file(datafile, true).await.map_err(all)?.expect(MADE), jobs(regions, from));
        let _change = self.begin_change(datafile, &file, What::Bytes(regions)).await.map_err(all)?;
        // Only then: a sync that began before may not cover it.
        let at_once = |at_once: &AtOnce, file: &OpenFile, jobs: &[Job]| {
            let result = at_once.write(file.descriptor(Way::Buffered), jobs);
            if !matches!(result, Ok(0)) {
                file.changed();
            }
            result
        };
        let whole = |file: &OpenFile, jobs: &[Job]| {
            let result = write_all(file.file(), jobs);
            file.changed();
            result
        };
        let result = match self.moves_directly() {
            true => self.move_directly(Direction::Write, datafile, file, jobs).await,
            false => self.transfer(file, jobs, at_once, whole).await,
        };
        result.map_err(|(done, unmoved)| unmoved.into_error("writing", datafile).with_ranges(remainder(regions, done)))
    }

    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError> {
        let file = self.file(datafile, false).await.map_err(|error| error.with_ranges(regions.iter().copied()))?;
        let Some(file) = file else {
            into.pieces().iter().for_each(MemSlice::zero);
            return Ok(());
        };
        let jobs = jobs(regions, into);
        let check = self.begin_check(&file);
        let result = match (self.moves_directly(), check) {
            (true, None) => self.move_directly(Direction::Read, datafile, file, jobs).await,
            (true, Some(check)) => {
                let moved = self.move_directly(Direction::Read, datafile, file.clone(), jobs.clone()).await;
                match moved {
                    Ok(()) => self.verify(check, file, jobs).await,
                    failed => failed,
                }
            }
            (false, check) => {
                let at_once = |at_once: &AtOnce, file: &OpenFile, jobs: &[Job]| {
                    let moved = at_once.read(file.descriptor(Way::Buffered), jobs)?;
                    verified_at_once(check.as_ref(), file, jobs, moved)
                };
                let checked = check.clone();
                let whole = move |file: &OpenFile, jobs: &[Job]| {
                    read_all(file.file(), jobs)?;
                    checked.map_or(Ok(()), |check| check.verify(file.file(), jobs, true))
                };
                self.transfer(file, jobs, at_once, whole).await
            }
        };
        result.map_err(|(done, unmoved)| unmoved.into_error("reading", datafile).with_ranges(remainder(regions, done)))
    }

    fn refusal(&self, datafile: DatafileHandle) -> Option<FsError> {
        self.check(datafile).err()
    }

    fn lends(&self) -> Lends {
        if self.mapped.is_some() { Lends::Reads } else { Lends::Nothing }
    }

    async fn lend(
        &self,
        datafile: DatafileHandle,
        regions: &[Region],
        turn: &dyn DiskTurn,
    ) -> Result<Option<Loan>, FsError> {
        let Some(mapped) = &self.mapped else { return Ok(None) };
        let lent = self.lend_mapped(mapped, datafile, regions, turn).await;
        lent.map_err(|error| error.with_ranges(regions.iter().copied()))
    }

    fn any_waits(&self) -> bool {
        self.mapped.as_ref().is_some_and(Mapped::any_waits)
    }

    fn service(&self) -> ServiceKind {
        if self.mapped.is_some() { ServiceKind::Mmap } else { ServiceKind::Normal }
    }

    async fn prepare_truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.check_sound(datafile)?;
        // One that is empty, and was never written, needs none.
        if let Some(file) = self.marked_file(datafile, size > 0).await? {
            let len = file.len().map_err(|error| fault("looking at", datafile, &error))?;
            if size > 0 && self.core.catalogue.is_new(datafile) {
                // It must be there after a power failure, too.
                self.make_durable(datafile, file, false).await?;
            }
            if size > len {
                let tried = self.long(move |core| try_length(core, size)).await?;
                tried.map_err(|error| fault("trying the length of", datafile, &error))?;
            }
        }
        self.mark(datafile, move |marks| marks.set(datafile, Mark::Truncating(size))).await?;
        // A sync of it may have failed meanwhile.
        self.check_sound(datafile)
    }

    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.check(datafile)?;
        self.set_length(datafile, size).await.map(drop)
    }

    async fn allocate(&self, datafile: DatafileHandle, range: Region, how: Allocation) -> Result<(), FsError> {
        let Some(file) = self.file(datafile, how != Allocation::Hole).await? else { return Ok(()) };
        if range.is_empty() {
            return Ok(());
        }
        let _cut = match &self.mapped {
            Some(mapped) => Some(mapped.cut(datafile).await),
            None => None,
        };
        let change = self.begin_change(datafile, &file, What::Bytes(&[range])).await?;
        let result = self.long(move |_| (change, file.allocate(range, how)).1).await?;
        self.mapped.iter().for_each(|mapped| mapped.forget(datafile));
        result.map_err(|error| fault("changing the space of", datafile, &error))
    }

    async fn seek(&self, datafile: DatafileHandle, offset: u64, what: Sought) -> Result<Option<u64>, FsError> {
        let hole = Some(offset).filter(|_| what == Sought::Hole);
        let Some(file) = self.file(datafile, false).await? else { return Ok(hole) };
        let found = self.long(move |_| file.file().seek(offset, what)).await?;
        found.map(|found| found.or(hole)).map_err(|error| fault("looking for holes of", datafile, &error))
    }

    async fn commit_truncate(&self, datafile: DatafileHandle, cut: u64, size: u64) -> Result<(), FsError> {
        self.core.failure.check()?;
        if !self.core.marks.find(datafile).is_some_and(Mark::is_prepared) {
            return Ok(());
        }
        let result = self.carry_out(datafile, cut, size).await;
        if result.is_err() {
            self.core.marks.note_failure(datafile);
        }
        result
    }

    async fn cancel_truncates(&self, except: &[DatafileHandle]) -> Result<(), FsError> {
        self.core.failure.check()?;
        let except: BTreeSet<DatafileHandle> = except.iter().copied().collect();
        let mut cancelled = self.core.marks.list(Mark::is_prepared);
        cancelled.retain(|datafile| !except.contains(datafile));
        let Some(first) = cancelled.first().copied() else { return Ok(()) };
        self.mark(first, move |marks| marks.clear(cancelled, Mark::is_prepared)).await
    }

    async fn sync(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        let mut result = Ok(());
        for some in datafiles.chunks(SYNCED_TOGETHER) {
            result = result.and(self.sync_some(some).await);
        }
        result
    }

    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError> {
        let Some(file) = self.file(datafile, false).await? else { return Ok(Held::default()) };
        let look = move || file.file().held();
        // The time of the last change is not always known here, if others keep it.
        let held = if self.at_once.knows_attributes() { look() } else { self.short(move |_| look()).await? };
        held.map_err(|error| fault("looking at", datafile, &error))
    }

    async fn size(&self, datafile: DatafileHandle) -> Result<u64, FsError> {
        let Some(file) = self.file(datafile, false).await? else { return Ok(0) };
        file.len().map_err(|error| fault("looking at", datafile, &error))
    }

    async fn failure(&self) -> FsError {
        self.core.failure.wait().await
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        let core = self.core.clone();
        let ask = || self.core.short.start(move || core.space.ask(&*core.dir));
        let space = self.core.space.ask_anew(ask).await;
        space.map(|room| self.stat_of(room)).map_err(|error| trouble(&self.path, &error))
    }

    async fn scrub(&self, datafile: DatafileHandle, from: u64, most: u64) -> Result<Scrubbed, FsError> {
        self.scrub_datafile(datafile, from, most).await
    }

    fn sums_stat(&self) -> Option<SumsStat> {
        self.core.sums.as_ref().map(|sums| sums.stat())
    }

    async fn tend(&self, sleep: &dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()>>>) {
        self.keep_settling(sleep).await;
    }

    fn known_stat(&self) -> Option<IodStat> {
        Some(self.stat_of(self.core.space.known()))
    }
}
