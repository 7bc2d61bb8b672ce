//! Waiting for a state.

use std::pin::pin;

use tokio::sync::Notify;

/// Waits until `look` returns something. Whoever changes that notifies.
pub(super) async fn until<T>(notify: &Notify, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        let mut notified = pin!(notify.notified());
        // From here on a change is not missed.
        notified.as_mut().enable();
        if let Some(found) = look() {
            return found;
        }
        notified.await;
    }
}
