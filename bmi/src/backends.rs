//! Opens a transport by the scheme of an address. This is the only place that knows every backend.
//!
//! A backend in this tree has a feature of this crate, a field of [`OpenOptions`], and two arms in
//! [`open`], one for the build with it and one for the build without. A backend outside this tree
//! is registered with [`OpenOptions::backend`].

use std::fmt;
use std::sync::Arc;

use bmi_core::{Addr, AsyncEndpoint, Clock, Config, Endpoint, Error, ErrorKind, Scheme, Transport};

/// A transport of any backend.
pub type AnyTransport = Box<dyn Transport>;

type Opener = Arc<dyn Fn() -> Result<AnyTransport, Error> + Send + Sync>;

/// The settings of each backend, and the backends outside this tree.
///
/// ```
/// use std::time::Duration;
/// use bmi::{OpenOptions, TcpConfig};
///
/// let mut tcp = TcpConfig::default();
/// tcp.handshake_timeout = Duration::from_secs(2);
/// let options = OpenOptions::default().tcp(tcp);
/// assert_eq!(options.tcp.handshake_timeout, Duration::from_secs(2));
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

    /// Registers a backend outside this tree. [`open`] calls the argument `open` for addresses
    /// of `scheme`. If a scheme is registered twice, the later registration counts. A
    /// built-in scheme can be replaced too.
    ///
    /// ```
    /// use bmi::{AnyTransport, OpenOptions, Scheme};
    ///
    /// # fn open_my_transport() -> Result<AnyTransport, bmi::Error> { bmi::open(Scheme::Tcp, &OpenOptions::default()) }
    /// let scheme = Scheme::custom("mine")?;
    /// let options = OpenOptions::default().backend(scheme, open_my_transport);
    /// let transport = bmi::open(scheme, &options)?;
    /// # Ok::<(), bmi::Error>(())
    /// ```
    #[must_use]
    pub fn backend(
        mut self,
        scheme: Scheme,
        open: impl Fn() -> Result<AnyTransport, Error> + Send + Sync + 'static,
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
    if let Some((_, open)) = options.custom.iter().find(|(known, _)| *known == scheme) {
        return open();
    }
    match scheme {
        #[cfg(feature = "tcp")]
        Scheme::Tcp => Ok(Box::new(bmi_tcp::TcpTransport::new(options.tcp.clone())?)),
        #[cfg(not(feature = "tcp"))]
        Scheme::Tcp => Err(left_out("tcp")),
        #[cfg(feature = "ib")]
        Scheme::Ib => Ok(Box::new(bmi_ib::IbTransport::new(options.ib.clone())?)),
        #[cfg(not(feature = "ib"))]
        Scheme::Ib => Err(left_out("ib")),
        #[cfg(feature = "shm")]
        Scheme::Shm => Ok(Box::new(bmi_shm::ShmTransport::new(options.shm.clone())?)),
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
/// The errors of [`open`] and of [`Endpoint::new`].
pub fn endpoint(
    scheme: Scheme,
    options: &OpenOptions,
    config: Config,
    clock: impl Clock + 'static,
) -> Result<AsyncEndpoint<AnyTransport>, Error> {
    let endpoint = Endpoint::new(open(scheme, options)?, config, clock.now())?;
    Ok(AsyncEndpoint::new(endpoint, clock))
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
