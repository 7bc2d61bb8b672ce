//! Carries out the scripts and checks their results.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bmi_conformance::data::{GUARD, Guarded, memory, pattern};
use bmi_core::comm::{Body, Direction, Incoming, PathCounters, Reply};
use bmi_core::{Access, BulkDescriptor, ErrorKind, MAX_TAG, MemList, Memory, Message, Options, Tag, Time};
use bmi_sim::{Rng, World};
use futures_util::future::join_all;

use crate::script::{Script, Step, split};
use crate::{SOON, Side};

/// Number of exchanges of a seed.
const EXCHANGES: usize = 40;
/// All exchanges begin within this time.
const BEGIN_NANOS: u64 = 2_000_000;
/// Number of messages of a stream.
const STREAM: usize = 12;
/// Long enough for any work that an adapter may still do after an operation's end.
const AFTERMATH: Duration = Duration::from_millis(2);
/// The replacement for a message that was cancelled.
const INSTEAD: &[u8] = b"instead";

/// The state that both sides share.
struct Plot {
    seed: u64,
    scripts: Vec<Script>,
    /// Number of unexpected messages of each exchange that have arrived.
    came: RefCell<BTreeMap<usize, usize>>,
}

/// Returns a tag of an exchange. Tags below 16 belong to the streams.
fn tag(number: usize, place: u64) -> Tag {
    16 * (number as u64 + 1) + place
}

/// The place of an exchange's unexpected messages that are not calls.
const RAW: u64 = 8;

impl Plot {
    /// Returns the seed of the bytes of an exchange.
    fn seed_of(&self, number: usize) -> u64 {
        self.seed.wrapping_mul(1000) + number as u64
    }

    fn bytes(&self, number: usize, len: usize) -> Vec<u8> {
        pattern(self.seed_of(number), len)
    }
}

/// Plays all scripts and streams of a seed. Returns the paths that the data of calls took.
pub(crate) fn play(world: &World, sides: &[Side; 2], rng: &mut Rng) -> PathCounters {
    let reads = sides[0].peer.endpoint().with(|engine| engine.capabilities().rdma_read);
    let mut scripts: Vec<Script> = (0..EXCHANGES).map(|_| Script::draw(rng, reads)).collect();
    // A message that is sent before it is requested is parked until its request, which is behind
    // it, has arrived. A peer may park only four of them, and offers may take half of that. With
    // more than one, the program would wait for itself.
    let mut early = 0;
    for script in &mut scripts {
        if let Script::CancelledSend { len, late, cancel } = *script {
            early += 1;
            if early > 1 {
                *script = Script::CancelledReceive { len, late, cancel };
            }
        }
    }
    let plot = Rc::new(Plot { seed: rng.below(1 << 40), scripts, came: RefCell::default() });
    let servers: Vec<_> = sides.iter().map(|side| side.node.spawn(attend(side.clone(), plot.clone()))).collect();
    let mut tasks = Vec::new();
    for number in 0..EXCHANGES {
        let (side, plot) = (sides[rng.below(2) as usize].clone(), plot.clone());
        let begin = Duration::from_nanos(rng.below(BEGIN_NANOS));
        tasks.push(side.node.clone().spawn(async move {
            side.node.sleep(begin).await;
            initiate(&side, &plot, number).await;
        }));
    }
    for (from, into) in [(0, 1), (1, 0)] {
        for tag in 1..3 {
            let steps: Vec<Step> = (0..STREAM).map(|_| Step::draw(rng)).collect();
            let seed = rng.next_u64();
            tasks.push(sides[into].node.spawn(receive_all(sides[into].clone(), tag, steps.clone(), seed)));
            tasks.push(sides[from].node.spawn(send_all(sides[from].clone(), tag, steps, seed)));
        }
    }
    world.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert!(world.now() < Time::ZERO + 5 * SOON, "it took {:?}", world.now());
    world.run_for(SOON);
    for server in &servers {
        assert!(!server.is_finished());
        server.abort();
    }
    let counters = sides.each_ref().map(|side| side.peer.endpoint().with(|engine| engine.path_counters()));
    counters[0].plus(&counters[1])
}

// ---- streams ------------------------------------------------------------------------------------

fn content(seed: u64, number: usize, len: usize) -> Vec<u8> {
    pattern(seed.wrapping_add(number as u64), len)
}

async fn send_all(side: Side, tag: Tag, steps: Vec<Step>, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut sends = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        side.node.sleep(step.send_gap).await;
        let lens = split(&mut rng, step.len, step.pieces);
        let list = Guarded::filled(seed.wrapping_add(number as u64), &lens).list();
        sends.push(side.peer.send(tag, list, side.peer.within(SOON)));
    }
    for (number, send) in sends.into_iter().enumerate() {
        send.await.unwrap_or_else(|error| panic!("message {number} of stream {tag}: {error}"));
    }
}

async fn receive_all(side: Side, tag: Tag, steps: Vec<Step>, seed: u64) {
    let mut rng = Rng::new(!seed);
    let mut receives = Vec::new();
    for step in &steps {
        side.node.sleep(step.recv_gap).await;
        let target = Guarded::new(&split(&mut rng, step.room, step.pieces));
        let receive = side.peer.recv(tag, target.list(), side.peer.within(SOON));
        receives.push((target, receive));
    }
    for (number, (target, receive)) in receives.into_iter().enumerate() {
        let what = format!("message {number} of stream {tag}");
        let done = receive.await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(done.len as usize, steps[number].len, "{what}");
        target.check(&what, &content(seed, number, steps[number].len));
    }
}

// ---- the initiator ------------------------------------------------------------------------------

/// Makes the call of an exchange, with `more` after its number.
async fn call(side: &Side, number: usize, more: &[u8], body: Body, options: Options) -> Reply {
    let request = [&(number as u64).to_le_bytes()[..], more].concat();
    let call = side.peer.call(&request, body, options).expect("a call");
    call.reply().await.unwrap_or_else(|error| panic!("the call of exchange {number}: {error}"))
}

async fn initiate(side: &Side, plot: &Plot, number: usize) {
    let what = format!("exchange {number}, {:?}", plot.scripts[number]);
    let (peer, soon) = (&side.peer, side.peer.within(SOON));
    match &plot.scripts[number] {
        Script::Call { .. } => call_with_data(side, plot, number, &what).await,
        Script::Bulk { push, exposed, at, .. } => {
            let total: usize = exposed.iter().sum();
            let bytes = plot.bytes(number, total);
            let (list, access) = match push {
                true => (Guarded::new(exposed), Access::WRITE),
                false => (Guarded::filled(plot.seed_of(number), exposed), Access::READ),
            };
            let exposure = peer.expose(list.list(), access).expect(&what);
            call(side, number, &exposure.descriptor().encode(Vec::new()), Body::None, soon).await;
            match push {
                true => list.check(&what, &[&vec![GUARD; *at], &bytes[*at..]].concat()),
                false => list.check(&what, &bytes),
            }
        }
        Script::CancelledReceive { len, cancel, .. } => {
            let (first, bytes) = (memory(*len), plot.bytes(number, *len));
            let receive = peer.recv(tag(number, 1), &first, soon);
            let asked = async { call(side, number, &[], Body::None, soon).await };
            let received = async {
                side.node.sleep(*cancel).await;
                receive.cancel();
                let outcome = receive.await;
                let after = first.to_vec();
                match outcome {
                    Ok(done) => assert!(done.len as usize == *len && after == bytes, "{what}: the first receive"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Cancelled, "{what}");
                        let second = memory(*len);
                        peer.recv(tag(number, 1), &second, soon).await.expect(&what);
                        assert!(second.to_vec() == bytes, "{what}: the second receive");
                    }
                }
                side.node.sleep(AFTERMATH).await;
                assert!(first.to_vec() == after, "{what}: bytes came after the end");
            };
            futures_util::future::join(asked, received).await;
        }
        Script::CancelledSend { len, cancel, .. } => {
            let send = peer.send(tag(number, 1), Memory::from(plot.bytes(number, *len)), soon);
            let asked = async { call(side, number, &[], Body::None, soon).await };
            let sent = async {
                side.node.sleep(*cancel).await;
                send.cancel();
                let outcome = send.await;
                if let Err(error) = &outcome {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{what}");
                    peer.send(tag(number, 1), Memory::from(INSTEAD.to_vec()), soon).await.expect(&what);
                }
                outcome.is_ok()
            };
            let (reply, sent) = futures_util::future::join(asked, sent).await;
            assert_eq!(reply.bytes[..], [u8::from(sent)], "{what}: both sides know whether it was sent");
        }
        Script::CancelledPull { len, cancel } => {
            let reply = call(side, number, &[], Body::None, soon).await;
            let remote = BulkDescriptor::decode(&reply.bytes, 1).expect(&what);
            let target = memory(*len);
            let pull = peer.pull(&remote, 0, &target, soon);
            side.node.sleep(*cancel).await;
            pull.cancel();
            let outcome = pull.await;
            let after = target.to_vec();
            match outcome {
                Ok(_) => assert!(after == plot.bytes(number, *len), "{what}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{what}"),
            }
            side.node.sleep(AFTERMATH).await;
            assert!(target.to_vec() == after, "{what}: bytes came after the end");
            peer.send(tag(number, 2), Memory::from(Vec::new()), soon).await.expect(&what);
        }
        Script::AbandonedCall { cancel, .. } => {
            let request = (number as u64).to_le_bytes();
            let first = peer.call(&request, Body::None, soon).expect(&what);
            if let Some(cancel) = cancel {
                side.node.sleep(*cancel).await;
                drop(first);
            } else {
                assert_eq!(first.reply().await.expect_err(&what).kind(), ErrorKind::Abandoned, "{what}");
            }
            assert!(call(side, number, b"again", Body::None, soon).await.bytes == b"second"[..], "{what}");
        }
        Script::TooLong { len } => {
            let target = Guarded::new(&[len - 1]);
            let receive = peer.recv(tag(number, 1), target.list(), soon);
            call(side, number, &[], Body::None, soon).await;
            assert_eq!(receive.await.expect_err(&what).kind(), ErrorKind::TooLarge, "{what}");
            target.check(&what, &vec![GUARD; len - 1]);
        }
        Script::Unexpected { lens, .. } => {
            let sends = lens.iter().enumerate().map(|(at, len)| {
                let bytes = Memory::from(content(plot.seed_of(number), at, *len));
                peer.send_unexpected(tag(number, RAW), bytes, soon)
            });
            for send in sends.collect::<Vec<_>>() {
                send.await.expect(&what);
            }
            call(side, number, &[], Body::None, soon).await;
        }
    }
}

async fn call_with_data(side: &Side, plot: &Plot, number: usize, what: &str) {
    let Script::Call { out, lens, forced, lists, registered, answer, .. } = &plot.scripts[number] else {
        unreachable!("the caller has looked")
    };
    let bytes = plot.bytes(number, lens.iter().sum());
    let data = if *out { Guarded::filled(plot.seed_of(number), lens) } else { Guarded::new(lens) };
    let region = registered.then(|| side.peer.endpoint().with(|engine| engine.register(data.memory())).expect(what));
    let body = if *out { Body::Out(data.list()) } else { Body::In(data.list()) };
    let (request, options) = ((number as u64).to_le_bytes(), side.peer.within(SOON).lists(*lists).path(*forced));
    let call = side.peer.call(&request, body, options).expect(what);
    let reply = call.reply().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(reply.bytes == pattern(7, *answer), "{what}: the reply's bytes");
    data.check(what, &bytes);
    drop(region);
}

// ---- the other side -----------------------------------------------------------------------------

/// Takes the unexpected messages.
async fn attend(side: Side, plot: Rc<Plot>) {
    loop {
        let message = side.peer.endpoint().next_unexpected().await;
        if message.tag() <= MAX_TAG {
            assert_eq!(message.tag() % 16, RAW, "the tag of an unexpected message");
            let number = (message.tag() / 16 - 1) as usize;
            side.node.spawn(keep(side.clone(), plot.clone(), number, message));
            continue;
        }
        let incoming = Incoming::new(message).expect("a call");
        let number = u64::from_le_bytes(incoming.request()[..8].try_into().expect("eight bytes")) as usize;
        let (side, plot) = (side.clone(), plot.clone());
        side.node.clone().spawn(async move { answer(&side, &plot, number, incoming).await });
    }
}

/// Holds an unexpected message for a while.
async fn keep(side: Side, plot: Rc<Plot>, number: usize, message: Message) {
    let Script::Unexpected { lens, kept } = &plot.scripts[number] else { panic!("exchange {number} has no messages") };
    let at = {
        let mut came = plot.came.borrow_mut();
        let count = came.entry(number).or_default();
        *count += 1;
        *count - 1
    };
    let expected = content(plot.seed_of(number), at, lens[at]);
    assert!(message.bytes() == expected, "unexpected message {at} of exchange {number}");
    side.node.sleep(*kept).await;
    assert!(message.bytes() == expected, "unexpected message {at} of exchange {number}, later");
}

type Call = Incoming;

async fn answer(side: &Side, plot: &Plot, number: usize, incoming: Call) {
    let what = format!("the answer to exchange {number}, {:?}", plot.scripts[number]);
    let (peer, soon) = (incoming.peer(), incoming.within(SOON));
    let mut reply = Vec::new();
    match &plot.scripts[number] {
        Script::Call { .. } => return answer_with_data(plot, number, incoming, &what).await,
        Script::Bulk { push, exposed, at, pieces, lists } => {
            let total: usize = exposed.iter().sum();
            let remote = BulkDescriptor::decode(&incoming.request()[8..], 10).expect(&what);
            assert_eq!(remote.len() as usize, total, "{what}");
            let lens = split(&mut Rng::new(plot.seed_of(number)), total - at, *pieces);
            let (bytes, options) = (&plot.bytes(number, total)[*at..], soon.lists(*lists));
            let local = Guarded::new(&lens);
            if *push {
                local.list().copy_from(0, bytes);
                peer.push(&remote, *at as u64, local.list(), options).await.expect(&what);
            } else {
                peer.pull(&remote, *at as u64, local.list(), options).await.expect(&what);
            }
            local.check(&what, bytes);
        }
        Script::CancelledReceive { len, late, .. } => {
            side.node.sleep(*late).await;
            // Its reader may give up half-way and then ask for it again.
            while let Err(error) = peer.send(tag(number, 1), Memory::from(plot.bytes(number, *len)), soon).await {
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{what}");
            }
        }
        Script::CancelledSend { len, late, .. } => {
            side.node.sleep(*late).await;
            let target = memory((*len).max(INSTEAD.len()));
            let len_received = loop {
                match peer.recv(tag(number, 1), &target, soon).await {
                    Ok(done) => break done.len as usize,
                    // The sender gave up half-way; another message comes.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{what}"),
                }
            };
            let received = &target.to_vec()[..len_received];
            let whole = received == plot.bytes(number, *len);
            assert!(whole || received == INSTEAD, "{what}: {len_received} bytes of neither message");
            reply = vec![u8::from(whole)];
        }
        Script::CancelledPull { len, .. } => {
            let source = Memory::from(plot.bytes(number, *len));
            let exposure = peer.expose(&source, Access::READ).expect(&what);
            let over = peer.recv(tag(number, 2), memory(0), soon);
            incoming.reply(&exposure.descriptor().encode(Vec::new()), None, soon).await.expect(&what);
            over.await.expect(&what);
            return;
        }
        Script::AbandonedCall { answer, late, cancel } => {
            if incoming.request()[8..].is_empty() {
                side.node.sleep(*late).await;
                if cancel.is_none() {
                    return;
                }
                reply = pattern(7, *answer);
            } else {
                reply = b"second".to_vec();
            }
        }
        Script::TooLong { len } => {
            match peer.send(tag(number, 1), Memory::from(plot.bytes(number, *len)), soon).await {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::TooLarge, "{what}"),
            }
        }
        Script::Unexpected { lens, .. } => {
            // They were sent before the call, so they arrived before it.
            let came = plot.came.borrow().get(&number).copied().unwrap_or_default();
            assert_eq!(came, lens.len(), "{what}");
        }
    }
    incoming.reply(&reply, None, soon).await.expect(&what);
}

/// Answers as a storage server does, in units, whatever the path.
async fn answer_with_data(plot: &Plot, number: usize, incoming: Call, what: &str) {
    let Script::Call { out, lens, unit, answer, .. } = &plot.scripts[number] else { unreachable!("looked up above") };
    let (total, soon) = (lens.iter().sum::<usize>(), incoming.within(SOON));
    let (staged, bytes) = (memory(total), plot.bytes(number, total));
    assert_eq!(incoming.len() as usize, total, "{what}");
    assert!(*out == (incoming.direction() == Some(Direction::Write)), "{what}: the wrong way");
    let units = || (0..total).step_by(*unit).map(|at| (at as u64, staged.slice(at, (*unit).min(total - at))));
    let mut data = None;
    if *out {
        let fetched = join_all(units().map(|(at, slice)| incoming.fetch(at, slice, soon))).await;
        fetched.into_iter().for_each(|unit| unit.expect(what));
        assert!(staged.to_vec() == bytes, "{what}: the bytes of a write");
    } else {
        staged.copy_from(0, &bytes);
        if incoming.replies_with_data() {
            data = Some(MemList::from(&staged));
        } else {
            let stored = join_all(units().map(|(at, slice)| incoming.store(at, slice, soon))).await;
            stored.into_iter().for_each(|unit| unit.expect(what));
        }
    }
    incoming.reply(&pattern(7, *answer), data, soon).await.expect(what);
}
