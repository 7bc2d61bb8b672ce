//! A complete server: its store, and an endpoint and a request loop for each transport that it
//! listens on.
//!
//! **Why several endpoints and not one over several transports.** An endpoint's protocol is tuned
//! to one adapter: its limits, its registrations, its event fd. Separate endpoints share only the
//! store. If one transport is missing or fails, the others are not affected.
//!
//! **Invariants**
//! 1. Storage comes first: a server does not listen if it cannot store data or if its directory is
//!    not its own.
//! 2. The address that the server is known by is required, because clients connect to it first. All
//!    other unavailable addresses are named in one warning, and the server runs without them.
//! 3. All loops stop together.

use std::cell::Cell;
use std::fs::File;
use std::future::pending;
use std::io::Read;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use bmi::{AnyTransport, OpenOptions};
use bmi_core::driver::{MonotonicClock, Waiting, event};
use bmi_core::{Addr, AsyncEndpoint, Scheme};
use fs_proto::{ErrorCode, FsError, Identity, ManagerRequest};

use super::register::register;
use crate::iod::{Iod, IodSettings};
use crate::manager::{Manager, ManagerSettings};
use crate::service::{Handler, Limits, serve_all};
use crate::store::{Claim, DataStore, FileStore, MetaStore};

/// Returns the system's time, in nanoseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "attributes show the time of day; servers on a real machine take it from there"
)]
fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Returns a random number that no other start of a server has.
fn random_number() -> Result<u128, FsError> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| FsError::new(ErrorCode::Io, format!("/dev/urandom: {error}")))?;
    Ok(u128::from_le_bytes(bytes))
}

/// The role of a server.
pub(crate) enum Role {
    Manager {
        dir: PathBuf,
        settings: ManagerSettings,
    },
    Iod {
        index: u32,
        dir: PathBuf,
        settings: IodSettings,
        offload: u64,
        /// The manager that is told which store this is, if its address is known.
        manager: Option<Addr>,
    },
}

/// Everything that a server needs to start.
pub(crate) struct Server {
    pub(crate) role: Role,
    /// If true, the server accepts its directory whatever it contained before.
    pub(crate) adopt: bool,
    /// The addresses to listen on. The first is the one that the server is known by.
    pub(crate) listen: Vec<Addr>,
    /// The server's name for the machine that it runs on.
    pub(crate) host: String,
    pub(crate) transports: OpenOptions,
    pub(crate) endpoint: bmi_core::Config,
    pub(crate) limits: Limits,
    /// How the server waits for requests.
    pub(crate) waiting: Waiting,
}

/// An open transport.
#[derive(Clone)]
struct OpenEndpoint {
    scheme: Scheme,
    endpoint: AsyncEndpoint<AnyTransport>,
}

impl Server {
    /// Runs the server on this thread until `stop` ends. Calls `ready` with the addresses once it
    /// listens on all of them.
    pub(crate) fn run(self, ready: impl FnOnce(&[Addr]), stop: impl Future<Output = ()>) -> Result<(), FsError> {
        match &self.role {
            Role::Manager { dir, settings } => {
                let claim = Claim::take(dir, fs_proto::Role::Manager, self.adopt, random_number()?)?;
                let path = dir.join("metadata.redb");
                // An empty database in place of a lost one would be an empty file system.
                if !claim.fresh && !self.adopt && std::fs::metadata(&path).map_or(0, |file| file.len()) == 0 {
                    let text = format!("{} is gone; --adopt begins anew, with an empty file system", path.display());
                    return Err(FsError::new(ErrorCode::Io, text));
                }
                let store = MetaStore::open(path)?;
                let (opened, missing) = self.open(settings.iods.iter().map(Addr::scheme))?;
                let manager = Manager::new(opened[0].endpoint.clone(), store, settings.clone(), wall_clock)?;
                let with_one = |manager: Manager<_>, OpenEndpoint { scheme, endpoint }: &OpenEndpoint| {
                    manager.with_endpoint(*scheme, endpoint.clone())
                };
                let manager = opened.iter().fold(manager, with_one);
                let handlers: Vec<_> = opened.iter().map(|_| &manager).collect();
                self.serve(&opened, &handlers, missing, ready, stop)
            }
            Role::Iod { index, dir, settings, offload, manager } => {
                let claim = Claim::take(dir, fs_proto::Role::Iod(*index), self.adopt, random_number()?)?;
                let store = Rc::new(FileStore::open(dir, *offload)?);
                let (opened, missing) = self.open(manager.iter().map(Addr::scheme))?;
                // All transports share one set of buffers and one queue of clients.
                let first =
                    Iod::new(opened[0].endpoint.clone(), store.clone(), *settings)?.started_as(random_number()? as u64);
                let others = opened[1..].iter().zip(1..);
                let others = others.map(|(open, index)| first.beside(open.endpoint.clone(), index));
                let others: Vec<_> = others.collect();
                let handlers: Vec<_> = std::iter::once(&first).chain(&others).collect();
                let refusal = Cell::new(None);
                let refused = async {
                    let known = manager.as_ref().zip(random_number().ok());
                    let way = |addr: &Addr| opened.iter().find(|open| open.scheme == addr.scheme());
                    let Some((manager, client, open)) =
                        known.and_then(|(addr, client)| Some((addr, client, way(addr)?)))
                    else {
                        return pending().await;
                    };
                    let used = !claim.fresh && store.stat().await.is_ok_and(|stat| stat.datafiles > 0);
                    let request = ManagerRequest::Register { iod: *index, store: claim.store, used, adopt: self.adopt };
                    refusal.set(Some(register(&open.endpoint, manager, request, client).await));
                };
                let stop = async {
                    tokio::select! {
                        () = stop => {}
                        () = refused => {}
                    }
                };
                self.serve(&opened, &handlers, missing, ready, stop)?;
                refusal.take().map_or(Ok(()), Err)
            }
        }
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
                Err(error) if listening.is_empty() => return Err(FsError::from(error)),
                Err(error) => missing.push(format!("{addr}: {error}")),
            }
        }
        Ok(listening)
    }

    fn serve<H: Handler<AnyTransport>>(
        &self,
        opened: &[OpenEndpoint],
        handlers: &[&H],
        mut missing: Vec<String>,
        ready: impl FnOnce(&[Addr]),
        stop: impl Future<Output = ()>,
    ) -> Result<(), FsError> {
        let addrs = self.listen(opened, &mut missing)?;
        if !missing.is_empty() {
            tracing::warn!(missing = missing.join("; "), "serving without some of the transports");
        }
        let role = match &self.role {
            Role::Manager { .. } => fs_proto::Role::Manager,
            Role::Iod { index, .. } => fs_proto::Role::Iod(*index),
        };
        let identity = Identity { role, host: self.host.clone(), instance: random_number()?, addrs };
        ready(&identity.addrs);
        let endpoints: Vec<_> = opened.iter().map(|open| open.endpoint.clone()).collect();
        let fronts: Vec<_> = endpoints.iter().cloned().zip(handlers.iter().copied()).collect();
        let serve = serve_all(&fronts, &identity, self.limits, stop);
        Ok(event::block_on_all_with(&endpoints, self.waiting, serve)?)
    }
}
