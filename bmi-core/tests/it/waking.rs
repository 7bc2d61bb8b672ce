//! Who is woken, and when.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use bmi_core::driver::MonotonicClock;
use bmi_core::{Clock, Config, Endpoint, Engine};
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
