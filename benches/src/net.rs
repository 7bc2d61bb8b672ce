//! Endpoints as the benchmarks make them, and where their servers keep data.

use std::path::{Path, PathBuf};

use bmi::driver::MonotonicClock;
use bmi::{AnyTransport, AsyncEndpoint, Clock, Config, Endpoint, Error, OpenOptions, Scheme};
use bmi_tcp::{TcpConfig, TcpTransport};

/// The backend over TCP.
pub type Tcp = TcpTransport;

/// An endpoint over TCP with default settings, under a name for logs; the backend is known when
/// this is built.
///
/// # Errors
/// If the system has no more descriptors.
pub fn tcp_endpoint(name: &str) -> Result<AsyncEndpoint<Tcp>, Error> {
    let clock = MonotonicClock::new();
    let endpoint = Endpoint::new(TcpTransport::new(TcpConfig::default())?, Config::named(name), clock.now())?;
    Ok(AsyncEndpoint::new(endpoint, clock))
}

/// An endpoint over whichever backend has the scheme, with default settings, under a name for logs.
///
/// # Errors
/// `Unsupported` if this build or this machine does not have it; what the backend says otherwise.
pub fn endpoint(scheme: Scheme, name: &str) -> Result<AsyncEndpoint<AnyTransport>, Error> {
    bmi::endpoint(scheme, &OpenOptions::default(), Config::named(name), MonotonicClock::new())
}

/// The transports of a real machine that can be opened on this one.
pub fn available() -> Vec<Scheme> {
    let opens = |scheme: &Scheme| bmi::open(*scheme, &OpenOptions::default()).is_ok();
    [Scheme::Tcp, Scheme::Shm, Scheme::Ib].into_iter().filter(opens).collect()
}

/// Memory if there is a file system in it, so that what is measured is the network and not a disk.
pub fn data_folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    match tempfile::tempfile_in(memory) {
        Ok(_) => memory.to_owned(),
        Err(_) => std::env::temp_dir(),
    }
}
