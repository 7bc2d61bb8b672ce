//! How long each resource of a node was occupied: what limits it.

use std::time::Duration;

/// How long each resource of a node was occupied since the node came up, up to the world's time.
/// Work that is booked for later does not count yet. Resources are taken to be busy without a pause
/// from the world's time to the end of their last booking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Each core, with the time in which it waited for locks.
    pub cores: Vec<Duration>,
    /// Waiting for locks, of all cores together.
    pub lock_waiting: Duration,
    /// Each lock of its program ([`crate::Node::locked`]): how long it was held.
    pub locks: Vec<(&'static str, Duration)>,
    /// The kernel's thread that receives for an adapter in software, while it had a core.
    pub kernel_receiving: Duration,
    /// The adapter's sending side.
    pub sending: Duration,
    /// The adapter's receiving side.
    pub receiving: Duration,
    /// The host's bus; the busier direction if each has its own.
    pub bus: Duration,
    /// The memory bus. It is counted where the cores share it ([`crate::Node::shards`]).
    pub memory_bus: Duration,
}

/// Returns how much of the `booked` time of a resource is over at `now`, if it is free at `free`.
pub(crate) fn over(booked: u64, free: u64, now: u64) -> Duration {
    Duration::from_nanos(booked.saturating_sub(free.saturating_sub(now)))
}

impl Load {
    /// Returns what came after `earlier`, a load of the same node.
    pub fn since(&self, earlier: &Load) -> Load {
        let before =
            |name| earlier.locks.iter().find(|(known, _)| *known == name).map_or(Duration::ZERO, |lock| lock.1);
        let core = |at: usize| earlier.cores.get(at).copied().unwrap_or_default();
        Load {
            cores: self.cores.iter().enumerate().map(|(at, time)| time.saturating_sub(core(at))).collect(),
            lock_waiting: self.lock_waiting.saturating_sub(earlier.lock_waiting),
            locks: self.locks.iter().map(|(name, time)| (*name, time.saturating_sub(before(*name)))).collect(),
            kernel_receiving: self.kernel_receiving.saturating_sub(earlier.kernel_receiving),
            sending: self.sending.saturating_sub(earlier.sending),
            receiving: self.receiving.saturating_sub(earlier.receiving),
            bus: self.bus.saturating_sub(earlier.bus),
            memory_bus: self.memory_bus.saturating_sub(earlier.memory_bus),
        }
    }

    /// Returns the part of `window` for which each resource was occupied, from 0 to 1, with its
    /// name. The cores are one resource, and waiting for locks is not counted there: the lock is
    /// the resource then.
    pub fn utilisations(&self, window: Duration) -> Vec<(String, f64)> {
        let part = |time: Duration| time.as_secs_f64() / window.as_secs_f64().max(1e-12);
        let working = self.cores.iter().sum::<Duration>().saturating_sub(self.lock_waiting);
        let mut all = vec![
            ("cores".to_owned(), part(working) / self.cores.len().max(1) as f64),
            ("kernel, receiving".to_owned(), part(self.kernel_receiving)),
            ("adapter, sending".to_owned(), part(self.sending)),
            ("adapter, receiving".to_owned(), part(self.receiving)),
            ("host bus".to_owned(), part(self.bus)),
            ("memory bus".to_owned(), part(self.memory_bus)),
        ];
        all.extend(self.locks.iter().map(|(name, time)| (format!("lock of the {name}"), part(*time))));
        all
    }
}
