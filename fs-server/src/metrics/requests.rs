//! What a request loop counts.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bmi::rpc::metrics::EngineMetrics;
use bmi::{Endpoint, Time};
use fs_proto::RequestBody;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// The counters of a request loop.
pub(crate) struct RequestMetrics {
    server: String,
    /// One for each kind of request that has arrived.
    requests: RefCell<BTreeMap<&'static str, Counter>>,
    errors: Counter,
    in_progress: Gauge,
    time: Histogram,
    engine: RefCell<EngineMetrics>,
}

/// A request in progress, until this is dropped.
pub(crate) struct InProgress<'a> {
    metrics: &'a RequestMetrics,
    endpoint: &'a Endpoint,
    arrived: Time,
}

impl RequestMetrics {
    /// Obtains the counters of the server that an endpoint belongs to.
    pub(crate) fn of(endpoint: &Endpoint) -> RequestMetrics {
        let server = endpoint.with(|engine| engine.config().name.clone());
        RequestMetrics {
            requests: RefCell::default(),
            errors: counter!("pvfs_request_errors_total", "server" => server.clone()),
            in_progress: gauge!("pvfs_requests_in_progress", "server" => server.clone()),
            time: histogram!("pvfs_request_seconds", "server" => server.clone()),
            engine: RefCell::new(endpoint.with(|engine| EngineMetrics::of(engine))),
            server,
        }
    }

    /// Looks at what the endpoint has counted.
    pub(crate) fn sample(&self, endpoint: &Endpoint) {
        endpoint.with(|engine| self.engine.borrow_mut().sample(engine));
    }

    /// Notes that work on a request begins.
    pub(crate) fn begin<'a>(&'a self, endpoint: &'a Endpoint, arrived: Time) -> InProgress<'a> {
        self.in_progress.increment(1.0);
        InProgress { metrics: self, endpoint, arrived }
    }
}

impl InProgress<'_> {
    /// Notes what is asked for.
    pub(crate) fn is_about(&self, request: &RequestBody) {
        let name = match request {
            RequestBody::Manager(request) => request.name(),
            RequestBody::Iod(request) => request.name(),
            RequestBody::Hello(_) => "hello",
        };
        let server = &self.metrics.server;
        let register = || counter!("pvfs_requests_total", "server" => server.clone(), "request" => name);
        self.metrics.requests.borrow_mut().entry(name).or_insert_with(register).increment(1);
    }

    /// Notes that the answer is an error.
    pub(crate) fn failed(&self) {
        self.metrics.errors.increment(1);
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.metrics.in_progress.decrement(1.0);
        self.metrics.time.record(self.endpoint.now().since(self.arrived));
    }
}
