//! The server's side: addresses, the loop that takes calls, and the end.

mod answers;
mod arrival;
mod call;
mod calls;
mod held;
mod kept;
mod reply;
mod streams;
mod until;
mod watch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bmi_core::runtime::{Instant, Runtime, host, timeout};
use futures_util::FutureExt;
use tokio::sync::Semaphore;

pub use self::call::Call;
use self::calls::{Calls, Stop};
use self::kept::KeptReplies;
pub use self::reply::Replying;
use self::streams::Streams;
use self::watch::Watch;
use super::addrs::IntoAddrs;
use super::metrics::ServerMetrics;
use super::{DEFAULT_MOST_BYTES, DEFAULT_MOST_DATA, GRACE, permits};
use crate::{Addr, Config, Error, ErrorKind, Handle, OpenOptions};

/// Most handlers that run at a time, whatever a program sets.
const MOST_CALLS: usize = 1 << 24;

/// A server of calls.
///
/// A clone is another handle to the same server. It ends when the last one is dropped, or with
/// [`Server::shutdown`].
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

/// What the server, its calls and their replies share.
pub(super) struct Shared {
    /// `None` after the end. The endpoints, and with them the listening addresses, end with their
    /// last handle.
    handle: Mutex<Option<Handle>>,
    addrs: Vec<Addr>,
    limits: Limits,
    /// Bytes of data that handlers may take, in units of [`permits`].
    bytes: Semaphore,
    kept: KeptReplies,
    streams: Arc<Streams>,
    watch: Watch,
    serving: AtomicBool,
    metrics: ServerMetrics,
}

/// The limits of a server. [`Server::builder`] sets them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    max_calls: usize,
    max_waiting: usize,
    max_data: u64,
    max_bytes: u64,
}

/// The settings of a [`Server`]. Each has a default.
#[derive(Clone)]
#[must_use = "`bind` makes a server of it"]
pub struct ServerBuilder {
    limits: Limits,
    config: Config,
    options: OpenOptions,
}

impl Server {
    /// Accepts connections at one address or several, of any schemes. Port 0 means any free port;
    /// [`Server::addrs`] returns the ports that were taken.
    ///
    /// # Errors
    /// `Invalid` for a text that is no address or an address that is in use; `Unsupported` for a
    /// scheme that this build or this machine does not have.
    pub async fn bind(addrs: impl IntoAddrs) -> Result<Server, Error> {
        Server::builder().bind(addrs).await
    }

    /// Returns the default settings, to be changed.
    pub fn builder() -> ServerBuilder {
        let limits =
            Limits { max_calls: 1024, max_waiting: 8192, max_data: DEFAULT_MOST_DATA, max_bytes: DEFAULT_MOST_BYTES };
        ServerBuilder { limits, config: Config::named("server"), options: OpenOptions::default() }
    }

    /// Returns the addresses at which it accepts connections, in the order in which they were
    /// given.
    pub fn addrs(&self) -> &[Addr] {
        &self.shared.addrs
    }

    /// Runs `handler` for each call, until [`Server::shutdown`]. A handler that waits is a task of
    /// its own. Until it first waits, it runs where calls are taken, so it must not block.
    ///
    /// It ends at the deadline of the call at the latest. An error that the handler returns
    /// goes to the client, with its kind and its text. A handler that ends without a reply, or
    /// panics, ends its own call only, as [`ErrorKind::Abandoned`].
    ///
    /// Dropping the future stops the server from taking anything. Calls that have begun go on, but
    /// their streams stand still, and replies of more data than the client offers are not fetched.
    /// [`Server::shutdown`] ends in order.
    ///
    /// # Errors
    /// `Invalid` outside of a tokio runtime and of a world, or if the server serves already.
    pub async fn serve<H, F>(&self, handler: H) -> Result<(), Error>
    where
        H: Fn(Call) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let runtime = Runtime::current().map_err(|error| error.during("serve"))?;
        let Some(handle) = self.shared.handle().clone() else {
            return Ok(());
        };
        if self.shared.serving.swap(true, Ordering::AcqRel) {
            return Err(Error::new(ErrorKind::Invalid, "this server serves already").during("serve"));
        }
        let calls = Arc::new(Calls::new(Arc::clone(&self.shared), runtime.clone(), handler));
        let accepting = runtime.spawn(Arc::clone(&calls).accept(handle.clone()).boxed());
        let shared = Arc::clone(&self.shared);
        shared.watch.serves(true);
        runtime.spawn(async move { shared.watch.run(&handle, &shared.streams).await }.boxed());
        let refuses = Arc::clone(&calls);
        let refusing = runtime.spawn(async move { refuses.refuse_at_the_end().await }.boxed());
        let tasks = [&accepting, &refusing].map(|task| task.abort_handle());
        let _stop = Stop { shared: Arc::clone(&self.shared), calls, tasks };
        // It ends when the endpoints are closed.
        accepting.await
    }

    /// Brings what the endpoints have counted so far to the recorder; see [`crate::rpc::metrics`].
    #[cfg(feature = "metrics")]
    pub fn sample(&self) {
        self.shared.metrics.engines.sample(&*self.shared.handle());
    }

    /// Takes no more calls, and waits until those that have begun have ended, for `limit` at most.
    /// Then drops the handlers that are left, and closes all connections. Calls that arrive
    /// meanwhile are [refused](ErrorKind::Refused): clients go to another address, or wait for the
    /// server to come up again.
    pub async fn shutdown(&self, limit: Duration) {
        self.shared.watch.stop();
        let _ = timeout(limit, self.shared.watch.all_ended()).await;
        self.shared.watch.close();
        // The clients of those are told, and those of calls that waited.
        let _ = timeout(GRACE, self.shared.watch.all_ended()).await;
        let handle = self.shared.handle().take();
        if let Some(handle) = handle {
            let now = Instant::now().time();
            handle.endpoints().for_each(|endpoint| endpoint.with(|engine| engine.dismiss_idle(now)));
            handle.close().await;
        }
    }
}

impl ServerBuilder {
    /// Sets how many handlers run at a time. The default is 1024. One client has at most three
    /// quarters of them.
    pub fn max_calls(mut self, most: usize) -> ServerBuilder {
        self.limits.max_calls = most.clamp(1, MOST_CALLS);
        self
    }

    /// Sets how many calls may wait for a handler. The default is 8192. Further calls are answered
    /// with [`ErrorKind::Busy`].
    pub fn max_waiting(mut self, most: usize) -> ServerBuilder {
        self.limits.max_waiting = most;
        self
    }

    /// Sets the longest data of a call, or of a part of a stream, in bytes. The default is 16 MiB,
    /// and it is at most [`ServerBuilder::max_bytes`]. A call with more is answered with
    /// [`ErrorKind::TooLarge`].
    pub fn max_data(mut self, most: u64) -> ServerBuilder {
        self.limits.max_data = most;
        self
    }

    /// Sets how many bytes of data handlers have at a time, from [`Call::data`] to the end of the
    /// call, and from one [`Call::next`] to the following one. The default is 256 MiB. A handler
    /// that would exceed it waits for others.
    pub fn max_bytes(mut self, most: u64) -> ServerBuilder {
        self.limits.max_bytes = most;
        self
    }

    /// Sets the version of the program's protocol. A client of another version cannot connect, and
    /// its error names both. The default is 0.
    pub fn protocol(mut self, version: u32) -> ServerBuilder {
        self.config.protocol = version;
        self
    }

    /// Sets the settings of the endpoints below: credits, peers, timeouts. Their name is in the
    /// logs of clients. They have the protocol's version too.
    pub fn config(mut self, config: Config) -> ServerBuilder {
        self.config = config;
        self
    }

    /// Sets the settings of transports.
    pub fn options(mut self, options: OpenOptions) -> ServerBuilder {
        self.options = options;
        self
    }

    /// Accepts connections at one address or several.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub async fn bind(self, addrs: impl IntoAddrs) -> Result<Server, Error> {
        let ServerBuilder { limits, config, options } = self;
        let addrs = addrs.into_addrs()?;
        if addrs.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "no address to listen at").during("bind"));
        }
        let (handle, addrs) = match host() {
            Some(host) => {
                let handle = host.open(&config)?;
                let listen = |addr| handle.listen(&host.locate(addr)?);
                let addrs = addrs.iter().map(listen).collect::<Result<_, _>>()?;
                (handle, addrs)
            }
            None => super::listen(&options, &config, &addrs)?,
        };
        let shared = Shared {
            handle: Mutex::new(Some(handle)),
            addrs,
            bytes: Semaphore::new(permits(limits.max_bytes)),
            limits,
            kept: KeptReplies::default(),
            streams: Arc::default(),
            watch: Watch::default(),
            serving: AtomicBool::new(false),
            metrics: ServerMetrics::new(),
        };
        Ok(Server { shared: Arc::new(shared) })
    }
}

impl Shared {
    fn handle(&self) -> MutexGuard<'_, Option<Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("addrs", &self.shared.addrs).finish_non_exhaustive()
    }
}
