//! What the job takes of this machine: endpoints, a directory for data, processor time, and a
//! limit on the time of a run.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use bmi::driver::MonotonicClock;
use bmi::{Config, Endpoint, Error, OpenOptions, Scheme};
use rustix::time::{ClockId, clock_gettime};

/// The exit status of a run that took too long.
const TIMED_OUT: i32 = 3;

/// Creates an endpoint over the backend of the scheme, with default settings.
///
/// # Errors
/// `Unsupported` if this machine does not have the backend; otherwise the error of the backend.
pub(crate) fn endpoint(scheme: Scheme) -> Result<Endpoint, Error> {
    bmi::endpoint(scheme, &OpenOptions::default(), Config::named("ab"), MonotonicClock::new())
}

/// Returns the transports that can be opened on this machine. The simulator is not one of them.
pub(crate) fn transports() -> Vec<Scheme> {
    let opens = |scheme: &Scheme| bmi::backend::open(*scheme, &OpenOptions::default()).is_ok();
    [Scheme::Tcp, Scheme::Shm, Scheme::Ib].into_iter().filter(opens).collect()
}

/// Returns a directory for data. It is in memory if the machine has such a file system, so that the
/// network is measured and not a disk.
pub(crate) fn data_folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if tempfile::tempfile_in(memory).is_ok() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Returns the processor time of the calling thread since it began.
pub(crate) fn cpu_of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The clock counts up from zero, so a reading is never negative.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A time limit that is running. Dropping it in time cancels it.
#[must_use = "dropping it lifts the limit"]
pub(crate) struct Limit {
    _lifted: Sender<()>,
}

impl Limit {
    /// Starts a limit. Unless it is dropped in time, it prints a line with `what`, removes the
    /// directory `data`, and ends the process: a run that hangs does so on the main thread, where
    /// nothing can be cancelled.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn new(what: String, limit: Duration, data: Option<PathBuf>) -> std::io::Result<Limit> {
        let (sender, lifted) = channel::<()>();
        Builder::new().name("limit".into()).spawn(move || {
            if lifted.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("error: {what} took longer than {} s; giving up", limit.as_secs());
                // Servers of this process may write into it at this moment.
                let _ = data.map(std::fs::remove_dir_all);
                std::process::exit(TIMED_OUT);
            }
        })?;
        Ok(Limit { _lifted: sender })
    }
}
