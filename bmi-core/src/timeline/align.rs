//! Alignment: the offset between the clocks of two timelines, from the messages that both saw.
//!
//! **How.** A message has a stamp where it was sent and one where it arrived. The difference is its
//! time in flight plus the offset of the clocks, or minus it in the other direction. Let `out` and
//! `back` be the least differences of both directions:
//!
//! ```text
//!   first   ──send at s──────────────────────── arrival at t' ───      out  = min(t − s)   = least time out + offset
//!                 \                            /
//!   second  ───────── arrival at t ──── send at s' ──────────────      back = min(t' − s') = least time back − offset
//!
//!   offset = (out − back) / 2         error ≤ (out + back) / 2
//! ```
//!
//! The bound holds whatever the times in flight are, because none is negative. It is exact for
//! stamps that are taken before a message leaves and after it has arrived, as these are.
//!
//! **Which messages.** Both sides count the messages of a connection, so the n-th one of a class
//! and a direction is the same message. They name the connection differently. So each connection of
//! one side is compared with each one of the other. Messages of the same number must have the same
//! tag and length, and no round trip may be below zero. All connections share one offset. So of the
//! sets of connections that one offset allows, the one with the most messages is taken, and then
//! the one with the shortest round trip.
//!
//! **Limits.** One offset is for the whole timeline. If the clocks drift by more than a round trip
//! while something is recorded, the round trip seems to be below zero, and nothing is aligned.
//!
//! **Source.** Cristian, *Probabilistic clock synchronization* (1989); RFC 5905, section 8.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{Class, Entry, Timeline, What};

/// The offset between two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// How far the second clock is ahead of the first, in nanoseconds.
    pub offset_ns: i128,
    /// The offset is wrong by at most this, in nanoseconds.
    pub error_ns: i128,
    /// Number of messages that both sides saw.
    pub messages: usize,
}

/// Number of candidates that others are added to, best first. One is the right one, as a rule.
const SEEDS: usize = 64;

/// A message, by the places of its entries: where it was sent, and where it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) sent: usize,
    pub(super) arrived: usize,
}

/// The messages of two timelines that both sides saw.
#[derive(Clone, Debug, Default)]
pub(super) struct Pairs {
    /// From the first side to the second, and back.
    pub(super) ways: [Vec<Pair>; 2],
    /// The least differences of the stamps.
    least: [Option<i128>; 2],
}

/// Returns the offset between the clocks of two timelines, or `None` if they have no messages in
/// both directions in common.
pub fn align(first: &Timeline, second: &Timeline) -> Option<Alignment> {
    Pairs::of(first, second).alignment()
}

/// The messages of a connection in one direction, as one side saw them: by class and number.
type Messages<'a> = BTreeMap<(Class, u64), (usize, &'a Entry)>;

/// A connection, as one side saw it: what was sent, and what arrived.
#[derive(Default)]
struct Seen<'a> {
    sent: Messages<'a>,
    arrived: Messages<'a>,
}

fn connections(timeline: &Timeline) -> BTreeMap<u64, Seen<'_>> {
    let mut all: BTreeMap<u64, Seen<'_>> = BTreeMap::new();
    for (place, entry) in timeline.entries.iter().enumerate() {
        let (class, sent) = match entry.what {
            What::Send(class, _) => (class, true),
            What::Arrive(class, _) => (class, false),
            _ => continue,
        };
        let seen = all.entry(entry.peer).or_default();
        let messages = if sent { &mut seen.sent } else { &mut seen.arrived };
        messages.insert((class, entry.number), (place, entry));
    }
    all
}

/// Returns the messages that were sent and arrived, and the least difference of their stamps.
/// Returns `None` if the sides disagree about one.
fn matched(sent: &Messages<'_>, arrived: &Messages<'_>) -> Option<(Vec<Pair>, Option<i128>)> {
    let (mut pairs, mut least) = (Vec::new(), None);
    for (key, (from, sending)) in sent {
        let Some((to, arrival)) = arrived.get(key) else { continue };
        if (sending.tag, sending.bytes) != (arrival.tag, arrival.bytes) {
            return None;
        }
        let difference = i128::from(arrival.start.as_nanos()) - i128::from(sending.start.as_nanos());
        least = Some(least.map_or(difference, |least: i128| least.min(difference)));
        pairs.push(Pair { sent: *from, arrived: *to });
    }
    Some((pairs, least))
}

impl Pairs {
    pub(super) fn of(first: &Timeline, second: &Timeline) -> Pairs {
        let mut candidates = candidates(first, second);
        candidates.sort_by_key(|(_, pairs)| pairs.rank());
        let seeds = 0..candidates.len().min(SEEDS);
        seeds.map(|seed| consistent(&candidates, seed)).min_by_key(Pairs::rank).unwrap_or_default()
    }

    /// Better ones are less: many messages, then a short round trip.
    fn rank(&self) -> (Reverse<usize>, i128) {
        (Reverse(self.len()), self.round_trip().unwrap_or(i128::MAX))
    }

    /// Returns true if there is an offset with which no message arrives before it was sent.
    fn is_possible(&self) -> bool {
        self.round_trip().is_none_or(|round_trip| round_trip >= 0)
    }

    fn len(&self) -> usize {
        self.ways.iter().map(Vec::len).sum()
    }

    /// Returns the sum of the least times in flight, if there are messages in both directions.
    fn round_trip(&self) -> Option<i128> {
        Some(self.least[0]? + self.least[1]?)
    }

    fn plus(&self, other: &Pairs) -> Pairs {
        let least = |way: usize| match (self.least[way], other.least[way]) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        let both = |way: usize| [&self.ways[way][..], &other.ways[way][..]].concat();
        Pairs { ways: [both(0), both(1)], least: [least(0), least(1)] }
    }

    /// Returns the offset, rounded down, so that no message arrives before it was sent.
    pub(super) fn alignment(&self) -> Option<Alignment> {
        let [out, back] = [self.least[0]?, self.least[1]?];
        let (offset_ns, error_ns) = ((out - back).div_euclid(2), (out + back + 1).div_euclid(2));
        Some(Alignment { offset_ns, error_ns, messages: self.len() })
    }
}

/// Two connections that may be the two ends of one, with their messages.
type Candidate = ((u64, u64), Pairs);

/// Adds to a candidate all others, in order, whose connections are still free, and that an offset
/// of both allows.
fn consistent(candidates: &[Candidate], seed: usize) -> Pairs {
    let (mut all, mut taken) = (Pairs::default(), [BTreeSet::new(), BTreeSet::new()]);
    for ((ours, theirs), pairs) in candidates[seed..=seed].iter().chain(candidates) {
        if taken[0].contains(ours) || taken[1].contains(theirs) {
            continue;
        }
        let sum = all.plus(pairs);
        if sum.is_possible() {
            taken[0].insert(*ours);
            taken[1].insert(*theirs);
            all = sum;
        }
    }
    all
}

fn candidates(first: &Timeline, second: &Timeline) -> Vec<Candidate> {
    let (ours, theirs) = (connections(first), connections(second));
    let mut found = Vec::new();
    for (a, one) in &ours {
        for (b, two) in &theirs {
            let (Some(out), Some(back)) = (matched(&one.sent, &two.arrived), matched(&two.sent, &one.arrived)) else {
                continue;
            };
            let pairs = Pairs { ways: [out.0, back.0], least: [out.1, back.1] };
            if pairs.len() > 0 && pairs.is_possible() {
                found.push(((*a, *b), pairs));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Time;
    use crate::timeline::Way;
    use crate::timeline::wire::tests::any_timeline;

    /// The origin of the first clock.
    const ORIGIN: i64 = 1_000_000_000_000;

    fn message(what: What, peer: u64, number: u64, tag: u64, at: i64) -> Entry {
        let start = Time::from_nanos(at.try_into().unwrap());
        Entry { peer, number, tag, bytes: 8, start, ..Entry::of(what) }
    }

    /// Adds a message from `from` to `to`, sent at `at` by a true clock. Each side has its name for
    /// the connection, and its skew.
    fn exchange(
        from: (&mut Timeline, u64, i64),
        to: (&mut Timeline, u64, i64),
        number: u64,
        tag: u64,
        at: i64,
        way: i64,
    ) {
        let (class, eager) = (Class::Expected, Way::Eager);
        from.0.entries.push(message(What::Send(class, eager), from.1, number, tag, ORIGIN + at + from.2));
        to.0.entries.push(message(What::Arrive(class, eager), to.1, number, tag, ORIGIN + at + way + to.2));
    }

    proptest! {
        #[test]
        fn the_offset_is_found_within_the_bound(
            skew in -1_000_000_000i64..1_000_000_000,
            messages in prop::collection::vec((0i64..1_000_000, 0i64..50_000, any::<bool>()), 1..40),
        ) {
            let (mut a, mut b) = (Timeline::default(), Timeline::default());
            let mut least = [i64::MAX; 2];
            for (number, (at, way, back)) in (0..).zip(messages) {
                least[usize::from(back)] = least[usize::from(back)].min(way);
                let (one, two) = ((&mut a, 3, 0), (&mut b, 9, skew));
                match back {
                    false => exchange(one, two, number, number, at, way),
                    true => exchange(two, one, number, number, at, way),
                }
            }
            let found = align(&a, &b);
            if least.contains(&i64::MAX) {
                prop_assert_eq!(found, None, "messages in one direction tell no offset");
                return Ok(());
            }
            let Alignment { offset_ns, error_ns, .. } = found.unwrap();
            prop_assert_eq!(error_ns, i128::from(least[0] + least[1] + 1) / 2);
            prop_assert!((offset_ns - i128::from(skew)).abs() <= error_ns);
            // The other way round, the offset has the other sign.
            let back = align(&b, &a).unwrap();
            prop_assert!((back.offset_ns + offset_ns).abs() <= 1 && back.error_ns == error_ns);
        }

        #[test]
        fn any_two_timelines_are_compared_without_a_panic(a in any_timeline(), b in any_timeline()) {
            if let Some(found) = align(&a, &b) {
                prop_assert!(found.error_ns >= 0 && found.messages > 1);
            }
        }
    }

    #[test]
    fn connections_are_told_apart_by_their_messages_and_then_by_their_round_trips() {
        let (mut a, mut b) = (Timeline::default(), Timeline::default());
        // Two connections with the same messages, at different times, and one with other tags.
        for (ours, theirs, since, tag) in [(1, 30, 0, 5), (2, 20, 900, 5), (3, 10, 400, 6)] {
            exchange((&mut a, ours, 0), (&mut b, theirs, 7_000), 0, tag, since, 10);
            exchange((&mut b, theirs, 7_000), (&mut a, ours, 0), 0, tag, since + 50, 30);
        }
        let pairs = Pairs::of(&a, &b);
        for pair in &pairs.ways[0] {
            let (from, to) = (a.entries[pair.sent].peer, b.entries[pair.arrived].peer);
            assert!([(1, 30), (2, 20), (3, 10)].contains(&(from, to)), "{from} is not {to}");
        }
        assert_eq!(pairs.ways.each_ref().map(Vec::len), [3, 3]);
        assert_eq!(align(&a, &b), Some(Alignment { offset_ns: 6_990, error_ns: 20, messages: 6 }));
    }
}
