//! The servers: disks of which a call fails, I/O servers with caches on them, which are started
//! again, and the manager.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use bmi_cache::{ArenaSettings, Frames, Settings};
use fs_proto::{ClusterId, Identity, Start, StoreId};
use fs_server::embedded::{Free, SimStore};
use fs_server::iod::{Iod, IodSettings, LabelLock, Membership};
use fs_server::manager::{self, Manager, ManagerSettings};
use fs_server::service::{Limits, Standing, serve};
use fs_server::store::{DiskStep, Label, MemDisk, MetaStore, UnifiedStore, datafile_of};
use futures_util::FutureExt;
use futures_util::future::select;

use super::*;

type Store = UnifiedStore<Rc<SimStore>, Box<dyn Fn() -> u64>>;

const PORT: u16 = 7000;
/// The memory of a cache, and most dirty bytes of it.
const CACHE: u64 = 128 << 10;
const DIRTY: u64 = 48 << 10;

/// Bytes of a disk.
const DISK: u64 = 4 << 20;
/// A datafile that takes room on a disk until it is removed.
const BALLAST: DatafileHandle = DatafileHandle(1 << 60);

/// How a disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The step with this number fails; `lasting`: and all after it.
    Io { nth: u64, lasting: bool },
    /// The write with this number finds no room; `lasting`: and all after it.
    Space { nth: u64, lasting: bool },
    /// The disks have so many free chunks.
    Room(u64),
}

/// The steps of all disks, and which of them fail.
#[derive(Default)]
pub(super) struct Steps {
    pub(super) active: bool,
    pub(super) count: u64,
    /// The servers whose disks have failed, or that were killed.
    pub(super) failed: BTreeSet<u32>,
}

pub(super) struct Disks {
    pub(super) fault: Fault,
    pub(super) steps: Arc<Mutex<Steps>>,
}

impl Disks {
    pub(super) fn steps(&self) -> MutexGuard<'_, Steps> {
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
pub(super) struct Machine {
    pub(super) index: u32,
    pub(super) node: Node,
    disk: MemDisk,
    frames: Frames,
    manager: Addr,
    pub(super) unified: RefCell<Option<Rc<Store>>>,
}

impl Machine {
    pub(super) fn start(world: &World, index: u32, manager: Addr, disks: &Rc<Disks>) -> Rc<Machine> {
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

    pub(super) async fn remove_ballast(&self) {
        let unified = self.unified.borrow().clone().unwrap();
        unified.behind().remove(&[BALLAST]).await.unwrap();
    }

    /// Returns bytes of a datafile that would survive a power failure now.
    pub(super) fn durable(&self, datafile: DatafileHandle, len: u64) -> Vec<u8> {
        let copy = MemDisk::new(DISK);
        copy.exchange(self.disk.copy());
        let disk = SimStore::open(&copy.crash(), Rc::new(Free)).unwrap();
        let memory = Memory::from(vec![0xee; len as usize]);
        disk.read(datafile, &[Region::new(0, len)], &(&memory).into()).now_or_never().unwrap().unwrap();
        memory.to_vec()
    }
}

pub(super) fn start_manager(world: &World) -> Addr {
    let node = world.node("manager");
    let metadata = MemDisk::default();
    let store = MetaStore::on(metadata.database()).unwrap();
    manager::format(&store, ClusterId(1), StoreId(1), &fs_proto::Caller::ROOT, 0).unwrap();
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
