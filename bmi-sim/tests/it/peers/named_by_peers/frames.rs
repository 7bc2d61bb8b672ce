//! What a message of each kind costs an endpoint with much to look through: thousands of messages
//! and offers of the peer, thousands of operations of this side. Steps of inner loops are counted
//! between two points at which other tasks can run.

use std::collections::BTreeSet;

use bmi_core::describe_message;

use super::*;

/// Messages or offers of the peer: nearly as many as its credits in bytes allow.
const PARKED: u64 = 11_500;
/// Messages that the peer has not said to have seen.
const UNSEEN: u64 = 10_000;
/// Operations of the endpoint.
const OPERATIONS: u64 = 4000;
/// Messages that the program of the endpoint has not taken.
const MESSAGES: u64 = 50;
/// Pieces in an announcement: as many as a message has room for.
const PIECES: u64 = 8192 / 24;
/// Connections of an endpoint that takes no more.
const PEERS: usize = 300;
/// More rounds than a search in an ordered index of so many names takes.
const FEW: u64 = 64;

/// A kind of message, or what else a peer can cause.
struct Row {
    kind: &'static str,
    worst: &'static str,
    /// Most steps without a break.
    most: u64,
    cost: fn(&World) -> u64,
}

/// Returns the most steps that the endpoint takes without a break because of what the peer does.
fn cost(world: &World, talker: &mut Talker<'_>, act: impl FnOnce(&mut Talker<'_>)) -> u64 {
    talker.hear();
    let server = world.node("server");
    // What was before does not count.
    server.longest_piece();
    act(talker);
    talker.pause();
    server.longest_piece()
}

/// Posts receives that nothing arrives for, so that there are many operations.
fn many_operations(peer: &Peer) {
    for tag in 0..OPERATIONS {
        let memory = Memory::zeroed(8).unwrap();
        peer.endpoint()
            .with(|engine| engine.post_recv(peer.id(), (1 << 40) + tag, memory, Options::default()))
            .unwrap();
    }
}

/// Creates an endpoint with many operations, and its peer, which has announced many messages.
fn busy(world: &World) -> (Peer, Talker<'_>) {
    let (peer, mut talker) = scene(world);
    many_operations(&peer);
    for name in 0..PARKED {
        talker.announce(name % 100, name, nowhere(1000));
    }
    talker.hear();
    assert_eq!(parked(&peer) as u64, PARKED);
    (peer, talker)
}

/// Returns a description of memory in as many pieces as a message has room for.
fn scattered(remote: RemoteSlice) -> Vec<u8> {
    let pieces = (0..PIECES - 1).map(|at| remote.slice(at, 1).unwrap());
    let last = remote.slice(PIECES - 1, remote.len - PIECES + 1).unwrap();
    pieces.chain([last]).flat_map(|piece| piece.to_wire()).collect()
}

fn send(peer: &Peer, tag: u64, len: usize) {
    let memory = Memory::zeroed(len).unwrap();
    peer.endpoint().with(|engine| engine.post_send(peer.id(), tag, memory, Options::default())).unwrap();
}

/// Lets the endpoint announce a long message. Returns its name.
fn announced(peer: &Peer, talker: &mut Talker<'_>) -> u64 {
    send(peer, 7, LONG);
    let [Heard { kind: ANNOUNCE, op, .. }] = talker.hear()[..] else { panic!("one message") };
    op
}

/// Lets the endpoint offer a receive. Returns its operation, and its name.
fn offered(peer: &Peer, talker: &mut Talker<'_>) -> (bmi_core::OpId, u64) {
    let receive = |engine: &mut bmi_core::Engine| {
        engine.post_recv(peer.id(), 1 << 41, Memory::zeroed(10_000).unwrap(), Options::default())
    };
    let bmi_core::Posted::Pending(op) = peer.endpoint().with(receive).unwrap() else { panic!("nothing arrived") };
    let [Heard { kind: READY, op: name, .. }] = talker.hear()[..] else { panic!("one message") };
    (op, name)
}

const ROWS: &[Row] = &[
    Row {
        kind: "Eager",
        worst: "for one of many receives, and for none",
        most: FEW,
        cost: |world| {
            let (peer, mut talker) = busy(world);
            let tag = (1 << 40) + OPERATIONS - 1;
            let received = cost(world, &mut talker, |talker| talker.say(EAGER, tag, 5, 0, b"hello"));
            let parks = cost(world, &mut talker, |talker| talker.say(EAGER, 1 << 42, 5, 0, b"hello"));
            assert_eq!(parked(&peer) as u64, PARKED + 1);
            received.max(parks)
        },
    },
    Row {
        kind: "Unexpected",
        worst: "beside many messages",
        most: FEW,
        cost: |world| {
            let (_peer, mut talker) = busy(world);
            cost(world, &mut talker, |talker| talker.say(UNEXPECTED, 1, 5, 0, b"hello"))
        },
    },
    Row {
        kind: "Announce",
        worst: "in most pieces",
        most: 2 * PIECES + FEW,
        cost: |world| {
            let (peer, mut talker) = busy(world);
            let wire = scattered(nowhere(1 << 20));
            let steps = cost(world, &mut talker, |talker| talker.say(ANNOUNCE, 1, 1 << 20, 1, &wire));
            assert_eq!(parked(&peer) as u64, PARKED + 1);
            steps
        },
    },
    Row {
        kind: "Finish",
        worst: "of one of many operations",
        most: FEW,
        cost: |world| {
            let (peer, mut talker) = busy(world);
            let op = announced(&peer, &mut talker);
            cost(world, &mut talker, |talker| talker.say(FINISH, 0, LONG as u64, op, &[]))
        },
    },
    Row {
        kind: "Cancel",
        worst: "of the last announcement, and of none",
        most: FEW,
        cost: |world| {
            let (peer, mut talker) = busy(world);
            let last = cost(world, &mut talker, |talker| talker.cancel(PARKED - 1));
            assert_eq!((parked(&peer) as u64, talker.hear()), (PARKED - 1, vec![cancelled(PARKED - 1)]));
            let unknown = cost(world, &mut talker, |talker| talker.cancel(u64::MAX));
            assert_eq!((parked(&peer) as u64, talker.hear()), (PARKED - 1, vec![]));
            last.max(unknown)
        },
    },
    Row {
        kind: "Credit",
        worst: "for as many as it can return of the messages that wait",
        most: RECEIVES as u64 + FEW,
        cost: |world| {
            let (peer, mut talker) = scene(world);
            (0..OPERATIONS).for_each(|tag| send(&peer, tag % 100, 8));
            let granted = talker.hear().len();
            let steps = cost(world, &mut talker, |talker| talker.say(CREDIT, 0, 0, 0, &[]));
            assert_eq!((talker.hear().len(), granted), (granted, usize::from(RECEIVES) - 4));
            steps
        },
    },
    Row {
        // The first one enters the messages in an index.
        kind: "Ready",
        worst: "after thousands of messages that the peer has not seen",
        most: UNSEEN + FEW,
        cost: |world| {
            let mut offer = unseen(world);
            offer(200, 0)
        },
    },
    Row {
        kind: "Ready, again",
        worst: "of none of their tags, of the oldest one's, and of each that it has seen since",
        most: FEW,
        cost: |world| {
            let mut offer = unseen(world);
            offer(200, 0);
            let seen = (1..=100).map(|seen| (99, seen));
            [(200, 0), (0, 0)].into_iter().chain(seen).map(|(tag, seen)| offer(tag, seen)).max().unwrap()
        },
    },
    Row {
        kind: "Written",
        worst: "into one of many receives",
        most: FEW,
        cost: |world| {
            let (peer, mut talker) = busy(world);
            let (_, name) = offered(&peer, &mut talker);
            cost(world, &mut talker, |talker| talker.say(WRITTEN, 0, 10_000, name, &[]))
        },
    },
    Row {
        kind: "Withdraw",
        worst: "of the last offer, and of none",
        most: FEW,
        cost: |world| {
            let (peer, mut talker) = scene(world);
            many_operations(&peer);
            for name in 0..PARKED {
                talker.offer(name % 100, name, nowhere(1000));
            }
            let last = cost(world, &mut talker, |talker| talker.withdraw(PARKED - 1));
            assert_eq!(talker.hear(), [withdrawn(PARKED - 1)]);
            let unknown = cost(world, &mut talker, |talker| talker.withdraw(u64::MAX));
            assert_eq!(talker.hear(), [withdrawn(u64::MAX)]);
            last.max(unknown)
        },
    },
    Row {
        kind: "Withdrawn",
        worst: "of one of many receives",
        most: FEW,
        cost: |world| {
            let (peer, mut talker) = busy(world);
            let (op, name) = offered(&peer, &mut talker);
            peer.endpoint().with(|engine| engine.cancel(op));
            let [Heard { kind: WITHDRAW, .. }] = talker.hear()[..] else { panic!("one message") };
            cost(world, &mut talker, |talker| talker.say(WITHDRAWN, 0, 0, name, &[]))
        },
    },
    Row {
        kind: "FastSlots",
        worst: "most slots",
        most: FEW,
        cost: |world| {
            let (_peer, mut talker) = busy(world);
            let wire = nowhere(8 * 4096).to_wire();
            cost(world, &mut talker, |talker| talker.say(FAST_SLOTS, 0, 4096, 8, &wire))
        },
    },
    Row {
        kind: "ClearToWrite",
        worst: "in most pieces, of one of many operations",
        most: 2 * PIECES + FEW,
        cost: |world| {
            let (peer, mut talker) = busy(world);
            let (_memory, remote) = talker.expose(LONG, Access::WRITE);
            let op = announced(&peer, &mut talker);
            let wire = scattered(remote);
            cost(world, &mut talker, |talker| talker.say(CLEAR_TO_WRITE, 9, LONG as u64, op, &wire))
        },
    },
    Row {
        // A violation, which ends the connection (see below).
        kind: "GoAway",
        worst: "from the side that connected",
        most: OPERATIONS + FEW,
        cost: |world| {
            let (peer, mut talker) = busy(world);
            world.node("server").longest_piece();
            talker.say(GO_AWAY, 0, 0, 0, &[]);
            world.run_for(Duration::from_secs(1));
            assert_eq!(peer.endpoint().resource_usage().peers, 0);
            world.node("server").longest_piece()
        },
    },
    Row {
        kind: "Probe",
        worst: "for an answer, and for memory",
        most: FEW,
        cost: |world| {
            let (_peer, mut talker) = busy(world);
            let echo = cost(world, &mut talker, |talker| talker.say(PROBE, 1, 5, 0, b"hello"));
            echo.max(cost(world, &mut talker, |talker| talker.say(PROBE, 1, 0, 2, &[])))
        },
    },
];

/// Creates an endpoint whose peer has not said to have seen many messages, and returns what an
/// offer of a tag costs then, after so many messages.
fn unseen(world: &World) -> impl FnMut(u64, u64) -> u64 {
    let (peer, mut talker) = scene_granting(world, u16::MAX);
    for number in 0..UNSEEN {
        send(&peer, number % 100, 8);
        if number % 32 == 0 {
            talker.pause();
        }
    }
    move |tag, seen| {
        talker.hear();
        // The peer returns no credits, as if it had not received the messages.
        talker.messages = 0;
        let steps = cost(world, &mut talker, |talker| talker.say(READY, tag, seen, 1, &nowhere(1000).to_wire()));
        let _ = &peer;
        steps
    }
}

/// What a peer causes without a message.
const BESIDE: &[Row] = &[
    Row {
        // All connections are looked at for the one that was idle longest, and all operations for
        // those that are at work. Both have limits, and an index would cost each message something.
        kind: "Hello",
        worst: "to an endpoint with as many connections as it may have",
        most: PEERS as u64 + OPERATIONS + FEW,
        cost: |world| {
            let idle = Duration::from_millis(1);
            let config = Config::default().max_peers(PEERS).evict_idle_after(Some(idle));
            let endpoint = world.node("server").endpoint(config).unwrap();
            let addr = endpoint.listen(&world.node("server").addr(1)).unwrap();
            let mut t = world.node("client").transport().unwrap();
            let mut connect = || {
                t.connect(&addr, &hello(60), Time::from_nanos(u64::MAX)).unwrap();
                world.run_for(10 * idle);
                while t.poll(Time::ZERO, &mut Vec::new()) {}
            };
            (0..PEERS).for_each(|_| connect());
            let peers: Vec<Peer> = std::iter::from_fn(|| match endpoint.with(|engine| engine.poll_event()) {
                Some(PeerEvent::Connected { peer, .. }) => Some(endpoint.peer(peer)),
                _ => None,
            })
            .collect();
            assert_eq!(peers.len(), PEERS);
            many_operations(&peers[0]);
            world.node("server").longest_piece();
            connect();
            world.node("server").longest_piece()
        },
    },
    Row {
        // All operations are looked at for those of the peer, and an index would cost each message
        // something.
        kind: "the end of a connection",
        worst: "with many operations and messages",
        most: OPERATIONS + MESSAGES + FEW,
        cost: |world| {
            let (peer, mut talker) = busy(world);
            (0..MESSAGES).for_each(|_| talker.say(UNEXPECTED, 1, 5, 0, b"hello"));
            talker.hear();
            world.node("server").longest_piece();
            world.node("client").kill();
            world.run_for(Duration::from_secs(30));
            assert_eq!(peer.endpoint().resource_usage().peers, 0);
            world.node("server").longest_piece()
        },
    },
    Row {
        kind: "silence",
        worst: "until the deadline of many messages that wait for credits",
        most: 4 * OPERATIONS,
        cost: |world| {
            let (peer, mut talker) = scene(world);
            let options = Options::by(world.now() + Duration::from_millis(50));
            for tag in 0..OPERATIONS {
                // Every other one waits on.
                let options = if tag % 2 == 0 { options } else { Options::default() };
                let memory = Memory::zeroed(8).unwrap();
                peer.endpoint().with(|engine| engine.post_send(peer.id(), tag, memory, options)).unwrap();
            }
            talker.pause();
            world.node("server").longest_piece();
            world.run_for(Duration::from_millis(100));
            world.node("server").longest_piece()
        },
    },
];

fn check(rows: &[Row]) {
    let mut exceeded = Vec::new();
    for Row { kind, worst, most, cost } in rows {
        let steps = cost(&World::new(1));
        let row = format!("{steps:>6} of {most:>6} steps: {kind}: {worst}");
        println!("{row}");
        exceeded.extend((steps > *most).then_some(row));
    }
    assert!(exceeded.is_empty(), "too many steps without a break:\n{}", exceeded.join("\n"));
}

/// A kind of message without a row is an error.
#[test]
fn a_message_of_each_kind_is_bounded() {
    let name = |kind: u8| {
        // One of these fits each kind.
        [0, 24].into_iter().find_map(|payload: u8| {
            let mut head = [0; 32];
            (head[0], head[16]) = (kind, payload);
            let text = describe_message(&head, 32 + u64::from(payload))?;
            Some(text.split(',').next().unwrap().to_owned())
        })
    };
    let known: BTreeSet<String> = (0..16).filter_map(name).collect();
    let rows: BTreeSet<String> = ROWS.iter().map(|row| row.kind.split(',').next().unwrap().to_owned()).collect();
    assert_eq!(known, rows);
    check(ROWS);
}

#[test]
fn what_a_peer_causes_without_a_message_is_bounded() {
    check(BESIDE);
}
