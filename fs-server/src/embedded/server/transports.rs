//! The transports of a server: an endpoint for each of the first loop, and shards for the others.

use bmi::backend::AnyTransport;
use bmi::driver::MonotonicClock;
use bmi::polled::Engine;
use bmi::{Addr, Clock, Endpoint, Scheme};
use fs_proto::{ErrorCode, FsError};

use super::Server;

/// An open transport.
#[derive(Clone)]
pub(super) struct OpenEndpoint {
    pub(super) scheme: Scheme,
    pub(super) endpoint: Endpoint,
}

/// The open transports of a server.
pub(super) struct Opened {
    /// Those of the first loop, which has the listening ones.
    pub(super) first: Vec<OpenEndpoint>,
    /// Those of each further loop.
    pub(super) further: Vec<Vec<AnyTransport>>,
    pub(super) clock: MonotonicClock,
}

impl Server {
    /// Opens the transports and listens on every address.
    pub(super) fn open_and_listen(&self) -> Result<(Opened, Vec<Addr>), FsError> {
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
                    let endpoint = Endpoint::new(endpoint, clock);
                    if self.is_balanced() {
                        endpoint.with(|engine| engine.transport_mut().spread(1));
                    }
                    opened.push(OpenEndpoint { scheme, endpoint });
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
