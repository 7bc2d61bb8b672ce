//! The phases of reading and writing, as IOR has them.
//!
//! **What is measured.** Writes or reads, one after the other. With `sync`, the write of what the
//! servers have in memory to their disks belongs to the phase. Files are made, opened and removed
//! in phases of their own, which are not measured.
//!
//! **Verification.** Each transfer has the bytes of [`Pattern`], and each read is compared. To make
//! and to compare them takes time too. So such figures have `verified` in their setup, and are not
//! compared with others. The time of an operation does not contain it.

use fs_client::{CreateOptions, File, FsPath, RemoveKind};

use bmi::MemSlice;

use super::job::{Io, Job, Part, Phase};
use super::layout::{Layout, partner};
use super::pattern::{Pattern, Wrong};
use super::task::{Lane, now, text};

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
        Ok(Part::default())
    }

    /// Opens the files, and fills the memory for the first write.
    async fn open(&mut self) -> Result<Part, String> {
        let (own, other) = (self.path(self.rank)?, self.path(self.partner())?);
        let own = self.lane.client.open(&own).await.map_err(text)?;
        let other = self.lane.client.open(&other).await.map_err(text)?;
        self.lane.files = Some([own, other]);
        let mut bytes = vec![0; self.io.transfer as usize];
        self.pattern(self.rank).fill(0, &mut bytes);
        self.lane.memory.copy_from(0, &bytes);
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

    fn memory(&self) -> MemSlice {
        self.lane.memory.slice(0, self.io.transfer as usize)
    }

    async fn write(&mut self) -> Result<Part, String> {
        let (file, layout, pattern, memory) = (self.file(0)?, self.layout(), self.pattern(self.rank), self.memory());
        let mut bytes = vec![0; if self.io.verify { self.io.transfer as usize } else { 0 }];
        let mut part = Part::default();
        for number in self.order(self.rank, 1) {
            let offset = layout.offset(self.rank, number);
            if self.io.verify {
                pattern.fill(offset, &mut bytes);
                self.lane.memory.copy_from(0, &bytes);
            }
            let begun = now(&self.lane.client);
            file.write_at(offset, &memory).await.map_err(text)?;
            part.operation(now(&self.lane.client).since(begun), self.io.transfer);
        }
        if self.io.sync {
            file.sync().await.map_err(text)?;
        }
        Ok(part)
    }

    async fn read(&mut self) -> Result<Part, String> {
        let (task, layout, memory, file) = (self.partner(), self.layout(), self.memory(), self.file(1)?);
        let len = if self.io.verify { self.io.transfer as usize } else { 0 };
        let (stale, mut found, mut spare) = (vec![STALE; len], vec![0; len], vec![0; len]);
        let pattern = self.pattern(task);
        let mut part = Part::default();
        for number in self.order(task, 2) {
            let offset = layout.offset(task, number);
            self.lane.memory.copy_from(0, &stale);
            let begun = now(&self.lane.client);
            let read = file.read_at(offset, &memory).await.map_err(text)?;
            part.operation(now(&self.lane.client).since(begun), read);
            if read < self.io.transfer {
                complain(
                    &mut part,
                    file.path(),
                    &Seen::Short { offset: offset + read, bytes: self.io.transfer - read },
                );
                continue;
            }
            if self.io.verify {
                self.lane.memory.copy_to(0, &mut found);
                let wrong = pattern.check(offset, &found, &mut spare);
                wrong.iter().for_each(|wrong| complain(&mut part, file.path(), &Seen::Wrong(*wrong)));
            }
        }
        Ok(part)
    }
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
    if part.complaints.len() < super::job::MOST_COMPLAINTS {
        part.complaints.push(line);
    }
}
