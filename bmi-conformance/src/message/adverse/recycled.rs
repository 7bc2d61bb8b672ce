//! Memory that is used again holds nothing of the peer that used it before.
//!
//! Each test has one peer, or the program, fill memory with poison. Then another peer uses the same
//! memory, does less than it claims, and looks at what it gets.

use bmi_core::comm::{Body, Path};
use bmi_core::transport::{Event, PostError, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget};
use bmi_core::{
    AnyTransport, BulkDescriptor, Config, Endpoint, ErrorKind, Grant, Lists, MemList, Memory, RemoteSlice, Transport,
};
use futures_util::future::join;

use super::intruder::{Breach, Forged, Intruder, PROBE, SLOTS, UNEXPECTED, word};
use crate::data::{memory, pattern};
use crate::message::{reads, tight};
use crate::net::{Net, next_call, soon};
use crate::rig::conn_of;

/// The byte that must not arrive anywhere.
const POISON: u8 = 0xa5;
/// Bytes of a probe area that are looked at.
const LOOK: usize = 1000;

fn poisoned(len: usize) -> Memory {
    let memory = memory(len);
    memory.copy_from(0, &vec![POISON; len]);
    memory
}

/// Checks that no byte is poison.
fn is_clean(what: &str, bytes: &[u8]) {
    let found = bytes.iter().filter(|byte| **byte == POISON).count();
    assert_eq!(found, 0, "{what}: {found} of {} bytes are another peer's", bytes.len());
}

/// A peer that writes one byte into granted memory, and says that this was all, leaves nothing of
/// what the memory held before.
pub async fn a_grant_holds_nothing_of_others(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let target = poisoned(10_000);
    let list: MemList = [target.slice(5000, 4000), target.slice(10, 3000)].into_iter().collect();
    let (grant, written) = pair.grant(list.clone());
    let start = RemoteSlice { len: 1, ..grant.descriptor.pieces()[0] };
    let descriptor = BulkDescriptor::try_from(vec![start]).expect("one byte");
    let lie = Grant { descriptor, token: grant.token };
    pair.push_granted(&lie, vec![1]).await.expect("push");
    written.await.expect("the peer says that it has written all");
    is_clean("a grant", &list.to_vec());
    assert_eq!(list.to_vec()[0], 1);
    let rest = [target.slice(0, 10).to_vec(), target.slice(3010, 1990).to_vec(), target.slice(9000, 1000).to_vec()];
    assert!(rest.concat().iter().all(|byte| *byte == POISON), "memory that was not granted stays");
    pair.settled(net, "after a lie").await;
}

/// A push of fewer bytes than were granted is refused. The peer would take it for complete.
pub async fn a_grant_is_pushed_whole(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let target = memory(10_000);
    let (grant, written) = pair.grant(&target);
    for len in [1, 9_999, 10_001] {
        let pushed = pair.push_granted(&grant, pattern(1, len)).await;
        let error = pushed.expect_err("not as long as the grant");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    pair.push_granted(&grant, pattern(1, 10_000)).await.expect("push");
    assert_eq!(written.await.expect("written").len, 10_000);
    assert!(target.to_vec() == pattern(1, 10_000));
    pair.settled(net, "after a whole push").await;
}

/// A message in a fast-RDMA slot that is shorter than it says does not end in a message of another
/// peer.
pub async fn slots_hold_nothing_of_others(net: &Net<'_>) {
    const LEN: u64 = 4096;
    let pair = net.pair(&tight().fast_slots(2).fast_slot_bytes(LEN as usize)).await;
    let mut intruder = Intruder::new(net).await;
    intruder.hello[8] |= 16;
    let header = Forged { kind: UNEXPECTED, len: LEN, ..Forged::default() };
    for payload in [&[POISON; LEN as usize][..], &[]] {
        let breach = intruder.breach(net, &pair.addr).await;
        let told = intruder.hear(net, &breach).await;
        assert_eq!(told[0] & 15, SLOTS, "slots are described first");
        let remote = RemoteSlice::from_wire(told[32..56].try_into().expect("24 bytes"));
        let slot_len = word(&told, 16);
        for slot in 0..2u32 {
            let remote = remote.slice(u64::from(slot) * slot_len, 32 + LEN).expect("a slot");
            let target = WriteTarget { remote, immediate: Some(slot) };
            intruder.write(net, &breach, &header.with(payload), target).await;
        }
        for _ in 0..2 {
            let message = pair.b.next_unexpected().await;
            assert_eq!(message.len(), LEN as usize);
            if payload.is_empty() {
                is_clean("a message in a slot", message.bytes());
            }
        }
        intruder.leave(&breach);
        intruder.is_cut(net, &breach, "it left").await;
    }
    pair.ping(net, "beside half messages").await;
    pair.settled(net, "after half messages").await;
}

/// Opens the probe area of the victim.
async fn open(net: &Net<'_>, intruder: &Intruder, breach: &Breach) -> RemoteSlice {
    intruder.say(net, breach, &Forged { kind: PROBE, tag: 7, op: 2, ..Forged::default() }.with(&[])).await;
    let answer = intruder.hear(net, breach).await;
    assert_eq!((answer[0] & 15, answer.len()), (PROBE, 56), "an answer with an area");
    RemoteSlice::from_wire(answer[32..56].try_into().expect("24 bytes"))
}

/// What a peer wrote into the area for probes cannot be read by another peer, neither at the same
/// time nor later.
pub async fn a_probe_area_holds_nothing_of_others(net: &Net<'_>) {
    let pair = net.pair(&tight()).await;
    let intruder = Intruder::new(net).await;
    let first = intruder.breach(net, &pair.addr).await;
    let area = open(net, &intruder, &first).await;
    let target = RemoteSlice { len: LOOK as u64, ..area };
    for at in (0..LOOK as u64).step_by(250) {
        let part = target.slice(at, 250).expect("within the area");
        intruder.write(net, &first, &[POISON; 250], part.into()).await;
    }
    // The answer to an echo comes after the writes.
    intruder.say(net, &first, &Forged { kind: PROBE, tag: 8, ..Forged::default() }.with(&[])).await;
    assert_eq!(intruder.hear(net, &first).await[0] & 15, PROBE, "an echo");
    for what in ["at the same time", "later"] {
        let second = intruder.breach(net, &pair.addr).await;
        let area = open(net, &intruder, &second).await;
        if reads(net) {
            is_clean(what, &look(net, &intruder, &second, RemoteSlice { len: LOOK as u64, ..area }).await);
        }
        for breach in [&second, &first] {
            intruder.leave(breach);
        }
        intruder.is_cut(net, &second, "it left").await;
    }
    pair.settled(net, "after all probes").await;
}

/// Reads memory of the victim.
async fn look(net: &Net<'_>, intruder: &Intruder, breach: &Breach, from: RemoteSlice) -> Vec<u8> {
    const WORK: WorkId = WorkId(97);
    let into = memory(LOOK);
    let read = |t: &mut AnyTransport| {
        let Ok(region) = t.register(&into) else { return Err(PostError::QueueFull) };
        t.post_read(breach.conn, WORK, &[region.segment(0, LOOK)], from, WorkOptions::SIGNALLED)
    };
    while intruder.bare.with(read) == Err(PostError::QueueFull) {
        net.turns(1).await;
    }
    let done = |event: &Event| conn_of(event) == breach.conn && matches!(event, Event::Work(done) if done.work == WORK);
    match net.event(&intruder.bare, "a read", done).await {
        Event::Work(done) => assert_eq!((done.kind, done.status), (WorkKind::Read, WorkStatus::Ok)),
        _ => unreachable!("asked for"),
    }
    into.to_vec()
}

/// A server that answers a read without moving its data does not make the client see what another
/// server sent before. The client packs the data of both into the same buffer.
pub async fn packed_reads_hold_nothing_of_others(net: &Net<'_>) {
    let pair = net.pair(&Config::default()).await;
    let other = net.endpoint("c", &Config::default());
    let addr = other.listen(&net.listen_addr("c")).expect("listen");
    let (to_other, _) = net.connect(&pair.a, &other, &addr).await;
    let target = memory(30_000);
    let list: MemList = [target.slice(20_000, 9000), target.slice(0, 11_000)].into_iter().collect();
    for (peer, server, honest) in [(&pair.to_b, &pair.b, true), (&to_other, &other, false)] {
        let options = soon(&pair.a).lists(Lists::Pack).path(Path::ServerBased);
        target.copy_from(0, &[0; 30_000]);
        let body = Body::In(list.clone());
        let call = peer.call(b"read", body, options).expect("a call");
        let (reply, ()) = join(call.reply(), serve_read(server, honest)).await;
        reply.expect("a reply");
        if honest {
            assert!(list.to_vec().iter().all(|byte| *byte == POISON), "the data of a read");
        } else {
            is_clean("a packed read", &target.to_vec());
        }
    }
}

/// Answers a read, with poison or without moving the data.
async fn serve_read(server: &Endpoint, moves: bool) {
    let incoming = next_call(server).await;
    if moves {
        let data = poisoned(usize::try_from(incoming.len()).expect("a test's length"));
        incoming.store(0, &data, soon(server)).await.expect("store");
    }
    incoming.reply(b"done", None, soon(server)).await.expect("reply");
}

/// When a server's `store` has ended, the client can no longer read the buffer. The server may fill
/// it for another client at once.
pub async fn offered_memory_is_revoked_before_it_is_used_again(net: &Net<'_>) {
    let pair = net.pair(&Config::default()).await;
    let path = if reads(net) { Path::ClientBased } else { Path::ServerBased };
    let target = memory(20_000);
    let body = Body::In(MemList::from(&target));
    let call = pair.call(b"read", body, Some(path));
    let serve = async {
        let incoming = next_call(&pair.b).await;
        let data = poisoned(20_000);
        incoming.store(0, &data, soon(&pair.b)).await.expect("store");
        let held = pair.b.resource_usage();
        assert_eq!(held.exposures, 0, "the buffer is the server's again: {held:?}");
        incoming.reply(b"done", None, soon(&pair.b)).await.expect("reply");
    };
    let (reply, ()) = join(call.reply(), serve).await;
    reply.expect("a reply");
    assert!(target.to_vec().iter().all(|byte| *byte == POISON), "the data of a read");
    pair.settled(net, "after a read").await;
}
