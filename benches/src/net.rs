//! Creates endpoints for the benchmarks, and finds a directory for the data of their servers.

use std::path::{Path, PathBuf};

use bmi::driver::MonotonicClock;
use bmi::{Config, Endpoint, Error, OpenOptions, Scheme};

/// Creates an endpoint over the backend of the scheme, with default settings. The name is for logs.
///
/// # Errors
/// `Unsupported` if this build or this machine does not have the backend; otherwise the error of
/// the backend.
pub fn endpoint(scheme: Scheme, name: &str) -> Result<Endpoint, Error> {
    bmi::endpoint(scheme, &OpenOptions::default(), Config::named(name), MonotonicClock::new())
}

/// Returns the transports that can be opened on this machine. The simulator is not one of them.
pub fn available() -> Vec<Scheme> {
    let opens = |scheme: &Scheme| bmi::backend::open(*scheme, &OpenOptions::default()).is_ok();
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
