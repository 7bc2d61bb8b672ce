//! What a client does with its files: names, and bytes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use bmi::{MemList, Memory};
use fs_client::{AccessPattern, CacheHints, CachePolicy, CreateOptions, ErrorCode, FsPath};
use fs_proto::{Handle, Region, RemoveKind};

use super::model::{What, byte};
use super::player::{Known, LONGEST, Outcome, Player};

/// Size of a cell of the shared file, in bytes. The clients own the cells in turn.
const CELL: u64 = 1500;
/// Number of cells of the shared file.
const CELLS: u64 = 24;

/// Size of the part of the shared file that each client has behind the cells: too long for a
/// message.
const PART: u64 = 30_011;

/// Returns hints for a file, by its number: most kinds of them, and some that make no sense.
fn hints(number: usize) -> CacheHints {
    CacheHints {
        unit: [None, Some(4096), Some(5000), Some(65536), None][number % 5],
        policy: CachePolicy::from(number as u8 % 7),
        pattern: AccessPattern::from(number as u8 % 3),
        write_through: number % 4 == 3,
    }
}

impl Player {
    // ---- names ----------------------------------------------------------------------------------

    pub async fn create(&mut self) -> Outcome {
        let name = self.fresh_name();
        let hints = hints(self.files.len());
        let options = CreateOptions { servers: 1 + self.rng.below(3) as u32, hints, ..CreateOptions::default() };
        self.changing = vec![name.clone()];
        let result = self.client().create(&self.path(&name), options).await;
        self.changing.clear();
        match self.settle("create", result)? {
            Some(file) => {
                self.files.insert(name, Known { file, model: Rc::default() });
            }
            None => {
                self.unsure.insert(name);
            }
        }
        Ok(())
    }

    /// Creates files until new pools are needed.
    pub async fn create_many(&mut self, count: usize) -> Outcome {
        for _ in 0..count {
            self.create().await?;
        }
        Ok(())
    }

    /// Returns a path that the client forgets.
    pub fn fresh_path(&mut self) -> FsPath {
        let name = self.fresh_name();
        self.unsure.insert(name.clone());
        self.path(&name)
    }

    pub async fn rename(&mut self, from: &str) -> Outcome {
        // Sometimes replaces another file.
        let other = self.some_file();
        let fresh = self.fresh_name();
        let to = other.filter(|other| other != from && self.rng.below(3) == 0).unwrap_or(fresh);
        self.changing = vec![from.to_owned(), to.clone()];
        let result = self.client().rename(&self.path(from), &self.path(&to)).await;
        self.changing.clear();
        let known = self.files.remove(from);
        self.files.remove(&to);
        match self.settle("rename", result)? {
            Some(()) => self.files.extend(known.map(|known| (to, known))),
            None => self.unsure.extend([from.to_owned(), to]),
        }
        Ok(())
    }

    pub async fn remove(&mut self, name: &str) -> Outcome {
        self.changing = vec![name.to_owned()];
        let result = self.client().remove(&self.path(name), RemoveKind::File).await;
        self.changing.clear();
        self.files.remove(name);
        if self.settle("remove", result)?.is_none() {
            self.unsure.insert(name.to_owned());
        }
        Ok(())
    }

    pub async fn directories(&mut self) -> Outcome {
        let old = self.some(self.dirs.iter().cloned().collect::<Vec<_>>().into_iter());
        if let Some(old) = old.filter(|_| self.rng.below(2) == 0) {
            self.changing = vec![old.clone()];
            let result = self.client().remove(&self.path(&old), RemoveKind::Dir).await;
            self.changing.clear();
            self.dirs.remove(&old);
            if self.settle("rmdir", result)?.is_none() {
                self.unsure.insert(old);
            }
            return Ok(());
        }
        let name = self.fresh_name();
        self.changing = vec![name.clone()];
        let result = self.client().mkdir(&self.path(&name)).await;
        self.changing.clear();
        if self.settle("mkdir", result)?.is_some() {
            self.dirs.insert(name);
        } else {
            self.unsure.insert(name);
        }
        Ok(())
    }

    /// Reads its directory, and looks up a name that exists and one that does not.
    pub async fn list(&mut self) -> Outcome {
        let result = self.client().readdir(&self.dir).await;
        if let Some(entries) = self.settle("readdir", result)? {
            let found: BTreeSet<String> = entries.into_iter().map(|entry| entry.name.to_string()).collect();
            let known: BTreeSet<String> = self.files.keys().chain(&self.dirs).cloned().collect();
            let missing: Vec<_> = known.difference(&found).collect();
            let strange: Vec<_> = found.difference(&known).filter(|name| !self.unsure.contains(*name)).collect();
            if !missing.is_empty() || !strange.is_empty() {
                return Err(format!(
                    "client {}: missing names {missing:?}, names that should not be {strange:?}",
                    self.who
                ));
            }
        }
        let name = self.some_file();
        if let Some(name) = name {
            let result = self.client().lookup(&self.path(&name)).await;
            let handle = Handle::File(self.files[&name].file.handle());
            match self.settle("lookup", result)? {
                Some(entry) if entry.handle != handle => return Err(format!("{name} is another file now")),
                _ => {}
            }
            let options = CreateOptions::default();
            match self.client().create(&self.path(&name), options).await {
                Err(error) if error.code() == ErrorCode::Exists => {}
                other => {
                    if self.settle("create again", other)?.is_some() {
                        return Err(format!("{name} was made twice"));
                    }
                }
            }
        }
        match self.client().lookup(&self.path("never")).await {
            Err(error) if error.code() == ErrorCode::NotFound => Ok(()),
            other => match self.settle("lookup of nothing", other)? {
                Some(entry) => Err(format!("a file that nobody made: {entry:?}")),
                None => Ok(()),
            },
        }
    }

    // ---- bytes ----------------------------------------------------------------------------------

    /// Returns a range: small, medium or large.
    fn range(&mut self) -> Range<u64> {
        let most = [200, 3_000, 20_000, LONGEST][self.rng.below(4) as usize];
        let len = 1 + self.rng.below(most);
        let start = self.rng.below(LONGEST - len + 1);
        start..start + len
    }

    /// Returns some ranges that do not touch, in order.
    fn strides(&mut self) -> Vec<Range<u64>> {
        let (count, len) = (2 + self.rng.below(12), 1 + self.rng.below(2_000));
        let step = len + 1 + self.rng.below(3_000);
        let first = self.rng.below(2_000);
        (0..count).map(|index| first + index * step).map(|start| start..start + len).collect()
    }

    /// Writes. Returns whether it succeeded.
    pub async fn put(&mut self, known: &Known, ranges: Vec<Range<u64>>) -> Outcome<bool> {
        self.salts += 1;
        let salt = self.salts << 8 | self.who as u64;
        let bytes: Vec<u8> = ranges.iter().cloned().flatten().map(|at| byte(salt, at)).collect();
        let regions: Vec<Region> =
            ranges.iter().map(|range| Region::new(range.start, range.end - range.start)).collect();
        let memory = self.scattered(bytes);
        let op = known.model.borrow_mut().begin(self.writer(), What::Write { ranges, salt }, self.now());
        let result = known.file.write_list(&regions, memory).await;
        known.model.borrow_mut().end(op, self.now(), result.is_ok());
        self.settle("write", result).map(|written| written.is_some())
    }

    /// Returns the bytes in one piece of memory or in several.
    fn scattered(&mut self, bytes: Vec<u8>) -> MemList {
        let (len, memory) = (bytes.len(), Memory::from(bytes));
        if self.rng.below(3) > 0 || len < 8 {
            return MemList::from(&memory);
        }
        let cut = 1 + self.rng.below(len as u64 - 1) as usize;
        [memory.slice(0, cut), memory.slice(cut, len - cut)].into_iter().collect()
    }

    pub async fn write(&mut self, known: &Known) -> Outcome {
        let range = self.range();
        self.put(known, vec![range]).await.map(drop)
    }

    /// Writes a file from its beginning, syncs it, and records its size, as `put` does. That is
    /// done only if the model knows the size.
    pub async fn complete(&mut self, known: &Known) -> Outcome {
        let len = 1 + self.rng.below(LONGEST);
        self.put(known, std::iter::once(0..len).collect()).await?;
        let start = self.now();
        let result = known.file.sync().await;
        known.model.borrow_mut().synced(self.writer(), start, self.now(), result.is_ok());
        let synced = self.settle("sync", result)?.is_some();
        let size = known.model.borrow().size(self.now(), self.now(), &self.crashes());
        if let Some(size) = size.filter(|_| synced) {
            match known.file.record_size(size).await {
                // The file has holes.
                Err(error) if error.code() == ErrorCode::Invalid => {}
                result => drop(self.settle("record a size", result)?),
            }
        }
        Ok(())
    }

    pub async fn write_strided(&mut self, known: &Known) -> Outcome {
        let ranges = self.strides();
        self.put(known, ranges).await.map(drop)
    }

    /// Writes its own cells of the shared file, or reads any part of it.
    pub async fn share(&mut self) -> Outcome {
        let Some(known) = self.shared.clone() else { return Ok(()) };
        if self.rng.below(2) == 0 {
            return self.read(&known).await;
        }
        let own = (0..CELLS).filter(|cell| cell % self.players as u64 == self.who as u64);
        let own: Vec<u64> = own.filter(|_| self.rng.below(3) == 0).collect();
        if own.is_empty() {
            return self.sync(&known).await;
        }
        self.put(&known, own.into_iter().map(|cell| cell * CELL..(cell + 1) * CELL).collect()).await.map(drop)
    }

    pub async fn read(&mut self, known: &Known) -> Outcome {
        let ranges = if self.rng.below(3) == 0 { self.strides() } else { vec![self.range()] };
        self.read_ranges(known, &ranges).await
    }

    pub async fn read_ranges(&mut self, known: &Known, ranges: &[Range<u64>]) -> Outcome {
        let regions: Vec<Region> =
            ranges.iter().map(|range| Region::new(range.start, range.end - range.start)).collect();
        let len: u64 = regions.iter().map(|region| region.len).sum();
        let memory = Memory::from(vec![0xee; len as usize]);
        let start = self.now();
        let result = known.file.read_list(&regions, &memory).await;
        let Some(read) = self.settle("read", result)? else { return Ok(()) };
        let (bytes, crashes) = (memory.to_vec(), self.crashes());
        let mut done = 0;
        for region in regions.iter() {
            let part = &bytes[done..done + region.len as usize];
            known.model.borrow().check(start, self.now(), region.offset, part, &crashes).map_err(|wrong| {
                format!("client {} read {} at {}: {wrong}", self.who, known.file.path(), self.now())
            })?;
            done += part.len();
        }
        if let Some(size) = known.model.borrow().size(start, self.now(), &crashes) {
            let there: u64 = regions.iter().map(|region| size.saturating_sub(region.offset).min(region.len)).sum();
            if read != there {
                return Err(format!("a read of {len} bytes says {read}; a file of {size} bytes has {there} of them"));
            }
        }
        Ok(())
    }

    pub async fn sync(&mut self, known: &Known) -> Outcome {
        let start = self.now();
        let result = known.file.sync().await;
        known.model.borrow_mut().synced(self.writer(), start, self.now(), result.is_ok());
        self.settle("sync", result).map(|_| ())
    }

    /// Writes some bytes of every file after other hints than before, and syncs nothing.
    pub async fn write_here_and_there(&mut self) -> Outcome {
        for known in self.files.values().cloned().collect::<Vec<_>>() {
            let advised = known.file.advise(hints(self.rng.below(35) as usize)).await;
            self.settle("advise", advised)?;
            self.write_strided(&known).await?;
            self.write(&known).await?;
        }
        Ok(())
    }

    /// Reads or writes its own part of the shared file, or all of its own cells.
    pub async fn use_own_part(&mut self) -> Outcome {
        let Some(known) = self.shared.clone() else { return Ok(()) };
        let own: Vec<Range<u64>> = match self.rng.below(3) {
            0 => {
                let own = (0..CELLS).filter(|cell| cell % self.players as u64 == self.who as u64);
                own.map(|cell| cell * CELL..(cell + 1) * CELL).collect()
            }
            _ => {
                let start = CELLS * CELL + self.who as u64 * PART;
                std::iter::once(start..start + PART).collect()
            }
        };
        match self.rng.below(2) {
            0 => self.read_ranges(&known, &own).await,
            _ => self.put(&known, own).await.map(drop),
        }
    }
}
