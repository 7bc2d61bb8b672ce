//! Tests of the simulator, and of the protocol in it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod calibration;
mod check;
mod classes;
mod cores;
mod determinism;
mod dropped_calls;
mod ended_early;
mod endpoint;
mod endpoint_timeline;
mod evictions;
mod executor;
mod faults;
mod figures;
mod fit;
mod handle;
mod log;
mod matching_order;
mod model;
mod mutated;
mod named_by_peers;
mod pacing;
mod pin_cache;
mod regressions;
mod serve;
mod shards;
mod short_paths;
mod support;
mod table2;
mod timeline;
mod transport;
