//! Unmaps large memory of peers on a thread, so that no poll waits for it.
//!
//! **Why.** The pages of a process that was killed belong to those that still have them mapped. The
//! last one to unmap them frees them, and for a few GiB the kernel needs about a second. A poll
//! that did so would serve nobody meanwhile.
//!
//! **Invariants**
//! 1. Memory counts as mapped until it is unmapped ([`Taken`]).
//! 2. If no thread can be started, memory is unmapped where it is dropped.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;

use super::room::Taken;
use crate::os::sys::Mapping;

/// Unmapping fewer bytes takes less than a millisecond.
const LARGE: usize = 1 << 20;

/// The memory of a peer, with its share of what may be mapped.
type Owned = (Mapping, Taken);

/// Memory of a peer. If it is large, a thread unmaps it.
pub(crate) struct PeerMemory(Option<Owned>);

impl PeerMemory {
    pub(crate) fn new(mapping: Mapping, taken: Taken) -> PeerMemory {
        PeerMemory(Some((mapping, taken)))
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        if let Some(owned) = self.0.take()
            && owned.0.len() >= LARGE
            && let Some(thread) = thread()
        {
            // If the thread is gone, the error has the memory.
            drop(thread.send(owned));
        }
    }
}

/// Returns the way to the thread. It is started when it is first needed, and stays.
fn thread() -> Option<&'static Sender<Owned>> {
    static THREAD: OnceLock<Option<Sender<Owned>>> = OnceLock::new();
    let start = || {
        let (sender, receiver) = channel::<Owned>();
        let started =
            Builder::new().name("bmi-shm-unmap".to_owned()).spawn(move || receiver.into_iter().for_each(drop));
        started.ok().map(|_| sender)
    };
    THREAD.get_or_init(start).as_ref()
}
