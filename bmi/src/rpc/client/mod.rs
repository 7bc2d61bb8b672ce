//! The client's side: settings, limits, and how a call is made and made again.

mod buffers;
mod link;
mod receive;
mod request;
mod stream;

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bmi_core::runtime::{Instant, host};
use bmi_core::{SharedPeer, Time};
use futures_util::future::{Either, select};
use tokio::sync::{Semaphore, SemaphorePermit};

use self::link::Link;
pub use self::link::LinkState;
use self::receive::{Failure, From};
pub use self::request::{Reply, Request};
pub use self::stream::Stream;
use super::addrs::IntoAddrs;
use super::metrics::ClientMetrics;
use super::{DEFAULT_MOST_BYTES, DEFAULT_MOST_DATA, Place, permits, place};
use crate::{Addr, Config, Error, ErrorKind, Handle, OpenOptions};

/// Pause before a call is made again for the first time.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// A client of a service: it connects when a call needs it, and again.
///
/// A clone is another handle to the same client and its connections. When the last one is dropped,
/// the connections end.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// The settings of a [`Client`]. Each has a default.
#[derive(Clone)]
#[must_use = "`to` makes a client of it"]
pub struct ClientBuilder {
    settings: Settings,
}

#[derive(Clone)]
struct Settings {
    timeout: Duration,
    max_calls: usize,
    max_bytes: u64,
    max_reply: u64,
    offer: usize,
    spread: bool,
    config: Config,
    options: OpenOptions,
}

struct Inner {
    settings: Settings,
    links: Vec<Link>,
    /// Why the addresses are none.
    invalid: Option<Error>,
    /// The address that has answered last; or a count of calls, if they are spread.
    turn: AtomicUsize,
    /// One for each scheme, and each adapter that an address names.
    handles: Mutex<Vec<(Place, Handle)>>,
    calls: Semaphore,
    /// Bytes of replies, in units of [`permits`].
    bytes: Semaphore,
    closed: AtomicBool,
    metrics: ClientMetrics,
}

impl Client {
    /// Makes a client of the service at an address, or at the first of several that answers. It
    /// does not connect yet. If an address is invalid, each call says so.
    pub fn new(addrs: impl IntoAddrs) -> Client {
        Client::builder().to(addrs)
    }

    /// Returns the default settings, to be changed.
    pub fn builder() -> ClientBuilder {
        let settings = Settings {
            timeout: Duration::from_secs(10),
            max_calls: 1024,
            max_bytes: DEFAULT_MOST_BYTES,
            max_reply: DEFAULT_MOST_DATA,
            offer: 64 << 10,
            spread: false,
            config: Config::named("client"),
            options: OpenOptions::default(),
        };
        ClientBuilder { settings }
    }

    /// Prepares a call. Add what it needs, and await it. The request is at most some 8,000 bytes
    /// long; everything longer is [data](Request::data).
    pub fn call(&self, request: impl AsRef<[u8]>) -> Request {
        Request::new(Arc::clone(&self.inner), request.as_ref())
    }

    /// Connects, if no connection is up, to find out early whether the service is there.
    ///
    /// # Errors
    /// As those of a call.
    pub async fn connect(&self) -> Result<(), Error> {
        let deadline = Instant::now() + self.inner.settings.timeout;
        self.inner.peer(deadline.time()).await.map(|_| ())
    }

    /// Returns the addresses, each with the state of its connection.
    pub fn links(&self) -> Vec<(Addr, LinkState)> {
        self.inner.links.iter().map(|link| (link.addr.clone(), link.state())).collect()
    }

    /// Returns the handle of the first address that has one: for timers, and to wait for calls with
    /// [`Handle::block_on`], as [`Request::wait`] does.
    ///
    /// # Errors
    /// Those of opening an endpoint; `Cancelled` if the client was closed.
    pub fn handle(&self) -> Result<Handle, Error> {
        self.inner.any_handle()
    }

    /// Brings what the endpoints have counted so far to the recorder; see [`crate::rpc::metrics`].
    #[cfg(feature = "metrics")]
    pub fn sample(&self) {
        let handles = self.inner.handles.lock().unwrap_or_else(PoisonError::into_inner);
        self.inner.metrics.engines.sample(handles.iter().map(|(_, handle)| handle));
    }

    /// Ends all connections, after what was sent on them, and all calls in flight.
    pub async fn close(&self) {
        self.inner.closed.store(true, Ordering::Release);
        self.inner.calls.close();
        self.inner.bytes.close();
        let handles = std::mem::take(&mut *self.inner.handles.lock().unwrap_or_else(PoisonError::into_inner));
        for (_, handle) in handles {
            handle.close().await;
        }
    }
}

impl ClientBuilder {
    /// Sets the time for a call that does not set its own. The default is 10 s.
    pub fn timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.settings.timeout = timeout;
        self
    }

    /// Sets how many calls are in flight at a time. The default is 1024. Further calls wait.
    pub fn max_calls(mut self, most: usize) -> ClientBuilder {
        self.settings.max_calls = most.max(1);
        self
    }

    /// Sets the longest data of a reply, or of a part of a stream, in bytes. The default is 16 MiB.
    /// A longer one is not sent: the call ends with [`ErrorKind::TooLarge`]. It is at most
    /// [`ClientBuilder::max_bytes`].
    pub fn max_reply(mut self, most: u64) -> ClientBuilder {
        self.settings.max_reply = most;
        self
    }

    /// Sets how many bytes of long replies are received at a time. The default is 256 MiB.
    pub fn max_bytes(mut self, most: u64) -> ClientBuilder {
        self.settings.max_bytes = most;
        self
    }

    /// Sets the length of the memory that a call without data offers for the data of its reply, in
    /// bytes. The default is 64 KiB. Longer replies take one more round trip, until a call offers
    /// as much as the last ones had. Each demand for a part of a stream offers this length. With 0
    /// nothing is offered.
    pub fn offer(mut self, bytes: usize) -> ClientBuilder {
        self.settings.offer = bytes;
        self
    }

    /// Spreads the calls over all addresses that answer, instead of going to the first.
    pub fn spread(mut self) -> ClientBuilder {
        self.settings.spread = true;
        self
    }

    /// Sets the version of the program's protocol. A server of another version refuses the
    /// connection, and the error names both. The default is 0.
    pub fn protocol(mut self, version: u32) -> ClientBuilder {
        self.settings.config.protocol = version;
        self
    }

    /// Sets the settings of the endpoints below. Their name is in the logs of
    /// servers. They have the protocol's version too.
    pub fn config(mut self, config: Config) -> ClientBuilder {
        self.settings.config = config;
        self
    }

    /// Sets the settings of transports.
    pub fn options(mut self, options: OpenOptions) -> ClientBuilder {
        self.settings.options = options;
        self
    }

    /// Makes a client of the service at these addresses; see [`Client::new`].
    pub fn to(self, addrs: impl IntoAddrs) -> Client {
        let settings = self.settings;
        let (addrs, invalid) = match addrs.into_addrs() {
            Ok(addrs) if addrs.is_empty() => (addrs, Some(Error::new(ErrorKind::Invalid, "no address to connect to"))),
            Ok(addrs) => (addrs, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let inner = Inner {
            links: addrs.into_iter().map(|addr| Link::new(addr, settings.offer)).collect(),
            invalid,
            turn: AtomicUsize::new(0),
            handles: Mutex::default(),
            calls: Semaphore::new(settings.max_calls.min(Semaphore::MAX_PERMITS)),
            bytes: Semaphore::new(permits(settings.max_bytes)),
            closed: AtomicBool::new(false),
            metrics: ClientMetrics::new(),
            settings,
        };
        Client { inner: Arc::new(inner) }
    }
}

impl Inner {
    /// Returns the error of a client that was closed, or that has no addresses.
    fn check(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        self.invalid.clone().map_or(Ok(()), Err)
    }

    /// Returns the endpoint for an address, and opens it if there is none.
    fn handle(&self, addr: &Addr) -> Result<Handle, Error> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, handle)) = handles.iter().find(|(at, _)| *at == place(addr)) {
            return Ok(handle.clone());
        }
        self.check()?;
        let handle = match host() {
            Some(host) => host.open(&self.settings.config)?,
            None => super::open(&self.settings.options, &self.settings.config, addr)?,
        };
        handles.push((place(addr), handle.clone()));
        Ok(handle)
    }

    /// Returns an endpoint, for its timers.
    fn any_handle(&self) -> Result<Handle, Error> {
        self.check()?;
        let mut opened = Err(closed());
        for link in &self.links {
            opened = self.handle(&link.addr);
            if opened.is_ok() {
                break;
            }
        }
        opened
    }

    /// Returns a connection that is up, and the place of its link: that of the address whose turn
    /// it is. Connects until the deadline, again and again.
    ///
    /// # Errors
    /// The reason that the last attempt failed, or that no other will succeed.
    async fn peer(&self, deadline: Time) -> Result<(usize, SharedPeer), Error> {
        self.check()?;
        let first = match self.settings.spread {
            true => self.turn.fetch_add(1, Ordering::Relaxed),
            false => self.turn.load(Ordering::Relaxed),
        };
        let at = first % self.links.len();
        match self.links[at].up() {
            Some(peer) => Ok((at, peer)),
            // It is rare, and its future is large.
            None => Box::pin(self.connected(first, deadline)).await,
        }
    }

    /// Connects to the address whose turn it is, or to the next that answers.
    async fn connected(&self, first: usize, deadline: Time) -> Result<(usize, SharedPeer), Error> {
        let count = self.links.len();
        loop {
            let mut last = None;
            for at in first..first + count {
                let link = &self.links[at % count];
                // Another call may be connecting, and have more time than this one.
                let handle = self.any_handle()?;
                let peer = match select(pin!(link.peer(self, deadline)), pin!(handle.sleep_until(deadline))).await {
                    Either::Left((peer, _)) => peer,
                    Either::Right((Ok(()), _)) => Err(self.late(link)),
                    Either::Right((Err(error), _)) => Err(error),
                };
                match peer {
                    Ok(peer) => {
                        if !self.settings.spread {
                            self.turn.store(at % count, Ordering::Relaxed);
                        }
                        return Ok((at % count, peer));
                    }
                    Err(error) => last = Some(error),
                }
            }
            let error = last.unwrap_or_else(closed);
            self.check()?;
            let next = self.links.iter().map(Link::next_attempt).min().unwrap_or(deadline);
            let next = next.max(Instant::now().time());
            let lasting = |link: &Link| link.is_given_up();
            if self.links.iter().all(lasting) {
                return Err(error);
            }
            // A program that repeats its calls at once must not find a client that fails at once.
            self.any_handle()?.sleep_until(next.min(deadline)).await?;
            if next >= deadline {
                return Err(error);
            }
        }
    }

    /// Notes what a failure says of a connection. So many replies had come before the call.
    fn failed(&self, at: usize, peer: &SharedPeer, failure: &Failure, replies: u64) {
        match (failure.from, failure.error.kind()) {
            (From::Unsent | From::Connection, ErrorKind::PeerLost | ErrorKind::Refused) => {
                self.links[at].lost(peer, &failure.error);
            }
            (From::Connection, ErrorKind::TimedOut) => self.links[at].timed_out(replies),
            (From::Server, ErrorKind::Refused) => self.pass_on(at),
            _ => {}
        }
    }

    /// Lets later calls begin with the address after this one, whose server goes down.
    fn pass_on(&self, at: usize) {
        if !self.settings.spread {
            self.turn.store((at + 1) % self.links.len(), Ordering::Relaxed);
        }
    }

    /// Waits for permits until the deadline.
    async fn permits<'a>(&self, of: &'a Semaphore, count: usize, deadline: Time) -> Result<SemaphorePermit<'a>, Error> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if let Ok(permit) = of.try_acquire_many(count) {
            return Ok(permit);
        }
        self.check()?;
        let handle = self.any_handle()?;
        match select(pin!(of.acquire_many(count)), pin!(handle.sleep_until(deadline))).await {
            Either::Left((permit, _)) => permit.map_err(|_| closed()),
            Either::Right((Ok(()), _)) => Err(self.full()),
            Either::Right((Err(error), _)) => Err(error),
        }
    }

    fn late(&self, link: &Link) -> Error {
        let text = "the deadline passed before there was a connection";
        Error::new(ErrorKind::TimedOut, text).during("connect").with_peer(&link.addr)
    }

    fn full(&self) -> Error {
        let Settings { max_calls, max_bytes, .. } = self.settings;
        let text = format!(
            "the call waited for its turn: {max_calls} are in flight at a time (max_calls), and long replies of \
             {max_bytes} bytes (max_bytes)"
        );
        Error::new(ErrorKind::TimedOut, text).during("call")
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Cancelled, "the client was closed").during("call")
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("links", &self.links()).finish_non_exhaustive()
    }
}
