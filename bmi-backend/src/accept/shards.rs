//! Several transports behind one listening address (C17): which of them serves an accepted socket.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::Limit;

/// Largest number of accepted sockets that wait for one member.
const MAX_WAITING: usize = 64;

/// One member of a group of transports that share their listening addresses. A transport that was
/// opened alone is the only member of its group.
///
/// **Why.** A program with a transport for each core wants the peers of one address spread over all
/// of them. The kernel can spread them by a hash of their addresses (`SO_REUSEPORT`), but that is
/// uneven for few peers and does not exist for Unix sockets. So the member that listens accepts for
/// all, and hands each socket to the member that has fewest connections, before the handshake. That
/// is even, and the same in each run with the same order of events. One member is woken for each
/// connection, and no thread is needed.
///
/// **Protocol** of an accepted socket:
///
/// ```text
///   the member that listens                        the member that has fewest connections
///   assign(socket) ── itself ──> (socket, Place)
///        '── another one ──────> queue ── wake ──> while has_waiting(): next() ──> (socket, Place)
/// ```
///
/// **Invariants**
/// 1. *A socket counts from the moment when it is assigned.* A [`Place`] counts it: first in the
///    queue, then in the connection. A burst that one poll accepts is spread like single sockets.
/// 2. *Queues are bounded*, by 64 sockets and by a quarter of the places for half-open connections.
///    The table of half-open connections has that many places fewer
///    ([`Shard::half_open_places`]). So the limit of half-open connections holds for a member and
///    its queue together. A queue takes no socket for a member that has all its connections.
/// 3. *A member that does not poll delays no other.* When its queue is full, it is passed over. If
///    no member with fewer connections can take a socket, the member that listens keeps it. That
///    member is polling, and treats it as if it were alone.
/// 4. *A member that is dropped leaves nothing behind.* What waits for it goes to the others, or is
///    closed if they have no room.
/// 5. *Members that are left out* ([`Shard::spread`]) get a socket only if none of the others has a
///    place for it. What they have stays theirs.
/// 6. *A lock is held for a push or a pop*, never across a call. A poll with nothing to do makes
///    one relaxed load. The socket itself is passed under the lock. The wake-up follows the push,
///    so a poll that reads an old count is followed by another one.
///
/// **Tests** are here, in `bmi-conformance` (`transport::shards`), and in the crowd tests of the
/// backends.
#[derive(Debug)]
pub struct Shard<S> {
    group: Arc<Group<S>>,
    index: usize,
}

/// The limits of a transport on its connections. Of several transports behind one address, each has
/// them for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of connections of all kinds, half-open and ending ones too. An endpoint can
    /// close idle ones for a newcomer only if it is not the transport that has no room.
    pub max_connections: usize,
    /// Largest number of accepted connections that have not introduced themselves, at least 1. A
    /// newcomer always gets a place: if all are taken, the host or process that has most of them
    /// loses its oldest one ([`HalfOpen`](crate::HalfOpen)). Of several transports behind one
    /// address each has at least 2. A quarter of them, at most 64, is for sockets that another one
    /// has accepted for it.
    pub max_half_open: usize,
    /// Time after which an accepted connection is dropped if it has not introduced itself
    /// completely. It counts from the arrival, however many bytes have come since.
    pub handshake_timeout: Duration,
}

impl Default for Limits {
    /// 20,480 connections, which is more than `Config::max_peers`; 256 half-open ones; 5 s.
    fn default() -> Limits {
        Limits { max_connections: 20_480, max_half_open: 256, handshake_timeout: Duration::from_secs(5) }
    }
}

impl Limits {
    /// Returns the limit on all connections, which `setting` changes.
    pub fn connections(&self, setting: &'static str) -> Limit {
        Limit { max: self.max_connections, what: "connections", setting: Some(setting) }
    }
}

#[derive(Debug)]
struct Group<S> {
    members: Vec<Member<S>>,
    max_connections: usize,
    max_half_open: usize,
    /// Bound of each queue: 0 if there is only one member.
    max_waiting: usize,
    /// Number of members, from the first on, that get sockets.
    taking: AtomicUsize,
}

#[derive(Debug)]
struct Member<S> {
    /// Number of [`Place`]s.
    connections: Arc<AtomicUsize>,
    /// Length of the queue.
    waiting: AtomicUsize,
    /// `None` when the member has left.
    open: Mutex<Option<Open<S>>>,
}

#[derive(Debug)]
struct Open<S> {
    queue: VecDeque<(S, Place)>,
    waker: Waker,
}

/// Counts one connection of a member while it lives.
#[derive(Debug)]
pub struct Place(Arc<AtomicUsize>);

impl Place {
    fn new(connections: &Arc<AtomicUsize>) -> Place {
        connections.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(connections))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S> Shard<S> {
    /// Returns the members of a new group, one for each waker. A member's waker wakes its
    /// transport.
    pub fn group(wakers: Vec<Waker>, limits: Limits) -> Vec<Shard<S>> {
        let (count, group) = (wakers.len(), Arc::new(Group::new(wakers, limits)));
        (0..count).map(|index| Shard { group: Arc::clone(&group), index }).collect()
    }

    /// Returns the only member of a group. It assigns every socket to itself.
    pub fn alone(waker: Waker, limits: Limits) -> Shard<S> {
        Shard { group: Arc::new(Group::new(vec![waker], limits)), index: 0 }
    }

    /// Returns the number of places in this member's table of half-open connections. Its queue has
    /// the rest of them.
    pub fn half_open_places(&self) -> usize {
        self.group.max_half_open.saturating_sub(self.group.max_waiting).max(1)
    }

    /// Counts a connection that this member makes itself.
    pub fn place(&self) -> Place {
        Place::new(&self.member().connections)
    }

    /// Assigns a socket that this member has accepted. Returns it if this member serves it.
    /// Otherwise another member has it, and was woken.
    pub fn assign(&self, socket: S) -> Option<(S, Place)> {
        let Group { members, max_waiting, .. } = &*self.group;
        if *max_waiting == 0 {
            return Some((socket, self.place()));
        }
        let (own, taking) = (self.member().connections(), self.group.taking.load(Ordering::Relaxed));
        let is_left_out = self.index >= taking;
        let lighter = |member: &&Member<S>| is_left_out || member.connections() < own;
        let open = if own < self.group.max_connections { taking } else { members.len() };
        self.group
            .hand_over(members.iter().take(open).filter(lighter), socket)
            .err()
            .map(|socket| (socket, self.place()))
    }

    /// From now on assigns sockets to the first `members` of the group only, at least to one.
    pub fn spread(&self, members: usize) {
        self.group.taking.store(members.max(1), Ordering::Relaxed);
    }

    /// Returns the place of this member in its group.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns true if there are other members.
    pub fn has_others(&self) -> bool {
        self.group.members.len() > 1
    }

    /// Gives a socket of an existing connection to the member at `index`, which has it, and wakes
    /// that member. The socket does not count. It is closed if there is no such member, or no room
    /// in its queue.
    pub fn pass(&self, index: usize, socket: S) {
        let Some(member) = self.group.members.get(index) else { return };
        if let Ok(waker) = member.offer(socket, Place::new(&Arc::default()), self.group.max_waiting) {
            waker.wake();
        }
    }

    /// Returns true if sockets are waiting for this member.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.waiting() > 0
    }

    /// Returns the number of sockets that are waiting for this member. A poll takes that many, so
    /// that a flood does not stop everything else.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.member().waiting.load(Ordering::Relaxed)
    }

    /// Takes the socket that has waited longest.
    pub(super) fn next(&self) -> Option<(S, Place)> {
        let member = self.member();
        let mut open = member.open();
        let queue = &mut open.as_mut()?.queue;
        let next = queue.pop_front();
        member.waiting.store(queue.len(), Ordering::Relaxed);
        next
    }

    fn member(&self) -> &Member<S> {
        &self.group.members[self.index]
    }
}

impl<S> Drop for Shard<S> {
    fn drop(&mut self) {
        let member = self.member();
        let left = member.open().take();
        member.waiting.store(0, Ordering::Relaxed);
        // The lock is released here: dropping sockets and wakers runs other code.
        for (socket, place) in left.into_iter().flat_map(|open| open.queue) {
            drop(place);
            if self.group.hand_over(self.group.members.iter(), socket).is_err() {
                tracing::debug!("closed a socket that waited for a transport which was dropped");
            }
        }
    }
}

impl<S> Group<S> {
    fn new(wakers: Vec<Waker>, limits: Limits) -> Group<S> {
        let Limits { max_connections, max_half_open, .. } = limits;
        let max_waiting = if wakers.len() > 1 { (max_half_open / 4).clamp(1, MAX_WAITING) } else { 0 };
        let member = |waker| Member {
            connections: Arc::default(),
            waiting: AtomicUsize::new(0),
            open: Mutex::new(Some(Open { queue: VecDeque::new(), waker })),
        };
        let members = wakers.into_iter().map(member).collect();
        let taking = AtomicUsize::new(usize::MAX);
        Group { members, max_connections, max_half_open, max_waiting, taking }
    }

    /// Gives a socket to the first of `candidates` that has room, those with fewest connections
    /// first. The order of equals is that of the group. Returns the socket if none has room.
    fn hand_over<'a>(&self, candidates: impl Iterator<Item = &'a Member<S>>, mut socket: S) -> Result<(), S>
    where
        S: 'a,
    {
        let mut ranked: Vec<_> = candidates.map(|member| (member.connections(), member)).collect();
        ranked.sort_by_key(|(connections, _)| *connections);
        for (connections, member) in ranked {
            if connections >= self.max_connections {
                break;
            }
            match member.offer(socket, Place::new(&member.connections), self.max_waiting) {
                Ok(waker) => {
                    waker.wake();
                    return Ok(());
                }
                Err(back) => socket = back,
            }
        }
        Err(socket)
    }
}

impl<S> Member<S> {
    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn open(&self) -> MutexGuard<'_, Option<Open<S>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a socket, and returns the waker to call. Returns the socket if the member has left or
    /// its queue is full.
    fn offer(&self, socket: S, place: Place, max_waiting: usize) -> Result<Waker, S> {
        let mut open = self.open();
        match open.as_mut() {
            Some(Open { queue, waker }) if queue.len() < max_waiting => {
                queue.push_back((socket, place));
                self.waiting.store(queue.len(), Ordering::Relaxed);
                Ok(waker.clone())
            }
            _ => Err(socket),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    /// Counts how often a member was woken.
    #[derive(Default)]
    struct Alarm(AtomicUsize);

    impl Wake for Alarm {
        fn wake(self: Arc<Alarm>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A group whose sockets are numbers, and how often each member was woken.
    fn group(count: usize, max_connections: usize, max_half_open: usize) -> (Vec<Shard<u32>>, Vec<Arc<Alarm>>) {
        let alarms: Vec<_> = (0..count).map(|_| Arc::<Alarm>::default()).collect();
        let wakers = alarms.iter().map(|alarm| Waker::from(Arc::clone(alarm))).collect();
        (Shard::group(wakers, Limits { max_connections, max_half_open, ..Limits::default() }), alarms)
    }

    fn woken(alarms: &[Arc<Alarm>]) -> Vec<usize> {
        alarms.iter().map(|alarm| alarm.0.load(Ordering::Relaxed)).collect()
    }

    /// Takes what waits for each member.
    fn take(shards: &[Shard<u32>]) -> Vec<Vec<(u32, Place)>> {
        shards.iter().map(|shard| std::iter::from_fn(|| shard.next()).collect()).collect()
    }

    fn numbers(taken: &[(u32, Place)]) -> Vec<u32> {
        taken.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn a_burst_is_spread_and_each_hand_over_wakes_one_member() {
        let (shards, alarms) = group(3, 100, 100);
        // The second member listens.
        let own: Vec<_> = (0..9).filter_map(|number| shards[1].assign(number)).collect();
        assert_eq!(numbers(&own), [0, 3, 6], "itself first among equals");
        assert_eq!(woken(&alarms), [3, 0, 3]);
        assert_eq!(shards.iter().map(Shard::waiting).collect::<Vec<_>>(), [3, 0, 3]);
        let taken = take(&shards);
        assert_eq!((numbers(&taken[0]), numbers(&taken[2])), (vec![1, 4, 7], vec![2, 5, 8]), "in order");
        assert!(shards.iter().all(|shard| !shard.has_waiting() && shard.next().is_none()));
    }

    #[test]
    fn the_member_with_fewest_connections_is_next() {
        let (shards, _) = group(2, 100, 100);
        let dialed: Vec<_> = (0..3).map(|_| shards[0].place()).collect();
        assert!((0..3).all(|number| shards[0].assign(number).is_none()), "the other has none");
        let own = shards[0].assign(3).expect("three each");
        drop((dialed, own));
        assert_eq!(shards[0].assign(4).map(|(number, _)| number), Some(4));
        let taken = take(&shards);
        assert_eq!(numbers(&taken[1]), [0, 1, 2]);
    }

    #[test]
    fn the_first_members_get_all_sockets_until_they_are_full() {
        let (shards, alarms) = group(3, 2, 100);
        shards[0].spread(0);
        let own: Vec<_> = (0..2).filter_map(|number| shards[0].assign(number)).collect();
        assert_eq!((numbers(&own), woken(&alarms)), (vec![0, 1], vec![0; 3]), "none is woken that is not needed");
        assert!((2..4).all(|number| shards[0].assign(number).is_none()), "it has all its connections");
        assert_eq!(woken(&alarms), [0, 1, 1]);
        let taken = take(&shards);
        drop((own, taken));
        shards[2].spread(2);
        let third: Vec<_> = (0..4).filter_map(|number| shards[2].assign(number)).collect();
        assert_eq!((third.len(), shards.iter().map(Shard::waiting).collect::<Vec<_>>()), (0, vec![2, 2, 0]));
        assert!(shards[2].assign(4).is_some(), "no other has a place");
    }

    #[test]
    fn a_member_alone_keeps_everything_and_has_all_places() {
        let limits = Limits { max_connections: 2, max_half_open: 8, ..Limits::default() };
        let alone = Shard::alone(Waker::noop().clone(), limits);
        assert_eq!(alone.half_open_places(), 8);
        let own: Vec<_> = (0..4).filter_map(|number| alone.assign(number)).collect();
        assert_eq!((numbers(&own), alone.waiting()), (vec![0, 1, 2, 3], 0), "its own table has the limit");
        drop((own, alone));
        let (shards, alarms) = group(1, 2, 8);
        assert_eq!((shards[0].half_open_places(), shards[0].assign(7).is_some(), woken(&alarms)), (8, true, vec![0]));
    }

    #[test]
    fn a_member_that_does_not_poll_is_passed_over_when_its_queue_is_full() {
        let (shards, _) = group(3, 100, 16);
        assert_eq!(shards[0].half_open_places(), 12, "the queue has the other four");
        let (mut own, mut third) = (Vec::new(), Vec::new());
        for number in 0..30 {
            own.extend(shards[0].assign(number));
            third.extend(shards[2].next());
        }
        assert_eq!(shards[1].waiting(), 4);
        assert_eq!((own.len(), third.len()), (13, 13), "the others share the rest");
    }

    #[test]
    fn when_no_queue_has_room_the_listening_member_keeps_the_socket() {
        let (shards, _) = group(2, 100, 2);
        assert_eq!(shards[0].half_open_places(), 1);
        let own: Vec<_> = (0..10).filter_map(|number| shards[0].assign(number)).collect();
        assert_eq!((own.len(), shards[1].waiting()), (9, 1));
    }

    #[test]
    fn a_member_with_all_its_connections_gets_no_more() {
        let (shards, _) = group(2, 3, 100);
        let own: Vec<_> = (0..10).filter_map(|number| shards[0].assign(number)).collect();
        assert_eq!((own.len(), shards[1].waiting()), (7, 3), "four too many, which the table of this member refuses");
    }

    #[test]
    fn what_waits_for_a_dropped_member_goes_to_the_others_or_is_closed() {
        let (mut shards, alarms) = group(3, 100, 8);
        let own: Vec<_> = (0..6).filter_map(|number| shards[0].assign(number)).collect();
        assert_eq!(own.len(), 2);
        drop(shards.remove(1));
        assert_eq!((shards[0].waiting(), shards[1].waiting()), (2, 2), "a queue has two places");
        assert_eq!(woken(&alarms), [2, 2, 2]);
        let taken = take(&shards);
        assert_eq!((numbers(&taken[0]), numbers(&taken[1])), (vec![1, 4], vec![2, 5]));
        drop((own, taken));

        let socket = Arc::new(());
        let limits = Limits { max_connections: 9, max_half_open: 8, ..Limits::default() };
        let mut shards = Shard::group(vec![Waker::noop().clone(); 2], limits);
        let own = shards[0].assign(Arc::clone(&socket)).expect("the first");
        assert!(shards[0].assign(Arc::clone(&socket)).is_none());
        drop(shards.remove(0));
        assert_eq!((shards[0].waiting(), Arc::strong_count(&socket)), (1, 3));
        drop(shards);
        assert_eq!(Arc::strong_count(&socket), 2, "nobody is left: closed");
        drop(own);
    }

    #[test]
    fn members_on_threads_lose_no_socket() {
        const SOCKETS: u32 = 2_000;
        let (mut shards, _) = group(3, usize::MAX, 400);
        let listening = shards.remove(0);
        let done = Arc::new(AtomicUsize::new(0));
        let serve = |shard: Shard<u32>| {
            let done = Arc::clone(&done);
            std::thread::Builder::new().spawn(move || {
                let mut taken = Vec::new();
                // The flag is read before the queue, so nothing is queued behind the last look.
                while done.load(Ordering::Acquire) == 0 || shard.has_waiting() {
                    taken.extend(shard.next().map(|(number, _)| number));
                    std::thread::yield_now();
                }
                taken
            })
        };
        let threads: Vec<_> = shards.into_iter().map(|shard| serve(shard).unwrap()).collect();
        let mut all: Vec<u32> = (0..SOCKETS).filter_map(|number| Some(listening.assign(number)?.0)).collect();
        done.store(1, Ordering::Release);
        for thread in threads {
            all.extend(thread.join().unwrap());
        }
        all.sort_unstable();
        assert!(all.into_iter().eq(0..SOCKETS));
    }
}
