//! Admission control: how many requests of peers are in progress at the same time, and whose
//! request is next.
//!
//! **Why.** A server that begins every request at once has no bound on its memory. With one common
//! bound, a peer with many long requests takes all places, and peers that have stopped keep them.
//! With a fixed share for each peer, a few of them take everything too. So the share of a peer
//! depends on how many places are free.
//!
//! **Rule.** A peer with `n` requests in progress begins another only if `n <= 3 (free - 1)`, where
//! `free` is the number of free places, and if `n` is below the limit for one peer. So one peer has
//! at most three quarters of the places. `k` peers together leave one place in `3 k + 1`. The last
//! free place is for a peer that has none.
//!
//! **Invariants**
//! 1. At most `places` requests are in progress.
//! 2. The requests of one peer begin in the order in which they arrived.
//! 3. Peers whose requests wait take turns: one request each, then they go to the end of the queue.
//! 4. A request waits only while its peer is at its share or no place is free. So a peer that has
//!    no request in progress waits only if all places are taken, by at least as many peers as leave
//!    no place by the rule.
//!
//! **Source.** Dynamic thresholds: Choudhury, Hahne: "Dynamic Queue Length Thresholds for
//! Shared-Memory Packet Switches", IEEE/ACM Transactions on Networking 6(2), 1998, here with a
//! factor of 3.

use std::collections::{BTreeMap, VecDeque};

use crate::hooks::step;
use crate::mutated;
use crate::op::PeerId;

/// The largest share of a peer, as a multiple of the places that stay free.
const FACTOR: usize = 3;
/// Number of peers without requests that are remembered, so that their next request allocates
/// nothing.
const KEPT: usize = 256;

/// The places for requests in progress, and the requests that wait for one.
///
/// ```
/// use bmi_core::comm::Admission;
/// # use bmi_core::PeerId;
/// # fn example(peer: PeerId) {
/// let mut admission = Admission::new(4, 4);
/// let begun = (0..4).filter_map(|request| admission.admit(peer, request)).count();
/// assert_eq!(begun, 3, "one place is left for another peer");
/// admission.finished(peer);
/// assert_eq!(admission.begin_next(), Some((peer, 3)));
/// # }
/// ```
#[derive(Debug)]
pub struct Admission<R> {
    places: usize,
    per_peer: usize,
    running: usize,
    /// Peers with requests in progress or waiting, and some that had requests before.
    peers: BTreeMap<PeerId, Requests<R>>,
    /// Peers with waiting requests. The next one to be considered is first.
    turns: VecDeque<PeerId>,
}

/// The requests of one peer.
#[derive(Debug)]
struct Requests<R> {
    running: usize,
    waiting: VecDeque<R>,
}

impl<R> Admission<R> {
    /// Creates `places` places, of which one peer may have `per_peer` at most.
    ///
    /// # Panics
    /// If one of them is 0.
    pub fn new(places: usize, per_peer: usize) -> Admission<R> {
        assert!(places > 0 && per_peer > 0, "no request could ever begin");
        Admission { places, per_peer, running: 0, peers: BTreeMap::new(), turns: VecDeque::new() }
    }

    /// Takes a request that has arrived. Returns it if it can begin now. It has a place then, until
    /// [`Admission::finished`].
    pub fn admit(&mut self, peer: PeerId, request: R) -> Option<R> {
        let admits = self.admits(peer);
        let requests = self.peers.entry(peer).or_insert(Requests { running: 0, waiting: VecDeque::new() });
        if admits {
            requests.running += 1;
            self.running += 1;
            return Some(request);
        }
        if requests.waiting.is_empty() {
            self.turns.push_back(peer);
        }
        requests.waiting.push_back(request);
        None
    }

    /// Returns true if a request of `peer` that arrives now can begin at once.
    pub fn admits(&self, peer: PeerId) -> bool {
        let waits = self.peers.get(&peer).is_some_and(|requests| !requests.waiting.is_empty());
        !waits && self.has_place(self.in_progress(peer))
    }

    /// Records that a request of `peer` has ended. Others may be able to begin now
    /// ([`Admission::begin_next`]).
    pub fn finished(&mut self, peer: PeerId) {
        self.running -= 1;
        let requests = self.peers.get_mut(&peer).expect("it had a request in progress");
        requests.running -= 1;
        // At least as many requests as are kept begin before this is so again.
        if self.peers.len() > KEPT + self.running + self.turns.len() {
            self.peers.retain(|_, requests| requests.running > 0 || !requests.waiting.is_empty());
        }
    }

    /// Returns a waiting request that can begin now, and its peer. The request has a place then.
    pub fn begin_next(&mut self) -> Option<(PeerId, R)> {
        if self.running == self.places && !mutated("admission/turns-searched-without-a-place") {
            return None;
        }
        let mut turns = self.turns.iter().inspect(|_| step());
        let at = turns.position(|peer| self.has_place(self.in_progress(*peer)))?;
        let peer = self.turns.remove(at)?;
        let requests = self.peers.get_mut(&peer)?;
        let request = requests.waiting.pop_front()?;
        if !requests.waiting.is_empty() {
            self.turns.push_back(peer);
        }
        requests.running += 1;
        self.running += 1;
        Some((peer, request))
    }

    /// Drops the waiting requests of a peer that was lost.
    pub fn forget(&mut self, peer: PeerId) {
        self.turns.retain(|other| *other != peer);
        let Some(requests) = self.peers.get_mut(&peer) else { return };
        requests.waiting.clear();
        if requests.running == 0 {
            self.peers.remove(&peer);
        }
    }

    /// Removes all waiting requests, of one peer after the other.
    pub fn drain(&mut self) -> Vec<R> {
        let mut all = Vec::new();
        for peer in std::mem::take(&mut self.turns) {
            all.extend(self.peers.get_mut(&peer).into_iter().flat_map(|requests| requests.waiting.drain(..)));
        }
        all
    }

    /// Returns the number of requests of a peer that are in progress.
    pub fn in_progress(&self, peer: PeerId) -> usize {
        self.peers.get(&peer).map_or(0, |requests| requests.running)
    }

    /// Returns the peers that wait although they have fewer requests in progress than one peer may
    /// have.
    pub fn crowded_out(&self) -> impl Iterator<Item = PeerId> {
        self.turns.iter().copied().filter(|peer| self.in_progress(*peer) < self.per_peer)
    }

    /// Returns true if a peer with `running` requests in progress may begin another.
    fn has_place(&self, running: usize) -> bool {
        let free = self.places - self.running;
        let shared = mutated("admission/one-peer-takes-all") || running <= FACTOR * free.saturating_sub(1);
        free > 0 && running < self.per_peer && shared
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::table::Table;

    /// Returns the ids of `count` peers.
    fn peers(count: usize) -> Vec<PeerId> {
        let mut table = Table::new();
        (0..count).map(|at| PeerId(table.insert(at))).collect()
    }

    fn begun(admission: &mut Admission<usize>, peer: PeerId, requests: usize) -> usize {
        (0..requests).filter(|at| admission.admit(peer, *at).is_some()).count()
    }

    #[test]
    fn one_peer_has_three_quarters_and_many_leave_a_place() {
        let (peers, mut admission) = (peers(40), Admission::new(256, 256));
        assert_eq!(begun(&mut admission, peers[0], 1000), 192);
        assert_eq!(begun(&mut admission, peers[1], 1000), 48, "three quarters of the rest");
        let (others, mut fair) = (&peers[..39], Admission::new(256, 256));
        let rounds = 0..256;
        let all: usize = rounds.flat_map(|_| others).map(|peer| begun(&mut fair, *peer, 1)).sum();
        assert!(all < 256, "{all}: those that stop never hold everything");
        assert_eq!(begun(&mut fair, peers[39], 1), 1);
    }

    #[test]
    fn a_single_place_is_used() {
        let (peers, mut admission) = (peers(2), Admission::new(1, 1));
        assert_eq!((begun(&mut admission, peers[0], 2), begun(&mut admission, peers[1], 1)), (1, 0));
        admission.finished(peers[0]);
        assert_eq!(admission.begin_next(), Some((peers[0], 1)));
        assert_eq!(admission.begin_next(), None);
        admission.forget(peers[1]);
        admission.finished(peers[0]);
        assert_eq!(admission.begin_next(), None, "the other is gone");
        let mut table = Table::new();
        for number in 0..10 * KEPT {
            let peer = PeerId(table.insert(number));
            assert_eq!(admission.admit(peer, number), Some(number));
            admission.finished(peer);
        }
        assert!(admission.peers.len() <= KEPT + 1, "{}", admission.peers.len());
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn peers_that_wait_are_not_searched_while_no_place_is_free() {
        let (peers, mut admission) = (peers(5000), Admission::new(4, 4));
        assert_eq!(peers.iter().filter(|peer| admission.admit(**peer, 0).is_some()).count(), 4);
        let before = crate::hooks::steps_taken();
        assert_eq!(admission.begin_next(), None);
        admission.finished(peers[0]);
        assert_eq!((admission.begin_next(), admission.begin_next()), (Some((peers[4], 0)), None));
        assert_eq!(crate::hooks::steps_taken() - before, 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrives(usize),
        Ends(usize),
        Leaves(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..6usize).prop_map(Step::Arrives),
            3 => any::<prop::sample::Index>().prop_map(|at| Step::Ends(at.index(64))),
            1 => (0..6usize).prop_map(Step::Leaves),
        ]
    }

    proptest! {
        #[test]
        fn places_are_bounded_and_nobody_is_passed_over(
            (places, per_peer, steps) in (1..12usize, 1..6usize, prop::collection::vec(step(), 1..120))
        ) {
            let peers = peers(6);
            let mut admission = Admission::new(places, per_peer);
            let mut running: Vec<PeerId> = Vec::new();
            let mut waiting: BTreeMap<PeerId, VecDeque<usize>> = BTreeMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Arrives(at) => match admission.admit(peers[at], number) {
                        Some(same) => {
                            prop_assert_eq!(same, number);
                            running.push(peers[at]);
                        }
                        None => waiting.entry(peers[at]).or_default().push_back(number),
                    },
                    Step::Ends(at) if !running.is_empty() => {
                        let peer = running.swap_remove(at % running.len());
                        admission.finished(peer);
                    }
                    Step::Ends(_) => {}
                    Step::Leaves(at) => {
                        admission.forget(peers[at]);
                        waiting.remove(&peers[at]);
                    }
                }
                while let Some((peer, request)) = admission.begin_next() {
                    prop_assert_eq!(waiting.get_mut(&peer).and_then(VecDeque::pop_front), Some(request));
                    running.push(peer);
                }
                waiting.retain(|_, requests| !requests.is_empty());
                prop_assert!(running.len() <= places);
                let count = |peer: &PeerId| running.iter().filter(|other| *other == peer).count();
                prop_assert!(peers.iter().all(|peer| count(peer) <= per_peer && count(peer) == admission.in_progress(*peer)));
                let idle_waits = waiting.keys().any(|peer| count(peer) == 0);
                prop_assert!(!idle_waits || running.len() == places, "a place is free and a peer without one waits");
            }
            let left: usize = waiting.values().map(VecDeque::len).sum();
            prop_assert_eq!(admission.drain().len(), left);
        }
    }
}
