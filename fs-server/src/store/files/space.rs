//! How much room a file system has: what it said last, because asking may wait for the disk.
//!
//! **Invariants**
//! 1. It is asked once at a time, however many want to know.
//! 2. What it said last is always known.

use std::io;
use std::sync::Mutex;

use tokio::sync::Notify;

use crate::lock::lock;
use crate::store::disk::{DiskDir, Room};

/// What is known of the room of a file system.
pub(super) struct Space {
    state: Mutex<State>,
    asked: Notify,
}

struct State {
    asking: bool,
    known: Room,
    /// The error of the last attempt.
    error: Option<i32>,
}

impl Space {
    /// Begins with what the file system has said.
    pub(super) fn new(known: Room) -> Space {
        Space { state: Mutex::new(State { asking: false, known, error: None }), asked: Notify::new() }
    }

    /// Returns what the file system said last.
    pub(in crate::store) fn known(&self) -> Room {
        lock(&self.state).known
    }

    /// Waits until the file system has been asked. `begin` is called if nobody else is asking. It
    /// must have [`Space::ask`] called, now or later.
    pub(super) async fn ask_anew(&self, begin: impl FnOnce()) -> io::Result<Room> {
        let asked = self.asked.notified();
        if !std::mem::replace(&mut lock(&self.state).asking, true) {
            begin();
        }
        asked.await;
        let state = lock(&self.state);
        state.error.map_or(Ok(state.known), |error| Err(io::Error::from_raw_os_error(error)))
    }

    /// Asks, and tells all that wait.
    pub(in crate::store) fn ask(&self, dir: &dyn DiskDir) {
        let answer = dir.room();
        {
            let mut state = lock(&self.state);
            state.asking = false;
            state.error = answer.as_ref().err().map(|error| error.raw_os_error().unwrap_or(libc::EIO));
            state.known = answer.unwrap_or(state.known);
        }
        self.asked.notify_waiters();
    }
}
