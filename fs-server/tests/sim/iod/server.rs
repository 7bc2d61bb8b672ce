//! A single I/O server on a disk that takes time. Its store counts the bytes that it moves, and
//! lends memory where a test tells it to.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bmi::Time;
use bmi::memory::PublishedPages;
use bmi::memory::zone::ZonePool;
use bmi::stats::ResourceUsage;
use bmi_sim::SimConfig;
use fs_proto::{
    Allocation, ClusterId, DatafileHandle, FsError, Identity, IodStat, Role, Sought, Start, StoreId, ViewRange,
    ViewRefusal,
};
use fs_server::embedded::{Medium, SimStore, datafiles};
use fs_server::iod::{Iod, IodSettings};
use fs_server::service::{Limits, Standing, serve};
use fs_server::store::{DataStore, DiskTurn, Held, Label, Lends, Lent, Loan, MemDisk, SharedRange};

use super::*;

/// The time at which all clients begin. Before that they are connected, which keeps a server's
/// processor busy for some 20 µs each.
pub(super) const BEGIN: Time = Time::from_nanos(10_000_000);

/// Returns the datafile of a busy client.
pub(super) fn file(index: u64) -> DatafileHandle {
    DatafileHandle(1000 + index)
}

/// Bytes that are lent instead of read, the owner that each loan has, and the store's answer when
/// they were sent.
pub(super) type Lending = (Memory, Rc<()>, Result<(), FsError>);

/// The owner of a loan.
struct Owner {
    _counted: Rc<()>,
    answer: Result<(), FsError>,
}

impl Lent for Owner {
    fn check(&self) -> Result<(), FsError> {
        self.answer.clone()
    }
}

/// A store that counts the bytes of each datafile as they are moved.
#[derive(Clone)]
pub(super) struct Counting {
    store: Rc<SimStore>,
    moved: Rc<RefCell<BTreeMap<DatafileHandle, u64>>>,
    /// Reads and writes.
    pub(super) accesses: Rc<Cell<u64>>,
    pub(super) lends: Rc<RefCell<Option<Lending>>>,
    /// Which loans it gives.
    pub(super) kind: Rc<Cell<Lends>>,
    /// The segment of every view, if it lends views.
    pages: Rc<RefCell<Option<Arc<PublishedPages>>>>,
}

impl Counting {
    fn count(&self, datafile: DatafileHandle, list: &MemList) {
        *self.moved.borrow_mut().entry(datafile).or_default() += list.len() as u64;
        self.accesses.set(self.accesses.get() + 1);
    }

    pub(super) fn moved(&self, datafile: DatafileHandle) -> u64 {
        self.moved.borrow().get(&datafile).copied().unwrap_or(0)
    }
}

#[async_trait(?Send)]
impl DataStore for Counting {
    fn label(&self) -> Option<Label> {
        self.store.label()
    }

    async fn relabel(&self, label: &Label) -> Result<(), FsError> {
        self.store.relabel(label).await
    }

    async fn create(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.store.create(first, count).await
    }

    async fn discard(&self, first: DatafileHandle, count: u32) -> Result<(), FsError> {
        self.store.discard(first, count).await
    }

    async fn list(&self, after: Option<DatafileHandle>, max: usize) -> Result<(Vec<DatafileHandle>, bool), FsError> {
        self.store.list(after, max).await
    }

    async fn write(&self, datafile: DatafileHandle, regions: &[Region], from: &MemList) -> Result<(), FsError> {
        self.store.write(datafile, regions, from).await?;
        self.count(datafile, from);
        Ok(())
    }

    async fn read(&self, datafile: DatafileHandle, regions: &[Region], into: &MemList) -> Result<(), FsError> {
        self.store.read(datafile, regions, into).await?;
        self.count(datafile, into);
        Ok(())
    }

    fn refusal(&self, datafile: DatafileHandle) -> Option<FsError> {
        self.store.refusal(datafile)
    }

    fn lends(&self) -> Lends {
        self.kind.get()
    }

    async fn lend(
        &self,
        _datafile: DatafileHandle,
        regions: &[Region],
        _turn: &dyn DiskTurn,
    ) -> Result<Option<Loan>, FsError> {
        let lends = self.lends.borrow();
        let Some((memory, owner, answer)) = lends.as_ref() else { return Ok(None) };
        let owner = Owner { _counted: owner.clone(), answer: answer.clone() };
        let piece = |region: &Region| memory.slice(region.offset as usize, region.len as usize);
        Ok(Some(Loan { list: regions.iter().map(piece).collect(), owner: Box::new(owner) }))
    }

    async fn share(
        &self,
        _datafile: DatafileHandle,
        _range: ViewRange,
        _now: Time,
        _turn: &dyn DiskTurn,
    ) -> Result<Result<SharedRange, ViewRefusal>, FsError> {
        let pages = self.pages.borrow().clone().ok_or(ViewRefusal::NoCache);
        Ok(pages.map(|pages| SharedRange { pages, size: 0, lease: Duration::from_secs(1) }))
    }

    async fn truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.store.truncate(datafile, size).await
    }

    async fn allocate(&self, datafile: DatafileHandle, range: Region, how: Allocation) -> Result<(), FsError> {
        self.store.allocate(datafile, range, how).await
    }

    async fn seek(&self, datafile: DatafileHandle, offset: u64, what: Sought) -> Result<Option<u64>, FsError> {
        self.store.seek(datafile, offset, what).await
    }

    async fn remove(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        self.store.remove(datafiles).await
    }

    async fn prepare_truncate(&self, datafile: DatafileHandle, size: u64) -> Result<(), FsError> {
        self.store.prepare_truncate(datafile, size).await
    }

    async fn commit_truncate(&self, datafile: DatafileHandle, cut: u64, size: u64) -> Result<(), FsError> {
        self.store.commit_truncate(datafile, cut, size).await
    }

    async fn cancel_truncates(&self, except: &[DatafileHandle]) -> Result<(), FsError> {
        self.store.cancel_truncates(except).await
    }

    async fn sync(&self, datafiles: &[DatafileHandle]) -> Result<(), FsError> {
        self.store.sync(datafiles).await
    }

    async fn held(&self, datafile: DatafileHandle) -> Result<Held, FsError> {
        self.store.held(datafile).await
    }

    async fn stat(&self) -> Result<IodStat, FsError> {
        self.store.stat().await
    }
}

/// A single I/O server, on a disk that takes time.
pub(super) struct Server {
    pub(super) world: World,
    pub(super) addr: Addr,
    pub(super) store: Counting,
    pub(super) zones: ZonePool<(u32, PeerId)>,
    pub(super) endpoint: Endpoint,
    /// The resources of the endpoint when it has no clients.
    pub(super) idle: ResourceUsage,
}

impl Server {
    pub(super) fn start(config: SimConfig, settings: IodSettings) -> Server {
        Server::start_on(config, settings, |node| node.disk())
    }

    /// Starts a server with another disk.
    pub(super) fn start_on<M: Medium + 'static>(
        config: SimConfig,
        settings: IodSettings,
        medium: impl FnOnce(&Node) -> M,
    ) -> Server {
        let world = World::with(config);
        let node = world.node("iod");
        let endpoint = node.endpoint(Config::named("iod")).unwrap();
        let addr = endpoint.listen(&node.addr(1)).unwrap();
        let disk = MemDisk::default().write_through();
        disk.exchange(datafiles(DatafileHandle(0), 2000));
        let store = Counting {
            store: Rc::new(SimStore::open(&disk, Rc::new(medium(&node))).unwrap()),
            moved: Rc::default(),
            accesses: Rc::default(),
            lends: Rc::default(),
            kind: Rc::default(),
            pages: Rc::default(),
        };
        let iod = Iod::new(endpoint.clone(), Rc::new(store.clone()), settings).unwrap();
        let (zones, server, idle) = (iod.zones().clone(), endpoint.clone(), endpoint.resource_usage());
        let identity = Identity {
            cluster: ClusterId(1),
            role: Role::Iod(0),
            store: StoreId(1),
            start: Start { epoch: 1, instance: 1 },
            host: node.name(),
            addrs: vec![addr.clone()],
        };
        let identity = Standing::serving(identity);
        node.spawn(async move { serve(&endpoint, &iod, &identity, Limits::default(), std::future::pending()).await });
        Server { world, addr, store, zones, endpoint: server, idle }
    }

    /// Lets it lend views, each in the same segment.
    pub(super) fn lend_views(&self) {
        *self.store.pages.borrow_mut() = Some(Arc::new(PublishedPages::new(4096).unwrap()));
    }
}
