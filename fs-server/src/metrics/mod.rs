//! What the servers of a process count, and how it is served in Prometheus's text form.
//!
//! **Why these crates.** All code counts through the facade `metrics`, which does nothing until a
//! recorder is installed. `metrics-exporter-prometheus` without its default features is a recorder
//! and the text form, without a server. `prometheus-client` has no recorder: each kind of value
//! would need a bridge from the facade, of our own.
//!
//! **Invariants**
//! 1. Without the key `metrics` of the configuration nothing is installed, and nothing is sampled.
//! 2. What is counted for each request is obtained once: when its loop begins, or with the first
//!    request of its kind. The recorder is not asked again, and no lock is taken. It keeps the
//!    times of requests in blocks of 64, until somebody reads them, or for [`UPKEEP`].

mod http;
mod requests;
mod values;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use bmi::Endpoint;
use metrics::{counter, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub(crate) use self::requests::RequestMetrics;
pub(crate) use self::values::{UP, Values, of_buffers, of_cache, of_manager, of_store, of_sums};

/// Upper bounds of the times of requests that are counted apart, in seconds: from what a request
/// takes that is answered from memory to what a disk takes that stalls.
const BOUNDS: [f64; 16] =
    [25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0];
/// How often the recorder puts the times of requests in order, if nobody reads them.
const UPKEEP: Duration = Duration::from_secs(5);
/// How often a server looks at what is not counted as it happens.
const SAMPLED_EVERY: Duration = Duration::from_secs(1);

/// Whether this process serves its counters.
static SERVED: AtomicBool = AtomicBool::new(false);

/// Waits until it is time to look again at what is not counted as it happens. That is never, if
/// nobody can read it.
pub(crate) async fn next_sample(endpoint: &Endpoint) {
    match SERVED.load(Ordering::Relaxed) {
        true => endpoint.sleep(SAMPLED_EVERY).await,
        false => std::future::pending().await,
    }
}

/// Asks a server for values from time to time. It never returns.
pub(crate) async fn keep_sampling(endpoint: &Endpoint, values: impl AsyncFn() -> Values) {
    let server = endpoint.with(|engine| engine.config().name.clone());
    loop {
        next_sample(endpoint).await;
        for (name, value) in values().await {
            match name.ends_with("_total") {
                true => counter!(name, "server" => server.clone()).absolute(value),
                false => gauge!(name, "server" => server.clone()).set(value as f64),
            }
        }
    }
}

/// Counts from now on, and serves the counters at an address as long as the process lives.
///
/// # Errors
/// The address cannot be listened at.
pub(crate) fn serve(addr: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(addr)?;
    listener.set_nonblocking(true)?;
    let recorder = builder().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(io::Error::other)?;
    values::describe();
    SERVED.store(true, Ordering::Relaxed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it is bound, and does not block");
            tokio::select! {
                never = http::serve(listener, page(&handle), http::PATIENCE) => match never {},
                never = keep_up(&handle) => match never {},
            }
        });
    };
    Builder::new().name("metrics".to_owned()).spawn(run).map(drop)
}

fn builder() -> PrometheusBuilder {
    let all = Matcher::Prefix(String::new());
    PrometheusBuilder::new().set_buckets_for_metric(all, &BOUNDS).expect("there are bounds")
}

fn page(handle: &PrometheusHandle) -> http::Page {
    let handle = handle.clone();
    Arc::new(move || handle.render())
}

#[expect(clippy::disallowed_methods, reason = "it is not in the simulator")]
async fn keep_up(handle: &PrometheusHandle) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(UPKEEP).await;
        handle.run_upkeep();
    }
}
