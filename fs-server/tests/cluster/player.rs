//! A client that acts at random, and knows the expected results.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bmi::{MemList, Memory, Time};
use bmi_sim::Rng;
use bmi_sim::check::Case;
use fs_client::{AccessPattern, CacheHints, CachePolicy, Client, CreateOptions, Draft, Error, ErrorCode, File, FsPath};
use fs_proto::{Handle, Region, RemoveKind};

use super::doubts::Doubt;
use super::model::{Model, What, ZOMBIE, byte};
use super::{SERVERS, insist};

/// Longest file, in bytes.
pub const LONGEST: u64 = 96 << 10;
/// Size of a cell of the shared file, in bytes. The clients own the cells in turn.
const CELL: u64 = 1500;
/// Number of cells of the shared file.
const CELLS: u64 = 24;

/// Size of the part of the shared file that each client has behind the cells: too long for a
/// message.
const PART: u64 = 30_011;

/// A file and its history.
#[derive(Clone)]
pub struct Known {
    pub file: File,
    pub model: Rc<RefCell<Model>>,
}

/// A client and everything that it knows.
pub struct Player {
    pub who: usize,
    pub players: usize,
    /// The client, while the node is up.
    pub link: Option<Client>,
    /// Number of crashes of its node.
    pub lives: usize,
    pub world: Case,
    pub rng: Rng,
    pub dir: FsPath,
    pub files: BTreeMap<String, Known>,
    pub dirs: BTreeSet<String>,
    /// Names that may or may not exist, because a change of them failed.
    pub unsure: BTreeSet<String>,
    /// Files that a step may have changed as a whole.
    pub doubts: BTreeMap<String, Doubt>,
    /// A draft that is published after a long time: name, file, size and beginning.
    pub kept: Option<(String, Draft, Known, u64, Time)>,
    /// Names that are being changed right now.
    pub changing: Vec<String>,
    pub shared: Option<Known>,
    pub shared_path: FsPath,
    pub shared_model: Rc<RefCell<Model>>,
    pub names: u64,
    pub salts: u64,
    /// Number of errors that faults explain.
    pub errors: u64,
    /// True while something has happened that explains errors.
    pub disaster: bool,
    /// True while the disks of all servers fail.
    pub broken_disks: bool,
}

/// Returns the range of a whole file.
pub fn all() -> Vec<Range<u64>> {
    std::iter::once(0..LONGEST).collect()
}

pub type Outcome<T = ()> = Result<T, String>;

/// Returns true if faults explain the error.
fn excused(error: &Error) -> bool {
    let codes = [
        ErrorCode::Timeout,
        ErrorCode::Unreachable,
        ErrorCode::Io,
        ErrorCode::NoSpace,
        ErrorCode::Busy,
        ErrorCode::Unfinished,
    ];
    error.failures().iter().all(|failure| codes.contains(&failure.code))
}

/// Returns true if a disaster explains the error: servers are the wrong ones, or do not serve.
fn excused_by_disaster(error: &Error) -> bool {
    let codes = [
        ErrorCode::Timeout,
        ErrorCode::Unreachable,
        ErrorCode::Busy,
        ErrorCode::WrongServer,
        ErrorCode::OutOfDate,
        ErrorCode::Unfinished,
    ];
    error.failures().iter().all(|failure| codes.contains(&failure.code))
}

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
    pub fn now(&self) -> Time {
        self.world.now()
    }

    /// Returns the client.
    pub fn client(&self) -> Client {
        self.link.clone().expect("it acts only while it is up")
    }

    /// Returns its number in the models. After a crash it is a new one, because it does not know
    /// what the servers had told it before.
    pub fn writer(&self) -> usize {
        self.lives * self.players + self.who
    }

    /// Returns the times of all power failures of servers so far.
    pub fn crashes(&self) -> Vec<Time> {
        self.world.nodes[..SERVERS].iter().flat_map(bmi_sim::Node::crashes).collect()
    }

    /// Restarts after its node is up again: with a new client and new files, which it finds by
    /// their names.
    pub async fn get_up(&mut self, client: Client) -> Outcome {
        let open = CreateOptions { exclusive: false, ..CreateOptions::default() };
        let shared = insist(&self.world, || client.create(&self.shared_path, open)).await;
        insist(&self.world, || client.mkdir_all(&self.dir)).await;
        for (name, known) in &mut self.files {
            let path = self.dir.join(name).expect("a short name");
            known.file = insist(&self.world, || client.open(&path)).await;
        }
        self.shared = Some(Known { file: shared, model: self.shared_model.clone() });
        self.link = Some(client);
        Ok(())
    }

    /// Records that its node has crashed. An operation in progress may have happened or not, or may
    /// still happen.
    pub fn died(&mut self) {
        let (now, writer) = (self.now(), self.writer());
        self.link = None;
        for name in std::mem::take(&mut self.changing) {
            self.files.remove(&name);
            self.dirs.remove(&name);
            self.unsure.insert(name);
        }
        for known in self.files.values().chain(&self.shared) {
            known.model.borrow_mut().died(writer, now);
        }
        self.doubts.values_mut().for_each(|doubt| doubt.died(writer, now));
        self.kept = None;
        self.lives += 1;
    }

    pub fn calm(&self) -> bool {
        // Operations that began earlier may fail a while later.
        self.now() > self.world.calm_at() + ZOMBIE
    }

    /// Returns the value of a result. Returns `None` for an error that faults explain, while there
    /// are faults.
    pub fn settle<T>(&mut self, what: &str, result: Result<T, Error>) -> Outcome<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if self.disaster && excused_by_disaster(&error) => {
                self.errors += 1;
                Ok(None)
            }
            Err(error) if excused(&error) && (self.broken_disks || !self.calm()) => {
                self.errors += 1;
                Ok(None)
            }
            Err(error) => Err(format!("client {} at {}: {what}: {error}", self.who, self.now())),
        }
    }

    pub fn fresh_name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    pub fn path(&self, name: &str) -> FsPath {
        self.dir.join(name).expect("a short name")
    }

    pub fn some<T: Clone>(&mut self, of: impl ExactSizeIterator<Item = T>) -> Option<T> {
        let mut of = of;
        let at = self.rng.below(of.len() as u64) as usize;
        of.nth(at)
    }

    /// Does one random action.
    pub async fn act(&mut self) -> Outcome {
        self.decide().await?;
        let name = self.some(self.files.keys().cloned().collect::<Vec<_>>().into_iter());
        let Some(name) = name else { return self.create().await };
        let known = self.files[&name].clone();
        match self.rng.below(100) {
            0..6 => self.create().await,
            6..14 => self.store().await,
            14..19 => self.complete(&known).await,
            19..32 => self.write(&known).await,
            32..42 => self.write_strided(&known).await,
            42..57 => self.read(&known).await,
            57..65 => self.sync(&known).await,
            65..72 => self.cut(name, known).await,
            72..84 => self.share().await,
            84..88 => self.rename(&name).await,
            88..91 => self.remove(&name).await,
            91..95 => self.directories().await,
            _ => self.list().await,
        }
    }

    // ---- names ----------------------------------------------------------------------------------

    async fn create(&mut self) -> Outcome {
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

    async fn rename(&mut self, from: &str) -> Outcome {
        // Sometimes replaces another file.
        let other = self.some(self.files.keys().cloned().collect::<Vec<_>>().into_iter());
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

    async fn remove(&mut self, name: &str) -> Outcome {
        self.changing = vec![name.to_owned()];
        let result = self.client().remove(&self.path(name), RemoveKind::File).await;
        self.changing.clear();
        self.files.remove(name);
        if self.settle("remove", result)?.is_none() {
            self.unsure.insert(name.to_owned());
        }
        Ok(())
    }

    async fn directories(&mut self) -> Outcome {
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
    async fn list(&mut self) -> Outcome {
        let result = self.client().readdir(&self.dir).await;
        if let Some(entries) = self.settle("readdir", result)? {
            let found: BTreeSet<String> = entries.into_iter().map(|entry| entry.name).collect();
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
        let name = self.some(self.files.keys().cloned().collect::<Vec<_>>().into_iter());
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

    async fn write(&mut self, known: &Known) -> Outcome {
        let range = self.range();
        self.put(known, vec![range]).await.map(drop)
    }

    /// Writes a file from its beginning, syncs it, and records its size, as `put` does. That is
    /// done only if the model knows the size.
    async fn complete(&mut self, known: &Known) -> Outcome {
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

    async fn write_strided(&mut self, known: &Known) -> Outcome {
        let ranges = self.strides();
        self.put(known, ranges).await.map(drop)
    }

    /// Writes its own cells of the shared file, or reads any part of it.
    async fn share(&mut self) -> Outcome {
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

    async fn read(&mut self, known: &Known) -> Outcome {
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

    // ---- the end --------------------------------------------------------------------------------

    fn everything(&self) -> Vec<Known> {
        self.files.values().chain(&self.shared).cloned().collect()
    }

    /// Ends the run. Nothing may fail now: everything is compared, and written again so that
    /// nothing is in doubt.
    pub async fn finish(&mut self) -> Outcome {
        self.decide_all().await?;
        self.list().await?;
        for known in self.everything() {
            self.read_ranges(&known, &all()).await?;
            // A server reports a loss once, here at the latest.
            let start = self.now();
            let good = known.file.sync().await.is_ok();
            known.model.borrow_mut().synced(self.writer(), start, self.now(), good);
        }
        for (name, known) in self.files.clone() {
            self.put(&known, all()).await?;
            self.sync(&known).await?;
            // Look it up by its name, not by the handle that was kept.
            let stat = self.client().stat(&self.path(&name)).await;
            let stat = self.settle("stat", stat)?.expect("nothing fails any more");
            if stat.attr.size != LONGEST {
                return Err(format!("{name} has {} bytes and not {LONGEST}", stat.attr.size));
            }
        }
        Ok(())
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

    /// Reads, writes and perhaps syncs every file.
    pub async fn use_all_files(&mut self, sync: bool) -> Outcome {
        for known in self.everything() {
            self.read_ranges(&known, &all()).await?;
        }
        self.write_here_and_there().await?;
        for known in self.everything() {
            self.read(&known).await?;
            if sync {
                self.sync(&known).await?;
            }
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

    /// Compares everything once more.
    pub async fn compare(&mut self) -> Outcome {
        self.decide_all().await?;
        self.list().await?;
        for known in self.everything() {
            self.read_ranges(&known, &all()).await?;
        }
        Ok(())
    }

    /// Removes everything.
    pub async fn clear(&mut self) -> Outcome {
        let result = self.client().remove_all(&self.dir.clone()).await;
        self.settle("remove all", result)?;
        Ok(())
    }

    /// Waits between two actions.
    pub async fn think(&mut self) {
        let pause = Duration::from_micros(self.rng.below(4_000));
        self.world.sleep(pause).await;
    }
}
