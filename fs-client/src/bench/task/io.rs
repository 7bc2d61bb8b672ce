//! The phases of reading and writing, as IOR has them.
//!
//! **What is measured.** Writes or reads, one after the other or some in flight. With `sync`, the
//! write of what the servers have in memory to their disks belongs to the phase. Files are made,
//! opened and removed in phases of their own, which are not measured.
//!
//! **Verification.** Each transfer has the bytes of [`Pattern`], and each read is compared. To make
//! and to compare them takes time too. So such figures have `verified` in their setup, and are not
//! compared with others. The time of an operation does not contain it.

use std::cell::RefCell;

use crate::{CreateOptions, Datatype, Error, File, FileView, FsPath, Region, RemoveKind, TypedMemory};
use bmi::MemList;

use super::flight;
use super::lane::{Lane, now, settle, text};
use super::pattern::{Pattern, Wrong};
use crate::bench::job::{Io, Job, MOST_COMPLAINTS, Part, Phase};
use crate::bench::layout::{Layout, partner};

/// What memory has before a read that is verified.
const STALE: u8 = 0xa5;

/// A task's part in a phase.
pub(super) struct Writer<'a> {
    pub(super) lane: &'a mut Lane,
    pub(super) io: Io,
    pub(super) job: &'a Job,
    pub(super) rank: u32,
    pub(super) dir: &'a FsPath,
}

impl Writer<'_> {
    pub(super) async fn phase(mut self, phase: Phase) -> Result<Part, String> {
        match phase {
            Phase::Make => self.make().await,
            Phase::Open => self.open().await,
            Phase::Fill => self.write().await.map(|_| Part::default()),
            Phase::Write => self.write().await,
            Phase::Read => self.read().await,
            Phase::Unmake => self.unmake().await,
            other => Err(format!("{other:?} is not a phase of reading and writing")),
        }
    }

    fn layout(&self) -> Layout {
        self.io.layout(self.job.all)
    }

    /// Returns the task whose data this one reads.
    fn partner(&self) -> u32 {
        partner(self.rank, self.job.shift, self.job.all)
    }

    /// Returns the path of the file of a task.
    fn path(&self, task: u32) -> Result<FsPath, String> {
        let name = if self.io.shared { "shared".to_owned() } else { format!("task-{:06}", self.layout().file(task)) };
        self.dir.join(&name).map_err(text)
    }

    fn is_owner(&self) -> bool {
        !self.io.shared || self.rank == 0
    }

    async fn make(&mut self) -> Result<Part, String> {
        if self.is_owner() {
            let path = self.path(self.rank)?;
            self.lane.client.create(&path, CreateOptions::default()).await.map_err(text)?;
        }
        Ok(Part::default())
    }

    async fn unmake(&mut self) -> Result<Part, String> {
        self.lane.files = None;
        if self.is_owner() {
            let path = self.path(self.rank)?;
            self.lane.client.remove(&path, RemoveKind::File).await.map_err(text)?;
        }
        settle(self.lane, self.rank).await
    }

    /// Opens the files, and fills the memory for the first write.
    async fn open(&mut self) -> Result<Part, String> {
        let (own, other) = (self.path(self.rank)?, self.path(self.partner())?);
        let own = self.lane.client.open(&own).await.map_err(text)?;
        let other = self.lane.client.open(&other).await.map_err(text)?;
        self.lane.files = Some([own, other]);
        let mut bytes = vec![0; self.io.transfer as usize];
        self.pattern(self.rank).fill(0, &mut bytes);
        let end = u64::from(self.io.in_flight) * self.io.footprint();
        for at in (0..end).step_by(bytes.len()) {
            self.lane.memory.copy_from(at as usize, &bytes);
        }
        Ok(Part::default())
    }

    fn file(&self, index: usize) -> Result<File, String> {
        self.lane.files.as_ref().map(|files| files[index].clone()).ok_or_else(|| "the files are not open".to_owned())
    }

    /// Returns the bytes of the file of a task.
    fn pattern(&self, task: u32) -> Pattern {
        Pattern::new(self.job.seed, self.layout().file(task))
    }

    fn order(&self, task: u32, salt: u64) -> Vec<u64> {
        self.layout().order(task, self.io.random.then_some(self.job.seed ^ salt))
    }

    /// Returns where a transfer is in memory, if it has this slot: a slice for each piece.
    fn memory(&self, slot: usize) -> Vec<bmi::MemSlice> {
        let piece = (self.io.transfer / self.io.pieces) as usize;
        let (begin, apart) = (slot * self.io.footprint() as usize, self.io.footprint() / self.io.pieces);
        let at = |number: u64| begin + (number * apart) as usize;
        (0..self.io.pieces).map(|number| self.lane.memory.slice(at(number), piece)).collect()
    }

    /// Returns the same as a type.
    fn typed(&self, slot: usize) -> Result<TypedMemory, Error> {
        let (footprint, pieces) = (self.io.footprint(), self.io.pieces);
        let datatype = strided(pieces, self.io.transfer / pieces, footprint / pieces)?;
        Ok(TypedMemory::new(&self.lane.memory, &datatype, 1).at(slot as u64 * footprint))
    }

    async fn write(&self) -> Result<Part, String> {
        let (file, layout, pattern) = (self.file(0)?, self.layout(), self.pattern(self.rank));
        let part = RefCell::new(Part::default());
        let step = async |slot, number| {
            let (regions, memory) = (layout.regions(self.rank, number), self.memory(slot));
            if self.io.verify {
                let mut bytes = vec![0; (self.io.transfer / self.io.pieces) as usize];
                for (region, memory) in regions.iter().zip(&memory) {
                    pattern.fill(region.offset, &mut bytes);
                    memory.copy_from(&bytes);
                }
            }
            let memory: MemList = memory.into_iter().collect();
            let begun = now(&self.lane.client);
            match self.io.view {
                true => file.write_view(&view_of(&regions).map_err(text)?, 0, self.typed(slot).map_err(text)?).await,
                false => file.write_list(&regions, memory).await,
            }
            .map_err(text)?;
            part.borrow_mut().operation(now(&self.lane.client).since(begun), self.io.transfer);
            Ok(())
        };
        flight::each(self.io.in_flight, self.order(self.rank, 1).into_iter(), step).await?;
        if self.io.sync {
            file.sync().await.map_err(text)?;
        }
        Ok(part.into_inner())
    }

    async fn read(&self) -> Result<Part, String> {
        let (task, layout, file) = (self.partner(), self.layout(), self.file(1)?);
        let pattern = self.pattern(task);
        let part = RefCell::new(Part::default());
        let step = async |slot, number| {
            let (regions, pieces) = (layout.regions(task, number), self.memory(slot));
            if self.io.verify {
                pieces.iter().for_each(|piece| piece.copy_from(&vec![STALE; piece.len()]));
            }
            let memory: MemList = pieces.iter().cloned().collect();
            let begun = now(&self.lane.client);
            let read = match self.io.view {
                true => file.read_view(&view_of(&regions).map_err(text)?, 0, self.typed(slot).map_err(text)?).await,
                false => file.read_list(&regions, memory).await,
            }
            .map_err(text)?;
            let took = now(&self.lane.client).since(begun);
            let mut part = part.borrow_mut();
            part.operation(took, read);
            if read < self.io.transfer {
                let offset = end(&regions, read);
                complain(&mut part, file.path(), &Seen::Short { offset, bytes: self.io.transfer - read });
            } else if self.io.verify {
                for (region, piece) in regions.iter().zip(&pieces) {
                    let wrong = pattern.check(region.offset, &piece.to_vec(), &mut vec![0; piece.len()]);
                    wrong.iter().for_each(|wrong| complain(&mut part, file.path(), &Seen::Wrong(*wrong)));
                }
            }
            Ok(())
        };
        flight::each(self.io.in_flight, self.order(task, 2).into_iter(), step).await?;
        Ok(part.into_inner())
    }
}

fn strided(pieces: u64, len: u64, apart: u64) -> Result<Datatype, Error> {
    Ok(Datatype::hvector(pieces, 1, apart as i64, &Datatype::bytes(len)?)?)
}

/// Returns the regions of a transfer, which are as far apart as the first two, as a view.
fn view_of(regions: &[Region]) -> Result<FileView, Error> {
    let (first, apart) = match regions {
        [first, second, ..] => (first, second.offset - first.offset),
        [only] => (only, only.len),
        [] => return Ok(FileView::default()),
    };
    let filetype = strided(regions.len() as u64, first.len, apart)?;
    Ok(FileView::new(first.offset, Datatype::BYTE, filetype)?)
}

/// Returns where a read of these regions ended that returned `read` bytes, and not all.
fn end(regions: &[Region], read: u64) -> u64 {
    let mut left = read;
    for region in regions {
        if left < region.len {
            return region.offset + left;
        }
        left -= region.len;
    }
    regions.last().map_or(0, |region| region.offset + region.len)
}

/// What was not as written.
enum Seen {
    /// The file ends at `offset`.
    Short {
        offset: u64,
        bytes: u64,
    },
    Wrong(Wrong),
}

fn complain(part: &mut Part, path: &FsPath, seen: &Seen) {
    let (line, bytes) = match seen {
        Seen::Short { offset, bytes } => (format!("{path} ends at offset {offset}"), *bytes),
        Seen::Wrong(wrong) => {
            let Wrong { offset, found, expected, bytes } = *wrong;
            (format!("{path}: the byte at offset {offset} is {found:#04x} and must be {expected:#04x}"), bytes)
        }
    };
    part.wrong += bytes;
    if part.complaints.len() < MOST_COMPLAINTS {
        part.complaints.push(line);
    }
}
