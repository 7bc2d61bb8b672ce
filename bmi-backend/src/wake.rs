//! The waker of a transport that has a descriptor to wait on.

use std::io;
use std::sync::Arc;
use std::task::{Wake, Waker};

struct WakeBy<F>(F);

impl<F: Fn() -> io::Result<()> + Send + Sync + 'static> Wake for WakeBy<F> {
    fn wake(self: Arc<WakeBy<F>>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<WakeBy<F>>) {
        if let Err(error) = (self.0)() {
            tracing::error!(%error, "cannot wake the transport");
        }
    }
}

/// Returns the waker of a transport. `make_readable` makes the transport's descriptor readable, on
/// any thread and without blocking. If it fails, the error is logged: a waker cannot return it.
pub fn waker(make_readable: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(WakeBy(make_readable)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn every_wake_up_reaches_the_descriptor_also_after_one_that_failed() {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = calls.clone();
        let waker = waker(move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        });
        waker.wake_by_ref();
        waker.wake();
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}
