//! Opens a transport by the scheme of an address. This is the only place that knows every backend.
//!
//! A backend in this tree has a feature of this crate, a field of [`OpenOptions`], and two arms in
//! [`open_shards`], one for the build with it and one for the build without. A backend outside this
//! tree is registered with [`OpenOptions::backend`] or [`OpenOptions::backend_with_shards`].

use std::fmt;
use std::sync::Arc;

use bmi_core::driver::MonotonicClock;
use bmi_core::{
    Addr, AnyTransport, Clock, Config, Endpoint, Engine, Error, ErrorKind, Handle, HandleConfig, Scheme,
    SharedEndpoint, Transport,
};

type Opener = Arc<dyn Fn(usize) -> Result<Vec<AnyTransport>, Error> + Send + Sync>;

/// The settings of each backend, and the backends outside this tree.
///
/// ```
/// use std::time::Duration;
/// use bmi::OpenOptions;
/// use bmi::config::TcpConfig;
///
/// let mut tcp = TcpConfig::default();
/// tcp.limits.handshake_timeout = Duration::from_secs(2);
/// let options = OpenOptions::default().tcp(tcp);
/// assert_eq!(options.tcp.limits.handshake_timeout, Duration::from_secs(2));
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Settings of `tcp://`.
    #[cfg(feature = "tcp")]
    pub tcp: bmi_tcp::TcpConfig,
    /// Settings of `ib://`.
    #[cfg(feature = "ib")]
    pub ib: bmi_ib::IbConfig,
    /// Settings of `shm://`.
    #[cfg(feature = "shm")]
    pub shm: bmi_shm::ShmConfig,
    custom: Vec<(Scheme, Opener)>,
}

impl OpenOptions {
    /// Sets the settings of `tcp://`.
    #[cfg(feature = "tcp")]
    #[must_use]
    pub fn tcp(mut self, tcp: bmi_tcp::TcpConfig) -> OpenOptions {
        self.tcp = tcp;
        self
    }

    /// Sets the settings of `ib://`.
    #[cfg(feature = "ib")]
    #[must_use]
    pub fn ib(mut self, ib: bmi_ib::IbConfig) -> OpenOptions {
        self.ib = ib;
        self
    }

    /// Sets the settings of `shm://`.
    #[cfg(feature = "shm")]
    #[must_use]
    pub fn shm(mut self, shm: bmi_shm::ShmConfig) -> OpenOptions {
        self.shm = shm;
        self
    }

    /// Proves who this side is, and asks who the peer is, on all networks: TLS for `tcp://`, and
    /// for the side channel of `ib://`, whose data stays in the clear. Shared memory has the
    /// kernel's word and needs nothing.
    ///
    /// ```no_run
    /// use bmi::OpenOptions;
    /// use bmi::config::Security;
    ///
    /// let security = Security::mutual("host.pem", "host.key", "authority.pem")?;
    /// let options = OpenOptions::default().secure(&security);
    /// # Ok::<(), bmi::Error>(())
    /// ```
    #[cfg(any(feature = "tcp", feature = "ib"))]
    #[must_use]
    pub fn secure(mut self, security: &bmi_tls::Security) -> OpenOptions {
        #[cfg(feature = "tcp")]
        {
            self.tcp.security = Some(security.clone());
        }
        #[cfg(feature = "ib")]
        {
            self.ib.security = Some(security.clone());
        }
        self
    }

    /// Registers a backend outside this tree. [`open`] calls the argument `open` for addresses
    /// of `scheme`. If a scheme is registered twice, the later registration counts. A
    /// built-in scheme can be replaced too.
    ///
    /// ```
    /// use bmi::backend::AnyTransport;
    /// use bmi::{OpenOptions, Scheme};
    ///
    /// # fn open_my_transport() -> Result<AnyTransport, bmi::Error> {
    /// #     bmi::backend::open(Scheme::Tcp, &OpenOptions::default())
    /// # }
    /// let scheme = Scheme::custom("mine")?;
    /// let options = OpenOptions::default().backend(scheme, open_my_transport);
    /// let transport = bmi::backend::open(scheme, &options)?;
    /// # Ok::<(), bmi::Error>(())
    /// ```
    #[must_use]
    pub fn backend(
        self,
        scheme: Scheme,
        open: impl Fn() -> Result<AnyTransport, Error> + Send + Sync + 'static,
    ) -> OpenOptions {
        self.backend_with_shards(scheme, move |count| match count {
            1 => Ok(vec![open()?]),
            _ => {
                let text = format!("the backend of {scheme}:// opens one transport for an address, not {count}");
                Err(Error::new(ErrorKind::Unsupported, text))
            }
        })
    }

    /// Registers a backend outside this tree that can open several transports behind one address
    /// (C17 of [`bmi_core::transport`]). [`open_shards`] calls `open` with their number, and
    /// [`open`] calls it with 1. It returns as many transports.
    #[must_use]
    pub fn backend_with_shards(
        mut self,
        scheme: Scheme,
        open: impl Fn(usize) -> Result<Vec<AnyTransport>, Error> + Send + Sync + 'static,
    ) -> OpenOptions {
        self.custom.retain(|(known, _)| *known != scheme);
        self.custom.push((scheme, Arc::new(open)));
        self
    }

    /// Selects the adapter that `addr` names, if it names one. It is an adapter of this host.
    #[must_use]
    pub fn at(self, addr: &Addr) -> OpenOptions {
        match addr.device() {
            #[cfg(feature = "ib")]
            Some(device) => {
                let mut options = self;
                options.ib.device = Some(device.clone());
                options
            }
            _ => self,
        }
    }
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("OpenOptions");
        #[cfg(feature = "tcp")]
        fields.field("tcp", &self.tcp);
        #[cfg(feature = "ib")]
        fields.field("ib", &self.ib);
        #[cfg(feature = "shm")]
        fields.field("shm", &self.shm);
        let custom: Vec<_> = self.custom.iter().map(|(scheme, _)| scheme.to_string()).collect();
        fields.field("custom", &custom).finish()
    }
}

/// Returns true if this build has the backend of a scheme. The machine may still lack the adapter
/// that the backend needs; [`open`] reports that.
pub fn is_built_in(scheme: Scheme) -> bool {
    match scheme {
        Scheme::Tcp => cfg!(feature = "tcp"),
        Scheme::Ib => cfg!(feature = "ib"),
        Scheme::Shm => cfg!(feature = "shm"),
        Scheme::Sim | Scheme::Custom(_) => false,
    }
}

/// Opens a new transport for addresses of `scheme`.
///
/// # Errors
/// `Unsupported` if this build or this machine has no such transport. The text says what is
/// missing. Otherwise the errors of the backend.
pub fn open(scheme: Scheme, options: &OpenOptions) -> Result<AnyTransport, Error> {
    let opened = open_shards(scheme, options, 1)?.pop();
    opened.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("the backend of {scheme}:// opened no transport")))
}

/// Opens `count` new transports for addresses of `scheme` that share their listening addresses (C17
/// of [`bmi_core::transport`]), for example one for each core. The program listens with one of
/// them. That one accepts for all, and each new connection goes to the transport that has fewest,
/// of those that take part ([`Transport::spread`]).
///
/// Make an endpoint of each, with copies of one clock, and drive each on a thread of its own. The
/// limits of the settings hold for each. `ShmConfig::max_mapped_in_all` alone is for all together.
///
/// ```
/// use std::thread;
///
/// use bmi::backend::Transport;
/// use bmi::driver::{MonotonicClock, event};
/// use bmi::polled::Engine;
/// use bmi::{Addr, Clock, Config, Endpoint, Error, OpenOptions, Scheme};
///
/// # fn main() -> Result<(), Error> {
/// let clock = MonotonicClock::new();
/// let mut transports = bmi::backend::open_shards(Scheme::Tcp, &OpenOptions::default(), 2)?;
/// let addr = transports[0].listen(&Addr::tcp("127.0.0.1", 0))?;
/// let serve = move |transport| {
///     let endpoint = Engine::new(transport, Config::named("server"), clock.now())?;
///     let endpoint = Endpoint::new(endpoint, clock);
///     // Answers one request.
///     event::block_on(endpoint.clone(), async {
///         let request = endpoint.next_unexpected().await;
///         let soon = endpoint.within(std::time::Duration::from_secs(5));
///         request.peer().send(request.tag(), b"done".to_vec(), soon).await?;
///         request.peer().disconnect(soon).await
///     })?
/// };
/// let spawn = |transport| thread::spawn(move || serve(transport));
/// let threads: Vec<_> = transports.into_iter().map(spawn).collect();
/// # let config = Config::named("client");
/// # let client = bmi::endpoint(Scheme::Tcp, &OpenOptions::default(), config, clock)?;
/// # event::block_on(client.clone(), async {
/// #     let soon = client.within(std::time::Duration::from_secs(5));
/// #     let first = client.connect(&addr, soon).await?;
/// #     let second = client.connect(&addr, soon).await?;
/// #     for peer in [second, first] {
/// #         let buffer = bmi::Memory::zeroed(4)?;
/// #         let reply = peer.recv(1, &buffer, soon);
/// #         peer.send_unexpected(1, b"work".to_vec(), soon).await?;
/// #         reply.await?;
/// #     }
/// #     Ok::<_, Error>(())
/// # })??;
/// for thread in threads {
///     thread.join().expect("a server's thread")?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`open`]. `Invalid` if `count` is 0. `Unsupported` if the backend was registered with
/// [`OpenOptions::backend`] and `count` is not 1.
pub fn open_shards(scheme: Scheme, options: &OpenOptions, count: usize) -> Result<Vec<AnyTransport>, Error> {
    if count == 0 {
        return Err(Error::new(ErrorKind::Invalid, format!("no transport for {scheme}:// is asked for")));
    }
    if let Some((_, open)) = options.custom.iter().find(|(known, _)| *known == scheme) {
        let transports = open(count)?;
        if transports.len() == count {
            return Ok(transports);
        }
        let text = format!("the backend of {scheme}:// opened {} transports, not {count}", transports.len());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    match scheme {
        #[cfg(feature = "tcp")]
        Scheme::Tcp => Ok(boxed(bmi_tcp::TcpTransport::shards(options.tcp.clone(), count)?)),
        #[cfg(not(feature = "tcp"))]
        Scheme::Tcp => Err(left_out("tcp")),
        #[cfg(feature = "ib")]
        Scheme::Ib => Ok(boxed(bmi_ib::IbTransport::shards(options.ib.clone(), count)?)),
        #[cfg(not(feature = "ib"))]
        Scheme::Ib => Err(left_out("ib")),
        #[cfg(feature = "shm")]
        Scheme::Shm => Ok(boxed(bmi_shm::ShmTransport::shards(options.shm.clone(), count)?)),
        #[cfg(not(feature = "shm"))]
        Scheme::Shm => Err(left_out("shm")),
        Scheme::Sim => {
            let text =
                "a transport of sim:// belongs to a simulated world: ask a node of it (bmi_sim::Node::transport)";
            Err(Error::new(ErrorKind::Unsupported, text))
        }
        Scheme::Custom(_) => {
            let text = format!(
                "there is no backend for {scheme}://; there are tcp://, ib:// and shm://, and what the program \
                 registers with OpenOptions::backend"
            );
            Err(Error::new(ErrorKind::Unsupported, text))
        }
    }
}

#[allow(dead_code, reason = "with every feature off, no backend is built in")]
fn boxed(transports: Vec<impl Transport + Send + 'static>) -> Vec<AnyTransport> {
    transports.into_iter().map(|transport| -> AnyTransport { Box::new(transport) }).collect()
}

/// Returns the error for a backend whose feature is off.
#[allow(dead_code, reason = "with every feature on, nothing is left out")]
fn left_out(scheme: &str) -> Error {
    let text = format!("{scheme}:// was left out of this build: it needs the feature `{scheme}` of the crate bmi");
    Error::new(ErrorKind::Unsupported, text)
}

/// Opens an endpoint for addresses of `scheme`. Endpoints that are used together take copies of one
/// clock. On a real machine that is a [`MonotonicClock`](bmi_core::driver::MonotonicClock).
///
/// # Errors
/// The errors of [`open`] and of [`Engine::new`].
pub fn endpoint(
    scheme: Scheme,
    options: &OpenOptions,
    config: Config,
    clock: impl Clock + 'static,
) -> Result<Endpoint, Error> {
    let endpoint = Engine::new(open(scheme, options)?, config, clock.now())?;
    Ok(Endpoint::new(endpoint, clock))
}

// An endpoint may be made on one thread and driven on another.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<AnyTransport>();
    is_send::<Engine>();
};

/// Opens an endpoint that any thread can use, and that the program drives. [`handle`] opens one
/// with a driver of its own.
///
/// # Errors
/// As [`endpoint`].
pub fn shared_endpoint(
    scheme: Scheme,
    options: &OpenOptions,
    config: Config,
    clock: impl Clock + Send + Sync + 'static,
) -> Result<SharedEndpoint, Error> {
    let endpoint = Engine::new(open(scheme, options)?, config, clock.now())?;
    Ok(SharedEndpoint::shared(endpoint, clock))
}

/// Opens a [`Handle`] for addresses of `scheme`: `count` endpoints behind one listening address,
/// each with a driver. The drivers are tasks if this is called in a tokio runtime of several
/// threads, and else threads. Every thread of the program can use the handle, and its futures are
/// `Send`.
///
/// ```
/// use std::time::Duration;
///
/// use bmi::config::HandleConfig;
/// use bmi::{Addr, Body, Config, Error, OpenOptions, Scheme};
///
/// # fn main() -> Result<(), Error> {
/// let options = OpenOptions::default();
/// let server = bmi::handle(Scheme::Tcp, &options, Config::named("server"), 2, HandleConfig::default())?;
/// let client = bmi::handle(Scheme::Tcp, &options, Config::named("client"), 1, HandleConfig::default())?;
/// let addr = server.listen(&Addr::tcp("127.0.0.1", 0))?;
/// let serving = std::thread::spawn(move || -> Result<(), Error> {
///     let call = server.block_on(server.next_call())?;
///     let soon = call.within(Duration::from_secs(5));
///     server.block_on(call.reply(b"done", None, soon))
/// });
/// let soon = client.within(Duration::from_secs(5));
/// let peer = client.block_on(client.connect(&addr, soon))?;
/// let call = peer.call(b"work", Body::None, soon)?;
/// assert_eq!(client.block_on(call.reply())?.bytes, "done");
/// serving.join().expect("the server's thread")
/// # }
/// ```
///
/// # Errors
/// The errors of [`open_shards`], of [`Engine::new`] and of [`Handle::start`].
pub fn handle(
    scheme: Scheme,
    options: &OpenOptions,
    config: Config,
    count: usize,
    settings: HandleConfig,
) -> Result<Handle, Error> {
    let clock = MonotonicClock::new();
    let transports = open_shards(scheme, options, count)?;
    let open = |transport| Engine::new(transport, config.clone(), clock.now());
    let endpoints = transports.into_iter().map(open).collect::<Result<_, _>>()?;
    Handle::start(endpoints, clock, settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "tcp")]
    #[test]
    fn what_is_built_in_opens_and_serves_its_own_addresses() {
        assert!(is_built_in(Scheme::Tcp));
        let mut transport = open(Scheme::Tcp, &OpenOptions::default()).unwrap();
        let addr = transport.listen(&bmi_core::Addr::tcp("127.0.0.1", 0)).unwrap();
        assert_eq!(addr.scheme(), Scheme::Tcp);
        assert_ne!(addr.port(), 0);
    }

    #[cfg(feature = "ib")]
    #[test]
    fn a_machine_without_the_adapter_says_so() {
        let addr: Addr = "ib://no_such_adapter/127.0.0.1:0".parse().unwrap();
        let options = OpenOptions::default().at(&addr);
        assert_eq!(options.ib.device.as_ref(), addr.device());
        let error = open(Scheme::Ib, &options).err().unwrap();
        assert!(!error.detail().is_empty(), "{error}");
    }

    #[test]
    fn what_is_missing_is_said() {
        let unknown = Scheme::custom("tpc").unwrap();
        for scheme in Scheme::ALL.into_iter().chain([unknown]).filter(|scheme| !is_built_in(*scheme)) {
            let error = open(scheme, &OpenOptions::default()).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.detail().contains(&format!("{scheme}://")), "{error}");
        }
    }

    #[test]
    fn a_registered_backend_opens_several_transports_if_it_can() {
        let scheme = Scheme::custom("mine").unwrap();
        let refuse = |_| Err(Error::new(ErrorKind::Refused, "not here"));
        let alone = OpenOptions::default().backend(scheme, move || refuse(1).map(|mut all: Vec<_>| all.remove(0)));
        let kind = |options: &OpenOptions, count| open_shards(scheme, options, count).err().map(|error| error.kind());
        assert_eq!(kind(&alone, 1), Some(ErrorKind::Refused));
        assert_eq!(kind(&alone, 2), Some(ErrorKind::Unsupported));
        assert_eq!(kind(&alone, 0), Some(ErrorKind::Invalid));
        let any = OpenOptions::default().backend_with_shards(scheme, refuse);
        assert_eq!(kind(&any, 2), Some(ErrorKind::Refused));
        let forgetful = OpenOptions::default().backend_with_shards(scheme, |_| Ok(Vec::new()));
        assert_eq!(kind(&forgetful, 2), Some(ErrorKind::Invalid), "none instead of two");
    }

    #[test]
    fn a_registered_backend_is_opened_by_its_scheme() {
        let refuse = |text: &'static str| move || Err(Error::new(ErrorKind::Refused, text));
        let scheme = Scheme::custom("mine").unwrap();
        let options = OpenOptions::default().backend(scheme, refuse("first")).backend(scheme, refuse("second"));
        assert_eq!(open(scheme, &options).err().unwrap().detail(), "second");
        let options = options.backend(Scheme::Tcp, refuse("replaced"));
        assert_eq!(open(Scheme::Tcp, &options).err().unwrap().detail(), "replaced");
        assert!(format!("{options:?}").contains("mine"));
    }
}
