//! What the servers of a process count, and how it is served in Prometheus's text form.
//!
//! **Why these crates.** All code counts through the facade `metrics`, which does nothing until a
//! recorder is installed. `metrics-exporter-prometheus` without its default features is a recorder
//! and the text form, without a server. `prometheus-client` has no recorder: each kind of value
//! would need a bridge from the facade, of our own.
//!
//! **Invariants**
//! 1. Without the key `metrics` of the configuration nothing is installed, and nothing is sampled.
//! 2. What is counted for each request is obtained once, when its loop begins. Nothing is looked up
//!    by name for it, and no lock is taken. The recorder keeps the times of requests in blocks of
//!    512, until somebody reads them, or for [`UPKEEP`].

mod http;
mod requests;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

pub(crate) use self::requests::RequestMetrics;

/// Upper bounds of the times of requests that are counted apart, in seconds: from what a request
/// takes that is answered from memory to what a disk takes that stalls.
const BOUNDS: [f64; 16] =
    [25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0];
/// How often the recorder puts the times of requests in order, if nobody reads them.
const UPKEEP: Duration = Duration::from_secs(5);
/// How often what is not counted by itself is looked at.
pub(crate) const SAMPLED_EVERY: Duration = Duration::from_secs(1);

/// Whether this process serves its counters.
static SERVED: AtomicBool = AtomicBool::new(false);

/// Returns true if somebody may read what is sampled.
pub(crate) fn is_served() -> bool {
    SERVED.load(Ordering::Relaxed)
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
    SERVED.store(true, Ordering::Relaxed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || {
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it is bound, and does not block");
            tokio::select! {
                never = http::serve(listener, page(&handle)) => match never {},
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
