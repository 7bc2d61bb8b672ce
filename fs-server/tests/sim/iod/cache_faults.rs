//! Servers with caches, whose disks fail: a script of operations runs again and again, and each
//! time another call of the disks fails.
//!
//! **Procedure.** A file is striped over two I/O servers with small caches, so that bytes are
//! evicted, read ahead and written behind. A client writes, reads, truncates and syncs it. Each
//! call of the disks has a number. The one with the number *n* fails, or all from there on until
//! the script has ended, for every *n*. Disks are also full, with every number of free chunks. At
//! the end the disks are sound, and every other run kills the servers.
//!
//! **Checks.**
//! 1. An error names the server whose disk has failed, and the ranges of a read or a write. All
//!    other bytes were read or written.
//! 2. A read finds, for each byte, the last acknowledged value, or that of a write or a truncation
//!    that failed after it.
//! 3. After a sync that succeeds, the disks have these values, whatever failed before. The disks
//!    are looked at, not the servers.
//! 4. Once the disks are sound, a sync succeeds, and nothing is dirty. A change of length that
//!    failed is tried again after a pause, until which a sync fails.
//!
//! The sync of a datafile itself is none of the steps that fail: after that, nothing of the
//! datafile can be used (`store/tests/failures.rs` has that).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use bmi_cache::{ArenaSettings, Frames, Settings};
use bmi_sim::SimConfig;
use fs_client::{ClientOptions, CreateOptions, Error, File, FsPath};
use fs_proto::{ClusterId, Distribution, Identity, Start, StoreId};
use fs_server::embedded::{Free, SimStore, datafiles};
use fs_server::iod::{Iod, IodSettings, LabelLock, Membership};
use fs_server::manager::{self, Manager, ManagerSettings};
use fs_server::service::{Limits, Standing, serve};
use fs_server::store::{DiskStep, Label, MemDisk, MetaStore, UnifiedStore, datafile_of};
use futures_util::FutureExt;
use futures_util::future::select;

use super::*;

type Store = UnifiedStore<Rc<SimStore>, Box<dyn Fn() -> u64>>;

const PORT: u16 = 7000;
const SERVERS: u32 = 2;
const STRIP: u64 = 16 << 10;
/// Longest file. Each server has half of it, which is more than its cache.
const LONGEST: u64 = 320 << 10;
/// The memory of a cache, and most dirty bytes of it.
const CACHE: u64 = 128 << 10;
const DIRTY: u64 = 48 << 10;
const AGE: Duration = Duration::from_millis(4);
/// Pause before a server that has ended is started again.
const START_AGAIN: Duration = Duration::from_millis(10);
/// Bytes of the disks, and of a chunk of them.
const DISK: u64 = 4 << 20;
const CHUNK: u64 = 64 << 10;
/// A datafile that takes room on a disk until it is removed.
const BALLAST: DatafileHandle = DatafileHandle(1 << 60);

/// How a disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The step with this number fails; `lasting`: and all after it.
    Io { nth: u64, lasting: bool },
    /// The write with this number finds no room; `lasting`: and all after it.
    Space { nth: u64, lasting: bool },
    /// The disks have so many free chunks.
    Room(u64),
}

/// The steps of all disks, and which of them fail.
#[derive(Default)]
struct Steps {
    active: bool,
    count: u64,
    /// The servers whose disks have failed, or that were killed.
    failed: BTreeSet<u32>,
}

struct Disks {
    fault: Fault,
    steps: Arc<Mutex<Steps>>,
}

impl Disks {
    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap()
    }

    /// Returns the disk of a server.
    fn disk(&self, server: u32) -> MemDisk {
        let (disk, fault, steps) = (MemDisk::new(DISK), self.fault, self.steps.clone());
        disk.refuse_if(move |step, name| {
            let (nth, lasting, error) = match fault {
                Fault::Io { nth, lasting } => (nth, lasting, io::ErrorKind::Other),
                Fault::Space { nth, lasting } => (nth, lasting, io::ErrorKind::StorageFull),
                Fault::Room(_) => return None,
            };
            let of_datafile = datafile_of(name).is_some();
            let counts = match error {
                io::ErrorKind::StorageFull => step == DiskStep::Write && of_datafile,
                // After a failed sync of a datafile nothing of it can be used any more.
                _ => step != DiskStep::Look && !(step == DiskStep::Sync && of_datafile),
            };
            let steps = &mut *steps.lock().unwrap();
            if !steps.active || !counts {
                return None;
            }
            let number = steps.count;
            steps.count += 1;
            let fails = number == nth || lasting && number > nth;
            if fails {
                steps.failed.insert(server);
            }
            fails.then_some(error)
        });
        disk
    }
}

fn identity(node: &Node, label: &Label, start: Start) -> Identity {
    let Label { cluster, role, store, .. } = *label;
    Identity { cluster, role, store, start, host: node.name(), addrs: vec![node.addr(PORT)] }
}

/// An I/O server with a cache, and what outlives its program.
struct Machine {
    index: u32,
    node: Node,
    disk: MemDisk,
    frames: Frames,
    manager: Addr,
    unified: RefCell<Option<Rc<Store>>>,
}

impl Machine {
    fn start(world: &World, index: u32, manager: Addr, disks: &Rc<Disks>) -> Rc<Machine> {
        let node = world.node(&format!("iod{index}"));
        let disk = disks.disk(index);
        if let Fault::Room(chunks) = disks.fault {
            let ballast = DISK - chunks * CHUNK;
            disk.exchange(datafiles(BALLAST, 1));
            let store = SimStore::open(&disk, Rc::new(Free)).unwrap();
            let bytes = Memory::zeroed(ballast as usize).unwrap();
            let filling = async { store.write(BALLAST, &[Region::new(0, ballast)], &(&bytes).into()).await };
            world.block_on(filling).unwrap();
        }
        let frames = Frames::anonymous(ArenaSettings { bytes: CACHE, chunk: 64 << 10 }).unwrap();
        let unified = RefCell::default();
        let machine = Rc::new(Machine { index, node: node.clone(), disk, frames, manager, unified });
        let program = machine.clone();
        node.boot(move |_| program.clone().run());
        machine
    }

    /// Serves. If the store fails, the program ends and is started again.
    async fn run(self: Rc<Machine>) {
        let node = &self.node;
        let endpoint = node.endpoint(Config::named("iod")).unwrap();
        let instance = u128::from(node.now().as_nanos()) + 1;
        let manager = self.manager.clone();
        let mut membership = Membership::new(endpoint.clone(), manager, self.index, instance, false, AGE * 8);
        let labels = Arc::new(LabelLock::default());
        let (store, start) = loop {
            match self.begin(&mut membership, &labels, instance).await {
                Ok(begun) => break begun,
                Err(error) => assert!(matches!(error.code, ErrorCode::Io | ErrorCode::NoSpace), "{error}"),
            }
            node.sleep(START_AGAIN).await;
        };
        let cache = Settings { unit: 4096, dirty: DIRTY, age: AGE, ..Settings::for_bytes(CACHE) };
        let clock: Box<dyn Fn() -> u64> = Box::new({
            let node = node.clone();
            move || node.wall_ns()
        });
        let unified = Rc::new(UnifiedStore::new(store.clone(), self.frames.clone(), cache, clock));
        unified.reconcile().await.unwrap();
        self.unified.replace(Some(unified.clone()));
        let settings = IodSettings { unit: 16 << 10, buffers: 8, depth: 2 };
        let iod = Iod::new(endpoint.clone(), unified.clone(), settings).unwrap();
        let iod = iod.started_as(instance as u64).with_labels(labels.clone());
        let standing = Standing::serving(identity(node, &store.label().unwrap(), start));
        endpoint.listen(&node.addr(PORT)).unwrap();
        let stop = async {
            select(std::pin::pin!(membership.keep(&*store, &labels, start)), unified.failure()).await;
        };
        serve(&endpoint, &iod, &standing, Limits::default(), stop).await;
        let (init, node) = (node.sim().node("init"), node.clone());
        init.clone().spawn(async move {
            init.sleep(START_AGAIN).await;
            node.kill();
            node.restart();
        });
    }

    async fn begin(
        &self,
        membership: &mut Membership,
        labels: &LabelLock,
        instance: u128,
    ) -> Result<(Rc<SimStore>, Start), FsError> {
        let store = Rc::new(SimStore::open(&self.disk, Rc::new(self.node.disk()))?);
        if store.label().is_none() {
            let label = membership.ask_for_label(StoreId(instance << 8 | u128::from(self.index) | 1 << 7)).await?;
            store.relabel(&label).await?;
        }
        let start = membership.begin(&*store, labels).await?;
        Ok((store, start))
    }

    async fn remove_ballast(&self) {
        let unified = self.unified.borrow().clone().unwrap();
        unified.behind().remove(&[BALLAST]).await.unwrap();
    }

    /// Returns bytes of a datafile that would survive a power failure now.
    fn durable(&self, datafile: DatafileHandle, len: u64) -> Vec<u8> {
        let copy = MemDisk::new(DISK);
        copy.exchange(self.disk.copy());
        let disk = SimStore::open(&copy.crash(), Rc::new(Free)).unwrap();
        let memory = Memory::from(vec![0xee; len as usize]);
        disk.read(datafile, &[Region::new(0, len)], &(&memory).into()).now_or_never().unwrap().unwrap();
        memory.to_vec()
    }
}

fn start_manager(world: &World) -> Addr {
    let node = world.node("manager");
    let metadata = MemDisk::default();
    let store = MetaStore::on(metadata.database()).unwrap();
    manager::format(&store, ClusterId(1), StoreId(1), 0).unwrap();
    drop(store);
    let endpoint = node.endpoint(Config::named("manager")).unwrap();
    endpoint.listen(&node.addr(PORT)).unwrap();
    let iods = (0..SERVERS).map(|index| world.node(&format!("iod{index}")).addr(PORT)).collect();
    let settings = ManagerSettings { strip_size: STRIP, heartbeat: AGE * 8, pool: 4, ..ManagerSettings::new(iods) };
    let (store, clock) = (MetaStore::on(metadata.database()).unwrap(), node.clone());
    let manager = Manager::new(endpoint.clone(), store, settings, 1, move || clock.wall_ns()).unwrap();
    let own = manager.identity();
    let standing = Standing::serving(identity(&node, &Label::new(own.cluster, Role::Manager, own.store), own.start));
    let addr = node.addr(PORT);
    node.spawn(async move {
        serve(&endpoint, &manager, &standing, Limits::default(), std::future::pending()).await;
    });
    addr
}

/// An operation of the script.
#[derive(Clone, Debug)]
enum Op {
    Write(Vec<Range<u64>>),
    Read(Range<u64>),
    Sync,
    Cut(u64),
    Pause(Duration),
}

/// Returns the script.
fn script() -> Vec<Op> {
    let pieces = |len: u64, step: u64| (0..len / step).map(move |at| at * step..(at + 1) * step);
    // Many short pieces of the same units, and few of distant ones.
    let near: Vec<Range<u64>> = (0..14).map(|at| 20_000 + at * 900..20_300 + at * 900).collect();
    let far: Vec<Range<u64>> = (0..8).map(|at| 1_000 + at * 37_000..3_500 + at * 37_000).collect();
    let mut script: Vec<Op> = pieces(LONGEST, 64 << 10).map(|range| Op::Write(vec![range])).collect();
    script.extend([Op::Sync, Op::Write(far.clone())]);
    script.extend(pieces(LONGEST, 40 << 10).map(Op::Read));
    script.extend([Op::Write(near.clone()), Op::Pause(3 * AGE), Op::Read(10_000..60_000), Op::Write(near)]);
    script.extend([Op::Sync, Op::Write(far), Op::Cut(150_001), Op::Read(100_000..200_000)]);
    script.extend([Op::Write(vec![200_000..260_000, 5..5_000]), Op::Read(0..LONGEST), Op::Sync]);
    script.extend([Op::Write(std::iter::once(70_000..130_000).collect()), Op::Pause(3 * AGE), Op::Read(0..LONGEST)]);
    script
}

/// The values that each byte of the file may have: a bit for each.
struct Model(Vec<u32>);

impl Model {
    fn new() -> Model {
        Model(vec![1; LONGEST as usize])
    }

    /// The bytes of a range were written; `sure`: and it is known that they were.
    fn set(&mut self, range: Range<u64>, value: u8, sure: bool) {
        for may in &mut self.0[range.start as usize..range.end as usize] {
            *may = 1 << value | if sure { 0 } else { *may };
        }
    }

    fn check(&self, what: &str, range: Range<u64>, bytes: &[u8]) {
        for (at, byte) in range.zip(bytes) {
            let may = self.0[at as usize];
            assert!(
                may.checked_shr((*byte).into()).is_some_and(|may| may & 1 == 1),
                "{what}: byte {at} is {byte}, not one of {may:#b}"
            );
        }
    }
}

/// Returns what is left of ranges without others.
fn without(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = ranges.to_vec();
    for other in others {
        let parts = |own: Range<u64>| [own.start..own.end.min(other.start), own.start.max(other.end)..own.end];
        left = left.into_iter().flat_map(parts).filter(|range| !range.is_empty()).collect();
    }
    left
}

/// A run of the script.
struct Run {
    disks: Rc<Disks>,
    machines: Vec<Rc<Machine>>,
    file: File,
    datafiles: Vec<(u32, DatafileHandle)>,
    model: Model,
    writes: u8,
    errors: u64,
}

impl Run {
    /// Checks an error of an operation, and returns the ranges that it names. `ranges` are those of
    /// the operation; there are none if it has none.
    fn judge(&mut self, error: &Error, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        self.errors += 1;
        let mut named = Vec::new();
        for failure in error.failures() {
            let server = failure.server.as_ref().unwrap_or_else(|| panic!("{error} names no server"));
            let of_disk = matches!(failure.code, ErrorCode::Io | ErrorCode::NoSpace);
            let waits = matches!(failure.code, ErrorCode::Unreachable | ErrorCode::Timeout | ErrorCode::Busy);
            assert!(of_disk || waits || failure.code == ErrorCode::Unfinished, "{error}");
            if let Some(index) = server.iod
                && !matches!(self.disks.fault, Fault::Room(_))
            {
                assert!(self.disks.steps().failed.contains(&index), "{error}: the disk of iod {index} works");
            }
            if !ranges.is_empty() {
                assert!(!failure.ranges.is_empty(), "{error} names no ranges");
                // If there are many, the last one covers all that follow.
                let all = ranges.iter().map(|range| range.start).min().unwrap()
                    ..ranges.iter().map(|range| range.end).max().unwrap();
                assert_eq!(without(&failure.ranges, &[all]), [], "{error}: not of this operation, {ranges:?}");
            }
            named.extend(failure.ranges.iter().cloned());
        }
        named
    }

    async fn step(&mut self, op: &Op) {
        match op {
            Op::Write(ranges) => self.write(ranges).await,
            Op::Read(range) => self.read(range.clone()).await,
            Op::Sync => drop(self.sync().await),
            Op::Cut(size) => self.cut(*size).await,
            Op::Pause(time) => self.machines[0].node.sleep(*time).await,
        }
    }

    async fn write(&mut self, ranges: &[Range<u64>]) {
        self.writes += 1;
        let regions: Vec<Region> =
            ranges.iter().map(|range| Region::new(range.start, range.end - range.start)).collect();
        let len: u64 = regions.iter().map(|region| region.len).sum();
        let result = self.file.write_list(&regions, &Memory::from(vec![self.writes; len as usize])).await;
        let failed = result.err().map_or_else(Vec::new, |error| self.judge(&error, ranges));
        let written = without(ranges, &failed);
        for range in without(ranges, &written) {
            self.model.set(range, self.writes, false);
        }
        for range in written {
            self.model.set(range, self.writes, true);
        }
    }

    async fn read(&mut self, range: Range<u64>) {
        let memory = Memory::from(vec![0xee; (range.end - range.start) as usize]);
        let result = self.file.read_at(range.start, &memory).await;
        let failed = result.err().map_or_else(Vec::new, |error| self.judge(&error, std::slice::from_ref(&range)));
        let bytes = memory.to_vec();
        for part in without(std::slice::from_ref(&range), &failed) {
            let own = &bytes[(part.start - range.start) as usize..(part.end - range.start) as usize];
            self.model.check("read", part.clone(), own);
        }
    }

    /// Syncs. If that succeeds, looks at the disks.
    async fn sync(&mut self) -> Result<(), Error> {
        if let Err(error) = self.file.sync().await {
            self.judge(&error, &[]);
            return Err(error);
        }
        let distribution = Distribution::simple_stripe(STRIP, SERVERS).unwrap();
        let disk =
            |(server, datafile): &(u32, DatafileHandle)| self.machines[*server as usize].durable(*datafile, LONGEST);
        let disks: Vec<Vec<u8>> = self.datafiles.iter().map(disk).collect();
        let byte = |at| {
            let place = distribution.locate(at);
            disks[place.server][place.physical as usize]
        };
        self.model.check("disk", 0..LONGEST, &(0..LONGEST).map(byte).collect::<Vec<u8>>());
        Ok(())
    }

    async fn cut(&mut self, size: u64) {
        let result = self.file.set_len(size).await;
        let sure = result.is_ok();
        result.err().into_iter().for_each(|error| drop(self.judge(&error, &[])));
        self.model.set(size..LONGEST, 0, sure);
    }

    /// The disks are sound again. Everything must get there.
    async fn end(&mut self, kill: bool) {
        self.disks.steps().active = false;
        for machine in &self.machines {
            if matches!(self.disks.fault, Fault::Room(_)) {
                machine.remove_ballast().await;
            }
            if kill {
                // A sync tells of the new start.
                self.disks.steps().failed.insert(machine.index);
                machine.node.kill();
                machine.node.restart();
            }
        }
        let mut tries = 0;
        while let Err(error) = self.sync().await {
            tries += 1;
            let patience = if error.code() == ErrorCode::Unfinished { 4000 } else { 10 };
            assert!(tries < patience, "the disks are sound, and a sync fails: {error}");
            self.machines[0].node.sleep(START_AGAIN).await;
        }
        for machine in &self.machines {
            assert_eq!(machine.unified.borrow().as_ref().unwrap().statistics().dirty, 0);
        }
        let errors = self.errors;
        self.read(0..LONGEST).await;
        assert_eq!(self.errors, errors, "the disks are sound, and a read fails");
    }
}

/// Runs the script. Returns the number of calls of the disks, and of errors, in it.
fn run(fault: Fault, kill: bool) -> (u64, u64) {
    let world = World::with(SimConfig::seeded(11));
    let disks = Rc::new(Disks { fault, steps: Arc::default() });
    let manager = start_manager(&world);
    let machines: Vec<_> = (0..SERVERS).map(|index| Machine::start(&world, index, manager.clone(), &disks)).collect();
    let endpoint = world.node("client").endpoint(Config::named("client")).unwrap();
    world.block_on(async {
        let (timeout, retry_for) = (Duration::from_millis(500), Duration::from_millis(100));
        let options = ClientOptions { timeout, retry_for, ..ClientOptions::new(1) };
        let client = fs_client::Client::connect(endpoint, manager, options).await.unwrap();
        let path = FsPath::root().join("file").unwrap();
        let file = loop {
            match client.create(&path, CreateOptions::default()).await {
                Ok(file) => break file,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            client.endpoint().sleep(START_AGAIN).await;
        };
        let datafiles = file.datafiles().await.unwrap();
        let datafiles: Vec<_> = datafiles.iter().map(|one| (one.server.iod.unwrap(), one.handle)).collect();
        assert_eq!(datafiles.len(), SERVERS as usize);
        let mut run =
            Run { disks: disks.clone(), machines, file, datafiles, model: Model::new(), writes: 0, errors: 0 };
        disks.steps().active = true;
        for op in script() {
            run.step(&op).await;
        }
        let errors = run.errors;
        run.end(kill).await;
        (disks.steps().count, errors)
    })
}

/// Fails each call of the disks in turn, until there are no more. Returns the number of runs, and
/// of those in which the client saw an error.
fn fail_each(fault: impl Fn(u64) -> Fault) -> (u64, u64) {
    let mut seen = 0;
    for nth in 0.. {
        let (calls, errors) = run(fault(nth), nth % 2 == 1);
        if calls <= nth {
            assert_eq!(errors, 0, "no call has failed");
            return (nth, seen);
        }
        seen += u64::from(errors > 0);
    }
    unreachable!("it goes on until it ends")
}

#[test]
fn every_call_of_the_disks_fails_once() {
    let (runs, seen) = fail_each(|nth| Fault::Io { nth, lasting: false });
    assert!(runs > 50 && seen > runs / 4, "{seen} errors in {runs} runs");
}

#[test]
fn every_call_of_the_disks_is_the_first_that_fails() {
    let (runs, seen) = fail_each(|nth| Fault::Io { nth, lasting: true });
    assert!(runs > 50 && seen > runs / 2, "{seen} errors in {runs} runs");
}

#[test]
fn every_write_to_the_disks_finds_no_room() {
    for lasting in [false, true] {
        let (runs, seen) = fail_each(|nth| Fault::Space { nth, lasting });
        assert!(runs > 20 && seen > 0, "{seen} errors in {runs} runs");
    }
}

#[test]
fn disks_are_full_after_every_number_of_chunks() {
    let (_, sound) = run(Fault::Room(LONGEST / CHUNK + 1), false);
    assert_eq!(sound, 0);
    for chunks in 0..3 {
        for kill in [false, true] {
            let (_, errors) = run(Fault::Room(chunks), kill);
            assert!(errors > 0, "{chunks} chunks have room for {LONGEST} bytes");
        }
    }
}
