//! Busy polling: the lowest latency, for the price of a whole core.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::endpoint::Endpoint;
use crate::endpoint::threading::Threading;
use crate::time::Time;

/// Number of rounds between two looks at the clock, which cost a part of a poll that finds nothing.
/// So a deadline may be noticed this many polls late.
const CLOCK_ROUNDS: u32 = 16;

/// Set when the future can go on.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `future` to its end on this thread. Polls all `endpoints` in turn, and never sleeps.
pub fn block_on<S: Threading, F: Future>(endpoints: &[Endpoint<S>], future: F) -> F::Output {
    let mut future = pin!(future);
    let flag = Arc::new(Flag(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&flag));
    let mut cx = Context::from_waker(&waker);
    let mut round = 0_u32;
    loop {
        if flag.0.swap(false, Ordering::Acquire)
            && let Poll::Ready(output) = future.as_mut().poll(&mut cx)
        {
            return output;
        }
        let mut worked = false;
        let looks = round.is_multiple_of(CLOCK_ROUNDS);
        for endpoint in endpoints {
            worked |= endpoint.progress_at(if looks { endpoint.now() } else { Time::ZERO });
        }
        round = round.wrapping_add(1);
        if !worked {
            std::hint::spin_loop();
        }
    }
}
