//! Long messages do not hold the adapter. Queue pairs take turns by units, control and messages
//! pass bulk, at both ends, and within a connection nothing overtakes. A node has one processor:
//! its tasks wait for each other's work.

use std::time::Duration;

use bmi_core::driver::Waiting;
use bmi_core::transport::{Event, HostWork, Payload, ServiceClass, Transport, WorkId, WorkKind, WorkOptions};
use bmi_core::{Access, Config, Memory, Options, RemoteSlice, Time};
use bmi_sim::{SimConfig, World};

use crate::support::{Side, one_event, pair};

const LEN: usize = 1 << 20;
const NEVER: Time = Time::from_nanos(u64::MAX);

fn class(class: ServiceClass) -> WorkOptions {
    WorkOptions { signalled: true, class }
}

/// Creates a second connection between two sides' transports.
fn second(world: &World, a: &mut Side, b: &mut Side) -> (bmi_core::transport::ConnId, bmi_core::transport::ConnId) {
    let addr = b.t.listen(&world.node("server").addr(0)).unwrap();
    let conn_a = a.t.connect(&addr, b"", NEVER).unwrap();
    world.run();
    let Event::ConnectRequest { conn: conn_b, .. } = one_event(&mut b.t) else { panic!("no request") };
    b.t.accept(conn_b, b"").unwrap();
    world.run();
    one_event(&mut a.t);
    one_event(&mut b.t);
    (conn_a, conn_b)
}

/// Returns the request and time of each of a side's completions of that kind, in order.
fn watch(world: &World, side: &mut Side, kind: WorkKind, count: usize) -> Vec<(u64, Time)> {
    let mut seen = Vec::new();
    while seen.len() < count {
        assert!(world.step(NEVER), "the world stands still");
        side.poll();
        seen.extend(side.done.drain(..).filter(|done| done.kind == kind).map(|done| (done.work.0, world.now())));
    }
    seen
}

fn write(side: &mut Side, work: u64, to: RemoteSlice, options: WorkOptions) {
    let conn = side.conn;
    let region = side.region(&vec![7; to.len as usize]);
    side.t.post_write(conn, WorkId(work), &[], &[region.segment(0, to.len as usize)], to.into(), options).unwrap();
}

#[test]
fn a_message_passes_the_bulk_of_another_connection() {
    let world = World::with(SimConfig::vapi_2003());
    let (mut a, mut b) = pair(&world);
    let (other_a, other_b) = second(&world, &mut a, &mut b);
    let target = b.region(&vec![0; LEN]);
    let remote = b.t.expose(b.conn, &target.segment(0, LEN), Access::WRITE).unwrap();
    write(&mut a, 1, remote, class(ServiceClass::Bulk));
    world.run_for(Duration::from_micros(1_300)); // registration, and then some
    let sink = b.region(&[0; 64]);
    b.t.post_recv(other_b, WorkId(2), &[sink.segment(0, 64)]).unwrap();
    let posted = world.now();
    a.t.post_send(other_a, WorkId(3), b"small", Payload::EMPTY, class(ServiceClass::Message)).unwrap();
    let arrived = watch(&world, &mut b, WorkKind::Recv, 1)[0].1;
    // Its own 8 µs, and at most a unit of 8 KiB of the other one at the sender and at the receiver.
    assert!(arrived - posted < Duration::from_micros(8 + 2 * 10), "{:?}", arrived - posted);
    assert!(target.memory().slice(LEN - 1, 1).to_vec() == [0], "the bulk write is still in flight");
    world.run();
    assert_eq!(a.take().len(), 2);
}

/// C3: a small message behind a long write of its own connection waits, whatever its class.
#[test]
fn nothing_overtakes_within_a_connection() {
    let world = World::with(SimConfig { jitter_ns: 30_000, ..SimConfig::seeded(4) });
    let (mut a, mut b) = pair(&world);
    let target = b.region(&vec![0; LEN]);
    let remote = b.t.expose(b.conn, &target.segment(0, LEN), Access::WRITE).unwrap();
    let sink = b.region(&[0; 64]);
    for _ in 0..3 {
        b.recv(1, &sink).unwrap();
    }
    write(&mut a, 1, remote, class(ServiceClass::Bulk));
    for (work, urgency) in [(2, ServiceClass::Message), (3, ServiceClass::Control), (4, ServiceClass::Message)] {
        a.t.post_send(a.conn, WorkId(work), &[work as u8], Payload::EMPTY, class(urgency)).unwrap();
    }
    let mut order = Vec::new();
    while order.len() < 3 {
        assert!(world.step(NEVER));
        if !b.take().is_empty() {
            assert_eq!(target.memory().slice(LEN - 1, 1).to_vec(), [7], "the write came first");
            order.push(sink.memory().slice(0, 1).to_vec()[0]);
        }
    }
    assert_eq!(order, [2, 3, 4]);
}

#[test]
fn two_bulk_transfers_share() {
    let world = World::with(SimConfig::vapi_2003());
    let (mut a, mut b) = pair(&world);
    let (other_a, other_b) = second(&world, &mut a, &mut b);
    let target = b.region(&vec![0; 2 * LEN]);
    let first = b.t.expose(b.conn, &target.segment(0, LEN), Access::WRITE).unwrap();
    let other = b.t.expose(other_b, &target.segment(LEN, LEN), Access::WRITE).unwrap();
    let region = a.region(&vec![7; LEN]);
    world.run_for(Duration::from_millis(5)); // registration
    let start = world.now();
    for (conn, work, remote) in [(a.conn, 1, first), (other_a, 2, other)] {
        let segments = [region.segment(0, LEN)];
        a.t.post_write(conn, WorkId(work), &[], &segments, remote.into(), class(ServiceClass::Bulk)).unwrap();
    }
    let ends = watch(&world, &mut a, WorkKind::Write, 2);
    let took = |at: usize| (ends[at].1 - start).as_secs_f64();
    assert!(took(0) > 0.95 * took(1), "one waited for the other: {} and {}", took(0), took(1));
}

/// The replies to reads do not keep their node from sending.
#[test]
fn messages_pass_the_replies_to_reads() {
    let world = World::with(SimConfig::vapi_2003());
    let (mut a, mut b) = pair(&world);
    let source = b.region(&vec![5; LEN]);
    let remote = b.t.expose(b.conn, &source.segment(0, LEN), Access::READ).unwrap();
    let into = a.region(&vec![0; LEN]);
    world.run_for(Duration::from_millis(5));
    let sink = a.region(&[0; 64]);
    a.recv(1, &sink).unwrap();
    world.run_for(Duration::from_millis(5));
    a.t.post_read(a.conn, WorkId(2), &[into.segment(0, LEN)], remote, class(ServiceClass::Bulk)).unwrap();
    world.run_for(Duration::from_micros(100));
    let posted = world.now();
    b.send(3, b"small").unwrap();
    let arrived = watch(&world, &mut a, WorkKind::Recv, 1)[0].1;
    assert!(arrived - posted < Duration::from_micros(8 + 2 * 10), "{:?}", arrived - posted);
}

/// A node has one processor: a task goes on when its work is done, and other tasks wait for that.
#[test]
fn tasks_wait_for_their_processor() {
    let world = World::new(1);
    let node = world.node("host");
    let mut transport = node.transport().unwrap();
    let here = node.clone();
    let worker = node.spawn(async move {
        transport.charge(HostWork::Copy { bytes: 1 << 30, pieces: 1 });
        let ahead = (here.now(), here.sim().now());
        here.sleep(Duration::ZERO).await;
        (ahead, here.sim().now())
    });
    let here = node.clone();
    let bystander = node.spawn(async move { here.sim().now() });
    let elsewhere = world.node("elsewhere");
    let there = elsewhere.clone();
    let free = elsewhere.spawn(async move { there.now() });
    let ((((ahead, world_then), after), held), free) =
        world.block_on(async { Ok::<_, bmi_sim::Killed>(((worker.await?, bystander.await?), free.await?)) }).unwrap();
    assert_eq!(world_then, Time::ZERO);
    assert!(ahead > Time::ZERO + Duration::from_millis(50), "a GiB is copied in {ahead}");
    assert_eq!((after, held, free), (ahead, ahead, Time::ZERO));
}

#[test]
fn a_killed_node_forgets_who_waited_for_its_processor() {
    let world = World::new(1);
    let node = world.node("host");
    for _ in 0..3 {
        let here = node.clone();
        node.spawn(async move { here.compute(Duration::from_secs(1)).await });
    }
    world.run_for(Duration::from_millis(1));
    node.kill();
    node.restart();
    let here = node.clone();
    let task = node.spawn(async move { here.now() });
    assert!(world.block_on(task).unwrap() < Time::ZERO + Duration::from_secs(1));
}

/// Exchanges requests and replies with long pauses. Returns the client's busy time, its spinning
/// time, and the duration of the exchange.
fn pauses(waiting: Waiting) -> (Duration, Duration, Duration) {
    let world = World::with(SimConfig::vapi_2003());
    let (server, client) = (world.node("server"), world.node("client"));
    let s = server.endpoint(Config::default()).unwrap();
    let c = client.endpoint_waiting(Config::default(), waiting).unwrap();
    let addr = s.listen(&server.addr(0)).unwrap();
    let node = server.clone();
    server.spawn(async move {
        loop {
            let request = s.next_unexpected().await;
            node.sleep(Duration::from_millis(2)).await;
            let options = s.within(Duration::from_secs(1));
            let _ = request.peer().send(request.tag(), Memory::from(vec![1]), options).await;
        }
    });
    let here = client.clone();
    let asking = client.spawn(async move {
        let peer = c.connect(&addr, Options::default()).await.unwrap();
        let (busy, start) = (here.cpu_busy(), here.now());
        for tag in 0..20 {
            let answer = peer.recv(tag, Memory::zeroed(1).unwrap(), peer.within(Duration::from_secs(1)));
            // Sent by the adapter's gather, so that its completion is awaited.
            let request = Memory::zeroed(1_000).unwrap();
            peer.send_unexpected(tag, request, peer.within(Duration::from_secs(1))).await.unwrap();
            answer.await.unwrap();
        }
        (here.cpu_busy() - busy, here.now() - start)
    });
    let (busy, took) = world.block_on(asking).unwrap();
    (busy, client.cpu_spinning(), took)
}

/// [PVFS-IB §3.2.4]: polling answers fastest and uses the processor all the time; sleeping does
/// neither.
#[test]
fn waiting_costs_the_processor_as_chosen() {
    let (busy, spun, took) = pauses(Waiting::Busy);
    assert!(spun > 19 * Duration::from_millis(2), "polls all the time: {spun:?}");
    let (event_busy, event_spun, event_took) = pauses(Waiting::Event);
    assert_eq!(event_spun, Duration::ZERO);
    assert!(event_busy > busy && event_took > took, "waking takes time");
    let (paper_busy, paper_spun, paper_took) = pauses(Waiting::PAPER_CLIENT);
    assert!(
        paper_spun > Duration::ZERO && paper_spun < Duration::from_millis(1),
        "polls for its sends: {paper_spun:?}"
    );
    assert!(paper_took <= event_took && paper_took > took, "{took:?} < {paper_took:?} <= {event_took:?}");
    assert!(busy < paper_busy && paper_busy < event_busy, "{busy:?} < {paper_busy:?} < {event_busy:?}");
    let (_, adaptive_spun, adaptive_took) = pauses(Waiting::Adaptive);
    assert!(adaptive_spun < Duration::from_millis(2), "learns that polling does not pay: {adaptive_spun:?}");
    assert!(adaptive_took <= event_took);
}
