//! The phases of names, as mdtest has them: create, stat, list and remove.
//!
//! **What is measured.** Operations on files that are empty, or have some bytes since they were
//! created, one after the other or some in flight. A task asks for and lists what another task has
//! made. A listing counts with its entries. Directories are made and removed in phases of their
//! own, which are not measured.

use std::cell::RefCell;

use bmi::Memory;

use crate::{CreateOptions, FsPath, RemoveKind};

use super::flight;
use super::lane::{Lane, now, settle, text};
use crate::bench::job::{Job, Meta, Part, Phase};
use crate::bench::layout::partner;

/// A task's part in a phase.
pub(super) struct Namer<'a> {
    pub(super) lane: &'a mut Lane,
    pub(super) meta: Meta,
    pub(super) job: &'a Job,
    pub(super) rank: u32,
    pub(super) dir: &'a FsPath,
}

impl Namer<'_> {
    pub(super) async fn phase(self, phase: Phase) -> Result<Part, String> {
        match phase {
            Phase::Make => self.make().await,
            Phase::Create => self.create().await,
            Phase::Stat => self.stat().await,
            Phase::List => self.list().await,
            Phase::Remove => self.remove().await,
            Phase::Unmake => self.unmake().await,
            other => Err(format!("{other:?} is not a phase of names")),
        }
    }

    fn partner(&self) -> u32 {
        partner(self.rank, self.job.shift, self.job.all)
    }

    /// Returns the directory that a task's part of the tree begins with.
    fn top(&self, task: u32) -> Result<FsPath, String> {
        let name = if self.meta.unique { format!("task-{task:06}") } else { "all".to_owned() };
        self.dir.join(&name).map_err(text)
    }

    /// Returns the directory of a task's files.
    fn bottom(&self, task: u32) -> Result<FsPath, String> {
        (0..self.meta.depth).try_fold(self.top(task)?, |path, _| path.join("below").map_err(text))
    }

    fn is_owner(&self) -> bool {
        self.meta.unique || self.rank == 0
    }

    async fn make(&self) -> Result<Part, String> {
        if self.is_owner() {
            self.lane.client.mkdir_all(&self.bottom(self.rank)?).await.map_err(text)?;
        }
        Ok(Part::default())
    }

    async fn unmake(&self) -> Result<Part, String> {
        if self.is_owner() {
            self.lane.client.remove_all(&self.top(self.rank)?).await.map_err(text)?;
        }
        settle(self.lane, self.rank).await
    }

    /// Does something for each file of a task.
    async fn each(&self, task: u32, work: impl AsyncFn(&FsPath) -> Result<(), crate::Error>) -> Result<Part, String> {
        let dir = self.bottom(task)?;
        let part = RefCell::new(Part::default());
        let step = async |_, number| {
            let path = dir.join(format!("file-{task}-{number}")).map_err(text)?;
            let begun = now(&self.lane.client);
            work(&path).await.map_err(text)?;
            part.borrow_mut().operation(now(&self.lane.client).since(begun), 1);
            Ok(())
        };
        flight::each(self.meta.in_flight, 0..self.meta.files, step).await?;
        Ok(part.into_inner())
    }

    async fn create(&self) -> Result<Part, String> {
        let (client, bytes) = (&self.lane.client, self.meta.bytes);
        let options = CreateOptions { small: bytes > 0, ..CreateOptions::default() };
        let data = Memory::from(vec![7; bytes as usize]);
        let create = async |path: &FsPath| {
            let file = client.create(path, options).await?;
            if bytes > 0 { file.write_at(0, data.clone()).await } else { Ok(()) }
        };
        self.each(self.rank, create).await
    }

    async fn stat(&self) -> Result<Part, String> {
        let client = &self.lane.client;
        self.each(self.partner(), async |path| client.stat(path).await.map(drop)).await
    }

    async fn remove(&self) -> Result<Part, String> {
        let client = &self.lane.client;
        self.each(self.rank, async |path| client.remove(path, RemoveKind::File).await).await
    }

    async fn list(&self) -> Result<Part, String> {
        let dir = self.bottom(self.partner())?;
        let expected = self.meta.files * if self.meta.unique { 1 } else { u64::from(self.job.all) };
        let mut part = Part::default();
        let begun = now(&self.lane.client);
        let mut pages = self.lane.client.read_dir(&dir).await.map_err(text)?;
        let mut found = 0;
        while let Some(page) = pages.next_page().await.map_err(text)? {
            found += page.len() as u64;
        }
        part.operation(now(&self.lane.client).since(begun), found);
        if found != expected {
            return Err(format!("list of {dir}: {found} names, and {expected} files were created"));
        }
        Ok(part)
    }
}
