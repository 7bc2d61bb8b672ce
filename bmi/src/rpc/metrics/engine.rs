//! What an endpoint counts by itself, brought to the facade when somebody asks for it.

use std::sync::{Mutex, PoisonError};

use ::metrics::{Counter, counter, gauge};
use bmi_core::ResourceUsage;

use super::facade::Level;
use crate::Handle;
use crate::paths::{Direction, Path};
use crate::polled::Engine;
use crate::stats::{Counters, PathCounters};

/// Lists the fields of a type, with the name and the meaning of each as a value of the facade.
/// A field that is missing here does not compile.
macro_rules! fields {
    ($table:ident, $of:ident, $type:ident, $end:literal { $($field:ident: $meaning:literal;)* }) => {
        pub(super) const $table: &[(&str, &str)] =
            &[$((concat!("bmi_engine_", stringify!($field), $end), $meaning)),*];

        fn $of(all: &$type) -> [u64; $table.len()] {
            let $type { $($field),* } = *all;
            [$($field as u64),*]
        }
    };
}

fields!(COUNTERS, counts, Counters, "_total" {
    eager: "expected messages sent eagerly";
    fast: "messages written into a fast-RDMA slot of the peer";
    fast_gathered: "of these, those sent straight from the program's memory";
    offered: "expected messages written straight into an offered receive";
    rendezvous: "expected messages sent by rendezvous";
    packed: "rendezvous lists that were copied into one piece";
    unexpected: "unexpected messages sent, requests for instance";
    pulls: "bulk transfers pulled";
    pushes: "bulk transfers pushed";
    immediate: "of these, those that completed when they were posted";
    transfer_requests: "work requests of rendezvous receives, pulls and pushes";
    transfer_units: "units that these formed, each with one completion";
    units_packed: "of these, those packed into a packing buffer";
    bytes_sent: "bytes sent in messages";
    bytes_received: "bytes received in messages";
    bytes_pulled: "bytes pulled";
    bytes_pushed: "bytes pushed";
    credit_waits: "sends that could not leave at once, mostly for lack of a credit";
    credit_messages: "credit messages sent";
    unmatched: "messages that arrived before their receive";
    discarded: "messages that were dropped, because their calls were over for instance";
    violations: "peers cut off for breaking the protocol";
    pin_hits: "times that memory was registered already when it was needed";
    pin_misses: "times that memory was not registered when it was needed";
    pin_evictions: "registrations dropped to make room for others";
    pin_failures: "registrations that the adapter refused";
    pin_batches: "batches of registrations that were dropped";
    bounced: "transfers and messages copied, because their memory could not be registered";
});

fields!(LEVELS, levels, ResourceUsage, "" {
    peers: "connections, in any state";
    operations: "operations that have not ended";
    slots: "receive slots that hold a message";
    fast_slots: "fast-RDMA slots that hold a message";
    parked: "messages that wait for a receive";
    parked_bytes: "bytes of these messages";
    exposures: "exposures that were not revoked";
    work: "work requests that the adapter has";
    fallback_buffers: "fallback buffers in use";
    retired: "exposures that have ended, and that a peer may still access";
    retired_bytes: "bytes of their memory";
});

/// The counters of the paths that the data of calls takes.
pub(super) const PATHS: [(&str, &str); 2] = [
    ("bmi_engine_path_requests_total", "calls whose data took a path, by direction"),
    ("bmi_engine_path_bytes_total", "bytes of data that took a path, by direction"),
];

/// What an endpoint counts, as values of the facade with the label `endpoint`, its name.
pub struct EngineMetrics {
    counters: Vec<Counter>,
    counted: [u64; COUNTERS.len()],
    levels: Vec<Level>,
    paths: Vec<(Direction, Path, [Counter; 2])>,
    taken: PathCounters,
}

impl EngineMetrics {
    /// Obtains the values for an endpoint.
    pub fn of(engine: &Engine) -> EngineMetrics {
        super::describe();
        let label = [("endpoint", engine.config().name.clone())];
        let path = |direction: Direction, path: Path| {
            let [endpoint] = label.clone();
            let labels = [endpoint, ("direction", direction.as_str().to_owned()), ("path", path.as_str().to_owned())];
            (direction, path, PATHS.map(|(name, _)| counter!(name, &labels)))
        };
        let taken = |direction| Path::TAKEN.into_iter().map(move |taken| path(direction, taken));
        EngineMetrics {
            counters: COUNTERS.iter().map(|(name, _)| counter!(*name, &label)).collect(),
            counted: [0; COUNTERS.len()],
            levels: LEVELS.iter().map(|(name, _)| Level::new(gauge!(*name, &label))).collect(),
            paths: Direction::ALL.into_iter().flat_map(taken).collect(),
            taken: PathCounters::default(),
        }
    }

    /// Adds what the endpoint has counted since the last time, and sets the gauges.
    pub fn sample(&mut self, engine: &Engine) {
        let counted = counts(&engine.counters());
        for ((counter, now), before) in self.counters.iter().zip(counted).zip(self.counted) {
            counter.increment(now - before);
        }
        self.counted = counted;
        self.levels.iter().zip(levels(&engine.resource_usage())).for_each(|(level, now)| level.set(now));
        let taken = engine.path_counters();
        let since = taken.since(&self.taken);
        for (direction, path, [requests, bytes]) in &self.paths {
            requests.increment(since.requests(*direction, *path));
            bytes.increment(since.bytes(*direction, *path));
        }
        self.taken = taken;
    }
}

/// The endpoints of a server or a client, in the order in which they were opened.
#[derive(Default)]
pub(in crate::rpc) struct Engines(Mutex<Vec<EngineMetrics>>);

impl Engines {
    pub(in crate::rpc) fn sample<'a>(&self, handles: impl IntoIterator<Item = &'a Handle>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, endpoint) in handles.into_iter().flat_map(Handle::endpoints).enumerate() {
            endpoint.with(|engine| {
                if at == known.len() {
                    known.push(EngineMetrics::of(engine));
                }
                known[at].sample(engine);
            });
        }
    }
}
