//! Opening a transport by its scheme: the one place that knows every backend.
//!
//! **Adding a backend** takes a feature of this crate, a field of [`OpenOptions`], and the two arms
//! of its scheme below, one for the build with it and one for the build without.

use bmi_core::{Addr, AsyncEndpoint, Clock, Config, Endpoint, Error, ErrorKind, Scheme, Transport};

/// A transport of any backend.
pub type AnyTransport = Box<dyn Transport>;

/// Settings of the backends; each takes what is its own. `OpenOptions::default()` has every
/// backend's defaults.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Of `tcp://`.
    #[cfg(feature = "tcp")]
    pub tcp: bmi_tcp::TcpConfig,
    /// Of `ib://`.
    #[cfg(feature = "ib")]
    pub ib: bmi_ib::IbConfig,
    /// Of `shm://`.
    #[cfg(feature = "shm")]
    pub shm: bmi_shm::ShmConfig,
}

impl OpenOptions {
    /// With the adapter that `addr` names, if it names one: an address that is listened at names
    /// the adapter of its own host.
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

/// Whether this build has the backend of a scheme. That it is there says nothing of the machine:
/// see [`open`].
pub fn is_built_in(scheme: Scheme) -> bool {
    match scheme {
        Scheme::Tcp => cfg!(feature = "tcp"),
        Scheme::Ib => cfg!(feature = "ib"),
        Scheme::Shm => cfg!(feature = "shm"),
        Scheme::Sim => false,
    }
}

/// A new transport for addresses of `scheme`.
///
/// # Errors
/// `Unsupported`, with what is missing in words, if this build or this machine has no such
/// transport; what the backend says otherwise.
pub fn open(scheme: Scheme, options: &OpenOptions) -> Result<AnyTransport, Error> {
    match scheme {
        #[cfg(feature = "tcp")]
        Scheme::Tcp => Ok(Box::new(bmi_tcp::TcpTransport::new(options.tcp.clone())?)),
        #[cfg(not(feature = "tcp"))]
        Scheme::Tcp => Err(left_out("tcp", options)),
        #[cfg(feature = "ib")]
        Scheme::Ib => Ok(Box::new(bmi_ib::IbTransport::new(options.ib.clone())?)),
        #[cfg(not(feature = "ib"))]
        Scheme::Ib => Err(left_out("ib", options)),
        #[cfg(feature = "shm")]
        Scheme::Shm => Ok(Box::new(bmi_shm::ShmTransport::new(options.shm.clone())?)),
        #[cfg(not(feature = "shm"))]
        Scheme::Shm => Err(left_out("shm", options)),
        Scheme::Sim => {
            let text =
                "a transport of sim:// belongs to a simulated world: ask a node of it (bmi_sim::Node::transport)";
            Err(Error::new(ErrorKind::Unsupported, text))
        }
    }
}

/// The error for a backend whose feature is off.
#[allow(dead_code, reason = "with every feature on, nothing is left out")]
fn left_out(scheme: &str, _: &OpenOptions) -> Error {
    let text = format!("{scheme}:// was left out of this build: it needs the feature `{scheme}` of the crate bmi");
    Error::new(ErrorKind::Unsupported, text)
}

/// An endpoint for addresses of `scheme`. Endpoints of one program that are used together go by
/// copies of one clock.
///
/// # Errors
/// As [`open`]; those of [`Endpoint::new`].
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
        for scheme in Scheme::ALL.into_iter().filter(|scheme| !is_built_in(*scheme)) {
            let error = open(scheme, &OpenOptions::default()).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.detail().contains(&format!("{scheme}://")), "{error}");
        }
    }
}
