//! Creates endpoints for the benchmarks, and finds a directory for the data of their servers.

use std::path::{Path, PathBuf};

use bmi::driver::MonotonicClock;
use bmi::{AnyTransport, AsyncEndpoint, Clock, Config, Endpoint, Error, OpenOptions, Scheme};
use bmi_tcp::{TcpConfig, TcpTransport};

/// The backend over TCP.
pub type Tcp = TcpTransport;

/// Creates an endpoint over TCP with default settings. The name is for logs. The type of the
/// backend is known at compile time.
///
/// # Errors
/// If the system has no more descriptors.
pub fn tcp_endpoint(name: &str) -> Result<AsyncEndpoint<Tcp>, Error> {
    let clock = MonotonicClock::new();
    let endpoint = Endpoint::new(TcpTransport::new(TcpConfig::default())?, Config::named(name), clock.now())?;
    Ok(AsyncEndpoint::new(endpoint, clock))
}

/// Creates an endpoint over the backend of the scheme, with default settings. The name is for logs.
///
/// # Errors
/// `Unsupported` if this build or this machine does not have the backend; otherwise the error of
/// the backend.
pub fn endpoint(scheme: Scheme, name: &str) -> Result<AsyncEndpoint<AnyTransport>, Error> {
    bmi::endpoint(scheme, &OpenOptions::default(), Config::named(name), MonotonicClock::new())
}

/// Returns the transports that can be opened on this machine. The simulator is not one of them.
pub fn available() -> Vec<Scheme> {
    let opens = |scheme: &Scheme| bmi::open(*scheme, &OpenOptions::default()).is_ok();
    [Scheme::Tcp, Scheme::Shm, Scheme::Ib].into_iter().filter(opens).collect()
}

/// Returns a directory for data. It is in memory if the machine has such a file system, so that the
/// network is measured and not a disk.
pub fn data_folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    match tempfile::tempfile_in(memory) {
        Ok(_) => memory.to_owned(),
        Err(_) => std::env::temp_dir(),
    }
}
