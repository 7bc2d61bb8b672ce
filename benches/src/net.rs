//! Endpoints as the benchmarks make them.

use bmi_core::driver::MonotonicClock;
use bmi_core::{AsyncEndpoint, Clock, Config, Endpoint, Error};
use bmi_tcp::{TcpConfig, TcpTransport};

/// The backend over TCP.
pub type Tcp = TcpTransport;

/// An endpoint over TCP with default settings, under a name for logs.
///
/// # Errors
/// If the system has no more descriptors.
pub fn tcp_endpoint(name: &str) -> Result<AsyncEndpoint<Tcp>, Error> {
    let clock = MonotonicClock::new();
    let endpoint = Endpoint::new(TcpTransport::new(TcpConfig::default())?, Config::named(name), clock.now())?;
    Ok(AsyncEndpoint::new(endpoint, clock))
}
