//! Timelines over TCP on the loopback, by real clocks of which one is ahead by a known time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bmi_core::comm::{Body, serve};
use bmi_core::driver::{MonotonicClock, busy};
use bmi_core::timeline::{What, align, merge};
use bmi_core::{
    Clock, Config, Endpoint, Engine, ErrorKind, Memory, Options, PeerEvent, Time, Timeline, TimelineOptions,
};
use bmi_tcp::{TcpConfig, TcpTransport};
use futures_util::future::{Either, select};
use serde_json::Value;

const AHEAD: Duration = Duration::from_secs(5);
const CALLS: usize = 50;

/// A clock that is ahead of the machine's.
struct Skewed(MonotonicClock, Duration);

impl Clock for Skewed {
    fn now(&self) -> Time {
        self.0.now() + self.1
    }
}

fn transport() -> TcpTransport {
    TcpTransport::new(TcpConfig::default()).unwrap()
}

fn endpoint(clock: MonotonicClock, ahead: Duration) -> Endpoint {
    let mut endpoint = Engine::new(Box::new(transport()), Config::default(), clock.now()).unwrap();
    endpoint.record(TimelineOptions::default(), Skewed(clock, ahead)).unwrap();
    Endpoint::new(endpoint, clock)
}

/// Makes calls and sends messages over TCP. Returns what both sides recorded. The server's clock is
/// ahead.
fn exchange() -> [Timeline; 2] {
    let clock = MonotonicClock::new();
    let (client, server) = (endpoint(clock, Duration::ZERO), endpoint(clock, AHEAD));
    let addr = server.listen(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
    let both = [client.clone(), server.clone()];
    let within = client.within(Duration::from_secs(60));
    let serving = serve(&server, 4, async |call| {
        let (request, options) = (call.request_bytes(), call.within(Duration::from_secs(60)));
        call.reply(&request, None, options).await
    });
    let talking = async {
        let peer = client.connect(&addr, Options::default()).await.unwrap();
        let PeerEvent::Connected { peer: back, .. } = server.next_event().await else { panic!("no peer") };
        for _ in 0..CALLS {
            let reply = peer.call(b"request", Body::None, within).unwrap().reply().await.unwrap();
            assert_eq!(&reply.bytes[..], b"request");
        }
        let received = back.recv(1, Memory::zeroed(1 << 20).unwrap(), within);
        peer.send(1, Memory::zeroed(1 << 20).unwrap(), within).await.unwrap();
        received.await.unwrap();
    };
    busy::block_on(&both, async {
        match select(Box::pin(talking), Box::pin(serving)).await {
            Either::Left(((), _)) => {}
            Either::Right((never, _)) => match never {},
        }
    });
    both.map(|endpoint| endpoint.with(|engine| engine.timeline()).unwrap())
}

#[test]
fn real_clocks_are_aligned_within_the_bound() {
    let [client, server] = exchange();
    // As a program would, that fetches the timeline of its server.
    let server = Timeline::decode(&server.encode()).unwrap();
    let found = align(&client, &server).unwrap();
    assert!((found.offset_ns - AHEAD.as_nanos() as i128).abs() <= found.error_ns, "{found:?}");
    assert!(found.error_ns > 0 && found.messages > 2 * CALLS, "{found:?}");

    let mut text = Vec::new();
    merge(&client, &server).write_chrome(&mut text).unwrap();
    let json: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(json["otherData"]["error bound ns"].as_i64().map(i128::from), Some(found.error_ns));
    let events = json["traceEvents"].as_array().unwrap();
    let ends = |phase: &str| {
        let of_phase = events.iter().filter(|event| event["ph"] == phase);
        let mut ends: Vec<(u64, u64, f64)> = of_phase
            .map(|event| (event["id"].as_u64().unwrap(), event["pid"].as_u64().unwrap(), event["ts"].as_f64().unwrap()))
            .collect();
        ends.sort_by_key(|end| end.0);
        ends
    };
    let (from, to) = (ends("s"), ends("f"));
    assert_eq!((from.len(), to.len()), (found.messages, found.messages));
    for (from, to) in from.iter().zip(&to) {
        assert!(from.0 == to.0 && from.1 != to.1 && from.2 <= to.2, "an arrow from {from:?} to {to:?}");
    }
    let calls = events.iter().filter(|event| event["ph"] == "b" && event["name"] == "call");
    assert_eq!(calls.count(), CALLS);
    let moved = |timeline: &Timeline| -> u64 {
        timeline.entries.iter().filter(|entry| matches!(entry.what, What::Unit(_))).map(|entry| entry.bytes).sum()
    };
    assert_eq!(moved(&client) + moved(&server), 1 << 20, "the units of the long message");
}

/// A clock that is a millisecond later each time.
#[derive(Clone, Default)]
struct Ticks(Arc<AtomicU64>);

impl Clock for Ticks {
    fn now(&self) -> Time {
        Time::from_nanos(1_000_000 * (1 + self.0.fetch_add(1, Ordering::Relaxed)))
    }
}

/// A program without an executor sleeps in `wait_until`, and records it.
#[test]
fn a_thread_that_waits_records_its_sleep() {
    let clock = Ticks::default();
    let mut endpoint = Engine::new(Box::new(transport()), Config::default(), clock.now()).unwrap();
    endpoint.record(TimelineOptions { events: 100 }, clock.clone()).unwrap();
    let deadline = clock.now() + Duration::from_millis(20);
    let waited = endpoint.wait_until(&clock, deadline, |_| None::<()>);
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::TimedOut);
    let timeline = endpoint.stop_recording().unwrap();
    let slept = timeline.entries.iter().filter(|entry| entry.what == What::Sleep && entry.duration_ns > 0);
    assert!(slept.count() > 0, "{timeline:?}");
    assert!(endpoint.timeline().is_none());
}
