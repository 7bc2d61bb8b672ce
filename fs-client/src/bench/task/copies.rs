//! The phases of copying whole files, as `pvfs put` and `pvfs get` do it.
//!
//! **What is measured.** A file of this host is stored, without and with the servers' disks, and
//! fetched into another one. Local files are in memory unless a directory is named. Buffers are new
//! each time, as in each run of the command.
//!
//! **Verification.** The file has the bytes of [`Pattern`]. What was fetched is compared in a phase
//! of its own, which is not measured.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::copy::Copier;
use crate::{ErrorCode, FsPath};

use super::lane::{Lane, now, settle, text};
use super::pattern::Pattern;
use crate::bench::job::{Copying, Job, Part, Phase};

/// The defaults of `pvfs put` and `pvfs get`: bytes of a request, and requests in flight.
const BLOCK: usize = 4 << 20;
const WINDOW: usize = 4;
/// Bytes that are made or compared at a time.
const UNIT: usize = 1 << 20;
/// A file system in memory.
const MEMORY: &str = "/dev/shm";

/// A task's part in a phase.
pub(super) struct Porter<'a> {
    pub(super) lane: &'a mut Lane,
    pub(super) copy: Copying,
    pub(super) job: &'a Job,
    pub(super) rank: u32,
    pub(super) dir: &'a FsPath,
}

impl Porter<'_> {
    pub(super) async fn phase(mut self, phase: Phase) -> Result<Part, String> {
        match phase {
            Phase::Make => self.make(),
            Phase::Put => self.put(false).await,
            Phase::Clear => self.clear().await,
            Phase::PutSynced => self.put(true).await,
            Phase::Get => self.get().await,
            Phase::Check => self.check(),
            Phase::Unmake => {
                self.lane.local = None;
                self.clear().await
            }
            other => Err(format!("{other:?} is not a phase of copies")),
        }
    }

    fn remote(&self) -> Result<FsPath, String> {
        self.dir.join(format!("copy-{:06}", self.rank)).map_err(text)
    }

    /// Returns the path of a local file.
    fn local(&self, name: &str) -> Result<PathBuf, String> {
        let dir = self.lane.local.as_ref().ok_or("there is no local directory")?;
        Ok(dir.path().join(name))
    }

    fn pattern(&self) -> Pattern {
        Pattern::new(self.job.seed, self.rank)
    }

    /// Returns offset and length of each unit of the file.
    fn units(&self) -> impl Iterator<Item = (u64, usize)> + use<> {
        let size = self.copy.size;
        (0..size).step_by(UNIT).map(move |at| (at, (size - at).min(UNIT as u64) as usize))
    }

    fn make(&mut self) -> Result<Part, String> {
        let new = |dir: &Path| {
            let made = tempfile::Builder::new().prefix("pvfs-bench-").tempdir_in(dir);
            made.map_err(|error| format!("{}: {error}", dir.display()))
        };
        self.lane.local = Some(match &self.job.local {
            Some(dir) => new(Path::new(dir))?,
            None => new(Path::new(MEMORY)).or_else(|_| new(&std::env::temp_dir()))?,
        });
        let (path, mut bytes) = (self.local("source")?, vec![0; UNIT]);
        let failed = |error: io::Error| format!("{}: {error}; name a directory with --local", path.display());
        let mut file = File::create_new(&path).map_err(failed)?;
        for (at, len) in self.units() {
            self.pattern().fill(at, &mut bytes[..len]);
            file.write_all(&bytes[..len]).map_err(failed)?;
        }
        Ok(Part::default())
    }

    fn copier(&self) -> Result<Copier, String> {
        Copier::new(self.lane.client.clone(), BLOCK, WINDOW, |_| {}).map_err(text)
    }

    async fn put(&self, sync: bool) -> Result<Part, String> {
        let (source, target, mut part) = (self.local("source")?, self.remote()?, Part::default());
        let begun = now(&self.lane.client);
        let mut copier = self.copier()?;
        copier.sync = sync;
        let copied = copier.put(&source, &target).await.map_err(text)?;
        part.operation(now(&self.lane.client).since(begun), copied.bytes);
        Ok(part)
    }

    async fn get(&self) -> Result<Part, String> {
        let (source, target, mut part) = (self.remote()?, self.local("copy")?, Part::default());
        let begun = now(&self.lane.client);
        let copied = self.copier()?.get_file(&source, &target).await.map_err(text)?;
        part.operation(now(&self.lane.client).since(begun), copied.bytes);
        Ok(part)
    }

    async fn clear(&self) -> Result<Part, String> {
        match self.lane.client.remove_all(&self.remote()?).await {
            // A run that failed has not stored it.
            Err(error) if error.code() != ErrorCode::NotFound => Err(text(error)),
            _ => settle(self.lane, self.rank).await,
        }
    }

    fn check(&self) -> Result<Part, String> {
        let path = self.local("copy")?;
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let (mut file, mut found, mut spare) = (File::open(&path).map_err(failed)?, vec![0; UNIT], vec![0; UNIT]);
        for (at, len) in self.units() {
            file.read_exact(&mut found[..len]).map_err(failed)?;
            if let Some(wrong) = self.pattern().check(at, &found[..len], &mut spare[..len]) {
                return Err(format!("get of {}: the byte at offset {} is wrong", self.remote()?, wrong.offset));
            }
        }
        match file.read(&mut found).map_err(failed)? {
            0 => Ok(Part::default()),
            _ => Err(format!("get of {}: the copy is longer than the file", self.remote()?)),
        }
    }
}
