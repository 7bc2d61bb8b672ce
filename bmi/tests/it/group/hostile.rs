//! Bytes that no member sends.

use bmi::group::GroupError;
use bmi::{Config, Endpoint, ErrorKind, Memory, Options, Peer};
use bmi_sim::{Node, Rng};

use super::{Cluster, LIMIT, groups, named, options};

/// The tag of greetings, as `group/wire.rs` has it.
const GREETING: u64 = 0x67_726f_7570;

fn front(kind: u8, small: u8, rank: u32, number: u64) -> Vec<u8> {
    [&[1, kind, small, 0][..], &rank.to_le_bytes(), &number.to_le_bytes()].concat()
}

/// A greeting with which `rank` joins a group of `size`.
fn join(rank: u32, size: u64, node: &Node) -> Vec<u8> {
    [front(1, 0, rank, size), node.addr(1).to_string().into_bytes()].concat()
}

async fn dial(node: &Node, to: &bmi::Addr) -> (Endpoint, Peer) {
    let endpoint = node.endpoint(Config::named("stranger")).expect("the node is up");
    let peer = loop {
        match endpoint.connect(to, endpoint.within(LIMIT)).await {
            Ok(peer) => break peer,
            Err(_) => endpoint.sleep(std::time::Duration::from_micros(100)).await,
        }
    };
    (endpoint, peer)
}

/// Strangers send what is no greeting, or greet as what they are not, before, in and after the
/// meeting. The group meets, and works.
#[test]
fn strangers_do_not_disturb() {
    for seed in 0..20 {
        let cluster = Cluster::new(seed, 3);
        let stranger = cluster.world.node("stranger");
        let to = [cluster.nodes[0].addr(1), cluster.nodes[2].addr(1)];
        let strange = stranger.spawn({
            let node = stranger.clone();
            async move {
                let mut rng = Rng::new(seed);
                let mut random = |len: u64| (0..len).map(|_| rng.next_u64() as u8).collect::<Vec<_>>();
                let bytes = random(40);
                let greetings = [
                    (GREETING, bytes.clone()),
                    (7, b"garbage".to_vec()),
                    (GREETING, Vec::new()),
                    (GREETING, join(1, 4, &node)),
                    (GREETING, join(0, 3, &node)),
                    (GREETING, join(u32::MAX, u64::MAX, &node)),
                    (GREETING, front(1, 255, 1, 3)),
                    (GREETING, [front(1, 0, 1, 3), b"no address".to_vec()].concat()),
                    (GREETING, front(2, 0, 0, 5)),
                    (GREETING, front(2, 0, u32::MAX, 0)),
                    (GREETING, [front(1, 0, 0, 0), bytes].concat()),
                ];
                let mut peers = Vec::new();
                for (number, (tag, bytes)) in greetings.into_iter().enumerate() {
                    let (endpoint, peer) = dial(&node, &to[number % 2]).await;
                    let _ = peer.send_unexpected(tag, bytes, Options::default()).await;
                    peers.push((endpoint, peer));
                    node.sleep(std::time::Duration::from_micros(seed * 20)).await;
                }
                // What is no greeting has cost the connection.
                node.sleep(LIMIT / 2).await;
                let garbage = peers[1].1.send_unexpected(7, b"more".to_vec(), Options::default()).await;
                garbage.map(|_| ()).map_err(|error| error.kind())
            }
        });
        let place = cluster.place();
        let ended = cluster.run(|rank, node| {
            let place = place.clone();
            async move {
                let groups = groups(&node);
                node.sleep(std::time::Duration::from_micros(seed * 50)).await;
                let group = groups.meet(&place, rank, 3, options()).await.expect("they meet");
                for _ in 0..10 {
                    node.sleep(std::time::Duration::from_micros(300)).await;
                    group.barrier().await.expect("a barrier");
                }
                group.leave().await.expect("they leave");
            }
        });
        assert!(ended.iter().all(Option::is_some));
        assert_eq!(cluster.world.block_on(strange).expect("a task"), Err(ErrorKind::PeerLost));
    }
}

/// A member that has joined sends anything in place of its messages. The others name it.
#[test]
fn a_member_that_sends_anything_is_named() {
    let huge = |call: u8| front(call, 0, 0, u64::MAX);
    let sent: [(u64, Vec<u8>); 8] = [
        (1, b"garbage".to_vec()),
        (1, Vec::new()),
        (1, vec![0; 2000]),
        (1, huge(1)),
        (1, [front(1, 0, 0, 5), vec![0; 4]].concat()),
        (1, front(1, 9, 0, 0)),
        (0, b"garbage".to_vec()),
        (0, front(1, 0, u32::MAX, 1)),
    ];
    for ((tag, bytes), size) in sent.iter().flat_map(|sent| [(sent, 2), (sent, 3)]) {
        let cluster = Cluster::new(1, size);
        let place = cluster.place();
        let ended = cluster.run(|rank, node| {
            let (place, tag, bytes) = (place.clone(), *tag, bytes.clone());
            async move {
                if rank != 1 {
                    return groups(&node).meet(&place, rank, size, options()).await.err();
                }
                let (endpoint, peer) = dial(&node, &place).await;
                endpoint.listen(&node.addr(1)).expect("the port is free");
                let soon = endpoint.within(LIMIT);
                peer.send_unexpected(GREETING, join(1, size.into(), &node), soon).await.expect("sent");
                let table = Memory::zeroed(2000).expect("memory");
                peer.recv(1, &table, soon).await.expect("the table");
                peer.send(tag, bytes, soon).await.expect("sent");
                endpoint.sleep(2 * LIMIT).await;
                None
            }
        });
        for rank in [0, 2].into_iter().filter(|rank| *rank < size as usize) {
            let error = ended[rank].as_ref().and_then(Option::as_ref).expect("it fails");
            assert_eq!(named(error), Some(1), "rank {rank}, {bytes:?}: {error}");
        }
        let Some(Some(GroupError::Member { error, .. })) = &ended[0] else { panic!("{ended:?}") };
        // Of three, the others may wait for the connection that it does not make.
        let found = matches!(error.kind(), ErrorKind::Protocol | ErrorKind::TooLarge);
        assert!(found || size == 3 && error.kind() == ErrorKind::TimedOut, "{bytes:?}: {error}");
    }
}

/// A place of a meeting that answers with anything.
#[test]
fn a_host_that_answers_with_anything_is_named() {
    let table = |len: u64, payload: &[u8]| [front(1, 0, 0, len), payload.to_vec()].concat();
    let one = |text: &[u8]| [&5u64.to_le_bytes()[..], &(text.len() as u32).to_le_bytes(), text].concat();
    let answers: [Vec<u8>; 6] = [
        b"garbage".to_vec(),
        table(u64::MAX, b""),
        table(10, b"0123456789"),
        table(3, b"abc"),
        table(one(b"x").len() as u64, &one(b"x")),
        table(12, &[5, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255]),
    ];
    for answer in answers {
        let cluster = Cluster::new(1, 2);
        let place = cluster.place();
        let ended = cluster.run(|rank, node| {
            let (place, answer) = (place.clone(), answer.clone());
            async move {
                if rank == 1 {
                    return groups(&node).meet(&place, 1, 2, options()).await.err();
                }
                let endpoint = node.endpoint(Config::named("stranger")).expect("the node is up");
                endpoint.listen(&place).expect("the port is free");
                let joined = endpoint.next_unexpected().await;
                joined.peer().send(1, answer, endpoint.within(LIMIT)).await.expect("sent");
                endpoint.sleep(2 * LIMIT).await;
                None
            }
        });
        let error = ended[1].as_ref().and_then(Option::as_ref).expect("it fails");
        assert_eq!(named(error), Some(0), "{answer:?}: {error}");
        let GroupError::Member { error, .. } = error else { panic!("{error}") };
        assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::TooLarge), "{answer:?}: {error}");
    }
}
