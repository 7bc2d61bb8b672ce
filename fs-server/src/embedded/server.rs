//! A complete server: its store, and an endpoint and a request loop for each transport that it
//! listens on.
//!
//! **Why several endpoints and not one over several transports.** An endpoint's protocol is tuned
//! to one adapter: its limits, its registrations, its event fd. Separate endpoints share only the
//! store. If one transport is missing or fails, the others are not affected.
//!
//! **Invariants**
//! 1. Storage comes first: a server does not listen if it cannot store data or if its directory is
//!    not its own. An I/O server listens before the manager has confirmed its store, but serves
//!    nothing.
//! 2. The address that the server is known by is required, because clients connect to it first. All
//!    other unavailable addresses are named in one warning, and the server runs without them.
//! 3. All loops stop together.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bmi::{AnyTransport, OpenOptions};
use bmi_core::driver::{MonotonicClock, Waiting, event};
use bmi_core::{Addr, AsyncEndpoint, Scheme};
use fs_proto::{ErrorCode, FsError, Identity, StoreId};
use futures_util::FutureExt;

use super::waiting_room::WaitingRoom;
use crate::descriptors::{self, Division};
use crate::iod::{Iod, IodSettings, LabelLock, Membership};
use crate::manager::{Manager, ManagerSettings, RollCall, invalid_directory};
use crate::service::{Limits, Standing, serve_all};
use crate::store::{DataStore, Directory, FileStore, Label, MetaStore};
use crate::workers::Workers;

/// Returns the system's time, in nanoseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "attributes show the time of day; servers on a real machine take it from there"
)]
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Returns a random number that no other start of a server has.
pub(crate) fn random_number() -> Result<u128, FsError> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| FsError::new(ErrorCode::Io, format!("/dev/urandom: {error}")))?;
    Ok(u128::from_le_bytes(bytes))
}

/// The name of the manager's database.
pub(crate) const DATABASE: &str = "metadata.redb";

/// The role of a server.
pub(crate) enum Role {
    Manager {
        dir: PathBuf,
        /// The addresses of the I/O servers are filled in when they are known.
        settings: ManagerSettings,
        /// If set, the metadata was restored: all I/O servers are asked first how far they have
        /// come. Called with lines about the progress.
        restored: Option<fn(&str)>,
    },
    Iod {
        index: u32,
        dir: PathBuf,
        settings: IodSettings,
        offload: u64,
        heartbeat: Duration,
        /// If true, the store replaces the one that the server had.
        replace: bool,
    },
}

/// The addresses of the servers that a server works with: the I/O servers of a manager, the manager
/// of an I/O server.
pub(crate) type Neighbours = Vec<Addr>;

/// Everything that a server needs to start.
pub(crate) struct Server {
    pub(crate) role: Role,
    /// The addresses to listen on. The first is the one that the server is known by.
    pub(crate) listen: Vec<Addr>,
    /// The schemes over which it reaches its neighbours.
    pub(crate) connects: Vec<Scheme>,
    /// The server's name for the machine that it runs on.
    pub(crate) host: String,
    pub(crate) transports: OpenOptions,
    pub(crate) endpoint: bmi_core::Config,
    pub(crate) limits: Limits,
    /// How the server waits for requests.
    pub(crate) waiting: Waiting,
    /// Number of servers that share the process's limit of file descriptors, with this one.
    pub(crate) sharers: usize,
}

/// An open transport.
#[derive(Clone)]
struct OpenEndpoint {
    scheme: Scheme,
    endpoint: AsyncEndpoint<AnyTransport>,
}

impl Server {
    /// Runs the server on this thread until `stop` ends. Calls `ready` with the addresses once it
    /// listens on all of them. `ready` returns its neighbours. Calls `serving` once it serves.
    pub(crate) fn run(
        mut self,
        ready: impl FnOnce(&[Addr]) -> Result<Neighbours, FsError>,
        serving: impl FnOnce(),
        stop: impl Future<Output = ()>,
    ) -> Result<(), FsError> {
        let descriptors = self.divide_descriptors();
        match &self.role {
            Role::Manager { dir, .. } => {
                let directory = open_manager_directory(dir)?;
                self.run_manager(&directory, ready, serving, stop)
            }
            Role::Iod { index, dir, .. } => {
                let directory = Directory::open(dir, fs_proto::Role::Iod(*index))?;
                self.run_iod(directory, descriptors.datafiles(), ready, serving, stop)
            }
        }
    }

    /// Raises the process's limit of file descriptors as far as it may, and divides this server's
    /// part of it. Lowers the numbers of connections that the transports allow, if there are too
    /// few.
    fn divide_descriptors(&mut self) -> Division {
        let limit = descriptors::raise() / self.sharers.max(1);
        let schemes: Vec<Scheme> = self.listen.iter().map(Addr::scheme).chain(self.connects.iter().copied()).collect();
        let stores = matches!(self.role, Role::Iod { .. });
        let division = Division::settle(limit, stores, &schemes, &mut self.transports);
        if division.is_short() {
            let transports = &self.transports;
            for scheme in schemes {
                let (all, half_open) = match scheme {
                    Scheme::Tcp => (transports.tcp.max_connections, transports.tcp.max_half_open),
                    Scheme::Ib => (transports.ib.max_connections, transports.ib.max_half_open),
                    Scheme::Shm => (transports.shm.max_connections, transports.shm.max_half_open),
                    _ => continue,
                };
                let most = &mut self.endpoint.limits.max_peers;
                *most = Division::established(all, half_open).min(*most);
            }
        }
        division.log(self.sharers);
        division
    }

    fn run_manager(
        &self,
        directory: &Directory,
        ready: impl FnOnce(&[Addr]) -> Result<Neighbours, FsError>,
        serving: impl FnOnce(),
        stop: impl Future<Output = ()>,
    ) -> Result<(), FsError> {
        let Role::Manager { settings, restored, .. } = &self.role else { unreachable!("only a manager gets here") };
        let store = MetaStore::open(directory.path().join(DATABASE))?;
        let known = directory.label().map(|label| (label.cluster, label.store));
        if crate::manager::identity_of(&store)? != known {
            let text = format!("{DATABASE} and the identity beside it are not of one cluster");
            return Err(invalid_directory(directory.path(), &text));
        }
        let (opened, addrs) = self.open_and_listen()?;
        let settings = ManagerSettings { iods: ready(&addrs)?, ..settings.clone() };
        let endpoint = opened[0].endpoint.clone();
        let mut stop = std::pin::pin!(stop.fuse());
        if let Some(progress) = restored {
            let roll_call = RollCall::new(&store, &settings, endpoint.now())?;
            let own = roll_call.identity();
            let label = Label::new(own.cluster, fs_proto::Role::Manager, own.store);
            let endpoints: Vec<_> = opened.iter().map(|open| open.endpoint.clone()).collect();
            let identity = self.identity(&label, own.start, addrs.clone());
            let complete = roll_call.hold(&endpoints, identity, self.limits, progress, stop.as_mut());
            if !self.block_on(&opened, complete)? {
                return Ok(());
            }
            roll_call.conclude(&store)?;
        }
        let manager = Manager::new(endpoint, store, settings, random_number()?, wall_clock)?;
        let manager =
            opened.iter().fold(manager, |manager, open| manager.with_endpoint(open.scheme, open.endpoint.clone()));
        let own = manager.identity();
        let label = Label::new(own.cluster, fs_proto::Role::Manager, own.store);
        let standing = Standing::serving(self.identity(&label, own.start, addrs));
        let fronts: Vec<_> = opened.iter().map(|open| (open.endpoint.clone(), &manager)).collect();
        serving();
        let failure = Cell::new(None);
        let inventory = async {
            if let Some(progress) = restored {
                take_inventory(&manager, directory.path(), *progress).await;
            }
            std::future::pending::<()>().await;
        };
        let stop = async {
            tokio::select! {
                () = stop => {}
                error = manager.failure() => failure.set(Some(error)),
                () = inventory => {}
            }
        };
        self.block_on(&opened, serve_all(&fronts, &standing, self.limits, stop))?;
        failure.take().map_or(Ok(()), Err)
    }

    fn run_iod(
        &self,
        mut directory: Directory,
        open_files: usize,
        ready: impl FnOnce(&[Addr]) -> Result<Neighbours, FsError>,
        serving: impl FnOnce(),
        stop: impl Future<Output = ()>,
    ) -> Result<(), FsError> {
        let Role::Iod { index, settings, offload, heartbeat, replace, .. } = &self.role else {
            unreachable!("only an I/O server gets here")
        };
        // A directory that does not exist is made, so that it can be locked. It stays only if the
        // manager agrees.
        directory.claim()?;
        let (opened, addrs) = self.open_and_listen()?;
        let neighbours = ready(&addrs)?;
        let manager =
            neighbours.first().ok_or_else(|| FsError::new(ErrorCode::Invalid, "the manager has no address"))?;
        let way = opened.iter().find(|open| open.scheme == manager.scheme());
        let no_way = || FsError::new(ErrorCode::Unreachable, format!("{manager}: its transport cannot be opened here"));
        let endpoint = way.ok_or_else(no_way)?.endpoint.clone();
        let (number, instance) = (StoreId(random_number()?), random_number()?);
        let mut membership = Membership::new(endpoint, manager.clone(), *index, instance, *replace, *heartbeat);
        let labels = Rc::new(LabelLock::default());
        let mut stop = std::pin::pin!(stop.fuse());
        // Who asks meanwhile is told to wait.
        let room = WaitingRoom::new(*index);
        let waiting: Vec<_> = opened.iter().map(|open| (open.endpoint.clone(), &room)).collect();
        let offload = *offload;
        let begin = async {
            let label = match directory.label() {
                None => Some(membership.ask_for_label(number).await?),
                Some(_) => None,
            };
            // The names of all datafiles are read, while the others are told to wait.
            let open = move || {
                if let Some(label) = label {
                    directory.establish(&label)?;
                }
                let store = FileStore::open(directory.path(), offload)?.keeping_open(open_files);
                Ok::<_, FsError>(store.locked_by(directory.lock()))
            };
            let store = Rc::new(Workers::new("disk-opening", 1).run(open).await??);
            let start = membership.begin(&store, &labels).await?;
            Ok::<_, FsError>((store, start))
        };
        let (store, start) = match self.block_on(&opened, room.until(&waiting, self.limits, begin, stop.as_mut()))? {
            Some(begun) => begun?,
            None => return Ok(()),
        };
        let label = store.label().ok_or_else(|| FsError::new(ErrorCode::Invalid, "the store has lost its label"))?;
        let standing = Standing::serving(self.identity(&label, start, addrs));
        // All transports share one set of buffers and one queue of clients.
        let first = Iod::new(opened[0].endpoint.clone(), store.clone(), *settings)?;
        let first = first.started_as(instance as u64).with_labels(labels.clone());
        let others: Vec<_> =
            opened[1..].iter().zip(1..).map(|(open, at)| first.beside(open.endpoint.clone(), at)).collect();
        let handlers = std::iter::once(&first).chain(&others);
        let fronts: Vec<_> = opened.iter().map(|open| open.endpoint.clone()).zip(handlers).collect();
        serving();
        let refusal = Cell::new(None);
        let stop = async {
            tokio::select! {
                () = stop => {}
                error = membership.keep(&store, &labels, start) => refusal.set(Some(error)),
                error = store.failure() => refusal.set(Some(error)),
            }
        };
        self.block_on(&opened, serve_all(&fronts, &standing, self.limits, stop))?;
        if !store.wait_until_idle(self.limits.reply_timeout) {
            tracing::warn!("the disk has not answered; the server ends without it, and its directory stays locked");
        }
        refusal.take().map_or(Ok(()), Err)
    }

    fn identity(&self, label: &Label, start: fs_proto::Start, addrs: Vec<Addr>) -> Identity {
        let Label { cluster, role, store, .. } = *label;
        Identity { cluster, role, store, start, host: self.host.clone(), addrs }
    }

    /// Runs `work` with all endpoints.
    fn block_on<R>(&self, opened: &[OpenEndpoint], work: impl Future<Output = R>) -> Result<R, FsError> {
        let endpoints: Vec<_> = opened.iter().map(|open| open.endpoint.clone()).collect();
        Ok(event::block_on_all_with(&endpoints, self.waiting, work)?)
    }

    /// Opens the transports and listens on every address.
    fn open_and_listen(&self) -> Result<(Vec<OpenEndpoint>, Vec<Addr>), FsError> {
        let (opened, mut missing) = self.open(self.connects.iter().cloned())?;
        let addrs = self.listen(&opened, &mut missing)?;
        if !missing.is_empty() {
            tracing::warn!(missing = missing.join("; "), "serving without some of the transports");
        }
        Ok((opened, addrs))
    }

    /// Opens a transport for each scheme that the server listens on, the one that it is known by
    /// first, and for those that it only connects over. Also returns a text for each that could not
    /// be opened.
    fn open(&self, connects: impl Iterator<Item = Scheme>) -> Result<(Vec<OpenEndpoint>, Vec<String>), FsError> {
        let (mut opened, mut missing) = (Vec::<OpenEndpoint>::new(), Vec::new());
        let clock = MonotonicClock::new();
        let mut tried = Vec::new();
        let listens = self.listen.iter().map(|addr| (addr.scheme(), Some(addr)));
        for (scheme, addr) in listens.chain(connects.map(|scheme| (scheme, None))) {
            if tried.contains(&scheme) {
                continue;
            }
            tried.push(scheme);
            let transports = addr.map_or(self.transports.clone(), |addr| self.transports.clone().at(addr));
            match bmi::endpoint(scheme, &transports, self.endpoint.clone(), clock) {
                Ok(endpoint) => opened.push(OpenEndpoint { scheme, endpoint }),
                Err(error) if opened.is_empty() => return Err(FsError::from(error)),
                Err(error) => missing.push(error.to_string()),
            }
        }
        if opened.is_empty() {
            return Err(FsError::new(ErrorCode::Invalid, "a server needs an address to listen at"));
        }
        Ok((opened, missing))
    }

    /// Listens on every address whose transport is open, and returns these addresses. Adds the
    /// others to `missing`.
    fn listen(&self, opened: &[OpenEndpoint], missing: &mut Vec<String>) -> Result<Vec<Addr>, FsError> {
        let mut listening = Vec::new();
        for addr in &self.listen {
            let Some(open) = opened.iter().find(|open| open.scheme == addr.scheme()) else { continue };
            match open.endpoint.listen(addr) {
                Ok(addr) => listening.push(addr),
                Err(error) if listening.is_empty() => {
                    let why = error.cause().map(|cause| format!(" ({cause})")).unwrap_or_default();
                    let text = format!("{}{why}", error.detail());
                    return Err(FsError::new(FsError::from(error).code, text));
                }
                Err(error) => missing.push(format!("{addr}: {error}")),
            }
        }
        Ok(listening)
    }
}

/// Compares restored metadata with the datafiles of the I/O servers, and writes the report. A
/// failure is logged: the manager serves all the same.
async fn take_inventory(manager: &Manager<AnyTransport>, dir: &Path, progress: fn(&str)) {
    let path = dir.join(format!("restored-{}.txt", manager.identity().start.epoch));
    progress(&format!("comparing the metadata with the datafiles, into {}", path.display()));
    let inventory = async {
        let file = File::create(&path).map_err(|error| FsError::new(ErrorCode::Io, error.to_string()))?;
        let mut out = BufWriter::new(file);
        let inventory = manager.take_inventory(&mut out).await?;
        out.get_ref().sync_all().map_err(|error| FsError::new(ErrorCode::Io, error.to_string()))?;
        Ok::<_, FsError>(inventory)
    };
    match inventory.await {
        Ok(inventory) => {
            tracing::info!(missing = inventory.missing, unowned = inventory.unowned, report = %path.display(), "compared");
            progress(&format!("compared: {inventory}; see {}", path.display()));
        }
        Err(error) => {
            tracing::error!(%error, report = %path.display(), "the metadata was not compared with the datafiles")
        }
    }
}

/// Opens the directory of a manager, which must be formatted.
pub(crate) fn open_manager_directory(dir: &Path) -> Result<Directory, FsError> {
    let directory = Directory::open(dir, fs_proto::Role::Manager)?;
    let gone = |text: String| Err(invalid_directory(dir, &text));
    if directory.label().is_none() {
        let what = if directory.exists() { "it is empty" } else { "it does not exist" };
        return gone(format!("{what}: is that disk mounted? Only a new cluster begins with `pvfsd format`"));
    }
    if std::fs::metadata(dir.join(DATABASE)).map_or(0, |file| file.len()) == 0 {
        return gone(format!("{DATABASE} is gone: is that disk mounted? `pvfsd restore` brings back a backup"));
    }
    Ok(directory)
}

/// Formats the manager's directory of a new cluster. Returns the cluster.
pub(crate) fn format_manager_directory(dir: &Path) -> Result<fs_proto::ClusterId, FsError> {
    let mut directory = Directory::open(dir, fs_proto::Role::Manager)?;
    if let Some(label) = directory.label() {
        let text = format!("data directory {}: it is that of the manager of cluster {}", dir.display(), label.cluster);
        return Err(FsError::new(ErrorCode::Invalid, text));
    }
    let cluster = fs_proto::ClusterId(random_number()?);
    let label = Label::new(cluster, fs_proto::Role::Manager, StoreId(random_number()?));
    // The label comes last: without it the directory is not used.
    directory.claim()?;
    let store = MetaStore::open(dir.join(DATABASE))?;
    crate::manager::format(&store, cluster, label.store, wall_clock())?;
    drop(store);
    directory.establish(&label)?;
    Ok(cluster)
}
