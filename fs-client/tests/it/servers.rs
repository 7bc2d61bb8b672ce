//! Servers for testing the client. They keep everything in tables and misbehave on request. They
//! run in one world with the client, so a test can inspect the requests that they got, and the
//! state in which a fault left them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::comm::Incoming;
use bmi_core::{Addr, AsyncEndpoint, Config, MemList, Memory, Options, PeerId, Unexpected};
use bmi_sim::{Node, World};
use fs_client::{Client, ClientOptions, Distribution, ErrorCode, Handle, Kind, Layout};
use fs_proto::{
    Attr, CacheCoverage, CacheHints, CacheState, ClusterId, ClusterInfo, DatafileHandle, DirEntry, DirHandle, Entry,
    Existing, FileHandle, FsError, Identity, IodInfo, IodReply, IodRequest, IodStat, ManagerReply, ManagerRequest,
    ManagerStat, Region, Reply, ReplyBody, Request, RequestBody, RequestId, Role, Start, StoreId, ViewRefusal, codec,
};

/// The faults of the servers.
#[derive(Default)]
pub struct Faults {
    /// The manager cuts the connection after this many more changes, before the reply.
    pub cut_after_change: Cell<u32>,
    /// This I/O server's disk is full.
    pub full: Cell<Option<u32>>,
    /// This I/O server never answers.
    pub silent: Cell<Option<u32>>,
    /// An I/O server sends garbage as its reply.
    pub garbage: RefCell<Option<Garbage>>,
    /// I/O servers do not answer hints.
    pub deaf: Cell<bool>,
    /// I/O servers answer each question about their caches with a page that is no progress.
    pub endless: Cell<bool>,
}

impl Faults {
    fn cache_state(&self, after: Option<DatafileHandle>) -> IodReply {
        let next = self.endless.get().then_some(after.unwrap_or(DatafileHandle(1)));
        IodReply::CacheState(Box::new(CacheState { next, ..CacheState::default() }))
    }

    fn coverage(&self, offset: u64, len: u64) -> IodReply {
        if self.endless.get() {
            return IodReply::CacheCoverage { coverage: Some(CacheCoverage::default()), next: Some(offset) };
        }
        // All of it is there, and told in two parts.
        let half = len.div_ceil(2);
        let cached = if len > 1 { half } else { len };
        let coverage = Some(CacheCoverage { cached, dirty: cached.min(1), ready: 0 });
        IodReply::CacheCoverage { coverage, next: (len > 1).then_some(offset + half) }
    }
}

/// The bytes that an I/O server sends instead of a reply.
#[derive(Clone)]
pub struct Garbage {
    pub iod: u32,
    pub bytes: Vec<u8>,
    /// If true, they are sent as a message of their own, not as the bytes of a reply.
    pub raw: bool,
}

#[derive(Default)]
pub struct State {
    names: BTreeMap<String, Entry>,
    datafiles: BTreeMap<(u32, DatafileHandle), Vec<u8>>,
    replies: BTreeMap<(u128, u64), Reply>,
    next: u64,
    /// Changes that were executed.
    pub executed: Vec<String>,
    /// Number of requests received.
    pub requests: u64,
    /// The hints that I/O servers got, in order.
    pub advised: Vec<(u32, DatafileHandle, CacheHints)>,
}

/// A manager and some I/O servers in a simulated world.
pub struct MockCluster {
    pub world: World,
    pub manager: Node,
    pub iods: Vec<Node>,
    pub client_node: Node,
    pub state: Rc<RefCell<State>>,
    pub faults: Rc<Faults>,
}

const PORT: u16 = 1;

impl MockCluster {
    pub fn new(seed: u64, iods: u32) -> MockCluster {
        let world = World::new(seed);
        let (manager, client_node) = (world.node("manager"), world.node("client"));
        let iods: Vec<_> = (0..iods).map(|number| world.node(&format!("iod{number}"))).collect();
        let cluster = MockCluster { world, manager, iods, client_node, state: Rc::default(), faults: Rc::default() };
        cluster.start(&cluster.manager, None);
        for (number, iod) in cluster.iods.iter().enumerate() {
            cluster.start(iod, Some(number as u32));
        }
        cluster
    }

    /// Starts the server of a node, also after it was killed.
    pub fn start(&self, node: &Node, iod: Option<u32>) {
        let endpoint = node.endpoint(Config::named(node.name())).unwrap();
        endpoint.listen(&node.addr(PORT)).unwrap();
        let server = Rc::new(Server {
            endpoint,
            iod,
            addrs: self.iods.iter().map(|iod| iod.addr(PORT)).collect(),
            state: self.state.clone(),
            faults: self.faults.clone(),
            unanswered: RefCell::default(),
        });
        let tasks = node.clone();
        node.spawn(async move {
            loop {
                let message = server.endpoint.next_unexpected().await;
                let server = server.clone();
                tasks.spawn(async move { server.answer(message).await });
            }
        });
    }

    pub fn options(&self) -> ClientOptions {
        let (timeout, retry_for) = (Duration::from_secs(3), Duration::ZERO);
        ClientOptions { timeout, retry_for, ..ClientOptions::new(7) }
    }

    pub async fn client(&self) -> Client {
        self.client_with(self.options()).await
    }

    pub async fn client_with(&self, options: ClientOptions) -> Client {
        let endpoint = self.client_node.endpoint(Config::named("client")).unwrap();
        Client::connect(endpoint, self.manager.addr(PORT), options).await.unwrap()
    }
}

struct Server {
    endpoint: AsyncEndpoint,
    iod: Option<u32>,
    addrs: Vec<Addr>,
    state: Rc<RefCell<State>>,
    faults: Rc<Faults>,
    unanswered: RefCell<Vec<Incoming>>,
}

impl Server {
    fn identity(&self) -> Identity {
        Identity {
            cluster: ClusterId(1),
            role: self.iod.map_or(Role::Manager, Role::Iod),
            store: StoreId(self.iod.map_or(0, |iod| 1 + u128::from(iod))),
            start: Start { epoch: 1, instance: 1 },
            host: String::new(),
            addrs: Vec::new(),
        }
    }

    async fn answer(&self, message: Unexpected) {
        let (peer, tag) = (message.peer(), message.tag());
        let incoming = Incoming::new(&self.endpoint, message).unwrap();
        let request = codec::decode_request(incoming.request()).unwrap();
        if let RequestBody::Hello(hello) = &request.body {
            let identity = self.identity();
            let result = identity.check(hello).map(|()| identity.into());
            let _ = incoming.reply(&codec::encode_reply(&Reply { result }), None, Options::default()).await;
            return;
        }
        self.state.borrow_mut().requests += 1;
        let hints = matches!(request.body, RequestBody::Iod(IodRequest::Advise { .. }));
        if self.iod.is_some() && self.faults.silent.get() == self.iod || hints && self.faults.deaf.get() {
            // Dropped, it would tell the caller.
            self.unanswered.borrow_mut().push(incoming);
            return;
        }
        let garbage = self.faults.garbage.borrow().clone().filter(|garbage| self.iod == Some(garbage.iod));
        if let Some(Garbage { bytes, raw, .. }) = garbage {
            let options = Options::default();
            if raw {
                let _ = self.endpoint.send(peer, tag, bytes, options).await;
            } else {
                let _ = incoming.reply(&bytes, None, options).await;
            }
            return;
        }
        let mut inline = None;
        let result = match request.body.clone() {
            RequestBody::Manager(body) => self.manager(peer, &request, body),
            RequestBody::Iod(body) => self.iod(&incoming, body, &mut inline).await.map(Some),
            RequestBody::Hello(_) => unreachable!("it was answered"),
        };
        let result = match result {
            Ok(None) => return,
            Ok(Some(body)) => Ok(body),
            Err(error) => Err(error),
        };
        let _ = incoming.reply(&codec::encode_reply(&Reply { result }), inline, Options::default()).await;
    }

    /// Executes a request. Returns `None` if the connection was cut instead.
    fn manager(&self, peer: PeerId, request: &Request, body: ManagerRequest) -> Result<Option<ReplyBody>, FsError> {
        let mut state = self.state.borrow_mut();
        let RequestId { client, seq } = request.id;
        state.replies.retain(|(other, seq), _| *other != client || *seq >= request.unanswered);
        if let Some(reply) = state.replies.get(&(client, seq)) {
            return reply.result.clone().map(Some);
        }
        let changes = body.changes();
        if changes {
            state.executed.push(body.name().to_owned());
        }
        let result = state.execute(body, &self.addrs).map(ReplyBody::from);
        if changes {
            state.replies.insert((client, seq), Reply { result: result.clone() });
            if self.faults.cut_after_change.get() > 0 {
                self.faults.cut_after_change.set(self.faults.cut_after_change.get() - 1);
                self.endpoint.with(|endpoint| {
                    let now = bmi_core::Time::from_nanos(1);
                    let op = endpoint.disconnect(peer, Options::by(now)).unwrap();
                    endpoint.abandon(op);
                });
                return Ok(None);
            }
        }
        result.map(Some)
    }

    async fn iod(
        &self,
        incoming: &Incoming,
        body: IodRequest,
        inline: &mut Option<MemList>,
    ) -> Result<ReplyBody, FsError> {
        let iod = self.iod.unwrap();
        let edit = |datafile: DatafileHandle, edit: &mut dyn FnMut(&mut Vec<u8>)| {
            let mut state = self.state.borrow_mut();
            let bytes = state.datafiles.entry((iod, datafile)).or_default();
            edit(bytes);
            bytes.len() as u64
        };
        Ok(match body {
            IodRequest::Ping => IodReply::Done,
            IodRequest::Write { datafile, regions, .. } => {
                let memory = Memory::zeroed(regions.total() as usize)?;
                incoming.fetch(0, &memory, Options::default()).await?;
                let bytes = memory.to_vec();
                if self.faults.full.get() == Some(iod) {
                    let ranges = regions.iter().copied();
                    return Err(FsError::new(ErrorCode::NoSpace, "the store is full").with_ranges(ranges));
                }
                let size = edit(datafile, &mut |file| {
                    let mut at = 0;
                    for Region { offset, len } in regions.iter().filter(|region| !region.is_empty()) {
                        let (offset, len) = (*offset as usize, *len as usize);
                        file.resize(file.len().max(offset + len), 0);
                        file[offset..offset + len].copy_from_slice(&bytes[at..at + len]);
                        at += len;
                    }
                });
                IodReply::Written { len: regions.total(), size, start: 1 }
            }
            IodRequest::Read { datafile, regions } => {
                let mut bytes = Vec::new();
                let size = edit(datafile, &mut |file| {
                    for region in regions.iter() {
                        let offsets = region.offset..region.offset + region.len;
                        bytes.extend(offsets.map(|offset| file.get(offset as usize).copied().unwrap_or(0)));
                    }
                });
                if incoming.replies_with_data() {
                    *inline = Some(MemList::from(bytes));
                } else {
                    incoming.store(0, bytes, Options::default()).await?;
                }
                IodReply::Read { len: regions.total(), size }
            }
            IodRequest::Truncate { datafile, size } => {
                let size = edit(datafile, &mut |file| file.resize(size as usize, 0));
                IodReply::Written { len: 0, size, start: 1 }
            }
            IodRequest::Sync { .. } => IodReply::Synced { start: 1 },
            IodRequest::Getsize { datafile } => IodReply::Held { size: edit(datafile, &mut |_| ()), mtime_ns: 0 },
            IodRequest::Create { .. }
            | IodRequest::Discard { .. }
            | IodRequest::Remove { .. }
            | IodRequest::PrepareTruncate { .. }
            | IodRequest::CommitTruncates { .. }
            | IodRequest::CancelTruncates { .. }
            | IodRequest::List { .. } => panic!("a request of the manager"),
            IodRequest::Statfs => IodReply::Stat(IodStat { capacity: 100, free: 40, datafiles: 2, disk: 1 }),
            IodRequest::Advise { datafile, hints } => {
                self.state.borrow_mut().advised.push((iod, datafile, hints));
                IodReply::Done
            }
            IodRequest::CacheState { after, .. } => self.faults.cache_state(after),
            IodRequest::CacheCoverage { offset, len, .. } => self.faults.coverage(offset, len),
            IodRequest::ReadShared { .. } => IodReply::Shared(Err(ViewRefusal::NoCache)),
        }
        .into())
    }
}

fn info((addr, store): (&Addr, u128)) -> IodInfo {
    IodInfo { addr: addr.clone(), store: Some(StoreId(store)), up: true }
}

fn fail<V>(code: ErrorCode) -> Result<V, FsError> {
    Err(FsError::new(code, ""))
}

impl State {
    fn find(&self, path: &str) -> Result<Entry, FsError> {
        let root = || self.entry(Handle::Dir(DirHandle::ROOT), 0, None);
        if path == "/" {
            return Ok(root());
        }
        self.names.get(path).cloned().ok_or_else(|| FsError::new(ErrorCode::NotFound, ""))
    }

    fn entry(&self, handle: Handle, mode: u32, layout: Option<Layout>) -> Entry {
        let kind = if handle.dir().is_some() { Kind::Dir } else { Kind::File };
        let attr = Attr { kind, mode, uid: 0, gid: 0, size: 0, atime_ns: 0, mtime_ns: 0, ctime_ns: 0, nlink: 1 };
        Entry { handle, attr, layout, touched_ns: 0, recorded_size: None }
    }

    fn parent_must_be(&self, path: &str) -> Result<(), FsError> {
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let parent = self.find(if parent.is_empty() { "/" } else { parent })?;
        if parent.handle.dir().is_none() { fail(ErrorCode::NotDirectory) } else { Ok(()) }
    }

    fn below(&self, path: &str) -> usize {
        let prefix = format!("{path}/");
        self.names.keys().filter(|name| name.starts_with(&prefix)).count()
    }

    fn new_handle(&mut self) -> u64 {
        self.next += 1;
        self.next + 1000
    }

    fn execute(&mut self, request: ManagerRequest, iods: &[Addr]) -> Result<ManagerReply, FsError> {
        Ok(match request {
            ManagerRequest::Ping => ManagerReply::Done,
            ManagerRequest::Mkdir { place, mode, .. } => {
                self.parent_must_be(&place.path)?;
                if self.find(&place.path).is_ok() {
                    return fail(ErrorCode::Exists);
                }
                let entry = self.entry(Handle::Dir(DirHandle(self.next + 5000)), mode, None);
                self.next += 1;
                self.names.insert(place.path, entry.clone());
                ManagerReply::Entry(entry)
            }
            ManagerRequest::Create { place, mode, strip_size, servers, existing, .. } => {
                self.parent_must_be(&place.path)?;
                match self.find(&place.path) {
                    Ok(entry) if entry.handle.dir().is_some() => return fail(ErrorCode::IsDirectory),
                    Ok(_) if existing == Existing::Refuse => return fail(ErrorCode::Exists),
                    Ok(entry) if existing == Existing::Open => return Ok(ManagerReply::Entry(entry)),
                    _ => {}
                }
                let servers = if servers == 0 { iods.len() as u32 } else { servers };
                let distribution =
                    Distribution::simple_stripe(if strip_size == 0 { 65536 } else { strip_size }, servers)?;
                let datafiles = (0..servers).map(|iod| (iod, DatafileHandle(self.new_handle()))).collect();
                let layout = Layout::new(distribution, datafiles)?;
                let handle = Handle::File(FileHandle(self.new_handle()));
                let entry = self.entry(handle, mode, Some(layout));
                let name = if existing == Existing::Replace { handle.to_string() } else { place.path };
                self.names.insert(name, entry.clone());
                ManagerReply::Entry(entry)
            }
            ManagerRequest::Publish { file, place, size, .. } => {
                let Some(mut entry) = self.names.remove(&file.to_string()) else { return fail(ErrorCode::Stale) };
                entry.recorded_size = size;
                self.names.insert(place.path, entry.clone());
                ManagerReply::Entry(entry)
            }
            ManagerRequest::Abandon { file } => {
                self.names.remove(&file.to_string());
                ManagerReply::Done
            }
            ManagerRequest::Truncate { file, size } => {
                let named = |entry: &&Entry| entry.handle == Handle::File(file);
                let layout = self.names.values().find(named).and_then(|entry| entry.layout.clone());
                let Some(layout) = layout else { return fail(ErrorCode::Stale) };
                for (index, (iod, datafile)) in layout.datafiles().iter().enumerate() {
                    let size = layout.distribution().datafile_size(index, size) as usize;
                    self.datafiles.entry((*iod, *datafile)).or_default().resize(size, 0);
                }
                ManagerReply::Truncation(Vec::new())
            }
            ManagerRequest::Lookup { place } => ManagerReply::Entry(self.find(&place.path)?),
            ManagerRequest::Getattr { handle } => {
                let found = self.names.values().find(|entry| entry.handle == handle).cloned();
                ManagerReply::Entry(found.ok_or_else(|| FsError::new(ErrorCode::Stale, ""))?)
            }
            ManagerRequest::Setattr { handle, set } => {
                let found = self.names.values_mut().find(|entry| entry.handle == handle);
                let entry = found.ok_or_else(|| FsError::new(ErrorCode::Stale, ""))?;
                entry.attr.mode = set.mode.unwrap_or(entry.attr.mode);
                entry.attr.mtime_ns = set.mtime_ns.unwrap_or(entry.attr.mtime_ns);
                ManagerReply::Entry(entry.clone())
            }
            ManagerRequest::Readdir { dir, after, .. } => {
                let at = |(_, entry): &(&String, &Entry)| entry.handle == Handle::Dir(dir);
                let prefix = match self.names.iter().find(at) {
                    Some((path, _)) => format!("{path}/"),
                    None => "/".to_owned(),
                };
                // A directory whose listing always starts again from the beginning.
                let endless = prefix == "/endless/";
                let after = if endless { String::new() } else { after };
                let child = |(path, entry): (&String, &Entry)| {
                    let name = path.strip_prefix(&prefix)?;
                    let is_child = !name.contains('/') && name > after.as_str();
                    is_child.then(|| DirEntry { name: name.to_owned(), handle: entry.handle })
                };
                let mut entries: Vec<_> = self.names.iter().filter_map(child).collect();
                entries.sort_by(|a, b| a.name.cmp(&b.name));
                let more = entries.len() > 20 || endless;
                entries.truncate(20);
                ManagerReply::Entries { entries, more }
            }
            ManagerRequest::Rename { from, to } => {
                self.parent_must_be(&to.path)?;
                let entry = self.find(&from.path)?;
                let moved: Vec<_> =
                    self.names.keys().filter(|name| name.starts_with(&format!("{}/", from.path))).cloned().collect();
                for name in moved {
                    let entry = self.names.remove(&name).unwrap();
                    self.names.insert(name.replacen(&from.path, &to.path, 1), entry);
                }
                self.names.remove(&from.path);
                self.names.insert(to.path, entry);
                ManagerReply::Done
            }
            ManagerRequest::Remove { place, kind } => {
                let entry = self.find(&place.path)?;
                match (entry.attr.kind, kind) {
                    (Kind::Dir, fs_proto::RemoveKind::File) => return fail(ErrorCode::IsDirectory),
                    (Kind::File, fs_proto::RemoveKind::Dir) => return fail(ErrorCode::NotDirectory),
                    (Kind::Dir, _) if self.below(&place.path) > 0 => return fail(ErrorCode::NotEmpty),
                    _ => {}
                }
                self.names.remove(&place.path);
                ManagerReply::Done
            }
            ManagerRequest::Statfs => ManagerReply::Stat(ManagerStat { files: 1, dirs: 1, ..ManagerStat::default() }),
            ManagerRequest::RecordSize { file, size } => {
                let named = |entry: &&mut Entry| entry.handle == Handle::File(file);
                let Some(entry) = self.names.values_mut().find(named) else { return fail(ErrorCode::Stale) };
                entry.recorded_size = size;
                ManagerReply::Done
            }
            ManagerRequest::Truncation { .. } => ManagerReply::Truncation(Vec::new()),
            ManagerRequest::Register(_) | ManagerRequest::Backup { .. } => panic!("not a request of a client"),
            // Two at a time, so that the client has to ask again.
            ManagerRequest::Cluster { first } => ManagerReply::Cluster(ClusterInfo {
                iods: iods.iter().zip(1u128..).skip(first as usize).take(2).map(info).collect(),
                total: iods.len() as u32,
                strip_size: 65536,
            }),
        })
    }
}
