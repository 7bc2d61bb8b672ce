//! The requests to the manager of the largest cluster.

use fs_proto::limits::{MAX_CLOSED, MAX_ENTRIES, MAX_NAME, MAX_PATH, MAX_RELEASED, MAX_SERVERS, MAX_XATTR, MAX_XATTRS};
use fs_proto::{
    BString, DirHandle, Extent, FileHandle, Fix, Handle, MAX_REVOKED, Name, Registration, RemoveKind, Repair, Replace,
    SetAttr, Start, StoreId, Ties, XattrName, XattrValue,
};
use fs_server::service::Limits;
use futures_util::future::join_all;

use super::*;

/// Directories in a path that has room for a name behind them.
const DEPTH: usize = MAX_PATH / 2 - 2;
/// Names in a directory: more than a page has.
const NAMES: usize = MAX_ENTRIES + 500;
/// Steps for the names of a path: each is cut off, and looked up.
const PATH: u64 = 2 * DEPTH as u64;
/// Steps for something of each I/O server.
const SERVERS: u64 = MAX_SERVERS as u64;
/// Steps of a change on the loop: for the state of each I/O server before the commit, and after it
/// for what is to be done there.
const COMMIT: u64 = 8 * SERVERS;
/// So long that no server confirms by chance that it is up.
const HEARTBEAT: Duration = Duration::from_secs(600);
/// Steps for what depends on nothing. The loop may have just heard of some I/O servers.
const FEW: u64 = 2 * SERVERS;

/// A manager with much to look through.
struct Server {
    world: World,
    cluster: SimCluster,
    client: Client,
    peer: PeerId,
}

/// Returns the path of something in the deepest directory that has a path.
fn deep(name: &str) -> String {
    format!("{}{name}", "d/".repeat(DEPTH))
}

fn creation(path: &str, existing: Existing) -> ManagerRequest {
    // None of these exists, so none is left out.
    let avoid = (0..MAX_SERVERS as u32).map(|iod| iod + 1000).collect();
    let (place, strip_size, servers) = (Place::root(path), 0, MAX_SERVERS as u32);
    ManagerRequest::Create {
        place,
        mode: 0o644,
        uid: 1,
        gid: 2,
        strip_size,
        servers,
        avoid,
        existing,
        hold: existing == Existing::Refuse,
        small: false,
    }
}

impl Server {
    fn start() -> Server {
        let endpoint = Config::default().eager_limit(128 << 10).fast_slot_bytes(256 << 10);
        let limits = Limits { requests: 512, per_peer: 256, ..Limits::default() };
        let options = ClusterOptions {
            endpoint,
            limits,
            heartbeat: HEARTBEAT,
            pool: 64,
            ..ClusterOptions::with_iods(MAX_SERVERS)
        };
        let world = World::new(1);
        let cluster = SimCluster::start(&world, options.clone()).unwrap();
        let endpoint = world.node("client").endpoint(options.endpoint.name("client")).unwrap();
        let client = Client::over(endpoint, 1);
        let peer = world.block_on(client.connect(&cluster.manager()));
        let server = Server { world, cluster, client, peer };
        let all = (1..=DEPTH).map(|depth| "d/".repeat(depth)).chain(["many".to_owned()]);
        server.make(all.map(|path| mkdir(&path)).collect());
        server.make((0..NAMES).map(|name| mkdir(&format!("many/{name}"))).collect());
        server
    }

    /// Makes changes, many at the same time and in order.
    fn make(&self, changes: Vec<ManagerRequest>) {
        for some in changes.chunks(100) {
            let made = some.iter().map(|change| self.client.manager(self.peer, change.clone()));
            self.world.block_on(join_all(made)).into_iter().for_each(|made| drop(made.unwrap()));
        }
    }

    fn look(&self, request: ManagerRequest) {
        self.world.block_on(self.client.manager(self.peer, request)).unwrap();
    }

    /// Returns what a request costs.
    fn cost(&self, request: ManagerRequest) -> Cost {
        cost_on(&self.world, &self.cluster.manager_node(), async || {
            drop(self.client.manager(self.peer, request).await.unwrap())
        })
    }

    /// Creates a file with a datafile on each server.
    fn file(&self, path: &str, existing: Existing) -> FileHandle {
        let entry = self.world.block_on(self.client.entry(self.peer, creation(path, existing))).unwrap();
        let Handle::File(file) = entry.handle else { panic!("{entry:?}") };
        assert_eq!(entry.layout.unwrap().datafiles().len(), MAX_SERVERS);
        file
    }

    /// Creates a file, and returns the requests that give it most extended attributes.
    fn xattrs(&self, path: &str) -> Vec<ManagerRequest> {
        let handle = self.file(path, Existing::Refuse).into();
        let value = Some(XattrValue("x".repeat(MAX_XATTR).into()));
        let set = |number: usize| {
            let name = XattrName(format!("{number:0MAX_NAME$}").into());
            ManagerRequest::SetXattr { handle, name, value: value.clone(), exists: None }
        };
        (0..MAX_XATTRS).map(set).collect()
    }

    fn many(&self) -> DirHandle {
        let look = ManagerRequest::Lookup { place: Place::root("many"), open: false };
        let entry = self.world.block_on(self.client.entry(self.peer, look)).unwrap();
        let Handle::Dir(many) = entry.handle else { panic!("{entry:?}") };
        many
    }
}

rows! { ROWS of ManagerRequest for Server {
    ManagerRequest::Ping => "nothing", FEW, |server| server.cost(ManagerRequest::Ping);
    ManagerRequest::Mkdir { .. } => "the longest path", COMMIT, |server| server.cost(mkdir(&deep("dir")));
    ManagerRequest::Create { .. } => "the longest path, on all servers, most servers avoided", COMMIT, |server| {
        server.cost(creation(&deep("file"), Existing::Refuse))
    };
    ManagerRequest::Lookup { .. } => "the longest path", PATH + FEW, |server| {
        server.cost(ManagerRequest::Lookup { place: Place::root(deep("file")), open: false })
    };
    ManagerRequest::Readdir { .. } => "most entries of more", MAX_ENTRIES as u64 + FEW, |server| {
        let (dir, after) = (server.many(), BString::default());
        let readdir =
            |attributes| ManagerRequest::Readdir { dir, after: after.clone(), max: u32::MAX, attributes };
        server.cost(readdir(false)).max(server.cost(readdir(true)))
    };
    ManagerRequest::Getattr { .. } => "a file on all servers", FEW, |server| {
        let handle = server.file("file0", Existing::Refuse).into();
        server.cost(ManagerRequest::Getattr { handle, open: false })
    };
    ManagerRequest::Setattr { .. } => "all attributes", COMMIT, |server| {
        let handle = server.file("file1", Existing::Refuse).into();
        let set = SetAttr { mode: Some(1), uid: Some(1), gid: Some(1), atime_ns: Some(1), mtime_ns: Some(1) };
        server.cost(ManagerRequest::Setattr { handle, set })
    };
    ManagerRequest::Rename { .. } => "of a directory, down by the longest path", COMMIT, |server| {
        server.make(vec![mkdir("dir")]);
        let (from, to, replace) = (Place::root("dir"), Place::root(deep("new")), Replace::Nothing);
        server.cost(ManagerRequest::Rename { from, to, replace })
    };
    ManagerRequest::Remove { .. } => "the longest path, on all servers", COMMIT, |server| {
        server.cost(ManagerRequest::Remove { place: Place::root(deep("file")), kind: RemoveKind::Any })
    };
    ManagerRequest::Symlink { .. } => "the longest path and target", COMMIT, |server| {
        let (place, target) = (Place::root(deep("link")), "x".repeat(MAX_PATH - 1).into());
        server.cost(ManagerRequest::Symlink { place, target, uid: 1, gid: 2, replace: false })
    };
    ManagerRequest::Link { .. } => "the longest path, over a file on all servers", COMMIT, |server| {
        let file = server.file("file5", Existing::Refuse);
        server.file(&deep("over"), Existing::Refuse);
        server.cost(ManagerRequest::Link { file, place: Place::root(deep("over")), replace: true })
    };
    ManagerRequest::Exchange { .. } => "of directories, by the longest paths", COMMIT, |server| {
        let names = [deep("1"), deep("2")];
        server.make(names.iter().map(|name| mkdir(name)).collect());
        let [one, other] = names.map(Place::root);
        server.cost(ManagerRequest::Exchange { one, other })
    };
    ManagerRequest::SetXattr { .. } => "the last one, of the longest", COMMIT, |server| {
        let set = server.xattrs("file6");
        server.make(set[1..].to_vec());
        server.cost(set[0].clone())
    };
    ManagerRequest::GetXattr { .. } => "one of most", FEW, |server| {
        let set = server.xattrs("file7");
        server.make(set.clone());
        let ManagerRequest::SetXattr { handle, name, .. } = set[0].clone() else { panic!() };
        server.cost(ManagerRequest::GetXattr { handle, name })
    };
    ManagerRequest::ListXattrs { .. } => "most of them", MAX_XATTRS as u64 + FEW, |server| {
        let set = server.xattrs("file8");
        server.make(set.clone());
        let ManagerRequest::SetXattr { handle, .. } = set[0] else { panic!() };
        server.cost(ManagerRequest::ListXattrs { handle })
    };
    ManagerRequest::Hold { .. } => "a file on all servers that has lost its name", FEW, |server| {
        let file = server.file("file9", Existing::Refuse);
        server.look(ManagerRequest::Hold { file });
        server.make(vec![ManagerRequest::Remove { place: Place::root("file9"), kind: RemoveKind::File }]);
        server.cost(ManagerRequest::Hold { file })
    };
    ManagerRequest::Release { .. } => "most files on all servers, which have lost their names", COMMIT, |server| {
        let files: Vec<FileHandle> = (0..MAX_RELEASED)
            .map(|number| {
                let name = format!("many/released{number}");
                let file = server.file(&name, Existing::Refuse);
                server.look(ManagerRequest::Hold { file });
                server.make(vec![ManagerRequest::Remove { place: Place::root(name), kind: RemoveKind::File }]);
                file
            })
            .collect();
        server.cost(ManagerRequest::Release { files })
    };
    ManagerRequest::Revoke { .. } => "the last place", COMMIT + MAX_REVOKED as u64, |server| {
        let revoke = |number: usize| ManagerRequest::Revoke {
            holder: Name(format!("pvfs:user/{number}")),
            back: false
        };
        for number in 1..MAX_REVOKED {
            server.world.block_on(server.client.manager(server.peer, revoke(number))).unwrap();
        }
        server.cost(revoke(0))
    };
    ManagerRequest::Revoked => "all places", MAX_REVOKED as u64 + FEW, |server| {
        server.cost(ManagerRequest::Revoked)
    };
    ManagerRequest::Statfs => "all pools", 2 * SERVERS + FEW, |server| server.cost(ManagerRequest::Statfs);
    ManagerRequest::Cluster { .. } => "all servers", SERVERS + FEW, |server| {
        server.cost(ManagerRequest::Cluster { first: 0 })
    };
    ManagerRequest::RecordSize { .. } => "a file on all servers", COMMIT, |server| {
        let file = server.file("file2", Existing::Refuse);
        server.cost(ManagerRequest::RecordSize { file, size: 1 })
    };
    ManagerRequest::BeginWrite { .. } => "a file on all servers", COMMIT, |server| {
        let file = server.file("recorded", Existing::Refuse);
        server.make(vec![ManagerRequest::RecordSize { file, size: 1 }]);
        server.cost(ManagerRequest::BeginWrite { file })
    };
    ManagerRequest::Close { .. } => "most files, all on all servers", COMMIT, |server| {
        let file = |at| server.file(&format!("written{at}"), Existing::Refuse);
        let files = (0..MAX_CLOSED).map(|at| (file(at), Extent { size: 1, written_ns: 1 })).collect();
        server.cost(ManagerRequest::Close { files })
    };
    ManagerRequest::Register(_) => "the last server, with a store that is compared with all", SERVERS + FEW, |server| {
        let (iod, start) = (MAX_SERVERS as u32 - 1, Start { epoch: 1, instance: 1 });
        let sender = Sender::Server(Role::Iod(iod), start);
        let peer = server.world.block_on(server.client.connect_silently(&server.cluster.manager()));
        let hello = Hello { sender, ..Hello::to(Role::Manager) };
        server.world.block_on(server.client.ask(peer, RequestBody::Hello(hello))).unwrap();
        let (store, highest) = (Some(StoreId(7)), DatafileHandle(0));
        let (offered, confirmed, manager) = (None, None, None);
        let registration =
            Registration { iod, store, start, offered, confirmed, manager, highest, replace: false, ready: false };
        cost_on(&server.world, &server.cluster.manager_node(), async || {
            let refused = server.client.manager(peer, ManagerRequest::Register(registration)).await;
            assert_eq!(code(refused), Some(ErrorCode::Invalid));
        })
    };
    ManagerRequest::Backup { .. } => "a page full of short rows", 8 * MAX_ENTRIES as u64, |server| {
        let pages = (0..).map(|page| server.cost(ManagerRequest::Backup { page }));
        pages.take(4).max().unwrap()
    };
    ManagerRequest::Publish { .. } => "over a file, both on all servers", COMMIT, |server| {
        let old = server.file(&deep("old"), Existing::Refuse);
        let file = server.file(&deep("old"), Existing::Replace);
        server.make(vec![ManagerRequest::RecordSize { file: old, size: 1 }]);
        let (place, size, replace) = (Place::root(deep("old")), Some(1), Replace::File(old));
        server.cost(ManagerRequest::Publish { file, place, inherit: true, mode: None, mtime_ns: None, size, replace })
    };
    ManagerRequest::Abandon { .. } => "a file on all servers", COMMIT, |server| {
        let file = server.file("draft", Existing::Replace);
        server.cost(ManagerRequest::Abandon { file })
    };
    ManagerRequest::Check { .. } => "a page full of files on all servers, or of names", 8 * MAX_ENTRIES as u64, |server| {
        server.file("checked", Existing::Refuse);
        let (mut page, mut most) = (0, (0, 0));
        loop {
            let mut more = false;
            let cost = cost_on(&server.world, &server.cluster.manager_node(), async || {
                let reply = server.client.manager(server.peer, ManagerRequest::Check { page }).await.unwrap();
                let ManagerReply::Check { more: goes_on, rows } = reply else { panic!("{reply:?}") };
                assert!(!rows.is_empty());
                more = goes_on;
            });
            (most, page) = (most.max(cost), page + 1);
            if !more {
                return most;
            }
        }
    };
    ManagerRequest::Repair(_) => "the longest parent chain above what has no name", COMMIT, |server| {
        let look = ManagerRequest::Lookup { place: Place::root(deep("")), open: false };
        let lost = server.world.block_on(server.client.entry(server.peer, look)).unwrap().handle.dir().unwrap();
        let file = server.file("tied", Existing::Refuse);
        let look = ManagerRequest::Getattr { handle: file.into(), open: false };
        let attr = server.world.block_on(server.client.entry(server.peer, look)).unwrap().attr;
        let was = Ties { parent: DirHandle::ROOT.0, size: attr.size, nlink: attr.nlink };
        // Nothing but all rows shows that it has a name.
        let repair = Repair { fix: Fix::Nameless { raw: file.0, was }, before: 0, lost };
        server.cost(ManagerRequest::Repair(repair))
    };
    ManagerRequest::Truncate { .. } => "a file on all servers", COMMIT + SERVERS, |server| {
        let file = server.file("file3", Existing::Refuse);
        server.cost(ManagerRequest::Truncate { file, size: 1 << 40 })
    };
    ManagerRequest::Truncation { .. } => "a file on all servers", SERVERS + FEW, |server| {
        let file = server.file("file4", Existing::Refuse);
        server.cost(ManagerRequest::Truncation { file })
    };
    ManagerRequest::Grow { .. } => "a file on all servers, most servers avoided", COMMIT, |server| {
        let mut create = creation(&deep("grow"), Existing::Refuse);
        if let ManagerRequest::Create { small, .. } = &mut create {
            *small = true;
        }
        let entry = server.world.block_on(server.client.entry(server.peer, create)).unwrap();
        assert!(entry.layout.is_some_and(|layout| layout.limit().is_some()));
        let avoid = (0..MAX_SERVERS as u32).map(|iod| iod + 1000).collect();
        server.cost(ManagerRequest::Grow { file: entry.handle.file().unwrap(), avoid })
    };
} }

/// What is not asked for by a request to a manager alone.
const BESIDE: &[Row<Server>] = &[
    Row {
        request: "Hello",
        worst: "nothing",
        most: FEW,
        cost: |server| {
            cost_on(&server.world, &server.cluster.manager_node(), async || {
                server.client.connect(&server.cluster.manager()).await;
            })
        },
    },
    Row {
        request: "heartbeats",
        worst: "of all servers, at the same time",
        most: 4 * SERVERS,
        cost: |server| {
            cost_on(&server.world, &server.cluster.manager_node(), async || {
                server.client.endpoint.sleep(HEARTBEAT).await;
            })
        },
    },
];

#[test]
fn every_request_to_a_manager_is_bounded() {
    let server = Server::start();
    check(&server, ROWS);
    check(&server, BESIDE);
}
