//! The facade `metrics`, or nothing in its place without the feature.

#[cfg(feature = "metrics")]
mod chosen {
    pub(in crate::rpc) use ::metrics::{Counter, Gauge, Histogram};

    pub(in crate::rpc) fn counter(name: &'static str) -> Counter {
        ::metrics::counter!(name)
    }

    pub(in crate::rpc) fn outcome(name: &'static str, outcome: &'static str) -> Counter {
        ::metrics::counter!(name, "outcome" => outcome)
    }

    pub(in crate::rpc) fn gauge(name: &'static str) -> Gauge {
        ::metrics::gauge!(name)
    }

    pub(in crate::rpc) fn histogram(name: &'static str) -> Histogram {
        ::metrics::histogram!(name)
    }
}

#[cfg(not(feature = "metrics"))]
mod chosen {
    use std::time::Duration;

    pub(in crate::rpc) struct Counter;
    pub(in crate::rpc) struct Gauge;
    pub(in crate::rpc) struct Histogram;

    impl Counter {
        pub(in crate::rpc) fn increment(&self, _: u64) {}
    }

    impl Gauge {
        pub(in crate::rpc) fn increment(&self, _: f64) {}
        pub(in crate::rpc) fn decrement(&self, _: f64) {}
    }

    impl Histogram {
        pub(in crate::rpc) fn record(&self, _: Duration) {}
    }

    pub(in crate::rpc) fn counter(_: &'static str) -> Counter {
        Counter
    }

    pub(in crate::rpc) fn outcome(_: &'static str, _: &'static str) -> Counter {
        Counter
    }

    pub(in crate::rpc) fn gauge(_: &'static str) -> Gauge {
        Gauge
    }

    pub(in crate::rpc) fn histogram(_: &'static str) -> Histogram {
        Histogram
    }
}

use std::sync::atomic::{AtomicU64, Ordering};

pub(super) use self::chosen::{Counter, Gauge, Histogram, counter, gauge, histogram, outcome};

/// One of the numbers whose sum is a gauge: other servers and clients of the process add theirs. It
/// is taken back when this is dropped.
pub(super) struct Level {
    gauge: Gauge,
    now: AtomicU64,
}

impl Level {
    pub(super) fn new(gauge: Gauge) -> Level {
        Level { gauge, now: AtomicU64::new(0) }
    }

    pub(super) fn set(&self, now: u64) {
        let before = self.now.swap(now, Ordering::Relaxed);
        self.gauge.increment(now as f64 - before as f64);
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        self.set(0);
    }
}
