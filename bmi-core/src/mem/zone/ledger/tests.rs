//! Tests the ledger against a model that knows only what was granted.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const SIZES: [usize; 4] = [10, 20, 40, 75];
const TOTAL: usize = 640;
const KEEP: usize = 60;

fn settings() -> ZoneSettings {
    let sizes = SIZES.to_vec();
    ZoneSettings { sizes, total: TOTAL, keep: KEEP, idle: Duration::from_nanos(100), idle_takes: 40 }
}

#[derive(Clone, Debug)]
enum Step {
    Take {
        client: u8,
        lane: Lane,
        len: usize,
    },
    /// Indices are taken modulo the number of elements.
    Drop(usize),
    Cancel(usize),
    /// Checks whether the turn of a waiting ticket has come.
    Look(usize),
    Depart(u8),
    Pass(u64),
    /// Creating the next buffers fails.
    Fail(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let lane = prop_oneof![1 => Just(Lane::Small), 3 => Just(Lane::Bulk)];
    prop_oneof![
        8 => (0..6u8, lane, 0..100usize).prop_map(|(client, lane, len)| {
            let len = if lane == Lane::Small { len.min(SIZES[0]) } else { len };
            Step::Take { client, lane, len }
        }),
        6 => any::<usize>().prop_map(Step::Drop),
        2 => any::<usize>().prop_map(Step::Cancel),
        3 => any::<usize>().prop_map(Step::Look),
        1 => (0..6u8).prop_map(Step::Depart),
        1 => (0..60u64).prop_map(Step::Pass),
        1 => (1..3u8).prop_map(Step::Fail),
    ]
}

/// A waiting ticket, and the grants that others got while it waited without holding anything.
#[derive(Debug)]
struct Waiter {
    ticket: usize,
    client: u8,
    lane: Lane,
    seen: BTreeMap<u8, usize>,
}

struct Model {
    ledger: Ledger<u8, u32>,
    now: u64,
    failing: u8,
    next_buffer: u32,
    /// Every existing buffer, with its size.
    buffers: BTreeMap<u32, usize>,
    leases: Vec<BufferGrant<u8, u32>>,
    waiters: Vec<Waiter>,
    void: BTreeSet<usize>,
}

impl Model {
    fn new() -> Model {
        Model {
            ledger: Ledger::new(&settings()),
            now: 0,
            failing: 0,
            next_buffer: 0,
            buffers: BTreeMap::new(),
            leases: Vec::new(),
            waiters: Vec::new(),
            void: BTreeSet::new(),
        }
    }

    /// Provides buffers for a grant as the pool does.
    fn back(&mut self, mut grant: BufferGrant<u8, u32>) {
        loop {
            if let Some(buffer) = grant.buffer {
                assert_eq!(self.buffers.get(&buffer), Some(&grant.size), "a buffer that exists, of the zone's size");
                assert!(self.leases.iter().all(|lease| lease.buffer != Some(buffer)), "leased twice");
                self.leases.push(grant);
                return;
            }
            if self.failing == 0 {
                self.buffers.insert(self.next_buffer, grant.size);
                grant.buffer = Some(self.next_buffer);
                self.next_buffer += 1;
                continue;
            }
            self.failing -= 1;
            match self.ledger.failed(grant) {
                Some(other) => grant = other,
                None => return,
            }
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Take { client, lane, len } => match self.ledger.ask(client, lane, len, Time::from_nanos(self.now)) {
                Ok(grant) => {
                    assert_eq!((grant.client, grant.lane), (client, lane));
                    self.back(grant);
                }
                Err(ticket) => self.waiters.push(Waiter { ticket, client, lane, seen: BTreeMap::new() }),
            },
            Step::Drop(index) if !self.leases.is_empty() => {
                let lease = self.leases.swap_remove(index % self.leases.len());
                self.ledger.give_back(lease);
            }
            Step::Cancel(index) if !self.waiters.is_empty() => {
                let waiter = self.waiters.remove(index % self.waiters.len());
                self.void.remove(&waiter.ticket);
                self.ledger.cancel(waiter.ticket);
            }
            Step::Look(index) if !self.waiters.is_empty() => self.look(index % self.waiters.len()),
            Step::Depart(client) => {
                for waiter in &self.waiters {
                    if waiter.client == client && !self.is_granted(waiter.ticket) {
                        self.void.insert(waiter.ticket);
                    }
                }
                self.ledger.depart(client);
            }
            Step::Pass(ns) => {
                self.now += ns;
                self.ledger.trim(Time::from_nanos(self.now));
            }
            Step::Fail(count) => self.failing = count,
            _ => {}
        }
        for buffer in self.ledger.retired.drain(..) {
            assert!(self.buffers.remove(&buffer).is_some(), "retired twice");
            assert!(self.leases.iter().all(|lease| lease.buffer != Some(buffer)), "retired while leased");
        }
    }

    fn is_granted(&self, ticket: usize) -> bool {
        matches!(self.ledger.tickets.get(ticket), Some(Ticket::Granted(_)))
    }

    fn look(&mut self, index: usize) {
        let ticket = self.waiters[index].ticket;
        let gone = self.void.contains(&ticket);
        match self.ledger.collect(ticket, Waker::noop()) {
            Turn::Wait => assert!(!gone, "a client that is gone waits no more"),
            Turn::Granted(grant) => {
                assert!(!gone);
                let waiter = self.waiters.remove(index);
                assert_eq!((grant.client, grant.lane), (waiter.client, waiter.lane));
                self.back(grant);
            }
            Turn::Gone => {
                assert!(gone && self.void.remove(&ticket), "only a client that is gone is told so");
                self.waiters.remove(index);
            }
        }
    }

    /// Returns all that is leased: by leases, and by grants that were not collected.
    fn leased(&self) -> impl Iterator<Item = &BufferGrant<u8, u32>> {
        let uncollected = self.ledger.tickets.iter().filter_map(|(_, ticket)| match ticket {
            Ticket::Granted(grant) => Some(grant),
            _ => None,
        });
        self.leases.iter().chain(uncollected)
    }

    fn leased_of(&self, lane: Lane, client: Option<u8>) -> usize {
        let mine =
            self.leased().filter(|grant| grant.lane == lane && client.is_none_or(|client| grant.client == client));
        mine.map(|grant| grant.size).sum()
    }

    fn queued(&self, lane: Lane) -> impl Iterator<Item = (usize, u8)> {
        self.ledger.tickets.iter().filter_map(move |(at, ticket)| match ticket {
            Ticket::Waiting { client, lane: other, .. } if *other == lane => Some((at, *client)),
            _ => None,
        })
    }

    fn check(&self) {
        let free: usize = self.ledger.zones.iter().map(|zone| zone.size * zone.free.len()).sum();
        let leased: usize = self.leased().map(|grant| grant.size).sum();
        assert_eq!(self.ledger.made, free + leased, "all bytes are accounted for");
        assert!(self.ledger.made <= TOTAL);
        assert_eq!(self.ledger.counters.leased, leased as u64);
        for lane in LANES {
            let budget = &self.ledger.budgets[lane as usize];
            assert_eq!(budget.leased, self.leased_of(lane, None));
            assert!(budget.leased <= budget.limit);
            let holding = self.leased().filter(|grant| grant.lane == lane).map(|grant| grant.client);
            let active: BTreeSet<u8> = holding.chain(self.queued(lane).map(|(_, client)| client)).collect();
            assert_eq!(budget.active, active.len());
            let turns: BTreeSet<u8> = budget.turns.iter().copied().collect();
            assert_eq!(turns.len(), budget.turns.len(), "nobody stands in the row twice");
            assert_eq!(turns, self.queued(lane).map(|(_, client)| client).collect());
            for client in 0..6 {
                let held = self.leased_of(lane, Some(client));
                assert_eq!(self.ledger.held(client, lane), held);
                assert!(held <= (budget.limit / 2).max(SIZES[0]), "nobody ever has more than half");
            }
            // No waiting client could be served: with the smallest buffer if it holds nothing, else
            // with the right one within its share.
            for (ticket, client) in self.queued(lane) {
                let held = self.leased_of(lane, Some(client));
                let share = budget.limit / (active.len() + 1);
                let left = budget.limit - budget.leased;
                if held == 0 {
                    assert!(left < SIZES[0], "{client} waits, {left} bytes are left");
                } else if self.ledger.clients[&client].waiting[lane as usize][0] == ticket {
                    let Ticket::Waiting { len, .. } = self.ledger.tickets[ticket] else { unreachable!() };
                    let fair = SIZES.iter().rev().find(|size| **size <= share).unwrap_or(&SIZES[0]);
                    let right = SIZES.iter().find(|size| **size >= len).unwrap_or(&SIZES[3]);
                    let want = *fair.min(right);
                    assert!(held + want > share || want > left, "{client} holds {held} and waits for {want}");
                }
            }
        }
    }

    /// Runs a step and checks which clients got buffers.
    fn run(&mut self, step: Step) {
        let bytes = |model: &Model| -> BTreeMap<(u8, usize), usize> {
            let keys = (0..6u8).flat_map(|client| LANES.map(|lane| (client, lane)));
            keys.map(|(client, lane)| ((client, lane as usize), model.leased_of(lane, Some(client)))).collect()
        };
        let (before, granted) = (bytes(self), self.granted_waiters());
        let taking = match step {
            Step::Take { client, lane, .. } => Some((client, lane as usize)),
            _ => None,
        };
        self.apply(step);
        self.check();
        for ((client, lane), held) in bytes(self) {
            let budget = &self.ledger.budgets[lane];
            // Clients that left in this step counted for the share until then.
            if held > before[&(client, lane)] && taking == Some((client, lane)) {
                let share = budget.limit / (budget.active + 1);
                assert!(held <= share.max(SIZES[0]), "{client} holds {held} of a share of {share}");
            }
        }
        self.watch_turns(&granted);
    }

    fn granted_waiters(&self) -> BTreeSet<usize> {
        self.ledger.tickets.iter().map(|(at, _)| at).filter(|ticket| self.is_granted(*ticket)).collect()
    }

    /// Counts the grants to others from the queue, for each ticket that is first for its client
    /// while the client holds nothing.
    fn watch_turns(&mut self, before: &BTreeSet<usize>) {
        let after = self.granted_waiters();
        let new: Vec<(u8, Lane)> = after
            .difference(before)
            .map(|ticket| match &self.ledger.tickets[*ticket] {
                Ticket::Granted(grant) => (grant.client, grant.lane),
                _ => unreachable!(),
            })
            .collect();
        let mut waiters = std::mem::take(&mut self.waiters);
        for waiter in &mut waiters {
            let waiting = matches!(self.ledger.tickets.get(waiter.ticket), Some(Ticket::Waiting { .. }));
            let empty_handed = self.leased_of(waiter.lane, Some(waiter.client)) == 0;
            if !waiting || !empty_handed {
                waiter.seen.clear();
                continue;
            }
            for (client, lane) in &new {
                if *lane == waiter.lane && *client != waiter.client {
                    let seen = waiter.seen.entry(*client).or_default();
                    *seen += 1;
                    assert!(*seen <= 1, "{client} got a second buffer while {} waited for its first", waiter.client);
                }
            }
        }
        self.waiters = waiters;
    }

    /// Returns everything, with no client waiting, and checks that the initial state is restored.
    fn end(mut self) {
        while let Some(lease) = self.leases.pop() {
            self.ledger.give_back(lease);
        }
        while !self.waiters.is_empty() {
            let count = self.waiters.len();
            (0..count).rev().for_each(|index| self.look(index));
            assert!(self.waiters.len() < count, "all who wait are served once everything is back");
            self.leases.drain(..).for_each(|lease| self.ledger.give_back(lease));
        }
        self.check();
        assert!(self.ledger.tickets.is_empty() && self.ledger.clients.is_empty());
        assert_eq!(self.ledger.counters.leased, 0);
        self.ledger.retired.drain(..).for_each(|buffer| assert!(self.buffers.remove(&buffer).is_some()));
        assert_eq!(self.buffers.values().sum::<usize>(), self.ledger.made, "every buffer is on its shelf");
        // After a long time only the bytes to be kept are left.
        self.ledger.trim(Time::from_nanos(self.now + 1_000));
        let smallest_free = self.ledger.zones.iter().find(|zone| !zone.free.is_empty()).map_or(0, |zone| zone.size);
        assert!(self.ledger.made < KEEP + smallest_free.max(1), "{} bytes are kept", self.ledger.made);
        assert_eq!(self.ledger.next_trim(), None, "and there is nothing to come back for");
    }
}

proptest! {
    #[test]
    fn any_sequence_keeps_the_invariants_and_ends_as_it_began(steps in proptest::collection::vec(step(), 0..200)) {
        let mut model = Model::new();
        steps.into_iter().for_each(|step| model.run(step));
        model.end();
    }
}

fn take(model: &mut Model, client: u8, len: usize) {
    model.run(Step::Take { client, lane: Lane::Bulk, len });
}

#[test]
fn one_client_alone_has_half_and_the_next_finds_the_rest() {
    let mut model = Model::new();
    (0..100).for_each(|_| take(&mut model, 1, 20));
    // An eighth belongs to the other budget.
    assert_eq!(model.leased_of(Lane::Bulk, Some(1)), 280);
    // Two clients may have a third of 560 each. The first keeps its buffers.
    (0..100).for_each(|_| take(&mut model, 2, 20));
    assert_eq!(model.leased_of(Lane::Bulk, Some(2)), 180);
    take(&mut model, 3, 20);
    assert_eq!(model.leased_of(Lane::Bulk, Some(3)), 20, "a third finds what is left, at once");
    model.run(Step::Take { client: 1, lane: Lane::Small, len: 5 });
    assert_eq!(model.leased_of(Lane::Small, Some(1)), 10, "small transfers do not wait for bulk");
    model.end();
}

/// Returns a model in which returned buffers are kept and none gets stale.
fn all_back() -> Model {
    let mut model = Model::new();
    model.ledger.idle_takes = 1_000;
    model
}

fn give_all_back(model: &mut Model) {
    while !model.leases.is_empty() {
        model.run(Step::Drop(0));
    }
    assert!(model.waiters.is_empty());
}

#[test]
fn a_larger_buffer_serves_within_the_share_before_one_is_given_up() {
    let mut model = all_back();
    (0..6).for_each(|client| take(&mut model, client, 75));
    give_all_back(&mut model);
    assert_eq!(model.ledger.made, 450);
    (0..9).for_each(|_| take(&mut model, 1, 20));
    assert_eq!((model.ledger.made, model.ledger.counters.larger), (630, 0), "new ones as long as there is room");
    take(&mut model, 1, 20);
    assert_eq!((model.ledger.counters.larger, model.ledger.held(1, Lane::Bulk)), (1, 255));
    take(&mut model, 1, 20);
    let ZoneCounters { larger, retired, .. } = model.ledger.counters;
    assert_eq!((larger, retired, model.ledger.held(1, Lane::Bulk)), (1, 1, 275), "a larger one is beyond its share");
    model.end();
}

#[test]
fn a_transfer_is_cut_before_buffers_are_given_up() {
    let mut model = all_back();
    (0..6).for_each(|client| (0..8).for_each(|_| take(&mut model, client, 10)));
    give_all_back(&mut model);
    assert_eq!(model.ledger.made, 480);
    (0..2).for_each(|_| take(&mut model, 1, 75));
    assert_eq!((model.ledger.made, model.ledger.counters.cut), (630, 0));
    take(&mut model, 2, 75);
    let ZoneCounters { cut, retired, .. } = model.ledger.counters;
    assert_eq!((cut, retired, model.ledger.held(2, Lane::Bulk)), (1, 0, 10));
    model.end();
}

#[test]
fn sizes_that_are_no_longer_wanted_go_back_to_the_system() {
    let mut model = Model::new();
    (0..4).for_each(|client| take(&mut model, client, 75));
    (0..4).for_each(|_| model.run(Step::Drop(0)));
    assert_eq!(model.ledger.made, 300);
    // Enough takes of another size make the large buffers stale, except those to be kept.
    for _ in 0..60 {
        take(&mut model, 1, 10);
        model.run(Step::Drop(0));
    }
    assert_eq!(model.ledger.made, 75 + 10, "one large one is within what is kept");
    model.run(Step::Pass(50));
    assert_eq!(model.ledger.made, 85);
    model.run(Step::Pass(50));
    assert_eq!(model.ledger.made, 75, "one that is smaller than what is above the floor went");
    model.end();
}
