//! Hard time limits. A phase that takes longer ends the process, with a line that names the phase.
//!
//! **Why** end the process: a benchmark that hangs does so in the code under test, on the main
//! thread, where nothing can be cancelled. The limit gets a clean-up function for what destructors
//! would do, such as removing child processes and directories.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

/// The exit status of a process that reached a limit.
pub const TIMED_OUT: u8 = 3;

/// A time limit that is running. Dropping it in time cancels it.
#[must_use = "dropping it lifts the limit"]
#[derive(Debug)]
pub struct Limit {
    _lifted: Sender<()>,
}

impl Limit {
    /// Starts a limit. Unless it is dropped within `limit`, it prints a line with `what`, calls
    /// `clean_up`, and ends the process with status [`TIMED_OUT`].
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(
        what: impl Into<String>,
        limit: Duration,
        clean_up: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Limit> {
        let what = what.into();
        let (sender, lifted) = channel::<()>();
        Builder::new().name("limit".into()).spawn(move || {
            if lifted.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("error: {what} took longer than {} s; giving up", limit.as_secs());
                clean_up();
                std::process::exit(TIMED_OUT.into());
            }
        })?;
        Ok(Limit { _lifted: sender })
    }
}
