//! The state machine of zones, without memory and without futures. It records how many bytes each
//! client holds, which clients wait, and which buffers are free.
//!
//! It counts bytes first and buffers second. Only bytes decide whether a client may have a buffer
//! ([`Ledger::admits`]). The choice of the buffer ([`Ledger::fetch`]) only affects efficiency. An
//! admitted buffer can always be provided: all bytes that are not leased are either free or not
//! allocated yet, and free buffers of other sizes can be given up to create the one that is needed.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use super::{ZoneCounters, ZoneSettings};
use crate::class::ServiceClass;
use crate::time::Time;

/// Transfers with a budget and a queue of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Transfers that fit the smallest buffer, and must not wait behind bulk.
    Small,
    /// All other transfers.
    Bulk,
}

impl From<ServiceClass> for Lane {
    fn from(class: ServiceClass) -> Lane {
        if class == ServiceClass::Bulk { Lane::Bulk } else { Lane::Small }
    }
}

const LANES: [Lane; 2] = [Lane::Small, Lane::Bulk];

/// When a buffer was last used for its own size: the time, and the number of takes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Stamp {
    at: Time,
    take: u64,
}

/// The right to hold a buffer of a zone. The holder gives it back with [`Ledger::give_back`] or
/// [`Ledger::failed`].
#[derive(Debug)]
pub(super) struct BufferGrant<C, B> {
    pub(super) client: C,
    pub(super) lane: Lane,
    zone: usize,
    used: Stamp,
    /// Size of the buffer in bytes.
    pub(super) size: usize,
    /// The buffer. `None` if it must be created.
    pub(super) buffer: Option<B>,
}

struct Zone<B> {
    size: usize,
    /// Free buffers, with the most recently used one at the back.
    free: VecDeque<(Stamp, B)>,
}

struct Budget<C> {
    limit: usize,
    leased: usize,
    /// Number of clients that hold or wait.
    active: usize,
    /// Clients that wait, in the order in which they are considered.
    turns: VecDeque<C>,
}

impl<C> Budget<C> {
    /// Returns the bytes that one client may hold. One share is left over for the next client.
    fn share(&self) -> usize {
        self.limit / (self.active + 1)
    }
}

#[derive(Default)]
struct ClientState {
    held: [usize; 2],
    /// Its tickets, in the order of its requests.
    waiting: [VecDeque<usize>; 2],
}

impl ClientState {
    fn is_active(&self, lane: Lane) -> bool {
        self.held[lane as usize] > 0 || !self.waiting[lane as usize].is_empty()
    }
}

enum Ticket<C, B> {
    Waiting {
        client: C,
        lane: Lane,
        len: usize,
        waker: Option<Waker>,
    },
    Granted(BufferGrant<C, B>),
    /// Its client is gone.
    Void,
}

/// The state of a ticket.
pub(super) enum Turn<C, B> {
    Wait,
    Granted(BufferGrant<C, B>),
    Gone,
}

/// See the [module](self).
pub(super) struct Ledger<C, B> {
    zones: Vec<Zone<B>>,
    budgets: [Budget<C>; 2],
    clients: BTreeMap<C, ClientState>,
    tickets: Slab<Ticket<C, B>>,
    /// Bytes of all existing buffers, the largest number allowed, and the number kept when idle.
    made: usize,
    total: usize,
    keep: usize,
    idle: Duration,
    idle_takes: u64,
    now: Stamp,
    pub(super) counters: ZoneCounters,
    /// For the caller to wake and to drop, after it has released the ledger.
    pub(super) wakes: Vec<Waker>,
    pub(super) retired: Vec<B>,
}

impl<C: Copy + Ord, B> Ledger<C, B> {
    /// Creates a ledger. The settings must have been validated.
    pub(super) fn new(settings: &ZoneSettings) -> Ledger<C, B> {
        let small = settings.small();
        let budget = |limit| Budget { limit, leased: 0, active: 0, turns: VecDeque::new() };
        Ledger {
            zones: settings.sizes.iter().map(|size| Zone { size: *size, free: VecDeque::new() }).collect(),
            budgets: [budget(small), budget(settings.total - small)],
            clients: BTreeMap::new(),
            tickets: Slab::new(),
            made: 0,
            total: settings.total,
            keep: settings.keep,
            idle: settings.idle,
            idle_takes: settings.idle_takes,
            now: Stamp::default(),
            counters: ZoneCounters::default(),
            wakes: Vec::new(),
            retired: Vec::new(),
        }
    }

    // ---- getters --------------------------------------------------------------------------------

    pub(super) fn made(&self) -> usize {
        self.made
    }

    pub(super) fn held(&self, client: C, lane: Lane) -> usize {
        self.clients.get(&client).map_or(0, |state| state.held[lane as usize])
    }

    /// Returns the clients that wait. One that waits in both lanes is there twice.
    pub(super) fn waiting(&self) -> impl Iterator<Item = C> {
        self.budgets.iter().flat_map(|budget| budget.turns.iter().copied())
    }

    /// Returns the bytes that a client may hold in a lane, counting it as active.
    pub(super) fn share(&self, client: C, lane: Lane) -> usize {
        let budget = &self.budgets[lane as usize];
        let known = self.clients.get(&client).is_some_and(|state| state.is_active(lane));
        budget.limit / (budget.active + usize::from(!known) + 1)
    }

    pub(super) fn sizes(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.zones.iter().map(|zone| zone.size)
    }

    /// Returns when [`Ledger::trim`] has something to do, if no buffer is used until then.
    pub(super) fn next_trim(&self) -> Option<Time> {
        let spare = self.made.saturating_sub(self.keep);
        let fronts = self.zones.iter().filter(|zone| zone.size <= spare).filter_map(|zone| zone.free.front());
        fronts.map(|(used, _)| used.at + self.idle).min()
    }

    // ---- requests and returns -------------------------------------------------------------------

    /// Requests a buffer for `len` bytes. Returns a grant, or a ticket to wait with.
    pub(super) fn ask(&mut self, client: C, lane: Lane, len: usize, now: Time) -> Result<BufferGrant<C, B>, usize> {
        self.trim(now);
        self.now.take += 1;
        self.counters.takes += 1;
        let state = self.clients.entry(client).or_default();
        let budget = &mut self.budgets[lane as usize];
        budget.active += usize::from(!state.is_active(lane));
        let first = state.waiting[lane as usize].is_empty();
        let ticket = self.tickets.insert(Ticket::Waiting { client, lane, len, waker: None });
        state.waiting[lane as usize].push_back(ticket);
        if first {
            budget.turns.push_back(client);
            // No client that was waiting before can be served, or it would have been. This one
            // perhaps can.
            self.serve(lane);
        }
        match self.tickets.get(ticket) {
            Some(Ticket::Granted(_)) => match self.tickets.remove(ticket) {
                Ticket::Granted(grant) => Ok(grant),
                _ => unreachable!("it was looked at just now"),
            },
            _ => {
                self.counters.waits += 1;
                Err(ticket)
            }
        }
    }

    /// Returns the state of a ticket. The ticket becomes invalid once it is no longer waiting.
    pub(super) fn collect(&mut self, ticket: usize, waker: &Waker) -> Turn<C, B> {
        if let Some(Ticket::Waiting { waker: known, .. }) = self.tickets.get_mut(ticket) {
            match known {
                Some(known) => known.clone_from(waker),
                None => *known = Some(waker.clone()),
            }
            return Turn::Wait;
        }
        match self.tickets.remove(ticket) {
            Ticket::Granted(grant) => Turn::Granted(grant),
            _ => Turn::Gone,
        }
    }

    /// Cancels a ticket.
    pub(super) fn cancel(&mut self, ticket: usize) {
        match self.tickets.remove(ticket) {
            Ticket::Waiting { client, lane, .. } => {
                let state = self.clients.get_mut(&client).expect("a client that waits is known");
                let queue = &mut state.waiting[lane as usize];
                queue.retain(|other| *other != ticket);
                if queue.is_empty() {
                    self.budgets[lane as usize].turns.retain(|other| *other != client);
                }
                self.forget_if_idle(client, lane);
                // Others have a larger share now. Or another ticket of this client, for fewer
                // bytes, is now first.
                self.serve(lane);
            }
            Ticket::Granted(grant) => self.give_back(grant),
            Ticket::Void => {}
        }
    }

    /// Removes a client. Its waiting tickets become void. Its grants are given back by their
    /// holders.
    pub(super) fn depart(&mut self, client: C) {
        for lane in LANES {
            let Some(state) = self.clients.get_mut(&client) else { return };
            let queue = std::mem::take(&mut state.waiting[lane as usize]);
            if queue.is_empty() {
                continue;
            }
            for ticket in queue {
                if let Ticket::Waiting { waker, .. } = std::mem::replace(&mut self.tickets[ticket], Ticket::Void) {
                    self.wakes.extend(waker);
                }
            }
            self.budgets[lane as usize].turns.retain(|other| *other != client);
            self.forget_if_idle(client, lane);
            self.serve(lane);
        }
    }

    /// Takes a buffer back.
    pub(super) fn give_back(&mut self, mut grant: BufferGrant<C, B>) {
        self.counters.leased -= grant.size as u64;
        match grant.buffer.take() {
            Some(buffer) => self.shelve(grant.zone, grant.used, buffer),
            // Cancelled before the buffer was created, or the buffer is given up.
            None => self.made -= grant.size,
        }
        self.settle_account(&grant);
    }

    /// Reports that the buffer of a grant could not be created. Returns the grant with another free
    /// buffer, or `None` if there is none and the grant has ended.
    pub(super) fn failed(&mut self, mut grant: BufferGrant<C, B>) -> Option<BufferGrant<C, B>> {
        debug_assert!(grant.buffer.is_none(), "what is there cannot fail to be made");
        self.counters.failed += 1;
        self.made -= grant.size;
        // A larger buffer would need a new admission.
        for zone in (0..=grant.zone).rev() {
            if let Some((used, buffer)) = self.zones[zone].free.pop_back() {
                let less = grant.size - self.zones[zone].size;
                grant.size -= less;
                (grant.zone, grant.used, grant.buffer) = (zone, used, Some(buffer));
                self.counters.leased -= less as u64;
                self.budgets[grant.lane as usize].leased -= less;
                let state = self.clients.get_mut(&grant.client).expect("a client that holds is known");
                state.held[grant.lane as usize] -= less;
                self.serve(grant.lane);
                return Some(grant);
            }
        }
        // A larger free buffer may prevent the next attempt from succeeding.
        self.least_used(usize::MAX).into_iter().for_each(|zone| self.retire(zone));
        self.counters.leased -= grant.size as u64;
        self.settle_account(&grant);
        None
    }

    /// Gives stale buffers back to the system, as long as more bytes exist than should be kept.
    pub(super) fn trim(&mut self, now: Time) {
        self.now.at = self.now.at.max(now);
        loop {
            let spare = self.made.saturating_sub(self.keep);
            let Some(zone) = self.least_used(spare).filter(|zone| self.is_stale(*zone)) else { break };
            self.retire(zone);
        }
    }

    // ---- admission ------------------------------------------------------------------------------

    /// Returns the largest zone whose buffers have at most `len` bytes.
    fn at_most(&self, len: usize) -> Option<usize> {
        self.zones.iter().rposition(|zone| zone.size <= len)
    }

    /// Returns the zone whose buffers a request for `len` bytes by `client` may have now. Also
    /// returns the largest size of a larger buffer that it may have instead.
    ///
    /// A client that holds nothing may have one buffer from the remaining bytes: at most its share,
    /// or the smallest buffer. A client that holds something waits until it can have a buffer of
    /// the right size within its share. Its own buffers will be returned, and ever smaller pieces
    /// would not help.
    fn admits(&self, client: C, lane: Lane, len: usize) -> Option<(usize, usize)> {
        let budget = &self.budgets[lane as usize];
        let (share, left) = (budget.share(), budget.limit - budget.leased);
        let right = self.zones.iter().position(|zone| zone.size >= len).unwrap_or(self.zones.len() - 1);
        let want = right.min(self.at_most(share).unwrap_or(0));
        match self.held(client, lane) {
            0 => Some((want.min(self.at_most(left)?), share.min(left))),
            held => {
                let room = share.saturating_sub(held).min(left);
                (self.zones[want].size <= room).then_some((want, room))
            }
        }
    }

    /// Serves the waiting clients of a lane in turn, one buffer each, as long as any can be served.
    fn serve(&mut self, lane: Lane) {
        let mut at = 0;
        loop {
            let budget = &mut self.budgets[lane as usize];
            // No client can have less than the smallest buffer.
            if budget.limit - budget.leased < self.zones[0].size {
                return;
            }
            let Some(client) = budget.turns.get(at).copied() else { return };
            let ticket = self.clients[&client].waiting[lane as usize][0];
            let Ticket::Waiting { len, .. } = self.tickets[ticket] else { unreachable!("those in the queue wait") };
            let Some((want, ceiling)) = self.admits(client, lane, len) else {
                at += 1;
                continue;
            };
            self.grant(client, lane, ticket, want, ceiling);
            // To the end of the queue: the other clients are served first.
            self.budgets[lane as usize].turns.remove(at);
            if !self.clients[&client].waiting[lane as usize].is_empty() {
                self.budgets[lane as usize].turns.push_back(client);
            }
        }
    }

    fn grant(&mut self, client: C, lane: Lane, ticket: usize, want: usize, ceiling: usize) {
        let (zone, used, buffer) = self.fetch(want, ceiling);
        let size = self.zones[zone].size;
        self.budgets[lane as usize].leased += size;
        let state = self.clients.get_mut(&client).expect("a client that waits is known");
        state.held[lane as usize] += size;
        state.waiting[lane as usize].pop_front();
        self.counters.leased += size as u64;
        self.counters.most_leased = self.counters.most_leased.max(self.counters.leased);
        let grant = Ticket::Granted(BufferGrant { client, lane, zone, used, size, buffer });
        if let Ticket::Waiting { waker, .. } = std::mem::replace(&mut self.tickets[ticket], grant) {
            self.wakes.extend(waker);
        }
    }

    /// Updates the accounts after a client has given a buffer back.
    fn settle_account(&mut self, grant: &BufferGrant<C, B>) {
        let BufferGrant { client, lane, size, .. } = *grant;
        self.budgets[lane as usize].leased -= size;
        let state = self.clients.get_mut(&client).expect("a client that holds is known");
        state.held[lane as usize] -= size;
        self.forget_if_idle(client, lane);
        self.serve(lane);
    }

    fn forget_if_idle(&mut self, client: C, lane: Lane) {
        let Some(state) = self.clients.get(&client) else { return };
        if !state.is_active(lane) {
            self.budgets[lane as usize].active -= 1;
            if LANES.iter().all(|lane| !state.is_active(*lane)) {
                self.clients.remove(&client);
            }
        }
    }

    // ---- choosing a buffer ----------------------------------------------------------------------

    /// Returns a buffer of zone `want`, or the best substitute: see the [module](super) for the
    /// order. The caller is admitted for it, and for a larger one of up to `ceiling` bytes.
    fn fetch(&mut self, want: usize, ceiling: usize) -> (usize, Stamp, Option<B>) {
        let size = self.zones[want].size;
        if let Some((_, buffer)) = self.zones[want].free.pop_back() {
            self.counters.exact += 1;
            return (want, self.now, Some(buffer));
        }
        if self.total - self.made >= size {
            return self.make(want);
        }
        let larger = (want + 1..self.zones.len()).take_while(|zone| self.zones[*zone].size <= ceiling);
        let larger = larger.into_iter().find(|zone| !self.zones[*zone].free.is_empty());
        if let Some(zone) = larger {
            let (used, buffer) = self.zones[zone].free.pop_back().expect("one is free");
            self.counters.larger += 1;
            return (zone, used, Some(buffer));
        }
        while self.total - self.made < size {
            let Some(zone) = self.least_used(usize::MAX).filter(|zone| self.is_stale(*zone)) else { break };
            self.retire(zone);
        }
        if self.total - self.made >= size {
            return self.make(want);
        }
        for zone in (0..want).rev() {
            if let Some((used, buffer)) = self.zones[zone].free.pop_back() {
                self.counters.cut += 1;
                return (zone, used, Some(buffer));
            }
        }
        while self.total - self.made < size {
            let zone = self.least_used(usize::MAX).expect("what is admitted is free, or not made yet");
            self.retire(zone);
        }
        self.make(want)
    }

    fn make(&mut self, zone: usize) -> (usize, Stamp, Option<B>) {
        self.made += self.zones[zone].size;
        self.counters.made += 1;
        (zone, self.now, None)
    }

    /// Returns the zone whose oldest free buffer was unused for longest, among buffers of at most
    /// `size` bytes.
    fn least_used(&self, size: usize) -> Option<usize> {
        let zones = self.zones.iter().enumerate().filter(|(_, zone)| zone.size <= size);
        zones.filter_map(|(index, zone)| Some((zone.free.front()?.0, index))).min().map(|(_, index)| index)
    }

    /// Returns true if the zone's least recently used free buffer is not worth keeping.
    fn is_stale(&self, zone: usize) -> bool {
        self.zones[zone]
            .free
            .front()
            .is_some_and(|(used, _)| self.now.take - used.take >= self.idle_takes || self.now.at >= used.at + self.idle)
    }

    fn retire(&mut self, zone: usize) {
        if let Some((_, buffer)) = self.zones[zone].free.pop_front() {
            self.made -= self.zones[zone].size;
            self.counters.retired += 1;
            self.retired.push(buffer);
        }
    }

    /// Puts a buffer in its place by last use. This is the back, unless it served in place of
    /// another size.
    fn shelve(&mut self, zone: usize, used: Stamp, buffer: B) {
        let free = &mut self.zones[zone].free;
        let at = free.partition_point(|(other, _)| *other <= used);
        free.insert(at, (used, buffer));
    }
}

#[cfg(test)]
mod tests;
