//! Waits before a server starts.

use std::time::Duration;

/// Blocks this thread. Only for what is done before a server starts.
#[expect(clippy::disallowed_methods, reason = "before a server starts, without an endpoint that has deadlines")]
pub(in crate::store) fn pause(time: Duration) {
    std::thread::sleep(time);
}
