//! Hard time limits: a phase that takes longer ends the process, with a line that names it.
//!
//! **Why** end the process: what hangs in a benchmark hangs in code under test, on the main thread,
//! where nothing can be cancelled. The destructors that matter, child processes and folders, are
//! handed to the limit as a clean-up.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

/// Exit status of a process that ran into a limit.
pub const TIMED_OUT: u8 = 3;

/// A running limit; dropping it in time lifts it.
#[must_use = "dropping it lifts the limit"]
#[derive(Debug)]
pub struct Limit {
    _lifted: Sender<()>,
}

impl Limit {
    /// Ends the process with status [`TIMED_OUT`] unless dropped within `limit`, after a line with
    /// `what` and a call of `clean_up`.
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
