//! The requests to an I/O server, over files and over a cache of its own.

use bmi::paths::Path;
use bmi_cache::{ArenaSettings, Frames, Settings};
use bmi_sim::SimConfig;
use fs_proto::limits::{MAX_ALLOCATION, MAX_DATAFILES, MAX_REGIONS};
use fs_proto::{
    Allocation, CacheHints, ClusterId, Datatype, Distribution, FileView, Identity, Joined, Sought, Start, StoreId,
    VIEW_WINDOW, ViewPart,
};
use fs_server::embedded::SimStore;
use fs_server::iod::{Iod, IodSettings};
use fs_server::service::{Limits, Standing, serve};
use fs_server::store::{FileStore, Label, MemDisk, UnifiedStore, ViewSettings};
use futures_util::future::join_all;
use tempfile::TempDir;

use super::*;

/// Datafiles of the server, from 1 on.
const FILES: u64 = 16 * MAX_DATAFILES as u64;
/// Bytes of the cache.
const CACHE: u64 = 256 << 20;
/// Bytes of the smallest unit of the cache.
const UNIT: u64 = 4096;
/// Units of a datafile of which much is in the cache.
const UNITS: u64 = 2 * MAX_REGIONS as u64;
/// Steps for the regions of a list. A search or a sort takes 14 for each of them.
const LIST: u64 = 32 * MAX_REGIONS as u64;
/// Steps for the datafiles of a list.
const DATAFILES: u64 = 16 * MAX_DATAFILES as u64;
/// Steps for what depends on nothing.
const FEW: u64 = 64;
/// The start of the manager that the store knows.
const MANAGER: Start = Start { epoch: 1, instance: 1 };

/// A server, and connections to it.
struct Server {
    world: World,
    node: Node,
    addr: Addr,
    client: Client,
    /// The connection of the client, and one of the manager.
    peer: PeerId,
    manager: PeerId,
}

fn file(number: u64) -> DatafileHandle {
    DatafileHandle(number)
}

/// As many regions as a list may have.
fn strided(first: u64, distance: u64, len: u64) -> Regions {
    let regions = (0..MAX_REGIONS as u64).map(|index| Region::new(first + index * distance, len));
    Regions::try_from(regions.collect::<Vec<_>>()).unwrap()
}

impl Server {
    fn start<S: DataStore + 'static>(store: impl FnOnce(&Node) -> S) -> Server {
        let mut config = SimConfig::seeded(1);
        let mut capabilities = config.capabilities();
        capabilities.shares_pages = true;
        config.capabilities_override = Some(capabilities);
        let world = World::with(config);
        let node = world.node("iod");
        let endpoint = node.endpoint(Config::named("iod")).unwrap();
        let addr = endpoint.listen(&node.addr(1)).unwrap();
        let (store, role, start) = (store(&node), Role::Iod(0), Start { epoch: 1, instance: 2 });
        let identity = Identity {
            cluster: ClusterId(1),
            role,
            store: StoreId(1),
            start,
            host: node.name(),
            addrs: vec![addr.clone()],
        };
        let label = Label { manager: Some(MANAGER), ..Label::new(identity.cluster, role, identity.store) };
        world.block_on(store.relabel(&label)).unwrap();
        let iod = Iod::new(endpoint.clone(), Rc::new(store), IodSettings::default()).unwrap();
        let standing = Standing::serving(identity);
        node.spawn(async move { serve(&endpoint, &iod, &standing, Limits::default(), std::future::pending()).await });
        let client = Client::new(&world.node("client"), 1);
        let (peer, manager) = world.block_on(async {
            let manager = client.connect_silently(&addr).await;
            let hello = Hello { sender: Sender::Server(Role::Manager, MANAGER), ..Hello::to(role) };
            client.ask(manager, RequestBody::Hello(hello)).await.unwrap();
            (client.connect(&addr).await, manager)
        });
        let server = Server { world, node, addr, client, peer, manager };
        for first in (1..=FILES).step_by(MAX_DATAFILES) {
            server.for_each(first..=first, |first| IodRequest::Create { first, count: MAX_DATAFILES as u32 });
        }
        server
    }

    /// Returns what a request of a client costs.
    fn cost(&self, request: IodRequest) -> Cost {
        cost_on(&self.world, &self.node, async || drop(self.client.iod(self.peer, request).await.unwrap()))
    }

    /// Returns what a request of the manager costs.
    fn by_manager(&self, request: IodRequest) -> Cost {
        cost_on(&self.world, &self.node, async || drop(self.client.iod(self.manager, request).await.unwrap()))
    }

    /// Lets the manager send a request for each of some datafiles.
    fn for_each(&self, files: impl Iterator<Item = u64>, request: impl Fn(DatafileHandle) -> IodRequest) {
        let all = files.map(|number| self.client.iod(self.manager, request(file(number))));
        self.world.block_on(join_all(all)).into_iter().for_each(|done| drop(done.unwrap()));
    }

    /// Returns what the worst list of regions costs that is written to a datafile, or read.
    fn list(&self, datafile: DatafileHandle, is_write: bool) -> Cost {
        let (inside, ahead) = (Path::ServerBased, Path::FastRdma);
        // In few units of a cache, in one each, all the same, and in many parts of a transfer.
        let lists =
            [(4, 1, inside), (4, 1, ahead), (UNIT, 1, inside), (UNIT, 1, ahead), (0, 1, inside), (512, 256, inside)];
        let costs = lists.into_iter().map(|(distance, len, path)| {
            let regions = strided(0, distance, len);
            self.client.forced.set(Some(path));
            let cost = cost_on(&self.world, &self.node, async || {
                if is_write {
                    let bytes = MemList::from(vec![1; regions.total() as usize]);
                    self.client.write(self.peer, datafile, &regions, &bytes).await.unwrap();
                } else {
                    self.client.read(self.peer, datafile, &regions).await.unwrap();
                }
            });
            self.client.forced.set(None);
            cost
        });
        costs.max().unwrap()
    }

    /// Returns what the worst part of a view costs that is written to a datafile, or read: of bytes
    /// near each other and in a unit each, alone and joined, and of bytes that are all in the other
    /// datafile.
    fn view(&self, datafile: DatafileHandle, is_write: bool) -> Cost {
        let (inside, ahead) = (Path::ServerBased, Path::FastRdma);
        let parts = [
            (4, 0, 60_000, ahead, false),
            (4, 0, 200_000, inside, false),
            (4, 0, 200_000, inside, true),
            (UNIT, 0, 20_000, inside, false),
            (2 * UNIT, 1, 1, inside, false),
        ];
        let costs = parts.into_iter().map(|(distance, index, len, path, is_joined)| {
            let filetype = Datatype::resized(0, distance as i64, &Datatype::BYTE).unwrap();
            let view = FileView::new(0, Datatype::BYTE, filetype).unwrap();
            let (distribution, span) = match index {
                0 => (Distribution::simple_stripe(UNIT, 1).unwrap(), len),
                _ => (Distribution::simple_stripe(UNIT, 2).unwrap(), 1_000_000),
            };
            let part = ViewPart::new(view, distribution, index, (0, span), len).unwrap();
            let joined = is_joined.then(|| Joined::new((1, 1), 2, Region::new(0, distance * len)).unwrap());
            self.client.forced.set(Some(path));
            let cost = cost_on(&self.world, &self.node, async || {
                let memory = MemList::from(vec![1; len as usize]);
                let (request, body) = match is_write {
                    true => (IodRequest::WriteView { datafile, part, joined }, Body::Out(memory)),
                    false => (IodRequest::ReadView { datafile, part, joined }, Body::In(memory)),
                };
                let done = self.client.iod_with(self.peer, request, body).await;
                match done {
                    Ok(_) => assert_eq!(index, 0),
                    Err(error) => assert_eq!((index, error.code), (1, ErrorCode::Invalid), "{error}"),
                }
            });
            self.client.forced.set(None);
            cost
        });
        costs.max().unwrap()
    }

    /// Writes a byte to each of very many units of a datafile.
    fn dirty(&self, datafile: DatafileHandle) {
        let hints = CacheHints { unit: Some(UNIT as u32), ..CacheHints::default() };
        self.cost(IodRequest::Advise { datafile, hints });
        for first in (0..UNITS).step_by(MAX_REGIONS) {
            let (regions, bytes) = (strided(first * UNIT, UNIT, 1), MemList::from(vec![1; MAX_REGIONS]));
            self.world.block_on(self.client.write(self.peer, datafile, &regions, &bytes)).unwrap();
        }
    }

    /// Asks for as many locks as a server has.
    fn fill_locks(&self) {
        for first in (0..4096).step_by(256) {
            let all = (0..256).map(|number| self.client.iod(self.peer, lock(1 + first / 256, number)));
            self.world.block_on(join_all(all)).into_iter().for_each(|done| drop(done.unwrap()));
        }
    }

    /// Writes a byte to each of some datafiles.
    fn touch(&self, files: std::ops::Range<u64>) {
        let (one, byte) = (regions(&[(0, 1)]), MemList::from(vec![1]));
        for first in files.clone().step_by(100) {
            let some = first..files.end.min(first + 100);
            let all = some.map(|number| self.client.write(self.peer, file(number), &one, &byte));
            self.world.block_on(join_all(all)).into_iter().for_each(|done| drop(done.unwrap()));
        }
    }
}

fn lock(number: u64, lock: u64) -> IodRequest {
    let range = Region::new(0, u64::MAX);
    IodRequest::Lock { datafile: file(number), range, exclusive: true, number: lock, held: false }
}

fn seek(number: u64) -> IodRequest {
    IodRequest::Seek { datafile: file(number), offset: 0, what: Sought::Hole }
}

fn hole(number: u64) -> IodRequest {
    IodRequest::Allocate { datafile: file(number), range: Region::new(0, MAX_ALLOCATION), how: Allocation::Hole }
}

/// As many datafiles as a request may name: one, and others from a number on.
fn most(one: u64, others: u64) -> Vec<DatafileHandle> {
    [one].into_iter().chain(others..).take(MAX_DATAFILES).map(file).collect()
}

rows! { ROWS of IodRequest for Server {
    IodRequest::Ping => "nothing", FEW, |server| server.cost(IodRequest::Ping);
    IodRequest::Write { .. } => "most regions", LIST, |server| server.list(file(1), true);
    IodRequest::Read { .. } => "most regions", LIST, |server| server.list(file(1), false);
    IodRequest::WriteView { .. } => "very many bytes, alone or of others", LIST, |server| server.view(file(14), true);
    IodRequest::ReadView { .. } => "very many bytes, alone or of others", LIST, |server| server.view(file(14), false);
    IodRequest::Truncate { .. } => "of very many dirty units", DATAFILES, |server| {
        server.dirty(file(2));
        server.cost(IodRequest::Truncate { datafile: file(2), size: 1 })
    };
    IodRequest::Create { .. } => "most datafiles", DATAFILES, |server| {
        server.by_manager(IodRequest::Create { first: file(FILES + 1), count: MAX_DATAFILES as u32 })
    };
    IodRequest::Discard { .. } => "most datafiles, beside very many dirty ones", MAX_DATAFILES as u64 + FEW, |server| {
        server.touch(2000..4000);
        server.by_manager(IodRequest::Discard { first: file(3500), count: MAX_DATAFILES as u32 })
    };
    IodRequest::Remove { .. } => "most datafiles, one of very many units", DATAFILES, |server| {
        server.dirty(file(3));
        server.by_manager(IodRequest::Remove { datafiles: most(3, 5000) })
    };
    IodRequest::List { .. } => "most of more datafiles", DATAFILES, |server| {
        server.cost(IodRequest::List { after: None })
    };
    IodRequest::Sync { .. } => "most datafiles, one of very many units", DATAFILES, |server| {
        server.touch(6100..6200);
        server.dirty(file(4));
        server.cost(IodRequest::Sync { datafiles: most(4, 6100) })
    };
    IodRequest::Getsize { .. } => "of very many dirty units", FEW, |server| {
        server.dirty(file(5));
        server.cost(IodRequest::Getsize { datafile: file(5) })
    };
    IodRequest::Getsizes { .. } => "most datafiles, one of very many dirty units", DATAFILES, |server| {
        server.dirty(file(7));
        server.cost(IodRequest::Getsizes { datafiles: most(7, 6100) })
    };
    IodRequest::Statfs => "very many datafiles", FEW, |server| server.cost(IodRequest::Statfs);
    IodRequest::PrepareTruncate { .. } => "of very many dirty units", DATAFILES, |server| {
        server.dirty(file(6));
        server.by_manager(IodRequest::PrepareTruncate { datafile: file(6), size: 1, number: 1 })
    };
    IodRequest::CommitTruncates { .. } => "most datafiles, one of very many units", DATAFILES, |server| {
        server.for_each(7200..7300, |datafile| IodRequest::PrepareTruncate { datafile, size: 1, number: 2 });
        let datafiles = most(6, 7200).into_iter().map(|datafile| (datafile, 1, 1)).collect();
        server.by_manager(IodRequest::CommitTruncates { before: 3, datafiles })
    };
    IodRequest::CancelTruncates { .. } => "most datafiles remain, of those that a manager lets be prepared", DATAFILES, |server| {
        server.for_each(8500..9012, |datafile| IodRequest::PrepareTruncate { datafile, size: 1, number: 3 });
        server.by_manager(IodRequest::CancelTruncates { before: 9, except: most(8500, 8001) })
    };
    IodRequest::Advise { .. } => "a datafile that nobody has heard of", FEW, |server| {
        let hints = CacheHints { unit: Some(UNIT as u32), ..CacheHints::default() };
        server.cost(IodRequest::Advise { datafile: file(u64::MAX), hints })
    };
    IodRequest::CacheState { .. } => "most of very many datafiles", DATAFILES, |server| {
        server.touch(2000..4000);
        server.cost(IodRequest::CacheState { after: None, files: u32::MAX })
    };
    IodRequest::CacheCoverage { .. } => "most of very many units", 2 * DATAFILES, |server| {
        server.dirty(file(7));
        server.cost(IodRequest::CacheCoverage { datafile: file(7), offset: 0, len: u64::MAX })
    };
    IodRequest::ReadShared { .. } => "a whole window, while most of the cache is dirty", 3 * DATAFILES, |server| {
        server.cost(IodRequest::ReadShared { datafile: file(8), offset: 0, len: VIEW_WINDOW })
    };
    IodRequest::Lock { .. } => "behind most others, and of one datafile more than there is room for", LIST, |server| {
        server.fill_locks();
        let one = server.cost(lock(1, 255));
        let refused = cost_on(&server.world, &server.node, async || {
            let refused = server.client.iod(server.peer, lock(99, 1)).await.unwrap_err();
            assert_eq!(refused.code, ErrorCode::Busy);
        });
        one.max(refused)
    };
    IodRequest::Unlock { .. } => "the last of most", LIST, |server| {
        server.fill_locks();
        server.cost(IodRequest::Unlock { datafile: file(1), number: 255 })
    };
    IodRequest::Scrub { .. } => "most datafiles, one of very many units with checksums", DATAFILES, |server| {
        server.touch(6100..6200);
        server.dirty(file(16));
        server.cost(IodRequest::Sync { datafiles: most(16, 6100) });
        server.world.run_for(Duration::from_secs(10));
        cost_on(&server.world, &server.node, async || {
            let scrub = IodRequest::Scrub { datafiles: most(16, 6100), offset: 0 };
            let scrubbed = server.client.iod(server.peer, scrub).await.unwrap();
            assert!(matches!(scrubbed, IodReply::Scrubbed { done: 0, read: 0x100_0000.., .. }), "{scrubbed:?}");
        })
    };
    // The worst ones are the last ones of all: they empty the cache.
    IodRequest::Seek { .. } => "in nothing", FEW, |server| server.cost(seek(15));
    IodRequest::Allocate { .. } => "the longest hole, in nothing", FEW, |server| server.cost(hole(15));
} }

/// What is not asked for by one request to an I/O server alone.
const BESIDE: &[Row<Server>] = &[
    Row {
        request: "Hello",
        worst: "nothing",
        most: FEW,
        cost: |server| {
            cost_on(&server.world, &server.node, async || {
                server.client.connect(&server.addr).await;
            })
        },
    },
    Row {
        request: "IodRequest::ReadShared { .. }",
        worst: "beside very many peers that have a view",
        most: FEW,
        cost: |server| {
            let share = async || {
                let peer = server.client.connect(&server.addr).await;
                let view = IodRequest::ReadShared { datafile: file(8), offset: 0, len: 1 };
                server.client.iod(peer, view).await.unwrap();
            };
            (0..2 * FEW).for_each(|_| server.world.block_on(share()));
            cost_on(&server.world, &server.node, share)
        },
    },
    Row {
        request: "IodRequest::Write { .. }",
        worst: "as many as a client may have, of most regions each, which wait for one of them",
        most: LIST,
        cost: |server| {
            const OTHERS: u64 = 31;
            let strided = (0..OTHERS).map(|first| strided(first, OTHERS, 1));
            let whole = regions(&[(0, OTHERS * MAX_REGIONS as u64)]);
            let writes: Vec<_> = [whole].into_iter().chain(strided).collect();
            server.client.forced.set(Some(Path::ServerBased));
            let cost = cost_on(&server.world, &server.node, async || {
                let all = writes.iter().map(async |regions| {
                    let bytes = MemList::from(vec![1; regions.total() as usize]);
                    server.client.write(server.peer, file(9), regions, &bytes).await.unwrap()
                });
                join_all(all).await;
            });
            server.client.forced.set(None);
            cost
        },
    },
    Row {
        request: "IodRequest::Read { .. }",
        worst: "one byte, while most of the cache is dirty",
        most: 3 * DATAFILES,
        cost: |server| {
            (10..13).for_each(|number| server.dirty(file(number)));
            cost_on(&server.world, &server.node, async || {
                server.client.read(server.peer, file(13), &regions(&[(0, 1)])).await.unwrap();
            })
        },
    },
    Row {
        request: "IodRequest::Read { .. }",
        worst: "most regions, while most of the cache is dirty",
        most: LIST,
        cost: |server| server.list(file(13), false),
    },
    Row {
        request: "IodRequest::Seek { .. }",
        worst: "in very many dirty units",
        most: DATAFILES,
        cost: |server| {
            server.dirty(file(15));
            server.cost(seek(15))
        },
    },
    Row {
        request: "IodRequest::Allocate { .. }",
        worst: "the longest hole, in very many dirty units",
        most: DATAFILES,
        cost: |server| {
            server.dirty(file(15));
            server.cost(hole(15))
        },
    },
];

#[test]
fn every_request_to_an_io_server_over_files_is_bounded() {
    let dir = TempDir::new().unwrap();
    let server = Server::start(|_| FileStore::open(dir.path(), 1 << 20).unwrap().checksums(true).unwrap());
    check(&server, ROWS);
    check(&server, BESIDE);
}

#[test]
fn every_request_to_an_io_server_with_a_cache_is_bounded() {
    let server = Server::start(|node| {
        let frames = Frames::anonymous(ArenaSettings::new(CACHE)).unwrap();
        let age = Duration::from_secs(600);
        let settings = Settings { age, dirty: CACHE / 2, ..Settings::for_bytes(CACHE) };
        // A disk that takes time, so that others run while it is used.
        let store =
            Rc::new(SimStore::open(&MemDisk::default(), Rc::new(node.disk())).unwrap().checksums(true).unwrap());
        UnifiedStore::new(store, frames, settings, || 0).with_views(ViewSettings::for_bytes(CACHE / 8))
    });
    check(&server, ROWS);
    check(&server, BESIDE);
}
