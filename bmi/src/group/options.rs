//! The settings of a group.

use std::time::Duration;

/// The settings of a group. All members should have the same.
#[derive(Clone, Debug)]
#[must_use = "a group takes them when it meets"]
pub struct GroupOptions {
    pub(super) name: String,
    pub(super) limit: Duration,
    pub(super) max_value: usize,
    pub(super) max_received: u64,
    pub(super) window: usize,
}

impl Default for GroupOptions {
    fn default() -> GroupOptions {
        GroupOptions {
            name: String::new(),
            limit: Duration::from_secs(30),
            max_value: 64 << 10,
            max_received: 256 << 20,
            window: 8,
        }
    }
}

impl GroupOptions {
    /// Sets the name, of at most 255 bytes. Only members with the same name meet. The default is
    /// empty.
    pub fn name(mut self, name: impl Into<String>) -> GroupOptions {
        self.name = name.into();
        self
    }

    /// Sets the time for the meeting, and for each operation until [`Group::set_limit`]. The
    /// default is 30 s.
    ///
    /// [`Group::set_limit`]: super::Group::set_limit
    pub fn limit(mut self, limit: Duration) -> GroupOptions {
        self.limit = limit;
        self
    }

    /// Sets the longest value of an all-gather or a broadcast, in bytes. The default is 64 KiB.
    pub fn max_value(mut self, bytes: usize) -> GroupOptions {
        self.max_value = bytes;
        self
    }

    /// Sets how many bytes the others may send this member in one all-to-all. The default is
    /// 256 MiB.
    pub fn max_received(mut self, bytes: u64) -> GroupOptions {
        self.max_received = bytes;
        self
    }

    /// Sets how many long parts a member sends at a time in an all-to-all or an exchange; twice as
    /// many short ones. The default is 8.
    pub fn window(mut self, parts: usize) -> GroupOptions {
        self.window = parts.max(1);
        self
    }
}
