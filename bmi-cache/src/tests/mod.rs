//! Random operations of several tasks at the same time, on a disk that takes its time and fails,
//! against a model of the bytes.

mod strided;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use async_trait::async_trait;
use bmi_core::MemList;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng as _;

use crate::*;

/// A random number generator that several tasks share.
#[derive(Clone)]
struct Random(Rc<RefCell<ChaCha8Rng>>);

impl Random {
    fn new(seed: u64) -> Random {
        Random(Rc::new(RefCell::new(ChaCha8Rng::seed_from_u64(seed))))
    }

    fn below(&self, bound: u64) -> u64 {
        self.0.borrow_mut().next_u64() % bound
    }

    async fn pause(&self, most: u64) {
        for _ in 0..self.below(most) {
            yield_now().await;
        }
    }
}

/// A disk in memory.
struct Slow {
    files: RefCell<BTreeMap<u64, Vec<u8>>>,
    random: Random,
    /// One of so many transfers fails. 0: none.
    failing: Cell<u64>,
    /// Extents that are being moved, and whether they are written.
    moving: RefCell<Vec<(u64, Extent, bool)>>,
}

/// A transfer, until it has ended or is given up.
struct Moving<'a>(&'a Slow, u64, &'a [Extent]);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.moving.borrow_mut().retain(|(other, known, _)| *other != self.1 || !self.2.contains(known));
    }
}

impl Slow {
    async fn moves(&self, file: u64, extents: &[Extent], write: bool) -> Result<(), String> {
        for extent in extents {
            let clash = |(other, known, writes): &(u64, Extent, bool)| {
                *other == file && known.overlaps(extent) && (write || *writes)
            };
            assert!(!self.moving.borrow().iter().any(clash), "two transfers of the same bytes at a time");
            self.moving.borrow_mut().push((file, *extent, write));
        }
        let moving = Moving(self, file, extents);
        self.random.pause(8).await;
        drop(moving);
        let failing = self.failing.get();
        if failing > 0 && self.random.below(failing) == 0 { Err("the disk failed".to_owned()) } else { Ok(()) }
    }
}

#[async_trait(?Send)]
impl Disk for Rc<Slow> {
    type Error = String;

    async fn read(&self, file: u64, extents: &[Extent], into: &MemList) -> Result<(), String> {
        self.moves(file, extents, false).await?;
        let files = self.files.borrow();
        let (empty, mut at) = (Vec::new(), 0);
        let bytes = files.get(&file).unwrap_or(&empty);
        for extent in extents {
            let wanted = (extent.offset..extent.end()).map(|at| bytes.get(at as usize).copied().unwrap_or(0));
            at += into.copy_from(at, &wanted.collect::<Vec<u8>>());
        }
        Ok(())
    }

    async fn end(&self, file: u64) -> Result<u64, String> {
        Ok(self.files.borrow().get(&file).map_or(0, |bytes| bytes.len() as u64))
    }

    async fn write(&self, file: u64, extents: &[Extent], from: &MemList) -> Result<(), String> {
        self.moves(file, extents, true).await?;
        let mut files = self.files.borrow_mut();
        let (bytes, all, mut at) = (files.entry(file).or_default(), from.to_vec(), 0);
        for extent in extents {
            bytes.resize(bytes.len().max(extent.end() as usize), 0);
            bytes[extent.offset as usize..extent.end() as usize].copy_from_slice(&all[at..at + extent.len as usize]);
            at += extent.len as usize;
        }
        Ok(())
    }
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs tasks in random order until all of them have ended, or for a number of steps. Fails if none
/// can go on. `background` never ends.
fn run(random: &Random, tasks: &mut Vec<Task>, background: Task, steps: u64) {
    let flag = || Arc::new(Flag(AtomicBool::new(true)));
    let mut all: Vec<(Task, Arc<Flag>)> = tasks.drain(..).map(|task| (task, flag())).collect();
    all.push((background, flag()));
    for step in 0..=steps {
        if all.len() == 1 {
            return;
        }
        assert!(step < 1_000_000, "{} tasks do not end", all.len() - 1);
        let ready: Vec<usize> = (0..all.len()).filter(|at| all[*at].1.0.load(Ordering::Relaxed)).collect();
        assert!(!ready.is_empty(), "{} tasks wait for ever", all.len() - 1);
        let at = ready[random.below(ready.len() as u64) as usize];
        let (task, flag) = &mut all[at];
        flag.0.store(false, Ordering::Relaxed);
        let ended = task.as_mut().poll(&mut Context::from_waker(&Waker::from(flag.clone()))).is_ready();
        if ended {
            drop(all.swap_remove(at));
        }
    }
}

/// The bytes of a file: for each the values that it may have.
type Bytes = Vec<[u8; 4]>;

/// A cache, and what it should contain.
struct World {
    random: Random,
    disk: Rc<Slow>,
    frames: Frames,
    settings: Settings,
    cache: RefCell<Cache<Rc<Slow>>>,
    model: RefCell<BTreeMap<u64, Bytes>>,
    /// Writes that have memory and are not committed: file, extents, bytes.
    writing: RefCell<Vec<(u64, Vec<Extent>, u8)>>,
}

const FILES: u64 = 3;
const LENGTH: u64 = 300_000;

impl World {
    fn new(seed: u64, settings: Settings, failing: u64) -> Rc<World> {
        let random = Random::new(seed);
        let disk = Rc::new(Slow {
            files: RefCell::default(),
            random: random.clone(),
            failing: Cell::new(failing),
            moving: RefCell::default(),
        });
        let arena = ArenaSettings { bytes: 512 << 10, chunk: 128 << 10 };
        let frames = Frames::anonymous(arena).unwrap();
        let cache = RefCell::new(Cache::new(disk.clone(), frames.clone(), settings.clone()));
        let (model, writing) = (RefCell::default(), RefCell::default());
        Rc::new(World { random, disk, frames, settings, cache, model, writing })
    }

    fn cache(&self) -> Cache<Rc<Slow>> {
        self.cache.borrow().clone()
    }

    fn extents(&self) -> Vec<Extent> {
        let random = &self.random;
        let mut extents: Vec<Extent> = (0..1 + random.below(3))
            .map(|_| {
                let len = [1 + random.below(100), 1 + random.below(5000), 4096, 1 + random.below(40_000)];
                let len = len[random.below(4) as usize];
                let align = [1, 512, 4096][random.below(3) as usize];
                Extent::new(random.below(LENGTH) / align * align, len)
            })
            .collect();
        // In any order, but without overlaps.
        extents.dedup_by(|one, other| one.overlaps(other));
        if extents.len() == 3 && extents[0].overlaps(&extents[2]) {
            extents.pop();
        }
        extents
    }

    fn set(&self, file: u64, extents: &[Extent], change: impl Fn(&mut [u8; 4])) {
        let mut model = self.model.borrow_mut();
        let bytes = model.entry(file).or_default();
        for extent in extents {
            bytes.resize(bytes.len().max(extent.end() as usize), [0; 4]);
            bytes[extent.offset as usize..extent.end() as usize].iter_mut().for_each(&change);
        }
    }

    fn check(&self, what: &str, file: u64, extents: &[Extent], bytes: &[u8]) {
        let model = self.model.borrow();
        let empty = Vec::new();
        let known = model.get(&file).unwrap_or(&empty);
        let offsets = extents.iter().flat_map(|extent| extent.offset..extent.end());
        for (offset, byte) in offsets.zip(bytes) {
            let may = known.get(offset as usize).copied().unwrap_or_default();
            assert!(may.contains(byte), "{what}: byte {offset} of file {file} is {byte}, not one of {may:?}");
        }
    }

    async fn read(self: Rc<Self>) {
        let (file, extents) = (self.random.below(FILES), self.extents());
        let Ok(reading) = self.cache().read(file, &extents).await else { return };
        self.check("read", file, &extents, &reading.list().to_vec());
        self.random.pause(5).await;
        self.check("still lent", file, &extents, &reading.list().to_vec());
    }

    async fn write(self: Rc<Self>) {
        let (file, extents) = (self.random.below(FILES), self.extents());
        let byte = 1 + self.random.below(255) as u8;
        let Ok(writing) = self.cache().write(file, &extents).await else { return };
        self.writing.borrow_mut().push((file, extents.clone(), byte));
        let (len, list) = (writing.list().len(), writing.list().clone());
        list.copy_from(0, &vec![byte; len / 2]);
        self.random.pause(5).await;
        let forget = || self.writing.borrow_mut().retain(|known| known != &(file, extents.clone(), byte));
        if self.random.below(6) == 0 {
            self.set(file, &extents, |may| *may = [may[0], byte, may[1], may[2]]);
            forget();
            drop(writing);
            return;
        }
        list.copy_from(len / 2, &vec![byte; len - len / 2]);
        // Until it is acknowledged the bytes may be lost with the process.
        self.set(file, &extents, |may| *may = [byte, may[0], may[1], may[2]]);
        forget();
        let result = writing.commit().await;
        assert!(result.is_ok() || self.disk.failing.get() > 0);
        if result.is_ok() {
            self.set(file, &extents, |may| *may = [byte; 4]);
        }
    }

    /// Cuts a file off, or removes it.
    async fn truncate(self: Rc<Self>) {
        let (file, size) = (self.random.below(FILES), self.random.below(LENGTH));
        let cache = self.cache();
        let (size, hold) = match self.random.below(2) {
            0 => (0, cache.hold_all(file).await),
            _ => (size, cache.hold(file, size).await),
        };
        self.random.pause(3).await;
        if let Some(bytes) = self.disk.files.borrow_mut().get_mut(&file) {
            bytes.truncate(size as usize);
        }
        if let Some(bytes) = self.model.borrow_mut().get_mut(&file) {
            bytes.truncate(size as usize);
        }
        hold.discard(size).await;
    }

    async fn flush(self: Rc<Self>) {
        let file = self.random.below(FILES);
        if self.cache().flush(file).await.is_ok() {
            self.random.pause(2).await;
        }
    }

    async fn advise(self: Rc<Self>) {
        let unit = [None, Some(4096), Some(16384), Some(65536), Some(5000)][self.random.below(5) as usize];
        let policies =
            [Policy::Default, Policy::Lru, Policy::ScanResistant, Policy::Stream, Policy::Keep, Policy::None];
        let policy = policies[self.random.below(6) as usize];
        let pattern = [Pattern::Unknown, Pattern::Sequential, Pattern::Random][self.random.below(3) as usize];
        let hints = Hints { unit, policy, pattern, write_through: self.random.below(4) == 0 };
        assert_eq!(self.cache().advise(self.random.below(FILES), hints), unit != Some(5000));
    }

    fn tasks(self: &Rc<Self>, count: u64) -> Vec<Task> {
        let task = |_| -> Task {
            let world = self.clone();
            match self.random.below(16) {
                0..6 => Box::pin(world.read()),
                6..12 => Box::pin(world.write()),
                12 => Box::pin(world.truncate()),
                13 | 14 => Box::pin(world.flush()),
                _ => Box::pin(world.advise()),
            }
        };
        (0..count).map(task).collect()
    }

    fn background(&self) -> Task {
        let (cache, random) = (self.cache(), self.random.clone());
        Box::pin(async move {
            cache
                .run(|_| {
                    let random = random.clone();
                    async move { random.pause(200).await }
                })
                .await;
        })
    }

    /// The process is killed, and starts again.
    fn kill(&self) {
        self.disk.moving.borrow_mut().clear();
        for (file, extents, byte) in self.writing.take() {
            self.set(file, &extents, |may| *may = [may[0], byte, may[1], may[2]]);
        }
        self.cache.replace(Cache::new(self.disk.clone(), self.frames.clone(), self.settings.clone()));
    }

    /// Everything is written to the disk, and is what it should be. Nothing is left in use.
    fn end(self: &Rc<Self>) {
        self.disk.failing.set(0);
        let world = self.clone();
        let last: Task = Box::pin(async move {
            for file in 0..FILES {
                world.cache().flush(file).await.unwrap();
            }
        });
        run(&self.random, &mut vec![last], self.background(), 1_000_000);
        for file in 0..FILES {
            let bytes = self.disk.files.borrow().get(&file).cloned().unwrap_or_default();
            self.check("disk", file, &[Extent::new(0, LENGTH + 100_000)], &{
                let mut bytes = bytes;
                bytes.resize((LENGTH + 100_000) as usize, 0);
                bytes
            });
        }
        self.cache().0.with(|state| {
            state.check();
            assert!(state.units.iter().all(|(_, unit)| unit.is_clean()));
            assert!(state.files.values().all(|file| file.locks.is_empty() && !file.held));
        });
        let statistics = self.cache().statistics();
        assert!(statistics.dirty == 0 && statistics.resident <= statistics.most, "{statistics:?}");
        assert!(self.cache().dirty_files(..).is_empty());
    }
}

fn settings(dirty: u64) -> Settings {
    Settings { dirty, age: Duration::from_secs(1), ..Settings::for_bytes(512 << 10) }
}

/// A writer that must wait until other bytes are clean, while nobody may write these to the disk,
/// asked again and again and never let the holder of them go on.
#[test]
fn a_writer_waits_for_dirty_bytes_that_are_held() {
    let world = World::new(1, settings(64 << 10), 0);
    let (cache, own) = (world.cache(), Extent::new(0, 60 << 10));
    let go = Rc::new(Cell::new(false));
    let holder: Task = Box::pin({
        let (cache, go, random) = (cache.clone(), go.clone(), world.random.clone());
        async move {
            cache.write(0, &[own]).await.unwrap().commit().await.unwrap();
            let hold = cache.hold_all(0).await;
            go.set(true);
            random.pause(100).await;
            hold.discard(0).await;
        }
    });
    let writer: Task = Box::pin({
        let random = world.random.clone();
        async move {
            while !go.get() {
                random.pause(2).await;
                yield_now().await;
            }
            cache.write(1, &[own]).await.unwrap().commit().await.unwrap();
        }
    });
    run(&world.random, &mut vec![holder, writer], Box::pin(std::future::pending()), 1_000_000);
    world.end();
}

/// Replays a bug: the cache did not know where a file ends. A reader was read ahead of past the
/// end, and up to 4 MiB of zeros took the place of what others used.
#[test]
fn nothing_is_read_ahead_behind_the_end_of_a_file() {
    const UNIT: u64 = BLOCK as u64;
    const CACHE: u64 = 64 << 20;
    let world = World::new(1, settings(0), 0);
    let end = 20 * UNIT + 100;
    world.disk.files.borrow_mut().insert(0, vec![7; end as usize]);
    let frames = Frames::anonymous(ArenaSettings::new(CACHE)).unwrap();
    let cache = Cache::new(world.disk.clone(), frames, Settings::for_bytes(CACHE));
    world.cache.replace(cache.clone());
    let reader: Task = Box::pin({
        let (cache, random) = (cache.clone(), world.random.clone());
        async move {
            for at in (0..end).step_by(BLOCK) {
                drop(cache.read(0, &[Extent::new(at, UNIT)]).await.unwrap());
                random.pause(100).await;
            }
        }
    });
    run(&world.random, &mut vec![reader], world.background(), 1_000_000);
    let statistics = cache.statistics();
    let counters = statistics.counters;
    assert!(counters.ahead_used > end / 2, "{counters:?}");
    assert_eq!((counters.filled, statistics.cached), (21 * UNIT, 21 * UNIT), "{counters:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_cache_is_a_file(seed in any::<u64>(), dirty in 1u64..8, failing in prop_oneof![Just(0u64), 3u64..20], rounds in 1u64..6) {
        let world = World::new(seed, settings(dirty * (64 << 10)), failing);
        for _ in 0..rounds {
            let mut tasks = world.tasks(1 + world.random.below(40));
            run(&world.random, &mut tasks, world.background(), 1_000_000);
            world.cache().0.with(|state| state.check());
        }
        world.end();
    }

    #[test]
    fn acknowledged_writes_survive_the_process(seed in any::<u64>(), failing in prop_oneof![Just(0u64), 3u64..20], rounds in 1u64..8) {
        let world = World::new(seed, settings(256 << 10), failing);
        for _ in 0..rounds {
            let mut tasks = world.tasks(1 + world.random.below(40));
            let truncates = world.random.below(3);
            // A change of length that is cut off is the disk's affair, and not tested here.
            tasks.truncate(40 - truncates as usize);
            run(&world.random, &mut tasks, world.background(), world.random.below(400));
            world.kill();
            world.cache().0.with(|state| state.check());
        }
        world.end();
    }
}
