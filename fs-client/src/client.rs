//! The namespace: directories, names, attributes, and the list of servers.
//!
//! **Invariants**
//! 1. Every request has the client's time limit. In an operation of several requests, each request
//!    has the whole limit.
//! 2. A request that changes the namespace is executed once, even if the connection is lost before
//!    the reply.
//! 3. The manager is never in the data path. The sizes of files come from the I/O servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bmi::config::Lists;
use bmi::hooks::mutated;
use bmi::memory::Foreign;
use bmi::paths::{self, Calibrations, Path, Plan};
use bmi::stats::PathCounters;
use bmi::threading::{AnyThread, OneThread, Threading};
use bmi::{Addr, Endpoint, Memory, Options, Time};
use fs_proto::{
    CacheHints, ClusterId, DirEntry, DirHandle, Entry, ErrorCode, Existing, FileHandle, Handle, IodReply, IodRequest,
    IodStat, Kind, ManagerReply, ManagerRequest, ManagerStat, PendingTruncate, Place, RemoveKind, ReplyBody,
    RequestBody, SetAttr,
};
use futures_util::future::join_all;

use crate::connection::{Connections, Outgoing, Resend, unexpected};
use crate::draft::Draft;
use crate::error::{Error, Failure, ServerName};
use crate::file::{Datafile, File};
use crate::locked::Locked;
use crate::path::FsPath;
use crate::route::{Endpoints, Preference, Route, TransportChoice};

/// How often [`Client::stay_connected`] sends something: several times in the ten minutes after
/// which the manager removes files without a name.
const STAY_CONNECTED: Duration = Duration::from_secs(60);

/// Settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// A number that no other client has; draw it at random. The manager uses it to recognise
    /// repeated requests.
    pub id: u128,
    /// Time limit of a single request.
    pub timeout: Duration,
    /// How long a request is tried again if its server refuses connections, or is not ready for it.
    /// A lost connection is made again once in any case.
    pub retry_for: Duration,
    /// The path that data takes where possible. `None` leaves the choice to each endpoint's policy.
    pub path: Option<Path>,
    /// How lists of memory are moved. `Auto` decides by the sizes of their pieces.
    pub lists: Lists,
    /// Most bytes in one request to one server.
    pub largest_transfer: u64,
    /// Owner of files and directories that the client creates.
    pub uid: u32,
    /// Group of files and directories that the client creates.
    pub gid: u32,
    /// The cluster. If `None`, it is the one of the first manager that answers.
    pub cluster: Option<ClusterId>,
    /// Which transport the client uses to reach a server.
    pub over: TransportChoice,
    /// The name of this machine, in the form that servers on it report (the boot id of Linux). If
    /// `None`, no server counts as being on this machine.
    pub host: Option<String>,
}

impl ClientOptions {
    /// Returns the defaults: 30 s and 16 MiB for each request, 5 s for a server to come back, paths
    /// chosen by policy, and the best transport for each server.
    pub fn new(id: u128) -> ClientOptions {
        ClientOptions {
            id,
            timeout: Duration::from_secs(30),
            retry_for: Duration::from_secs(5),
            path: None,
            lists: Lists::Auto,
            largest_transfer: 16 << 20,
            uid: 0,
            gid: 0,
            cluster: None,
            over: TransportChoice::Auto,
            host: None,
        }
    }
}

/// Options for creating a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// Strip size in bytes; 0 for the cluster's default.
    pub strip_size: u64,
    /// Number of servers to stripe over. 0 for all that are up, as far as the manager and this
    /// client know. Any other number is met, if necessary with servers that are down.
    pub servers: u32,
    /// Permission bits.
    pub mode: u32,
    /// If true, an existing file is an error. If false, it is opened.
    pub exclusive: bool,
    /// How the file will be used, for the caches of its servers. They are told with the first
    /// access to each ([`File::advise`] tells them at once).
    pub hints: CacheHints,
}

impl Default for CreateOptions {
    /// Returns the cluster's strip size, all servers, `0o644`, exclusive, no hints.
    fn default() -> CreateOptions {
        CreateOptions { strip_size: 0, servers: 0, mode: 0o644, exclusive: true, hints: CacheHints::default() }
    }
}

/// Options for opening a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFileOptions {
    /// How the file will be used, as in [`CreateOptions::hints`].
    pub hints: CacheHints,
}

/// Information about a file or directory.
#[derive(Clone, Debug)]
pub struct Stat {
    /// Its handle.
    pub handle: Handle,
    /// Its attributes, including the size of a file.
    pub attr: fs_proto::Attr,
    /// The distribution of a file; `None` for a directory.
    pub distribution: Option<fs_proto::Distribution>,
    /// A file's datafiles, in the order of the distribution.
    pub datafiles: Vec<Datafile>,
    /// The servers that have not carried out the last change of a file's size. The size and the
    /// datafiles are those that it is to have. Empty as a rule.
    pub unfinished: Vec<Unfinished>,
}

/// A server that has not carried out a change of a file's size.
#[derive(Clone, Debug)]
pub struct Unfinished {
    /// The server.
    pub server: ServerName,
    /// The size that its datafile is to get, in bytes.
    pub size: u64,
    /// Why it cannot. It is tried again all the same. `None` if it has not answered yet.
    pub error: Option<String>,
}

/// A server's answer to a ping.
#[derive(Clone, Debug)]
pub struct Pong {
    /// The server.
    pub server: ServerName,
    /// The time until the reply, or the reason why there is none.
    pub result: Result<Duration, Error>,
}

/// The latencies of several pings of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The shortest.
    pub least: Duration,
    /// All together.
    pub sum: Duration,
}

/// Space at one I/O server.
#[derive(Clone, Debug)]
pub struct ServerSpace {
    /// The server.
    pub server: ServerName,
    /// The size and use of its store, or the reason why they are not known.
    pub result: Result<IodStat, Error>,
}

/// Space in the whole file system.
#[derive(Clone, Debug)]
pub struct Space {
    /// Counts of what the manager holds.
    pub manager: ManagerStat,
    /// The space at each I/O server.
    pub servers: Vec<ServerSpace>,
}

/// Counters of a client's activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientStats {
    /// Requests with data, by path. The counts are those of all its endpoints, and so include other
    /// clients that share them.
    pub paths: PathCounters,
    /// Number of requests that were sent again after a connection was lost.
    pub resent: u64,
}

/// A client of one file system. A clone is another handle to the same client. It belongs to the
/// tasks of one thread. A [`SharedClient`] is the same for any thread.
pub struct Client<S: Threading = OneThread>(Arc<Inner<S>>);

/// A client that any thread can use, if the transport is `Send`. Its files, and the futures of
/// both, are `Send` too.
pub type SharedClient = Client<AnyThread>;

pub(crate) struct Inner<S: Threading> {
    pub(crate) connections: Connections<S>,
    pub(crate) options: ClientOptions,
    pub(crate) foreign: Foreign,
    /// The files that are open in this client.
    files: Locked<BTreeMap<FileHandle, OpenState>>,
    /// The handle that the client was made over, if any. Its drivers end with the last handle.
    _handle: Option<bmi::Handle>,
}

/// What a client knows about a file that it has open.
#[derive(Clone, Copy, Debug, Default)]
struct OpenState {
    /// Number of [`File`]s.
    open: usize,
    /// The size that is recorded at the manager, as far as this client knows. It may have been
    /// withdrawn. `None` is certain: no size is recorded, and a write need not withdraw one.
    recorded_size: Option<u64>,
    /// Number of times that a size was noted here. An answer of the manager to an earlier question
    /// does not replace a size that was noted meanwhile, because the size may be recorded after the
    /// answer.
    noted: u64,
}

impl OpenState {
    fn note(&mut self, size: u64) {
        self.recorded_size = Some(size);
        self.noted += 1;
    }
}

impl<S: Threading> Clone for Client<S> {
    fn clone(&self) -> Client<S> {
        Client(self.0.clone())
    }
}

impl SharedClient {
    /// Creates a client like [`Client::connect`], over a handle, whose drivers drive it. If the
    /// handle has several endpoints, the client uses the first. Other clients and other parts of
    /// the program may use the same handle.
    ///
    /// The client and its files keep the handle. If nothing else has one, their end closes it, and
    /// the connections end in order.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_through(
        handle: bmi::Handle,
        manager: Addr,
        options: ClientOptions,
    ) -> Result<SharedClient, Error> {
        let endpoint = handle.endpoints().next().expect("a handle has an endpoint").clone();
        let endpoints = Endpoints::one(manager.scheme(), endpoint);
        Client::open_over(endpoints, Some(handle), manager, options, |_, _, _| {}).await
    }
}

impl<S: Threading> Client<S> {
    /// Creates a client of the file system whose manager listens at `manager`. Asks the manager for
    /// the list of I/O servers. They are connected when they are first needed.
    ///
    /// # Errors
    /// If the manager cannot be reached, or uses another version of the protocol.
    pub async fn connect(endpoint: Endpoint<S>, manager: Addr, options: ClientOptions) -> Result<Client<S>, Error> {
        Client::connect_over(Endpoints::one(manager.scheme(), endpoint), manager, options).await
    }

    /// Creates a client like [`Client::connect`], but with one endpoint for each of several
    /// transports. Each server is reached over the best transport that works, or as
    /// [`ClientOptions::over`] requests.
    ///
    /// # Errors
    /// As [`Client::connect`]; `Unreachable` if a server cannot be reached over the requested
    /// transport.
    pub async fn connect_over(
        endpoints: Endpoints<S>,
        manager: Addr,
        options: ClientOptions,
    ) -> Result<Client<S>, Error> {
        Client::connect_waiting(endpoints, manager, options, |_, _, _| {}).await
    }

    /// Creates a client like [`Client::connect_over`]. Calls `waiting` when a server has been
    /// waited for a second, once for each request at most: with the server, how long it is waited
    /// for in all, and the reason. That time is [`ClientOptions::retry_for`], or the time limit if
    /// the server may have made a change already.
    ///
    /// # Errors
    /// As [`Client::connect_over`].
    pub async fn connect_waiting(
        endpoints: Endpoints<S>,
        manager: Addr,
        options: ClientOptions,
        waiting: impl Fn(&ServerName, Duration, &str) + Send + Sync + 'static,
    ) -> Result<Client<S>, Error> {
        Client::open_over(endpoints, None, manager, options, waiting).await
    }

    async fn open_over(
        endpoints: Endpoints<S>,
        handle: Option<bmi::Handle>,
        manager: Addr,
        options: ClientOptions,
        waiting: impl Fn(&ServerName, Duration, &str) + Send + Sync + 'static,
    ) -> Result<Client<S>, Error> {
        let ClientOptions { id, timeout, retry_for, over, ref host, cluster, .. } = options;
        let preference = Preference { client: id, timeout, over, host: host.clone() };
        let manager = ServerName { addr: manager, iod: None };
        let client = Client(Arc::new(Inner {
            connections: Connections::new(endpoints, preference, manager, cluster, retry_for, Box::new(waiting)),
            options,
            foreign: Foreign::new(),
            files: Locked::default(),
            _handle: handle,
        }));
        client.refresh().await?;
        Ok(client)
    }

    /// Asks the manager again for the list of I/O servers.
    ///
    /// # Errors
    /// If the manager cannot be reached.
    pub async fn refresh(&self) -> Result<(), Error> {
        let learned = self.0.connections.learn_cluster(self.0.deadline()).await;
        learned.map_err(|failure| Error::from(failure).during("connect"))
    }

    // ---- getters --------------------------------------------------------------------------------

    /// Returns the endpoint that the client uses. If there are several, returns the first.
    pub fn endpoint(&self) -> &Endpoint<S> {
        self.0.connections.endpoint()
    }

    /// Returns all endpoints that the client uses.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint<S>> {
        self.0.connections.endpoints()
    }

    /// Allocates `len` zero bytes of the kind of memory that the client's transports move best. Use
    /// it for data that is read or written often. Any other memory works too. Between processes of
    /// one host, other memory costs one more copy.
    ///
    /// # Errors
    /// `Exhausted` if there is not enough memory.
    pub fn memory(&self, len: usize) -> Result<Memory, bmi::Error> {
        if self.0.connections.shares_memory() { Memory::shareable(len) } else { Memory::zeroed(len) }
    }

    /// Returns the client's settings.
    pub fn options(&self) -> &ClientOptions {
        &self.0.options
    }

    /// Returns the manager.
    pub fn manager(&self) -> &ServerName {
        self.0.connections.manager()
    }

    /// Returns the cluster that the client is connected to.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.0.connections.cluster()
    }

    /// Returns the I/O servers, in the order in which layouts number them.
    pub fn iods(&self) -> Vec<ServerName> {
        self.0.connections.iods().to_vec()
    }

    /// Returns the record of the program's own memory that was used in [`File::read_extended_raw`]
    /// and [`File::write_extended_raw`]. Memory must be forgotten there before it is freed or
    /// unmapped.
    pub fn foreign(&self) -> &Foreign {
        &self.0.foreign
    }

    /// Returns the counters of the client's activity.
    pub fn stats(&self) -> ClientStats {
        let each = self.endpoints().map(|endpoint| endpoint.with(|engine| engine.path_counters()));
        let paths = each.fold(PathCounters::default(), |sum, paths| sum.plus(&paths));
        ClientStats { paths, resent: self.0.connections.resent() }
    }

    pub(crate) fn inner(&self) -> &Inner<S> {
        &self.0
    }

    // ---- names ----------------------------------------------------------------------------------

    /// Creates a directory. Its parent must exist.
    ///
    /// # Errors
    /// `Exists`, `NotFound` for the parent, and those of every request.
    pub async fn mkdir(&self, path: &FsPath) -> Result<DirHandle, Error> {
        let (uid, gid) = (self.0.options.uid, self.0.options.gid);
        let request = ManagerRequest::Mkdir { place: place(path), mode: 0o755, uid, gid };
        let entry = self.ask_entry(request).await.map_err(|error| error.during(format!("mkdir {path}")))?;
        entry.handle.dir().ok_or_else(|| self.odd(ManagerReply::Done.into()))
    }

    /// Creates a directory and all its missing parents.
    ///
    /// # Errors
    /// `NotDirectory` if one of them exists as a file, and those of every request.
    pub async fn mkdir_all(&self, path: &FsPath) -> Result<(), Error> {
        let mut missing = vec![path.clone()];
        while let Some(path) = missing.last().cloned() {
            match self.mkdir(&path).await {
                Ok(_) => {}
                Err(error) if error.code() == ErrorCode::NotFound && !path.is_root() => {
                    missing.extend(path.parent());
                    continue;
                }
                Err(error) if error.code() == ErrorCode::Exists || path.is_root() => {
                    if self.lookup(&path).await?.attr.kind != Kind::Dir {
                        let text = format!("{path} is a file");
                        return Err(Error::new(ErrorCode::NotDirectory, text).during(format!("mkdir {path}")));
                    }
                    tracing::trace!(%error, "there already");
                }
                Err(error) => return Err(error),
            }
            missing.pop();
        }
        Ok(())
    }

    /// Creates a file and opens it.
    ///
    /// # Errors
    /// `Exists` if it exists and `options` are exclusive, `IsDirectory`, `NotFound` for the parent
    /// directory, `Invalid` for an impossible layout, and those of every request.
    pub async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<File<S>, Error> {
        let existing = if options.exclusive { Existing::Refuse } else { Existing::Open };
        self.create_as(path, options, existing).await
    }

    /// Creates a file without a name. When it is complete, [`Draft::publish`] gives it the name
    /// `path` and replaces a file that is there, in one step. Until then nobody else sees it, and
    /// an existing file stays as it is. If `options` request no strip size or no number of servers,
    /// those of the existing file are used, as far as enough servers are up. `exclusive` has no
    /// effect.
    ///
    /// The file is removed if this client has no connection to the manager for ten minutes. A
    /// program that writes for longer without other requests runs [`Client::stay_connected`]
    /// beside.
    ///
    /// # Errors
    /// `IsDirectory`, `NotFound` for the parent directory, `Invalid` for an impossible layout, and
    /// those of every request.
    pub async fn draft(&self, path: &FsPath, options: CreateOptions) -> Result<Draft<S>, Error> {
        Ok(Draft::new(self.create_as(path, options, Existing::Replace).await?))
    }

    async fn create_as(&self, path: &FsPath, options: CreateOptions, existing: Existing) -> Result<File<S>, Error> {
        let CreateOptions { strip_size, servers, mode, hints, .. } = options;
        let (uid, gid) = (self.0.options.uid, self.0.options.gid);
        let place = place(path);
        let avoid = self.0.connections.avoided();
        let request = ManagerRequest::Create { place, mode, uid, gid, strip_size, servers, avoid, existing };
        let during = |error: Error| error.during(format!("create {path}"));
        let entry = self.ask_entry(request).await.map_err(during)?;
        Ok(self.file(path, entry).await.map_err(during)?.hinting(hints))
    }

    /// Keeps a connection to the manager, so that it keeps the files without a name. Never returns.
    pub async fn stay_connected(&self) {
        loop {
            self.endpoint().sleep(STAY_CONNECTED).await;
            if let Err(error) = self.ask_manager(ManagerRequest::Ping).await {
                tracing::debug!(%error, "the manager does not answer");
            }
        }
    }

    /// Opens a file.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, and those of every request.
    pub async fn open(&self, path: &FsPath) -> Result<File<S>, Error> {
        self.open_with(path, OpenFileOptions::default()).await
    }

    /// Opens a file like [`Client::open`], with options.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn open_with(&self, path: &FsPath, options: OpenFileOptions) -> Result<File<S>, Error> {
        let during = |error: Error| error.during(format!("open {path}"));
        let entry = self.lookup(path).await.map_err(during)?;
        Ok(self.file(path, entry).await.map_err(during)?.hinting(options.hints))
    }

    /// Returns the manager's information about a path. The size of a file is not filled in; see
    /// [`Client::stat`].
    ///
    /// # Errors
    /// `NotFound`, and those of every request.
    pub async fn lookup(&self, path: &FsPath) -> Result<Entry, Error> {
        let request = ManagerRequest::Lookup { place: place(path) };
        self.ask_entry(request).await.map_err(|error| error.during(format!("lookup {path}")))
    }

    /// Returns the attributes of a path, with a file's size and datafiles.
    ///
    /// # Errors
    /// `NotFound`, and those of every request.
    pub async fn stat(&self, path: &FsPath) -> Result<Stat, Error> {
        let during = |error: Error| error.during(format!("stat {path}"));
        let entry = self.lookup(path).await.map_err(during)?;
        self.stat_of(path, entry).await.map_err(during)
    }

    /// Returns the attributes by handle, with a file's size and datafiles. `name` is used in
    /// messages.
    ///
    /// # Errors
    /// `Stale` or `NotFound` if the object was removed, and those of every request.
    pub async fn getattr(&self, name: &FsPath, handle: Handle) -> Result<Stat, Error> {
        let during = |error: Error| error.during(format!("stat {name}"));
        let entry = self.ask_entry(ManagerRequest::Getattr { handle }).await.map_err(during)?;
        self.stat_of(name, entry).await.map_err(during)
    }

    pub(crate) async fn stat_of(&self, path: &FsPath, entry: Entry) -> Result<Stat, Error> {
        let mut attr = entry.attr;
        if entry.layout.is_none() {
            return Ok(Stat {
                handle: entry.handle,
                attr,
                distribution: None,
                datafiles: Vec::new(),
                unfinished: Vec::new(),
            });
        }
        let file = self.file(path, entry.clone()).await?;
        let mut pending = Vec::new();
        let datafiles = match file.datafiles().await {
            Ok(datafiles) => datafiles,
            Err(error) => {
                // A change of its size may be why a server does not answer.
                pending = self.pending_truncates(file.handle()).await.unwrap_or_default();
                if pending.is_empty() {
                    return Err(error);
                }
                file.datafiles_with(&pending).await?
            }
        };
        let sizes: Vec<u64> = datafiles.iter().map(|datafile| datafile.size).collect();
        file.check_lengths(&sizes.iter().copied().map(Some).collect::<Vec<_>>()).await?;
        attr.size = file.distribution().file_size(&sizes);
        // A write after `touched_ns` is a later change of the content, and of the attributes too. A
        // file with a recorded size was not written since.
        let written = datafiles.iter().map(|datafile| datafile.mtime_ns).max().unwrap_or(0);
        if written > entry.touched_ns && entry.recorded_size.is_none() {
            (attr.mtime_ns, attr.ctime_ns) = (written, attr.ctime_ns.max(written));
        }
        let unfinished = pending.into_iter().map(|PendingTruncate { iod, size, error, .. }| {
            let server = self.0.connections.iods().get(iod as usize).cloned();
            let error = error.as_ref().map(ToString::to_string);
            Unfinished { server: server.unwrap_or_else(|| self.manager().clone()), size, error }
        });
        let (distribution, unfinished) = (Some(*file.distribution()), unfinished.collect());
        Ok(Stat { handle: entry.handle, attr, distribution, datafiles, unfinished })
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// `NotFound`, and those of every request.
    pub async fn setattr(&self, path: &FsPath, set: SetAttr) -> Result<Entry, Error> {
        let during = |error: Error| error.during(format!("setattr {path}"));
        let handle = self.lookup(path).await.map_err(during)?.handle;
        self.ask_entry(ManagerRequest::Setattr { handle, set }).await.map_err(during)
    }

    /// Sets the length of a file to `size` bytes.
    ///
    /// # Errors
    /// As [`File::set_len`].
    pub async fn truncate(&self, path: &FsPath, size: u64) -> Result<(), Error> {
        self.open(path).await?.set_len(size).await
    }

    /// Moves a name. A file or an empty directory at `to` is replaced.
    ///
    /// # Errors
    /// `NotFound`, `NotEmpty`, `IsDirectory`, `NotDirectory`, and those of every request.
    pub async fn rename(&self, from: &FsPath, to: &FsPath) -> Result<(), Error> {
        let request = ManagerRequest::Rename { from: place(from), to: place(to) };
        self.ask_done(request).await.map_err(|error| error.during(format!("rename {from} to {to}")))
    }

    /// Removes a file or an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotEmpty`, `IsDirectory` or `NotDirectory` depending on `kind`, and those of
    /// every request.
    pub async fn remove(&self, path: &FsPath, kind: RemoveKind) -> Result<(), Error> {
        let request = ManagerRequest::Remove { place: place(path), kind };
        self.ask_done(request).await.map_err(|error| error.during(format!("remove {path}")))
    }

    /// Returns all entries of a directory, sorted by name.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, and those of every request.
    pub async fn readdir(&self, path: &FsPath) -> Result<Vec<DirEntry>, Error> {
        let dir = self.read_dir(path).await?.dir;
        self.readdir_of(path, dir).await
    }

    pub(crate) async fn readdir_of(&self, path: &FsPath, dir: DirHandle) -> Result<Vec<DirEntry>, Error> {
        let mut pages = self.pages(path, dir);
        let mut all = Vec::new();
        while let Some(page) = pages.next_page().await? {
            all.extend(page);
        }
        Ok(all)
    }

    /// Lists a directory page by page.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, and those of every request.
    pub async fn read_dir(&self, path: &FsPath) -> Result<ReadDir<S>, Error> {
        let during = |error: Error| error.during(format!("readdir {path}"));
        let entry = self.lookup(path).await.map_err(during)?;
        let not_dir = || during(Error::new(ErrorCode::NotDirectory, format!("{path} is a file")));
        Ok(self.pages(path, entry.handle.dir().ok_or_else(not_dir)?))
    }

    pub(crate) fn pages(&self, path: &FsPath, dir: DirHandle) -> ReadDir<S> {
        ReadDir { client: self.clone(), path: path.clone(), dir, after: Some(String::new()) }
    }

    // ---- servers --------------------------------------------------------------------------------

    /// Pings every server, the manager first.
    pub async fn ping(&self) -> Vec<Pong> {
        let manager = std::iter::once(self.manager().clone());
        join_all(manager.chain(self.iods()).map(|server| self.ping_server(server))).await
    }

    /// Pings every server `count` times, the manager first. A server that has failed to answer is
    /// not asked again, because each question could take a whole time limit.
    pub async fn latencies(&self, count: u32) -> Vec<(ServerName, Result<Latency, Error>)> {
        let first = self.ping().await.into_iter();
        let mut all: Vec<(ServerName, Result<Latency, Error>)> =
            first.map(|pong| (pong.server, pong.result.map(|took| Latency { least: took, sum: took }))).collect();
        for _ in 1..count {
            let again = all.iter_mut().filter(|(_, result)| result.is_ok());
            join_all(again.map(async |(server, result)| {
                let took = self.ping_server(server.clone()).await.result;
                *result = match (result.clone(), took) {
                    (Ok(Latency { least, sum }), Ok(took)) => Ok(Latency { least: least.min(took), sum: sum + took }),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                };
            }))
            .await;
        }
        all
    }

    /// Pings one server. Takes one time limit at most.
    pub async fn ping_server(&self, server: ServerName) -> Pong {
        let body: RequestBody = match server.iod {
            None => ManagerRequest::Ping.into(),
            Some(_) => IodRequest::Ping.into(),
        };
        let deadline = self.0.deadline();
        let connected = self.0.connections.peer(&server, deadline).await;
        let start = self.endpoint().now();
        let result = match connected {
            Err(failure) => Err(failure),
            Ok(_) => self.0.ask(&server, deadline, Resend::Never, body).await,
        };
        let took = self.endpoint().now().since(start);
        Pong { result: result.map(|_| took).map_err(|failure| Error::from(failure).during("ping")), server }
    }

    /// Returns the route to each server, the manager first, and the reason for its choice. Connects
    /// servers that are not connected yet.
    pub async fn routes(&self) -> Vec<(ServerName, Result<Route, Error>)> {
        let manager = std::iter::once(self.manager().clone());
        let ask = async |server: ServerName| {
            let connected = self.0.connections.peer(&server, self.0.deadline()).await;
            let gone = || Failure::at(server.clone(), ErrorCode::Unreachable, "the connection was lost at once");
            let route = connected.and_then(|_| self.0.connections.route(&server.addr).ok_or_else(gone));
            let failed = |failure| Error::from(failure).during("connect");
            let route = route.map(|route| (*route).clone()).map_err(failed);
            (server, route)
        };
        join_all(manager.chain(self.iods()).map(ask)).await
    }

    /// Returns the plan for each I/O server: which path data of each size takes in each direction,
    /// and why. With `calibrate`, the thresholds are first measured and then used from now on. This
    /// takes some milliseconds for each adapter and each host that it reaches. Otherwise the
    /// thresholds are those of the endpoint.
    pub async fn plans(&self, calibrate: bool) -> Vec<(ServerName, Result<Plan, Error>)> {
        let mut known = Calibrations::default();
        let mut plans = Vec::new();
        for server in self.iods() {
            let plan = self.plan_of(&server, calibrate.then_some(&mut known)).await;
            plans.push((server, plan));
        }
        plans
    }

    async fn plan_of(&self, server: &ServerName, known: Option<&mut Calibrations>) -> Result<Plan, Error> {
        let deadline = self.0.deadline();
        let failed = |error| Error::from(Failure::transport(server.clone(), error)).during("plan");
        // The reply implies that the server's information sent at connection setup has arrived: its
        // slots.
        let ping = RequestBody::Iod(IodRequest::Ping);
        self.0
            .ask(server, deadline, Resend::Repeat, ping)
            .await
            .map_err(|failure| Error::from(failure).during("plan"))?;
        let lost = || bmi::Error::new(bmi::ErrorKind::PeerLost, "the connection was lost at once");
        let peer = self.0.connections.connected(&server.addr).ok_or_else(|| failed(lost()))?;
        if let Some(known) = known {
            paths::calibrate(&peer, known, Options::by(deadline)).await.map_err(failed)?;
        }
        Ok(peer.endpoint().with(|engine| engine.plan(Some(peer.id()))))
    }

    /// Returns the space in use and free, of the manager and all I/O servers.
    ///
    /// # Errors
    /// If the manager does not answer. If an I/O server does not answer, the result names it.
    pub async fn statfs(&self) -> Result<Space, Error> {
        let reply = self.ask_manager(ManagerRequest::Statfs).await.map_err(|error| error.during("statfs"))?;
        let ManagerReply::Stat(manager) = reply else { return Err(self.odd(reply.into())) };
        let ask = async |server: ServerName| {
            let result = match self.0.ask(&server, self.0.deadline(), Resend::Repeat, IodRequest::Statfs).await {
                Ok(ReplyBody::Iod(IodReply::Stat(stat))) => Ok(stat),
                Ok(other) => Err(Error::from(unexpected(&server, &other)).during("statfs")),
                Err(failure) => Err(Error::from(failure).during("statfs")),
            };
            ServerSpace { server, result }
        };
        Ok(Space { manager, servers: join_all(self.iods().into_iter().map(ask)).await })
    }

    // ---- plumbing -------------------------------------------------------------------------------

    /// Opens the file that the manager's `entry` describes.
    pub(crate) async fn file(&self, path: &FsPath, entry: Entry) -> Result<File<S>, Error> {
        let (Handle::File(handle), Some(layout)) = (entry.handle, entry.layout) else {
            return Err(Error::new(ErrorCode::IsDirectory, format!("{path} is a directory")));
        };
        let known = |layout: &fs_proto::Layout| {
            let iods = self.0.connections.iods();
            let servers = layout.datafiles().iter().map(|(iod, _)| iods.get(*iod as usize).cloned());
            servers.collect::<Option<Vec<ServerName>>>()
        };
        let servers = match known(&layout) {
            Some(servers) => servers,
            None => {
                // The file is on a server that joined later.
                self.refresh().await?;
                let unknown =
                    || Error::new(ErrorCode::Protocol, "the file lies on a server that the manager does not know");
                known(&layout).ok_or_else(unknown)?
            }
        };
        Ok(File::new(self.clone(), path.clone(), handle, layout, servers, entry.recorded_size))
    }

    /// Asks the manager for a file. `recorded_size` is then right at this moment.
    pub(crate) async fn look_again(&self, file: FileHandle) -> Result<Entry, Error> {
        self.ask_entry(ManagerRequest::Getattr { handle: Handle::File(file) }).await
    }

    /// A file was opened. `recorded_size` is that of its entry.
    pub(crate) fn opened(&self, file: FileHandle, recorded_size: Option<u64>) {
        self.0.files.with(|files| {
            let state = files.entry(file).or_default();
            state.open += 1;
            recorded_size.into_iter().for_each(|size| state.note(size));
        });
    }

    /// Returns what this client knows about a file that is open.
    fn state(&self, file: FileHandle) -> OpenState {
        self.0.files.with(|files| files.get(&file).copied().unwrap_or_default())
    }

    /// Returns the size of an open file that was recorded, as far as this client knows. The size
    /// may have been withdrawn since.
    pub(crate) fn recorded_size(&self, file: FileHandle) -> Option<u64> {
        self.state(file).recorded_size
    }

    /// Notes a size before it is recorded, so that a write from now on withdraws it.
    pub(crate) fn note_size(&self, file: FileHandle, size: u64) {
        self.0.files.with(|files| files.get_mut(&file).into_iter().for_each(|state| state.note(size)));
    }

    /// Takes what the manager has answered to a question or a change that began when `noted` sizes
    /// had been noted.
    fn learn_size(&self, file: FileHandle, noted: u64, size: Option<u64>) {
        self.0.files.with(|files| {
            let state = files.get_mut(&file).filter(|state| state.noted == noted);
            state.into_iter().for_each(|state| state.recorded_size = size);
        });
    }

    /// Returns the recorded size of an open file if it is still recorded. Asks the manager, unless
    /// it is known that none is recorded.
    pub(crate) async fn confirm_size(&self, file: FileHandle) -> Result<Option<u64>, Error> {
        let OpenState { recorded_size: Some(_), noted, .. } = self.state(file) else { return Ok(None) };
        let size = self.look_again(file).await?.recorded_size;
        self.learn_size(file, noted, size);
        Ok(size)
    }

    /// Withdraws the recorded size of an open file before this client writes to it.
    pub(crate) async fn withdraw_size(&self, file: FileHandle) -> Result<(), Error> {
        let OpenState { recorded_size: Some(_), noted, .. } = self.state(file) else { return Ok(()) };
        if !mutated("client/recorded-size-not-withdrawn") {
            self.ask_done(ManagerRequest::RecordSize { file, size: None }).await?;
        }
        self.learn_size(file, noted, None);
        Ok(())
    }

    /// Sets the length of a file of several servers. The manager then withdraws the recorded size.
    pub(crate) async fn truncate_all(&self, file: FileHandle, size: u64) -> Result<(), Error> {
        let noted = self.state(file).noted;
        let reply = self.ask_manager(ManagerRequest::Truncate { file, size }).await?;
        self.learn_size(file, noted, None);
        let ManagerReply::Truncation(pending) = reply else { return Err(self.odd(reply.into())) };
        let failures = pending.into_iter().map(|PendingTruncate { iod, error, .. }| {
            let text = match error {
                Some(error) => format!(
                    "it is decided, but this server fails to carry it out ({error}), and goes on trying; another size may \
                     be set, or the file removed"
                ),
                None => "it is decided, and this server will carry it out before it serves the file again".to_owned(),
            };
            let server = self.0.connections.iods().get(iod as usize).cloned();
            Failure::at(server.unwrap_or_else(|| self.manager().clone()), ErrorCode::Unfinished, text)
        });
        let failures: Vec<Failure> = failures.collect();
        if failures.is_empty() { Ok(()) } else { Err(Error::combined(failures)) }
    }

    /// Returns the changes of a file's size that servers have not carried out.
    async fn pending_truncates(&self, file: FileHandle) -> Result<Vec<PendingTruncate>, Error> {
        match self.ask_manager(ManagerRequest::Truncation { file }).await? {
            ManagerReply::Truncation(pending) => Ok(pending),
            other => Err(self.odd(other.into())),
        }
    }

    /// Records the size of a complete file that this client has created and has open.
    pub(crate) async fn record_size(&self, file: FileHandle, size: u64) -> Result<(), Error> {
        self.note_size(file, size);
        self.ask_done(ManagerRequest::RecordSize { file, size: Some(size) }).await
    }

    async fn ask_manager(&self, request: ManagerRequest) -> Result<ManagerReply, Error> {
        let resend = if request.changes() { Resend::UntilDeadline } else { Resend::Repeat };
        match self.0.ask(self.manager(), self.0.deadline(), resend, request).await? {
            ReplyBody::Manager(reply) => Ok(reply),
            other => Err(self.odd(other)),
        }
    }

    pub(crate) async fn ask_entry(&self, request: ManagerRequest) -> Result<Entry, Error> {
        match self.ask_manager(request).await? {
            ManagerReply::Entry(entry) => Ok(entry),
            other => Err(self.odd(other.into())),
        }
    }

    pub(crate) async fn ask_done(&self, request: ManagerRequest) -> Result<(), Error> {
        match self.ask_manager(request).await? {
            ManagerReply::Done => Ok(()),
            other => Err(self.odd(other.into())),
        }
    }

    fn odd(&self, reply: ReplyBody) -> Error {
        unexpected(self.manager(), &reply).into()
    }
}

impl<S: Threading> Client<S> {
    /// A file that was opened is no longer used.
    pub(crate) fn closed(&self, file: FileHandle) {
        self.0.files.with(|files| {
            if let Some(state) = files.get_mut(&file) {
                state.open -= 1;
                if state.open == 0 {
                    files.remove(&file);
                }
            }
        });
    }
}

impl<S: Threading> Inner<S> {
    /// Returns the deadline of a request that begins now.
    pub(crate) fn deadline(&self) -> Time {
        self.connections.endpoint().now() + self.options.timeout
    }

    /// Sends a request without data.
    pub(crate) async fn ask(
        &self,
        server: &ServerName,
        deadline: Time,
        resend: Resend,
        body: impl Into<RequestBody>,
    ) -> Result<ReplyBody, Failure> {
        Ok(self.connections.call(server, deadline, resend, &Outgoing::plain(body)).await?.body)
    }
}

/// A directory listing in progress.
pub struct ReadDir<S: Threading = OneThread> {
    client: Client<S>,
    path: FsPath,
    dir: DirHandle,
    /// The last name of the previous page; `None` at the end.
    after: Option<String>,
}

impl<S: Threading> ReadDir<S> {
    /// Returns the next page, or `None` at the end.
    ///
    /// # Errors
    /// `Stale` or `NotFound` if the directory was removed, and those of every request.
    pub async fn next_page(&mut self) -> Result<Option<Vec<DirEntry>>, Error> {
        let Some(after) = self.after.take() else { return Ok(None) };
        let request =
            ManagerRequest::Readdir { dir: self.dir, after: after.clone(), max: fs_proto::limits::MAX_ENTRIES as u32 };
        let during = |error: Error| error.during(format!("readdir {}", self.path));
        let reply = self.client.ask_manager(request).await.map_err(during)?;
        let ManagerReply::Entries { entries, more } = reply else { return Err(self.client.odd(reply.into())) };
        // A server could say "more" and send nothing, or resend earlier entries. Without this check
        // the client would ask again endlessly.
        let before = entries.first().is_some_and(|first| first.name <= after);
        if before || !entries.is_sorted_by(|one, next| one.name < next.name) {
            let text = "a page of a directory out of its order";
            return Err(during(Failure::at(self.client.manager().clone(), ErrorCode::Protocol, text).into()));
        }
        self.after = entries.last().filter(|_| more).map(|entry| entry.name.clone());
        Ok((!entries.is_empty()).then_some(entries))
    }
}

pub(crate) fn place(path: &FsPath) -> Place {
    Place::root(path.as_str())
}
