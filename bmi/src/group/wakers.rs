//! The tasks that wait in operations of the groups of one endpoint.
//!
//! **Why.** Each operation that is polled takes what has arrived for any group of the endpoint. It
//! wakes the others when that may concern them. An operation that ends wakes them too: the endpoint
//! may have had its waker alone.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

#[derive(Default)]
pub(super) struct Wakers(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    next_ticket: u64,
    wakers: BTreeMap<u64, Waker>,
}

impl Wakers {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a ticket for an operation.
    pub(super) fn ticket(&self) -> u64 {
        let mut waiting = self.lock();
        waiting.next_ticket += 1;
        waiting.next_ticket
    }

    /// Sets what wakes the operation with this ticket.
    pub(super) fn set(&self, ticket: u64, waker: &Waker) {
        let mut waiting = self.lock();
        if waiting.wakers.get(&ticket).is_none_or(|known| !known.will_wake(waker)) {
            waiting.wakers.insert(ticket, waker.clone());
        }
    }

    /// Wakes all operations but this one. No operation has the ticket 0.
    pub(super) fn wake_others(&self, ticket: u64) {
        let wakers: Vec<Waker> =
            self.lock().wakers.iter().filter(|(other, _)| **other != ticket).map(|(_, waker)| waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Forgets an operation that has ended, and wakes the others.
    pub(super) fn remove(&self, ticket: u64) {
        self.lock().wakers.remove(&ticket);
        self.wake_others(ticket);
    }
}
