//! Who is woken, and when.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bmi_core::comm::Body;
use bmi_core::driver::MonotonicClock;
use bmi_core::transport::Armed;
use bmi_core::{Addr, Clock, Config, Endpoint, Engine, Handle, HandleConfig, SharedEndpoint};
use bmi_tcp::{TcpConfig, TcpTransport};

#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Replays a bug: each poll woke the waker of the poll before. A task whose futures are polled with
/// two wakers, as those of a `select!` in a `join!`, took all of the processor while it waited.
#[test]
fn polling_a_future_with_another_waker_wakes_nobody() {
    let clock = MonotonicClock::new();
    let transport = Box::new(TcpTransport::new(TcpConfig::default()).unwrap());
    let endpoint = Endpoint::new(Engine::new(transport, Config::named("alone"), clock.now()).unwrap(), clock);
    while endpoint.progress() {}
    let counts = [Arc::new(Counting::default()), Arc::new(Counting::default())];
    let wakers = counts.each_ref().map(|count| Waker::from(Arc::clone(count)));
    let mut future = pin!(endpoint.sleep(Duration::from_secs(1000)));
    for round in 0..10 {
        assert!(future.as_mut().poll(&mut Context::from_waker(&wakers[round % 2])).is_pending());
    }
    assert_eq!(counts.each_ref().map(|count| count.0.load(Ordering::Relaxed)), [0, 0]);
}

/// Replays a bug: a driver that slept was woken when the message of a call was dropped. On tokio
/// that woke a second worker for each call, and took twice the processor time.
#[test]
fn a_call_is_served_while_the_driver_sleeps() {
    let clock = MonotonicClock::new();
    let open = |name| {
        let transport = Box::new(TcpTransport::new(TcpConfig::default()).unwrap());
        let engine = Engine::new(transport, Config::named(name), clock.now()).unwrap();
        let (handle, mut endpoints) = Handle::undriven(vec![engine], clock, HandleConfig::default()).unwrap();
        (handle, endpoints.remove(0))
    };
    let ((server, served), (client, driven)) = (open("server"), open("client"));
    let addr = server.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let soon = client.within(Duration::from_secs(20));
    let peer = run(client.connect(&addr, soon), &[&served, &driven]).unwrap();

    for round in 0..40 {
        let reply = peer.call(b"request", Body::None, soon).unwrap();
        let message = run(server.next_unexpected(), &[&served, &driven]).unwrap();
        while served.progress() {}
        let count = Arc::new(Counting::default());
        let waker = Waker::from(Arc::clone(&count));
        assert_eq!(served.arm(&waker), Armed::Waiting);
        let call = message.into_call().unwrap();
        let mut answer = pin!(call.reply(b"reply", None, soon));
        assert!(answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready(), "sent by the caller");
        // The server is polled no more.
        assert_eq!(run(reply.reply(), &[&driven]).unwrap().bytes, b"reply".as_slice());
        assert_eq!(count.0.load(Ordering::Relaxed), 0, "in round {round}");
    }
}

/// Polls a future and endpoints until the future is ready.
fn run<F: Future>(future: F, endpoints: &[&SharedEndpoint]) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        for endpoint in endpoints {
            endpoint.progress();
        }
    }
}
