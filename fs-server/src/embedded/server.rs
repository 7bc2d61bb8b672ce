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
//! 4. A server may have several threads, each with an endpoint and a request loop for each
//!    transport (`loops.rs`). The first thread does what a server does once: it listens. That of an
//!    I/O server registers with the manager and watches the store, that of a manager makes the
//!    changes.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bmi::backend::AnyTransport;
use bmi::driver::{MonotonicClock, Waiting, event};
use bmi::polled::Engine;
use bmi::{Addr, Clock, Endpoint, OpenOptions, Scheme};
use fs_proto::{ErrorCode, FsError, Identity, StoreId};
use futures_util::FutureExt;

use super::directory::{open_manager_directory, take_inventory};
use super::loops::{Before, LoopSettings, Loops, Parts, Work, adapter};
use super::waiting_room::{wait_until, why_iod};
use crate::descriptors::{self, Division};
use crate::host::{random_number, wall_clock};
use crate::iod::{Iod, IodSettings, LabelLock, Membership};
use crate::manager::{Manager, ManagerIdentity, ManagerSettings, RollCall, invalid_directory};
use crate::service::{Front, Handler, Limits, Standing, beside, serve_all, serve_beside};
use crate::store::{CachedFiles, DATABASE, DataStore, Directory, FileStore, Label, MetaStore, Service};
use crate::workers::Workers;

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
        service: Service,
        /// The directory of the caches of killed servers, and of this one.
        cache_dir: PathBuf,
        /// If true, the store replaces the one that the server had.
        replace: bool,
        /// If set, a cache of a killed server that cannot be taken over is discarded. Called with
        /// lines about what is lost.
        discard_cache: Option<fn(&str)>,
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
    pub(crate) endpoint: bmi::Config,
    pub(crate) limits: Limits,
    /// Number of event loops, each on a thread of its own.
    pub(crate) threads: usize,
    /// How the server waits for requests.
    pub(crate) waiting: Waiting,
    /// Number of servers that share the process's limit of file descriptors, with this one.
    pub(crate) sharers: usize,
}

/// An open transport.
#[derive(Clone)]
struct OpenEndpoint {
    scheme: Scheme,
    endpoint: Endpoint,
}

/// The open transports of a server.
struct Opened {
    /// Those of the first loop, which has the listening ones.
    first: Vec<OpenEndpoint>,
    /// Those of each further loop.
    further: Vec<Vec<AnyTransport>>,
    clock: MonotonicClock,
}

/// The directory of an I/O server, and how many of its datafiles may be open.
struct Home {
    directory: Directory,
    open_files: usize,
}

impl Home {
    /// Gives the directory a label, if one is given, and opens the store in it.
    fn open(mut self, label: Option<Label>, offload: u64, service: &Service) -> Result<FileStore, FsError> {
        if let Some(label) = label {
            self.directory.establish(&label)?;
        }
        let store = FileStore::open(self.directory.path(), offload)?.keeping_open(self.open_files);
        let store = store.direct(service.has_cache()).mapped(*service == Service::Mmap)?;
        Ok(store.locked_by(self.directory.lock()))
    }
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
        self.divide_limits();
        match &self.role {
            Role::Manager { dir, .. } => {
                let directory = open_manager_directory(dir)?;
                self.run_manager(&directory, ready, serving, stop)
            }
            Role::Iod { index, dir, service, .. } => {
                self.listen.iter().try_for_each(|addr| service.check_over(addr.scheme()))?;
                let directory = Directory::open(dir, fs_proto::Role::Iod(*index))?;
                let home = Home { directory, open_files: descriptors.datafiles() };
                self.run_iod(home, ready, serving, stop)
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
        let division = Division::settle(limit, self.threads, stores, &schemes, &mut self.transports);
        if division.is_short() {
            let transports = &self.transports;
            for scheme in schemes {
                let limits = match scheme {
                    Scheme::Tcp => &transports.tcp.limits,
                    Scheme::Ib => &transports.ib.limits,
                    Scheme::Shm => &transports.shm.limits,
                    _ => continue,
                };
                let most = &mut self.endpoint.limits.max_peers;
                *most = Division::established(limits.max_connections, limits.max_half_open).min(*most);
            }
        }
        division.log(self.sharers);
        division
    }

    /// Divides the limits by the number of loops. Each loop gets as many connections. The loops of
    /// a manager keep their numbers of requests: its changes share one queue, whose limit then
    /// leaves room on every loop (`manager::changes`).
    fn divide_limits(&mut self) {
        let loops = self.threads.max(1);
        if loops == 1 {
            return;
        }
        if let Role::Iod { .. } = self.role {
            self.limits = self.limits.divided(loops);
        }
        let peers = &mut self.endpoint.limits.max_peers;
        *peers = peers.div_ceil(loops);
        let OpenOptions { tcp, ib, shm, .. } = &mut self.transports;
        for limits in [&mut tcp.limits, &mut ib.limits, &mut shm.limits] {
            limits.max_connections = (limits.max_connections / loops).max(1);
            // One is being made, and one waits for the loop.
            limits.max_half_open = limits.max_half_open.div_ceil(loops).max(2);
        }
    }

    /// Runs a manager. The first of its loops is on this thread.
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
        let Opened { first, further, clock } = opened;
        let before = match restored {
            Some(_) => {
                let roll_call = RollCall::new(&store, &settings, clock.now())?;
                let identity = self.manager_identity(roll_call.identity(), addrs.clone());
                Before::RollCall(Arc::new(roll_call), RollCall::standing(identity))
            }
            None => Before::Waiting("the manager does not serve yet".to_owned()),
        };
        let loop_settings = self.loop_settings("manager".to_owned(), before.clone(), clock);
        thread::scope(|scope| {
            let mut loops = Loops::start(scope, &loop_settings, further)?;
            let mut stop = std::pin::pin!(stop.fuse());
            let result = match self.hold_roll_call(&first, &store, &before, stop.as_mut(), &mut loops) {
                Ok(true) => {
                    let opened = (first, addrs);
                    self.run_first_manager_loop(directory, store, settings, opened, serving, stop, &mut loops)
                }
                Ok(false) => Ok(()),
                Err(error) => Err(error),
            };
            loops.end().and(result)
        })
    }

    /// Waits until all I/O servers have reported, if the metadata was restored. Returns false if
    /// `stop` ends before that.
    fn hold_roll_call(
        &self,
        opened: &[OpenEndpoint],
        store: &MetaStore,
        before: &Before,
        stop: impl Future<Output = ()>,
        loops: &mut Loops<'_>,
    ) -> Result<bool, FsError> {
        let (Role::Manager { restored: Some(progress), .. }, Before::RollCall(roll_call, standing)) =
            (&self.role, before)
        else {
            return Ok(true);
        };
        let endpoints: Vec<_> = opened.iter().map(|open| open.endpoint.clone()).collect();
        let failure = Cell::new(None);
        let stop = async {
            tokio::select! {
                () = stop => {}
                error = loops.ended() => failure.set(Some(error)),
            }
        };
        let complete = self.block_on(opened, roll_call.hold(&endpoints, standing, self.limits, progress, stop))?;
        failure.take().map_or(Ok(()), Err)?;
        if complete {
            roll_call.conclude(store)?;
        }
        Ok(complete)
    }

    #[expect(clippy::too_many_arguments, reason = "a step of `run_manager`")]
    fn run_first_manager_loop(
        &self,
        directory: &Directory,
        store: MetaStore,
        settings: ManagerSettings,
        (opened, addrs): (Vec<OpenEndpoint>, Vec<Addr>),
        serving: impl FnOnce(),
        stop: impl Future<Output = ()>,
        loops: &mut Loops<'_>,
    ) -> Result<(), FsError> {
        let Role::Manager { restored, .. } = &self.role else { unreachable!("only a manager gets here") };
        let manager = Manager::new(opened[0].endpoint.clone(), store, settings, random_number()?, wall_clock)?;
        let manager =
            opened.iter().fold(manager, |manager, open| manager.with_endpoint(open.scheme, open.endpoint.clone()));
        let standing = Standing::serving(self.manager_identity(manager.identity(), addrs));
        let work = Work { parts: Parts::Manager(manager.further_loop()), standing };
        self.block_on(&opened, loops.begin(&work))??;
        let fronts: Vec<Front<'_>> =
            opened.iter().map(|open| (open.endpoint.clone(), &manager as &dyn Handler)).collect();
        serving();
        let failure = Cell::new(None);
        let inventory = async {
            if let Some(progress) = restored {
                take_inventory(&manager, directory.path(), *progress).await;
            }
            std::future::pending::<()>().await;
        };
        let serve = async {
            let stop = async {
                tokio::select! {
                    () = stop => {}
                    error = manager.failure() => failure.set(Some(error)),
                    error = loops.ended() => failure.set(Some(error)),
                    () = inventory => {}
                }
                loops.stop();
            };
            serve_beside(&fronts, &work.standing, self.limits, stop).await;
            // What they have passed on is answered meanwhile.
            loops.all_ended().await;
        };
        self.block_on(&opened, beside(&manager, serve))?;
        loops.end()?;
        failure.take().map_or(Ok(()), Err)
    }

    fn manager_identity(&self, own: ManagerIdentity, addrs: Vec<Addr>) -> Identity {
        let label = Label::new(own.cluster, fs_proto::Role::Manager, own.store);
        self.identity(&label, own.start, addrs)
    }

    fn loop_settings(&self, server: String, before: Before, clock: MonotonicClock) -> LoopSettings {
        let (endpoint, limits, waiting) = (self.endpoint.clone(), self.limits, self.waiting);
        LoopSettings { server, before, endpoint, limits, waiting, clock }
    }

    /// Runs an I/O server. The first of its loops is on this thread.
    fn run_iod(
        &self,
        mut home: Home,
        ready: impl FnOnce(&[Addr]) -> Result<Neighbours, FsError>,
        serving: impl FnOnce(),
        stop: impl Future<Output = ()>,
    ) -> Result<(), FsError> {
        let Role::Iod { index, .. } = self.role else { unreachable!("only an I/O server gets here") };
        // A directory that does not exist is made, so that it can be locked. It stays only if the
        // manager agrees.
        home.directory.claim()?;
        let (opened, addrs) = self.open_and_listen()?;
        let neighbours = ready(&addrs)?;
        let manager =
            neighbours.first().ok_or_else(|| FsError::new(ErrorCode::Invalid, "the manager has no address"))?;
        let Opened { first, further, clock } = opened;
        let before = Before::Waiting(why_iod(index));
        let settings = self.loop_settings(format!("iod{index}"), before, clock);
        thread::scope(|scope| {
            let mut loops = Loops::start(scope, &settings, further)?;
            let result = self.run_first_loop(home, (first, addrs), manager, serving, stop, &mut loops);
            loops.end().and(result)
        })
    }

    fn run_first_loop(
        &self,
        home: Home,
        (opened, addrs): (Vec<OpenEndpoint>, Vec<Addr>),
        manager: &Addr,
        serving: impl FnOnce(),
        stop: impl Future<Output = ()>,
        loops: &mut Loops<'_>,
    ) -> Result<(), FsError> {
        let Role::Iod { index, settings, heartbeat, service, cache_dir, replace, discard_cache, .. } = &self.role
        else {
            unreachable!("only an I/O server gets here")
        };
        let way = opened.iter().find(|open| open.scheme == manager.scheme());
        let no_way = || FsError::new(ErrorCode::Unreachable, format!("{manager}: its transport cannot be opened here"));
        let endpoint = way.ok_or_else(no_way)?.endpoint.clone();
        let instance = random_number()?;
        let mut membership = Membership::new(endpoint, manager.clone(), *index, instance, *replace, *heartbeat);
        let labels = Arc::new(LabelLock::default());
        let mut stop = std::pin::pin!(stop.fuse());
        let endpoints: Vec<_> = opened.iter().map(|open| open.endpoint.clone()).collect();
        let begin = async {
            let none = || FsError::new(ErrorCode::Invalid, "the store has lost its label");
            let begin = async {
                let (files, start) = self.begin_store(home, &mut membership, &labels).await?;
                let label = files.label().ok_or_else(none)?;
                let cached = CachedFiles::open(files, service, cache_dir, label.store, *discard_cache).await?;
                Ok::<_, FsError>((cached, start, label))
            };
            let (cached, start, label) = tokio::select! {
                biased;
                begun = begin => begun?,
                error = loops.ended() => return Err(error),
            };
            let store = cached.store();
            let standing = Standing::serving(self.identity(&label, start, addrs));
            // All transports and all loops share one set of buffers and one queue of clients.
            let first = Iod::new(opened[0].endpoint.clone(), store.clone(), *settings)?;
            let first = first.started_as(instance as u64).with_labels(labels.clone());
            let work = Work { parts: Parts::Iod(first.parts()), standing };
            loops.begin(&work).await?;
            Ok::<_, FsError>((cached, start, first, work.standing))
        };
        // Who asks meanwhile is told to wait.
        let why = why_iod(*index);
        let begun = wait_until(&why, &endpoints, self.limits, begin, stop.as_mut());
        let begun = self.block_on(&opened, begun)?;
        let Some(begun) = begun else { return Ok(()) };
        let (cached, start, first, standing) = begun?;
        let store = cached.store();
        let others = opened[1..].iter().zip(1..).map(|(open, at)| first.beside(open.endpoint.clone(), adapter(0, at)));
        let others: Vec<_> = others.collect();
        let handlers = std::iter::once(&first).chain(&others).map(|iod| iod as &dyn Handler);
        let fronts: Vec<_> = endpoints.into_iter().zip(handlers).collect();
        serving();
        let refusal = Cell::new(None);
        let stop = async {
            tokio::select! {
                () = stop => {}
                error = membership.keep(&*store, &labels, start) => refusal.set(Some(error)),
                error = store.failure() => refusal.set(Some(error)),
                error = loops.ended() => refusal.set(Some(error)),
            }
            loops.stop();
        };
        self.block_on(&opened, serve_all(&fronts, &standing, self.limits, stop))?;
        let ended = loops.end();
        let files = self.block_on(&opened, cached.close(opened[0].endpoint.sleep(self.limits.reply_timeout)))?;
        if !files.wait_until_idle(self.limits.reply_timeout) {
            tracing::warn!("the disk has not answered; the server ends without it, and its directory stays locked");
        }
        ended?;
        refusal.take().map_or(Ok(()), Err)
    }

    /// Opens the store of an I/O server, with a label of the manager if the directory is empty, and
    /// begins its next start.
    async fn begin_store(
        &self,
        home: Home,
        membership: &mut Membership,
        labels: &LabelLock,
    ) -> Result<(Arc<FileStore>, fs_proto::Start), FsError> {
        let Role::Iod { offload, ref service, .. } = self.role else { unreachable!("only an I/O server gets here") };
        let number = StoreId(random_number()?);
        let label = match home.directory.label() {
            None => Some(membership.ask_for_label(number).await?),
            Some(_) => None,
        };
        let service = service.clone();
        // The names of all datafiles are read, while the others are told to wait.
        let store = Arc::new(Workers::new("disk-opening", 1).run(move || home.open(label, offload, &service)).await??);
        let start = membership.begin(&*store, labels).await?;
        Ok((store, start))
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
    fn open_and_listen(&self) -> Result<(Opened, Vec<Addr>), FsError> {
        let (opened, mut missing) = self.open(self.connects.iter().cloned())?;
        let addrs = self.listen(&opened.first, &mut missing)?;
        if !missing.is_empty() {
            tracing::warn!(missing = missing.join("; "), "serving without some of the transports");
        }
        Ok((opened, addrs))
    }

    /// Opens a transport for each scheme that the server listens on, the one that it is known by
    /// first, and for those that it only connects over. Those that it listens on are opened once
    /// for each loop. Also returns a text for each that could not be opened.
    fn open(&self, connects: impl Iterator<Item = Scheme>) -> Result<(Opened, Vec<String>), FsError> {
        let (mut opened, mut missing) = (Vec::<OpenEndpoint>::new(), Vec::new());
        let mut further: Vec<Vec<AnyTransport>> = (1..self.threads).map(|_| Vec::new()).collect();
        let clock = MonotonicClock::new();
        let mut tried = Vec::new();
        let listens = self.listen.iter().map(|addr| (addr.scheme(), Some(addr)));
        for (scheme, addr) in listens.chain(connects.map(|scheme| (scheme, None))) {
            if tried.contains(&scheme) {
                continue;
            }
            tried.push(scheme);
            let transports = addr.map_or(self.transports.clone(), |addr| self.transports.clone().at(addr));
            let loops = if addr.is_some() { self.threads.max(1) } else { 1 };
            let open = || {
                let mut group = bmi::backend::open_shards(scheme, &transports, loops)?.into_iter();
                let first = group.next().expect("as many as were asked for");
                Ok::<_, bmi::Error>((Engine::new(first, self.endpoint.clone(), clock.now())?, group))
            };
            match open() {
                Ok((endpoint, group)) => {
                    opened.push(OpenEndpoint { scheme, endpoint: Endpoint::new(endpoint, clock) });
                    further.iter_mut().zip(group).for_each(|(further, transport)| further.push(transport));
                }
                Err(error) if opened.is_empty() => return Err(FsError::from(error)),
                Err(error) => missing.push(error.to_string()),
            }
        }
        if opened.is_empty() {
            return Err(FsError::new(ErrorCode::Invalid, "a server needs an address to listen at"));
        }
        Ok((Opened { first: opened, further, clock }, missing))
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
