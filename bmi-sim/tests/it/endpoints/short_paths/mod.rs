//! The short paths of an endpoint (`engine::adapter::short_paths` of bmi-core) behave as the
//! general paths that they duplicate.
//!
//! A random script of operations runs between two endpoints, once with the short paths and once
//! without them. Everything that a program sees must be the same: the result of each post, each
//! completion and their order, the bytes of all memory, the unexpected messages, the counters, and
//! the resources that are held. The steps of a script name who polls when, and all messages are
//! delivered between two polls. So both runs have the same course, and nothing depends on what a
//! path costs.
//!
//! **What may differ**
//! - A transfer completes when it is posted, or later. So its completion is compared apart from the
//!   order of the others, a script does not cancel it, and none reads what another one writes.
//! - The bytes of a posted transfer are on the wire ahead of later messages. So in a script with
//!   transfers, operations that end one after the other are compared without their order. That each
//!   message went to its receive is seen from the bytes.
//! - The counters that name a path, and those of registrations: an immediate completion needs no
//!   registration and no unit.
#![allow(unreachable_pub, reason = "helpers of tests")]

mod immediate;
mod run;

use std::cell::Cell;
use std::time::Duration;

use bmi_core::{Config, Counters, Lists, ServiceClass, Tag};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use run::{Record, Seen, Taken, run};

/// Tags of expected messages.
const TAGS: Tag = 3;
/// Number of scripts.
const CASES: u32 = 2000;
/// Length of the longest message that fits an inline send, in bytes: the simulated adapter's 256,
/// without a header of 32.
const INLINE: usize = 224;
/// Bounds in bytes, small so that scripts meet them.
const EAGER: usize = 2048;
const SLOT: usize = 8192;
const UNIT: usize = 16 << 10;
/// Most pieces of a list. A script has lists of one more.
const PIECES: usize = 3;

/// A time that no script reaches.
const NEVER: Duration = Duration::from_secs(3600);

/// The settings of a world and of both endpoints.
#[derive(Clone, Debug)]
struct Settings {
    inline_receive_bytes: u64,
    send_queue_depth: usize,
    eager_limit: usize,
    credit_messages: u16,
    fast_slots: u8,
    peer_in_flight_bytes: usize,
}

impl Settings {
    fn config(&self) -> Config {
        Config::default()
            .eager_limit(self.eager_limit)
            .credit_messages(self.credit_messages)
            .credit_bytes(5 * (EAGER as u32 + 64))
            .fast_slots(self.fast_slots)
            .fast_slot_bytes(SLOT)
            .transfer_unit(UNIT)
            .peer_in_flight_bytes(self.peer_in_flight_bytes as u64)
            .max_pieces(PIECES)
            .fence_grace(NEVER)
            .stall_patience(NEVER)
    }
}

/// A step of a script. `side` is the endpoint that does it: 0 or 1.
#[derive(Clone, Debug)]
enum Step {
    Send {
        side: usize,
        unexpected: bool,
        tag: Tag,
        lens: Vec<usize>,
        slot: bool,
    },
    Receive {
        side: usize,
        tag: Tag,
        lens: Vec<usize>,
        read_only: bool,
        late: bool,
    },
    Discard {
        side: usize,
        tag: Tag,
    },
    Transfer(Transfer),
    /// Cancels the message, the receive or the discard that was posted `back` operations before.
    Cancel {
        side: usize,
        back: usize,
    },
    /// Takes and drops the unexpected messages.
    Take {
        side: usize,
    },
    /// Delivers everything, and polls one side once.
    Poll {
        side: usize,
    },
    /// Lets both sides poll until nothing is left to do.
    Settle,
}

/// A pull or push of memory that the other side exposes for it.
#[derive(Clone, Debug)]
struct Transfer {
    side: usize,
    pull: bool,
    remote: Vec<usize>,
    at: u64,
    local: Vec<usize>,
    read_only: bool,
    lists: Lists,
    class: ServiceClass,
    late: bool,
}

// ---- scripts ------------------------------------------------------------------------------------

/// Lengths around each bound between two paths.
fn message_len() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => 0..4usize,
        6 => 4..INLINE,
        3 => INLINE - 2..INLINE + 3,
        2 => INLINE..EAGER,
        2 => EAGER - 1..EAGER + 2,
        2 => EAGER..SLOT + 2,
        1 => SLOT..3 * UNIT,
    ]
}

/// The lengths of the pieces of a list: the parts of `len`, cut at random.
fn pieces(len: impl Strategy<Value = usize>) -> impl Strategy<Value = Vec<usize>> {
    let number = prop_oneof![12 => 1..2usize, 6 => 2..PIECES + 1, 1 => PIECES + 1..PIECES + 2, 1 => 0..1usize];
    (len, number, any::<[u16; PIECES]>()).prop_map(|(len, number, cuts)| {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) * len / usize::from(u16::MAX)).collect();
        cuts.truncate(number.saturating_sub(1));
        cuts.sort_unstable();
        let ends = cuts.iter().copied().chain([len]);
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        ends.zip(starts).map(|(end, start)| end - start).take(number).collect()
    })
}

fn rarely() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.05)
}

fn transfer() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![1 => 0..2usize, 4 => 1..5000usize, 2 => 1..immediate::MOST + 1];
    let near = (0..2usize, any::<bool>(), pieces(len()), rarely(), prop::bool::weighted(0.1));
    let lists = prop_oneof![4 => Just(Lists::Auto), 1 => Just(Lists::Pack), 1 => Just(Lists::PackExposed), 1 => Just(Lists::Chain)];
    let classes = vec![ServiceClass::Message, ServiceClass::Bulk, ServiceClass::Control];
    // Bytes of the remote list before, behind and beyond the transfer.
    let room = (0..100usize, 0..100usize, prop_oneof![9 => Just(0), 1 => 1..200u64]);
    let far = (prop::bool::weighted(0.7), 0..1000usize);
    (near, lists, prop::sample::select(classes), room, far).prop_map(|(near, lists, class, room, far)| {
        let (side, pull, local, read_only, late) = near;
        let ((before, behind, beyond), (whole, cut)) = (room, far);
        let len = before + local.iter().sum::<usize>() + behind;
        let remote = if whole { vec![len] } else { vec![len * cut / 1000, len - len * cut / 1000] };
        let at = before as u64 + beyond;
        Step::Transfer(Transfer { side, pull, remote, at, local, read_only, lists, class, late })
    })
}

fn step(transfers: bool, longest: usize) -> impl Strategy<Value = Step> {
    let side = || 0..2usize;
    let send = (
        side(),
        prop::bool::weighted(0.3),
        0..TAGS,
        pieces(message_len().prop_map(move |len| len.min(longest))),
        rarely(),
    )
        .prop_map(|(side, unexpected, tag, lens, slot)| Step::Send { side, unexpected, tag, lens, slot });
    // Most receives have room for every short message. Longer ones are offered to the peer.
    let room = prop_oneof![2 => message_len(), 3 => INLINE..EAGER, 1 => EAGER + 1..UNIT];
    let receive = (side(), 0..TAGS, pieces(room), rarely(), rarely())
        .prop_map(|(side, tag, lens, read_only, late)| Step::Receive { side, tag, lens, read_only, late });
    prop_oneof![
        12 => send,
        12 => receive,
        if transfers { 6 } else { 0 } => transfer(),
        1 => (side(), 0..TAGS).prop_map(|(side, tag)| Step::Discard { side, tag }),
        1 => (side(), 0..4usize).prop_map(|(side, back)| Step::Cancel { side, back }),
        2 => side().prop_map(|side| Step::Take { side }),
        6 => side().prop_map(|side| Step::Poll { side }),
        3 => Just(Step::Settle),
    ]
}

/// A receive that is offered to the peer, and a message that fits it. A short message may go ahead.
fn offered() -> impl Strategy<Value = Vec<Step>> {
    (0..2usize, 0..TAGS, EAGER + 1..SLOT, 0..100usize, any::<bool>()).prop_map(|(side, tag, len, more, ahead)| {
        let receive = |len| Step::Receive { side, tag, lens: vec![len], read_only: false, late: false };
        let send = |len| Step::Send { side: 1 - side, unexpected: false, tag, lens: vec![len], slot: false };
        let mut steps = if ahead { vec![receive(10), send(10), Step::Settle] } else { Vec::new() };
        steps.extend([receive(len + more), Step::Settle, send(len)]);
        steps
    })
}

/// Settings and a script. A transfer that waits must not hold up others, because with the short
/// path it does not wait. So with few places in the send queue there are no transfers. With little
/// in flight there are no messages by rendezvous, which take turns with transfers.
fn case() -> impl Strategy<Value = (Settings, Vec<Step>)> {
    let settings = (prop::sample::select(vec![100, 64 << 10]), 0..3u8, 4..12u16, 0..3u8);
    settings.prop_flat_map(|(inline_receive_bytes, limits, credit_messages, fast_slots)| {
        let (send_queue_depth, peer_in_flight_bytes) = match limits {
            0 => (2, 1 << 20),
            1 => (256, UNIT),
            _ => (256, 1 << 20),
        };
        let settings = Settings {
            inline_receive_bytes,
            send_queue_depth,
            eager_limit: EAGER,
            credit_messages,
            fast_slots,
            peer_in_flight_bytes,
        };
        let longest = if limits == 1 { EAGER } else { usize::MAX };
        let one = step(limits != 0, longest).prop_map(|step| vec![step]);
        let steps = prop_oneof![40 => one, if limits == 1 { 0 } else { 1 } => offered()];
        (Just(settings), prop::collection::vec(steps, 1..60).prop_map(|steps| steps.concat()))
    })
}

// ---- the test -----------------------------------------------------------------------------------

/// Leaves out what may differ after this script.
fn comparable(script: &[Step], mut record: Record) -> Record {
    if script.iter().any(|step| matches!(step, Step::Transfer(_))) {
        // The wire of a transfer delays messages behind it.
        let ends = |a: &Seen, b: &Seen| matches!((a, b), (Seen::Ended(_), Seen::Ended(_)));
        record.seen.chunk_by_mut(ends).for_each(|run| run.sort_by_key(Seen::user));
    }
    let counters = Counters {
        // They name the path.
        immediate: 0,
        transfer_requests: 0,
        transfer_units: 0,
        units_packed: 0,
        // An immediate completion registers nothing.
        bounced: 0,
        pin_hits: 0,
        pin_misses: 0,
        pin_evictions: 0,
        pin_failures: 0,
        pin_batches: 0,
        ..record.counters
    };
    Record { counters, ..record }
}

#[test]
fn the_short_paths_behave_as_the_general_paths() {
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let total = Cell::new(Taken::default());
    let result = TestRunner::new_with_rng(config, rng).run(&case(), |(settings, script)| {
        let ([a, b], taken) = run(&settings, &script, false);
        let ([general_a, general_b], none) = run(&settings, &script, true);
        prop_assert_eq!(
            none,
            Taken { offered: taken.offered, ..Taken::default() },
            "a short path was taken though it was closed"
        );
        prop_assert_eq!(comparable(&script, a), comparable(&script, general_a), "on the first side");
        prop_assert_eq!(comparable(&script, b), comparable(&script, general_b), "on the second side");
        let sum = total.get();
        total.set(Taken {
            sends: sum.sends + taken.sends,
            receives: sum.receives + taken.receives,
            inline_receives: sum.inline_receives + taken.inline_receives,
            transfers: sum.transfers + taken.transfers,
            offered: sum.offered + taken.offered,
        });
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let Taken { sends, receives, inline_receives, transfers, offered } = total.get();
    assert!(offered > 300, "offered receives count inline receives; only {offered} messages went into one");
    for (path, taken) in [("receive", inline_receives), ("transfer", transfers)] {
        assert!(taken > 500, "the short path for a {path} was taken only {taken} times");
    }
    // Only builds with debug assertions count these.
    for (path, taken) in [("inline send", sends), ("short receive", receives)] {
        assert!(!cfg!(debug_assertions) || taken > 3000, "the short path for a {path} was taken only {taken} times");
    }
}
