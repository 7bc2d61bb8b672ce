//! What servers and clients count of their calls.

use std::sync::atomic::{AtomicBool, Ordering};

use bmi_core::runtime::Instant;

use super::facade::{Counter, Gauge, Histogram, Level, counter, gauge, histogram, outcome};
use crate::ErrorKind;

/// The kinds of errors with their names, each an outcome of a call.
const KINDS: [(ErrorKind, &str); 14] = [
    (ErrorKind::Io, "Io"),
    (ErrorKind::Invalid, "Invalid"),
    (ErrorKind::Unsupported, "Unsupported"),
    (ErrorKind::Incompatible, "Incompatible"),
    (ErrorKind::Refused, "Refused"),
    (ErrorKind::Denied, "Denied"),
    (ErrorKind::PeerLost, "PeerLost"),
    (ErrorKind::TimedOut, "TimedOut"),
    (ErrorKind::Cancelled, "Cancelled"),
    (ErrorKind::Abandoned, "Abandoned"),
    (ErrorKind::TooLarge, "TooLarge"),
    (ErrorKind::Busy, "Busy"),
    (ErrorKind::Exhausted, "Exhausted"),
    (ErrorKind::Protocol, "Protocol"),
];

/// A counter for each kind of error.
struct Kinds([Counter; KINDS.len()]);

impl Kinds {
    fn new(name: &'static str) -> Kinds {
        Kinds(KINDS.map(|(_, kind)| outcome(name, kind)))
    }

    fn count(&self, kind: ErrorKind) {
        let at = KINDS.iter().position(|(known, _)| *known == kind);
        self.0[at.unwrap_or(0)].increment(1);
    }
}

/// Calls that begin and end.
struct Calls {
    ok: Counter,
    dropped: Counter,
    failed: Kinds,
    in_flight: Gauge,
    time: Histogram,
}

impl Calls {
    fn new(names: [&'static str; 3]) -> Calls {
        let [ended, in_flight, time] = names;
        Calls {
            ok: outcome(ended, "ok"),
            dropped: outcome(ended, "dropped"),
            failed: Kinds::new(ended),
            in_flight: gauge(in_flight),
            time: histogram(time),
        }
    }

    fn begin(&self) -> InFlight<'_> {
        self.in_flight.increment(1.0);
        InFlight { calls: self, since: cfg!(feature = "metrics").then(Instant::now), has_ended: false }
    }
}

/// A call in flight. It ends when this is dropped.
pub(in crate::rpc) struct InFlight<'a> {
    calls: &'a Calls,
    since: Option<Instant>,
    has_ended: bool,
}

impl InFlight<'_> {
    /// Ends the call, with the kind of its error if it has failed.
    pub(in crate::rpc) fn end(mut self, error: Option<ErrorKind>) {
        self.has_ended = true;
        match error {
            None => self.calls.ok.increment(1),
            Some(kind) => self.calls.failed.count(kind),
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.calls.dropped.increment(1);
        }
        self.calls.in_flight.decrement(1.0);
        if let Some(since) = self.since {
            self.calls.time.record(since.elapsed());
        }
    }
}

/// What a client counts.
pub(in crate::rpc) struct ClientMetrics {
    calls: Calls,
    sent: Counter,
    received: Counter,
    repeats: Counter,
    #[cfg(feature = "metrics")]
    pub(in crate::rpc) engines: super::Engines,
}

impl ClientMetrics {
    pub(in crate::rpc) fn new() -> ClientMetrics {
        #[cfg(feature = "metrics")]
        super::describe();
        ClientMetrics {
            calls: Calls::new(["bmi_client_calls_total", "bmi_client_calls_in_flight", "bmi_client_call_seconds"]),
            sent: counter("bmi_client_sent_bytes_total"),
            received: counter("bmi_client_received_bytes_total"),
            repeats: counter("bmi_client_repeats_total"),
            #[cfg(feature = "metrics")]
            engines: super::Engines::default(),
        }
    }

    pub(in crate::rpc) fn begin(&self) -> InFlight<'_> {
        self.calls.begin()
    }

    /// Counts a request that was sent, with so many bytes of data.
    pub(in crate::rpc) fn sent(&self, request: usize, data: usize) {
        self.sent.increment((request + data) as u64);
    }

    /// Counts a reply.
    pub(in crate::rpc) fn received(&self, bytes: usize, data: u64) {
        self.received.increment(bytes as u64 + data);
    }

    /// Counts a call that is made again.
    pub(in crate::rpc) fn repeated(&self) {
        self.repeats.increment(1);
    }
}

/// What a client counts of the connections to an address.
pub(in crate::rpc) struct LinkMetrics {
    /// The first connection, and those after it.
    connected: [Counter; 2],
    failed: Counter,
    /// 1 while it is up.
    up: Level,
    has_been_up: AtomicBool,
}

impl LinkMetrics {
    pub(in crate::rpc) fn new() -> LinkMetrics {
        let connects = |as_what| outcome("bmi_client_connects_total", as_what);
        LinkMetrics {
            connected: ["first", "again"].map(connects),
            failed: connects("failed"),
            up: Level::new(gauge("bmi_client_links_up")),
            has_been_up: AtomicBool::new(false),
        }
    }

    pub(in crate::rpc) fn connected(&self) {
        let again = self.has_been_up.swap(true, Ordering::Relaxed);
        self.connected[usize::from(again)].increment(1);
        self.up.set(1);
    }

    pub(in crate::rpc) fn failed(&self) {
        self.failed.increment(1);
    }

    pub(in crate::rpc) fn lost(&self) {
        self.up.set(0);
    }
}

/// What a server counts.
pub(in crate::rpc) struct ServerMetrics {
    calls: Calls,
    refused: Kinds,
    sent: Counter,
    received: Counter,
    #[cfg(feature = "metrics")]
    pub(in crate::rpc) engines: super::Engines,
}

impl ServerMetrics {
    pub(in crate::rpc) fn new() -> ServerMetrics {
        #[cfg(feature = "metrics")]
        super::describe();
        ServerMetrics {
            calls: Calls::new(["bmi_server_calls_total", "bmi_server_calls_in_flight", "bmi_server_call_seconds"]),
            refused: Kinds::new("bmi_server_refusals_total"),
            sent: counter("bmi_server_sent_bytes_total"),
            received: counter("bmi_server_received_bytes_total"),
            #[cfg(feature = "metrics")]
            engines: super::Engines::default(),
        }
    }

    /// Counts a call whose handler begins, with so many bytes.
    pub(in crate::rpc) fn begin(&self, request: usize, data: u64) -> InFlight<'_> {
        self.received.increment(request as u64 + data);
        self.calls.begin()
    }

    /// Counts a part of a stream.
    pub(in crate::rpc) fn received(&self, part: u64) {
        self.received.increment(part);
    }

    /// Counts a call that is refused before its handler begins.
    pub(in crate::rpc) fn refused(&self, kind: ErrorKind) {
        self.refused.count(kind);
    }

    /// Counts a reply that was sent.
    pub(in crate::rpc) fn sent(&self, bytes: usize, data: u64) {
        self.sent.increment(bytes as u64 + data);
    }
}
